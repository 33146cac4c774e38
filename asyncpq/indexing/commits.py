"""Load snapshots, commit the next one, and read which file versions a snapshot lists.

A commit creates the manifest of the next number, which must not exist. A process that loses that race applies its
change to the winner's snapshot and tries again. Heartbeats keep others from removing uncommitted parts.

A process that cannot tell whether its PUT arrived looks for its own commit id in that snapshot. Compactions replace
segments in the next snapshot and delete nothing. Vacuum deletes segments that no kept snapshot lists and no running
build may still commit.
"""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Final, Self, TypeAlias

import pyarrow as pa

from asyncpq.checkpoints import checkpoint
from asyncpq.datasets.model import DataFile, NamedRow
from asyncpq.errors import AsyncpqError, CorruptIndexError, StaleSnapshotError, StoreError
from asyncpq.events import Operation
from asyncpq.indexing.index_model import (
    MAX_SNAPSHOT,
    IndexBackend,
    IndexTable,
    KeyRange,
    Segment,
    SegmentQuery,
    file_key,
)
from asyncpq.indexing.manifest import FILES, LONG, ROOT_BYTES, Manifest, decode, encode, encode_long, long_members
from asyncpq.indexing.query.file_selection import worked
from asyncpq.objects.runtime import Runtime
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import LazyRecords, dataclass
from asyncpq.storage.base import ObjectRow, Validator
from asyncpq.storage.threads import results_of
from asyncpq.waiting import wait_futures

#: Takes the newest manifest (None if there is no index yet) and returns the one that follows it; None if nothing
#: changes. Called again if another commit came first. Raises if the change is no longer possible.
Change = Callable[[Manifest | None], Awaitable[Manifest | None]]

_OLD_S: Final = 60.0
_ATTEMPTS: Final = 64  # other commits that may come first
_WAIT_S: Final = 0.02
_FORGOTTEN_S: Final = 60.0  # the index may have been dropped, or numbers in between vacuumed
_PIECE_BYTES: Final = 1 << 20
_MOST_PIECES: Final = 256  # of a long member
_MOST_AHEAD: Final = 10_000  # snapshots behind a known one; a vacuum keeps few
_CHUNK_FILES: Final = 1000
_NUMBER: Final = re.compile(r"[0-9]{1,19}")  # of a snapshot
_LONG_PART: Final = IndexTable("manifest")


def segment_name(build: str) -> str:
    """Return a new, unique name for a segment; it begins with ``build``, the id of the build that writes it."""
    return f"{build}-{uuid.uuid4().hex[:16]}"


def new_id() -> str:
    """Return a new id of an index, a build or a commit."""
    return uuid.uuid4().hex


async def latest(backend: IndexBackend, operation: Operation | None = None) -> Manifest | None:
    """Return a recent manifest, which is not always the newest; None if there is no index. One request, unless the
    manifest is very large. Raises UnsupportedFeatureError or CorruptIndexError if the manifest cannot be decoded."""
    newest = await backend.latest(operation=operation)
    return None if newest is None else await _decoded(backend, *newest, operation)


async def numbered(backend: IndexBackend, number: int, operation: Operation | None = None) -> Manifest | None:
    """Return the manifest of snapshot ``number``; None if there is no snapshot of that number. One request, unless
    the manifest is very large."""
    content = await backend.manifest(number, operation=operation)
    return None if content is None else await _decoded(backend, number, content, operation)


async def load(backend: IndexBackend, operation: Operation | None = None) -> Manifest | None:
    """Return the newest manifest; None if there is no index."""
    manifest = await latest(backend, operation)
    manifest = manifest or await numbered(backend, 1, operation)  # `latest` is written after the manifest itself
    return None if manifest is None else await _forward(backend, manifest, operation)


async def manifest_ages(backend: IndexBackend, operation: Operation | None = None) -> Mapping[int, float]:
    """Return the ages of all snapshots by number, in seconds according to the backend's clock."""
    ages = await backend.ages("manifests", operation=operation)
    return {int(name): age for name, age in ages.items() if _NUMBER.fullmatch(name) and int(name) <= MAX_SNAPSHOT}


async def _forward(backend: IndexBackend, manifest: Manifest, operation: Operation | None) -> Manifest:
    for _ in range(_MOST_AHEAD):
        following = await numbered(backend, manifest.snapshot + 1, operation)
        if following is None:
            return manifest
        manifest = following
    raise CorruptIndexError(
        f"the index's snapshots do not end: {_MOST_AHEAD} follow the one that is known",
        url=backend.description,
        hint="Check the backend's server; the object `latest` should name one of the newest snapshots.",
    )


