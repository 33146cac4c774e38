"""The store of local files. A handle keeps one open file descriptor, so all its reads see one file.

A write is atomic: the file is written beside its place, then moved or linked into it. A process that dies leaves at
most a file
``.<hex>.tmp``, which listings show and reads ignore.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import os
import secrets
import shutil
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from asyncpq.errors import (
    AccessDeniedError,
    InvalidResponseError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    TransportError,
    UsageError,
)
from asyncpq.metrics import Purpose, RequestRecord
from asyncpq.storage.base import (
    CreateProbe,
    FirstNames,
    Guarantee,
    ListedObject,
    ListedObjects,
    RangeResult,
    RequestContext,
    Unpicklable,
    Validator,
    Wants,
    cannot_create,
    closed_store,
    may_change_unseen,
)
from asyncpq.storage.response_checks import RangeRequest, changed, empty
from asyncpq.storage.threads import Threads, result_of
from asyncpq.storage.urls import FOLDER_HINT, local_path, safe_url, split_url, unknown_option
from asyncpq.waiting import wait_futures

_COPY_BYTES = 1024 * 1024
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class AtomicFile:
    """A file that becomes visible at its path with :meth:`finish`. Always call :meth:`discard` at the end.

    Raises ConcurrentCommitUnsupported if a file is to be created on a file system without hard links, and StoreError if
    the file cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = os.path.dirname(path)
        self._temporary = os.path.join(self._folder, f".{secrets.token_hex(8)}.tmp")
        with _write_errors(path):
            _make_folder(self._folder)
            self._file = open(self._temporary, "xb")  # noqa: SIM115  # closed by discard()

    def write(self, data: bytes) -> None:
        """Append ``data`` to the file."""
        with _write_errors(self._path):
            self._file.write(data)

    def copy(self, source: Path) -> None:
        """Append the content of the file ``source``."""
        with _write_errors(self._path), source.open("rb") as content:
            shutil.copyfileobj(content, self._file, _COPY_BYTES)

    def finish(self, *, create: bool) -> bool:
        """Write the file to disk and move it to its path. With ``create``, keep an existing file and return False."""
        with _write_errors(self._path):
            try:
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
                if not create:
                    os.replace(self._temporary, self._path)
                elif not self._link():
                    return False
            finally:
                self.discard()  # before its folder is synced
            _sync_folder(self._folder)
        return True

    def discard(self) -> None:
        """Close and remove the temporary file. Idempotent."""
        with _write_errors(self._path):
            try:
                self._file.close()  # flushes, and so may fail
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self._temporary)

    def _link(self) -> bool:
        try:
            os.link(self._temporary, self._path)
        except FileExistsError:
            return False
        except OSError as error:
            if error.errno in _NO_LINKS:
                raise cannot_create("the file system", safe_url(self._path)) from error
            raise
        return True


def write_file(path: str, source: bytes | Path, *, create: bool) -> bool:
    """Write a file from bytes or from another file, and create its folders. The file is on disk when this returns.

    Returns what :meth:`AtomicFile.finish` returns, and raises the errors of :class:`AtomicFile`.
    """
    file = AtomicFile(path)
    try:
        if isinstance(source, bytes):
            file.write(source)
        else:
            file.copy(source)
        return file.finish(create=create)
    finally:
        file.discard()


def delete_file(path: str) -> None:
    """Delete a file, if it exists."""
    with _write_errors(path), contextlib.suppress(FileNotFoundError, NotADirectoryError, ValueError):
        os.unlink(path)


def remove_empty_folders(url: str) -> None:
    """Remove a local folder, and those inside of it, unless they have files; do nothing for a url of another store. The
    call blocks."""
    if split_url(url)[0] == "file":
        for folder, _, _ in os.walk(local_path(url), topdown=False):
            with contextlib.suppress(OSError):  # it has files
                os.rmdir(folder)


