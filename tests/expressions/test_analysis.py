"""The analysis of predicates against the exact filter: no value is missed, and exact sets hold no other."""

from __future__ import annotations

import math
import sys
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from asyncpq.datasets.file_statistics import kind_of
from asyncpq.decoding.filter import compile_filter
from asyncpq.errors import PredicateTypeError
from asyncpq.expressions import (
    And,
    ColumnComparison,
    CompareOp,
    Comparison,
    Constant,
    Contains,
    Expression,
    Has,
    HasTokens,
    In,
    IsNull,
    KeyIn,
    Like,
    Not,
    Or,
    StartsWith,
)
from asyncpq.expressions.analysis import (
    Comparable,
    Incomparable,
    Interval,
    Points,
    ResultValues,
    Truth,
    ValueDomain,
    follow,
    intervals,
    prefixed,
    result_values,
    successor,
    texts_needed,
)
from asyncpq.expressions.tokens import tokens
from asyncpq.pruning.literals import TEXTS
from asyncpq.pruning.literals import domain_of as domain_of_kind
from tests.example_counts import examples
from tests.predicates import COLUMNS, KINDS, LIST, array, arrays, atoms, trees

TRUTHS = {True: Truth.TRUE, False: Truth.FALSE, None: Truth.NULL}


def domain_of(type_: pa.DataType) -> ValueDomain:
    return domain_of_kind(kind_of(type_))


def holds(found: ResultValues, value: Any, domain: ValueDomain) -> bool:
    """Whether a value of the column is a member."""
    if value is None:
        return found.null
    if value != value:
        return found.nan
    if not found.comparable:
        return True
    literal = domain.to_key(value)
    if isinstance(literal, Incomparable):  # of a column of which nothing is compared
        return bool(intervals(found.values))
    return any(_inside(literal.key, part) for part in intervals(found.values))


def _inside(key: Any, part: Interval) -> bool:
    above = part.low is None or (key > part.low if part.low_open else key >= part.low)
    return above and (part.high is None or (key < part.high if part.high_open else key <= part.high))


def results(expr: Expression, columns: dict[str, pa.Array]) -> list[bool | None]:
    """The exact filter's result for each row."""
    types = {name: column.type for name, column in columns.items()}
    try:
        mask = compile_filter(expr, types).mask(columns, len(columns["x"]))
    except PredicateTypeError:
        assume(False)
    found: list[bool | None] = mask.to_pylist()
    return found


@pytest.mark.heavy
@settings(max_examples=examples(200, thorough=1000))
@given(st.data(), KINDS)
def test_sets_hold_the_values_with_that_result_and_exact_ones_no_others(data: st.DataObject, kind: str) -> None:
    type_ = COLUMNS[kind][0]
    values = data.draw(arrays(kind, min_size=1))
    atom: Any = data.draw(atoms("x", kind))
    domain = domain_of(type_)
    exact = results(atom, {"x": array(kind, values)})
    sets = {result: result_values(atom, truth, domain) for result, truth in TRUTHS.items()}
    for value, result in zip(values, exact, strict=True):
        for other, found in sets.items():
            if other is result:
                assert holds(found, value, domain), (atom, value, found)
                for text in found.texts:
                    assert text in value
                assert set(found.tokens) <= set(tokens(value) if found.tokens else ())
            elif found.exact:
                assert not holds(found, value, domain), (atom, value, found)
    if any(found.is_empty for found in sets.values()):
        assert all(not found.is_empty or result not in exact for result, found in sets.items())


@settings(max_examples=examples(120, thorough=1000))
@given(st.data(), KINDS)
def test_trees_are_followed_by_three_valued_logic(data: st.DataObject, kind: str) -> None:
    values = data.draw(arrays(kind, min_size=1, max_size=4))
    expr = data.draw(trees(atoms("x", kind)))
    domain = domain_of(COLUMNS[kind][0])
    for value, result in zip(values, results(expr, {"x": array(kind, values)}), strict=True):
        may_be = follow(
            expr,
            TRUTHS[result],
            lambda atom, truth: holds(result_values(atom, truth, domain), value, domain),  # noqa: B023  # called at once
            all,
            any,
        )
        assert may_be, (expr, value)


@given(st.data())
def test_lists_give_a_result_by_one_of_their_elements(data: st.DataObject) -> None:
    values = data.draw(st.lists(st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3), min_size=1))
    atom: Any = data.draw(atoms("x", LIST))
    domain = domain_of(pa.int32())
    for value, result in zip(values, results(atom, {"x": pa.array(values, pa.list_(pa.int32()))}), strict=True):
        found = result_values(atom, TRUTHS[result], domain)
        if found.of_elements:
            assert any(holds(found, element, domain) for element in value or ())
        else:
            assert found.null if value is None else intervals(found.values)


