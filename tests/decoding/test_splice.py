"""Pages spliced and decoded: the same rows as pyarrow's own, or an error; never other values or counts."""

from __future__ import annotations

from operator import methodcaller
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from asyncpq.decoding.leaf_sources import StreamedSource
from asyncpq.decoding.page import DataPage, Dictionary, LeafArray
from asyncpq.errors import AsyncpqError, CorruptFileError
from asyncpq.pruning.row_ranges import RowRanges
from tests.example_counts import examples
from tests.parquet_bytes import parquet_bytes
from tests.parquet_samples import LIMITS, OpenFile
from tests.random_tables import tables, writer_options
from tests.reads import ask

FEW = settings(max_examples=examples(50, thorough=500), deadline=None)


@st.composite
def ranges(draw: st.DrawFn, num_rows: int) -> RowRanges:
    """A few rows or ranges of rows; not none."""
    bounds = st.tuples(st.integers(0, num_rows - 1), st.integers(1, num_rows))
    return RowRanges(
        [(start, min(num_rows, start + length)) for start, length in draw(st.lists(bounds, min_size=1, max_size=12))]
    )


def rows_of(column: pa.ChunkedArray, first_row: int, rows: RowRanges) -> list[Any]:
    values = column.combine_chunks() if column.num_chunks != 1 else column.chunk(0)
    wanted: list[Any] = values.take(pa.array([first_row + row for row in rows.rows()], pa.int64())).to_pylist()
    return wanted


@st.composite
def cases(draw: st.DrawFn, *, nested: bool) -> tuple[OpenFile, pa.Table, int, int, int]:
    """A file, what pyarrow reads of it, a column, a row group and its first row."""
    table, kinds = draw(tables(nested=nested))
    assume(table.num_rows > 0)
    data = draw(writer_options).write(table)
    file = OpenFile(data)
    group = draw(st.integers(0, len(file.metadata.row_groups) - 1))
    column = draw(st.integers(0, (table.num_columns if nested else len(kinds)) - 1))
    first_row = sum(file.num_rows(before) for before in range(group))
    try:
        expected = pq.ParquetFile(pa.BufferReader(data)).read()
    except pa.ArrowInvalid:
        assume(False)  # pyarrow's writer loses nested rows where a dictionary overflows at once
        raise
    return file, expected, column, group, first_row


def same(found: pa.Array, expected: list[Any], kind: pa.DataType) -> None:
    found.validate(full=True)
    assert found.type == kind
    assert repr(found.to_pylist()) == repr(expected)  # NaN equals NaN, 0.0 is not -0.0


@pytest.mark.heavy
@FEW
@given(case=cases(nested=False), data=st.data())
def test_chosen_pages_equal_pyarrow(case: tuple[OpenFile, pa.Table, int, int, int], data: st.DataObject) -> None:
    """Only the pages that hold wanted rows come, some of them decoded by an earlier read."""
    file, table, column, group, first_row = case
    rows = data.draw(ranges(file.num_rows(group)))
    kept: dict[int, Any] = {}
    _, pages = file.pages(column, group)
    before = file.paged(column, group, keep=lambda array: kept.update({array.first_row: array}))
    for page in pages:
        before.add(page)
    whole = before.select(RowRanges.all(file.num_rows(group)), LIMITS)
    same(
        whole, rows_of(table.column(column), first_row, RowRanges.all(file.num_rows(group))), table.schema[column].type
    )
    assert all(array.dictionary is None for array in kept.values() if isinstance(array, LeafArray))

    source = file.paged(column, group)
    for page in pages:
        if rows.clip(page.first_row, page.stop_row):
            source.add(kept[page.first_row] if data.draw(st.booleans()) else page)
    same(source.select(rows, LIMITS), rows_of(table.column(column), first_row, rows), table.schema[column].type)


@pytest.mark.heavy
@FEW
@given(case=cases(nested=False), data=st.data())
def test_streamed_chunks_equal_pyarrow(case: tuple[OpenFile, pa.Table, int, int, int], data: st.DataObject) -> None:
    """Bytes come in pieces, rows are selected as soon as they are there."""
    file, table, column, group, first_row = case
    (chunk,) = file.chunks(column, group)
    content = file.bytes_of(chunk)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=5)))
    source = file.streamed(column, group)
    selected: list[Any] = []
    kind = table.schema[column].type
    for start, stop in zip([0, *cuts], [*cuts, len(content)], strict=True):
        source.feed(content[start:stop])
        if source.rows_available > len(selected):
            found = source.select(RowRanges([(len(selected), source.rows_available)]), LIMITS)
            assert found.type == kind
            selected.extend(found.to_pylist())
            source.discard_before(len(selected))
    assert repr(selected) == repr(rows_of(table.column(column), first_row, RowRanges.all(file.num_rows(group))))


