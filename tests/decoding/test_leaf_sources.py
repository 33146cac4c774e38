"""Single rows picked out of a page equal the decoded page's; pages that do not give them away are decoded."""

from __future__ import annotations

import random
import sys
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.decoding import leaf
from asyncpq.decoding import page as pages
from asyncpq.decoding.arrow import decompress, decompress_buffer
from asyncpq.decoding.page import (
    LeafArray,
    PackedPage,
    PresentValues,
    common_length,
    decode_plain_run,
    pages_without,
    present_values,
)
from asyncpq.errors import CorruptFileError
from asyncpq.parquet.chunk_pages import PageHeader, decode_page_header
from asyncpq.pruning.row_ranges import RowRanges
from tests.parquet_bytes import parquet_bytes
from tests.parquet_samples import LIMITS, OpenFile

TYPES = [pa.string(), pa.binary(), pa.large_string(), pa.large_binary()]


@st.composite
def columns(draw: st.DrawFn) -> pa.Array:
    """Strings of one length or of several, few or many distinct ones, in runs or not; perhaps with nulls."""
    length = draw(st.sampled_from([0, 1, 3, 12, 300]))
    ragged = draw(st.booleans())
    distinct = draw(st.sampled_from([1, 2, 7, 300]))
    count = draw(st.integers(1, 2000))
    run = draw(st.sampled_from([1, 1, 5, 100]))
    nulls = draw(st.sampled_from([0, 0, 0, 11]))
    values: list[bytes | None] = []
    for at in range(count):
        number = at // run * 7919 % distinct
        text = (b"%06d" % number * 50)[:length]
        values.append(text[: len(text) - number % 3] if ragged else text)
        if nulls and at % nulls == 3:
            values[-1] = None
    return pa.array(values, pa.binary()).cast(draw(st.sampled_from(TYPES)))


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize(("nullable", "null"), [(False, None), (True, None), (True, 10), (True, 39_990)])
def test_numbers_of_zstd_are_decompressed_where_they_stay(
    nullable: bool, version: str, null: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A first page with nulls shows that they cannot: the others are not decompressed for nothing."""
    values = [None if row == null else row * 7919 for row in range(40_000)]
    table = pa.table([pa.array(values, pa.int64())], pa.schema([pa.field("c", pa.int64(), nullable)]))
    options = {"compression": "zstd", "max_rows_per_page": 1000, "write_batch_size": 100, "data_page_version": version}
    file = OpenFile(parquet_bytes(table, use_dictionary=False, **options))
    source = file.paged()
    for page in file.pages()[1]:
        source.add(page)
    one, all_ = Mock(wraps=decompress), Mock(wraps=decompress_buffer)
    monkeypatch.setattr("asyncpq.decoding.page.decompress", one)
    monkeypatch.setattr("asyncpq.decoding.page.decompress_buffer", all_)
    assert source.select(RowRanges.all(40_000), LIMITS).to_pylist() == values
    is_v1 = version == "1.0"
    assert (one.call_count, all_.call_count) == (is_v1, null is None or (is_v1 and null > 1000))


@given(
    column=columns(),
    nullable=st.booleans(),
    dictionary=st.booleans(),
    version=st.sampled_from(["1.0", "2.0"]),
    codec=st.sampled_from(["none", "snappy", "zstd", "gzip"]),
    crc=st.booleans(),
    data=st.data(),
)
def test_few_rows_equal_pyarrow(
    column: pa.Array, nullable: bool, dictionary: bool, version: str, codec: str, crc: bool, data: st.DataObject
) -> None:
    nullable = nullable or column.null_count > 0
    table = pa.table([column], schema=pa.schema([pa.field("c", column.type, nullable=nullable)]))
    blob = parquet_bytes(
        table,
        compression=codec,
        use_dictionary=dictionary,
        data_page_version=version,
        data_page_size=2000,
        write_batch_size=64,
        write_page_checksum=crc,
        store_schema=True,
    )
    expected = pq.read_table(pa.BufferReader(blob))["c"].to_pylist()
    file = OpenFile(blob)
    _, pages = file.pages()
    kept: dict[int, LeafArray | PackedPage] = {}
    for again in range(3):  # with pages as fetched, then with those that the first pass opened
        source = file.paged(keep=lambda page: kept.update({page.first_row: page}))
        for page in pages:
            source.add(kept.get(page.first_row, page) if again else page)
        most = 60 if again == 2 else 8  # more than 8 are picked where they are few of many pages
        rows = data.draw(st.lists(st.integers(0, len(expected) - 1), min_size=1, max_size=most, unique=True))
        found = source.select(RowRanges.from_rows(sorted(rows)), LIMITS)
        found.validate(full=True)
        assert found.type == table.schema[0].type
        assert found.to_pylist() == [expected[row] for row in sorted(rows)]
    source = file.paged()
    for page in pages:
        source.add(kept.get(page.first_row, page))
    assert source.select(RowRanges.all(len(expected)), LIMITS).to_pylist() == expected


@given(column=columns(), dictionary=st.booleans(), keeps=st.booleans(), data=st.data())
def test_pages_with_others_missing_between_them_equal_pyarrow(
    column: pa.Array, dictionary: bool, keeps: bool, data: st.DataObject
) -> None:
    # a small dictionary is full after some values, so that plain pages follow those of indices
    options = {"data_page_size": 500, "write_batch_size": 32, "use_dictionary": dictionary}
    blob = parquet_bytes(pa.table({"c": column}), dictionary_pagesize_limit=600, store_schema=True, **options)
    expected = pq.read_table(pa.BufferReader(blob))["c"].to_pylist()
    file = OpenFile(blob)
    _, pages = file.pages()
    there = data.draw(st.lists(st.sampled_from(pages), min_size=1, max_size=20, unique_by=lambda page: page.first_row))
    there.sort(key=lambda page: page.first_row)
    source = file.paged(keep=(lambda page: None) if keeps else None)
    for page in there:
        source.add(page)
    step = data.draw(st.sampled_from([1, 2, 7]))
    rows = [row for page in there for row in range(page.first_row, page.stop_row) if row % step == 0]
    cut = data.draw(st.integers(0, len(rows)))  # two selections, of which the second may begin in a page of the first
    for some in (rows[:cut], rows[cut:]):
        found = source.select(RowRanges.from_rows(some), LIMITS)
        assert found.to_pylist() == [expected[row] for row in some]


def test_pages_with_others_missing_between_them_are_decoded_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    column = pa.array(range(4000), pa.int64())
    file = OpenFile(
        parquet_bytes(pa.table({"c": column}), data_page_size=800, write_batch_size=100, use_dictionary=False)
    )
    _, pages = file.pages()
    source = file.paged()
    for page in pages[::2]:
        source.add(page)
    read = Mock(wraps=decode_plain_run)
    monkeypatch.setattr(leaf, "decode_plain_run", read)
    rows = RowRanges([(page.first_row, page.stop_row - 1) for page in pages[::2]])
    assert source.select(rows, LIMITS).to_pylist() == list(rows.rows())
    assert (read.call_count, source.pages_decoded) == (1, len(pages[::2]))


@given(
    column=columns(),
    dictionary=st.booleans(),
    version=st.sampled_from(["1.0", "2.0"]),
    codec=st.sampled_from(["none", "snappy", "zstd", "gzip"]),
    crc=st.booleans(),
    at_once=st.sampled_from([1, 5000, 1 << 20]),
    data=st.data(),
)
def test_pages_are_ruled_out_by_what_their_values_contain(
    column: pa.Array, dictionary: bool, version: str, codec: str, crc: bool, at_once: int, data: st.DataObject
) -> None:
    blob = parquet_bytes(
        pa.table([column], names=["c"]),
        compression=codec,
        use_dictionary=dictionary,
        data_page_version=version,
        data_page_size=2000,
        write_batch_size=64,
        write_page_checksum=crc,
        store_schema=True,
    )
    file = OpenFile(blob)
    _, pages = file.pages()
    source = file.paged()
    for page in pages:
        source.add(page)
    edges = data.draw(st.lists(st.integers(0, len(column)), min_size=2, max_size=6))
    rows = RowRanges(zip(edges[::2], edges[1::2], strict=False))
    values = column.cast(pa.binary()).to_pylist()
    parts = st.sampled_from([value for value in values if value] or [b"x"]).map(lambda value: value[-7:])
    texts = data.draw(st.lists(parts | st.sampled_from([b"000007", b"nowhere"]), min_size=1, max_size=2))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaf, "_SEARCHED_BYTES", at_once)
        found = source.rows_with(rows, texts, LIMITS)
    matching = [row for row in rows.rows() if values[row] is not None and any(text in values[row] for text in texts)]
    assert all(row in found for row in matching)
    assert (found & rows) == found
    if not matching and not dictionary and codec != "gzip" and b"nowhere" in texts[:1] == texts[-1:]:
        assert not found


@pytest.mark.parametrize("memmem", [True, False])  # the C library of Windows has none
def test_a_search_that_rules_few_pages_out_ends(memmem: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """So does one for pages that a cache would keep decoded."""
    if not memmem:
        monkeypatch.setattr("asyncpq.decoding.page._memmem", lambda: None)
    words = [f"word {number % 5}" for number in range(20_000)]
    table = pa.table({"c": words})
    file = OpenFile(parquet_bytes(table, use_dictionary=False, max_rows_per_page=1000, write_batch_size=100))
    pages = file.pages()[1]
    rows = RowRanges.all(len(words))
    for text, kept, opened in ((b"word 7", 0, 20), (b"word 3", 20, 1), (b"word 7", 20, 0)):
        source = file.paged(keep=None if opened else lambda _: None)
        for page in pages:
            source.add(page)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(leaf, "_SEARCHED_BYTES", 1)
            search = Mock(wraps=pages_without)
            patch.setattr(leaf, "pages_without", search)
            assert source.rows_with(rows, [text], LIMITS).num_rows == kept * 1000
        assert search.call_count == opened


def test_a_python_without_ctypes_searches_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was built without libffi has none."""
    monkeypatch.setitem(sys.modules, "ctypes", None)
    assert pages._memmem.__wrapped__() is None


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
def test_damaged_pages_are_not_ruled_out(codec: str) -> None:
    table = pa.table({"c": [f"word {number}" for number in range(5000)]})
    blob = parquet_bytes(
        table, use_dictionary=False, compression=codec, max_rows_per_page=500, write_page_checksum=True
    )
    file = OpenFile(blob)
    source = file.paged()
    for page in file.pages()[1]:
        source.add(page._replace(data=bytes(page.data[:-1]) + bytes([page.data[-1] ^ 1])) if page.first_row else page)
    with pytest.raises(CorruptFileError, match="CRC"):
        source.rows_with(RowRanges.all(5000), [b"nowhere"], LIMITS)


def packed_page(table: pa.Table, **options: Any) -> tuple[OpenFile, PackedPage | None]:
    """The only page of a file's only column, opened."""
    file = OpenFile(parquet_bytes(table, **options))
    (chunk,) = file.chunks(0)
    _, (page,) = file.pages()
    return file, file.decoder().open_page(chunk, page, LIMITS)


def test_what_is_opened_and_what_is_not() -> None:
    strings = pa.table({"c": ["aaa", "bbb", "ccc"]})
    ragged = pa.table({"c": ["a", "bbb", "cc"]})
    for table in (strings, ragged):
        assert packed_page(table)[1] is not None, "dictionary indices"
    assert packed_page(strings, use_dictionary=False)[1] is not None
    assert packed_page(ragged, use_dictionary=False)[1] is None
    assert packed_page(pa.table({"c": ["a", None]}))[1] is None
    assert packed_page(pa.table({"c": [1, 2]}), use_dictionary=False)[1] is not None
    assert packed_page(pa.table({"c": [True, False]}), use_dictionary=False)[1] is None
    assert packed_page(strings, use_dictionary=False, column_encoding="DELTA_BYTE_ARRAY")[1] is None


def test_a_picked_value_holds_nothing_of_its_page() -> None:
    table = pa.table({"c": [f"{number:08d}" for number in range(1000)]})
    for options in ({"use_dictionary": False}, {}):
        file = OpenFile(parquet_bytes(table, **options))
        source = file.paged()
        for page in file.pages()[1]:
            source.add(page)
        found = source.select(RowRanges.from_rows([500]), LIMITS)
        assert found.to_pylist() == ["00000500"]
        assert sum(buffer.size for buffer in found.buffers() if buffer is not None) < 100


@pytest.mark.parametrize("nulls", [False, True])
def test_few_rows_of_many_pages_are_picked(nulls: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where pages have nulls, so that none can be picked from, they are decoded together."""
    values = [None if nulls and row % 7 == 0 else row for row in range(40_000)]
    table = pa.table({"c": pa.array(values, pa.int64())})
    file = OpenFile(parquet_bytes(table, use_dictionary=False, max_rows_per_page=1000, write_batch_size=100))
    for rows in (range(10, 20_000, 1000), range(10, 40_000, 2000), range(0, 40_000, 100)):
        source = file.paged()
        for page in file.pages()[1]:
            source.add(page)
        decode = Mock(wraps=source._decode)
        monkeypatch.setattr(source, "_decode", decode)
        assert source.select(RowRanges.from_rows(rows), LIMITS).to_pylist() == [values[row] for row in rows]
        assert decode.call_count == (nulls or len(rows) == 400)


@pytest.mark.parametrize("type_", [pa.string(), pa.large_binary()])
def test_values_picked_from_many_pages_are_few_arrays(type_: pa.DataType, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of each encoding: the dictionary is full in the middle of the chunk."""
    values = [f"{row // 10:06d}" for row in range(40_000)]
    table = pa.table({"c": pa.array(values).cast(type_)})
    file = OpenFile(
        parquet_bytes(table, dictionary_pagesize_limit=10_000, max_rows_per_page=1000, write_batch_size=100)
    )
    source = file.paged()
    for page in file.pages()[1]:
        source.add(page)
    rows = range(5, 40_000, 500)
    expected = table["c"].take(list(rows)).to_pylist()
    for most, count in ((pages._ARRAY_BYTES, 2), (60, 8)):  # 80 values of 6 bytes
        monkeypatch.setattr(pages, "_ARRAY_BYTES", most)
        pieces = source._pieces(RowRanges.from_rows(rows), LIMITS, False)
        assert len(pieces) in range(count, count + 2)
        assert source.select(RowRanges.from_rows(rows), LIMITS).to_pylist() == expected


@given(
    column=columns(),
    width=st.sampled_from([0, 0, 4, 8]),
    version=st.sampled_from(["1.0", "2.0"]),
    codec=st.sampled_from(["none", "snappy", "zstd", "gzip"]),
    dictionary=st.booleans(),
    page_rows=st.sampled_from([7, 20, 60]),
    at_once=st.sampled_from([1, 500, 1 << 18]),
    data=st.data(),
)
def test_rows_of_pages_that_are_opened_together_equal_pyarrow(
    column: pa.Array,
    width: int,
    version: str,
    codec: str,
    dictionary: bool,
    page_rows: int,
    at_once: int,
    data: st.DataObject,
) -> None:
    if width:
        numbers = [None if value is None else len(value) * 7 + at for at, value in enumerate(column.to_pylist())]
        column = pa.array(numbers, pa.int32() if width == 4 else pa.int64())
    options: dict[str, Any] = {"data_page_version": version, "compression": codec, "use_dictionary": dictionary}
    file = OpenFile(
        parquet_bytes(
            pa.table({"c": column}),
            max_rows_per_page=page_rows,
            write_batch_size=page_rows,
            dictionary_pagesize_limit=300,
            **options,
        )
    )
    rows = sorted(data.draw(st.sets(st.integers(0, len(column) - 1), min_size=1, max_size=60)))
    source = file.paged()
    for page in file.pages()[1]:
        source.add(page)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaf, "AT_ONCE_BYTES", at_once)
        found = source.select(RowRanges.from_rows(rows), LIMITS)
    assert found == column.take(pa.array(rows))


def test_pages_of_zstd_are_decompressed_together(monkeypatch: pytest.MonkeyPatch) -> None:
    table = pa.table({"c": range(20_000)})
    file = OpenFile(parquet_bytes(table, use_dictionary=False, max_rows_per_page=1000, compression="zstd"))
    source = file.paged()
    for page in file.pages()[1]:
        source.add(page)
    decompress = Mock(wraps=pages.__dict__["decompress"])
    monkeypatch.setattr(pages, "decompress", decompress)
    rows = range(5, 20_000, 500)
    assert source.select(RowRanges.from_rows(rows), LIMITS).to_pylist() == [*rows]
    assert decompress.call_count <= 20 // 4


def test_levels_of_other_pages_are_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    file = OpenFile(parquet_bytes(pa.table({"c": range(20_000)}), use_dictionary=False, max_rows_per_page=1000))
    source = file.paged()
    for page in file.pages()[1]:
        source.add(page)
    read = Mock(wraps=pages._levels_bytes)
    monkeypatch.setattr(pages, "_levels_bytes", read)
    rows = range(5, 20_000, 500)
    assert source.select(RowRanges.from_rows(rows), LIMITS).to_pylist() == [*rows]
    assert read.call_count <= 2  # of pages with equally many values


def test_pages_of_several_lengths_are_not_decompressed_in_vain(monkeypatch: pytest.MonkeyPatch) -> None:
    """That they cannot be opened is found out once."""
    table = pa.table({"c": [f"{row}" for row in range(2000)]})
    file = OpenFile(parquet_bytes(table, use_dictionary=False, data_page_size=500, write_batch_size=50))
    decompressed: list[int] = []
    original = present_values

    def counted(page: bytes, *args: Any, **options: Any) -> PresentValues | None:
        decompressed.append(len(page))
        return original(page, *args, **options)

    monkeypatch.setattr(leaf, "present_values", counted)
    source = file.paged()
    for page in file.pages()[1]:
        source.add(page)
    for row in (5, 1999, 1500, 100):  # in the first page, values have one digit and two
        assert source.select(RowRanges.from_rows([row]), LIMITS).to_pylist() == [f"{row}"]
    assert len(decompressed) == 1


def test_a_run_of_one_value_is_walked_over() -> None:
    table = pa.table({"c": ["x"] * 900 + ["y"] * 900 + ["x", "y"] * 100})
    _, packed = packed_page(table)
    assert packed is not None
    assert packed.value_bytes < 0
    found = packed.indices([0, 899, 900, 1799, 1800, 1801, 1999])
    assert found == [0, 0, 1, 1, 0, 1, 1]


@pytest.mark.parametrize("words", [300, 5000])
def test_runs_of_one_length_are_passed_at_once(words: int, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = random.Random(words)
    values = [f"{draw.randrange(words)}" for _ in range(20_000)]
    values[9000:9600] = ["0"] * 600  # one run of equal values among those of packed ones
    _, packed = packed_page(pa.table({"c": values}))
    assert packed is not None
    assert packed.value_bytes < 0
    seen: list[int] = []
    run_at = pages._run_at

    def counted(data: bytes, position: int, width: int) -> tuple[int, int, bool] | None:
        seen.append(position)
        return run_at(data, position, width)

    monkeypatch.setattr(pages, "_run_at", counted)
    by_index: dict[int, str] = {}
    for position in [*range(0, 20_000, 997), *range(8000, 11_000, 113), 19_999]:
        seen.clear()
        found = packed.indices([position])
        assert found is not None
        assert by_index.setdefault(found[0], values[position]) == values[position]
        assert len(seen) <= 8
    assert len(set(by_index.values())) == len(by_index)
    assert packed.indices(range(20_000)) == [found for row in range(20_000) for found in packed.indices([row]) or []]


def test_indices_outside_the_dictionary_are_refused() -> None:
    file = OpenFile(parquet_bytes(pa.table({"c": [f"{number:05d}" for number in range(100)]})))
    _, (page,) = file.pages()
    source = file.paged()
    short = OpenFile(parquet_bytes(pa.table({"c": ["a"]}))).dictionary()
    source.dictionary = short
    source.add(page)
    with pytest.raises(CorruptFileError):
        source.select(RowRanges.from_rows([50]), LIMITS)


@given(st.binary(max_size=120), st.integers(0, 9), st.lists(st.integers(0, 5000), min_size=1, max_size=5, unique=True))
def test_any_bytes_give_indices_or_nothing(values: bytes, start: int, positions: list[int]) -> None:
    found = PackedPage(b"", 0, 6000, values, 0, -1).indices(sorted(positions))
    assert found is None or len(found) == len(positions)
    behind_levels = PackedPage(b"", 0, 6000, b"\x03" * start + values, start, -1)
    assert behind_levels.indices(sorted(positions)) == found


@given(st.lists(st.binary(max_size=4), max_size=8))
def test_common_length(values: list[bytes]) -> None:
    coded = b"".join([len(value).to_bytes(4, "little") + value for value in values])
    lengths = {len(value) for value in values}
    expected = lengths.pop() if len(lengths) == 1 else None
    count, end = len(values), len(coded)
    assert (
        common_length(coded, 0, count, end) == common_length(b"level" + coded + b"next", 5, count, 5 + end) == expected
    )


def test_a_damaged_page_does_not_pass_its_crc() -> None:
    table = pa.table({"c": [f"{number:08d}" for number in range(100)]})
    file = OpenFile(parquet_bytes(table, use_dictionary=False, compression="none", write_page_checksum=True))
    _, (page,) = file.pages()
    header = decode_page_header(page.data)
    assert isinstance(header, PageHeader)
    damaged = bytearray(page.data)
    damaged[header.header_size + 20] ^= 1
    source = file.paged()
    source.add(page._replace(data=bytes(damaged)))
    with pytest.raises(CorruptFileError, match="CRC"):
        source.select(RowRanges.from_rows([50]), LIMITS)
