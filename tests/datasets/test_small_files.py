"""Small files that are read together: the rows, errors and costs are those of reading each by itself."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import Dataset, col
from asyncpq.datasets import dataset_files, small_files
from asyncpq.datasets.opened_file import OpenedFile
from asyncpq.datasets.small_files import ReadyRows, SmallFiles
from asyncpq.errors import CorruptFileError, ObjectNotFoundError
from asyncpq.testing import ObjectServer
from tests.example_counts import examples
from tests.parquet_bytes import parquet_bytes
from tests.predicates import expressions
from tests.random_tables import WriterOptions, tables, writer_options

FILES = 20


@pytest.fixture
def together(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of files of the groups that were read together."""
    groups: list[int] = []
    read = SmallFiles.read

    async def counting(self: SmallFiles, files: Sequence[OpenedFile], kind: Any) -> ReadyRows | None:
        rows = await read(self, files, kind)
        if rows is not None:
            groups.append(len(files))
        return rows

    monkeypatch.setattr(SmallFiles, "read", counting)
    return groups


@contextmanager
def one_by_one() -> Iterator[None]:
    """Each file is read by itself."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset_files, "FEWEST", 1 << 30)
        yield


def part(number: int) -> pa.Table:
    return pa.table(
        {
            "id": pa.array(range(number * 5, number * 5 + 5), pa.int64()),
            "text": [f"v{number}", None, "same", "", "é"],
            "x": [number / 2, float("nan"), -0.0, None, 1.5],
            "at": pa.array([datetime(2024, 1, 1 + number, tzinfo=UTC)] * 5, pa.timestamp("us", "UTC")),
        }
    )


def write(path: Path, table: pa.Table, **options: Any) -> None:
    """Write a file that is old: listings know its version."""
    path.parent.mkdir(exist_ok=True)
    pq.write_table(table, path, **options)
    os.utime(path, (1e9, 1e9))


def write_folder(folder: Path, **options: Any) -> str:
    for number in range(FILES):
        write(folder / f"{number:02}.parquet", part(number), **options)
    return str(folder)


WHERES = [
    None,
    col("id") >= 42,
    (col("text") == "same") & (col("id") < 50),
    col("x").is_null() | (col("x") > 3),
    col("id") == 1000,
    col("text").is_in(["v3", "v7"]),
]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("where", WHERES, ids=str)
@pytest.mark.parametrize("columns", [None, ["text"], ["x", "id"], []], ids=str)
async def test_rows_are_those_of_single_files(
    tmp_path: Path, together: list[int], where: asyncpq.Expression | None, columns: list[str] | None
) -> None:
    url = write_folder(tmp_path, row_group_size=2)
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(url)
        with one_by_one():
            expected = await dataset.read(columns, where)
            count = await dataset.count(where)
        assert not together
        for _ in range(2):  # the second read finds them decoded
            found = await dataset.read(columns, where)
            assert found.schema.equals(expected.schema, check_metadata=True)
            assert found.to_pylist() == expected.to_pylist() or repr(found.to_pylist()) == repr(expected.to_pylist())
            assert found.num_rows == expected.num_rows
        assert await dataset.count(where) == count
        async with dataset.scan(columns, where, ordered=False) as scan:
            assert sum([batch.num_rows async for batch in scan]) == expected.num_rows
    assert bool(together) is (expected.num_rows > 0)


@pytest.mark.heavy
@pytest.mark.property
@settings(max_examples=examples(15, thorough=150))
@given(drawn=tables(max_rows=60), options=writer_options, data=st.data())
def test_any_rows_and_predicates(drawn: tuple[pa.Table, dict[str, str]], options: WriterOptions, data: Any) -> None:
    table, kinds = drawn
    where = data.draw(st.none() | expressions(kinds, foreign=False))

    async def compare(url: str) -> None:
        async with asyncpq.Session() as session:
            dataset = await session.open_dataset(url)
            results: list[Any] = []
            for apart in (True, False, False):
                with one_by_one() if apart else pytest.MonkeyPatch.context():
                    try:
                        results.append((await dataset.read(where=where), await dataset.count(where)))
                    except asyncpq.AsyncpqError as error:
                        results.append((type(error), error.message))
            first, *others = results
            for other in others:
                assert other[1] == first[1]
                if isinstance(first[0], pa.Table):
                    assert other[0].schema.equals(first[0].schema)
                    assert repr(other[0].to_pylist()) == repr(first[0].to_pylist())

    with tempfile.TemporaryDirectory() as folder:
        for number in range(9):
            path = Path(folder) / f"part={number % 3}" / f"{number:02}.parquet"
            path.parent.mkdir(exist_ok=True)
            start = number * table.num_rows // 9
            rows = table.slice(start, (number + 1) * table.num_rows // 9 - start)
            path.write_bytes(options.write(rows))
            os.utime(path, (1e9, 1e9))
        asyncio.run(compare(folder))


async def test_partitions_share_groups(tmp_path: Path, together: list[int]) -> None:
    for number in range(FILES):
        write(tmp_path / f"day={number // 2:02}" / f"{number:02}.parquet", part(number))
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        where = (col("day") >= 3) & (col("text") == "same")
        with one_by_one():
            expected = await dataset.read(["day", "id"], where)
        assert (await dataset.read(["day", "id"], where)).equals(expected)
        assert expected["day"].to_pylist() == [3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8, 8, 9, 9]
    assert together == [14]


async def test_partitions_of_both_zeros(tmp_path: Path, together: list[int]) -> None:
    for number in range(FILES):
        write(tmp_path / f"z={'-0.0' if number % 2 else '0.0'}" / f"{number:02}.parquet", part(number))
    types = {"z": pa.float64()}
    async with asyncpq.open_dataset(str(tmp_path), partitioning="hive", partition_types=types) as dataset:
        with one_by_one():
            expected = await dataset.read(["z", "id"])
        assert str((await dataset.read(["z", "id"])).to_pylist()) == str(expected.to_pylist())
    assert together == [FILES]


async def test_files_of_other_kinds_are_read_in_order(tmp_path: Path, together: list[int]) -> None:
    """One lacks a column, one has another type, one a nested column; the others are read together around them."""
    for number in range(40):
        rows = part(number % FILES)
        if number == 15:
            rows = rows.drop_columns(["x"])
        if number == 30:
            rows = rows.set_column(0, "id", rows["id"].cast(pa.int32()))
        write(tmp_path / f"{number:02}.parquet", rows)
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path), schema_policy="permissive")
        with one_by_one():
            expected = await dataset.read()
        assert repr((await dataset.read()).to_pylist()) == repr(expected.to_pylist())
    assert sum(together) == 15 + 14 + 9


async def test_nested_columns_are_read_by_file(tmp_path: Path, together: list[int]) -> None:
    for number in range(FILES):
        rows = part(number).append_column("tags", pa.array([[number], None, [], [1, 2], [3]]))
        write(tmp_path / f"{number:02}.parquet", rows)
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        assert (await dataset.read(["tags"]))["tags"].to_pylist()[:3] == [[0], None, []]
        assert not together
        assert (await dataset.read(["id"]))["id"].to_pylist() == list(range(FILES * 5))
        assert together == [FILES]


async def test_a_delta_table_with_deleted_rows(tmp_path: Path, together: list[int]) -> None:
    for number in range(FILES):
        deltalake.write_deltalake(str(tmp_path), part(number), mode="append", partition_by=["text"])
    table = deltalake.DeltaTable(str(tmp_path))
    table.delete("id = 7")
    expected = table.to_pyarrow_table().sort_by("id")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path), format="delta")
        found = (await dataset.read(expected.column_names)).sort_by("id")
        assert found["id"].equals(expected["id"])
        assert found["text"].to_pylist() == expected["text"].to_pylist()
    assert together


@pytest.mark.parametrize("policy", ["raise", "skip"])
async def test_a_damaged_file_is_found_and_named(tmp_path: Path, policy: Any) -> None:
    url = write_folder(tmp_path, compression="zstd", write_page_checksum=True)
    bad = tmp_path / "07.parquet"
    data = bytearray(bad.read_bytes())
    data[20:60] = bytes(40)
    bad.write_bytes(data)
    os.utime(bad, (1e9, 1e9))
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(url, on_bad_file=policy)
        if policy == "raise":
            with pytest.raises(CorruptFileError) as caught:
                await dataset.read()
            assert caught.value.url == str(bad)
        else:
            rows = await dataset.read()
            assert rows["id"].to_pylist() == [row for row in range(FILES * 5) if row // 5 != 7]
            assert [skipped.url for skipped in dataset.skipped] == [str(bad)]


async def test_requests_and_counts(tmp_path: Path, together: list[int]) -> None:
    """One GET for each file, nothing the second time; the counts are those of reading each by itself."""
    url = write_folder(tmp_path)
    counts: list[dict[str, Any]] = []
    for apart in (True, False):
        async with asyncpq.Session() as session:
            dataset = await session.open_dataset(url)
            with one_by_one() if apart else pytest.MonkeyPatch.context():
                for _ in range(2):
                    with asyncpq.measure() as cost:
                        await dataset.read(where=col("text") == "same")
                    counts.append(
                        {
                            name: getattr(cost, name)
                            for name in (
                                "requests_by_purpose",
                                "bytes_fetched",
                                "files_total",
                                "files_opened",
                                "files_read",
                                "row_groups_total",
                                "row_groups_read",
                                "rows_scanned",
                                "rows_returned",
                                "rounds",
                                "guarantee",
                            )
                        }
                    )
    assert counts[:2] == counts[2:]
    assert counts[2]["files_read"] == FILES
    assert together == [FILES, FILES]


async def test_few_bytes_of_memory_suffice(tmp_path: Path, together: list[int]) -> None:
    """What memory did not keep is read by file."""
    url = write_folder(tmp_path)
    async with asyncpq.Session(memory_cache_bytes=0) as session:
        dataset = await session.open_dataset(url)
        assert (await dataset.read(["id"]))["id"].to_pylist() == list(range(FILES * 5))
    assert not together


async def test_rows_that_wait_for_their_consumer_count_with_their_own_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups are decoded before their consumer comes: the budget holds their rows, not the bytes of the files."""
    taken: list[int] = []
    read = SmallFiles.read

    async def keeping(self: SmallFiles, files: Sequence[OpenedFile], kind: Any) -> ReadyRows | None:
        rows = await read(self, files, kind)
        if rows is not None:
            taken.append(rows.num_bytes)
        return rows

    monkeypatch.setattr(SmallFiles, "read", keeping)
    for number in range(FILES):
        write(tmp_path / f"{number:02}.parquet", pa.table({"text": ["x" * 1000] * 200}), write_statistics=False)
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        table = await dataset.read()
    assert table.nbytes > 4_000_000
    assert sum(taken) >= table.nbytes


