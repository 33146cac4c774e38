"""asyncpq's caches, coalescing, pinning and retries for every reader of bytes that takes fsspec urls or filesystems.

::

    pandas.read_parquet("asyncpq::s3://bucket/trips.parquet")
    pyarrow.dataset.dataset("bucket/lake/", filesystem=fsspec.filesystem("asyncpq", target_protocol="s3"))

The filesystem reads and does not write. It converts fsspec's paths to urls, and reads them with the running event
loop's session. An open file holds no connection, and is one version of its object: if the object is replaced, reads
fail with :class:`asyncpq.ObjectChangedError`. Filesystems and open files can be pickled, and used in threads and after
a fork: each process, and each event loop, has a session of its own (docs/tools.md).

fsspec finds this module by the entry point of the package.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import inspect
import os
import re
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, Final, NoReturn, TypeVar

from fsspec.asyn import AbstractAsyncStreamedFile, AsyncFileSystem, get_loop
from fsspec.caching import BaseCache
from fsspec.implementations.chained import ChainedFileSystem
from fsspec.registry import available_protocols
from fsspec.spec import AbstractBufferedFile

from asyncpq import Session, Validator
from asyncpq.engine.byte_readers import ByteReader, ObjectVersion, modified_s, wait_in
from asyncpq.engine.target_facts import safe_url
from asyncpq.errors import InvalidOptionError, ObjectNotFoundError, UnsupportedStoreError, UsageError, nearest
from asyncpq.metrics import ReadMetrics
from asyncpq.options import MIB

__all__ = ["AsyncpqFileSystem"]

T = TypeVar("T")

_PROTOCOL: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_OWN: Final = re.compile(r"asyncpq(?:://|::)")
#: fsspec's own arguments, which its base classes take.
_BASE: Final = frozenset({"use_listings_cache", "listings_expiry_time", "max_paths", "skip_instance_cache"})
_PIECE_BYTES: Final = 32 * MIB  # of a download
_SMALL_READ_BYTES: Final = 256 * 1024
_ALIASES: Final = {"s3a": "s3", "gcs": "gs", "local": "file", "abfss": "abfs", "az": "abfs"}


class ReadAhead(BaseCache):  # type: ignore[misc]  # fsspec has no types
    """A cache of one open file that reads ahead when small reads follow one another, as when reading lines.

    It fetches ahead at most as many bytes as the sequential reads have taken so far, so they cost at most twice their
    bytes. It does not read ahead when reads jump within the file, as for Parquet.
    """

    name = "asyncpq"

    def __init__(self, blocksize: int, fetcher: Any, size: int) -> None:
        super().__init__(blocksize, fetcher, size)
        self._start, self._data = 0, b""
        self._next = -1
        self._run_reads = self._run_bytes = 0

    def _fetch(self, start: int | None, stop: int | None) -> bytes:
        start, stop = start or 0, min(self.size if stop is None else stop, self.size)
        if start >= stop:
            return b""
        follows = start == self._next
        self._run_reads = self._run_reads + 1 if follows else 1
        self._run_bytes = self._run_bytes + stop - start if follows else stop - start
        self._next = stop
        head = b""
        if self._start <= start < self._start + len(self._data):
            head = self._data[start - self._start : stop - self._start]
        if len(head) == stop - start:
            return head
        begin = start + len(head)
        ahead = min(self.blocksize, self._run_bytes) if self._run_reads > 2 and stop - start < _SMALL_READ_BYTES else 0
        data: bytes = self.fetcher(begin, min(stop + ahead, self.size))
        if ahead:
            self._start, self._data = begin, data
        return head + data[: stop - begin] if head or ahead else data


class ObjectFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec has no types
    """One version of an object, open for reading as a binary file. It holds no connection, and can be pickled."""

    DEFAULT_BLOCK_SIZE = 4 * MIB

    def __init__(
        self,
        fs: AsyncpqFileSystem,
        path: str,
        version: ObjectVersion,
        block_size: int | None = None,
        cache_type: str | None = None,
        cache_options: dict[str, Any] | None = None,
    ) -> None:
        self.version = version
        self._opened_with = (block_size, cache_type, cache_options)
        super().__init__(
            fs,
            path,
            "rb",
            block_size or self.DEFAULT_BLOCK_SIZE,
            cache_type=cache_type or "none",
            cache_options=dict(cache_options or {}),
            size=version.size,
        )
        if cache_type is None:
            self.cache: BaseCache = ReadAhead(self.blocksize, self._fetch_range, self.size)
        self.details: dict[str, Any] = file_info(path, version.validator)

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: list[bytes] = self.fs.wait_for(self.fs.read, self.path, [(start, end)], self.version)
        return data[0]

    def __reduce__(self) -> Any:
        return _reopened, (self.fs, self.path, self.version.validator, self.loc, self._opened_with)


def _reopened(
    fs: AsyncpqFileSystem, path: str, validator: Validator, position: int, opened_with: tuple[Any, ...]
) -> ObjectFile:
    """Unpickle an :class:`ObjectFile`: open the version that ``validator`` identifies, without a request."""
    file = ObjectFile(fs, path, fs.wait_for(fs.pinned, path, validator), *opened_with)
    file.seek(position)
    return file


class AsyncObjectFile(AbstractAsyncStreamedFile):  # type: ignore[misc]  # fsspec has no types
    """One version of an object, open for reading with ``await file.read()``."""

    def __init__(self, fs: AsyncpqFileSystem, path: str, version: ObjectVersion) -> None:
        self.version = version
        super().__init__(fs, path, "rb", cache_type="none", size=version.size)
        self.details: dict[str, Any] = file_info(path, version.validator)

    async def _fetch_range(self, start: int, end: int) -> bytes:
        data: list[bytes] = await self.fs.read(self.path, [(start, end)], self.version)
        return data[0]

    def __del__(self) -> None:
        """Do nothing: the base class would call ``close()``, a coroutine that cannot be awaited here."""


def info_of(path: str, validator: Validator, modified: float | None) -> dict[str, Any]:
    """Return fsspec's info dict of the object version that ``validator`` identifies. ``modified``: its modification
    time in seconds since the epoch; None if unknown."""
    known = {"ETag": validator.etag, "version": validator.version, "mtime": modified}
    return {
        "name": path,
        "size": validator.size,
        "type": "file",
        **{name: value for name, value in known.items() if value is not None},
    }


def file_info(path: str, validator: Validator) -> dict[str, Any]:
    """Return fsspec's info dict of the object at ``path``, from the validator of a response."""
    return info_of(path, validator, modified_s(validator))


