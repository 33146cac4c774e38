"""The tasks of a join by keys: read batches of the left, look up their keys in the dataset, yield joined rows.

Rows are matched in Arrow: null equals nothing, NaN equals NaN, and -0.0 equals 0.0.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Final, Literal, NamedTuple, Required, TypedDict

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.arrow import take
from asyncpq.distributed.key_predicates import JoinKey, predicates
from asyncpq.distributed.pinned_files import PinnedFiles
from asyncpq.distributed.worker_sessions import batches_on_worker, plan_again_hint


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
    """A function that joins rows of the left with a dataset, in any process. Picklable, without a session.

    Attributes:
        pinned: the dataset, in pinned versions.
        how: "inner", "left", "semi" or "anti".
        keys: the key columns.
        left: positions of the left's columns in the output.
        right: the dataset's columns behind them: positions among those that are read, and types.
        names: of the output's columns; empty: their numbers.
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
