"""Where the files of a stream come from: listings of a prefix, or the snapshots of an index."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from pyspark.sql.types import StructType

from asyncpq.datasets.file_sets import GivenFiles
from asyncpq.datasets.listing import Listing, Target, list_files, parse_target
from asyncpq.datasets.model import DataFile, View
from asyncpq.datasets.opened_file import Ask
from asyncpq.errors import InvalidOptionError, UnsupportedStoreError
from asyncpq.indexing.entries import url_in
from asyncpq.indexing.lakes import committing, own_lake
from asyncpq.indexing.listed_files import IndexedFile, files_of
from asyncpq.indexing.manifest import Manifest
from asyncpq.indexing.model import Place
from asyncpq.indexing.snapshot_files import SnapshotFiles
from asyncpq.planning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.session import Session
from asyncpq.spark.reads.lakes import OpenLake
from asyncpq.spark.source.columns_asked import open_as_asked, target_of
from asyncpq.spark.source.options import SourceOptions
from asyncpq.spark.source.stream_offsets import IndexOffset, ListedOffset, NewFile, limited
from asyncpq.storage.base import RequestContext
from asyncpq.storage.urls import safe_url

#: What a stream begins with, whatever its files come from.
START: Final[Mapping[str, Any]] = {"version": 1}


@dataclass(frozen=True)
class Limits:
    """Of one batch; None for none."""

    max_files: int | None = None
    max_bytes: int | None = None


@dataclass(frozen=True)
class Batch:
    """What lies between two offsets.

    Attributes:
        opened: the dataset, with these files only, each pinned to its version; None where there are none.
        num_files: how many of them there are still.
        expected: how many there were.
        gone: url of one that is not there any more, where that is known.
    """

    opened: OpenLake | None
    num_files: int
    expected: int
    gone: str | None = None


class Files(Protocol):
    """Files of a stream. Offsets are as JSON has them."""

    async def look(self, session: Session) -> None:
        """Nothing that comes from now on is taken."""

    async def advance(self, session: Session, start: dict[str, Any], limits: Limits) -> dict[str, Any]:
        """The offset behind the next batch; ``start`` itself where there is nothing new."""

    async def batch(self, session: Session, start: dict[str, Any], end: dict[str, Any]) -> Batch:
        """The files of a batch."""


# -- listings -------------------------------------------------------------------------------------


class ListedStream:
    """Lists a prefix, or what matches a pattern, for every batch."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = replace(options, view="listed", index=False)
        self._schema = schema
        self._target = parse_target(options.target)
        self._until: frozenset[bytes] | None = None
        self._listed: list[NewFile] | None = None

    async def look(self, session: Session) -> None:
        self._until = frozenset(file.mark for file in await self._list(session))

    async def advance(self, session: Session, start: dict[str, Any], limits: Limits) -> dict[str, Any]:
        offset = _listed_offset(start)
        listed = await self._list(session)
        new = offset.new(listed)
        if self._until is not None:
            new = [file for file in new if file.mark in self._until]
        batch = limited(new, max_files=limits.max_files, max_bytes=limits.max_bytes)
        if not batch:
            return start
        self._listed = listed  # what is planned next is of this batch
        return offset.advanced(listed, batch, self._options.max_file_age_s).to_json()

    async def batch(self, session: Session, start: dict[str, Any], end: dict[str, Any]) -> Batch:
        listed, self._listed = self._listed, None
        if listed is None or self._options.ignore_missing_files:
            listed = await self._list(session)
        wanted, expected = _listed_offset(start).until(_listed_offset(end), listed)
        if not wanted:
            return Batch(None, 0, expected)
        opened = await open_as_asked(session, self._options, self._schema)
        there = await _data_files(opened, Ask())
        files = [
            replace(there[file.url], validator=file.validator, size=file.size, pinned=file.validator is not None)
            for file in wanted
            if file.url in there
        ]
        gone = next((file.url for file in wanted if file.url not in there), None)
        return Batch(_narrowed(opened, files), len(files), expected, gone)

    async def _list(self, session: Session) -> list[NewFile]:
        """
        Raises:
            UnsupportedStoreError: the store does not say when files were written.
            InvalidOptionError: an index says which files count; or this is one file.
        """
        found = await _listing(session, self._target, self._options)
        if await own_lake(session._resources, self._target.folder, found.has_index and found.is_written):
            raise InvalidOptionError(
                "only the folder's index knows now which files are live, and the stream goes by listings",
                url=safe_url(self._target.url),
                hint='Begin with a new checkpoint, without view and index; or pass format="parquet" to read every file'
                " that is there.",
            )
        taken = {file.url for file in found.files}
        behind = len(self._target.folder)
        files: list[NewFile] = []
        for one in found.listed:
            if one.url not in taken:
                continue
            if one.modified is None:
                raise UnsupportedStoreError(
                    "the store's listing does not say when files were written, which a stream goes by",
                    url=safe_url(one.url),
                    hint="Build an index of the files, and follow its snapshots: option index.",
                )
            files.append(NewFile(round(one.modified * 1e6), one.url[behind:], one.url, one.size, one.validator))
        if taken and not files:
            raise InvalidOptionError("a stream needs a folder or a pattern, not a file", url=safe_url(self._target.url))
        return files


