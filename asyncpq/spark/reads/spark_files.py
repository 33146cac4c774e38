"""Read the files that a plan has left with Spark's own Parquet reader.

Spark gets the planned columns as its schema, and exactly the planned files: Spark's listing is compared with the plan,
and after it asyncpq looks at the files again, to see that they still have the planned versions. Spark does not notice
a file that is replaced after that.

With ``spark.sql.parquet.filterPushdown``, Spark pushes conditions on columns into Parquet files, where some skip rows
that match: those on floats (NaN beside bounds without NaN), on timestamps (a file's milliseconds), on decimals (a
file's narrower integers), and on dates of the old calendar (days that it lacks). Such columns go through an expression
that returns its argument, and on which Spark pushes no condition. If the plan knows how all files store a timestamp, a
date or a decimal, it stays as it is. All fields of structs go through such an expression: of dictionaries in structs,
pyarrow's writer does not count the nulls of null structs, and Spark would skip these for IS NULL.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from asyncpq.distributed import run_on_worker
from asyncpq.engine.target_facts import url_facts
from asyncpq.spark.driver import context_of
from asyncpq.spark.reads.conditions import quoted
from asyncpq.spark.reads.lake_scan import LakePlan, is_stored_alike, spark_struct
from asyncpq.spark.reads.opened_lake import OpenLake
from asyncpq.spark.types.read_conf import HAS_NANOSECONDS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession


#: Hadoop's names of the protocols that Spark may read.
_HADOOP: Final = {"file": "file", "s3": "s3a", "s3a": "s3a", "gs": "gs", "abfs": "abfs", "abfss": "abfss"}
#: Above so many paths Spark lists them by a job with a task for each.
_MOST_PATHS: Final = 32
_MOST_NAMES: Final = 1000  # in a pattern
_GLOB: Final = frozenset("{}[]*?\\,")
#: Characters of paths that the JVM returns at once. Answers above 8 KiB wait 40 ms for the acknowledgement of their
#: first packets.
_JOINED: Final = 6000
#: Conditions on these types may skip matching rows of Parquet files.
_NOT_PUSHED: Final = (
    T.FloatType,
    T.DoubleType,
    T.DecimalType,
    T.DateType,
    T.TimestampType,
    T.TimestampNTZType,
    T.TimeType,
    T.DayTimeIntervalType,
    T.YearMonthIntervalType,
)
#: Neither may conditions on these, but only in structs.
_NOT_PUSHED_IN_STRUCTS: Final = (T.BooleanType, T.IntegralType, T.StringType, T.BinaryType)


_MICROS: Final = frozenset({pa.timestamp("us"), pa.timestamp("us", "UTC")})


class NotForSpark(Exception):  # noqa: N818  # a reason, which a plan reports
    """Spark's own reader does not read the plan's files; the message says why."""


@dataclass(frozen=True, slots=True)
class _Place:
    """The folders or files that Spark's reader is to list, and the names that it selects in them."""

    paths: Sequence[str]
    names: Sequence[str] = ()  # of the files in these folders; empty: all


def spark_frame(spark: SparkSession, opened: OpenLake, plan: LakePlan, *, asked: bool) -> DataFrame:
    """Return the rows of the plan's files, each read whole by Spark's own reader, with the plan's columns.

    ``asked``: the caller asked for Spark's reader, so it is tried on stores that Spark's settings do not name.

    Raises:
        NotForSpark: Spark's reader might return other rows, or cannot read the files.
        ObjectChangedError: a file was replaced or deleted while the plan was made.
    """
    struct = spark_struct(plan.scan.spark_schema)
    root = _check(spark, opened, plan, asked=asked)
    check = partial(plan.check_versions, folder=root)
    pushed = _always_pushed(opened, plan)
    with ThreadPoolExecutor(1, "asyncpq-versions") as thread:
        for place in _places(root, plan):
            listed = _listed(spark, opened, struct, root, place)
            checked = thread.submit(run_on_worker, plan.scan.settings, check)  # beside the calls of the JVM
            try:
                frame = _selected(listed, struct, pushed)
                is_alike = frame.schema == struct
            except PySparkException as error:  # in Spark Connect, also those of the listing
                raise _cannot_read(error) from error
            if not is_alike:
                raise NotForSpark("Spark would return other types")
            if _is_planned(_files_of(spark, listed), plan.versions):
                break
        else:
            raise NotForSpark("Spark lists other files than asyncpq has planned")
        checked.result()
    return frame


