"""Predicates on texts and lists, alone: on every type that holds them, they equal pyarrow's kernels or plain Python."""

from __future__ import annotations

import math
import struct
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from asyncpq import col
from asyncpq.decoding import expression_engine, kernels
from asyncpq.decoding import filter as filter_module
from asyncpq.decoding.expression_engine import compared_test, function_kernel, function_type, in_slices
from asyncpq.decoding.filter import compile_filter
from asyncpq.errors import PredicateTypeError
from asyncpq.expressions import Contains, Expression, FunctionTest, Has, HasPhrase, HasTokens, Like, Not, tree
from asyncpq.expressions.sql import parse_sql
from asyncpq.expressions.tokens import tokens
from tests import words
from tests.example_counts import examples
from tests.predicates import COLUMNS, array, arrays, model

_WORDS = st.sampled_from(
    [
        "a",
        "B",
        "ab",
        "\u00e9",
        "e\u0301",
        "\u00df",
        "ss",
        "K",
        "\u212a",
        "\u017f",
        "S",
        "1",
        "\u00b2",
        "\U0001f600",
        "\u4e2d",
    ]
)
_GAPS = st.sampled_from([" ", "", "-", "_", "\n", "\u2014", "\u0301", "\x00", "'", "\u00a0"])
_CHARACTERS = st.characters(exclude_categories=["Cs"]).filter(lambda char: char not in words.OTHERS)
TEXTS = st.lists(_WORDS | _GAPS, max_size=8).map("".join) | st.text(_CHARACTERS, max_size=8)
_TYPES = [pa.string(), pa.large_string(), pa.string_view()]


def columns_of(values: list[Any], type_: pa.DataType) -> list[Any]:
    """The values as one array, cut out of a longer one, in chunks, and as dictionary arrays."""
    whole = pa.array(values, type_)
    longer = pa.array([*values[:1], *values, None], type_)
    found = [whole, longer[1 : 1 + len(values)], pa.chunked_array([whole[:2], whole[2:]], type_)]
    if not pa.types.is_string_view(type_):
        found += [whole.dictionary_encode(), pa.chunked_array([whole, whole[:0]]).dictionary_encode()]
    return found


def results(expr: Expression, column: Any, type_: pa.DataType) -> list[bool | None]:
    found: list[bool | None] = compile_filter(expr, {"s": type_}).mask({"s": column}, len(column)).to_pylist()
    return found


@pytest.mark.heavy
@settings(max_examples=examples(120, thorough=1000))
@given(st.lists(st.none() | TEXTS, max_size=6), TEXTS, st.booleans(), st.data())
def test_words_are_found(values: list[str | None], asked: str, phrase: bool, data: st.DataObject) -> None:
    asked = data.draw(st.sampled_from([asked, *filter(None, values)]))  # so that some are found
    found = tokens(asked)
    assume(found)
    expr = HasPhrase("s", tuple(found)) if phrase else HasTokens("s", tuple(found))
    test = words.has_phrase if phrase else words.has_tokens
    expected = [None if value is None else test(value, found) for value in values]
    for type_ in _TYPES:
        for column in columns_of(values, type_):
            assert results(expr, column, type_) == expected
            assert results(Not(expr), column, type_) == [None if one is None else not one for one in expected]


def test_long_phrases_are_found() -> None:
    text = " ".join(f"w{at}" for at in range(5000))
    values = [text, text + "x", None, "\u00e9 " + text, "w0"]
    assert results(HasPhrase("s", tuple(tokens(text))), pa.array(values), pa.string()) == [
        True,
        False,
        None,
        True,
        False,
    ]
    assert results(HasTokens("s", ("x" * 20_000,)), pa.array(["x" * 20_000, "x"]), pa.string()) == [True, False]


def test_words_that_no_text_can_have_are_not_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    patterns: list[str] = []
    search = kernels.match_substring_regex

    def counted(values: Any, pattern: str) -> Any:
        patterns.append(pattern)
        return search(values, pattern)

    monkeypatch.setattr(kernels, "match_substring_regex", counted)
    values = pa.array(["a b", None, "b", "\u00e9 a b"])
    asked = ("a", "a", "b", *(f"absent{number}" for number in range(50)))
    assert results(HasTokens("s", asked), values, pa.string()) == [False, None, False, False]
    assert len(patterns) == 3
    patterns.clear()
    assert results(HasTokens("s", ("a", "a", "b")), values, pa.string()) == [True, None, False, True]
    assert len(patterns) == 2


def test_strings_that_are_no_utf8_have_words() -> None:
    raw = pa.array([b"a \xff b", b"a\xffb", b"\xff", "\u00e9".encode()[:1] + b"a"])
    for type_ in (pa.string(), pa.large_string()):
        broken = raw.cast(pa.large_binary() if type_ == pa.large_string() else pa.binary()).view(type_)
        assert results(HasTokens("s", ("a", "b")), broken, type_) == [True, True, False, False]
        assert results(HasPhrase("s", ("a", "b")), broken, type_) == [True, True, False, False]


