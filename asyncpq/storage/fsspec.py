"""The store of every other fsspec filesystem (Google Cloud, Azure, memory, HDFS, ...), for reading and writing.

``info`` before and after brackets each read, unless the filesystem can name a generation in the path.
"""

from __future__ import annotations

import asyncio
import inspect
import secrets
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import fsspec
from fsspec.dircache import DirCache

from asyncpq.errors import (
    InvalidOptionError,
    InvalidResponseError,
    ObjectNotFoundError,
    StoreError,
    TransportError,
    UnsupportedStoreError,
    UsageError,
)
from asyncpq.metrics import RequestRecord
from asyncpq.options import RetryOptions
from asyncpq.storage.base import (
    CreateProbe,
    Guarantee,
    ListedObject,
    ObjectExistsError,
    RangeResult,
    RequestContext,
    StoreLimits,
    Unpicklable,
    Validator,
    Wants,
    cannot_create,
    is_gone,
)
from asyncpq.storage.concurrency import Threads, call_each
from asyncpq.storage.connection_limiter import ConnectionLimiter
from asyncpq.storage.fsspec_path import FsspecFolder, FsspecPath, is_young, modified_of, recorded, validator_of
from asyncpq.storage.responses import RangeRequest, changed, empty
from asyncpq.storage.retry import RetryableError, RetryBudget
from asyncpq.storage.urls import refusal, safe_url

_THREADS = 8
_PINS_GENERATIONS = ("gs", "gcs")  # gcsfs with version_aware=True: "bucket/key#generation"


class FsspecStore(Unpicklable):
    """See :class:`asyncpq.storage.base.Store`.

    Args:
        protocol: of fsspec's registry.
        storage_options: of that filesystem.

    Raises:
        UnsupportedStoreError: the filesystem's package is not installed.
        InvalidOptionError: the filesystem does not take the options.
        TransportError: the filesystem connects at once, and fails.
    """

    def __init__(
        self, protocol: str, storage_options: Mapping[str, Any], *, retry: RetryOptions, limits: StoreLimits
    ) -> None:
        self.protocol = protocol
        self.retry = retry
        self.limiter = ConnectionLimiter(limits)
        self.budget = RetryBudget(retry.retry_budget)
        options = {k: v for k, v in storage_options.items() if k not in ("asynchronous", "loop", "skip_instance_cache")}
        try:
            class_ = fsspec.get_filesystem_class(protocol)
        except ImportError as error:
            raise UnsupportedStoreError(
                f"{protocol}:// needs a package that is not installed", hint=str(error)
            ) from error
        if any("target_protocol" in _parameters(base) for base in class_.__mro__):
            raise UnsupportedStoreError(f"{protocol}:// urls are not read: they wrap another filesystem")
        if protocol in _PINS_GENERATIONS and any("version_aware" in _parameters(base) for base in class_.__mro__):
            options.setdefault("version_aware", True)
        self.pins_generations = protocol in _PINS_GENERATIONS and options.get("version_aware") is True
        self._asynchronous = bool(class_.async_impl)
        if self._asynchronous:
            options["asynchronous"] = True
        try:
            self.filesystem: Any = class_(skip_instance_cache=True, **options)
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidOptionError(
                f"the {protocol} filesystem does not take these storage_options: {refusal(error, options)}"
            ) from None
        except OSError as error:  # some connect when they are made
            raise TransportError(
                f"the {protocol} filesystem cannot be opened ({type(error).__name__})",
                hint=f"Is what fsspec needs for {protocol} installed and set up on this host?",
            ) from error
        self.filesystem.dircache = DirCache(use_listings_cache=False)  # listings are always fresh
        self._threads = Threads(_THREADS, f"asyncpq-{protocol}")
        self._closed = False

    def __repr__(self) -> str:
        return f"<FsspecStore {self.protocol}>"

    async def open_object(self, url: str) -> FsspecObject:
        """Make a handle, without a call of the filesystem."""
        if self._closed:
            raise UsageError("the store is closed", hint="Read while the session is open.")
        if "::" in url:
            raise UnsupportedStoreError("chained urls are not read", url=safe_url(url))
        path = self.filesystem._strip_protocol(url)
        return FsspecObject(self, path, url)

    async def list_objects(
        self, url: str, *, context: RequestContext, wants: Wants | None = None
    ) -> list[ListedObject]:
        """See :meth:`asyncpq.storage.base.Store.list_objects`: by the filesystem's ``find``, without its cache."""
        if self._closed:
            raise UsageError("the store is closed", hint="Read while the session is open.")
        folder = url[: url.rindex("/") + 1]
        below = await FsspecFolder(self, self.filesystem._strip_protocol(folder), folder).fetch(context, wants)
        return [listed for listed in below if listed.url.startswith(url)]

    async def credential_identity(self, url: str) -> str:
        """ "": the filesystem finds its own credentials; its options tell readers apart."""
        return ""

    async def close(self) -> None:
        """Close the filesystem's connections and threads. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self._threads.close()
        if self._asynchronous:
            await _close_client(self.filesystem)

    async def call(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the filesystem: its coroutine, or in a thread."""
        if self._closed:
            raise UsageError("the store is closed", hint="Read while the session is open.")
        if self._asynchronous:
            return await getattr(self.filesystem, f"_{name}")(*arguments, **options)
        method: Callable[..., Any] = getattr(self.filesystem, name)
        return await asyncio.shield(self._threads.start(method, *arguments, **options))