@given(st.data())
def test_comparisons_of_columns_are_null_where_either_is(data: st.DataObject) -> None:
    left, right = (data.draw(arrays("float64", min_size=4, max_size=4)) for _ in range(2))
    ops: list[CompareOp] = ["==", "!=", "<", ">="]
    atom = data.draw(st.sampled_from(ops).map(lambda op: ColumnComparison("x", op, "y")))
    domain = domain_of(pa.float64())
    exact = results(atom, {"x": array("float64", left), "y": array("float64", right)})
    for first, second, result in zip(left, right, exact, strict=True):
        found = result_values(atom, TRUTHS[result], domain)
        assert not found.exact
        assert holds(found, first, domain)
        assert holds(found, second, domain)


# -- the rules, one by one --------------------------------------------------------------------------

_FLOATS = domain_of(pa.float64())
_STRINGS = domain_of(pa.string())
_ALL = (Interval(),)


@pytest.mark.parametrize(
    ("atom", "true", "false", "null"),
    [
        # an atom, and for each result: values, null, nan
        (Comparison("x", "==", None), ((), False, False), ((), False, False), (_ALL, True, True)),
        (Comparison("x", "==", math.nan), ((), False, False), (_ALL, False, True), ((), True, False)),
        (Comparison("x", "!=", math.nan), (_ALL, False, True), ((), False, False), ((), True, False)),
        (
            Comparison("x", "<", 1.0),
            ((Interval(None, 1.0, False, True),), False, False),
            ((Interval(1.0),), False, True),
            ((), True, False),
        ),
        (
            Comparison("x", "!=", -0.0),
            (Points((0.0,), inverted=True), False, True),
            (Points((0.0,)), False, False),
            ((), True, False),
        ),
        (
            In("x", (2.0, 1.0, None, math.nan)),
            (Points([1.0, 2.0]), True, True),
            (Points([1.0, 2.0], inverted=True), False, True),
            ((), False, False),
        ),
        (
            In("x", (0.0, 1.0)),
            (Points([0.0, 1.0]), False, False),
            (Points([1.0], inverted=True), True, True),
            ((), False, False),
        ),
        (
            KeyIn("x", (0.0, None, math.nan)),
            (Points([0.0]), False, False),
            (Points([0.0], inverted=True), False, True),
            ((), True, False),
        ),
        (KeyIn("x", (None, math.nan)), ((), False, False), (_ALL, True, True), ((), False, False)),
        (IsNull("x"), ((), True, False), (_ALL, False, True), ((), False, False)),
        (IsNull("x", nan_is_null=True), ((), True, True), (_ALL, False, False), ((), False, False)),
    ],
)
def test_null_nan_and_zero(atom: Any, true: Any, false: Any, null: Any) -> None:
    for truth, wanted in zip(Truth, (true, false, null), strict=True):
        assert result_values(atom, truth, _FLOATS)[:3] == wanted


def test_only_zero_makes_a_membership_inexact() -> None:
    assert not result_values(In("x", (0.0, 1.0)), Truth.TRUE, _FLOATS).exact
    assert result_values(In("x", (1.0,)), Truth.TRUE, _FLOATS).exact
    assert result_values(KeyIn("x", (0.0, 1.0)), Truth.TRUE, _FLOATS).exact


@pytest.mark.parametrize(
    ("atom", "values", "texts", "tokens"),
    [
        (StartsWith("x", "ab"), (Interval(b"ab", b"ac", False, True),), ("ab",), ()),
        (StartsWith("x", ""), _ALL, ("",), ()),
        (StartsWith("x", b"a\xff\xff"), (Interval(b"a\xff\xff", b"b", False, True),), (b"a\xff\xff",), ()),
        (StartsWith("x", b"\xff"), (Interval(b"\xff"),), (b"\xff",), ()),
        (Like("x", "a\\_b%c_%"), (Interval(b"a_b", b"a_c", False, True),), ("a_b", "c"), ()),
        (Like("x", "%a"), _ALL, ("a",), ()),
        (Like("x", "a\\b%"), (Interval(b"a", b"b", False, True),), ("a",), ()),
        (Contains("x", "ab"), _ALL, ("ab",), ()),
        (HasTokens("x", ("a", "b")), _ALL, (), ("a", "b")),
    ],
)
def test_texts(atom: Any, values: Any, texts: Any, tokens: Any) -> None:
    found = result_values(atom, Truth.TRUE, _STRINGS)
    assert (found.values, found.texts, found.tokens) == (values, texts, tokens)
    assert not found.null
    opposite = result_values(atom, Truth.FALSE, _STRINGS)
    assert (opposite.texts, opposite.tokens) == ((), ())
    assert result_values(atom, Truth.NULL, _STRINGS)[:3] == ((), True, False)


