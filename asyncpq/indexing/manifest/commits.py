"""From one snapshot of an index to the next: manifests are loaded, and created where there is none of that number.

Signs of life of whoever writes an index, so that others let what it has not committed yet alone.

The rows of the part "files": which versions of which files an index knows.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from types import TracebackType
from typing import Final, Self

import pyarrow as pa

from asyncpq.datasets.model import DataFile
from asyncpq.errors import AsyncpqError, CorruptIndexError, StaleSnapshotError, StoreError
from asyncpq.events import Operation
from asyncpq.indexing.manifest.manifest import (
    FILES,
    LONG,
    ROOT_BYTES,
    Manifest,
    decode,
    encode,
    encode_long,
    long_members,
)
from asyncpq.indexing.model import IndexBackend, IndexTable, KeyRange, Segment, file_key
from asyncpq.indexing.query.segment_reads import worked
from asyncpq.objects.runtime import Runtime
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.base import Validator
from asyncpq.storage.concurrency import results_of

#: Given the newest manifest, or None, what is to follow it; None if that is nothing. It is asked again where another
#: commit came first, and raises where what it wanted cannot be had any more.
Change = Callable[[Manifest | None], Awaitable[Manifest | None]]

_OLD_S: Final = 60.0
_ATTEMPTS: Final = 64  # commits that may come first
_WAIT_S: Final = 0.02
_FORGOTTEN_S: Final = 60.0  # the index may have been dropped, or numbers in between vacuumed
_PIECE_BYTES: Final = 1 << 20
_LONG_PART: Final = IndexTable("manifest")


def segment_name(build: str) -> str:
    """A name that no other segment has; it begins with the build's id."""
    return f"{build}-{uuid.uuid4().hex[:16]}"


def new_id() -> str:
    """Names an index, a build or a commit."""
    return uuid.uuid4().hex


# -- loading --------------------------------------------------------------------------------------


async def latest(backend: IndexBackend, operation: Operation | None = None) -> Manifest | None:
    """A manifest that was the newest not long ago; None: there is no index. One request, unless it is very large.

    Raises:
        UnsupportedFeatureError, CorruptIndexError: it cannot be read.
    """
    found = await backend.latest(operation=operation)
    return None if found is None else await _decoded(backend, *found, operation)


async def numbered(backend: IndexBackend, number: int, operation: Operation | None = None) -> Manifest | None:
    """The manifest of a snapshot; None where there is none. One request, unless it is very large."""
    content = await backend.manifest(number, operation=operation)
    return None if content is None else await _decoded(backend, number, content, operation)


async def load(backend: IndexBackend, operation: Operation | None = None) -> Manifest | None:
    """The newest manifest; None: there is no index."""
    manifest = await latest(backend, operation)
    manifest = manifest or await numbered(backend, 1, operation)  # what is latest is told only once it was created
    return None if manifest is None else await _forward(backend, manifest, operation)


async def _forward(backend: IndexBackend, manifest: Manifest, operation: Operation | None) -> Manifest:
    while (following := await numbered(backend, manifest.snapshot + 1, operation)) is not None:
        manifest = following
    return manifest


async def _decoded(backend: IndexBackend, number: int, content: bytes, operation: Operation | None) -> Manifest:
    url = backend.description
    elsewhere = long_members(content, url=url)
    bodies = await results_of([_long_member(backend, segment, operation) for segment in elsewhere.values()])
    manifest = decode(content, dict(zip(elsewhere, bodies, strict=True)), url=url)
    if manifest.snapshot != number:
        raise CorruptIndexError(f"manifest {number} says that it is {manifest.snapshot}", url=url)
    return manifest


async def _long_member(backend: IndexBackend, segment: Segment, operation: Operation | None) -> bytes:
    table = await backend.read_segment(segment, None, operation=operation)
    if table is None:
        raise CorruptIndexError("a part of the manifest was not given", url=backend.description)
    return b"".join(table.column("payload").to_pylist())


