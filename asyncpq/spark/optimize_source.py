"""The source of a rewrite: its files and its reader, with nanosecond timestamps converted to microseconds.

Spark has no nanoseconds. With ``spark.sql.legacy.parquet.nanosAsLong`` it reads INT64 nanoseconds as BIGINT, mixes them
up with other units in other files, and drops the last three digits of INT96, all without an error. So asyncpq checks
the files on executors.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, Literal, Self, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own documentation calls it so)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StructType

from asyncpq import BloomFilter, Session, View, WriteOptions
from asyncpq.distributed import LakeWrite, run_on_worker
from asyncpq.engine.target_facts import safe_url, url_facts
from asyncpq.errors import InvalidOptionError, SchemaMismatchError, UnsupportedFeatureError
from asyncpq.options import one_of, require_whole
from asyncpq.spark.driver import held_settings, raised_as_asyncpq
from asyncpq.spark.reads.predicates import filter_column, quoted
from asyncpq.spark.reads.scan import explain_scan, scan
from asyncpq.spark.row_layout import transform_copy
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.types.read_conf import ReadConf, inner_types

#: The setting with which Spark reads nanoseconds.
NANOS_AS_LONG: Final = "spark.sql.legacy.parquet.nanosAsLong"

_types: Any = pa.types  # its functions lack annotations
_PROBLEMS: Final = pa.schema([("url", pa.string()), ("column", pa.string()), ("problem", pa.string())])
_FILES_A_TASK: Final = 32


def has_nanoseconds(dtype: pa.DataType) -> bool:
    """Return whether an Arrow type contains nanosecond timestamps at any depth, as asyncpq also reads INT96."""
    return _holds(dtype, lambda timestamp: bool(timestamp.unit == "ns"))


def in_microseconds(frame: DataFrame, schema: pa.Schema, *, zoneless: bool = True) -> DataFrame:
    """Convert BIGINT columns that hold nanoseconds, as Spark reads them with :data:`NANOS_AS_LONG`, to timestamps,
    rounded down. ``schema``: the Arrow types of the columns in the files.

    With ``zoneless``, timestamps that are not adjusted to UTC become TIMESTAMP_NTZ, as Spark reads them by default.
    """
    changed = numbers_of(frame, schema)
    columns = []
    for field in frame.schema.fields:
        column = F.col(quoted(field.name))
        if field.name in changed:
            column = _converted(column, field.dataType, schema.field(field.name).type, zoneless).alias(field.name)
        columns.append(column)
    return frame.select(*columns)


def numbers_of(frame: DataFrame, schema: pa.Schema) -> list[str]:
    """Return the names of the columns whose nanoseconds Spark reads as BIGINT, which :func:`in_microseconds`
    converts."""
    types = {field.name: field.type for field in schema}
    return [
        field.name
        for field in frame.schema.fields
        if field.name in types and _has_long(field.dataType, types[field.name])
    ]


@dataclass(frozen=True)
class TimestampSearch:
    """A function for ``mapInArrow`` that searches files for timestamps that Spark cannot read exactly. Column names
    are in lower case."""

    columns: frozenset[str]  # that must not lose digits
    numbers: frozenset[str]  # that Spark reads as BIGINT
    settings: SparkSettings

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield url, column and problem ("unit" or "digits") for the files whose urls are in ``batches``."""
        for batch in batches:
            problems = [item for url in batch.column("url").to_pylist() for item in self._search(url)]
            yield pa.RecordBatch.from_pylist(problems, schema=_PROBLEMS)

    def _search(self, url: str) -> list[dict[str, str]]:
        async def search(session: Session) -> list[dict[str, str]]:
            async with await session.open_file(url) as file:
                exact = [field.name for field in file.schema if has_nanoseconds(field.type)]
                mixed = [name for name in file.schema.names if name.lower() in self.numbers and name not in exact]
                checked = [name for name in exact if name.lower() in self.columns]
                lossy: set[str] = set()
                if checked:
                    async with file.scan(columns=checked) as scan:
                        async for batch in scan:
                            lossy.update(name for name in checked if _has_digits(batch.column(name)))
            problems = [*((name, "unit") for name in mixed), *((name, "digits") for name in sorted(lossy))]
            return [{"url": url, "column": name, "problem": problem} for name, problem in problems]

        return run_on_worker(self.settings, search)


