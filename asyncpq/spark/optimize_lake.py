"""Rewrite a lake for lookups: sort its rows into files with page indexes and Bloom filters, verify, commit.

The source is read with nanosecond timestamps converted to microseconds, since Spark has no nanoseconds. With
``spark.sql.legacy.parquet.nanosAsLong`` it reads INT64 nanoseconds as BIGINT, mixes them up with other units in other
files, and drops the last three digits of INT96, all without an error. So asyncpq checks the files on executors.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Final, Literal, Self, TypeAlias, Unpack

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own documentation calls it so)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import ArrayType, DataType, LongType, MapType, StructType

from asyncpq import BloomFilter, RewriteResult, Session, View, WriteOptions
from asyncpq.distributed import LakeWrite, SourceFiles, WrittenPart, run_on_worker
from asyncpq.engine.target_facts import safe_url, url_facts
from asyncpq.errors import CorruptFileError, InvalidOptionError, SchemaMismatchError, UnsupportedFeatureError
from asyncpq.options import one_of, require_whole
from asyncpq.spark.driver import described_jobs, held_settings, raised_as_asyncpq
from asyncpq.spark.lake_writer import FrameWrite, lake_folder
from asyncpq.spark.reads.conditions import filter_column, quoted
from asyncpq.spark.reads.opened_lake import LakeTarget
from asyncpq.spark.reads.scan import explain_scan, parallelism_of, scan
from asyncpq.spark.row_layout import (
    Checksums,
    RowLayout,
    checksums,
    encoded_bytes,
    find_keys,
    find_leaf,
    numbered,
    transform_copy,
)
from asyncpq.spark.settings import SettingKeywords, SparkSettings, refuse_secrets, split_settings
from asyncpq.spark.types.conversion import from_spark
from asyncpq.spark.types.read_conf import ReadConf, inner_types

#: The setting with which Spark reads nanoseconds.
NANOS_AS_LONG: Final = "spark.sql.legacy.parquet.nanosAsLong"

_types: Any = pa.types  # its functions lack annotations
_PROBLEMS: Final = pa.schema([("url", pa.string()), ("column", pa.string()), ("problem", pa.string())])
_FILES_A_TASK: Final = 32


# -- nanosecond timestamps ------------------------------------------------------------------------


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
    for read in frame.schema.fields:
        column = F.col(quoted(read.name))
        if read.name in changed:
            column = _converted(column, read.dataType, schema.field(read.name).type, zoneless).alias(read.name)
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


# -- the source -----------------------------------------------------------------------------------


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
    files = await SourceFiles.of(dataset)
    LakeWrite.check_apart(folder, files.places)
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


_PART: Final = WrittenPart(0, ()).to_arrow().schema


# -- the rewrite ----------------------------------------------------------------------------------


def _written(write: FrameWrite, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of a partition in their order; yield one batch, which describes the written files."""
    yield write.write_rows(batches).to_arrow()


def write_frame(frame: DataFrame, write: FrameWrite) -> list[WrittenPart]:
    """Write all partitions of ``frame``; return their parts in order. Files of failed attempts stay in the folder."""
    write = replace(write, struct=frame.schema, schema=from_spark(frame.schema, write.conf).schema)
    with raised_as_asyncpq():
        # mapInArrow reads dots in names as struct fields
        rows = numbered(frame).mapInArrow(partial(_written, write), from_arrow_schema(_PART)).collect()
    return WrittenPart.from_rows([row.asDict(recursive=True) for row in rows])


_SPARE: Final = 1.1  # margin, since the number of distinct values is an estimate
#: Target size of a partition as a share of ``file_bytes``: sizes are estimates, and an excess becomes another file.
_FILL: Final = 0.8
_SHOWN: Final = 5


class OptimizeLakeKeywords(SettingKeywords, total=False):
    """The keyword arguments of :func:`optimize`: which rows it writes and how, and settings."""

    zorder_by: Sequence[str]
    columns: Sequence[str] | None
    where: object
    bloom_filters: Sequence[str | BloomFilter]
    compression: str
    compression_level: int | None
    page_rows: int
    page_bytes: int
    row_group_rows: int
    row_group_bytes: int
    file_bytes: int
    dictionary_columns: Sequence[str] | None
    partitions: int | None
    salt: bool
    timestamp_loss: TimestampLoss
    publish: Literal["index", "plain"]
    format: Literal["delta", "iceberg"] | None
    version: Any


