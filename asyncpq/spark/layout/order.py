"""In which order rows are written, and how they are divided into files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own documentation calls it so)
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CalendarIntervalType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegralType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    TimeType,
    VariantType,
)

from asyncpq.errors import ColumnNotFoundError, InvalidOptionError
from asyncpq.hints import nearest_column
from asyncpq.options import MIB
from asyncpq.spark.layout.checksums import columns_hash, numbered, row_hash
from asyncpq.spark.layout.zorder import MOST_COLUMNS, place_column, z_order
from asyncpq.spark.types.conversion import from_spark
from asyncpq.spark.types.read_conf import ReadConf, find_name
from asyncpq.spark.types.special_types import is_spatial
from asyncpq.spark.writes.write_options import SortedBy

#: Keys that :meth:`Order.heavy` counts, and among how many.
_MOST_HEAVY: Final = 1000
_TRACKED: Final = 50_000

_SAMPLE_ROWS: Final = 10_000
_SAMPLE_BYTES: Final = 64 * MIB

#: Of these, Parquet's order is the one in which Spark sorts.
_SAME_ORDER: Final = (
    IntegralType,
    BooleanType,
    BinaryType,
    DateType,
    DecimalType,
    TimestampType,
    TimestampNTZType,
    TimeType,
)
_RANKED: Final = (*_SAME_ORDER, FloatType, DoubleType)


@dataclass(frozen=True)
class Key:
    """A column to sort by.

    Attributes:
        path: names of a column and of the structs' fields down to it.
        at: the column's place.
        kind: type.
    """

    path: tuple[str, ...]
    at: int
    kind: DataType

    @property
    def name(self) -> str:
        """Dotted path."""
        return ".".join(self.path)

    @property
    def column(self) -> Column:
        """In a frame of :func:`asyncpq.spark.layout.checksums.numbered`."""
        column = F.col(f"c{self.at}")
        for name in self.path[1:]:
            column = column.getField(name)
        return column


def find_keys(option: str, names: Sequence[str] | str, schema: StructType, conf: ReadConf) -> tuple[Key, ...]:
    """Columns by name, or by dotted path in structs, in Spark's rule of cases.

    Raises:
        ColumnNotFoundError: there is none.
        AmbiguousColumnError: there are several.
        InvalidOptionError: no names, or one twice.
    """
    given = [names] if isinstance(names, str) else list(names)
    keys = [_key(option, name, schema, conf) for name in given]
    if len({key.path for key in keys}) != len(keys):
        raise InvalidOptionError(f"{option}: a column is named twice")
    return tuple(keys)


def _key(option: str, name: Any, schema: StructType, conf: ReadConf) -> Key:
    if not isinstance(name, str):
        raise InvalidOptionError(f"{option}: must be names of columns, not {name!r}")
    key = find_leaf(name, schema, conf)
    if key is None:
        raise ColumnNotFoundError(
            f"{option}: there is no such column among those that are written",
            column=name,
            hint=nearest_column(name, schema.names),
        )
    return key


def find_leaf(name: str, schema: StructType, conf: ReadConf) -> Key | None:
    """A column by its name or dotted path; None where there is none, or it is inside of lists or maps."""
    at = find_name(schema.names, name, conf)
    if at is not None:
        field = schema.fields[at]
        return Key((field.name,), at, field.dataType)
    first, *rest = name.split(".")
    at = find_name(schema.names, first, conf)
    if at is None:
        return None
    path, kind = [schema.fields[at].name], schema.fields[at].dataType
    for step in rest:
        inner = find_name(kind.names, step, conf) if isinstance(kind, StructType) else None
        if inner is None or not isinstance(kind, StructType):
            return None
        path.append(kind.fields[inner].name)
        kind = kind.fields[inner].dataType
    return Key(tuple(path), at, kind)


@dataclass(frozen=True)
class Order:
    """How rows are sorted: by ``keys``, and among equal ones by the place in the z-order of ``z_keys``, if any.

    Nulls come first, and NaN last, as Spark sorts.
    """

    keys: tuple[Key, ...]
    z_keys: tuple[Key, ...] = ()

    def __post_init__(self) -> None:
        if not self.keys and not self.z_keys:
            raise InvalidOptionError("sort_by, zorder_by: name a column")
        if self.z_keys and not 2 <= len(self.z_keys) <= MOST_COLUMNS:
            raise InvalidOptionError(f"zorder_by: must be 2 to {MOST_COLUMNS} columns")
        both = {key.path for key in self.keys} & {key.path for key in self.z_keys}
        if both:
            raise InvalidOptionError("a column is in sort_by and zorder_by", column=".".join(min(both)))
        for key in self.keys:
            if not _has_order(key.kind):
                raise InvalidOptionError(
                    f"sort_by: values of {key.kind.simpleString()} have no order in Spark", column=key.name
                )
        for key in self.z_keys:
            if not isinstance(key.kind, _RANKED) and not _is_plain_text(key.kind):
                raise InvalidOptionError(
                    f"zorder_by: values of {key.kind.simpleString()} cannot be ranked", column=key.name
                )

    def sorted_by(self) -> tuple[SortedBy, ...]:
        """What is true in Parquet's terms: columns up to the first that Spark and Parquet order differently."""
        found: list[SortedBy] = []
        for key in self.keys:
            if not isinstance(key.kind, _SAME_ORDER) and not _is_plain_text(key.kind):
                break
            if any("." in name for name in key.path):  # its path would name another column
                break
            found.append(SortedBy(column=key.name))
        return tuple(found)

    def heavy_keys(self) -> Column:
        """An aggregate over a frame of :func:`numbered`: hashes of the keys that most rows have, and how many these
        are."""
        return F.call_function("approx_top_k", self._hash(), F.lit(_MOST_HEAVY), F.lit(_TRACKED))

    def arranged(self, frame: DataFrame, rows: int, partitions: int, heavy: Sequence[int]) -> DataFrame:
        """``frame`` as partitions whose keys follow each other, sorted.

        Args:
            rows: of ``frame``, about.
            heavy: hashes of keys whose rows may be in several partitions.
        """
        rest = numbered(frame)
        order = [key.column for key in self.keys]
        if self.z_keys:
            columns = [key.column for key in self.z_keys]
            z = z_order(rest, columns, rows)
            rest = rest.withColumn("z", place_column(z, columns))
            order += [F.col("z"), *columns]
        salts = []
        if heavy and partitions > 1:
            is_heavy = self._hash().isin(list(heavy))
            salts = [F.when(is_heavy, row_hash(frame.schema)).otherwise(F.lit(0).cast("bigint"))]
        divided = rest.repartitionByRange(partitions, *order, *salts)
        arranged = divided.sortWithinPartitions(*order)
        return arranged.select(*[f"c{at}" for at in range(len(frame.columns))]).toDF(*frame.columns)

    def _hash(self) -> Column:
        return columns_hash([(key.column, key.kind) for key in (*self.keys, *self.z_keys)])


