"""Types without a plain Arrow form in PySpark (GEOMETRY and GEOGRAPHY, intervals of months, VARIANT), and Spark's types
for Arrow's.

Files store GEOMETRY and GEOGRAPHY as well-known binary with a coordinate reference system. PySpark takes no Arrow data
of intervals of months, which travel as integers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache, reduce
from operator import or_
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.errors import PySparkException
from pyspark.sql import Column
from pyspark.sql import functions as F  # noqa: N812  (PySpark's own documentation calls it so)
from pyspark.sql import types as T  # noqa: N812
from pyspark.sql.pandas.types import from_arrow_schema, from_arrow_type

from asyncpq.decoding.arrow import validity
from asyncpq.errors import UnsupportedFeatureError
from asyncpq.parquet.logical_types import LogicalKind
from asyncpq.parquet.metadata import FileMetadata
from asyncpq.parquet.schema import SchemaElement
from asyncpq.parquet.thrift import CompactReader
from asyncpq.spark.types.read_conf import ReadConf, find_name, inner_types, nullable_struct, with_leaves

#: Key of field metadata in schemas to write: JSON parameters of GeoArrow's type "geoarrow.wkb".
WKB_KEY: Final = b"asyncpq.geoarrow.wkb"
_LOGICAL_TYPE: Final = 10  # SchemaElement.logicalType of parquet.thrift
_GEOMETRY: Final = 17
_GEOGRAPHY: Final = 18
_YEARS: Final = T.YearMonthIntervalType(T.YearMonthIntervalType.YEAR, T.YearMonthIntervalType.YEAR)
_DEFAULT_CRS: Final = "OGC:CRS84"
_ALGORITHMS: Final = ("SPHERICAL", "VINCENTY", "THOMAS", "ANDOYER", "KARNEY")
_TYPE_TEXT: Final = re.compile(r"geo(?:metry|graphy)\((.*?)(?:, \w+)?\)")


# -- GEOMETRY and GEOGRAPHY -----------------------------------------------------------------------


def is_spatial(kind: T.DataType) -> bool:
    """Whether the type is GEOMETRY or GEOGRAPHY."""
    return isinstance(kind, (T.GeometryType, T.GeographyType))


def logical_parameters(metadata: FileMetadata, element: SchemaElement, annotation: int) -> dict[int, Any]:
    """The thrift fields of an element's LogicalType with this field id in parquet.thrift; empty if it has another."""
    union = CompactReader(metadata.data, element.raw_start).struct().get(_LOGICAL_TYPE)
    fields = union.get(annotation) if isinstance(union, dict) else None
    return fields if isinstance(fields, dict) else {}


def spatial_type(metadata: FileMetadata, element: SchemaElement, kind: LogicalKind) -> T.DataType:
    """Spark's type for a column with a GEOMETRY or GEOGRAPHY annotation; UnsupportedFeatureError for unknown ones."""
    fields = logical_parameters(metadata, element, _GEOMETRY if kind is LogicalKind.GEOMETRY else _GEOGRAPHY)
    crs = fields.get(1, _DEFAULT_CRS)
    crs = crs.decode("utf-8", "replace") if isinstance(crs, bytes) else str(crs)
    text = f"geometry({crs})"
    if kind is LogicalKind.GEOGRAPHY:
        algorithm = fields.get(2, 0)
        is_known = isinstance(algorithm, int) and 0 <= algorithm < len(_ALGORITHMS)
        text = f"geography({crs}, {_ALGORITHMS[algorithm] if is_known else algorithm})"
    field = {"name": "x", "type": text, "nullable": True, "metadata": {}}
    try:
        spatial = T.StructType.fromJson({"type": "struct", "fields": [field]})[0].dataType
    except (PySparkException, ValueError, KeyError) as error:
        raise UnsupportedFeatureError(
            f"Spark does not know the type {text}",
            hint="Declare the column in a schema as BINARY, or with another system.",
        ) from error
    check_spatial(spatial)
    return spatial


def check_spatial(kind: T.DataType) -> None:
    """Refuse types with values of any coordinate reference system, which Parquet cannot store."""
    if isinstance(kind, (T.GeometryType, T.GeographyType)) and int(kind.srid) < 0:
        raise UnsupportedFeatureError(
            f"The Parquet datasource doesn't support the type {kind.simpleString()}"
            " (Spark: UNSUPPORTED_DATA_TYPE_FOR_DATASOURCE)"
        )