_PATTERNS = st.text("ab%_\\\u00e9\n.", max_size=6)
_BODIES = st.text("ab%_\\\u00e9\n.", max_size=6)


@pytest.mark.heavy
@settings(max_examples=examples(100, thorough=1000))
@given(st.lists(st.none() | _BODIES, max_size=6), _PATTERNS)
def test_texts_are_found_as_pyarrow_finds_them(values: list[str | None], pattern: str) -> None:
    for type_ in (pa.string(), pa.large_string(), pa.binary(), pa.large_binary()):
        is_binary = type_ in (pa.binary(), pa.large_binary())
        held = [None if value is None else value.encode() for value in values] if is_binary else values
        asked: str | bytes = pattern.encode() if is_binary else pattern
        plain = pa.array(held, type_)
        for column in columns_of(held, type_):
            assert results(Contains("s", asked), column, type_) == pc.match_substring(plain, asked).to_pylist()
            assert results(Like("s", asked), column, type_) == pc.match_like(plain, asked).to_pylist()


@given(st.lists(st.none() | _BODIES, max_size=30), _PATTERNS, st.integers(1, 40))
def test_slices_of_an_array_have_the_results_of_the_whole(values: list[str | None], pattern: str, most: int) -> None:
    sizes: list[int] = []

    def kernel(array: pa.Array) -> pa.Array:
        sizes.append(len(array))
        return pc.match_like(array, pattern)

    with patch.object(expression_engine, "_SLICE_STEPS", most):
        for whole in (pa.array(values, pa.string()), pa.array(["x", *values], pa.large_string())[1:]):
            for column in (whole, pa.chunked_array([whole, whole[:3]]), pa.chunked_array([whole[:0]])):
                found = in_slices(kernel, 1)(column)
                assert found.type == pa.bool_()
                assert found.to_pylist() == pc.match_like(column, pattern).to_pylist()
    assert max(sizes, default=0) <= max(1, most)


def test_texts_that_take_long_stop_between_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each condition that may take long: patterns, words, boxes, parts of variants."""
    calls: list[None] = []
    for module in (expression_engine, filter_module):
        monkeypatch.setattr(module, "checkpoint", lambda: calls.append(None))
    monkeypatch.setattr(expression_engine, "_SLICE_STEPS", 64)
    texts = pa.array(["some text"] * 100)
    points = pa.array([struct.pack("<bIdd", 1, 1, 0.5, 0.5)] * 100)
    parts = [pa.array([data] * 100) for data in (b"\1\0\0", b"\x0c\1")]
    variant = pa.StructArray.from_arrays(parts, ["metadata", "value"])
    cases: list[tuple[Expression, pa.Array]] = [
        (col("s").like("s%t_x%"), texts),
        (col("s").has_tokens("text"), texts),
        (col("s").has_phrase("some text"), texts),
        (col("s").intersects_box(0, 0, 1, 1), points),
        (col("s").variant_get("$", "int64") == 1, variant),
    ]
    for expr, column in cases:
        calls.clear()
        compiled = compile_filter(expr, {"s": column.type})
        assert compiled.mask({"s": column}, 100).true_count == 100, expr
        assert len(calls) >= 10, expr
        assert compiled.cost > 1, expr
    assert compile_filter(col("s") == "a", {"s": pa.string()}).cost == 1


# -- lists ----------------------------------------------------------------------------------------

_LISTS = [pa.list_, pa.large_list]


@pytest.mark.heavy
@settings(max_examples=examples(100, thorough=1000))
@given(st.sampled_from(["int32", "float64", "string", "timestamp_utc", "decimal", "uuid", "bool"]), st.data())
def test_lists_have_their_elements(kind: str, data: st.DataObject) -> None:
    element = COLUMNS[kind][0]
    values = data.draw(st.lists(st.none() | arrays(kind, max_size=4), max_size=6))
    asked = data.draw(COLUMNS[kind][1])
    flat = array(kind, [value for row in values for value in row or ()])
    ends = [0]
    for row in values:
        ends.append(ends[-1] + len(row or ()))
    plain = pa.ListArray.from_arrays(
        pa.array(ends, pa.int32()), flat, pa.list_(element), mask=pa.array([row is None for row in values], pa.bool_())
    )
    expected = [None if row is None else any(model(Has("s", asked), {"s": [value]}) for value in row) for row in values]
    for make in _LISTS:
        type_ = make(element)
        column = plain.cast(type_)
        for given_ in (column, pa.chunked_array([column[:2], column[2:]], type_)):
            assert results(Has("s", asked), given_, type_) == expected
        assert results(Has("s", asked), column[1:], type_) == expected[1:]


@pytest.mark.parametrize(
    ("values", "asked", "expected"),
    [
        ([[1, None], None, [2, 1]], 1, [True, None, True]),
        ([[1, None], None, [2, 1]], 1.0, [True, None, True]),
        ([[1, None], None, [2, 1]], 1.5, [False, None, False]),
    ],
)
def test_lists_of_other_layouts(values: list[Any], asked: Any, expected: list[bool | None]) -> None:
    for type_ in (pa.list_(pa.int64(), 2), pa.list_view(pa.int64()), pa.large_list_view(pa.int64())):
        assert results(Has("s", asked), pa.array(values, type_), type_) == expected


def test_null_lists_that_hold_elements() -> None:
    """A null list may have elements beneath it, which are none of any row's."""
    lists = pa.ListArray.from_arrays([0, 1, 3, 4], pa.array([1, 2, 2, 3]), mask=pa.array([False, True, False]))
    assert results(Has("s", 2), lists, lists.type) == [False, None, False]
    assert results(Has("s", 3), lists, lists.type) == [False, None, True]


