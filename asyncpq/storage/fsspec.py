"""The store of every other fsspec filesystem (Google Cloud, Azure, memory, HDFS, ...); ``fsspec_writer`` writes.

Each read calls ``info`` before and after it to detect changes, unless the filesystem can name a generation in the path.
Filesystems return no HTTP responses: their calls share the store's limits and its retry budget, and each has a time
limit (``foreign_calls``).
"""

from __future__ import annotations

import asyncio
import datetime
import inspect
import os
import re
import socket
import ssl
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import fsspec
from fsspec.asyn import AsyncFileSystem, sync
from fsspec.core import strip_protocol
from fsspec.dircache import DirCache
from fsspec.utils import tokenize

from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    Hint,
    InvalidOptionError,
    InvalidResponseError,
    ObjectNotFoundError,
    StoreError,
    ThrottledError,
    TransportError,
    UnsupportedStoreError,
)
from asyncpq.metrics import Purpose, RequestRecord
from asyncpq.options import RetryOptions
from asyncpq.storage.base import (
    FirstNames,
    Guarantee,
    ListedObject,
    ListedObjects,
    ObjectExistsError,
    RangeResult,
    RequestContext,
    StoreLimits,
    Unpicklable,
    Validator,
    Wants,
    closed_store,
    info_time_s,
    may_change_unseen,
)
from asyncpq.storage.foreign_calls import ForeignCall, ForeignCalls
from asyncpq.storage.limits import ConnectionLimiter, ListingLimit
from asyncpq.storage.response_checks import RangeRequest, changed, empty, gone
from asyncpq.storage.retries import RETRYABLE_STATUSES, Attempts, RetryableError, RetryBudget
from asyncpq.storage.threads import CLOSE_S, Threads, results_of
from asyncpq.storage.urls import (
    FOLDER_HINT,
    RENEWAL,
    chained_url,
    is_s3_option,
    refusal,
    safe_url,
    split_url,
    unknown_option,
)

T = TypeVar("T")

_THREADS = 8
#: Filesystems with one connection that takes one call at a time: others mix up the answers, or wait for ever.
_ONE_AT_A_TIME = ("fsspec.implementations.ftp", "fsspec.implementations.sftp")
_MARK = re.compile("[?#]")  # of a url's query and fragment
_FOLDERS_AT_ONCE = 16
_LONGEST_FOLDER = 16 * 1024  # characters, above the limits of all systems
_PINS_GENERATIONS = ("gs", "gcs")  # gcsfs with version_aware=True: "bucket/key#generation"
#: Modules of filesystems that ignore options that they do not know; others may pass them on.
_IGNORES_OPTIONS = ("adlfs.", "gcsfs.", "fsspec.implementations.memory")
_MEMORY = threading.Lock()  # fsspec's memory only looks before it writes: this serializes asyncpq's writes
#: The HTTP methods as which calls of a filesystem are counted; all other calls count as GET.
_HTTP_METHODS = {"info": "HEAD", "pipe_file": "PUT", "put_file": "PUT", "rm_file": "DELETE"}
_LISTINGS = ("find", "ls")
_GOOGLE_CLIENTS = Hint(
    "Install gcsfs or obstore. To read through obstore, pass "
    'storage_options={"gs": {"obstore": {"service_account": "key.json"}}}.',
    "Install gcsfs, and set GOOGLE_APPLICATION_CREDENTIALS to a file with a key.",
)
_AZURE_CLIENTS = Hint(
    "Install adlfs or obstore. To read through obstore, pass "
    'storage_options={"az": {"obstore": {"account_name": ..., "account_key": ...}}}.',
    "Install adlfs, and set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY.",
)
#: The packages that serve a protocol, where fsspec's is not the only one.
CLIENTS: Mapping[str, str] = {
    **dict.fromkeys(("gs", "gcs"), _GOOGLE_CLIENTS),
    **dict.fromkeys(("abfs", "abfss", "az"), _AZURE_CLIENTS),
}
_AZURE = Hint(
    "Pass account_name and account_key (or sas_token, or connection_string) in storage_options, or anon=True for "
    "public objects.",
    "Set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY.",
)
_GOOGLE = Hint(
    'Pass token="key.json" in storage_options, or token="anon" for public objects.',
    "Set GOOGLE_APPLICATION_CREDENTIALS to a file with a key.",
)
#: How to log in to filesystems.
_ACCESS: Mapping[str, str] = {
    **dict.fromkeys(("abfs", "abfss", "az"), _AZURE),
    **dict.fromkeys(("gs", "gcs"), _GOOGLE),
    "adl": "Its service, Azure Data Lake Storage Gen1, ended: write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH.",
}
#: In the names of exceptions about credentials. Azure's signing fails where a key is malformed.
_DENIED = ("Authentication", "Credentials", "Signing")
_ETAGS = ("ETag", "etag", "e_tag")
_VERSIONS = ("version_id", "VersionId", "ino", "fileId")
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "modificationTime", "created")


