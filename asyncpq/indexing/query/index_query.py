"""From a predicate to the files, row groups and rows that may match, by all parts of an index that can say something.

A predicate is followed by its three results, as pruning does (:func:`asyncpq.pruning.zones.rows_where`): what is asked
of a column are the keys of the rows for which an atom may have the result wanted. All parts are asked at once; bloom
filters, which are kept by file, once few files are left.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from asyncpq.datasets.file_statistics import type_of
from asyncpq.events import Operation
from asyncpq.expressions import (
    Atom,
    Expression,
)
from asyncpq.expressions.analysis import Truth, follow
from asyncpq.expressions.tokens import TOKENIZER, TOKENIZER_VERSION
from asyncpq.indexing.blooms import may_hold
from asyncpq.indexing.key_encoding import element_type, text_key
from asyncpq.indexing.model import NAN_KEY, VALUE_TAG, IndexBackend, IndexTable, KeyRange
from asyncpq.indexing.query.file_selection import FileSelection, Found, found_rows
from asyncpq.indexing.query.key_ranges import Ranges, atom_ranges, composite_ranges, merged_ranges, point_keys
from asyncpq.indexing.query.segment_reads import Listed, Reads, segment_reads, table_rows, together, tolerant, worked
from asyncpq.indexing.text_keys import needed_ngrams, needed_tokens
from asyncpq.objects.runtime import Runtime
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges


class Asked(Listed, Protocol):
    """What of a manifest it takes to answer (:class:`asyncpq.indexing.manifest.manifest.Manifest`)."""

    @property
    def tables(self) -> tuple[IndexTable, ...]: ...

    @property
    def schema(self) -> pa.Schema: ...


# -- what is asked --------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class _Question:
    """Which rows of a part have keys in ``ranges``; with ``every``, the files and rows that are found in each of them.

    Attributes:
        found: the answer; None before, and where the part cannot say.
        asked: whether it was.
    """

    table: IndexTable
    ranges: Ranges
    every: bool = False
    found: Found | None = None
    asked: bool = False

    def selection(self) -> FileSelection | None:
        return None if self.found is None else self.found.selection


@dataclass(slots=True, eq=False)
class _Bloom:
    """Whether any of ``keys`` may be in a row group."""

    table: IndexTable
    keys: tuple[bytes, ...]
    found: FileSelection | None = None

    def selection(self) -> FileSelection | None:
        return self.found


@dataclass(slots=True, eq=False)
class _Joined:
    """The rows that all of ``args`` give, or with ``either`` any."""

    either: bool
    args: tuple[_Node, ...]

    def selection(self) -> FileSelection | None:
        found: FileSelection | None = None
        for arg in self.args:
            some = arg.selection()
            if some is None:
                if self.either:
                    return None
            elif found is None:
                found = some
            else:
                found = found | some if self.either else found & some
        return found


@dataclass(slots=True, eq=False)
class _FirstOf:
    """What the first of ``questions`` finds that can answer: those behind it would say no more."""

    questions: tuple[_Question, ...]

    def selection(self) -> FileSelection | None:
        return next((found for one in self.questions if (found := one.selection()) is not None), None)

    @property
    def next(self) -> tuple[_Question, ...]:
        """Those that were asked, and the one to be asked if none of them could answer."""
        asked = [one.asked for one in self.questions]
        if False not in asked or self.selection() is not None:
            return tuple(one for one in self.questions if one.asked)
        return self.questions[: asked.index(False) + 1]


@dataclass(slots=True, eq=False)
class _Nowhere:
    """No row."""

    def selection(self) -> FileSelection | None:
        return FileSelection.none()


_Node = _Question | _Bloom | _Joined | _FirstOf | _Nowhere


class _Wanted(NamedTuple):
    """An atom, and the result that it should have."""

    atom: Atom
    truth: Truth


class IndexQuery:
    """One predicate, asked of the parts of one snapshot.

    Args:
        where: over the dataset's columns, simplified, relative times resolved.
        max_postings: a question that would read more entries of one segment is not answered.
    """

    def __init__(self, manifest: Asked, where: Expression, *, max_postings: int) -> None:
        self._manifest = manifest
        self._max_postings = max_postings
        self._made: dict[tuple[IndexTable, Ranges, bool], _Question] = {}
        self._by_column: dict[str, list[IndexTable]] = {}
        self._composites: list[IndexTable] = []
        for index_table in manifest.tables:
            if len(index_table.columns) == 1:
                self._by_column.setdefault(index_table.columns[0], []).append(index_table)
            elif index_table.columns:
                self._composites.append(index_table)
        self._root = self._node(where)

    @property
    def tables(self) -> list[IndexTable]:
        """Those that are asked first."""
        return list(dict.fromkeys(question.table for question in self._questions))

    @property
    def bloom_parts(self) -> list[IndexTable]:
        """Those that may rule out more, once few files are left."""
        return list(dict.fromkeys(bloom.table for bloom in self._blooms))

    async def ask(
        self, runtime: Runtime, backend: IndexBackend, operation: Operation, beside: Reads | None = None
    ) -> FileSelection:
        """One step, in which all parts are asked at once; another where one has too much to say, and others less.

        Args:
            beside: reads that run along, for what they leave in memory.

        Raises:
            StaleSnapshotError: a segment is not there any more.
        """
        while questions := [one for one in self._questions if not one.asked]:
            await self._ask(runtime, questions, backend, operation, beside)
            beside = None
        if beside:
            await together(operation, beside)
        return self.selection()

    @property
    def _questions(self) -> list[_Question]:
        return list(dict.fromkeys(one for one in _leaves(self._root) if isinstance(one, _Question)))

    @property
    def _blooms(self) -> list[_Bloom]:
        return [one for one in _leaves(self._root) if isinstance(one, _Bloom)]

    async def _ask(
        self,
        runtime: Runtime,
        asked: Sequence[_Question],
        backend: IndexBackend,
        operation: Operation,
        beside: Reads | None,
    ) -> None:
        groups: dict[tuple[Any, ...], list[_Question]] = {}
        for question in asked:
            question.asked = True
            # what reads much is not asked together with what reads little: the limit is for each
            alone = () if point_keys(question.ranges) is not None else question.ranges
            groups.setdefault((question.table, alone), []).append(question)
        reads = [self._reads(backend, index_table, questions) for (index_table, _), questions in groups.items()]
        tables = iter(await together(operation, [*(read for some in reads for read in some), *(beside or ())]))
        for some, ((index_table, _), questions) in zip(reads, groups.items(), strict=True):
            given = [next(tables) for _ in some]
            num_rows = sum(table.num_rows for table in given if table is not None)
            await worked(runtime, num_rows, partial(self._take, index_table, given, questions))

    def _take(self, index_table: IndexTable, tables: Sequence[pa.Table | None], questions: Sequence[_Question]) -> None:
        rows = table_rows(self._manifest, index_table, tables)
        for question in questions:
            if rows is not None:
                question.found = found_rows(index_table, rows, question.ranges, every=question.every)

    def selection(self) -> FileSelection:
        """What is known so far."""
        live = FileSelection(self._manifest.live)
        found = None if self._root is None else self._root.selection()
        return live if found is None else found.only(live.files)

    def take_blooms(self, index_table: IndexTable, table: pa.Table) -> None:
        """Rows of a "bloom" part, of the files that are left."""
        filters: dict[int, dict[int, bytes]] = {}
        payloads = table.column("payload")
        for at, key in enumerate(table.column("key").to_pylist()):
            file, group = int.from_bytes(key[:8], "big"), int.from_bytes(key[8:12], "big") - 1
            filters.setdefault(file, {})[group] = payloads[at].as_py()
        for bloom in self._blooms:
            if bloom.table == index_table:
                bloom.found = self._ruled_out(bloom.keys, filters)

    def _ruled_out(self, keys: Sequence[bytes], filters: Mapping[int, Mapping[int, bytes]]) -> FileSelection:
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
        """What each part left."""
        lines: dict[str, None] = {}
        total = self._manifest.live.num_rows
        both: list[_Question | _Bloom] = [*self._questions, *self._blooms]
        for asked in both:
            found = asked.selection()
            if found is None:
                if isinstance(asked, _Bloom):
                    why = "no files are left for it, or more than LimitOptions.files_ahead"
                elif asked.asked:
                    why = "it would take more than LimitOptions.max_postings, or is damaged"
                else:
                    why = "others say as much"
                lines[f"{asked.table}: not used, {why}"] = None
                continue
            rows = asked.found.rows if isinstance(asked, _Question) and asked.found is not None else None
            text = f"{asked.table}: {found.files.num_rows} of {total} files"
            lines[text if rows is None else f"{text}, {rows} rows"] = None
        return tuple(lines)

    def _reads(self, backend: IndexBackend, index_table: IndexTable, questions: Sequence[_Question]) -> Reads:
        ranges = merged_ranges(one for question in questions for one in question.ranges)
        if index_table.kind != "bounds":
            limit = self._max_postings
            return tolerant(index_table, segment_reads(self._manifest, backend, index_table, ranges, limit=limit))
        # zones that begin below the end of what is asked, and end above its beginning
        whole = [KeyRange(b"", ranges[-1].high)]
        return tolerant(
            index_table, segment_reads(self._manifest, backend, index_table, whole, at_least=("max", ranges[0].low))
        )

    # -- from the predicate to questions ----------------------------------------------------------

    def _node(self, expr: Expression) -> _Node | None:
        """The questions that tell where ``expr`` may be true; None where it may be true everywhere."""
        return self._conjunction([follow(expr, Truth.TRUE, _Wanted, self._conjunction, self._disjunction)])

    def _disjunction(self, index_tables: Iterable[_Node | _Wanted | None]) -> _Node | None:
        """Where one of the parts holds."""
        nodes = [self._conjunction([index_table]) for index_table in index_tables]
        if None in nodes:
            return None
        possible = tuple([node for node in nodes if node is not None and not isinstance(node, _Nowhere)])
        return _Joined(True, possible) if possible else _Nowhere()

    def _conjunction(self, index_tables: Iterable[_Node | _Wanted | None]) -> _Node | None:
        """Where all of the parts hold: what they say of one column is asked together."""
        nodes: list[_Node] = []
        by_column: dict[str, Ranges] = {}
        for known in index_tables:
            if isinstance(known, _Wanted):
                nodes.extend(self._atom(known.atom, known.truth, by_column))
            elif known is not None:
                nodes.append(known)
        for column, ranges in by_column.items():
            nodes.extend(self._of_ranges(self._by_column.get(column, ()), ranges))
        for index_table in self._composites:
            types = [type_of(self._manifest.schema, column) for column in index_table.columns]
            if index_table.kind == "keys" and None not in types:
                found = composite_ranges([by_column.get(column) for column in index_table.columns], types)
                if found is not None:
                    nodes.append(self._question(index_table, found) if found else _Nowhere())
        for node in nodes:
            if isinstance(node, _Nowhere) or len(nodes) == 1:
                return node
        return _Joined(False, tuple(nodes)) if nodes else None

    def _atom(self, atom: Atom, truth: Truth, by_column: dict[str, Ranges]) -> Iterable[_Node]:
        """What is asked about one atom alone; ranges of its column's values are added to ``by_column``."""
        column = atom.column
        type_ = None if column is None else type_of(self._manifest.schema, column)
        if column is None or type_ is None:
            return
        ranges = atom_ranges(atom, truth, type_)
        # two elements of one list may be in two ranges
        if ranges is not None and element_type(type_) is not None:
            yield from self._of_ranges(self._by_column.get(column, ()), ranges)
        elif ranges is not None:
            known = by_column.get(column)
            by_column[column] = ranges if known is None else intersected(known, ranges)
        for index_table in self._by_column.get(column, ()):
            if index_table.kind == "ngram":
                grams = needed_ngrams(atom, truth, int(dict(index_table.options)["n"]))
                if grams:
                    yield self._question(index_table, _points(VALUE_TAG + gram for gram in grams), every=True)
            elif index_table.kind == "text" and (tokens := needed_tokens(atom, truth)):
                options = dict(index_table.options)
                if (options.get("tokenizer"), options.get("version")) == (TOKENIZER, TOKENIZER_VERSION):
                    yield self._question(index_table, _points(text_key(token.encode()) for token in tokens), every=True)

    def _of_ranges(self, index_tables: Sequence[IndexTable], ranges: Ranges) -> Iterable[_Node]:
        """What the parts of one column say of keys.

        Of single keys, postings say all that sets and bounds do: those are read only where there are too many.
        """
        if not ranges and index_tables:
            yield _Nowhere()
            return
        keys, wide = point_keys(ranges), _is_wide(ranges)
        asked = {
            index_table: self._question(index_table, ranges)
            for index_table in index_tables
            if index_table.kind == "keys" and not wide
        }
        asked |= {
            index_table: self._question(index_table, ranges)
            for index_table in index_tables
            if index_table.kind == "set" and not wide
        }
        asked |= {
            index_table: self._question(index_table, ranges)
            for index_table in index_tables
            if index_table.kind == "bounds"
        }
        if keys is not None and any(index_table.kind == "keys" for index_table in asked):
            yield _FirstOf(tuple(asked.values()))
            return
        yield from asked.values()
        for index_table in index_tables:
            if index_table.kind == "bloom" and keys and all(key.startswith(VALUE_TAG) for key in keys):
                yield _Bloom(index_table, keys)

    def _question(self, index_table: IndexTable, ranges: Ranges, *, every: bool = False) -> _Question:
        return self._made.setdefault((index_table, ranges, every), _Question(index_table, ranges, every))


