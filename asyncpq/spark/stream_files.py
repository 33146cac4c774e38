"""Files of a stream: offsets for Spark's checkpoint, and providers of new files (a listing or an index's snapshots).

A version of a file is read once. A file has a key (modified, name) and a mark: 8 bytes of a hash of its version. An
offset has a key, up to which all files count as read, and the marks of files that were read beyond it. So a file may
appear later than its time of modification, as slow uploads do, if its key is beyond the offset's key. That key advances
only over files that were read, and that are older than the newest file by ``max_age_s`` or exceed ``REMEMBERED`` marks;
never over an unread file.
"""

from __future__ import annotations

import base64
import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import attrgetter
from typing import Any, Final, NamedTuple, Self

from pyspark.sql.types import StructType

from asyncpq import AccessPlan, DataFile, Session, Validator, View
from asyncpq.dataset import state_of
from asyncpq.datasets.listing import FileRules, Listing, Target, list_files, parse_target
from asyncpq.datasets.providers import GivenFiles
from asyncpq.engine.target_facts import safe_url
from asyncpq.errors import InvalidOptionError, UnsupportedStoreError, UsageError
from asyncpq.events import Operation
from asyncpq.indexing.build.index_source import commit_check, committing_index
from asyncpq.indexing.manifest.commits import files_of
from asyncpq.indexing.query.file_entries import url_in
from asyncpq.indexing.query.index_query import OpenIndex
from asyncpq.indexing.query.snapshot_files import SnapshotFiles
from asyncpq.objects.runtime import runtime_of
from asyncpq.pruning.row_ranges import EMPTY, RowRanges
from asyncpq.scan.request import ScanRequest
from asyncpq.spark.reads.opened_lake import OpenLake
from asyncpq.spark.source_options import SourceOptions, open_for_schema
from asyncpq.storage.base import RequestContext

#: Maximum marks in an offset, apart from those of its own batch.
REMEMBERED: Final = 4096

_MARK_BYTES: Final = 8
_VERSION: Final = 1


class ListedFile(NamedTuple):
    """A version of a listed file."""

    modified_us: int  # microseconds since the epoch, on the store's clock
    name: str  # path relative to the folder
    url: str
    size: int
    validator: Validator | None  # None if the listing does not tell versions apart

    @property
    def key(self) -> tuple[int, str]:
        return self.modified_us, self.name

    @property
    def mark(self) -> bytes:
        version = b"" if self.validator is None else self.validator.digest()
        text = f"{self.modified_us}\0{self.size}\0{self.name}\0".encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text + version, digest_size=_MARK_BYTES).digest()


@dataclass(frozen=True)
class ListedOffset:
    """Offset of a stream over listings, which records the files that the stream has read."""

    after: tuple[int, str] = (-(2**63), "")  # all files up to this key count as read
    marks: frozenset[bytes] = frozenset()  # of later files that were read

    @classmethod
    def parse(cls, value: Mapping[str, Any]) -> Self:
        """Parse an offset from JSON. Raises UsageError if the offset belongs to another kind of stream."""
        if value == START:
            return cls()
        _check(value, "after")
        modified_us, name = value["after"]
        packed = base64.b64decode(value["marks"])
        marks = (packed[at : at + _MARK_BYTES] for at in range(0, len(packed), _MARK_BYTES))
        return cls((modified_us, name), frozenset(marks))

    def to_json(self) -> dict[str, Any]:
        packed = base64.b64encode(b"".join(sorted(self.marks))).decode()
        return {"version": _VERSION, "after": list(self.after), "marks": packed}

    def has_read(self, file: ListedFile) -> bool:
        return file.key <= self.after or file.mark in self.marks

    def new(self, listed: Iterable[ListedFile]) -> list[ListedFile]:
        """Return the files in ``listed`` that the stream has not read, the oldest first."""
        return sorted((file for file in listed if not self.has_read(file)), key=lambda file: file.key)

    def advanced(self, listed: Sequence[ListedFile], batch: Sequence[ListedFile], max_age_s: float) -> Self:
        """Return the offset after reading ``batch``, the first files of ``new(listed)``. It has marks of the files
        that were modified at most ``max_age_s`` seconds before the newest one."""
        taken = {file.mark for file in batch}
        left = min((file.key for file in listed if not self.has_read(file) and file.mark not in taken), default=None)
        known = sorted(
            (file for file in listed if file.key > self.after and file.mark in self.marks), key=lambda f: f.key
        )
        newest_us = max((file.modified_us for file in (*known[-1:], *batch)), default=0)
        oldest_us = newest_us - round(max_age_s * 1e6)
        after, forgotten = self.after, 0
        for number, file in enumerate(known):
            enough = file.modified_us >= oldest_us and len(known) - number <= REMEMBERED
            if enough or (left is not None and file.key > left):
                break
            after, forgotten = file.key, number + 1
        return type(self)(after, frozenset(taken.union(file.mark for file in known[forgotten:])))

    def until(self, end: Self, listed: Iterable[ListedFile]) -> tuple[list[ListedFile], int]:
        """Return the files of the batch from this offset to ``end`` that still exist, the oldest first. The second
        item is the number of files that the batch had when ``end`` was made, including those that no longer exist."""
        marks = end.marks - self.marks
        unread = {file.mark: file for file in listed if file.mark in marks and not self.has_read(file)}
        return sorted(unread.values(), key=lambda file: file.key), len(marks)


