"""The store of every other fsspec filesystem (Google Cloud, Azure, memory, HDFS, ...); ``fsspec_writer`` writes.

Each read calls ``info`` before and after it to detect changes, unless the filesystem can name a generation in the path.
Filesystems return no HTTP responses: their calls share the store's limits and its retry budget, and each has a time
limit.
"""

from __future__ import annotations

import asyncio
import datetime
import inspect
import os
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import fsspec
from fsspec.asyn import AsyncFileSystem
from fsspec.dircache import DirCache

from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    InvalidOptionError,
    InvalidResponseError,
    ObjectNotFoundError,
    StoreError,
    ThrottledError,
    TransportError,
    UnsupportedStoreError,
    UsageError,
)
from asyncpq.metrics import Purpose, RequestRecord
from asyncpq.options import RetryOptions
from asyncpq.storage.base import (
    Guarantee,
    ListedObject,
    ObjectExistsError,
    RangeResult,
    RequestContext,
    StoreLimits,
    Unpicklable,
    Validator,
    Wants,
    info_time_s,
    may_change_unseen,
)
from asyncpq.storage.limits import ConnectionLimiter
from asyncpq.storage.responses import RangeRequest, changed, empty, gone
from asyncpq.storage.retries import RETRYABLE_STATUSES, RetryableError, RetryBudget, delay_before_retry_s
from asyncpq.storage.threads import Threads, results_of
from asyncpq.storage.urls import chained_url, refusal, safe_url

T = TypeVar("T")
_FOLDER_HINT = "Session.open_dataset reads a folder of files; in a list, a folder ends in a slash."

_THREADS = 8
_FOLDERS_AT_ONCE = 16
_PINS_GENERATIONS = ("gs", "gcs")  # gcsfs with version_aware=True: "bucket/key#generation"
_MEMORY = threading.Lock()  # fsspec's memory only looks before it writes: this serializes asyncpq's writes
#: The HTTP methods as which calls of a filesystem are counted; all other calls count as GET.
_HTTP_METHODS = {"info": "HEAD", "pipe_file": "PUT", "put_file": "PUT", "rm_file": "DELETE"}
_ETAGS = ("ETag", "etag", "e_tag")
_VERSIONS = ("version_id", "VersionId", "ino")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


