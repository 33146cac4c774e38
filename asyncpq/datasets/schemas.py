"""One schema for many files, whose columns are matched by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import pyarrow as pa

from asyncpq.datasets.column_matching import unmatched
from asyncpq.decoding.arrow import children_of, is_list, with_children
from asyncpq.decoding.casts import Match, lacking
from asyncpq.decoding.schema_adapter import SchemaAdapter
from asyncpq.decoding.typed_literals import UNITS
from asyncpq.errors import SchemaMismatchError
from asyncpq.records import dataclass

if TYPE_CHECKING:
    from asyncpq.datasets.model import TableField
    from asyncpq.objects.version import FileVersion
    from asyncpq.scan.column_resolution import ColumnNames

SchemaPolicy: TypeAlias = Literal["strict", "permissive"]

_types = pa.types
_SEEN = 16  # distinct schemas that need not be compared again
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}  # decimal digits of integers, by their bits
_MAX_DIGITS = 38, 76  # largest precision of decimal128, and of decimal256
_SIGNED = {8: pa.int8(), 16: pa.int16(), 32: pa.int32(), 64: pa.int64()}
_STRICT_HINT = 'Open the dataset with schema_policy="permissive": missing columns are null, types are widened.'
_NO_TYPE_HINT = "No type can represent the values of both exactly; pass schema=, or open the files as two datasets."


@dataclass(slots=True)
class _Known:
    """A column of the unified schema, and the url of a file that has it with this type, for messages."""

    field: pa.Field
    url: str


class SchemaUnifier:
    """Unifies the schemas of files, which are added one by one.

    ``strict``: every file must have the same columns, with the same types. Their order, nullability and metadata may
    differ, also inside nested types, and a column may have the null type, which has no values.
    ``permissive``: a file may lack columns, also inside structs, and types are widened to one that can represent all
    values. Columns are in the order in which files first have them, then those of ``partition`` that no file has. If
    files and ``partition`` both have a column, the type in ``partition`` counts.
    """

    def __init__(self, policy: SchemaPolicy, partition: pa.Schema | None = None) -> None:
        self._policy = policy
        self._partition = {} if partition is None else {field.name: field for field in partition}
        self._known: dict[str, _Known] = {}
        self._metadata: dict[bytes, bytes] | None = None
        self._seen: list[pa.Schema] = []
        self._first: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no file has been added."""
        return self._first is None

    @property
    def schema(self) -> pa.Schema:
        """The unified schema of all files that were added so far."""
        fields = [self._partition.get(name, known.field) for name, known in self._known.items()]
        fields += [field for name, field in self._partition.items() if name not in self._known]
        return pa.schema(fields, metadata=self._metadata)

    def add(self, url: str, schema: pa.Schema) -> None:
        """Add the schema of the file at ``url``. Raises SchemaMismatchError, which names two files, if their columns
        conflict."""
        if any(schema.equals(seen) for seen in self._seen):
            return
        fields = {
            field.name: field for field in reversed(list(schema))
        }  # the first of equal names counts: see SchemaAdapter
        if self._first is None:
            self._metadata = schema.metadata
        if self._policy == "strict":
            self._check_same_names(url, fields)
        for name in dict.fromkeys(schema.names):
            known = self._known.get(name)
            if known is None:
                missed = self._first is not None and not fields[name].nullable
                self._known[name] = _Known(fields[name].with_nullable(True) if missed else fields[name], url)
            elif name not in self._partition:
                self._unify(known, fields[name], url)
        if self._first is not None:
            for name, known in self._known.items():
                if name not in fields and not known.field.nullable:
                    known.field = known.field.with_nullable(True)
        self._first = self._first or url
        if len(self._seen) < _SEEN:
            self._seen.append(schema)

    def _check_same_names(self, url: str, fields: dict[str, pa.Field]) -> None:
        if self._first is None:
            return
        lacking = [name for name in self._known if name not in fields and name not in self._partition]
        further = [name for name in fields if name not in self._known and name not in self._partition]
        if lacking or further:
            difference = (
                f"lacks a column that {self._first} has" if lacking else f"has a column that {self._first} lacks"
            )
            column = (lacking or further)[0]
            raise SchemaMismatchError(f"the file {difference}", url=url, column=column, hint=_STRICT_HINT)

    def _unify(self, known: _Known, field: pa.Field, url: str) -> None:
        kind = unified_type(known.field.type, field.type, self._policy)
        if kind is None:
            raise SchemaMismatchError(
                f"the column is {field.type} in this file, and {known.field.type} in {known.url}",
                url=url,
                column=field.name,
                hint=_STRICT_HINT
                if self._policy == "strict" and unified_type(known.field.type, field.type, "permissive") is not None
                else _NO_TYPE_HINT,
            )
        if not kind.equals(known.field.type):
            if kind.equals(field.type):
                known.url = url
            known.field = known.field.with_type(kind)
        if field.nullable and not known.field.nullable:
            known.field = known.field.with_nullable(True)