@pytest.mark.heavy
async def test_files_that_decode_to_much_are_read_by_file(tmp_path: Path, together: list[int]) -> None:
    for number in range(FILES):
        write(tmp_path / f"{number:02}.parquet", pa.table({"text": ["x" * 1000] * 60_000}), compression="zstd")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        assert await dataset.count(col("text") == "x" * 1000) == FILES * 60_000
    assert not together


async def test_a_replaced_file_is_seen(tmp_path: Path, together: list[int]) -> None:
    url = write_folder(tmp_path)
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(url)
        await dataset.read()
        write(tmp_path / "03.parquet", part(FILES))
        found = (await dataset.read(["id"]))["id"].to_pylist()
        assert found == [*range(15), *range(FILES * 5, FILES * 5 + 5), *range(20, FILES * 5)]
    assert together


async def test_a_scan_gives_the_first_rows_before_all_files_are_opened(server: ObjectServer) -> None:
    data = parquet_bytes(part(0))
    for number in range(1000):
        server.put(f"bucket/lake/{number:03}.parquet", data)
    async with asyncpq.Session(server.storage_options) as session:
        dataset = await session.open_dataset("s3://bucket/lake/")
        before = len(server.log)
        async with dataset.scan() as scan:
            batch = await anext(scan)
            assert batch.num_rows == 5 * 4 * small_files.FEWEST
            assert len(server.log) - before < 1000  # 160, and more if the machine is busy


