"""Rewrite a lake for lookups: sort its rows into files with page indexes and Bloom filters, verify, commit.

The source is planned and read as by ``scan``, but nanoseconds become timestamps in microseconds, the unit of Spark's
types. Spark's own reader would take INT64 nanoseconds for other numbers, and drop the last three digits of INT96. So
the plan opens all files of lakes with timestamps: files with nanoseconds are read by asyncpq, which notices digits that
would be lost.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any, Final, Literal, NamedTuple, Self, Unpack

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own documentation calls it so)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from asyncpq import BloomFilter, RewriteResult, WriteOptions
from asyncpq.distributed import LakeWrite, WrittenPart, run_on_worker, timed
from asyncpq.engine.target_facts import safe_url
from asyncpq.errors import CorruptFileError, InvalidOptionError
from asyncpq.options import one_of, require_whole
from asyncpq.spark.driver import described_jobs, raised_as_asyncpq
from asyncpq.spark.lake_writer import FrameWrite, lake_folder
from asyncpq.spark.reads.conditions import filter_column, numbered, quoted
from asyncpq.spark.reads.opened_lake import LakeTarget
from asyncpq.spark.reads.scan import parallelism_of, plan_scan, scan
from asyncpq.spark.row_layout import Checksums, RowLayout, checksums, encoded_bytes, find_keys, find_leaf
from asyncpq.spark.settings import SettingKeywords, SparkSettings, refuse_secrets, split_settings
from asyncpq.spark.types.conversion import from_spark
from asyncpq.spark.types.read_conf import ReadConf, TimestampLoss

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
    format: Literal["delta", "iceberg"] | None = None
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


class RewriteSource(NamedTuple):
    """The rows to rewrite, as a DataFrame, and the files that contain them."""

    frame: DataFrame
    places: Sequence[str]  # urls of files and folders, into which the rewrite must not write
    num_bytes: int | None = None  # of the files that may have the rows; None if unknown


def open_source(spark: SparkSession, source: Any, settings: SparkSettings, options: RewriteOptions) -> RewriteSource:
    """Open the source of a rewrite: a DataFrame as it is, all else by the plan of a scan in one version.

    Raises InvalidOptionError if ``source`` is not a url, a list of urls, a table or a DataFrame.
    """
    if isinstance(source, DataFrame):
        if options.format is not None or options.version is not None:
            raise InvalidOptionError(
                "format, version: are those of a table's url, and the source is a DataFrame",
                hint="Pass them to asyncpq.spark.scan, which makes the DataFrame.",
            )
        return RewriteSource(_chosen(source, options), source.inputFiles())
    refuse_secrets("source", source)
    target = LakeTarget(target=source, format=options.format, version=options.version)
    if options.timestamp_loss == "error":
        settings = replace(settings, int96_unit="ns")
    conf = replace(ReadConf.of(spark), timestamp_loss=options.timestamp_loss)
    plan = plan_scan(spark, target, options.where, options.columns, settings, conf)
    given = target.target if isinstance(target.target, (list, tuple)) else [plan.read.scan.url]
    with raised_as_asyncpq():
        frame = plan.frame(spark)
    return RewriteSource(frame, [*map(_folder_of, given), *plan.read.versions], plan.read.whole_bytes)


def _folder_of(url: str | os.PathLike[str]) -> str:
    """Return the folder in which a pattern may match files; other urls unchanged."""
    before, *pattern = re.split(r"[*?\[]", os.fspath(url), maxsplit=1)
    return before.rpartition("/")[0] if pattern else before


def _chosen(frame: DataFrame, options: RewriteOptions) -> DataFrame:
    if options.where is not None:
        frame = frame.filter(filter_column(options.where, frame))
    if options.columns is None:
        return frame
    return frame.select(*[quoted(name) if name in frame.columns else name for name in options.columns])


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
    """Result of :func:`optimize`. ``bytes_before`` counts only files that may have rows that ``where`` selects.

    Attributes:
        checksums: of the rows of the source, equal to those of the written rows, which were read back; the other
            attributes are those of :class:`asyncpq.RewriteResult`.
    """

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
            which must return the same rows each time that it runs.
        target: url of an empty folder that does not overlap the source. It becomes a lake of Parquet files: asyncpq
            does not commit to tables.
        sort_by, zorder_by: names of columns, or dotted paths in structs.
        columns: columns to write; None for all.
        where: condition of the rows to write, as in :func:`asyncpq.spark.scan`.
        bloom_filters: for columns of equality lookups that are not sorted. asyncpq measures the number of distinct
            values of a column unless its ``BloomFilter`` has one.
        compression, compression_level, page_rows, page_bytes, row_group_rows, row_group_bytes, file_bytes,
            dictionary_columns: see :class:`asyncpq.WriteOptions`.
        partitions: number of writing tasks; None: enough for files of ``file_bytes``, or some more to use all cores.
        salt: divide the rows of one key among several tasks if they are more than the average task has.
        timestamp_loss: "error" or "truncate", for nanosecond timestamps that are not whole microseconds.
        publish: "index": readers use the index in ``target``, which lists all files at once. "plain": readers may also
            list the folder as soon as ``_SUCCESS`` exists, the last file; a listing before shows some of the files.
        format, version: of the table at the url ``source``, as in :meth:`asyncpq.Session.open_dataset`.
        options: attributes of :class:`asyncpq.spark.SparkSettings`.

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
    with timed(seconds, "look"):
        rows = open_source(spark, source, frozen, given)
        run_on_worker(frozen, lambda session: LakeWrite.check_folder(session, folder, rows.places))
    with described_jobs(spark, f"asyncpq: optimize into {safe_url(folder)}"), raised_as_asyncpq():
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
        with timed(seconds, "measure"):
            known = _measure(rows, write, given.partitions)
        write = replace(write, options=known.layout)
        try:
            with timed(seconds, "write"):
                arranged = order.arranged(rows.frame, known.checksums.rows, known.partitions, salt=given.salt)
                parts = write_frame(arranged, write)
            with timed(seconds, "verify"):
                urls = [folder + file.path for part in parts for file in part.files]
                _verify(spark, urls, schema, known.checksums, settings, folder)
        except BaseException:
            write.give_up()
            raise
    sums = known.checksums
    sizes: Any = {"rows": sums.rows, "bytes_before": rows.num_bytes, "seconds": seconds}
    done = run_on_worker(frozen, lambda session: write.commit_rewrite(session, parts, **sizes))
    return OptimizeResult(**vars(done), checksums=sums)


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