def _has_order(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return all(_has_order(field.dataType) for field in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_order(kind.elementType)
    return not isinstance(kind, (MapType, VariantType, CalendarIntervalType)) and not is_spatial(kind)


def _is_plain_text(kind: DataType) -> bool:
    return isinstance(kind, StringType) and kind.isUTF8BinaryCollation()


# -- how large files will be ----------------------------------------------------------------------


@dataclass(frozen=True)
class _Encoding:
    """What the executors get."""

    schema: StructType
    conf: ReadConf
    compression: str

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        taken: list[pa.RecordBatch] = []
        for batch in batches:
            taken.append(batch)
            if sum(one.nbytes for one in taken) > _SAMPLE_BYTES:
                break
        if not taken:
            return
        convert = from_spark(self.schema, self.conf).convert
        table = pa.Table.from_batches([convert(batch) for batch in taken])
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression=self.compression.upper())
        yield pa.RecordBatch.from_pydict({"rows": [table.num_rows], "bytes": [sink.tell()]})


def encoded_bytes(frame: DataFrame, rows: int, compression: str, conf: ReadConf) -> int:
    """About how large so many rows are in Parquet files, by the first ones."""
    sample = numbered(frame).limit(min(rows, _SAMPLE_ROWS))
    encoding = _Encoding(sample.schema, conf, compression)
    sample = sample.mapInArrow(encoding, "rows bigint, bytes bigint")
    measured = sample.agg(F.sum("rows"), F.sum("bytes")).collect()[0]
    return 0 if not measured[0] else rows * measured[1] // measured[0]
