"""The rows of the part "files": which versions of which files an index knows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import partial

import pyarrow as pa

from asyncpq.datasets.model import DataFile
from asyncpq.errors import CorruptIndexError
from asyncpq.events import Operation
from asyncpq.indexing.manifest.manifest import FILES, Manifest
from asyncpq.indexing.model import IndexBackend, KeyRange, file_key
from asyncpq.indexing.query.segment_reads import worked
from asyncpq.objects.runtime import Runtime
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.base import Validator

_MOST_RANGES = 64


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """A file in an index.

    Attributes:
        id: of its version.
        path: relative to the dataset's root, or a whole url.
        validator: of the version; None where it was not seen.
        num_rows: None where nothing else is known of it.
    """

    id: int
    path: str
    validator: Validator | None
    num_rows: int | None

    def is_version_of(self, file: DataFile) -> bool:
        """Whether what a listing or a table says of ``file`` is this version for certain."""
        if self.validator is None:
            return False
        if file.validator is not None:
            return self.validator.same_version(file.validator)
        return file.immutable and self.num_rows is not None and file.size in (None, self.validator.size)

    def is_newer_than(self, other: IndexedFile) -> bool:
        """Whether it was written after ``other``, as far as their store says."""
        mine, theirs = _written(self), _written(other)
        return mine is not None and theirs is not None and mine > theirs


def _written(file: IndexedFile) -> float | None:
    text = None if file.validator is None else file.validator.last_modified
    if text is None:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except ValueError:
        return None


async def files_of(
    runtime: Runtime, backend: IndexBackend, manifest: Manifest, ids: RowRanges, operation: Operation | None = None
) -> list[IndexedFile]:
    """The files of these ids that the index knows.

    Raises:
        CorruptIndexError: rows that cannot be.
    """
    found: list[IndexedFile] = []
    wanted = ids.num_ranges <= _MOST_RANGES
    ranges = [KeyRange(file_key(start), file_key(stop)) for start, stop in ids] if wanted else None
    for segment in manifest.segments_of(FILES):
        if not any(ids.overlaps(start, stop) for start, stop in segment.files):
            continue
        table = await backend.read_segment(segment, ranges, operation=operation)
        if table is not None:
            listed = await worked(runtime, table.num_rows, partial(files_in, table))
            found += [file for file in listed if file.id in ids]
    return found


def files_in(table: pa.Table) -> list[IndexedFile]:
    """
    Raises:
        CorruptIndexError: rows that cannot be.
    """
    names = ("key", "path", "size", "etag", "last_modified", "version", "num_rows", "problem")
    columns = [table.column(name).to_pylist() for name in names]
    found: list[IndexedFile] = []
    for key, path, size, etag, last_modified, version, num_rows, problem in zip(*columns, strict=True):
        if len(key) != 8 or (problem is None and num_rows is None):
            raise CorruptIndexError("the index lists files that cannot be")
        seen = num_rows is not None or etag is not None or version is not None or last_modified is not None
        validator = Validator(size, etag, last_modified, version) if seen else None
        found.append(IndexedFile(int.from_bytes(key, "big"), path, validator, num_rows))
    return found


def newest_by_path(files: Iterable[IndexedFile]) -> dict[str, IndexedFile]:
    """Of each path the one with the highest id; there is but one among those in use."""
    found: dict[str, IndexedFile] = {}
    for file in files:
        last = found.get(file.path)
        if last is None or last.id < file.id:
            found[file.path] = file
    return found
