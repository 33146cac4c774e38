"""Correctness trap 9, whole: a literal of every type against a column of every type, read from a file.

Rows are pyarrow's wherever pyarrow answers, with statistics trusted or not. What this project refuses pyarrow
refuses, too; where pyarrow gives up, since its casts cannot hold a number, plain Python compares.
"""

from __future__ import annotations

import datetime as dt
import math
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.expressions import CompareOp, Comparison, Expression, In, Not
from tests.parquet_bytes import parquet_bytes
from tests.predicates import DAY, EVERY_LITERAL, UTC, array, model, oracle, without_views
from tests.reads import DISTRUSTING, TRUSTING, ask

_DAYS = [DAY + dt.timedelta(days=n) for n in (-20_000, -1, 0, 0, 1, 3, 9_000)]
_TIMES = [dt.time(0), dt.time(0, 0, 1), dt.time(1), dt.time(23, 59, 59)]
_SPANS = [dt.timedelta(-3), dt.timedelta(0), dt.timedelta(seconds=1), dt.timedelta(1), dt.timedelta(400)]
_REALS = [-math.inf, -7.25, -1.0, -0.0, 0.0, 0.5, 1.0, 1.5, 3.0, 255.0, 300.0, 2.0**24, math.inf, math.nan]
_DECIMALS = [Decimal(n) / 4 for n in (-400, -5, 0, 1, 5, 12, 300)]
_WORDS = ["", "2024-02-29", "a", "ab", "b", "é", "zz"]
_BYTES = [b"", b"a", b"ab", b"b", b"\xff", b"\xff\xff"]


def _whole(kind: pa.DataType, signed: bool) -> list[int]:
    low, high = (
        (-(1 << kind.bit_width - 1), (1 << kind.bit_width - 1) - 1) if signed else (0, (1 << kind.bit_width) - 1)
    )
    found = {low, low + 1, 0, 1, 3, 44, high - 1, high, 1 << 24, (1 << 24) + 1, (1 << 53) + 1}
    return sorted(value for value in found if low <= value <= high)


def _kinds() -> dict[str, tuple[pa.DataType, list[Any]]]:
    """Name, type and values, sorted, of each column."""
    kinds: dict[str, tuple[pa.DataType, list[Any]]] = {}
    for width in (8, 16, 32, 64):
        for prefix in ("int", "uint"):
            kind = getattr(pa, f"{prefix}{width}")()
            kinds[f"{prefix}{width}"] = (kind, _whole(kind, prefix == "int"))
    kinds |= {
        "float32": (pa.float32(), _REALS),
        "float64": (pa.float64(), [*_REALS[:-2], 0.1, 1e300, math.inf, math.nan]),
        "float16": (pa.float16(), [-1.0, 0.0, 1.0, 3.0]),
        "bool": (pa.bool_(), [False, False, True]),
        "decimal(5,2)": (pa.decimal128(5, 2), _DECIMALS),
        "decimal(17,2)": (pa.decimal128(17, 2), _DECIMALS),
        "decimal(38,4)": (pa.decimal128(38, 4), _DECIMALS),
        "decimal(60,2)": (pa.decimal256(60, 2), _DECIMALS),
        "string": (pa.string(), _WORDS),
        "large_string": (pa.large_string(), _WORDS),
        "string_view": (pa.string_view(), _WORDS),
        "dictionary": (pa.dictionary(pa.int32(), pa.string()), _WORDS),
        "binary": (pa.binary(), _BYTES),
        "large_binary": (pa.large_binary(), _BYTES),
        "binary_view": (pa.binary_view(), _BYTES),
        "fixed": (pa.binary(2), [b"aa", b"ab", b"b\0", b"\xff\xff"]),
        "uuid": (pa.uuid(), [uuid.UUID(int=n << 124 | n) for n in (0, 1, 1, 3)]),
        "date32": (pa.date32(), [day.date() for day in _DAYS]),
        "date64": (pa.date64(), [day.date() for day in _DAYS]),
        "time_ms": (pa.time32("ms"), _TIMES),
        "time_us": (pa.time64("us"), [*_TIMES[:1], dt.time(0, 0, 0, 1), *_TIMES[1:]]),
        "time_ns": (pa.time64("ns"), _TIMES),
    }
    for unit, zone in (("s", None), ("ms", None), ("us", None), ("ns", None), ("s", "UTC"), ("ms", "+02:00")):
        kinds[f"timestamp_{unit}_{zone}"] = (pa.timestamp(unit, zone), _moments(zone))
    kinds["timestamp_ns_Paris"] = (pa.timestamp("ns", "Europe/Paris"), _moments("Europe/Paris"))
    for unit in ("s", "ms", "us", "ns"):
        kinds[f"duration_{unit}"] = (pa.duration(unit), _SPANS)
    return kinds


