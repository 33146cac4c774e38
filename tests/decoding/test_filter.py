"""The filter's rules, one by one; test_filter_against_pyarrow.py compares it with pyarrow's engine."""

from __future__ import annotations

import datetime as dt
import math
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncpq
from asyncpq.decoding.expression_engine import to_pyarrow
from asyncpq.decoding.filter import compile_filter
from asyncpq.errors import ColumnNotFoundError, PredicateTypeError, UsageError
from asyncpq.expressions import CompareOp, Comparison, Constant, Expression, KeyIn, col, columns
from asyncpq.expressions.scalars import Timestamp
from tests.predicates import model

NAN = float("nan")
TABLE = pa.table(
    {
        "a": pa.array([1, 2, None, 3]),
        "x": pa.array([0.0, -0.0, NAN, None]),
        "s": pa.array(["ab", "b", None, ""]),
        "u": pa.array([1, 2**63 + 1, None, 0], pa.uint64()),
        "d": pa.array([Decimal("1.00"), Decimal("2.50"), None, Decimal("3.00")], pa.decimal128(5, 2)),
        "t": pa.array([dt.datetime(2024, 1, day) for day in (1, 2, 3, 4)], pa.timestamp("ns")),
        "z": pa.array([dt.datetime(2024, 1, day) for day in (1, 2, 3, 4)], pa.timestamp("ms", "America/New_York")),
        "id": pa.array([uuid.UUID(int=n).bytes if n else None for n in (1, 2, 0, 3)], pa.uuid()),
        "st": pa.array([{"f": 1, "g": {"h": "x"}}, None, {"f": None, "g": None}, {"f": 3, "g": {"h": "y"}}]),
        "h": pa.array([1.0, 2.0, None, 3.0], pa.float16()),
        "l": pa.array([[1], [2], None, []]),
        "a.b": pa.array([7, 8, 9, None]),
        "n": pa.nulls(4),
    }
)
TYPES = {field.name: field.type for field in TABLE.schema}


def rows(expr: Expression) -> list[int]:
    compiled = compile_filter(expr, TABLE.schema)
    mask = compiled.mask({name: TABLE[name] for name in compiled.columns}, len(TABLE))
    found: list[int] = pc.indices_nonzero(mask).to_pylist()
    return found


@pytest.mark.parametrize(
    ("expr", "left"),
    [
        # the table of null and NaN rules that the documentation shows
        (col("a") != 1, [1, 3]),
        (~(col("a") == 1), [1, 3]),
        (~col("a").is_in([1]), [1, 2, 3]),
        (col("a").is_in([1, None]), [0, 2]),
        (col("a") == None, []),  # noqa: E711  # this is how it is written
        (~(col("a") == None), []),  # noqa: E711  # this is how it is written
        (col("a").is_null(), [2]),
        (col("a").is_valid(), [0, 1, 3]),
        (col("x") == NAN, []),
        (col("x").is_in([NAN]), [2]),
        (col("x") != 1.0, [0, 1, 2]),
        (col("x") == 0.0, [0, 1]),
        (col("x").is_in([0.0]), [0]),
        (col("x").is_in([-0.0]), [1]),
        (col("x").is_null(), [3]),
        (col("x").is_null(nan_is_null=True), [2, 3]),
        (KeyIn("a", (1, None, 3)), [0, 3]),
        (~KeyIn("a", (1, None, 3)), [1]),
        (KeyIn("x", (0.0, NAN, 1.0)), [0, 1]),
        (KeyIn("x", (0, 1)), [0, 1]),
        (KeyIn("a", ()), []),
        (KeyIn("a", (1, 2.5, 3)), [0, 3]),
        # what pyarrow's casts give up on
        (col("u") == 1, [0]),
        (col("u") >= 2**63, [1]),
        (col("d") == 1, [0]),
        (col("d").is_in([1, Decimal("2.5")]), [0, 1]),
        (col("a") == 1.0, [0]),
        (col("id") == uuid.UUID(int=2), [1]),
        (col("id") < uuid.UUID(int=3), [0, 1]),
        (col("id").is_in([uuid.UUID(int=3), None]), [2, 3]),
        (col("z") == dt.datetime(2024, 1, 2, tzinfo=dt.UTC), [1]),
        # times
        (col("t") >= Timestamp(1704240000000000001), [3]),
        (col("t") == dt.date(2024, 1, 3), [2]),
        (col("t").is_in([Timestamp(1704240000000000000), None]), [2]),
        # names
        (col("st.f") == 1, [0]),
        (col("st.g.h") == "y", [3]),
        (col("st.f").is_null(), [1, 2]),
        (col("a.b") == 8, [1]),
        (col("s").starts_with("a"), [0]),
        (col("s").starts_with(""), [0, 1, 3]),
        (~col("s").starts_with("a"), [1, 3]),
        (col("l").has(1), [0]),
        (~col("l").has(1.0), [1, 3]),
        (col("a") < col("a.b"), [0, 1]),
        # constants
        (Constant(True), [0, 1, 2, 3]),
        (Constant(None), []),
        ((col("a") == 1) | True, [0, 1, 2, 3]),
        ((col("a") == 1) & Constant(None), []),
        (~((col("a") == 1) & Constant(None)), [1, 3]),
        (col("n") == 1, []),
        (col("a").between(None, 3), []),
        (~col("a").between(None, 2), [3]),
        (col("n").is_null(), [0, 1, 2, 3]),
    ],
)
def test_rows(expr: Expression, left: list[int]) -> None:
    assert rows(expr) == left


