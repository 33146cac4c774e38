"""Compare the files of a dataset with those that a snapshot of an index lists."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa

from asyncpq.datasets.file_statistics import type_of
from asyncpq.datasets.model import DataFile, TableField
from asyncpq.errors import InvalidOptionError
from asyncpq.events import Operation
from asyncpq.indexing.build.file_rows import FileTask
from asyncpq.indexing.index_model import IndexBackend, IndexTable
from asyncpq.indexing.manifest.commits import IndexedFile, files_of, newest_by_path
from asyncpq.indexing.manifest.manifest import Manifest
from asyncpq.indexing.query.segment_reads import worked
from asyncpq.objects.runtime import Runtime
from asyncpq.pruning.row_ranges import RowRanges


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSource:
    """The files that an index is to cover.

    Attributes:
        url: of the dataset, without secrets.
        root: url that paths are relative to; "" for none.
        dataset: the dataset as JSON (see ``Manifest.dataset``).
        schema, fields: its columns, and how a table's files hold them.
        partitions: columns whose values are not in the files.
        files: each url once.
        complete: ``files`` are all files. If not, other files stay as they are, except for the paths in ``asked``.
        asked: paths that are gone unless they are in ``files``.
        required: the files were written for this index: each must exist, with the index's columns.
        alone: after the commit no other file is live, even files committed meanwhile; the index gets their columns.
        as_of: time of the listing, with a zone.
    """

    url: str
    root: str
    dataset: Mapping[str, Any]
    schema: pa.Schema
    fields: tuple[TableField, ...] | None
    partitions: tuple[str, ...]
    files: Sequence[DataFile]
    complete: bool = True
    asked: Set[str] = frozenset()
    required: bool = False
    alone: bool = False
    as_of: datetime

    def path(self, url: str) -> str:
        """Return the file's path in the index; "" if the root itself is the one file."""
        if self.root == f"{url}/":
            return ""
        return url[len(self.root) :] if self.root and url.startswith(self.root) else url

    def by_path(self) -> dict[str, DataFile]:
        """Return the files by path.

        Raises:
            InvalidOptionError: a file is named twice.
        """
        by_path = {self.path(file.url): file for file in self.files}
        if len(by_path) < len(self.files):
            raise InvalidOptionError("a file is named twice; an index lists each file once", url=self.url)
        return by_path

    def readable(self, index_tables: Iterable[IndexTable]) -> tuple[IndexTable, ...]:
        """Return the tables whose columns the dataset has now. A column that was dropped may come back, or be in an
        older version of the table: files that are read meanwhile are unknown to its index tables."""
        return tuple(
            index_table
            for index_table in index_tables
            if all(type_of(self.schema, name) is not None for name in index_table.columns)
        )

    def field_ids(self, index_tables: Iterable[IndexTable]) -> tuple[tuple[str, int], ...]:
        """Return the field ids of the indexed columns (see :func:`field_ids`)."""
        return tuple(
            field_ids(self.fields or (), (name for index_table in index_tables for name in index_table.columns)).items()
        )


def field_ids(fields: Sequence[TableField], columns: Iterable[str]) -> dict[str, int]:
    """Return ids that tell columns, and the structs around them, from later columns with the same names: field ids, or
    hashes of their names in the files, if the table reads its files by name.

    Args:
        columns: names or dotted paths.
    """
    found: dict[str, int] = {}

    def visit(parts: Sequence[TableField], above: str, column: str) -> None:
        for part in parts:
            path = above + part.name
            if column == path or column.startswith(f"{path}."):
                number = _number_of(part)
                if number is not None:
                    found[path] = number
                visit(part.children, f"{path}.", column)

    for column in columns:
        visit(fields, "", column)
    return found


def _number_of(field: TableField) -> int | None:
    if field.field_id is not None or field.names in ((), (field.name,)):
        return field.field_id
    return int.from_bytes(hashlib.blake2b("\0".join(field.names).encode(), digest_size=6).digest(), "big")


class BuildPlan(NamedTuple):
    """The work of a build: how the files differ from a snapshot.

    Attributes:
        base: the snapshot; None before the first.
        works: files to read.
        taken: files that broken-off builds have read.
        removed: files that are gone.
        replaced: files that have, or may have, another version, by path.
    """

    base: Manifest | None
    works: tuple[FileTask, ...] = ()
    taken: tuple[IndexedFile, ...] = ()
    removed: tuple[IndexedFile, ...] = ()
    replaced: Mapping[str, IndexedFile] = {}

    @property
    def is_nothing(self) -> bool:
        return not (self.works or self.taken or self.removed)


async def differences(
    runtime: Runtime,
    backend: IndexBackend,
    base: Manifest | None,
    source: IndexSource,
    before: RowRanges,
    operation: Operation | None = None,
) -> BuildPlan:
    """Compare ``source`` with ``base``.

    Args:
        before: ids that were live before the files were listed; of other files, the listing may be outdated.

    Raises:
        InvalidOptionError: a file is named twice.
    """
    if base is None:
        works = [FileTask(id=0, path=path, file=file) for path, file in source.by_path().items()]
        return BuildPlan(None, tuple(works))
    found = await files_of(runtime, backend, base, base.live | base.reserved, operation)
    return await worked(runtime, len(source.files), partial(_compared, base, source, found, before))


def _compared(base: Manifest, source: IndexSource, found: Sequence[IndexedFile], before: RowRanges) -> BuildPlan:
    files, live = source.by_path(), base.live
    if source.alone:  # a new index knows nothing of files of the old one
        return BuildPlan(base, tuple(FileTask(id=0, path=path, file=file) for path, file in files.items()))
    listed = newest_by_path(one for one in found if one.id in live)
    begun: dict[str, list[IndexedFile]] = {}
    for one in found:
        if one.id not in live:
            begun.setdefault(one.path, []).append(one)
    works: list[FileTask] = []
    taken: list[IndexedFile] = []
    replaced: dict[str, IndexedFile] = {}
    for path, file in files.items():
        known = listed.get(path)
        if known is not None and (known.id not in before or known.is_version_of(file)):
            continue
        if known is not None:
            replaced[path] = known
        left = next((other for other in begun.get(path, ()) if other.is_version_of(file)), None)
        if left is not None:
            taken.append(left)
            continue
        works.append(FileTask(id=0, path=path, file=file))
    looked = listed if source.complete else source.asked
    removed = [one for path, one in listed.items() if path in looked and path not in files and one.id in before]
    return BuildPlan(base, tuple(works), tuple(taken), tuple(removed), replaced)
