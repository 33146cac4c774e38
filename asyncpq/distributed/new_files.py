"""The files that are new since an offset: of a folder or pattern, or in the snapshots of an index.

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
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import attrgetter
from typing import Any, ClassVar, Final, Literal, NamedTuple, Self, TypeAlias, Unpack

from asyncpq.dataset import Dataset, state_of
from asyncpq.datasets.listing import FileRules, Listing, Target, list_files, parse_target
from asyncpq.datasets.model import View
from asyncpq.datasets.providers import GivenFiles
from asyncpq.errors import InvalidOptionError, ObjectChangedError, UnsupportedStoreError, UsageError
from asyncpq.events import Operation
from asyncpq.indexing.build.index_source import commit_check, committing_index
from asyncpq.indexing.commits import files_of
from asyncpq.indexing.query.file_entries import url_in
from asyncpq.indexing.query.index_query import OpenIndex
from asyncpq.indexing.query.indexed_files import SnapshotFiles
from asyncpq.objects.runtime import runtime_of
from asyncpq.opening.keywords import DatasetKeywords, check_keywords
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import EMPTY, RowRanges
from asyncpq.scan.request import ScanRequest
from asyncpq.session import Session
from asyncpq.storage.base import RequestContext, Validator
from asyncpq.storage.urls import absolute, safe_url
from asyncpq.typing import IndexChoice

#: How far the files were read: plain JSON, for the engine's checkpoint.
Offset: TypeAlias = dict[str, Any]

#: Maximum marks in an offset, apart from those of its own batch.
REMEMBERED: Final = 4096

_MARK_BYTES: Final = 8
_VERSION: Final = 1
_FIRST: Final[Mapping[str, Any]] = {"version": _VERSION}


class ListedFile(NamedTuple):
    """A version of a listed file."""

    modified_us: int  # microseconds since the epoch, on the store's clock
    name: str  # path relative to the folder
    url: str
    size: int
    validator: Validator | None  # None if the listing does not tell versions apart

    @property
    def key(self) -> tuple[int, str]:
        """The order of files: time of the write in microseconds, then name."""
        return self.modified_us, self.name

    @property
    def mark(self) -> bytes:
        """A digest of the file's name, size, time and version."""
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
        if value == _FIRST:
            return cls()
        _check(value, "after")
        modified_us, name = value["after"]
        packed = base64.b64decode(value["marks"])
        marks = (packed[at : at + _MARK_BYTES] for at in range(0, len(packed), _MARK_BYTES))
        return cls((modified_us, name), frozenset(marks))

    def to_json(self) -> Offset:
        """Return the offset as JSON values, as :class:`NewFiles` gives it to the engine."""
        packed = base64.b64encode(b"".join(sorted(self.marks))).decode()
        return {"version": _VERSION, "after": list(self.after), "marks": packed}

    def has_read(self, file: ListedFile) -> bool:
        """Return whether the stream has read the file up to this offset."""
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
        if value == _FIRST:
            return cls(index)
        _check(value, "index")
        if value["index"] not in ("", index):
            raise UsageError(
                "the stream's checkpoint belongs to another index",
                hint="The index was rebuilt: start with a new checkpoint.",
            )
        pending = RowRanges([(start, stop) for start, stop in value["pending"]])
        return cls(index, value["next"], pending, value["files"])

    def to_json(self) -> Offset:
        """Return the offset as JSON values, as :class:`NewFiles` gives it to the engine."""
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


def fitting(sizes: Sequence[int], max_files: int | None, max_bytes: int | None) -> int:
    """Return how many of the next files, whose sizes are given in order, are within the limits; at least one."""
    within = len(sizes) if max_bytes is None else bisect_right(list(accumulate(sizes)), max_bytes)
    return max(1, within if max_files is None else min(within, max_files))