async def _decoded(backend: IndexBackend, number: int, content: bytes, operation: Operation | None) -> Manifest:
    url = backend.description
    elsewhere = long_members(content, url=url)
    bodies = await results_of([_long_member(backend, segment, operation) for segment in elsewhere.values()])
    manifest = decode(content, dict(zip(elsewhere, bodies, strict=True)), url=url)
    if manifest.snapshot != number:
        raise CorruptIndexError(
            f"the manifest of snapshot {number} has the content of snapshot {manifest.snapshot}", url=url
        )
    return manifest


async def _long_member(backend: IndexBackend, segment: Segment, operation: Operation | None) -> bytes:
    if segment.table != _LONG_PART or segment.num_rows > _MOST_PIECES:
        raise CorruptIndexError(
            f"segment {segment.name} is not a part of the index's manifest: it has {segment.num_rows} rows of "
            f"{segment.table}",
            url=backend.description,
        )
    table = await backend.read_segment(segment, operation=operation)
    if table is None:
        raise CorruptIndexError(
            f"segment {segment.name}, which has a part of the index's manifest, is missing", url=backend.description
        )
    return b"".join(table.column("payload").to_pylist())


class Head:
    """The newest snapshot of an index that this process has loaded. A pinned head stays at its snapshot.

    ``checked_at`` is the ``time.monotonic()`` of the last search for a newer snapshot. ``root`` replaces the manifest's
    own root, which is the url that the files' paths are relative to; None keeps it.
    """

    def __init__(
        self, backend: IndexBackend, manifest: Manifest, *, root: str | None = None, pinned: bool = False
    ) -> None:
        self.pinned = pinned
        self._root = root
        self.manifest: Manifest = self._rooted(manifest)
        self.checked_at: float = time.monotonic()
        self._loaded_at = self.checked_at  # of the last load that did not start from a known snapshot
        self._backend = backend

    async def advance(self, operation: Operation | None = None, *, anew: bool = False) -> bool:
        """Load the newest snapshot, and return whether it is newer than the one before. Usually one request if
        nothing changed, because only the next number is tried. With ``anew``, start from the backend's latest
        manifest, which also notices that the index was dropped. Raises StaleSnapshotError if the index was dropped
        or replaced."""
        known, began = self.manifest, time.monotonic()
        if self.pinned:
            return False
        if anew or began - self._loaded_at > _FORGOTTEN_S:
            newest = await load(self._backend, operation)
            if newest is None:
                raise gone(self._backend)
            self._loaded_at = began
        else:
            following = await numbered(self._backend, known.snapshot + 1, operation)
            newest = known if following is None else await _forward(self._backend, following, operation)
        if newest.index != known.index:
            raise gone(self._backend)
        if newest.snapshot > self.manifest.snapshot:
            self.manifest = self._rooted(newest)
        self.checked_at = began
        return self.manifest is not known

    async def reload(self, operation: Operation | None = None) -> None:
        """Load the newest snapshot, because a segment is missing. Raises StaleSnapshotError if there is no newer
        snapshot of this index, or the head is pinned."""
        known = self.manifest
        newest = await load(self._backend, operation)
        if self.pinned or newest is None or newest.index != known.index or newest.snapshot <= known.snapshot:
            raise gone(self._backend)
        self.manifest = self._rooted(newest)
        self.checked_at = time.monotonic()
        self._loaded_at = self.checked_at

    def _rooted(self, manifest: Manifest) -> Manifest:
        return manifest if self._root is None or not manifest.root else replace(manifest, root=self._root)


def gone(backend: IndexBackend) -> StaleSnapshotError:
    """Return the error that reports that the index was dropped or replaced."""
    return StaleSnapshotError(
        "the index was dropped or replaced, or some of its objects are gone",
        url=backend.description,
        hint="Open the index again; if that fails, build it again.",
    )


