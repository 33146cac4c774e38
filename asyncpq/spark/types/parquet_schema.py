"""The schema that Spark infers for a Parquet file: from the schema that Spark wrote into the footer, or from Parquet's.

Spark's own schema has CHAR and VARCHAR, comments and user-defined types. Its JSON is untrusted: of the classes that it
names, only those of pyspark are imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from pyspark.errors import PySparkException
from pyspark.sql import types as T  # noqa: N812

from asyncpq.errors import UnsupportedFeatureError
from asyncpq.spark.types import read_conf
from asyncpq.spark.types.special_types import check_spatial, spatial_type

if TYPE_CHECKING:
    from asyncpq.distributed import FooterFacts, SchemaNode

ROW_METADATA_KEY: Final = "org.apache.spark.sql.parquet.row.metadata"
# Types that Spark's parser supports and pyspark's does not.
_UNKNOWN_TO_PYSPARK: Final = re.compile(r"timestamp_(ltz|ntz)\(\d+\)")
_MAX_DEPTH: Final = 100


#: What Spark's reader decodes without more jars. It has no BYTE_STREAM_SPLIT and no ALP; LZ4 frames differ among
#: writers.
_CODECS: Final = ("UNCOMPRESSED", "SNAPPY", "GZIP", "ZSTD", "LZ4_RAW")
_ENCODINGS: Final = (
    "PLAIN", "PLAIN_DICTIONARY", "RLE", "BIT_PACKED", "DELTA_BINARY_PACKED", "DELTA_LENGTH_BYTE_ARRAY",
    "DELTA_BYTE_ARRAY", "RLE_DICTIONARY",
)  # fmt: skip


def spark_refuses(footer: FooterFacts) -> str:
    """Return why Spark's reader cannot decode a file, by its first row group; "" if it can."""
    reason = footer.undecodable(_CODECS, _ENCODINGS)
    return reason and f"the first file {reason}"


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
_UNITS: Final = {"ms": "MILLIS", "us": "MICROS", "ns": "NANOS"}
_TEXT: Final = ("STRING", "ENUM", "JSON")


def _refused(message: str, hint: str = _DECLARE) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(message, hint=hint)


def spark_schema(footer: FooterFacts, conf: read_conf.ReadConf) -> T.StructType:
    """Return the schema that ``spark.read.parquet`` infers from a file's footer, with all parts nullable.

    Raises UnsupportedFeatureError if Spark has no type for a column, and AmbiguousColumnError if two columns have the
    same name under Spark's case sensitivity.
    """
    schema = row_schema(footer.key_values.get(ROW_METADATA_KEY))
    if schema is None:
        schema = read_conf.nullable_struct(_TypeReader(conf).struct(footer.fields))
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


def _repeated(node: SchemaNode) -> SchemaNode | None:
    """Return the only child of a group if it is repeated; None if the group has several children, or one that is not
    repeated."""
    return node.children[0] if len(node.children) == 1 and node.children[0].is_repeated else None


