"""Bloom filters of other writers: Spark, parquet-mr and parquet-rs; every value that is there is found.

The lies are here too: a filter that is not what the specification says is not used, and the rows are right.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.parquet.bloom_filter import BLOCK_BYTES, block_of, decode_bloom_filter_header, may_contain, xxh64
from tests.parquet_files import I32, I64, STRUCT, EditedFile, Struct, encode, metadata_of, row_groups_left, write
from tests.parquet_samples import DATA, requires_corpus
from tests.reads import ask

ALWAYS = asyncpq.RequestOptions(bloom_filters="always")
DATA_FOLDER = Path(__file__).resolve().parents[1] / "data"
SPARK = (DATA_FOLDER / "spark_bloom.parquet").read_bytes()
SPARK_TABLE = pq.read_table(pa.BufferReader(SPARK))


def present(column: str, group: int) -> list[Any]:
    return [value for value in SPARK_TABLE.column(column).slice(group * 100, 100).to_pylist() if value is not None]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("column", SPARK_TABLE.column_names)
def test_no_value_of_sparks_is_ruled_out(column: str) -> None:
    metadata = metadata_of(SPARK)
    assert all(
        group.chunk(metadata.schema.projection(column).leaves[0]).bloom_filter_offset is not None
        for group in metadata.row_groups
    )
    ruled_out = 0
    for group in range(3):
        for value in present(column, group):
            left = row_groups_left(SPARK, col(column) == value)
            assert group in left
            # those that hold it
            ruled_out += 3 - len(left)
    groups = [set(present(column, group)) for group in range(3)]
    if not groups[0] & groups[1]:
        assert ruled_out > 5 * sum(map(len, groups)) // 3  # of two row groups for each value, nearly all


@pytest.mark.parametrize("column", SPARK_TABLE.column_names)
def test_lookups_in_sparks_file(column: str) -> None:
    async def question(file: asyncpq.File) -> None:
        for value in (*present(column, 0)[:3], *present(column, 2)[:3]):
            wanted = SPARK_TABLE.filter(pa.compute.field(column) == value)
            assert (await file.lookup({column: value})).equals(wanted)
            assert await file.count(col(column).is_in([value])) == wanted.num_rows

    ask(SPARK, question, requests=ALWAYS)


@requires_corpus
def test_the_corpus_filter_holds_its_words() -> None:
    data = (DATA / "bloom_filter.xxhash.bin").read_bytes()
    header = decode_bloom_filter_header(data)
    assert len(data) == header.header_size + header.num_bytes

    def contains(word: bytes) -> bool:
        hash_ = xxh64(word)
        start = header.header_size + block_of(hash_, header.num_blocks) * BLOCK_BYTES
        return may_contain(data[start : start + BLOCK_BYTES], hash_)

    assert all(map(contains, (b"hello", b"parquet", b"bloom", b"filter")))
    assert not any(map(contains, (b"Hello", b"parquets", b"blooming", b"")))


@requires_corpus
def test_the_corpus_filter_of_another_hash_is_refused() -> None:
    with pytest.raises(asyncpq.FormatError):
        decode_bloom_filter_header((DATA / "bloom_filter.bin").read_bytes())


@requires_corpus
@pytest.mark.parametrize("name", ["data_index_bloom_encoding_stats", "data_index_bloom_encoding_with_length"])
def test_corpus_files(name: str) -> None:
    data = (DATA / f"{name}.parquet").read_bytes()
    words = pq.read_table(pa.BufferReader(data)).column("String").to_pylist()
    assert all(row_groups_left(data, col("String") == word) == [0] for word in words)
    absent = [f"{word}!" for word in words]
    assert sum(bool(row_groups_left(data, col("String") == word)) for word in absent) <= 1

    async def question(file: asyncpq.File) -> None:
        for word in words:
            assert await file.count(col("String") == word) == words.count(word)
        missing = next(word for word in absent if not row_groups_left(data, col("String") == word))
        assert await file.count((col("String") == missing) | (col("String") == "\x7f")) == 0
        assert not any("bloom" in reason for reason in file.metrics.fallbacks)

    ask(data, question, requests=ALWAYS)


# -- filters that lie -----------------------------------------------------------------------------

TABLE = pa.table({"id": pa.array([row * 7 % 100 * 2 for row in range(100)]), "x": pa.array(range(100))})
GOOD = write(TABLE, ["id"], rows_per_group=50, ndv=50, write_statistics=True, write_page_index=True)
OFFSET, LENGTH = 14, 15


def lie(change: Callable[[EditedFile, Struct], None]) -> bytes:
    """The good file, with the first row group's filter changed."""
    edited = EditedFile(GOOD)
    change(edited, edited.meta(0, 0))
    return edited.data()