@pytest.mark.parametrize(
    "expr",
    [
        col("a") == "1",
        col("a") == True,  # noqa: E712  # the mistake
        col("s") == 1,
        col("s") > dt.date(2024, 1, 1),
        col("t") == dt.datetime(2024, 1, 1, tzinfo=dt.UTC),
        col("z") == dt.datetime(2024, 1, 1),
        col("a") == uuid.UUID(int=1),
        col("a").is_in([uuid.UUID(int=1)]),
        col("a").is_in([1, "a"]),
        col("h") == 1.0,
        col("l") == 1,
        col("st") == 1,
        col("a").starts_with("1"),
        col("a").contains("1"),
        col("a").like("1%"),
        col("a").has_tokens("1"),
        col("a").has(1),
        col("l").has("x"),
        col("l").contains("x"),
        col("s").starts_with("\ud800"),
        col("s").contains("\ud800"),
        col("s").like(b"\xff_"),
        col("a") == col("s"),
        KeyIn("a", (1, "x")),
        KeyIn("z", (dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 2))),
        col("z").is_in([dt.datetime(2024, 1, 1)]),
        col("z") >= Timestamp(1704240000000000001),
        col("t") == col("z"),
        Constant(False) & (col("z") == dt.datetime(2024, 1, 1)),
        (col("a") == 1) | (col("s") == 1),
        Constant(False) & (col("s") == 1),
    ],
)
def test_types_are_checked_before_data_comes(expr: Expression) -> None:
    with pytest.raises(PredicateTypeError) as caught:
        compile_filter(expr, TYPES)
    assert caught.value.column in columns(expr)


def test_a_type_error_names_everything() -> None:
    with pytest.raises(PredicateTypeError) as caught:
        compile_filter(col("a") == "one", TYPES)
    assert caught.value.column == "a"
    for part in ("'one'", "int64", "string", "column 'a'"):
        assert part in str(caught.value)


@pytest.mark.parametrize("rows", [3, 0])
@pytest.mark.parametrize(
    "where",
    [
        col("z") == dt.datetime(2024, 1, 1),
        (col("a") == -1) & (col("z") == dt.datetime(2024, 1, 1)),
        (col("a") == -1) & (col("t") < dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),
        Constant(False) & (col("z") == dt.datetime(2024, 1, 1)),
        (col("a") == -1) & (col("a") == "x"),
    ],
)
async def test_types_are_checked_even_if_pruning_leaves_nothing(where: Expression, rows: int, tmp_path: Path) -> None:
    path = tmp_path / "some.parquet"
    pq.write_table(TABLE.select(["a", "z", "t"]).slice(0, rows), path, write_page_index=True)
    async with asyncpq.open_file(path) as file:
        for ask in (file.count, lambda where: file.read(where=where), lambda where: file.plan(where=where)):
            with pytest.raises(PredicateTypeError):
                await ask(where)


