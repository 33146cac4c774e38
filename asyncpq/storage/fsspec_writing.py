"""Filesystems of fsspec that write as an index needs it: an object is put as a whole, and created in one step."""

from __future__ import annotations

import asyncio
import inspect
import secrets
import tempfile
import threading
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncpq.errors import InvalidResponseError, StoreError, UsageError
from asyncpq.metrics import RequestRecord
from asyncpq.options import RetryOptions
from asyncpq.storage.base import RequestContext, StoreLimits
from asyncpq.storage.creating import CreateProbe, ObjectExistsError, cannot_create, is_gone
from asyncpq.storage.fsspec import FsspecStore
from asyncpq.storage.fsspec_path import FsspecPath, modified_of, recorded
from asyncpq.storage.responses import RangeRequest
from asyncpq.storage.together import all_of
from asyncpq.storage.urls import safe_url

#: Google's (a generation that must match) and Azure's (If-None-Match) stores, and this process's memory. fsspec has
#: others that know ``mode="create"``, and look before they write.
WRITABLE_PROTOCOLS = frozenset({"gs", "gcs", "abfs", "abfss", "az", "memory"})

_WHOLE_BYTES = 8 * 1024 * 1024  # objects up to this size are sent by one call

_MEMORY = threading.Lock()  # fsspec's memory looks first, too, so asyncpq's writes to it come one by one


class WritableFsspecStore(FsspecStore):
    """See :class:`asyncpq.storage.base.WritableStore`. For ``WRITABLE_PROTOCOLS``."""

    def __init__(
        self, protocol: str, storage_options: Mapping[str, Any], *, retry: RetryOptions, limits: StoreLimits
    ) -> None:
        super().__init__(protocol, storage_options, retry=retry, limits=limits)
        self._create_probe = CreateProbe()

    async def put_object(self, url: str, data: bytes, *, context: RequestContext) -> None:
        """Create or replace an object."""
        await self._write(url, "PUT", len(data), context, "pipe_file", bytes(data))

    async def create_object(self, url: str, data: bytes, *, context: RequestContext) -> bool:
        """Create an object; False if there is one.

        Raises:
            ConcurrentCommitUnsupported: this version of the filesystem has no such mode.
        """
        if not self._creates():
            raise cannot_create(f"this version of the {self.protocol} filesystem", safe_url(url))
        try:
            await self._write(url, "PUT", len(data), context, "pipe_file", bytes(data), mode="create")
        except ObjectExistsError:
            return False
        return True

    async def probe_create(self, url: str, *, context: RequestContext) -> bool:
        """Whether the filesystem refuses what is there. Asked once for each bucket."""
        place = self.filesystem._strip_protocol(url).lstrip("/").partition("/")[0]
        return await self._create_probe.ask(self, place, url, context)

    async def put_file(self, url: str, path: Path, *, context: RequestContext) -> None:
        """Create or replace an object by a file."""
        try:
            size = (await asyncio.to_thread(path.stat)).st_size
            if self._asynchronous:
                await self._write(url, "PUT", size, context, "put_file", str(path))
            else:  # memory, whose own would show the object as it grows
                await self.put_object(url, await asyncio.to_thread(path.read_bytes), context=context)
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"the file to be stored cannot be read: {error.strerror}", url=safe_url(url)) from error

    async def create_stream(self, url: str, pieces: AsyncIterator[bytes], *, context: RequestContext) -> bool:
        """Create an object by what comes, through a local file if that is much; False if there is one."""
        with tempfile.TemporaryDirectory(prefix="asyncpq-object-", ignore_cleanup_errors=True) as folder:
            path, size = Path(folder, "content"), 0
            async for piece in pieces:
                size += len(piece)
                await asyncio.to_thread(_append, path, piece, url)
            if not self._asynchronous or size <= _WHOLE_BYTES:
                data = await asyncio.to_thread(path.read_bytes) if size else b""
                return await self.create_object(url, data, context=context)
            if not self._creates():
                raise cannot_create(f"this version of the {self.protocol} filesystem", safe_url(url))
            # Azure's has no mode here, and replaces nothing unless it is told to
            named = "mode" in inspect.signature(self.filesystem._put_file).parameters
            try:
                await self._write(
                    url, "PUT", size, context, "put_file", str(path), **({"mode": "create"} if named else {})
                )
            except ObjectExistsError:
                return False
        return True

    async def delete_objects(self, urls: Sequence[str], *, context: RequestContext) -> None:
        """Delete objects, each by a call of its own."""

        async def delete(url: str) -> None:
            try:
                await self._write(url, "DELETE", 0, context, "rm_file")
            except StoreError as error:
                if not is_gone(error):
                    raise

        await all_of(urls, delete)

    async def clock(self, url: str, *, context: RequestContext) -> float:
        """The time that the store gives to an object which is written now: filesystems show no response's Date."""
        probe = f"{url[: url.rindex('/') + 1]}.clock-{secrets.token_hex(8)}"
        await self.put_object(probe, b"1", context=context)
        context = context.step(context.purpose, context.round + 1)
        try:
            info = await self._write(probe, "HEAD", 0, context, "info")
        finally:
            await self.delete_objects([probe], context=context.step(context.purpose, context.round + 1))
        modified = modified_of(info)
        if modified is None:
            raise InvalidResponseError("the filesystem does not say when an object was written", url=safe_url(url))
        return modified

    def _creates(self) -> bool:
        """Whether its writes take a mode, or hand it on to what does."""
        method = self.filesystem._pipe_file if self._asynchronous else self.filesystem.pipe_file
        names = inspect.signature(method).parameters
        return "mode" in names or self.protocol in ("abfs", "abfss", "az")

    async def _write(
        self, url: str, method: str, length: int, context: RequestContext, name: str, *arguments: Any, **options: Any
    ) -> Any:
        if self._closed:
            raise UsageError("the store is closed", hint="Write while the session is open.")
        path = self.filesystem._strip_protocol(url)
        return await _Written(self, path, url).ask(method, length, context, name, *arguments, **options)

    async def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """See :meth:`FsspecStore.call`."""
        if name == "pipe_file" and not self._asynchronous:
            pipe = self.filesystem.pipe_file

            def write() -> None:
                with _MEMORY:
                    pipe(*arguments, **options)

            return await asyncio.shield(self._threads.start(write))
        return await super().call(name, *arguments, **options)


def _append(path: Path, piece: bytes, url: str) -> None:
    try:
        with path.open("ab") as file:
            file.write(piece)
    except OSError as error:
        raise StoreError(f"the local file for it cannot be written: {error.strerror}", url=safe_url(url)) from error


class _Written(FsspecPath):
    """An object that is written."""

    async def ask(
        self, method: str, length: int, context: RequestContext, name: str, *arguments: Any, **options: Any
    ) -> Any:
        request = RangeRequest(0, length, self.url)
        # put_file names the local file first
        named = (*arguments, self._path) if name == "put_file" else (self._path, *arguments)

        async def once(attempt: int) -> Any:
            record = RequestRecord(method, "write", 0, length, 0, 0, attempt, context.round, 0.0)
            with recorded(record, context):
                return await self._call(request, name, *named, **options)

        return await self._with_retries(once, context, request.byte_range)
