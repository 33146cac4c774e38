"""Decode Iceberg's manifest lists and manifests with pyiceberg (table spec, "Manifests"), and prune manifests and files
by their partition values.

The session's stores fetch the bytes. Decoding is slow enough to block an event loop: call it in a thread.

:class:`PartitionFilter` prunes: a predicate becomes a pyiceberg predicate that is true for at least the same rows, and
is projected onto the partition transforms (table spec, "Scan planning"). The caller prunes by column bounds.

pyiceberg projects as if partition values were in the order of the column (table spec, "Partition Transforms"). They are
not where the integers of writers overflow. ``truncate[10]`` of the smallest int, -2147483648, is -2147483650, which is
2147483646 in 32 bits. ``hour`` of times after the year 246953 takes more than 32 bits. :class:`_InclusiveProjection`
keeps such partitions, too.
"""

from __future__ import annotations

import datetime as dt
import logging
import math
import struct
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from pyiceberg import expressions as predicates
from pyiceberg import types
from pyiceberg.expressions import visitors
from pyiceberg.expressions.visitors import expression_evaluator, manifest_evaluator
from pyiceberg.manifest import (
    DEFAULT_READ_VERSION,
    MANIFEST_ENTRY_SCHEMAS,
    MANIFEST_LIST_FILE_SCHEMAS,
    ManifestContent,
    ManifestEntry,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.manifest import DataFile as IcebergFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, HourTransform, IdentityTransform, TruncateTransform

from asyncpq.errors import CorruptFileError, FormatError, UnsupportedFeatureError, located, printable
from asyncpq.expressions import analysis, tree
from asyncpq.expressions.scalars import Scalar
from asyncpq.options import LimitOptions
from asyncpq.records import dataclass
from asyncpq.storage.urls import safe_url
from asyncpq.tables.iceberg.avro import read_records
from asyncpq.tables.iceberg.metadata import NEWEST_FORMAT, short_text

logger: logging.Logger = logging.getLogger(__name__)

DATA, POSITION_DELETES, EQUALITY_DELETES = 0, 1, 2  # DataFile.content
_ADDED, _DELETED = 1, 2  # ManifestEntry.status
_VERSION_3_POSITIONS = (17, 18, 19)  # in DataFile: referenced_data_file, content_offset, content_size_in_bytes
_RECORDS: dict[int, Any] = {-1: ManifestEntry, 2: IcebergFile}  # by field id of the struct, -1 for the whole
_LIST_SCHEMA = MANIFEST_LIST_FILE_SCHEMAS[DEFAULT_READ_VERSION]
_LIST_RECORDS: dict[int, Any] = {-1: ManifestFile, 508: PartitionFieldSummary}
#: What pyiceberg raises if it cannot evaluate a predicate on malformed metadata.
_PYICEBERG_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    NotImplementedError,
    RecursionError,
    struct.error,
)
_MICROS_PER_HOUR: Final = 3_600_000_000
#: Hours since 1970 of the last and the first microsecond of 64 bits, as 32 bits hold them: the hours of times after
#: 2**31 hours are at most the first, those before -(2**31) hours at least the second.
_LAST_HOUR: Final = (2**63 - 1) // _MICROS_PER_HOUR - 2**32
_FIRST_HOUR: Final = -(2**63) // _MICROS_PER_HOUR + 2**32
#: The day in whose partition ClickHouse 26.9 puts all later ones, too: 2149-06-06.
_LAST_DAY: Final = 2**16 - 1
_LAST_OF_A_DAY: Final = dt.timedelta(days=1, microseconds=-1)
_LATER: Final = (
    predicates.BoundEqualTo,
    predicates.BoundIn,
    predicates.BoundGreaterThan,
    predicates.BoundGreaterThanOrEqual,
)
#: Of a larger width, Java's sum of remainder and width wraps: an int may then be in any partition.
_MAX_ORDERED_WIDTH: Final = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestFileEntry:
    """The entry of a data or delete file in a manifest, which the snapshot contains."""

    content: int  # DATA, POSITION_DELETES or EQUALITY_DELETES
    path: str  # as the manifest writes it; delete files refer to data files by it
    url: str  # the path as a url of a store
    format: str  # in capitals, such as "PARQUET"
    spec_id: int  # id of the partition spec. ``partition`` holds values in the order of the spec's fields.
    partition: tuple[Any, ...]
    sequence_number: int  # sequence number of the snapshot that added the file
    num_rows: int  # rows, deleted ones included; for a delete file, its deletes
    size: int | None  # bytes; None where the manifest gives no valid size
    referenced_path: str | None  # data file and byte range of a deletion vector
    content_offset: int | None
    content_size: int | None
    equality_ids: tuple[int, ...]  # field ids of the key columns of an equality delete file
    # By field id; empty if the manifest has none. pyiceberg's record is not kept: it is several objects, which the
    # garbage collector walks over.
    lower_bounds: Mapping[int, bytes]  # encoded
    upper_bounds: Mapping[int, bytes]
    null_counts: Mapping[int, int]
    nan_counts: Mapping[int, int]

    @property
    def partition_key(self) -> Hashable:
        """A key that is equal for all files of a partition: NaN equals NaN, 0.0 differs from -0.0."""
        return self.spec_id, repr(self.partition)