def header(old: bytes, new: bytes) -> Callable[[EditedFile, Struct], None]:
    """Another header in front of the same blocks, with a length that fits."""

    def change(edited: EditedFile, meta: Struct) -> None:
        start, length = meta.value(OFFSET), meta.value(LENGTH)
        filter_ = bytes(edited.body[start : start + length])
        assert old in filter_[:20]
        changed = filter_[:20].replace(old, new, 1) + filter_[20:]
        meta.put(OFFSET, edited.append(changed))
        meta.put(LENGTH, len(changed))

    return change


def place(offset: int | None, length: int | None) -> Callable[[EditedFile, Struct], None]:
    """Offset and length as given; None leaves them."""

    def change(edited: EditedFile, meta: Struct) -> None:
        if offset is not None:
            meta.put(OFFSET, offset)
        if length is not None:
            meta.put(LENGTH, length)

    return change


def at_the_end(edited: EditedFile, meta: Struct) -> None:
    """The header ends where the footer begins; its blocks would be the footer."""
    start = meta.value(OFFSET)
    meta.put(OFFSET, edited.append(bytes(edited.body[start : start + 16])))
    meta.put(LENGTH, None)


def cut_off(edited: EditedFile, meta: Struct) -> None:
    """The footer begins inside the header."""
    start = meta.value(OFFSET)
    meta.put(OFFSET, edited.append(bytes(edited.body[start : start + 7])))
    meta.put(LENGTH, None)


