"""Map a dataset's columns to those of one file, which may have other names or types, or lack some of them.

``SchemaAdapter`` finds the file's column for each of the dataset's; ``AdaptedColumn`` casts what was read of it.

Columns that are constant in the file are folded into the predicate first; the file's leaf columns prune the rest. Casts
keep the order of values, so statistics of the file's type hold for the dataset's. Literals that pyarrow rounds for only
one of the two types prune nothing. The filter runs on cast columns; the output's columns are cast once their rows are
known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from decimal import Decimal

import pyarrow as pa

from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import children_of, constant_array, null_scalar, with_children
from asyncpq.decoding.casts import Cast, Match, cast_to, inside
from asyncpq.decoding.field_types import dictionary_type, projected_field
from asyncpq.decoding.paths import ENTRY, beginning, meanings, parts_of, struct_path, top_level
from asyncpq.errors import (
    NAMES_SHOWN,
    AmbiguousColumnError,
    AsyncpqError,
    ColumnNotFoundError,
    UnsupportedFeatureError,
    nearest_column,
)
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.schema import Leaf, ParquetSchema, Projection
from asyncpq.records import NamedTuple, dataclass


class AdaptedColumn(NamedTuple):
    """A column of the dataset, or a part of one, and where its values come from in one file.

    Attributes:
        field: the dataset's, cut to the part.
        projection: the columns to read of the file; None for a constant.
        constant: the value in all rows if nothing is read.
        cast: from the file's type to the dataset's; None if they are equal.
    """

    field: pa.Field
    projection: Projection | None
    constant: pa.Scalar | None
    cast: Cast | None

    def array(self, source: pa.Array | None, num_rows: int) -> pa.Array:
        """Return the column's values: ``source``, which was read from the file, cast to the dataset's type; if nothing
        is read, ``num_rows`` times the constant.

        Raises SchemaMismatchError if a value has no equal value in the dataset's type.
        """
        if source is None:
            return constant_array(self.constant, num_rows)
        try:
            return source if self.cast is None else self.cast(source)
        except AsyncpqError as error:
            raise error.locate(column=self.field.name) from error.__cause__


class AdaptedColumns(NamedTuple):
    """The dataset's columns that a read uses, each with its counterpart in one file.

    Attributes:
        output: the columns to return, in order.
        predicate: by name: the filter's top-level columns, or only their parts in the filter.
    """

    output: tuple[AdaptedColumn, ...]
    predicate: Mapping[str, AdaptedColumn]


@dataclass(frozen=True, slots=True, eq=False)
class SchemaAdapter:
    """Maps a dataset's columns to those of one version of a file.

    Columns are matched at their first use, which raises an error if a column of the file does not fit.

    Attributes:
        schema: the dataset's columns.
        constants: columns that have one value in all rows of this file, by name.
        digest: of the file's version.
        match: by ordinals of the dataset's columns.
        weight: approximate bytes held in memory.
    """

    schema: pa.Schema
    constants: Mapping[str, pa.Scalar]
    digest: bytes
    match: Callable[[FileVersion, Sequence[int]], list[Match]]
    weight: int = 4000

    def ordinals(self, names: Iterable[str | int] | None) -> dict[int, list[str]]:
        """Return, for each requested column, the requested paths inside it, keyed by the column's ordinal; "" is the
        whole column.

        ``names`` are names, dotted paths inside columns, or ordinals; None for all columns. Raises ColumnNotFoundError
        if no column matches a name, AmbiguousColumnError if several do.
        """
        if names is None:
            return {ordinal: [""] for ordinal in range(len(self.schema))}
        paths: dict[int, list[str]] = {}
        for name in names:
            ordinal, path = self._find(name)
            paths.setdefault(ordinal, []).append(path)
        return paths

    def _find(self, name: str | int) -> tuple[int, str]:
        if isinstance(name, int):
            if not 0 <= name < len(self.schema):
                raise ColumnNotFoundError(f"there is no column {name}: the dataset has {len(self.schema)} columns")
            return name, ""
        ordinals = self.schema.get_all_field_indices(name)
        top = name if ordinals else top_level(self.schema, name)
        if top is None:
            raise ColumnNotFoundError(
                "the dataset has no such column", column=name, hint=nearest_column(name, self.schema.names)
            )
        ordinals = ordinals or self.schema.get_all_field_indices(top)
        if len(ordinals) > 1:
            raise AmbiguousColumnError(
                f"{len(ordinals)} columns of the dataset have this name",
                column=name,
                hint="Address the column by its ordinal.",
            )
        return ordinals[0], name[len(top) + 1 :]

    def types(self, names: Iterable[str]) -> dict[str, pa.DataType]:
        """Return the types of the top-level columns that ``names`` are, or lie in. Raises the errors of
        :meth:`ordinals`."""
        fields = [self.schema.field(ordinal) for ordinal in self.ordinals(names)]
        return {field.name: field.type for field in fields}

    def columns(
        self,
        version: FileVersion,
        asked: Mapping[int, Sequence[str]],
        extensions: frozenset[str],
        *,
        dictionaries: frozenset[int] = frozenset(),
        unique: bool = True,
    ) -> list[AdaptedColumn]:
        """Return the requested columns as this file has them, in the requested order. ``asked`` is from
        :meth:`ordinals`.

        ``dictionaries`` are the ordinals of columns to read as dictionary arrays. Raises ColumnNotFoundError if a part
        does not exist, AmbiguousColumnError if ``unique`` and a part is requested twice, and SchemaMismatchError if
        there is no exact cast. (Paths of several fields are refused by :meth:`ordinals`.)
        """
        matches = self.match(version, list(asked))
        columns: list[AdaptedColumn] = []
        for (ordinal, paths), whole in zip(asked.items(), matches, strict=True):
            match = _cut(whole, paths, whole.field.name, unique=unique)
            _refuse_unreadable(match)
            columns.append(_column(version, match, extensions, as_dictionary=ordinal in dictionaries))
        return columns

    def constant(self, version: FileVersion, name: str) -> pa.Scalar | None:
        """Return the value that a column or struct leaf has in all rows of the file; None if the rows may differ."""
        try:
            ordinal, path = self._find(name)
        except (ColumnNotFoundError, AmbiguousColumnError):
            return None  # the resolution of the column raises it
        value = self.constants.get(self.schema.field(ordinal).name)
        if value is None:
            (match,) = self.match(version, [ordinal]) if path else (None,)
            return None if match is None else _lacking(match, path)
        for child in struct_path(value.type, path) if path else ():
            if not isinstance(value.type, pa.StructType) or value.type.get_field_index(child) < 0:
                return None
            value = pc.struct_field(constant_array(value, 1), child)[0]
        return value

    def leaf(self, version: FileVersion, name: str) -> tuple[Leaf | None, frozenset[type]]:
        """Return two things: the file's leaf column whose statistics are bounds of the dataset's column ``name`` (None
        if there is none), and the types of inexact literals.

        The leaf column has one value or null in each row. pyarrow rounds literals of the inexact types when it compares
        them with the dataset's column, so these literals must not be compared with the leaf's statistics.
        """
        ordinal, path = self._find(name)
        (match,) = self.match(version, [ordinal])
        while path and isinstance(match.field.type, pa.StructType):
            index, path = _child(match.field.type, path, name)
            match = match.children[index]
        source = match.source
        if path or match.children or source is None or source.leaf_stop - source.first_leaf != 1:
            return None, frozenset()  # statistics of a struct's leaves do not bound the struct
        if source.resolution is not None:
            return None, frozenset()  # the leaf's values are not the column's
        leaf = version.metadata.schema.leaves[source.first_leaf]
        if leaf.max_repetition_level:
            return None, frozenset()
        return leaf, inexact_literals(source.type, match.field.type)


def _column(version: FileVersion, match: Match, extensions: frozenset[str], *, as_dictionary: bool) -> AdaptedColumn:
    field, source = match.field, match.source
    if as_dictionary:
        field = field.with_type(dictionary_type(field.type))
        match = replace(match, field=field)
    if source is None:
        default = match.default
        if default is not None and not default.type.equals(field.type):
            default = constant_array(default, 1).cast(field.type)[0]
        return AdaptedColumn(field, None, null_scalar(field.type) if default is None else default, None)
    leaves = _leaves(match, version.metadata.schema)
    projection = Projection(source.ordinal, leaves)
    type_ = projected_field(version, projection, extensions).type
    if as_dictionary and reads_as_dictionary(version, projection):
        type_ = dictionary_type(type_)
    try:
        cast_array = cast_to(match, type_, frozenset(leaves))
    except AsyncpqError as error:
        raise inside(error, field.name).locate(url=version.url) from error.__cause__
    return AdaptedColumn(field, projection, None, cast_array)


def reads_as_dictionary(version: FileVersion, projection: Projection) -> bool:
    """Return whether a field can be decoded to dictionary arrays."""
    leaves = version.metadata.schema.leaves
    return version.decryption is None and [leaves[leaf].is_flat for leaf in projection.leaves] == [True]


def _refuse_unreadable(match: Match) -> None:
    """Raise the error of the first part of ``match`` that cannot be read."""
    if match.unreadable is not None:
        raise copy(match.unreadable)  # each read adds its own location to the error
    for child in match.children:
        _refuse_unreadable(child)


# -- parts ----------------------------------------------------------------------------------------


def _cut(match: Match, paths: Sequence[str], name: str, *, unique: bool) -> Match:
    """Return ``match`` cut to the parts at the dotted ``paths``. ``name`` is the column, for errors; ``unique``: refuse
    a part that is requested twice."""
    if "" in paths:
        if unique and len(paths) > 1:
            raise AmbiguousColumnError(
                "the column, or a part of it, is requested twice", column=name, hint="Name each part once."
            )
        return match
    type_ = match.field.type
    inside: dict[int, list[str]] = {}
    for path in paths:
        index, rest = _child(type_, path, name)
        inside.setdefault(index, []).append(rest)
    if isinstance(type_, pa.MapType):
        inside.setdefault(0, [""])  # a map always has its keys
    children = [
        _cut(match.children[index], inside[index], f"{name}.{match.children[index].field.name}", unique=unique)
        for index in sorted(inside)
    ]
    field = match.field.with_type(with_children(type_, [child.field for child in children]))
    return replace(match, field=field, children=tuple(children))


def _child(type_: pa.DataType, path: str, name: str) -> tuple[int, str]:
    """Return the ordinal of the child of ``type_`` that the dotted ``path`` begins with, and the rest of the path."""
    if isinstance(type_, pa.MapType) and path == f"{ENTRY}.key":
        raise UnsupportedFeatureError(
            "asyncpq does not support reading the keys of a map without the values",
            column=f"{name}.{path}",
            hint="Select the whole column.",
        )
    matching = beginning(type_, path)
    if len(matching) > 1:  # names have dots of their own: {a, "a.b"} at "a.b" has one meaning, unless `a` has a `b`
        children = children_of(type_)
        matching = [(index, rest) for index, rest in matching if _exists(children[index].type, rest)]
    if not matching:
        known = ", ".join(repr(f"{name}.{part}") for _, part in parts_of(type_)[:NAMES_SHOWN])
        hint = f"Its parts are {known}." if known else None
        raise ColumnNotFoundError("the dataset's column has no part with this path", column=f"{name}.{path}", hint=hint)
    return matching[0]


def _exists(type_: pa.DataType, path: str) -> bool:
    return next(meanings(type_, path), None) is not None


def _leaves(match: Match, schema: ParquetSchema) -> tuple[int, ...]:
    """Return the ordinals, ascending, of the file's leaf columns to read for a matched column or part."""
    return tuple(sorted(_some_leaves(match, schema)))


