"""Calls of an fsspec filesystem: counted, timed out, retried, with typed errors; and the listing of a folder."""

from __future__ import annotations

import asyncio
import datetime
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import fsspec
from fsspec.asyn import AsyncFileSystem

from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    InvalidResponseError,
    ObjectNotFoundError,
    StoreError,
    ThrottledError,
    TransportError,
    UnsupportedStoreError,
)
from asyncpq.metrics import RequestRecord
from asyncpq.options import RetryOptions
from asyncpq.storage.base import (
    ListedObject,
    ObjectExistsError,
    RequestContext,
    Unpicklable,
    Validator,
    Wants,
    info_time_s,
    may_change_unseen,
)
from asyncpq.storage.responses import RangeRequest, changed
from asyncpq.storage.retry import RETRYABLE_STATUSES, RetryableError, delay_before_retry_s
from asyncpq.storage.urls import safe_url
from asyncpq.storage.watchdog import within_deadline

if TYPE_CHECKING:
    from asyncpq.storage.fsspec import FsspecStore


T = TypeVar("T")

_ETAGS = ("ETag", "etag", "e_tag")
_VERSIONS = ("version_id", "VersionId", "ino")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


class FsspecPath(Unpicklable):
    """A path of the store's filesystem.

    Args:
        path: in the filesystem's own form.
    """

    def __init__(self, store: FsspecStore, path: str, url: str) -> None:
        self.url = safe_url(url)
        self._store = store
        self._path = path

    async def _with_retries(
        self,
        once: Callable[[int], Awaitable[T]],
        context: RequestContext,
        byte_range: tuple[int, int] | None = None,
    ) -> T:
        """Call ``once(attempt)`` within the store's limits and the read's deadline."""
        return await within_deadline(self._repeat(once, context), context.deadline, self.url, byte_range)

    async def _repeat(self, once: Callable[[int], Awaitable[T]], context: RequestContext) -> T:
        loop = asyncio.get_running_loop()
        store = self._store
        attempt = 1
        while True:
            if not store.limiter.try_take(context.scan):
                await store.limiter.wait(context.scan)
            sent = loop.time()
            try:
                result = await once(attempt)
                store.limiter.speed_up()
                store.budget.succeeded(attempt)
                return result
            except RetryableError as failure:
                if isinstance(failure.error, ThrottledError):
                    store.limiter.slow_down(sent, loop.time())
                delay = delay_before_retry_s(
                    failure,
                    attempt=attempt,
                    options=store.retry,
                    budget=store.budget,
                    now=loop.time(),
                    deadline=context.deadline,
                )
            finally:
                store.limiter.give(context.scan)
            attempt += 1
            await asyncio.sleep(delay)

    async def _call(self, request: RangeRequest, name: str, *arguments: Any, **options: Any) -> Any:
        retry = self._store.retry
        body_bytes = max(0, request.stop - request.start) if name in ("cat_file", "pipe_file", "put_file") else 0
        limit = asyncio.timeout(None if name == "find" else _patience_s(retry, body_bytes))  # find: many requests
        try:
            async with limit:
                return await self._store.call(name, *arguments, **options)
        except AsyncpqError:
            raise
        except FileExistsError as error:  # of pipe_file alone
            raise ObjectExistsError("the object exists already", url=self.url) from error
        except TimeoutError as error:  # an OSError, too
            message = "the filesystem did not answer in time" if limit.expired() else "the filesystem timed out"
            raise RetryableError(TransportError(message, url=self.url, byte_range=request.byte_range)) from error
        except (FileNotFoundError, NotADirectoryError) as error:
            if request.pin is not None:
                raise changed(request, "it is gone") from error
            raise ObjectNotFoundError("no such object", url=self.url) from error
        except IsADirectoryError as error:
            raise ObjectNotFoundError("it is a directory", url=self.url) from error
        except PermissionError as error:
            raise AccessDeniedError("the filesystem refused access", url=self.url) from error
        except NotImplementedError as error:
            raise UnsupportedStoreError("the filesystem cannot read ranges", url=self.url) from error
        except OSError as error:
            message = f"the filesystem failed ({type(error).__name__})"
            raise RetryableError(TransportError(message, url=self.url, byte_range=request.byte_range)) from error
        except Exception as error:  # filesystems pass on their client's exceptions
            raise self._client_error(error, request, name) from error

    def _client_error(self, error: Exception, request: RangeRequest, name: str) -> Exception:
        """The error for an exception of the filesystem's client."""
        status = _status(error)
        if status == 412 and name == "pipe_file":
            return ObjectExistsError("the object exists already", url=self.url)
        if status in RETRYABLE_STATUSES:
            throttled = status in (429, 503)
            message = f"the store {'asks to slow down' if throttled else 'failed'} (status {status})"
            error_class = ThrottledError if throttled else TransportError
            return RetryableError(error_class(message, url=self.url, byte_range=request.byte_range))
        message = f"the filesystem failed ({type(error).__module__}.{type(error).__name__})"
        return StoreError(message, url=self.url, byte_range=request.byte_range)


