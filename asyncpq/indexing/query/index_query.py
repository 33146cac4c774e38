"""An index that a dataset has open, and its answer to a predicate: the files, row groups and rows that may match.

The predicate becomes a tree of key lookups. For each comparison in it, the lookup finds the keys of the rows for which
the comparison may have the wanted result (see :func:`asyncpq.pruning.zone_maps.rows_where`). One step asks all tables
at once. Bloom filters are stored by file, so the caller reads them once few files are left.

A segment that is damaged, or has more matching rows than a read may fetch, rules nothing out, as without the lookup.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, NamedTuple

import pyarrow as pa

from asyncpq.errors import counted
from asyncpq.events import Operation
from asyncpq.expressions import Atom, Expression
from asyncpq.expressions.analysis import Truth, follow
from asyncpq.expressions.tokens import TOKENIZER, TOKENIZER_VERSION
from asyncpq.indexing.commits import Head, id_ranges
from asyncpq.indexing.index_model import VALUE_TAG, IndexBackend, IndexTable, KeyRange, SegmentQuery, comes_whole
from asyncpq.indexing.key_encoding import element_type, may_hold, needed_ngrams, needed_tokens, text_key
from asyncpq.indexing.manifest import Manifest
from asyncpq.indexing.query.file_entries import FooterReader, first_reads
from asyncpq.indexing.query.file_selection import (
    FileIndex,
    FileSelection,
    FileSlices,
    Read,
    Reads,
    SelectedRows,
    SnapshotRead,
    select_rows,
    table_rows,
    together,
    worked,
)
from asyncpq.indexing.query.key_ranges import (
    Ranges,
    atom_ranges,
    composite_ranges,
    intersected,
    is_wide,
    merged_ranges,
    point_keys,
)
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import dataclass
from asyncpq.scan.request import ScanRequest
from asyncpq.storage.threads import results_of


@dataclass(slots=True, eq=False)
class _Lookup:
    """A lookup in the index table ``table``: of the rows with keys in ``ranges``."""

    table: IndexTable
    ranges: Ranges
    points: tuple[bytes, ...] | None  # the keys, if all ranges are single keys; else None
    every: bool = False  # only files and rows that occur in each of the ranges count
    result: SelectedRows | None = None  # None before the lookup, and if the table has no answer
    is_asked: bool = False  # whether the lookup was made

    def selection(self) -> FileSelection | None:
        return None if self.result is None else self.result.selection


@dataclass(slots=True, eq=False)
class _BloomProbe:
    """A search in a table of Bloom filters for the row groups that may have any of ``keys``."""

    table: IndexTable
    keys: tuple[bytes, ...]
    result: FileSelection | None = None

    def selection(self) -> FileSelection | None:
        return self.result


@dataclass(slots=True, eq=False)
class _Combined:
    """The intersection of the selections of the nodes ``args``; if ``either``, their union."""

    either: bool
    args: tuple[_Node, ...]

    def selection(self) -> FileSelection | None:
        combined: FileSelection | None = None
        for arg in self.args:
            selection = arg.selection()
            if selection is None:
                if self.either:
                    return None
            elif combined is None:
                combined = selection
            else:
                combined = combined | selection if self.either else combined & selection
        return combined


@dataclass(slots=True, eq=False)
class _FirstAnswer:
    """Lookups that select the same rows in different tables. The query makes one after another, until one
    succeeds. A lookup fails if it exceeds the limit of rows or meets a damaged segment."""

    lookups: tuple[_Lookup, ...]

    def selection(self) -> FileSelection | None:
        return next((known for lookup in self.lookups if (known := lookup.selection()) is not None), None)

    @property
    def due(self) -> tuple[_Lookup, ...]:
        """The lookups made so far, and the next one if none of them succeeded."""
        for position, lookup in enumerate(self.lookups):
            if not lookup.is_asked:
                return self.lookups[:position] if self.selection() is not None else self.lookups[: position + 1]
        return self.lookups


class _NoRows:
    """The tree for a predicate that no row can match."""

    def selection(self) -> FileSelection | None:
        return FileSelection.none()


_Node = _Lookup | _BloomProbe | _Combined | _FirstAnswer | _NoRows


class _Wanted(NamedTuple):
    """A comparison (atom) of the predicate, and the result that it must have."""

    atom: Atom
    truth: Truth


class IndexQuery:
    """A search for the rows that match one predicate, in the tables of one snapshot.

    ``where`` is a simplified predicate on the dataset's columns, with relative times resolved. A lookup that would read
    more than ``LimitOptions.max_postings`` rows of one segment is given up, and rules out nothing.

    Attributes:
        bloom_tables: tables of Bloom filters, which may rule out more row groups once few files are left: the caller
            reads their rows for these files and passes them to :meth:`take_blooms`.
    """

    def __init__(self, read: SnapshotRead, where: Expression) -> None:
        self._read = read
        self._manifest = read.manifest
        self._lookups: dict[tuple[IndexTable, Ranges, bool], _Lookup] = {}
        self._blooms: list[_BloomProbe] = []
        self._root = self._conjunction([follow(where, Truth.TRUE, _Wanted, self._conjunction, self._disjunction)])
        if self._blooms:
            self._blooms = list(_probes(self._root))
        self.bloom_tables: Sequence[IndexTable] = list(dict.fromkeys([probe.table for probe in self._blooms]))

    @property
    def first_tables(self) -> list[IndexTable]:
        """The tables in which :meth:`run` looks up keys first."""
        return list(dict.fromkeys([lookup.table for lookup in _due_lookups(self._root)]))

    async def run(self, beside: Reads | None = None) -> FileSelection:
        """Make all lookups at once, then those that replace lookups that were given up. Return the files and rows that
        may match. ``beside`` (None: none) are reads that run at the same time and only fill memory. Raises
        StaleSnapshotError if a segment is gone."""
        while due := [lookup for lookup in _due_lookups(self._root) if not lookup.is_asked]:
            await self._look_up(due, beside or ())
            beside = None
            if None not in [lookup.result for lookup in due]:
                break
        if beside:
            await together(self._read.operation, beside)
        return self.selection()

    async def _look_up(self, due: Sequence[_Lookup], beside: Sequence[Read]) -> None:
        groups: dict[tuple[Any, ...], list[_Lookup]] = {}
        for lookup in due:
            lookup.is_asked = True
            # max_postings is for each lookup: one of many rows does not share a read with one of few
            alone = () if lookup.points is not None else lookup.ranges
            groups.setdefault((lookup.table, alone), []).append(lookup)
        reads = [self._reads(table, lookups) for (table, _), lookups in groups.items()]
        pieces = iter(await together(self._read.operation, [*chain.from_iterable(reads), *beside]))
        for group_reads, ((table, _), lookups) in zip(reads, groups.items(), strict=True):
            tables = [next(pieces) for _ in group_reads]
            num_rows = sum([piece.num_rows for piece in tables if piece is not None])
            await worked(self._read.runtime, num_rows, partial(self._take, table, tables, lookups))

    def _take(self, table: IndexTable, pieces: Sequence[pa.Table | None], lookups: Sequence[_Lookup]) -> None:
        rows = table_rows(self._manifest, table, pieces)
        for lookup in lookups:
            if rows is not None:
                lookup.result = select_rows(table, rows, lookup.ranges, every=lookup.every)

    def selection(self) -> FileSelection:
        """Return the files and rows that may match according to the lookups made so far."""
        selection = None if self._root is None else self._root.selection()
        return FileSelection(self._manifest.live) if selection is None else selection  # of live files alone

    def take_blooms(self, table: IndexTable, filters: pa.Table) -> None:
        """Rule out row groups with ``filters``, the rows of the Bloom filter table ``table`` for the other files."""
        by_file: dict[int, dict[int, bytes]] = {}
        payloads = filters.column("payload")
        for position, key in enumerate(filters.column("key").to_pylist()):
            file, group = int.from_bytes(key[:8], "big"), int.from_bytes(key[8:12], "big") - 1
            by_file.setdefault(file, {})[group] = payloads[position].as_py()
        for probe in self._blooms:
            if probe.table == table:
                probe.result = self._without_absent(probe.keys, by_file)

    def _without_absent(self, keys: Sequence[bytes], filters: Mapping[int, Mapping[int, bytes]]) -> FileSelection:
        dropped: list[int] = []
        plans: dict[int, AccessPlan] = {}
        for file, by_group in filters.items():
            absent = [group for group, bits in by_group.items() if not any(may_hold(bits, key) for key in keys)]
            if -1 in absent:
                dropped.append(file)
            elif absent:
                plans[file] = ~AccessPlan.row_groups(absent)
        return FileSelection(self._manifest.live - RowRanges.from_rows(sorted(dropped)), plans)

    def report(self) -> tuple[str, ...]:
        """Return lines for ``explain()`` that say how many files and rows each table did not rule out."""
        lines: dict[str, None] = {}
        total = self._manifest.live.num_rows
        for lookup in _due_lookups(self._root):
            if lookup.result is None:
                why = "it would take more than LimitOptions.max_postings, or is damaged"
                lines[
                    f"{lookup.table}: not used, {why if lookup.is_asked else 'the answers of other tables are enough'}"
                ] = None
                continue
            rows = "" if lookup.result.num_rows is None else f", {counted(lookup.result.num_rows, 'row')}"
            lines[f"{lookup.table}: {lookup.result.selection.files.num_rows} of {counted(total, 'file')}{rows}"] = None
        for probe in self._blooms:
            if probe.result is None:
                why = "no files are left for it, or more than LimitOptions.files_ahead"
                lines[f"{probe.table}: not used, {why}"] = None
            else:
                lines[f"{probe.table}: {probe.result.files.num_rows} of {counted(total, 'file')}"] = None
        return tuple(lines)

    def _reads(self, table: IndexTable, lookups: Sequence[_Lookup]) -> Reads:
        ranges = lookups[0].ranges
        if len(lookups) > 1:
            ranges = merged_ranges([wanted for lookup in lookups for wanted in lookup.ranges])
        if table.kind != "bounds":
            limit = self._read.runtime.options.limits.max_postings
            return self._read.segments(table, SegmentQuery(ranges, limit=limit), tolerant=True)
        # intervals that begin below the end of the ranges, and end above their beginning
        below, least = [KeyRange(b"", ranges[-1].high)], ("max", ranges[0].low)
        return self._read.segments(table, SegmentQuery(below, at_least=least), tolerant=True)

    def _disjunction(self, args: Iterable[_Node | _Wanted | None]) -> _Node | None:
        """Return the lookups for rows where any of the ``args`` is true; None if no lookup can rule out rows."""
        nodes = [self._conjunction([arg]) for arg in args]
        if None in nodes:
            return None
        possible = tuple([node for node in nodes if node is not None and not isinstance(node, _NoRows)])
        return _Combined(True, possible) if possible else _NoRows()

    def _conjunction(self, args: Iterable[_Node | _Wanted | None]) -> _Node | None:
        """Return the lookups for rows where all of the conditions ``args`` are true; None if no lookup can rule out
        rows. The key ranges of one column are intersected first."""
        nodes: list[_Node] = []
        by_column: dict[str, Ranges] = {}
        for arg in args:
            if isinstance(arg, _Wanted):
                self._add_atom(nodes, arg, by_column)
            elif arg is not None:
                nodes.append(arg)
        for column, ranges in by_column.items():
            self._add_ranges(nodes, self._manifest.tables_by_column.get(column, ()), ranges)
        for table in self._manifest.composite_tables if by_column else ():
            types = [self._manifest.indexed_types[column] for column in table.columns]
            if table.kind == "keys" and None not in types:
                composite = composite_ranges([by_column.get(column) for column in table.columns], types)
                if composite is not None:
                    nodes.append(self._lookup(table, composite) if composite else _NoRows())
        for node in nodes:
            if isinstance(node, _NoRows) or len(nodes) == 1:
                return node
        return _Combined(False, tuple(nodes)) if nodes else None

    def _add_atom(self, nodes: list[_Node], wanted: _Wanted, by_column: dict[str, Ranges]) -> None:
        """Add the lookups for one comparison to ``nodes``, and the key ranges of its column to ``by_column``."""
        atom, truth = wanted
        column = atom.column
        type_ = None if column is None else self._manifest.indexed_types.get(column)
        if column is None or type_ is None:  # no table over the column
            return
        tables, ranges = self._manifest.tables_by_column.get(column, ()), atom_ranges(atom, truth, type_)
        # two elements of one list may be in two ranges, so ranges of lists are not intersected
        if ranges is not None and element_type(type_) is not None:
            self._add_ranges(nodes, tables, ranges)
        elif ranges is not None:
            known = by_column.get(column)
            by_column[column] = ranges if known is None else intersected(known, ranges)
        for table in tables:
            if table.kind == "ngram":
                grams = needed_ngrams(atom, truth, int(dict(table.options)["n"]))
                if grams:
                    nodes.append(self._lookup(table, _points(VALUE_TAG + gram for gram in grams), every=True))
            elif table.kind == "text" and (tokens := needed_tokens(atom, truth)):
                options = dict(table.options)
                if (options.get("tokenizer"), options.get("version")) == (TOKENIZER, TOKENIZER_VERSION):
                    keys = _points(text_key(token.encode()) for token in tokens)
                    nodes.append(self._lookup(table, keys, every=True))

    def _add_ranges(self, nodes: list[_Node], tables: Sequence[IndexTable], ranges: Ranges) -> None:
        """Add the lookups of one column's ranges to ``nodes``.

        For single keys, "keys" tables are enough: sets and bounds are read only if there are too many postings.
        """
        if not ranges and tables:
            nodes.append(_NoRows())
            return
        wide = is_wide(ranges)
        lookups = [
            self._lookup(table, ranges)
            for kind in ("keys", "set", "bounds")
            for table in tables
            if table.kind == kind and (kind == "bounds" or not wide)
        ]
        points = lookups[0].points if lookups else point_keys(ranges)
        if points is not None and lookups and lookups[0].table.kind == "keys":
            nodes.append(_FirstAnswer(tuple(lookups)))
            return
        nodes += lookups
        for table in tables:
            if table.kind == "bloom" and points and all(key.startswith(VALUE_TAG) for key in points):
                probe = _BloomProbe(table, points)
                self._blooms.append(probe)
                nodes.append(probe)

    def _lookup(self, table: IndexTable, ranges: Ranges, *, every: bool = False) -> _Lookup:
        """Return the lookup of ``ranges`` in ``table``; equal arguments return the same object."""
        lookup = self._lookups.get((table, ranges, every))
        if lookup is None:
            lookup = self._lookups[table, ranges, every] = _Lookup(table, ranges, point_keys(ranges), every)
        return lookup


def _due_lookups(node: _Node | None) -> Sequence[_Lookup]:
    """Return the lookups in the tree ``node`` that were made or are due now, in the predicate's order, each once."""
    if isinstance(node, _Lookup):
        return (node,)
    if isinstance(node, _FirstAnswer):
        return node.due
    if isinstance(node, _Combined):
        return list(dict.fromkeys([lookup for arg in node.args for lookup in _due_lookups(arg)]))
    return ()


