"""Rewrite a lake for lookups: sort its rows into files with page indexes and Bloom filters, verify, commit."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final, Literal, cast

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own documentation calls it so)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from asyncpq import BloomFilter, Validator, WriteOptions
from asyncpq.distributed import WrittenPart, run_on_worker
from asyncpq.engine.target_facts import safe_url
from asyncpq.errors import CorruptFileError, InvalidOptionError
from asyncpq.indexing.build.adding import AddedFile
from asyncpq.objects.runtime import runtime_of
from asyncpq.options import one_of, require_whole
from asyncpq.spark.driver import described_jobs, held_settings, raised_as_asyncpq
from asyncpq.spark.lake_writer import FrameWrite, lake_folder
from asyncpq.spark.optimize_source import RewriteSource, TimestampLoss, open_source, open_table, overlaps, source_paths
from asyncpq.spark.reads.scan import parallelism_of, scan
from asyncpq.spark.row_layout import Checksums, RowLayout, checksums, encoded_bytes, find_keys, find_leaf, numbered
from asyncpq.spark.settings import SparkSettings, refuse_secrets
from asyncpq.spark.types.conversion import from_spark
from asyncpq.spark.types.read_conf import ReadConf
from asyncpq.storage.urls import absolute
from asyncpq.tables import catalog_of
from asyncpq.writing.file_layout import check_options
from asyncpq.writing.lake_commit import check_target

#: The fields of :class:`asyncpq.indexing.build.adding.AddedFile`.
_WRITTEN: Final = pa.schema(
    [
        pa.field("path", pa.string()),
        pa.field(
            "validator",
            pa.struct({"size": pa.int64(), "etag": pa.string(), "last_modified": pa.string(), "version": pa.string()}),
        ),
        pa.field("num_rows", pa.int64()),
        pa.field("footer_start", pa.int64()),
        pa.field("tail", pa.binary()),
    ]
)


def _written(write: FrameWrite, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write the rows of a partition in their order; yield one batch, which describes the written files."""
    yield pa.RecordBatch.from_pylist([asdict(file) for file in write.write_rows(batches).files], schema=_WRITTEN)


def write_frame(frame: DataFrame, write: FrameWrite) -> list[AddedFile]:
    """Write all partitions of ``frame``; return the files in order. Files of failed attempts stay in the folder."""
    write = replace(write, struct=frame.schema, schema=from_spark(frame.schema, write.conf).schema)
    with raised_as_asyncpq():
        # mapInArrow reads dots in names as struct fields
        rows = numbered(frame).mapInArrow(partial(_written, write), from_arrow_schema(_WRITTEN)).collect()
    files = [row.asDict(recursive=True) for row in rows]
    return [
        AddedFile(**{**file, "validator": Validator(**file["validator"]), "tail": bytes(file["tail"])})
        for file in files
    ]


_LAYOUT: Final = WriteOptions()
_SPARE: Final = 1.1  # margin, since the number of distinct values is an estimate
#: Target size of a partition as a share of ``file_bytes``: sizes are estimates, and an excess becomes another file.
_FILL: Final = 0.8
_SHOWN: Final = 5


@dataclass(frozen=True, kw_only=True)
class OptimizeResult:
    """Result of :func:`optimize`.

    Attributes:
        target: url of the folder with the written files.
        files: paths of the written files, relative to ``target``.
        rows: number of rows in all files.
        bytes_before: size of the source's files; None if the source is a DataFrame, or a store cannot list the files.
        bytes_after: size of the written files.
        checksums: checksums of the source's rows; those of the written rows are the same.
        snapshot: number of the snapshot of the index that lists the files.
        seconds: duration of each step.
    """

    target: str
    files: tuple[str, ...] = field(repr=False)
    rows: int
    bytes_before: int | None
    bytes_after: int
    checksums: Checksums = field(repr=False)
    snapshot: int
    seconds: Mapping[str, float]

    def __str__(self) -> str:
        before = "" if self.bytes_before is None else f" ({self.bytes_before:,} before)"
        steps = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())
        return (
            f"{self.rows:,} rows in {len(self.files):,} files, {self.bytes_after:,} bytes{before}, at {self.target}\n"
            f"verified by {3 * len(self.checksums.columns) + 3} checksums\n{steps}"
        )


