"""List the files of a target again for each read: all of them, or those of the folders that the read needs.

A read whose predicate names partition columns lists only the folders that these conditions leave, where that takes
fewer requests. The files of the other folders, none of which the read opens, stay as an earlier listing had them.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple, TypeVar

import pyarrow as pa
from cachetools import LRUCache

from asyncpq.checkpoints import each
from asyncpq.datasets.file_statistics import FileStatistics
from asyncpq.datasets.listing import FileRules, Listing, Target, list_files
from asyncpq.datasets.model import DataFile, DataFiles, urls_of
from asyncpq.datasets.partitioning import Partitioning, values_of_folders
from asyncpq.datasets.providers import FileSet, SkippedFile
from asyncpq.errors import PartitionError
from asyncpq.expressions import Expression, columns, implied, simplify
from asyncpq.objects.runtime import Runtime
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.request import ScanRequest, predicate_steps
from asyncpq.storage.base import RequestContext
from asyncpq.storage.urls import END_OF_KEY, safe_url

_PAGE: Final = 1000  # objects and folders in one response of a store


def conditions(ask: ScanRequest, partitioning: Partitioning | None) -> Expression | None:
    """Return what the request's predicate says about partition columns: a predicate over these alone, which is true
    wherever the request's is. None if it says nothing."""
    where = ask.simple_pruning
    if where is None or partitioning is None or ask.by_file is not None:
        return None
    names = partitioning.types.keys()
    found = implied(where, lambda atom: atom if set(columns(atom)) <= names else None)
    return None if found is None else simplify(found)


class ListedFolders:
    """The folders of a listing that have files, and the folders around those, below the url ``top``.

    Args:
        files: of the listing.
        root: as in :func:`asyncpq.datasets.listing.folders_of`.
        partitioning: has the types of all partition columns.
    """

    def __init__(self, files: Sequence[DataFile], top: str, root: str, partitioning: Partitioning) -> None:
        self.files: Sequence[DataFile] = files
        self._top = top
        self._root = root
        self._partitioning = partitioning
        in_folders: dict[str, list[int]] = {}
        for number, url in enumerate(each(urls_of(files))):
            in_folders.setdefault(url[: url.rfind("/") + 1], []).append(number)
        names = set(in_folders)
        for folder in in_folders:
            above = parent(folder)
            while len(above) > len(top) and above not in names:
                names.add(above)
                above = parent(above)
        names.discard(top)
        self._names: list[str] = sorted(names)  # each after those around it
        self._in_folders = in_folders
        self._known = self._described(self._names)
        self._statistics = FileStatistics(trust_statistics=False)

    def _described(self, folders: Sequence[str]) -> Sequence[DataFile]:
        """Return folders as files whose partition values are those that all files below the folder have. Columns of
        which deeper folders may have values have none; nor has a folder with a value that is not of its column's
        type, so that it is listed and the error raised."""
        values = values_of_folders(folders, self._root, self._partitioning)
        return [DataFile(url=folder, partition=own) for folder, own in zip(folders, values, strict=True)]

    @property
    def num_folders(self) -> int:
        """The number of folders."""
        return len(self._names)

    def left_by(self, where: Expression, schema: pa.Schema) -> Callable[[], FoldersLeft]:
        """Return a function, for any thread, that returns the folders that may have files with a row for which
        ``where`` is true. ``schema``: the columns that ``where`` names."""
        search = self._statistics.searching(self._known, where, schema)

        def may_match(folder: str) -> bool:
            described = self._described([folder])
            if not described[0].partition:
                return True
            return bool(FileStatistics(trust_statistics=False).searching(described, where, schema)())

        def left() -> FoldersLeft:
            known = dict.fromkeys(self._names, False)
            for number in search().rows():
                known[self._names[number]] = True
            return FoldersLeft(known, self._top, may_match)

        return left

    def positions(self, left: FoldersLeft) -> list[int]:
        """Return the positions of the files that a listing of ``left`` has, ascending."""
        covered = [numbers for folder, numbers in self._in_folders.items() if left.covers(folder)]
        return sorted(itertools.chain.from_iterable(covered))

    def save_requests(self, left: FoldersLeft, num_files: int) -> bool:
        """Whether to list ``left``, which had ``num_files`` files, takes fewer requests than to list all files. The
        names of all folders come a page at a time, and so do the files of each run of neighbours."""
        listed = RowRanges.from_rows([number for number, folder in enumerate(self._names) if left.covers(folder)])
        return 1 + _pages(len(self._names)) + _pages(num_files) + listed.num_ranges < _pages(len(self.files))


