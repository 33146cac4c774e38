"""What a task of a lookup join does: batches of the left come in, their keys are asked for, joined rows go out.

Which of the lake's rows go with which of the left's: both in Arrow, compared as Spark's joins compare.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from typing import Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.spark import sessions
from asyncpq.spark.join_keys import KeyColumn, predicates
from asyncpq.spark.join_lake import PinnedLake, key_scan
from asyncpq.spark.sessions import told_to_plan_again


class Pairs(NamedTuple):
    """Rows that go together, position by position.

    Attributes:
        left: numbers of the left's rows.
        lake: numbers of the lake's rows in their batch.
    """

    left: pa.Array
    lake: pa.Array


class LeftKeys:
    """The keys of some rows of the left, and which of them the lake has been found to have.

    Args:
        candidates: for each key column, the values that a row's key may be in the lake: one or more arrays, null where
            there is none. A row's key is any combination of them.
        num_rows: of the left.

    Attributes:
        distinct: for each key column, the values of the distinct keys.
    """

    def __init__(self, candidates: Sequence[Sequence[pa.Array]], num_rows: int) -> None:
        self._num_rows = num_rows
        rows, columns = _combined(candidates)
        values = [normalised(column) for column in columns]
        self._sets = [pc.unique(column) for column in values]
        self._known: list[pa.Array] = []  # of each column but the first: its codes with those before it, which occur
        codes = self._codes(values, learn=True)
        order = pc.sort_indices(codes)
        counts = pc.value_counts(codes.take(order)).field(1)
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(counts).cast(pa.int32())])
        first = order.take(offsets.slice(0, len(counts)))
        self.distinct = [column.take(first) for column in columns]
        self._counts = counts
        self._rows = pa.ListArray.from_arrays(offsets, rows.take(order))  # of each key
        self._met = bytearray(len(counts))

    def __len__(self) -> int:
        """How many distinct keys there are."""
        return len(self._met)

    @property
    def all_met(self) -> bool:
        """Whether each key was found in the lake."""
        return 0 not in self._met

    def pairs(self, columns: Sequence[pa.Array], some: range, most: int) -> Iterator[Pairs]:
        """What goes with rows of the lake, at most so many pairs at a time.

        Args:
            columns: the key columns of the lake's rows, of the candidates' types.
            some: positions among the distinct keys of those that count.
        """
        codes = self._find(columns)
        if len(some) < len(self):
            inside = pc.and_(pc.greater_equal(codes, some.start), pc.less(codes, some.stop))
            codes = pc.if_else(inside, codes, pa.scalar(None, codes.type))
        found = pc.indices_nonzero(codes.is_valid())
        codes = codes.take(found)
        ends = pc.cumulative_sum(self._counts.take(codes))
        begin = before = 0
        while begin < len(codes):
            stop = max(begin + 1, bisect_right(ends, before + most, key=lambda end: end.as_py()))
            rows = self._rows.take(codes.slice(begin, stop - begin))
            left, lake = pc.list_flatten(rows), found.slice(begin, stop - begin).take(pc.list_parent_indices(rows))
            for at in range(0, len(left), most):  # one of the lake's rows may go with more
                yield Pairs(left.slice(at, most), lake.slice(at, most))
            begin, before = stop, ends[stop - 1].as_py()

    def meet(self, columns: Sequence[pa.Array]) -> None:
        """Note which keys rows of the lake have."""
        self._find(columns)

    def rows(self, *, met: bool) -> pa.Array:
        """Numbers of the left's rows whose key the lake was found to have, or was not."""
        codes = pa.array([code for code, one in enumerate(self._met) if one], pa.int32())
        having = pc.list_flatten(self._rows.take(codes))
        rows = _row_numbers(self._num_rows)
        mask = pc.is_in(rows, having)
        return rows.filter(mask if met else pc.invert(mask))

    def _find(self, columns: Sequence[pa.Array]) -> pa.Array:
        codes = self._codes([normalised(column) for column in columns])
        for code in pc.unique(codes).to_pylist():
            if code is not None:
                self._met[code] = 1
        return codes

    def _codes(self, columns: Sequence[pa.Array], *, learn: bool = False) -> pa.Array:
        """Of each row the number of its key; null for none."""
        first, *more = (pc.index_in(column, known) for column, known in zip(columns, self._sets, strict=True))
        for at, codes in enumerate(more):
            both = pc.add(pc.multiply(first.cast(pa.int64()), len(self._sets[at + 1])), codes)
            if learn:
                self._known.append(pc.unique(both))
            first = pc.index_in(both, self._known[at])
        return first


def normalised(column: pa.Array) -> pa.Array:
    """Values that are equal where Spark's joins take them for equal: one zero, one NaN."""
    if not pa.types.is_floating(column.type):
        return column
    bits = pa.int64() if pa.types.is_float64(column.type) else pa.int32()
    zero, nan = pa.scalar(0.0, column.type), pa.scalar(math.nan, column.type)
    return pc.if_else(pc.is_nan(column), nan, pc.add(column, zero)).view(bits)


