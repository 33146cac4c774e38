"""The files that an index should cover, from a listing of the manifest's target or from an open dataset; and how they
differ from a snapshot, which says what a build has to read."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple, overload

import pyarrow as pa

from asyncpq.checkpoints import each, paused
from asyncpq.datasets.dataset_files import DatasetState
from asyncpq.datasets.listing import (
    INDEX_FOLDER,
    Commits,
    FileRules,
    Target,
    is_file_of,
    list_files,
    may_be_uncommitted,
    parse_target,
)
from asyncpq.datasets.model import DataFile, DataFiles, TableField, urls_of
from asyncpq.datasets.partitioning import Partitioning, described_partitioning, folders_of, read_partitions
from asyncpq.decoding.paths import type_of
from asyncpq.errors import Hint, InvalidOptionError, ObjectNotFoundError, SchemaMismatchError, UsageError
from asyncpq.events import Operation
from asyncpq.indexing.backends import open_backend
from asyncpq.indexing.commits import FileRow, IndexedFile, files_of, is_same_version, load
from asyncpq.indexing.index_model import IndexBackend, IndexTable
from asyncpq.indexing.manifest import Manifest
from asyncpq.indexing.query.file_selection import worked
from asyncpq.objects.runtime import Runtime
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import LazyRecords, dataclass
from asyncpq.scan.request import ScanRequest
from asyncpq.storage.base import RequestContext
from asyncpq.storage.urls import safe_url


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTask:
    """A file that a build reads. Can be pickled if the DataFile can.

    Attributes:
        id: the file id of the version that will be read.
        path: the file's path in the index.
    """

    id: int
    path: str
    file: DataFile  # the file's location; rows that a table has deleted are indexed too


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSource:
    """The files that an index should cover after a build."""

    url: str  # url of the dataset, without secrets
    root: str  # url to which paths in the index are relative; "" if paths are whole urls
    dataset: Mapping[str, Any]  # see Manifest.dataset
    schema: pa.Schema
    fields: tuple[TableField, ...] | None  # a table's columns with their ids in the files; None if matched by name
    partitions: tuple[str, ...]  # columns whose values are not in the files
    files: Sequence[DataFile]  # each url once
    complete: bool = True  # whether `files` are all files; if not, other files stay in the index unless in `asked`
    asked: Set[str] = frozenset()  # paths that are removed from the index unless they are in `files`
    required: bool = False  # the files were written for this index: each must exist, with the index's columns
    alone: bool = False  # no other file is live after the commit, even if committed meanwhile; its columns change too
    as_of: datetime  # time of the listing, with a zone
    runtime: Runtime | None = None  # reads the files, if not the session's: a table may have its own storage options

    def path(self, url: str) -> str:
        """Return the path by which the index names the file at ``url``; "" if the dataset is a single file, whose
        url is the root."""
        if self.root == f"{url}/":
            return ""
        return url[len(self.root) :] if self.root and url.startswith(self.root) else url

    def by_path(self) -> dict[str, int]:
        """Return the positions of the files by path; raise InvalidOptionError if a file is named twice."""
        root = self.root  # only a url of one character less may be the root itself
        by_path = {
            url.removeprefix(root) if len(url) >= len(root) else self.path(url): number
            for number, url in enumerate(each(urls_of(self.files)))
        }
        if len(by_path) < len(self.files):
            raise InvalidOptionError(
                "a file occurs twice among the files to index", url=self.url, hint="Name each file once."
            )
        return by_path

    def readable(self, index_tables: Iterable[IndexTable]) -> tuple[IndexTable, ...]:
        """Return those index tables whose columns the dataset has now. A build adds no rows to the others, which
        stay in the index: a dropped column may come back, or be in an older version of the table."""
        return tuple(
            index_table
            for index_table in index_tables
            if all(type_of(self.schema, name) is not None for name in index_table.columns)
        )

    def field_ids(self, index_tables: Iterable[IndexTable]) -> tuple[tuple[str, int], ...]:
        """Return pairs of dotted path and id of the indexed columns and the structs around them (see
        :func:`field_ids`)."""
        names = (name for index_table in index_tables for name in index_table.columns)
        return tuple(field_ids(self.fields or (), names).items())

    def only(self, urls: Sequence[str]) -> IndexSource:
        """Return a source of the files at ``urls`` only; a url that is not in ``files`` is that of a deleted file."""
        wanted = dict.fromkeys(urls)
        files = [file for file in self.files if file.url in wanted]
        return replace(self, files=files, complete=False, asked={self.path(url) for url in wanted})


def field_ids(fields: Sequence[TableField], columns: Iterable[str]) -> dict[str, int]:
    """Return the ids of ``columns`` (names or dotted paths) and of the structs around them, by dotted path. If a
    table drops a column and adds another of the same name, their ids differ: an id is the field id, or a hash of the
    column's names in the files if these are matched by name."""
    ids: dict[str, int] = {}

    def visit(parts: Sequence[TableField], above: str, column: str) -> None:
        for part in parts:
            path = above + part.name
            if column == path or column.startswith(f"{path}."):
                number = part.field_id
                if number is None and part.names not in ((), (part.name,)):
                    digest = hashlib.blake2b("\0".join(part.names).encode(), digest_size=6).digest()
                    number = int.from_bytes(digest, "big")
                if number is not None:
                    ids[path] = number
                visit(part.children, f"{path}.", column)

    for column in columns:
        visit(fields, "", column)
    return ids


