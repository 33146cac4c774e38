"""Correctness traps 19 to 22, chunks, pages and dictionaries: each ends in pyarrow's rows, or in a typed error.

The number in a test's name is the trap's:

19. page offsets that are missing, zero, equal or wrong
20. dictionaries that end in the middle of a chunk, and second ones
21. data pages V2: levels are not compressed, and values need not be
22. row groups and pages without rows, offsets beyond 4 GiB, footers longer than the first GET
"""

from __future__ import annotations

import asyncio
import re
import struct
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from tests.parquet_files import I32, EditedFile, RawPage, Struct
from tests.reads import ask, assert_reads, by_pyarrow, values

x, n = col("x"), col("n")
WORDS = ["a", "b", None, "c", "b", "a", "d", "d", None, "e", "f", "a"]
_ATOMS = [x == "a", x == "d", x != "b", x.is_null(), n == 7, n > 8]


def words(**options: Any) -> EditedFile:
    """Words x, dictionary-encoded, and the row number n; pages of three rows."""
    table = pa.table({"x": pa.array(WORDS), "n": pa.array(range(len(WORDS)), pa.int64())})
    return EditedFile.of(table, rows_per_page=3, **options)


def without_index(file: EditedFile) -> EditedFile:
    for at in range(2):
        file.set_offset_index(None, at)
        file.set_column_index(None, at)
    return file


# -- 19 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("dictionary_page_offset", [None, 0, "same"])
def test_19_the_chunk_begins_at_its_data_page_offset(indexed: bool, dictionary_page_offset: Any) -> None:
    """As writers have it that do not name the dictionary page: a gap before the first page holds it."""
    file = words() if indexed else without_index(words())
    for at in range(2):
        meta = file.meta(at)
        start = meta.value(11)
        meta.put(9, start)
        meta.put(11, start if dictionary_page_offset == "same" else dictionary_page_offset)
    assert_reads(file.data(), *_ATOMS)


@pytest.mark.parametrize("indexed", [True, False])
def test_19_a_wrong_data_page_offset_behind_the_dictionary(indexed: bool) -> None:
    file = words() if indexed else without_index(words())
    file.meta(0).put(9, file.meta(0).value(9) + 3)
    assert_reads(file.data(), *_ATOMS)


@pytest.mark.parametrize("indexed", [True, False])
def test_19_a_dictionary_page_that_is_not_named(indexed: bool) -> None:
    """Nothing says where it is: pyarrow refuses the file, too."""
    file = words() if indexed else without_index(words())
    meta = file.meta(0)
    meta.put(7, meta.value(7) - (meta.value(9) - meta.value(11)))
    meta.put(11, None)
    with pytest.raises(OSError, match=r"(?i)dictionary"):
        by_pyarrow(file.data())
    with pytest.raises(asyncpq.CorruptFileError) as caught:
        ask(file.data(), lambda opened: opened.read())
    assert caught.value.column == "x"


def test_19_file_offsets_are_not_used() -> None:
    file = words()
    file.row_group().put(5, 1 << 50)
    for at in range(2):
        file.chunk(at).put(2, 1 << 50)
    assert_reads(file.data(), *_ATOMS)


# -- 20 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("indexed", [True, False])
def test_20_a_dictionary_that_ends_in_the_middle(version: str, indexed: bool) -> None:
    data = [f"word {row // 2} {'x' * (row % 5)}" if row % 7 else None for row in range(60)]
    table = pa.table({"x": data, "n": pa.array(range(60), pa.int64())})
    file = EditedFile.of(table, rows_per_page=4, dictionary_pagesize_limit=100, data_page_version=version)
    encodings = {
        page.header.value(5 if version == "1.0" else 8).value(2 if version == "1.0" else 4)
        for page in file.pages()
        if page.kind != 2
    }
    assert encodings >= {0, 8} or encodings >= {0, 2}
    if not indexed:
        without_index(file)
    assert_reads(file.data(), *[x == data[row] for row in (1, 2, 30, 59)], x.is_null(), n == 31, x != data[1])

    async def question(opened: asyncpq.File) -> None:
        whole = by_pyarrow(file.data())
        for row in range(0, 60, 5):
            assert values(await opened.take([row, min(row + 9, 59)])) == values(whole.take([row, min(row + 9, 59)]))

    ask(file.data(), question)


@pytest.mark.parametrize("position", [1, 2])
def test_20_a_second_dictionary_page(position: int) -> None:
    file = words()
    pages = file.pages()
    file.set_pages([*pages[:position], pages[0], *pages[position:]], index=False)
    with pytest.raises(asyncpq.CorruptFileError) as caught:
        ask(file.data(), lambda opened: opened.read())
    assert caught.value.column == "x"


