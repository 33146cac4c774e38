"""Rewrite a lake for lookups: sort its rows into files with page indexes and Bloom filters, verify, commit.

The source is planned and read as by ``scan``, but nanoseconds become timestamps in microseconds, the unit of Spark's
types. Spark's own reader would take INT64 nanoseconds for other numbers, and drop the last three digits of INT96. So
the plan opens all files of lakes with timestamps: files with nanoseconds are read by asyncpq, which notices digits that
would be lost.

Checksums of the rows, with which the files are compared with the source, do not depend on the order. Each value has a
64-bit hash. A checksum is the exclusive or of the hashes and the sum of their upper bits, which notices duplicates.
There is one for each column, and one for whole rows, which notices values that moved to other rows. Floats hash as
Spark's ``=`` compares them: all NaN are equal, and so are the two zeros.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import partial, reduce
from itertools import takewhile
from typing import Any, Final, Literal, NamedTuple, Self, Unpack

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own documentation calls it so)
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from asyncpq import BloomFilter, RewriteResult, SortedBy, WriteOptions
from asyncpq.distributed import LakeWrite, WrittenPart, ZOrder, run_on_worker, timed
from asyncpq.engine.target_facts import safe_url
from asyncpq.errors import ColumnNotFoundError, CorruptFileError, InvalidOptionError, nearest_column
from asyncpq.options import MIB, one_of, require_whole
from asyncpq.spark.driver import described_jobs, raised_as_asyncpq
from asyncpq.spark.lake_writer import FrameWrite, lake_folder
from asyncpq.spark.reads.conditions import filter_column, numbered, quoted
from asyncpq.spark.reads.opened_lake import LakeTarget
from asyncpq.spark.reads.scan import parallelism_of, plan_scan, scan
from asyncpq.spark.settings import SettingKeywords, SparkSettings, refuse_secrets, split_settings
from asyncpq.spark.types.conversion import from_spark
from asyncpq.spark.types.read_conf import ReadConf, TimestampLoss, inner_types
from asyncpq.spark.types.special_types import is_spatial

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


# -- the order of rows ----------------------------------------------------------------------------


def place_column(frame: DataFrame, columns: Sequence[Column], rows: int) -> Column:
    """Return a bigint column with each row's place in a z-order of ``columns``, which is made from a sample of
    ``frame``.

    ``rows`` is the approximate number of rows of ``frame``.
    """
    chosen = frame.select(*columns).toDF(*[f"z{at}" for at in range(len(columns))])
    if rows > ZOrder.SAMPLE_ROWS:
        chosen = chosen.sample(fraction=ZOrder.SAMPLE_ROWS / rows, seed=_SEED)
    order = ZOrder.of_samples([column.combine_chunks() for column in chosen.toArrow().columns])

    def places(*values: pa.Array) -> pa.Array:  # PySpark reads these hints
        return order.places(values)

    udf: Any = F.arrow_udf(places, "bigint")  # type: ignore[attr-defined]  # its stubs lack it
    result: Column = udf(*columns)
    return result


_SEED: Final = 7
#: Rows to sample for the division into partitions: for each, and at most, since one task sorts them.
_PARTITION_SAMPLES: Final = 500
_MOST_SAMPLES: Final = 250_000
_SLOTS: Final = 1 << 20  # of the hashes by which partitions share a key

_SAMPLE_ROWS: Final = 10_000
_SAMPLE_BYTES: Final = 64 * MIB

#: Types for which Parquet and Spark have the same order.
_SAME_ORDER: Final = (
    T.IntegralType,
    T.BooleanType,
    T.BinaryType,
    T.DateType,
    T.DecimalType,
    T.TimestampType,
    T.TimestampNTZType,
    T.TimeType,
)
_RANKED: Final = (*_SAME_ORDER, T.FloatType, T.DoubleType)


@dataclass(frozen=True)
class SortKey:
    """A column, or a field in structs, by which rows are sorted."""

    path: tuple[str, ...]  # names of the column and of the struct fields down to the leaf
    at: int  # position of the column
    dtype: T.DataType  # of the leaf

    @property
    def name(self) -> str:
        """The dotted path of the leaf."""
        return ".".join(self.path)

    @property
    def column(self) -> Column:
        """The column or field, as an expression over a DataFrame whose columns ``numbered`` has renamed."""
        return reduce(lambda column, name: column.getField(name), self.path[1:], F.col(f"c{self.at}"))


def find_keys(option: str, names: Sequence[str] | str, schema: StructType, conf: ReadConf) -> tuple[SortKey, ...]:
    """Find the columns of an option by name, or by dotted path in structs, with Spark's case sensitivity.

    Raises ColumnNotFoundError if a name matches no column, AmbiguousColumnError if a name matches several, and
    InvalidOptionError if a column is named twice or an item is not a string.
    """
    keys: list[SortKey] = []
    for name in [names] if isinstance(names, str) else names:
        if not isinstance(name, str):
            raise InvalidOptionError(f"{option}: must be names of columns, not {name!r}", option=option)
        key = find_leaf(name, schema, conf)
        if key is None:
            hint = nearest_column(name, schema.names)
            raise ColumnNotFoundError(f"{option}: the written columns do not include it", column=name, hint=hint)
        keys.append(key)
    if len({key.path for key in keys}) != len(keys):
        raise InvalidOptionError(
            f"{option}: must not name a column twice: {', '.join(key.name for key in keys)}", option=option
        )
    return tuple(keys)


def find_leaf(name: str, schema: StructType, conf: ReadConf) -> SortKey | None:
    """Find a column by name or dotted path; None if it does not exist, or is inside of a list or map."""
    steps = [name] if conf.find(schema.names, name) is not None else name.split(".")
    path: list[str] = []
    places: list[int] = []
    dtype: T.DataType = schema
    for step in steps:
        place = conf.find(dtype.names, step) if isinstance(dtype, StructType) else None
        if place is None or not isinstance(dtype, StructType):
            return None
        path.append(dtype.names[place])
        places.append(place)
        dtype = dtype.fields[place].dataType
    return SortKey(tuple(path), places[0], dtype)


@dataclass(frozen=True)
class RowLayout:
    """The order of rows: by ``keys``; where these are equal, by the place in the z-order of the columns ``z_keys``.

    Nulls come first and NaN last, as Spark sorts.
    """

    keys: tuple[SortKey, ...]
    z_keys: tuple[SortKey, ...] = ()

    def __post_init__(self) -> None:
        if not self.keys and not self.z_keys:
            raise InvalidOptionError("sort_by and zorder_by are empty: at least one column to sort by is required")
        if self.z_keys and not 2 <= len(self.z_keys) <= ZOrder.MOST_COLUMNS:
            raise InvalidOptionError(
                f"zorder_by: must be 2 to {ZOrder.MOST_COLUMNS} columns, not {len(self.z_keys)}", option="zorder_by"
            )
        both = {key.path for key in self.keys} & {key.path for key in self.z_keys}
        if both:
            raise InvalidOptionError("sort_by and zorder_by contain the same column", column=".".join(min(both)))
        for key in self.keys:
            if not _has_order(key.dtype):
                raise InvalidOptionError(
                    f"sort_by: Spark cannot sort values of type {key.dtype.simpleString()}",
                    option="sort_by",
                    column=key.name,
                    hint="Name columns or struct fields of types that Spark can sort.",
                )
        for key in self.z_keys:
            if not isinstance(key.dtype, _RANKED) and not _is_plain_text(key.dtype):
                raise InvalidOptionError(
                    f"zorder_by: asyncpq does not support columns of type {key.dtype.simpleString()}",
                    option="zorder_by",
                    column=key.name,
                )

    def sorted_by(self) -> tuple[SortedBy, ...]:
        """Return the columns by which files declare their rows sorted: the leading ``keys`` whose types Parquet and
        Spark sort in the same order."""

        def is_same(key: SortKey) -> bool:
            is_ambiguous = any("." in name for name in key.path)
            return not is_ambiguous and (isinstance(key.dtype, _SAME_ORDER) or _is_plain_text(key.dtype))

        return tuple(SortedBy(column=key.name) for key in takewhile(is_same, self.keys))

    def arranged(self, frame: DataFrame, rows: int, partitions: int, *, salt: bool) -> DataFrame:
        """Sort ``frame``, of about ``rows`` rows, into partitions of consecutive keys.

        With ``salt``, partitions share the rows of a key that are more than those of one.
        """
        rest = numbered(frame)
        fraction = min(1.0, min(_MOST_SAMPLES, _PARTITION_SAMPLES * partitions) / max(1, rows))
        sample = rest.sample(fraction=fraction, seed=_SEED)
        order = [key.column for key in self.keys]
        if self.z_keys:
            columns = [key.column for key in self.z_keys]
            place = place_column(rest, columns, rows)
            rest, sample = rest.withColumn("z", place), sample.withColumn("z", place)
            order += [F.col("z"), *columns]
        if partitions == 1:
            divided = rest.repartition(1)
        else:
            row_hash = columns_hash([(F.col(f"c{at}"), field.dataType) for at, field in enumerate(frame.schema)])
            divided = _divided(rest, sample, order, partitions, row_hash if salt else None)
        arranged = divided.sortWithinPartitions(*order)
        return arranged.select(*[f"c{at}" for at in range(len(frame.columns))]).toDF(*frame.columns)


def _divided(
    frame: DataFrame, sample: DataFrame, order: Sequence[Column], partitions: int, row_hash: Column | None
) -> DataFrame:
    """Divide the rows of ``frame`` into ranges of ``order`` with about equal numbers of rows.

    The bounds come from ``sample``, which reads only the columns of ``order``; Spark's ``repartitionByRange`` would
    read all columns twice. With ``row_hash``, partitions share a key that has more rows than one of them should.
    """
    key = F.struct(*[column.alias(f"k{at}") for at, column in enumerate(order)])
    keys = sample.agg(F.sort_array(F.collect_list(key)).alias("keys"))
    places = keys.select(F.size("keys").alias("num_keys"), F.posexplode("keys").alias("place", "key"))
    share = F.lit(float(partitions)) / F.first("num_keys")
    begin, end = F.min("place") * share, (F.max("place") + 1) * share  # of the key, in partitions
    spans = places.groupBy("key").agg(begin.alias("begin"), end.alias("end"))
    # the partitions of the rows below and above the key; the key's own are in these, or between them
    last = F.lit(partitions - 1)  # products are rounded, so ``end`` may be above ``partitions``
    low, high = (F.least(F.greatest(F.ceil(at) - 1, F.lit(0)), last).cast("int") for at in ("begin", "end"))
    spans = spans.select("*", low.alias("low"), high.alias("high")).filter("low < high")
    bounds = spans.agg(F.sort_array(F.collect_list(F.struct("key", "begin", "end", "low", "high")))).scalar()
    # a binary search: ``part`` becomes the number of bounds that are at most the row's key
    part = F.lit(0)
    for bit in reversed(range((partitions - 1).bit_length())):
        is_after = F.get(bounds, part + ((1 << bit) - 1))["key"] <= key
        frame = frame.withColumn("part", F.when(is_after, part + (1 << bit)).otherwise(part))
        part = F.col("part")
    bound = F.get(bounds, part - 1)
    width = bound["end"] - bound["begin"]
    where = F.lit(0.5)  # in the key's span
    if row_hash is not None:
        where = F.when(width > 1, F.pmod(row_hash, _SLOTS) / _SLOTS).otherwise(where)
    own = F.floor(bound["begin"] + width * where).cast("int")
    own = F.greatest(bound["low"], F.least(bound["high"], own))
    number = F.when(bound["key"] == key, own).otherwise(F.coalesce(bound["high"], F.lit(0)))
    return frame.withColumn("part", number).repartitionById(partitions, "part")


def _has_order(dtype: T.DataType) -> bool:
    if isinstance(dtype, (T.MapType, T.VariantType, T.CalendarIntervalType)) or is_spatial(dtype):
        return False
    return all(_has_order(inner) for _, inner in inner_types(dtype))


def _is_plain_text(dtype: T.DataType) -> bool:
    return isinstance(dtype, T.StringType) and dtype.isUTF8BinaryCollation()


@dataclass(frozen=True)
class _SampleEncoder:
    """A function for ``mapInArrow`` that writes a sample as Parquet, and yields the numbers of its rows and bytes."""

    schema: StructType
    conf: ReadConf
    compression: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        taken: list[pa.RecordBatch] = []
        for batch in batches:
            taken.append(batch)
            if sum(held.nbytes for held in taken) > _SAMPLE_BYTES:
                break
        if not taken:
            return
        convert = from_spark(self.schema, self.conf).convert
        table = pa.Table.from_batches([convert(batch) for batch in taken])
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression=self.compression.upper())
        yield pa.RecordBatch.from_pydict({"rows": [table.num_rows], "bytes": [sink.tell()]})


def encoded_bytes(frame: DataFrame, rows: int, compression: str, conf: ReadConf) -> int:
    """Estimate the bytes of ``rows`` rows in Parquet files from the encoded size of the first rows of ``frame``."""
    sample = numbered(frame).limit(min(rows, _SAMPLE_ROWS))
    encoding = _SampleEncoder(sample.schema, conf, compression)
    sample = sample.mapInArrow(encoding, "rows bigint, bytes bigint")
    measured = sample.agg(F.sum("rows"), F.sum("bytes")).collect()[0]
    return 0 if not measured[0] else rows * measured[1] // measured[0]


# -- checksums ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Checksum:
    """Checksum of a column: number of nulls, and exclusive or and sum of the values' hashes (of their upper bits). It
    does not depend on the order."""

    nulls: int
    xor: int
    total: int


@dataclass(frozen=True, slots=True)
class Checksums:
    """Checksums of the rows and columns of a DataFrame."""

    rows: int  # number of rows
    whole: Checksum  # of the rows; a row's hash combines those of its values
    columns: Mapping[str, Checksum] = field(repr=False)  # by name

    def differences(self, other: Checksums) -> list[str]:
        """Return texts that describe the differences, columns first; empty if the checksums are equal."""
        names = [name for name, mine in self.columns.items() if other.columns.get(name) != mine]
        names += [name for name in other.columns if name not in self.columns]
        named = [f"column {name!r}" for name in names]
        if self.rows != other.rows:
            named.append(f"{self.rows} rows and {other.rows}")
        elif self.whole != other.whole and not named:
            named.append("which values belong to one row")
        return named


def checksums(frame: DataFrame) -> Checksums:
    """Compute the checksums of ``frame``, in one read of it."""
    fields = frame.schema.fields
    hashes = [F.xxhash64(*_inside(F.col(f"c{at}"), field.dataType)) for at, field in enumerate(fields)]
    hashed = numbered(frame).select("*", *[column.alias(f"h{at}") for at, column in enumerate(hashes)])
    names = [f"h{at}" for at in range(len(fields))]
    measured = [F.count(F.lit(1)).alias("rows"), *_summed("row", F.xxhash64(*names) if names else F.lit(0))]
    for at, name in enumerate(names):
        measured += [F.count_if(F.col(f"c{at}").isNull()).alias(f"nulls{at}"), *_summed(str(at), F.col(name))]
    row = hashed.agg(*measured).collect()[0]
    columns = {field.name: _checksum(row, str(at), row[f"nulls{at}"]) for at, field in enumerate(fields)}
    return Checksums(row["rows"], _checksum(row, "row", 0), columns)


def transform_copy(value: Column, function: Callable[[Column], Column]) -> Column:
    """Return ``F.transform(value, function)``, over a copy of the list.

    Spark's generated code reads an element before it checks for null. In lists of numbers with a dictionary, its
    Parquet reader then fails (ArrayIndexOutOfBoundsException). The copy avoids that.
    """
    return F.transform(F.slice(value, F.lit(1), F.size(value)), function)


def columns_hash(columns: Sequence[tuple[Column, T.DataType]]) -> Column:
    """Return a 64-bit hash of the values in these columns, given with their types; null has a hash of its own."""
    parts = [part for column, dtype in columns for part in _inside(column, dtype)]
    return F.xxhash64(*parts) if parts else F.lit(0).cast("bigint")


def _summed(name: str, hashed: Column) -> list[Column]:
    # the upper 28 bits, of which no sum of less than 2^35 rows overflows; sums of decimals take three times as long
    return [F.bit_xor(hashed).alias(f"xor{name}"), F.sum(F.shiftright(hashed, 36)).alias(f"total{name}")]


def _checksum(row: Any, name: str, nulls: int) -> Checksum:
    return Checksum(nulls, row[f"xor{name}"] or 0, row[f"total{name}"] or 0)


def _inside(value: Column, dtype: T.DataType) -> list[Column]:
    """Return the columns to hash for a value inside another: a flag for null, since xxhash64 skips nulls, then those
    of :func:`_hashable`."""
    return [value.isNull(), *_hashable(value, dtype)]


def _hashable(value: Column, dtype: T.DataType) -> list[Column]:
    """Return columns of types that xxhash64 accepts which together stand for ``value``: hashes of a
    map's entries, the JSON of a variant, the size and the elements' hashes of a list."""
    if isinstance(dtype, T.MapType):
        of_key, of_value = dtype.keyType, dtype.valueType
        entries = F.transform(
            F.map_entries(value),
            lambda entry: F.xxhash64(*_inside(entry["key"], of_key), *_inside(entry["value"], of_value)),
        )
        return [F.size(value), F.array_sort(entries)]
    if isinstance(dtype, T.ArrayType):
        element = dtype.elementType
        return [F.size(value), transform_copy(value, lambda item: F.xxhash64(*_inside(item, element)))]
    if isinstance(dtype, StructType):
        return [part for name, inner in inner_types(dtype) for part in _inside(value.getField(name), inner)]
    if isinstance(dtype, T.VariantType):
        return [F.to_json(value), F.schema_of_variant(value)]
    if is_spatial(dtype):
        return [F.st_srid(value), F.st_asbinary(value)]
    if isinstance(dtype, T.NullType):
        return []
    if isinstance(dtype, T.StringType):
        return [value.cast("binary")]  # a collation may make different strings equal
    return [value]


# -- the rewrite ----------------------------------------------------------------------------------

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