def unified_type(left: pa.DataType, right: pa.DataType, policy: SchemaPolicy) -> pa.DataType | None:
    """Return the type that can represent the values of both types; None if ``policy`` ("strict" or "permissive")
    allows none."""
    if left.equals(right) or _types.is_null(right):
        return left
    if _types.is_null(left):
        return right
    if children_of(left) and children_of(right):
        return _nested(left, right, policy)
    return _wider(left, right) if policy == "permissive" else None


def _nested(left: pa.DataType, right: pa.DataType, policy: SchemaPolicy) -> pa.DataType | None:
    if isinstance(left, pa.StructType) and isinstance(right, pa.StructType):
        return _struct(left, right, policy)
    like = left
    if isinstance(left, pa.MapType) and isinstance(right, pa.MapType):
        if policy == "strict" and left.keys_sorted != right.keys_sorted:
            return None
        like = left if right.keys_sorted else right
    elif not is_list(left) or not is_list(right):
        return None
    elif left.id != right.id or getattr(left, "list_size", None) != getattr(right, "list_size", None):
        if policy == "strict":
            return None
        large = (pa.lib.Type_LARGE_LIST, pa.lib.Type_LARGE_LIST_VIEW)
        like = pa.large_list(pa.null()) if left.id in large or right.id in large else pa.list_(pa.null())
    fields: list[pa.Field] = []
    for own, other in zip(children_of(left), children_of(right), strict=True):
        kind = unified_type(own.type, other.type, policy)
        if kind is None:
            return None
        fields.append(own.with_type(kind).with_nullable(own.nullable or other.nullable))
    return with_children(like, fields)


def _struct(left: pa.StructType, right: pa.StructType, policy: SchemaPolicy) -> pa.DataType | None:
    ours, theirs = {field.name: field for field in left}, {field.name: field for field in right}
    if len(ours) < left.num_fields or len(theirs) < right.num_fields:
        return None  # which of several fields of one name matches is unknown
    if policy == "strict" and ours.keys() != theirs.keys():
        return None
    fields: list[pa.Field] = []
    for name, own in ours.items():
        other = theirs.pop(name, None)
        kind = own.type if other is None else unified_type(own.type, other.type, policy)
        if kind is None:
            return None
        fields.append(own.with_type(kind).with_nullable(other is None or own.nullable or other.nullable))
    fields += [field.with_nullable(True) for field in theirs.values()]
    return pa.struct(fields)


