"""The kernels of a first lookup are those of pyarrow.compute."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from asyncpq.decoding import kernels

NUMBERS = pa.array([3, None, 1, 3])
FLAGS = pa.array([True, None, False, True])
TEXTS = pa.array(["a", None, "", "abc"])

CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("equal", (NUMBERS, pa.scalar(3)), {}),
    ("less_equal", (pa.scalar(2), NUMBERS), {}),
    ("and_", (FLAGS, FLAGS), {}),
    ("or_kleene", (FLAGS, pa.scalar(None, pa.bool_())), {}),
    ("invert", (FLAGS,), {}),
    ("indices_nonzero", (FLAGS,), {}),
    ("if_else", (FLAGS, NUMBERS, pa.scalar(7)), {}),
    ("is_null", (NUMBERS,), {}),
    ("is_null", (pa.array([1.0, float("nan")]),), {"nan_is_null": True}),
    ("sum", (NUMBERS,), {}),
    ("sum", (pa.array([], pa.int64()),), {}),
    ("min", (pa.array([None], pa.int64()),), {}),
    ("cumulative_sum", (pa.array([1, 2]),), {}),
    ("max_element_wise", (NUMBERS, pa.scalar(2)), {}),
    ("match_substring", (TEXTS, "b"), {}),
    ("match_substring", (TEXTS,), {"pattern": "b"}),
    ("match_like", (TEXTS,), {"pattern": "a%"}),
    ("starts_with", (TEXTS,), {"pattern": "A", "ignore_case": True}),
    ("starts_with", (pc.field("a"),), {"pattern": "A"}),
    ("is_in", (NUMBERS,), {"value_set": pa.array([1])}),
    ("is_in", (pc.field("a"),), {"value_set": pa.array([1])}),
    ("search_sorted", (pa.array([1, 2, 2, 3]), pa.array([2, 4])), {"side": "right"}),
    ("unique", (NUMBERS,), {}),
    ("scalar", (5,), {}),
    ("field", ("a",), {}),
]


@pytest.mark.parametrize(("name", "arguments", "options"), CALLS)
def test_kernels_give_what_pyarrow_compute_gives(
    name: str, arguments: tuple[Any, ...], options: dict[str, Any]
) -> None:
    for _ in range(2):
        result, expected = (getattr(module, name)(*arguments, **options) for module in (kernels, pc))
        assert result.equals(expected)
        assert type(result) is type(expected)


def test_a_cast_refuses_values_that_would_change() -> None:
    assert kernels.cast(NUMBERS, pa.int8()).equals(NUMBERS.cast(pa.int8()))
    with pytest.raises(pa.ArrowInvalid):
        kernels.cast(pa.array([300]), pa.int8())


def test_other_names_are_those_of_pyarrow_compute() -> None:
    assert kernels.Expression is pc.Expression
    assert kernels.CountOptions is pc.CountOptions
    with pytest.raises(AttributeError, match="no_such_kernel"):
        kernels.no_such_kernel  # noqa: B018
    assert not hasattr(kernels, "__wrapped__")
