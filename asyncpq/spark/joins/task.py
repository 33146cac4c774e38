"""What a task of a lookup join does: batches of the left come in, their keys are asked for, joined rows go out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.spark import sessions
from asyncpq.spark.joins.key_predicates import KeyColumn, predicates
from asyncpq.spark.joins.lake import PinnedLake, key_scan
from asyncpq.spark.joins.rows import LeftKeys
from asyncpq.spark.reads.plan_again import told_to_plan_again

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
