"""Spark settings for reading Parquet files, and the rules for names, schemas and calendars that follow from them.

The calendars of dates and timestamps in a file are determined by the file's footer, else by the settings.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, NamedTuple, Self, cast

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import types as T  # noqa: N812

from asyncpq.distributed import EngineRules
from asyncpq.errors import AmbiguousColumnError, AsyncpqError, InvalidOptionError, SchemaMismatchError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from asyncpq.distributed import FooterFacts, SchemaNode

#: Facts about the files of a plan: each holds for at least one of those that were opened.
NEEDS_JVM_ZONE: Final = "old timestamps depend on the time zone of the JVM"
HAS_OLD_DATES: Final = "dates of the calendar of Spark before 3.0"
HAS_NANOSECONDS: Final = "timestamps in nanoseconds, whose digits Spark's reader does not read"
#: Key of field metadata with the type CHAR(n) or VARCHAR(n) of a column that Spark reads as a string.
CHAR_VARCHAR_KEY: Final = "__CHAR_VARCHAR_TYPE_STRING"

_NO_SUCH_SETTING: Final = "SQL_CONF_NOT_FOUND"

RebaseMode = Literal["EXCEPTION", "CORRECTED", "LEGACY"]
#: What becomes of timestamps with digits below a microsecond, which Spark's types lack.
TimestampLoss = Literal["error", "truncate"]
#: Earlier literals do not prune, since files may use another calendar, in any zone.
FIRST_SURE_DAY: Final = dt.date(1582, 11, 1)
FIRST_SURE_TIME: Final = dt.datetime(1900, 1, 3)


class RebaseCalendar(NamedTuple):
    """The calendar in which a file's dates or timestamps are stored.

    Attributes:
        mode: "LEGACY": hybrid; "CORRECTED": Gregorian; "EXCEPTION": unknown, so old values are refused.
        zone: the time zone of wall-clock times in LEGACY; None if unknown.
    """

    mode: RebaseMode
    zone: str | None = None


_AS_IT_IS: Final = RebaseCalendar("CORRECTED")


@dataclass(frozen=True)
class FileDates:
    """The calendars and time zones in which a file stores its dates and timestamps, as Spark determines them."""

    datetime: RebaseCalendar = _AS_IT_IS  # of DATE and TIMESTAMP
    int96: RebaseCalendar = _AS_IT_IS
    int96_fields: frozenset[str] = frozenset()  # names of top-level fields with INT96
    mixed_fields: frozenset[str] = frozenset()  # those of them that have other timestamps as well
    int96_zone: str | None = None  # of the wall-clock times in INT96, if Spark converts them; None for UTC

    def renamed(self, names: Mapping[str, str]) -> FileDates:
        """Return the same of fields that have other names in the lake: ``names``, by those of the file."""
        if not names or not self.int96_fields:
            return self
        int96, mixed = (
            frozenset(names.get(name, name) for name in group) for group in (self.int96_fields, self.mixed_fields)
        )
        return replace(self, int96_fields=int96, mixed_fields=mixed)


def _setting(default: Any, key: str) -> Any:
    """Declare a dataclass field with its default and the name of the Spark setting that it is read from."""
    return dataclasses.field(default=default, metadata={"key": key})


@dataclass(frozen=True, kw_only=True)
class ReadConf(EngineRules):
    """Spark settings that decide how Parquet files are read. The defaults are those of Spark 4.3."""

    ambiguous_hint: ClassVar[str] = "Set spark.sql.caseSensitive=true to tell them apart."

    # None if unknown: values that depend on it are refused
    session_time_zone: str | None = _setting(None, "spark.sql.session.timeZone")
    jvm_time_zone: str | None = None  # for old files without a zone; None until queried by jvm_time_zone()
    # of a rewrite: nanoseconds are read as timestamps of Spark; None: as Spark's settings say
    timestamp_loss: TimestampLoss | None = dataclasses.field(default=None, metadata={"set by": "asyncpq"})
    case_sensitive: bool = _setting(False, "spark.sql.caseSensitive")
    binary_as_string: bool = _setting(False, "spark.sql.parquet.binaryAsString")
    int96_as_timestamp: bool = _setting(True, "spark.sql.parquet.int96AsTimestamp")
    infer_timestamp_ntz: bool = _setting(True, "spark.sql.parquet.inferTimestampNTZ.enabled")
    nanos_as_long: bool = _setting(False, "spark.sql.legacy.parquet.nanosAsLong")
    timestamp_nanos_types: bool = _setting(False, "spark.sql.timestampNanosTypes.enabled")
    time_type: bool = _setting(False, "spark.sql.timeType.enabled")
    ignore_variant_annotation: bool = _setting(False, "spark.sql.parquet.ignoreVariantAnnotation")
    respect_unknown_annotation: bool = _setting(False, "spark.sql.parquet.reader.respectUnknownTypeAnnotation.enabled")
    datetime_rebase_mode: RebaseMode = _setting("CORRECTED", "spark.sql.parquet.datetimeRebaseModeInRead")  # noqa: RUF009
    int96_rebase_mode: RebaseMode = _setting("CORRECTED", "spark.sql.parquet.int96RebaseModeInRead")  # noqa: RUF009
    int96_timestamp_conversion: bool = _setting(False, "spark.sql.parquet.int96TimestampConversion")
    field_ids: bool = _setting(False, "spark.sql.parquet.fieldId.read.enabled")
    merge_schema: bool = _setting(False, "spark.sql.parquet.mergeSchema")
    ignore_corrupt_files: bool = _setting(False, "spark.sql.files.ignoreCorruptFiles")
    ignore_missing_files: bool = _setting(False, "spark.sql.files.ignoreMissingFiles")
    infer_partition_types: bool = _setting(True, "spark.sql.sources.partitionColumnTypeInference.enabled")
    timestamp_type: Literal["TIMESTAMP_LTZ", "TIMESTAMP_NTZ"] = _setting("TIMESTAMP_LTZ", "spark.sql.timestampType")
    double_quoted_identifiers: bool = _setting(False, "spark.sql.ansi.doubleQuotedIdentifiers")
    consecutive_string_literals: bool = _setting(False, "spark.sql.legacy.consecutiveStringLiterals.enabled")
    datetime_to_string: bool = _setting(False, "spark.sql.legacy.typeCoercion.datetimeToString.enabled")

    @classmethod
    def of(cls, spark: SparkSession) -> Self:
        """Read the settings of a session on the driver. Settings that its Spark version lacks keep their defaults."""
        values: dict[str, Any] = {}
        for item in dataclasses.fields(cls):
            try:
                value = spark.conf.get(item.metadata["key"]) if "key" in item.metadata else None
            except PySparkException as error:
                if error.getCondition() != _NO_SUCH_SETTING:
                    raise
                continue
            if value is not None:  # the text of SET, in any case
                text = str(value).strip()
                if isinstance(item.default, bool):
                    values[item.name] = text.lower() == "true"
                else:
                    values[item.name] = text if item.name == "session_time_zone" else text.upper()
        return cls(**values)

    @property
    def zoneless_is_utc(self) -> bool:
        """Spark reads timestamps without a zone as those of UTC, unless its settings convert INT96."""
        return not self.int96_timestamp_conversion

    def is_whole(self, dtype: pa.DataType) -> bool:
        """Return whether the type is PySpark's for VARIANT. Files shred variants differently; all parts are needed."""
        return is_variant(dtype)

    def of_file(self, footer: FooterFacts) -> FileDates:
        """Return the calendars of a file, according to the metadata of the file's writer and the settings. Raises
        InvalidOptionError if INT96 values depend on the session's time zone, and that zone is unknown."""
        written = footer.calendars
        int96, zone = written.int96_fields, None
        if int96 and self.int96_timestamp_conversion and not footer.created_by.startswith("parquet-mr"):
            zone = self.session_time_zone
            if zone is None:
                raise InvalidOptionError(
                    "with int96TimestampConversion, INT96 values depend on the session's time zone, which is not set",
                    column=min(int96),
                    hint="Set the option sessionTimeZone, such as Europe/Berlin.",
                )

        def calendar(by_settings: RebaseMode, is_legacy: bool | None) -> RebaseCalendar:
            mode = by_settings if is_legacy is None else "LEGACY" if is_legacy else "CORRECTED"
            return RebaseCalendar(mode, written.zone or self.jvm_time_zone if mode == "LEGACY" else None)

        return FileDates(
            calendar(self.datetime_rebase_mode, written.datetimes),
            calendar(self.int96_rebase_mode, written.int96),
            int96,
            int96 & written.timestamp_fields,
            zone,
        )

    def facts(self, footer: FooterFacts) -> frozenset[str]:
        """Return which dates and times of old calendars a file may have."""
        dates = self.of_file(footer)
        facts: set[str] = set()
        if dates.datetime.mode == "LEGACY":
            facts.add(HAS_OLD_DATES)
        if any(calendar.mode == "LEGACY" and calendar.zone is None for calendar in (dates.datetime, dates.int96)):
            facts.add(NEEDS_JVM_ZONE)
        loses_int96 = self.timestamp_loss == "error" and footer.calendars.int96_fields
        if loses_int96 or (self.timestamp_loss is not None and has_nanoseconds(footer.fields)):
            facts.add(HAS_NANOSECONDS)
        return frozenset(facts)


