"""Reads as DataFrames: planned on the driver, filtered by Spark.

How large Spark takes a scan to be, which decides how it is joined.

Spark knows nothing of what ``mapInArrow`` gives, and takes it for as large as what goes in: a number a task, so that it
would broadcast any lake. So there goes in as much as is read: more numbers than tasks, the others of which are dropped
at once, beside a column without values whose type Spark takes for wide. Of columns that are selected later, it takes
their part of that, as with files of its own.

With ``spark.sql.cbo.enabled`` Spark counts the numbers, and multiplies them by the width of what is selected: there,
there are more of them, and nothing beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal

import pyarrow as pa
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own documentation calls it so)
from pyspark.sql.types import StructType

from asyncpq.errors import ColumnNotFoundError, InvalidOptionError, nearest_column
from asyncpq.options import MIB
from asyncpq.session import Session
from asyncpq.spark import sessions
from asyncpq.spark.reads.lakes import LakeTarget, OpenLake, open_lake
from asyncpq.spark.reads.planning import LakePlan, plan_lake
from asyncpq.spark.reads.predicates import Condition, instants_of, quoted
from asyncpq.spark.reads.reading import read_split, spark_struct
from asyncpq.spark.reads.splits import LakeScan
from asyncpq.spark.settings import SparkSettings, refuse_secrets
from asyncpq.spark.types.conversion import arrow_schema
from asyncpq.spark.types.read_conf import ReadConf, find_name, jvm_time_zone
from asyncpq.spark.types.special_types import from_months, without_months

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_FIELDS: Final = 20
_WIDTH: Final = _FIELDS * 100  # bytes: what Spark takes a BINARY for
_WIDE: Final = f"CAST(NULL AS STRUCT<{', '.join(f'c{at}: BINARY' for at in range(_FIELDS))}>) AS wide"
#: Spark takes a row for 8 bytes more than its columns have, and a number of a range for 8.
_WIDE_ROW_BYTES: Final = (8 + 8 + _WIDTH) // 2
_NUMBER_BYTES: Final = 8
# What is larger is large anyway, and numbers take time to be counted through: some 0.3 s, all tasks together.
_MOST_BYTES: Final = 65_536 * MIB
_MOST_NUMBERS_BYTES: Final = 512 * MIB


@dataclass(frozen=True, slots=True)
class Padding:
    """
    Attributes:
        numbers: how many; at least one.
        columns: beside them, in Spark's SQL.
    """

    numbers: int
    columns: tuple[str, ...]


def padding_for(spark: SparkSession, num_bytes: int) -> Padding:
    """What Spark takes for ``num_bytes``, or for up to an eighth more: it compiles code for each number of numbers."""
    if spark.conf.get("spark.sql.cbo.enabled", "false") == "true":
        return Padding(_rounded(min(num_bytes, _MOST_NUMBERS_BYTES) // _NUMBER_BYTES), ())
    return Padding(_rounded(min(num_bytes, _MOST_BYTES) // _WIDE_ROW_BYTES), (_WIDE,))


def _rounded(number: int) -> int:
    """At least one, and up to an eighth more."""
    digits = max(0, number.bit_length() - 4)
    return max(1, -(-number >> digits) << digits)


#: Bytes of a plan that travel with the code of its tasks, to each of them; more are spread over them.
MOST_CLOSURE_BYTES: Final = MIB
_DEFAULT_PARALLELISM: Final = 8  # where Spark does not say


def scan(
    spark: SparkSession,
    url: Any,
    where: object = None,
    columns: Sequence[str] | None = None,
    index: Any = None,
    *,
    view: Literal["snapshot", "listed", "table"] | None = None,
    format: Literal["parquet", "delta", "iceberg"] | None = None,
    version: Any = None,
    schema: StructType | str | None = None,
    schema_policy: Literal["strict", "permissive"] = "strict",
    partitioning: Literal["hive"] | Sequence[str] | None = "hive",
    partition_types: Any = None,
    on_bad_file: Literal["raise", "skip"] = "raise",
    **settings: Any,
) -> DataFrame:
    """Rows of a lake as Spark's own reader would give them, of which only those are fetched that may be wanted.

    Each call plans anew: the files, and their versions, are those that are there now.

    Args:
        url: a prefix, a pattern, a file, a list of files, or a table.
        where: which rows: an asyncpq expression, a filter list as pyarrow's ``filters=``, or a condition in Spark's
            SQL. It means what it means to Spark, and is applied by Spark; asyncpq leaves out what cannot match.
        columns: names, or dotted paths of fields in structs; None for all.
        index, view, format, version, schema_policy, partitioning, partition_types, on_bad_file: as in
            :meth:`asyncpq.Session.open_dataset`.
        schema: the columns, as ``spark.read.schema()`` takes them; None: as Spark infers them from the first file.
        settings: those of :class:`asyncpq.spark.settings.SparkSettings`, before ``spark.asyncpq.*``.

    Raises:
        AsyncpqError: the lake cannot be opened or planned.
        ColumnNotFoundError: there is no such column.
        ExpressionError: a predicate that Spark has no form for.
        AnalysisException: the predicate names no column that there is, or one of a type that does not go with it.
    """
    target = LakeTarget(
        target=url,
        index=index,
        view=view,
        format=format,
        version=version,
        schema=_struct(schema),
        schema_policy=schema_policy,
        partitioning=partitioning,
        partition_types=partition_types,
        on_bad_file=on_bad_file,
    )
    return plan_scan(spark, target, where, columns, settings).frame(spark)


def explain_scan(
    spark: SparkSession,
    url: Any,
    where: object = None,
    columns: Sequence[str] | None = None,
    index: Any = None,
    **options: Any,
) -> SparkScanPlan:
    """What :func:`scan` with these arguments would read: print it, or look at its attributes. No task
    reads the lake; what time zones mean, Spark may be asked by a small query."""
    names = set(LakeTarget.__dataclass_fields__) - {"target", "index", "schema"}
    given = {name: options.pop(name) for name in list(options) if name in names}
    target = LakeTarget(target=url, index=index, schema=_struct(options.pop("schema", None)), **given)
    return plan_scan(spark, target, where, columns, options)


@dataclass(frozen=True, kw_only=True)
class SparkScanPlan:
    """A scan, planned.

    Attributes:
        read: what its tasks read.
        condition: which rows are wanted, or None.
        columns: names of those that are wanted; None for all.
    """

    read: LakePlan
    condition: Condition | None
    columns: tuple[str, ...] | None

    @property
    def files(self) -> int:
        """Files that are read, at least in part."""
        return self.read.num_files

    @property
    def splits(self) -> int:
        """Tasks."""
        return len(self.read.splits)

    @property
    def num_bytes(self) -> int:
        """Compressed bytes that the tasks read, about."""
        return self.read.num_bytes

    @property
    def requests(self) -> int:
        """Requests that planning sent."""
        return self.read.metrics.requests

    def __str__(self) -> str:
        lake, metrics = self.read.lake, self.read.metrics
        lines = [
            f"scan of {lake.url} ({lake.view}: {lake.description})",
            f"  where: {self.condition or 'all rows'}",
            f"  pruned by: {lake.where if lake.where is not None else 'nothing'}",
            f"  columns: {', '.join(map(str, lake.columns))}",
            f"  files: {metrics.files_total}, ruled out unopened {metrics.files_ruled_out}, to read {self.files}",
            f"  splits: {len(self.read.splits)}, {self.read.num_bytes} bytes",
            f"  planning: {metrics.requests} requests, {metrics.bytes_fetched} bytes",
            *[f"  index: {line}" for line in self.read.index],
            *[f"  fallback: {line}" for line in metrics.fallbacks],
        ]
        return "\n".join(lines)

    __repr__ = __str__

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows."""
        lake = self.read.lake
        struct = spark_struct(lake.spark_schema)
        frame = _typed(spark, lake, self.read.tasks(), struct, self.num_bytes)
        if self.condition is not None:
            frame = frame.filter(self.condition.column(struct, lake.conf))
        if self.columns is None or list(self.columns) == struct.names:
            return frame
        names, conf = struct.names, lake.conf
        return frame.select(*[name if find_name(names, name, conf) is None else quoted(name) for name in self.columns])


