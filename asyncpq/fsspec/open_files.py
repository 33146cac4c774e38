"""Open files of the fsspec filesystem. Each file reads one version of an object and holds no connection."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from fsspec.asyn import AbstractAsyncStreamedFile
from fsspec.caching import BaseCache
from fsspec.spec import AbstractBufferedFile

from asyncpq import Validator
from asyncpq.engine.byte_readers import ObjectVersion, modified_s
from asyncpq.options import MIB

if TYPE_CHECKING:
    from asyncpq.fsspec.filesystem import AsyncpqFileSystem

_SMALL_READ_BYTES: Final = 256 * 1024


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