#: The fields of :class:`ReadConf` that users set, as options of the data source too.
READ_FIELDS: Final = tuple([item for item in dataclasses.fields(ReadConf) if "set by" not in item.metadata])


def has_nanoseconds(nodes: Iterable[SchemaNode]) -> bool:
    """Return whether fields of a file have, at any depth, timestamps in nanoseconds that are not INT96."""
    return any(
        has_nanoseconds(node.children)
        or (node.annotation == "TIMESTAMP" and node.logical_type is not None and node.logical_type.unit == "ns")
        for node in nodes
    )


def jvm_time_zone(spark: SparkSession) -> str:
    """Query the default time zone of Spark's JVM with a small job. The session's time zone may differ."""
    (row,) = spark.sql("SELECT java_method('java.time.ZoneId', 'systemDefault') AS zone").collect()
    return str(row["zone"])


# -- names ----------------------------------------------------------------------------------------


@contextmanager
def within(name: str) -> Iterator[None]:
    """Put the name ``name`` and a dot before the ``column`` of an AsyncpqError that the ``with`` block raises."""
    try:
        yield
    except AsyncpqError as error:
        error.column = name if error.column is None else f"{name}.{error.column}"
        raise


def check_names(dtype: T.DataType, conf: ReadConf) -> None:
    """Raise AmbiguousColumnError if two fields of a struct, at any depth, have names that Spark treats as equal."""
    seen: set[str] = set()
    for name, inner in inner_types(dtype):
        with within(name):
            if isinstance(dtype, T.StructType) and conf.key(name) in seen:
                raise AmbiguousColumnError(
                    "the schema has two columns with this name (Spark: COLUMN_ALREADY_EXISTS)",
                    hint="Set spark.sql.caseSensitive=true if the names differ in case, or select columns by a schema.",
                )
            seen.add(conf.key(name))
            check_names(inner, conf)


