"""What a unit may decode to is bounded before it is decoded, and what may be large is not decoded on the loop."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from operator import methodcaller
from typing import Any, Literal

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq.decoding.leaf import DecodeLimits, LeafDecoder
from asyncpq.decoding.row_group_reader import Matched, SharedAllowance
from asyncpq.errors import ResourceLimitError
from asyncpq.objects.read_plan import Unit
from asyncpq.parquet.column_chunk import ColumnChunk
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.file_scan import Fetched, FileScan
from tests.decoding.test_decoded_size import BOMBS
from tests.example_counts import examples
from tests.parquet_bytes import parquet_bytes
from tests.parquet_samples import MIB, limited
from tests.random_tables import NestedFile, WriterOptions, nested_files, tables, writer_options
from tests.reads import ask


class Watch:
    """Notes of each unit that is decoded what was expected of it, what came, and in which thread."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.units: list[tuple[int, int]] = []
        self.threads: list[int] = []
        decode = FileScan._decode_all

        def watched(read: FileScan, unit: Unit, fetched: Fetched) -> list[Any]:
            self.threads.append(threading.get_ident())
            expected = read._expected_bytes(unit, fetched)
            found = decode(read, unit, fetched)
            copied = sum([_copied(each.table) for each in found if each.table is not None])
            self.units.append((expected.size + expected.spread, copied))
            return found

        patch.setattr(FileScan, "_decode_all", watched)
        for step in ("_match", "_finish"):
            patch.setattr(FileScan, step, self._noting_thread(getattr(FileScan, step)))

    def _noting_thread(self, step: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            self.threads.append(threading.get_ident())
            return step(*args)

        return noted


def _copied(table: pa.Table) -> int:
    return int(table.combine_chunks().nbytes)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Watch:
    return Watch(monkeypatch)


def read_all(data: bytes) -> list[tuple[int, int]]:
    """Expected and real bytes of each unit: of a cold and of a warm read, of a scan and of a few rows."""

    async def question(file: asyncpq.File) -> None:
        for _ in range(3):
            await file.read()
            await file.take([0, file.num_rows - 1])
        async with file.scan() as scan:
            async for _batch in scan:
                pass

    with pytest.MonkeyPatch.context() as patch:
        watch = Watch(patch)
        ask(data, question, limits=asyncpq.LimitOptions(unit_bytes=2000))
    return watch.units


@pytest.mark.heavy
@settings(max_examples=examples(20, thorough=200), deadline=None)
@given(drawn=tables(nested=True), options=writer_options)
def test_no_unit_is_larger_than_expected(drawn: tuple[pa.Table, dict[str, str]], options: WriterOptions) -> None:
    table, _ = drawn
    if table.num_rows:
        for expected, found in read_all(options.write(table)):
            assert found <= expected


@pytest.mark.heavy
@settings(max_examples=examples(20, thorough=200), deadline=None)
@given(nested_files())
def test_no_nested_unit_is_larger_than_expected(file: NestedFile) -> None:
    for expected, found in read_all(file.data):
        assert found <= expected


@pytest.mark.sampled(9)
@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("name", list(BOMBS))
def test_a_bomb_is_not_decoded_on_the_loop(name: str, index: bool, watch: Watch) -> None:
    bomb, options = BOMBS[name]
    data = parquet_bytes(pa.table({"x": bomb()}), write_page_index=index, **options)
    limits = asyncpq.LimitOptions(max_decoded_bytes=24 * MIB, inline_decode_bytes=2 * MIB)
    assert len(data) < 2 * MIB
    with pytest.raises(ResourceLimitError, match="max_decoded_bytes"):
        ask(data, lambda file: file.read(), limits=limits)
    assert watch.threads
    assert threading.get_ident() not in watch.threads


@pytest.mark.parametrize("late", ["never", "always"])
@pytest.mark.parametrize("key", ["number", "text"])
def test_lookups_are_decoded_on_the_loop(key: str, late: Literal["never", "always"], watch: Watch) -> None:
    """The handing over to a thread would cost more, also where a dictionary is not yet known."""
    rows = 20_000
    table = pa.table(
        {
            "number": pa.array(range(rows), pa.int64()),
            "text": [f"{row:012d}" for row in range(rows)],
            "word": [f"word {row % 300}" for row in range(rows)],
            "struct": pa.array([{"a": f"word {row % 300}"} for row in range(rows)]),
        }
    )
    dictionary = ["word", "struct.a"]
    data = parquet_bytes(
        table, write_page_index=True, use_dictionary=dictionary, max_rows_per_page=5000, compression="zstd"
    )

    async def question(file: asyncpq.File) -> list[Any]:
        await file.lookup({key: table.column(key)[0].as_py()})
        return [(await file.lookup({key: table.column(key)[row].as_py()})).to_pylist() for row in (7, 7777, 19_999)]

    requests = asyncpq.RequestOptions(late_materialization=late)
    assert ask(data, question, requests=requests) == [[table.slice(row, 1).to_pylist()[0]] for row in (7, 7777, 19_999)]
    assert set(watch.threads) == {threading.get_ident()}
    assert all(found <= expected < 8 * MIB for expected, found in watch.units[1:])


@pytest.mark.parametrize("dictionary_bytes", [1 << 20, 400])
@pytest.mark.parametrize("columns", [["word"], ["number"], ["number", "word"]])
def test_filters_of_many_rows_compare_dictionaries(dictionary_bytes: int, columns: list[str]) -> None:
    """Also where some pages are not encoded, since the dictionary was full; few, many and all rows match."""
    words = [None if row % 7 == 0 else f"word {row % 50 if row % 1000 else row}" for row in range(100_000)]
    table = pa.table({"word": words, "number": range(100_000)})
    data = parquet_bytes(
        table, dictionary_pagesize_limit=dictionary_bytes, max_rows_per_page=10_000, write_batch_size=100
    )
    word = asyncpq.col("word")
    for where, same in (
        (word == "word 3", pc.field("word") == "word 3"),
        (word != "word 3", pc.field("word") != "word 3"),
        (word.is_null(), pc.field("word").is_null()),
        (~word.is_in(["word 3", "word 4"]), ~pc.field("word").isin(["word 3", "word 4"])),
        (word.starts_with("word"), pc.starts_with(pc.field("word"), "word")),
        (word == "no word", pc.field("word") == "no word"),
        ((word == "word 3") | word.is_null() | (word != "word 3"), pc.scalar(True)),
    ):
        found = ask(data, methodcaller("read", columns, where))
        assert found.equals(table.filter(same).select(columns)), where


@pytest.mark.parametrize("index", [True, False])
def test_pages_of_texts_are_searched_before_they_are_decoded(index: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of other columns of the filter, only the rows on the pages that are left are decoded."""
    words = [f"word {row * 7919 % 77_777:05}" for row in range(100_000)]
    table = pa.table({"word": words, "number": range(100_000)})
    data = parquet_bytes(
        table, use_dictionary=False, max_rows_per_page=1000, write_batch_size=100, write_page_index=index
    )
    decoded: list[int] = []
    decode_pages = LeafDecoder.decode_pages

    def decode(self: LeafDecoder, chunk: ColumnChunk, dictionary: Any, pages: Any, *options: Any) -> Any:
        decoded.append(len(pages))
        return decode_pages(self, chunk, dictionary, pages, *options)

    monkeypatch.setattr(LeafDecoder, "decode_pages", decode)
    word, key = asyncpq.col("word"), words[5]
    for where, same, few in (
        (word == key, pc.field("word") == key, True),
        ((word == key) & (asyncpq.col("number") > 5), (pc.field("word") == key) & (pc.field("number") > 5), True),
        (word.like(f"%{key[3:]}"), pc.match_like(pc.field("word"), f"%{key[3:]}"), True),
        (word == "word 5", pc.field("word") == "word 5", False),
        (~(word == key), pc.field("word") != key, False),
    ):
        decoded.clear()
        found = ask(data, methodcaller("read", ["word"], where), memory_cache_bytes=0)
        assert found.equals(table.filter(same).select(["word"])), where
        assert (sum(decoded) <= 4) if few else (sum(decoded) >= 100), where


def test_a_column_that_needs_more_than_a_threads_share_is_decoded_alone() -> None:
    """Two columns fail with half of what is allowed; then each has all that the other left, one after the other."""
    allowance = SharedAllowance(limited(2000), 2)
    both = threading.Barrier(2, timeout=60)
    limits: list[int] = []

    def select(allowed: DecodeLimits) -> pa.Array:
        limits.append(limit := allowed.max_decoded_bytes)
        if limit == 1000:
            both.wait()
        if limit < 1100:
            raise ResourceLimitError("too much")
        return pa.array(range(100), pa.int64())

    with ThreadPoolExecutor(2) as pool:
        assert [*map(len, pool.map(allowance.decode, [select, select]))] == [100, 100]
    assert limits == [1000, 1000, 2000, 1200]
    with pytest.raises(ResourceLimitError):
        allowance.decode(select)


@pytest.mark.parametrize("matching", [1, 500])
def test_a_filter_decides_whether_a_bomb_goes_off(matching: int, watch: Watch) -> None:
    """Each value takes 100 kB, so that one row is decoded on the loop and all rows are refused in a thread."""
    rows = 500
    key = [0] * matching + list(range(1, rows - matching + 1))
    table = pa.table({"key": key, "bomb": pa.DictionaryArray.from_arrays(pa.array([0] * rows), ["x" * 100_000])})
    data = parquet_bytes(
        table.cast(pa.schema({"key": pa.int64(), "bomb": pa.string()})), compression="zstd", write_page_index=True
    )
    limits = asyncpq.LimitOptions(max_decoded_bytes=24 * MIB)
    if matching == 1:
        found = ask(data, lambda file: file.lookup({"key": 0}, columns=["bomb"]), limits=limits)
        assert [len(value) for value in found["bomb"].to_pylist()] == [100_000]
        assert set(watch.threads) == {threading.get_ident()}
        return
    with pytest.raises(ResourceLimitError, match="max_decoded_bytes"):
        ask(data, lambda file: file.lookup({"key": 0}, columns=["bomb"]), limits=limits)
    assert watch.threads[0] == threading.get_ident() != watch.threads[-1]


@given(st.lists(st.integers(0, 60), min_size=1, unique=True).map(sorted), st.data())
def test_matching_rows_are_those_of_the_mask(numbers: list[int], data: st.DataObject) -> None:
    flags = data.draw(
        st.lists(st.sampled_from([True, True, False, None]), min_size=len(numbers), max_size=len(numbers))
    )
    mask = pa.array([*flags, True], pa.bool_())[: len(numbers)]
    matched = Matched(RowRanges.from_rows(numbers), mask, {}, 61, mask.true_count, len(numbers))
    assert matched.matching_rows() == RowRanges.from_rows(
        [number for number, flag in zip(numbers, flags, strict=True) if flag]
    )


@given(st.integers(1, 300), st.data())
def test_the_matching_row_of_a_lookup_is_that_of_the_mask(count: int, data: st.DataObject) -> None:
    """Also where the mask has nulls, or is a part of a longer one, whose other rows do not count."""
    row, null = data.draw(st.integers(0, count - 1)), data.draw(st.none() | st.integers(0, count - 1))
    flags = [None if at == null and at != row else at == row for at in range(count)]
    front = data.draw(st.integers(0, 9))
    mask = pa.array([*[True] * front, *flags, *[True] * 9], pa.bool_())[front : front + count]
    matched = Matched(RowRanges.single(100, 100 + count), mask, {}, 1000, 1, count)
    assert matched.matching_rows() == RowRanges.single(100 + row, 101 + row)


@given(
    st.lists(st.tuples(st.integers(1, 50), st.integers(1, 2000)), min_size=1, max_size=5),
    st.lists(st.floats(0, 1, exclude_max=True), max_size=6),
)
def test_few_matching_rows_are_those_of_the_mask(ranges: list[tuple[int, int]], places: list[float]) -> None:
    """Of at least 3,000 rows in several ranges; (gap before, length) of each."""
    spans: list[tuple[int, int]] = []
    stop = 0
    for gap, length in [*ranges, (1, 3000)]:
        spans.append((stop + gap, stop + gap + length))
        stop = spans[-1][1]
    rows = RowRanges(spans)
    numbers = list(rows.rows())
    found = sorted({int(place * len(numbers)) for place in places})
    flags = [False] * len(numbers)
    for position in found:
        flags[position] = True
    matched = Matched(rows, pa.array(flags), {}, stop, len(found), len(numbers))
    assert matched.matching_rows() == RowRanges.from_rows([numbers[position] for position in found])