def decode_manifest_list(data: bytes, url: str, limits: LimitOptions) -> list[ManifestFile]:
    """Decode a manifest list; return the manifests that may contain files of the snapshot.

    Raises CorruptFileError if the list names a manifest twice: a few bytes would stand for any number of files. A data
    file may occur twice: writers add the same file again, and its rows then count twice.
    """
    try:
        with located(url=safe_url(url)):
            manifests: list[ManifestFile] = list(
                read_records(data, _LIST_SCHEMA, _LIST_RECORDS, limits, {517: ManifestContent})
            )
    except FormatError:
        raise
    except Exception as error:
        raise CorruptFileError(
            f"pyiceberg cannot read the manifest list: {short_text(error)}", url=safe_url(url)
        ) from error
    urls: set[str] = set()
    for manifest in manifests:
        manifest_url = store_url(manifest.manifest_path)
        if manifest.key_metadata:
            raise UnsupportedFeatureError(
                "asyncpq does not support encrypted Iceberg manifests", url=safe_url(manifest_url)
            )
        if manifest_url in urls:
            raise CorruptFileError(
                f"the manifest list names the manifest {safe_url(manifest_url)} twice", url=safe_url(url)
            )
        urls.add(manifest_url)
    return [manifest for manifest in manifests if manifest.has_added_files() or manifest.has_existing_files()]


def decode_manifest(data: bytes, manifest: ManifestFile, limits: LimitOptions) -> tuple[ManifestFileEntry, ...]:
    """Decode a manifest; return the entries of the files that the snapshot contains, in the order of the manifest."""
    url = store_url(manifest.manifest_path)
    try:
        with located(url=safe_url(url)):
            # read with the newest schema: fields that the manifest lacks are None
            records = read_records(data, MANIFEST_ENTRY_SCHEMAS[NEWEST_FORMAT], _RECORDS, limits)
            return tuple(_entry(record, manifest, url) for record in records if record.status != _DELETED)
    except FormatError:
        raise
    except Exception as error:
        raise CorruptFileError(f"pyiceberg cannot read the manifest: {short_text(error)}", url=safe_url(url)) from error


def _entry(record: ManifestEntry, manifest: ManifestFile, url: str) -> ManifestFileEntry:
    file = record.data_file
    sequence_number = record.sequence_number
    if sequence_number is None:  # inherited from the manifest that added the file
        if record.status != _ADDED and manifest.sequence_number != 0:
            raise CorruptFileError(
                f"{safe_url(file.file_path)} has no sequence number in its manifest", url=safe_url(url)
            )
        sequence_number = manifest.sequence_number
    if file.key_metadata:
        raise UnsupportedFeatureError(
            "asyncpq does not support encrypted files of an Iceberg table", url=safe_url(store_url(file.file_path))
        )
    partition = tuple(file.partition[position] for position in range(len(file.partition)))
    hash(partition)  # TypeError for a nested value
    # the record has no attributes for the fields of format version 3, only positions
    referenced_path, content_offset, content_size = (file[position] for position in _VERSION_3_POSITIONS)
    return ManifestFileEntry(
        content=int(file.content),
        path=file.file_path,
        url=store_url(file.file_path),
        format=str(file.file_format).upper(),
        spec_id=manifest.partition_spec_id,
        partition=partition,
        sequence_number=sequence_number,
        num_rows=file.record_count,
        size=file.file_size_in_bytes if file.file_size_in_bytes >= 0 else None,
        referenced_path=referenced_path,
        content_offset=content_offset,
        content_size=content_size,
        equality_ids=tuple(file.equality_ids or ()),
        lower_bounds=file.lower_bounds or {},
        upper_bounds=file.upper_bounds or {},
        null_counts=file.null_value_counts or {},
        nan_counts=file.nan_value_counts or {},
    )