class FsspecStore(Unpicklable):
    """The store of one fsspec filesystem; see :class:`asyncpq.storage.base.Store`.

    Raises UnsupportedStoreError if the filesystem's package is not installed, InvalidOptionError if the filesystem
    refuses the options, TransportError if the filesystem connects at once and fails.
    """

    def __init__(
        self,
        protocol: str,
        storage_options: Mapping[str, Any],
        *,
        retry: RetryOptions,
        limits: StoreLimits,
        place: Mapping[str, Any] | None = None,
    ) -> None:
        self.protocol = protocol
        self._place = place
        self._retry = retry
        self.limiter: ConnectionLimiter = ConnectionLimiter(limits)
        self._limits = limits
        self._budget = RetryBudget(retry.retry_budget)
        unused = ("asynchronous", "loop", "skip_instance_cache", RENEWAL)
        options = {name: value for name, value in storage_options.items() if name not in unused}
        self._renewal: Any = storage_options.get(RENEWAL)
        try:
            class_ = fsspec.get_filesystem_class(protocol)
        except ImportError as error:
            raise _not_importable(protocol, error) from error
        except AttributeError as error:  # adlfs has no class for adl:// any more
            raise UnsupportedStoreError(
                f"the installed package has no filesystem for {protocol}:// urls", hint=_ACCESS.get(protocol)
            ) from error
        if any("target_protocol" in _parameters(base) for base in class_.__mro__):
            raise UnsupportedStoreError(
                f"asyncpq does not support {protocol}:// urls, which wrap another filesystem",
                hint="Copy the Parquet files out of it, and pass their own urls.",
            )
        if class_.__module__.startswith(_IGNORES_OPTIONS):
            known = set().union(*map(_parameters, class_.__mro__))
            foreign = [name for name in options if is_s3_option(name) and name not in known]
            if foreign:
                refused = unknown_option(protocol, foreign, known)
                if protocol in _ACCESS:
                    access = f"For {protocol}: " + _ACCESS[protocol]
                    refused.hint = access if refused.hint is None else refused.hint + " " + access
                raise refused
        if protocol in _PINS_GENERATIONS and any("version_aware" in _parameters(base) for base in class_.__mro__):
            options.setdefault("version_aware", True)
        self.pins_generations: bool = protocol in _PINS_GENERATIONS and options.get("version_aware") is True
        self.asynchronous: bool = bool(class_.async_impl)
        if self.asynchronous:
            options["asynchronous"] = True
        options |= _added(place or {}, options, protocol)
        try:
            self.filesystem: Any = self._make(class_, options)
        except (TypeError, ValueError, KeyError) as error:
            missing = _missing(class_, options)
            why = f"{', '.join(missing)} missing" if missing else refusal(error, options)
            raise InvalidOptionError(
                f"the {protocol} filesystem refuses these storage_options: {why}", hint=_access_hint(protocol, missing)
            ) from None
        except OSError as error:  # some connect when they are made
            raise TransportError(
                f"the {protocol} filesystem cannot be opened ({type(error).__name__})",
                hint=_ACCESS.get(protocol)
                or f"Check the url, and that the software fsspec requires for {protocol} is set up on this host.",
            ) from error
        except Exception as error:  # of the client
            raise StoreError(
                f"the {protocol} filesystem cannot be opened ({type(error).__module__}.{type(error).__name__})",
                hint="Check the url and "
                + Hint(f"the storage_options for {protocol}.", f"what the environment sets for {protocol}."),
            ) from error
        self._class, self._options = class_, options
        self._replaced: Any = None  # the filesystem whose credentials expired last: calls may still be under way
        # Of cache keys. Credentials that a catalog renews are no part of it: the namespace says whose they are.
        self.token: str = "" if self._renewal is not None else _token(self.filesystem)
        self._has_credential = "credential" in options  # the caller's, who closes it
        threads = 1 if any(base.__module__ in _ONE_AT_A_TIME for base in class_.__mro__) else _THREADS
        self._threads = Threads(threads, f"asyncpq-{protocol}")
        self._reads_parts = _reads_parts(class_)
        self._calls = ForeignCalls()
        self._closed = False

    def __repr__(self) -> str:
        return f"<FsspecStore {self.protocol}>"

    def _make(self, class_: Any, options: dict[str, Any]) -> Any:
        if self._renewal is not None and class_.__module__.startswith("gcsfs."):
            options = {**options, "token": _google_credentials(options["token"])}
        try:
            filesystem = class_(skip_instance_cache=True, **options)
        except ValueError as error:
            if isinstance(error.__cause__, OSError):  # smbprotocol could not connect
                raise error.__cause__ from None
            raise
        except RuntimeError:
            if not self.asynchronous:
                raise
            # sshfs connects when it is made, which it can do in fsspec's own event loop only, and hands on all options
            self.asynchronous = False
            options = {name: value for name, value in options.items() if name != "asynchronous"}
            filesystem = class_(skip_instance_cache=True, **options)
        _drop_finalizers(filesystem)
        filesystem.dircache = DirCache(use_listings_cache=False)  # listings are always fresh
        return filesystem

    async def _renew(self, expired: Any, renew: Callable[[Mapping[str, Any]], Awaitable[Mapping[str, Any]]]) -> None:
        """Replace the filesystem ``expired`` by one with the credentials of ``renew``, unless another call has done so.
        Raises CredentialsError if there are none."""
        newer = await renew(self._options)
        if self.filesystem is not expired:
            return
        unused, self._replaced = self._replaced, expired
        self._options = {**self._options, **newer}
        self.filesystem = self._make(self._class, self._options)
        if unused is not None:
            await self._close_clients(unused)

    def _check_place(self, url: str) -> None:
        """Raise InvalidOptionError if ``url`` is of another host or user than the store."""
        if self._place is not None and place_of(self.protocol, url) != self._place:
            raise InvalidOptionError(
                "the url has another host or user than the others", url=safe_url(url), hint="Read each place by itself."
            )

    def path_of(self, url: str) -> str:
        """Return the path of ``url`` in the filesystem's own form."""
        url = _lowered(url)
        path: str = strip_protocol(url)
        mark = _MARK.search(url)
        if mark is not None and strip_protocol(url[: mark.start()]) == path:  # ftp and sftp cut names off there
            path += url[mark.start() :]
        return path

    async def open_object(self, url: str) -> FsspecObject:
        """Return a handle on an object, without a call of the filesystem."""
        self.check_open()
        if "::" in url:
            raise chained_url(url)
        self._check_place(url)
        return FsspecObject(self, self.path_of(url), url)

    async def list_objects(
        self, url: str, *, context: RequestContext, wants: Wants | None = None
    ) -> Sequence[ListedObject]:
        """List objects with the filesystem's own ``find`` if it has one, else folder by folder."""
        self.check_open()
        self._check_place(url)
        folder_url = url[: url.rindex("/") + 1]
        folder = self.path_of(folder_url)
        prefix = folder.rstrip("/") + "/"
        self.filesystem.invalidate_cache()
        limit = ListingLimit(safe_url(url), self._limits.max_listed_objects)
        infos: Iterable[Mapping[str, Any]]
        if _lists_flat(self.filesystem):
            infos = (await self._list("find", folder, folder_url, context) or {}).values()
        else:
            infos = await self._walk(folder, folder_url, wants, limit, context)
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
        limit.check(len(listed))
        return ListedObjects.of(sorted(listed, key=lambda item: os.fsencode(item.url)))

    async def first_names(self, url: str, *, context: RequestContext) -> FirstNames:
        """Return what a folder holds directly, by the filesystem's own ``ls``."""
        self.check_open()
        self._check_place(url)
        folder = self.path_of(url)
        self.filesystem.invalidate_cache()
        begin, names = len(folder.rstrip("/")) + 1, list[str]()
        for info in await self._list("ls", folder, url, context) or ():
            name = str(info["name"]).rstrip("/")[begin:]
            names.append(f"{url}{name}{'/' * (info.get('type') == 'directory')}")
        return FirstNames(names, True)

    async def _walk(
        self, folder: str, folder_url: str, wants: Wants | None, limit: ListingLimit, context: RequestContext
    ) -> list[Mapping[str, Any]]:
        """List folder by folder; return fsspec's info of each file. fsspec's own walk would skip folders that fail."""
        begin = len(folder.rstrip("/")) + 1
        files: list[Mapping[str, Any]] = []
        folders = [folder]
        while folders:
            batch, folders = folders[:_FOLDERS_AT_ONCE], folders[_FOLDERS_AT_ONCE:]
            listings = await results_of([self._list("ls", path, folder_url, context) for path in batch])
            for path, infos in zip(batch, listings, strict=True):
                limit.receive(len(infos or ()))
                for info in infos or ():
                    name = str(info["name"]).rstrip("/")
                    if name == path.rstrip("/"):
                        continue  # the folder itself, or a file of its name
                    if info.get("type") != "directory":
                        files.append(info)
                    elif wants is None or wants(f"{folder_url}{name[begin:]}/"):
                        if len(name) > _LONGEST_FOLDER:
                            raise limit.endless("folders lie in folders without an end")
                        folders.append(name)
        return files

    async def _list(self, name: str, path: str, url: str, context: RequestContext) -> Any:
        """Return the result of the filesystem's listing method ``name`` for a folder; None if it does not exist."""
        try:
            return await self.ask(RangeRequest(0, 0, safe_url(url)), context, name, path, detail=True)
        except ObjectNotFoundError:
            return None

    async def credential_identity(self, url: str) -> str:
        """Return "": the filesystem finds its own credentials, and its options tell users apart in the cache."""
        return ""

    async def close(self) -> None:
        """Close the filesystem's connections and threads. Idempotent."""
        if self._closed:
            return
        self._closed = True
        await self._calls.close()
        await self._threads.close()
        for filesystem in (self.filesystem, self._replaced):
            if filesystem is not None:
                await self._close_clients(filesystem)

    async def _close_clients(self, filesystem: Any) -> None:
        if not self.asynchronous:
            return
        names = ["_session", "session", "service_client"]  # filesystems give their client's session such names
        if not self._has_credential:  # adlfs' own has a session, too
            names.append("credential")
        for name in names:
            try:
                close_client = getattr(getattr(filesystem, name, None), "close", None)
            except RuntimeError:  # gcsfs, while it has made no session
                continue
            if close_client is not None:
                closing = close_client()
                if inspect.isawaitable(closing):
                    call = ForeignCall(closing)
                    await call.end(CLOSE_S)
                    if not call.task.cancelled():
                        call.task.result()

    async def ask(
        self, request: RangeRequest, context: RequestContext, name: str, *arguments: Any, **options: Any
    ) -> Any:
        """Call the method ``name`` of the filesystem with retries; each attempt counts as one request."""

        async def once(attempt: int) -> Any:
            with counted(name, context.purpose, request, attempt, context):
                return await self.call(request, name, *arguments, **options)

        return await self.repeat(once, context)

    async def repeat(self, once: Callable[[int], Awaitable[T]], context: RequestContext) -> T:
        """Await ``once(attempt)``, with attempts from 1, until it succeeds or limits are reached; return its result."""
        loop = asyncio.get_running_loop()
        limiter, budget, retry = self.limiter, self._budget, self._retry
        attempts = Attempts(limiter, limiter.pace, budget, retry, loop.time(), limiter.pace.served)
        while True:
            if not limiter.try_take(context.scan):
                context.metrics.paced_s += await limiter.wait(context.scan)
            sent = loop.time()
            try:
                result = await once(attempts.number)
                limiter.succeeded(sent, loop.time())
                budget.succeeded(attempts.number)
                return result
            except RetryableError as failure:
                if failure.throttled:
                    failure.known = not limiter.refused(sent, loop.time(), attempts.number)
                delay = attempts.delay_s(failure, loop.time())
            finally:
                limiter.give(context.scan)
            await asyncio.sleep(delay)

    async def call(self, request: RangeRequest, name: str, *arguments: Any, **options: Any) -> Any:
        """Call the method ``name`` of the filesystem once, with a time limit, and raise its errors as StoreErrors. If
        credentials of a catalog have expired, the call is repeated with new ones."""
        self.check_open()
        if self._renewal is None:
            return await self._call(request, name, *arguments, **options)
        if self._renewal.is_due():  # gcsfs itself repeats a call with an expired token for half a minute
            await self._renew(self.filesystem, self._renewal.when_due)
        used = self.filesystem
        try:
            return await self._call(request, name, *arguments, **options)
        except AccessDeniedError as error:
            if error.__cause__ is None or not _may_have_expired(error.__cause__):
                raise
        await self._renew(used, self._renewal)
        return await self._call(request, name, *arguments, **options)

    async def _call(self, request: RangeRequest, name: str, *arguments: Any, **options: Any) -> Any:
        body_bytes = max(0, request.stop - request.start) if name in ("cat_file", "pipe_file", "put_file") else 0
        limit_s = self._longest_call_s(body_bytes)
        work = self._work(name, *arguments, **options)
        try:
            if name in _LISTINGS:
                check = partial(self._check_listing, request, name, *arguments)
                return await self._calls.run(work, check=check, check_s=limit_s)
            async with asyncio.timeout(limit_s):
                return await self._calls.run(work)
        except AsyncpqError:
            raise
        except Exception as error:  # filesystems pass on their client's exceptions
            raise _typed(error, request, name) from error

    async def _work(self, name: str, *arguments: Any, **options: Any) -> Any:
        parts = name == "cat_file" and not self._reads_parts
        if self.asynchronous and not parts:
            return await getattr(self.filesystem, f"_{name}")(*arguments, **options)
        method = partial(_read_part, self.filesystem) if parts else getattr(self.filesystem, name)
        if name == "pipe_file":
            method = partial(_write_locked, method)
        return await self._threads.start(method, *arguments, **options)  # cancelled, it is dropped if it has not begun

    async def _check_listing(self, request: RangeRequest, name: str, path: str) -> None:
        """Look whether the store answers at all, after a listing has taken as long as a call may.

        Raises TransportError if the store is silent, or TimeoutError if it answers, but not to ``ls``, which has few
        requests. ``find`` has any number, and may go on.
        """
        try:
            await self.call(RangeRequest(0, 0, request.url), "info", path)
        except RetryableError as failure:
            if not failure.throttled:
                raise TransportError(
                    "the listing takes too long, and the store does not answer otherwise", url=request.url
                ) from failure.error
        except StoreError:
            pass  # an answer
        if name != "find":
            raise TimeoutError

    def _longest_call_s(self, length: int) -> float | None:
        """Return the time limit in seconds of a call that transfers ``length`` bytes; None for no limit."""
        retry = self._retry
        if retry.min_throughput_bytes_s <= 0:
            return None
        body_s = max(retry.stall_timeout_s, length / retry.min_throughput_bytes_s)
        return retry.connect_timeout_s + retry.first_byte_timeout_s + body_s

    def check_open(self) -> None:
        if self._closed:
            raise closed_store()


