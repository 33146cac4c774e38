"""Blocking work on local files: listings, version stamps, and atomic writes.

A file is written beside its place, then moved or linked into it. A process that dies leaves at most a file
``.<hex>.tmp``, which listings show and reads ignore.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

from asyncpq.errors import AccessDeniedError, ObjectNotFoundError, StoreError
from asyncpq.storage.base import ListedObject, Validator, Wants, cannot_create, may_change_unseen
from asyncpq.storage.urls import safe_url


def local_stamp(info: os.stat_result) -> tuple[int, ...]:
    """The fields of a stat that tell versions of a file apart."""
    # the change time too: a program can set the modification time back, but not this one
    return info.st_dev, info.st_ino, info.st_mtime_ns, info.st_ctime_ns, info.st_size


def local_validator(info: os.stat_result) -> Validator:
    """The validator of a file's version."""
    return Validator(size=info.st_size, version="-".join(map(str, local_stamp(info))))


def list_folder(prefix: str, root: str, wants: Wants | None) -> list[ListedObject]:
    """List the regular files whose absolute paths begin with ``prefix``, in bytewise order. Blocks.

    Links are followed, except into a folder above them. Files that vanish meanwhile are left out.

    Args:
        root: url of the folder part of ``prefix``, with its slash.
        wants: see :class:`asyncpq.storage.base.Store`.

    Raises:
        OSError: a folder cannot be read.
    """
    folder, _, start = prefix.rpartition("/")
    return list(_walk(folder + "/", start, root, wants, frozenset()))


def _walk(
    folder: str, start: str, root: str, wants: Wants | None, above: frozenset[tuple[int, int]]
) -> Iterator[ListedObject]:
    try:
        info = os.stat(folder)
        entries = _entries(folder, start)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a name with NUL
        return
    here = (info.st_dev, info.st_ino)
    if here in above:
        return
    for name in sorted(entries, key=os.fsencode):  # folders with their slash: the order of whole paths
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


def _entries(folder: str, start: str) -> list[str]:
    with os.scandir(folder) as entries:
        return [entry.name + "/" * _is_folder(entry) for entry in entries if entry.name.startswith(start)]


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return os.path.isdir(entry.path) if entry.is_symlink() else entry.is_dir()


_COPY_BYTES = 1024 * 1024
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class AtomicFile:
    """A file that is invisible at its path until :meth:`finish`. Always call :meth:`discard` at the end.

    Raises:
        ConcurrentCommitUnsupported: the file system has no links, which creating needs.
        StoreError: it cannot be written.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._folder = os.path.dirname(path)
        self._temporary = os.path.join(self._folder, f".{secrets.token_hex(8)}.tmp")
        with _typed(path):
            _make_folder(self._folder)
            self._file = open(self._temporary, "xb")  # noqa: SIM115  # closed by discard()

    def write(self, data: bytes) -> None:
        """Append bytes."""
        with _typed(self._path):
            self._file.write(data)

    def copy(self, source: Path) -> None:
        """Append another file's content."""
        with _typed(self._path), source.open("rb") as content:
            shutil.copyfileobj(content, self._file, _COPY_BYTES)

    def finish(self, *, create: bool) -> bool:
        """Sync the file and put it at its path.

        Args:
            create: keep an existing file, and return False.
        """
        with _typed(self._path):
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
        with _typed(self._path):
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
    """Create or replace the file at ``path``, and its folders; it is on disk when this returns.

    Args:
        source: the content, or a file with it.
        create: keep an existing file, and return False.

    Raises:
        ConcurrentCommitUnsupported: the file system has no links, which ``create`` needs.
        StoreError: it cannot be written.
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
    """Delete a file, if it exists.

    Raises:
        StoreError: it cannot be deleted.
    """
    try:
        os.unlink(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return
    except OSError as error:
        raise _write_error(error, path) from error


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
def _typed(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if isinstance(error, StoreError):
            raise
        raise _write_error(error, path) from error
    except ValueError as error:  # a name with NUL
        raise StoreError("a file cannot have this name", url=safe_url(path)) from error


def _write_error(error: OSError, path: str) -> StoreError:
    url = safe_url(path)
    if isinstance(error, PermissionError):
        return AccessDeniedError("the file may not be written", url=url, hint="Check its folder's permissions.")
    if isinstance(error, FileNotFoundError):
        return ObjectNotFoundError("the file to be stored, or the folder, does not exist", url=url)
    return StoreError(f"the file cannot be written: {error.strerror}", url=url)
