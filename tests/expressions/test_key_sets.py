"""Comparisons of one column with many values are taken as one set of keys."""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpq import col
from asyncpq.decoding.filter import compile_filter
from asyncpq.expressions import Expression, KeyIn, Not, Or, atoms, parse_where, with_key_sets
from tests.example_counts import examples

FLOATS = [0.0, -0.0, 1.0, 1.5, -2.0, float("nan"), float("inf"), 7.0]
TABLE = pa.table({"x": [*FLOATS, None], "n": [*range(8), None], "t": [*"abcdefgh", None], "row": range(9)})
VALUES = {"x": [*FLOATS, 0, 3, 9], "n": [*range(-1, 11), 1.5, 2.0], "t": [*"abcxyz"]}


@given(st.data())
@settings(max_examples=examples(60, thorough=1000))
def test_the_rows_are_those_of_the_comparisons(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(sorted(VALUES)))
    values = data.draw(st.lists(st.sampled_from(VALUES[name]), min_size=16, max_size=40))
    op, join = data.draw(st.sampled_from([(operator.eq, operator.or_), (operator.ne, operator.and_)]))
    terms = [op(col(name), value) for value in values]
    arrow = [op(pc.field(name), value) for value in values]
    if data.draw(st.booleans()):
        terms.insert(data.draw(st.integers(0, len(terms))), col("n") > 5)
        arrow.append(pc.field("n") > 5)
    where, expected = reduce(join, terms), reduce(join, arrow)
    if data.draw(st.booleans()):
        where, expected = ~where, ~expected
    made = parse_where(where)
    assert len(list(atoms(made))) <= 2
    mask = compile_filter(made, TABLE.schema).mask({key: TABLE[key].combine_chunks() for key in TABLE.column_names}, 9)
    assert TABLE["row"].filter(mask) == TABLE.filter(expected)["row"], made


def test_comparisons_with_nan_alone() -> None:
    for values in ([float("nan")] * 20, [float("nan")] * 20 + [1.0]):
        where: Any = ~reduce(operator.or_, [col("x") == value for value in values])
        expected: Any = ~reduce(operator.or_, [pc.field("x") == value for value in values])
        mask = compile_filter(parse_where(where), TABLE.schema).mask({"x": TABLE["x"].combine_chunks()}, 9)
        assert TABLE["row"].filter(mask) == TABLE.filter(expected)["row"]


def test_few_comparisons_and_other_ones_stay() -> None:
    few: Any = reduce(operator.or_, [col("n") == value for value in range(15)])
    assert with_key_sets(few) is few
    columns: Any = reduce(operator.or_, [col(f"c{value}") == value for value in range(30)])
    assert with_key_sets(columns) == columns
    nulls: Any = Or(tuple(col("n") == None for _ in range(20)))  # noqa: E711  # as parsed from SQL
    assert with_key_sets(nulls) == nulls


@pytest.mark.parametrize(
    "where",
    [
        " OR ".join(f"n = {value}" for value in range(20)),
        [[("n", "=", value)] for value in range(20)],
        reduce(operator.or_, [col("n") == value for value in range(20)]),
        Not(Not(reduce(operator.or_, [col("n") == value for value in range(20)]))),
    ],
)
def test_forms(where: object) -> None:
    made = parse_where(where)
    while isinstance(made, Not):
        made = made.arg
    assert made == KeyIn("n", tuple(range(20)))


def test_inside_of_others() -> None:
    many: Expression = reduce(operator.and_, [col("n") != value for value in range(20)])
    made = parse_where((col("t") == "a") | (many & (col("x") > 1)))
    assert made == (col("t") == "a") | (Not(KeyIn("n", tuple(range(20)))) & (col("x") > 1))