def _lowered(url: str) -> str:
    """Return ``url`` with its protocol in lower case, as filesystems expect it."""
    return "://".join(split_url(url))


def _not_importable(protocol: str, error: ImportError) -> UnsupportedStoreError:
    """Return the error for a filesystem whose module raised ``error``."""
    hint = CLIENTS.get(protocol) or _ACCESS.get(protocol)
    if hint is None:
        why = f": {str(error).rstrip('.')}"
        hint = "Install the package."
    else:
        cause = error.__cause__
        lacks = cause.name if isinstance(cause, ModuleNotFoundError) else None
        why = "" if lacks in ("adlfs", "gcsfs") else f", or cannot be imported ({lacks or type(cause).__name__})"
    return UnsupportedStoreError(f"{protocol}:// urls need a package that is not installed{why}", hint=hint)


def _token(filesystem: Any) -> str:
    """Return a text that differs for filesystems with different options, without showing them, and for processes, whose
    environments may hold the credentials of others."""
    token: str = tokenize(type(filesystem), os.getpid(), filesystem.storage_options)
    return token


def _drop_finalizers(filesystem: object) -> None:
    """Drop finalizers that need fsspec's own event loop, if ``filesystem`` was made without it.

    adlfs 2026.8 has some. They can only print a RuntimeError at the end of the process, and hold the filesystem till
    then.
    """
    for finalizer in list(getattr(weakref.finalize, "_registry", ())):  # no public interface lists them
        match finalizer.peek():
            case (owner, function, (None, *_), _) if owner is filesystem and function is sync:
                finalizer.detach()


