"""Local files: one descriptor for each object, so that what is read is one file whatever its name does."""

from __future__ import annotations

import asyncio
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from asyncpq.errors import (
    AccessDeniedError,
    InvalidOptionError,
    InvalidResponseError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    TransportError,
    UsageError,
)
from asyncpq.metrics import RequestRecord
from asyncpq.storage.base import Guarantee, RangeResult, RequestContext, Validator
from asyncpq.storage.deadline import within_deadline
from asyncpq.storage.responses import RangeRequest, changed, empty
from asyncpq.storage.urls import local_path

#: Reads up to this size are made on the event loop: cheaper than a thread, and usually from memory.
INLINE_BYTES = 64 * 1024
_IGNORED_OPTIONS = frozenset({"auto_mkdir", "use_listings_cache", "skip_instance_cache", "asynchronous"})


class LocalStore:
    """See :class:`asyncpq.storage.base.Store`.

    Args:
        storage_options: those of fsspec's local filesystem; none of them changes how files are read.

    Raises:
        InvalidOptionError: an option that it does not know.
    """

    def __init__(self, storage_options: dict[str, Any]) -> None:
        unknown = sorted(set(storage_options) - _IGNORED_OPTIONS)
        if unknown:
            raise InvalidOptionError(f"storage_options of local files: unknown option {unknown[0]!r}")
        self._pool: ThreadPoolExecutor | None = None
        self._objects: set[LocalObject] = set()
        self._closed = False

    async def open_object(self, url: str) -> LocalObject:
        """Opens the file: the handle holds a descriptor until it, or the store, is closed.

        Raises:
            ObjectNotFoundError, AccessDeniedError, StoreError: it cannot be opened.
        """
        if self._closed:
            raise UsageError("the store is closed", hint="Read while the session is open.")
        if self._pool is None:
            self._pool = ThreadPoolExecutor(4, thread_name_prefix="asyncpq-local")
        path = local_path(url)
        loop = asyncio.get_running_loop()
        opening = loop.run_in_executor(self._pool, _open, path)
        try:
            descriptor = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)
            raise
        handle = LocalObject(path, descriptor, self._pool, self._objects)
        self._objects.add(handle)
        return handle

    async def close(self) -> None:
        """Closes all descriptors and threads. Idempotent."""
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is not None:  # wait for reads in flight: they use the descriptors
            await asyncio.to_thread(pool.shutdown, wait=True, cancel_futures=True)
        for handle in list(self._objects):
            await handle.close()


class LocalObject:
    """One open file. See :class:`asyncpq.storage.base.StoredObject`."""

    client = "file"
    guarantee = Guarantee.PINNED

    def __init__(self, path: str, descriptor: int, pool: ThreadPoolExecutor, owner: set[LocalObject]) -> None:
        self.url = path
        self.identity = f"file://{path}"
        self._descriptor = descriptor
        self._pool = pool
        self._owner = owner
        self._validator = _validator(os.fstat(descriptor))
        self._reading = 0
        self._closing = False

    def __repr__(self) -> str:
        return f"<LocalObject {self.url}>"

    async def fetch_tail(self, length: int, *, context: RequestContext, pin: Validator | None = None) -> RangeResult:
        """See :meth:`asyncpq.storage.base.StoredObject.fetch_tail`."""
        size = self._validator.size
        if size == 0:
            raise empty(self.url)
        return await self._fetch(RangeRequest(-length, 0, self.url, pin), max(0, size - length), size, context)

    async def fetch_range(
        self, start: int, stop: int, *, context: RequestContext, pin: Validator | None = None
    ) -> RangeResult:
        """See :meth:`asyncpq.storage.base.StoredObject.fetch_range`."""
        return await self._fetch(RangeRequest(start, stop, self.url, pin), start, stop, context)

    async def close(self) -> None:
        """Closes the descriptor, at once or when the last read that uses it has ended. Idempotent."""
        self._closing = True
        self._close_if_idle()

    async def _fetch(self, request: RangeRequest, start: int, stop: int, context: RequestContext) -> RangeResult:
        if self._closing:
            raise UsageError("the file is closed", url=self.url)
        validator = self._validator
        if request.pin is not None and not request.pin.same_version(validator):
            raise changed(request, "it is another file, or was written to")
        if stop > validator.size:
            raise InvalidResponseError(
                f"the object ends at byte {validator.size}, before the range does",
                url=self.url,
                byte_range=(start, stop),
            )
        loop = asyncio.get_running_loop()
        began = loop.time()
        if stop - start <= INLINE_BYTES:
            data = self._read(start, stop)
        else:
            self._reading += 1
            reading = loop.run_in_executor(self._pool, self._read, start, stop)
            reading.add_done_callback(self._read_ended)
            data = await within_deadline(asyncio.shield(reading), context.deadline, self.url, (start, stop))
        record = RequestRecord(
            "GET",
            context.purpose,
            request.start,
            request.stop,
            200,
            len(data),
            1,
            context.round,
            loop.time() - began,
        )
        context.metrics.record(record)
        return RangeResult(data, start, validator)

    def _read(self, start: int, stop: int) -> bytes:
        parts: list[bytes] = []
        try:
            while start < stop:
                part = os.pread(self._descriptor, stop - start, start)
                if not part:
                    break
                parts.append(part)
                start += len(part)
            found = _validator(os.fstat(self._descriptor))
        except OSError as error:
            raise _store_error(error, self.url) from error
        if found != self._validator or start < stop:
            raise ObjectChangedError(
                "the file was written to while it was read", url=self.url, hint="Open it again to read the new version."
            )
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _read_ended(self, reading: asyncio.Future[bytes]) -> None:
        self._reading -= 1
        if not reading.cancelled():
            reading.exception()  # whoever waited has seen it, or has left
        self._close_if_idle()

    def _close_if_idle(self) -> None:
        if self._closing and self._reading == 0 and self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            self._owner.discard(self)
            os.close(descriptor)


def _open(path: str) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not block
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise StoreError("not a regular file", url=path)
    except StoreError:
        raise
    except OSError as error:
        raise _store_error(error, path) from error
    return descriptor


def _close_unwanted(opening: asyncio.Future[int]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        os.close(opening.result())


def _store_error(error: OSError, path: str) -> StoreError:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return ObjectNotFoundError("no such file", url=path)
    if isinstance(error, PermissionError):
        return AccessDeniedError("the file may not be read", url=path, hint="Check its permissions.")
    return TransportError(f"the file cannot be read: {error.strerror}", url=path)


def _validator(info: os.stat_result) -> Validator:
    version = f"{info.st_dev}-{info.st_ino}-{info.st_mtime_ns}-{info.st_size}"
    return Validator(size=info.st_size, version=version)