@dataclass(frozen=True)
class IndexOffset:
    """Offset of a stream over the snapshots of an index, in which newer files have greater ids."""

    index: str  # identifies the index
    next_file: int = 0  # all live files below this id were read, except `pending`
    pending: RowRanges = EMPTY  # ids of unread files below `next_file`
    num_files: int = 0  # of the batch that ends here

    @classmethod
    def parse(cls, value: Mapping[str, Any], index: str) -> Self:
        """Parse an offset. Raises UsageError if the offset belongs to another index or to another kind of stream."""
        if value == START:
            return cls(index)
        _check(value, "index")
        if value["index"] not in ("", index):
            raise UsageError(
                "the stream's checkpoint belongs to another index",
                hint="The index was rebuilt: start with a new checkpoint.",
            )
        pending = RowRanges([(start, stop) for start, stop in value["pending"]])
        return cls(index, value["next"], pending, value["files"])

    def to_json(self) -> dict[str, Any]:
        read: dict[str, Any] = {"version": _VERSION, "index": self.index, "next": self.next_file}
        return read | {"pending": [[*pair] for pair in self.pending], "files": self.num_files}

    def new(self, live: RowRanges) -> RowRanges:
        """Return the ids of the files that the stream has not read, in the order in which it reads them. ``live``:
        ids of the files that readers of the newest snapshot see."""
        return live & (self.pending | RowRanges([(self.next_file, max(self.next_file, live.stop))]))

    def advanced(self, new: RowRanges, batch: RowRanges, reserved: RowRanges, next_file: int) -> Self:
        """Return the offset after reading ``batch``, the first ids of ``new``. ``reserved``: ids of files that
        writers have not committed yet, which may be read later; ``next_file``: the id after those of all files."""
        left = new - batch
        reached = max(self.next_file, batch.stop) if left else max(self.next_file, next_file)
        waiting = (left | reserved) & (self.pending | RowRanges([(self.next_file, reached)]))
        return type(self)(self.index, reached, waiting, batch.num_rows)

    def until(self, end: Self, live: RowRanges) -> RowRanges:
        """Return the ids of the files of the batch from this offset to ``end`` that are still in ``live``."""
        return self.new(live).clip(0, end.next_file) - end.pending


def _check(value: Mapping[str, Any], member: str) -> None:
    if value.get("version") != _VERSION or member not in value:
        raise UsageError(
            "the stream's checkpoint belongs to another kind of stream, or to another version of asyncpq",
            hint="Start with a new checkpoint: streams over listings and over an index cannot continue each other.",
        )


#: First offset of every stream.
START: Final[Mapping[str, Any]] = {"version": _VERSION}


class StreamLimits(NamedTuple):
    """Limits of a batch of a stream, in files and in bytes; None: no limit."""

    max_files: int | None = None
    max_bytes: int | None = None

    def count(self, sizes: Sequence[int]) -> int:
        """Return how many of the next files, whose sizes in bytes are given in order, fit into a batch; at least
        one."""
        within = len(sizes) if self.max_bytes is None else bisect_right(list(accumulate(sizes)), self.max_bytes)
        return max(1, within if self.max_files is None else min(within, self.max_files))


