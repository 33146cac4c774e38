"""The tasks of a join by keys: read batches of the left, look up their keys in the dataset, yield joined rows.

All tasks read the same versions of files. Those of a process open the dataset once, from the snapshot of an index or
from the files that were planned. Many keys become one predicate that prunes files, pages and index entries. It may
match other rows: the rows are matched in Arrow, where null equals nothing, NaN equals NaN, and -0.0 equals 0.0.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any, Final, Literal, NamedTuple, Protocol, Required, TypeAlias, TypedDict
from weakref import WeakKeyDictionary

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.dataset import state_of
from asyncpq.datasets.dataset_files import DatasetFiles, DatasetState
from asyncpq.datasets.model import DataFile
from asyncpq.datasets.opened_file import OpenedFile
from asyncpq.datasets.providers import FileProvider, FileSet, GivenFiles, WrappedFiles
from asyncpq.decoding.arrow import take
from asyncpq.distributed.scan_tasks import TaskScan, columns_of, task_data_files, task_stream
from asyncpq.distributed.worker_sessions import batches_on_worker, plan_again_hint
from asyncpq.errors import RowIndexError
from asyncpq.events import Operation
from asyncpq.expressions import And, Comparison, Expression, KeyIn, Or, col, columns, simplify
from asyncpq.expressions.scalars import NANOSECONDS, Scalar, Timestamp, as_scalar, as_scalars
from asyncpq.indexing.commits import Head
from asyncpq.indexing.index import Index
from asyncpq.indexing.query.index_query import OpenIndex
from asyncpq.indexing.query.indexed_files import IndexedFiles
from asyncpq.objects.runtime import runtime_of
from asyncpq.scan.request import ScanRequest
from asyncpq.scan.stream import RecordBatchStream
from asyncpq.session import Session

#: Maximum rows of the dataset in one batch of a join.
_LOOKUP_ROWS: Final = 65_536
#: Keys match a few rows in each of many files: these are combined to batches of so many rows.
_COMBINED_ROWS: Final = 8192
_KEPT: Final = 8  # open datasets of a session


class FileWrapper(Protocol):
    """Returns a provider with an engine's own partition values. Picklable."""

    def __call__(self, source: FileProvider, *, typed: bool) -> FileProvider:
        """``typed``: the files of ``source`` have the engine's values already."""


@dataclass(frozen=True, kw_only=True)
class PinnedFiles:
    """The file versions that a join reads: those of an index snapshot, or of ``splits``. Picklable.

    Attributes:
        token: unique name of this pin.
        scan: columns, without duplicates, and how they are read.
        again: how to plan again, for hints of errors.
        target, options: the dataset of the index.
        index, snapshot: url of an index, and number of its snapshot.
        root: url of the indexed folder if the index prunes splits; None if the index lists the files.
        wrap: gives files the engine's own partition values; None for asyncpq's.
        splits: the files, encoded.
    """

    token: str
    scan: TaskScan
    again: str
    target: Any = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    index: str | None = None
    snapshot: int = 0
    root: str | None = None
    wrap: FileWrapper | None = None
    splits: tuple[bytes, ...] = ()

    async def lookup(self, predicate: KeyPredicate, session: Session) -> RecordBatchStream:
        """Scan the rows that match a key predicate; return a stream of batches of the engine's types."""
        return key_stream(self.scan, await opened(session, self), predicate)


class _Opened(NamedTuple):
    state: DatasetState
    handle: Index | None = None


_datasets: WeakKeyDictionary[Session, OrderedDict[str, _Opened]] = WeakKeyDictionary()


async def opened(session: Session, pinned: PinnedFiles) -> DatasetState:
    """Open the dataset of the pinned files, once in a session. StaleSnapshotError if the index snapshot was removed."""
    known = _datasets.setdefault(session, OrderedDict())
    dataset = known.get(pinned.token)
    if dataset is None:
        lists = pinned.index is not None and pinned.root is None
        load = partial(_from_index if lists else _from_files, session, pinned)
        dataset = await runtime_of(session).flights.run(("pinned dataset", pinned.token), load)
        known[pinned.token] = dataset
    known.move_to_end(pinned.token)
    while len(known) > _KEPT:
        _, (_, index) = known.popitem(last=False)
        if index is not None:
            runtime_of(session).unregister(index.backend)
            await index.backend.close()
    return dataset.state