async def commit(
    backend: IndexBackend, base: Manifest | None, change: Change, build: str, operation: Operation | None = None
) -> Manifest | None:
    """Commit the snapshot that ``change`` returns for the newest manifest (``base``, or a later one that another
    process committed). Return the new manifest, or the newest one if ``change`` returned None. Names of segments
    written here begin with ``build``. Raises StaleSnapshotError if the index was dropped or replaced, StoreError if
    other commits came first too often, and any error of ``change``."""
    mine, index = new_id(), None if base is None else base.index
    if base is not None and time.monotonic() - base.known_since > _OLD_S:
        # a vacuum may have removed the numbers behind it, and freed them
        newest = await load(backend, operation)
        if newest is None or newest.index != index:
            raise gone(backend)
        base = newest if newest.snapshot > base.snapshot else base
    for attempt in range(_ATTEMPTS):
        changed = await change(base)
        if changed is None:
            return base
        number = 1 if base is None else base.snapshot + 1
        proposed = replace(changed, snapshot=number, commit=mine, created=datetime.now(UTC))
        proposed = await _with_long(backend, base, proposed, build, operation)
        try:
            created = await backend.commit(number, encode(proposed), operation=operation)
        except StoreError as error:
            # only the answer may have been lost
            if not await _is_mine(backend, number, mine, operation):
                raise error
            created = True
        if created:
            return proposed
        winner = await numbered(backend, number, operation) or await load(backend, operation)
        if winner is not None and winner.commit == mine:
            return proposed  # a PUT that was sent twice found its own object
        if winner is None or (index is not None and winner.index != index):
            raise gone(backend)
        base = await _forward(backend, winner, operation)
        index = base.index
        if attempt:
            await asyncio.sleep(random.random() * _WAIT_S * min(attempt, 10))
    raise StoreError(
        f"the snapshot could not be committed: other processes committed first {_ATTEMPTS} times",
        url=backend.description,
        hint="Let fewer processes write to the index at the same time, and try again.",
    )


async def _is_mine(backend: IndexBackend, number: int, mine: str, operation: Operation | None) -> bool:
    try:
        winner = await numbered(backend, number, operation)
    except (StoreError, CorruptIndexError):
        return False  # the first error is the one to raise
    return winner is not None and winner.commit == mine


async def _with_long(
    backend: IndexBackend, base: Manifest | None, manifest: Manifest, build: str, operation: Operation | None
) -> Manifest:
    """Move the longest members of the manifest's JSON to segments of their own, until the manifest's object has at
    most ``ROOT_BYTES`` bytes; return the manifest. A member that is the same in ``base`` keeps its segment."""
    manifest = replace(manifest, long=())
    known = {} if base is None else dict(base.long)
    held: list[tuple[str, Segment]] = []
    sizes = {name: len(encode_long(manifest, name)) for name in LONG}
    size = len(encode(manifest))
    for name in sorted(LONG, key=lambda name: -sizes[name]):
        if size <= ROOT_BYTES:
            break
        segment = known.get(name)
        if segment is None or base is None or encode_long(base, name) != encode_long(manifest, name):
            segment = await _write_long(backend, segment_name(build), encode_long(manifest, name), operation)
        held.append((name, segment))
        size -= sizes[name]
    return replace(manifest, long=tuple(held))


async def _write_long(backend: IndexBackend, name: str, content: bytes, operation: Operation | None) -> Segment:
    pieces = [content[at : at + _PIECE_BYTES] for at in range(0, len(content), _PIECE_BYTES)]
    keys = [number.to_bytes(4, "big") for number in range(len(pieces))]

    async def batches() -> AsyncIterator[pa.RecordBatch]:
        yield pa.record_batch([pa.array(keys, pa.binary()), pa.array(pieces, pa.binary())], schema=_LONG_PART.schema)

    size, extra = await backend.write_segment(name, _LONG_PART, batches(), operation=operation)
    return Segment(
        name=name, table=_LONG_PART, num_rows=len(pieces), size=size, low=keys[0], high=keys[-1], files=(), extra=extra
    )


logger: logging.Logger = logging.getLogger(__name__)


class Heartbeat:
    """Sends heartbeats of a build, while its ``async with`` block runs. After ``grace_s`` seconds without a heartbeat
    the build has expired, and must not commit."""

    def __init__(self, backend: IndexBackend, build: str, grace_s: float, operation: Operation) -> None:
        self.build = build
        self._backend = backend
        self._grace_s = grace_s
        self._operation = operation
        self._last = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._touch()
        self._task = asyncio.get_running_loop().create_task(self._beat())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await wait_futures((self._task,))
        try:
            await self._backend.delete("builds", [self.build], operation=self._operation)
        except AsyncpqError as failed:
            logger.warning(
                "%s: the end of build %s could not be recorded: %s", self._backend.description, self.build, failed
            )

    def check(self) -> None:
        """Raise StaleSnapshotError if the build has expired: other builds may have taken over its files."""
        silent = time.time() - self._last
        if silent > self._grace_s:
            raise StaleSnapshotError(
                f"the build expired: no heartbeat for {silent:.0f} s, so other builds may have taken over its files",
                url=self._backend.description,
                hint="Run the build again: it continues from what was committed.",
            )

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._grace_s / 8)
            try:
                await self._touch()
            except AsyncpqError as error:
                logger.warning("%s: a heartbeat failed: %s", self._backend.description, error)

    async def _touch(self) -> None:
        began = time.time()
        await self._backend.touch(self.build, operation=self._operation)
        self._last = began


_MOST_RANGES = 64