class FileTasks(Sequence[FileTask]):
    """Tasks to read the files of ``source`` at ``positions``, with ascending ids from ``first`` on."""

    def __init__(self, source: IndexSource, positions: Sequence[int], first: int = 0) -> None:
        self._source = source
        self._positions = positions
        self._first = first

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, index: int) -> FileTask: ...

    @overload
    def __getitem__(self, index: slice) -> FileTasks: ...

    def __getitem__(self, index: int | slice) -> FileTask | FileTasks:
        if isinstance(index, slice):
            return FileTasks(self._source, self._positions[index], self._first + range(len(self))[index].start)
        file = self._source.files[self._positions[index]]
        number = range(len(self))[index]
        return FileTask(id=self._first + number, path=self._source.path(file.url), file=file)

    def numbered(self, first: int) -> FileTasks:
        """Return the same tasks, with ids from ``first`` on."""
        return FileTasks(self._source, self._positions, first)

    def without(self, paths: Set[str]) -> FileTasks:
        """Return the tasks of files whose paths are not in ``paths``."""
        kept = [position for position, task in zip(self._positions, self, strict=True) if task.path not in paths]
        return FileTasks(self._source, kept, self._first)


class BuildPlan(NamedTuple):
    """The work of a build: how the files differ from a snapshot."""

    base: Manifest | None  # the snapshot; None if the index does not exist yet
    works: FileTasks  # files to read
    taken: tuple[IndexedFile, ...] = ()  # current files that interrupted builds have read
    removed: tuple[IndexedFile, ...] = ()  # indexed files that were deleted
    replaced: Mapping[str, IndexedFile] = {}  # by path, indexed versions that were, or may have been, replaced


async def differences(
    runtime: Runtime,
    backend: IndexBackend,
    base: Manifest | None,
    source: IndexSource,
    before: RowRanges,
    operation: Operation | None = None,
) -> BuildPlan:
    """Return how the files of ``source`` differ from those of the snapshot ``base``. Raises InvalidOptionError if a
    file occurs twice.

    Args:
        before: ids of the files that readers saw before the listing began. Files added since then are kept, because the
            listing may be too old to have them.
        operation: counts the cost; None counts nothing.
    """
    if base is None:
        return await worked(runtime, len(source.files), partial(_all_files, None, source))
    indexed = await files_of(runtime, backend, base, base.live | base.reserved, operation)
    return await worked(runtime, len(source.files), partial(_compared, base, source, indexed, before))


def _all_files(base: Manifest | None, source: IndexSource) -> BuildPlan:
    source.by_path()  # raises the error of a file that occurs twice
    return BuildPlan(base, FileTasks(source, range(len(source.files))))


