"""Predicates with many keys, narrowed to those that a file may hold: the same result for every row of it, and no key
left that its statistics rule out."""

from __future__ import annotations

import pickle
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncpq
from asyncpq.decoding.filter import compile_filter
from asyncpq.expressions import And, Expression, In, KeyIn, Not, Or, atoms
from asyncpq.pruning.zone_maps import RowGroupZones, has_many_keys, narrowed
from tests.parquet_bytes import parquet_bytes
from tests.parquet_samples import OpenFile

TYPES: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int8(): st.integers(-128, 127),
    pa.int64(): st.integers(-(2**63), 2**63 - 1) | st.integers(-50, 50),
    pa.uint64(): st.integers(0, 2**64 - 1) | st.integers(0, 50),
    pa.string(): st.text(max_size=3) | st.text("ab", max_size=80),
    pa.binary(): st.binary(max_size=3) | st.sampled_from([b"\xff" * 70, b"\xff" * 64 + b"a", b""]),
    pa.float64(): st.floats(width=64),
    pa.date32(): st.dates(),
    pa.decimal128(9, 2): st.decimals(-1000, 1000, places=2),
}
KINDS = list(TYPES)


@st.composite
def cases(draw: st.DrawFn) -> tuple[pa.Array, bytes, list[Any]]:
    type_ = draw(st.sampled_from(KINDS))
    values = TYPES[type_]
    column = pa.array(draw(st.lists(st.none() | values, min_size=1, max_size=12)), type_)
    data = parquet_bytes(
        pa.table({"x": column}), row_group_size=draw(st.integers(1, 12)), write_statistics=draw(st.integers(0, 4)) > 0
    )
    known = [value for value in column.to_pylist() if value is not None]
    member = values | st.sampled_from(known) if known else values
    keys = draw(st.lists(member, min_size=17, max_size=40))
    if draw(st.integers(0, 5)) == 0:
        keys.append(None)
    return column, data, keys


def zones_of(data: bytes) -> Any:
    metadata = OpenFile(data).metadata
    return {"x": RowGroupZones(metadata, metadata.schema.leaves[0]).zones}


def num_keys(expr: Expression) -> int:
    return sum(len(atom.values) for atom in atoms(expr) if isinstance(atom, (In, KeyIn)))


@given(case=cases(), node=st.sampled_from([In, KeyIn]), shape=st.integers(0, 3))
def test_every_row_has_the_same_result(case: tuple[pa.Array, bytes, list[Any]], node: Any, shape: int) -> None:
    column, data, keys = case
    atom: Expression = node("x", tuple(keys))
    expr = [atom, Not(atom), And((atom, Not(atom))), Or((Not(atom), atom))][shape]
    assert has_many_keys(expr)
    schema = pa.schema([pa.field("x", column.type)])
    less = narrowed(expr, zones_of(data))
    wanted, found = (compile_filter(one, schema).mask({"x": column}, len(column)) for one in (expr, less))
    assert found.to_pylist() == wanted.to_pylist()
    again = pickle.loads(pickle.dumps(less))
    assert again == less


@pytest.mark.parametrize("node", [In, KeyIn])
@pytest.mark.parametrize(
    ("values", "keys", "left"),
    [
        ([10, 20, None], range(100), 11),
        (["b", "d", None], [chr(97 + at) for at in range(26)], 3),
        ([b"\xff" * 3, b"\xff" * 3], [bytes([at]) for at in range(100, 256)], 1),
        ([10, 20], range(1000, 2000), 1),
    ],
)
def test_keys_outside_of_the_bounds_are_left_out(node: Any, values: list[Any], keys: Any, left: int) -> None:
    data = parquet_bytes(pa.table({"x": values}))
    assert num_keys(narrowed(node("x", tuple(keys)), zones_of(data))) == left


def test_what_need_not_be_narrowed_stays_itself() -> None:
    zones = zones_of(parquet_bytes(pa.table({"x": [0, 100], "y": [1, 2]})))
    for expr in (
        In("x", tuple(range(100))),  # all of them may be there
        In("x", tuple(range(200, 210))),  # they are few
        In("y", tuple(range(100))),  # nothing is known of the column
        In("x", (1.5, *range(200, 300))),  # literals of several types are cast
    ):
        assert narrowed(expr, zones) is expr
        assert narrowed(Not(expr), zones) == Not(expr)


async def test_a_dataset_asks_each_file_for_the_keys_that_it_may_hold(tmp_path: Any) -> None:
    for number in range(4):
        rows = range(1000 * number, 1000 * number + 1000)
        pq.write_table(
            pa.table({"id": list(rows), "name": [f"n{row}" for row in rows]}), tmp_path / f"{number}.parquet"
        )
    keys = [*range(0, 4000, 37), -5, 4001, 2**62]
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(f"{tmp_path}/")
        found = await dataset.read(where=asyncpq.col("id").is_in(keys))
    assert sorted(found.column("id").to_pylist()) == [key for key in keys if 0 <= key < 4000]


@pytest.mark.parametrize("keys", [[*range(50), 300], [str(number) for number in range(50)], [2**70, *range(90, 130)]])
async def test_keys_that_the_column_cannot_hold_are_treated_as_without_narrowing(
    tmp_path: Any, keys: list[Any]
) -> None:
    pq.write_table(pa.table({"id": pa.array(range(100), pa.int8())}), tmp_path / "a.parquet")
    expr = asyncpq.col("id").is_in(keys)

    async def asked(read: Any) -> Any:
        try:
            return (await read(where=expr)).column("id").to_pylist()
        except asyncpq.PredicateTypeError as error:
            return type(error)

    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(f"{tmp_path}/")
        file = await session.open_file(f"{tmp_path}/a.parquet")  # whose predicates are not narrowed
        assert await asked(dataset.read) == await asked(file.read)
