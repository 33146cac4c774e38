"""Resolve names of columns to leaf columns: of a file, or of a dataset as a file has them."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

import pyarrow as pa

from asyncpq.decoding.field_types import dictionary_type, field_types, file_schema
from asyncpq.decoding.filter import FilterCompiler
from asyncpq.decoding.leaf import LeafDecoder
from asyncpq.decoding.schema_adapter import AdaptedColumn, AdaptedColumns, SchemaAdapter, reads_as_dictionary
from asyncpq.errors import AmbiguousColumnError, QueryError, UnsupportedFeatureError
from asyncpq.expressions import Expression, atoms
from asyncpq.expressions import columns as column_names
from asyncpq.objects.page_indexes import IndexRequest
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.schema import Leaf, ParquetSchema, Projection
from asyncpq.pruning.zone_maps import RowGroupZones
from asyncpq.records import NamedTuple


class PredicateColumn(NamedTuple):
    """A column that a predicate names, and the leaf columns of the file to read for it."""

    projection: Projection  # the leaves to read of its top-level field
    # the leaf that it is, with a value or null in each row; else None. Statistics of other leaves count values or nulls
    # that are no rows.
    leaf: Leaf | None


class ReadLeaf(NamedTuple):
    """A leaf column that a read fetches: for its output, its filter or both."""

    leaf: int  # its index in the schema
    field: int  # ordinal of its top-level field
    predicate: bool  # the filter needs it
    repeated: bool  # it has lists


class ReadColumns:
    """The columns of a read, resolved against a file's schema: what to return, what the filter reads, what prunes.

    It is cached with the file's version and shared by requests that differ only in literals. It caches what depends
    only on the columns: the leaf columns to read, their bounds in the row groups, and the requests for page indexes of
    the row groups used last.

    ``names`` are the columns that the predicate names; ``predicate`` has those of them that the file has under other
    names. Raises ColumnNotFoundError for a name that no column has, AmbiguousColumnError for one that several have.
    """

    __slots__ = (
        "apart",
        "bounded",
        "bounded_leaves",
        "covering",
        "leaves",
        "output",
        "predicate",
        "requests",
        "unfiltered",
        "with_filters",
        "zones",
    )

    def __init__(
        self,
        schema: ParquetSchema,
        output: tuple[Projection, ...],
        names: Iterable[str] = (),
        predicate: Mapping[str, PredicateColumn] = MappingProxyType({}),
    ) -> None:
        self.output: tuple[Projection, ...] = output
        self.predicate: dict[str, PredicateColumn] = dict(predicate)
        for name in names:
            projection = schema.projection(name)
            leaf = schema.leaves[projection.leaves[0]] if len(projection.leaves) == 1 else None
            is_value = leaf is not None and leaf.dotted == name and leaf.max_repetition_level == 0
            self.predicate[name] = PredicateColumn(projection, leaf if is_value else None)
        # those of the predicate that are leaves with bounds that count rows
        self.bounded: dict[str, Leaf] = {name: leaf for name, (_, leaf) in self.predicate.items() if leaf is not None}
        self.bounded_leaves: set[int] = {leaf.index for leaf in self.bounded.values()}
        self.covering: tuple[Leaf, ...] = ()  # those of ``bounded`` that are not read
        filtering = [column.projection for column in self.predicate.values()]
        self.leaves: tuple[ReadLeaf, ...] = _leaves(
            schema, filtering, output
        )  # leaves to read of a row group that is filtered, the filter's first
        # leaves to read of a row group that is not filtered
        self.unfiltered: tuple[ReadLeaf, ...] = _leaves(schema, (), output, self.leaves) if filtering else self.leaves
        self.with_filters: bool | None = None  # some may have Bloom filters; None before that is looked for
        self.zones: dict[str, RowGroupZones] | None = None  # of ``bounded``, by name; None before they are made
        # row groups (ordinal, whether filtered) whose chunks are known not to share bytes
        self.apart: set[tuple[int, bool]] = set()
        # for the page indexes of row groups that were filtered last, by ordinal and whether their bounds are wanted
        self.requests: dict[tuple[int, bool], list[IndexRequest]] = {}

    def may_cover(self, leaf: Leaf) -> bool:
        """Return whether ``leaf`` can be added to the predicate under its dotted name: no other column of the predicate
        has that name."""
        named = self.predicate.get(leaf.dotted)
        return named is None or named.leaf is leaf

    def covered_by(self, leaves: Iterable[Leaf]) -> ReadColumns:
        """Return a copy that also prunes by the statistics of ``leaves``; their values are not read."""
        other = copy.copy(self)
        added = [leaf for leaf in leaves if leaf.dotted not in self.predicate]
        read = {leaf.leaf for leaf in self.leaves}
        other.covering = tuple(leaf for leaf in added if leaf.index not in read)
        other.bounded = {**self.bounded, **{leaf.dotted: leaf for leaf in added}}
        other.bounded_leaves = self.bounded_leaves | {leaf.index for leaf in added if leaf.index in read}
        other.zones = other.with_filters = None
        other.requests = {}
        return other

    def without_bounds(self, names: Collection[str]) -> ReadColumns:
        """Return a copy in which the statistics of the columns ``names`` prune nothing."""
        other = copy.copy(self)
        other.bounded = {name: leaf for name, leaf in self.bounded.items() if name not in names}
        other.bounded_leaves = {leaf.index for leaf in other.bounded.values()}
        other.zones = other.with_filters = None
        other.requests = {}
        return other


def _leaves(
    schema: ParquetSchema, filtering: Iterable[Projection], output: Iterable[Projection], known: Iterable[ReadLeaf] = ()
) -> tuple[ReadLeaf, ...]:
    """Return the leaf columns to read. Those that only the output needs are taken from ``known``, if they are there, so
    that objects are shared."""
    outputs = {leaf.leaf: leaf for leaf in known if not leaf.predicate}
    leaves: dict[int, ReadLeaf] = {}
    for predicate, projections in ((True, filtering), (False, output)):
        for projection in projections:
            for index in projection.leaves:
                if index not in leaves:
                    repeated = schema.leaves[index].max_repetition_level > 0
                    leaves[index] = outputs.get(index) or ReadLeaf(index, projection.field, predicate, repeated)
    return tuple(leaves.values())


ColumnNames: TypeAlias = Sequence[str | int]


class Resolved(NamedTuple):
    """The columns of a request, resolved against one version of a file.

    Attributes:
        schema: Arrow schema of the output.
        dictionaries: ordinals of the fields that come as dictionary arrays.
        filters: compiles filters of the columns that the predicate names.
        decoders: of leaves that were read; they are kept with the version.
        weight: approximate bytes held in memory.
        view: the columns as the file has them; None where they are the file's own.
        inexact: for columns of the predicate, types of literals that are not compared with statistics.
    """

    columns: ReadColumns  # the columns to read
    schema: pa.Schema
    dictionaries: frozenset[int]
    filters: FilterCompiler
    decoders: dict[int, LeafDecoder]
    weight: int
    view: AdaptedColumns | None = None
    inexact: Mapping[str, frozenset[type]] = {}

    def for_literals(self, where: Expression | None, prune: Expression | None) -> Resolved:
        """Return these columns, some of which are ``inexact``, for predicates with new literals. A column does not
        prune if pyarrow rounds a literal that it is compared with."""
        blind = {
            name
            for expr in (where, prune)
            if expr is not None
            for atom in atoms(expr)
            for name in column_names(atom)
            if not self.inexact.get(name, frozenset()).isdisjoint(map(type, atom.literals))
        }
        return self._replace(columns=self.columns.without_bounds(blind)) if blind else self


class WantedColumns(NamedTuple):
    """The column names in one request, by what they are for.

    Attributes:
        keys: columns to return after ``columns``.
        named: columns that the predicate names.
        pruning: those that it names once it is simplified, and this file's constants are in it.
    """

    names: ColumnNames | None  # columns to return (see :class:`asyncpq.scan.request.ScanRequest`)
    keys: Sequence[str]
    named: Sequence[str]
    pruning: Sequence[str]
    read_dictionary: Sequence[str]
    extensions: frozenset[str]


def resolve(version: FileVersion, wanted: WantedColumns) -> Resolved:
    """Resolve the names in a request to the file's own columns.

    Raises:
        ColumnNotFoundError, AmbiguousColumnError: no such column, several of that name, or one requested twice.
        UnsupportedFeatureError: a column of ``read_dictionary`` cannot be read as dictionary arrays.
    """
    schema = version.metadata.schema
    output = resolve_output(schema, wanted.names)
    if wanted.keys:
        output = (*output, *[schema.projection(name) for name in wanted.keys])
    fields = list(dict.fromkeys([schema.projection(name).field for name in wanted.named]))
    kinds = field_types(version, fields, wanted.extensions) if fields else []
    types = {schema.fields[field].name: kind.arrow.type for field, kind in zip(fields, kinds, strict=True)}
    arrow = file_schema(version, output, wanted.extensions)
    dictionaries = _dictionary_fields(version, wanted.read_dictionary)
    for at, projection in enumerate(output):
        if projection.field in dictionaries:
            arrow = arrow.set(at, arrow.field(at).with_type(dictionary_type(arrow.field(at).type)))
    read = ReadColumns(schema, output, wanted.pruning)
    weight = 1000 + 200 * (len(output) + len(read.leaves) + len(types))
    return Resolved(read, arrow, dictionaries, FilterCompiler(types), {}, weight)


def resolve_output(schema: ParquetSchema, names: ColumnNames | None) -> tuple[Projection, ...]:
    """Return the requested top-level fields, or the requested parts of them, in the order of ``names``.

    Several paths into one field return the field once, at the position of the first path. Raises ColumnNotFoundError if
    no column has a name, AmbiguousColumnError if several have it or a column is requested twice.
    """
    if names is None:
        return schema.whole_fields
    asked: dict[int, list[int]] = {}
    for name in names:
        projection = schema.projection(name)
        leaves = asked.setdefault(projection.field, [])
        if not set(leaves).isdisjoint(projection.leaves):
            raise AmbiguousColumnError(
                "the column, or a part of it, is requested twice", column=str(name), hint="Name each part once."
            )
        leaves += projection.leaves
    return tuple([Projection(field, tuple(sorted(leaves))) for field, leaves in asked.items()])


def _dictionary_fields(version: FileVersion, names: Sequence[str]) -> frozenset[int]:
    """Return the ordinals of the fields to return as dictionary arrays. Raises ColumnNotFoundError if no column has a
    name, AmbiguousColumnError if several have it, UnsupportedFeatureError for a nested column or an encrypted file."""
    schema = version.metadata.schema
    fields: set[int] = set()
    for name in names:
        projection = schema.projection(name)
        flat = [schema.leaves[leaf].is_flat for leaf in projection.leaves] == [True]
        if not flat or version.decryption is not None:
            raise UnsupportedFeatureError(
                "read_dictionary is for columns that are neither nested nor encrypted",
                column=name,
                hint="Leave the column out of read_dictionary.",
            )
        fields.add(projection.field)
    return frozenset(fields)


def meant(schema: ParquetSchema, name: str) -> str | None:
    """Return the file's column whose name is most like ``name``, for an error's hint; None if no name is close."""
    try:
        schema.projection(name)
    except QueryError as error:
        return error.hint
    return None


def resolve_view(version: FileVersion, view: SchemaAdapter, wanted: WantedColumns) -> Resolved:
    """Resolve the names in a request to a dataset's columns, and these to the file's (``view``). Raises the errors of
    :func:`resolve`, and SchemaMismatchError if the file's column cannot be converted to the dataset's."""
    dictionaries = frozenset(_dictionary_column(view, name) for name in wanted.read_dictionary)

    def columns(names: ColumnNames | None, *, unique: bool) -> list[AdaptedColumn]:
        ordinals = view.ordinals(names)
        return view.columns(version, ordinals, wanted.extensions, dictionaries=dictionaries, unique=unique)

    output = columns(wanted.names, unique=True)
    for name in wanted.keys:
        output += columns([name], unique=True)
    types = view.types(wanted.named)
    predicate = {column.field.name: column for column in columns(wanted.pruning, unique=False)}
    reads: dict[str, PredicateColumn] = {}
    inexact: dict[str, frozenset[type]] = {}
    for name in wanted.pruning:
        (ordinal,) = view.ordinals([name])
        projection = predicate[view.schema.field(ordinal).name].projection
        if projection is not None:
            leaf, kinds = view.leaf(version, name)
            reads[name] = PredicateColumn(projection, leaf)
            if kinds:
                inexact[name] = kinds
    projections = tuple([column.projection for column in output if column.projection is not None])
    read = ReadColumns(version.metadata.schema, projections, predicate=reads)
    decoded = frozenset(
        column.projection.field
        for column in (*output, *predicate.values())
        if column.projection is not None
        and view.schema.get_field_index(column.field.name) in dictionaries
        and reads_as_dictionary(version, column.projection)
    )
    schema = pa.schema([column.field for column in output], metadata=view.schema.metadata)
    weight = 2000 + 800 * (len(output) + len(predicate) + 2 * len(read.leaves) + len(types))
    return Resolved(
        read, schema, decoded, FilterCompiler(types), {}, weight, AdaptedColumns(tuple(output), predicate), inexact
    )


def _dictionary_column(view: SchemaAdapter, name: str) -> int:
    """Return the ordinal of a column to return as dictionary arrays. Raises ColumnNotFoundError if no column has the
    name, AmbiguousColumnError if several have it, UnsupportedFeatureError for a nested column."""
    ((ordinal, (path,)),) = view.ordinals([name]).items()
    if path or pa.types.is_nested(view.schema.field(ordinal).type):
        raise UnsupportedFeatureError(
            "read_dictionary is for columns that are not nested",
            column=name,
            hint="Leave the column out of read_dictionary.",
        )
    return ordinal
