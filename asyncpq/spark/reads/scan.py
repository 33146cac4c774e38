"""Scans as DataFrames: the driver plans, tasks read (or the driver, if the rows are few), Spark filters.

Very many files are planned in tasks: these get files and a condition, read the footers, prune row groups, and return
encoded pieces of the plan, the versions of their files, and the statistics of the footers. The driver asks for the
files in jobs of ``JOB_FILES``, so it never holds the results of all files at once beyond what a plan keeps.

Spark estimates the size of ``mapInArrow`` output by its input, here one number a task, and would broadcast any lake in
a join. So the input is padded to the size of the data: more numbers than tasks, which are dropped at once, beside a
wide column without values. With ``spark.sql.cbo.enabled`` Spark counts rows and multiplies them by the width of the
selected columns: then there are more numbers and no wide column.

Spark offers Python sources no metrics of their own. So tasks add their counts to an accumulator, which the driver
reads, and Spark shows the name of the tasks' function in ``explain`` and in its UI.
"""

from __future__ import annotations

import logging
import pickle
import uuid
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, Unpack, get_args

import pyarrow as pa
from pyspark.accumulators import AccumulatorParam
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own documentation calls it so)
from pyspark.sql.types import StructType

from asyncpq import DataFile, Session
from asyncpq.distributed import PlannedChunk, TaskScan, read_task, run_on_worker, worker_counts
from asyncpq.errors import counted
from asyncpq.options import MIB, one_of
from asyncpq.spark.driver import (
    MOST_CLOSURE_BYTES,
    CallerThread,
    context_of,
    described_jobs,
    mapped_tasks,
    raised_as_asyncpq,
)
from asyncpq.spark.reads.conditions import Condition, instants_of, quoted
from asyncpq.spark.reads.lake_scan import LakePlan, LakeScan, needs_jvm_zone, plan_lake, spark_struct
from asyncpq.spark.reads.opened_lake import LakeTarget, OpenLake, open_lake
from asyncpq.spark.reads.reader_choice import ReaderChoice, ReaderName, RowClock, choose_reader, local_rows, read_few
from asyncpq.spark.reads.spark_files import may_reach
from asyncpq.spark.settings import ScanKeywords, SparkSettings, refuse_secrets, split_settings
from asyncpq.spark.types.read_conf import ReadConf, jvm_time_zone
from asyncpq.spark.types.special_types import from_months, without_months

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import DataFrame, SparkSession


logger: logging.Logger = logging.getLogger(__name__)

_FIELDS: Final = 20
_WIDTH: Final = _FIELDS * 100  # bytes: Spark's estimate for a BINARY is 100
_WIDE: Final = f"CAST(NULL AS STRUCT<{', '.join(f'c{at}: BINARY' for at in range(_FIELDS))}>) AS wide"
#: Spark adds 8 bytes to each row, and counts 8 bytes for a number.
_WIDE_ROW_BYTES: Final = (8 + 8 + _WIDTH) // 2
_NUMBER_BYTES: Final = 8
# Larger estimates change no plan, and counting the numbers takes about 0.3 s in all tasks together.
_MOST_BYTES: Final = 65_536 * MIB
_MOST_NUMBERS_BYTES: Final = 512 * MIB
_DEFAULT_PARALLELISM: Final = 8  # if Spark does not tell


def scan(
    spark: SparkSession,
    url: Any,
    where: object = None,
    columns: Sequence[str] | str | None = None,
    index: Any = None,
    *,
    view: Literal["snapshot", "listed", "table"] | None = None,
    reader: ReaderName = "auto",
    **options: Unpack[ScanKeywords],
) -> DataFrame:
    """Return the rows of a lake as Spark's own reader does, and read only data that may match the condition.

    Each call plans anew, with the files and versions of this moment.

    Args:
        url: a prefix, a pattern, a file, a list of urls (folders end in a slash), or a table.
        where: an asyncpq expression, a filter list as pyarrow's ``filters=``, a condition in Spark's SQL, or a PySpark
            column. Spark applies the condition with its own semantics; asyncpq skips data that cannot match.
        columns: names, or dotted paths of struct fields, also as a text with commas; None for all.
        index, view: as in :meth:`asyncpq.Session.open_dataset`.
        reader: "auto": the reader that probably takes less time; few rows are read by the driver, at this call.
            "asyncpq": tasks of asyncpq read the planned rows, of the planned versions. "spark": Spark's own reader
            reads the planned files whole, and only the columns that the query uses; it does not notice files that are
            replaced after the call.
        options: ``schema``: columns as ``spark.read.schema()`` takes them; without it, they are inferred from the first
            file, as Spark does. ``format``, ``version``, ``schema_policy``, ``partitioning``, ``partition_types`` and
            ``on_bad_file``: as in :meth:`asyncpq.Session.open_dataset`. Attributes of
            :class:`asyncpq.spark.settings.SparkSettings`, which override ``spark.asyncpq.*``.

    Raises:
        InvalidOptionError: there is no such option.
        AsyncpqError: the lake cannot be opened or planned.
        ColumnNotFoundError: a column does not exist.
        ExpressionError: Spark has no equivalent of the condition.
        AnalysisException: the predicate names an unknown column, or does not fit a column's type.
        UnsupportedFeatureError: Spark's own reader cannot read these files, or not with the same rows.
    """
    return explain_scan(spark, url, where, columns, index, view=view, reader=reader, **options).frame(spark)