def spatial_values(kind: T.DataType, arrow: pa.DataType) -> Callable[[pa.Array], pa.Array]:
    """The conversion from well-known binary to PySpark's values of ``kind``."""
    assert isinstance(kind, (T.GeometryType, T.GeographyType))
    srid = pa.scalar(int(kind.srid), pa.int32())

    def convert(array: pa.Array) -> pa.Array:
        values = array.cast(pa.binary(), safe=False)
        children = [pa.repeat(srid, len(array)), pc.fill_null(values, b"") if values.null_count else values]
        return pa.Array.from_buffers(arrow, len(array), [validity(values)], values.null_count, 0, children)

    return convert


def well_known_binary(array: pa.Array) -> pa.Array:
    """The conversion from PySpark's values to well-known binary."""
    values = array.field(array.type.get_field_index("wkb"))
    return pc.if_else(array.is_valid(), values, pa.scalar(None, pa.binary())) if array.null_count else values


def wkb_field(field: T.StructField) -> pa.Field:
    """The field of a file, which :func:`with_wkb_types` turns into a GEOMETRY or GEOGRAPHY of Parquet."""
    kind = field.dataType
    check_spatial(kind)
    text = kind.jsonValue()
    match = _TYPE_TEXT.fullmatch(text if isinstance(text, str) else "")
    about = {"crs": match[1] if match else _DEFAULT_CRS}
    if isinstance(kind, T.GeographyType):
        about["edges"] = "spherical"
    return pa.field(field.name, pa.binary(), field.nullable, metadata={WKB_KEY: json.dumps(about).encode()})


class _Wkb(pa.ExtensionType):  # type: ignore[misc]  # pyarrow has no types
    """GeoArrow's "geoarrow.wkb", which pyarrow writes as GEOMETRY or GEOGRAPHY. It is not registered, so readers get
    binary values."""

    def __init__(self, about: bytes) -> None:
        self._about = about
        super().__init__(pa.binary(), "geoarrow.wkb")

    def __arrow_ext_serialize__(self) -> bytes:
        return self._about

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> _Wkb:
        return cls(serialized)


def with_wkb_types(schema: pa.Schema) -> pa.Schema:
    """The schema for pyarrow's writer."""
    return pa.schema([_with_wkb(field) for field in schema], metadata=schema.metadata)


def _with_wkb(field: pa.Field) -> pa.Field:
    about = (field.metadata or {}).get(WKB_KEY)
    if about is not None:
        return pa.field(field.name, _Wkb(about), field.nullable)
    kind = field.type
    if isinstance(kind, pa.StructType):
        return field.with_type(pa.struct([_with_wkb(child) for child in kind]))
    if isinstance(kind, pa.MapType):
        return field.with_type(pa.map_(_with_wkb(kind.key_field), _with_wkb(kind.item_field)))
    if isinstance(kind, pa.ListType):
        return field.with_type(pa.list_(_with_wkb(kind.value_field)))
    return field


# -- what files have ------------------------------------------------------------------------------


def _is_months(kind: T.DataType) -> bool:
    return isinstance(kind, T.YearMonthIntervalType)


def as_stored(kind: T.DataType) -> T.DataType:
    """The type as Arrow types of files tell it: BINARY for GEOMETRY and GEOGRAPHY, INT for intervals of months."""
    return with_leaves(without_months(kind), lambda leaf: T.BinaryType() if is_spatial(leaf) else leaf)


def without_months(kind: T.DataType) -> T.DataType:
    """The type with integers for intervals of months, of which PySpark takes no Arrow data."""
    return with_leaves(kind, lambda leaf: T.IntegerType() if _is_months(leaf) else leaf)


def from_months(column: Column, kind: T.DataType) -> Column:
    """Convert integers to intervals of months where ``kind`` has such.

    Intervals of years must be whole years: no cast of Spark keeps the months of a file that has them.
    """
    months = T.YearMonthIntervalType(T.YearMonthIntervalType.MONTH, T.YearMonthIntervalType.MONTH)
    intervals = column.cast(with_leaves(kind, lambda leaf: months if _is_months(leaf) else leaf)).cast(kind)
    if not _contains(kind, _YEARS):
        return intervals
    error = F.raise_error(
        F.lit(
            "asyncpq.errors.SchemaMismatchError: a file has months, but the lake's columns, those of its first file,"
            " have INTERVAL YEAR. Set spark.sql.parquet.mergeSchema, or pass schema= with INTERVAL YEAR TO MONTH."
        )
    )
    return F.when(_has_months(column, kind), error).otherwise(intervals)


