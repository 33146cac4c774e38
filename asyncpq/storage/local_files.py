"""Atomic writes of local files. Blocks.

A file is written beside its place, then moved or linked into it. A process that dies leaves at most a file
``.<hex>.tmp``, which listings show and reads ignore.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

from asyncpq.errors import AccessDeniedError, ObjectNotFoundError, StoreError
from asyncpq.storage.base import cannot_create
from asyncpq.storage.urls import safe_url

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
        """Write the file to disk and move it to its path. With ``create``, an existing file is kept, and False is
        returned."""
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