def check_timestamps(
    spark: SparkSession, urls: Sequence[str], settings: SparkSettings, *, columns: Sequence[str], numbers: Sequence[str]
) -> None:
    """Open all files of ``urls`` in Spark tasks, and check their nanosecond columns.

    Raises UnsupportedFeatureError if a timestamp in ``columns`` is not a whole number of microseconds, and
    SchemaMismatchError if a file has another unit in one of ``numbers``, columns that Spark reads as BIGINT.
    """
    if not urls:
        return
    lowered = frozenset(name.lower() for name in columns), frozenset(name.lower() for name in numbers)
    search = TimestampSearch(*lowered, settings)
    files = spark.createDataFrame(pa.table({"url": list(urls)})).repartition(-(-len(urls) // _FILES_A_TASK))
    with raised_as_asyncpq():
        problems = files.mapInArrow(search, from_arrow_schema(_PROBLEMS)).limit(1).collect()
    for row in problems:
        if row["problem"] == "unit":
            raise SchemaMismatchError(
                "the column has nanosecond timestamps in other files, but not in this one",
                url=safe_url(row["url"]),
                column=row["column"],
                hint="Rewrite files of each unit separately.",
            )
        raise UnsupportedFeatureError(
            "the column has timestamps with digits below a microsecond, which Spark's types cannot represent",
            url=safe_url(row["url"]),
            column=row["column"],
            hint="Pass timestamp_loss='truncate' to drop these digits. INT96 outside of the years 1677 to 2262 gives"
            " the same error.",
        )


def _holds(dtype: pa.DataType, test: Callable[[pa.DataType], bool]) -> bool:
    if _types.is_timestamp(dtype):
        return test(dtype)
    return any(_holds(dtype.field(at).type, test) for at in range(dtype.num_fields))


def _has_digits(values: Any) -> bool:
    """Return whether ``values`` contain, at any depth, nanoseconds that are not whole microseconds."""
    dtype = values.type
    if _types.is_timestamp(dtype) and dtype.unit == "ns":
        numbers = values.cast(pa.int64())
        micros = pc.multiply(pc.divide(numbers, 1000), 1000)
        return pc.any(pc.not_equal(numbers, micros)).as_py() is True
    if _types.is_struct(dtype):
        return any(_has_digits(column) for column in values.flatten())
    if _types.is_map(dtype):
        return _has_digits(values.keys) or _has_digits(values.items)
    if dtype.num_fields:
        return _has_digits(values.flatten())
    return False


def _has_long(dtype: DataType, stored: pa.DataType) -> bool:
    """Return whether a type contains, at any depth, a timestamp (``stored``) that Spark reads as BIGINT (``dtype``)."""
    return (_types.is_timestamp(stored) and isinstance(dtype, LongType)) or any(
        _has_long(*pair) for pair in _inner(dtype, stored)
    )


def _inner(dtype: DataType, stored: pa.DataType) -> list[tuple[DataType, pa.DataType]]:
    """Return the types one level inside ``dtype`` and ``stored`` (of struct fields, list elements, or map keys and
    values), as pairs of Spark's and Arrow's; empty for types without inner types."""
    if isinstance(dtype, StructType):
        return [(field.dataType, stored.field(field.name).type) for field in dtype.fields]
    parts = [inner for _, inner in inner_types(dtype)]
    if isinstance(dtype, MapType):
        return [*zip(parts, (stored.key_type, stored.item_type), strict=True)]
    return [(inner, stored.value_type) for inner in parts]


def _converted(value: Column, dtype: DataType, stored: pa.DataType, zoneless: bool) -> Column:
    if not _has_long(dtype, stored):
        return value
    inner = _inner(dtype, stored)
    if isinstance(dtype, StructType):
        fields = [
            _converted(value.getField(name), *pair, zoneless).alias(name)
            for name, pair in zip(dtype.names, inner, strict=True)
        ]
        return F.when(value.isNotNull(), F.struct(*fields))
    if isinstance(dtype, ArrayType):
        return transform_copy(value, lambda item: _converted(item, *inner[0], zoneless))
    if isinstance(dtype, MapType):
        of_keys, of_values = inner
        keys = transform_copy(F.map_keys(value), lambda key: _converted(key, *of_keys, zoneless))
        values = transform_copy(F.map_values(value), lambda item: _converted(item, *of_values, zoneless))
        return F.map_from_arrays(keys, values)
    micros = F.floor(value.cast("decimal(20,0)") / 1000)
    if stored.tz is None and zoneless:
        seconds = (micros / 1_000_000).cast("decimal(18,6)")
        return F.lit("1970-01-01").cast("timestamp_ntz") + F.make_dt_interval(secs=seconds)
    return F.timestamp_micros(micros.cast("bigint"))


TimestampLoss: TypeAlias = Literal["error", "truncate"]

#: Spark's pushed filters lose rows with NaN from files of other writers.
_FILTER_PUSHDOWN: Final = "spark.sql.parquet.filterPushdown"


_LAYOUT: Final = tuple(option.name for option in fields(WriteOptions))


@dataclass(frozen=True, kw_only=True)
class RewriteOptions:
    """The arguments of :func:`asyncpq.spark.optimize`: which rows are written, and how."""

    layout: WriteOptions
    zorder_by: Sequence[str] = ()
    columns: Sequence[str] | None = None
    where: Any = None
    partitions: int | None = None
    salt: bool = True
    timestamp_loss: TimestampLoss = "error"
    publish: Literal["index", "plain"] = "plain"
    format: str | None = None
    version: Any = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Self:
        """Check the arguments. Raises InvalidOptionError."""
        layout = {name: given[name] for name in _LAYOUT if name in given}
        blooms = [
            BloomFilter(column=item) if isinstance(item, str) else item for item in layout.pop("bloom_filters", ())
        ]
        if (named := layout.pop("dictionary_columns", None)) is not None:
            layout["dictionary_columns"] = tuple(named)
        rest = {name: value for name, value in given.items() if name not in _LAYOUT}
        options = cls(layout=WriteOptions(**layout, bloom_filters=tuple(blooms)), **rest)
        one_of("timestamp_loss", options.timestamp_loss, ("error", "truncate"))
        one_of("publish", options.publish, ("index", "plain"))
        if options.partitions is not None:
            require_whole("partitions", options.partitions)
        if options.format is not None:
            one_of("format", options.format, ("delta", "iceberg"))
        return options


@dataclass(frozen=True)
class RewriteSource:
    """The rows to rewrite, as a DataFrame, and the files that contain them."""

    frame: DataFrame  # the rows; use it inside of held_settings with ``settings``
    urls: tuple[str, ...]  # urls of the frame's files; empty if Spark lists none
    num_bytes: int | None = None  # of these files; None if unknown
    settings: Mapping[str, str] = dataclasses.field(default_factory=dict)  # for asyncpq.spark.driver.held_settings


@dataclass(frozen=True)
class _SourceFiles:
    schema: pa.Schema
    urls: tuple[str, ...]
    num_bytes: int | None
    is_listed: bool


def open_source(
    spark: SparkSession,
    source: object,
    settings: SparkSettings,
    given: Mapping[str, Any],
    options: RewriteOptions,
    folder: str,
) -> RewriteSource:
    """Open the source of a rewrite: a DataFrame as it is, local files with Spark's own reader, all else with asyncpq.

    ``given``: the settings as the caller passed them, from which ``settings`` were made.
    ``folder``: the target. Raises InvalidOptionError if
    Spark's reader lists other files than asyncpq, and UnsupportedFeatureError for a timestamp that is not whole
    microseconds, unless ``options.timestamp_loss`` is "truncate".
    """
    if isinstance(source, DataFrame):
        frame = _chosen(source, options)
        return RewriteSource(frame, tuple(source.inputFiles()))
    all_digits = replace(settings, int96_unit="ns")
    files = run_on_worker(all_digits, lambda session: _look(session, source, options.version, folder))
    wanted = {_FILTER_PUSHDOWN: "false"}
    if any(has_nanoseconds(field.type) for field in files.schema):
        wanted[NANOS_AS_LONG] = "true"
    with held_settings(spark, wanted):
        frame = _read(spark, source, files, given)
        numbers = numbers_of(frame, files.schema) if NANOS_AS_LONG in wanted else []
        if numbers:
            frame = in_microseconds(frame, files.schema, zoneless=ReadConf.of(spark).infer_timestamp_ntz)
        frame = _chosen(frame, options)
        timestamps = [field.name for field in files.schema if _holds(field.type, lambda timestamp: True)]
        exact = [
            name
            for name in timestamps
            if options.timestamp_loss != "truncate"
            and (name in frame.columns or any(_is_of(path, name) for path in options.columns or ()))
        ]
        if exact or numbers:
            check_timestamps(spark, files.urls, all_digits, columns=exact, numbers=numbers)
    return RewriteSource(frame, files.urls, files.num_bytes, wanted)


def open_table(spark: SparkSession, source: object, given: Mapping[str, Any], options: RewriteOptions) -> RewriteSource:
    """Open a table as the source of a rewrite, in one version. Its rows are read by asyncpq. ``given``: settings."""
    named = {**given, "format": options.format, "version": options.version}
    plan = explain_scan(spark, source, options.where, options.columns, reader="asyncpq", **named)
    return RewriteSource(plan.frame(spark), tuple(plan.read.versions), plan.read.whole_bytes)


def _read(spark: SparkSession, source: object, files: _SourceFiles, given: Mapping[str, Any]) -> DataFrame:
    paths = source_paths(source)
    if not files.is_listed or any(url_facts(path).protocol != "file" for path in paths):
        return scan(spark, source, reader="asyncpq", **given)
    frame = spark.read.parquet(*paths)
    seen = len(frame.inputFiles())
    if seen != len(files.urls):
        raise InvalidOptionError(
            f"Spark and asyncpq list different files: Spark's reader finds {seen} files, and asyncpq finds"
            f" {len(files.urls)}",
            url=safe_url(paths[0]),
            hint="Pass a DataFrame as the source: from spark.read with recursiveFileLookup, or asyncpq.spark.scan.",
        )
    if not {name.lower() for name in files.schema.names} <= {name.lower() for name in frame.columns}:
        return scan(
            spark, source, reader="asyncpq", **given
        )  # for patterns and single files, Spark reads no columns from paths
    return frame


def _chosen(frame: DataFrame, options: RewriteOptions) -> DataFrame:
    if options.where is not None:
        frame = frame.filter(filter_column(options.where, frame))
    if options.columns is None:
        return frame
    return frame.select(*[quoted(name) if name in frame.columns else name for name in options.columns])


def _is_of(asked: str, name: str) -> bool:
    """Return whether ``asked``, a name or dotted path, may mean the column ``name`` or a field in it, ignoring case
    and backquotes."""
    asked, name = asked.replace("`", "").lower(), name.lower()
    return asked == name or asked.startswith(f"{name}.")


async def _look(session: Session, source: Any, version: Any, folder: str) -> _SourceFiles:
    dataset = await session.open_dataset(source, version=version)
    files = await LakeWrite.check_source(session, folder, dataset)
    return _SourceFiles(dataset.schema, tuple(files.urls), files.num_bytes, dataset.view is View.LISTED)


def source_paths(source: object) -> list[str]:
    """Return the urls of a source. Raises InvalidOptionError if it is not a url or a list of urls."""
    given: Sequence[Any] = source if isinstance(source, (list, tuple)) else [source]
    if not given or not all(isinstance(url, (str, os.PathLike)) for url in given):
        raise InvalidOptionError(
            f"source: must be a url, a list of urls (at least one), a table, or a DataFrame, not"
            f" {type(source).__name__}",
            option="source",
        )
    return [os.fspath(url) for url in given]