def _google_credentials(token: str) -> Any:
    """Return gcsfs' form of an OAuth token. For the token itself gcsfs would ask another server of Google, before its
    first call, when the token expires."""
    from google.oauth2.credentials import Credentials  # gcsfs needs it

    return Credentials(token)


def place_of(protocol: str, url: str) -> dict[str, Any]:
    """Return the arguments of the filesystem that ``url`` has itself, such as host and user, as the filesystem reads
    them; {} if its package is not installed. The values may be secrets."""
    try:
        class_ = fsspec.get_filesystem_class(protocol)
        # all public functions that ask the class make, and perhaps connect, a filesystem
        place = dict(class_._get_kwargs_from_urls(_lowered(url)))  # noqa: SLF001
    except (AttributeError, ImportError, ValueError):
        return {}
    return {name: value for name, value in place.items() if name not in ("url_query", "url_fragment")}


def _added(place: Mapping[str, Any], options: Mapping[str, Any], protocol: str) -> dict[str, Any]:
    """Return what the url says of its place, if the options do not contradict it."""
    other = sorted(name for name, value in place.items() if name in options and str(options[name]) != str(value))
    if other:
        raise InvalidOptionError(
            f"the url and the storage_options for {protocol} differ in {', '.join(other)}",
            hint="Leave out one of them.",
        )
    return {name: value for name, value in place.items() if name not in options}


