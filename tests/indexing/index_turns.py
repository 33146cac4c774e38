"""Indexes under concurrent writers, one step at a time: whoever asks the place waits for its turn, and may die there.

Time is a number that the test sets. Files are names with versions; what a build reads of one takes no file.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from asyncpq.datasets.model import DataFile
from asyncpq.errors import TransportError
from asyncpq.events import Operation
from asyncpq.indexing import MemoryBackend
from asyncpq.indexing.build.file_rows import FileCollector, FileRows
from asyncpq.indexing.build.index_source import FileTask
from asyncpq.indexing.index_model import EVERY_ROW, TABLE_SCHEMAS, IndexTable, Segment, SegmentQuery, Stored, file_key
from asyncpq.indexing.manifest import FILES, Manifest
from asyncpq.storage.base import Validator

SCHEMA = pa.schema([("a", pa.int64())])
SET = IndexTable("set", ("a",))


class KilledError(BaseException):
    """The process is gone: nothing of it runs any more."""


class Turns:
    """Who waits for what, and when."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waiting: list[tuple[str, str, asyncio.Future[None]]] = []

    async def turn(self, who: str, what: str) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append((who, what, future))
        await future

    async def settle(self) -> None:
        """Until all wait, or have ended."""
        for _ in range(30):
            await asyncio.sleep(0)

    def go(self, number: int) -> None:
        _, _, future = self.waiting.pop(number)
        if not future.done():
            future.set_result(None)


@dataclass
class Kept:
    """What a place holds, for all who write it, and what it ever held.

    Attributes:
        versions: path and version of each id, by rows that were ever written.
    """

    backend: MemoryBackend = field(default_factory=MemoryBackend)
    since: dict[Stored, dict[str, float]] = field(
        default_factory=lambda: {"segments": {}, "manifests": {}, "builds": {}}
    )
    versions: dict[int, tuple[str, str | None]] = field(default_factory=dict)


class TurnPlace:
    """A place as one writer sees it.

    Args:
        loses: whether the answer to a commit that was made is lost.
    """

    description = "turns"

    def __init__(self, kept: Kept, turns: Turns, who: str, loses: Callable[[], bool] = lambda: False) -> None:
        self.killed = False
        self._kept = kept
        self._turns = turns
        self._who = who
        self._loses = loses

    def check(self, kinds: Sequence[str]) -> None: ...

    async def _turn(self, what: str) -> None:
        if self.killed:
            raise KilledError
        await self._turns.turn(self._who, what)
        if self.killed:
            raise KilledError

    async def write_segment(
        self,
        name: str,
        part: IndexTable,
        rows: AsyncIterator[pa.RecordBatch],
        *,
        folder: str | None = None,
        operation: Operation | None = None,
    ) -> tuple[int, Mapping[str, Any]]:
        await self._turn("write_segment")
        assert name not in self._kept.since["segments"], "a name is used twice"
        size, extra = await self._kept.backend.write_segment(name, part, rows, folder=folder)
        self._kept.since["segments"][name] = self._turns.now
        if part == FILES:
            table = self._kept.backend._segments[name][0].table
            for row in table.to_pylist():
                file, version = int.from_bytes(row["key"], "big"), (row["path"], row["etag"])
                assert self._kept.versions.setdefault(file, version) == version, "an id is used twice"
        return size, extra

    async def read_segment(
        self, segment: Segment, query: SegmentQuery = EVERY_ROW, *, operation: Operation | None = None
    ) -> pa.Table | None:
        await self._turn("read_segment")
        return await self._kept.backend.read_segment(segment, query)

    async def iterate_segment(
        self, segment: Segment, *, operation: Operation | None = None
    ) -> AsyncIterator[pa.RecordBatch]:
        await self._turn("iterate_segment")
        async for batch in self._kept.backend.iterate_segment(segment):
            yield batch

    async def latest(self, *, operation: Operation | None = None) -> tuple[int, bytes] | None:
        await self._turn("latest")
        return await self._kept.backend.latest()

    async def manifest(self, number: int, *, operation: Operation | None = None) -> bytes | None:
        await self._turn("manifest")
        return await self._kept.backend.manifest(number)

    async def commit(self, number: int, content: bytes, *, operation: Operation | None = None) -> bool:
        await self._turn("commit")
        created = await self._kept.backend.commit(number, content)
        if created:
            self._kept.since["manifests"][str(number)] = self._turns.now
        if created and self._loses():
            raise TransportError("the answer was lost")
        return created

    async def touch(self, build: str, *, operation: Operation | None = None) -> None:
        await self._turn("touch")
        self._kept.since["builds"][build] = self._turns.now

    async def ages(self, stored: Stored, *, operation: Operation | None = None) -> Mapping[str, float]:
        await self._turn(f"ages of {stored}")
        return {name: self._turns.now - since for name, since in self._kept.since[stored].items()}

    async def delete(self, stored: Stored, names: Sequence[str], *, operation: Operation | None = None) -> None:
        for name in names:
            await self._turn(f"delete {stored}")
            await self._kept.backend.delete(stored, [name])
            self._kept.since[stored].pop(name, None)

    async def drop(self, *, operation: Operation | None = None) -> None:
        raise NotImplementedError

    async def close(self) -> None: ...


def data_file(path: str, version: str) -> DataFile:
    """A file as a listing has it."""
    return DataFile(url=f"lake/{path}", validator=Validator(10, version))


def collector(turns: Turns, who: str) -> Callable[..., Any]:
    """In the place of :meth:`asyncpq.indexing.build.file_rows.FileCollector.collect`."""

    async def collect(files: FileCollector, work: FileTask, operation: Operation) -> FileRows:
        await turns.turn(who, "collect")
        validator = work.file.validator
        assert validator is not None
        row = {"key": file_key(work.id), "path": work.path, "size": 10, "etag": validator.etag, "num_rows": 1}
        tables = {
            FILES: pa.Table.from_pylist([row], schema=TABLE_SCHEMAS["files"]),
            SET: pa.table({"key": [b"\x01" + work.path.encode()], "file": [work.id]}, schema=TABLE_SCHEMAS["set"]),
        }
        return FileRows(work=work, tables=tables, num_rows=1, validator=validator)

    return collect


def check(kept: Kept, manifest: Manifest) -> dict[str, str | None]:
    """Version by path of the files that a snapshot lists; it holds together.

    Raises:
        AssertionError: it does not.
    """
    stored = kept.backend._segments
    assert not manifest.names - stored.keys(), "a segment is missing"
    live = manifest.live
    listed: dict[int, tuple[str, str | None]] = {}
    postings: dict[int, int] = {}
    for segment in manifest.segments:
        table = stored[segment.name][0].table
        assert table.num_rows == segment.num_rows
        for row in table.to_pylist():
            if segment.table == FILES:
                file = int.from_bytes(row["key"], "big")
                if file in live:
                    assert file not in listed, "a file is listed twice"
                    listed[file] = (row["path"], row["etag"])
            elif row["file"] in live:
                postings[row["file"]] = postings.get(row["file"], 0) + 1
    assert listed.keys() == set(live.rows()), "a file in use is not listed"
    assert postings == dict.fromkeys(listed, 1), "rows of a file are missing, or there twice"
    assert {*manifest.covered(FILES).rows()} >= listed.keys() <= {*manifest.covered(SET).rows()}
    paths = dict(listed.values())
    assert len(paths) == len(listed), "a path is listed twice"
    assert manifest.num_files == manifest.num_rows == len(paths)
    return paths