async def _from_index(session: Session, pinned: PinnedFiles) -> _Opened:
    assert pinned.index is not None, "without splits, an index lists the files"
    index = await session.open_index(pinned.index, snapshot=pinned.snapshot)
    target = list(pinned.target) if isinstance(pinned.target, tuple) else pinned.target
    dataset = await session.open_dataset(target, index=index, view="snapshot", **pinned.options)
    files, wrap = state_of(dataset).source, pinned.wrap
    source = _PinnedProvider(files if wrap is None else wrap(files, typed=False))
    columns, unifier = columns_of(pinned.scan), pinned.scan.unifier
    return _Opened(replace(state_of(dataset), source=source, unifier=unifier, columns=columns), index)


async def _from_files(session: Session, pinned: PinnedFiles) -> _Opened:
    runtime, files, scan = runtime_of(session), list[DataFile](), pinned.scan
    for split in pinned.splits:
        # keys need the file's whole page index
        files += await task_data_files(session, scan, split)
    handle: Index | None = None
    source: FileProvider = GivenFiles(files)
    if pinned.index is not None:
        # the index tells which rows of a file may match, so the splits of a file become one file
        whole = {file.url: replace(file, entry=None) for file in files}
        handle = await session.open_index(pinned.index, snapshot=pinned.snapshot)
        head = Head(handle.backend, handle.manifest, root=pinned.root, pinned=True)
        source = IndexedFiles(runtime, GivenFiles(list(whole.values())), OpenIndex(handle.backend, head))
        if pinned.wrap is not None:
            source = pinned.wrap(source, typed=True)
    columns, unifier = columns_of(scan), scan.unifier
    state = DatasetState(runtime, scan.url, _PinnedProvider(source), columns, skips=False, unifier=unifier)
    return _Opened(state, handle)


class _PinnedProvider(WrappedFiles):
    """A provider of the files of ``source`` with pinned versions: reads of replaced files fail."""

    known: FileSet | None = None

    def __init__(self, source: FileProvider) -> None:
        super().__init__(source)
        self._given: Sequence[DataFile] = ()
        self._files: Sequence[DataFile] = ()

    @property
    def bounded(self) -> frozenset[str]:
        """Names of the columns for which the index has bounds of each file; empty if no index is used."""
        index = self.index
        tables = () if index is None else index.manifest.tables
        return frozenset(table.columns[0] for table in tables if table.kind == "bounds")

    async def files(
        self, ask: ScanRequest, operation: Operation, *, scan: bool = True, allow_stale: bool = False
    ) -> FileSet:
        listing = await self.source.files(ask, operation, scan=scan)
        if listing.files is not self._given:  # keeps the identity of the list, by which results are cached
            self._given = listing.files
            # bytes in memory are in no store, so nothing replaces them
            self._files = [replace(file, pinned=file.content is None) for file in listing.files]
        return listing._replace(files=self._files)


class KeyRequests:
    """The requests for each file of a join (:class:`asyncpq.datasets.dataset_files.FileRequests`).

    Rows that an index lists are read without a filter. The join matches these rows once for all files, where a filter
    would need all keys for each file.
    """

    def __init__(self, state: DatasetState, ask: ScanRequest, scan: TaskScan) -> None:
        bounded = state.source.bounded if isinstance(state.source, _PinnedProvider) else frozenset()
        self._ask = ask
        self._requests = scan.requests(state, ask)
        self._has_bounds = ask.where is not None and bounded.issuperset(columns(ask.where))

    def accept(self, opened: OpenedFile) -> None:
        self._requests.accept(opened)

    def request(self, opened: OpenedFile) -> ScanRequest:
        if _names_rows(opened):
            return self._ask._replace(where=None, prune=None)
        return self._requests.request(opened)

    async def may_match(self, opened: OpenedFile) -> bool:
        if _names_rows(opened) or (self._has_bounds and opened.file.entry is not None):
            return True  # otherwise the index had excluded it
        return await self._requests.may_match(opened)