def test_a_cast_that_fails_on_a_value_is_an_error() -> None:
    compiled = compile_filter(col("a") < col("f"), {"a": pa.int64(), "f": pa.float64()})
    bound = pa.array([1.5, 1.5])
    assert compiled.mask({"a": pa.array([1, 2]), "f": bound}, 2).to_pylist() == [True, False]
    with pytest.raises(PredicateTypeError):
        compiled.mask({"a": pa.array([1, 2**60 + 1]), "f": bound}, 2)


@pytest.mark.parametrize("name", ["b", "st.x", "a.c", "s.f", "st.f.g", ""])
def test_missing_columns(name: str) -> None:
    with pytest.raises(ColumnNotFoundError):
        compile_filter(Comparison(name, "==", 1), TYPES)


@pytest.mark.parametrize("name", ["l.list.element", "st.m.key_value.value", "st.m.key_value.value.x"])
def test_inside_lists_and_maps(name: str) -> None:
    types = {"l": pa.list_(pa.int64()), "st": pa.struct([("m", pa.map_(pa.string(), pa.int64()))])}
    with pytest.raises(PredicateTypeError, match="inside a list or map and has several values per row") as caught:
        compile_filter(Comparison(name, "==", 1), types)
    assert caught.value.column == name


@pytest.mark.parametrize(
    ("expr", "hint"),
    [
        (col("a") == "x", "Give the literal the column's type"),
        (col("st") == 1, 'Name leaves of the struct: col("st.f"), col("st.g").'),
        (col("l") == 1, "lists only has(value), is_null() and is_valid()"),
        (col("h") == 1.0, "halffloat only is_null(), is_valid() and is_nan()"),
        (col("v") == 1, "Give the literal the column's type"),
        (col("z") == dt.datetime(2024, 1, 1), "Give the datetime a tzinfo"),
        (KeyIn("z", (dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 2))), "Give the datetime a tzinfo"),
        (col("t") == dt.datetime(2024, 1, 1, tzinfo=dt.UTC), "Give the datetime no tzinfo"),
        (col("t") == "2024-01-01", 'Pass datetime.fromisoformat("2024-01-01")'),
        (KeyIn("t", ("2024-01-01", "2024-01-02")), 'Pass datetime.fromisoformat("2024-01-01")'),
        (col("day") == "2024-01-01", "a date is given as text, but the column has the type date32[day]"),
        (col("id") == str(uuid.UUID(int=1)), 'Pass uuid.UUID("00000000-0000-0000-0000-000000000001")'),
        (col("id").is_in([str(uuid.UUID(int=1))]), "a UUID is given as text"),
        (col("a") == col("s"), "Compare columns of the same type"),
    ],
)
def test_what_to_do_about_a_type_error(expr: Expression, hint: str) -> None:
    with pytest.raises(PredicateTypeError) as caught:
        compile_filter(expr, {**TYPES, "v": pa.string_view(), "day": pa.date32(), "id": pa.uuid()})
    assert hint in str(caught.value)