# -- 21 ---------------------------------------------------------------------------------------------

CODECS = ["none", "snappy", "gzip", "zstd", "brotli", "lz4"]


def _v2(codec: str, **options: Any) -> EditedFile:
    return words(data_page_version="2.0", compression=codec, **options)


def _split(page: RawPage) -> tuple[Struct, bytes, bytes]:
    """A V2 page's own header, its levels and its values as stored."""
    own: Struct = page.header.value(8)
    size = own.value(5, 0) + own.value(6, 0)
    return own, page.payload[:size], page.payload[size:]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("dictionary", [True, False])
@pytest.mark.parametrize("indexed", [True, False])
def test_21_values_that_are_not_compressed_under_a_codec(codec: str, dictionary: bool, indexed: bool) -> None:
    plain = _v2("none", use_dictionary=dictionary)
    file = _v2(codec, use_dictionary=dictionary)
    for at in range(2):
        pages: list[RawPage] = []
        for stored, raw in zip(file.pages(at), plain.pages(at), strict=True):
            if stored.kind == 3 and len(pages) % 2:
                raw.header.value(8).put(7, False)
                pages.append(raw)
            else:
                pages.append(stored)
        file.set_pages(pages, at, index=indexed)
    assert_reads(file.data(), *_ATOMS)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("indexed", [True, False])
def test_21_compression_is_what_a_page_has_that_does_not_say(codec: str, indexed: bool) -> None:
    file = _v2(codec)
    for at in range(2):
        pages = file.pages(at)
        for page in pages:
            if page.kind == 3 and page.header.value(8).value(7) is not False:
                page.header.value(8).put(7, None)
        file.set_pages(pages, at, index=indexed)
    assert_reads(file.data(), *_ATOMS)


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("compressed", [True, False, None])
@pytest.mark.parametrize("indexed", [True, False])
def test_21_no_bytes_of_values(codec: str, compressed: bool | None, indexed: bool) -> None:
    """A page of nulls alone whose values have no byte, whatever it says of compression."""
    table = pa.table({"x": pa.array([1, None, None, None, None, 2], pa.int64()), "n": pa.array(range(6), pa.int64())})
    file = EditedFile.of(table, rows_per_page=2, data_page_version="2.0", compression=codec, use_dictionary=False)
    pages = file.pages()
    own, levels, _ = _split(pages[1])
    own.put(7, compressed)
    header = pages[1].header
    header.put(2, len(levels))
    header.put(3, len(levels))
    pages[1] = RawPage(header, levels)
    file.set_pages(pages, index=indexed)
    assert_reads(file.data(), x == 1, x.is_null(), x == 2, n == 3)


# -- 22 ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("indexed", [True, False])
def test_22_row_groups_without_rows(indexed: bool) -> None:
    sink = pa.BufferOutputStream()
    table = pa.table({"x": pa.array(range(4), pa.int64()), "l": pa.array([[1], [], None, [2, 3]])})
    with pq.ParquetWriter(sink, table.schema, write_page_index=indexed) as writer:
        for part in (table.slice(0, 0), table, table.slice(0, 0), table, table.slice(0, 0)):
            writer.write_table(part)
    data = bytes(sink.getvalue())
    assert [pq.ParquetFile(pa.BufferReader(data)).metadata.row_group(at).num_rows for at in range(5)] == [0, 4, 0, 4, 0]
    assert_reads(data, x == 2, x > 5, x.is_null(), col("l").is_null())

    async def question(file: asyncpq.File) -> None:
        assert (await file.take([7, 0, 4]))["x"].to_pylist() == [3, 0, 0]
        assert (await file.read(limit=5))["x"].to_pylist() == [0, 1, 2, 3, 0]
        assert await file.count() == 8

    ask(data, question)


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize("indexed", [True, False])
def test_22_pages_without_rows(version: str, indexed: bool) -> None:
    table = pa.table({"x": pa.array([1, 2, 3, 4], pa.int64()), "n": pa.array(range(4), pa.int64())})
    options: dict[str, Any] = {"compression": "none", "use_dictionary": False, "data_page_version": version}
    file = EditedFile.of(table, rows_per_page=2, **options)
    pages = file.pages()
    header = Struct({1: (I32, 0 if version == "1.0" else 3)})
    if version == "1.0":
        empty, payload = Struct({1: (I32, 0), 2: (I32, 0), 3: (I32, 3), 4: (I32, 3)}), struct.pack("<I", 0)
    else:
        empty, payload = Struct({1: (I32, 0), 2: (I32, 0), 3: (I32, 0), 4: (I32, 0), 5: (I32, 0), 6: (I32, 0)}), b""
    header.put(2, len(payload), I32)
    header.put(3, len(payload), I32)
    header.put(5 if version == "1.0" else 8, empty)
    blank = RawPage(header, payload)
    file.set_pages([pages[0], blank, pages[1], blank], index=indexed)
    assert_reads(file.data(), x == 1, x == 3, x > 1, n == 2)