def key_stream(
    scan: TaskScan, state: DatasetState, predicate: KeyPredicate, *, ordered: bool = True
) -> RecordBatchStream:
    """Return a stream of batches of the engine's types, of the rows that match a key predicate."""
    request = key_request(scan, predicate)
    operation = state.runtime.operation("scan", scan.url)
    requests = KeyRequests(state, request, scan)
    files = DatasetFiles(state, request, operation, scan=True, ordered=ordered, requests=requests)
    return task_stream(scan, state, operation, files, batch_size=_LOOKUP_ROWS, combine_rows=_COMBINED_ROWS)


def _names_rows(opened: OpenedFile) -> bool:
    """Return whether an index lists the matching rows of the file, not only its row groups."""
    entry = opened.file.entry
    if entry is None or entry.access.is_all:
        return False
    try:
        return not entry.access.resolve([group.num_rows for group in opened.version.metadata.row_groups]).scanned
    except RowIndexError:
        return False  # the entry is not used


# -- predicates of keys ---------------------------------------------------------------------------


#: How keys come: as values of the dataset's type, or as doubles to which the dataset's integers are rounded.
KeyForm: TypeAlias = Literal["value", "rounded"]


def _is_bytes(dtype: pa.DataType) -> bool:
    """Return whether asyncpq compares values of this type as bytes, not as text."""
    return bool(pa.types.is_binary(dtype) or pa.types.is_large_binary(dtype) or pa.types.is_fixed_size_binary(dtype))


#: Maximum number of keys of several columns in one predicate.
MOST_TUPLES: Final = 256

# Later times share one predicate, since Python lacks values for some; so do times before JoinKey.first_time.
_LAST_TIME: Final = dt.datetime(9999, 12, 29)
_EPOCH: Final = dt.datetime(1970, 1, 1)
_WHOLE: Final = 1 << 53  # smaller integers are exact as doubles


class KeyPredicate(NamedTuple):
    """A predicate that reads all rows with one of some keys."""

    where: Expression  # true for all rows with one of the keys, and perhaps for others
    prune: Expression | None = None  # a stricter predicate to prune by


def key_request(scan: TaskScan, predicate: KeyPredicate) -> ScanRequest:
    """Return the request for the columns of ``scan`` in all rows that ``predicate`` reads."""
    return ScanRequest(columns=scan.columns, where=predicate.where, prune=predicate.prune)


@dataclass(frozen=True, kw_only=True)
class JoinKey:
    """A key column of a join.

    Attributes:
        name: name of the dataset's column.
        stored: its type in the dataset.
        form: "value", or "rounded" for doubles that are compared with the dataset's integers.
        candidates: positions of the left side's columns that hold the key's possible values in the dataset's type; one,
            unless the engine converts the key in several ways.
        place: position of the key among the columns that are read from the dataset.
        type: Arrow type of the key in the engine, unless ``form`` is "rounded": then keys are doubles.
        first_day, first_time: dates and times before these are not compared one by one, since files may have them in
            another calendar: a lookup reads all rows before them.
    """

    name: str
    stored: pa.DataType
    form: KeyForm = "value"
    candidates: tuple[int, ...]
    place: int
    type: pa.DataType
    first_day: dt.date = dt.date(1, 1, 2)
    first_time: dt.datetime = dt.datetime(1, 1, 2)

    @property
    def compared_type(self) -> pa.DataType:
        """The type in which keys compare: rounded keys are compared as doubles."""
        return pa.float64() if self.form == "rounded" else self.type


