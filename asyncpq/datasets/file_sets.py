"""Where a dataset's files come from: urls that were given, a listing of each read, or a table's snapshot."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, Protocol

from asyncpq.datasets.model import DataFile, Snapshot, View
from asyncpq.datasets.reader import counted_in
from asyncpq.errors import AsyncpqError
from asyncpq.events import Operation
from asyncpq.expressions import Expression
from asyncpq.storage.base import RequestContext


class SkippedFile(NamedTuple):
    """A file that a read left out since ``on_bad_file`` is "skip", and why."""

    url: str
    error: AsyncpqError


class FileSet(NamedTuple):
    """The files of one read.

    Attributes:
        files: in the order of the dataset.
        listed_at: ``time.monotonic()`` when they were asked for, where that tells that they have these versions.
        bad: files that are not among them, since their paths cannot be understood.
    """

    files: Sequence[DataFile]
    listed_at: float | None = None
    bad: tuple[SkippedFile, ...] = ()


class FileSource(Protocol):
    """Gives the files of each read.

    Attributes:
        view: which files a read sees.
        description: what it is, for ``explain()``.
        known: the files of the last read, where those of the next are looked for anew; else None.
    """

    view: View
    description: str
    known: FileSet | None

    @property
    def is_fresh(self) -> bool:
        """Whether the next read may do with ``known``."""

    async def files(self, where: Expression | None, operation: Operation, *, scan: bool = True) -> FileSet:
        """The files that may hold rows for which ``where`` is true; more may be given.

        Args:
            operation: requests are counted there.
            scan: for a scan, which leaves connections to others.
        """


class GivenFiles:
    """Files that the caller named."""

    view: View = View.LISTED
    known: FileSet | None = None

    def __init__(self, files: Sequence[DataFile], bad: tuple[SkippedFile, ...] = ()) -> None:
        self.description = f"{len(files)} file{'' if len(files) == 1 else 's'}, as given"
        self._files = FileSet(files, bad=bad)

    @property
    def is_fresh(self) -> bool:
        return False

    async def files(self, where: Expression | None, operation: Operation, *, scan: bool = True) -> FileSet:
        return self._files


class ListedFiles:
    """Files under a prefix, or that a pattern names: listed for each read.

    Args:
        target: what is listed, for messages.
        list_files: lists them. A listing that equals the one before is given as that very one.
        known: a listing that was made before.
        max_age_s: reads may do with a listing that is younger; 0: each read lists.
    """

    view: View = View.LISTED

    def __init__(
        self,
        target: str,
        list_files: Callable[[RequestContext], Awaitable[FileSet]],
        known: FileSet,
        max_age_s: float,
    ) -> None:
        age = f"listed at most {max_age_s:g} s before a read" if max_age_s else "listed for each read"
        self.description = f"files of {target}, {age}"
        self.known: FileSet | None = known
        self._list = list_files
        self._max_age_s = max_age_s

    @property
    def is_fresh(self) -> bool:
        known = self.known
        if known is None or known.listed_at is None:
            return False
        return time.monotonic() - known.listed_at < self._max_age_s

    async def files(self, where: Expression | None, operation: Operation, *, scan: bool = True) -> FileSet:
        found = await self._list(RequestContext(operation.metrics, scan=scan, purpose="list"))
        known = self.known
        if known is not None and known.files == found.files:
            found = found._replace(files=known.files)  # what was made for these files still serves
        self.known = found
        return found


class TableFiles:
    """The files of one snapshot of a table."""

    view: View = View.TABLE
    known: FileSet | None = None

    def __init__(self, snapshot: Snapshot) -> None:
        self.description = snapshot.description
        self._snapshot = snapshot

    @property
    def is_fresh(self) -> bool:
        return False

    async def files(self, where: Expression | None, operation: Operation, *, scan: bool = True) -> FileSet:
        with counted_in(operation):
            return FileSet(await self._snapshot.files(where))