class StreamBatch(NamedTuple):
    """A batch of a stream: the files between two offsets."""

    opened: OpenLake | None  # the dataset with these files only, pinned to their versions; None if there are none
    num_files: int  # how many of them still exist
    expected: int  # their original number
    gone: str | None = None  # url of a file that vanished, if known


# -- listings -------------------------------------------------------------------------------------


class ListedStream:
    """Finds the new files of a stream by listing a prefix or pattern for each batch."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = replace(options, lake=replace(options.lake, view="listed", index=False))
        self._schema = schema
        self._target = parse_target(options.lake.target)
        self._until: frozenset[bytes] | None = None
        self._listed: list[ListedFile] | None = None

    async def look(self, session: Session) -> None:
        """Fix the end of the stream: :meth:`advance` will ignore files that appear after this call."""
        self._until = frozenset(file.mark for file in await self._list(session))

    async def advance(self, session: Session, start: dict[str, Any], limits: StreamLimits) -> dict[str, Any]:
        """Return the offset after the next batch, in JSON; ``start`` if there is no new file."""
        offset = ListedOffset.parse(start)
        listed = await self._list(session)
        new = offset.new(listed)
        if self._until is not None:
            new = [file for file in new if file.mark in self._until]
        if not new:
            return start
        batch = new[: limits.count([file.size for file in new])]
        self._listed = listed  # batch() follows and uses it
        return offset.advanced(listed, batch, self._options.max_file_age_s).to_json()

    async def batch(self, session: Session, start: dict[str, Any], end: dict[str, Any]) -> StreamBatch:
        """Return the batch of files between two offsets."""
        listed, self._listed = self._listed, None
        if listed is None or self._options.conf.ignore_missing_files:
            listed = await self._list(session)
        wanted, expected = ListedOffset.parse(start).until(ListedOffset.parse(end), listed)
        if not wanted:
            return StreamBatch(None, 0, expected)
        opened = await open_for_schema(session, self._options, self._schema)
        there = await _data_files(opened, ScanRequest())
        files = [
            replace(there[file.url], validator=file.validator, size=file.size, pinned=file.validator is not None)
            for file in wanted
            if file.url in there
        ]
        gone = next((file.url for file in wanted if file.url not in there), None)
        return _batch(opened, files, expected, gone)

    async def _list(self, session: Session) -> list[ListedFile]:
        """List the files of the target. Raises an AsyncpqError if a stream cannot follow the listing."""
        target, runtime = self._target, runtime_of(session)
        operation = runtime.operation("files", safe_url(target.url))
        with operation:
            listing = await _listing(session, target, self._options, operation)
            is_list = not (listing.has_index and listing.is_written)
            is_list = is_list or await committing_index(runtime, target.folder, operation) is None
        if not is_list:
            raise InvalidOptionError(
                "the stream lists the folder, but only the folder's index knows now which files are committed",
                url=safe_url(target.url),
                hint='Start with a new checkpoint, without view and index; or pass format="parquet" to read every'
                " existing file.",
            )
        taken = {file.url for file in listing.files}
        files: list[ListedFile] = []
        for item in listing.listed:
            if item.url not in taken or not item.size:  # Spark does not read empty files
                continue
            if item.modified is None:
                raise UnsupportedStoreError(
                    "a stream requires files' modification times, which the store's listing does not contain",
                    url=safe_url(item.url),
                    hint="Build an index of the files, and set the option index to stream its snapshots.",
                )
            name = item.url[len(target.folder) :]
            files.append(ListedFile(round(item.modified * 1e6), name, item.url, item.size, item.validator))
        if taken and not files:
            raise InvalidOptionError(
                "the path is a single file, but a stream requires a folder or a pattern",
                url=safe_url(target.url),
                hint="Pass the folder of the file.",
            )
        return files


# -- an index -------------------------------------------------------------------------------------


class IndexStream:
    """Finds the new files of a stream in the snapshots of an index, with the methods of :class:`ListedStream`."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        self._options = replace(options, lake=replace(options.lake, view="snapshot"))
        self._schema = schema
        self._until: RowRanges | None = None

    async def look(self, session: Session) -> None:
        self._until = (await self._open(session)).manifest.live

    async def advance(self, session: Session, start: dict[str, Any], limits: StreamLimits) -> dict[str, Any]:
        index = await self._open(session)
        manifest = index.manifest
        offset = IndexOffset.parse(start, manifest.index)
        new = offset.new(manifest.live)
        taken = new if self._until is None else new & self._until
        if limits.max_files is not None:
            taken = taken.slice(0, limits.max_files)
        if not taken:
            return start
        if limits.max_bytes is not None:
            files = sorted(await files_of(runtime_of(session), index.backend, manifest, taken), key=attrgetter("id"))
            sizes = [0 if file.validator is None else file.validator.size for file in files]
            taken = taken.slice(0, limits.count(sizes))
        return offset.advanced(new, taken, manifest.reserved, manifest.next_file).to_json()

    async def batch(self, session: Session, start: dict[str, Any], end: dict[str, Any]) -> StreamBatch:
        index = await self._open(session)
        manifest = index.manifest
        last = IndexOffset.parse(end, manifest.index)
        ids = IndexOffset.parse(start, manifest.index).until(last, manifest.live)
        if not ids:
            return StreamBatch(None, 0, last.num_files)
        indexed = await files_of(runtime_of(session), index.backend, manifest, ids)
        versions = {url_in(manifest, file.path): file.validator for file in indexed}
        opened = await open_for_schema(session, self._options, self._schema)
        there = await _data_files(opened, ScanRequest(by_file=dict.fromkeys(versions, AccessPlan.all())))
        files = [
            replace(file, validator=versions[url], pinned=versions[url] is not None)
            for url, file in there.items()
            if url in versions
        ]
        return _batch(opened, files, last.num_files)

    async def _open(self, session: Session) -> OpenIndex:
        """Open the index at its newest snapshot."""
        dataset = await session.open_dataset(self._options.lake.target, **self._options.lake.options)
        source = state_of(dataset).source
        assert isinstance(source, SnapshotFiles), source
        await source.index.head.advance()
        return source.index