def _probes(node: _Node | None) -> Iterator[_BloomProbe]:
    if isinstance(node, _BloomProbe):
        yield node
    elif isinstance(node, _Combined):
        for arg in node.args:
            yield from _probes(arg)


def _points(keys: Iterable[bytes]) -> Ranges:
    return tuple(KeyRange.point(key) for key in sorted(set(keys)))


@dataclass(slots=True)
class OpenIndex:
    """An index that a dataset has open: its backend and the newest known snapshot.

    Attributes:
        head: the newest known snapshot.
        max_age_s: a read may use a snapshot that was the newest so many seconds ago; 0: each read checks.
        checked: a newer snapshot was looked for at least once.
        begun: number of the snapshot whose tables by file were loaded into memory.
    """

    backend: IndexBackend  # holds the index
    head: Head
    max_age_s: float = 0.0
    checked: bool = False
    begun: int = 0

    @property
    def manifest(self) -> Manifest:
        """The newest known snapshot."""
        return self.head.manifest

    @property
    def is_fresh(self) -> bool:
        """Whether reads may use the snapshot without looking for a newer one."""
        return self.checked and time.monotonic() - self.head.checked_at < self.max_age_s

    async def advance(self, operation: Operation) -> None:
        """Look for a newer snapshot, at the same time as the other requests of a read."""
        part = operation.part(self.backend.description, 0)
        try:
            await self.head.advance(part)
        finally:
            operation.metrics.add_part(part.metrics)
        self.checked = True

    async def renew(self, used: Manifest, operation: Operation) -> None:
        """Load the newest snapshot, because a segment of the snapshot ``used`` was vacuumed; do nothing if a newer
        one than ``used`` is loaded already. Raises StaleSnapshotError if there is none."""
        if self.manifest is used:
            await together(operation, [self.head.reload])

    @property
    def description(self) -> str:
        """The index and its snapshot, for messages."""
        manifest = self.manifest
        as_of = manifest.as_of or manifest.created
        return f"index at {self.backend.description}, snapshot {manifest.snapshot} of {as_of:%Y-%m-%d %H:%M:%S %Z}"

    def as_dict(self) -> dict[str, Any]:
        """Return the index and its snapshot as JSON values."""
        manifest = self.manifest
        return {
            "at": self.backend.description,
            "description": self.description,
            "snapshot": manifest.snapshot,
            "as_of": (manifest.as_of or manifest.created).isoformat(),
            "files": manifest.num_files,
            "bytes": sum(segment.size for segment in manifest.segments),
            "tables": [str(table) for table in manifest.tables],
        }