class FsspecObject(Unpicklable):
    """A handle on one object; see :class:`asyncpq.storage.base.StoredObject`. ``path`` is the object's path in the
    filesystem's own form."""

    client = "fsspec"
    server = ""

    def __init__(self, store: FsspecStore, path: str, url: str) -> None:
        self.url: str = safe_url(url)
        self._store = store
        self._path = path
        self.identity: str = f"{store.protocol}://{path} {store.token}"
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
        """Return whether the path that is given to the filesystem can name this version, so that only it is read.

        gcsfs takes ``#`` and ``?`` in a path with a generation for its own marks.
        """
        named = self._store.pins_generations and validator.version is not None
        return named and "#" not in self._path and "?" not in self._path

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
            raise ObjectNotFoundError("the url names a folder, not a file", url=self.url, hint=FOLDER_HINT)
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
        record.throttled = failure.throttled
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


def _typed(error: Exception, request: RangeRequest, name: str) -> Exception:
    """Return the asyncpq error for an exception that the filesystem's method ``name`` raised."""
    url, byte_range = request.url, request.byte_range
    match _by_errno(error):
        case FileExistsError():  # of pipe_file alone
            return ObjectExistsError("the object exists already", url=url)
        case TimeoutError():  # an OSError, too
            message = "the filesystem did not answer in time"
            return RetryableError(TransportError(message, url=url, byte_range=byte_range))
        case FileNotFoundError() | NotADirectoryError():
            return gone(request) if request.pin else ObjectNotFoundError("the object does not exist", url=url)
        case IsADirectoryError():
            return ObjectNotFoundError("the url names a folder, not a file", url=url, hint=FOLDER_HINT)
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
    if status == 416 and request.pin is not None:
        return changed(request, "it is shorter now")
    if status in RETRYABLE_STATUSES:
        throttled = status in (429, 503)
        message = f"the store {'asks to slow down' if throttled else 'failed'} (status {status})"
        error_class = ThrottledError if throttled else TransportError
        return RetryableError(error_class(message, url=url, byte_range=byte_range))
    message = f"the filesystem failed ({type(error).__module__}.{type(error).__name__})"
    if status in (401, 403) or any(word in type(error).__name__ for word in _DENIED):
        return AccessDeniedError(message, url=url, byte_range=byte_range, hint=_access_hint(url.partition("://")[0]))
    return StoreError(message, url=url, byte_range=byte_range)