class FsspecStore(Unpicklable):
    """The store of one fsspec filesystem; see :class:`asyncpq.storage.base.Store`.

    Raises UnsupportedStoreError if the filesystem's package is not installed, InvalidOptionError if the filesystem
    refuses the options, TransportError if the filesystem connects at once and fails.
    """

    def __init__(
        self, protocol: str, storage_options: Mapping[str, Any], *, retry: RetryOptions, limits: StoreLimits
    ) -> None:
        self.protocol = protocol
        self._retry = retry
        self.limiter: ConnectionLimiter = ConnectionLimiter(limits)
        self._budget = RetryBudget(retry.retry_budget)
        options = {k: v for k, v in storage_options.items() if k not in ("asynchronous", "loop", "skip_instance_cache")}
        try:
            class_ = fsspec.get_filesystem_class(protocol)
        except ImportError as error:
            raise UnsupportedStoreError(
                f"{protocol}:// urls need a package that is not installed: {error}", hint="Install the package."
            ) from error
        if any("target_protocol" in _parameters(base) for base in class_.__mro__):
            raise UnsupportedStoreError(
                f"asyncpq does not support {protocol}:// urls, which wrap another filesystem",
                hint="Copy the Parquet files out of it, and pass their own urls.",
            )
        if protocol in _PINS_GENERATIONS and any("version_aware" in _parameters(base) for base in class_.__mro__):
            options.setdefault("version_aware", True)
        self.pins_generations: bool = protocol in _PINS_GENERATIONS and options.get("version_aware") is True
        self.asynchronous: bool = bool(class_.async_impl)
        if self.asynchronous:
            options["asynchronous"] = True
        try:
            self.filesystem: Any = class_(skip_instance_cache=True, **options)
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidOptionError(
                f"the {protocol} filesystem refuses these storage_options: {refusal(error, options)}"
            ) from None
        except OSError as error:  # some connect when they are made
            raise TransportError(
                f"the {protocol} filesystem cannot be opened ({type(error).__name__})",
                hint=f"Check that the software fsspec requires for {protocol} is installed and set up on this host.",
            ) from error
        self.filesystem.dircache = DirCache(use_listings_cache=False)  # listings are always fresh
        self._threads = Threads(_THREADS, f"asyncpq-{protocol}")
        self._closed = False

    def __repr__(self) -> str:
        return f"<FsspecStore {self.protocol}>"

    async def open_object(self, url: str) -> FsspecObject:
        """Return a handle on an object, without a call of the filesystem."""
        self.check_open()
        if "::" in url:
            raise chained_url(url)
        return FsspecObject(self, self.filesystem._strip_protocol(url), url)

    async def list_objects(
        self, url: str, *, context: RequestContext, wants: Wants | None = None
    ) -> list[ListedObject]:
        """List objects with the filesystem's own ``find`` if it has one, else folder by folder."""
        self.check_open()
        folder_url = url[: url.rindex("/") + 1]
        folder = self.filesystem._strip_protocol(folder_url)
        prefix = folder.rstrip("/") + "/"
        self.filesystem.invalidate_cache()
        infos: Iterable[Mapping[str, Any]]
        if _lists_flat(self.filesystem):
            infos = (await self._list("find", folder, folder_url, context) or {}).values()
        else:
            infos = await self._walk(folder, folder_url, wants, context)
        listed = []
        for info in infos:
            name = str(info.get("name", ""))
            object_url = folder_url + name[len(prefix) :]
            is_file = info.get("type", "file") == "file" and not name.endswith("/") and name.startswith(prefix)
            if is_file and object_url.startswith(url):
                validator = validator_of(info, object_url)
                listed.append(
                    ListedObject(object_url, validator.size, None if is_young(info) else validator, modified_of(info))
                )
        return sorted(listed, key=lambda item: os.fsencode(item.url))

    async def _walk(
        self, folder: str, folder_url: str, wants: Wants | None, context: RequestContext
    ) -> list[Mapping[str, Any]]:
        """List folder by folder; return fsspec's info of each file. fsspec's own walk would skip folders that fail."""
        begin = len(folder.rstrip("/")) + 1
        files: list[Mapping[str, Any]] = []
        folders = [folder]
        while folders:
            batch, folders = folders[:_FOLDERS_AT_ONCE], folders[_FOLDERS_AT_ONCE:]
            listings = await results_of([self._list("ls", path, folder_url, context) for path in batch])
            for path, infos in zip(batch, listings, strict=True):
                for info in infos or ():
                    name = str(info["name"]).rstrip("/")
                    if name == path.rstrip("/"):
                        continue  # the folder itself, or a file of its name
                    if info.get("type") != "directory":
                        files.append(info)
                    elif wants is None or wants(f"{folder_url}{name[begin:]}/"):
                        folders.append(name)
        return files

    async def _list(self, name: str, path: str, url: str, context: RequestContext) -> Any:
        """Return what the filesystem's listing method ``name`` returns for a folder; None if the folder does not
        exist."""
        try:
            return await self.ask(RangeRequest(0, 0, safe_url(url)), context, name, path, detail=True)
        except ObjectNotFoundError:
            return None

    async def credential_identity(self, url: str) -> str:
        """Return "": the filesystem finds its own credentials, and its options already tell users apart in the
        cache."""
        return ""

    async def close(self) -> None:
        """Close the filesystem's connections and threads. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self._threads.close()
        if not self.asynchronous:
            return
        for name in ("_session", "session", "service_client"):  # filesystems give their client's session such names
            try:
                close_client = getattr(getattr(self.filesystem, name, None), "close", None)
            except RuntimeError:  # gcsfs, while it has made no session
                continue
            if close_client is not None:
                closing = close_client()
                if inspect.isawaitable(closing):
                    await closing
                return

    async def ask(
        self, request: RangeRequest, context: RequestContext, name: str, *arguments: Any, **options: Any
    ) -> Any:
        """Call the method ``name`` of the filesystem with retries; each attempt counts as one request."""

        async def once(attempt: int) -> Any:
            with counted(name, context.purpose, request, attempt, context):
                return await self.call(request, name, *arguments, **options)

        return await self.repeat(once, context)

    async def repeat(self, once: Callable[[int], Awaitable[T]], context: RequestContext) -> T:
        """Await ``once(attempt)``, with attempts from 1, until it succeeds or the limits are reached; return its
        result."""
        loop = asyncio.get_running_loop()
        limiter = self.limiter
        attempt = 1
        while True:
            if not limiter.try_take(context.scan):
                await limiter.wait(context.scan)
            sent = loop.time()
            try:
                result = await once(attempt)
                limiter.speed_up()
                self._budget.succeeded(attempt)
                return result
            except RetryableError as failure:
                if isinstance(failure.error, ThrottledError):
                    limiter.slow_down(sent, loop.time())
                delay = delay_before_retry_s(
                    failure, attempt=attempt, options=self._retry, budget=self._budget, now=loop.time()
                )
            finally:
                limiter.give(context.scan)
            attempt += 1
            await asyncio.sleep(delay)

    async def call(self, request: RangeRequest, name: str, *arguments: Any, **options: Any) -> Any:
        """Call the method ``name`` of the filesystem once, with a time limit, and raise its errors as StoreErrors."""
        self.check_open()
        body_bytes = max(0, request.stop - request.start) if name in ("cat_file", "pipe_file", "put_file") else 0
        limit = asyncio.timeout(None if name == "find" else self._longest_call_s(body_bytes))  # find: many requests
        try:
            async with limit:
                if self.asynchronous:
                    return await getattr(self.filesystem, f"_{name}")(*arguments, **options)
                method = getattr(self.filesystem, name)
                if name == "pipe_file":
                    return await asyncio.shield(self._threads.start(_write_locked, method, *arguments, **options))
                return await asyncio.shield(self._threads.start(method, *arguments, **options))
        except AsyncpqError:
            raise
        except Exception as error:  # filesystems pass on their client's exceptions
            raise _typed(error, request, name, timed_out=limit.expired()) from error

    def _longest_call_s(self, length: int) -> float | None:
        """Return the time limit in seconds of a call that transfers ``length`` bytes; None for no limit."""
        retry = self._retry
        if retry.min_throughput_bytes_s <= 0:
            return None
        body_s = max(retry.stall_timeout_s, length / retry.min_throughput_bytes_s)
        return retry.connect_timeout_s + retry.first_byte_timeout_s + body_s

    def check_open(self) -> None:
        if self._closed:
            raise UsageError("the store is closed", hint="Read and write while the session is open.")


class FsspecObject(Unpicklable):
    """A handle on one object; see :class:`asyncpq.storage.base.StoredObject`. ``path`` is the object's path in the
    filesystem's own form."""

    client = "fsspec"
    server = ""

    def __init__(self, store: FsspecStore, path: str, url: str) -> None:
        self.url: str = safe_url(url)
        self._store = store
        self._path = path
        # the token differs for filesystems with different options, without showing the options
        self.identity: str = f"{store.protocol}://{path} {store.filesystem._fs_token}"
        self.guarantee = Guarantee.PINNED if store.pins_generations else Guarantee.BRACKETED
        self._young = False  # the last info's time is too recent to tell the version from the next one

    def __repr__(self) -> str:
        return f"<FsspecObject {self.url}>"

    def learn(self, validator: Validator) -> None:
        """Set the guarantee from a validator. One that has only a size cannot tell versions apart."""
        if self._pins(validator):
            self.guarantee = Guarantee.PINNED
            return
        tells = validator.is_strong or validator.etag is not None or validator.last_modified is not None
        self.guarantee = Guarantee.BRACKETED if tells else Guarantee.NONE

    async def fetch_tail(self, length: int, *, context: RequestContext, pin: Validator | None = None) -> RangeResult:
        return await self._fetch(RangeRequest(-length, 0, self.url, pin), context)

    async def fetch_range(
        self, start: int, stop: int, *, context: RequestContext, pin: Validator | None = None
    ) -> RangeResult:
        return await self._fetch(RangeRequest(start, stop, self.url, pin), context)

    async def close(self) -> None:
        """Do nothing: the handle has no connection to close."""

    async def _fetch(self, request: RangeRequest, context: RequestContext) -> RangeResult:
        return await self._store.repeat(partial(self._fetch_once, request, context), context)

    def _pins(self, validator: Validator) -> bool:
        """Return whether the path that is given to the filesystem can name this version, so that only it is read."""
        return self._store.pins_generations and validator.version is not None

    async def _fetch_once(self, request: RangeRequest, context: RequestContext, attempt: int) -> RangeResult:
        before = request.pin
        validates = before is None or not self._pins(before) or context.purpose == "validate"
        if before is None or (self._pins(before) and validates):
            validator = await self._info(request, context, attempt)
            if before is not None and not before.same_version(validator):
                raise changed(request, "the object has another generation now")
            before = validator
            context = context.step(context.purpose, context.round + 1)
        if before.size == 0:
            raise empty(self.url)
        start = max(0, before.size + request.start) if request.start < 0 else request.start
        stop = before.size if request.start < 0 else request.stop
        if stop > before.size:
            message = f"the object ends at byte {before.size}, before the range does"
            raise InvalidResponseError(message, url=self.url, byte_range=(start, stop))
        pinned = RangeRequest(start, stop, self.url, before)  # the object existed: a missing one has changed
        path = f"{self._path}#{before.version}" if self._pins(before) else self._path
        with counted("cat_file", context.purpose, request, attempt, context) as record:
            data = bytes(await self._store.call(pinned, "cat_file", path, start=start, end=stop))
            record.bytes = len(data)
        if not self._pins(before):
            after = await self._info(pinned, context.step(context.purpose, context.round + 1), attempt)
            if not before.same_version(after) or before.last_modified != after.last_modified:
                raise changed(request, "the filesystem's info of the object differs before and after the read")
        if len(data) != stop - start:
            message = f"the filesystem returned {len(data)} bytes, expected {stop - start}"
            if len(data) < stop - start:
                raise RetryableError(TransportError(message, url=self.url, byte_range=(start, stop)))
            raise InvalidResponseError(message, url=self.url, byte_range=(start, stop))
        self.learn(before)
        if self._young:
            self.guarantee = Guarantee.NONE
        return RangeResult(data, start, before, validates and self.guarantee is not Guarantee.NONE)

    async def _info(self, request: RangeRequest, context: RequestContext, attempt: int) -> Validator:
        self._store.filesystem.invalidate_cache(self._path)
        with counted("info", "stat", RangeRequest(0, 0, self.url), attempt, context):
            info = await self._store.call(request, "info", self._path)
        if info.get("type") == "directory":
            raise ObjectNotFoundError("the url names a folder, not a file", url=self.url, hint=_FOLDER_HINT)
        self._young = is_young(info)
        return validator_of(info, self.url)