@dataclass(frozen=True, slots=True)
class IndexAnswer:
    """The files and rows that may match one predicate, according to the index and to the caller's own indexes."""

    selection: FileSelection | None  # files by id; None if there is no index
    query: IndexQuery | None  # the search that found the selection; None if there is no index or no predicate
    own: Sequence[FileSlices]  # answers of the caller's own indexes

    def report(self) -> tuple[str, ...]:
        """Return lines for ``explain()``: what all tables, and the caller's own indexes, ruled out."""
        own = [
            f"of your own: {counted(len(slices.files), 'file')} named{', exactly' if slices.exact else ''}, others "
            f"{slices.others}"
            for slices in self.own
        ]
        return (*(() if self.query is None else self.query.report()), *own)


async def answer(
    read: SnapshotRead | None, index: OpenIndex | None, own: Sequence[FileIndex], ask: ScanRequest
) -> IndexAnswer:
    """Return the files that may match a request, according to an index's snapshot and the caller's own indexes.

    If the request has no predicate, or names rows by number, all files may match.
    """
    where = ask.simple_pruning if ask.by_file is None else None
    if where is None:
        return IndexAnswer(None if read is None else FileSelection(read.manifest.live), None, ())
    if not own:
        return IndexAnswer(*await _ask_index(read, index, where), ())
    work: list[Awaitable[Any]] = [_ask_index(read, index, where)]
    (selection, query), *theirs = await results_of([*work, *(other.prune(where) for other in own)])
    return IndexAnswer(selection, query, theirs)


