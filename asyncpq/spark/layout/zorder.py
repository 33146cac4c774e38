"""Z-order: rows near each other in several columns at once.

Each column's values become ranks of equal size, by the quantiles of a sample, so that neither its type nor how its
values are spread matters: nulls first, then values as Spark sorts them. A row's place is the number whose bits are
those of its ranks in turn, the highest bits of all columns first. Values that the sample did not tell apart share a
rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own documentation calls it so)

#: More columns would get too few bits each to be worth anything.
MOST_COLUMNS: Final = 8

_PLACE_BITS: Final = 62  # of an int64 that is never negative
_MOST_BITS: Final = 12  # of one column: 4,096 ranks
_SAMPLE: Final = 100_000  # rows
_SEED: Final = 7


@dataclass(frozen=True)
class ZOrder:
    """What the executors get.

    Attributes:
        bounds: for each column the values that divide its ranks, ascending, as :func:`_orderable` gives them.
        spread: for each column int64 numbers by rank: the bits of a rank where they stand in a place.
    """

    bounds: tuple[pa.Array, ...]
    spread: tuple[pa.Array, ...]

    @classmethod
    def of(cls, bounds: Sequence[pa.Array], bits: int) -> Self:
        """Of ranks of so many bits; fewer ranks than these can tell apart use the highest bits, too."""
        columns = len(bounds)
        tables = []
        for at, values in enumerate(bounds):
            most = len(values) + 1
            scaled = [rank * ((1 << bits) - 1) // most for rank in range(most + 1)]
            tables.append(pa.array([_spread(rank, columns, at) for rank in scaled], pa.int64()))
        return cls(tuple(bounds), tuple(tables))

    def places(self, columns: Sequence[pa.Array]) -> pa.Array:
        """int64 numbers, none of them null, of rows whose values are in ``columns``, one for each of ``bounds``."""
        total: pa.Array | None = None
        for values, bounds, spread in zip(columns, self.bounds, self.spread, strict=True):
            bits = pc.take(spread, self.ranks(values, bounds))
            total = bits if total is None else pc.add(total, bits)
        return total

    @staticmethod
    def ranks(values: pa.Array, bounds: pa.Array) -> pa.Array:
        """0 for nulls, else 1 + how many of ``bounds`` are not greater."""
        found = pc.search_sorted(bounds, _orderable(values), side="right")
        return pc.fill_null(pc.add(pc.cast(found, pa.int64()), 1), 0)


def z_order(frame: DataFrame, columns: Sequence[Column], rows: int) -> ZOrder:
    """Read a sample of these columns of ``frame``, which has about ``rows`` rows."""
    chosen = frame.select(*columns).toDF(*[f"z{at}" for at in range(len(columns))])
    if rows > _SAMPLE:
        chosen = chosen.sample(fraction=_SAMPLE / rows, seed=_SEED)
    sample = chosen.toArrow()
    bits = min(_MOST_BITS, _PLACE_BITS // len(columns))
    return ZOrder.of([_bounds(column.combine_chunks(), (1 << bits) - 2) for column in sample.columns], bits)


def place_column(order: ZOrder, columns: Sequence[Column]) -> Column:
    """A bigint column: where each row stands in the order."""

    def places(*values: pa.Array) -> pa.Array:  # PySpark reads these hints
        return order.places(values)

    udf: Any = F.arrow_udf(places, "bigint")  # type: ignore[attr-defined]  # its stubs lack it
    result: Column = udf(*columns)
    return result


def _bounds(values: pa.Array, most: int) -> pa.Array:
    """At most ``most`` values, ascending and distinct, that divide ``values`` evenly."""
    ordered = _orderable(values).drop_null()
    ordered = ordered.take(pc.sort_indices(ordered))
    count = min(most, len(ordered))
    picked = ordered.take(pa.array([(at * len(ordered)) // (count + 1) for at in range(1, count + 1)], pa.int64()))
    return pc.unique(picked)


def _orderable(values: pa.Array) -> pa.Array:
    """Numbers or bytes in the order in which Spark sorts ``values``, and of a type that pyarrow searches."""
    kind = values.type
    if pa.types.is_decimal(kind):
        return values.cast(pa.float64())  # may take neighbours for one
    if pa.types.is_floating(kind):
        return pc.add(values, pa.scalar(0.0, kind))  # -0 becomes 0
    if pa.types.is_boolean(kind):
        return values.cast(pa.uint8())
    if pa.types.is_temporal(kind):
        return values.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return values.cast(pa.binary())
    return values


def _spread(rank: int, columns: int, at: int) -> int:
    """``rank`` with its bits ``columns`` places apart; of the first column they are the highest."""
    spread, step = 0, columns - 1 - at
    while rank:
        spread |= (rank & 1) << step
        rank >>= 1
        step += columns
    return spread