def _leaves(node: _Node | None) -> Iterator[_Node]:
    """What is asked, in the order of the predicate."""
    if isinstance(node, _Joined):
        for arg in node.args:
            yield from _leaves(arg)
    elif isinstance(node, _FirstOf):
        yield from node.next
    elif node is not None:
        yield node


def _is_wide(ranges: Ranges) -> bool:
    """Whether they leave values out, rather than name some: nearly all entries would be read."""
    begins = any(low <= VALUE_TAG and (high is None or high > VALUE_TAG) for low, high in ranges)
    return begins and any(low < NAN_KEY and (high is None or high >= NAN_KEY) for low, high in ranges)


def _points(keys: Iterable[bytes]) -> Ranges:
    return tuple(KeyRange.point(key) for key in sorted(set(keys)))


def intersected(left: Ranges, right: Ranges) -> Ranges:
    """Keys that are in both: ascending, apart, as both are."""
    found: list[KeyRange] = []
    mine, its = 0, 0
    while mine < len(left) and its < len(right):
        one, other = left[mine], right[its]
        low = max(one.low, other.low)
        high = one.high if other.high is None else other.high if one.high is None else min(one.high, other.high)
        if high is None or low < high:
            found.append(KeyRange(low, high))
        if other.high is None or (one.high is not None and one.high < other.high):
            mine += 1
        else:
            its += 1
    return tuple(found)