def store_url(path: str) -> str:
    """Return the url of a location in Iceberg's metadata; translates ``s3n://`` and Hadoop's ``file:/path``."""
    if path.startswith("s3n://"):
        return "s3" + path[3:]
    if path.startswith("file:") and not path.startswith("file://"):
        return path.removeprefix("file:")
    return path


# -- pruning by partition values ------------------------------------------------------------------

# pydantic hides the signatures: each takes a column, and a value where the term has one
_MAKE: dict[str, Callable[..., predicates.BooleanExpression]] = {
    "<": predicates.LessThan,
    "<=": predicates.LessThanOrEqual,
    ">": predicates.GreaterThan,
    ">=": predicates.GreaterThanOrEqual,
    "in": predicates.In,
    "not in": predicates.NotIn,
    "null": predicates.IsNull,
    "not null": predicates.NotNull,
    "nan": predicates.IsNaN,
    "starts with": predicates.StartsWith,
}


#: The columns that pyiceberg compares with literals of a type.
_COLUMN_TYPES: dict[type, type[types.IcebergType]] = {
    bool: types.BooleanType,
    float: types.DoubleType,
    str: types.StringType,
    bytes: types.BinaryType,
    dt.date: types.DateType,
}


class PartitionFilter:
    """A filter that rules out manifests with their partition summaries, and files with their partition values.

    What pyiceberg cannot evaluate, such as a summary of another type or ``bucket[0]``, rules out nothing.
    """

    def __init__(self, where: tree.Expression | None, schema: Schema, leaves: dict[str, types.NestedField]) -> None:
        """Translate ``where``; None keeps all files. ``leaves``: the ``struct_leaves`` of ``schema``."""
        self._schema = schema
        self._expr = (
            predicates.AlwaysTrue() if where is None else _Translation(leaves).may_be(where, analysis.Truth.TRUE)
        )
        self._manifest: dict[int, Callable[[ManifestFile], bool]] = {}
        self._partition: dict[int, Callable[[Any], bool]] = {}
        self._told = set[str]()

    def keeps_manifest(self, manifest: ManifestFile, spec: PartitionSpec) -> bool:
        """Return whether a file of the manifest may have matching rows."""
        try:
            if spec.spec_id not in self._manifest:
                evaluate = manifest_evaluator(spec, self._schema, self._projected(spec))
                fields = spec.partition_type(self._schema).fields
                self._manifest[spec.spec_id] = lambda manifest: not _has_bounds(manifest, fields) or evaluate(manifest)
            return self._manifest[spec.spec_id](manifest)
        except _PYICEBERG_ERRORS as error:
            return self._rules_out_nothing(f"the partition summaries of {safe_url(manifest.manifest_path)}", error)

    def keeps_all(self, spec: PartitionSpec) -> bool:
        """Return whether the filter keeps every partition of a spec."""
        return isinstance(self._projected(spec), predicates.AlwaysTrue)

    def keeps_partition(self, values: Sequence[Any], spec: PartitionSpec, url: str) -> bool:
        """Return whether the file at ``url``, with these partition values, may have matching rows."""
        try:
            if spec.spec_id not in self._partition:
                partition = Schema(*spec.partition_type(self._schema).fields)
                evaluate = expression_evaluator(partition, self._projected(spec), True)
                self._partition[spec.spec_id] = evaluate
            return self._partition[spec.spec_id](values)
        except _PYICEBERG_ERRORS as error:
            return self._rules_out_nothing(f"the partition values of {safe_url(url)}", error)

    def _projected(self, spec: PartitionSpec) -> predicates.BooleanExpression:
        """Return the predicate on the partition values of a spec."""
        try:
            return _InclusiveProjection(self._schema, spec, case_sensitive=True).project(self._expr)
        except _PYICEBERG_ERRORS as error:
            self._rules_out_nothing(f"partition spec {spec.spec_id}", error)
            return predicates.AlwaysTrue()

    def _rules_out_nothing(self, what: str, error: Exception) -> bool:
        """Say in the log that ``what`` is ignored, once for each text of ``error``; return True, since files that it
        describes are kept."""
        reason = printable(short_text(error))
        if reason not in self._told:
            self._told.add(reason)
            logger.warning("asyncpq ignores %s: %s", what, reason)
        return True