def explain_scan(
    spark: SparkSession,
    url: Any,
    where: object = None,
    columns: Sequence[str] | str | None = None,
    index: Any = None,
    *,
    view: Literal["snapshot", "listed", "table"] | None = None,
    reader: ReaderName = "auto",
    **options: Unpack[ScanKeywords],
) -> SparkScanPlan:
    """Plan :func:`scan` with the same arguments, and return the plan to print or inspect.

    No rows are read, unless the driver reads them in :meth:`SparkScanPlan.frame`. Spark may run one small query to
    resolve time zones, and lists the files if its own reader is chosen.
    """
    of_lake, settings = split_settings(options, ScanKeywords)
    schema = _struct(of_lake.pop("schema", None))
    target = LakeTarget(target=url, index=index, view=view, schema=schema, **of_lake)
    return plan_scan(spark, target, where, columns, SparkSettings.of(spark, settings), ReadConf.of(spark), reader)


@dataclass(frozen=True, kw_only=True)
class SparkScanPlan:
    """The plan of a :func:`scan`, to print, to inspect or to convert to a DataFrame."""

    read: LakePlan
    condition: Condition | None  # selects the rows to return; None for all rows
    columns: tuple[str, ...] | None  # names of the columns to return; None for all columns
    choice: ReaderChoice
    tasks: TaskMetrics

    @property
    def task_counts(self) -> Mapping[str, int]:
        """What the tasks of :meth:`frame`, or the driver, have read so far, by the names of
        :class:`asyncpq.metrics.ReadMetrics`: ``requests``, ``bytes_fetched``, ``pages_read``, ``rows_returned``,
        ``cache_hits``, ... Tasks that run twice count twice; other reads of the driver at the same time count, too.
        Empty if Spark's own reader reads the files, and in Spark Connect."""
        return self.tasks.counts()

    @property
    def reader(self) -> Literal["asyncpq", "spark"]:
        """The reader of the rows: asyncpq or Spark's own reader."""
        return self.choice.reader

    @property
    def reason(self) -> str:
        """Why this reader was chosen, and whether it reads on the driver."""
        return self.choice.reason + (", on the driver" if self.choice.on_driver else "")

    @property
    def files(self) -> int:
        """Number of files that are read, at least in part."""
        return self.read.num_files

    @property
    def splits(self) -> int:
        """Number of splits, each of which one task reads, unless the driver reads all."""
        return len(self.read)

    @property
    def num_bytes(self) -> int:
        """Approximate compressed bytes that are read."""
        return self.read.num_bytes

    @property
    def requests(self) -> int:
        """Number of requests that planning sent."""
        return self.read.metrics.requests

    @property
    def summary(self) -> str:
        """One line on the plan, which is logged."""
        lake, metrics = self.read.scan, self.read.metrics
        return (
            f"scan of {lake.url}: {self.files} of {counted(metrics.files_total, 'file')}, {self.num_bytes} bytes, at "
            f"most {counted(self.read.num_rows, 'row')}; planned with {counted(metrics.requests, 'request')}; "
            f"read by {self.reader}, since {self.reason}"
        )

    def __str__(self) -> str:
        lake, metrics, costs = self.read.scan, self.read.metrics, self.choice.costs
        lines = [
            f"scan of {lake.url} ({lake.view}: {lake.description})",
            f"  where: {self.condition or 'all rows'}",
            f"  pruned by: {'nothing' if lake.where is None else lake.where}{self._why_unused()}",
            f"  columns: {', '.join(map(str, lake.columns))}",
            f"  files: {metrics.files_total}, ruled out unopened {metrics.files_ruled_out}, to read {self.files}",
            f"  splits: {len(self.read)}, {self.read.num_bytes} bytes",
            f"  planning: {counted(metrics.requests, 'request')}, {metrics.bytes_fetched} bytes",
            f"  reader: {self.reader}, since {self.reason}; about {costs.asyncpq_s:.2f} s by asyncpq,"
            f" {costs.spark_s:.2f} s by Spark",
            *[f"  index: {line}" for line in self.read.index_report],
            *[f"  fallback: {line}" for line in metrics.fallbacks],
        ]
        return "\n".join(lines)

    __repr__ = __str__

    def _why_unused(self) -> str:
        return "" if self.condition is None or self.read.scan.where is not None else f": {self.condition.why_unused()}"

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the DataFrame with the rows and columns of the scan; the driver reads them now if they are few."""
        lake = self.read.scan
        struct = spark_struct(lake.spark_schema)
        frame = self.choice.native
        if frame is None:
            frame = self._rows(spark, struct)
        if self.condition is not None:
            frame = frame.filter(self.condition.column(struct, lake.rules))
        if self.columns is None or list(self.columns) == struct.names:
            return frame
        names, rules = struct.names, lake.rules
        return frame.select(*[name if rules.find(names, name) is None else quoted(name) for name in self.columns])

    def _rows(self, spark: SparkSession, struct: StructType) -> DataFrame:
        """Return the planned rows. Intervals of months are read as integers, which PySpark can receive."""
        sent = without_months(struct)
        assert isinstance(sent, StructType)
        lake = self.read.scan
        frame = self._sent(spark, lake if sent == struct else replace(lake, spark_schema=sent.json()), sent)
        if sent == struct:
            return frame
        columns = []
        for field, sent_field in zip(struct.fields, sent.fields, strict=True):
            column = F.col(quoted(field.name))
            if sent_field.dataType != field.dataType:
                column = from_months(column, field.dataType).alias(field.name, metadata=field.metadata or {})
            columns.append(column)
        return frame.select(*columns)

    def _sent(self, spark: SparkSession, lake: LakeScan, struct: StructType) -> DataFrame:
        """Return the planned rows in the types of ``struct``, read by the driver or by tasks."""
        if self.choice.on_driver:
            rows = read_few(self.tasks.counted(read_task(lake, self.read.one_task())))
            if rows is not None:
                return local_rows(spark, rows, struct)
        return task_rows(spark, partial(read_task, lake), self.read.encoded(), struct, self.num_bytes, self.tasks)


def plan_scan(
    spark: SparkSession,
    target: LakeTarget,
    where: object,
    columns: Sequence[str] | str | None,
    settings: SparkSettings,
    conf: ReadConf,
    reader: ReaderName = "auto",
) -> SparkScanPlan:
    """Plan a scan on the driver, as :func:`explain_scan` does, with given ``settings`` and rules (``conf``)."""
    refuse_secrets("url", target.target)
    one_of("reader", reader, get_args(ReaderName))
    if isinstance(columns, str):
        columns = [name.strip() for name in columns.split(",")]
    condition = None if where is None else Condition(where)
    instants = {} if condition is None else instants_of(condition.times(), conf, spark)
    parallelism = parallelism_of(spark)
    caller = CallerThread()
    jobs = SparkPlanning(spark, caller, parallelism)

    async def plan(session: Session, *, samples: bool) -> tuple[OpenLake, LakePlan]:
        opened = await open_lake(session, target, conf)
        wanted: list[str] | None = None
        if columns is not None and ("*" not in columns or "*" in opened.struct.names):
            wanted = [opened.known_top(name) for name in columns]
            wanted += [] if condition is None else condition.names(opened.struct, conf)
            wanted = wanted or opened.struct.names[:1]
        terms = None if condition is None else condition.terms(opened.struct, opened.schema, conf, instants)
        may_sample = samples and may_reach(spark, opened, asked=reader == "spark")
        return opened, await plan_lake(
            opened,
            settings=settings,
            columns=wanted,
            where=terms,
            parallelism=parallelism,
            jobs=jobs,
            may_sample=may_sample,
        )

    def plan_here(*, samples: bool) -> SparkScanPlan:
        work = partial(plan, samples=samples)
        opened, read = caller.serve(
            lambda: run_on_worker(settings, lambda session: caller.interruptible(work(session)))
        )
        return scan_plan(spark, opened, read, reader, condition=condition, columns=columns)

    planned = plan_here(samples=reader != "asyncpq")
    if planned.reader == "asyncpq" and planned.read.is_sampled:
        planned = plan_here(samples=False)
    logger.info("%s", planned.summary)
    return planned


def scan_plan(
    spark: SparkSession,
    opened: OpenLake,
    read: LakePlan,
    reader: ReaderName,
    *,
    condition: Condition | None = None,
    columns: Sequence[str] | None = None,
) -> SparkScanPlan:
    """Choose the reader of a planned read; return the plan of the scan."""
    if needs_jvm_zone(read) or read.unopened:
        read = replace(read, scan=with_jvm_zone(spark, read.scan))
    row_s = _clock(spark).row_s()
    choice = choose_reader(spark, opened, read, reader, parallelism=parallelism_of(spark), row_s=row_s)
    name = f"asyncpq scan, {read.num_files} of {read.metrics.files_total} files, {read.num_bytes} bytes"
    return SparkScanPlan(
        read=read,
        condition=condition,
        columns=None if columns is None else tuple(columns),
        choice=choice,
        tasks=TaskMetrics.of(spark, name),
    )


def with_jvm_zone(spark: SparkSession, lake: LakeScan) -> LakeScan:
    """Return the scan with the time zone of Spark's JVM, which old timestamps need."""
    return replace(lake, rules=replace(lake.rules, jvm_time_zone=_jvm_zone(spark)))