class FsspecObject(FsspecPath):
    """See :class:`asyncpq.storage.base.StoredObject`. Made by FsspecStore."""

    client = "fsspec"
    server = ""

    def __init__(self, store: FsspecStore, path: str, url: str) -> None:
        super().__init__(store, path, url)
        self.identity = f"{store.protocol}://{path} {_token(store.filesystem)}"
        self.guarantee = Guarantee.PINNED if store.pins_generations else Guarantee.BRACKETED
        self._young = False  # the last info's time is too recent to tell the version from the next one

    def __repr__(self) -> str:
        return f"<FsspecObject {self.url}>"

    def learn(self, validator: Validator) -> None:
        """See :meth:`asyncpq.storage.base.StoredObject.learn`. A size alone tells no versions apart."""
        if self._pins(validator):
            self.guarantee = Guarantee.PINNED
            return
        told = validator.is_strong or validator.etag is not None or validator.last_modified is not None
        self.guarantee = Guarantee.BRACKETED if told else Guarantee.NONE

    async def fetch_tail(self, length: int, *, context: RequestContext, pin: Validator | None = None) -> RangeResult:
        return await self._fetch(RangeRequest(-length, 0, self.url, pin), context)

    async def fetch_range(
        self, start: int, stop: int, *, context: RequestContext, pin: Validator | None = None
    ) -> RangeResult:
        return await self._fetch(RangeRequest(start, stop, self.url, pin), context)

    async def close(self) -> None:
        """Do nothing: the handle holds nothing."""

    async def _fetch(self, request: RangeRequest, context: RequestContext) -> RangeResult:
        return await self._with_retries(
            lambda attempt: self._fetch_once(request, context, attempt), context, request.byte_range
        )

    def _pins(self, validator: Validator) -> bool:
        """Whether the path can name the version."""
        return self._store.pins_generations and validator.version is not None

    async def _fetch_once(self, request: RangeRequest, context: RequestContext, attempt: int) -> RangeResult:
        before = request.pin
        validates = before is None or not self._pins(before) or context.purpose == "validate"
        if before is None or (self._pins(before) and validates):
            validator = await self._info(request, context, attempt)
            if before is not None and not before.same_version(validator):
                raise changed(request, "it has another generation")
            before = validator
            context = context.step(context.purpose, context.round + 1)
        if before.size == 0:
            raise empty(self.url)
        start = max(0, before.size + request.start) if request.start < 0 else request.start
        stop = before.size if request.start < 0 else request.stop
        if stop > before.size:
            raise InvalidResponseError(
                f"the object ends at byte {before.size}, before the range does", url=self.url, byte_range=(start, stop)
            )
        named = RangeRequest(start, stop, self.url, before)  # the object existed: a missing one has changed
        path = f"{self._path}#{before.version}" if self._pins(before) else self._path
        record = RequestRecord("GET", context.purpose, request.start, request.stop, 0, 0, attempt, context.round, 0.0)
        with recorded(record, context):
            data = bytes(await self._call(named, "cat_file", path, start=start, end=stop))
            record.bytes = len(data)
        if not self._pins(before):
            after = await self._info(named, context.step(context.purpose, context.round + 1), attempt)
            if not before.same_version(after) or before.last_modified != after.last_modified:
                raise changed(request, "its info differs before and after")
        if len(data) != stop - start:
            message = f"the filesystem gave {len(data)} bytes instead of {stop - start}"
            if len(data) < stop - start:
                raise RetryableError(TransportError(message, url=self.url, byte_range=(start, stop)))
            raise InvalidResponseError(message, url=self.url, byte_range=(start, stop))
        self.learn(before)
        if self._young:
            self.guarantee = Guarantee.NONE
        return RangeResult(data, start, before, validates and self.guarantee is not Guarantee.NONE)

    async def _info(self, request: RangeRequest, context: RequestContext, attempt: int) -> Validator:
        self._store.filesystem.invalidate_cache(self._path)
        with recorded(RequestRecord("HEAD", "stat", 0, 0, 0, 0, attempt, context.round, 0.0), context):
            info = await self._call(request, "info", self._path)
        if info.get("type") == "directory":
            raise ObjectNotFoundError("it is a directory", url=self.url)
        if not isinstance(info.get("size"), int):
            raise InvalidResponseError("the filesystem does not give the object's size", url=self.url)
        self._young = is_young(info)
        return validator_of(info)