SIZE = metadata_of(GOOD).row_groups[0].chunk(0).bloom_filter_length
assert SIZE == 80  # 16 bytes of header, 2 blocks
LIES: dict[str, Callable[[EditedFile, Struct], None]] = {
    "bytes that are not whole blocks": header(b"\x15\x80\x01", b"\x15\x82\x01"),
    "no bytes": header(b"\x15\x80\x01", b"\x15\x80\x00"),
    "negative bytes": header(b"\x15\x80\x01", b"\x15\x81\x01"),
    "more bytes than there are": header(b"\x15\x80\x01", b"\x15\x80\x80\x80\x80\x01"),
    "fewer bytes than there are": header(b"\x15\x80\x01", b"\x15\x40"),
    "another algorithm": header(b"\x1c\x1c\x00\x00\x1c\x1c", b"\x1c\x2c\x00\x00\x1c\x1c"),
    "another hash": header(b"\x1c\x1c\x00\x00\x1c\x1c\x00\x00", b"\x1c\x1c\x00\x00\x1c\x2c\x00\x00"),
    "compressed": header(b"\x1c\x1c\x00\x00\x00", b"\x1c\x2c\x00\x00\x00"),
    "no header": header(b"\x15\x80\x01\x1c", b"\xff\xff\xff\xff"),
    "empty header": header(b"\x15", b"\x00"),
    "offset 0": place(0, None),
    "negative offset": place(-5, None),
    "offset behind the data": place(len(GOOD) - 8, None),
    "offset beyond the file": place(1 << 40, None),
    "offset in a page": place(4, None),
    "length beyond the file": place(None, 1 << 30),
    "length too long": place(None, SIZE + 32),
    "length too short": place(None, SIZE - 32),
    "length shorter than a header": place(None, 3),
    "length 0": place(None, 0),
    "negative length": place(None, -80),
    "blocks behind the data": at_the_end,
    "a header cut off": cut_off,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", LIES)
@pytest.mark.parametrize("tail_bytes", [8, 1 << 20])
def test_a_filter_that_lies_is_not_used(name: str, tail_bytes: int) -> None:
    data = lie(LIES[name])

    async def question(file: asyncpq.File) -> None:
        for key in (*range(0, 200, 31), *range(1, 100, 10)):
            wanted = TABLE.filter(pa.compute.field("id") == key)
            for _ in range(2):  # judged once, named each time
                with asyncpq.measure() as cost:
                    assert (await file.lookup({"id": key})).equals(wanted)
                assert any("bloom filter" in reason for reason in cost.fallbacks)
                sent = [request for request in cost.log if request.purpose == "bloom"]
                assert len(sent) <= 5
                assert all(4 <= request.start < request.stop <= len(data) for request in sent)

    ask(data, question, requests=asyncpq.RequestOptions(bloom_filters="always", tail_bytes=tail_bytes, gap_bytes=0))


@pytest.mark.parametrize(
    "change",
    [
        header(b"\x15\x80\x01", b"\x05\x02\x80\x01"),  # field 1 by its long form: the length implies no header
        # one more field, after which the length implies a shorter header and more blocks
        header(b"\x1c\x1c\x00\x00\x00", b"\x1c\x1c\x00\x00\x18\x1e" + bytes(30) + b"\x00"),
    ],
)
def test_a_header_written_in_another_way_is_read_all_the_same(change: Callable[[EditedFile, Struct], None]) -> None:
    data = lie(change)

    async def question(file: asyncpq.File) -> None:
        for key in range(0, 200, 3):
            assert (await file.lookup({"id": key})).equals(TABLE.filter(pa.compute.field("id") == key))
            assert file.metrics.fallbacks == []
        with asyncpq.measure() as cost:
            assert await file.count(col("id") == 51) == 0
        assert cost.row_groups_by_bloom == 2

    options = asyncpq.RequestOptions(bloom_filters="always", tail_bytes=8, gap_bytes=0)
    ask(data, question, requests=options)


def test_a_consistent_lie_is_the_same_as_lying_statistics() -> None:
    def change(edited: EditedFile, meta: Struct) -> None:
        start = meta.value(OFFSET) + 16
        edited.body[start : start + 64] = bytes(64)

    data = lie(change)

    async def question(file: asyncpq.File) -> int:
        return await file.count(col("id") == 14)

    assert ask(data, question, requests=ALWAYS) == 0  # cannot be noticed; what trust_statistics is for
    assert ask(data, question, requests=ALWAYS, read=asyncpq.ReadOptions(trust_statistics=False)) == 1


# -- ClickHouse writes a filter of every column, as large as the chunk has values ---------------------


CHDB = (DATA_FOLDER / "chdb_bloom.parquet").read_bytes()


def _enlarged(data: bytes, num_bytes: int) -> bytes:
    """The file with filters of so many bytes each, which rule out nothing."""
    file = EditedFile(data)
    kind = Struct({1: (STRUCT, Struct())})
    head = encode(Struct({1: (I32, num_bytes), 2: (STRUCT, kind), 3: (STRUCT, kind), 4: (STRUCT, kind)}))
    for group in range(2):
        file.meta(0, group).put(14, file.append(head + b"\xff" * num_bytes), I64)
        file.meta(0, group).put(15, len(head) + num_bytes, I32)
    return file.data()


@pytest.mark.parametrize("bloom_filters", ["auto", "always"])
@pytest.mark.parametrize(("num_bytes", "ruled_out"), [(None, 1), (2 << 20, 0)], ids=["chdb", "2 MiB"])
def test_a_key_costs_blocks_of_large_filters_and_not_the_filters(
    num_bytes: int | None, ruled_out: int, bloom_filters: Any
) -> None:
    data = CHDB if num_bytes is None else _enlarged(CHDB, num_bytes)
    size = sum(chunk.bloom_filter_length or 0 for group in metadata_of(data).row_groups for chunk in [group.chunk(0)])

    options = asyncpq.RequestOptions(bloom_filters=bloom_filters, tail_bytes=4096, latency_s=0.03, gap_bytes=0)
    for key in (20_001, 7, 30_002):

        async def question(file: asyncpq.File, key: int = key) -> asyncpq.ReadMetrics:
            assert (await file.lookup({"id": key})).to_pylist() == [{"id": key}]
            return file.metrics

        metrics = ask(data, question, requests=options)  # of a session that knows nothing of the file
        assert metrics.bytes_by_purpose.get("bloom", 0) * 20 < size
        if bloom_filters == "always":
            assert metrics.requests_by_purpose["bloom"]
            assert metrics.row_groups_by_bloom == ruled_out
