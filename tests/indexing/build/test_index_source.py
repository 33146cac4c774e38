"""Only new and replaced files are read."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.datasets.model import DataFile, DataFiles
from asyncpq.events import Event, FileEnded
from asyncpq.indexing import MemoryBackend
from asyncpq.indexing.build.index_source import IndexSource, _compared
from asyncpq.indexing.commits import IndexedFile, _indexed_file, is_same_version
from asyncpq.indexing.index import Staleness
from asyncpq.indexing.manifest import FILES, Manifest
from asyncpq.records import LazyRecords
from asyncpq.storage.base import ObjectRow
from tests.indexing.build.index_checks import check_index
from tests.lakes import KINDS, write


@pytest.mark.heavy
async def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    events: list[Event] = []
    lake = tmp_path / "lake"
    for number in range(6):
        write(lake / f"part={number % 2}" / f"{number}.parquet", number)
    async with asyncpq.Session(on_event=events.append) as session:

        def read() -> list[str]:
            ended = [event for event in events if isinstance(event, FileEnded) and event.operation != "verify"]
            assert [event.files_done for event in ended] == sorted(event.files_done for event in ended)
            assert all(event.files_done <= event.files_total for event in ended)
            events.clear()
            return sorted(Path(event.url).stem for event in ended)

        index = await session.build_index(str(lake), KINDS, at=MemoryBackend())
        assert [name for name in read() if name in "012345"][-6:] == ["0", "1", "2", "3", "4", "5"]
        snapshot = index.snapshot
        done = await index.refresh()
        assert (done.added, done.removed, read(), index.snapshot) == (0, 0, [], snapshot)
        write(lake / "part=1" / "1.parquet", 77)
        write(lake / "part=0" / "new.parquet", 78)
        (lake / "part=0" / "4.parquet").unlink()
        done = await index.refresh()
        assert (done.added, done.removed, read()) == (2, 2, ["1", "new"])
        await check_index(index, lake)
        events.clear()
        # by name: the others are not even listed
        write(lake / "part=1" / "3.parquet", 79)
        write(lake / "part=1" / "5.parquet", 80)
        (lake / "part=0" / "2.parquet").unlink()
        urls = [str(lake / name) for name in ("part=1/3.parquet", "part=0/2.parquet", "part=0/0.parquet")]
        done = await index.refresh(urls)
        assert (done.added, done.removed, read()) == (1, 2, ["2", "3"])
        report = await index.show(staleness=True)
        assert report.staleness == Staleness(new=0, changed=1, gone=0)
        await index.refresh()
        await check_index(index, lake)


def test_of_unchanged_files_no_records_are_made() -> None:
    """Of a lake of very many files, nearly all are unchanged since the last refresh."""
    number, changed, root = 5000, {7: '"other"', 2000: 'W/"weak"', 4999: None}, "s3://bucket/lake/"
    made: list[int] = []

    class Indexed(LazyRecords[IndexedFile]):
        def __getitem__(self, index: Any) -> Any:
            made.append(index)
            return super().__getitem__(index)

    class Listed(DataFiles):
        def __getitem__(self, index: Any) -> Any:
            made.append(index)
            return super().__getitem__(index)

        def __iter__(self) -> Iterator[DataFile]:
            raise AssertionError("all files are looked at")

    etags = [changed.get(file, f'"{file}"') for file in range(number)]
    rows = [(file, f"{file}.parquet", 9, f'"{file}"', None, None, 1) for file in range(number)]
    objects: list[ObjectRow] = [
        (f"{root}{file}.parquet", 9, 1.0, etag is not None, etag, None, None) for file, etag in enumerate(etags)
    ]
    schema, now = pa.schema([("id", pa.int64())]), datetime.now(UTC)
    source = IndexSource(
        url=root, root=root, dataset={}, schema=schema, fields=None, partitions=(), files=Listed(objects, {}), as_of=now
    )
    base = Manifest(
        index="i", snapshot=1, commit="c", created=now, root=root, schema=schema, tables=(FILES,), next_file=number
    )
    plan = _compared(base, source, Indexed(rows, _indexed_file), base.live)
    assert plan.replaced.keys() == {f"{file}.parquet" for file in changed}
    assert set(made) == changed.keys()
    assert [task.path for task in plan.works] == list(plan.replaced)


@pytest.mark.parametrize("etag", ['"e"', 'W/"e"', None])
@pytest.mark.parametrize("version", ["v", None])
def test_rows_are_the_same_version_as_records_are(etag: str | None, version: str | None) -> None:
    row = (5, "path", 9, etag, "then", version, 1)
    for size, other, time, of_object in product((9, 8), ('"e"', 'W/"e"', None), ("then", None), ("v", None)):
        listed: ObjectRow = ("s3://bucket/path", size, None, True, other, time, of_object)
        (file,) = DataFiles([listed], {})
        if is_same_version(row, listed):
            assert _indexed_file(row).is_version_of(file)
        elif _indexed_file(row).is_version_of(file):
            assert file.validator is not None
            assert not file.validator.is_strong