async def _ask_index(
    read: SnapshotRead | None, index: OpenIndex | None, where: Expression
) -> tuple[FileSelection | None, IndexQuery | None]:
    if index is None or read is None:
        return None, None
    query = IndexQuery(read, where)
    beside = None
    if index.begun != read.manifest.snapshot:
        most = read.runtime.options.requests.whole_segment_bytes
        segments = [segment for table in query.first_tables for segment in read.manifest.segments_of(table)]
        beside = first_reads(read, whole=all(comes_whole(segment, most) for segment in segments))
    index.begun = read.manifest.snapshot
    return await query.run(beside), query


async def read_details(
    read: SnapshotRead, ids: Sequence[int], footers: FooterReader, query: IndexQuery | None, others: Sequence[Read] = ()
) -> list[pa.Table | None]:
    """Read the footers and Bloom filters of the files ``ids`` in one round of requests, together with the reads
    ``others``; return the results of ``others``. Footers are put into ``footers``, Bloom filters into ``query``. For
    few files only."""
    footer_reads = footers.reads(ids)
    bloom_tables = () if query is None else query.bloom_tables
    blooms = [
        read.segments(table, SegmentQuery(id_ranges(RowRanges.from_rows(ids))), tolerant=True) for table in bloom_tables
    ]
    reads = [*others, *chain.from_iterable(kind_reads for _, kind_reads in footer_reads), *chain.from_iterable(blooms)]
    if not reads:
        return []
    results = iter(await together(read.operation, reads))
    given = [next(results) for _ in others]
    for kind, kind_reads in footer_reads:
        footers.take(kind, [next(results) for _ in kind_reads])
    for table, table_reads in zip(bloom_tables, blooms, strict=True):
        for _ in table_reads:
            if query is not None and (filters := next(results)) is not None:
                await worked(read.runtime, filters.num_rows, partial(query.take_blooms, table, filters))
    return given