def _has_bounds(manifest: ManifestFile, fields: Iterable[types.NestedField]) -> bool:
    """Return whether a manifest's partition summaries have the bounds of their values.

    A summary without a lower bound says that all values are null or NaN. iceberg-go 0.7.0 leaves out a bound that is
    empty: the partition of ``''`` then looks like null's, and hides the others.
    """
    for summary, field in zip(manifest.partitions or (), fields, strict=False):
        if summary.lower_bound is None and (
            isinstance(field.field_type, (types.StringType, types.BinaryType))
            or summary.upper_bound is not None
            or not (summary.contains_null or summary.contains_nan)
        ):
            return False
    return True


class _Translation:
    """A translation of asyncpq's predicates to pyiceberg's."""

    def __init__(self, leaves: dict[str, types.NestedField]) -> None:
        self._leaves = leaves
        self._domains: dict[str, analysis.ValueDomain] = {}

    def may_be(self, expr: tree.Expression, truth: analysis.Truth) -> predicates.BooleanExpression:
        """Return a predicate that is true for each row where ``expr`` has the result ``truth``, and perhaps for
        other rows."""
        return analysis.follow(expr, truth, self._atom, _all_of, _any_of)

    def _atom(self, atom: tree.Atom, truth: analysis.Truth) -> predicates.BooleanExpression:
        column = atom.column
        field = None if column is None else self._leaves.get(column)
        if column is None or field is None:
            return predicates.AlwaysTrue()
        domain = self._domains.get(column)
        if domain is None:
            domain = self._domains[column] = analysis.ValueDomain(_to_key(field.field_type))
        wanted = analysis.result_values(atom, truth, domain)
        return predicates.AlwaysTrue() if wanted.of_elements else _term(column, field.field_type, wanted)


def _all_of(parts: Iterable[predicates.BooleanExpression]) -> predicates.BooleanExpression:
    return predicates.And(predicates.AlwaysTrue(), *terms) if (terms := list(parts)) else predicates.AlwaysTrue()


def _any_of(parts: Iterable[predicates.BooleanExpression]) -> predicates.BooleanExpression:
    return predicates.Or(predicates.AlwaysFalse(), *terms) if (terms := list(parts)) else predicates.AlwaysFalse()


def _term(column: str, iceberg_type: types.IcebergType, wanted: analysis.ResultValues) -> predicates.BooleanExpression:
    """Return a predicate on a column that is true for all values in ``wanted``, and perhaps for other values."""
    values = wanted.values
    if values in (analysis.EVERYTHING, analysis.Points((), inverted=True)):
        return predicates.AlwaysTrue() if wanted.null else _MAKE["not null"](column)
    terms: list[predicates.BooleanExpression] = []
    if not isinstance(values, analysis.Points):
        terms += [_interval(column, interval) for interval in values]
    elif values.inverted:  # null and NaN are in neither set
        return _MAKE["not in"](column, values.keys)
    else:
        early = [key for key in values.keys if _is_early(key)]
        terms += [_interval(column, analysis.Interval(key, key)) for key in early]
        if len(early) < len(values.keys):
            terms.append(_MAKE["in"](column, values.keys[len(early) :]))
    if wanted.null:
        terms.append(_MAKE["null"](column))
    if wanted.nan and isinstance(iceberg_type, (types.FloatType, types.DoubleType)):
        terms.append(_MAKE["nan"](column))
    return _any_of(terms)


