"""Which of the lake's rows go with which of the left's: both in Arrow, compared as Spark's joins compare."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc


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
