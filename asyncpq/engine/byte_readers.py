"""Byte ranges of objects of any format, through the caches, coalescing, pinning and retries of a session."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple

from asyncpq.errors import ObjectChangedError
from asyncpq.events import Operation, OperationName
from asyncpq.objects.byte_ranges import present_version, read_ranges
from asyncpq.objects.loop_threads import wait_in
from asyncpq.objects.opening import open_source
from asyncpq.objects.runtime import runtime_of
from asyncpq.objects.source import ObjectSource
from asyncpq.objects.version import ObjectVersion
from asyncpq.session import Session
from asyncpq.storage.base import ListedObject, RequestContext, Validator, http_date_s, info_time_s
from asyncpq.storage.urls import safe_url

__all__ = ["ByteReader", "Folder", "ObjectVersion", "modified_s", "wait_in"]


class Folder(NamedTuple):
    """What :meth:`ByteReader.folder` finds below a url.

    Attributes:
        objects: with ``url``, ``size`` in bytes, ``validator`` (None if the listing cannot tell versions apart) and
            ``modified``, seconds since the epoch (None if unknown).
        folders: urls of folders, sorted, each with a slash at its end.
    """

    objects: Sequence[ListedObject]
    folders: list[str]


class ByteReader:
    """Reads byte ranges of objects with a session, in its event loop. Each call is an operation of the session: it is
    counted in ``session.metrics``, told to ``on_event``, and ends at the session's deadline.

    A version (``ObjectVersion``) has ``size`` in bytes, and ``validator``, an :class:`asyncpq.Validator`, which can be
    pickled, and of which :meth:`pinned` makes the version again.
    """

    def __init__(self, session: Session) -> None:
        self._runtime = runtime_of(session)

    async def version(self, url: str) -> ObjectVersion:
        """Return the current version of an object: a cached one that the cache policy still believes, or else the one
        that the first request finds, which also fetches the object's end.

        Raises:
            ObjectNotFoundError, AccessDeniedError, ...: the store refused the request.
        """
        async with self._operation("open", url) as (source, operation):
            return await present_version(source, RequestContext(operation.metrics))

    async def pinned(self, url: str, validator: Validator) -> ObjectVersion:
        """Return the version of an object that ``validator`` identifies, without a request. Reads of it fail if the
        object is replaced."""
        async with self._operation("open", url) as (source, _):
            source.handle.learn(validator)
            return source.object_version(validator)

    async def read(
        self, url: str, ranges: Sequence[tuple[int | None, int | None]], version: ObjectVersion | None = None
    ) -> list[bytes]:
        """Return byte ranges of one version of an object, in order.

        Ranges that no cache has are fetched in one round, and merged where that costs less.

        Args:
            ranges: pairs of start and stop like those of a slice: negative numbers count from the object's end, None
                means its beginning or end. They are cut at the object's end, and may overlap.
            version: the version to read; None for the current one, and again the then current one if the object is
                replaced meanwhile.

        Raises:
            ObjectChangedError: the object has no longer this version.
            StoreError: the store failed.
        """

        def of(size: int) -> list[tuple[int, int]]:
            return [slice(start, stop).indices(size)[:2] for start, stop in ranges]

        async with self._operation("read", url) as (source, operation):
            if version is not None:
                source.handle.learn(version.validator)
                return await read_ranges(source, version, of(version.size), RequestContext(operation.metrics))
            while True:
                context = RequestContext(operation.metrics, round=operation.metrics.rounds + 1)
                present = await present_version(source, context)
                context = context.step("data", operation.metrics.rounds + 1)
                try:
                    return await read_ranges(source, present, of(present.size), context)
                except ObjectChangedError:
                    if not await source.restarts(None, operation):
                        raise

    async def folder(self, url: str, *, deep: bool) -> Folder:
        """List the objects and folders directly in a folder, or with ``deep`` at all levels below it.

        Args:
            url: of the folder, with a slash at its end.

        Raises:
            UnsupportedStoreError: the store, such as a web server, has no listings.
        """
        runtime, shown, folders = self._runtime, safe_url(url), set[str]()

        def wanted(folder: str) -> bool:
            folders.add(folder)
            return False

        with runtime.operation("files", shown) as operation:
            async with runtime.deadline(shown):
                store, _ = await runtime.store(url)
                context = RequestContext(operation.metrics, purpose="list")
                listed = await store.list_objects(url, context=context, wants=None if deep else wanted)
        objects = list[ListedObject]()
        for item in listed:  # a store may list what is not wanted, too
            ends = [at + 1 for at, letter in enumerate(item.url[len(url) :], len(url)) if letter == "/"]
            folders.update(item.url[:end] for end in (ends if deep else ends[:1]))
            if deep or not ends:
                objects.append(item)
        return Folder(objects, sorted(folders - {url}))

    @asynccontextmanager
    async def _operation(self, name: OperationName, url: str) -> AsyncIterator[tuple[ObjectSource, Operation]]:
        runtime, shown = self._runtime, safe_url(url)
        with runtime.operation(name, shown) as operation:
            async with runtime.deadline(shown):
                source = await open_source(runtime, url)
                try:
                    yield source, operation
                    source.describe(operation.metrics)
                finally:
                    await source.handle.close()


def modified_s(validator: Validator) -> float | None:
    """Return the time of the write of a version, in seconds since the epoch; None if the store did not say."""
    modified = http_date_s(validator.last_modified)
    return info_time_s(validator.last_modified) if modified is None else modified
