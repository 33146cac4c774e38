"""The order of rows in rewritten files, their division into files, and checksums to compare them with the source.

Checksums do not depend on the order. Each value has a 64-bit hash. A checksum is the exclusive or of the hashes and the
sum of their upper bits, which notices duplicates. There is one for each column, and one for whole rows, which notices
values that moved to other rows. Floats hash as Spark's ``=`` compares them: all NaN are equal, and so are the two
zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import takewhile
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own documentation calls it so)
from pyspark.sql import types as T  # noqa: N812

from asyncpq import SortedBy
from asyncpq.distributed import ZOrder
from asyncpq.errors import ColumnNotFoundError, InvalidOptionError, nearest_column
from asyncpq.options import MIB
from asyncpq.spark.reads.conditions import numbered
from asyncpq.spark.types.conversion import from_spark
from asyncpq.spark.types.read_conf import ReadConf, inner_types
from asyncpq.spark.types.special_types import is_spatial


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


def find_keys(option: str, names: Sequence[str] | str, schema: T.StructType, conf: ReadConf) -> tuple[SortKey, ...]:
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


def find_leaf(name: str, schema: T.StructType, conf: ReadConf) -> SortKey | None:
    """Find a column by name or dotted path; None if it does not exist, or is inside of a list or map."""
    steps = [name] if conf.find(schema.names, name) is not None else name.split(".")
    path: list[str] = []
    places: list[int] = []
    dtype: T.DataType = schema
    for step in steps:
        place = conf.find(dtype.names, step) if isinstance(dtype, T.StructType) else None
        if place is None or not isinstance(dtype, T.StructType):
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

    schema: T.StructType
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
    if isinstance(dtype, T.StructType):
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
