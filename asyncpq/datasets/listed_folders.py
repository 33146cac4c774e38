"""The folders of a listing, and those that conditions on partition columns leave: a later listing needs only these."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import pyarrow as pa

from asyncpq.checkpoints import each
from asyncpq.datasets.file_statistics import FileStatistics
from asyncpq.datasets.model import DataFile, urls_of
from asyncpq.datasets.partitioning import Partitioning, values_of_folders
from asyncpq.expressions import Expression, columns, implied, simplify
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.request import ScanRequest

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
