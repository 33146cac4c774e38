"""Files as asyncpq lays them out, which layouts are valid, and how files come to their store; without Spark."""

from __future__ import annotations

import gc
import io
import pickle
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import col, writing
from asyncpq.errors import InvalidOptionError, SchemaMismatchError, StoreError
from asyncpq.indexing.build.adding import AddedFile
from asyncpq.parquet.metadata import decode_file_metadata
from asyncpq.parquet.page_index import decode_offset_index
from asyncpq.storage.s3 import writer as s3_writer
from asyncpq.testing import Fault, ObjectServer, WrappedStore, object_server, wrap_store
from asyncpq.writing import (
    BloomFilter,
    SortedBy,
    WriteOptions,
    check_options,
    leaf_places,
    short_dictionaries,
    sorting,
    write_files,
)
from tests.example_counts import examples

SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("name", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("flag", pa.bool_()),
        ("pair", pa.struct([("x", pa.int32()), ("y", pa.list_(pa.string()))])),
    ],
    metadata={"org.example.key": "value"},
)


def rows(start: int, stop: int) -> pa.RecordBatch:
    """Without the schema's metadata, as batches of tasks come."""
    ids = range(start, stop)
    columns = [
        pa.array(ids),
        pa.array([f"name {number * 7919 % 1009}" for number in ids]),
        pa.array([number * 1_000_001 for number in ids], SCHEMA.field("at").type),
        pa.array([number % 2 == 0 for number in ids]),
        pa.array([{"x": number, "y": ["a"] * (number % 3)} for number in ids], SCHEMA.field("pair").type),
    ]
    return pa.record_batch(columns, schema=SCHEMA.remove_metadata())


async def batches(stop: int, size: int = 1000) -> AsyncIterator[pa.RecordBatch]:
    for start in range(0, stop, size):
        yield rows(start, min(stop, start + size))


async def write(target: str, options: WriteOptions, stop: int = 10_000, **session: Any) -> list[AddedFile]:
    async with asyncpq.Session(**session) as opened:
        return await write_files(opened._runtime, target, "data/job/00000-1", batches(stop), SCHEMA, options)


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


# -- what the files are like ----------------------------------------------------------------------


@pytest.mark.parametrize("compression", ["zstd", "snappy", "gzip", "lz4_raw", "none"])
async def test_every_option_is_seen_in_the_file(tmp_path: Path, compression: str) -> None:
    options = WriteOptions(
        compression=compression,
        page_rows=500,
        page_bytes=1500,
        row_group_rows=4000,
        bloom_filters=(BloomFilter(column="id", fpp=0.001), BloomFilter(column="pair.x", ndv=64)),
        sorted_by=(SortedBy(column="id"), SortedBy(column="pair.x", descending=True, nulls_first=False)),
        dictionary_columns=("name", "pair.y.list.element"),
        store_schema=False,
    )
    (written,) = await write(str(tmp_path), options)
    path = tmp_path / written.path
    file = pq.ParquetFile(path)
    metadata = file.metadata
    assert file.read().cast(SCHEMA).equals(pa.Table.from_batches([rows(0, 10_000)], SCHEMA.remove_metadata()))
    assert [metadata.row_group(at).num_rows for at in range(metadata.num_row_groups)] == [4000, 4000, 2000]
    assert (written.num_rows, written.validator.size) == (10_000, path.stat().st_size)
    assert metadata.metadata == {b"org.example.key": b"value"}
    leaves = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    for group in (metadata.row_group(at) for at in range(metadata.num_row_groups)):
        found = [(one.column_index, one.descending, one.nulls_first) for one in group.sorting_columns]
        assert found == [(0, False, True), (leaves.index("pair.x"), True, False)]
        for leaf, chunk in ((name, group.column(at)) for at, name in enumerate(leaves)):
            assert chunk.has_column_index
            assert chunk.has_offset_index
            assert chunk.compression == {"lz4_raw": "LZ4", "none": "UNCOMPRESSED"}.get(compression, compression.upper())
            assert chunk.has_dictionary_page is (leaf in ("name", "pair.y.list.element"))
            assert (chunk.bloom_filter_offset is not None) is (leaf in ("id", "pair.x"))
    sizes = {leaf: metadata.row_group(0).column(at).bloom_filter_length for at, leaf in enumerate(leaves)}
    assert (sizes["id"] or 0) > 20 * (sizes["pair.x"] or 0)
    at = metadata.schema.column(leaves.index("at"))
    assert '"timeUnit":"microseconds"' in at.logical_type.to_json()
    assert '"isAdjustedToUTC":true' in at.logical_type.to_json()
    offsets = page_rows(path)
    assert max(offsets["flag"]) == 500
    assert max(offsets["id"]) < 500  # of 8 bytes, it looks at 256 of them
    assert sum(offsets["id"]) == 10_000


