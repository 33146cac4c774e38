"""What is collected of a file's values: equal to what plain Python makes of them, for each kind."""

from __future__ import annotations

from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.expressions.tokens import tokens
from asyncpq.indexing.build.file_values import value_collector
from asyncpq.indexing.index_model import NULL_KEY, UNKNOWN_KEY
from asyncpq.indexing.key_encoding import may_hold, normalised, text_key
from tests.indexing.value_rows import BATCH_ENDS, FILE, collected_rows, value_table
from tests.predicates import COLUMNS, KINDS, array, arrays

_FULL = st.text(st.sampled_from("abc é\0%_\\"), max_size=8)


def _postings(table: pa.Table) -> list[tuple[bytes, int]]:
    """Key and row of each row that is posted."""
    assert set(table["file"].to_pylist()) <= {FILE}
    columns = zip(*(table[name].to_pylist() for name in ("key", "row", "rows")), strict=True)
    return [(key, at) for key, row, rows in columns for at in range(row, row + rows)]


@given(st.data(), KINDS, BATCH_ENDS)
def test_keys_of_rows(data: st.DataObject, kind: str, cuts: list[int]) -> None:
    type_ = COLUMNS[kind][0]
    column = array(kind, data.draw(arrays(kind)))
    table = collected_rows(value_table("keys", max_postings=100), [column], [type_], cuts)
    expected = sorted((key, row) for row, key in enumerate(normalised(column, type_).to_pylist()))
    assert _postings(table) == expected
    postings = list(zip(table["key"].to_pylist(), table["row"].to_pylist(), table["rows"].to_pylist(), strict=True))
    # Consecutive rows of one key are one posting.
    assert all(left[0] != right[0] or left[1] + left[2] < right[1] for left, right in pairwise(postings))


@given(st.data(), st.integers(1, 5), BATCH_ENDS)
def test_of_many_postings_the_widest_gaps_stay(data: st.DataObject, limit: int, cuts: list[int]) -> None:
    values = data.draw(st.lists(st.sampled_from([1, 2, None]), max_size=60))
    column = pa.array(values, pa.int8())
    table = collected_rows(value_table("keys", max_postings=limit), [column], [pa.int8()], cuts)
    exact = collected_rows(value_table("keys", max_postings=1000), [column], [pa.int8()], cuts)
    for key in set(exact["key"].to_pylist()):
        rows = table.filter(pc.equal(table["key"], pa.scalar(key, pa.binary())))
        whole = exact.filter(pc.equal(exact["key"], pa.scalar(key, pa.binary())))
        assert rows.num_rows == min(limit, whole.num_rows)
        assert {row for _, row in _postings(rows)} >= {row for _, row in _postings(whole)}
        # As few rows too many as that number of ranges allows: those of the narrowest gaps.
        spans = list(zip(whole["row"].to_pylist(), whole["rows"].to_pylist(), strict=True))
        gaps = sorted(after - (row + length) for (row, length), (after, _) in pairwise(spans))
        closed = gaps[: max(0, whole.num_rows - limit)]
        assert pc.sum(rows["rows"]).as_py() == pc.sum(whole["rows"]).as_py() + sum(closed)


@given(st.data(), BATCH_ENDS)
def test_keys_of_list_elements(data: st.DataObject, cuts: list[int]) -> None:
    lists = data.draw(st.lists(st.none() | st.lists(st.none() | st.integers(0, 2), max_size=4), max_size=8))
    type_ = pa.list_(pa.int32())
    expected: set[tuple[int | None, int]] = {(None, row) for row, value in enumerate(lists) if value is None}
    expected |= {(element, row) for row, value in enumerate(lists) for element in value or ()}
    known = dict(zip([None, 0, 1, 2], normalised(pa.array([None, 0, 1, 2]), pa.int32()).to_pylist(), strict=True))
    keyed = sorted((known[element], row) for element, row in expected)
    column = pa.array(lists, type_)
    assert _postings(collected_rows(value_table("keys", max_postings=100), [column], [type_], cuts)) == keyed
    found = collected_rows(value_table("set", max_values=100), [column], [type_], cuts)["key"].to_pylist()
    assert found == sorted({key for key, _ in keyed})


