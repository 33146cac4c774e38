"""Choose how a join reads the lake: rows by key, or whole files by Spark, whichever is estimated at less time.

The left side runs once, before the choice: its keys rule out files, also if they are known only at run time. Spark
joins the rows in either case, so that its own equality counts.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from asyncpq.distributed import DatasetJoin, FoundFiles, JoinTask, run_on_worker
from asyncpq.engine.target_facts import url_facts
from asyncpq.spark.driver import described_jobs
from asyncpq.spark.join_keys import KeyRefused, KeyRule, candidate_columns
from asyncpq.spark.reads.conditions import numbered, quoted
from asyncpq.spark.reads.lake_scan import LakeScan, lake_of, plan_lake
from asyncpq.spark.reads.opened_lake import OpenLake
from asyncpq.spark.reads.reader_choice import DRIVER_START_S, ScanSize, driver_may_read, reader_costs
from asyncpq.spark.reads.scan import SparkScanPlan, parallelism_of, scan_plan, with_jvm_zone
from asyncpq.spark.reads.task_rows import TaskMetrics, local_rows, read_few, task_rows
from asyncpq.spark.settings import SparkSettings

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

logger: logging.Logger = logging.getLogger(__name__)

How: TypeAlias = Literal["inner", "left", "semi", "anti"]
JoinStrategy: TypeAlias = Literal["auto", "lookups", "spark"]

#: With more distinct keys, only their bounds rule out files.
MOST_KEYS: Final = 1 << 17
#: A left side of at most so many partitions and rows of each is collected without a limit.
_FEW_PARTITIONS: Final = 16
_FEW_ROWS: Final = MOST_KEYS // _FEW_PARTITIONS
_ROW_BITS: Final = 33  # of the number of a row in its partition, by monotonically_increasing_id()
#: Spark broadcasts a left side of at most so many rows; else it chooses the join itself.
MOST_BROADCAST_ROWS: Final = 20_000
#: Spark broadcasts the distinct keys, if they are at most so many rows, to drop other rows before the join.
_MOST_BROADCAST_KEYS: Final = 1 << 20
#: Seconds before the first row. Spark's reader lists the files again.
_TASKS_START_S: Final = 0.15
_SPARK_START_S: Final = 0.3
#: Lookups must be estimated at so much less time, since a wrong estimate must not make the join slower than Spark's.
_MARGIN: Final = 0.75
#: A Python task costs Spark some 50 ms. Of reads of more seconds, each core gets two tasks, to end more evenly.
_LONG_S: Final = 1.0
#: Below this share of files with keys, the driver opens all files to rule out the others for Spark's reader.
_LITTLE_SHARE: Final = 0.5


@dataclass(frozen=True, kw_only=True)
class JoinPlan:
    """A planned join: with the reason why the keys cannot be looked up (``refused``), or with how they are made. A
    lookup join also has a ``task``."""

    on: tuple[str, ...]
    how: How
    opened: OpenLake  # on the driver
    settings: SparkSettings
    right: StructType  # the lake's columns that take part in the join
    schema: StructType  # of the result
    left_width: int  # columns of the left
    places: tuple[int, ...]  # positions of the left's key columns
    batch_keys: int
    rules: tuple[KeyRule, ...] = ()  # how the keys are made
    join: DatasetJoin | None = None  # the lake's side; None if the keys cannot be looked up
    task: JoinTask | None = None
    refused: KeyRefused | None = None

    def dataframe(self, df: DataFrame) -> DataFrame:
        """Return the joined DataFrame, a ``mapInArrow`` of the task over ``df``."""
        assert self.task is not None, "the keys can be looked up"
        left = numbered(df)
        candidates = candidate_columns(left, self.rules, self.places)
        return left.select("*", *candidates).mapInArrow(self.task, self.schema)


@dataclass(frozen=True, kw_only=True)
class ChosenJoin:
    """A join whose left side has run, with the chosen strategy, and why it was chosen.

    Attributes:
        num_rows, num_keys: rows and distinct keys of the left; None if they were not counted.
        files: files that are read, of ``files_total``.
        lookups_s, spark_s: estimates; None if the strategy was the only one.
    """

    strategy: Literal["lookups", "spark"]
    reason: str
    left: DataFrame
    rows: Callable[[], DataFrame]  # of the lake
    num_rows: int | None = None
    num_keys: int | None = None
    files: int = 0
    files_total: int = 0
    lookups_s: float | None = None
    spark_s: float | None = None

    def frame(self, on: Sequence[str], how: How) -> DataFrame:
        """Return the joined DataFrame."""
        left, rows, names = self.left, self.rows(), list(on)
        if self.num_rows is None:
            return left.join(rows, on=names, how=how)
        if how == "inner" and self.num_rows <= MOST_BROADCAST_ROWS:
            return F.broadcast(left).join(rows, on=names, how=how)
        if self.strategy == "spark" and self.num_rows <= _MOST_BROADCAST_KEYS:
            # Spark would sort and shuffle the lake for such a join
            keys = left.select(*map(quoted, names)).distinct()
            rows = rows.join(F.broadcast(keys), on=names, how="left_semi")
        return left.join(rows, on=names, how=how)

    @property
    def why(self) -> str:
        """The reason, and the files that are read."""
        return f"{self.reason} ({self.files} of {self.files_total} files)"

    def __str__(self) -> str:
        keys = "" if self.num_keys is None else f"{self.num_keys} keys, "
        estimates = (
            ""
            if self.lookups_s is None
            else f"; about {self.lookups_s:.2f} s by lookups, {self.spark_s:.2f} s by Spark"
        )
        return f"{self.strategy}, since {self.reason}: {keys}{self.files} of {self.files_total} files{estimates}"


def choose_join(df: DataFrame, plan: JoinPlan, strategy: JoinStrategy) -> ChosenJoin:
    """Run the left plan, find the files that may have its keys, and choose the strategy."""
    spark, opened = df.sparkSession, plan.opened
    join = plan.join
    if join is None:
        read = _spark_scan(spark, plan, None)
        return ChosenJoin(
            strategy="spark",
            reason="" if plan.refused is None else plan.refused.why,
            left=df,
            rows=partial(read.frame, spark),
            files=read.files,
            files_total=read.read.metrics.files_total,
        )
    with described_jobs(spark, f"asyncpq: keys of the join with {opened.state.url}"):
        # Rows that another run might change must not lose their files. The job that finds the keys runs them.
        left = df.localCheckpoint(eager=False)
        keys, num_rows = _distinct_keys(left, plan, join)
        bounds = _bounds(left, plan, join) if keys is None else None
    num_keys = None if keys is None else len(keys[0])
    if num_keys == 0:
        none = partial(local_rows, spark, [], plan.right)
        return ChosenJoin(
            strategy="lookups", reason="the left side has no keys", left=left, rows=none, num_rows=num_rows, num_keys=0
        )
    chooser = _Chooser(spark, plan, replace(join, scan=_scan(plan)), left, num_rows, num_keys)
    chosen = chooser.choose(strategy, keys, bounds)
    logger.info("join of %s: %s", opened.state.url, chosen)
    return chosen


# -- keys -----------------------------------------------------------------------------------------


def _candidates(left: DataFrame, plan: JoinPlan) -> DataFrame:
    """Return for each key column the columns with the values that a key may have in the lake."""
    plain = numbered(left)
    return plain.select(*candidate_columns(plain, plan.rules, plan.places))


def _distinct_keys(left: DataFrame, plan: JoinPlan, join: DatasetJoin) -> tuple[list[pa.Array] | None, int]:
    """Return for each key column the values of the distinct keys, or None if there are more than ``MOST_KEYS``; and the
    number of rows."""
    candidates = _candidates(left, plan)
    table = _few(candidates)
    if table is None:
        table = candidates.limit(MOST_KEYS + 1).toArrow()
    num_rows = table.num_rows
    if num_rows > MOST_KEYS:
        num_rows = left.count()
        table = candidates.distinct().limit(MOST_KEYS + 1).toArrow()
        if table.num_rows > MOST_KEYS:
            return None, num_rows
    arrays, begin = list[list[pa.Array]](), 0
    for key in join.keys:
        type_ = key.compared_type
        own = range(begin, begin + len(key.candidates))
        arrays.append([_array(table.column(at).cast(type_)) for at in own])
        begin = own.stop
    distinct = join.distinct(arrays, table.num_rows)
    return None if len(distinct[0]) > MOST_KEYS else distinct, num_rows


def _few(candidates: DataFrame) -> pa.Table | None:
    """Return all rows, or None if they are many. A limit would cost Spark a shuffle; here each partition is cut at a
    number of rows."""
    most = f"if(row < {_FEW_PARTITIONS << _ROW_BITS}, {_FEW_ROWS}, 0)"
    numbered_rows = candidates.withColumn("row", F.monotonically_increasing_id())  # the partition's bits, and the row's
    table = numbered_rows.filter(f"row % {1 << _ROW_BITS} <= {most}").toArrow()
    if table.num_rows:
        rows = table.column("row")
        last = pc.max(pc.bit_wise_and(rows, (1 << _ROW_BITS) - 1)).as_py()
        if last >= _FEW_ROWS or pc.max(rows).as_py() >= _FEW_PARTITIONS << _ROW_BITS:
            return None
    return table.drop_columns(["row"])


def _array(column: pa.ChunkedArray) -> pa.Array:
    array = column.combine_chunks()
    return pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array


def _bounds(left: DataFrame, plan: JoinPlan, join: DatasetJoin) -> list[pa.Array] | None:
    """Return for each key column the least key and the greatest; None if no row has a key."""
    candidates = _candidates(left, plan)
    table = candidates.agg(*[agg(name) for name in candidates.columns for agg in (F.min, F.max)]).toArrow()
    bounds, begin = list[pa.Array](), 0
    for key in join.keys:
        stop = begin + 2 * len(key.candidates)
        low, high = (
            pa.concat_arrays([_array(table.column(at).cast(key.compared_type)) for at in range(first, stop, 2)])
            for first in (begin, begin + 1)
        )
        bounds.append(pa.concat_arrays([_extreme(low, "min"), _extreme(high, "max")]))
        begin = stop
    return None if any(array.null_count for array in bounds) else bounds


def _extreme(values: pa.Array, which: Literal["min", "max"]) -> pa.Array:
    if len(values) == 1:
        return values
    return pa.array([pc.min_max(values)[which].as_py()], values.type)  # of days


# -- the choice -----------------------------------------------------------------------------------


def _scan(plan: JoinPlan) -> LakeScan:
    """Return the scan of the columns that take part, in their order."""
    return lake_of(plan.opened, plan.opened.columns(plan.right.names), plan.settings)


class _Files(Protocol):
    """Files that Spark's join would read."""

    @property
    def num_files(self) -> int: ...
    @property
    def total_bytes(self) -> int: ...
    @property
    def prices(self) -> Any: ...