@pytest.mark.parametrize("offset", [2**31 - 100, 2**31 + 7, 2**32 - 50, 2**32 + 7, 2**36])
@pytest.mark.parametrize("indexed", [True, False])
def test_22_offsets_beyond_4_gib(tmp_path: Path, offset: int, indexed: bool) -> None:
    """All but the magic bytes lies far behind in a file that is mostly a hole."""
    file = words() if indexed else without_index(words())
    moved = offset - 4
    for at in range(2):
        chunk, meta = file.chunk(at), file.meta(at)
        for part, fields in ((chunk, (2, 4, 6)), (meta, (9, 11))):
            for field in fields:
                if part.value(field):
                    part.put(field, part.value(field) + moved)
    if indexed:
        for at in range(2):
            file.chunk(at).put(4, file.chunk(at).value(4) - moved)
            locations = file.offset_index(at)
            for location in locations.value(1):
                location.put(1, location.value(1) + moved)
            file.set_offset_index(locations, at)
            file.chunk(at).put(4, file.chunk(at).value(4) + moved)
    data = file.data()
    path = tmp_path / "holes.parquet"
    with path.open("wb") as sink:
        sink.write(b"PAR1")
        sink.seek(offset)
        sink.write(data[4:])
    wanted = pq.ParquetFile(path).read()
    assert values(wanted) == values(by_pyarrow(words().data()))

    async def question(opened: asyncpq.File) -> None:
        assert values(await opened.read()) == values(wanted)
        with asyncpq.measure() as cost:
            assert (await opened.read(where=x == "d"))["n"].to_pylist() == [6, 7]
        assert cost.bytes_fetched < 2000
        assert (await opened.take([9]))["x"].to_pylist() == ["e"]

    _ask_path(path, question)


def _ask_path(path: Path, question: Any) -> None:
    async def run() -> None:
        async with asyncpq.open_file(path) as file:
            await question(file)

    asyncio.run(run())


def test_22_row_groups_without_statistics() -> None:
    for kept in (0, 1):
        table = pa.table({"x": ["a", "b", "c", None], "n": pa.array(range(4), pa.int64())})
        file = EditedFile.of(table, row_group_size=2, rows_per_page=1)
        for at in range(2):
            file.meta(at, kept).pop(12)
        assert_reads(file.data(), *[x == word for word in "abcd"], x.is_null(), x != "a", n > 1)


def test_22_footers_longer_than_the_first_get() -> None:
    data = words().data()
    footer = int.from_bytes(data[-8:-4], "little") + 8
    sizes = [8, 9, footer - 1, footer, footer + 1, len(data) - 1, len(data), len(data) + 1, 10 * len(data)]
    wanted = values(by_pyarrow(data))

    async def question(file: asyncpq.File) -> None:
        assert values(await file.read()) == wanted
        assert (await file.read(where=x == "d"))["n"].to_pylist() == [6, 7]

    for size in sizes:
        ask(data, question, requests=asyncpq.RequestOptions(tail_bytes=size))


def test_a_decoded_page_is_not_taken_for_its_chunk() -> None:
    """A chunk of one page without a dictionary has the same bytes as the page, which a cache may hold decoded."""
    table = pa.table({"n": pa.array(range(4), pa.int64())})
    data = EditedFile.of(table, row_group_size=2, use_dictionary=False).data()

    async def question(file: asyncpq.File) -> None:
        for _ in range(3):
            assert (await file.take([0, 3]))["n"].to_pylist() == [0, 3]
        assert (await file.read())["n"].to_pylist() == [0, 1, 2, 3]

    ask(data, question)


def test_every_trap_has_a_test() -> None:
    """Of traps 1 to 22; those of bloom filters, encryption and several files are elsewhere."""
    found: set[int] = set()
    for path in Path(__file__).parent.glob("test_traps_*.py"):
        found |= {int(number) for number in re.findall(r"^def test_(\d\d)_", path.read_text(), re.MULTILINE)}
    assert found == set(range(1, 23))