@contextmanager
def recorded(record: RequestRecord, context: RequestContext) -> Iterator[None]:
    """Count one call; a failed one has no status."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        yield
        record.status = 200
    except RetryableError as failure:
        record.throttled = isinstance(failure.error, ThrottledError)
        raise
    finally:
        record.seconds = loop.time() - began
        context.metrics.record(record)


def validator_of(info: Mapping[str, Any]) -> Validator:
    """The validator in a filesystem's ``info``.

    A generation is enough: ETag and times of Google's objects change with their metadata too.
    """
    if info.get("generation") is not None:
        return Validator(size=int(info["size"]), version=str(info["generation"]))
    etag, version, modified = (
        next((_text(info[name]) for name in names if info.get(name) is not None), None)
        for names in (_ETAGS, _VERSIONS, _TIMES)
    )
    if version is not None and modified is not None:
        version = f"{version}-{modified}"  # inodes are reused
    return Validator(size=int(info["size"]), etag=etag, last_modified=modified, version=version)


def _text(value: object) -> str:
    """A time as seconds: a filesystem may give a datetime in ``info`` and a number in listings."""
    if isinstance(value, datetime.datetime):
        return repr(value.timestamp())
    return str(value)


def is_young(info: Mapping[str, Any]) -> bool:
    """Whether the only sign of the version is a time too recent to tell it from the next one."""
    if any(info.get(name) is not None for name in (*_ETAGS, "version_id", "VersionId", "generation")):
        return False
    return may_change_unseen(modified_of(info), time.time())


def modified_of(info: Mapping[str, Any]) -> float | None:
    """Time of the write in seconds since the epoch; None if the filesystem does not give it."""
    return info_time_s(next((info[name] for name in _TIMES if info.get(name) is not None), None))


def _patience_s(retry: RetryOptions, length: int) -> float | None:
    """Longest time of one call: the timeouts of a connection, and the slowest allowed body of ``length`` bytes."""
    if retry.min_throughput_bytes_s <= 0:
        return None
    body_s = max(retry.stall_timeout_s, length / retry.min_throughput_bytes_s)
    return retry.connect_timeout_s + retry.first_byte_timeout_s + body_s


def _status(error: Exception) -> int:
    """The HTTP status of a client's exception, or 0."""
    for name in ("status", "code", "status_code"):
        status = getattr(error, name, None)
        if isinstance(status, int | str) and str(status).isdecimal():
            return int(status)
    return 0


_AT_ONCE = 16  # folders that are listed at once


class FsspecFolder(FsspecPath):
    """A folder; its url ends in a slash. Made by FsspecStore."""

    def __init__(self, store: FsspecStore, path: str, url: str) -> None:
        super().__init__(store, path, url)
        self._folder = url

    async def fetch(self, context: RequestContext, wants: Wants | None) -> list[ListedObject]:
        """List the files below, in bytewise order; none if the folder does not exist."""
        self._store.filesystem.invalidate_cache()
        if _lists_flat(self._store.filesystem):
            infos = list((await self._ask("find", self._path, context)).values())
        else:
            infos = await self._walk(context, wants)
        listed = [item for info in infos if (item := self._listed(info)) is not None]
        return sorted(listed, key=lambda item: os.fsencode(item.url))

    async def _walk(self, context: RequestContext, wants: Wants | None) -> list[Mapping[str, Any]]:
        """List folder by folder. fsspec's own walk skips folders that it fails to list."""
        files: list[Mapping[str, Any]] = []
        folders = [self._path]
        while folders:
            listings = await self._ask_many(folders[:_AT_ONCE], context)
            del folders[:_AT_ONCE]
            for folder, infos in listings:
                for info in infos:
                    name = str(info["name"]).rstrip("/")
                    if name == folder.rstrip("/"):
                        continue  # the folder itself, or a file of its name
                    if info.get("type") == "directory":
                        if wants is None or wants(self._url_of(name) + "/"):
                            folders.append(name)
                    else:
                        files.append(info)
        return files

    async def _ask_many(
        self, folders: Sequence[str], context: RequestContext
    ) -> list[tuple[str, Sequence[Mapping[str, Any]]]]:
        tasks = [asyncio.ensure_future(self._ask("ls", folder, context)) for folder in folders]
        try:
            return [(folder, await task) for folder, task in zip(folders, tasks, strict=True)]
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)

    async def _ask(self, name: str, path: str, context: RequestContext) -> Any:
        async def once(attempt: int) -> Any:
            record = RequestRecord("GET", context.purpose, 0, 0, 0, 0, attempt, context.round, 0.0)
            with recorded(record, context):
                return await self._call(RangeRequest(0, 0, self.url), name, path, detail=True)

        try:
            return await self._with_retries(once, context)
        except ObjectNotFoundError:  # also one that vanished meanwhile
            return {} if name == "find" else []

    def _listed(self, info: Mapping[str, Any]) -> ListedObject | None:
        name = str(info.get("name", ""))
        if (
            info.get("type", "file") != "file"
            or name.endswith("/")
            or not name.startswith(self._path.rstrip("/") + "/")
        ):
            return None
        url = self._url_of(name)
        if not isinstance(info.get("size"), int):
            raise InvalidResponseError("the filesystem does not give the object's size", url=safe_url(url))
        return ListedObject(url, info["size"], None if is_young(info) else validator_of(info), modified_of(info))

    def _url_of(self, name: str) -> str:
        return self._folder + name[len(self._path.rstrip("/")) + 1 :]


def _lists_flat(filesystem: Any) -> bool:
    """Whether ``find`` is the filesystem's own, not fsspec's walk."""
    filesystem_class = type(filesystem)
    if issubclass(filesystem_class, AsyncFileSystem):
        return filesystem_class._find is not AsyncFileSystem._find
    return filesystem_class.find is not fsspec.AbstractFileSystem.find
