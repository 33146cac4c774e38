"""What the tasks of a plan have read, and how Spark's plans name them.

Spark offers Python sources no metrics of their own. So tasks add their counts to an accumulator, which the driver
reads, and Spark shows the name of the tasks' function in ``explain`` and in its UI.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam

from asyncpq.distributed import worker_counts
from asyncpq.spark.driver import context_of

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession

#: Plans whose counts the driver keeps. PySpark never frees an accumulator, so all plans of an application share one.
_KEPT: Final = 256
_Counts = dict[str, dict[str, int]]  # by plan, by name

_accumulators: dict[str, Accumulator[_Counts]] = {}


class PlanCounts(AccumulatorParam[_Counts]):
    """Adds the counts of tasks, plan by plan; forgets those of the oldest plans."""

    def zero(self, value: _Counts) -> _Counts:
        """Return no counts."""
        return {}

    def addInPlace(self, value1: _Counts, value2: _Counts) -> _Counts:  # noqa: N802  # PySpark's name
        """Add the counts ``value2`` to ``value1``, and return it."""
        for plan, counts in value2.items():
            known = value1.setdefault(plan, {})
            for name, count in counts.items():
                known[name] = known.get(name, 0) + count
        while len(value1) > _KEPT:
            del value1[next(iter(value1))]
        return value1


@dataclass(frozen=True)
class TaskMetrics:
    """The counts of a plan's tasks, and the name under which Spark shows them. Picklable."""

    name: str
    plan: str
    accumulator: Accumulator[_Counts] | None  # None in Spark Connect, which has none

    @classmethod
    def of(cls, spark: SparkSession, name: str) -> TaskMetrics:
        """Return the metrics of a new plan."""
        context = context_of(spark)
        if context is None:
            return cls(name, "", None)
        application = str(context.applicationId)
        if application not in _accumulators:
            _accumulators[application] = context.accumulator({}, PlanCounts())
        return cls(name, uuid.uuid4().hex, _accumulators[application])

    def counts(self) -> Mapping[str, int]:
        """Return the sums of the tasks that have ended, by the names of :class:`asyncpq.metrics.ReadMetrics`. Runs on
        the driver."""
        return {} if self.accumulator is None else dict(self.accumulator.value.get(self.plan, {}))

    def counted(self, batches: Iterator[pa.RecordBatch]) -> Generator[pa.RecordBatch]:
        """Yield the batches, and count what this process reads meanwhile. A worker has one task at a time; the driver
        may have other reads."""
        before = worker_counts()
        try:
            yield from batches
        finally:
            read = {name: count - before.get(name, 0) for name, count in worker_counts().items()}
            if self.accumulator is not None:
                self.accumulator.add({self.plan: {name: count for name, count in read.items() if count > 0}})

    def named(
        self, function: Callable[..., Iterator[pa.RecordBatch]], *arguments: Any
    ) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
        """Return the function with its first arguments, for ``mapInArrow``, under the name of the tasks."""
        task = partial(function, *arguments)
        vars(task)["__name__"] = self.name  # PySpark takes it for the name in Spark's plans
        return task
