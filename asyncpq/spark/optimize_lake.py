"""Rewrite a lake for lookups: sort its rows into files with page indexes and Bloom filters, verify, commit."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, Unpack

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own documentation calls it so)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from asyncpq import BloomFilter, RewriteResult, WriteOptions
from asyncpq.distributed import LakeWrite, WrittenPart, run_on_worker
from asyncpq.engine.target_facts import safe_url
from asyncpq.errors import CorruptFileError, InvalidOptionError
from asyncpq.spark.call_keywords import split_settings
from asyncpq.spark.driver import described_jobs, held_settings, raised_as_asyncpq
from asyncpq.spark.lake_writer import FrameWrite, lake_folder
from asyncpq.spark.optimize_source import (
    RewriteOptions,
    RewriteSource,
    TimestampLoss,
    open_source,
    open_table,
    source_paths,
)
from asyncpq.spark.reads.opened_lake import LakeTarget
from asyncpq.spark.reads.scan import parallelism_of, scan
from asyncpq.spark.row_layout import Checksums, RowLayout, checksums, encoded_bytes, find_keys, find_leaf, numbered
from asyncpq.spark.settings import SettingKeywords, SparkSettings, refuse_secrets
from asyncpq.spark.types.conversion import from_spark
from asyncpq.spark.types.read_conf import ReadConf

_PART: Final = WrittenPart(0, ()).to_arrow().schema


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