def _parameters(class_: type) -> Mapping[str, Any]:
    initialise = class_.__dict__.get("__init__")  # the class's own signature is that of fsspec's instance cache
    return inspect.signature(initialise).parameters if inspect.isfunction(initialise) else {}


def _token(filesystem: Any) -> str:
    """A text that differs for filesystems with different options, without showing the options."""
    return str(filesystem._fs_token)


async def _close_client(filesystem: Any) -> None:
    """Close the client session of an asynchronous filesystem, under each name that filesystems give it."""
    for name in ("_session", "session", "service_client"):
        close = getattr(getattr(filesystem, name, None), "close", None)
        if close is not None:
            outcome = close()
            if inspect.isawaitable(outcome):
                await outcome
            return


#: Stores that create in one step: Google's (a generation must match), Azure's (If-None-Match), and this process's
#: memory. Others of fsspec accept ``mode="create"`` but only look before they write.
WRITABLE_PROTOCOLS = frozenset({"gs", "gcs", "abfs", "abfss", "az", "memory"})

_WHOLE_BYTES = 8 * 1024 * 1024  # objects up to this size are sent by one call

_MEMORY = threading.Lock()  # fsspec's memory only looks first too: this serializes asyncpq's writes


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
        """Create an object; False if it exists.

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
        """Whether the filesystem refuses an existing object; tried once for each bucket."""
        place = self.filesystem._strip_protocol(url).lstrip("/").partition("/")[0]
        return await self._create_probe.ask(self, place, url, context)

    async def put_file(self, url: str, path: Path, *, context: RequestContext) -> None:
        """Create or replace an object by a file."""
        try:
            size = (await asyncio.to_thread(path.stat)).st_size
            if self._asynchronous:
                await self._write(url, "PUT", size, context, "put_file", str(path))
            else:  # the memory filesystem's put_file shows a growing object
                await self.put_object(url, await asyncio.to_thread(path.read_bytes), context=context)
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"the file to be stored cannot be read: {error.strerror}", url=safe_url(url)) from error

    async def create_stream(self, url: str, pieces: AsyncIterator[bytes], *, context: RequestContext) -> bool:
        """Create an object from ``pieces``, through a local file if they are large; False if it exists."""
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
            # Azure's put_file has no mode, and replaces nothing by default
            named = "mode" in inspect.signature(self.filesystem._put_file).parameters
            try:
                await self._write(
                    url, "PUT", size, context, "put_file", str(path), **({"mode": "create"} if named else {})
                )
            except ObjectExistsError:
                return False
        return True

    async def delete_objects(self, urls: Sequence[str], *, context: RequestContext) -> None:
        """Delete objects, one call each."""

        async def delete(url: str) -> None:
            try:
                await self._write(url, "DELETE", 0, context, "rm_file")
            except StoreError as error:
                if not is_gone(error):
                    raise

        await call_each(delete, urls)

    async def clock(self, url: str, *, context: RequestContext) -> float:
        """The time that the store gives to a probe written now: filesystems do not show a response's Date."""
        probe = f"{url[: url.rindex('/') + 1]}.clock-{secrets.token_hex(8)}"
        await self.put_object(probe, b"1", context=context)
        context = context.step(context.purpose, context.round + 1)
        try:
            info = await self._write(probe, "HEAD", 0, context, "info")
        finally:
            await self.delete_objects([probe], context=context.step(context.purpose, context.round + 1))
        modified = modified_of(info)
        if modified is None:
            raise InvalidResponseError("the filesystem does not give an object's time of change", url=safe_url(url))
        return modified

    def _creates(self) -> bool:
        """Whether the filesystem's write takes a mode, or passes it on."""
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
    """An object to be written."""

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
