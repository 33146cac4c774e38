"""Types of a lake's columns: as Spark has them, where asyncpq's are known, and as asyncpq is to have them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import TypeAlias

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type, to_arrow_type
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType, TimestampType, VariantType

from asyncpq.decoding.conform import children_of, is_list, with_children
from asyncpq.spark.types.conversion import arrow_schema
from asyncpq.spark.types.read_conf import ReadConf, find_name, nullable_struct
from asyncpq.spark.types.special_types import as_stored
from asyncpq.spark.types.variants import has_variant

#: The type of what has no children, by that of files and Spark's.
_Leaf: TypeAlias = Callable[[pa.DataType, DataType], pa.DataType]


# -- asyncpq's ------------------------------------------------------------------------------------


def lake_field(known: pa.Field, asked: StructField, conf: ReadConf) -> pa.Field:
    """A column, or a part of one, of the type that is asked for: what files are known to have of it stays as it is
    where Spark takes that for the type, all else is of Spark's own types.

    Raises:
        AmbiguousColumnError: which of its fields is meant cannot be said.
        UnsupportedFeatureError: PySpark takes no Arrow data of one of the types.
    """
    return _field(known, asked, conf, _asked_leaf)


def lake_column(asked: StructField) -> pa.Field:
    """One that no file is known to have.

    Raises:
        UnsupportedFeatureError: PySpark takes no Arrow data of its type.
    """
    stored = StructField(asked.name, as_stored(asked.dataType), asked.nullable, asked.metadata)
    return arrow_schema(StructType([stored])).field(0)


def with_instants(known: pa.Field, asked: StructField) -> pa.Field:
    """The column with times of UTC where Spark takes those without a zone for that, as it does INT96: as files may have
    them that were written later."""
    return _field(known, asked, ReadConf(case_sensitive=True), _instants)


def _field(known: pa.Field, asked: StructField, conf: ReadConf, leaf: _Leaf) -> pa.Field:
    kind = _type(known.type, asked.dataType, conf, leaf)
    # a VARIANT is known by metadata, which files do not have
    return known if kind.equals(known.type) and not has_variant(asked.dataType) else pa.field(known.name, kind)


def _type(known: pa.DataType, asked: DataType, conf: ReadConf, leaf: _Leaf) -> pa.DataType:
    if isinstance(asked, StructType) and isinstance(known, pa.StructType):
        names = [child.name for child in known]
        found = [find_name(names, one.name, conf) for one in asked.fields]
        return pa.struct(
            [
                lake_column(one) if at is None else _field(known.field(at), one, conf, leaf)
                for one, at in zip(asked.fields, found, strict=True)
            ]
        )
    kinds: list[DataType] = []
    if isinstance(asked, ArrayType) and is_list(known):
        kinds = [asked.elementType]
    elif isinstance(asked, MapType) and isinstance(known, pa.MapType):
        kinds = [asked.keyType, asked.valueType]
    if not kinds:
        return leaf(known, asked)
    parts = zip(children_of(known), kinds, strict=True)
    return with_children(known, [part.with_type(_type(part.type, kind, conf, leaf)) for part, kind in parts])


def _asked_leaf(known: pa.DataType, asked: DataType) -> pa.DataType:
    stored = as_stored(asked)
    return known if _spark_type(known) == stored else lake_column(StructField("", stored)).type


def _instants(known: pa.DataType, asked: DataType) -> pa.DataType:
    is_zoneless = isinstance(asked, TimestampType) and isinstance(known, pa.TimestampType) and known.tz is None
    return to_arrow_type(asked, timezone="UTC") if is_zoneless else known


# -- Spark's --------------------------------------------------------------------------------------


def same_to_spark(one: pa.DataType, other: pa.DataType) -> bool:
    """Whether Spark has one type for both."""
    return one.equals(other) or (_spark_type(one) is not None and _spark_type(one) == _spark_type(other))


@cache
def _spark_type(kind: pa.DataType) -> DataType | None:
    try:
        return from_arrow_type(_taken(kind))
    except PySparkException:
        return None


def tells_more(kind: DataType) -> bool:
    """Whether Arrow's types do not tell all of it: see :func:`with_untold`."""
    return has_variant(kind) or as_stored(kind) != kind


def with_untold(known: DataType, inferred: DataType, conf: ReadConf) -> DataType:
    """``known``, from which Arrow's types leave out what is VARIANT, GEOMETRY and the like, with those of a file."""
    if isinstance(inferred, VariantType) or (as_stored(inferred) == known != inferred):
        return inferred
    if isinstance(known, StructType) and isinstance(inferred, StructType):
        fields = []
        for field in known.fields:
            at = find_name(inferred.names, field.name, conf)
            kind = field.dataType if at is None else with_untold(field.dataType, inferred.fields[at].dataType, conf)
            fields.append(StructField(field.name, kind, field.nullable))
        return StructType(fields)
    if isinstance(known, ArrayType) and isinstance(inferred, ArrayType):
        return ArrayType(with_untold(known.elementType, inferred.elementType, conf), known.containsNull)
    if isinstance(known, MapType) and isinstance(inferred, MapType):
        values = with_untold(known.valueType, inferred.valueType, conf)
        return MapType(known.keyType, values, known.valueContainsNull)
    return known


def struct_of(schema: pa.Schema) -> StructType:
    """Spark's types for columns whose Arrow types alone are known: those of tables, and of partitions."""
    return nullable_struct(from_arrow_schema(pa.schema([one.with_type(_taken(one.type)) for one in schema])))


@cache
def _taken(kind: pa.DataType) -> pa.DataType:
    """An Arrow type that PySpark has a type for."""
    if isinstance(kind, pa.DictionaryType):
        return _taken(kind.value_type)
    if isinstance(kind, pa.BaseExtensionType):
        return _taken(kind.storage_type)
    wider = {pa.uint8(): pa.int16(), pa.uint16(): pa.int32(), pa.uint32(): pa.int64(), pa.uint64(): pa.decimal128(20)}
    if kind in wider:
        return wider[kind]
    if isinstance(kind, pa.TimestampType):
        return pa.timestamp("us", kind.tz)
    if isinstance(kind, pa.StructType):
        return pa.struct([one.with_type(_taken(one.type)) for one in kind])
    if isinstance(kind, pa.MapType):
        return pa.map_(_taken(kind.key_type), _taken(kind.item_type))
    if isinstance(kind, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        return pa.list_(_taken(kind.value_type))
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return kind