def _contains(kind: T.DataType, wanted: T.DataType) -> bool:
    return kind == wanted or any(_contains(inner, wanted) for _, inner in inner_types(kind))


def _has_months(column: Column, kind: T.DataType) -> Column:
    """Whether an integer in place of an interval of years is not whole years; never null."""
    if isinstance(kind, T.StructType):
        fields = [(name, inner) for name, inner in inner_types(kind) if _contains(inner, _YEARS)]
        return reduce(or_, [_has_months(column[name], inner) for name, inner in fields], F.lit(False))
    if isinstance(kind, T.MapType):
        keys, values = T.ArrayType(kind.keyType), T.ArrayType(kind.valueType)
        return _has_months(F.map_keys(column), keys) | _has_months(F.map_values(column), values)
    if isinstance(kind, T.ArrayType):
        return F.coalesce(F.exists(column, lambda item: _has_months(item, kind.elementType)), F.lit(False))
    return F.coalesce(column % 12 != 0, F.lit(False)) if kind == _YEARS else F.lit(False)


def is_variant(kind: pa.DataType) -> bool:
    """Whether it is PySpark's type for VARIANT. Types in files differ by what they shred."""
    place = kind.get_field_index("metadata") if isinstance(kind, pa.StructType) else -1
    return place >= 0 and (kind.field(place).metadata or {}).get(b"variant") == b"true"


def has_variant(kind: T.DataType) -> bool:
    """Whether the type is or contains VARIANT."""
    return _contains(kind, T.VariantType())


# -- Spark's types for Arrow's --------------------------------------------------------------------


def same_to_spark(left: pa.DataType, right: pa.DataType) -> bool:
    """Whether Spark has the same type for both."""
    return left.equals(right) or (spark_type(left) is not None and spark_type(left) == spark_type(right))


@cache
def spark_type(kind: pa.DataType) -> T.DataType | None:
    """Spark's type for the nearest Arrow type; None if PySpark has none."""
    try:
        return from_arrow_type(_taken(kind))
    except PySparkException:
        return None


def tells_more(kind: T.DataType) -> bool:
    """Whether Spark's type has more than Arrow's types tell: see :func:`with_untold`."""
    return has_variant(kind) or as_stored(kind) != kind


def with_untold(known: T.DataType, inferred: T.DataType, conf: ReadConf) -> T.DataType:
    """``known``, with VARIANT, GEOMETRY and similar types, which Arrow's types lack, restored from a file's schema."""
    if isinstance(inferred, T.VariantType) or (as_stored(inferred) == known != inferred):
        return inferred
    if isinstance(known, T.StructType) and isinstance(inferred, T.StructType):
        columns = []
        for field in known.fields:
            at = find_name(inferred.names, field.name, conf)
            kind = field.dataType if at is None else with_untold(field.dataType, inferred.fields[at].dataType, conf)
            columns.append(T.StructField(field.name, kind, field.nullable))
        return T.StructType(columns)
    if isinstance(known, T.ArrayType) and isinstance(inferred, T.ArrayType):
        return T.ArrayType(with_untold(known.elementType, inferred.elementType, conf), known.containsNull)
    if isinstance(known, T.MapType) and isinstance(inferred, T.MapType):
        values = with_untold(known.valueType, inferred.valueType, conf)
        return T.MapType(known.keyType, values, known.valueContainsNull)
    return known


def struct_of(schema: pa.Schema) -> T.StructType:
    """Spark's types for columns of which only Arrow types are known: those of tables and partitions."""
    return nullable_struct(from_arrow_schema(pa.schema([field.with_type(_taken(field.type)) for field in schema])))


@cache
def _taken(kind: pa.DataType) -> pa.DataType:
    """The nearest Arrow type for which PySpark has a type."""
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
        return pa.struct([field.with_type(_taken(field.type)) for field in kind])
    if isinstance(kind, pa.MapType):
        return pa.map_(_taken(kind.key_type), _taken(kind.item_type))
    if isinstance(kind, (pa.ListType, pa.LargeListType, pa.FixedSizeListType)):
        return pa.list_(_taken(kind.value_type))
    if pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return kind
