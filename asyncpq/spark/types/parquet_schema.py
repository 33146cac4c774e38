"""The schema that Spark infers for a Parquet file: from the schema that Spark wrote into the footer, or from Parquet's.

Spark's own schema has CHAR and VARCHAR, comments and user-defined types. Its JSON is untrusted: of the classes that it
names, only those of pyspark are imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from pyspark.errors import PySparkException
from pyspark.sql import types as T  # noqa: N812

from asyncpq.errors import AsyncpqError, UnsupportedFeatureError
from asyncpq.parquet.column_chunk import Codec, Encoding
from asyncpq.parquet.logical_types import (
    ConvertedType,
    LogicalKind,
    LogicalType,
    PhysicalType,
    Repetition,
    from_converted,
)
from asyncpq.parquet.metadata import FileMetadata
from asyncpq.parquet.row_group import UnknownLeafError
from asyncpq.parquet.schema import SchemaElement
from asyncpq.spark.types import read_conf
from asyncpq.spark.types.special_types import check_spatial, logical_parameters, spatial_type

ROW_METADATA_KEY: Final = "org.apache.spark.sql.parquet.row.metadata"
# Types that Spark's parser supports and pyspark's does not.
_UNKNOWN_TO_PYSPARK: Final = re.compile(r"timestamp_(ltz|ntz)\(\d+\)")
_MAX_DEPTH: Final = 100


#: What Spark's reader decodes without more jars. It has no BYTE_STREAM_SPLIT and no ALP; LZ4 frames differ among
#: writers.
_CODECS: Final = frozenset({Codec.UNCOMPRESSED, Codec.SNAPPY, Codec.GZIP, Codec.ZSTD, Codec.LZ4_RAW})
_ENCODINGS: Final = frozenset(Encoding) - {Encoding.BYTE_STREAM_SPLIT, Encoding.ALP}


def spark_refuses(metadata: FileMetadata) -> str:
    """Return why Spark's reader cannot decode a file, by its first row group; "" if it can."""
    if not metadata.row_groups:
        return ""
    group = metadata.row_groups[0]
    for leaf in metadata.schema.leaves:
        try:
            chunk = group.parse_chunk(leaf.index)
        except UnknownLeafError:  # an index has other columns of the file
            continue
        except AsyncpqError as error:
            return f"the first file cannot be examined: {error.message}"
        if chunk.has_crypto:
            return "the first file is encrypted"
        if chunk.codec not in _CODECS or not _ENCODINGS.issuperset(chunk.encodings):
            return "Spark lacks a codec or an encoding of the first file"
    return ""