@dataclass(frozen=True)
class _Chooser:
    spark: SparkSession
    plan: JoinPlan
    join: DatasetJoin
    left: DataFrame
    num_rows: int
    num_keys: int | None

    def choose(
        self, strategy: JoinStrategy, keys: Sequence[pa.Array] | None, bounds: Sequence[pa.Array] | None
    ) -> ChosenJoin:
        plan = self.plan
        asks = strategy == "lookups" or not self._is_index_slow()
        find = partial(self.join.find, keys, bounds, asks_index=asks)
        found = run_on_worker(plan.settings, lambda session: find())
        if found is None:
            return self._by_spark(None, "there are too many keys")
        if not found.files:
            rows = partial(local_rows, self.spark, [], plan.right)
            return self._chosen("lookups", "no file may have the keys", rows, 0, found.total)
        if self.num_keys is None:
            return self._by_spark(found, "there are too many keys")
        parallelism = parallelism_of(self.spark)
        tasks_s = _TASKS_START_S + found.seconds(self.num_keys, parallelism)
        driver_s = DRIVER_START_S + found.seconds(self.num_keys, 1, found.open_s)
        on_driver = strategy == "auto" and driver_s < tasks_s and self._driver_may_read(found, driver_s)
        lookups_s = driver_s if on_driver else tasks_s
        spark_s = self._spark_s(found, parallelism)
        if strategy == "lookups" or (strategy == "auto" and lookups_s < spark_s * _MARGIN):
            reason = "the argument strategy names it" if strategy == "lookups" else "it is estimated at less time"
            return self._by_lookups(found, reason, lookups_s, spark_s, on_driver=on_driver)
        reason = "lookups are not estimated at less time" if asks else "asking the index would take longer"
        reason = "the argument strategy names it" if strategy == "spark" else reason
        return self._by_spark(found, reason, lookups_s, spark_s, on_driver=on_driver)

    def _is_index_slow(self) -> bool:
        """Return whether Spark's join with all files is estimated at less time than asking the index for the keys, and
        looking these up in as many files as have them if the rows are in random order."""
        parallelism, num_keys = parallelism_of(self.spark), self.num_keys
        asking = None
        if num_keys is not None:
            asking = self.join.index_estimate(num_keys, self.plan.opened.row_bytes, parallelism)
        if asking is None:
            return False
        return _TASKS_START_S + asking.seconds > _MARGIN * self._spark_s(asking, parallelism)

    def _spark_s(self, files: _Files, parallelism: int) -> float:
        """Return the seconds by Spark's join with these files."""
        share = len(self.plan.right.names) / max(1, len(self.plan.opened.names))
        size = ScanSize(num_files=files.num_files, whole_bytes=int(share * files.total_bytes))
        store = None if url_facts(self.plan.opened.state.url).protocol == "file" else files.prices
        costs = reader_costs(size, parallelism=parallelism, store=store)
        return _SPARK_START_S + costs.spark_s

    def _by_lookups(
        self, found: FoundFiles, reason: str, lookups_s: float, spark_s: float, *, on_driver: bool = False
    ) -> ChosenJoin:
        reason += ", on the driver" if on_driver else ""
        rows = partial(self._rows_by_key, found, on_driver=on_driver)
        return self._chosen("lookups", reason, rows, len(found.files), found.total, lookups_s, spark_s)

    def _rows_by_key(self, found: FoundFiles, *, on_driver: bool) -> DataFrame:
        """Return the rows of the keys, read by tasks; ``on_driver``: by the driver, unless they turn out to be many."""
        plan, spark = self.plan, self.spark
        opened = plan.opened
        if not found.can_ship:
            work = partial(
                plan_lake, opened, settings=plan.settings, columns=plan.right.names, where=found.predicate.where
            )
            read = run_on_worker(plan.settings, lambda session: work())
            return scan_plan(spark, opened, read, "asyncpq").frame(spark)
        read_keys = found.reader(with_jvm_zone(spark, _scan(plan)))
        if on_driver:
            (task,) = found.tasks(1)
            if (batches := read_few(read_keys(task))) is not None:
                return local_rows(spark, batches, plan.right)
        parallelism = parallelism_of(spark)
        is_long = found.seconds(self.num_keys or 0, parallelism) > _LONG_S
        tasks = found.tasks(2 * parallelism if is_long else parallelism)
        metrics = TaskMetrics.of(spark, f"asyncpq join, {len(found.files)} of {found.total} files")
        return task_rows(spark, read_keys, tasks, plan.right, found.most_bytes, metrics)

    def _driver_may_read(self, found: FoundFiles, driver_s: float) -> bool:
        may_read = driver_may_read(self.spark, self.plan.right, driver_s, found.num_bytes)
        return may_read and found.can_ship

    def _by_spark(
        self,
        found: FoundFiles | None,
        reason: str,
        lookups_s: float | None = None,
        spark_s: float | None = None,
        *,
        on_driver: bool = False,
    ) -> ChosenJoin:
        read = _spark_scan(self.spark, self.plan, self._pruned(found))
        costs = read.choice.costs
        by_tasks = read.reader == "asyncpq" and not read.choice.on_driver
        if by_tasks and found is not None and lookups_s is not None and costs.asyncpq_s > lookups_s:
            reason = f"Spark's own reader does not read the files ({read.reason})"
            return self._by_lookups(found, reason, lookups_s, costs.asyncpq_s, on_driver=on_driver)
        rows, total = partial(read.frame, self.spark), read.read.metrics.files_total
        return self._chosen("spark", reason, rows, read.files, total, lookups_s, spark_s)

    def _pruned(self, found: FoundFiles | None) -> FoundFiles | None:
        """Return the files without those that their footers rule out, if these are many."""
        if found is None or found.share >= _LITTLE_SHARE:
            return found
        return run_on_worker(self.plan.settings, lambda session: found.matching())

    def _chosen(
        self,
        strategy: Literal["lookups", "spark"],
        reason: str,
        rows: Callable[[], DataFrame],
        files: int,
        files_total: int,
        lookups_s: float | None = None,
        spark_s: float | None = None,
    ) -> ChosenJoin:
        return ChosenJoin(
            strategy=strategy,
            reason=reason,
            left=self.left,
            rows=rows,
            num_rows=self.num_rows,
            num_keys=self.num_keys,
            files=files,
            files_total=files_total,
            lookups_s=lookups_s,
            spark_s=spark_s,
        )


def _spark_scan(spark: SparkSession, plan: JoinPlan, found: FoundFiles | None) -> SparkScanPlan:
    """Return the scan of the lake, or of the files found, without a condition."""
    opened = plan.opened
    if found is not None:
        opened = replace(opened, state=found.whole(opened.state))
    work = partial(plan_lake, opened, settings=plan.settings, columns=plan.right.names)
    parallelism = parallelism_of(spark)
    read = run_on_worker(plan.settings, lambda session: work(parallelism=parallelism))
    if found is not None:
        read.metrics.files_total = found.total
    return scan_plan(spark, opened, read, "auto")