def _interval(column: str, interval: analysis.Interval) -> predicates.BooleanExpression:
    low, high, low_open, high_open = interval
    if isinstance(interval.prefix, str):
        return _MAKE["starts with"](column, interval.prefix)
    if isinstance(high, dt.date):
        latest = _epoch(high)
        if isinstance(latest, dt.datetime):
            latest += _LAST_OF_A_DAY
        if high <= latest:
            high, high_open = latest, False  # see _is_early: at most in the last partition of 1970-01-01
    above = predicates.AlwaysTrue() if low is None else _MAKE[">" if low_open else ">="](column, low)
    below = predicates.AlwaysTrue() if high is None else _MAKE["<" if high_open else "<="](column, high)
    return predicates.And(above, below)


def _to_key(iceberg_type: types.IcebergType) -> analysis.ToKey:
    """Return the function that converts literals to the values that pyiceberg compares with the column."""

    def to_key(value: Scalar) -> analysis.Comparable | analysis.Incomparable:
        literal = _literal(iceberg_type, value)
        return (
            analysis.Incomparable(f"not a literal of {iceberg_type}")
            if literal is None
            else analysis.Comparable(literal)
        )

    return to_key


def _literal(
    iceberg_type: types.IcebergType, value: Scalar
) -> bool | int | float | str | bytes | Decimal | dt.date | None:
    """Convert ``value`` to a literal of the type; None if pyiceberg cannot compare the two, so nothing is pruned."""
    if isinstance(value, Decimal):
        return _scaled(iceberg_type, value)
    if isinstance(value, dt.datetime):
        zoneless = value.tzinfo is None
        if not isinstance(iceberg_type, types.TimestampType if zoneless else types.TimestamptzType):
            return None
        try:
            return value if zoneless else value.astimezone(dt.UTC)
        except OverflowError:  # the first or last day of Python's years
            return None
    if isinstance(value, int) and not isinstance(value, bool):
        if not isinstance(iceberg_type, (types.IntegerType, types.LongType)):
            return None
        bits = 31 if isinstance(iceberg_type, types.IntegerType) else 63
        return value if -(1 << bits) <= value < 1 << bits else None
    if isinstance(value, float) and math.isnan(value):
        return None
    if isinstance(value, (bool, float, str, bytes, dt.date)) and isinstance(iceberg_type, _COLUMN_TYPES[type(value)]):
        return value
    return None


def _scaled(iceberg_type: types.IcebergType, value: Decimal) -> Decimal | None:
    """Return ``value`` with the column's scale; None if the scale would round the value."""
    if not isinstance(iceberg_type, types.DecimalType) or not value.is_finite():
        return None
    sign, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    more = exponent + iceberg_type.scale
    if more < 0 or len(digits) + more > iceberg_type.precision:
        return None
    return Decimal((sign, (*digits, *(0,) * more), -iceberg_type.scale))


def _is_early(literal: object) -> bool:
    """Return whether ``literal`` is a date or time before 1970. Early writers put it one partition too late, and
    ClickHouse 26.9 into one of 1970-01-01."""
    return isinstance(literal, dt.date) and literal < _epoch(literal)


def _epoch(literal: dt.date) -> dt.date:
    """Return the beginning of 1970 as a date or time of the type and zone of ``literal``."""
    if isinstance(literal, dt.datetime):
        return dt.datetime(1970, 1, 1, tzinfo=literal.tzinfo)
    return dt.date(1970, 1, 1)


class _InclusiveProjection(visitors.InclusiveProjection):
    """Return a predicate on partition values that is true for the partition of each row for which a predicate on
    columns is true, and perhaps for other partitions."""

    def visit_bound_predicate(self, predicate: predicates.BoundPredicate) -> predicates.BooleanExpression:
        result: predicates.BooleanExpression = predicates.AlwaysTrue()
        for part in self.spec.fields_by_source_id(predicate.term.ref().field.field_id):
            projected = _projected(part, predicate)
            if projected is not None:
                result = predicates.And(result, projected)
        return result