def row_schema(text: str | None) -> T.StructType | None:
    """Parse the schema that Spark wrote into the footer (:data:`ROW_METADATA_KEY`), and make all parts nullable.

    None if ``text`` is None or is not the JSON that Spark writes since version 1.2; then Spark uses Parquet's schema.
    Raises UnsupportedFeatureError for a type that pyspark lacks.
    """
    if text is None:
        return None
    try:
        schema = T.StructType.fromJson(_safe(json.loads(text), 0))
    except (PySparkException, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return read_conf.nullable_struct(read_conf.without_char_and_varchar(schema))


def _safe(value: Any, depth: int) -> Any:
    """Return the JSON of a type with user-defined types replaced by their storage types, so that pyspark imports no
    class that the file names. ``depth``: levels of nesting so far."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"the type is nested more than {_MAX_DEPTH} levels deep")
    if isinstance(value, str) and _UNKNOWN_TO_PYSPARK.fullmatch(value):
        raise UnsupportedFeatureError(
            f"the file's Spark schema has the type {value}, which pyspark does not have",
            hint="Read the file with spark.read.parquet.",
        )
    if isinstance(value, list):
        return [_safe(item, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "udt":
        name = value.get("pyClass")
        if not isinstance(name, str) or not re.fullmatch(r"pyspark\.(ml|mllib)\.linalg\.\w+UDT", name):
            return _safe(value["sqlType"], depth + 1)
        return {"type": "udt", "class": value.get("class"), "pyClass": name, "sqlType": value["sqlType"]}
    return {key: item if key in ("name", "metadata") else _safe(item, depth + 1) for key, item in value.items()}


_MOST_DIGITS: Final = 38
_DECLARE: Final = "Declare only the other columns, with .schema(...), or read the file with asyncpq itself."
_NANOS_HINT: Final = "Set spark.sql.legacy.parquet.nanosAsLong=true to read nanoseconds as BIGINT."
_VARIANT: Final = 16  # LogicalType.VARIANT of parquet.thrift
_UNITS: Final = {"ms": "MILLIS", "us": "MICROS", "ns": "NANOS"}
_TIMES: Final = frozenset({LogicalKind.TIME, LogicalKind.TIMESTAMP})
_SPATIAL: Final = frozenset({LogicalKind.GEOMETRY, LogicalKind.GEOGRAPHY})
_TEXT: Final = frozenset({LogicalKind.STRING, LogicalKind.ENUM, LogicalKind.JSON})


def _refused(message: str, hint: str = _DECLARE) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(message, hint=hint)


class _Node(NamedTuple):
    """An element of the Parquet schema with its children."""

    element: SchemaElement
    children: tuple[_Node, ...]


def spark_schema(metadata: FileMetadata, conf: read_conf.ReadConf) -> T.StructType:
    """Return the schema that ``spark.read.parquet`` infers from a file's footer, with all parts nullable.

    Raises UnsupportedFeatureError if Spark has no type for a column, and AmbiguousColumnError if two columns have the
    same name under Spark's case sensitivity.
    """
    schema = row_schema(metadata.key_value_metadata.get(ROW_METADATA_KEY))
    if schema is None:
        nodes = iter(metadata.schema.elements)
        root = _node(next(nodes), nodes)
        schema = read_conf.nullable_struct(_TypeReader(metadata, conf).struct(root.children))
    read_conf.check_names(schema, conf)
    check_types(schema, conf)
    return schema


def check_types(dtype: T.DataType, conf: read_conf.ReadConf) -> None:
    """Raise UnsupportedFeatureError if a type is or contains one that Spark's Parquet reader refuses."""
    if isinstance(dtype, T.TimeType) and not conf.time_type:
        raise _refused(
            "Spark does not support the type TIME by default (Spark: UNSUPPORTED_TIME_TYPE)",
            hint="Set spark.sql.timeType.enabled=true.",
        )
    if isinstance(dtype, T.CalendarIntervalType):
        raise _refused("Spark does not read intervals of months, days and microseconds from Parquet")
    check_spatial(dtype)
    for name, inner in read_conf.inner_types(dtype):
        with read_conf.within(name):
            check_types(inner, conf)


def _node(element: SchemaElement, rest: Iterator[SchemaElement]) -> _Node:
    return _Node(element, tuple([_node(next(rest), rest) for _ in range(element.num_children)]))


def _repeated(node: _Node) -> _Node | None:
    """Return the only child of a group if it is repeated; None if the group has several children, or one that is not
    repeated."""
    child = node.children[0] if len(node.children) == 1 else None
    return None if child is None or child.element.repetition is not Repetition.REPEATED else child


class _TypeReader:
    """Derives Spark's types for the schema elements of one file."""

    def __init__(self, metadata: FileMetadata, conf: read_conf.ReadConf) -> None:
        self._metadata = metadata
        self._conf = conf

    def struct(self, nodes: Sequence[_Node]) -> T.StructType:
        fields = []
        for node in nodes:
            name = node.element.name
            with read_conf.within(name):
                dtype = self._field(node)
            # A repeated field outside of a list or map is itself a list.
            repeated = node.element.repetition is Repetition.REPEATED
            fields.append(T.StructField(name, T.ArrayType(dtype) if repeated else dtype))
        return T.StructType(fields)

    def _field(self, node: _Node) -> T.DataType:
        if node.element.physical_type is not None:
            return self._leaf(node.element, node.element.physical_type)
        logical = annotation(node.element)
        if logical is None:
            return self.struct(node.children)
        if logical.kind is LogicalKind.LIST:
            return self._list(node)
        if logical.kind is LogicalKind.MAP:
            return self._map(node)
        # VariantType.specification_version of parquet.thrift
        if (
            logical.kind is LogicalKind.VARIANT
            and logical_parameters(self._metadata, node.element, _VARIANT).get(1) == 1
        ):
            return self.struct(node.children) if self._conf.ignore_variant_annotation else T.VariantType()
        raise _refused(f"Spark has no type for Parquet's {logical.kind.value} group")

    def _list(self, node: _Node) -> T.DataType:
        """Return the type of a LIST group, by the rules of Parquet's LogicalTypes.md, also those for old writers."""
        repeated = _repeated(node)
        if repeated is None:
            raise _refused("the LIST group must have one child, which is repeated")
        name = repeated.element.name
        is_element = len(repeated.children) != 1 or name == "array" or name == f"{node.element.name}_tuple"
        return T.ArrayType(self._field(repeated if is_element else repeated.children[0]))

    def _map(self, node: _Node) -> T.DataType:
        """Return the type of a MAP group, by the rules of Parquet's LogicalTypes.md."""
        entries = _repeated(node)
        if entries is None or len(entries.children) != 2:
            raise _refused("the MAP group must have one child, which is repeated and has a key and a value")
        key, value = entries.children
        return T.MapType(self._field(key), self._field(value))

    def _leaf(self, element: SchemaElement, physical: PhysicalType) -> T.DataType:
        logical = annotation(element)
        if logical is not None and logical.kind is LogicalKind.NULL:
            if self._conf.respect_unknown_annotation:
                return T.NullType()
            logical = None
        dtype = self._leaf_type(element, physical, logical)
        if dtype is None:
            is_nanos = logical is not None and (logical.kind, logical.unit) == (LogicalKind.TIMESTAMP, "ns")
            raise _refused(
                f"Spark has no type for Parquet's {physical.name}, {_described(logical)} (Spark: PARQUET_TYPE_ILLEGAL)",
                _NANOS_HINT if is_nanos else _DECLARE,
            )
        return dtype

    def _leaf_type(
        self, element: SchemaElement, physical: PhysicalType, logical: LogicalType | None
    ) -> T.DataType | None:
        """Return Spark's type for a leaf; None if Spark has no type for its physical type and annotation."""
        plain = _PLAIN.get(physical)
        if logical is not None and logical.kind is LogicalKind.DECIMAL:
            return _decimal(element, physical, logical)
        if physical is PhysicalType.INT96:
            return self._int96()
        if physical is PhysicalType.BYTE_ARRAY:
            if logical is None:
                return T.StringType() if self._conf.binary_as_string else T.BinaryType()
            if logical.kind in _SPATIAL:
                return spatial_type(self._metadata, element, logical.kind)
            if logical.kind in _TEXT:
                return T.StringType()
            return T.BinaryType() if logical.kind is LogicalKind.BSON else None
        if logical is None or physical in (PhysicalType.BOOLEAN, PhysicalType.FLOAT, PhysicalType.DOUBLE):
            return plain
        if logical.kind is LogicalKind.INTEGER:
            return _INTEGERS.get((physical, logical.bit_width, logical.is_signed is True))
        if physical is PhysicalType.INT32:
            return T.DateType() if logical.kind is LogicalKind.DATE else None
        if physical is PhysicalType.INT64:
            return self._int64(logical)
        return None

    def _int64(self, logical: LogicalType) -> T.DataType | None:
        if logical.kind is LogicalKind.TIMESTAMP:
            if logical.unit == "ns":
                if self._conf.nanos_as_long:
                    return T.LongType()
                if self._conf.timestamp_nanos_types:
                    raise _refused(
                        "the column has timestamps in nanoseconds, which pyspark does not have", hint=_NANOS_HINT
                    )
                return None
            is_instant = logical.is_adjusted_to_utc or not self._conf.infer_timestamp_ntz
            return T.TimestampType() if is_instant else T.TimestampNTZType()
        if logical.kind is LogicalKind.TIME and not logical.is_adjusted_to_utc:
            return {"us": T.TimeType(6), "ns": T.TimeType(9)}.get(logical.unit or "")
        return None

    def _int96(self) -> T.DataType:
        if not self._conf.int96_as_timestamp:
            raise _refused(
                "Spark reads INT96 only as timestamps, which a setting forbids",
                hint="Set spark.sql.parquet.int96AsTimestamp=true.",
            )
        return T.TimestampType()


def annotation(element: SchemaElement) -> LogicalType | None:
    """Return the type annotation of an element as Spark reads it; None if the element has no annotation.

    If the old annotation (ConvertedType) contradicts the new one (LogicalType), the old one is used. Raises
    UnsupportedFeatureError for an annotation that Spark 4.3 does not support.
    """
    logical, converted = element.logical_type, element.converted_type
    if logical is None:
        return None
    if logical.kind is LogicalKind.UNRECOGNISED:
        raise _refused(f"Spark does not support the column's Parquet annotation ({logical.kind.value})")
    if converted is not None and converted is not _converted(logical):
        return from_converted(converted, element.precision, element.scale)
    return logical


def _converted(logical: LogicalType) -> ConvertedType | None:
    """Return the old annotation (ConvertedType) that corresponds to a new one; None if there is no such annotation."""
    name = logical.kind.value
    if logical.kind is LogicalKind.INTEGER:
        name = f"{'INT' if logical.is_signed else 'UINT'}_{logical.bit_width}"
    elif logical.kind in _TIMES:
        name = f"{name}_{_UNITS.get(logical.unit or '')}"
    elif logical.kind is LogicalKind.STRING:
        name = "UTF8"
    return ConvertedType.__members__.get(name)


def _decimal(element: SchemaElement, physical: PhysicalType, logical: LogicalType) -> T.DataType | None:
    precision, scale = logical.precision or 0, logical.scale or 0
    if physical is PhysicalType.FIXED_LEN_BYTE_ARRAY:
        most = len(str((1 << (8 * (element.type_length or 0) - 1)) - 1)) - 1 if element.type_length else 0
    else:
        digits = {PhysicalType.INT32: 9, PhysicalType.INT64: 18, PhysicalType.BYTE_ARRAY: _MOST_DIGITS}
        most = digits.get(physical, 0)
    if not 1 <= precision <= most or not 0 <= scale <= precision:
        raise _refused(
            f"the file's decimal({precision},{scale}) is invalid: {physical.name} cannot store {precision} digits"
        )
    if precision > _MOST_DIGITS:
        raise _refused(
            f"the column has {precision} digits, and Spark's decimals have 38 at most"
            " (Spark: DECIMAL_PRECISION_EXCEEDS_MAX_PRECISION)"
        )
    return T.DecimalType(precision, scale)


def _described(logical: LogicalType | None) -> str:
    """Return the name of an annotation as in Spark's error messages, such as ``TIMESTAMP(MICROS,true)``."""
    if logical is None:
        return "none"
    if logical.kind in _TIMES:
        unit = _UNITS.get(logical.unit or "", "?")
        return f"{logical.kind.value}({unit},{str(bool(logical.is_adjusted_to_utc)).lower()})"
    if logical.kind is LogicalKind.INTEGER:
        return f"INTEGER({logical.bit_width},{str(bool(logical.is_signed)).lower()})"
    return str(logical.kind.value)


_PLAIN: Final[dict[PhysicalType, T.DataType]] = {
    PhysicalType.BOOLEAN: T.BooleanType(),
    PhysicalType.INT32: T.IntegerType(),
    PhysicalType.INT64: T.LongType(),
    PhysicalType.FLOAT: T.FloatType(),
    PhysicalType.DOUBLE: T.DoubleType(),
    PhysicalType.FIXED_LEN_BYTE_ARRAY: T.BinaryType(),
}
# Keyed by physical type, width in bits, and whether integers are signed.
_INTEGERS: Final[dict[tuple[PhysicalType, int | None, bool], T.DataType]] = {
    (PhysicalType.INT32, 8, True): T.ByteType(),
    (PhysicalType.INT32, 16, True): T.ShortType(),
    (PhysicalType.INT32, 32, True): T.IntegerType(),
    (PhysicalType.INT32, 8, False): T.ShortType(),
    (PhysicalType.INT32, 16, False): T.IntegerType(),
    (PhysicalType.INT32, 32, False): T.LongType(),
    (PhysicalType.INT64, 64, True): T.LongType(),
    (PhysicalType.INT64, 64, False): T.DecimalType(20, 0),
}
