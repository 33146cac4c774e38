"""Translated conditions are true for every row of the other engine's, and for no others where they say so."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import ColumnNotFoundError, Expression, ExpressionError, col
from asyncpq.decoding.filter import compile_filter
from asyncpq.engine.array_conversions import compact_batch
from asyncpq.engine.foreign_predicates import (
    AllOf,
    AnyOf,
    ForeignAtom,
    Negated,
    check_names,
    compared,
    literals,
    lookup_condition,
    member,
    num_comparisons,
    parse_condition,
    translate,
    translate_arrow,
)
from tests.example_counts import examples

NAN = math.nan
VALUES = [None, -math.inf, -1.0, -0.0, 0.0, 1.5, math.inf, NAN]
TABLE = pa.table({"f": pa.array(VALUES, pa.float64()), "n": pa.array([None, 1, 2, 3, None, 4, 5, 6])})
OPS: dict[str, Callable[[Any, Any], bool]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def rows_of(where: Expression | None) -> list[int]:
    """The rows for which a predicate is true."""
    if where is None:
        return list(range(len(TABLE)))
    columns = {name: TABLE[name].combine_chunks() for name in TABLE.column_names}
    mask = compile_filter(where, TABLE.schema).mask(columns, len(TABLE))
    return [at for at, value in enumerate(mask.to_pylist()) if value]


def place(value: float) -> tuple[bool, float]:
    """Where a value stands in the order in which NaN comes last."""
    return (True, 0.0) if value != value else (False, value)


def order(op: str, value: float | None, literal: float) -> bool | None:
    return None if value is None else OPS[op](place(value), place(literal))


@pytest.mark.parametrize("value_first", [False, True])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("literal", [value for value in VALUES if value is not None])
def test_comparisons_of_floats(op: Any, literal: float, value_first: bool) -> None:
    atom = compared("f", op, literal, is_float=True, value_first=value_first)
    op = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}.get(op, op) if value_first else op
    results = [order(op, value, literal) for value in VALUES]
    assert atom.exact
    assert rows_of(atom.true) == [at for at, result in enumerate(results) if result is True]
    assert rows_of(atom.false) == [at for at, result in enumerate(results) if result is False]


@pytest.mark.parametrize("null_is_value", [False, True])
@pytest.mark.parametrize("values", [[1.5], [0.0, NAN], [NAN], [None, 1.5], [None, NAN, -0.0, 7.0]])
def test_members(values: list[float | None], null_is_value: bool) -> None:
    def result(value: float | None) -> bool | None:
        if value is None:
            return None in values if null_is_value else None
        return place(value) in [place(literal) for literal in values if literal is not None]

    atom = member("f", values, is_float=True, null_is_value=null_is_value)
    assert rows_of(atom.true) == [at for at, value in enumerate(VALUES) if result(value) is True]
    assert rows_of(atom.false) == [at for at, value in enumerate(VALUES) if result(value) is False]


# -- trees of another engine: tuples of a word and its arguments ------------------------------------

Node = tuple[Any, ...]
leaves = st.one_of(
    st.tuples(st.just("n"), st.sampled_from(sorted(OPS)), st.integers(0, 6)),
    st.tuples(st.just("f"), st.sampled_from(sorted(OPS)), st.sampled_from(VALUES[1:])),
    st.tuples(st.just("odd")),
    st.tuples(st.sampled_from(["above", "below"]), st.integers(0, 6)),
)
nodes = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.sampled_from(["and", "or"]), st.lists(inner, max_size=3)), st.tuples(st.just("not"), inner)
    ),
    max_leaves=8,
)


def understand(node: Node) -> AllOf | AnyOf | Negated | ForeignAtom | None:
    match node:
        case ("and", terms):
            return AllOf(terms)
        case ("or", terms):
            return AnyOf(terms)
        case ("not", term):
            return Negated(term)
        case ("n" | "f" as name, op, value):
            return compared(name, op, value, is_float=name == "f")
        case ("above", value):  # nothing is known of the rows for which it is false
            return ForeignAtom(col("n") >= value, None, exact=False)
        case ("below", value):
            return ForeignAtom(col("n") < value, None)
    return None


def meaning(node: Node, row: dict[str, Any]) -> bool | None:
    match node:
        case ("and" | "or" as word, terms):
            results = [meaning(term, row) for term in terms]
            decides = word == "or"
            return decides if decides in results else None if None in results else not decides
        case ("not", term):
            result = meaning(term, row)
            return None if result is None else not result
        case ("n" | "f" as name, op, value):
            return order(op, row[name], value)
        case ("above", value):
            return None if row["n"] is None else row["n"] > value
        case ("below", value):
            return None if row["n"] is None else row["n"] < value
    return None if row["n"] is None else row["n"] % 2 == 1


@settings(max_examples=examples(200, thorough=3000))
@given(node=nodes)
def test_a_read_and_what_is_left_are_the_other_engine_s_rows(node: Node) -> None:
    found = translate(node, understand)
    rows = TABLE.to_pylist()
    expected = [at for at, row in enumerate(rows) if meaning(node, row) is True]
    read = rows_of(found.where)
    assert set(expected) <= set(read)
    assert [at for at in read if all(meaning(term, rows[at]) is True for term in found.residual)] == expected


def test_only_what_is_not_understood_is_left() -> None:
    some: list[Node] = [("n", ">", 1), ("odd",), ("above", 3)]
    number, odd, above = some
    found = translate(("and", [number, ("and", [odd, above])]), understand)
    assert str(found.where) == "(n > 1) and (n >= 3)"
    assert list[Node](found.residual) == [odd, above]
    assert translate(number, understand).residual == ()
    either = ("or", [number, odd])
    assert translate(either, understand) == (None, (either,), None)
    assert translate(("and", []), understand) == (None, (), None)


def test_chains_and_towers() -> None:
    chain: Node = ("n", "==", 0)
    for number in range(1, 5000):
        chain = ("or", [chain, ("n", "==", number)])
    found = translate(chain, understand)
    assert len(found.where.args) == 5000  # type: ignore[union-attr]
    tower: Node = ("odd",)
    for depth in (150, 5000):
        for number in range(depth):
            tower = ("or" if number % 2 else "and", [tower, ("n", "==", number)])
        assert translate(("not", tower), understand).where is None
        assert translate(("not", tower), understand).residual == (("not", tower),)


# -- conditions of pyarrow, and of people ---------------------------------------------------------


@pytest.mark.parametrize("literal", [1.5, NAN])
@pytest.mark.parametrize("op", OPS)
def test_arrow_s_floats(op: str, literal: float) -> None:
    field = pc.field("f")
    condition: pc.Expression = OPS[op](field, pa.scalar(literal))
    for negated in (False, True):
        found = translate_arrow(~condition if negated else condition, TABLE.schema)
        assert found.residual == ()
        expected = [at for at, value in enumerate(VALUES) if order(op, value, literal) is not negated]
        assert rows_of(found.where) == [at for at in expected if VALUES[at] is not None]


def test_what_arrow_may_have_and_asyncpq_has_not() -> None:
    condition = pc.ends_with(pc.field("n").cast("string"), "a")
    found = translate_arrow(condition, TABLE.schema)
    assert (found.where, found.residual) == (None, (condition,))
    assert "ends_with" in str(found.reason)


def test_conditions_of_people() -> None:
    condition = parse_condition("n IN (1, 2) AND (f > 1 OR n = 7) AND true")
    assert (condition.columns, condition.num_comparisons, condition.is_relative) == (("n", "f"), 3, False)
    assert condition.constants == {True}
    assert parse_condition("t > now() - INTERVAL 1 HOUR").is_relative
    assert num_comparisons("n IN (1, 2) AND (f > 1 OR n = 7)") == 3
    quoted = parse_condition('name = "bob"')
    error = quoted.explained(ColumnNotFoundError("no column 'bob'", column="bob"))
    assert "single quotes: 'bob'" in str(error.hint)
    with pytest.raises(ExpressionError):
        parse_condition("n = ")


def test_keys_and_literals() -> None:
    assert str(lookup_condition({"n": 1, "f": 2.0})) == "(n == 1) and (f == 2.0)"
    values: Sequence[Any] = literals(pa.array([1, None, 3]))
    assert values == (1, None, 3)


SCHEMA = pa.schema({"id": pa.int64(), "place": pa.struct({"zip": pa.string()}), "twice": pa.int8()})


@pytest.mark.parametrize("names", [[], ["id"], ["place.zip", "twice"]])
def test_names_of_columns_and_fields(names: list[str]) -> None:
    check_names(SCHEMA, names)


@pytest.mark.parametrize(
    ("schema", "name", "error"),
    [
        (SCHEMA, "ident", asyncpq.ColumnNotFoundError),
        (SCHEMA, "place.street", asyncpq.ColumnNotFoundError),
        (SCHEMA.append(pa.field("twice", pa.int8())), "twice", asyncpq.AmbiguousColumnError),
    ],
)
def test_other_names_are_refused_as_by_reads(schema: pa.Schema, name: str, error: type[asyncpq.AsyncpqError]) -> None:
    with pytest.raises(error):
        check_names(schema, [name])


def test_a_compact_batch_has_its_own_rows_alone() -> None:
    whole = pa.record_batch({"text": [f"secret {number}" for number in range(100)]})
    batch = compact_batch(whole.slice(40, 2), hidden_rows=True)
    assert batch.equals(whole.slice(40, 2))
    buffers = [bytes(buffer) for buffer in batch.column(0).buffers() if buffer is not None]
    assert not any(b"secret 39" in data or b"secret 42" in data for data in buffers)