def plan_scan(
    spark: SparkSession,
    target: LakeTarget,
    where: object,
    columns: Sequence[str] | None,
    settings: Mapping[str, Any],
) -> SparkScanPlan:
    """Plan with the driver's session."""
    refuse_secrets("url", target.target)
    if isinstance(columns, str):
        raise InvalidOptionError(f"columns={columns!r}: must be a list of names", hint=f"Write columns=[{columns!r}].")
    known = SparkSettings.of(spark, settings)
    conf = ReadConf.of(spark)
    condition = None if where is None else Condition(where)
    instants = {} if condition is None else instants_of(condition.times(), conf, spark)
    parallelism = _parallelism(spark)

    async def plan(session: Session) -> LakePlan:
        opened = await open_lake(session, target, conf)
        wanted: list[str] | None = None
        if columns is not None and ("*" not in columns or "*" in opened.struct.names):
            tops = [_top(opened, name, conf) for name in columns]
            more = [] if condition is None else condition.names(opened.struct, conf)
            wanted = [*tops, *more] or opened.struct.names[:1]

        return await plan_lake(
            opened,
            conf=conf,
            settings=known,
            columns=wanted,
            pruning=None
            if condition is None
            else lambda struct, schema, names: condition.terms(struct, schema, conf, instants),
            parallelism=parallelism,
        )

    read = sessions.run(known, plan)
    if read.needs_jvm_zone or read.unopened:
        lake = replace(read.lake, conf=replace(conf, jvm_time_zone=_jvm_zone(spark)))
        read = replace(read, lake=lake)
    return SparkScanPlan(read=read, condition=condition, columns=None if columns is None else tuple(columns))