@dataclass(frozen=True, kw_only=True)
class NewBatch:
    """The files between two offsets that still exist.

    Attributes:
        versions: of each file, by url; None for a version that the listing does not tell.
        view: with this view of the dataset, the files are found: "listed" without an index, or "snapshot".
    """

    target: str
    versions: Mapping[str, Validator | None]
    view: Literal["listed", "snapshot"]
    skip_missing: bool = False

    async def narrowed(self, dataset: Dataset) -> Dataset:
        """Return the dataset with these files only, pinned to their versions; ``dataset`` has the view of the batch.

        Raises:
            ObjectChangedError: a file no longer exists, and missing files are not skipped.
        """
        state = state_of(dataset)
        request = ScanRequest()
        if self.view == "snapshot":
            request = ScanRequest(by_file=dict.fromkeys(self.versions, AccessPlan.all()))
        operation = state.runtime.operation("files", state.url)
        with operation:
            there = {file.url: file for file in (await state.source.files(request, operation)).files}
        files = []
        for url, validator in self.versions.items():
            if url not in there:
                if not self.skip_missing:
                    raise _missing(1, len(self.versions), url)
            elif validator is None:
                files.append(replace(there[url], validator=None, pinned=False))
            else:
                files.append(replace(there[url], validator=validator, size=validator.size, pinned=True))
        return Dataset(replace(state, source=GivenFiles(files)))