def _check(spark: SparkSession, opened: OpenLake, plan: LakePlan, *, asked: bool) -> str:
    """Return the url of the folder that has all files. Raises NotForSpark if Spark's reader cannot take them."""
    if opened.differs:
        raise NotForSpark(opened.differs)
    if HAS_NANOSECONDS in plan.facts:
        raise NotForSpark(f"files have {HAS_NANOSECONDS}")
    urls = list(plan.versions)
    if plan.num_files > len(urls):
        raise NotForSpark(f"Spark's listing of {plan.num_files} files is not compared with the plan: they are too many")
    if any(validator is None for validator in plan.versions.values()):
        raise NotForSpark("the store does not identify versions of files")
    protocols = {url_facts(url).protocol for url in urls}
    if len(protocols) > 1 or not protocols <= _HADOOP.keys():
        raise NotForSpark(f"Spark does not read {', '.join(sorted(protocols))} urls as asyncpq does")
    if any(url_facts(url).hidden for url in urls):
        raise NotForSpark("Spark does not read files whose names begin with _ or ., or end in _$folder$")
    scheme = _HADOOP[protocols.pop()]
    if scheme != "file" and not asked and not _is_configured(spark, scheme):
        raise NotForSpark(f"no setting spark.hadoop.fs.{scheme}.* tells that Spark can read the store")
    if scheme == "s3a" and not _is_same_endpoint(spark, plan.scan.settings.storage):
        raise NotForSpark("spark.hadoop.fs.s3a.endpoint is not the endpoint of asyncpq's storage options")
    root = opened.state.url
    if not root.endswith("/") and not all(url.startswith(f"{root}/") for url in urls):
        if opened.partitions:
            raise NotForSpark("the folders' names are columns, and the lake is not a folder")
        root = _common_folder(urls)
    if not _GLOB.isdisjoint(root):
        raise NotForSpark("Spark reads the folder's name as a pattern")
    return _folder(root)


def may_reach(spark: SparkSession, opened: OpenLake, *, asked: bool) -> bool:
    """Return whether Spark's own reader may read the lake, as far as its url and columns tell."""
    scheme = _HADOOP.get(url_facts(opened.state.url).protocol)
    return not opened.differs and (
        scheme == "file" or (scheme is not None and (asked or _is_configured(spark, scheme)))
    )


def _is_configured(spark: SparkSession, scheme: str) -> bool:
    return any(name.startswith(f"spark.hadoop.fs.{scheme}.") for name in spark.conf.getAll)


def _is_same_endpoint(spark: SparkSession, storage: Mapping[str, Any]) -> bool:
    """Return whether Hadoop and asyncpq have the same endpoint of S3, by their settings."""
    options = storage.get("s3") or {}
    own = options.get("endpoint_url") or (options.get("client_kwargs") or {}).get("endpoint_url")
    hadoop = spark.conf.get("spark.hadoop.fs.s3a.endpoint", None)
    return _host(own) == _host(hadoop)


def _host(endpoint: str | None) -> str:
    """Return host and port of an endpoint; "" for those of AWS."""
    host = (endpoint or "").rpartition("://")[2].strip("/").lower()
    return "" if host.endswith(".amazonaws.com") else host


def _common_folder(urls: Sequence[str]) -> str:
    folders = [url.rpartition("/")[0].split("/") for url in urls]
    first, last = min(folders), max(folders)
    same = next((at for at, (one, other) in enumerate(zip(first, last, strict=False)) if one != other), len(first))
    return "/".join(first[: min(same, len(last))]) + "/"