def test_a_pattern_that_begins_with_anything_says_why_nothing_is_ruled_out() -> None:
    assert result_values(Like("x", "%a"), Truth.TRUE, _STRINGS).reason == "its matches begin with anything"
    assert result_values(Like("x", "a%"), Truth.TRUE, _STRINGS).reason is None


#: The greatest characters and bytes have no successor, and surrogates are not text.
_BEFORE_SURROGATES, _BEHIND_SURROGATES, _LAST = "\ud7ff", "\ue000", chr(sys.maxunicode)
_TEXTS = st.text(st.sampled_from(["a", "b", _BEFORE_SURROGATES, _BEHIND_SURROGATES, _LAST]), max_size=4)
_BYTES = st.lists(st.sampled_from([0, 1, 0xFE, 0xFF]), max_size=4).map(bytes)


@given(st.tuples(_TEXTS, _TEXTS) | st.tuples(_BYTES, _BYTES), st.booleans())
def test_the_strings_with_a_prefix_are_one_interval(pair: tuple[Any, Any], longer: bool) -> None:
    prefix, value = pair
    value = prefix + value if longer else value
    (inside,) = prefixed(prefix)
    assert _inside(value, inside) == value.startswith(prefix)
    above = successor(prefix)
    assert inside.prefix == (None if above is None else prefix)
    if above is not None:
        assert inside._replace(high=above + prefix[:1]).prefix is None


def test_successors_are_the_least() -> None:
    assert successor("a" + _BEFORE_SURROGATES) == "a" + _BEHIND_SURROGATES
    assert successor("a" + _LAST) == "b"
    assert successor(b"a\xfe\xff") == b"a\xff"
    assert [successor(last) for last in (_LAST, "")] == [None, None]
    assert [successor(last) for last in (b"\xff\xff", b"")] == [None, None]


def test_sets_are_empty_where_nothing_is_a_member() -> None:
    nothing = ResultValues((), null=False, nan=False)
    assert nothing.is_empty
    assert nothing._replace(values=Points(())).is_empty
    for values in (Points((1,)), Points((), inverted=True), Points((1,), inverted=True), _ALL):
        assert not nothing._replace(values=values).is_empty
    assert not nothing._replace(null=True).is_empty
    assert not nothing._replace(nan=True).is_empty


def test_a_member_that_is_nan_is_cast_as_any_other() -> None:
    integers = domain_of(pa.int64())
    assert not result_values(In("x", (1, math.nan)), Truth.TRUE, integers).comparable
    assert result_values(KeyIn("x", (1, math.nan)), Truth.TRUE, integers).values == Points([1])


def test_strings_without_a_prefix_lie_on_both_sides_of_those_with_it() -> None:
    outside = result_values(StartsWith("x", "ab"), Truth.FALSE, _STRINGS)
    assert outside.values == (Interval(None, b"ab", False, True), Interval(b"ac"))
    assert result_values(StartsWith("x", ""), Truth.FALSE, _STRINGS).is_empty


def test_what_is_not_compared_says_nothing_but_of_nulls() -> None:
    for atom in (Comparison("x", "==", "a"), KeyIn("x", ("a", 1.0)), In("x", ("a", None)), In("x", (1,))):
        for truth in (Truth.TRUE, Truth.FALSE):
            found = result_values(atom, truth, _FLOATS)
            assert (found.values, found.nan, found.exact, found.comparable) == (_ALL, True, False, False)
            assert found.null is (isinstance(atom, In) and (None in atom.values) is (truth is Truth.TRUE))
            assert found.reason


def test_has_asks_of_elements() -> None:
    found = result_values(Has("x", 1.0), Truth.TRUE, _FLOATS)
    assert (found.values, found.of_elements) == (Points((1.0,)), True)
    assert not result_values(Has("x", 1.0), Truth.FALSE, _FLOATS).comparable


def test_many_literals_become_keys_once() -> None:
    calls: list[Any] = []

    def to_key(value: Any) -> Comparable:
        calls.append(value)
        return Comparable(value)

    domain = ValueDomain(to_key, shared=True)
    atom = KeyIn("x", tuple(range(1000, 0, -1)))
    for truth in (Truth.TRUE, Truth.FALSE, Truth.TRUE):
        found = result_values(atom, truth, domain).values
        assert isinstance(found, Points)
        assert list(found.keys) == list(range(1, 1001))
    assert len(calls) == 1000
    result_values(atom, Truth.TRUE, ValueDomain(to_key))  # a domain of its own leaves nothing behind
    assert len(calls) == 2000
    plain = ValueDomain(to_key, {int: None, str: str.encode})
    assert result_values(atom, Truth.TRUE, plain)[:3] == (Points(list(range(1, 1001))), False, False)
    assert result_values(In("x", ("b", "a")), Truth.TRUE, plain).values == Points([b"a", b"b"])
    assert len(calls) == 2000