def _make_folder(folder: str) -> None:
    if os.path.isdir(folder):
        return
    above = os.path.dirname(folder)
    if above != folder:
        _make_folder(above)
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder)
    _sync_folder(above)


def _sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some file systems sync no folders
            raise
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def _write_errors(path: str) -> Iterator[None]:
    """Raise a StoreError in place of each error of the file system in the ``with`` block."""
    url = safe_url(path)
    try:
        yield
    except StoreError:
        raise
    except PermissionError as error:
        hint = "Check the permissions of the file's folder."
        raise AccessDeniedError("this process may not write the file", url=url, hint=hint) from error
    except FileNotFoundError as error:
        raise ObjectNotFoundError(
            "the file to copy, or the folder to write to, does not exist", url=url, hint="Check both paths."
        ) from error
    except OSError as error:
        hint = "Check the disk and the folder; then write again."
        raise StoreError(f"the file cannot be written: {error.strerror}", url=url, hint=hint) from error
    except ValueError as error:  # a name with NUL
        raise StoreError("the file's name contains NUL, which no file system accepts", url=url) from error


T = TypeVar("T")

#: Reads up to this size run on the event loop: cheaper than a thread, and usually served by the page cache.
INLINE_BYTES = 64 * 1024
_IGNORED_OPTIONS = frozenset({"auto_mkdir", "use_listings_cache", "skip_instance_cache", "asynchronous"})


