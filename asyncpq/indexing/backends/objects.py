"""Indexes in a folder of an object store or disk: all but what a segment looks like.

The copy of a manifest that was the newest not long ago, with its number before it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from asyncpq.errors import (
    BucketNotFoundError,
    ConcurrentCommitUnsupported,
    CorruptIndexError,
    InvalidOptionError,
    ObjectNotFoundError,
    StaleSnapshotError,
)
from asyncpq.events import Operation
from asyncpq.indexing.backends.sorted_rows import SortedRows
from asyncpq.indexing.model import Segment
from asyncpq.metrics import Purpose, ReadMetrics
from asyncpq.objects.runtime import Runtime
from asyncpq.storage.base import ListedObject, RequestContext, WritableStore, writable
from asyncpq.storage.urls import safe_url

_DIGITS = 20  # of a number in an object's name, so that names are in the order of numbers


def encode_latest(number: int, content: bytes) -> bytes:
    """The copy."""
    return b"%0*d\n%b" % (_DIGITS, number, content)


def decode_latest(data: bytes, url: str) -> tuple[int, bytes]:
    """Number and content.

    Args:
        url: where it is, for messages.

    Raises:
        CorruptIndexError: it is no such copy.
    """
    number, found, content = data.partition(b"\n")
    if not (found and number.isdigit() and len(number) == _DIGITS):
        raise CorruptIndexError("no copy of a manifest", url=url, hint="Drop the index and build it again.")
    return int(number), content


_WHOLE = 1 << 40  # bytes: longer than any of the objects that are fetched whole
_OF_ROWS = (
    *("row_groups_total", "row_groups_read", "row_groups_by_bloom", "row_groups_proven"),
    *("pages_total", "pages_read", "rows_scanned", "rows_returned"),
)


class Owner(Protocol):
    """A session."""

    @property
    def _runtime(self) -> Runtime: ...


class ObjectBackend:
    """What places on object stores have in common: names, manifests, signs of life, and what is removed.

    ``manifests/<number>.json``, of which none is written twice; ``latest``, a copy of one that was the newest not long
    ago; ``segments/<name>``; ``builds/<id>``.

    Args:
        session: reads and writes it; or what such one owns.
        url: of its folder.
        single_writer: nobody else writes to it, so a store will do that cannot refuse to create what is there.
    """

    _suffix: str  # of a segment's name

    def __init__(self, session: Owner | Runtime, url: str, *, single_writer: bool = False) -> None:
        if not isinstance(single_writer, bool):
            raise InvalidOptionError(f"single_writer={single_writer!r}: must be True or False")
        self._runtime = session if isinstance(session, Runtime) else session._runtime
        self._folder = url if url.endswith("/") else f"{url}/"
        self._single_writer = single_writer
        self._creates: bool | None = None  # whether the store refuses to create what is there

    @property
    def description(self) -> str:
        """Url of the folder, without secrets."""
        return safe_url(self._folder)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.description!r})"

    def _url(self, *names: str) -> str:
        return self._folder + "/".join(names)

    def _segment_url(self, name: str) -> str:
        return self._url("segments", name + self._suffix)

    def _manifest_url(self, number: int) -> str:
        return self._url("manifests", f"{number:0{_DIGITS}d}.json")

    # -- segments ---------------------------------------------------------------------------------

    async def delete_segments(self, names: Sequence[str], *, operation: Operation | None = None) -> None:
        """See :class:`asyncpq.indexing.model.IndexBackend`."""
        await self._delete(operation, [self._segment_url(name) for name in names])

    async def list_segments(self, *, operation: Operation | None = None) -> Mapping[str, float]:
        """See :class:`asyncpq.indexing.model.IndexBackend`."""
        return await self._ages(operation, "segments", self._suffix)

    async def _kept(
        self,
        operation: Operation | None,
        segment: Segment,
        digest: str,
        load: Callable[[], Coroutine[Any, Any, SortedRows]],
    ) -> SortedRows:
        """A whole segment out of the session's memory, or as ``load`` brings it.

        Raises:
            CorruptIndexError: it does not have as many rows as were written.
        """
        rows = await self._held(segment, digest)
        if rows is None:
            key = await self._key(segment, digest)
            rows = await self._runtime.flights.run(key, load)
            self._runtime.memory.put(key, rows, rows.weight)
        else:
            self._metrics(operation).cache_hits += 1
        if rows.table.num_rows != segment.num_rows:
            raise self._corrupt(segment, f"it has {rows.table.num_rows} rows, where {segment.num_rows} were written")
        return rows

    async def _held(self, segment: Segment, digest: str) -> SortedRows | None:
        """The same, if the session's memory has it."""
        rows: SortedRows | None = self._runtime.memory.get(await self._key(segment, digest))
        return rows

    async def _key(self, segment: Segment, digest: str) -> tuple[str, str, str, str]:
        """Of a whole segment in the session's memory."""
        store, namespace = await self._runtime.store(self._folder)
        if self._runtime.options.cache_namespace is None:  # else the caller says who shares
            namespace = f"{namespace}:{await store.credential_identity(self._folder)}"
        return "segment", namespace, self._segment_url(segment.name), digest

    def _gone(self, segment: Segment) -> StaleSnapshotError:
        return StaleSnapshotError(
            "a segment of the index is not there any more",
            url=safe_url(self._segment_url(segment.name)),
            hint="Open the index again: an older snapshot than the kept ones may have been vacuumed.",
        )

    def _corrupt(self, segment: Segment, why: str) -> CorruptIndexError:
        return CorruptIndexError(
            f"a segment of the index cannot be used: {why}",
            url=safe_url(self._segment_url(segment.name)),
            hint="Drop the index and build it again.",
        )

    # -- manifests --------------------------------------------------------------------------------

    async def latest(self, *, operation: Operation | None = None) -> tuple[int, bytes] | None:
        """See :class:`asyncpq.indexing.model.IndexBackend`."""
        data = await self._fetch(operation, self._url("latest"))
        if data is None:
            return None
        return decode_latest(data, safe_url(self._url("latest")))

    async def manifest(self, number: int, *, operation: Operation | None = None) -> bytes | None:
        """See :class:`asyncpq.indexing.model.IndexBackend`."""
        return await self._fetch(operation, self._manifest_url(number))

    async def commit(self, number: int, content: bytes, *, operation: Operation | None = None) -> bool:
        """See :class:`asyncpq.indexing.model.IndexBackend`."""
        store, url, context = await self._writable(), self._manifest_url(number), self._context(operation, "write")
        if not await self._can_create(operation, store):
            if not self._single_writer:
                raise ConcurrentCommitUnsupported(
                    "the store does not refuse to create an object that is there, so two commits could both succeed",
                    url=self.description,
                    hint="Set single_writer=True if nobody else writes to this index.",
                )
            if await self.manifest(number, operation=operation) is not None:
                return False
            await store.put_object(url, content, context=context)
        elif not await store.create_object(url, content, context=context):
            return False
        newest = await self._newest(operation)
        if newest is None or newest < number:  # it never goes back, but for the time between these two
            data = encode_latest(number, content)
            await store.put_object(self._url("latest"), data, context=self._context(operation, "write"))
        return True

    async def _newest(self, operation: Operation | None) -> int | None:
        """The number in ``latest``, where that can be read."""
        try:
            latest = await self.latest(operation=operation)
        except CorruptIndexError:
            return None
        return None if latest is None else latest[0]

    async def _can_create(self, operation: Operation | None, store: WritableStore) -> bool:
        if self._creates is None:
            self._creates = await store.probe_create(self._folder, context=self._context(operation, "write"))
        return self._creates

    async def delete_manifests(self, numbers: Sequence[int], *, operation: Operation | None = None) -> None:
        """See :class:`asyncpq.indexing.model.IndexBackend`."""
        await self._delete(operation, [self._manifest_url(number) for number in numbers])

    async def list_manifests(self, *, operation: Operation | None = None) -> Mapping[int, float]:
        """See :class:`asyncpq.indexing.model.IndexBackend`."""
        ages = await self._ages(operation, "manifests", ".json")
        return {int(name): age for name, age in ages.items() if len(name) == _DIGITS and name.isdigit()}

    # -- builds -----------------------------------------------------------------------------------

    async def touch(self, build: str, *, operation: Operation | None = None) -> None:
        """See :class:`asyncpq.indexing.model.IndexBackend`."""
        store = await self._writable()
        await store.put_object(self._url("builds", build), build.encode(), context=self._context(operation, "write"))

    async def builds(self, *, operation: Operation | None = None) -> Mapping[str, float]:
        """See :class:`asyncpq.indexing.model.IndexBackend`."""
        return await self._ages(operation, "builds", "")

    async def end_build(self, build: str, *, operation: Operation | None = None) -> None:
        """See :class:`asyncpq.indexing.model.IndexBackend`."""
        await self._delete(operation, [self._url("builds", build)])

    # -- all of it --------------------------------------------------------------------------------

    async def drop(self, *, operation: Operation | None = None) -> None:
        """See :class:`asyncpq.indexing.model.IndexBackend`."""
        first = [self._url("latest")]
        found = {folder: await self._list(operation, folder) for folder in ("manifests", "builds", "segments")}
        await self._delete(operation, first)  # and manifests before segments: what a reader still finds is whole
        for listed in found.values():
            await self._delete(operation, [item.url for item in listed])

    async def close(self) -> None:
        """Nothing is held open: connections are the session's."""

    # -- requests ---------------------------------------------------------------------------------

    def _context(self, operation: Operation | None, purpose: Purpose) -> RequestContext:
        metrics = self._metrics(operation)
        return RequestContext(metrics, round=metrics.rounds + 1, purpose=purpose)

    def _metrics(self, operation: Operation | None) -> ReadMetrics:
        if operation is not None:
            return operation.metrics
        metrics = ReadMetrics()
        metrics.total = self._runtime.metrics  # of nobody's call
        return metrics

    @contextmanager
    def _reading(self, operation: Operation | None, url: str) -> Iterator[Operation]:
        """Of several reads side by side one, whose requests count in the operation of whoever calls."""
        whole = operation or self._runtime.operation("read", safe_url(url))
        part = whole.part(safe_url(url), whole.metrics.rounds)
        try:
            yield part
        finally:
            metrics = part.metrics
            for name in _OF_ROWS:  # of a segment, which nobody asked for
                setattr(metrics, name, 0)
            metrics.fallbacks.clear()
            if operation is not None:
                operation.metrics.add_part(metrics)
            else:
                self._runtime.metrics.add(metrics)

    async def check_writable(self) -> None:
        """
        Raises:
            UnsupportedStoreError: nothing can be written here.
        """
        await self._writable()

    async def _writable(self) -> WritableStore:
        store, _ = await self._runtime.store(self._folder)
        return writable(store, self.description)

    async def _fetch(self, operation: Operation | None, url: str, *, at_most: int = _WHOLE) -> bytes | None:
        """All of an object, or its last bytes where it has more than ``at_most``; None where there is none."""
        store, _ = await self._runtime.store(url)
        async with self._runtime.deadline(safe_url(url)):
            try:
                handle = await store.open_object(url)
                try:
                    tail = await handle.fetch_tail(at_most, context=self._context(operation, "table"))
                finally:
                    await handle.close()
            except BucketNotFoundError:
                raise
            except ObjectNotFoundError:
                return None
        return tail.data

    async def _delete(self, operation: Operation | None, urls: Sequence[str]) -> None:
        if urls:
            store = await self._writable()
            await store.delete_objects(urls, context=self._context(operation, "write"))

    async def _list(self, operation: Operation | None, folder: str) -> list[ListedObject]:
        store, _ = await self._runtime.store(self._folder)
        return await store.list_objects(self._url(folder, ""), context=self._context(operation, "list"))

    async def _ages(self, operation: Operation | None, folder: str, suffix: str) -> dict[str, float]:
        """Names of the objects in a folder, without ``suffix``, and seconds since each was written."""
        store = await self._writable()
        listed, now = await asyncio.gather(
            self._list(operation, folder), store.clock(self._folder, context=self._context(operation, "list"))
        )
        start = len(self._url(folder, ""))
        ages: dict[str, float] = {}
        for item in listed:
            name = item.url[start:]
            if name.endswith(suffix) and "/" not in name:
                # without a time it is new for ever: nobody removes it by its age
                ages[name.removesuffix(suffix)] = 0.0 if item.modified is None else max(0.0, now - item.modified)
        return ages