def _some_leaves(match: Match, schema: ParquetSchema) -> set[int]:
    source = match.source
    if source is None:
        return set()
    if not match.children:
        return set(range(source.first_leaf, source.leaf_stop))
    leaves = {leaf for child in match.children for leaf in _some_leaves(child, schema)}
    if not leaves:  # one leaf is read to know where a group without any of the requested parts is null
        every = schema.leaves[source.first_leaf : source.leaf_stop]
        leaves = {min(every, key=lambda leaf: leaf.max_repetition_level).index}
    return leaves


def _lacking(match: Match, path: str) -> pa.Scalar | None:
    """Return a null scalar if the file lacks the struct field at ``path`` without a default in the dataset; else
    None."""
    while path:
        type_ = match.field.type
        if match.unreadable is not None or not isinstance(type_, pa.StructType):
            return None
        try:
            index, path = _child(type_, path, match.field.name)
        except (ColumnNotFoundError, AmbiguousColumnError):
            return None
        match = match.children[index]
    if match.source is not None or match.default is not None or match.unreadable is not None:
        return None
    return null_scalar(match.field.type)


def inexact_literals(source: pa.DataType, target: pa.DataType) -> frozenset[type]:
    """Return the types of literals that pyarrow rounds when it compares them with ``target``, but not with ``source``.

    Statistics have the type ``source``, so comparing such a literal with them would give other results.
    """
    if pa.types.is_integer(source):
        if pa.types.is_floating(target):
            return frozenset({Decimal})
        if pa.types.is_decimal(target):
            return frozenset({float})
    if pa.types.is_floating(source) and pa.types.is_decimal(target):
        return frozenset({float})
    return frozenset()