def predicates(columns: Sequence[JoinKey], keys: Sequence[pa.Array]) -> Iterator[tuple[range, KeyPredicate]]:
    """Yield ranges of positions in ``keys``, each with a predicate for the rows whose key is at one of these positions.

    A predicate matches all these rows, and perhaps rows with other keys. The caller keeps only rows whose key is in the
    range, so that no row is returned twice.

    Args:
        keys: for each column, values of :attr:`JoinKey.compared_type`, without nulls; values at one position form a
            key.
    """
    literals = [_literals(column, values) for column, values in zip(columns, keys, strict=True)]
    if len(columns) == 1:
        yield range(len(keys[0])), KeyPredicate(_any_of(columns[0].name, literals[0]))
        return

    def rows_in(begin: int, stop: int) -> Expression:
        return And(tuple(_any_of(key.name, own[begin:stop]) for key, own in zip(columns, literals, strict=True)))

    for begin in range(0, len(keys[0]), MOST_TUPLES):
        positions = range(begin, min(begin + MOST_TUPLES, len(keys[0])))
        tuples = tuple(rows_in(place, place + 1) for place in positions)
        prune = simplify(tuples[0] if len(tuples) == 1 else Or(tuples))
        yield positions, KeyPredicate(rows_in(positions.start, positions.stop), prune)


def one_predicate(columns: Sequence[JoinKey], keys: Sequence[pa.Array]) -> KeyPredicate:
    """Return one predicate for the rows with any of ``keys``, as :func:`predicates` takes them; it may match others.

    Many keys of several columns become a condition on each column.
    """
    if len(columns) == 1 or len(keys[0]) <= MOST_TUPLES:
        ((_, predicate),) = predicates(columns, keys)
        return predicate
    values = [_literals(column, pc.unique(array)) for column, array in zip(columns, keys, strict=True)]
    return KeyPredicate(And(tuple([_any_of(key.name, own) for key, own in zip(columns, values, strict=True)])))


def bounds_predicate(columns: Sequence[JoinKey], bounds: Sequence[pa.Array]) -> KeyPredicate | None:
    """Return a predicate for the rows between bounds of the keys; None if no literal expresses any of the bounds.

    ``bounds`` are for each column the lower bound and the upper one, of :attr:`JoinKey.compared_type`.
    """
    terms: list[Expression] = []
    for column, array in zip(columns, bounds, strict=True):
        low, high = _literals(column, array)
        if not isinstance(low, Expression):
            terms.append(Comparison(column.name, ">=", low))
        if not isinstance(high, Expression):
            terms.append(Comparison(column.name, "<=", high))
    return KeyPredicate(And(tuple(terms))) if terms else None


def _any_of(name: str, keys: Sequence[Scalar | Expression]) -> Expression:
    """Return the predicate that a column equals one of ``keys``, which are literals, or predicates of their own."""
    values = tuple([key for key in keys if not isinstance(key, Expression)])
    terms: list[Expression] = [col(name) == values[0]] if len(values) == 1 else []
    if len(values) > 1:
        terms.append(KeyIn(name, values))
    terms += dict.fromkeys([key for key in keys if isinstance(key, Expression)])
    return terms[0] if len(terms) == 1 else Or(tuple(terms))


def _literals(column: JoinKey, keys: pa.Array) -> list[Scalar | Expression]:
    """Return for each key its literal, or a predicate if no literal can express the key."""
    dtype = column.stored.value_type if isinstance(column.stored, pa.DictionaryType) else column.stored
    if column.form == "rounded":
        return [_rounded_to(column.name, key) for key in keys.to_pylist()]
    if pa.types.is_floating(dtype):
        nan = col(column.name).is_nan()
        return [nan if key != key else as_scalar(key) for key in keys.to_pylist()]
    if pa.types.is_timestamp(dtype):
        zone = None if dtype.tz is None else dt.UTC
        epoch, first, last = (time.replace(tzinfo=zone) for time in (_EPOCH, column.first_time, _LAST_TIME))
        each = NANOSECONDS[keys.type.unit]
        times = [divmod(key * each, 1000) for key in keys.view(pa.int64()).to_pylist()]
        micros = [number for number, _ in times]
        literals = _times(column.name, micros, epoch, dt.timedelta(microseconds=1), first, last)
        return [
            Timestamp(number * 1000 + rest, dtype.tz) if rest and not isinstance(literal, Expression) else literal
            for literal, (number, rest) in zip(literals, times, strict=True)
        ]
    if pa.types.is_date32(dtype):
        days = keys.view(pa.int32()).to_pylist()
        return _times(column.name, days, _EPOCH.date(), dt.timedelta(days=1), column.first_day, _LAST_TIME.date())
    if pa.types.is_integer(dtype):
        return [as_scalar(int(value)) for value in keys.to_pylist()]
    return list(as_scalars(keys.cast(pa.binary()) if _is_bytes(dtype) else keys))