class NewFiles:
    """Finds the files of a folder, a pattern or an index that are new since an offset, for streams of batches.

    Each version of a file is in exactly one batch. An offset is a JSON value: :attr:`first_offset` is the one before
    all files; an engine stores later ones, and may continue from them in another process. A folder that does not exist
    counts as one without files, since a stream may start before its first file is written::

        files = NewFiles("s3://bucket/lake/")
        end = await files.advance(session, start, max_files=100)
        batch = await files.batch(session, start, end)
        if batch is not None:
            tasks = await plan_scan(await files.open(session, batch))

    Args:
        target: url of a folder or pattern.
        index, view, options: as in :meth:`asyncpq.Session.open_dataset`. If that dataset would see the files of an
            index's snapshots, so does the stream; else it lists the folder.
        max_age_s: a file that appears with a time over this many seconds before the newest file's may be skipped.
        skip_missing: leave out files that were replaced or deleted after their offset was made, instead of failing.

    Raises:
        InvalidOptionError: the target is a table or several urls.
    """

    first_offset: ClassVar[Mapping[str, Any]] = _FIRST

    def __init__(
        self,
        target: str,
        *,
        index: IndexChoice = None,
        view: Literal["snapshot", "listed", "table"] | None = None,
        max_age_s: float = 7 * 86400.0,
        skip_missing: bool = False,
        **options: Unpack[DatasetKeywords],
    ) -> None:
        check_keywords("NewFiles()", options, DatasetKeywords, others=("index", "view", "max_age_s", "skip_missing"))
        if options.get("format") in ("delta", "iceberg") or not isinstance(target, str):
            raise InvalidOptionError(
                "a stream reads one folder or pattern, but the path is a table or several paths",
                hint="Pass the url of one folder: 's3://bucket/lake/'.",
            )
        self.target: str = absolute(target)
        self.max_age_s = max_age_s
        self.skip_missing = skip_missing
        self._index = index
        self._view = view
        self._options = options
        self._source: FolderSource | SnapshotSource | None = None
        self._ends = False

    @property
    def _is_plain(self) -> bool:
        """Whether all files below the prefix are read, even if an index or a table there lists others
        (``format="parquet"``)."""
        return self._options.get("format") == "parquet"

    async def fix_end(self, session: Session) -> None:
        """Let :meth:`advance` ignore files that appear after this call: the stream then ends at a fixed place. Call it
        before the first :meth:`advance`."""
        self._ends = True
        await self._opened(session, self.first_offset)

    async def advance(
        self, session: Session, start: Offset, *, max_files: int | None = None, max_bytes: int | None = None
    ) -> Offset:
        """Return the offset at the end of the next batch, which begins at ``start`` and has at most ``max_files`` files
        (None: no limit) of ``max_bytes`` bytes in all (None: no limit), but at least one file. Return ``start`` if no
        file is new. ``start`` is :attr:`first_offset` or an earlier result of this method, also of another process.

        Raises:
            UsageError: the offset belongs to another kind of stream, or to another index.
            InvalidOptionError, UnsupportedStoreError: the target or its store does not show which files are new.
        """
        source = await self._opened(session, start)
        return start if source is None else await source.advance(session, start, max_files, max_bytes)

    async def batch(self, session: Session, start: Offset, end: Offset) -> NewBatch | None:
        """Return the files between two offsets, as a picklable object for :meth:`open`; None if there are none.

        Raises:
            UsageError: as in :meth:`advance`.
            ObjectChangedError: a file was replaced or deleted, and ``skip_missing`` is False.
        """
        source = None if start == end else await self._opened(session, end)
        if source is None:
            return None
        versions, expected = await source.between(session, start, end)
        if len(versions) < expected and not self.skip_missing:
            raise _missing(expected - len(versions), expected, self.target)
        if not versions:
            return None
        return NewBatch(target=self.target, versions=versions, view=source.view, skip_missing=self.skip_missing)

    async def open(self, session: Session, batch: NewBatch) -> Dataset:
        """Open the files of a :meth:`batch` as a dataset, each in its version of the batch. Raises ObjectChangedError
        as :meth:`batch` does."""
        index = False if batch.view == "listed" else self._index
        dataset = await session.open_dataset(self.target, index=index, view=batch.view, **self._options)
        return await batch.narrowed(dataset)

    async def _listing(self, session: Session, operation: Operation) -> Listing:
        """List the files of the target."""
        context = RequestContext(operation.metrics, purpose="list")
        rules = FileRules(commit_check(runtime_of(session), operation), plain=self._is_plain)
        return await list_files(runtime_of(session), parse_target(self.target), context, rules, allow_empty=True)

    async def _newest_index(self, session: Session) -> OpenIndex:
        """Open the index that lists the stream's files, at its newest snapshot. Only for a stream over an index."""
        dataset = await session.open_dataset(self.target, index=self._index, view="snapshot", **self._options)
        source = state_of(dataset).source
        assert isinstance(source, SnapshotFiles), source
        await source.index.head.advance()
        return source.index

    async def _opened(self, session: Session, offset: Mapping[str, Any]) -> FolderSource | SnapshotSource | None:
        """Return the source of the files: listings or an index, whichever wrote ``offset``. None if the offset is the
        first one and there are no files yet, so that this is undecided."""
        kind: type[FolderSource | SnapshotSource] | None
        if "after" in offset or "index" in offset:
            kind = FolderSource if "after" in offset else SnapshotSource
        elif self._source is not None:
            return self._source
        else:
            kind = await self._kind(session)
            if kind is None and self._ends:  # no file has come yet
                kind = FolderSource
        if kind is not None and type(self._source) is not kind:
            is_listed = kind is FolderSource
            self._source = FolderSource(self, self._listing) if is_listed else SnapshotSource(self._newest_index)
            if self._ends:
                await self._source.fix_end(session)
        return self._source

    async def _kind(self, session: Session) -> type[FolderSource | SnapshotSource] | None:
        """Return the class that finds new files: by snapshots of an index if a read of the dataset uses them, else by
        listings; None while there are no files to decide by. Raises InvalidOptionError for a table."""
        if self._view == "listed" or self._index is False:
            return FolderSource
        if self._view == "snapshot" or self._index is not None:
            return SnapshotSource
        target = parse_target(self.target)
        operation = runtime_of(session).operation("files", safe_url(target.url))
        with operation:
            listing = await self._listing(session, operation)
        if listing.table is not None and not self._is_plain:
            raise listing.table.error(safe_url(target.url))
        if listing.has_index and target.pattern is None:  # an index whose first build has not ended is not used
            dataset = await session.open_dataset(self.target, index=self._index, view=self._view, **self._options)
            return SnapshotSource if dataset.view is View.SNAPSHOT else FolderSource
        return FolderSource if listing.files else None


def _missing(missing: int, expected: int, url: str) -> ObjectChangedError:
    return ObjectChangedError(
        f"{missing} of the {expected} files of this batch were replaced or deleted before they were read",
        url=safe_url(url),
        hint="Pass skip_missing=True (in Spark ignoreMissingFiles=true); a later batch reads their replacements.",
    )


# -- listings -------------------------------------------------------------------------------------