@pytest.mark.heavy
@FEW
@given(case=cases(nested=True), data=st.data())
def test_whole_fields_equal_pyarrow(case: tuple[OpenFile, pa.Table, int, int, int], data: st.DataObject) -> None:
    file, table, column, group, first_row = case
    rows = data.draw(ranges(file.num_rows(group)))
    same(
        file.whole(column, group).select(rows, LIMITS),
        rows_of(table.column(column), first_row, rows),
        table.schema[column].type,
    )


# -- what lies --------------------------------------------------------------------------------------

VALUES = {
    "int": pa.array([None if row % 7 == 0 else row % 13 for row in range(95)], pa.int32()),
    "dense": pa.array(range(95), pa.int64()),
    "string": pa.array([f"value {row % 13}" for row in range(95)]),
    "dictionary": pa.array([f"value {row % 13}" for row in range(95)]).dictionary_encode(),
}


@pytest.fixture(params=["1.0", "2.0"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=[True, False], ids=["dictionary", "plain"])
def encoded(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=list(VALUES))
def lied_about(request: pytest.FixtureRequest, version: str, encoded: bool) -> OpenFile:
    table = pa.table({"x": VALUES[request.param]})
    options: dict[str, Any] = {"write_page_index": True, "data_page_version": version}
    return OpenFile(parquet_bytes(table, use_dictionary=encoded, data_page_size=1, write_batch_size=10, **options))


def refused(
    file: OpenFile, pages: list[DataPage], dictionary: Dictionary | None, rows: RowRanges | None = None
) -> None:
    source = file.paged()
    source.dictionary = dictionary
    for page in pages:
        source.add(page)
    with pytest.raises(CorruptFileError) as caught:
        source.select(rows or RowRanges([(pages[0].first_row, pages[-1].stop_row)]), LIMITS)
    assert caught.value.column == "x"


@pytest.mark.parametrize("delta", [-1, 1])
@pytest.mark.parametrize("alone", [True, False])
def test_planned_count_that_lies(lied_about: OpenFile, delta: int, alone: bool) -> None:
    _, pages = lied_about.pages()
    lying = pages[3]._replace(num_rows=pages[3].num_rows + delta)
    behind = [page._replace(first_row=page.first_row + delta) for page in pages[4:]]
    refused(lied_about, [lying] if alone else [*pages[:3], lying, *behind], lied_about.dictionary())


def test_page_too_few_or_too_many(lied_about: OpenFile) -> None:
    _, pages = lied_about.pages()
    everything = RowRanges.all(lied_about.num_rows())
    refused(lied_about, pages[:-1], lied_about.dictionary(), everything)
    refused(lied_about, pages[1:], lied_about.dictionary(), everything)
    refused(lied_about, pages[:4] + pages[5:], lied_about.dictionary(), everything)


def test_pages_swapped(lied_about: OpenFile) -> None:
    """The last page has 5 rows, the others 10."""
    _, pages = lied_about.pages()
    first, last = pages[0], pages[-1]
    swapped = [first._replace(data=last.data), *pages[1:-1], last._replace(data=first.data)]
    refused(lied_about, swapped, lied_about.dictionary())


@pytest.mark.parametrize("size", [0, 1, 5, 20, -1])
def test_page_cut_off(lied_about: OpenFile, size: int) -> None:
    _, pages = lied_about.pages()
    refused(lied_about, [pages[2]._replace(data=pages[2].data[:size])], lied_about.dictionary())


def test_page_with_something_behind(lied_about: OpenFile) -> None:
    _, pages = lied_about.pages()
    refused(lied_about, [pages[2]._replace(data=bytes(pages[2].data) + pages[3].data)], lied_about.dictionary())


@pytest.mark.parametrize("encoded", [True], indirect=True)
def test_dictionary_that_is_missing_or_too_small(lied_about: OpenFile) -> None:
    _, pages = lied_about.pages()
    dictionary = lied_about.dictionary()
    assert dictionary is not None
    refused(lied_about, pages, None)
    refused(lied_about, pages, dictionary._replace(values=dictionary.values[:5]))
    refused(lied_about, pages, dictionary._replace(values=dictionary.values[:0]))


def test_kept_pages_that_do_not_fit_together() -> None:
    file = OpenFile(parquet_bytes(pa.table({"x": VALUES["dense"]}), use_dictionary=False))
    source = file.paged()
    source.add(LeafArray(0, pa.array([1, 2], pa.int64()), None))
    source.add(LeafArray(2, pa.array(["a"]), None))
    with pytest.raises(CorruptFileError) as caught:
        source.select(RowRanges([(0, 3)]), LIMITS)
    assert caught.value.column == "x"


@pytest.mark.parametrize("kind", ["string", "dictionary"])
@pytest.mark.parametrize("index", [-1, 13])
def test_indices_outside_the_dictionary(kind: str, index: int) -> None:
    file = OpenFile(parquet_bytes(pa.table({"x": VALUES[kind]})))
    dictionary = file.dictionary()
    assert dictionary is not None
    assert len(dictionary.values) == 13
    with pytest.raises(CorruptFileError) as caught:
        file.decoder().dense(pa.array([0, index], pa.int32()), dictionary.values, LIMITS)
    assert caught.value.column == "x"


@pytest.mark.parametrize("encoded", [True], indirect=True)
def test_kept_page_without_its_dictionary(lied_about: OpenFile) -> None:
    _, pages = lied_about.pages()
    kept: list[Any] = []
    source = lied_about.paged(keep=kept.append)
    source.add(pages[0])
    source.select(RowRanges([(0, 3)]), LIMITS)
    again = lied_about.paged()
    again.dictionary = None
    again.add(kept[0])
    with pytest.raises(CorruptFileError, match="no dictionary page"):
        again.select(RowRanges([(0, 3)]), LIMITS)


@pytest.mark.parametrize("encoded", [True], indirect=True)
def test_chunk_without_its_dictionary_page(lied_about: OpenFile) -> None:
    dictionary_page, pages = lied_about.pages()
    assert dictionary_page is not None
    (chunk,) = lied_about.chunks(0)
    cut = chunk._replace(
        dictionary_page_offset=None,
        data_page_offset=chunk.start + len(dictionary_page),
        total_compressed_size=chunk.total_compressed_size - len(dictionary_page),
    )
    source = StreamedSource(lied_about.decoder(), cut, lied_about.num_rows(), LIMITS)
    source.feed(b"".join(page.data for page in pages))
    with pytest.raises(CorruptFileError, match="no dictionary page"):
        source.select(RowRanges.all(lied_about.num_rows()), LIMITS)


@settings(max_examples=examples(100, thorough=500), deadline=None)
@given(
    kind=st.sampled_from(["int", "string", "dictionary", "list", "decimal"]),
    version=st.sampled_from(["1.0", "2.0"]),
    encoding=st.sampled_from(["dictionary", "PLAIN", "DELTA_BYTE_ARRAY", "DELTA_LENGTH_BYTE_ARRAY"]),
    codec=st.sampled_from(["none", "snappy", "zstd"]),
    data=st.data(),
)
def test_flipped_bytes_end_in_a_typed_error(
    kind: str, version: str, encoding: str, codec: str, data: st.DataObject
) -> None:
    """Without a CRC other values may come out, but not more or fewer of them, and no raw error."""
    values = {
        "int": VALUES["int"],
        "string": VALUES["string"],
        "dictionary": VALUES["dictionary"],
        "list": pa.array([[f"v{row}", "w"] if row % 5 else None for row in range(95)]),
        "decimal": pa.array(range(95), pa.int32()).cast(pa.decimal128(20, 2)),
    }[kind]
    options: dict[str, Any] = {"use_dictionary": encoding == "dictionary"}
    if encoding != "dictionary" and kind in ("string", "list"):
        options["column_encoding"] = {"x" if kind == "string" else "x.list.element": encoding}
    content = parquet_bytes(
        pa.table({"x": values}),
        compression=codec,
        data_page_version=version,
        data_page_size=64,
        write_batch_size=30,
        **options,
    )
    file = OpenFile(content)
    (chunk,) = file.chunks(0)
    at = data.draw(st.integers(chunk.start, chunk.stop - 1))
    changed = bytearray(content)
    changed[at] ^= data.draw(st.integers(1, 255))
    broken = OpenFile(bytes(changed))
    try:
        if kind == "list":
            found = broken.whole().select(RowRanges.all(95), LIMITS)
        else:
            source = broken.streamed()
            source.feed(broken.bytes_of(chunk))
            found = source.select(RowRanges([(3, 40), (50, 95)]), LIMITS)
    except AsyncpqError:
        return
    assert len(found) == (95 if kind == "list" else 82)
    found.validate()


def test_rows_before_those_selected_last_can_be_selected_again() -> None:
    table = pa.table({"c": range(1000)})
    file = OpenFile(parquet_bytes(table, data_page_size=400, write_batch_size=50, use_dictionary=False))
    source = file.paged()
    for page in file.pages()[1]:
        source.add(page)
    for rows in (RowRanges([(100, 150)]), RowRanges([(0, 150)]), RowRanges([(20, 30), (140, 300)])):
        assert source.select(rows, LIMITS).to_pylist() == list(rows.rows())


@pytest.mark.parametrize("codec", ["none", "zstd"])
def test_large_chunks_equal_pyarrow(codec: str) -> None:
    """Their spliced files are built in memory of Arrow's pool."""
    rows = 200_000
    numbers = pa.array(range(0, rows * 7, 7), pa.int64())
    words = pa.array([None if row % 9 == 0 else f"word {row * 7919}" for row in range(rows)])
    lists = pa.ListArray.from_arrays(pa.array([row // 2 for row in range(rows + 1)], pa.int32()), numbers)
    table = pa.table({"number": numbers, "word": words, "lists": lists})
    options = {"compression": codec, "use_dictionary": False, "write_page_checksum": True}
    assert ask(parquet_bytes(table, **options), methodcaller("read")).equals(table)
