"""A z-order of rows, which keeps rows together that are close in several columns.

The values of each column become ranks of equal size, by the quantiles of a sample, so types and distributions do not
matter: nulls first, then values in their order. A row's place interleaves the bits of its ranks, highest bits first.
Values that the sample does not separate share a rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.typed_literals import storage_values
from asyncpq.indexing.key_encoding import is_variable

_PLACE_BITS: Final = 62  # bits of a non-negative int64
_MOST_BITS: Final = 12  # of one column: 4,096 ranks


@dataclass(frozen=True)
class ZOrder:
    """A z-order, with the tables from which writers compute the place of each row: an integer by which rows are
    sorted. Picklable."""

    #: More columns would have too few bits each.
    MOST_COLUMNS: ClassVar[int] = 8
    #: Rows of which quantiles are taken, chosen at random.
    SAMPLE_ROWS: ClassVar[int] = 100_000

    bounds: tuple[pa.Array, ...]  # for each column the ascending values between its ranks, made by _orderable
    spread: tuple[pa.Array, ...]  # for each column the int64 bits of a place by rank

    @classmethod
    def of(cls, bounds: Sequence[pa.Array], bits: int) -> Self:
        """Make a z-order in which each column has ranks of ``bits`` bits. ``bounds`` has, for each column, the
        ascending values that separate its ranks; fewer ranks are spread over all bits."""
        columns = len(bounds)
        tables = []
        for at, values in enumerate(bounds):
            most = len(values) + 1
            scaled = [rank * ((1 << bits) - 1) // most for rank in range(most + 1)]
            tables.append(pa.array([_spread(rank, columns, at) for rank in scaled], pa.int64()))
        return cls(tuple(bounds), tuple(tables))

    @classmethod
    def of_samples(cls, samples: Sequence[pa.Array]) -> Self:
        """Make a z-order from a sample of the values of each column."""
        bits = min(_MOST_BITS, _PLACE_BITS // len(samples))
        return cls.of([rank_bounds(values, (1 << bits) - 2) for values in samples], bits)

    def places(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the place of each row in the z-order, as int64 without nulls. ``columns`` are the values of each
        column, in the order of ``bounds``."""
        bits = [
            pc.take(spread, self.ranks(values, bounds))
            for values, bounds, spread in zip(columns, self.bounds, self.spread, strict=True)
        ]
        return reduce(pc.add, bits)

    @staticmethod
    def ranks(values: pa.Array, bounds: pa.Array) -> pa.Array:
        """Return the rank of each value: 0 for null, otherwise 1 plus the number of ``bounds`` that are not greater."""
        places = pc.search_sorted(bounds, _orderable(values), side="right")
        return pc.fill_null(pc.add(pc.cast(places, pa.int64()), 1), 0)


def rank_bounds(values: pa.Array, most: int) -> pa.Array:
    """Return at most ``most`` distinct ascending values that divide ``values`` into groups of about equal size."""
    ordered = _orderable(values).drop_null()
    ordered = ordered.take(pc.sort_indices(ordered))
    count = min(most, len(ordered))
    picked = ordered.take(pa.array([(at * len(ordered)) // (count + 1) for at in range(1, count + 1)], pa.int64()))
    return pc.unique(picked)


def _orderable(values: pa.Array) -> pa.Array:
    """Convert ``values`` to numbers or bytes in the same order as Spark's, of a type that pyarrow can search."""
    values = storage_values(values)  # a UUID's bytes
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    dtype = values.type
    if pa.types.is_null(dtype):
        return values.cast(pa.int64())
    if pa.types.is_decimal(dtype):
        return values.cast(pa.float64())  # may merge close values
    if pa.types.is_floating(dtype):
        return pc.add(values, pa.scalar(0.0, dtype))  # -0 becomes 0
    if pa.types.is_boolean(dtype):
        return values.cast(pa.uint8())
    if pa.types.is_temporal(dtype):
        return values.cast(pa.int32() if dtype.bit_width == 32 else pa.int64())
    return values.cast(pa.binary()) if is_variable(dtype) else values


def _spread(rank: int, columns: int, at: int) -> int:
    """Return ``rank`` with its bits ``columns`` places apart, such that the ranks of all columns can be added
    without overlap. ``at``: position of the column; that of 0 has the highest bits."""
    spread, step = 0, columns - 1 - at
    while rank:
        spread |= (rank & 1) << step
        rank >>= 1
        step += columns
    return spread
