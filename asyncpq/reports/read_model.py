"""A model of the cost of a read, which predicts how much faster the read would be without a cause of slowness.

The model sees a read as rounds of concurrent requests. The plan's prices (:mod:`asyncpq.objects.prices`) give the
seconds of each round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from asyncpq.metrics import RequestRecord
from asyncpq.objects.prices import Prices
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.reports.story import ColumnRead, runs

if TYPE_CHECKING:
    from asyncpq.reports.documents import Cause

#: Purposes of requests that come before data.
METADATA: Final = frozenset({"tail", "footer", "index", "bloom", "list", "table", "stat", "session", "validate"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Facts about a read that has ended, from which the causes of its cost are found."""

    log: Sequence[RequestRecord]  # all requests, those that opened the file or dataset included
    prices: Prices
    columns: Sequence[ColumnRead]
    filters: Sequence[str]  # names of the columns that the predicate names
    matches: int  # matching rows
    footers: Sequence[int]  # bytes of the footer of each file that was planned
    sizes: Sequence[int]  # bytes of these files
    files_opened: int = 1
    files_total: int = 0  # of a dataset; 0 for one file
    index: Sequence[str] = ()  # the plan's lines about the index; empty without one
    fallbacks: Sequence[str] = ()
    unindexed: frozenset[str] = field(default_factory=frozenset)  # urls of files that were planned without the index


Rounds = dict[int, list[int]]  # bytes of each request, by round


class ReadModel:
    """Predicts the seconds of a read from its rounds of requests, and how they change if rounds change."""

    def __init__(self, facts: Facts) -> None:
        self._prices = facts.prices
        self.now: Rounds = rounds_of(facts.log)
        self.metadata: Rounds = rounds_of(record for record in facts.log if record.purpose in METADATA)
        self.data: Rounds = rounds_of(record for record in facts.log if record.purpose not in METADATA)
        self.residual: Rounds = self.metadata  # after the cure that saves most of the metadata requests
        self.now_s: float = self.seconds(self.now)
        self._bytes = size_of(self.now)
        self._requests = sum(map(len, self.now.values()))

    def seconds(self, rounds: Rounds, prices: Prices | None = None) -> float:
        prices = prices or self._prices
        return sum(prices.round_s([(0, size) for size in sizes]) for sizes in rounds.values())

    def cause(
        self,
        id_: str,
        title: str,
        detail: str,
        cure: str,
        *,
        data: Sequence[Sequence[int]] | None = None,
        metadata: Rounds | None = None,
        saves: tuple[float, int, int] | None = None,
        column: str | None = None,
        snippets: dict[str, str] | None = None,
    ) -> Iterator[Cause]:
        """Yield the cause if the read would cost less without it.

        Args:
            id_, title, detail, cure, column, snippets: fields of :class:`asyncpq.reports.documents.Cause`.
            data, metadata: bytes of the requests, by round, that the read would need without the cause; None if they
                do not change.
            saves: the saved seconds, requests and bytes, instead of ``data`` and ``metadata``.
        """
        seconds, requests, num_bytes = saves or (0.0, 0, 0)
        if saves is None:
            kept = self.metadata if metadata is None else metadata
            instead = {number: sizes for number, sizes in kept.items() if sizes}
            if data is None:
                for number, sizes in self.data.items():
                    instead[number] = [*instead.get(number, ()), *sizes]
            else:
                last = max(instead, default=0)
                instead |= {last + number: list(sizes) for number, sizes in enumerate(data, 1) if sizes}
            seconds = self.now_s - self.seconds(instead)
            if metadata is not None and size_of(metadata) < size_of(self.residual):
                self.residual = metadata
            requests = self._requests - sum(map(len, instead.values()))
            num_bytes = self._bytes - size_of(instead)
        if seconds <= 0:
            return
        share = seconds / max(self.now_s, 1e-9)
        severity: Literal["high", "medium", "low"] = "high" if share >= 0.5 else "medium" if share >= 0.15 else "low"
        yield {
            "id": id_,
            "severity": severity,
            "title": title,
            "detail": detail,
            "saves_requests": max(requests, 0),
            "saves_bytes": max(num_bytes, 0),
            "saves_seconds": round(seconds, 6),
            "column": column,
            "cure": cure,
            "snippets": snippets or {},
        }


def rounds_of(log: Iterable[RequestRecord]) -> Rounds:
    """Return the bytes of each request in ``log``, by round."""
    rounds: Rounds = {}
    for record in log:
        rounds.setdefault(record.round, []).append(record.bytes or abs(record.stop - record.start))
    return rounds


def size_of(rounds: Rounds) -> int:
    """Return the sum of the bytes of all requests."""
    return sum(map(sum, rounds.values()))


def pieces_of(
    columns: Iterable[ColumnRead], pages_of: Callable[[ColumnRead], Sequence[int]], *, dictionaries: bool = True
) -> list[int]:
    """Return the bytes of each request that a read of some pages of ``columns`` needs.

    Args:
        pages_of: returns the ordinals of the pages of a column to read.
        dictionaries: whether the columns' dictionaries are read too.
    """
    pieces: list[int] = []
    for column in columns:
        pages = pages_of(column)
        if not pages:
            continue
        if len(pages) == len(column.sizes) and dictionaries:
            pieces.append(column.bytes)
            continue
        if dictionaries and column.dictionary:
            pieces.append(column.dictionary)
        pieces += [sum(column.sizes[start:stop]) for start, stop in runs(pages)]
    return pieces


def paged(
    columns: Sequence[ColumnRead], model: ReadModel, filter_pages: Callable[[ColumnRead], Sequence[int]]
) -> list[list[int]]:
    """Return the bytes of each request, by round, of a read whose filter needs only the pages that ``filter_pages``
    returns.

    The pages of the other columns are read for the same rows in the same round, or for the matching rows in a second
    round, whichever costs less.
    """
    rows: dict[tuple[str, int], RowRanges] = {}
    for column in columns:
        if column.predicate:
            place, needed = (column.url, column.row_group), column.rows_of(filter_pages(column))
            rows[place] = rows[place] & needed if place in rows else needed

    def overlapping(column: ColumnRead) -> Sequence[int]:
        known = rows.get((column.url, column.row_group))
        return filter_pages(column) if column.predicate or known is None else column.pages_of(known)

    filters = [column for column in columns if column.predicate]
    others = [column for column in columns if not column.predicate]
    ways = [[pieces_of(columns, overlapping)], [pieces_of(filters, filter_pages), pieces_of(others, wanted)]]
    return min(ways, key=lambda way: model.seconds(dict(enumerate(way))))


def fetched(column: ColumnRead) -> Sequence[int]:
    """Return the ordinals of the column's pages that were read."""
    return column.fetched


def wanted(column: ColumnRead) -> Sequence[int]:
    """Return the ordinals of the column's pages that hold matching rows."""
    return column.wanted
