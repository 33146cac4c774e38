"""Spark settings for reading Parquet files, and the rules for names and schemas that follow from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, Self

from pyspark.errors import PySparkException
from pyspark.sql.types import (
    ArrayType,
    CharType,
    DataType,
    DayTimeIntervalType,
    DecimalType,
    MapType,
    StringType,
    StructField,
    StructType,
    VarcharType,
    YearMonthIntervalType,
)

from asyncpq.errors import AmbiguousColumnError, AsyncpqError, SchemaMismatchError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RebaseMode = Literal["EXCEPTION", "CORRECTED", "LEGACY"]
#: Key of field metadata with the type CHAR(n) or VARCHAR(n) of a column that Spark reads as a string.
CHAR_VARCHAR_KEY: Final = "__CHAR_VARCHAR_TYPE_STRING"


@dataclass(frozen=True, kw_only=True)
class ReadConf:
    """Spark settings that decide how Parquet files are read; the defaults are those of Spark 4.3.

    Attributes:
        session_time_zone: ``spark.sql.session.timeZone``; None if unknown, then values that depend on it are refused.
        jvm_time_zone: the JVM's default time zone, for old files without a zone; None until queried
            (:func:`jvm_time_zone`).
        others: see the settings in :data:`_KEYS`.
    """

    session_time_zone: str | None = None
    jvm_time_zone: str | None = None
    case_sensitive: bool = False
    binary_as_string: bool = False
    int96_as_timestamp: bool = True
    infer_timestamp_ntz: bool = True
    nanos_as_long: bool = False
    timestamp_nanos_types: bool = False
    time_type: bool = False
    ignore_variant_annotation: bool = False
    respect_unknown_annotation: bool = False
    datetime_rebase_mode: RebaseMode = "CORRECTED"
    int96_rebase_mode: RebaseMode = "CORRECTED"
    int96_timestamp_conversion: bool = False
    field_ids: bool = False
    merge_schema: bool = False
    infer_partition_types: bool = True
    timestamp_type: Literal["TIMESTAMP_LTZ", "TIMESTAMP_NTZ"] = "TIMESTAMP_LTZ"
    datetime_to_string: bool = False

    @classmethod
    def of(cls, spark: SparkSession) -> Self:
        """Read the settings of a session on the driver. Settings that this Spark lacks have their default."""
        values: dict[str, Any] = {}
        for name, key in _KEYS.items():
            try:
                value = spark.conf.get(key)
            except PySparkException as error:
                if error.getCondition() != _NO_SUCH_SETTING:
                    raise
                continue
            if value is not None:  # the text of SET, in any case
                text = str(value).strip()
                values[name] = text.lower() == "true" if isinstance(getattr(cls, name), bool) else text
        for name in ("datetime_rebase_mode", "int96_rebase_mode", "timestamp_type"):
            if name in values:
                values[name] = values[name].upper()
        return cls(**values)

    def key(self, name: str) -> str:
        """The key by which names are compared."""
        return name if self.case_sensitive else name.lower()


_KEYS: Final = {
    "session_time_zone": "spark.sql.session.timeZone",
    "case_sensitive": "spark.sql.caseSensitive",
    "binary_as_string": "spark.sql.parquet.binaryAsString",
    "int96_as_timestamp": "spark.sql.parquet.int96AsTimestamp",
    "infer_timestamp_ntz": "spark.sql.parquet.inferTimestampNTZ.enabled",
    "nanos_as_long": "spark.sql.legacy.parquet.nanosAsLong",
    "timestamp_nanos_types": "spark.sql.timestampNanosTypes.enabled",
    "time_type": "spark.sql.timeType.enabled",
    "ignore_variant_annotation": "spark.sql.parquet.ignoreVariantAnnotation",
    "respect_unknown_annotation": "spark.sql.parquet.reader.respectUnknownTypeAnnotation.enabled",
    "datetime_rebase_mode": "spark.sql.parquet.datetimeRebaseModeInRead",
    "int96_rebase_mode": "spark.sql.parquet.int96RebaseModeInRead",
    "int96_timestamp_conversion": "spark.sql.parquet.int96TimestampConversion",
    "field_ids": "spark.sql.parquet.fieldId.read.enabled",
    "merge_schema": "spark.sql.parquet.mergeSchema",
    "infer_partition_types": "spark.sql.sources.partitionColumnTypeInference.enabled",
    "timestamp_type": "spark.sql.timestampType",
    "datetime_to_string": "spark.sql.legacy.typeCoercion.datetimeToString.enabled",
}
_NO_SUCH_SETTING: Final = "SQL_CONF_NOT_FOUND"


def jvm_time_zone(spark: SparkSession) -> str:
    """The default time zone of Spark's JVM, queried by a small job. The session's zone may differ."""
    (row,) = spark.sql("SELECT java_method('java.time.ZoneId', 'systemDefault') AS zone").collect()
    return str(row["zone"])


# -- names ----------------------------------------------------------------------------------------


def find_name(names: Sequence[str], wanted: str, conf: ReadConf) -> int | None:
    """Find a column of a file by name, with Spark's case sensitivity; None if it does not exist.

    Raises:
        AmbiguousColumnError: several columns differ only in case.
    """
    key = conf.key(wanted)
    found = [at for at, name in enumerate(names) if conf.key(name) == key]
    if len(found) > 1:
        spellings = ", ".join(repr(names[at]) for at in found)
        raise AmbiguousColumnError(
            f"the file has several columns of this name: {spellings}",
            column=wanted,
            hint="Set spark.sql.caseSensitive=true to tell them apart.",
        )
    return found[0] if found else None


def check_names(schema: StructType, conf: ReadConf) -> None:
    """Refuse equal names of fields at any depth, as Spark does.

    Raises:
        AmbiguousColumnError: two names are equal, or differ only in case.
    """
    _check_names(schema, conf, ())


def _check_names(kind: DataType, conf: ReadConf, path: tuple[str, ...]) -> None:
    if isinstance(kind, StructType):
        seen: set[str] = set()
        for field in kind.fields:
            inside = (*path, field.name)
            if conf.key(field.name) in seen:
                raise AmbiguousColumnError(
                    "the column occurs twice (Spark: COLUMN_ALREADY_EXISTS)",
                    column=".".join(inside),
                    hint="Set spark.sql.caseSensitive=true if the names differ in case, or select columns by a schema.",
                )
            seen.add(conf.key(field.name))
            _check_names(field.dataType, conf, inside)
    elif isinstance(kind, ArrayType):
        _check_names(kind.elementType, conf, (*path, "element"))
    elif isinstance(kind, MapType):
        _check_names(kind.keyType, conf, (*path, "key"))
        _check_names(kind.valueType, conf, (*path, "value"))


# -- types ----------------------------------------------------------------------------------------


def nullable(kind: DataType) -> DataType:
    """The type with all parts nullable, as Spark reads files."""
    if isinstance(kind, StructType):
        return nullable_struct(kind)
    if isinstance(kind, ArrayType):
        return ArrayType(nullable(kind.elementType), True)
    if isinstance(kind, MapType):
        return MapType(nullable(kind.keyType), nullable(kind.valueType), True)
    return kind


def nullable_struct(schema: StructType) -> StructType:
    """The schema with all parts nullable. Metadata is kept."""
    return StructType(
        [StructField(field.name, nullable(field.dataType), True, field.metadata) for field in schema.fields]
    )


def without_char_and_varchar(schema: StructType) -> StructType:
    """Replace CHAR and VARCHAR by STRING and keep their types in the metadata of top-level fields, as Spark does."""
    fields = []
    for field in schema.fields:
        kind = _as_strings(field.dataType)
        metadata = dict(field.metadata or {})
        if kind is not field.dataType:
            metadata[CHAR_VARCHAR_KEY] = field.dataType.simpleString()
        fields.append(StructField(field.name, kind, field.nullable, metadata))
    return StructType(fields)


def _as_strings(kind: DataType) -> DataType:
    """The type with STRING for CHAR and VARCHAR; the same object if it has none."""
    if isinstance(kind, (CharType, VarcharType)):
        return StringType()
    if isinstance(kind, ArrayType):
        element = _as_strings(kind.elementType)
        return kind if element is kind.elementType else ArrayType(element, kind.containsNull)
    if isinstance(kind, MapType):
        key, value = _as_strings(kind.keyType), _as_strings(kind.valueType)
        same = key is kind.keyType and value is kind.valueType
        return kind if same else MapType(key, value, kind.valueContainsNull)
    if isinstance(kind, StructType):
        fields = [_as_strings(field.dataType) for field in kind.fields]
        if all(new is field.dataType for new, field in zip(fields, kind.fields, strict=True)):
            return kind
        pairs = zip(kind.fields, fields, strict=True)
        return StructType([StructField(field.name, new, field.nullable, field.metadata) for field, new in pairs])
    return kind


def merged_schema(schemas: Iterable[StructType], conf: ReadConf) -> StructType:
    """Merge schemas of files as ``spark.sql.parquet.mergeSchema`` does, columns of the first file first.

    Raises:
        SchemaMismatchError: a column has types that Spark does not merge.
    """
    merged: StructType | None = None
    for schema in schemas:
        merged = schema if merged is None else _merge_structs(merged, schema, conf)
    return StructType([]) if merged is None else merged


_QUOTED: Final = re.compile(r"`((?:[^`]|``)*)`")


def first_name(path: str) -> str:
    """The first name of a dotted path. Names may be in backquotes, doubled inside, as Spark writes them."""
    found = _QUOTED.match(path)
    return path.partition(".")[0] if found is None else found[1].replace("``", "`")


def unquoted(name: str) -> str:
    """The name without surrounding backquotes."""
    return first_name(name) if _QUOTED.fullmatch(name) else name


def _merge_structs(left: StructType, right: StructType, conf: ReadConf) -> StructType:
    others = {conf.key(field.name): field for field in right.fields}
    fields = []
    for field in left.fields:
        other = others.pop(conf.key(field.name), None)
        if other is None:
            fields.append(field)
            continue
        try:
            kind = _merge(field.dataType, other.dataType, conf)
        except AsyncpqError as error:
            error.column = field.name if error.column is None else f"{field.name}.{error.column}"
            raise
        fields.append(StructField(field.name, kind, field.nullable or other.nullable, field.metadata))
    return StructType([*fields, *others.values()])


def _merge(left: DataType, right: DataType, conf: ReadConf) -> DataType:
    if isinstance(left, StructType) and isinstance(right, StructType):
        return _merge_structs(left, right, conf)
    if isinstance(left, ArrayType) and isinstance(right, ArrayType):
        return ArrayType(_merge(left.elementType, right.elementType, conf), left.containsNull or right.containsNull)
    if isinstance(left, MapType) and isinstance(right, MapType):
        return MapType(
            _merge(left.keyType, right.keyType, conf),
            _merge(left.valueType, right.valueType, conf),
            left.valueContainsNull or right.valueContainsNull,
        )
    if isinstance(left, DecimalType) and isinstance(right, DecimalType) and left.scale == right.scale:
        return left if left.precision >= right.precision else right
    for interval in (DayTimeIntervalType, YearMonthIntervalType):
        if isinstance(left, interval) and isinstance(right, interval):
            return interval(min(left.startField, right.startField), max(left.endField, right.endField))
    if left != right:
        raise SchemaMismatchError(
            f"files have the types {left.simpleString()} and {right.simpleString()} (Spark: CANNOT_MERGE_SCHEMAS)",
            hint="Pass a schema: .schema(...).",
        )
    return left
