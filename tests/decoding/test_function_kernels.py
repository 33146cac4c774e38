"""Functions of columns in conditions: their types, and their values against Python's."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from asyncpq.decoding.function_kernels import compared_test, function_kernel, function_type
from asyncpq.errors import PredicateTypeError
from asyncpq.expressions import FunctionTest, tree
from asyncpq.expressions.sql import parse_sql


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