def page_rows(path: Path) -> dict[str, list[int]]:
    """How many rows each page has, by leaf."""
    data = path.read_bytes()
    metadata = decode_file_metadata(data[len(data) - 8 - int.from_bytes(data[-8:-4], "little") : -8])
    found: dict[str, list[int]] = {}
    for group in metadata.row_groups:
        for leaf in metadata.schema.leaves:
            located = group.parse_chunk(leaf.index).offset_index_range
            assert located is not None
            index = decode_offset_index(data[located[0] : located[1]])
            found.setdefault(leaf.dotted, []).extend(index.row_counts(group.num_rows))
    return found


async def test_asyncpq_and_pyarrow_read_what_was_written(tmp_path: Path) -> None:
    options = WriteOptions(page_rows=100, row_group_rows=2500, bloom_filters=(BloomFilter(column="name"),))
    (written,) = await write(str(tmp_path), options)
    async with asyncpq.Session() as session:
        file = await session.open_file(str(tmp_path / written.path))
        await file.lookup({"id": 17})
        assert file.metrics.pages_read == 6  # one of each leaf
        table = await file.lookup({"id": [17, 9_999]})
        assert table.equals(pa.Table.from_batches([rows(17, 18), rows(9_999, 10_000)]).cast(table.schema))
        assert file.schema.equals(SCHEMA)
        validator = written.validator
        assert (await file.count(where=col("name") == "name 0"), validator.size) == (10, written.validator.size)


async def test_files_are_ended_where_they_are_large_enough(tmp_path: Path) -> None:
    options = WriteOptions(row_group_rows=1000, file_bytes=20_000)
    written = await write(str(tmp_path), options)
    assert len(written) > 2
    assert [file.path for file in written[:2]] == ["data/job/00000-1-00000.parquet", "data/job/00000-1-00001.parquet"]
    assert sum(file.num_rows for file in written) == 10_000
    tables = [pq.read_table(tmp_path / file.path) for file in written]
    assert pa.concat_tables(tables).column("id").to_pylist() == list(range(10_000))
    assert all(20_000 <= file.validator.size < 40_000 for file in written[:-1])
    assert sorted(path.name for path in (tmp_path / "data/job").iterdir()) == sorted(
        file.path.rpartition("/")[2] for file in written
    )


async def test_row_groups_are_bounded_by_bytes(tmp_path: Path) -> None:
    (written,) = await write(str(tmp_path), WriteOptions(row_group_bytes=100_000))
    metadata = pq.read_metadata(tmp_path / written.path)
    size = sum(batch.nbytes for batch in (rows(at, at + 1000) for at in range(0, 10_000, 1000)))
    assert abs(metadata.num_row_groups - size / 100_000) < 3


async def test_no_rows_make_no_file(tmp_path: Path) -> None:
    assert await write(str(tmp_path), WriteOptions(), stop=0) == []
    assert files_below(tmp_path) == []


async def test_the_end_of_a_file_comes_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = WriteOptions(bloom_filters=(BloomFilter(column="id"),))
    (written,) = await write(str(tmp_path), options)
    data = (tmp_path / written.path).read_bytes()
    assert written.tail
    assert data.endswith(written.tail)
    chunk = pq.read_metadata(tmp_path / written.path).row_group(0).column(0)
    start = written.validator.size - len(written.tail)
    assert start >= chunk.bloom_filter_offset + chunk.bloom_filter_length  # indexes and footer, and nothing else
    footer = decode_file_metadata(written.tail[written.footer_start - start : -8])
    ranges = [footer.row_groups[0].parse_chunk(leaf.index).column_index_range for leaf in footer.schema.leaves]
    assert min(located[0] for located in ranges if located is not None) == start
    monkeypatch.setattr(writing, "TAIL_BYTES", len(written.tail) - 1)
    (large,) = await write(str(tmp_path / "2"), options)
    assert (large.tail, large.footer_start) == (b"", written.footer_start)
    assert pickle.loads(pickle.dumps(written)) == written