@dataclass(frozen=True, kw_only=True)
class OptimizeResult(RewriteResult):
    """Result of :func:`optimize`, with the checksums of the source's rows, which are those of the written rows."""

    checksums: Checksums = field(repr=False)


def optimize(
    spark: SparkSession,
    source: Any,
    target: str,
    sort_by: Sequence[str] | str = (),
    **options: Unpack[OptimizeLakeKeywords],
) -> OptimizeResult:
    """Rewrite the rows of ``source``, sorted, into files of which lookups read little.

    Rows are divided into ranges of ``sort_by`` and sorted within them. With ``zorder_by``, rows with equal ``sort_by``
    are sorted by their place in a z-order, so that ranges of any of these columns are in few pages. The files are read
    back and compared with the source by checksums before they are committed.

    Args:
        source: a url, files, a pattern or a table, as :meth:`asyncpq.Session.open_dataset` takes them; or a DataFrame,
            which must return the same rows each time. Spark's own reader reads local files.
        target: url of an empty folder that does not overlap the source. It becomes a lake of Parquet files: asyncpq
            does not commit to tables.
        columns: columns to write; None for all.
        where: condition of the rows to write, as in :func:`asyncpq.spark.scan`.
        bloom_filters: for columns of equality lookups that are not sorted. asyncpq measures the number of distinct
            values of a column unless its ``BloomFilter`` has one.
        compression, compression_level, page_rows, page_bytes, row_group_rows, row_group_bytes, file_bytes,
            dictionary_columns: see :class:`asyncpq.spark.WriteOptions`.
        partitions: number of writing tasks; None: enough for files of ``file_bytes``, or some more to use all cores.
        salt: divide the rows of a key among several tasks if they are more than the average rows of a task.
        timestamp_loss: "error" or "truncate", for nanosecond timestamps that are not whole microseconds.
        publish: "index": readers use the index in ``target``, which lists all files at once. "plain": readers may also
            list the folder as soon as ``_SUCCESS`` exists, the last file; a listing before shows some of the files.
        format, version: of the table at the url ``source``, as in :meth:`asyncpq.Session.open_dataset`.
        options: also settings of :class:`asyncpq.spark.settings.SparkSettings`.

    Raises:
        InvalidOptionError: ``target`` is not empty or overlaps the source, or an option is invalid.
        UnsupportedFeatureError: asyncpq cannot write a column's type, or timestamps would lose digits.
        CorruptFileError: the files differ from the source; nothing is committed, and the files are deleted.
        AsyncpqError: a store failed; written files are deleted if possible.
    """
    own, settings = split_settings(options, OptimizeLakeKeywords)
    given, frozen = RewriteOptions.of(own), SparkSettings.of(spark, settings)
    folder = lake_folder("target", target)
    seconds: dict[str, float] = {}
    with _timed(seconds, "look"):
        rows = _opened(spark, source, given, frozen, settings, folder)
        LakeWrite.check_apart(folder, rows.urls)
    with held_settings(spark, rows.settings), described_jobs(spark, f"asyncpq: optimize into {safe_url(folder)}"):
        conf = ReadConf.of(spark)
        schema = rows.frame.schema
        keys, z_keys = (
            find_keys(option, names, schema, conf)
            for option, names in (("sort_by", sort_by), ("zorder_by", given.zorder_by))
        )
        order = RowLayout(keys, z_keys)
        write = FrameWrite(
            folder=folder,
            schema=from_spark(schema, conf).schema,
            struct=schema,
            options=replace(given.layout, sorted_by=order.sorted_by()),
            conf=conf,
            settings=frozen,
            publish=given.publish,
        )
        write.check()
        with _timed(seconds, "measure"):
            known = _measure(rows, write, given.partitions)
        write = replace(write, options=known.layout)
        try:
            with _timed(seconds, "write"):
                arranged = order.arranged(rows.frame, known.checksums.rows, known.partitions, salt=given.salt)
                parts = write_frame(arranged, write)
            with _timed(seconds, "verify"):
                urls = [folder + file.path for part in parts for file in part.files]
                _verify(spark, urls, schema, known.checksums, settings, folder)
                run_on_worker(frozen, write.check_alone)
        except BaseException:
            write.give_up()
            raise
    with _timed(seconds, "commit"):
        snapshot = run_on_worker(frozen, lambda session: write.commit(session, parts))
    files = [file for part in parts for file in part.files]
    return OptimizeResult(
        target=safe_url(folder),
        files=tuple([file.path for file in files]),
        rows=known.checksums.rows,
        bytes_before=rows.num_bytes,
        bytes_after=sum(file.validator.size for file in files),
        checksums=known.checksums,
        snapshot=snapshot,
        seconds=seconds,
    )