@contextmanager
def counted(
    name: str, purpose: Purpose, request: RangeRequest, attempt: int, context: RequestContext
) -> Iterator[RequestRecord]:
    """Count a call of the filesystem's method ``name``, made in the ``with`` block, as a request, and yield its record.
    A failed call has status 0."""
    method, start, stop = _HTTP_METHODS.get(name, "GET"), request.start, request.stop
    began = time.monotonic()
    record = RequestRecord(
        method, purpose, start, stop, 0, 0, attempt, context.round, 0.0, began=began, url=request.url
    )
    try:
        yield record
        record.status = 200
    except RetryableError as failure:
        record.throttled = isinstance(failure.error, ThrottledError)
        raise
    finally:
        record.seconds = time.monotonic() - began
        context.metrics.record(record)


def validator_of(info: Mapping[str, Any], url: str = "") -> Validator:
    """Return the version that a filesystem's ``info()`` describes: the size with a generation, an ETag or times.

    If there is a generation, ETag and times are not used, since those of Google's objects also change with their
    metadata. Raises InvalidResponseError if ``info`` has no size.
    """
    size = info.get("size")
    if not isinstance(size, int):
        raise InvalidResponseError(
            f"the filesystem's info has size {size!r}, expected the object's size in bytes", url=safe_url(url)
        )
    if info.get("generation") is not None:
        return Validator(size=size, version=str(info["generation"]))
    etag, version, modified = (
        next((_text(info[name]) for name in names if info.get(name) is not None), None)
        for names in (_ETAGS, _VERSIONS, _TIMES)
    )
    if version is not None and modified is not None:
        version = f"{version}-{modified}"  # inodes are reused
    return Validator(size=size, etag=etag, last_modified=modified, version=version)


