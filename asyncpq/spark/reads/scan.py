"""Scans as DataFrames: the driver plans, tasks read (or the driver, if the rows are few), Spark filters."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, Unpack, get_args

from pyspark.sql import functions as F  # noqa: N812  (PySpark's own documentation calls it so)
from pyspark.sql.types import StructType

from asyncpq import Session
from asyncpq.distributed import read_task, run_on_worker
from asyncpq.errors import plural
from asyncpq.options import one_of
from asyncpq.spark.driver import CallerThread, context_of
from asyncpq.spark.reads.conditions import Condition, instants_of, quoted
from asyncpq.spark.reads.lake_scan import LakePlan, LakeScan, SparkPlanning, needs_jvm_zone, plan_lake, spark_struct
from asyncpq.spark.reads.opened_lake import LakeTarget, OpenLake, open_lake
from asyncpq.spark.reads.reader_choice import ReaderChoice, ReaderName, choose_reader
from asyncpq.spark.reads.spark_files import may_reach
from asyncpq.spark.reads.task_rows import TaskMetrics, local_rows, read_few, row_seconds, task_rows
from asyncpq.spark.settings import ScanKeywords, SparkSettings, refuse_secrets, split_settings
from asyncpq.spark.types.read_conf import ReadConf, jvm_time_zone
from asyncpq.spark.types.special_types import from_months, without_months

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


logger: logging.Logger = logging.getLogger(__name__)

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

    Each call plans anew, with the files and versions that exist then.

    Args:
        url: a prefix, a pattern, a file, a list of urls (folders end in a slash), or a table.
        where: an asyncpq expression, a filter list as pyarrow's ``filters=``, a condition in Spark's SQL, or a PySpark
            column. Spark applies the condition with its own semantics; asyncpq skips data that cannot match.
        columns: names, or dotted paths of struct fields, as a list or as one text with commas; None for all.
        index, view: as in :meth:`asyncpq.Session.open_dataset`.
        reader: "auto": the reader that probably takes less time; few rows are read by the driver, at this call.
            "asyncpq": tasks of asyncpq read the planned rows, of the planned versions. "spark": Spark's own reader
            reads the planned files whole, and only the columns that the query uses; it does not notice files that are
            replaced after the call.
        options: ``schema``: columns as ``spark.read.schema()`` takes them; without it, those of the first file, as
            Spark infers them. ``format``, ``version``, ``schema_policy``, ``partitioning``, ``partition_types`` and
            ``on_bad_file``: as in :meth:`asyncpq.Session.open_dataset`. Attributes of
            :class:`asyncpq.spark.SparkSettings`, which override ``spark.asyncpq.*``.

    Raises:
        InvalidOptionError: an option is unknown or invalid.
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
    """Plan :func:`scan` with the same arguments and errors, and return the plan to print or inspect.

    No rows are read, unless the driver reads them in :meth:`SparkScanPlan.frame`. Spark may run one small query to
    resolve time zones, and lists the files if its own reader is chosen.
    """
    of_lake, settings = split_settings(options, ScanKeywords)
    schema = _struct(of_lake.pop("schema", None))
    target = LakeTarget(target=url, index=index, view=view, schema=schema, **of_lake)
    return plan_scan(spark, target, where, columns, SparkSettings.of(spark, settings), ReadConf.of(spark), reader)


@dataclass(frozen=True, kw_only=True)
class SparkScanPlan:
    """The plan of a :func:`scan`, to print, to inspect or to convert to a DataFrame. Made by :func:`explain_scan`.

    Attributes:
        read: the planned files and tasks, asyncpq's own; :attr:`files`, :attr:`splits` and :attr:`num_bytes` sum them
            up.
        condition: selects the rows to return, as Spark applies it; None for all rows.
        columns: names of the columns to return; None for all columns.
        choice: the reader, with the reason, which :attr:`reader` and :attr:`reason` return.
        tasks: counts what the tasks read, which :attr:`task_counts` returns.
    """

    read: LakePlan
    condition: Condition | None
    columns: tuple[str, ...] | None
    choice: ReaderChoice
    tasks: TaskMetrics

    @property
    def task_counts(self) -> Mapping[str, int]:
        """Counts of what the tasks of :meth:`frame`, or the driver, have read so far, by attribute of
        :class:`asyncpq.ReadMetrics`, such as ``requests``. Tasks that run twice count twice; other reads of the driver
        at the same time count, too. Empty if Spark's own reader reads the files, and in Spark Connect."""
        return self.tasks.counts()

    @property
    def reader(self) -> Literal["asyncpq", "spark"]:
        """The reader of the rows: asyncpq or Spark's own reader."""
        return self.choice.reader

    @property
    def reason(self) -> str:
        """Text on why this reader was chosen, and whether it reads on the driver."""
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
        """The plan as one line of text, as it is logged."""
        lake, metrics = self.read.scan, self.read.metrics
        return (
            f"scan of {lake.url}: {self.files:,} of {plural(metrics.files_total, 'file')}, {self.num_bytes:,} bytes, "
            f"at most {plural(self.read.num_rows, 'row')}; planned with {plural(metrics.requests, 'request')}; "
            f"read by {self.reader}, since {self.reason}"
        )

    def __str__(self) -> str:
        lake, metrics, costs = self.read.scan, self.read.metrics, self.choice.costs
        lines = [
            f"scan of {lake.url} ({lake.view}: {lake.description})",
            f"  where: {self.condition or 'all rows'}",
            f"  pruned by: {'nothing' if lake.where is None else lake.where}{self._why_unused()}",
            f"  columns: {', '.join(map(str, lake.columns))}",
            f"  files: {metrics.files_total:,}, ruled out unopened {metrics.files_ruled_out:,}, to read {self.files:,}",
            f"  splits: {len(self.read):,}, {self.read.num_bytes:,} bytes",
            f"  planning: {plural(metrics.requests, 'request')}, {metrics.bytes_fetched:,} bytes",
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
        """Return the DataFrame with the rows and columns of the scan, as :func:`scan` returns it. The driver reads few
        rows during this call, which then raises the errors of the read; else Spark raises them when it runs the
        DataFrame."""
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
    row_s = row_seconds(spark)
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


def parallelism_of(spark: SparkSession) -> int:
    """Return the number of tasks that run at once, or a default if Spark does not reveal that number."""
    for name in ("spark.sql.leafNodeDefaultParallelism", "spark.default.parallelism"):
        value = spark.conf.get(name, None)
        if value is not None and value.isdigit():
            return max(1, int(value))
    context = context_of(spark)
    return _DEFAULT_PARALLELISM if context is None else max(1, context.defaultParallelism)