def _times(
    name: str, keys: Sequence[int], epoch: Any, unit: dt.timedelta, first: Any, last: Any
) -> list[Scalar | Expression]:
    """Return literals of dates or timestamps from numbers of ``unit`` since ``epoch``.

    A key before ``first`` or after ``last``, which Python may not express, becomes a predicate on that side.
    """
    least, most = (first - epoch) // unit, (last - epoch) // unit
    early, late = col(name) < first, col(name) > last
    return [early if key < least else late if key > most else as_scalar(epoch + key * unit) for key in keys]


def _rounded_to(name: str, key: float) -> Scalar | Expression:
    """Return the integer that becomes ``key`` as a double, or a predicate for a range if several integers do."""
    if abs(key) < _WHOLE:
        return int(key)
    low, high = int(math.nextafter(key, -math.inf)), int(math.nextafter(key, math.inf))
    return (col(name) > low) & (col(name) < high)


# -- matching rows --------------------------------------------------------------------------------


class Pairs(NamedTuple):
    """Matching rows, at equal positions: row numbers in the left side and in a batch of the lake."""

    left: pa.Array
    lake: pa.Array


class LeftKeys:
    """The distinct keys of ``num_rows`` rows of the left side, and a mark on each key that the lake has.

    ``candidates`` are, for each key column, one or more arrays of values that a row's key may have in the lake. Null
    matches no value of the lake. Any combination of a row's values is a key of the row.
    """

    def __init__(self, candidates: Sequence[Sequence[pa.Array]], num_rows: int) -> None:
        self._num_rows = num_rows
        rows, columns = _combined(candidates)
        values = [normalised(column) for column in columns]
        self._sets = [pc.unique(column) for column in values]
        self._known: list[pa.Array] = []  # for each column but the first: the combinations of codes that occur
        codes = self._codes(values, learn=True)
        order = pc.sort_indices(codes)
        counts = pc.value_counts(codes.take(order)).field(1)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts).cast(pa.int32())])
        first = order.take(offsets.slice(0, len(counts)))
        self.distinct: list[pa.Array] = [
            column.take(first) for column in columns
        ]  # for each key column, values of distinct keys
        self._counts = counts
        self._rows = pa.ListArray.from_arrays(offsets, rows.take(order))  # row numbers by key
        self._met = bytearray(len(counts))

    def __len__(self) -> int:
        """Number of distinct keys."""
        return len(self._met)

    @property
    def all_met(self) -> bool:
        """Whether all distinct keys are marked as present in the lake."""
        return 0 not in self._met

    def pairs(self, columns: Sequence[pa.Array], positions: range, most: int) -> Iterator[Pairs]:
        """Yield pairs of matching rows, at most ``most`` pairs at a time.

        ``columns`` are the key columns of the lake's rows, of the candidates' types; ``positions`` are those of the
        distinct keys that may match.
        """
        codes = self._find(columns)
        if len(positions) < len(self):
            inside = pc.and_(pc.greater_equal(codes, positions.start), pc.less(codes, positions.stop))
            codes = pc.if_else(inside, codes, pa.scalar(None, codes.type))
        matching = pc.indices_nonzero(codes.is_valid())
        codes = codes.take(matching)
        ends = pc.cumulative_sum(self._counts.take(codes))
        begin = before = 0
        while begin < len(codes):
            stop = max(begin + 1, bisect_right(ends, before + most, key=lambda end: end.as_py()))
            rows = self._rows.take(codes.slice(begin, stop - begin))
            left, lake = pc.list_flatten(rows), matching.slice(begin, stop - begin).take(pc.list_parent_indices(rows))
            for at in range(0, len(left), most):  # one row of the lake may match more rows
                yield Pairs(left.slice(at, most), lake.slice(at, most))
            begin, before = stop, ends[stop - 1].as_py()

    def meet(self, columns: Sequence[pa.Array]) -> None:
        """Mark the keys of these rows of the lake as present."""
        self._find(columns)

    def rows(self, *, met: bool) -> pa.Array:
        """Return the numbers of the left's rows whose key is present in the lake (``met``), or whose key is absent."""
        codes = pa.array([code for code, is_met in enumerate(self._met) if is_met], pa.int32())
        having = pc.list_flatten(self._rows.take(codes))
        rows = pa.array(range(self._num_rows), pa.int32())
        mask = pc.is_in(rows, having)
        return rows.filter(mask if met else pc.invert(mask))

    def _find(self, columns: Sequence[pa.Array]) -> pa.Array:
        codes = self._codes([normalised(column) for column in columns])
        for code in pc.unique(codes).to_pylist():
            if code is not None:
                self._met[code] = 1
        return codes

    def _codes(self, columns: Sequence[pa.Array], *, learn: bool = False) -> pa.Array:
        """Return the number of each row's key; null if it is not a key of the left. ``learn`` adds combinations."""
        first, *more = (pc.index_in(column, known) for column, known in zip(columns, self._sets, strict=True))
        for at, codes in enumerate(more):
            both = pc.add(pc.multiply(first.cast(pa.int64()), len(self._sets[at + 1])), codes)
            if learn:
                self._known.append(pc.unique(both))
            first = pc.index_in(both, self._known[at])
        return first