def _listed(spark: SparkSession, opened: OpenLake, struct: T.StructType, root: str, place: _Place) -> DataFrame:
    """Return the files of a place as Spark's reader lists them. Raises NotForSpark if Spark cannot read them."""
    reader = spark.read.schema(_with_partitions(struct, opened))
    if place.names:
        reader = reader.option("pathGlobFilter", f"{{{','.join(place.names)}}}")
    if opened.partitions:
        reader = reader.option("basePath", _hadoop_path(root))
    else:
        reader = reader.option("recursiveFileLookup", "true")  # folders named key=value are no columns
    try:
        return reader.parquet(*[_hadoop_path(path) for path in place.paths])
    except PySparkException as error:
        raise _cannot_read(error) from error
    except Exception as error:  # py4j raises Hadoop's errors by classes of its own
        raise NotForSpark(f"Spark cannot read the files: {type(error).__name__}") from error


def _cannot_read(error: PySparkException) -> NotForSpark:
    return NotForSpark(f"Spark cannot read the files: {str(error).strip().splitlines()[0]}")


def _files_of(spark: SparkSession, frame: DataFrame) -> list[str]:
    """Return ``frame.inputFiles()``. That calls the JVM twice for each file, so here the JVM joins their paths if it
    may be reached."""
    context = context_of(spark)
    java = getattr(frame, "_jdf", None)
    if context is None or java is None:
        return frame.inputFiles()
    paths = java.inputFiles()
    jvm: Any = context._jvm  # noqa: SLF001  # PySpark has no public way
    join = jvm.org.apache.hadoop.util.StringUtils.join
    step = max(1, _JOINED // (len(paths[0]) + 1)) if len(paths) else 1
    texts = [join("\n", paths[start : start + step]) for start in range(0, len(paths), step)]
    return [path for text in texts for path in text.split("\n")]  # paths are urls, which have no line breaks


def _places(root: str, plan: LakePlan) -> Iterator[_Place]:
    """Yield what Spark may list: the whole lake if no file was ruled out; then some files, or some folders or the lake
    with a pattern of names. The whole lake may have files that the plan does not know. Raises NotForSpark if Spark
    would read a name as a pattern, or gets too many names."""
    urls = list(plan.versions)
    if len(urls) == plan.metrics.files_total and root == _folder(plan.scan.url):
        yield _Place([root])
    if len(urls) <= _MOST_PATHS:
        if not all(_GLOB.isdisjoint(url) for url in urls):
            raise NotForSpark("Spark reads a name of the files as a pattern")
        yield _Place(urls)
        return
    names = sorted({url.rpartition("/")[2] for url in urls})
    if len(names) > _MOST_NAMES or not all(_GLOB.isdisjoint(name) for name in names):
        raise NotForSpark(f"Spark lists at most {_MOST_NAMES} files by their names")
    folders = sorted({url.rpartition("/")[0] + "/" for url in urls})
    nested = any(later.startswith(folder) for folder, later in itertools.pairwise(folders))
    few = len(folders) <= _MOST_PATHS and not nested and all(_GLOB.isdisjoint(folder) for folder in folders)
    yield _Place(folders if few else [root], names)


def _folder(url: str) -> str:
    return url if url.endswith("/") else f"{url}/"


def _hadoop_path(url: str) -> str:
    """Return the url or path as Hadoop takes it, which does not decode ``%xx`` either."""
    facts = url_facts(url)
    return f"{_HADOOP[facts.protocol]}://{facts.key}"


def _is_planned(paths: Sequence[str], urls: Collection[str]) -> bool:
    """Return whether Spark's files, by their percent-encoded urls, are the planned ones."""
    if len(paths) != len(urls):
        return False
    planned = [_plain_path(_hadoop_path(url)) for url in urls]
    return sorted([_plain_path(unquote(path)) for path in paths]) == sorted(planned)


def _plain_path(url: str) -> str:
    """Return one spelling of Hadoop's urls of local files, which have one slash or three."""
    return "/" + url[len("file:") :].lstrip("/") if url.startswith("file:") else url


# -- columns --------------------------------------------------------------------------------------


def _partition_names(opened: OpenLake) -> set[str]:
    """Return the names of the columns in paths, as ``opened.struct`` spells them."""
    return {opened.struct.names[place] for place in opened.columns(opened.partitions)}


def _with_partitions(struct: T.StructType, opened: OpenLake) -> T.StructType:
    """Return the columns and, behind them, other columns in paths: Spark reads these whether they are asked for."""
    rest = _partition_names(opened) - set(struct.names)
    return T.StructType([*struct.fields, *[field for field in opened.struct.fields if field.name in rest]])


def _always_pushed(opened: OpenLake, plan: LakePlan) -> set[str]:
    """Return names of columns whose conditions Spark may push into files, although not for all columns of their types:
    values of paths, and values that all files certainly store as Spark has them."""
    pushed = _partition_names(opened)
    for field, arrow in zip(opened.struct.fields, opened.schema, strict=True):
        dtype, stored = field.dataType, arrow.type
        micros = isinstance(dtype, T.TimestampType | T.TimestampNTZType) and stored in _MICROS
        exact = isinstance(dtype, T.DecimalType) and stored == pa.decimal128(dtype.precision, dtype.scale)
        if is_stored_alike(plan) and (micros or exact or isinstance(dtype, T.DateType)):
            pushed.add(field.name)
    return pushed


def _selected(frame: DataFrame, struct: T.StructType, pushed: Collection[str]) -> DataFrame:
    """Return the columns of ``struct``, some of them as expressions of their values; see :func:`_held`."""
    held = [field for field in struct.fields if _is_held(field, pushed)]
    if not held and frame.columns == struct.names:
        return frame
    if any(isinstance(field.dataType, T.StructType) or field.metadata for field in held):
        return frame.select(*[_column(field, is_held=field in held) for field in struct.fields])
    # the same as SQL: PySpark calls the JVM several times for each function
    return frame.selectExpr(*[_sql(field, is_held=field in held) for field in struct.fields])


def _column(field: T.StructField, *, is_held: bool) -> Column:
    column = F.col(quoted(field.name))
    return _held(column, field.dataType).alias(field.name, metadata=field.metadata or {}) if is_held else column


def _sql(field: T.StructField, *, is_held: bool) -> str:
    name = quoted(field.name)
    if not is_held:
        return name
    function = "nanvl" if isinstance(field.dataType, (T.FloatType, T.DoubleType)) else "greatest"
    return f"{function}({name}, {name}) AS {name}"


def _is_held(field: T.StructField, pushed: Collection[str]) -> bool:
    return field.name not in pushed and _loses_rows(field.dataType)


def _loses_rows(dtype: T.DataType, *, is_field: bool = False) -> bool:
    """Return whether conditions that Spark pushes into files may skip matching rows."""
    if isinstance(dtype, T.StructType):
        return any(_loses_rows(field.dataType, is_field=True) for field in dtype.fields)
    return isinstance(dtype, _NOT_PUSHED) or (is_field and isinstance(dtype, _NOT_PUSHED_IN_STRUCTS))


def _held(column: Column, dtype: T.DataType) -> Column:
    """Return an expression with the values of ``column``, of a type that :func:`_loses_rows`, on which Spark pushes no
    condition into files: on structs, it pushes those on their fields."""
    if isinstance(dtype, (T.FloatType, T.DoubleType)):
        return F.nanvl(column, column)
    if not isinstance(dtype, T.StructType):
        return F.greatest(column, column)
    held = column
    for field in dtype.fields:
        if _loses_rows(field.dataType, is_field=True):
            held = held.withField(quoted(field.name), _held(column.getField(field.name), field.dataType))
    return held
