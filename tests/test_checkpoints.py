"""Long work in pieces: what one call of Python's own functions is given stays small."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq import checkpoints
from asyncpq.checkpoints import pieces, sorted_distinct

pytestmark = pytest.mark.property


@given(st.lists(st.integers(-50, 50) | st.integers()), st.integers(1, 9))
def test_pieces_are_sorted_as_the_whole(values: list[int], piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoints, "PIECE", piece)
        assert sorted_distinct(iter(values)) == sorted(set(values))
        assert [value for part in pieces(values) for value in part] == values
        assert all(len(part) <= piece for part in pieces(values))


@pytest.mark.parametrize("order", ["ascending", "random", "equal", "two values"])
def test_no_piece_is_long(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    count, piece, longest = 20_000, 100, 0

    def sort(values: Any) -> list[Any]:
        nonlocal longest
        result = sorted(values)
        longest = max(longest, len(result))
        return result

    monkeypatch.setattr(checkpoints, "PIECE", piece)
    monkeypatch.setattr(checkpoints, "sorted", sort, raising=False)
    values = list(range(count))
    if order == "random":
        random.Random(1).shuffle(values)
    elif order != "ascending":
        values = [value % (1 if order == "equal" else 2) for value in values]
    assert sorted_distinct(values) == sorted(set(values))
    bounds = count // piece * max(1, count // max(1, piece // (count // piece)) // (count // piece))
    assert longest <= max(4 * piece, bounds)