def parent(folder: str) -> str:
    """Return the url of the folder around a folder."""
    return folder[: folder.rfind("/", 0, -1) + 1]


def _pages(number: int) -> int:
    return -(-number // _PAGE)


class FoldersLeft:
    """The folders that a predicate leaves: a :data:`asyncpq.storage.base.Wants`.

    ``known``: whether it leaves them, by url. ``may_match`` says so of others, which are new.
    """

    def __init__(self, known: Mapping[str, bool], top: str, may_match: Callable[[str], bool]) -> None:
        self._known = dict(known)
        self._top = top
        self._may_match = may_match
        self._covered: dict[str, bool] = {}

    def __call__(self, folder: str) -> bool:
        known = self._known.get(folder)
        if known is None:
            known = self._known[folder] = self._may_match(folder)
        return known

    def covers(self, folder: str) -> bool:
        """Whether a listing has the files directly in a folder: the predicate leaves it and all folders around it."""
        covered = self._covered.get(folder)
        if covered is None:
            covered = len(folder) <= len(self._top) or (self(folder) and self.covers(parent(folder)))
            self._covered[folder] = covered
        return covered


T = TypeVar("T")

_MAX_CONDITIONS: Final = 64  # whose folders are kept
_FEW: Final = 1000  # files and folders whose names are compared on the event loop


class _Part(NamedTuple):
    """The folders that a predicate leaves, and the positions of their files in ``files``, a listing."""

    left: FoldersLeft
    positions: Sequence[int]
    files: Sequence[DataFile]


class Relisting:
    """The last listing of a target, and how it is renewed.

    Args:
        rules: their partitioning has the types of the partition columns, which do not change.
        schema: returns the columns that predicates name.
        skips: leave out files with invalid partition values.
    """

    def __init__(
        self,
        runtime: Runtime,
        target: Target,
        rules: FileRules,
        listing: Listing,
        schema: Callable[[], pa.Schema],
        *,
        skips: bool,
    ) -> None:
        self._runtime = runtime
        self._target = target
        self._rules = rules
        self._listing = listing
        self._began = 0.0  # time.monotonic() when the last listing of all files was requested
        self._partitioning = rules.partitioning
        self._schema = schema
        self._skips = skips
        self._folders: ListedFolders | None = None  # of the last listing, once a read may need some of them
        self._parts: LRUCache[Expression, _Part | None] = LRUCache(_MAX_CONDITIONS)  # None: all folders are listed

    async def conditions(self, ask: ScanRequest) -> Expression | None:
        """Return the predicate by which :meth:`files` may choose the folders that the read ``ask`` needs; None for
        all folders."""
        if len(self._listing.files) <= _FEW or ask.where is None:  # one page, or few calls
            return None
        steps = predicate_steps(ask.pruning)
        return await self._runtime.off_loop(lambda: conditions(ask, self._partitioning), steps)

    async def files(self, context: RequestContext, where: Expression | None) -> FileSet:
        """List the files again. Those that may have rows for which ``where`` is true are current; all are if the
        result's ``where`` is None.

        Raises InvalidOptionError if another program made a table of the files, PartitionError if a file has an invalid
        partition value and is not skipped.
        """
        began = time.monotonic()
        part = None if where is None else await self._part(where)
        if part is not None:
            found = await self._list(context, part.left)
            if self._has_known_columns(found):
                listing = await self._merged(found, part, began)
                return file_set(listing, found.errors, began, skips=self._skips)._replace(where=where)
        self._listing = listing = await self._list(context, None)
        self._began = began
        return file_set(listing, listing.errors, began, skips=self._skips)

    async def _list(self, context: RequestContext, left: FoldersLeft | None) -> Listing:
        listing = await list_files(
            self._runtime, self._target, context, self._rules, allow_empty=True, earlier=self._listing, left=left
        )
        if listing.table is not None and not self._rules.plain:
            raise listing.table.error(safe_url(self._target.url))
        return listing

    def _has_known_columns(self, listing: Listing) -> bool:
        """Whether no partition column is new: it would be one of all files, whose values decide its type."""
        return self._partitioning is not None and set(listing.partitions.names) <= self._partitioning.types.keys()

    async def _part(self, where: Expression) -> _Part | None:
        """Return the folders that ``where`` leaves; None if all files are to be listed."""
        listing, partitioning = self._listing, self._partitioning
        if partitioning is None or not self._has_known_columns(listing):
            return None
        folders = await self._folders_of(listing, partitioning)
        if where in self._parts:
            return self._parts[where]
        search = folders.left_by(where, self._schema())

        def find() -> _Part | None:
            left = search()
            positions = folders.positions(left)
            return _Part(left, positions, folders.files) if folders.save_requests(left, len(positions)) else None

        part = await self._worked(find, folders.num_folders)
        if self._folders is folders:
            self._parts[where] = part
        return part

    async def _folders_of(self, listing: Listing, partitioning: Partitioning) -> ListedFolders:
        folders = self._folders
        if folders is None or folders.files is not listing.files:
            target = self._target
            root = "" if target.pattern is not None else target.folder
            make = partial(ListedFolders, listing.files, target.folder, root, partitioning)
            folders = self._folders = await self._worked(make, len(listing.files))
            self._parts.clear()
        return folders

    async def _merged(self, found: Listing, part: _Part, began: float) -> Listing:
        """Return the last listing, with the files of the folders ``part`` as they were ``found``, requested at
        ``began``. It becomes the last listing, unless all files were requested later."""
        while True:
            last, positions = self._listing, part.positions
            if last.files is not part.files:  # another read has renewed it meanwhile
                assert self._partitioning is not None
                positions = (await self._folders_of(last, self._partitioning)).positions(part.left)
            merged = await self._worked(partial(_merge, last, found, part.left, positions), len(found.files))
            if self._listing is last:  # else other folders were listed meanwhile, which the result must have, too
                if began >= self._began:
                    self._listing = merged
                return merged

    async def _worked(self, work: Callable[[], T], number: int) -> T:
        return work() if number <= _FEW else await self._runtime.in_thread(work)


def _merge(last: Listing, found: Listing, left: FoldersLeft, positions: Sequence[int]) -> Listing:
    """Return the listing ``last`` with the files of ``found`` in place of those at ``positions``; the same object if
    they are equal."""

    def is_other(error: PartitionError) -> bool:
        url = error.url or ""
        return not left.covers(url[: url.rfind("/") + 1])

    others = [error for error in last.errors if is_other(error)]
    same_errors = [error.url for error in last.errors] == [error.url for error in (*others, *found.errors)]
    before = DataFiles([last.files.rows[position] for position in positions], last.files.partitions)
    if same_errors and list(found.files) == list(before):
        return last
    replaced = set(positions)
    rows = [row for position, row in enumerate(each(last.files.rows)) if position not in replaced]
    rows += found.files.rows
    rows.sort(key=lambda row: os.fsencode(row[0].removesuffix(END_OF_KEY)))
    values = {**last.files.partitions, **found.files.partitions}
    folders = dict.fromkeys(row[0][: row[0].rfind("/") + 1] for row in rows) if values else {}
    partitions = {folder: values[folder] for folder in folders}
    return replace(last, files=DataFiles(rows, partitions), errors=(*others, *found.errors), listed=())


def file_set(listing: Listing, errors: Sequence[PartitionError], began: float, *, skips: bool) -> FileSet:
    """Return the files of ``listing`` as a read gets them. If the path of a file has an invalid partition value, it
    is left out with ``skips``; otherwise the first of ``errors``, of the files listed now, is raised. ``began``:
    ``time.monotonic()`` when the listing was requested."""
    if errors and not skips:
        raise errors[0]
    bad = tuple(SkippedFile(error.url or "", error) for error in listing.errors)
    return FileSet(listing.files, began, bad)
