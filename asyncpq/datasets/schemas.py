"""One schema for many files, whose columns are matched by name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Literal, TypeAlias, cast

import pyarrow as pa

from asyncpq.datasets.column_matching import unmatched
from asyncpq.decoding.arrow import children_of, is_list, with_children
from asyncpq.decoding.casts import Match, lacking
from asyncpq.decoding.schema_adapter import SchemaAdapter
from asyncpq.errors import Hint, SchemaMismatchError
from asyncpq.records import dataclass

if TYPE_CHECKING:
    from asyncpq.datasets.model import TableField
    from asyncpq.objects.version import FileVersion
    from asyncpq.scan.column_resolution import ColumnNames

SchemaPolicy: TypeAlias = Literal["strict", "permissive"]

_types = pa.types
_SEEN = 16  # distinct schemas that need not be compared again
_DIGITS = {8: 3, 16: 5, 32: 10, 64: 20}  # decimal digits of integers, by their bits
_TEXTS = frozenset({pa.string(), pa.large_string()})
_OF_VIEWS = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
_PERMISSIVE = 'schema_policy="permissive": missing columns are null, types are widened.'
_STRICT_HINT = Hint(f"Open the dataset with {_PERMISSIVE}", f"In Python, open the dataset with {_PERMISSIVE}")
_NO_TYPE_HINT = "No type can represent the values of both exactly; " + Hint(
    "pass schema=, or open the files as two datasets.", "read the files in two commands."
)


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
        self._required: set[str] = set()  # names of columns that no file has yet lacked, or declared nullable
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
        """Add the schema of the file at ``url``. Raises SchemaMismatchError, which names both files, on a conflict."""
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
                if not self._known[name].field.nullable:
                    self._required.add(name)
            elif name not in self._partition:
                self._unify(known, fields[name], url)
        for name in [name for name in self._required if name not in fields]:
            self._allow_null(name)
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
            self._allow_null(field.name)

    def _allow_null(self, name: str) -> None:
        self._required.discard(name)
        self._known[name].field = self._known[name].field.with_nullable(True)


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
    Exception: 64-bit integers and floats become float64, and integers that float64 cannot represent are errors.
    """
    kinds = [_OF_VIEWS.get(kind, kind) for kind in (left, right)]
    if any(map(_types.is_dictionary, kinds)):
        return _dictionaries(left, right)
    if any(map(_types.is_decimal, kinds)):  # pyarrow takes floats for wider, and some integers for narrower ones
        kinds = [pa.decimal128(_DIGITS[kind.bit_width], 0) if _types.is_integer(kind) else kind for kind in kinds]
        if not all(map(_types.is_decimal, kinds)):
            return None
    elif any(map(_types.is_integer, kinds)):  # nothing casts integers to float16
        kinds = [pa.float32() if kind == pa.float16() else kind for kind in kinds]
    elif any(map(_types.is_fixed_size_binary, kinds)) and not _TEXTS.isdisjoint(kinds):
        return None
    elif all(isinstance(kind, pa.TimestampType) and kind.tz is not None for kind in kinds) and left.tz != right.tz:
        kinds = [pa.timestamp(kind.unit, "UTC") for kind in kinds]
    return _promoted(*kinds)


def _dictionaries(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    left_values, right_values = (kind.value_type if _types.is_dictionary(kind) else kind for kind in (left, right))
    values = unified_type(left_values, right_values, "permissive")
    if values is None or not (isinstance(left, pa.DictionaryType) and isinstance(right, pa.DictionaryType)):
        return values
    return pa.dictionary(_promoted(left.index_type, right.index_type), values, left.ordered and right.ordered)


def _promoted(left: pa.DataType, right: pa.DataType) -> pa.DataType | None:
    """Return the type to which pyarrow promotes both types; None if it has none."""
    schemas = [pa.schema([("", kind)]) for kind in (left, right)]
    try:
        return pa.unify_schemas(schemas, promote_options="permissive").field(0).type
    except (pa.ArrowTypeError, pa.ArrowInvalid):
        return None


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
    if columns is None and not keys and not read_dictionary and not has_unreadable(fields or ()):
        return schema.remove_metadata()
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