class _TypeReader:
    """Derives Spark's types for the fields of a file."""

    def __init__(self, conf: read_conf.ReadConf) -> None:
        self._conf = conf

    def struct(self, nodes: Sequence[SchemaNode]) -> T.StructType:
        fields = []
        for node in nodes:
            with read_conf.within(node.name):
                dtype = self._field(node)
            # A repeated field outside of a list or map is itself a list.
            fields.append(T.StructField(node.name, T.ArrayType(dtype) if node.is_repeated else dtype))
        return T.StructType(fields)

    def _field(self, node: SchemaNode) -> T.DataType:
        if node.annotation == "UNRECOGNISED":
            raise _refused("Spark does not support the column's Parquet annotation (UNRECOGNISED)")
        if node.physical_type is not None:
            return self._leaf(node)
        if node.annotation is None:
            return self.struct(node.children)
        if node.annotation == "LIST":
            return self._list(node)
        if node.annotation == "MAP":
            return self._map(node)
        if node.annotation == "VARIANT" and node.parameters.get("version") == 1:
            return self.struct(node.children) if self._conf.ignore_variant_annotation else T.VariantType()
        raise _refused(f"Spark has no type for Parquet's {node.annotation} group")

    def _list(self, node: SchemaNode) -> T.DataType:
        """Return the type of a LIST group, by the rules of Parquet's LogicalTypes.md, also those for old writers."""
        repeated = _repeated(node)
        if repeated is None:
            raise _refused("the LIST group must have one child, which is repeated")
        is_element = len(repeated.children) != 1 or repeated.name in ("array", f"{node.name}_tuple")
        return T.ArrayType(self._field(repeated if is_element else repeated.children[0]))

    def _map(self, node: SchemaNode) -> T.DataType:
        """Return the type of a MAP group, by the rules of Parquet's LogicalTypes.md."""
        entries = _repeated(node)
        if entries is None or len(entries.children) != 2:
            raise _refused("the MAP group must have one child, which is repeated and has a key and a value")
        key, value = entries.children
        return T.MapType(self._field(key), self._field(value))

    def _leaf(self, node: SchemaNode) -> T.DataType:
        if node.annotation == "UNKNOWN":
            if self._conf.respect_unknown_annotation:
                return T.NullType()
            node = node._replace(logical_type=None)
        dtype = self._leaf_type(node)
        if dtype is None:
            is_nanos = node.annotation == "TIMESTAMP" and node.logical_type.unit == "ns"  # type: ignore[union-attr]
            raise _refused(
                f"Spark has no type for Parquet's {node.physical_type}, {_described(node)}"
                " (Spark: PARQUET_TYPE_ILLEGAL)",
                _NANOS_HINT if is_nanos else _DECLARE,
            )
        return dtype

    def _leaf_type(self, node: SchemaNode) -> T.DataType | None:
        """Return Spark's type for a leaf; None if Spark has no type for its physical type and annotation."""
        physical, logical, annotation = node.physical_type or "", node.logical_type, node.annotation
        if annotation == "DECIMAL":
            return _decimal(node)
        if physical == "INT96":
            return self._int96()
        if physical == "BYTE_ARRAY":
            if annotation is None:
                return T.StringType() if self._conf.binary_as_string else T.BinaryType()
            if annotation in ("GEOMETRY", "GEOGRAPHY"):
                return spatial_type(annotation, node.parameters)
            if annotation in _TEXT:
                return T.StringType()
            return T.BinaryType() if annotation == "BSON" else None
        if logical is None or physical in ("BOOLEAN", "FLOAT", "DOUBLE"):
            return _PLAIN.get(physical)
        if annotation == "INTEGER":
            return _INTEGERS.get((physical, logical.bit_width, logical.is_signed is True))
        if physical == "INT32":
            return T.DateType() if annotation == "DATE" else None
        return self._int64(node) if physical == "INT64" else None

    def _int64(self, node: SchemaNode) -> T.DataType | None:
        logical = node.logical_type
        assert logical is not None, "the field has an annotation"
        if node.annotation == "TIMESTAMP":
            if logical.unit == "ns" and self._conf.timestamp_loss is None:
                if self._conf.nanos_as_long:
                    return T.LongType()
                if self._conf.timestamp_nanos_types:
                    raise _refused(
                        "the column has timestamps in nanoseconds, which pyspark does not have", hint=_NANOS_HINT
                    )
                return None
            is_instant = logical.is_adjusted_to_utc or not self._conf.infer_timestamp_ntz
            return T.TimestampType() if is_instant else T.TimestampNTZType()
        if node.annotation == "TIME" and not logical.is_adjusted_to_utc:
            return {"us": T.TimeType(6), "ns": T.TimeType(9)}.get(logical.unit or "")
        return None

    def _int96(self) -> T.DataType:
        if not self._conf.int96_as_timestamp:
            raise _refused(
                "Spark reads INT96 only as timestamps, which a setting forbids",
                hint="Set spark.sql.parquet.int96AsTimestamp=true.",
            )
        return T.TimestampType()


def _decimal(node: SchemaNode) -> T.DataType | None:
    logical, length = node.logical_type, node.type_length
    assert logical is not None, "the field is a decimal"
    precision, scale = logical.precision or 0, logical.scale or 0
    if node.physical_type == "FIXED_LEN_BYTE_ARRAY":
        most = len(str((1 << (8 * length - 1)) - 1)) - 1 if length else 0
    else:
        most = {"INT32": 9, "INT64": 18, "BYTE_ARRAY": _MOST_DIGITS}.get(node.physical_type or "", 0)
    if not 1 <= precision <= most or not 0 <= scale <= precision:
        raise _refused(
            f"the file's decimal({precision},{scale}) is invalid: {node.physical_type} cannot store {precision} digits"
        )
    if precision > _MOST_DIGITS:
        raise _refused(
            f"the column has {precision} digits, and Spark's decimals have 38 at most"
            " (Spark: DECIMAL_PRECISION_EXCEEDS_MAX_PRECISION)"
        )
    return T.DecimalType(precision, scale)


def _described(node: SchemaNode) -> str:
    """Return the name of an annotation as in Spark's error messages, such as ``TIMESTAMP(MICROS,true)``."""
    logical = node.logical_type
    if logical is None:
        return "none"
    if node.annotation in ("TIME", "TIMESTAMP"):
        unit = _UNITS.get(logical.unit or "", "?")
        return f"{node.annotation}({unit},{str(bool(logical.is_adjusted_to_utc)).lower()})"
    if node.annotation == "INTEGER":
        return f"INTEGER({logical.bit_width},{str(bool(logical.is_signed)).lower()})"
    return str(node.annotation)


_PLAIN: Final[dict[str, T.DataType]] = {
    "BOOLEAN": T.BooleanType(),
    "INT32": T.IntegerType(),
    "INT64": T.LongType(),
    "FLOAT": T.FloatType(),
    "DOUBLE": T.DoubleType(),
    "FIXED_LEN_BYTE_ARRAY": T.BinaryType(),
}
# Keyed by physical type, width in bits, and whether integers are signed.
_INTEGERS: Final[dict[tuple[str, int | None, bool], T.DataType]] = {
    ("INT32", 8, True): T.ByteType(),
    ("INT32", 16, True): T.ShortType(),
    ("INT32", 32, True): T.IntegerType(),
    ("INT32", 8, False): T.ShortType(),
    ("INT32", 16, False): T.IntegerType(),
    ("INT32", 32, False): T.LongType(),
    ("INT64", 64, True): T.LongType(),
    ("INT64", 64, False): T.DecimalType(20, 0),
}