def _listed_offset(value: Mapping[str, Any]) -> ListedOffset:
    return ListedOffset() if value == START else ListedOffset.parse(value)


# -- an index -------------------------------------------------------------------------------------


class IndexStream:
    """Follows the snapshots of an index: only files that it lists."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = replace(options, view="snapshot")
        self._schema = schema
        self._until: RowRanges | None = None

    async def look(self, session: Session) -> None:
        self._until = (await self._open(session)).manifest.live

    async def advance(self, session: Session, start: dict[str, Any], limits: Limits) -> dict[str, Any]:
        found = await self._open(session)
        manifest, offset = found.manifest, _index_offset(start, found.manifest)
        new = offset.new(manifest.live)
        taken = new if self._until is None else new & self._until
        if limits.max_files is not None:
            taken = taken.slice(0, limits.max_files)
        if limits.max_bytes is not None:
            files = sorted((await found.files(taken)).values(), key=lambda file: file.id)
            sizes = [_Size(file.id, 0 if file.validator is None else file.validator.size) for file in files]
            few = limited(sizes, max_files=None, max_bytes=limits.max_bytes)
            taken = RowRanges.from_rows(file.id for file in few)
        if not taken:
            return start
        return offset.advanced(new, taken, manifest.reserved, manifest.next_file).to_json()

    async def batch(self, session: Session, start: dict[str, Any], end: dict[str, Any]) -> Batch:
        found = await self._open(session)
        last = _index_offset(end, found.manifest)
        ids = _index_offset(start, found.manifest).until(last, found.manifest.live)
        if not ids:
            return Batch(None, 0, last.num_files)
        indexed = await found.files(ids)
        opened = await open_as_asked(session, self._options, self._schema)
        there = await _data_files(opened, Ask(access=dict.fromkeys(indexed, AccessPlan.all())))
        versions = {url: file.validator for url, file in indexed.items()}
        files = [
            replace(file, validator=versions[url], pinned=versions[url] is not None)
            for url, file in there.items()
            if url in versions
        ]
        return Batch(_narrowed(opened, files), len(files), last.num_files)

    async def _open(self, session: Session) -> _Snapshot:
        options = target_of(self._options).options
        source = (await session.open_dataset(self._options.target, **options))._state.source
        assert isinstance(source, SnapshotFiles), source
        await source.index.head.advance()
        return _Snapshot(session, source.index.place, source.index.manifest)


@dataclass(frozen=True)
class _Snapshot:
    """The newest one of an index."""

    session: Session
    place: Place
    manifest: Manifest

    async def files(self, ids: RowRanges) -> dict[str, IndexedFile]:
        """By url."""
        found = await files_of(self.session._resources, self.place, self.manifest, ids)
        return {url_in(self.manifest, file.path): file for file in found}


@dataclass(frozen=True, slots=True)
class _Size:
    id: int
    size: int


def _index_offset(value: Mapping[str, Any], manifest: Manifest) -> IndexOffset:
    return IndexOffset(manifest.index) if value == START else IndexOffset.parse(value, manifest.index)


# -- both -----------------------------------------------------------------------------------------


async def kind_of_stream(session: Session, options: SourceOptions) -> type[ListedStream | IndexStream] | None:
    """Where a stream that begins takes its files from: as a read of all of them does. None: nothing is there yet.

    Raises:
        InvalidOptionError: it is a table.
    """
    if options.view == "listed" or options.index is False:
        return ListedStream
    if options.view == "snapshot" or options.index is not None:
        return IndexStream
    target = parse_target(options.target)
    found = await _listing(session, target, options)
    if found.table_format is not None and options.format != "parquet":
        raise InvalidOptionError(
            f"these are a table's files ({found.table_format}): some may hold rows that are deleted or replaced",
            url=safe_url(target.url),
            hint='Pass format="parquet" to read every file that is there.',
        )
    if found.has_index and target.pattern is None:  # its first build may not have ended: then it is not used
        dataset = await session.open_dataset(options.target, **target_of(options).options)
        return IndexStream if dataset.view is View.SNAPSHOT else ListedStream
    return ListedStream if found.files else None


async def _listing(session: Session, target: Target, options: SourceOptions) -> Listing:
    resources = session._resources
    operation = resources.operation("files", safe_url(target.url))
    with operation:
        store, _ = await resources.store(target.url)
        context = RequestContext(operation.metrics, purpose="list")
        plain = options.format == "parquet"
        return await list_files(
            store, target, context, committing(resources), partitioning=None, allow_empty=True, plain=plain
        )


async def _data_files(opened: OpenLake, ask: Ask) -> dict[str, DataFile]:
    """The dataset's files by url, with the values of their folders."""
    operation = opened.state.resources.operation("files", opened.state.url)
    with operation:
        found = await opened.state.source.files(ask, operation)
    return {file.url: file for file in found.files}


def _narrowed(opened: OpenLake, files: Sequence[DataFile]) -> OpenLake:
    """The dataset of some of its files."""
    return replace(opened, state=replace(opened.state, source=GivenFiles(files)))
