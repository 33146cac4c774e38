"""The contract of an index backend: a correct backend passes each check, and each defect fails one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pytest

from asyncpq.errors import InvalidOptionError
from asyncpq.events import Operation
from asyncpq.indexing import MemoryBackend
from asyncpq.indexing.index_model import EVERY_ROW, IndexTable, KeyRange, Segment, SegmentQuery, Stored
from asyncpq.testing import BACKEND_CHECKS
from asyncpq.testing.backend_contract import (
    BackendMaker,
    check_broken_off,
    check_concurrent_commits,
    check_drop,
    check_few_rows,
    check_incomplete,
    check_kinds,
    check_listing,
    check_manifests,
    check_missing,
    check_reading_while_writing,
    check_refused_kinds,
    check_unsorted,
)

Check = Callable[[BackendMaker], Awaitable[None]]


class FaultyBackend(MemoryBackend):
    """A memory backend; the defect says what it does wrong."""

    def __init__(self, defect: str) -> None:
        super().__init__()
        self.defect = defect

    def check(self, kinds: Sequence[str]) -> None:
        if self.defect == "gives no hint" and "set" in kinds:
            raise InvalidOptionError("set is not taken")

    async def write_segment(
        self,
        name: str,
        index_table: IndexTable,
        rows: AsyncIterator[pa.RecordBatch],
        *,
        folder: str | None = None,
        operation: Operation | None = None,
    ) -> tuple[int, Mapping[str, Any]]:
        async def sorted_rows() -> AsyncIterator[pa.RecordBatch]:
            batches = [batch async for batch in rows]
            for batch in pa.Table.from_batches(batches).sort_by("key").to_batches():
                yield batch

        async def until_error() -> AsyncIterator[pa.RecordBatch]:
            try:
                async for batch in rows:
                    yield batch
            except ValueError:
                return

        changed = {"sorts rows": sorted_rows, "swallows errors": until_error}.get(self.defect)
        return await super().write_segment(name, index_table, rows if changed is None else changed())

    async def read_segment(
        self, segment: Segment, query: SegmentQuery = EVERY_ROW, *, operation: Operation | None = None
    ) -> pa.Table | None:
        ranges = query.ranges
        if self.defect == "ignores the limit":
            query = query._replace(limit=None)
        elif self.defect == "ignores ranges":
            query = query._replace(ranges=None)
        elif self.defect == "skips short keys" and ranges is not None:
            query = query._replace(ranges=[wanted for wanted in ranges if len(wanted.low) > 1])
        elif self.defect == "drops unknown keys" and ranges is None:
            query = query._replace(ranges=[KeyRange(b"\x01", None)])
        elif self.defect == "finds deleted segments" and segment.name not in await self.ages("segments"):
            return segment.table.schema.empty_table()
        elif self.defect == "does not count rows":
            table = self._segments[segment.name][0].table  # what a check by number would read
            return table if ranges is None else await super().read_segment(segment, query._replace(at_least=None))
        return await super().read_segment(segment, query)

    async def commit(self, number: int, content: bytes, *, operation: Operation | None = None) -> bool:
        if self.defect == "replaces manifests":
            await self.delete("manifests", [str(number)])
        return await super().commit(number, content) or self.defect == "always commits"

    async def latest(self, *, operation: Operation | None = None) -> tuple[int, bytes] | None:
        newest = await super().latest()
        if newest is not None and self.defect == "gives the oldest":
            return min((int(number), b"") for number in await self.ages("manifests"))
        return newest

    async def delete(self, stored: Stored, names: Sequence[str], *, operation: Operation | None = None) -> None:
        if self.defect != "keeps builds" or stored != "builds":
            await super().delete(stored, names)

    async def drop(self, *, operation: Operation | None = None) -> None:
        await super().drop()
        if self.defect == "keeps a manifest":
            await super().commit(1, b"")


@pytest.mark.parametrize("check", [*BACKEND_CHECKS], ids=lambda check: check.__name__)
async def test_a_correct_backend_passes(check: Check) -> None:
    backend = FaultyBackend("")
    await check(lambda: backend)


@pytest.mark.parametrize(
    ("defect", "check"),
    [
        ("gives no hint", check_refused_kinds),
        ("ignores ranges", check_kinds),
        ("ignores the limit", check_kinds),
        ("skips short keys", check_few_rows),
        ("drops unknown keys", check_few_rows),
        ("sorts rows", check_unsorted),
        ("swallows errors", check_broken_off),
        ("finds deleted segments", check_missing),
        ("finds deleted segments", check_drop),
        ("does not count rows", check_incomplete),
        ("ignores ranges", check_reading_while_writing),
        ("keeps builds", check_listing),
        ("replaces manifests", check_manifests),
        ("gives the oldest", check_manifests),
        ("always commits", check_concurrent_commits),
        ("keeps a manifest", check_drop),
    ],
)
async def test_a_defect_fails_its_check(defect: str, check: Check) -> None:
    backend = FaultyBackend(defect)
    with pytest.raises(AssertionError):
        await check(lambda: backend)