@pytest.mark.parametrize("page_index", [False, True])
@pytest.mark.parametrize("stored_schema", [False, True])
async def test_json_is_compared_as_text(stored_schema: bool, page_index: bool, tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    texts = ['{"a": 1}', "[]", None, "[1]", "{}"] * 20
    json = pa.ExtensionArray.from_storage(pa.json_(), pa.array(texts))
    pq.write_table(
        pa.table({"j": json, "s": texts}),
        path,
        store_schema=stored_schema,
        row_group_size=30,
        write_page_index=page_index,
    )
    async with asyncpq.open_file(path) as file:
        j, s = (
            [x == "[]", x > "[1", x.is_in(["{}", "[1]", None]), x.is_null(), x.starts_with("["), x == col("s")]
            for x in (col("j"), col("s"))
        )
        for asked, same in zip(j, s, strict=True):
            assert (await file.read(["s"], asked)).equals(await file.read(["s"], same))
        assert (await file.lookup({"j": ["{}", "x"]}, ["s"])).to_pydict() == {"s": ["{}"] * 20}
        with pytest.raises(PredicateTypeError):
            await file.count(col("j") == 1)


def test_columns_are_the_schema_s() -> None:
    compiled = compile_filter((col("st.f") == 1) & (col("a") < col("a")) & (col("st.g.h") == "x"), TYPES)
    assert compiled.columns == ("st", "a")
    assert compiled.engine_atoms == (col("a") < col("a"),)


@pytest.mark.parametrize("op", ["==", "!=", "<", "<=", ">", ">="])
@pytest.mark.parametrize(
    ("kind", "values", "literals"),
    [
        (pa.uint64(), [0, 1, 2**63, 2**64 - 1], [-1, 2**64, 2**70, -0.5, 0.5, float(2**63), math.nan, -math.inf]),
        (pa.int64(), [-(2**63), -1, 0, 2**63 - 1], [2**63, -(2**63) - 1, -0.5, 0.5, 1e300, math.inf, Decimal("-0.5")]),
        (pa.int8(), [-128, 0, 127], [-129, 128, 0.5, Decimal("126.5"), Decimal(10) ** 40]),
        (pa.decimal128(5, 2), [Decimal("-999.99"), Decimal("1.25")], [1000, -1000, Decimal("1.249"), Decimal("1e30")]),
        (pa.decimal256(76, 0), [Decimal("9" * 76), Decimal(7)], [10**77, Decimal("9" * 75 + "8.5"), 7]),
    ],
)
def test_numbers_that_the_column_cannot_hold(op: CompareOp, kind: Any, values: list[Any], literals: list[Any]) -> None:
    """pyarrow's casts fail on some of these; comparing the numbers needs none."""
    column = pa.array([None, *values], kind)
    for literal in literals:
        expr = Comparison("a", op, literal)
        wanted = [model(expr, {"a": value}) for value in column.to_pylist()]
        assert compile_filter(expr, {"a": kind}).mask({"a": column}, len(column)).to_pylist() == wanted
    member = col("a").is_in([*literals, values[0]])
    wanted = [model(member, {"a": value}) for value in column.to_pylist()]
    assert compile_filter(member, {"a": kind}).mask({"a": column}, len(column)).to_pylist() == wanted


@pytest.mark.property
@given(st.lists(st.integers(0, 4000), min_size=5, max_size=9, unique=True), st.booleans(), st.booleans())
def test_keys_are_found_in_sorted_columns_and_others(keys: list[int], ordered: bool, text: bool) -> None:
    """Sorted values are searched, others hashed: duplicates and keys that no row has included."""
    numbers = [row // 3 * 2 for row in range(5000)]
    if not ordered:
        numbers[17], numbers[-18] = numbers[-18], numbers[17]
    made = [f"{number:05d}" for number in numbers] if text else numbers
    named = tuple(f"{key:05d}" if text else key for key in keys)
    column = pa.array(made)
    for where in (KeyIn("a", named), col("a").is_in(named)):
        mask = compile_filter(where, {"a": column.type}).mask({"a": column}, len(column))
        assert mask.to_pylist() == [value in named for value in made]


def test_a_mask_has_the_rows_asked_for() -> None:
    compiled = compile_filter(col("a") == 1, TYPES)
    with pytest.raises(UsageError):
        compiled.mask({"a": pa.array([1, 2])}, 3)
    assert len(compile_filter(Constant(True), {}).mask({}, 5)) == 5
    assert len(compiled.mask({"a": pa.array([], pa.int64())}, 0)) == 0


def test_pyarrow_of_nested_names() -> None:
    assert TABLE.filter(to_pyarrow(col("st.g.h") == "y")).num_rows == 1


@pytest.mark.parametrize("make", [lambda: to_pyarrow(col("a") == 2**70), lambda: to_pyarrow(col("a").is_in([1, "x"]))])
def test_literals_that_pyarrow_cannot_hold(make: Callable[[], Any]) -> None:
    with pytest.raises(PredicateTypeError):
        make()


def test_dictionaries_larger_than_their_rows() -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([3, None], pa.int32()), pa.array(["a", "b", "c", "d", "e"]))
    for expr, found in ((col("s") == "d", [True, None]), (col("s").is_in([None]), [False, True])):
        assert compile_filter(expr, {"s": pa.string()}).mask({"s": values}, 2).to_pylist() == found
