"""The base class of backends that store an index as objects or files in a folder. Subclasses add the format of
segments."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol

from asyncpq.errors import (
    BucketNotFoundError,
    ConcurrentCommitUnsupported,
    CorruptIndexError,
    InvalidOptionError,
    ObjectNotFoundError,
)
from asyncpq.events import Operation
from asyncpq.indexing.backends.sorted_rows import SortedRows, check_num_rows
from asyncpq.indexing.index_model import MAX_SNAPSHOT, Segment
from asyncpq.metrics import Purpose, ReadMetrics
from asyncpq.objects.runtime import Runtime
from asyncpq.storage.base import ListedObject, RequestContext, Store, WritableStore, writable
from asyncpq.storage.urls import safe_url

_DIGITS = 20  # of a number in an object's name: names sort as numbers do
_NUMBER = re.compile(rf"[0-9]{{{_DIGITS}}}")


def encode_latest(number: int, content: bytes) -> bytes:
    """Return the content of the object ``latest``: the manifest's number, and a copy of the manifest."""
    return b"%0*d\n%b" % (_DIGITS, number, content)


def decode_latest(data: bytes, url: str) -> tuple[int, bytes]:
    """Return the number and the content of the manifest in ``data``, the content of ``latest``. Raises
    CorruptIndexError if ``data`` does not begin with a number."""
    number = data[:_DIGITS]
    is_number = len(number) == _DIGITS and number.isdigit() and data[_DIGITS : _DIGITS + 1] == b"\n"
    if not is_number or int(number) > MAX_SNAPSHOT:
        raise CorruptIndexError(
            "the index's object `latest` is damaged: it does not begin with the number of a snapshot", url=url
        )
    return int(number), data[_DIGITS + 1 :]


#: A manifest's root is small, but names every index table: a quarter of a million in so many bytes.
_MANIFEST_BYTES = 16 << 20
_OF_ROWS = (
    *("row_groups_total", "row_groups_read", "row_groups_by_bloom", "row_groups_proven"),
    *("pages_total", "pages_read", "rows_scanned", "rows_returned"),
)


class HasRuntime(Protocol):
    """A session, or any other object with the attribute ``runtime``."""

    @property
    def runtime(self) -> Runtime: ...