def _projected(part: PartitionField, predicate: predicates.BoundPredicate) -> predicates.BooleanExpression | None:
    """Return a predicate on the values of ``part``; None if they rule out nothing."""
    transform, source = part.transform, predicate.term.ref().field.field_type
    if isinstance(transform, TruncateTransform) and isinstance(source, (types.IntegerType, types.LongType)):
        return _truncated(part.name, transform, predicate)
    projected = transform.project(part.name, predicate)
    if isinstance(transform, HourTransform) and isinstance(source, (types.TimestampType, types.TimestamptzType)):
        if isinstance(predicate, (predicates.BoundLessThan, predicates.BoundLessThanOrEqual)):
            return _or(projected, _make(predicates.GreaterThanOrEqual, part.name, _FIRST_HOUR))
        if isinstance(predicate, (predicates.BoundGreaterThan, predicates.BoundGreaterThanOrEqual)):
            return _or(projected, _make(predicates.LessThanOrEqual, part.name, _LAST_HOUR))
    elif isinstance(transform, IdentityTransform) and isinstance(source, (types.FloatType, types.DoubleType)):
        return _or(projected, _make(predicates.EqualTo, part.name, 0.0))  # Trino 483 writes 0.0 for infinity
    elif isinstance(transform, DayTransform) and isinstance(predicate, _LATER):
        return _or(projected, _make(predicates.EqualTo, part.name, _LAST_DAY))
    return projected


def _truncated(
    name: str, transform: TruncateTransform[Any], predicate: predicates.BoundPredicate
) -> predicates.BooleanExpression | None:
    """Project a predicate on a column of ints or longs onto its truncated values."""
    width = transform.width
    # a column of longs may have been one of ints, which keeps its partition values
    sizes = (32,) if isinstance(predicate.term.ref().field.field_type, types.IntegerType) else (32, 64)
    values, least = _literals(predicate), -(1 << (sizes[-1] - 1))
    if any(value - value % width < least for value in values):
        return None  # ClickHouse 26.9 does not wrap, and pyiceberg compares with no number outside of the type
    if isinstance(predicate, (predicates.BoundEqualTo, predicates.BoundIn)):
        return _make(predicates.In, name, {each for value in values for each in _truncations(value, width, sizes)})
    if width > _MAX_ORDERED_WIDTH and isinstance(predicate, predicates.BoundLiteralPredicate):
        return None
    projected = transform.project(name, predicate)
    if isinstance(predicate, (predicates.BoundLessThan, predicates.BoundLessThanOrEqual)):
        # the smallest values may be in the partition after all others; ``>`` finds them there
        smallest = (-(1 << (bits - 1)) for bits in sizes)
        wrapped = {each for low in smallest if low % width for each in _truncations(low, width, sizes) if each > 0}
        return _or(projected, _make(predicates.In, name, wrapped))
    return projected


def _literals(predicate: predicates.BoundPredicate) -> list[int]:
    if isinstance(predicate, predicates.BoundSetPredicate):
        return [literal.value for literal in predicate.literals]
    return [predicate.literal.value] if isinstance(predicate, predicates.BoundLiteralPredicate) else []


def _truncations(value: int, width: int, sizes: Iterable[int]) -> set[int]:
    """Return the partition values that writers give ``value`` in a column of these sizes, in bits."""
    found = set()
    for bits in sizes:
        if _wrapped(value, bits) == value:
            remainder = _remainder(_wrapped(_remainder(value, width) + width, bits), width)
            found |= {_wrapped(value - value % width, bits), _wrapped(value - remainder, bits)}  # Rust's, Java's
    return found


def _remainder(value: int, width: int) -> int:
    """Return the remainder of Java's division, which has the sign of ``value``."""
    return value % width if value >= 0 else -(-value % width)


def _wrapped(value: int, bits: int) -> int:
    half = 1 << (bits - 1)
    return (value + half) % (1 << bits) - half


def _or(
    projected: predicates.BooleanExpression | None, other: predicates.BooleanExpression
) -> predicates.BooleanExpression | None:
    return None if projected is None else predicates.Or(projected, other)


def _make(
    predicate: Callable[..., predicates.BooleanExpression], name: str, literal: float | set[int]
) -> predicates.BooleanExpression:
    """Make a predicate; pydantic hides the signatures."""
    return predicate(name, literal)