# -- both -----------------------------------------------------------------------------------------


async def kind_of_stream(session: Session, options: SourceOptions) -> type[ListedStream | IndexStream] | None:
    """Return the class of provider for a new stream: of an index's snapshots where a batch read would use them, else
    of listings. None if there are no files yet, so that the choice is open. Raises InvalidOptionError for a table's
    files."""
    lake = options.lake
    if lake.view == "listed" or lake.index is False:
        return ListedStream
    if lake.view == "snapshot" or lake.index is not None:
        return IndexStream
    target = parse_target(lake.target)
    operation = runtime_of(session).operation("files", safe_url(target.url))
    with operation:
        listing = await _listing(session, target, options, operation)
    if listing.table is not None and lake.format != "parquet":
        raise listing.table.error(safe_url(target.url))
    if listing.has_index and target.pattern is None:  # an index whose first build has not ended is not used
        dataset = await session.open_dataset(lake.target, **lake.options)
        return IndexStream if dataset.view is View.SNAPSHOT else ListedStream
    return ListedStream if listing.files else None


async def _listing(session: Session, target: Target, options: SourceOptions, operation: Operation) -> Listing:
    runtime, context = runtime_of(session), RequestContext(operation.metrics, purpose="list")
    rules = FileRules(commit_check(runtime, operation), plain=options.lake.format == "parquet")
    return await list_files(runtime, target, context, rules, allow_empty=True)


async def _data_files(opened: OpenLake, request: ScanRequest) -> dict[str, DataFile]:
    """Return the files of the dataset that may have rows for ``request``, keyed by url, with their partition values."""
    operation = opened.state.runtime.operation("files", opened.state.url)
    with operation:
        return {file.url: file for file in (await opened.state.source.files(request, operation)).files}


def _batch(opened: OpenLake, files: Sequence[DataFile], expected: int, gone: str | None = None) -> StreamBatch:
    narrowed = replace(opened, state=replace(opened.state, source=GivenFiles(files)))
    return StreamBatch(narrowed, len(files), expected, gone)