#: Errors whose ``errno`` is a number of OpenSSL or of the resolver: 1 is no EPERM.
_OWN_NUMBERS = (ssl.SSLError, socket.gaierror, socket.herror)


def _by_errno(error: Exception) -> Exception:
    """Return ``error``, or, for a subclass of OSError that a package has made, such as smbprotocol, Python's own class
    for its errno."""
    if isinstance(getattr(error, "os_error", error), _OWN_NUMBERS):  # ``os_error``: that of aiohttp's error
        return error
    if isinstance(error, OSError) and isinstance(error.errno, int):
        own = OSError(error.errno, "")  # of a subclass, where the number has one
        return error if type(own) is OSError or isinstance(error, type(own)) else own
    return error


def _missing(class_: type, options: Mapping[str, Any]) -> list[str]:
    """Return the options without which the filesystem cannot be made and that are missing in ``options``."""
    parameters = list(inspect.signature(class_.__init__).parameters.values())[1:]  # type: ignore[misc]
    named = (one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY))
    return [one.name for one in named if one.default is one.empty and one.name not in options]


def _access_hint(protocol: str, missing: Sequence[str] = ()) -> str | None:
    """Return the hint of how to log in to the filesystem of ``protocol``, which needs the options ``missing``."""
    return f"Pass {' and '.join(missing)} in storage_options." if missing else _ACCESS.get(protocol.lower())