def optimize(
    spark: SparkSession,
    source: Any,
    target: str,
    sort_by: Sequence[str] | str = (),
    *,
    zorder_by: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    where: object = None,
    bloom_filters: Sequence[str | BloomFilter] = (),
    compression: str = _LAYOUT.compression,
    compression_level: int | None = _LAYOUT.compression_level,
    page_rows: int = _LAYOUT.page_rows,
    page_bytes: int = _LAYOUT.page_bytes,
    row_group_rows: int = _LAYOUT.row_group_rows,
    row_group_bytes: int = _LAYOUT.row_group_bytes,
    file_bytes: int = _LAYOUT.file_bytes,
    dictionary_columns: Sequence[str] | None = None,
    partitions: int | None = None,
    salt: bool = True,
    timestamp_loss: TimestampLoss = "error",
    publish: Literal["index", "plain"] = "plain",
    format: Literal["delta", "iceberg"] | None = None,
    version: Any = None,
    **settings: Any,
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
        settings: of :class:`asyncpq.spark.settings.SparkSettings`.

    Raises:
        InvalidOptionError: ``target`` is not empty or overlaps the source, or an option is invalid.
        UnsupportedFeatureError: asyncpq cannot write a column's type, or timestamps would lose digits.
        CorruptFileError: the files differ from the source; nothing is committed, and the files are deleted.
        AsyncpqError: a store failed; written files are deleted if possible.
    """
    one_of("timestamp_loss", timestamp_loss, ("error", "truncate"))
    one_of("publish", publish, ("index", "plain"))
    if partitions is not None:
        require_whole("partitions", partitions)
    layout = WriteOptions(
        compression=compression,
        compression_level=compression_level,
        page_rows=page_rows,
        page_bytes=page_bytes,
        row_group_rows=row_group_rows,
        row_group_bytes=row_group_bytes,
        file_bytes=file_bytes,
        bloom_filters=tuple([BloomFilter(column=item) if isinstance(item, str) else item for item in bloom_filters]),
        dictionary_columns=None if dictionary_columns is None else tuple(dictionary_columns),
    )
    frozen = SparkSettings.of(spark, settings)
    folder = lake_folder("target", target)
    seconds: dict[str, float] = {}
    is_table = _is_table(source, format, version)
    with _timed(seconds, "look"):
        if not isinstance(source, DataFrame):
            refuse_secrets("source", source)
            source = absolute(source)
            if not is_table or isinstance(source, (str, os.PathLike)):
                _refuse_overlap(source_paths(source), folder)
        run_on_worker(frozen, lambda session: check_target(runtime_of(session), folder))
        if is_table:
            given = {**settings, "format": format, "version": version}
            rows = open_table(spark, source, given, columns=columns, where=where)
        else:
            rows = open_source(
                spark, source, frozen, settings, columns=columns, where=where, timestamp_loss=timestamp_loss
            )
        _refuse_overlap(rows.urls, folder)
    with held_settings(spark, rows.settings), described_jobs(spark, f"asyncpq: optimize into {safe_url(folder)}"):
        conf = ReadConf.of(spark)
        schema = rows.frame.schema
        order = RowLayout(find_keys("sort_by", sort_by, schema, conf), find_keys("zorder_by", zorder_by, schema, conf))
        layout = replace(layout, sorted_by=order.sorted_by())
        check_options(from_spark(schema, conf).schema, layout)
        with _timed(seconds, "measure"):
            known = _measure(rows, layout, conf, partitions)
        write = FrameWrite(
            folder=folder,
            schema=from_spark(schema, conf).schema,
            struct=schema,
            options=known.layout,
            conf=conf,
            settings=frozen,
            publish=publish,
        )
        try:
            with _timed(seconds, "write"):
                arranged = order.arranged(rows.frame, known.checksums.rows, known.partitions, salt=salt)
                files = write_frame(arranged, write)
            with _timed(seconds, "verify"):
                _verify(spark, files, schema, known.checksums, settings, folder)
                run_on_worker(frozen, lambda session: check_target(runtime_of(session), folder, write.job))
        except BaseException:
            write.give_up()
            raise
    with _timed(seconds, "commit"):
        snapshot = run_on_worker(frozen, lambda session: write.commit(session, [WrittenPart(0, tuple(files))]))
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


def _is_table(source: object, format_: str | None, version: Any) -> bool:
    """Return whether the source is a table. Raises InvalidOptionError if the arguments contradict each other."""
    if format_ is not None:
        one_of("format", format_, ("delta", "iceberg"))
    if not isinstance(source, DataFrame):
        return catalog_of(source, cast(Any, format_), version) is not None
    if format_ is not None or version is not None:
        raise InvalidOptionError(
            "format, version: are those of a table's url, and the source is a DataFrame",
            hint="Pass them to asyncpq.spark.scan, which makes the DataFrame.",
        )
    return False


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


def _measure(rows: RewriteSource, layout: WriteOptions, conf: ReadConf, partitions: int | None) -> _Measured:
    schema = rows.frame.schema
    sums = checksums(rows.frame)
    if partitions is None:
        size = encoded_bytes(rows.frame, sums.rows, layout.compression, conf)
        at_once = parallelism_of(rows.frame.sparkSession)
        partitions = _in_rounds(max(1, round(size / (_FILL * layout.file_bytes))), at_once)
    blooms = list(layout.bloom_filters)
    leaves = {at: find_leaf(bloom.column, schema, conf) for at, bloom in enumerate(blooms) if bloom.ndv is None}
    counts = {at: F.approx_count_distinct(leaf.column) for at, leaf in leaves.items() if leaf is not None}
    if counts:
        most = min(sums.rows, layout.row_group_rows)
        for at, distinct in zip(counts, numbered(rows.frame).agg(*counts.values()).collect()[0], strict=True):
            blooms[at] = replace(blooms[at], ndv=max(1, min(most, int(_SPARE * distinct))))
    return _Measured(checksums=sums, partitions=partitions, layout=replace(layout, bloom_filters=tuple(blooms)))


def _in_rounds(tasks: int, at_once: int) -> int:
    """Return the number of tasks, or up to a quarter more, so that all tasks of the last round have work."""
    whole = -(-tasks // at_once) * at_once
    return whole if whole * 4 <= tasks * 5 else tasks


def _verify(
    spark: SparkSession,
    files: Sequence[AddedFile],
    schema: StructType,
    wanted: Checksums,
    settings: Mapping[str, Any],
    folder: str,
) -> None:
    """Read the files back. Raises CorruptFileError if their rows differ from the checksums ``wanted``."""
    if not files and not wanted.rows:
        return
    differences = ["all rows"]
    if files:
        urls = [folder + file.path for file in files]
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


def _refuse_overlap(urls: Iterable[str], folder: str) -> None:
    """Raise InvalidOptionError if ``folder`` equals or contains one of ``urls``, or is inside one of them."""
    if any(overlaps(url, folder) for url in urls):
        raise InvalidOptionError(
            "the target and the source overlap, so readers of the source would see rows twice",
            url=safe_url(folder),
            hint="Write to a separate folder, and let readers change to it afterwards. (To rewrite a table in place,"
            " use its own engine: asyncpq does not commit to tables.)",
        )
