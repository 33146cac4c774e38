"""Files that are seen whole or not at all: written beside their place, then moved or linked into it. Blocks.

A process that dies leaves at most a file ``.<hex>.tmp`` in the folder, which listings show and nothing reads.
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
from asyncpq.storage.creating import cannot_create
from asyncpq.storage.urls import safe_url

_COPY_BYTES = 1024 * 1024
_NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK})


class NewFile:
    """A file that nobody sees yet. Ends with :meth:`finish`; then, or in its place, :meth:`discard`.

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
        """Add to it."""
        with _typed(self._path):
            self._file.write(data)

    def copy(self, source: Path) -> None:
        """Add another file's content."""
        with _typed(self._path), source.open("rb") as content:
            shutil.copyfileobj(content, self._file, _COPY_BYTES)

    def finish(self, *, create: bool) -> bool:
        """Put it in its place, on disk.

        Args:
            create: leave a file that is there; then False is returned.
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
        """Leave nothing but what was put in its place."""
        with _typed(self._path):
            try:
                self._file.close()  # may write what is left
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
        source: the content, or another file with it.
        create: leave a file that is there; then False is returned.

    Raises:
        ConcurrentCommitUnsupported: the file system has no links, which ``create`` needs.
        StoreError: it cannot be written.
    """
    file = NewFile(path)
    try:
        if isinstance(source, bytes):
            file.write(source)
        else:
            file.copy(source)
        return file.finish(create=create)
    finally:
        file.discard()


def delete_file(path: str) -> None:
    """Delete a file, if it is there.

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
        raise StoreError("no file can have this name", url=safe_url(path)) from error


def _write_error(error: OSError, path: str) -> StoreError:
    url = safe_url(path)
    if isinstance(error, PermissionError):
        return AccessDeniedError("the file may not be written", url=url, hint="Check its folder's permissions.")
    if isinstance(error, FileNotFoundError):
        return ObjectNotFoundError("the file to be stored is not there, or the folder has gone", url=url)
    return StoreError(f"the file cannot be written: {error.strerror}", url=url)