def _struct(schema: StructType | str | None) -> StructType | None:
    if not isinstance(schema, str):
        return schema
    parsed: Any = StructType.fromDDL(schema)
    return StructType(parsed.fields)


def _jvm_zone(spark: SparkSession) -> str:
    """Return the time zone of Spark's JVM. The zone is queried once for each application, since a query takes a job."""
    application = str(spark.conf.get("spark.app.id", "") or "")
    zone = _zones.get(application)
    if zone is None or not application:
        zone = _zones[application] = jvm_time_zone(spark)
    return zone


_zones: dict[str, str] = {}


def _clock(spark: SparkSession) -> RowClock:
    """Return the clock of the application, whose accumulators its tasks share."""
    context = context_of(spark)
    if context is None:
        return _clocks.setdefault("", RowClock(None, None))
    name = str(context.applicationId)
    if name not in _clocks:
        _clocks[name] = RowClock(context.accumulator(0.0), context.accumulator(0.0))
    return _clocks[name]


_clocks: dict[str, RowClock] = {}


def parallelism_of(spark: SparkSession) -> int:
    """Return the number of tasks that run at once, or a default if Spark does not reveal that number."""
    for name in ("spark.sql.leafNodeDefaultParallelism", "spark.default.parallelism"):
        value = spark.conf.get(name, None)
        if value is not None and value.isdigit():
            return max(1, int(value))
    context = context_of(spark)
    return _DEFAULT_PARALLELISM if context is None else max(1, context.defaultParallelism)