_QUOTED: Final = re.compile(r"`((?:[^`]|``)*)`")


def first_name(path: str) -> str:
    """Return the first name of a dotted path, without backquotes. A name may be quoted as in Spark: in backquotes, with
    backquotes inside the name doubled."""
    quoted = _QUOTED.match(path)
    return path.partition(".")[0] if quoted is None else quoted[1].replace("``", "`")


def unquoted(name: str) -> str:
    """Return the name without surrounding backquotes."""
    return first_name(name) if _QUOTED.fullmatch(name) else name


# -- types ----------------------------------------------------------------------------------------


def is_variant(dtype: pa.DataType) -> bool:
    """Return whether an Arrow type is PySpark's type for VARIANT. Types in files differ, since they shred values."""
    place = dtype.get_field_index("metadata") if isinstance(dtype, pa.StructType) else -1
    return place >= 0 and (dtype.field(place).metadata or {}).get(b"variant") == b"true"


def inner_types(dtype: T.DataType) -> list[tuple[str, T.DataType]]:
    """Return names and types of the parts of a struct, list or map, one level down; empty for other types."""
    if isinstance(dtype, T.StructType):
        return [(field.name, field.dataType) for field in dtype.fields]
    if isinstance(dtype, T.ArrayType):
        return [("element", dtype.elementType)]
    if isinstance(dtype, T.MapType):
        return [("key", dtype.keyType), ("value", dtype.valueType)]
    return []