def _compared(base: Manifest, source: IndexSource, indexed: LazyRecords[IndexedFile], before: RowRanges) -> BuildPlan:
    if source.alone:  # a new index knows nothing of files of the old one
        return _all_files(base, source)
    files, live = source.by_path(), base.live
    later = live - before
    # Rows are compared, and records made only of files that may have changed: mostly these are few of very many.
    rows: Sequence[FileRow] = indexed.rows
    objects = source.files.rows if isinstance(source.files, DataFiles) else None
    listed: dict[str, int] = {}  # positions in `indexed` of the newest version of each file: that of the highest id
    begun: dict[str, list[int]] = {}
    for number, (file, path, *_) in enumerate(each(rows)):
        if file not in live:
            begun.setdefault(path, []).append(number)
        elif (last := listed.get(path)) is None or rows[last][0] < file:
            listed[path] = number
    works = array("q")
    taken: list[IndexedFile] = []
    replaced: dict[str, IndexedFile] = {}
    for path, position in paused(files.items()):
        if (at := listed.get(path)) is not None:
            if (objects is not None and is_same_version(rows[at], objects[position])) or rows[at][0] in later:
                continue
            known = indexed[at]
            if known.is_version_of(source.files[position]):
                continue
            replaced[path] = known
        data_file = source.files[position]
        earlier = (indexed[number] for number in begun.get(path, ()))
        already_read = next((other for other in earlier if other.is_version_of(data_file)), None)
        if already_read is not None:
            taken.append(already_read)
        else:
            works.append(position)
    looked_at = listed if source.complete else source.asked
    gone = [indexed[at] for path, at in listed.items() if path in looked_at and path not in files]
    removed = [file for file in gone if file.id in before]
    return BuildPlan(base, FileTasks(source, works), tuple(taken), tuple(removed), replaced)


def described_files(
    target: Target, partitioning: Partitioning | None, *, inside: bool, plain: bool = False
) -> dict[str, Any]:
    """Return the JSON values that describe a prefix, a pattern or a list of urls in ``Manifest.dataset``.

    ``inside``: the index is in ``_asyncpq/`` below the prefix, and moves with the folder. ``plain``: the index covers
    all files, even those that asyncpq wrote and that no index lists.
    """
    named = target.url if target.urls is None else list(target.urls)
    described = {"kind": "files", "target": named, "partitioning": _described(partitioning), "inside": inside}
    return {**described, "plain": True} if plain else described


def _described(partitioning: Partitioning | None) -> str | list[str] | None:
    if partitioning is None:
        return None
    return "hive" if partitioning.names is None else list(partitioning.names)


def folder_around(at: object) -> str | None:
    """Return the folder that contains ``_asyncpq/``, with a final slash, if ``at`` is the url of an ``_asyncpq/``;
    else None."""
    if not isinstance(at, (str, os.PathLike)):
        return None
    url = f"{str(os.fspath(at)).removesuffix('/')}/"
    return url.removesuffix(INDEX_FOLDER) if url.endswith(f"/{INDEX_FOLDER}") else None


def target_of(manifest: Manifest, given: Target | None, at: object) -> Target:
    """Return the target whose files the index at ``at`` covers: the manifest's, or the folder around the index, if
    the index was built inside it. Raises InvalidOptionError if the caller passed a target, ``given``, that differs
    from it."""
    known = parse_target(manifest.dataset["target"])
    folder = folder_around(at)
    if folder is not None and manifest.dataset.get("inside"):
        known = parse_target(folder)
    if given is not None and (given.folder, given.pattern, given.urls) != (known.folder, known.pattern, known.urls):
        raise InvalidOptionError(
            f"the existing index covers the files of {safe_url(known.url)}, not those of {safe_url(given.url)}",
            url=safe_url(str(at)),
            hint="Build this index in another place, or drop the existing one first.",
        )
    return known


def root_of(target: Target) -> str:
    """Return the url to which the paths of the target's files are relative; "" for a list, whose paths are urls."""
    return "" if target.urls is not None else target.folder


async def dataset_source(
    state: DatasetState, root: str, dataset: Mapping[str, Any], operation: Operation
) -> IndexSource:
    """Return the current files of an open dataset. For ``root`` and ``dataset`` see :class:`IndexSource`."""
    began = datetime.now(UTC)
    files = (await state.source.files(ScanRequest(), operation)).files
    described = files.partitions.values() if isinstance(files, DataFiles) else (file.partition for file in files)
    partitions = dict.fromkeys(name for values in described for name in values)
    schema, fields, _ = state.columns
    return IndexSource(
        url=state.url,
        root=root,
        dataset=dataset,
        schema=schema,
        fields=fields,
        partitions=tuple(name for name in partitions if name in schema.names),
        files=files,
        as_of=began,
        runtime=state.runtime,
    )


