"""Indexes of one's own: whatever can say which files, and which of their rows, may match a predicate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol, runtime_checkable

from asyncpq.expressions import Expression
from asyncpq.planning.access_plan import AccessPlan


@dataclass(frozen=True, slots=True)
class FileSlice:
    """What an index says of one file.

    Attributes:
        access: rows that may match; ``AccessPlan.none()``: none does.
        size, etag: of the version that it speaks of, the ETag verbatim; None where the index does not know. Of a file
            that is seen to have others, what it says is not used.
    """

    access: AccessPlan = field(default_factory=AccessPlan.all)
    size: int | None = None
    etag: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSlices:
    """What an index says of the files of a dataset: a superset of the rows that match.

    Attributes:
        files: by url as :meth:`asyncpq.Dataset.files` gives it, or by path below the dataset's url.
        others: what holds of files that are not named: "none" of their rows matches, or "unknown".
        exact: all rows that it names match. It is told in ``explain()``; the filter runs all the same.
    """

    files: Mapping[str, FileSlice]
    others: Literal["none", "unknown"] = "unknown"
    exact: bool = False


@runtime_checkable
class FileIndex(Protocol):
    """One class with one method: to be passed to :meth:`asyncpq.Session.open_dataset` as ``index``."""

    async def prune(self, where: Expression) -> FileSlices:
        """The files, and rows of them, for which ``where`` may be true: more may be given, never fewer.

        Args:
            where: in the dataset's columns, relative times resolved. :func:`asyncpq.expressions.column_ranges` tells
                the values that each column may have where it is true.
        """
