"""Joins to compare with Spark's own."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from asyncpq.spark.join_strategy import How

HOWS: Final[tuple[How, ...]] = ("inner", "left", "semi", "anti")


def _rows(frame: DataFrame) -> list[str]:
    return sorted(map(repr, frame.collect()))


def same(mine: list[DataFrame], theirs: list[DataFrame]) -> None:
    """Each of the frames has the same columns, types and rows as its fellow; asked in two jobs."""
    from pyspark.sql import functions

    for one, other in zip(mine, theirs, strict=True):
        assert one.schema == other.schema

    def together(frames: list[DataFrame]) -> DataFrame:
        # names may occur twice
        flat = [frame.toDF(*[f"c{at}" for at in range(len(frame.columns))]) for frame in frames]
        packed = [
            frame.select(functions.lit(at).alias("frame"), functions.to_json(functions.struct("*")).alias("row"))
            for at, frame in enumerate(flat)
        ]
        return reduce(lambda a, b: a.union(b), packed)

    assert _rows(together(mine)) == _rows(together(theirs))