async def listed_source(
    runtime: Runtime,
    manifest: Manifest,
    operation: Operation,
    urls: Sequence[str] | None = None,
    *,
    given: Target | None = None,
    at: object = None,
) -> IndexSource:
    """List the current files of the prefix, pattern or list that an index covers. If ``urls`` is not None, the result
    has only these files, which are new, replaced or deleted. For ``given`` and ``at`` see :func:`target_of`.

    Raises InvalidOptionError if the index covers other files than ``given``, or not a url of ``urls``; UsageError if
    the index was built for a table.
    """
    if manifest.dataset.get("kind") != "files":
        raise UsageError(
            "the index was built for a table, whose files are listed only in the table's metadata",
            hint=Hint(
                "Open the index with the table: session.open_index(at, table=table).", "Name the url of the table."
            ),
        )
    target = target_of(manifest, given, at)
    partitioning = described_partitioning(manifest.dataset, manifest.schema, manifest.partitions)
    source = IndexSource(
        url=safe_url(target.url),
        root=root_of(target),
        dataset=manifest.dataset,
        schema=manifest.schema,
        fields=None,
        partitions=manifest.partitions,
        files=(),
        as_of=datetime.now(UTC),
    )
    if urls is not None:
        named = _named(list(dict.fromkeys(urls)), target, partitioning)
        if counts_all(manifest) or not any(may_be_uncommitted(file.url) for file in named):
            return replace(source, files=named).only(urls)
    files, may_have_own_index = await _list(runtime, manifest, target, partitioning, operation)
    source = replace(source, files=files)
    if may_have_own_index:
        source = await as_committed(runtime, target, source, operation)
    return source if urls is None else source.only(urls)


async def _list(
    runtime: Runtime, manifest: Manifest, target: Target, partitioning: Partitioning | None, operation: Operation
) -> tuple[Sequence[DataFile], bool]:
    """List the files of ``target``. Return them, and whether an index inside the folder may decide which of them
    readers see."""
    context = RequestContext(operation.metrics, purpose="list")
    plain = counts_all(manifest)
    try:
        async with runtime.deadline(safe_url(target.url)):
            listing = await list_files(
                runtime,
                target,
                context,
                FileRules(commit_check(runtime, operation), partitioning, plain),
                allow_empty=not manifest.num_files or is_committed(manifest),
            )
    except ObjectNotFoundError:
        # the folder's own index may list no files
        if plain or target.urls is not None or target.pattern is not None:
            raise
        own = await committing_index(runtime, target.folder, operation)
        if own is None or own[1].num_files:
            raise
        return (), False
    if listing.table is not None and not plain:
        raise listing.table.error(safe_url(target.url))
    for error in listing.errors:
        raise error
    return listing.files, listing.has_index and listing.is_written


def _named(urls: Sequence[str], target: Target, partitioning: Partitioning | None) -> list[DataFile]:
    """Return the files at ``urls``, as a listing of the target would contain them. Raises InvalidOptionError for a
    url outside of the target, PartitionError for a value in a path that does not fit its column's type."""
    for url in urls:
        if url not in target.urls if target.urls is not None else not f"{url}/".startswith(target.folder):
            raise InvalidOptionError(
                "files: the dataset has no such file",
                option="files",
                url=safe_url(url),
                hint=f"Pass urls of files below {safe_url(target.url)}.",
            )
    urls = [url for url in urls if is_file_of(target, url)]
    root = "" if target.pattern is not None else target.folder
    partitions = read_partitions([folders_of(url, root) for url in urls], urls, partitioning)
    for error in partitions.errors.values():
        raise error
    return [DataFile(url=url, partition=values) for url, values in zip(urls, partitions.values, strict=True)]


def counts_all(manifest: Manifest) -> bool:
    """Whether the index covers all listed files, even those that asyncpq wrote and that other indexes do not list."""
    return is_committed(manifest) or manifest.dataset.get("plain") is True


def is_committed(manifest: Manifest) -> bool:
    """Whether asyncpq wrote the files of the index, so that readers see only the files that the index lists."""
    return manifest.dataset.get("committed") is True


