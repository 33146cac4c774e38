"""Sessions: what opens files, and owns caches, connections and threads."""

from __future__ import annotations

import inspect
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

from asyncpq.caching.disk import DiskCache
from asyncpq.caching.memory import MemoryCache
from asyncpq.caching.shared import SharedCache
from asyncpq.decoding.encrypted import FileDecryption
from asyncpq.errors import InvalidOptionError
from asyncpq.events import Event
from asyncpq.fetching.opening import load_version, open_source
from asyncpq.file import File
from asyncpq.metrics import ReadMetrics
from asyncpq.options import (
    CachePolicy,
    DiskCacheOptions,
    LimitOptions,
    ReadOptions,
    RequestOptions,
    RetryOptions,
    SessionOptions,
    SharedCacheOptions,
)
from asyncpq.resources import Resources
from asyncpq.storage.base import RequestContext, Unpicklable
from asyncpq.storage.urls import safe_url

_DEFAULTS = SessionOptions()


class Session(Unpicklable):
    """Opens Parquet objects and shares caches, connections and threads between them.

    Use it as ``async with asyncpq.Session(...) as session``. It belongs to the event loop that it was
    entered in; make one for each loop.

    Args:
        storage_options: as in fsspec: flat, for whatever protocol a url has, or one mapping for each
            protocol, such as ``{"s3": {...}, "https": {...}}``.
        memory_cache_bytes: budget of the memory cache; 0 for none.
        memory_cache: a cache to share with other sessions instead, also of other loops and threads.
        disk_cache: folder of a cache that all processes of this user on this host share, or its
            :class:`asyncpq.DiskCacheOptions`.
        shared_cache: url of a Valkey or Redis server whose cache many hosts share, or its
            :class:`asyncpq.SharedCacheOptions`. Needs ``pip install 'asyncpq[valkey]'``.
        cache_policy: how long cached bytes may be served unasked: ``asyncpq.etag(max_age_s)``,
            ``asyncpq.ttl(max_age_s)`` or ``asyncpq.immutable()``; or for each url pattern, as in
            :mod:`fnmatch`, its own: the first that matches counts. It may match the url as given, or the
            path of a local file.
        negative_ttl_s: how long opening an object that was not there fails without asking the store again; kept
            in memory only. 0: it is always asked.
        cache_namespace: sessions share cached bytes only within one namespace; by default it is made
            from the storage options and the identity of the credentials. One that is given is shared by all
            who give it, whatever their credentials are.
        on_event: called in the session's event loop with each :class:`asyncpq.RequestEnded` and
            :class:`asyncpq.ReadEnded`. It must not block; what it raises is logged, and harms no read.
        requests, retry, limits, read: see :mod:`asyncpq.options`.

    Raises:
        InvalidOptionError: an option that cannot work.
    """

    def __init__(
        self,
        storage_options: Mapping[str, Any] | None = None,
        *,
        memory_cache_bytes: int = _DEFAULTS.memory_cache_bytes,
        memory_cache: MemoryCache | None = None,
        disk_cache: str | os.PathLike[str] | DiskCacheOptions | None = None,
        shared_cache: str | SharedCacheOptions | None = None,
        cache_policy: CachePolicy | Mapping[str, CachePolicy] = _DEFAULTS.cache_policy,
        negative_ttl_s: float = _DEFAULTS.negative_ttl_s,
        cache_namespace: str | None = None,
        on_event: Callable[[Event], None] | None = None,
        requests: RequestOptions = _DEFAULTS.requests,
        retry: RetryOptions = _DEFAULTS.retry,
        limits: LimitOptions = _DEFAULTS.limits,
        read: ReadOptions = _DEFAULTS.read,
    ) -> None:
        options = SessionOptions(
            memory_cache_bytes=memory_cache_bytes,
            disk_cache=DiskCacheOptions(path=os.fspath(disk_cache))
            if isinstance(disk_cache, (str, os.PathLike))
            else disk_cache,
            shared_cache=SharedCacheOptions(url=shared_cache) if isinstance(shared_cache, str) else shared_cache,
            cache_policy=cache_policy,
            negative_ttl_s=negative_ttl_s,
            cache_namespace=cache_namespace,
            requests=requests,
            retry=retry,
            limits=limits,
            read=read,
        )
        if storage_options is not None and not isinstance(storage_options, Mapping):
            raise InvalidOptionError(f"storage_options: must be a mapping, not a {type(storage_options).__name__}")
        if memory_cache is not None and not isinstance(memory_cache, MemoryCache):
            raise InvalidOptionError(f"memory_cache: must be a MemoryCache, not a {type(memory_cache).__name__}")
        if memory_cache is not None and memory_cache_bytes != _DEFAULTS.memory_cache_bytes:
            raise InvalidOptionError(
                "memory_cache_bytes: a cache that is shared has its own budget; give one of the two"
            )
        hook: object = on_event
        if hook is not None and (not callable(hook) or inspect.iscoroutinefunction(hook)):
            raise InvalidOptionError("on_event: must be a function, and not a coroutine's")
        self._disk = None if options.disk_cache is None else DiskCache(options.disk_cache)
        tiers: list[DiskCache | SharedCache] = [] if self._disk is None else [self._disk]
        if options.shared_cache is not None:
            tiers.append(SharedCache(options.shared_cache))
        self._tiers = tuple(tiers)
        self._resources = Resources(options, storage_options or {}, memory=memory_cache, tiers=tiers, on_event=on_event)

    def __repr__(self) -> str:
        return f"Session(memory_cache={self.memory_cache.current_bytes} of {self.memory_cache.max_bytes} bytes)"

    async def __aenter__(self) -> Self:
        """Enter the running event loop.

        Raises:
            InvalidOptionError: the disk cache's folder is not this user's alone.
        """
        self._resources.enter()
        if self._disk is not None:
            try:
                await self._disk.open()
            except BaseException:
                await self.close()
                raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End every scan, fetch, connection and thread of the session. Idempotent."""
        await self._resources.close()

    @property
    def metrics(self) -> ReadMetrics:
        """Sums over all reads that have ended."""
        return self._resources.metrics

    @property
    def memory_cache(self) -> MemoryCache:
        """To look at, to clear, or to share with another session."""
        return self._resources.memory

    def cache_counters(self) -> dict[str, dict[str, int]]:
        """What ``"disk"`` and ``"shared"``, where the session has them, have counted until now.

        Of each ``hits``, ``misses``, ``errors``, ``skipped`` and ``evictions``; see docs/usage.md, "Caches".
        """
        return {tier.name: tier.counters() for tier in self._tiers}

    async def open_file(self, url: str | os.PathLike[str], *, decryption_properties: object | None = None) -> File:
        """Open a Parquet object: its footer is fetched, with one GET where the store allows, unless cached.

        Args:
            url: ``s3://bucket/key``, ``https://...``, a local path, or any url fsspec knows.
            decryption_properties: ``FileDecryptionProperties`` of an encrypted file, made with
                ``pyarrow.parquet.encryption``. What is read with them is cached for this handle alone.

        Raises:
            ObjectNotFoundError, AccessDeniedError, CredentialsError, ...: the store refused.
            NotParquetError, CorruptFileError, ...: it is not a readable Parquet file.
        """
        resources = self._resources
        resources.check()
        if not isinstance(url, (str, os.PathLike)):
            raise InvalidOptionError(f"url={url!r}: must be a str or a path")
        text = os.fspath(url)
        decryption = None if decryption_properties is None else FileDecryption(decryption_properties)
        shown = safe_url(text)
        operation = resources.operation("open", shown)
        metrics = operation.metrics
        with operation:
            async with resources.deadline(shown):
                source = await open_source(resources, text, decryption)
                handle = source.handle
                try:
                    version = await load_version(source, RequestContext(metrics))
                except BaseException:
                    await handle.close()
                    raise
                metrics.guarantee, metrics.store_path = str(handle.guarantee), handle.client
        file = File(source, version)
        file.metrics = metrics
        return file


@asynccontextmanager
async def open_file(
    url: str | os.PathLike[str],
    *,
    decryption_properties: object | None = None,
    **session_options: Any,
) -> AsyncIterator[File]:
    """One file with a session of its own, for one-off use: ``async with asyncpq.open_file(url) as file``.

    Args:
        url, decryption_properties: as in :meth:`Session.open_file`.
        session_options: those of :class:`Session`.
    """
    async with (
        Session(**session_options) as session,
        await session.open_file(url, decryption_properties=decryption_properties) as file,
    ):
        yield file