# -- rows -----------------------------------------------------------------------------------------


#: Reads the rows of one task from its encoded part of the plan. Picklable.
TaskReader: TypeAlias = Callable[[bytes], Iterator[pa.RecordBatch]]


def task_rows(
    spark: SparkSession,
    read: TaskReader,
    tasks: Sequence[bytes],
    struct: StructType,
    num_bytes: int,
    metrics: TaskMetrics,
) -> DataFrame:
    """Return the rows that ``read`` yields for each of ``tasks``, as a DataFrame whose size Spark estimates at
    ``num_bytes``. Tasks add what they read to ``metrics``."""
    if not tasks:
        return local_rows(spark, [], struct)
    numbers, columns = _padding(spark, num_bytes)
    if sum(map(len, tasks)) <= MOST_CLOSURE_BYTES:
        step = -(-numbers // len(tasks))
        rows = spark.range(0, len(tasks) * step, 1, len(tasks))
        if step > 1:
            rows = rows.filter(f"id % {step} = 0").selectExpr("id", *columns)
        return rows.mapInArrow(metrics.named(read_numbers, read, tuple(tasks), step, _clock(spark), metrics), struct)
    table = pa.table({"number": pa.array(range(len(tasks)), pa.int32()), "split": pa.array(tasks, pa.binary())})
    rows = spark.createDataFrame(table).selectExpr("*", *columns)
    none = spark.range(0, numbers, 1, 1).filter("id % 2 < 0")  # empty, but Spark's optimizer does not know that
    rows = rows.union(none.selectExpr("int(id) AS number", "binary('') AS split", *columns))
    return rows.repartitionById(len(tasks), "number").mapInArrow(
        metrics.named(read_rows, read, _clock(spark), metrics), struct
    )


def _padding(spark: SparkSession, num_bytes: int) -> tuple[int, tuple[str, ...]]:
    """Return the number of input rows whose size Spark estimates at ``num_bytes``, and SQL of their other columns.

    The number is rounded up by at most an eighth, since Spark compiles a new plan for each distinct number.
    """
    counts_rows = spark.conf.get("spark.sql.cbo.enabled", "false") == "true"
    most_bytes, row_bytes = (_MOST_NUMBERS_BYTES, _NUMBER_BYTES) if counts_rows else (_MOST_BYTES, _WIDE_ROW_BYTES)
    number = min(num_bytes, most_bytes) // row_bytes
    digits = max(0, number.bit_length() - 4)
    return max(1, -(-number >> digits) << digits), () if counts_rows else (_WIDE,)


def read_numbers(
    read: TaskReader,
    tasks: Sequence[bytes],
    step: int,
    clock: RowClock,
    metrics: TaskMetrics,
    numbers: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of ``tasks[number // step]`` for all numbers in the batches. Runs on executors."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from clock.timed(metrics.counted(read(tasks[number // step])))


def read_rows(
    read: TaskReader, clock: RowClock, metrics: TaskMetrics, tasks: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read tasks, and yield the rows that ``read`` returns for each. Runs on executors, by ``mapInArrow``.

    Each row of ``tasks`` has an encoded task (bytes) in its second column.
    """
    for batch in tasks:
        for split in batch.column(1).to_pylist():
            yield from clock.timed(metrics.counted(read(split)))


# -- plans of very many files ---------------------------------------------------------------------


#: Files of one job, whose results the driver gets at once: with footers, about 1 KiB each, at most 16 KiB.
JOB_FILES: Final = 16_384
_TASK_FILES: Final = 256  # at most, of one task
_LEAST_TASK_FILES: Final = 16
_TASKS: Final = 4  # for each task that runs at once: files differ in cost

_RESULTS: Final = pa.schema({"id": pa.int64(), "payload": pa.binary()})


@dataclass(frozen=True)
class PlanFiles:
    """A function for ``mapInArrow`` that plans the files of tasks."""

    lake: LakeScan  # with the condition
    skips: bool  # bad files are left out
    num_files: int  # files that are planned together, which tell how large their pieces may be

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for row in batch.to_pylist():
                planned = run_on_worker(self.lake.settings, partial(self._plan, pickle.loads(row["payload"])))
                yield pa.record_batch({"id": [row["id"]], "payload": [pickle.dumps(planned)]}, _RESULTS)

    async def _plan(self, files: Sequence[DataFile], session: Session) -> PlannedChunk:
        task_bytes = self.lake.settings.split_bytes
        return await PlannedChunk.of(
            self.lake, files, session, skips=self.skips, num_files=self.num_files, task_bytes=task_bytes
        )


@dataclass(frozen=True)
class SparkPlanning:
    """Plans files in Spark jobs, which the caller's thread starts: :class:`asyncpq.distributed.PlanningJobs`."""

    spark: SparkSession
    caller: CallerThread
    parallelism: int  # number of tasks that run at once

    async def chunks(self, scan: TaskScan, files: Sequence[DataFile], *, skips: bool) -> AsyncGenerator[PlannedChunk]:
        """Plan ``files`` in Spark jobs; yield what each task planned, of consecutive files, in the order of ``files``.

        Args:
            skips: leave out files that cannot be read, instead of failing.

        Raises:
            AsyncpqError: of a task that failed after all retries.
        """
        assert isinstance(scan, LakeScan)
        work = PlanFiles(scan, skips, len(files))
        for start in range(0, len(files), JOB_FILES):
            some = files[start : start + JOB_FILES]
            text = f"asyncpq plans {scan.url}: files {start + 1:,} to {start + len(some):,} of {len(files):,}"
            results = await self.caller.call(partial(self._results, work, some, text))
            for payload in results.sort_by("id").column("payload"):
                planned: PlannedChunk = pickle.loads(payload.as_buffer())
                yield planned

    def _results(self, work: PlanFiles, files: Sequence[DataFile], text: str) -> Any:
        wanted = -(-len(files) // (_TASKS * self.parallelism))
        step = min(_TASK_FILES, max(_LEAST_TASK_FILES, wanted))
        payloads = [pickle.dumps(_shipped(files[at : at + step])) for at in range(0, len(files), step)]
        planned = mapped_tasks(self.spark, work, payloads, _RESULTS)
        with described_jobs(self.spark, text), raised_as_asyncpq():
            return planned.toArrow()


def _shipped(files: Sequence[DataFile]) -> list[DataFile]:
    """Return copies of the files without the attributes that tasks do not need."""
    return [replace(file, bounds={}) for file in files]


# -- what tasks have read -------------------------------------------------------------------------


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
