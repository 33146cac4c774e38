"""Translated pyarrow expressions have the results of pyarrow's own."""

from __future__ import annotations

import datetime as dt
import operator
import re
from collections.abc import Callable, Iterator
from decimal import Decimal
from functools import reduce
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq.decoding.arrow_expressions import from_pyarrow
from asyncpq.errors import AmbiguousColumnError, ColumnNotFoundError, ExpressionError, PredicateTypeError, QueryError
from asyncpq.expressions import (
    And,
    ColumnComparison,
    Comparison,
    Constant,
    Contains,
    Expression,
    In,
    IsNull,
    KeyIn,
    Like,
    Not,
    Or,
    StartsWith,
    is_nan,
)
from asyncpq.expressions.scalars import Timestamp
from asyncpq.expressions.tree import MAX_NESTING
from tests.example_counts import examples
from tests.predicates import COLUMNS, KINDS, WORDS, arrays, expressions, model, oracle, uses

_REFUSALS = (pa.ArrowException, OverflowError, TypeError, ValueError)
# Kinds whose literals all keep their values as pyarrow's.
_COVERED = st.sampled_from(["int32", "int64", "float64", "bool", "string", "date32", "timestamp_us", "decimal"])

SCHEMA = pa.schema(
    [
        ("a", pa.int64()),
        ("s", pa.large_string()),
        ("x", pa.float64()),
        (
            "nested",
            pa.struct(
                [
                    ("f", pa.int32()),
                    ("g", pa.struct([("h", pa.string())])),
                    ("b", pa.binary(2)),
                    ("t", pa.timestamp("ns")),
                ]
            ),
        ),
        ("id", pa.uuid()),
        ("t", pa.timestamp("ns", "UTC")),
        ("u", pa.uint64()),
        ("flag", pa.bool_()),
        ("tm", pa.time32("ms")),
        ("kind", pa.dictionary(pa.int8(), pa.string())),
        ("d", pa.decimal128(9, 2)),
        ("b", pa.binary(2)),
    ]
)


@settings(max_examples=examples(70, thorough=500))
@given(_COVERED, st.data())
def test_same_results(kind: str, data: st.DataObject) -> None:
    expr = data.draw(expressions({"c0": kind}, foreign=False))
    assume(not uses(expr, *WORDS))  # pyarrow has none of them
    # pyarrow gives an empty list, and one of nulls, the type null, and takes it for few columns
    assume(not re.search(r" in \[(null(, )?)*\]", str(expr)))
    values = data.draw(arrays(kind))
    translated = from_pyarrow(oracle(expr), pa.schema([("c0", COLUMNS[kind][0])]))
    for value in values:
        assert model(translated, {"c0": value}) == model(expr, {"c0": value})


@settings(max_examples=examples(70, thorough=500))
@given(KINDS, st.data())
def test_other_literals_are_the_same_or_refused(kind: str, data: st.DataObject) -> None:
    expr = data.draw(expressions({"c0": kind}))
    values = data.draw(arrays(kind))
    try:
        translated = from_pyarrow(oracle(expr), pa.schema([("c0", COLUMNS[kind][0])]))
    except (ExpressionError, *_REFUSALS):
        return
    for value in values:
        try:
            expected = model(expr, {"c0": value})
        except TypeError:
            return
        assert model(translated, {"c0": value}) == expected


@pytest.mark.parametrize("keys", [(1.0, True), (True, 1.0)])
async def test_a_key_of_another_type_is_refused_wherever_it_stands(keys: tuple[float, ...], tmp_path: Path) -> None:
    """By a read, and by the model of it that the properties compare with."""
    pq.write_table(pa.table({"c0": pa.array([1], pa.int8())}), tmp_path / "a.parquet")
    async with asyncpq.open_file(tmp_path / "a.parquet") as file:
        with pytest.raises(PredicateTypeError):
            await file.read(where=KeyIn("c0", keys))
    with pytest.raises(TypeError):
        model(KeyIn("c0", keys), {"c0": 1})


