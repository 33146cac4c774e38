"""Pack planned files into tasks, each the files and rows that one worker reads. A plan that is too large to send is
written to the work folder, an object store's or disk's folder that planner and workers reach."""

from __future__ import annotations

import itertools
import logging
import re
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from asyncpq.datasets.dataset_files import DatasetState
from asyncpq.distributed.scan_tasks import PlannedFile, TaskPiece, partition_bytes
from asyncpq.errors import AsyncpqError, InvalidOptionError, StoreError
from asyncpq.metrics import ReadMetrics
from asyncpq.options import KIB, MIB
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.base import RequestContext, Validator, writable

T = TypeVar("T")

logger: logging.Logger = logging.getLogger(__name__)

#: Maximum bytes of a plan that is kept and sent. The rest goes to the work folder.
MOST_SENT_BYTES: Final = 64 * MIB
#: Versions of files that a plan keeps, for an engine that compares its own listing with the plan: that takes about
#: 0.1 ms a file.
MOST_VERSIONS: Final = 10_000
#: Plans in the work folder that are older are removed when another plan is written there.
PLAN_S: Final = 7 * 86_400.0
#: The work folder below a dataset if none is set: readers skip names that begin with an underscore.
_DEFAULT_FOLDER: Final = "_asyncpq_plans"
_MOST_REMOVED: Final = 1000  # plans in one pass
_PLAN_NAME: Final = re.compile(r"[0-9a-f]{32}/\d+\.splits")

#: Maximum bytes of an encoded task. Footer payloads that do not fit are left out; the task reads these footers.
#: Exceptions are files with inline content, and plans that ``most_tasks`` limits.
MOST_TASK_BYTES: Final = 64 * KIB
#: Minimum bytes of data for a task.
LEAST_TASK_BYTES: Final = 4 * MIB
#: Cost of opening a file in bytes, which bounds the number of files in a task.
FILE_COST_BYTES: Final = 2 * MIB
_MOST_RANGES: Final = 3 * KIB  # row ranges of one file in a task
_PIECE_BYTES: Final = 2 * KIB  # overhead of pieces that are encoded together
_PIECES: Final = 64  # pieces grow with the plan: its second half has about so many