def with_leaves(
    dtype: T.DataType, leaf: Callable[[T.DataType], T.DataType] = lambda dtype: dtype, *, is_nullable: bool = False
) -> T.DataType:
    """Return the type with ``leaf(type)`` in place of each type inside that is not a struct, list or map. The metadata
    of fields is kept. ``is_nullable`` makes all parts nullable."""
    if isinstance(dtype, T.StructType):
        inner = [with_leaves(field.dataType, leaf, is_nullable=is_nullable) for field in dtype.fields]
        return T.StructType(
            [
                T.StructField(field.name, new, field.nullable or is_nullable, field.metadata)
                for field, new in zip(dtype.fields, inner, strict=True)
            ]
        )
    if isinstance(dtype, T.ArrayType):
        return T.ArrayType(
            with_leaves(dtype.elementType, leaf, is_nullable=is_nullable), dtype.containsNull or is_nullable
        )
    if isinstance(dtype, T.MapType):
        key = with_leaves(dtype.keyType, leaf, is_nullable=is_nullable)
        value = with_leaves(dtype.valueType, leaf, is_nullable=is_nullable)
        return T.MapType(key, value, dtype.valueContainsNull or is_nullable)
    return leaf(dtype)


def nullable(dtype: T.DataType) -> T.DataType:
    """Return the type with all its parts nullable, as Spark reads files."""
    return with_leaves(dtype, is_nullable=True)


def nullable_struct(schema: T.StructType) -> T.StructType:
    """Return the schema with all fields, elements and map values nullable."""
    return cast(T.StructType, nullable(schema))


def without_char_and_varchar(schema: T.StructType) -> T.StructType:
    """Return the schema with STRING instead of CHAR and VARCHAR; top-level fields name the original type in their
    metadata."""
    fields = []
    for field in schema.fields:
        dtype = with_leaves(
            field.dataType, lambda leaf: T.StringType() if isinstance(leaf, (T.CharType, T.VarcharType)) else leaf
        )
        metadata = dict(field.metadata or {})
        if dtype != field.dataType:
            metadata[CHAR_VARCHAR_KEY] = field.dataType.simpleString()
        fields.append(T.StructField(field.name, dtype, field.nullable, metadata))
    return T.StructType(fields)


def merged_schema(schemas: Iterable[T.StructType], conf: ReadConf) -> T.StructType:
    """Merge schemas of files as ``spark.sql.parquet.mergeSchema`` does, columns of the first file first. Raises
    SchemaMismatchError if Spark cannot merge the types of a column."""
    return reduce(lambda merged, schema: _merge_structs(merged, schema, conf), schemas, T.StructType([]))


def _merge_structs(left: T.StructType, right: T.StructType, conf: ReadConf) -> T.StructType:
    others = {conf.key(field.name): field for field in right.fields}
    fields = []
    for field in left.fields:
        other = others.pop(conf.key(field.name), None)
        if other is not None:
            with within(field.name):
                dtype = _merge(field.dataType, other.dataType, conf)
            field = T.StructField(field.name, dtype, field.nullable or other.nullable, field.metadata)
        fields.append(field)
    return T.StructType([*fields, *others.values()])


def _merge(left: T.DataType, right: T.DataType, conf: ReadConf) -> T.DataType:
    if isinstance(left, T.StructType) and isinstance(right, T.StructType):
        return _merge_structs(left, right, conf)
    if isinstance(left, T.ArrayType) and isinstance(right, T.ArrayType):
        return T.ArrayType(_merge(left.elementType, right.elementType, conf), left.containsNull or right.containsNull)
    if isinstance(left, T.MapType) and isinstance(right, T.MapType):
        return T.MapType(
            _merge(left.keyType, right.keyType, conf),
            _merge(left.valueType, right.valueType, conf),
            left.valueContainsNull or right.valueContainsNull,
        )
    if isinstance(left, T.DecimalType) and isinstance(right, T.DecimalType) and left.scale == right.scale:
        return left if left.precision >= right.precision else right
    for interval in (T.DayTimeIntervalType, T.YearMonthIntervalType):
        if isinstance(left, interval) and isinstance(right, interval):
            return interval(min(left.startField, right.startField), max(left.endField, right.endField))
    if left != right:
        raise SchemaMismatchError(
            f"Spark cannot merge the types {left.simpleString()} and {right.simpleString()}, which the column has in "
            "different files (Spark: CANNOT_MERGE_SCHEMAS)",
            hint="Pass a schema: .schema(...).",
        )
    return left