@pytest.mark.parametrize(
    ("expression", "translated"),
    [
        (pc.field("a") == 1, Comparison("a", "==", 1)),
        (pc.scalar(3) < pc.field("a"), Comparison("a", ">", 3)),
        (pc.field("x") == 1, Comparison("x", "==", 1)),
        (pc.field("x") > pa.scalar(1.5, pa.float32()), Comparison("x", ">", 1.5)),
        (pc.field("s") == "é", Comparison("s", "==", "é")),
        (pc.field("kind") != "k", Comparison("kind", "!=", "k")),
        (pc.field("u") >= pa.scalar(2**64 - 1, pa.uint64()), Comparison("u", ">=", 2**64 - 1)),
        (pc.field("d") < Decimal("-1.5"), Comparison("d", "<", Decimal("-1.5"))),
        (
            pc.field("t") < dt.datetime(1969, 1, 1, tzinfo=dt.UTC),
            Comparison("t", "<", dt.datetime(1969, 1, 1, tzinfo=ZoneInfo("UTC"))),
        ),
        (pc.field("tm") == dt.time(1, 2, 3), Comparison("tm", "==", dt.time(1, 2, 3))),
        (pc.field("a") == None, Comparison("a", "==", None)),  # noqa: E711  # this is how it is written
        (pc.field("nested", "g", "h") == "x", Comparison("nested.g.h", "==", "x")),
        (
            (pc.field("b") == b"ab") & (pc.field("x") == 1),
            And((Comparison("b", "==", b"ab"), Comparison("x", "==", 1))),
        ),
        (pc.field("b") >= pa.scalar(b"ab", pa.binary(2)), Comparison("b", ">=", b"ab")),
        (pc.field("nested", "b") < b"ab", Comparison("nested.b", "<", b"ab")),
        (
            pc.field("nested", "t") == pa.scalar(0, pa.timestamp("ns")),
            Comparison("nested.t", "==", dt.datetime(1970, 1, 1)),
        ),
        (pc.field("flag"), Comparison("flag", "==", True)),
        (~pc.field("flag"), Not(Comparison("flag", "==", True))),
        (pc.field("id").is_valid(), Not(IsNull("id"))),
        (pc.field("a").isin([1, None]), In("a", (1, None))),
        (pc.starts_with(pc.field("s"), "p"), StartsWith("s", "p")),
        (pc.match_substring(pc.field("s"), "p"), Contains("s", "p")),
        (pc.field("a") == pc.field("a"), ColumnComparison("a", "==", "a")),
        (pc.is_nan(pc.field("x")), is_nan("x")),
        (pc.is_nan(pc.field("a")), ColumnComparison("a", "!=", "a")),
        (pc.field("x").is_null(nan_is_null=True), IsNull("x", nan_is_null=True)),
        (pc.is_in(pc.field("a"), value_set=pa.array([1, None]), skip_nulls=True), In("a", (1,))),
        (pc.match_like(pc.field("s"), "p%"), Like("s", "p%")),
        (pc.starts_with(pc.field("b"), b"\xff"), StartsWith("b", b"\xff")),
        (pc.struct_field(pc.field("nested"), ["g", "h"]) == "x", Comparison("nested.g.h", "==", "x")),
        (pc.struct_field(pc.field("nested"), [1, 0]) == "x", Comparison("nested.g.h", "==", "x")),
        (pc.field("t") == pa.scalar(5, pa.timestamp("ns", "UTC")), Comparison("t", "==", Timestamp(5, "UTC"))),
        (pc.scalar(True), Constant(True)),
    ],
)
def test_forms(expression: pc.Expression, translated: Expression) -> None:
    assert from_pyarrow(expression, SCHEMA) == translated


@pytest.mark.parametrize(
    "expression",
    [
        pc.field("a") + 1 == 2,
        pc.field("a").cast("int32") == 1,
        pc.ends_with(pc.field("s"), "p"),
        pc.and_(pc.field("flag"), pc.field("flag")),
        pc.starts_with(pc.field("s"), "p", ignore_case=True),
        pc.match_substring(pc.field("s"), "p", ignore_case=True),
        pc.if_else(pc.field("flag"), pc.field("a"), 1) == 1,
        pc.scalar(3),
        pc.field("a"),
    ],
)
def test_other_forms_are_named(expression: pc.Expression) -> None:
    with pytest.raises(ExpressionError) as caught:
        from_pyarrow(expression, SCHEMA)
    assert str(expression)[:20] in str(caught.value).replace("\\n", "\n")
    assert "asyncpq.col()" in str(caught.value)


@pytest.mark.parametrize(("position", "name"), [(0, "a"), (99, "name")])
def test_columns_by_position_are_refused(position: int, name: str) -> None:
    expression = (pc.field(position) == 1) & pc.field("flag")
    with pytest.raises(ExpressionError, match=re.escape(f'pc.field("{name}") for pc.field({position})')):
        from_pyarrow(expression, SCHEMA)


@pytest.mark.parametrize("literal", ["x", b"x", dt.date(2024, 1, 1)])
@pytest.mark.parametrize("column", ["a", "id"])
async def test_types_are_checked_before_anything_is_read(column: str, literal: Any, tmp_path: Path) -> None:
    pq.write_table(SCHEMA.empty_table().select(["a", "id"]), tmp_path / "0.parquet")
    async with asyncpq.Session() as session:
        for opened in (await session.open_file(tmp_path / "0.parquet"), await session.open_dataset(tmp_path)):
            with pytest.raises(PredicateTypeError):
                await opened.count(pc.field(column) == literal)