def _may_have_expired(error: BaseException) -> bool:
    """Return whether the exception of a client is about who asks, rather than about what they may do: status 401, or
    Azure's 403 for a signature that is not valid (any more)."""
    return _status(error) == 401 or "Authentication" in type(error).__name__


def _status(error: BaseException) -> int:
    """Return the HTTP status of a client's exception; 0 if it has none."""
    for name in ("status", "code", "status_code"):
        status = getattr(error, name, None)
        if isinstance(status, int | str) and str(status).isdecimal():
            return int(status)
    return 0


def _reads_parts(class_: Any) -> bool:
    """Return whether the filesystem's ``cat_file`` takes the bounds of a part. sshfs's accepts and ignores them."""
    method = getattr(class_, "_cat_file", None) or class_.cat_file
    parameters = inspect.signature(method).parameters.values()
    return any(one.name == "start" or one.kind is one.VAR_POSITIONAL for one in parameters)


def _read_part(filesystem: Any, path: str, *, start: int, end: int) -> bytes:
    with filesystem.open(path, "rb") as file:
        file.seek(start)
        parts = []
        while start < end and (part := file.read(end - start)):
            parts.append(part)
            start += len(part)
    return b"".join(parts)


def _write_locked(write: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    with _MEMORY:
        write(*arguments, **options)


def _lists_flat(filesystem: Any) -> bool:
    """Return whether the filesystem has its own ``find``, rather than fsspec's walk."""
    walks = {fsspec.AbstractFileSystem.__module__, AsyncFileSystem.__module__}
    return inspect.unwrap(filesystem.find).__module__ not in walks


def _parameters(class_: type) -> Mapping[str, Any]:
    initialise = class_.__dict__.get("__init__")  # the class's own signature is that of fsspec's instance cache
    return inspect.signature(initialise).parameters if inspect.isfunction(initialise) else {}
