"""The reader for catalogs: logs, manifests and delete files, through the session's stores and caches."""

from __future__ import annotations

from array import array
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Mapping, Sequence
from itertools import accumulate
from typing import Any, TypeVar

import pyarrow as pa

from asyncpq.datasets.column_matching import view_of
from asyncpq.datasets.model import TableField
from asyncpq.events import Operation
from asyncpq.expressions import Expression
from asyncpq.objects.opening import load_version, open_source
from asyncpq.objects.runtime import Runtime
from asyncpq.options import immutable
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.planner import ScanPlan, ScanPlanner
from asyncpq.scan.request import ScanRequest
from asyncpq.scan.stream import Scan
from asyncpq.storage.base import RequestContext

T = TypeVar("T")

_WHOLE = 1 << 40  # bytes: longer than any log or manifest
_BATCH_ROWS = 1 << 20


class CatalogReader:
    """A :class:`asyncpq.datasets.model.Reader`, whose requests are counted in ``operation``."""

    def __init__(self, runtime: Runtime, operation: Operation) -> None:
        self._runtime = runtime
        self._operation = operation

    async def read_bytes(self, url: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes ``[start, stop)`` of an object, or all from ``start`` on."""
        store, _ = await self._runtime.store(url)
        handle = await store.open_object(url)
        try:
            context = self._context()
            if stop is not None:
                return (await handle.fetch_range(start, stop, context=context)).data
            tail = await handle.fetch_tail(_WHOLE, context=context)
            return tail.data[start:]
        finally:
            await handle.close()

    async def read_table(
        self, url: str, columns: Sequence[str] | None = None, where: Expression | None = None
    ) -> pa.Table:
        """Rows of a Parquet object."""
        source = await open_source(self._runtime, url)
        try:
            version = await load_version(source, self._context())
            request = ScanRequest(columns=columns, where=where)
            operation = self._operation.inner("read", source.handle.url)
            planner = ScanPlanner(source, request, version, lambda version: None, operation)
            async with Scan(planner, batch_size=_WHOLE, limit=None) as scan:
                batches = [batch async for batch in scan]
                scan.metrics.fallbacks.clear()  # a log or delete file is not the user's to mend
            return pa.Table.from_batches(batches, schema=scan.schema)
        finally:
            await source.handle.close()

    async def read_rows(
        self,
        url: str,
        fields: tuple[TableField, ...],
        *,
        constants: Mapping[str, Any] | None = None,
        near: Expression | None = None,
    ) -> AsyncIterator[tuple[pa.Array, pa.Table]]:
        """Rows of an immutable Parquet object as columns of a table, batch by batch, with their row numbers."""
        schema = pa.schema([pa.field(field.name, field.type) for field in fields])
        source = await open_source(self._runtime, url, policy=immutable())
        try:
            version = await load_version(source, self._context())
            view = view_of(version, schema, fields, constants or {}, self._runtime.options.read.extension_types)

            def planner(request: ScanRequest) -> ScanPlanner:
                operation = self._operation.inner("scan", source.handle.url)
                return ScanPlanner(source, request, version, lambda version: None, operation)

            rows = RowRanges.all(version.metadata.num_rows)
            if near is not None:
                scan_plan = await planner(ScanRequest(columns=(), where=near, view=view)).prepare(scan=True)
                rows = _planned_rows(scan_plan)
            access = AccessPlan.row_ranges(rows)
            done = 0
            request = ScanRequest(columns=schema.names, access=access, view=view)
            async with Scan(planner(request), batch_size=_BATCH_ROWS, limit=None) as scan:
                async for batch in scan:
                    yield _numbers(rows.slice(done, done + batch.num_rows)), pa.table(batch)
                    done += batch.num_rows
        finally:
            await source.handle.close()

    async def once(self, key: Hashable, make: Callable[[], Coroutine[Any, Any, tuple[T, int]]]) -> T:
        """What ``make`` gives, made once and kept in memory."""
        memory = self._runtime.memory
        kept: T | None = memory.get(key)
        if kept is not None:
            return kept

        async def run() -> T:
            made, num_bytes = await make()
            memory.put(key, made, num_bytes)
            return made

        return await self._runtime.flights.run(key, run)

    @property
    def trust_statistics(self) -> bool:
        """Whether a table's bounds may be used."""
        return self._runtime.options.read.trust_statistics

    async def list_names(self, url: str) -> list[str]:
        """Names of the objects directly in a folder, ascending; empty where there is none."""
        store, _ = await self._runtime.store(url)
        folder = url if url.endswith("/") else f"{url}/"
        found = await store.list_objects(folder, context=self._context(), wants=lambda below: False)
        return [name for item in found if "/" not in (name := item.url[len(folder) :])]

    def _context(self) -> RequestContext:
        return RequestContext(self._operation.metrics, round=self._operation.metrics.rounds + 1, purpose="table")


def _planned_rows(scan_plan: ScanPlan) -> RowRanges:
    """Row numbers, in the file, of the rows that a plan reads."""
    groups = scan_plan.version.metadata.row_groups
    first_rows = [0, *accumulate(group.num_rows for group in groups)]
    return RowRanges.from_sorted(
        span for group in scan_plan.fetch_plan.row_groups for span in group.rows.shift(first_rows[group.ordinal])
    )


def _numbers(rows: RowRanges) -> pa.Array:
    numbers = array("q")
    for start, stop in rows:
        numbers.extend(range(start, stop))
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])