async def test_what_is_in_memory_does_not_grow(tmp_path: Path) -> None:
    seen: list[int] = []

    class Watching(WrappedStore):
        async def create_stream(self, url: str, pieces: AsyncIterator[bytes], *, context: Any) -> bool:
            async def watched() -> AsyncIterator[bytes]:
                async for piece in pieces:
                    seen.append(pa.total_allocated_bytes() + len(piece))
                    yield piece

            return await super().create_stream(url, watched(), context=context)

    gc.collect()
    before = pa.total_allocated_bytes()
    options = WriteOptions(row_group_rows=5000, compression="none", dictionary_columns=())
    async with asyncpq.Session() as session:
        wrap_store(session, str(tmp_path), Watching)
        (written,) = await write_files(session._runtime, str(tmp_path), "data/a", batches(100_000), SCHEMA, options)
    assert len(seen) == 21
    assert written.validator.size > 3_500_000
    assert max(seen) - before < 2 * written.validator.size / 20 + 1_000_000  # two row groups, and what pyarrow holds


# -- their way to the store -----------------------------------------------------------------------


@pytest.fixture
async def server(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ObjectServer]:
    """Uploads come in parts of 20,000 bytes."""
    monkeypatch.setattr(s3_writer, "_STREAM_PART_BYTES", 20_000)
    monkeypatch.setattr(object_server, "_LEAST_PART_BYTES", 20_000)
    async with ObjectServer() as running:
        running.buckets.add("bucket")
        yield running


_SMALL_GROUPS = WriteOptions(row_group_rows=1000)
_PATH = "bucket/lake/data/job/00000-1-00000.parquet"


async def write_to(server: ObjectServer) -> list[AddedFile]:
    return await write("s3://bucket/lake", _SMALL_GROUPS, storage_options=server.storage_options)


