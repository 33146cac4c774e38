"""The enumerations of the Parquet schema, and logical types (LogicalTypes.md)."""

from __future__ import annotations

import enum
from typing import Final, Literal

from asyncpq.parquet.thrift import Fields, Value, integer_of
from asyncpq.records import NamedTuple

TimeUnit = Literal["ms", "us", "ns"]


class PhysicalType(enum.IntEnum):
    """The type in which a column's values are stored (parquet.thrift, Type)."""

    BOOLEAN = 0
    INT32 = 1
    INT64 = 2
    INT96 = 3
    FLOAT = 4
    DOUBLE = 5
    BYTE_ARRAY = 6
    FIXED_LEN_BYTE_ARRAY = 7


class Repetition(enum.IntEnum):
    """Whether a field is required, optional or repeated (parquet.thrift, FieldRepetitionType)."""

    REQUIRED = 0
    OPTIONAL = 1
    REPEATED = 2


class ConvertedType(enum.IntEnum):
    """The deprecated form of logical types (parquet.thrift, ConvertedType)."""

    UTF8 = 0
    MAP = 1
    MAP_KEY_VALUE = 2
    LIST = 3
    ENUM = 4
    DECIMAL = 5
    DATE = 6
    TIME_MILLIS = 7
    TIME_MICROS = 8
    TIMESTAMP_MILLIS = 9
    TIMESTAMP_MICROS = 10
    UINT_8 = 11
    UINT_16 = 12
    UINT_32 = 13
    UINT_64 = 14
    INT_8 = 15
    INT_16 = 16
    INT_32 = 17
    INT_64 = 18
    JSON = 19
    BSON = 20
    INTERVAL = 21


class LogicalKind(enum.Enum):
    """The kind of a logical type: the members of parquet.thrift's LogicalType, and INTERVAL and UNRECOGNISED.

    INTERVAL exists as a converted type only. UNRECOGNISED is an annotation that asyncpq does not know: values are read
    as their physical type, and their order is unknown.
    """

    STRING = "STRING"
    MAP = "MAP"
    LIST = "LIST"
    ENUM = "ENUM"
    DECIMAL = "DECIMAL"
    DATE = "DATE"
    TIME = "TIME"
    TIMESTAMP = "TIMESTAMP"
    INTERVAL = "INTERVAL"
    INTEGER = "INTEGER"
    NULL = "UNKNOWN"
    JSON = "JSON"
    BSON = "BSON"
    UUID = "UUID"
    FLOAT16 = "FLOAT16"
    VARIANT = "VARIANT"
    GEOMETRY = "GEOMETRY"
    GEOGRAPHY = "GEOGRAPHY"
    UNRECOGNISED = "UNRECOGNISED"


class LogicalType(NamedTuple):
    """The meaning of a column's stored values, such as "decimal of this precision". Fields that do not apply to
    ``kind`` are None.

    Attributes:
        unit: of TIME and TIMESTAMP; None for an unknown unit.
        is_adjusted_to_utc: of TIME and TIMESTAMP.
        bit_width: of INTEGER: 8, 16, 32 or 64.
    """

    kind: LogicalKind
    unit: TimeUnit | None = None
    is_adjusted_to_utc: bool | None = None
    precision: int | None = None  # of DECIMAL, in decimal digits, as scale
    scale: int | None = None
    bit_width: int | None = None
    is_signed: bool | None = None


_UNION: Final = {
    1: LogicalKind.STRING,
    2: LogicalKind.MAP,
    3: LogicalKind.LIST,
    4: LogicalKind.ENUM,
    5: LogicalKind.DECIMAL,
    6: LogicalKind.DATE,
    7: LogicalKind.TIME,
    8: LogicalKind.TIMESTAMP,
    10: LogicalKind.INTEGER,
    11: LogicalKind.NULL,
    12: LogicalKind.JSON,
    13: LogicalKind.BSON,
    14: LogicalKind.UUID,
    15: LogicalKind.FLOAT16,
    16: LogicalKind.VARIANT,
    17: LogicalKind.GEOMETRY,
    18: LogicalKind.GEOGRAPHY,
}
_PLAIN: Final = {kind: LogicalType(kind) for kind in LogicalKind}
_UNITS: Final[dict[int, TimeUnit]] = {1: "ms", 2: "us", 3: "ns"}
UNRECOGNISED: Final = _PLAIN[LogicalKind.UNRECOGNISED]