class AsyncpqFileSystem(ChainedFileSystem, AsyncFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A filesystem of fsspec that reads objects through a session of asyncpq. Writes raise UnsupportedStoreError.
    Methods without a text here do what ``fsspec.AbstractFileSystem`` says.

    Args:
        target_protocol: protocol of the objects, which ``asyncpq::s3://...`` sets; paths then need not have it. None:
            paths are urls of any protocol.
        target_options: storage options of that protocol, with fsspec's names.
        fo: ignored; fsspec passes the path of a chained url.
        asynchronous: whether the caller awaits methods with a leading underscore in its own event loop, as in fsspec.
        loop: the event loop of the blocking calls; by default that of fsspec, in a thread of its own.
        session_options: all arguments of :class:`asyncpq.Session`; storage options may also stand under the name of
            their protocol, such as ``s3={...}``.

    Raises:
        InvalidOptionError: an option is not known, or has a value that is not allowed.
    """

    protocol = "asyncpq"
    root_marker = ""
    _strip_tokenize_options = ("fo",)

    def __init__(
        self,
        target_protocol: str | None = None,
        target_options: Mapping[str, Any] | None = None,
        fo: str = "",
        *,
        asynchronous: bool = False,
        loop: Any = None,
        batch_size: int | None = None,
        **session_options: Any,
    ) -> None:
        if self._cached:
            return
        base = {name: session_options.pop(name) for name in _BASE & session_options.keys()}
        super().__init__(asynchronous=asynchronous, loop=loop, batch_size=batch_size, **base)
        protocols = {name: session_options.pop(name) for name in session_options.keys() & set(available_protocols())}
        known = inspect.signature(Session).parameters
        unknown = sorted(session_options.keys() - known.keys())
        if unknown:
            raise InvalidOptionError(
                f"asyncpq's filesystem has no option {unknown[0]!r}",
                hint=nearest(unknown[0], known, "Put options of a store under its protocol."),
            )
        self.target_protocol = target_protocol
        options = {**(session_options.pop("storage_options", None) or {}), **protocols}
        if target_options:
            options[_ALIASES.get(target_protocol or "", target_protocol)] = dict(target_options)
        self._options = {"storage_options": options, **session_options}
        self._strip_protocol = self._own_path  # type: ignore[method-assign]  # fsspec calls it on class and instance
        self._pid = os.getpid()
        self._sessions: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Task[Session]] = (
            weakref.WeakKeyDictionary()
        )

    # -- where calls run --------------------------------------------------------------------------

    @property
    def loop(self) -> Any:
        """The event loop that runs the blocking calls. A forked process gets a new one."""
        self._leave_parent()
        return self._loop

    def _leave_parent(self) -> None:
        """In a forked process, drop the event loop and the sessions of the parent process, whose threads do not
        exist here."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._sessions = weakref.WeakKeyDictionary()
            self._loop = None if self.asynchronous else get_loop()

    def wait_for(self, work: Callable[..., Coroutine[Any, Any, T]], *arguments: Any, **options: Any) -> T:
        """Run the coroutine ``work(*arguments, **options)`` in the event loop of the blocking calls, wait, and return
        its result: for the filesystem's own coroutine methods, as in ``fs.wait_for(fs.version, path)``.

        Unlike ``fsspec.asyn.sync``, it keeps DeadlineExceededError, and does not hang when the interpreter ends.

        Raises:
            UsageError: the filesystem has ``asynchronous=True``, or this is the loop that would run the work.
        """
        if self.asynchronous:
            raise UsageError(
                "a blocking method was called on a filesystem with asynchronous=True",
                hint="Await fs.open_async(path), or fs._cat_file(path).",
            )
        loop = self.loop
        if _running_loop() is loop:
            raise UsageError(
                "a blocking method was called inside the event loop that has to run it, which would never end",
                hint="Call the method in another thread, such as by asyncio.to_thread().",
            )
        return wait_in(loop, work(*arguments, **options))

    async def session(self) -> Session:
        """Return the session, entered, through which the filesystem reads in the running event loop; the first call in
        a loop makes it from the filesystem's options. Reads call it themselves; with ``asynchronous=True`` you need it
        for their costs, ``(await fs.session()).metrics``.

        The filesystem owns the session. ``await fs._close()`` closes that of the running loop, and :meth:`close` that
        of the blocking calls; the next read makes a new one.
        """
        self._leave_parent()
        loop = asyncio.get_running_loop()
        entering = self._sessions.get(loop)
        if entering is None or (entering.done() and (entering.cancelled() or entering.exception() is not None)):
            entering = self._sessions[loop] = loop.create_task(_entered(self._options))
        return await asyncio.shield(entering)

    @property
    def metrics(self) -> ReadMetrics:
        """The summed costs of all blocking reads in this process since the last :meth:`close`."""
        metrics: ReadMetrics = self.wait_for(self.session).metrics
        return metrics

    async def _close(self) -> None:
        """Close the session of the running event loop. The next call of :meth:`session` creates a new one."""
        entering = self._sessions.pop(asyncio.get_running_loop(), None)
        if entering is not None:
            await (await entering).close()

    def close(self) -> None:
        """Close the session of the blocking calls with its connections. The next blocking call creates a new one."""
        self.wait_for(self._close)

    def invalidate_cache(self, path: str | None = None) -> None:
        """Do nothing: listings are not cached, and ``cache_policy`` of the session defines how long versions are."""

    async def _reader(self) -> ByteReader:
        return ByteReader(await self.session())

    # -- paths ------------------------------------------------------------------------------------

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(item) for item in path]
        return _without_own_protocol(path)

    def _own_path(self, path: Any) -> Any:
        """Return a path, or each path of a list, without ``asyncpq::`` and the target's protocol, which may stand
        before it."""
        if isinstance(path, list):
            return [self._own_path(item) for item in path]
        text = _without_own_protocol(path)
        match = _PROTOCOL.match(text)
        target = self.target_protocol
        if match is None or target is None or target in ("http", "https"):
            return text
        protocol = match[0][:-3].lower()
        same = _ALIASES.get(protocol, protocol) == _ALIASES.get(target, target)
        return text[match.end() :] if same else text

    def unstrip_protocol(self, name: str) -> str:
        """Return the url of the path ``name``, such as ``asyncpq://s3://bucket/key``: DuckDB finds filesystems by
        it."""
        return f"asyncpq://{self._url(self._own_path(name))}"

    def _url(self, path: str) -> str:
        if _PROTOCOL.match(path) or self.target_protocol in (None, "file", "local"):
            return path
        return f"{self.target_protocol}://{path}"

    # -- bytes ------------------------------------------------------------------------------------

    async def version(self, path: str) -> ObjectVersion:
        """Return the current version of the object at ``path``, for :meth:`read`: its ``size`` in bytes and its
        ``validator`` (:class:`asyncpq.Validator`). As :meth:`read` and :meth:`pinned`, it is awaited; blocking code
        calls ``fs.wait_for(fs.version, path)``. Raises FileNotFoundError if there is no object."""
        return await (await self._reader()).version(self._url(self._own_path(path)))

    async def read(
        self, path: str, ranges: Sequence[tuple[int | None, int | None]], version: ObjectVersion | None = None
    ) -> list[bytes]:
        """Return byte ranges of one version of an object; by default of the current version.

        ``ranges`` are pairs of start and stop like those of a slice: negative numbers count from the object's end, None
        means its beginning or end. Raises FileNotFoundError if there is no object, ObjectChangedError if it no longer
        has this version.
        """
        return await (await self._reader()).read(self._url(self._own_path(path)), ranges, version)

    async def pinned(self, path: str, validator: Validator) -> ObjectVersion:
        """Return the version of the object at ``path`` that ``validator`` identifies, without a request. Reads of it
        raise ObjectChangedError if the object is replaced."""
        return await (await self._reader()).pinned(self._url(self._own_path(path)), validator)

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Return the bytes ``[start, end)`` of an object: negative numbers count from its end, None means its beginning
        or end. Raises FileNotFoundError if there is no object."""
        return (await self.read(path, [(start, end)]))[0]

    async def _cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        batch_size: int | None = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        """Return the bytes of each range, from start to end as in ``cat_file``: one of each for all paths, or lists of
        them. Ranges of one object are read concurrently, and merged where that costs less.

        ``on_error``: "return" puts errors in the places of their ranges; anything else raises the first. ``max_gap``
        and ``batch_size`` are ignored: the session's options control merging and concurrency.
        """
        firsts = list(starts) if isinstance(starts, Iterable) else [starts] * len(paths)
        lasts = list(ends) if isinstance(ends, Iterable) else [ends] * len(paths)
        if not len(paths) == len(firsts) == len(lasts):
            raise InvalidOptionError(
                "paths, starts and ends have different lengths", hint="Pass one start and one end for each path."
            )
        numbers: dict[str, list[int]] = {}
        for number, path in enumerate(paths):
            numbers.setdefault(path, []).append(number)
        reads = [
            self.read(path, [(firsts[position], lasts[position]) for position in positions])
            for path, positions in numbers.items()
        ]
        results: list[Any] = [b""] * len(paths)
        for positions, answer in zip(
            numbers.values(), await asyncio.gather(*reads, return_exceptions=True), strict=True
        ):
            if isinstance(answer, BaseException) and (on_error != "return" or not isinstance(answer, Exception)):
                raise answer
            for place, position in enumerate(positions):
                results[position] = answer if isinstance(answer, BaseException) else answer[place]
        return results

    async def _get_file(self, rpath: str, lpath: str, **_: Any) -> None:
        """Copy the object at ``rpath`` to the local file ``lpath``; if it is a folder, create a local folder.
        Raises FileNotFoundError if there is neither."""
        if await self._isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        version = await self.version(rpath)
        with open(lpath, "wb") as file:  # noqa: ASYNC230  # as fsspec's own filesystems write it
            for start in range(0, version.size, _PIECE_BYTES):
                file.write((await self.read(rpath, [(start, start + _PIECE_BYTES)], version))[0])

    # -- files ------------------------------------------------------------------------------------

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        cache_type: str | None = None,
        **_: Any,
    ) -> ObjectFile:
        if mode != "rb":
            _read_only(path)
        version = self.wait_for(self.version, path)
        return ObjectFile(self, path, version, block_size, cache_type, cache_options)

    async def open_async(self, path: str, mode: str = "rb", **_: Any) -> AsyncObjectFile:
        """Open an object for ``await file.read()``. The file is pinned to the object's current version. Raises
        FileNotFoundError if there is no object, UnsupportedStoreError for another ``mode`` than "rb"."""
        if mode != "rb":
            _read_only(path)
        return AsyncObjectFile(self, self._own_path(path), await self.version(path))

    # -- what there is ----------------------------------------------------------------------------

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        """Return ``name``, ``type`` ("file" or "directory") and ``size`` in bytes, with the version if it is known.
        Raises FileNotFoundError if there is neither object nor folder."""
        path = self._own_path(path)
        missing: ObjectNotFoundError | None = None
        if self._may_be_object(path):
            try:
                return file_info(path, (await self.version(path)).validator)
            except ObjectNotFoundError as error:
                missing = error
        if await self._isdir(path):
            return _folder_info(path)
        raise missing or ObjectNotFoundError("there is no object and no folder of this name", url=safe_url(path))

    async def _modified(self, path: str) -> dt.datetime:
        """Return the time at which the object was written, in UTC; the current time if the store does not tell, so that
        caches that compare times do not use old data. Raises FileNotFoundError if there is no object."""
        return dt.datetime.fromtimestamp((await self._info(path)).get("mtime", time.time()), dt.UTC)

    def _may_be_object(self, path: str) -> bool:
        """Return whether the path can name an object: it has a key, not only a bucket, which stores would refuse."""
        url = self._url(path)
        match = _PROTOCOL.match(url)
        return match is None or "/" in url[match.end() :].rstrip("/")

    async def _isdir(self, path: str) -> bool:
        """Return whether objects or folders are below the path; False for stores without listings."""
        try:
            return bool(await self._listing(self._own_path(path), deep=False))
        except (UnsupportedStoreError, ObjectNotFoundError):  # HTTP has no folders
            return False

    async def _isfile(self, path: str) -> bool:
        """Return whether the path is that of an object."""
        try:
            return bool((await self._info(path))["type"] == "file")
        except ObjectNotFoundError:
            return False

    async def _exists(self, path: str, **_: Any) -> bool:
        """Return whether the path is that of an object or folder."""
        try:
            await self._info(path)
        except ObjectNotFoundError:
            return False
        return True

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """Return what is directly in a folder, or the object itself: dicts as of ``info``; paths without ``detail``."""
        path = self._own_path(path)
        infos = await self._listing(path, deep=False) or {path: await self._info(path)}
        return list(infos.values()) if detail else list(infos)

    async def _find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_: Any
    ) -> Any:
        """Return the objects at all levels below a path, or ``maxdepth`` levels (None: all), sorted by path: a list of
        paths, or with ``detail`` a dict from path to ``info``. ``withdirs`` adds folders."""
        path = self._own_path(path)
        begin = len(path if path.endswith("/") or not path else f"{path}/")
        infos = {
            name: info
            for name, info in (await self._listing(path, deep=maxdepth != 1)).items()
            if (withdirs or info["type"] == "file") and (maxdepth is None or name.count("/", begin) < maxdepth)
        }
        if not infos:
            infos = {path: await self._info(path)} if await self._isfile(path) else {}
        elif withdirs and path:
            infos = {path: _folder_info(path), **infos}
        return infos if detail else list(infos)

    async def _listing(self, path: str, *, deep: bool) -> dict[str, dict[str, Any]]:
        """Return fsspec's info dicts of the objects and folders directly in a folder, sorted and keyed by path. With
        ``deep``, the result covers all levels below the folder."""
        url = self._url(path)
        base = url if url.endswith("/") else f"{url}/"
        listed = await (await self._reader()).folder(base, deep=deep)
        begin, prefix = len(base), path if path.endswith("/") or not path else f"{path}/"
        names = [prefix + folder[begin:-1] for folder in listed.folders]
        infos = {name: _folder_info(name) for name in names}
        for item in listed.objects:
            name = prefix + item.url[begin:]
            infos[name] = info_of(name, item.validator or Validator(item.size), item.modified)
        return dict(sorted(infos.items()))

    # -- what there is not ------------------------------------------------------------------------

    async def _refuse(self, path: Any = "", *_: Any, **__: Any) -> NoReturn:
        _read_only(path)

    _pipe_file = _put_file = _rm_file = _rm = _cp_file = _mkdir = _makedirs = _touch = _refuse

    def touch(self, path: Any, *_: Any, **__: Any) -> NoReturn:
        """Raise UnsupportedStoreError, as every write does."""
        _read_only(path)

    mkdir: Callable[..., NoReturn] = touch
    makedirs: Callable[..., NoReturn] = touch
    rmdir: Callable[..., NoReturn] = touch
    mv: Callable[..., NoReturn] = touch
    rm: Callable[..., NoReturn] = touch


def _blocking_form(name: str) -> Callable[..., Any]:
    """Return a blocking method that runs the coroutine method ``_<name>`` to its end."""

    @wraps(getattr(AsyncpqFileSystem, f"_{name}"))
    def call(self: AsyncpqFileSystem, *arguments: Any, **options: Any) -> Any:
        return self.wait_for(getattr(self, f"_{name}"), *arguments, **options)

    return call


# Not fsspec's own mirrors, for the errors' sake.
for _name in (
    *("cat", "cat_file", "cat_ranges", "du", "exists", "expand_path", "find", "get", "get_file", "glob", "info"),
    *("isdir", "isfile", "ls", "modified", "size", "sizes"),
):
    setattr(AsyncpqFileSystem, _name, _blocking_form(_name))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _without_own_protocol(path: Any) -> str:
    text: str = os.fspath(path)
    if _OWN.match(text):
        text = _OWN.sub("", text, count=1)
    stripped = text.rstrip("/")
    return text if stripped.endswith(":") else stripped or text[:1]


async def _entered(options: dict[str, Any]) -> Session:
    return await Session(**options)


def _read_only(path: Any) -> NoReturn:
    shown = safe_url(path) if isinstance(path, str) else None
    raise UnsupportedStoreError(
        "asyncpq's filesystem cannot write", url=shown, hint="Write with the filesystem of the url without asyncpq::."
    )


def _folder_info(path: str) -> dict[str, Any]:
    return {"name": path, "size": 0, "type": "directory"}