def _top(opened: OpenLake, path: str, conf: ReadConf) -> str:
    found = opened.top(path, conf)
    if found is None:
        hint = nearest_column(path, opened.struct.names)
        raise ColumnNotFoundError("the lake has no such column", url=opened.state.url, column=path, hint=hint)
    return found


def _struct(schema: StructType | str | None) -> StructType | None:
    if not isinstance(schema, str):
        return schema
    found: Any = StructType.fromDDL(schema)
    return StructType(found.fields)


def _jvm_zone(spark: SparkSession) -> str:
    """Asked once for each application: it is a job."""
    application = str(spark.conf.get("spark.app.id", "") or "")
    zone = _zones.get(application)
    if zone is None or not application:
        zone = _zones[application] = jvm_time_zone(spark)
    return zone


_zones: dict[str, str] = {}


def _parallelism(spark: SparkSession) -> int:
    """Tasks that run at once, as far as Spark says so."""
    for name in ("spark.sql.leafNodeDefaultParallelism", "spark.default.parallelism"):
        value = spark.conf.get(name, None)
        if value is not None and value.isdigit():
            return max(1, int(value))
    try:
        return max(1, spark.sparkContext.defaultParallelism)
    except Exception:  # noqa: BLE001  # Spark Connect has no context, and says so by errors of several kinds
        return _DEFAULT_PARALLELISM


# -- rows -----------------------------------------------------------------------------------------


def _typed(
    spark: SparkSession, lake: LakeScan, tasks: Sequence[bytes], struct: StructType, num_bytes: int
) -> DataFrame:
    """The rows of all tasks; intervals of months travel as numbers."""
    sent = without_months(struct)
    assert isinstance(sent, StructType)
    if sent == struct:
        return _rows(spark, lake, tasks, struct, num_bytes)
    frame = _rows(spark, replace(lake, spark_schema=sent.json()), tasks, sent, num_bytes)
    columns = []
    for one, other in zip(struct.fields, sent.fields, strict=True):
        column = F.col(quoted(one.name))
        if other.dataType != one.dataType:
            column = from_months(column, one.dataType).alias(one.name, metadata=one.metadata or {})
        columns.append(column)
    return frame.select(*columns)


def _rows(spark: SparkSession, lake: LakeScan, tasks: Sequence[bytes], struct: StructType, num_bytes: int) -> DataFrame:
    """One task a split, however they travel; to Spark it has about ``num_bytes``."""
    if not tasks:
        return spark.createDataFrame(arrow_schema(struct).empty_table(), struct)  # without a task
    padding = padding_for(spark, num_bytes)
    if sum(map(len, tasks)) <= MOST_CLOSURE_BYTES:
        step = -(-padding.numbers // len(tasks))
        numbers = spark.range(0, len(tasks) * step, 1, len(tasks))
        if step > 1:
            numbers = numbers.filter(f"id % {step} = 0").selectExpr("id", *padding.columns)
        return numbers.mapInArrow(partial(read_numbers, lake, tuple(tasks), step), struct)
    table = pa.table({"number": pa.array(range(len(tasks)), pa.int32()), "split": pa.array(tasks, pa.binary())})
    rows = spark.createDataFrame(table).selectExpr("*", *padding.columns)
    none = spark.range(0, padding.numbers, 1, 1).filter("id % 2 < 0")  # which Spark does not see through
    rows = rows.union(none.selectExpr("int(id) AS number", "binary('') AS split", *padding.columns))
    return rows.repartitionById(len(tasks), "number").mapInArrow(partial(read_rows, lake), struct)


def read_numbers(
    lake: LakeScan, tasks: Sequence[bytes], step: int, numbers: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Runs on executors: the splits of these numbers, times ``step``."""
    for batch in numbers:
        for number in batch.column(0).to_pylist():
            yield from read_split(lake, tasks[number // step])


def read_rows(lake: LakeScan, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs on executors: the splits that came as rows."""
    for batch in rows:
        for split in batch.column(1).to_pylist():
            yield from read_split(lake, split)
