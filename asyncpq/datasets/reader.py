"""What a session lends to catalogs: reads of logs, manifests and delete files through its stores and caches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import pyarrow as pa

from asyncpq.events import Operation
from asyncpq.expressions import Expression
from asyncpq.fetching.opening import load_version, open_source
from asyncpq.prepared import Preparation, Question
from asyncpq.resources import Resources
from asyncpq.scan import Scan
from asyncpq.storage.base import RequestContext

_WHOLE = 1 << 40  # bytes: longer than any log or manifest


_counting: ContextVar[Operation | None] = ContextVar("asyncpq_counting", default=None)


@contextmanager
def counted_in(operation: Operation) -> Iterator[None]:
    """What catalogs read inside, and in tasks that they start there, is counted in ``operation``, whoever made the
    reader: a catalog keeps the one that it was given when it was opened."""
    token = _counting.set(operation)
    try:
        yield
    finally:
        _counting.reset(token)


def counting() -> Operation | None:
    """What :func:`counted_in` says; None outside of it."""
    return _counting.get()


class SessionReader:
    """A :class:`asyncpq.datasets.model.Reader`. It counts in ``operation``, or as :func:`counted_in` says."""

    def __init__(self, resources: Resources, operation: Operation) -> None:
        self._resources = resources
        self._made_for = operation

    @property
    def _operation(self) -> Operation:
        return counting() or self._made_for

    async def read_bytes(self, url: str, start: int = 0, stop: int | None = None) -> bytes:
        """The bytes ``[start, stop)`` of an object, or all from ``start`` on."""
        store, _ = await self._resources.store(url)
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
        source = await open_source(self._resources, url)
        try:
            version = await load_version(source, self._context())
            question = Question(columns=columns, where=where)
            operation = self._operation.inner("read", source.handle.url)
            preparation = Preparation(source, question, version, lambda version: None, operation)
            async with Scan(preparation, batch_size=_WHOLE, limit=None) as scan:
                batches = [batch async for batch in scan]
                scan.metrics.fallbacks.clear()  # of a log or delete file, which is nobody's to mend
            return pa.Table.from_batches(batches, schema=scan.schema)
        finally:
            await source.handle.close()

    async def list_names(self, url: str) -> list[str]:
        """Names of the objects directly in a folder, ascending; empty where there is none."""
        store, _ = await self._resources.store(url)
        folder = url if url.endswith("/") else f"{url}/"
        found = await store.list_objects(folder, context=self._context(), wants=lambda below: False)
        return [name for item in found if "/" not in (name := item.url[len(folder) :])]

    def _context(self) -> RequestContext:
        return RequestContext(self._operation.metrics, round=self._operation.metrics.rounds + 1, purpose="table")