def test_texts_that_are_not_utf_8() -> None:
    with pytest.raises(ExpressionError, match="a pattern that is not UTF-8"):
        from_pyarrow(pc.starts_with(pc.field("s"), b"\xff"), SCHEMA)


def test_ambiguous_columns() -> None:
    with pytest.raises(AmbiguousColumnError):
        from_pyarrow(pc.field("a") == 1, pa.schema([("a", pa.int64()), ("a", pa.int64())]))


@pytest.mark.parametrize("text", ["x", "[0]"])
def test_paths_of_struct_field_that_may_mean_several_fields(text: str) -> None:
    """Arrow does not mark dots in names when it writes the path."""
    type_ = pa.struct([("a", pa.struct([("b", pa.int64())])), ("a.b", pa.int64())])
    with pytest.raises(ExpressionError, match="a path of 2 fields"):
        from_pyarrow(pc.struct_field(pc.field("st"), "a.b") == text, pa.schema([("st", type_)]))


def test_a_field_with_the_path_of_a_top_level_column() -> None:
    schema = pa.schema([("st.a", pa.int64()), ("st", pa.struct([("a", pa.int64())]))])
    assert from_pyarrow(pc.field("st.a") == 1, schema) == Comparison("st.a", "==", 1)
    with pytest.raises(AmbiguousColumnError, match="2 fields have this path"):
        from_pyarrow(pc.field("st", "a") == 1, schema)


# -- long and deep expressions ----------------------------------------------------------------------


@pytest.mark.parametrize("join", [operator.or_, operator.and_])
@pytest.mark.parametrize("turn", [1, -1], ids=["left", "right"])
def test_chains_are_one_junction(join: Callable[[Any, Any], Any], turn: int) -> None:
    terms = [pc.field("a") > number for number in range(2000)][::turn]
    chain = reduce(join if turn == 1 else lambda right, left: join(left, right), terms)
    translated = from_pyarrow(chain, SCHEMA)
    assert isinstance(translated, (And, Or))
    assert translated.args == tuple(Comparison("a", ">", number) for number in range(2000))


def test_the_limit_of_levels() -> None:
    def nested(levels: int) -> pc.Expression:
        """AND and OR by turns, and NOT of a column."""
        expression = ~pc.field("flag")
        for level in range(levels - 1):
            expression = (operator.and_, operator.or_)[level % 2](expression, pc.field("flag"))
        return expression

    assert len(str(from_pyarrow(nested(MAX_NESTING), SCHEMA))) > MAX_NESTING
    with pytest.raises(ExpressionError, match=f"more than {MAX_NESTING} nested operations"):
        from_pyarrow(nested(MAX_NESTING + 1), SCHEMA)


def test_an_unknown_pickled_form_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(file: bytes) -> Iterator[tuple[bytes, bytes]]:
        yield b"lambda", b"x"

    monkeypatch.setattr("asyncpq.decoding.arrow_expressions._entries", other)
    with pytest.raises(ExpressionError, match="cannot read the pickled form"):
        from_pyarrow(pc.field("a") == 1, SCHEMA)


def test_messages_are_short() -> None:
    wide = pa.schema([(f"column {at}", pa.int64()) for at in range(1000)])
    for expression in (pc.field("zzz") == "x" * 5000, pc.field("column 1") + 1 == len("x" * 5000), pc.field(1000) == 1):
        with pytest.raises(QueryError) as caught:
            from_pyarrow(expression, wide)
        assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("expression", "column"),
    [
        (pc.field("zzz") == 1, "zzz"),
        (pc.field("a (b) c") == 1, "a (b) c"),
        (pc.field("nested", "zzz") == 1, "nested.zzz"),
        (pc.field("nested", "g", "zzz") == 1, "nested.g.zzz"),
        (pc.field("zzz.h") == 1, "zzz.h"),
    ],
)
def test_missing_columns(expression: pc.Expression, column: str | None) -> None:
    with pytest.raises(ColumnNotFoundError) as caught:
        from_pyarrow(expression, SCHEMA)
    assert caught.value.column == column


def test_a_dotted_path_is_no_reference_to_pyarrow() -> None:
    with pytest.raises(ColumnNotFoundError, match=r'pc\.field\("nested", "g", "h"\), or asyncpq\.col') as caught:
        from_pyarrow(pc.field("nested.g.h") == "x", SCHEMA)
    assert caught.value.column == "nested.g.h"


async def test_names_that_are_near(tmp_path: Path) -> None:
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"price": [1], "user": ["a"]}), path)
    async with asyncpq.open_file(path) as file:
        with pytest.raises(ColumnNotFoundError, match="Did you mean 'price'") as caught:
            await file.count(pc.field("prcie") == 1)
    assert caught.value.url == str(path)