@dataclass(frozen=True, slots=True)
class IndexedFile:
    """One version of a file that an index lists."""

    id: int  # id of this version of the file
    path: str  # relative to the dataset's root, or a whole url
    validator: Validator | None  # identifies the version; None if the version was never read
    num_rows: int | None  # None if the file could not be read

    def is_version_of(self, file: DataFile) -> bool:
        """Return whether ``file``, from a listing or a table, is proved to have this version."""
        if self.validator is None:
            return False
        if file.validator is not None:
            return self.validator.same_version(file.validator)
        return file.immutable and self.num_rows is not None and file.size in (None, self.validator.size)

    def is_older_than(self, last_modified: str | None) -> bool:
        """Return whether this version was written before ``last_modified``, according to the store's Last-Modified;
        False if that is unknown."""
        mine, theirs = map(_seconds, (None if self.validator is None else self.validator.last_modified, last_modified))
        return mine is not None and theirs is not None and mine < theirs


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        return parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError):
        return None


def id_ranges(ids: RowRanges) -> list[KeyRange]:
    """Return key ranges with exactly the keys of the files ``ids``, for tables whose keys begin with file ids."""
    return [KeyRange(file_key(start), file_key(stop)) for start, stop in ids]


async def files_of(
    runtime: Runtime, backend: IndexBackend, manifest: Manifest, ids: RowRanges, operation: Operation | None = None
) -> LazyRecords[IndexedFile]:
    """Return the files whose ids are in ``ids``, as far as the index lists them. Raises CorruptIndexError if a row
    of the list of files is impossible."""
    rows: list[FileRow] = []
    few = ids.num_ranges <= _MOST_RANGES
    ranges = id_ranges(ids) if few else None
    for segment in manifest.segments_of(FILES):
        if not any(ids.overlaps(start, stop) for start, stop in segment.files):
            continue
        table = await backend.read_segment(segment, SegmentQuery(ranges), operation=operation)
        if table is not None:
            rows += await worked(runtime, table.num_rows, partial(_file_rows, table, ids))
    return LazyRecords(rows, _indexed_file)


#: Columns of the index table "files" that :func:`files_in` reads.
FILE_COLUMNS: Final = ("key", "path", "size", "etag", "last_modified", "version", "num_rows", "problem")


def files_in(table: pa.Table) -> list[IndexedFile]:
    """Return the files that ``table``, rows of the index table "files", describes. Raises CorruptIndexError if a key
    does not have 8 bytes, or a row has neither a number of rows nor a problem."""
    return [_indexed_file(row) for row in _file_rows(table, None)]


#: The id, path, size, etag, time, version and number of rows of a file: a plain tuple, see :class:`LazyRecords`.
FileRow: TypeAlias = tuple[int, str, int, str | None, str | None, str | None, int | None]


def _file_rows(table: pa.Table, ids: RowRanges | None) -> list[FileRow]:
    """Return the rows of :func:`files_in`; those of the files ``ids`` if that is not None."""
    rows: list[FileRow] = []
    for start in range(0, table.num_rows, _CHUNK_FILES):
        checkpoint()
        some = table.slice(start, _CHUNK_FILES)
        columns = [some.column(name).to_pylist() for name in FILE_COLUMNS]
        for key, path, size, etag, last_modified, version, num_rows, problem in zip(*columns, strict=True):
            if len(key) != 8 or (problem is None and num_rows is None):
                raise CorruptIndexError(
                    f"the index's list of files has an impossible row: a key of {len(key)} bytes (8 expected), or no "
                    "count of rows"
                )
            file = int.from_bytes(key, "big")
            if ids is None or file in ids:
                rows.append((file, path, size, etag, last_modified, version, num_rows))
    return rows


def is_same_version(row: FileRow, listed: ObjectRow | NamedRow) -> bool:
    """Return whether an etag or a version of the store proves that the listed object is the version of ``row``: the
    common case of :meth:`IndexedFile.is_version_of`, for which no record is made."""
    _, _, size, etag, _, version, _ = row
    if not listed[3] or size != listed[1] or etag != listed[4] or version != listed[6]:
        return False
    return version is not None or (etag is not None and not etag.startswith("W/"))


def _indexed_file(row: FileRow) -> IndexedFile:
    file, path, size, etag, last_modified, version, num_rows = row
    seen = num_rows is not None or etag is not None or version is not None or last_modified is not None
    return IndexedFile(file, path, Validator(size, etag, last_modified, version) if seen else None, num_rows)


def file_chunks(table: pa.Table) -> Iterator[list[IndexedFile]]:
    """Yield the files of :func:`files_in`, a thousand at once: the garbage collector takes long with very many."""
    for start in range(0, table.num_rows, _CHUNK_FILES):
        yield files_in(table.slice(start, _CHUNK_FILES))