class FolderSource:
    """Finds new files by listing a prefix or pattern for each batch."""

    view: Final = "listed"

    def __init__(self, files: NewFiles, listing: Callable[[Session, Operation], Awaitable[Listing]]) -> None:
        self._files = files
        self._listing = listing
        self._target = parse_target(files.target)
        self._until: frozenset[bytes] | None = None
        self._listed: list[ListedFile] | None = None

    async def fix_end(self, session: Session) -> None:
        """Let :meth:`advance` ignore files that appear after this call: the stream then ends at a fixed place."""
        self._until = frozenset(file.mark for file in await self._list(session))

    async def advance(self, session: Session, start: Offset, max_files: int | None, max_bytes: int | None) -> Offset:
        """Return the offset after the next batch; ``start`` if there is no new file."""
        offset = ListedOffset.parse(start)
        listed = await self._list(session)
        new = offset.new(listed)
        if self._until is not None:
            new = [file for file in new if file.mark in self._until]
        if not new:
            return start
        batch = new[: fitting([file.size for file in new], max_files, max_bytes)]
        self._listed = listed  # between() follows and uses it
        return offset.advanced(listed, batch, self._files.max_age_s).to_json()

    async def between(self, session: Session, start: Offset, end: Offset) -> tuple[dict[str, Validator | None], int]:
        """Return the versions of the files between two offsets that still exist, and how many there were."""
        listed, self._listed = self._listed, None
        if listed is None or self._files.skip_missing:
            listed = await self._list(session)
        files, expected = ListedOffset.parse(start).until(ListedOffset.parse(end), listed)
        return {file.url: file.validator for file in files}, expected

    async def _list(self, session: Session) -> list[ListedFile]:
        """List the files of the target. Raises an AsyncpqError if new files cannot be told from others."""
        target, runtime = self._target, runtime_of(session)
        operation = runtime.operation("files", safe_url(target.url))
        with operation:
            listing = await self._listing(session, operation)
            is_list = not (listing.has_index and listing.is_written)
            is_list = is_list or await committing_index(runtime, target.folder, operation) is None
        if not is_list:
            raise InvalidOptionError(
                "the stream lists the folder, but only the folder's index knows now which files are committed",
                url=safe_url(target.url),
                hint='Start with a new checkpoint, without view and index; or pass format="parquet" to read every'
                " existing file.",
            )
        return _of_listing(listing, target)


def _of_listing(listing: Listing, target: Target) -> list[ListedFile]:
    taken = {file.url for file in listing.files}
    files: list[ListedFile] = []
    for item in listing.listed:
        if item.url not in taken or not item.size:  # empty files have no rows
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


class SnapshotSource:
    """Finds new files in the snapshots of an index, with the methods of :class:`FolderSource`."""

    view: Final = "snapshot"

    def __init__(self, newest_index: Callable[[Session], Awaitable[OpenIndex]]) -> None:
        self._newest_index = newest_index
        self._until: RowRanges | None = None

    async def fix_end(self, session: Session) -> None:
        self._until = (await self._newest_index(session)).manifest.live

    async def advance(self, session: Session, start: Offset, max_files: int | None, max_bytes: int | None) -> Offset:
        index = await self._newest_index(session)
        manifest = index.manifest
        offset = IndexOffset.parse(start, manifest.index)
        new = offset.new(manifest.live)
        taken = new if self._until is None else new & self._until
        if max_files is not None:
            taken = taken.slice(0, max_files)
        if not taken:
            return start
        if max_bytes is not None:
            files = sorted(await files_of(runtime_of(session), index.backend, manifest, taken), key=attrgetter("id"))
            sizes = [0 if file.validator is None else file.validator.size for file in files]
            taken = taken.slice(0, fitting(sizes, None, max_bytes))
        return offset.advanced(new, taken, manifest.reserved, manifest.next_file).to_json()

    async def between(self, session: Session, start: Offset, end: Offset) -> tuple[dict[str, Validator | None], int]:
        """Return the versions, by url, of the files that the index added between two offsets and still has, and how
        many it had added."""
        index = await self._newest_index(session)
        manifest = index.manifest
        last = IndexOffset.parse(end, manifest.index)
        ids = IndexOffset.parse(start, manifest.index).until(last, manifest.live)
        indexed = await files_of(runtime_of(session), index.backend, manifest, ids) if ids else []
        return {url_in(manifest, file.path): file.validator for file in indexed}, last.num_files