@given(st.data(), KINDS, BATCH_ENDS, st.integers(1, 6))
def test_distinct_values(data: st.DataObject, kind: str, cuts: list[int], limit: int) -> None:
    type_ = COLUMNS[kind][0]
    column = array(kind, data.draw(arrays(kind)))
    found = collected_rows(value_table("set", max_values=limit), [column], [type_], cuts)["key"].to_pylist()
    expected = sorted(set(normalised(column, type_).to_pylist()))
    assert found == (expected if len(expected) <= limit else [UNKNOWN_KEY])


@given(
    st.lists(st.none() | st.sampled_from(["a b", "B a, a", "", "É-é", "don't", "x" * 70]) | _FULL, max_size=8),
    BATCH_ENDS,
)
def test_tokens_of_rows(values: list[str | None], cuts: list[int]) -> None:
    expected = {(NULL_KEY, row) for row, value in enumerate(values) if value is None}
    expected |= {(text_key(token.encode()), row) for row, value in enumerate(values) for token in tokens(value or "")}
    for type_ in (pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())):
        column = pa.array(values, type_)
        assert _postings(collected_rows(value_table("text"), [column], [type_], cuts)) == sorted(expected)


@pytest.mark.parametrize("kind", ["set", "bloom"])
def test_small_decimals(kind: str) -> None:
    """Of which pyarrow does not find the distinct ones."""
    values = [Decimal("1.50"), None, Decimal("-2.00"), Decimal("1.50")]
    options = {"max_values": 9} if kind == "set" else {"fpp": 0.01}
    found = [
        collected_rows(value_table(kind, **options), [pa.array(values, type_)], [type_], [2])
        for type_ in (pa.decimal32(7, 2), pa.decimal64(7, 2), pa.decimal128(7, 2))
    ]
    assert found[0].equals(found[2])
    assert found[1].equals(found[2])
    assert found[0].num_rows == 3


# -- memory ---------------------------------------------------------------------------------------


def test_postings_can_be_taken_before_the_end() -> None:
    collector = value_collector(value_table("keys", max_postings=100), [pa.int8()])
    found: list[tuple[bytes, int]] = []
    for start in (0, 3):
        collector.add([pa.array([1, 2, 1], pa.int8())], start, 0)
        assert collector.pending_bytes > 0
        found += _postings(collector.finish(FILE))
        assert collector.pending_bytes == 0
    one, two = normalised(pa.array([1, 2]), pa.int8()).to_pylist()
    assert sorted(found) == [(one, 0), (one, 2), (one, 3), (one, 5), (two, 1), (two, 4)]
    assert collector.finish(FILE).num_rows == 0


def test_a_file_without_rows() -> None:
    for kind, options in [("keys", {"max_postings": 9}), ("set", {"max_values": 9}), ("text", {})]:
        assert (
            collected_rows(value_table(kind, **options), [pa.array([], pa.string())], [pa.string()], []).num_rows == 0
        )
    assert (
        collected_rows(value_table("ngram", n=3, max_ngrams=9), [pa.array([], pa.string())], [pa.string()], []).num_rows
        == 0
    )
    table = collected_rows(value_table("bloom", fpp=0.01), [pa.array([], pa.string())], [pa.string()], [])
    assert not may_hold(table["payload"][0].as_py(), text_key(b"a"))


def test_too_many_ngrams_say_nothing() -> None:
    part = value_table("ngram", n=2, max_ngrams=3)
    few = collected_rows(part, [pa.array(["abcd", None])], [pa.string()], [])
    assert few["key"].to_pylist() == [b"\x01ab", b"\x01bc", b"\x01cd"]
    assert collected_rows(part, [pa.array(["abcd", "xy"])], [pa.string()], [1])["key"].to_pylist() == [UNKNOWN_KEY]