def _wider(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the narrowest type that can represent the values of two types that are not nested; None if there is none.
    Exception: 64-bit integers and floats become float64, and reading an integer that float64 cannot represent is an
    error.
    """
    if isinstance(left, pa.DictionaryType) or isinstance(right, pa.DictionaryType):
        return _dictionaries(left, right)
    for rule in (_numbers, _times, _strings):
        kind = rule(left, right)
        if kind is not None:
            return kind
    return None


def _dictionaries(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    left_values, right_values = (kind.value_type if _types.is_dictionary(kind) else kind for kind in (left, right))
    values = unified_type(left_values, right_values, "permissive")
    if values is None or not (isinstance(left, pa.DictionaryType) and isinstance(right, pa.DictionaryType)):
        return values
    return pa.dictionary(_integers(left.index_type, right.index_type), values, left.ordered and right.ordered)


def _numbers(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if _types.is_integer(left) and _types.is_integer(right):
        return _integers(left, right)
    if _types.is_floating(left) and _types.is_floating(right):
        return left if left.bit_width > right.bit_width else right
    if _types.is_floating(left) and _types.is_integer(right):
        return _numbers(right, left)
    if _types.is_integer(left) and _types.is_floating(right):
        return pa.float32() if left.bit_width <= 16 and right.bit_width <= 32 else pa.float64()
    if _types.is_decimal(left) and (_types.is_decimal(right) or _types.is_integer(right)):
        return _decimals(left, right)
    if _types.is_integer(left) and _types.is_decimal(right):
        return _decimals(right, left)
    return None


def _integers(left: pa.DataType, right: pa.DataType) -> pa.DataType:
    wide = left if left.bit_width >= right.bit_width else right
    if _types.is_signed_integer(left) == _types.is_signed_integer(right):
        return wide
    unsigned = right if _types.is_signed_integer(left) else left
    return _SIGNED[min(64, max(wide.bit_width, 2 * unsigned.bit_width))]


def _decimals(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    scale, whole = left.scale, left.precision - left.scale
    if _types.is_decimal(right):
        scale, whole = max(scale, right.scale), max(whole, right.precision - right.scale)
    else:
        whole = max(whole, _DIGITS[right.bit_width])
    digits = scale + whole
    if digits > _MAX_DIGITS[1]:
        return None
    wide = _types.is_decimal256(left) or _types.is_decimal256(right) or digits > _MAX_DIGITS[0]
    return pa.decimal256(digits, scale) if wide else pa.decimal128(digits, scale)


def _times(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    if _types.is_date(left) and _types.is_date(right):
        return pa.date64()
    for is_kind in (_types.is_timestamp, _types.is_time, _types.is_duration):
        if is_kind(left) and is_kind(right):
            break
    else:
        return None
    unit = UNITS[max(UNITS.index(left.unit), UNITS.index(right.unit))]
    if _types.is_duration(left):
        return pa.duration(unit)
    if _types.is_time(left):
        return pa.time32(unit) if unit in ("s", "ms") else pa.time64(unit)
    if (left.tz is None) is not (right.tz is None):
        return None
    return pa.timestamp(unit, left.tz if left.tz == right.tz else "UTC")


def _strings(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    text = (pa.string(), pa.large_string(), pa.string_view())
    raw = (pa.binary(), pa.large_binary(), pa.binary_view())
    num_texts = (left in text) + (right in text)
    num_fixed = sum(_types.is_fixed_size_binary(kind) for kind in (left, right))
    if num_texts + num_fixed + (left in raw) + (right in raw) < 2 or (num_texts and num_fixed):
        return None
    large = any(kind in (pa.large_string(), pa.large_binary()) for kind in (left, right))
    if num_texts == 2:
        return pa.large_string() if large else pa.string()
    return pa.large_binary() if large else pa.binary()


def has_unreadable(fields: Iterable[TableField]) -> bool:
    """Return whether a column of a table, or a part of one, cannot be read."""
    return any(field.unreadable is not None or has_unreadable(field.children) for field in fields)


def output_schema(
    schema: pa.Schema,
    columns: ColumnNames | None,
    keys: Sequence[str],
    read_dictionary: Sequence[str],
    fields: tuple[TableField, ...] | None = None,
) -> pa.Schema:
    """Return the schema of a read's result: the ``columns`` (None: all) of a dataset with ``schema``, followed by the
    columns ``keys``. ``read_dictionary``: columns that are returned as dictionary arrays. ``fields``: a table's
    columns, some of which may be unreadable.

    Raises ColumnNotFoundError if a column is missing, AmbiguousColumnError if a name occurs twice, or the error of an
    unreadable column.
    """
    nothing = cast("FileVersion", None)  # the view of no file: every column is lacking
    known = {field.name: field for field in fields or ()}

    def match(version: FileVersion, ordinals: Sequence[int]) -> list[Match]:
        targets = [schema.field(ordinal) for ordinal in ordinals]
        return [unmatched(known[field.name], field) if field.name in known else lacking(field) for field in targets]

    view = SchemaAdapter(schema, {}, b"", match)
    dictionaries = frozenset(view.ordinals(read_dictionary))
    found = view.columns(nothing, view.ordinals(columns), frozenset(), dictionaries=dictionaries)
    for key in keys:
        found += view.columns(nothing, view.ordinals([key]), frozenset(), dictionaries=dictionaries)
    return pa.schema([column.field for column in found])