@pytest.mark.parametrize("type_", [pa.string(), pa.date32(), pa.timestamp("us"), pa.bool_(), pa.binary()])
def test_a_test_for_nan_names_the_columns_type(type_: pa.DataType) -> None:
    for where in (col("x").is_nan(), ~col("x").is_nan(), parse_sql("isnan(x)")):
        with pytest.raises(
            PredicateTypeError, match=f"NaN needs a column of floats.*type {type_}".replace("[", ".")
        ) as caught:
            compile_filter(where, {"x": type_})
        assert caught.value.column == "x"
        assert "isnan()" in str(caught.value)


def sql(text: str) -> FunctionTest:
    condition = parse_sql(text)
    assert isinstance(condition, FunctionTest)
    return condition


LOWER, UPPER = sql("lower(a) = 'x'"), sql("upper(a) = 'X'")


def mod(divisor: int) -> FunctionTest:
    return sql(f"a % {divisor} = 0")


@pytest.mark.parametrize("type_", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())])
@pytest.mark.parametrize("test", [LOWER, UPPER], ids=["lower", "upper"])
def test_texts_stay_texts(test: FunctionTest, type_: pa.DataType) -> None:
    expected = type_.value_type if isinstance(type_, pa.DictionaryType) else type_
    assert function_type(test, type_) == expected


@pytest.mark.parametrize(
    ("type_", "expected"),
    [(pa.int8(), pa.int64()), (pa.uint32(), pa.int64()), (pa.int64(), pa.int64()), (pa.uint64(), pa.uint64())],
)
def test_a_remainder_is_as_wide_as_the_column_may_need(type_: pa.DataType, expected: pa.DataType) -> None:
    assert function_type(mod(3), type_) == expected


@pytest.mark.parametrize(
    ("test", "type_", "needed"),
    [(LOWER, pa.int64(), "strings"), (UPPER, pa.binary(), "strings"), (mod(3), pa.string(), "integers")],
)
def test_a_column_without_the_function_is_named(test: FunctionTest, type_: pa.DataType, needed: str) -> None:
    with pytest.raises(PredicateTypeError, match=f"expected {needed}") as raised:
        function_type(test, type_)
    assert raised.value.column == "a"
    with pytest.raises(PredicateTypeError):
        function_kernel(test, type_)


@pytest.mark.parametrize("test", [LOWER, UPPER], ids=["lower", "upper"])
def test_cases_of_letters(test: FunctionTest) -> None:
    texts = ["", "aB c1", "ÄÖü", None]
    kind, kernel = function_kernel(test, pa.string())
    values: Any = kernel(pa.array(texts, pa.string()))
    change = str.lower if test is LOWER else str.upper
    assert values.type == kind
    assert values.to_pylist() == [None if text is None else change(text) for text in texts]


@pytest.mark.parametrize("divisor", [1, 3, 7])
@pytest.mark.parametrize("type_", [pa.int8(), pa.int64()])
def test_a_remainder_has_the_sign_of_the_value(divisor: int, type_: pa.DataType) -> None:
    numbers = [-128, -7, -1, 0, 1, 6, 127, None]
    kind, kernel = function_kernel(mod(divisor), type_)
    values: Any = kernel(pa.array(numbers, type_))
    assert values.type == kind == pa.int64()
    assert values.to_pylist() == [None if number is None else math.fmod(number, divisor) for number in numbers]


def test_remainders_of_numbers_beyond_int64() -> None:
    _, kernel = function_kernel(mod(10), pa.uint64())
    assert kernel(pa.array([2**64 - 1, 2**63], pa.uint64())).to_pylist() == [5, 8]


@pytest.mark.parametrize("pattern", ["İX", "İX%", "%İX%y"])
def test_the_text_of_ilike_gets_small_letters_from_the_kernel_of_the_column(pattern: str) -> None:
    """Python's ``lower`` makes two characters of the first letter."""
    compared = compared_test(sql(f"a ILIKE '{pattern}'"))
    small = pc.utf8_lower(pa.scalar(pattern.strip("%y"))).as_py()
    assert small != pattern.strip("%y").lower()
    assert small in str(compared)
    assert compared_test(LOWER) is LOWER.test


def test_a_text_of_ilike_that_is_no_unicode() -> None:
    test = sql("a ILIKE 'x%'")
    wrong = replace(test, test=tree.StartsWith("a", "\ud800"))
    with pytest.raises(PredicateTypeError, match="not valid Unicode"):
        compared_test(wrong)
