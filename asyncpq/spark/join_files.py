"""The files of a lake that may have the keys of a join: found on the driver, sampled, and read by one task each.

The driver asks the index, the paths and the known statistics for all keys at once. Each file goes to one task, which
opens it, prunes its pages by the keys, and reads the rest: no two tasks decode the same dictionary or footer. Few rows
are read by the driver, as if all files were those of one task.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Generator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from random import randrange
from typing import Final

import pyarrow as pa

from asyncpq import DataFile, Session, View
from asyncpq.datasets.dataset_files import DatasetFiles, DatasetState
from asyncpq.datasets.model import IndexEntry
from asyncpq.datasets.opened_file import OpenedFile
from asyncpq.datasets.providers import GivenFiles
from asyncpq.distributed import BatchStream, batches_on_worker, refresh_hint
from asyncpq.objects.prices import Prices
from asyncpq.objects.runtime import runtime_of
from asyncpq.scan.request import ScanRequest
from asyncpq.spark.join_keys import KeyPredicate
from asyncpq.spark.join_lake import COMBINED_ROWS, LAKE_ROWS, KeyRequests
from asyncpq.spark.reads.lake_scan import LakeScan
from asyncpq.spark.reads.opened_lake import OpenLake
from asyncpq.storage.urls import split_url

_SAMPLED: Final = 8  # files
_UNSEEN_SHARE: Final = 20  # a sample without keys stands for at most so small a part of the files


@dataclass(frozen=True, kw_only=True)
class FoundFiles:
    """The files that may have rows with one of some keys, and what a sample of them tells."""

    files: tuple[DataFile, ...]
    total: int  # files of the lake
    sampled: int
    matched: int  # sampled files whose footers and page indexes do not rule out the keys
    matched_bytes: int  # compressed bytes to read of these
    open_s: float  # about the seconds of a core in which the driver opened and pruned one; footers may be cached
    prices: Prices  # of the store

    @property
    def share(self) -> float:
        """Estimated share of ``files`` that has rows to read."""
        return self.matched / self.sampled if self.sampled else 1.0

    @property
    def num_bytes(self) -> int:
        """Estimated compressed bytes to read for the keys."""
        return len(self.files) * self.matched_bytes // max(1, self.sampled)

    @property
    def most_bytes(self) -> int:
        """Estimated bytes of the rows with the keys, rather too many: Spark broadcasts what it takes for small."""
        return self.num_bytes if self.matched else self.total_bytes // _UNSEEN_SHARE

    @property
    def total_bytes(self) -> int:
        """Size of ``files``."""
        return sum(file.size or 0 for file in self.files)


async def find_files(
    session: Session, opened: OpenLake, columns: Sequence[str], keys: KeyPredicate, *, asks_index: bool = True
) -> FoundFiles:
    """Find the files that may have rows with one of the keys, without opening them; open and plan a few of them.

    ``asks_index``: ask the index for the keys; otherwise only paths and known statistics rule out files.
    """
    state = opened.state
    request = ScanRequest(columns=tuple(columns), where=keys.where, prune=keys.prune)
    operation = state.runtime.operation("plan", state.url)
    with refresh_hint(opened.is_snapshot), operation:
        found = await state.source.files(request if asks_index else request._replace(where=None, prune=None), operation)
        numbers = state.known.candidates(found.files, request, state.columns)
        files = [found.files[number] for number in numbers]
        step = max(1, len(files) // _SAMPLED)
        # other files each time: those of an earlier sample are cached, and would stand for files that are not
        sample = files[randrange(step) :: step][:_SAMPLED]
        began = time.thread_time()
        planned = await _planned(opened, sample, request)
        open_s = (time.thread_time() - began) / max(1, len(sample))
    prices = state.runtime.price_book.prices(operation.metrics.server or split_url(state.url)[0])
    return FoundFiles(
        files=tuple(files),
        total=len(found.files) if found.total is None else found.total,
        sampled=len(sample),
        matched=len(planned),
        matched_bytes=sum(planned.values()),
        open_s=open_s,
        prices=prices,
    )


async def matching_files(
    session: Session, opened: OpenLake, files: Sequence[DataFile], columns: Sequence[str], keys: KeyPredicate
) -> tuple[DataFile, ...]:
    """Return the files that bounds, Bloom filters and page indexes do not rule out. Opens all of them."""
    request = ScanRequest(columns=tuple(columns), where=keys.where, prune=keys.prune)
    planned = await _planned(opened, files, request)
    return tuple([file for file in files if file.url in planned])


async def _planned(opened: OpenLake, files: Sequence[DataFile], request: ScanRequest) -> dict[str, int]:
    """Return the compressed bytes to read of each file that has rows to read, by url."""
    state = given_state(opened.state, files)
    operation = state.runtime.operation("plan", state.url)
    requests = KeyRequests(state, request, opened.conf)

    async def size(file: OpenedFile) -> tuple[str, int]:
        groups = [] if file.plan is None else file.plan.fetch_plan.row_groups
        return file.file.url, sum(column.num_bytes for group in groups for column in group.columns)

    with operation:
        scanned = DatasetFiles(state, request, operation, scan=True, requests=requests)
        async with aclosing(scanned.described(size)) as sizes:
            return {url: num_bytes async for url, num_bytes in sizes}


def given_state(state: DatasetState, files: Sequence[DataFile]) -> DatasetState:
    """Return the dataset with only these files."""
    source = GivenFiles(files, view=state.source.view, description=state.source.description)
    return replace(state, source=source)


# -- tasks ----------------------------------------------------------------------------------------


def can_ship(opened: OpenLake, files: Sequence[DataFile]) -> bool:
    """Return whether tasks can read these files from their listing alone, each in the listed version."""
    state = opened.state
    if state.skips or state.source.view is View.TABLE:
        return False
    return all(file.validator is not None and file.validator.is_strong and file.unreadable is None for file in files)


def pack_files(files: Sequence[DataFile], num_tasks: int) -> list[bytes]:
    """Encode the files as at most ``num_tasks`` tasks of neighbouring files for :class:`KeyedRead`."""
    count = min(num_tasks, len(files))
    tasks = [files[at * len(files) // count : (at + 1) * len(files) // count] for at in range(count)]
    return [pickle.dumps([_shipped(file) for file in task]) for task in tasks]


def _shipped(file: DataFile) -> DataFile:
    entry = file.entry and IndexEntry(access=file.entry.access, validator=file.entry.validator)
    return replace(file, entry=entry, bounds={}, pinned=True)


@dataclass(frozen=True, kw_only=True)
class KeyedRead:
    """Reads the rows of a task's files that may have one of the keys, in a task or on the driver. Picklable; without
    secrets."""

    lake: LakeScan
    keys: KeyPredicate

    def __call__(self, task: bytes) -> Generator[pa.RecordBatch]:
        """Yield batches of Spark's types; rows with other keys may be among them."""
        with self.lake.hinted():
            yield from batches_on_worker(self.lake.settings, partial(self._stream, pickle.loads(task)))

    async def _stream(self, files: Sequence[DataFile], session: Session) -> BatchStream:
        lake, runtime = self.lake, runtime_of(session)
        state = lake.state(runtime, files)
        request = ScanRequest(columns=lake.columns, where=self.keys.where, prune=self.keys.prune)
        operation = runtime.operation("scan", lake.url)
        requests = KeyRequests(state, request, lake.conf)
        scanned = DatasetFiles(state, request, operation, scan=True, ordered=False, requests=requests)
        return lake.stream(state, operation, scanned, batch_size=LAKE_ROWS, combine_rows=COMBINED_ROWS)