def _text(value: object) -> str:
    """Return ``value`` as text; a datetime as seconds since the epoch, since a filesystem may return both datetimes and
    numbers."""
    return repr(value.timestamp()) if isinstance(value, datetime.datetime) else str(value)


def is_young(info: Mapping[str, Any]) -> bool:
    """Return whether only a time identifies the version, and that time is too recent to tell the version from a next
    one."""
    if any(info.get(name) is not None for name in (*_ETAGS, "version_id", "VersionId", "generation")):
        return False
    return may_change_unseen(modified_of(info), time.time())


def modified_of(info: Mapping[str, Any]) -> float | None:
    """Return the time of the write in seconds since the epoch; None if ``info`` does not have it."""
    return info_time_s(next((info[name] for name in _TIMES if info.get(name) is not None), None))


def _typed(error: Exception, request: RangeRequest, name: str, *, timed_out: bool) -> Exception:
    """Return the asyncpq error for an exception that the filesystem's method ``name`` raised."""
    url, byte_range = request.url, request.byte_range
    match error:
        case FileExistsError():  # of pipe_file alone
            return ObjectExistsError("the object exists already", url=url)
        case TimeoutError():  # an OSError, too
            message = "the filesystem did not answer in time" if timed_out else "the filesystem timed out"
            return RetryableError(TransportError(message, url=url, byte_range=byte_range))
        case FileNotFoundError() | NotADirectoryError():
            return gone(request) if request.pin else ObjectNotFoundError("the object does not exist", url=url)
        case IsADirectoryError():
            return ObjectNotFoundError("the url names a folder, not a file", url=url, hint=_FOLDER_HINT)
        case PermissionError():
            return AccessDeniedError("the filesystem refused access", url=url)
        case NotImplementedError():
            return UnsupportedStoreError(
                "the filesystem cannot read ranges of bytes, which asyncpq needs",
                url=url,
                hint="Copy the file to another store.",
            )
        case OSError():
            message = f"the filesystem failed ({type(error).__name__})"
            return RetryableError(TransportError(message, url=url, byte_range=byte_range))
    status = _status(error)
    if status == 412 and name == "pipe_file":
        return ObjectExistsError("the object exists already", url=url)
    if status in RETRYABLE_STATUSES:
        throttled = status in (429, 503)
        message = f"the store {'asks to slow down' if throttled else 'failed'} (status {status})"
        error_class = ThrottledError if throttled else TransportError
        return RetryableError(error_class(message, url=url, byte_range=byte_range))
    message = f"the filesystem failed ({type(error).__module__}.{type(error).__name__})"
    return StoreError(message, url=url, byte_range=byte_range)


def _status(error: Exception) -> int:
    """Return the HTTP status of a client's exception; 0 if it has none."""
    for name in ("status", "code", "status_code"):
        status = getattr(error, name, None)
        if isinstance(status, int | str) and str(status).isdecimal():
            return int(status)
    return 0


def _write_locked(write: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    with _MEMORY:
        write(*arguments, **options)


def _lists_flat(filesystem: Any) -> bool:
    """Return whether the filesystem has its own ``find``, rather than fsspec's walk."""
    filesystem_class = type(filesystem)
    if issubclass(filesystem_class, AsyncFileSystem):
        return filesystem_class._find is not AsyncFileSystem._find
    return filesystem_class.find is not fsspec.AbstractFileSystem.find


def _parameters(class_: type) -> Mapping[str, Any]:
    initialise = class_.__dict__.get("__init__")  # the class's own signature is that of fsspec's instance cache
    return inspect.signature(initialise).parameters if inspect.isfunction(initialise) else {}