def _moments(zone: str | None) -> list[dt.datetime]:
    return _DAYS if zone is None else [day.replace(tzinfo=UTC) for day in _DAYS]


KINDS = _kinds()
LITERALS: list[Any] = [
    *EVERY_LITERAL,
    *(-129, 128, 256, -(2**31) - 1, 2**32, -(2**63), -(2**63) - 1, 2**64 - 1, 2**64, 10**30),
    *(-0.5, 43.5, 2.0**53, 2.0**63, 2.0**64, -math.inf),
    *(Decimal("0.5"), Decimal("44.000"), Decimal("1e20"), Decimal("-1e30"), Decimal("300.001")),
    *(_DAYS[0].date(), _DAYS[-1].replace(tzinfo=UTC), dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59)),
    *(dt.datetime(2024, 2, 29, 12), dt.time(23, 59, 59, 999_999), dt.timedelta(microseconds=-1), dt.timedelta(9_999)),
]


def _file(kind: str) -> bytes:
    type_, held = KINDS[kind]
    spread = [None, *held, held[-1], None]
    column = array(kind, spread) if kind in ("uuid", "dictionary") else pa.array(spread, type_)
    table = pa.table({"x": column, "n": pa.array(range(len(spread)))})
    pages = {"max_rows_per_page": 2, "write_batch_size": 2, "write_page_index": True}
    return parquet_bytes(table, row_group_size=4, use_dictionary=False, **pages)


_OPS: tuple[CompareOp, ...] = ("==", "!=", "<", ">=")  # the others mirror them


def _predicates() -> list[tuple[Any, Expression]]:
    found: list[tuple[Any, Expression]] = []
    for literal in LITERALS:
        found += [(literal, Comparison("x", op, literal)) for op in _OPS]
        found += [(literal, In("x", (literal,))), (literal, Not(In("x", (literal, None))))]
    return found


PREDICATES = _predicates()
# pyarrow 26's isin answers at random for these.
_BY_CHANCE = (uuid.UUID,)
_REFUSED = (pa.ArrowException, OverflowError, TypeError, ValueError)


def _rows(table: pa.Table, predicate: Expression) -> list[int] | None:
    """pyarrow's rows; None where it refuses."""
    try:
        found: list[int] = table.filter(oracle(predicate))["n"].to_pylist()
    except _REFUSED:
        return None
    return found


def _answers(data: bytes, options: asyncpq.ReadOptions) -> list[list[int] | None]:
    """The rows of each predicate; None where it is refused."""

    async def question(file: asyncpq.File) -> list[list[int] | None]:
        found: list[list[int] | None] = []
        for _, predicate in PREDICATES:
            try:
                found.append((await file.read(["n"], predicate))["n"].to_pylist())
            except asyncpq.PredicateTypeError:
                found.append(None)
        return found

    return ask(data, question, read=options)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("kind", KINDS)
def test_every_literal(kind: str) -> None:
    data = _file(kind)
    table = without_views(pq.read_table(pa.BufferReader(data)))
    rows = table.to_pylist()
    trusting, distrusting = _answers(data, TRUSTING), _answers(data, DISTRUSTING)
    for (literal, predicate), found, unpruned in zip(PREDICATES, trusting, distrusting, strict=True):
        wanted = None if isinstance(literal, _BY_CHANCE) else _rows(table, predicate)
        if wanted is not None:
            assert found == wanted, str(predicate)
            assert unpruned == wanted, str(predicate)
        elif found is not None:
            by_python = [row["n"] for row in rows if model(predicate, row)]
            assert found == by_python, str(predicate)
            assert unpruned is None or unpruned == by_python, str(predicate)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("kind", ["int8", "uint64", "float32", "decimal(5,2)", "timestamp_ms_None", "date32", "string"])
def test_datasets_say_the_same(kind: str, tmp_path: Path) -> None:
    """pyarrow.dataset, that prunes by itself, and not only pyarrow's tables."""
    data = _file(kind)
    trusting = _answers(data, TRUSTING)
    (tmp_path / "x.parquet").write_bytes(data)
    opened = ds.dataset(tmp_path / "x.parquet")
    compared = 0
    for (literal, predicate), found in zip(PREDICATES, trusting, strict=True):
        if isinstance(literal, _BY_CHANCE) or not isinstance(predicate, Comparison):
            continue
        try:
            wanted = opened.to_table(filter=oracle(predicate))["n"].to_pylist()
        except _REFUSED:
            continue
        assert found == wanted, str(predicate)
        compared += 1
    assert compared > 30


def test_something_is_pruned() -> None:
    """The files are such that statistics matter."""

    async def question(file: asyncpq.File) -> int:
        return (await file.plan(where=col("x") == 44.0)).pruning.rows_kept

    assert ask(_file("int16"), question) == 2
