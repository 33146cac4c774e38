"""The estimated costs of a planned scan: read by asyncpq's tasks, or by Spark's own reader.

asyncpq's tasks read the planned rows alone, but each row passes from Python to Spark. Spark's reader decodes the
planned files whole, and only the columns that the query uses, which a plan cannot know: the estimate counts all.
Latency and bandwidth are what the driver's session has measured at the store; tasks measure the seconds of a row.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median
from typing import Final

from asyncpq.objects.prices import Prices

#: Seconds before the first row, without reading.
_PYTHON_START_S: Final = 0.15
_SPARK_START_S: Final = 0.05
_PYTHON_TASK_S: Final = 0.020
_FILE_S: Final = 0.004  # a file opened in a task, by either reader
#: Requests of a file that wait for each other: for asyncpq's tasks without a footer, and for Spark.
_ROUNDS: Final = 2
_SPARK_ROUNDS: Final = 3
#: Compressed bytes that a core decodes.
_PYTHON_BYTES_S: Final = 200e6
_SPARK_BYTES_S: Final = 200e6
_ROW_S: Final = 0.5e-6
_BOUNDS: Final = (_ROW_S / 8, _ROW_S * 8)
_KEPT: Final = 16


@dataclass(frozen=True, kw_only=True)
class ReaderCosts:
    """Estimated seconds of a scan by each reader."""

    asyncpq_s: float
    spark_s: float

    @property
    def cheaper(self) -> str:
        """The reader of the lower estimate."""
        return "asyncpq" if self.asyncpq_s < self.spark_s else "spark"


class RowCost:
    """Seconds that a task needs to pass one row from Python to Spark: the median of the last tasks, within bounds."""

    def __init__(self) -> None:
        self._seen: deque[float] = deque(maxlen=_KEPT)

    @property
    def seconds(self) -> float:
        """The present estimate."""
        return median(self._seen) if self._seen else _ROW_S

    def learn(self, rows: int, seconds: float) -> None:
        """Learn from tasks that passed ``rows`` rows in ``seconds`` seconds in all."""
        if rows:
            least, most = _BOUNDS
            self._seen.append(min(max(seconds / rows, least), most))


def reader_costs(
    *,
    num_files: int,
    num_splits: int,
    num_bytes: int,
    num_rows: int,
    whole_bytes: int,
    parallelism: int,
    prices: Prices,
    is_local: bool,
    row_s: float = _ROW_S,
) -> ReaderCosts:
    """Estimate the seconds of both readers.

    Args:
        num_files, whole_bytes: files that have planned rows, and their bytes in the planned columns.
        num_splits, num_bytes, num_rows: tasks, bytes and rows of asyncpq's plan.
        parallelism: tasks that run at once.
        prices: of the store.
        is_local: files are read without requests.
        row_s: seconds of a row that passes from Python to Spark.
    """
    latency_s = 0.0 if is_local else prices.latency_s
    transfer_bytes_s = float("inf") if is_local else prices.bandwidth_bytes_s
    python = num_splits * _PYTHON_TASK_S + num_files * (_FILE_S + _ROUNDS * latency_s) + num_rows * row_s
    python += num_bytes / _PYTHON_BYTES_S
    spark = num_files * (_FILE_S + _SPARK_ROUNDS * latency_s) + whole_bytes / _SPARK_BYTES_S
    return ReaderCosts(
        asyncpq_s=_PYTHON_START_S + max(python / parallelism, num_bytes / transfer_bytes_s),
        spark_s=_SPARK_START_S + max(spark / parallelism, whole_bytes / transfer_bytes_s),
    )