async def committing_index(
    runtime: Runtime, folder: str, operation: Operation | None = None
) -> tuple[IndexBackend, Manifest] | None:
    """Return backend and manifest of the index below a folder, if asyncpq wrote the folder's files, so that readers
    see only those that this index lists. None if readers see all files."""
    backend = await open_backend(runtime, folder + INDEX_FOLDER, create=False)
    manifest = await load(backend, operation)
    return None if manifest is None or not is_committed(manifest) else (backend, manifest)


def commit_check(runtime: Runtime, operation: Operation | None = None) -> Commits:
    """Return the function that :class:`asyncpq.datasets.listing.FileRules` takes as ``commits``: it says whether
    only the index of a folder knows which of its files are committed (see :func:`committing_index`)."""

    async def commits(folder: str) -> bool:
        return await committing_index(runtime, folder, operation) is not None

    return commits


async def as_committed(
    runtime: Runtime, target: Target, source: IndexSource, operation: Operation, *, own_columns: bool = False
) -> IndexSource:
    """Return ``source`` with only the committed files of its folder, for an index that is kept outside of the folder
    (see :func:`committing_index`). With ``own_columns`` its schema is that of the committed files, not of all listed
    files.

    Committed files that are not in ``source.files`` are added: either they were committed since the listing, or they
    were deleted, and reading them is an error.
    """
    own = await committing_index(runtime, target.folder, operation)
    if own is None:
        return source
    backend, manifest = own
    by_path = {source.path(file.url): file for file in source.files}
    files = await files_of(runtime, backend, manifest, manifest.live, operation)
    missing = {f"{target.folder}{file.path}": file for file in files if file.path not in by_path}
    for named in _named(
        list(missing), target, described_partitioning(source.dataset, source.schema, source.partitions)
    ):
        version = missing[named.url].validator
        size = None if version is None else version.size
        by_path[source.path(named.url)] = replace(named, validator=version, size=size)
    live = [by_path[file.path] for file in files if file.path in by_path]
    schema = source.schema
    if own_columns:
        fields = [schema.field(name) for name in source.partitions if name not in manifest.schema.names]
        schema = pa.schema([*manifest.schema, *fields])
    return replace(source, files=sorted(live, key=lambda file: file.url), schema=schema)


def another_place(manifest: Manifest) -> str:
    """Return the hint for an error that says that a place already contains another index."""
    if is_committed(manifest):
        return (
            "Keep that index: it decides which files of the folder are live. Build this one outside of the folder"
            " (at=...), and name both in reads (index=...)."
        )
    return "Refresh that index, drop it first, or build this one in another place."


def check_columns(manifest: Manifest, state: DatasetState) -> None:
    """Raise SchemaMismatchError if the dataset has an indexed column with another type or id than the index, or has
    it in the files' paths where the index has it in the files."""
    schema, fields, _ = state.columns
    known = dict(manifest.field_ids)
    in_paths = manifest.partitions if state.partitions is None else state.partitions
    for name in dict.fromkeys(name for index_table in manifest.tables for name in index_table.columns):
        now, indexed = type_of(schema, name), type_of(manifest.schema, name)
        if now is None:
            continue
        ids = field_ids(fields or (), [name])
        if now != indexed:
            difference = f"its type is {now}, not {indexed}"
        elif {path: number for path, number in known.items() if f"{name}.".startswith(f"{path}.")} != ids:
            difference = "it is one of the same name, but with another id or mapping"
        elif (name in in_paths) != (name in manifest.partitions):
            place = "paths" if name in in_paths else "files"
            difference = f"its values are in the {place} and were not when the column was indexed"
        else:
            continue
        raise SchemaMismatchError(
            f"the dataset has another column than the one that was indexed: {difference}",
            url=state.url,
            column=name,
            hint="Drop the index and build it again, or open the dataset without it.",
        )


def check_partitioning(manifest: Manifest, partitioning: Partitioning | None) -> None:
    """Raise InvalidOptionError if the index of a dataset of files was built with another ``partitioning`` option."""
    known = manifest.dataset.get("partitioning")
    if manifest.dataset.get("kind") == "files" and known != _described(partitioning):
        raise InvalidOptionError(
            f"partitioning: the index was built with {known!r}, not {_described(partitioning)!r}",
            option="partitioning",
            hint="Pass the same partitioning, or open the dataset without the index.",
        )
