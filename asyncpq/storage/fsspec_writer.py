"""Writes through those fsspec filesystems that can create an object in one step."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from asyncpq.errors import StoreError
from asyncpq.storage.base import (
    CreateProbe,
    ObjectExistsError,
    RequestContext,
    is_gone,
    temporary_file_error,
    time_of_probe,
)
from asyncpq.storage.fsspec import FsspecStore, modified_of
from asyncpq.storage.response_checks import RangeRequest
from asyncpq.storage.threads import call_each
from asyncpq.storage.urls import safe_url

#: Stores that create in one step: Google's (a generation must match), Azure's (If-None-Match), and this process's
#: memory. Others of fsspec accept ``mode="create"`` but only look before they write.
_AZURE = frozenset({"abfs", "abfss", "az"})
WRITABLE_PROTOCOLS = _AZURE | {"gs", "gcs", "memory"}

_WHOLE_BYTES = 8 * 1024 * 1024  # objects up to this size are sent by one call


class WritableFsspecStore(FsspecStore):
    """The store of ``WRITABLE_PROTOCOLS``; see :class:`asyncpq.storage.base.WritableStore`."""

    @cached_property
    def _create_probe(self) -> CreateProbe:
        return CreateProbe()

    async def put_object(self, url: str, data: bytes, *, context: RequestContext) -> None:
        """Create or replace an object."""
        await self._write(url, len(data), context, "pipe_file", bytes(data))

    async def create_object(self, url: str, data: bytes, *, context: RequestContext) -> bool:
        """Create an object; return False if it exists."""
        return await self._create(url, len(data), context, "pipe_file", bytes(data), mode="create")

    async def probe_create(self, url: str, *, context: RequestContext) -> bool:
        """Return whether the filesystem refuses to create an existing object; tried once for each bucket."""
        bucket = self.path_of(url).lstrip("/").partition("/")[0]
        return await self._create_probe.ask(self, bucket, url, context)

    async def put_file(self, url: str, path: Path, *, context: RequestContext) -> None:
        """Create or replace an object with the content of the local file ``path``."""
        try:
            size = (await asyncio.to_thread(path.stat)).st_size
            if self.asynchronous:
                await self._write(url, size, context, "put_file", str(path))
            else:  # the memory filesystem's put_file shows a growing object
                await self.put_object(url, await asyncio.to_thread(path.read_bytes), context=context)
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(f"the local file to upload cannot be read: {error.strerror}", url=safe_url(url)) from error

    async def create_stream(self, url: str, pieces: AsyncIterator[bytes], *, context: RequestContext) -> bool:
        """Create an object from ``pieces`` of its content, through a temporary local file; return False if it
        exists."""
        with tempfile.TemporaryDirectory(prefix="asyncpq-object-", ignore_cleanup_errors=True) as folder:
            path, size = Path(folder, "content"), 0
            async for piece in pieces:
                size += len(piece)
                await asyncio.to_thread(_append, path, piece, url)
            if not self.asynchronous or size <= _WHOLE_BYTES:
                data = await asyncio.to_thread(path.read_bytes) if size else b""
                return await self.create_object(url, data, context=context)
            # Azure's put_file has another option instead of a mode
            options: dict[str, Any] = {"overwrite": False} if self.protocol in _AZURE else {"mode": "create"}
            return await self._create(url, size, context, "put_file", str(path), **options)

    async def delete_objects(self, urls: Sequence[str], *, context: RequestContext) -> None:
        """Delete objects, one call each."""

        async def delete(url: str) -> None:
            try:
                await self._write(url, 0, context, "rm_file")
            except StoreError as error:
                if not is_gone(error):
                    raise

        await call_each(delete, urls)

    async def clock(self, url: str, *, context: RequestContext) -> float:
        """Return the store's time in seconds since the epoch, from a probe object that is written and deleted."""

        async def modified_s(probe: str, context: RequestContext) -> float | None:
            return modified_of(await self._write(probe, 0, context, "info"))

        return await time_of_probe(self, url, context, modified_s)

    async def _create(
        self, url: str, length: int, context: RequestContext, name: str, *arguments: Any, **options: Any
    ) -> bool:
        """Call the method ``name``, which creates the object; return False if the object exists."""
        try:
            await self._write(url, length, context, name, *arguments, **options)
        except ObjectExistsError:
            return False
        return True

    async def _write(
        self, url: str, length: int, context: RequestContext, name: str, *arguments: Any, **options: Any
    ) -> Any:
        path = self.path_of(url)
        # put_file names the local file first
        arguments = (*arguments, path) if name == "put_file" else (path, *arguments)
        context = context.step("write", context.round)
        return await self.ask(RangeRequest(0, length, safe_url(url)), context, name, *arguments, **options)


def _append(path: Path, piece: bytes, url: str) -> None:
    try:
        with path.open("ab") as file:
            file.write(piece)
    except OSError as error:
        raise temporary_file_error(error, url) from error