def normalised(column: pa.Array) -> pa.Array:
    """Return the bits of floats as integers, with one zero and one NaN; others unchanged, dictionaries decoded."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not pa.types.is_floating(column.type):
        return column
    bits = pa.int64() if pa.types.is_float64(column.type) else pa.int32()
    zero, nan = pa.scalar(0.0, column.type), pa.scalar(math.nan, column.type)
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, zero)).view(bits)


def _combined(candidates: Sequence[Sequence[pa.Array]]) -> tuple[pa.Array, list[pa.Array]]:
    """Return row numbers, once for each key of a row, and for each key column the values of these keys."""
    numbers: list[pa.Array] = []
    columns: list[list[pa.Array]] = [[] for _ in candidates]
    for combination in itertools.product(*candidates):
        rows = pc.indices_nonzero(reduce(pc.and_, [column.is_valid() for column in combination]))
        numbers.append(rows.cast(pa.int32()))
        for kept, column in zip(columns, combination, strict=True):
            kept.append(column.take(rows))
    return pa.concat_arrays(numbers), [pa.concat_arrays(kept) for kept in columns]


# -- tasks ----------------------------------------------------------------------------------------


How = Literal["inner", "left", "semi", "anti"]

#: Maximum rows of an output batch, and its approximate bytes.
OUTPUT_ROWS: Final = 10_000
OUTPUT_BYTES: Final = 16 << 20
#: Approximate bytes of the left in memory, and rows.
LEFT_BYTES: Final = 16 << 20
LEFT_ROWS: Final = 1 << 17


class JoinTaskKeywords(TypedDict, total=False):
    """The attributes of a :class:`JoinTask` that its engine chooses."""

    how: Required[How]
    left: Required[tuple[int, ...]]
    right: Required[tuple[tuple[int, pa.DataType], ...]]
    names: tuple[str, ...]
    batch_keys: Required[int]


@dataclass(frozen=True, kw_only=True)
class JoinTask:
    """A function that joins rows of the left side with a dataset, in any process: called with an iterable of record
    batches, it yields the joined batches. Picklable, without a session. Made by :func:`plan_join`.

    Attributes:
        pinned: the dataset, in pinned versions.
        how: "inner", "left", "semi" or "anti".
        keys: the key columns.
        left: positions of the left side's columns with which the output begins.
        right: the dataset's columns that follow: pairs of the position among the columns read, and the type.
        names: names of the output's columns; empty: "0", "1" and so on.
        batch_keys: maximum number of distinct keys in one lookup.
    """

    pinned: PinnedFiles
    how: How
    keys: tuple[JoinKey, ...]
    left: tuple[int, ...]
    right: tuple[tuple[int, pa.DataType], ...]
    names: tuple[str, ...] = ()
    batch_keys: int

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Join batches of the left with the dataset.

        Raises:
            ObjectChangedError, ObjectNotFoundError: a file was replaced or deleted after the join was planned.
            AsyncpqError: the errors of :meth:`asyncpq.Dataset.scan`.
        """
        with plan_again_hint(self.pinned.again, self.pinned.index is not None):
            for left in self._portions(batches):
                yield from self._join(left)

    def _portions(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Divide the left into portions of at most ``batch_keys`` distinct keys."""
        held: list[pa.RecordBatch] = []
        num_rows = num_bytes = 0
        known: pa.Table | None = None
        for whole in batches:
            for at in range(0, whole.num_rows, self.batch_keys):
                batch = whole.slice(at, self.batch_keys)
                keys = self._distinct(batch, None)
                both = keys if known is None else self._distinct(batch, known)
                full = num_rows + batch.num_rows > LEFT_ROWS or num_bytes + batch.nbytes > LEFT_BYTES
                if held and (full or both.num_rows > self.batch_keys):
                    yield _one(held)
                    held, num_rows, num_bytes, both = [], 0, 0, keys
                held.append(batch)
                known = both
                num_rows += batch.num_rows
                num_bytes += batch.nbytes
        if held:
            yield _one(held)

    def _distinct(self, batch: pa.RecordBatch, known: pa.Table | None) -> pa.Table:
        columns = [batch.column(place).cast(key.compared_type) for key in self.keys for place in key.candidates]
        names = [str(number) for number in range(len(columns))]
        keys = pa.Table.from_arrays(columns, names)
        if known is not None:
            keys = pa.concat_tables([known, keys])
        return keys.group_by(names).aggregate([])

    def _join(self, left: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        candidates = [[left.column(at).cast(key.compared_type) for at in key.candidates] for key in self.keys]
        keys = LeftKeys(candidates, left.num_rows)
        with_pairs = self.how in ("inner", "left")
        for positions, lake in self._dataset_rows(keys):
            columns = [lake.column(key.place).cast(key.compared_type, safe=key.form != "rounded") for key in self.keys]
            if not with_pairs:
                keys.meet(columns)
                continue
            for pairs in keys.pairs(columns, positions, _most_rows(left, lake)):
                yield self._rows(left, pairs.left, [take(lake.column(at), pairs.lake) for at, _ in self.right])
        if self.how != "inner":
            rows = keys.rows(met=self.how == "semi")
            for at in range(0, len(rows), OUTPUT_ROWS):
                portion = rows.slice(at, OUTPUT_ROWS)
                yield self._rows(left, portion, [pa.nulls(len(portion), type_) for _, type_ in self.right])

    def _dataset_rows(self, keys: LeftKeys) -> Iterator[tuple[range, pa.RecordBatch]]:
        """Yield ranges of positions in ``keys.distinct``, each with a batch of rows of the lake.

        The batches of a range include all rows with one of its keys. Semi and anti joins end when all keys are met.
        """
        if not len(keys):
            return
        for positions, predicate in predicates(self.keys, keys.distinct):
            make = partial(self.pinned.lookup, predicate)
            for batch in batches_on_worker(self.pinned.scan.settings, make):
                yield positions, batch
                if self.how in ("semi", "anti") and keys.all_met:
                    return

    def _rows(self, left: pa.RecordBatch, rows: pa.Array, right: Sequence[pa.Array]) -> pa.RecordBatch:
        arrays = [*(take(left.column(at), rows) for at in self.left), *right]
        names = self.names or [str(at) for at in range(len(arrays))]
        return pa.RecordBatch.from_arrays(arrays, names)


def _most_rows(*batches: pa.RecordBatch) -> int:
    """Return the maximum number of rows of an output batch whose rows have the width of all ``batches`` together."""
    width = sum(batch.nbytes / max(batch.num_rows, 1) for batch in batches)
    return max(1, min(OUTPUT_ROWS, int(OUTPUT_BYTES / max(width, 1))))


def _one(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