# Converted types are by definition adjusted to UTC (LogicalTypes.md, TIME and TIMESTAMP).
_CONVERTED: Final = {
    **{member: _PLAIN[LogicalKind[member.name]] for member in ConvertedType if member.name in LogicalKind.__members__},
    ConvertedType.UTF8: _PLAIN[LogicalKind.STRING],
    ConvertedType.MAP_KEY_VALUE: _PLAIN[LogicalKind.MAP],
    ConvertedType.TIME_MILLIS: LogicalType(LogicalKind.TIME, "ms", True),
    ConvertedType.TIME_MICROS: LogicalType(LogicalKind.TIME, "us", True),
    ConvertedType.TIMESTAMP_MILLIS: LogicalType(LogicalKind.TIMESTAMP, "ms", True),
    ConvertedType.TIMESTAMP_MICROS: LogicalType(LogicalKind.TIMESTAMP, "us", True),
    **{
        getattr(ConvertedType, f"{prefix}_{width}"): LogicalType(
            LogicalKind.INTEGER, bit_width=width, is_signed=prefix == "INT"
        )
        for prefix in ("INT", "UINT")
        for width in (8, 16, 32, 64)
    },
}


def from_union(union: Value) -> LogicalType:
    """Return the LogicalType of a parsed Thrift union; UNRECOGNISED if the union's member is unknown."""
    if not isinstance(union, dict) or len(union) != 1:
        return UNRECOGNISED
    ((member, content),) = union.items()
    kind = _UNION.get(member, LogicalKind.UNRECOGNISED)
    if not isinstance(content, dict):
        return UNRECOGNISED
    if kind is LogicalKind.DECIMAL:
        return LogicalType(kind, scale=integer_of(content, 1), precision=integer_of(content, 2))
    if kind is LogicalKind.INTEGER:
        return LogicalType(kind, bit_width=integer_of(content, 1), is_signed=_boolean(content, 2))
    if kind in (LogicalKind.TIME, LogicalKind.TIMESTAMP):
        unit = content.get(2)
        names = [_UNITS.get(member) for member in unit] if isinstance(unit, dict) else []
        return LogicalType(kind, names[0] if len(names) == 1 else None, _boolean(content, 1))
    return _PLAIN[kind]


def from_converted(converted: ConvertedType, precision: int | None, scale: int | None) -> LogicalType:
    """Return the LogicalType that is equivalent to a converted type."""
    if converted is ConvertedType.DECIMAL:
        return LogicalType(LogicalKind.DECIMAL, precision=precision, scale=scale or 0)
    return _CONVERTED[converted]


def to_converted(logical: LogicalType) -> ConvertedType | None:
    """Return the converted type that corresponds to a LogicalType; None if there is no such type."""
    name = logical.kind.value
    if logical.kind is LogicalKind.INTEGER:
        name = f"{'INT' if logical.is_signed else 'UINT'}_{logical.bit_width}"
    elif logical.kind in (LogicalKind.TIME, LogicalKind.TIMESTAMP):
        name = f"{name}_{_UNIT_NAMES.get(logical.unit or '')}"
    elif logical.kind is LogicalKind.STRING:
        name = "UTF8"
    return ConvertedType.__members__.get(name)


_UNIT_NAMES: Final = {"ms": "MILLIS", "us": "MICROS", "ns": "NANOS"}


def _boolean(fields: Fields, field_id: int) -> bool | None:
    value = fields.get(field_id)
    return value if type(value) is bool else None
