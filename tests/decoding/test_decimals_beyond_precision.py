"""Decimals wider than their declared precision take part in filters, as stored."""

from __future__ import annotations

import decimal
import json
import operator
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.indexing import Bounds, Footers, Keys

pytestmark = pytest.mark.sampled(4)

_AS_INTEGER = {"store_decimal_as_integer": True}
FILES: list[tuple[pa.DataType, list[int], dict[str, Any]]] = [
    (pa.decimal128(2, 0), [5, -1, 127, -128], {}),  # one byte
    (pa.decimal128(4, 2), [5, -1, 32767, -32768], {}),
    (pa.decimal128(7, 0), [5, -1, 2**31 - 1, -(2**31)], _AS_INTEGER),  # INT32
    (pa.decimal128(18, 0), [5, -1, 2**63 - 1, -(2**63)], _AS_INTEGER),  # INT64
    (pa.decimal32(2, 0), [5, -1, 127, -128], {}),
    (pa.decimal64(12, 3), [5, -1, 2**39, -(2**39)], {}),
    (pa.decimal128(38, 0), [5, -1, 2**127 - 1, -(2**127)], {}),
    (pa.decimal256(76, 0), [5, -1, 2**255 - 1, -(2**255)], {}),
    (pa.decimal256(40, 0), [5, -1, 2**134, -(2**134)], {}),
]
TESTS: list[tuple[Callable[[Any, Any], Any], Callable[[Any, Any], bool]]] = [
    *((test, test) for test in (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)),
    (lambda column, value: column.is_in([value]), operator.eq),
    (lambda column, value: ~column.is_in([value]), operator.ne),
    (lambda column, value: column.between(value, value), operator.eq),
]


def decimals(values: list[int], type_: Any) -> pa.Array:
    data = b"".join([value.to_bytes(type_.byte_width, "little", signed=True) for value in values])
    return pa.Array.from_buffers(type_, len(values), [None, pa.py_buffer(data)])


@pytest.mark.sampled(8)
@pytest.mark.parametrize("trust", [True, False])
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize(("type_", "values", "options"), FILES, ids=[f"{type_}" for type_, *_ in FILES])
async def test_every_stored_value_is_found(
    type_: Any, values: list[int], options: dict[str, Any], dictionary: bool, trust: bool, tmp_path: Path
) -> None:
    table = pa.table({"x": decimals(values, type_), "id": range(len(values))})
    for number in range(2):
        pq.write_table(table, tmp_path / f"{number}.parquet", use_dictionary=dictionary, **options)
    with decimal.localcontext() as context:
        context.prec = 100
        stored = [Decimal(value).scaleb(-type_.scale) for value in values]
        literals = [*stored, stored[2] + 1, Decimal(10) ** (type_.precision - type_.scale)]
    async with asyncpq.Session(read=asyncpq.ReadOptions(trust_statistics=trust)) as session:
        file = await session.open_file(str(tmp_path / "0.parquet"))
        dataset = await session.open_dataset(str(tmp_path))
        for literal in literals:
            for make, test in TESTS:
                expected = [at for at, value in enumerate(stored) if test(value, literal)]
                where = make(col("x"), literal)
                assert (await file.read(["id"], where))["id"].to_pylist() == expected, where
                assert (await dataset.read(["id"], where))["id"].to_pylist() == expected * 2, where
            found = [at for at, value in enumerate(stored) if value == literal]
            assert (await file.lookup({"x": [literal]}, columns=["id"]))["id"].to_pylist() == found
            sql = await file.read(["id"], f"x = {literal:f}")
            assert sql["id"].to_pylist() == found


@pytest.mark.parametrize(("type_", "values", "options"), FILES, ids=[f"{type_}" for type_, *_ in FILES])
async def test_indexes_find_every_stored_value(
    type_: Any, values: list[int], options: dict[str, Any], tmp_path: Path
) -> None:
    table = pa.table({"x": decimals(values, type_), "id": range(len(values))})
    for number in range(2):
        pq.write_table(table, tmp_path / f"{number}.parquet", **options)
    async with asyncpq.Session() as session:
        await session.build_index(str(tmp_path), [Bounds("x"), Keys("x"), Footers()])
        dataset = await session.open_dataset(str(tmp_path))
        for at, value in enumerate(values):
            with decimal.localcontext() as context:
                context.prec = 100
                literal = Decimal(value).scaleb(-type_.scale)
            assert (await dataset.lookup({"x": [literal]}, columns=["id"]))["id"].to_pylist() == [at, at]
            assert await dataset.count(where=col("x") >= literal) == 2 * sum(other >= value for other in values)


def write_delta(folder: Path, values: list[int]) -> None:
    """Write a Delta table of one file, whose bounds are those of ``values``, although decimal(2,0) has two digits."""
    deltalake.write_deltalake(folder, pa.table({"x": pa.array([Decimal(1)], pa.decimal128(2, 0)), "id": [0]}))
    (file,) = folder.glob("*.parquet")
    pq.write_table(pa.table({"x": decimals(values, pa.decimal128(2, 0)), "id": range(len(values))}), file)
    log = folder / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in log.read_text().splitlines()]
    bounds = {"minValues": {"x": min(values)}, "maxValues": {"x": max(values)}, "nullCount": {"x": 0}}
    for action in actions:
        if "add" in action:
            action["add"] |= {"size": file.stat().st_size, "stats": json.dumps({"numRecords": len(values), **bounds})}
    log.write_text("\n".join(map(json.dumps, actions)))


async def test_delta_bounds_rule_out_no_stored_value(tmp_path: Path) -> None:
    values = [5, -1, 127, -128]
    write_delta(tmp_path, values)
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(tmp_path, format="delta")
        for literal in [*values, 99, 100, 128, -129]:
            for make, test in TESTS:
                where = make(col("x"), literal)
                expected = [at for at, value in enumerate(values) if test(value, literal)]
                assert (await dataset.read(["id"], where))["id"].to_pylist() == expected, where
            assert (await dataset.lookup({"x": [Decimal(literal)]})).num_rows == values.count(literal)
