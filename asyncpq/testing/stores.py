"""Wrappers around a session's stores that record, delay or fail calls, for any protocol.

:class:`ObjectServer` simulates a network's faults. These wrappers also work on local files and any fsspec filesystem,
without a server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from asyncpq.errors import StoreError, TransportError
from asyncpq.metrics import Purpose
from asyncpq.objects.runtime import runtime_of
from asyncpq.session import Session
from asyncpq.storage import base
from asyncpq.storage.urls import safe_url

T = TypeVar("T")
W = TypeVar("W", bound="WrappedStore")

Fetch = Callable[[], Awaitable[base.RangeResult]]


def wrap_store(session: Session, url: str, wrap: Callable[[base.Store], W]) -> W:
    """Let the session open all further objects of ``url``'s protocol through ``wrap(store)``, such as
    ``wrap=RecordingStore``, where ``store`` is the session's own store. Return the wrapper.

    Call the function inside ``async with session``, before files are opened. A second wrapper wraps the first.
    """
    made: list[W] = []

    def keep(store: base.Store) -> W:
        made.append(wrap(store))
        return made[-1]

    runtime_of(session).wrap_store(url, keep)
    return made[-1]


@dataclass(frozen=True, slots=True)
class StoreCall:
    """One fetch of a session from a store: the argument of :meth:`WrappedStore.around`, and an item of
    :attr:`RecordingStore.calls`.

    Attributes:
        url: url of the object, without secrets.
        start: first byte. A fetch of the object's last n bytes has ``start=-n`` and ``stop=0``.
        stop: end of the range, exclusive.
        pinned: whether the fetch asks for one version of the object.
        purpose, round: as in :class:`asyncpq.metrics.RequestRecord`.
        scan: True if a scan makes the fetch, False if a lookup does.
    """

    url: str
    start: int
    stop: int
    pinned: bool
    purpose: Purpose
    round: int
    scan: bool


@dataclass(frozen=True, slots=True)
class StoreWrite:
    """One write of a session to a store: the argument of :meth:`WrappedStore.around_write`.

    Attributes:
        name: the store's method: "put_object", "create_object", "put_file", "create_stream" or "delete_objects".
        urls: urls of the objects.
        length: bytes of the content; 0 where it is not known.
    """

    name: str
    urls: tuple[str, ...]
    length: int = 0


class WrappedStore(base.WritableStore, base.FolderStore):
    """A base class for stores in tests: it passes each fetch to the store ``inner`` through :meth:`around`, each write
    through :meth:`around_write`. :func:`wrap_store` puts one into a session, which then calls its methods.

    A subclass overrides :meth:`around` and :meth:`around_write`. The other methods, those of
    :class:`asyncpq.storage.base.WritableStore`, pass each call on to ``inner``; override one to change what the store
    lists or knows. ``context`` says what a call is for, and counts its requests: pass it on.

    Attributes:
        inner: the wrapped store.
    """

    def __init__(self, inner: base.Store) -> None:
        self.inner = inner

    async def around(self, call: StoreCall, fetch: Fetch) -> base.RangeResult:
        """Return the result of the fetch that ``call`` describes: that of ``await fetch()``, which calls ``inner`` and
        may be called any number of times. Override the method to change, delay or record fetches, or raise a
        StoreError. The session calls it for each fetch, many at once."""
        return await fetch()

    async def around_write(self, call: StoreWrite, write: Callable[[], Awaitable[T]]) -> T:
        """Return the result of the write that ``call`` describes: that of ``await write()``, which calls ``inner``.
        Override the method to change, delay or record writes, or raise a StoreError."""
        return await write()

    async def open_object(self, url: str) -> base.StoredObject:
        """Return the object of ``url``, as ``inner`` opens it, whose fetches go through :meth:`around`."""
        return _WrappedObject(await self.inner.open_object(url), self.around)

    async def list_objects(
        self, url: str, *, context: base.RequestContext, wants: base.Wants | None = None
    ) -> Sequence[base.ListedObject]:
        return await self.inner.list_objects(url, context=context, wants=wants)

    async def first_names(self, url: str, *, context: base.RequestContext) -> base.FirstNames:
        """Return what ``inner`` returns: urls of objects, and of folders with a slash at their ends, that are directly
        in the folder ``url`` (with its slash), in any order. With it sessions look for tables around a folder.

        ``urls`` has at most one page of a listing, 1000 names in S3; ``is_whole`` says that there are no others. No
        urls, and ``is_whole``, if there is no such folder, or ``inner`` cannot look into folders. Raises StoreError.
        """
        if isinstance(self.inner, base.FolderStore):
            return await self.inner.first_names(url, context=context)
        return base.FirstNames([], True)

    # -- writing ----------------------------------------------------------------------------------

    async def put_object(self, url: str, data: bytes, *, context: base.RequestContext) -> None:
        inner = self._writable(url)
        await self.around_write(
            StoreWrite("put_object", (url,), len(data)), lambda: inner.put_object(url, data, context=context)
        )

    async def create_object(self, url: str, data: bytes, *, context: base.RequestContext) -> bool:
        inner = self._writable(url)
        return await self.around_write(
            StoreWrite("create_object", (url,), len(data)), lambda: inner.create_object(url, data, context=context)
        )

    async def probe_create(self, url: str, *, context: base.RequestContext) -> bool:
        return await self._writable(url).probe_create(url, context=context)

    async def put_file(self, url: str, path: Path, *, context: base.RequestContext) -> None:
        inner = self._writable(url)
        await self.around_write(StoreWrite("put_file", (url,)), lambda: inner.put_file(url, path, context=context))

    async def create_stream(self, url: str, pieces: AsyncIterator[bytes], *, context: base.RequestContext) -> bool:
        inner = self._writable(url)
        return await self.around_write(
            StoreWrite("create_stream", (url,)), lambda: inner.create_stream(url, pieces, context=context)
        )

    async def delete_objects(self, urls: Sequence[str], *, context: base.RequestContext) -> None:
        if urls:
            inner = self._writable(urls[0])
            await self.around_write(
                StoreWrite("delete_objects", tuple(urls)), lambda: inner.delete_objects(urls, context=context)
            )

    async def clock(self, url: str, *, context: base.RequestContext) -> float:
        return await self._writable(url).clock(url, context=context)

    def _writable(self, url: str) -> base.WritableStore:
        return base.writable(self.inner, safe_url(url))

    async def credential_identity(self, url: str) -> str:
        return await self.inner.credential_identity(url)

    async def close(self) -> None:
        """Close ``inner``."""
        await self.inner.close()


class RecordingStore(WrappedStore):
    """A store that records each fetch in ``calls``, in order, failed fetches included.

    Attributes:
        calls: the fetches, one :class:`StoreCall` each.
    """

    def __init__(self, inner: base.Store) -> None:
        super().__init__(inner)
        self.calls: list[StoreCall] = []

    async def around(self, call: StoreCall, fetch: Fetch) -> base.RangeResult:
        """Record the fetch that ``call`` describes; return its result."""
        self.calls.append(call)
        return await fetch()


class LatencyStore(WrappedStore):
    """A store that delays each fetch by ``latency_s`` seconds, plus the time of its bytes at ``bandwidth_bytes_s``
    bytes per second: ``wrap`` of :func:`wrap_store`, as it is or with other values (``functools.partial``)."""

    def __init__(self, inner: base.Store, *, latency_s: float = 0.030, bandwidth_bytes_s: float = 100e6) -> None:
        super().__init__(inner)
        self.latency_s = latency_s
        self.bandwidth_bytes_s = bandwidth_bytes_s

    async def around(self, call: StoreCall, fetch: Fetch) -> base.RangeResult:
        """Return the result of the fetch that ``call`` describes, after the delay."""
        result = await fetch()
        await asyncio.sleep(self.latency_s + len(result.data) / self.bandwidth_bytes_s)
        return result


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreFault:
    """Makes fetches of a :class:`FaultStore` fail: of those whose url contains ``path``, the first ``after`` succeed,
    and the next ``times`` fail.

    Attributes:
        path: part of the url; None for any.
        after: number of fetches that succeed before the fault begins.
        times: number of fetches that fail; None: all further ones.
        error: type of the error that is raised.
        stall: whether the fetch waits forever instead of raising.
    """

    path: str | None = None
    after: int = 0
    times: int | None = 1
    error: type[StoreError] = TransportError
    stall: bool = False


class FaultStore(WrappedStore):
    """A store that fails fetches, by its ``faults``: ``wrap_store(session, url, lambda store: FaultStore(store,
    [StoreFault()]))``. Reads do not retry its errors, since stores retry themselves."""

    def __init__(self, inner: base.Store, faults: Sequence[StoreFault] = ()) -> None:
        super().__init__(inner)
        self.faults = faults

    @property
    def faults(self) -> Sequence[StoreFault]:
        """The faults in effect, :class:`StoreFault` each; the first that affects a fetch applies. Assigning resets
        their counts of fetches."""
        return self._faults

    @faults.setter
    def faults(self, faults: Sequence[StoreFault]) -> None:
        self._faults = tuple(faults)
        self._seen = [0] * len(self._faults)

    async def around(self, call: StoreCall, fetch: Fetch) -> base.RangeResult:
        """Return the result of the fetch that ``call`` describes, unless one of ``faults`` affects it: then raise its
        error, or wait for ever if it stalls."""
        applying: StoreFault | None = None
        for position, fault in enumerate(self._faults):
            if fault.path is None or fault.path in call.url:
                seen = self._seen[position] - fault.after
                self._seen[position] += 1
                if applying is None and seen >= 0 and (fault.times is None or seen < fault.times):
                    applying = fault
        if applying is None:
            return await fetch()
        if applying.stall:
            await asyncio.Event().wait()
        span = None if call.start < 0 else (call.start, call.stop)
        raise applying.error("injected fault", url=call.url, byte_range=span)


class _WrappedObject:
    """An object that was opened through a wrapper: its fetches pass through the wrapper's ``around``. Implements
    :class:`asyncpq.storage.base.StoredObject`."""

    def __init__(
        self, inner: base.StoredObject, around: Callable[[StoreCall, Fetch], Awaitable[base.RangeResult]]
    ) -> None:
        self._inner = inner
        self._around = around

    @property
    def url(self) -> str:
        return self._inner.url

    @property
    def identity(self) -> str:
        return self._inner.identity

    @property
    def guarantee(self) -> base.Guarantee:
        return self._inner.guarantee

    @property
    def client(self) -> str:
        return self._inner.client

    @property
    def server(self) -> str:
        return self._inner.server

    def learn(self, validator: base.Validator) -> None:
        self._inner.learn(validator)

    async def fetch_tail(
        self, length: int, *, context: base.RequestContext, pin: base.Validator | None = None
    ) -> base.RangeResult:
        return await self._around(
            self._call(-length, 0, context, pin), lambda: self._inner.fetch_tail(length, context=context, pin=pin)
        )

    async def fetch_range(
        self, start: int, stop: int, *, context: base.RequestContext, pin: base.Validator | None = None
    ) -> base.RangeResult:
        return await self._around(
            self._call(start, stop, context, pin),
            lambda: self._inner.fetch_range(start, stop, context=context, pin=pin),
        )

    async def close(self) -> None:
        """Close ``inner``."""
        await self._inner.close()

    def _call(self, start: int, stop: int, context: base.RequestContext, pin: base.Validator | None) -> StoreCall:
        return StoreCall(self._inner.url, start, stop, pin is not None, context.purpose, context.round, context.scan)
