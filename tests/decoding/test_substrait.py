"""pyarrow expressions translated through Substrait ask the same question."""

from __future__ import annotations

import datetime as dt
import re
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq.decoding.substrait import from_pyarrow
from asyncpq.errors import ColumnNotFoundError, ExpressionError, QueryError
from asyncpq.expressions import (
    And,
    ColumnComparison,
    Comparison,
    Constant,
    Contains,
    Expression,
    In,
    IsNull,
    Like,
    Not,
    StartsWith,
)
from tests.example_counts import examples
from tests.predicates import COLUMNS, KINDS, WORDS, arrays, expressions, model, oracle, uses

_REFUSALS = (pa.ArrowException, OverflowError, TypeError, ValueError)
# Kinds whose literals all have a Substrait form.
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
    assume("null or nan" not in str(expr) and not uses(expr, *WORDS, Like))  # which have no Substrait form
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


@pytest.mark.parametrize(
    ("expression", "translated"),
    [
        (pc.field("a") == 1, Comparison("a", "==", 1)),
        (pc.scalar(3) < pc.field("a"), Comparison("a", ">", 3)),
        (pc.field(0) == -5, Comparison("a", "==", -5)),
        (pc.field("x") == 1, Comparison("x", "==", 1.0)),
        (pc.field("s") == "é", Comparison("s", "==", "é")),
        (pc.field("kind") != "k", Comparison("kind", "!=", "k")),
        (pc.field("u") >= pa.scalar(2**64 - 1, pa.uint64()), Comparison("u", ">=", 2**64 - 1)),
        (pc.field("d") < Decimal("-1.5"), Comparison("d", "<", Decimal("-1.50"))),
        (
            pc.field("t") < dt.datetime(1969, 1, 1, tzinfo=dt.UTC),
            Comparison("t", "<", dt.datetime(1969, 1, 1, tzinfo=dt.UTC)),
        ),
        (pc.field("tm") == dt.time(1, 2, 3), Comparison("tm", "==", dt.time(1, 2, 3))),
        (pc.field("a") == None, Comparison("a", "==", None)),  # noqa: E711  # this is how it is written
        (pc.field("nested", "g", "h") == "x", Comparison("nested.g.h", "==", "x")),
        (
            (pc.field("b") == b"ab") & (pc.field("x") == 1),
            And((Comparison("b", "==", b"ab"), Comparison("x", "==", 1.0))),
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
        (pc.is_nan(pc.field("x")), ColumnComparison("x", "!=", "x")),
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
        pc.field("a") == "x",
        pc.field("id") == "x",
        pc.field("x").is_null(nan_is_null=True),
        pc.is_in(pc.field("a"), value_set=pa.array([1, None]), skip_nulls=True),
        pc.starts_with(pc.field("s"), "p", ignore_case=True),
        pc.match_substring(pc.field("s"), "p", ignore_case=True),
        pc.match_like(pc.field("s"), "p%"),
        pc.if_else(pc.field("flag"), pc.field("a"), 1) == 1,
        pc.field("t") == pa.scalar(5, pa.timestamp("ns", "UTC")),
        pc.scalar(3),
        pc.field("a"),
    ],
)
def test_other_forms_are_named(expression: pc.Expression) -> None:
    with pytest.raises(ExpressionError) as caught:
        from_pyarrow(expression, SCHEMA)
    assert str(expression)[:20] in str(caught.value).replace("\\n", "\n")
    assert "asyncpq.col()" in str(caught.value)


def test_messages_are_short() -> None:
    wide = pa.schema([(f"column {at}", pa.int64()) for at in range(1000)])
    for expression in (pc.field("zzz") == "x" * 5000, pc.field("column 1") == "x" * 5000, pc.field(1000) == 1):
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
        (pc.field(99) == 1, None),
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