async def test_a_file_is_uploaded_while_it_is_written(server: ObjectServer) -> None:
    (written,) = await write_to(server)
    data = server.objects[_PATH].data
    assert pq.read_table(io.BytesIO(data)).num_rows == 10_000
    assert (written.validator.etag, written.validator.size) == (server.objects[_PATH].etag, len(data))
    sent = [(request.method, len(request.body)) for request in server.log]
    assert [method for method, _ in sent].count("PUT") == -(-len(data) // 20_000)
    assert max(size for _, size in sent) <= 20_000
    (completed,) = (request for request in server.log if request.method == "POST" and "uploadId" in request.target)
    assert completed.headers["if-none-match"] == "*"
    assert sent[-1] == ("GET", 0)  # of one byte: which version it is


@pytest.mark.parametrize("method", ["PUT", "POST"])
@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize(
    "fault",
    [Fault(status=503, code="SlowDown"), Fault(lose_answer=True), Fault(hang_up=True)],
    ids=["503", "lost", "cut"],
)
async def test_what_fails_once_is_sent_again(server: ObjectServer, fault: Fault, method: str, after: int) -> None:
    server.faults = [replace(fault, method=method, after=after)]
    (written,) = await write_to(server)
    assert pq.read_table(io.BytesIO(server.objects[_PATH].data)).num_rows == 10_000
    assert written.validator.etag == server.objects[_PATH].etag


@pytest.mark.parametrize("method", ["PUT", "POST"])
@pytest.mark.parametrize("after", [0, 1])
async def test_what_fails_for_good_leaves_nothing(server: ObjectServer, method: str, after: int) -> None:
    server.faults = [Fault(status=403, code="AccessDenied", method=method, after=after, times=None)]
    with pytest.raises(StoreError) as caught:
        await write_to(server)
    assert caught.value.url == f"s3://{_PATH}"
    assert not server.objects
    assert not server._uploads.running


async def test_rows_that_stop_coming_leave_nothing(server: ObjectServer, tmp_path: Path) -> None:
    class StoppedError(Exception):
        pass

    async def stopping() -> AsyncIterator[pa.RecordBatch]:
        async for batch in batches(8000):
            yield batch
        raise StoppedError

    async with asyncpq.Session({"s3": server.storage_options}) as session:
        for target in ("s3://bucket/lake", str(tmp_path)):
            with pytest.raises(StoppedError):
                await write_files(session._runtime, target, "data/job/0", stopping(), SCHEMA, _SMALL_GROUPS)
    assert not server.objects
    assert not server._uploads.running
    assert files_below(tmp_path) == []


async def test_a_name_is_not_used_twice(server: ObjectServer, tmp_path: Path) -> None:
    for target in ("s3://bucket/lake", str(tmp_path)):
        options = server.storage_options if target.startswith("s3") else None
        (first,) = await write(target, _SMALL_GROUPS, storage_options=options)
        with pytest.raises(StoreError, match="another file"):
            await write(target, _SMALL_GROUPS, stop=9_000, storage_options=options)
        # the same bytes: an answer that was lost
        (again,) = await write(target, _SMALL_GROUPS, storage_options=options)
        assert again == first


async def test_values_that_the_format_cannot_hold(tmp_path: Path) -> None:
    schema = pa.schema([("at", pa.timestamp("ns"))])

    async def nanoseconds() -> AsyncIterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array([1_500], pa.timestamp("ns"))], schema=schema)

    async with asyncpq.Session() as session:
        with pytest.raises(SchemaMismatchError, match="would lose data"):
            await write_files(session._runtime, str(tmp_path), "data/a", nanoseconds(), schema, WriteOptions())
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("descending", [False, True])
async def test_rows_that_are_not_sorted_as_said_are_not_written(tmp_path: Path, descending: bool) -> None:
    """Also where only the row groups do not follow each other."""

    async def turned() -> AsyncIterator[pa.RecordBatch]:
        for start in (1000, 0):
            batch = rows(start, start + 1000)
            yield batch.take(pa.array(range(999, -1, -1))) if descending else batch

    options = WriteOptions(row_group_rows=1000, sorted_by=(SortedBy(column="id", descending=descending),))
    async with asyncpq.Session() as session:
        if descending:
            await write_files(session._runtime, str(tmp_path), "data/a", turned(), SCHEMA, options)
        else:
            with pytest.raises(InvalidOptionError, match="not in this order; column 'id'"):
                await write_files(session._runtime, str(tmp_path), "data/a", turned(), SCHEMA, options)
    assert len(files_below(tmp_path)) == descending


# -- options --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"bloom_filters": (BloomFilter(column="nothing"),)},
        {"bloom_filters": (BloomFilter(column="flag"),)},
        {"sorted_by": (SortedBy(column="nothing"),)},
        {"sorted_by": (SortedBy(column="pair"),)},
        {"dictionary_columns": ("pair",)},
        {"compression": "snappy", "compression_level": 3},
    ],
    ids=str,
)
async def test_options_that_are_not_for_these_columns(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError):
        await write(str(tmp_path), WriteOptions(**options))
    assert files_below(tmp_path) == []


ROWS = 100_000
RANDOM = np.random.default_rng(11)


def table() -> pa.Table:
    """Columns of few and of many values, flat and nested."""
    few, many = RANDOM.integers(0, 40, ROWS), RANDOM.integers(0, 2**60, ROWS)
    names = pa.array([f"name {number}" for number in range(40)])
    return pa.table(
        {
            "key": np.arange(ROWS),
            "few": few,
            "many": many,
            "text_few": names.take(pa.array(few)),
            "text_many": [f"{number:x}" for number in many],
            "held": pa.DictionaryArray.from_arrays(few.astype("i4"), names),
            "nothing": pa.nulls(ROWS),
            "flag": few > 3,
            "s": pa.StructArray.from_arrays([pa.array(few), pa.array(many)], ["few", "many"]),
            "l": pa.ListArray.from_arrays(np.arange(ROWS + 1, dtype="i4"), pa.array(few)),
        }
    )


SHORT = {"few", "text_few", "held", "s.few", "l.list.element"}


def test_leaves_of_few_values_have_dictionaries() -> None:
    assert set(short_dictionaries(table(), 8192, 1 << 18)) == SHORT