class LocalStore(Unpicklable):
    """The store of local files; see :class:`asyncpq.storage.base.WritableStore`.

    ``storage_options`` are those of fsspec's local filesystem, none of which changes how files are read. Raises
    InvalidOptionError for other options.
    """

    def __init__(self, storage_options: dict[str, Any]) -> None:
        unknown = sorted(set(storage_options) - _IGNORED_OPTIONS)
        if unknown:
            raise unknown_option("local files", unknown, _IGNORED_OPTIONS)
        self._threads = Threads(4, "asyncpq-local")
        self._objects: set[LocalObject] = set()
        self._create_probe = CreateProbe((1,))  # the kernel makes a link for one of those that are made at once
        self._closed = False

    async def open_object(self, url: str) -> LocalObject:
        """Open a file; the handle keeps a descriptor until the handle or the store is closed."""
        self._check_open()
        path = local_path(url)
        # not in a thread, which would take ten times as long
        handle = LocalObject(path, _open(path), self._threads, self._objects)
        self._objects.add(handle)
        return handle

    async def list_objects(
        self, url: str, *, context: RequestContext, wants: Wants | None = None
    ) -> Sequence[ListedObject]:
        """List regular files. Links are followed, except into a folder above them; files that vanish are left out."""
        path = local_path(url)
        if (url.endswith("/") or not url) and not path.endswith("/"):
            path += "/"
        folder, _, start = path.rpartition("/")
        root = url[: url.rfind("/") + 1]

        def work() -> Sequence[ListedObject]:
            try:
                return ListedObjects.of(_walk(folder + "/", start, root, wants, frozenset()))
            except OSError as error:
                raise _read_error(error, error.filename or path) from error

        return await self._run("GET", context.purpose, 0, context, work)

    async def first_names(self, url: str, *, context: RequestContext) -> FirstNames:
        """Return what a folder holds directly."""
        folder = local_path(url)

        def work() -> FirstNames:
            try:
                with os.scandir(folder) as scanned:
                    return FirstNames([f"{url}{entry.name}{'/' * _is_folder(entry)}" for entry in scanned], True)
            except (FileNotFoundError, NotADirectoryError):
                return FirstNames([], True)
            except OSError as error:
                raise _read_error(error, folder) from error

        return await self._run("GET", context.purpose, 0, context, work)

    def any_changed(self, listed: Iterable[tuple[str, Validator | None]]) -> bool:
        """Return whether a file of an earlier listing has another version, or is gone. Blocks, with a stat per file.

        Files whose validator is None, since the listing could not tell their version, are not checked.
        """
        for url, validator in listed:
            try:
                if validator is not None and local_validator(os.stat(local_path(url))) != validator:
                    return True
            except OSError:
                return True
        return False

    async def put_object(self, url: str, data: bytes, *, context: RequestContext) -> None:
        """Create or replace a file, and create its missing folders."""
        await self._write_file(url, data, context, create=False)

    async def create_object(self, url: str, data: bytes, *, context: RequestContext) -> bool:
        """Create a file with a hard link; return False if it exists.

        Raises ConcurrentCommitUnsupported if the file system has no hard links.
        """
        return await self._write_file(url, data, context, create=True)

    async def probe_create(self, url: str, *, context: RequestContext) -> bool:
        """Return whether the folder's file system has hard links, with which files are created."""
        return await self._create_probe.ask(self, url, url, context)

    async def put_file(self, url: str, path: Path, *, context: RequestContext) -> None:
        """Create or replace a file with a copy of the file ``path``."""
        await self._write_file(url, path, context, create=False)

    async def create_stream(self, url: str, pieces: AsyncIterator[bytes], *, context: RequestContext) -> bool:
        """Create a file from ``pieces`` of its content, collected in a temporary file beside it; return False if the
        file exists."""
        path, size = local_path(url), 0
        file = await self._finish(AtomicFile, path)
        try:
            async for piece in pieces:
                size += len(piece)
                await self._finish(file.write, piece)
            return await self._run("PUT", "write", size, context, lambda: file.finish(create=True))
        finally:
            file.discard()  # at once: the store may have been closed

    async def delete_objects(self, urls: Sequence[str], *, context: RequestContext) -> None:
        """Delete files. Their folders stay."""
        for path in map(local_path, urls):
            await self._run("DELETE", "write", 0, context, functools.partial(delete_file, path))

    async def clock(self, url: str, *, context: RequestContext) -> float:
        """Return this computer's time in seconds since the epoch."""
        return time.time()

    async def credential_identity(self, url: str) -> str:
        """Return "": local files are read without credentials."""
        return ""

    async def close(self) -> None:
        """Close all descriptors and threads. Idempotent."""
        self._closed = True
        await self._threads.close()  # the reads in flight use the descriptors
        for handle in list(self._objects):
            await handle.close()

    def _check_open(self) -> None:
        if self._closed:
            raise closed_store()

    async def _write_file(self, url: str, source: bytes | Path, context: RequestContext, *, create: bool) -> bool:
        path = local_path(url)
        length = len(source) if isinstance(source, bytes) else 0
        return await self._run("PUT", "write", length, context, lambda: write_file(path, source, create=create))

    async def _run(
        self, method: str, purpose: Purpose, length: int, context: RequestContext, work: Callable[[], T]
    ) -> T:
        """Run ``work`` in a thread, and count it as one request."""
        self._check_open()
        loop = asyncio.get_running_loop()
        began = loop.time()
        status = 0
        try:
            result = await result_of(self._threads.start(work))
            status = 200
        finally:
            seconds = loop.time() - began
            context.metrics.record(
                RequestRecord(method, purpose, 0, length, status, 0, 1, context.round, seconds, began=began)
            )
        return result

    async def _finish(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run ``work`` in a thread and wait for its end, even when cancelled."""
        self._check_open()
        running = self._threads.start(work, *arguments)
        try:
            return await result_of(running)
        except asyncio.CancelledError:
            await wait_futures((running,))
            raise


class _Opened:
    """A file descriptor and the version of its file. It is closed once it is retired and no read uses it.

    A file so young that a write might not change its stat gets a version of this descriptor alone, so that no cache
    serves its bytes to another handle.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        info = os.fstat(descriptor)
        self.stamp = local_stamp(info)
        self.validator = local_validator(info)
        self._info = info
        if may_change_unseen(info.st_mtime_ns / 1e9, time.time()):
            self.validator = replace(self.validator, version=f"{self.validator.version}-{secrets.token_hex(8)}")
        self.readers = 0
        self._retired = False

    def written_to(self) -> bool:
        """Return whether the file's content may have changed. A new or removed link to the file does not count."""
        info = os.fstat(self.descriptor)
        if info.st_nlink == self._info.st_nlink:
            return local_stamp(info) != self.stamp
        return (info.st_mtime_ns, info.st_size) != (self._info.st_mtime_ns, self._info.st_size)

    def retire(self) -> None:
        self._retired = True
        self._close_if_unused()

    def read_ended(self, _: object) -> None:
        self.readers -= 1
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if self._retired and self.readers == 0 and self.descriptor >= 0:
            descriptor, self.descriptor = self.descriptor, -1
            os.close(descriptor)


class LocalObject(Unpicklable):
    """One open file; see :class:`asyncpq.storage.base.StoredObject`.

    A scan keeps reading the file that it opened, even if another file has its path by now. Such bytes do not validate
    the version, so a scan that has not yet returned rows starts again. Other reads behave as with an object store: with
    ``pin`` they raise ObjectChangedError; a tail without ``pin`` opens the path again.
    """

    client = "file"
    server = ""
    guarantee = Guarantee.PINNED

    def __init__(self, path: str, descriptor: int, threads: Threads, owner: set[LocalObject]) -> None:
        self.url: str = safe_url(path)
        self._path = path
        self.identity: str = f"file://{path}"
        self._opened = _Opened(descriptor)
        self._threads = threads
        self._owner = owner
        self._closed = False

    def __repr__(self) -> str:
        return f"<LocalObject {self.url}>"

    def learn(self, validator: Validator) -> None:
        """Do nothing: an open descriptor always reads one file."""

    def has_version(self, validator: Validator) -> bool:
        """Return whether the path has the version ``validator`` now; calls stat once."""
        return not self._replaced() and validator.same_version(self._opened.validator)

    async def fetch_tail(self, length: int, *, context: RequestContext, pin: Validator | None = None) -> RangeResult:
        if pin is None and not self._closed and self._replaced():
            self._reopen()
        size = self._opened.validator.size
        if size == 0:
            raise empty(self.url)
        return await self._fetch(RangeRequest(-length, 0, self.url, pin), max(0, size - length), size, context)

    async def fetch_range(
        self, start: int, stop: int, *, context: RequestContext, pin: Validator | None = None
    ) -> RangeResult:
        return await self._fetch(RangeRequest(start, stop, self.url, pin), start, stop, context)

    async def close(self) -> None:
        """Close the descriptor, at once or when the last read that uses it ends. Idempotent."""
        self._closed = True
        self._owner.discard(self)
        self._opened.retire()

    async def _fetch(self, request: RangeRequest, start: int, stop: int, context: RequestContext) -> RangeResult:
        if self._closed:
            raise UsageError("the file is closed", url=self.url, hint="Open it again.")
        pin, replaced = request.pin, self._replaced()
        if replaced and pin is not None and not pin.same_version(self._opened.validator):
            with contextlib.suppress(StoreError):  # a missing file has changed too
                self._reopen()  # another handle may have seen the pinned version at this path
                replaced = False
        opened = self._opened
        is_pinned = pin is None or pin is opened.validator or pin.same_version(opened.validator)
        if not is_pinned or (pin is not None and not context.scan and replaced):
            raise changed(request, "the path holds another file, or the file was written to")
        size = opened.validator.size
        if stop > size:
            message = f"the object ends at byte {size}, before the range does"
            raise InvalidResponseError(message, url=self.url, byte_range=(start, stop))
        loop = asyncio.get_running_loop()
        began = loop.time()
        data = b""
        status = 0
        try:
            if stop - start <= INLINE_BYTES:
                data = self._read(opened, start, stop)
            else:
                opened.readers += 1
                reading = self._threads.start(self._read, opened, start, stop)
                reading.add_done_callback(opened.read_ended)
                data = await result_of(reading)
            status = 200
        finally:
            seconds, round_ = loop.time() - began, context.round
            context.metrics.record(
                RequestRecord(
                    "GET",
                    context.purpose,
                    request.start,
                    request.stop,
                    status,
                    len(data),
                    1,
                    round_,
                    seconds,
                    began=began,
                    url=self.url,
                )
            )
        return RangeResult(data, start, opened.validator, validates=not replaced)

    def _read(self, opened: _Opened, start: int, stop: int) -> bytes:
        parts: list[bytes] = []
        try:
            while start < stop and (part := os.pread(opened.descriptor, stop - start, start)):
                parts.append(part)
                start += len(part)
            written_to = opened.written_to()
        except OSError as error:
            raise _read_error(error, self.url) from error
        if written_to or start < stop:
            raise ObjectChangedError("the file was written to while it was read", url=self.url)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _replaced(self) -> bool:
        """Return whether the path now means another file, another version of the file, or nothing."""
        try:
            return local_stamp(os.stat(self._path)) != self._opened.stamp
        except OSError:
            return True

    def _reopen(self) -> None:
        opened = _Opened(_open(self._path))
        self._opened.retire()
        self._opened = opened


def local_stamp(info: os.stat_result) -> tuple[int, ...]:
    """Return the fields of a stat that differ between versions of a file."""
    # the change time too: a program can set the modification time back, but not this one
    return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns, info.st_size


def local_validator(info: os.stat_result) -> Validator:
    """Return the validator of the file version that ``info`` describes."""
    return Validator(size=info.st_size, version="-".join(map(str, local_stamp(info))))


def _open(path: str) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a FIFO must not block
        mode = os.fstat(descriptor).st_mode
    except OSError as error:
        raise _read_error(error, path) from error
    except ValueError as error:  # a name with NUL
        raise ObjectNotFoundError("there is no such file, since the path contains NUL", url=safe_url(path)) from error
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise ObjectNotFoundError("the path names a folder, not a file", url=safe_url(path), hint=FOLDER_HINT)
    raise StoreError("the path is not a regular file", url=safe_url(path), hint="Pass the path of a regular file.")


def _walk(
    folder: str, start: str, root: str, wants: Wants | None, above: frozenset[tuple[int, int]]
) -> Iterator[ListedObject]:
    """Yield the files below ``folder``, in bytewise order.

    Args:
        start: how names directly in the folder must begin.
        root: the url of the folder, with which the files' urls begin.
        wants: folders for which it returns False are left out.
        above: device and inode of the parent folders, to detect links that lead back.
    """
    try:
        info = os.stat(folder)
        with os.scandir(folder) as scanned:
            # folders with their slash: the order of whole paths
            names = [entry.name + "/" * _is_folder(entry) for entry in scanned if entry.name.startswith(start)]
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a name with NUL
        return
    here = (info.st_dev, info.st_ino)
    if here in above:
        return
    for name in sorted(names, key=os.fsencode):
        path, url = folder + name, root + name
        if name.endswith("/"):
            if wants is None or wants(url):
                yield from _walk(path, "", url, wants, above | {here})
            continue
        try:
            info = os.stat(path)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ELOOP):  # removed meanwhile, or a dangling link
                continue
            raise
        if stat.S_ISREG(info.st_mode):
            young = may_change_unseen(info.st_mtime_ns / 1e9, time.time())
            yield ListedObject(url, info.st_size, None if young else local_validator(info), info.st_mtime)


def _is_folder(entry: os.DirEntry[str]) -> bool:
    # entry.is_dir() raises for a link that leads back to itself
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


def _read_error(error: OSError, path: str) -> StoreError:
    url = safe_url(path)
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return ObjectNotFoundError("there is no such file", url=url)
    if isinstance(error, PermissionError):
        return AccessDeniedError("this process may not read the file", url=url, hint="Check the file's permissions.")
    return TransportError(f"the file cannot be read: {error.strerror}", url=url)