def test_constants_and_what_is_no_predicate() -> None:
    for constant, truth in ((True, Truth.TRUE), (False, Truth.FALSE), (None, Truth.NULL)):
        for asked in Truth:
            found = follow(Constant(constant), asked, lambda *_: False, all, any)
            assert found is (asked is truth)
    assert follow(Not(Constant(None)), Truth.NULL, lambda *_: False, all, any)
    with pytest.raises(TypeError, match="is not a comparison"):
        result_values(Constant(True), Truth.TRUE, _FLOATS)  # type: ignore[arg-type]  # what is tested


# -- Spark ------------------------------------------------------------------------------------------

_SPARK = ValueDomain(domain_of(pa.float64()).to_key, spark=True)
_VALUES = [-math.inf, -1.0, -0.0, 0.0, 1.0, math.inf, math.nan, None]


def _by_spark(op: str, value: float | None, literal: float | None) -> bool | None:
    """Spark's comparison of doubles: NaN equals itself and is greater than all else."""
    if value is None or literal is None:
        return None
    left, right = ((x != x, 0.0 if x != x else x) for x in (value, literal))
    below, equal = left < right, left == right
    return {"==": equal, "!=": not equal, "<": below, "<=": below or equal, ">": not (below or equal), ">=": not below}[
        op
    ]


@pytest.mark.parametrize("op", ["==", "!=", "<", "<=", ">", ">="])
@pytest.mark.parametrize("literal", _VALUES)
def test_spark_orders_nan_above_all(op: Any, literal: float | None) -> None:
    for value in _VALUES:
        for result, truth in TRUTHS.items():
            found = result_values(Comparison("x", op, literal), truth, _SPARK)
            if literal is None and truth is Truth.NULL:
                assert holds(found, value, _SPARK)
            else:
                assert holds(found, value, _SPARK) is (_by_spark(op, value, literal) is result)


@pytest.mark.parametrize("values", [(1.0, math.nan), (0.0, None), (), (None,)])
def test_spark_membership_is_null_for_null_unless_null_is_a_member(values: tuple[float | None, ...]) -> None:
    for value in _VALUES:
        equal = [_by_spark("==", value, member) for member in values if member is not None]
        exact = True if True in equal else None if None in equal else False
        if None in values:  # SQL's "or is null"
            exact = value is None or exact
        assert holds(result_values(In("x", values), TRUTHS[exact], _SPARK), value, _SPARK), (values, value)


_WORDS = st.text("ab", max_size=3)
_TEXT_COLUMNS = {"text": _WORDS, "raw": _WORDS.map(str.encode)}


@given(
    trees(st.one_of([atoms(name, name, own=words) for name, words in _TEXT_COLUMNS.items()])),
    st.lists(st.fixed_dictionaries({name: st.none() | words for name, words in _TEXT_COLUMNS.items()}), min_size=1),
    st.integers(1, 3),
)
def test_values_of_matching_rows_contain_a_needed_text(expr: Expression, rows: list[dict[str, Any]], most: int) -> None:
    table = pa.Table.from_pylist(rows, pa.schema({"text": pa.string(), "raw": pa.binary()}))
    try:
        mask = compile_filter(expr, table.schema).mask(dict(zip(table.column_names, table, strict=True)), len(rows))
    except (PredicateTypeError, pa.ArrowException):
        assume(False)
        raise
    needed = texts_needed(expr, ["text", "raw"], TEXTS, most=most)
    for name, texts in needed.items():
        assert 0 < len(texts) <= most
        assert all(texts)
        values = table.filter(mask)[name].cast(pa.binary()).to_pylist()
        assert all(value is not None and any(text in value for text in texts) for value in values)


def test_texts_needed() -> None:
    a, b = Comparison("text", "==", "ab"), StartsWith("text", "b")
    columns = ["text", "raw"]
    assert texts_needed(a, columns, TEXTS, most=1) == {"text": {b"ab"}}
    assert texts_needed(Or((a, b)), columns, TEXTS, most=2) == {"text": {b"ab", b"b"}}
    assert texts_needed(Or((a, b)), columns, TEXTS, most=1) == {}
    assert texts_needed(Or((a, Comparison("raw", "==", b"a"))), columns, TEXTS, most=2) == {}
    assert texts_needed(And((Comparison("raw", "==", b"a"), Not(a))), columns, TEXTS, most=2) == {"raw": {b"a"}}
    assert texts_needed(Like("text", "%a%bab%"), columns, TEXTS, most=1) == {"text": {b"bab"}}
    assert texts_needed(KeyIn("text", ("a", None)), columns, TEXTS, most=1) == {"text": {b"a"}}
    for other in (In("text", ("a", None)), Comparison("text", "==", ""), IsNull("text"), Comparison("n", "==", "a")):
        assert texts_needed(other, columns, TEXTS, most=2) == {}