class ObjectBackend:
    """Base of the backends on object stores: it names, reads, writes and deletes the objects of an index.

    Objects: ``manifests/<number>.json``, each written once; ``latest``, a copy of a recent manifest;
    ``segments/<name>``; ``builds/<id>``, written again with each heartbeat of a running build.

    ``session`` is a session or its runtime, which reads and writes the objects. ``single_writer`` promises that only
    one process writes to the index; then the store need not be able to refuse overwriting an object.
    """

    _suffix: str  # of a segment's name

    def __init__(self, session: HasRuntime | Runtime, url: str, *, single_writer: bool = False) -> None:
        if not isinstance(single_writer, bool):
            raise InvalidOptionError(
                f"single_writer={single_writer!r}: must be True or False",
                hint="Pass True if only one process writes to this index, else False.",
            )
        self._runtime = session if isinstance(session, Runtime) else session.runtime
        self._folder = url if url.endswith("/") else f"{url}/"
        self._segments = f"{self._folder}segments/"
        self._single_writer = single_writer
        self._store: tuple[Store, str] | None = None
        self._creates: bool | None = None  # whether the store refuses to create an existing object

    @cached_property
    def description(self) -> str:
        """Url of the folder, without secrets."""
        return safe_url(self._folder)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.description!r})"

    def _url(self, *names: str) -> str:
        return self._folder + "/".join(names)

    def _segment_url(self, name: str) -> str:
        return f"{self._segments}{name}{self._suffix}"

    def _shown(self, segment: Segment) -> str:
        """Return the url of a segment without secrets, for messages."""
        return safe_url(self._segment_url(segment.name))

    def _manifest_url(self, number: int) -> str:
        return self._url("manifests", f"{number:0{_DIGITS}d}.json")

    async def delete_segments(self, names: Sequence[str], *, operation: Operation | None = None) -> None:
        await self._delete(operation, [self._segment_url(name) for name in names])

    async def list_segments(self, *, operation: Operation | None = None) -> Mapping[str, float]:
        return await self._ages(operation, "segments", self._suffix)

    async def _kept(
        self,
        operation: Operation | None,
        segment: Segment,
        digest: str,
        load: Callable[[], Coroutine[Any, Any, SortedRows]],
    ) -> SortedRows:
        """Return the rows of a whole segment from the session's memory. If they are not there, await ``load()`` and
        keep its result. ``digest`` identifies the segment's content. Raises CorruptIndexError if the number of rows
        is not the number that was written."""
        key = await self._key(segment, digest)
        rows: SortedRows | None = self._runtime.memory.get(key)
        if rows is None:
            rows = await self._runtime.flights.run(key, load)
            self._runtime.memory.put(key, rows, rows.weight)
        else:
            metrics = self._metrics(operation) if operation is None else operation.metrics
            metrics.cache_hits += 1
        if rows.table.num_rows != segment.num_rows:  # messages are not made for nothing
            check_num_rows(segment, rows.table.num_rows, self._shown(segment))
        return rows

    async def _held(self, segment: Segment, digest: str) -> SortedRows | None:
        """Return the rows of a whole segment, whose content has ``digest``, from the session's memory; None if not
        there."""
        rows: SortedRows | None = self._runtime.memory.get(await self._key(segment, digest))
        return rows

    async def _key(self, segment: Segment, digest: str) -> tuple[str, str, str, str]:
        """Return the cache key of a whole segment, whose content has ``digest``, for the session's memory."""
        if self._store is None:
            self._store = await self._runtime.store(self._folder)
        store, namespace = self._store
        if self._runtime.options.cache_namespace is None:  # else the caller decides which sessions share the cache
            namespace = f"{namespace}:{await store.credential_identity(self._folder)}"
        return "segment", namespace, self._segment_url(segment.name), digest

    async def latest(self, *, operation: Operation | None = None) -> tuple[int, bytes] | None:
        data = await self._fetch_manifest(operation, self._url("latest"))
        if data is None:
            return None
        return decode_latest(data, safe_url(self._url("latest")))

    async def manifest(self, number: int, *, operation: Operation | None = None) -> bytes | None:
        return await self._fetch_manifest(operation, self._manifest_url(number))

    async def _fetch_manifest(self, operation: Operation | None, url: str) -> bytes | None:
        data = await self._fetch(operation, url, at_most=_MANIFEST_BYTES + 1)
        if data is not None and len(data) > _MANIFEST_BYTES:
            raise CorruptIndexError(
                f"the object has more than {_MANIFEST_BYTES} bytes, so it is not a manifest of an index",
                url=safe_url(url),
            )
        return data

    async def commit(self, number: int, content: bytes, *, operation: Operation | None = None) -> bool:
        store, url, context = await self._writable(), self._manifest_url(number), self._context(operation, "write")
        if self._creates is None:
            self._creates = await store.probe_create(self._folder, context=self._context(operation, "write"))
        if not self._creates:
            if not self._single_writer:
                raise ConcurrentCommitUnsupported(
                    "the store overwrites objects that exist, so two concurrent commits could both succeed",
                    url=self.description,
                    hint="Set single_writer=True if only one process writes to this index.",
                )
            if await self.manifest(number, operation=operation) is not None:
                return False
            await store.put_object(url, content, context=context)
        elif not await store.create_object(url, content, context=context):
            return False
        try:
            newest = await self.latest(operation=operation)
        except CorruptIndexError:
            newest = None
        if newest is None or newest[0] < number:  # `latest` never goes back, but for a race between these requests
            data = encode_latest(number, content)
            await store.put_object(self._url("latest"), data, context=self._context(operation, "write"))
        return True

    async def delete_manifests(self, numbers: Sequence[int], *, operation: Operation | None = None) -> None:
        await self._delete(operation, [self._manifest_url(number) for number in numbers])

    async def list_manifests(self, *, operation: Operation | None = None) -> Mapping[int, float]:
        ages = await self._ages(operation, "manifests", ".json")
        numbers = {int(name): age for name, age in ages.items() if _NUMBER.fullmatch(name)}
        return {number: age for number, age in numbers.items() if number <= MAX_SNAPSHOT}

    async def touch(self, build: str, *, operation: Operation | None = None) -> None:
        store = await self._writable()
        await store.put_object(self._url("builds", build), build.encode(), context=self._context(operation, "write"))

    async def builds(self, *, operation: Operation | None = None) -> Mapping[str, float]:
        return await self._ages(operation, "builds", "")

    async def end_build(self, build: str, *, operation: Operation | None = None) -> None:
        await self._delete(operation, [self._url("builds", build)])

    async def drop(self, *, operation: Operation | None = None) -> None:
        listings = [await self._list(operation, folder) for folder in ("manifests", "builds", "segments")]
        # manifests before segments: an index that a reader finds is whole
        await self._delete(operation, [self._url("latest")])
        for listed in listings:
            await self._delete(operation, [item.url for item in listed])

    async def close(self) -> None:
        """Do nothing: the session owns the connections."""

    def _context(self, operation: Operation | None, purpose: Purpose) -> RequestContext:
        metrics = self._metrics(operation)
        return RequestContext(metrics, round=metrics.rounds + 1, purpose=purpose)

    def _metrics(self, operation: Operation | None) -> ReadMetrics:
        return ReadMetrics(totals=(self._runtime.metrics,)) if operation is None else operation.metrics

    @contextmanager
    def _reading(self, operation: Operation | None, url: str) -> Iterator[Operation]:
        """Yield an operation for one of several concurrent reads, of ``url``. At the end, add its costs to
        ``operation``, or to the session's metrics if that is None."""
        whole = operation or self._runtime.operation("read", safe_url(url))
        part = whole.part(safe_url(url), whole.metrics.rounds)
        if part.metrics.trace is not None:
            part.metrics.trace = part.metrics.trace.of_index()
        try:
            yield part
        finally:
            metrics = part.metrics
            for name in _OF_ROWS:  # rows of a segment are no rows of the caller's data
                setattr(metrics, name, 0)
            metrics.fallbacks.clear()
            if operation is not None:
                operation.metrics.add_part(metrics)
            else:
                metrics.add_to(self._runtime.metrics)

    async def check_writable(self) -> None:
        """Raise UnsupportedStoreError if the store cannot be written."""
        await self._writable()

    async def _writable(self) -> WritableStore:
        store, _ = await self._runtime.store(self._folder)
        return writable(store, self.description)

    async def _fetch(self, operation: Operation | None, url: str, *, at_most: int) -> bytes | None:
        """Return the content of the object at ``url``, or the last ``at_most`` bytes of a longer one; None if there is
        no such object."""
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
        return bytes(tail.data)

    async def _delete(self, operation: Operation | None, urls: Sequence[str]) -> None:
        if urls:
            store = await self._writable()
            await store.delete_objects(urls, context=self._context(operation, "write"))

    async def _list(self, operation: Operation | None, folder: str) -> Sequence[ListedObject]:
        store, _ = await self._runtime.store(self._folder)
        return await store.list_objects(self._url(folder, ""), context=self._context(operation, "list"))

    async def _ages(self, operation: Operation | None, folder: str, suffix: str) -> dict[str, float]:
        """Return the age in seconds of each object in ``folder`` whose name ends in ``suffix``, by the name without
        it."""
        store = await self._writable()
        listed, now = await asyncio.gather(
            self._list(operation, folder), store.clock(self._folder, context=self._context(operation, "list"))
        )
        start = len(self._url(folder, ""))
        ages: dict[str, float] = {}
        for item in listed:
            name = item.url[start:]
            if name.endswith(suffix) and "/" not in name:
                # an object without a time counts as new: it is never removed by its age
                ages[name.removesuffix(suffix)] = 0.0 if item.modified is None else max(0.0, now - item.modified)
        return ages