def _opened(
    spark: SparkSession,
    source: Any,
    options: RewriteOptions,
    frozen: SparkSettings,
    settings: Mapping[str, Any],
    folder: str,
) -> RewriteSource:
    """Open the source, once the target is empty and does not overlap its urls."""
    if isinstance(source, DataFrame):
        run_on_worker(frozen, lambda session: LakeWrite.check_folder(session, folder, ()))
        if options.format is not None or options.version is not None:
            raise InvalidOptionError(
                "format, version: are those of a table's url, and the source is a DataFrame",
                hint="Pass them to asyncpq.spark.scan, which makes the DataFrame.",
            )
        return open_source(spark, source, frozen, settings, options, folder)
    refuse_secrets("source", source)
    source = LakeTarget(target=source).target  # workers run in other folders
    is_url = isinstance(source, (str, os.PathLike))
    is_table = options.format is not None or not (is_url or isinstance(source, (list, tuple)))
    urls = source_paths(source) if is_url or not is_table else []
    run_on_worker(frozen, lambda session: LakeWrite.check_folder(session, folder, urls))
    if is_table:
        return open_table(spark, source, settings, options)
    return open_source(spark, source, frozen, settings, options, folder)


@contextmanager
def _timed(seconds: dict[str, float], step: str) -> Iterator[None]:
    """Store the duration of the ``with`` block under the name of the step."""
    begin = time.monotonic()
    yield
    seconds[step] = time.monotonic() - begin


@dataclass(frozen=True)
class _Measured:
    """Measurements of the source's rows before they are written."""

    checksums: Checksums
    partitions: int
    layout: WriteOptions


def _measure(rows: RewriteSource, write: FrameWrite, partitions: int | None) -> _Measured:
    schema, layout, conf = rows.frame.schema, write.options, write.conf
    sums = checksums(rows.frame)
    if partitions is None:
        size = encoded_bytes(rows.frame, sums.rows, layout.compression, conf)
        at_once = parallelism_of(rows.frame.sparkSession)
        partitions = write.num_tasks(size / _FILL, at_once)
    blooms = list(layout.bloom_filters)
    leaves = {at: find_leaf(bloom.column, schema, conf) for at, bloom in enumerate(blooms) if bloom.ndv is None}
    counts = {at: F.approx_count_distinct(leaf.column) for at, leaf in leaves.items() if leaf is not None}
    if counts:
        most = min(sums.rows, layout.row_group_rows)
        for at, distinct in zip(counts, numbered(rows.frame).agg(*counts.values()).collect()[0], strict=True):
            blooms[at] = replace(blooms[at], ndv=max(1, min(most, int(_SPARE * distinct))))
    return _Measured(checksums=sums, partitions=partitions, layout=replace(layout, bloom_filters=tuple(blooms)))


def _verify(
    spark: SparkSession,
    urls: Sequence[str],
    schema: StructType,
    wanted: Checksums,
    settings: Mapping[str, Any],
    folder: str,
) -> None:
    """Read the files back. Raises CorruptFileError if their rows differ from the checksums ``wanted``."""
    if not urls and not wanted.rows:
        return
    differences = ["all rows"]
    if urls:
        frame = scan(spark, urls, index=False, partitioning=None, **settings)
        types = {field.name: field.dataType.simpleString() for field in frame.schema.fields}
        lost = [field.name for field in schema if types.get(field.name) != field.dataType.simpleString()]
        differences = [f"the type of column {name!r}" for name in lost]
        if not differences:
            differences = wanted.differences(checksums(frame))
    if differences:
        shown = ", ".join(differences[:_SHOWN]) + (", ..." if len(differences) > _SHOWN else "")
        raise CorruptFileError(
            f"the written files differ from the source: {shown}",
            url=safe_url(folder),
            hint="Nothing was committed. Run optimize() while the source does not change; a DataFrame must return the"
            " same rows each time.",
        )