def _combined(candidates: Sequence[Sequence[pa.Array]]) -> tuple[pa.Array, list[pa.Array]]:
    """Numbers of rows, and for each key column the values of their keys."""
    numbers: list[pa.Array] = []
    columns: list[list[pa.Array]] = [[] for _ in candidates]
    for some in itertools.product(*candidates):
        rows = pc.indices_nonzero(reduce(pc.and_, [column.is_valid() for column in some]))
        numbers.append(rows.cast(pa.int32()))
        for kept, column in zip(columns, some, strict=True):
            kept.append(column.take(rows))
    return pa.concat_arrays(numbers), [pa.concat_arrays(kept) for kept in columns]


def _row_numbers(count: int) -> pa.Array:
    return pa.array(range(count), pa.int32())


How = Literal["inner", "left", "semi", "anti"]

#: Rows of a batch that goes out, at most, as many as Spark's own have by default; and its bytes, about.
OUTPUT_ROWS: Final = 10_000
OUTPUT_BYTES: Final = 16 << 20
#: Bytes of the left that are held at a time, about, and rows.
LEFT_BYTES: Final = 16 << 20
LEFT_ROWS: Final = 1 << 17


@dataclass(frozen=True, kw_only=True)
class JoinKey:
    """
    Attributes:
        column: the lake's.
        candidates: columns of the left with the values that a key may be in the lake.
        place: among the columns that are read of the lake.
        type: of the lake's column as Spark has it; keys are of this type, or doubles where they are rounded.
    """

    column: KeyColumn
    candidates: tuple[int, ...]
    place: int
    type: pa.DataType


@dataclass(frozen=True, kw_only=True)
class LookupTask:
    """A function for ``mapInArrow``. Can be pickled; holds no secrets.

    Attributes:
        left: columns of the left that go out, in their order.
        right: columns of the lake that go out behind them, as places among those that are read, and their types.
        batch_keys: distinct keys that are asked for at once, at most.
    """

    pinned: PinnedLake
    how: How
    keys: tuple[JoinKey, ...]
    left: tuple[int, ...]
    right: tuple[tuple[int, pa.DataType], ...]
    batch_keys: int

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """
        Raises:
            ObjectChangedError: a file of the lake has another version than when the join was planned.
            AsyncpqError: the lake could not be read.
        """
        with told_to_plan_again(self.pinned.index is not None):
            for left in self._portions(batches):
                yield from self._join(left)

    # -- the left ---------------------------------------------------------------------------------

    def _portions(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """The left's rows, as many at a time as have at most ``batch_keys`` distinct keys."""
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
        columns = [at for key in self.keys for at in key.candidates]
        names = [str(at) for at in range(len(columns))]
        keys = pa.Table.from_arrays([batch.column(at) for at in columns], names)
        if known is not None:
            keys = pa.concat_tables([known, keys])
        return keys.group_by(names).aggregate([])

    # -- joined -----------------------------------------------------------------------------------

    def _join(self, left: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        candidates = [[self._typed(key, left.column(at)) for at in key.candidates] for key in self.keys]
        keys = LeftKeys(candidates, left.num_rows)
        with_pairs = self.how in ("inner", "left")
        for some, lake in self._lake_rows(keys):
            columns = [self._compared(key, lake.column(key.place)) for key in self.keys]
            if not with_pairs:
                keys.meet(columns)
                continue
            for pairs in keys.pairs(columns, some, _most_rows(left, lake)):
                yield self._rows(left.take(pairs.left), [lake.column(at).take(pairs.lake) for at, _ in self.right])
        if self.how != "inner":
            rows = keys.rows(met=self.how == "semi")
            for at in range(0, len(rows), OUTPUT_ROWS):
                some = left.take(rows.slice(at, OUTPUT_ROWS))
                yield self._rows(some, [pa.nulls(some.num_rows, type_) for _, type_ in self.right])

    def _lake_rows(self, keys: LeftKeys) -> Iterator[tuple[range, pa.RecordBatch]]:
        """Positions of distinct keys, and rows of the lake, all that have one of these among them."""
        if not len(keys):
            return
        for some, asked in predicates([key.column for key in self.keys], keys.distinct):
            make = partial(key_scan, self.pinned, asked)
            for batch in sessions.batches(self.pinned.lake.settings, make):
                yield some, batch
                if self.how in ("semi", "anti") and keys.all_met:
                    return

    def _typed(self, key: JoinKey, values: pa.Array) -> pa.Array:
        return values.cast(pa.float64() if key.column.form == "rounded" else key.type)

    def _compared(self, key: JoinKey, values: pa.Array) -> pa.Array:
        """The lake's values, as Spark compares them."""
        return pc.cast(values, pa.float64(), safe=False) if key.column.form == "rounded" else values

    def _rows(self, left: pa.RecordBatch, right: Sequence[pa.Array]) -> pa.RecordBatch:
        arrays = [*(left.column(at) for at in self.left), *right]
        names = [str(at) for at in range(len(arrays))]
        return pa.RecordBatch.from_arrays(arrays, names)


def _most_rows(*batches: pa.RecordBatch) -> int:
    """Rows of a batch that goes out, where each of them has one of all of ``batches``."""
    width = sum(batch.nbytes / max(batch.num_rows, 1) for batch in batches)
    return max(1, min(OUTPUT_ROWS, int(OUTPUT_BYTES / max(width, 1))))


def _one(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return batches[0] if len(batches) == 1 else pa.concat_batches(batches)
