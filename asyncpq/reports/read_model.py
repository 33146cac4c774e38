"""A model of the cost of a read, which predicts how much faster the read would be without a cause of slowness.

The model sees a read as rounds of concurrent requests. The plan's prices (:mod:`asyncpq.objects.prices`) give the
seconds of each round; where they were measured, these are scaled to the time that they took. Decoding, filter and
planning take the seconds that were measured, in proportion to the work that is left. The unit of work is the second of
a common processor; only shares matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final, Literal

from asyncpq.metrics import RequestRecord
from asyncpq.objects.prices import Prices
from asyncpq.parquet.column_chunk import Codec
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.reports.story import ColumnRead, runs

if TYPE_CHECKING:
    from asyncpq.expressions import Expression
    from asyncpq.reports.documents import Cause, TimeSplit
    from asyncpq.reports.lookup_cost import Weakness

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
    where: Expression | None = None
    time: TimeSplit | None = None  # None: requests are all that takes time
    is_priced: bool = False  # options say what requests cost, and no server has shown it
    #: Returns why the bounds of a column ruled out little; it asks only memory.
    weakness_of: Callable[[ColumnRead], Weakness] = lambda column: "random-order"


Rounds = dict[int, list[int]]  # bytes of each request, by round


@dataclass(frozen=True, slots=True)
class Without:
    """The read without a cause.

    Attributes:
        data, metadata: bytes of the requests, by round, that the read would need; None if the cause does not change
            them.
        saves: the saved seconds (as :meth:`ReadModel.seconds` has them), requests and bytes, instead of ``data`` and
            ``metadata``.
        more_s: the saved seconds that are not those of requests.
    """

    data: Sequence[Sequence[int]] | None = None
    metadata: Rounds | None = None
    saves: tuple[float, int, int] | None = None
    more_s: float = 0.0


TAIL_BYTES: Final = 64 * 1024  # they hold the footer of a file with few columns
# The most that planning, or decoding, explains of its seconds: some milliseconds, and so many times its work.
_EXPLAINED_S: Final = 0.005
_EXPLAINED_TIMES: Final = 10


class ReadModel:
    """Predicts the seconds of a read from its rounds of requests, and how they change if rounds change."""

    def __init__(self, facts: Facts) -> None:
        self._prices = facts.prices
        self.now: Rounds = rounds_of(facts.log)
        self.metadata: Rounds = rounds_of(record for record in facts.log if record.purpose in METADATA)
        self.data: Rounds = rounds_of(record for record in facts.log if record.purpose not in METADATA)
        self.residual: Rounds = self.metadata  # after the cure that saves most of the metadata requests
        requests_s = self.seconds(self.now)
        time = facts.time
        self.network_s: float = requests_s if time is None or facts.is_priced else time["network_s"]
        self._scale = self.network_s / requests_s if requests_s else 0.0
        self.caches_s: float = 0.0 if time is None else time["caches_s"]
        self.filter_s: float = 0.0 if time is None else time["filter_s"]
        self.decode_s: float = 0.0 if time is None else time["decode_s"]
        self.planning_s: float = 0.0 if time is None else time["other_s"]
        self._facts = facts
        self.unexplained_s: float = self._take_unexplained()
        self.now_s: float = (
            self.network_s + self.caches_s + self.filter_s + self.decode_s + self.planning_s + self.unexplained_s
        )
        self._bytes = size_of(self.now)
        self._requests = sum(map(len, self.now.values()))

    def _take_unexplained(self) -> float:
        """Return the seconds of planning and decoding that their work does not explain, such as those of loading
        modules, and subtract them from the seconds of both."""
        decode_s = min(self.decode_s, _EXPLAINED_S + _EXPLAINED_TIMES * self.decode_work)
        planning_s = min(self.planning_s, _EXPLAINED_S + _EXPLAINED_TIMES * self.planning_work)
        unexplained_s = self.decode_s + self.planning_s - decode_s - planning_s
        self.decode_s, self.planning_s = decode_s, planning_s
        return unexplained_s

    @cached_property
    def decode_work(self) -> float:
        """The work of decoding the pages that were read."""
        return sum([decode_work(column, column.fetched) for column in self._facts.columns])

    @cached_property
    def planning_work(self) -> float:
        """The work of planning the files that were opened."""
        return planning_work(self._facts.files_opened, sum(self._facts.footers))

    def unplanned(self, files: int, footer_bytes: int) -> float:
        """Return the seconds that are saved if only so many files, with footers of so many bytes, are planned."""
        left = planning_work(files, footer_bytes) / max(self.planning_work, 1e-9)
        return self.planning_s * max(0.0, 1 - left)

    def undecoded(self, pages_of: Callable[[ColumnRead], Sequence[int]]) -> float:
        """Return the seconds of decoding and filtering that are saved if only these pages of each column are read."""
        columns = self._facts.columns
        return self.less_work(
            sum([decode_work(column, pages_of(column)) for column in columns]), filter_work(columns, pages_of)
        )

    def less_work(self, work: float, rows: float | None = None) -> float:
        """Return the seconds that are saved if decoding takes ``work``, and if so many rows are filtered; None: as many
        as now."""
        seconds = self.decode_s * max(0.0, 1 - work / max(self.decode_work, 1e-9))
        if rows is not None:
            seconds += self.filter_s * max(0.0, 1 - rows / max(filter_work(self._facts.columns, fetched), 1.0))
        return seconds

    def seconds(self, rounds: Rounds, prices: Prices | None = None) -> float:
        """Return the seconds that the requests take by the prices, not scaled to what was measured."""
        prices = prices or self._prices
        return sum(prices.round_s([(0, size) for size in sizes]) for sizes in rounds.values())

    def cause(
        self,
        id_: str,
        title: str,
        detail: str,
        cure: str,
        without: Without,
        *,
        column: str | None = None,
        snippets: dict[str, str] | None = None,
    ) -> Iterator[Cause]:
        """Yield the cause if the read would cost less without it.

        Args:
            id_, title, detail, cure, column, snippets: fields of :class:`asyncpq.reports.documents.Cause`.
        """
        data, metadata, saves = without.data, without.metadata, without.saves
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
            seconds = self.seconds(self.now) - self.seconds(instead)
            if metadata is not None and size_of(metadata) < size_of(self.residual):
                self.residual = metadata
            requests = self._requests - sum(map(len, instead.values()))
            num_bytes = self._bytes - size_of(instead)
        seconds = min(seconds * self._scale + without.more_s, self.now_s)
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


SLOW_CODECS: Final = (Codec.GZIP, Codec.BROTLI)
CODEC_BYTES_S: Final[dict[int, float]] = {  # decompressed
    Codec.SNAPPY: 1.2e9, Codec.GZIP: 0.25e9, Codec.BROTLI: 0.3e9, Codec.ZSTD: 0.8e9, Codec.LZ4: 2e9, Codec.LZ4_RAW: 2e9,
}  # fmt: skip
_DECODED_BYTES_S: Final = 1.5e9
_TEXT_S: Final = 8e-9  # of each value whose length differs
_PAGE_S: Final = 100e-6
_FILE_S: Final = 1e-3
_FOOTER_BYTE_S: Final = 10e-9


def decompression_work(column: ColumnRead, pages: Sequence[int]) -> float:
    """Return the work of decompressing the pages with these ordinals."""
    rate = CODEC_BYTES_S.get(column.codec)
    return 0.0 if rate is None else column.plain * share_of(column, pages) / rate


def decode_work(column: ColumnRead, pages: Sequence[int]) -> float:
    """Return the work of decompressing and decoding the pages with these ordinals, and the dictionary."""
    if not pages:
        return 0.0
    share = share_of(column, pages)
    values = column.num_rows * share * _TEXT_S if column.has_texts else 0.0
    return (
        decompression_work(column, pages)
        + dictionary_work(column)
        + column.plain * share / _DECODED_BYTES_S
        + values
        + len(pages) * _PAGE_S
    )


def dictionary_work(column: ColumnRead) -> float:
    """Return the work of decoding the column's dictionary."""
    return column.dictionary * (column.plain / max(column.bytes, 1)) / (_DECODED_BYTES_S / 10)


def planning_work(files: int, footer_bytes: int) -> float:
    """Return the work of opening and planning so many files whose footers have so many bytes together."""
    return files * _FILE_S + footer_bytes * _FOOTER_BYTE_S


def filter_work(columns: Iterable[ColumnRead], pages_of: Callable[[ColumnRead], Sequence[int]]) -> float:
    """Return the number of rows in the pages of the filter's columns."""
    return sum([column.num_rows * share_of(column, pages_of(column)) for column in columns if column.predicate])


def share_of(column: ColumnRead, pages: Sequence[int]) -> float:
    """Return the share of the chunk's data that the pages with these ordinals have."""
    if len(pages) == len(column.sizes):
        return 1.0
    return sum([column.sizes[page] for page in pages]) / max(sum(column.sizes), 1)