def test_paths_of_names_with_dots() -> None:
    few, many = pa.array(RANDOM.integers(0, 9, ROWS)), pa.array(RANDOM.integers(0, 2**60, ROWS))
    both = pa.table({"a": pa.StructArray.from_arrays([few], ["b"]), "a.b": many, "c.d": few, "c": few})
    assert short_dictionaries(both, 8192, 1 << 18) == ("c.d", "c")


def test_a_dictionary_of_a_page_is_none_for_smaller_pages() -> None:
    values = pa.table({"x": RANDOM.integers(0, 1_000, ROWS)})
    assert short_dictionaries(values, 8192, 1 << 18) == ("x",)
    assert short_dictionaries(values, 100, 1 << 18) == ()
    assert short_dictionaries(values, 8192, 4096) == ()


@settings(max_examples=examples(25, thorough=250), deadline=None)
@given(st.lists(st.none() | st.integers(-5, 5) | st.integers(), max_size=200), st.integers(1, 300))
def test_the_answer_is_that_of_the_definition(values: list[int | None], page_rows: int) -> None:
    array = pa.array([value if value is None else value % 2**60 for value in values], pa.int64())
    distinct = len(set(array.to_pylist()))
    page = 8 * len(array) * min(1.0, page_rows / max(1, len(array)))
    expected = ("x",) if 8 * distinct + page_rows * distinct.bit_length() / 8 <= page or not values else ()
    assert short_dictionaries(pa.table({"x": array}), page_rows, 1 << 20) == expected


@pytest.mark.parametrize("chosen", [None, ("many",)])
async def test_files_are_written_so(tmp_path: Path, chosen: tuple[str, ...] | None) -> None:
    pq.write_table(table().drop_columns(["nothing"]), tmp_path / "in.parquet")
    layout = asyncpq.WriteOptions(dictionary_columns=chosen)
    async with asyncpq.Session() as session:
        done = await session.optimize(f"{tmp_path}/in.parquet", f"{tmp_path}/out/", sort_by="key", layout=layout)
        findings = (await (await session.open_dataset(f"{tmp_path}/out/")).lint(["key"]))["findings"]
    metadata = pq.read_metadata(tmp_path / "out" / done.files[0])
    chunks = [metadata.row_group(0).column(leaf) for leaf in range(metadata.num_columns)]
    with_dictionary = {chunk.path_in_schema for chunk in chunks if chunk.has_dictionary_page}
    assert with_dictionary == (SHORT if chosen is None else set(chosen))
    assert chosen is not None or not [finding for finding in findings if "dictionar" in finding["id"]]


_SCHEMA = pa.schema(
    [("id", pa.int64()), ("flag", pa.bool_()), ("s", pa.struct([("b", pa.string())])), ("many", pa.list_(pa.int64()))]
)


def test_a_size_is_not_a_bool() -> None:
    with pytest.raises(InvalidOptionError, match="row_group_bytes"):
        WriteOptions(row_group_bytes=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (WriteOptions(bloom_filters=(BloomFilter(column="nothing"),)), "bloom_filters: there is no such leaf column"),
        (WriteOptions(bloom_filters=(BloomFilter(column="flag"),)), "boolean column"),
        (WriteOptions(dictionary_columns=("s",)), "dictionary_columns: there is no such leaf column"),
        (WriteOptions(sorted_by=(SortedBy(column="nothing"),)), "sorted_by: the column does not exist"),
        (WriteOptions(compression="snappy", compression_level=3), "cannot be combined"),
    ],
)
def test_options_that_do_not_fit_the_schema_are_refused(options: WriteOptions, message: str) -> None:
    with pytest.raises(InvalidOptionError, match=message):
        check_options(_SCHEMA, options)


def test_leaves_are_found_outside_of_lists() -> None:
    assert leaf_places(_SCHEMA, "id") == (0,)
    assert leaf_places(_SCHEMA, "s.b") == (2, 0)
    assert leaf_places(_SCHEMA, "nothing") is None
    assert sorting(_SCHEMA, ()) is None
    (column,) = sorting(_SCHEMA, [SortedBy(column="s.b", descending=True)]) or []
    assert (column.column_index, column.descending) == (2, True)