class TaskPacker:
    """Packs planned files, in the order of :meth:`add`, into pieces: files that a task contains as a whole.
    A piece has at most ``task_bytes`` bytes of data to read, unless a single row group is larger. ``cost`` is the
    estimated cost (:func:`cost_of`) of the plan's other files: pieces of a costly plan are larger."""

    def __init__(self, task_bytes: int, cost: int = 0) -> None:
        self._task_bytes = task_bytes
        self._files: list[PlannedFile] = []
        self._open_bytes = 0
        self._least_bytes = 0
        self._total_cost = cost

    def add(self, file: PlannedFile) -> Iterator[TaskPiece]:
        """Add a file, and yield the pieces that are complete with it."""
        for part in _divided(file):
            cost, least = cost_of(part), _least_bytes(part)
            # small at first, since the size of a task depends on the total; doubled, so that tasks have whole pieces
            doublings = max(1, self._total_cost // _PIECES // LEAST_TASK_BYTES).bit_length() - 1
            most_bytes = min(self._task_bytes, LEAST_TASK_BYTES << doublings)
            full = self._open_bytes + cost > most_bytes or _PIECE_BYTES + self._least_bytes + least > MOST_TASK_BYTES
            if full:
                yield from self.finish()
            self._files.append(part)
            self._open_bytes += cost
            self._least_bytes += least
            self._total_cost += cost

    def finish(self) -> Iterator[TaskPiece]:
        """Yield the last, incomplete piece; nothing if it has no file."""
        if self._files:
            files = tuple(with_payloads_that_fit(self._files))
            num_bytes, least_bytes = sum([file.num_bytes for file in files]), self._least_bytes
            self._files, self._open_bytes, self._least_bytes = [], 0, 0
            yield TaskPiece(None, num_bytes, len(files), least_bytes=least_bytes, files=files)


def cost_of(file: PlannedFile) -> int:
    """Return the cost of reading a file as a number of bytes: those that it fetches, at least ``FILE_COST_BYTES``."""
    return max(file.num_bytes, FILE_COST_BYTES)


def _divided(file: PlannedFile) -> Iterator[PlannedFile]:
    """Yield the planned file unchanged; or several that share its rows, if it has too many ranges for one task."""
    if file.rows is None or file.rows.num_ranges <= _MOST_RANGES:
        yield file
        return
    ranges, total = list(file.rows), file.rows.num_rows
    for start in range(0, len(ranges), _MOST_RANGES):
        rows = RowRanges(ranges[start : start + _MOST_RANGES])
        share = rows.num_rows / total
        yield replace(
            file, rows=rows, num_rows=round(file.num_rows * share), num_bytes=max(1, round(file.num_bytes * share))
        )


def _least_bytes(file: PlannedFile) -> int:
    """Return an upper bound of the encoded size, in bytes, of a planned file without its footer and page locations."""
    ranges = 0 if file.rows is None else 16 * file.rows.num_ranges
    validator = file.validator
    texts = () if validator is None else (validator.etag, validator.last_modified, validator.version)
    named = sum([len(text or "") for text in texts])
    return 200 + 4 * len(file.url) + ranges + named + partition_bytes(file.partition) + len(file.content or b"")


def with_payloads_that_fit(files: Sequence[PlannedFile]) -> list[PlannedFile]:
    """Return the planned files such that they fit into one task. Where space is short, files lose their payloads
    (footer and page locations), which tasks then fetch; earlier files keep them first."""
    if not any(file.footers or file.pages for file in files):
        return list(files)
    space = MOST_TASK_BYTES - _PIECE_BYTES - sum(map(_least_bytes, files))
    return _fitting([(file.payload_bytes, file, file.without_payloads()) for file in files], space)


def _fitting(items: Sequence[tuple[int, T, T]], space: int) -> list[T]:
    """Choose a form of each item: the large one while ``space`` bytes last, otherwise the small one.

    ``items``: (bytes by which the large form exceeds the small one, large form, small form).
    """
    chosen: list[T] = []
    for more, whole, slim in items:
        chosen.append(whole if more <= space else slim)
        space -= more if more <= space else 0
    return chosen


def group_pieces(
    pieces: Sequence[TaskPiece], *, task_bytes: int, most_tasks: int, parallelism: int = 1
) -> list[tuple[TaskPiece, ...]]:
    """Group consecutive pieces into at most ``most_tasks`` tasks of about ``task_bytes`` bytes. Tasks are
    smaller, down to ``LEAST_TASK_BYTES``, if otherwise there were fewer than ``parallelism``."""
    if not pieces:
        return []
    costs = [max(piece.num_bytes, piece.num_files * FILE_COST_BYTES) for piece in pieces]
    total = sum(costs)
    wanted = min(task_bytes, max(LEAST_TASK_BYTES, -(-total // parallelism)))
    tasks: list[list[TaskPiece]] = []
    size, least = 0, _PIECE_BYTES
    for piece, cost in zip(pieces, costs, strict=True):
        more = 0 if piece.place is not None else piece.least_bytes
        if not tasks or size + cost > wanted or least + more > MOST_TASK_BYTES:
            tasks.append([])
            size, least = 0, _PIECE_BYTES
        tasks[-1].append(piece)
        size += cost
        least += more
    if len(tasks) > most_tasks:
        tasks = [[] for _ in range(most_tasks)]
        for piece, cost, end in zip(pieces, costs, itertools.accumulate(costs), strict=True):
            tasks[min(most_tasks - 1, (end - cost) * most_tasks // total)].append(piece)
    return [_fitting_pieces(task) for task in tasks if task]


def _fitting_pieces(task: Sequence[TaskPiece]) -> tuple[TaskPiece, ...]:
    """Return the pieces of a task such that they fit into it: the last lose their payloads for lack of space."""
    space = MOST_TASK_BYTES - 4 * len(task) - _PIECE_BYTES
    if sum([piece.most_bytes for piece in task]) <= space:
        return tuple(task)
    slim = [piece.without_payloads() if piece.place is None else piece for piece in task]
    items = [(whole.most_bytes - least.most_bytes, whole, least) for whole, least in zip(task, slim, strict=True)]
    return tuple(_fitting(items, space - sum([piece.most_bytes for piece in slim])))


def _folder_of(dataset: str, file: str) -> str:
    """Return the url of the folder ``dataset``, with its final slash, if ``file`` is inside; else of its folder."""
    root = dataset if dataset.endswith("/") else f"{dataset}/"
    return root if file.startswith(root) else file.rpartition("/")[0] + "/"


class PieceStore:
    """Collects the pieces of a plan. Once they exceed ``MOST_SENT_BYTES``, they are written to the work folder, and
    only their places there stay in memory."""

    def __init__(self, state: DatasetState, task_bytes: int, work_folder: str | None = None) -> None:
        self.versions: dict[str, Validator | None] = {}  # of the first files, by url
        self.num_files: int = 0
        self.num_rows: int = 0
        self.whole_bytes: int = 0  # of these files
        self._runtime = state.runtime
        self._dataset = state.url
        self._is_set = work_folder is not None
        self._plans = f"{(work_folder or '').rstrip('/')}/plans/"
        self._packer = TaskPacker(task_bytes)
        self._pieces: list[TaskPiece] = []
        self._sent = 0  # number of leading pieces that are in the work folder
        self._num_bytes = 0
        self._last_url = ""
        self._name = uuid.uuid4().hex
        self._objects = 0

    async def add(self, file: PlannedFile) -> None:
        """Add a planned file. Raises InvalidOptionError if the plan is too large to send, no work folder is set, and
        the dataset's folder cannot be written."""
        is_next_part = file.url == self._last_url
        self._count({} if is_next_part else {file.url: file.validator}, file.num_rows)
        self._last_url = file.url
        await self._keep(self._packer.add(file))

    async def add_packed(
        self, pieces: Sequence[TaskPiece], versions: Mapping[str, Validator | None], num_rows: int
    ) -> None:
        """Add pieces that another process has packed. ``versions``: the versions of their files by url;
        ``num_rows``: the number of their rows. Raises the errors of :meth:`add`."""
        self._count(versions, num_rows)
        await self._keep(itertools.chain(self._packer.finish(), pieces))

    def _count(self, versions: Mapping[str, Validator | None], num_rows: int) -> None:
        if not self.num_files and not self._is_set:
            for url in itertools.islice(versions, 1):
                self._plans = f"{_folder_of(self._dataset, url)}{_DEFAULT_FOLDER}/plans/"
        if self.num_files <= MOST_VERSIONS:
            self.versions.update(versions)
        self.num_files += len(versions)
        self.num_rows += num_rows
        self.whole_bytes += sum(0 if validator is None else validator.size for validator in versions.values())

    async def finish(self) -> list[TaskPiece]:
        """Return all pieces in order."""
        await self._keep(self._packer.finish())
        if self._objects:
            await self._put_down()
            await self._remove_old()
        return self._pieces

    async def _keep(self, pieces: Iterable[TaskPiece]) -> None:
        for piece in pieces:
            # plans of more files are for tasks, and take less memory if encoded
            kept = piece if self.num_files <= MOST_VERSIONS else piece.encoded()
            self._pieces.append(kept)
            self._num_bytes += kept.most_bytes
            if self._num_bytes > MOST_SENT_BYTES:
                await self._put_down()

    async def _put_down(self) -> None:
        url = f"{self._plans}{self._name}/{self._objects}.splits"
        parts = [piece.encoded().data or b"" for piece in self._pieces[self._sent :]]
        if not parts:
            return
        for number, (part, stop) in enumerate(
            zip(parts, itertools.accumulate(map(len, parts)), strict=True), self._sent
        ):
            self._pieces[number] = replace(
                self._pieces[number], data=None, files=(), place=(url, stop - len(part), stop)
            )
        store, _ = await self._runtime.store(url)
        context = RequestContext(ReadMetrics(), purpose="write")
        try:
            await writable(store, url).put_object(url, b"".join(parts), context=context)
        except AsyncpqError as error:
            if self._is_set:
                raise
            raise InvalidOptionError(
                f"the plan is larger than {MOST_SENT_BYTES} bytes, which requires a work folder; none is set, and the"
                f" dataset's folder cannot be written: {error.message}",
                hint="Pass work_folder=, a folder that planner and workers reach (in Spark: spark.asyncpq.workFolder).",
            ) from error
        self._objects += 1
        self._sent = len(self._pieces)
        self._num_bytes = 0

    async def _remove_old(self) -> None:
        """Delete plans older than ``PLAN_S`` from the work folder, at most ``_MOST_REMOVED``: an engine does not say
        when it no longer needs a plan. Errors of the store are only logged."""
        context = RequestContext(ReadMetrics(), purpose="list")
        try:
            store = writable((await self._runtime.store(self._plans))[0], self._plans)
            now = await store.clock(self._plans, context=context)
            old = [
                item.url
                for item in await store.list_objects(self._plans, context=context)
                if _PLAN_NAME.fullmatch(item.url[len(self._plans) :])
                and item.modified is not None
                and now - item.modified > PLAN_S
            ]
            await store.delete_objects(old[:_MOST_REMOVED], context=context.step("write", context.round + 1))
        except StoreError as error:
            logger.warning("old plans could not be removed from %s: %s", self._plans, error)