class Head:
    """The newest snapshot, as far as is known.

    Args:
        root: url that the paths of files are relative to, where that is not the manifest's.

    Attributes:
        manifest: of it.
        checked_at: ``time.monotonic()`` when it was asked whether there is a newer one.
        pinned: newer ones are not looked for.
    """

    def __init__(
        self,
        backend: IndexBackend,
        manifest: Manifest,
        checked_at: float | None = None,
        *,
        root: str | None = None,
        pinned: bool = False,
    ) -> None:
        self.pinned = pinned
        self._root = root
        self.manifest = self._rooted(manifest)
        self.checked_at = time.monotonic() if checked_at is None else checked_at
        self._loaded_at = self.checked_at  # when it was asked for from the beginning
        self._backend = backend

    async def advance(self, operation: Operation | None = None, *, anew: bool = False) -> bool:
        """Look for a newer snapshot; whether there is one. One request where there is none; now and then two.

        Args:
            anew: from the beginning, so that it is noticed if the index is not there any more.

        Raises:
            StaleSnapshotError: the index was dropped, or is another one now.
        """
        known, began = self.manifest, time.monotonic()
        if self.pinned:
            return False
        if anew or began - self._loaded_at > _FORGOTTEN_S:
            found = await load(self._backend, operation)
            if found is None:
                raise gone(self._backend)
            self._loaded_at = began
        else:
            following = await numbered(self._backend, known.snapshot + 1, operation)
            found = known if following is None else await _forward(self._backend, following, operation)
        if found.index != known.index:
            raise gone(self._backend)
        if found.snapshot > self.manifest.snapshot:
            self.manifest = self._rooted(found)
        self.checked_at = began
        return self.manifest is not known

    async def reload(self, operation: Operation | None = None) -> None:
        """After a segment was found missing: the newest snapshot, from the beginning.

        Raises:
            StaleSnapshotError: there is no other one, so the index is incomplete or was dropped.
        """
        known = self.manifest
        found = await load(self._backend, operation)
        if self.pinned or found is None or found.index != known.index or found.snapshot <= known.snapshot:
            raise gone(self._backend)
        self.manifest, self.checked_at = self._rooted(found), time.monotonic()
        self._loaded_at = self.checked_at

    def _rooted(self, manifest: Manifest) -> Manifest:
        return manifest if self._root is None or not manifest.root else replace(manifest, root=self._root)


def gone(backend: IndexBackend) -> StaleSnapshotError:
    """The index is not there any more as it was known."""
    return StaleSnapshotError(
        "the index was dropped or replaced, or parts of it are gone", url=backend.description, hint="Open it again."
    )


# -- committing -----------------------------------------------------------------------------------


async def commit(
    backend: IndexBackend, base: Manifest | None, change: Change, build: str, operation: Operation | None = None
) -> Manifest | None:
    """Make ``change`` the newest snapshot.

    Args:
        base: the newest known one.
        build: begins the names of segments that this takes.

    Returns:
        the new manifest, or the newest one if there was nothing to change.

    Raises:
        StaleSnapshotError: another index is there now, or none.
        StoreError: others came first too often; or whatever ``change`` raises.
    """
    mine, index = new_id(), None if base is None else base.index
    if base is not None and time.monotonic() - base.known_since > _OLD_S:
        # the numbers behind it may have been vacuumed, and would be free again
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
            # its answer may have been lost
            if not await _is_mine(backend, number, mine, operation):
                raise error
            created = True
        if created:
            return proposed
        found = await numbered(backend, number, operation) or await load(backend, operation)
        if found is not None and found.commit == mine:
            return proposed  # a PUT that was sent again met itself
        if found is None or (index is not None and found.index != index):
            raise gone(backend)
        base = await _forward(backend, found, operation)
        index = base.index
        if attempt:
            await asyncio.sleep(random.random() * _WAIT_S * min(attempt, 10))
    raise StoreError(
        f"{_ATTEMPTS} other commits came first",
        url=backend.description,
        hint="Let fewer processes write one index at once, and run it again.",
    )


async def _is_mine(backend: IndexBackend, number: int, mine: str, operation: Operation | None) -> bool:
    try:
        found = await numbered(backend, number, operation)
    except (StoreError, CorruptIndexError):
        return False  # what went wrong first is what counts
    return found is not None and found.commit == mine


async def _with_long(
    backend: IndexBackend, base: Manifest | None, manifest: Manifest, build: str, operation: Operation | None
) -> Manifest:
    """The manifest with as many members in segments of their own as keep its root small. One that has not changed stays
    where it is."""
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


logger = logging.getLogger(__name__)


class Heartbeat:
    """``async with``: the place is told now and then that ``build`` is alive.

    Args:
        grace_s: who has been silent for so long counts as dead: it must not commit.
        operation: counts the requests.
    """

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

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        try:
            await self._backend.end_build(self.build, operation=self._operation)
        except AsyncpqError as failed:
            logger.warning("%s still names the build %s: %s", self._backend.description, self.build, failed)

    def check(self) -> None:
        """
        Raises:
            StaleSnapshotError: others may have taken it for dead.
        """
        silent = time.time() - self._last
        if silent > self._grace_s:
            raise StaleSnapshotError(
                f"this build gave no sign of life for {silent:.0f} s, and others may have taken its place",
                url=self._backend.description,
                hint="Run it again: what it has committed is used.",
            )

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._grace_s / 8)
            try:
                await self._touch()
            except AsyncpqError as error:
                logger.warning("%s took no sign of life: %s", self._backend.description, error)

    async def _touch(self) -> None:
        began = time.time()
        await self._backend.touch(self.build, operation=self._operation)
        self._last = began


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