@pytest.mark.parametrize("files", [3, FILES], ids=["few", "many"])
async def test_missing_files_of_a_table_are_left_out_where_that_is_asked_for(tmp_path: Path, files: int) -> None:
    for number in range(files):
        deltalake.write_deltalake(str(tmp_path), part(number).select(["id"]), mode="append")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path), format="delta")
        lenient = Dataset(replace(dataset._state, skips_missing=True))
        gone = (await dataset.files())[1]
        missing = set(pq.ParquetFile(gone).read()["id"].to_pylist())
        os.remove(gone)
        with pytest.raises(ObjectNotFoundError):
            await dataset.read()
        left = [row for row in range(files * 5) if row not in missing]
        assert sorted((await lenient.read())["id"].to_pylist()) == left
        found = await lenient.lookup({"id": list(range(files * 5))}, with_keys=True)
        assert sorted(found["id"].to_pylist()) == left
        assert [skipped.url for skipped in lenient.skipped] == [gone]
        assert await lenient.count(col("id") >= 0) == len(left)


@pytest.mark.parametrize("columns", [["id"], ["tags"]], ids=["together", "one by one"])
async def test_a_scan_that_is_left_closes_all_files(
    tmp_path: Path, columns: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the file that ended the group before it, which is in no group yet."""
    for number in range(5 * small_files.FEWEST):
        write(tmp_path / f"{number:02}.parquet", part(number % FILES).append_column("tags", pa.array([[number]] * 5)))
    held: list[OpenedFile] = []
    opening, closing = OpenedFile.__init__, OpenedFile.close

    def opened(self: OpenedFile, *given: Any) -> None:
        opening(self, *given)
        held.append(self)

    async def close(self: OpenedFile) -> None:
        await closing(self)
        held.remove(self) if self in held else None

    monkeypatch.setattr(OpenedFile, "__init__", opened)
    monkeypatch.setattr(OpenedFile, "close", close)
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        async with dataset.scan(columns) as scan:
            await anext(scan)
            assert held
        assert not held
