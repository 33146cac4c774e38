"""Match the columns of a file with those of its dataset: by field id or by name, never by position.

A column is matched when a read first uses it, once for each version of a file.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import field as dataclass_field
from typing import Any

import pyarrow as pa

from asyncpq.datasets.model import TableField
from asyncpq.decoding.arrow import child_leaves, children_of, is_list, null_scalar, read_schema
from asyncpq.decoding.casts import Match, SourcePart, cast, inside, is_finer, lacking, mismatch
from asyncpq.decoding.field_types import FieldType, field_types
from asyncpq.decoding.schema_adapter import SchemaAdapter
from asyncpq.decoding.shredded_variant import restoring
from asyncpq.decoding.splice import schema_file
from asyncpq.decoding.typed_literals import exact_scalar
from asyncpq.errors import AmbiguousColumnError, AsyncpqError, SchemaMismatchError
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.logical_types import LogicalKind, PhysicalType
from asyncpq.parquet.schema import ParquetSchema
from asyncpq.records import dataclass

_FIELD_ID = b"PARQUET:field_id"
_SEVERAL = -1  # in place of an ordinal: several fields of the file match


def view_of(
    version: FileVersion,
    schema: pa.Schema,
    fields: tuple[TableField, ...] | None,
    partition: Mapping[str, Any],
    extensions: frozenset[str] = frozenset(),
) -> SchemaAdapter:
    """Return the adapter from ``version`` to the columns of a dataset.

    The values of a column come from the first of these that exists: its value in ``partition``, even if the file has
    the column too (as in ``pyarrow.dataset``); the file's column with the same field id, or with the same name if the
    table's field or the file has no ids; the field's default, or null.

    Args:
        schema: the dataset's columns, partition columns included.
        fields: a table's columns, whose types replace those of ``schema``; None to match columns by name.
        partition: values that are the same in all rows, by column name.
        extensions: names of the Arrow extension types that the result may have.

    Raises:
        SchemaMismatchError: a partition value does not fit its column's type; or the file has no field ids, and a field
            of the table has no name for such files.
    """
    known = {} if fields is None else {field.name: field for field in fields}
    if known:  # whose types count
        columns = [field.with_type(known[field.name].type) if field.name in known else field for field in schema]
        schema = pa.schema(columns, metadata=schema.metadata)
    names = schema.names
    wanted = [known.get(name) for name in names]
    parquet = version.metadata.schema
    with_ids = [field for field in wanted if field is not None and field.field_id is not None]
    by_id = _ordinals_by_id(version) if with_ids else {}
    nameless = [] if by_id else [field.name for field in with_ids if not field.names]
    if nameless:
        raise SchemaMismatchError(
            "the file has no field ids, and the table has no valid name mapping, so its columns cannot be matched",
            url=version.url,
            column=nameless[0],
            hint="Set a name mapping on the table, or write the file again with field ids.",
        )
    sources: list[int | None] = []
    used: dict[int, int] = {}
    constants: dict[str, pa.Scalar] = {}
    for at, (name, field) in enumerate(zip(names, wanted, strict=True)):
        ordinal = None
        if field is not None and field.unreadable is not None:
            pass  # reads raise the error
        elif name in partition:
            constants[name] = _scalar(partition[name], schema.field(at), version.url)
        else:
            ordinal = _ordinal(version, name, field, by_id)
            if ordinal is None or _is_null(parquet, ordinal):
                value = None if ordinal is not None or field is None else field.default
                ordinal = None
                constants[name] = _scalar(value, schema.field(at), version.url)
        if ordinal is not None and ordinal in used:  # two columns of the dataset match the same one of the file
            sources[used[ordinal]] = ordinal = _SEVERAL
        elif ordinal is not None:
            used[ordinal] = len(sources)
        sources.append(ordinal)
    match = _Matcher(wanted, schema, sources, constants, bool(by_id), extensions)
    return SchemaAdapter(schema, constants, version.digest, match)


def unmatched(field: TableField, target: pa.Field) -> Match:
    """Return the match of a table's column, or of a part of one, in no file: it names the parts that cannot be read.
    ``target`` is the column's Arrow field."""
    children = [unmatched(part, child) for part, child in _parts(field, target)]
    return Match(target, None, None, tuple(children), unreadable=field.unreadable)


def _table_field(field: pa.Field) -> TableField:
    return TableField(name=field.name, type=field.type, nullable=field.nullable)


def _ordinals_by_id(version: FileVersion) -> dict[int, list[int]]:
    """Return the ordinals of top-level fields, by field id; an empty dict if the file has no field ids."""

    def make() -> dict[int, list[int]]:
        schema = version.metadata.schema
        ordinals: dict[int, list[int]] = {}
        for field in schema.fields:
            field_id = schema.elements[field.element_index].field_id
            if field_id is not None:
                ordinals.setdefault(field_id, []).append(field.index)
        return ordinals

    return version.derived(("fields by id",), make, lambda ordinals: 100 + 100 * len(ordinals))


def _ordinals_in_any_case(version: FileVersion) -> dict[str, list[int]]:
    """Return the ordinals of top-level fields, by their names in lower case."""

    def make() -> dict[str, list[int]]:
        ordinals: dict[str, list[int]] = {}
        for field in version.metadata.schema.fields:
            ordinals.setdefault(field.name.lower(), []).append(field.index)
        return ordinals

    return version.derived(("fields in any case",), make, lambda ordinals: 100 + 150 * len(ordinals))


def _ordinal(
    version: FileVersion, name: str, field: TableField | None, by_id: Mapping[int, Sequence[int]]
) -> int | None:
    """Return the ordinal of the file's top-level field that matches the column ``name`` of the dataset, or ``field``
    of a table; None if no field matches, ``_SEVERAL`` if several do. ``by_id``: ordinals by field id."""
    if field is not None and by_id and field.field_id is not None:
        ordinals = by_id.get(field.field_id, ())
    else:
        names, schema = (field and field.names) or (name,), version.metadata.schema
        ordinals = next((same for known in names if (same := schema.ordinals(known))), ())
        if not ordinals and field is not None and field.ignores_case:
            in_any_case = _ordinals_in_any_case(version)
            ordinals = [ordinal for known in names for ordinal in in_any_case.get(known.lower(), ())]
    if not ordinals:
        return None
    return ordinals[0] if len(ordinals) == 1 else _SEVERAL


def _is_null(schema: ParquetSchema, ordinal: int) -> bool:
    """Whether a top-level field has the logical type NULL, so that all its values are null."""
    if ordinal < 0:
        return False
    field = schema.fields[ordinal]
    logical = schema.elements[field.element_index].logical_type
    return logical is not None and logical.kind is LogicalKind.NULL


def _scalar(value: Any, field: pa.Field, url: str) -> pa.Scalar:
    """Return ``value`` as a scalar of the column's type; raise SchemaMismatchError if that is not possible."""
    kind = field.type
    if isinstance(value, pa.Scalar) and value.type.equals(kind):
        return value
    try:
        plain = value.as_py() if isinstance(value, pa.Scalar) else value
        if plain is None:
            return null_scalar(kind)
        if isinstance(kind, pa.DictionaryType):
            values = pa.array([plain], kind.value_type)
            indices = pa.array([0], kind.index_type)
            return pa.DictionaryArray.from_arrays(indices, values, ordered=kind.ordered)[0]
        exact = exact_scalar(plain, kind) if type(plain) in (int, str) else None  # without pandas
        return pa.scalar(plain, kind) if exact is None else exact
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise SchemaMismatchError(
            f"the column's value in all rows of the file, {value!r}, is not a valid {kind}: {error}",
            url=url,
            column=field.name,
            hint="Declare another type for the column.",
        ) from error


@functools.lru_cache(maxsize=64)
def has_coarse_timestamps(schema: pa.Schema) -> bool:
    """Whether the schema has timestamps, and none in nanoseconds: INT96 may then be decoded as microseconds."""
    units: set[str] = set()
    types = [field.type for field in schema]
    for kind in types:  # the loop appends to the list
        if isinstance(kind, pa.TimestampType):
            units.add(kind.unit)
        types += [child.type for child in children_of(kind)]
    return bool(units) and "ns" not in units


@dataclass(slots=True, eq=False)
class _Matcher:
    """Matches columns of one version of a file when they are first needed (see :attr:`SchemaAdapter.match`)."""

    fields: Sequence[TableField | None]
    schema: pa.Schema
    sources: Sequence[int | None]
    constants: Mapping[str, pa.Scalar]
    by_id: bool
    extensions: frozenset[str]
    known: dict[int, Match] = dataclass_field(default_factory=dict)

    def __call__(self, version: FileVersion, ordinals: Sequence[int]) -> list[Match]:
        missing = [ordinal for ordinal in ordinals if ordinal not in self.known]
        read = [source for at in missing if (source := self.sources[at]) is not None and source >= 0]
        types = dict(zip(read, field_types(version, read, self.extensions), strict=True))
        for ordinal in missing:
            try:
                self.known[ordinal] = self._match(version, ordinal, types)
            except AsyncpqError as error:
                name = self.schema.field(ordinal).name
                raise inside(error, name).locate(url=version.url) from error.__cause__
        return [self.known[ordinal] for ordinal in ordinals]

    def _match(self, version: FileVersion, ordinal: int, types: Mapping[int, FieldType]) -> Match:
        source, target = self.sources[ordinal], self.schema.field(ordinal)
        field = self.fields[ordinal]
        if field is not None and field.unreadable is not None:
            return unmatched(field, target)
        if source is None:
            return lacking(target, self.constants[target.name])
        if source < 0:
            raise _several(target.name)
        parquet = version.metadata.schema
        top = parquet.fields[source]
        kind = types[source].arrow.type
        resolution = _resolution(field, kind)
        if not kind.num_fields and kind.equals(target.type) and resolution is None:
            return Match(target, SourcePart(kind, source, top.first_leaf, top.leaf_stop), None, ())
        ids = _plain_type(version, source) if self.by_id and children_of(kind) else None
        field = field or _table_field(target)
        instant = field.ignores_zone or _is_int96(parquet, top.first_leaf)
        part = SourcePart(kind, source, top.first_leaf, top.leaf_stop, instant, resolution)
        return _matched(field, target, part, ids, parquet)


def _is_int96(schema: ParquetSchema, leaf: int) -> bool:
    return schema.leaves[leaf].element.physical_type is PhysicalType.INT96


def _resolution(field: TableField | None, kind: pa.DataType) -> str | None:
    """Return the unit ("s", "ms" or "us") to which timestamps of the file's type ``kind`` are converted; None if
    they stay as they are."""
    unit = None if field is None else field.resolution
    return unit if unit is not None and is_finer(kind, unit) else None


def _several(name: str) -> AmbiguousColumnError:
    return AmbiguousColumnError(
        f"the column {name!r} is ambiguous: its name or field id occurs more than once in the file or the dataset",
        hint="Rename columns, so that each name occurs once.",
    )


def _plain_type(version: FileVersion, ordinal: int) -> pa.DataType:
    """Return the Arrow type of the file's top-level field ``ordinal``, with field ids in its metadata, as the
    Parquet schema alone gives it, without the footer's ``ARROW:schema``."""

    def make() -> pa.DataType:
        field = version.metadata.schema.fields[ordinal]
        file = schema_file(version.metadata, [field], None)
        return read_schema(file, version.metadata.int96_unit).field(0).type

    return version.derived(("plain type", ordinal), make, 1000)


def _parts(field: TableField, target: pa.Field) -> list[tuple[TableField, pa.Field]]:
    """Return pairs of each child of the table's ``field`` and the Arrow field that it has in ``target``."""
    children = children_of(target.type)
    if len(field.children) == len(children):
        return list(zip(field.children, children, strict=True))
    return [(_table_field(child), child) for child in children]


def _matched(
    field: TableField, target: pa.Field, source: SourcePart, ids: pa.DataType | None, schema: ParquetSchema
) -> Match:
    """Match ``source``, a column of the file or a part of one, with ``target``, the Arrow field of ``field``.

    ``ids`` is the Arrow type of ``source`` with field ids; None if children are matched by name.
    """
    kind = source.type
    wanted, given = _parts(field, target), children_of(kind)
    if field.is_variant and any(part.name not in ("metadata", "value") for part in given):
        return _shredded(wanted, target, source)
    if not wanted or not given:
        if wanted or given:
            raise mismatch(kind, target.type)
        cast(kind, target.type, source.instant)  # raises an error if there is no cast
        return Match(target, source, None, ())
    same_shape = (
        (isinstance(kind, pa.StructType) and isinstance(target.type, pa.StructType))
        or (isinstance(kind, pa.MapType) and isinstance(target.type, pa.MapType))
        or (is_list(kind) and is_list(target.type))
    )
    if not same_shape:
        raise mismatch(kind, target.type)
    spans = child_leaves(kind, source.first_leaf)
    if spans[-1].stop != source.leaf_stop:
        raise SchemaMismatchError(
            f"pyarrow's type of the column, {kind}, does not have as many leaves as the Parquet schema",
            hint="Leave the column out, or read the file by itself with open_file.",
        )
    with_ids = () if ids is None else children_of(ids)
    children: list[Match] = []
    for position, (part, child) in enumerate(wanted):
        if part.unreadable is not None:
            children.append(unmatched(part, child))
            continue
        at = _position(part, given, with_ids) if isinstance(kind, pa.StructType) else position
        if at is None or pa.types.is_null(given[at].type):
            default = None if at is not None or part.default is None else _scalar(part.default, child, "")
            children.append(lacking(child, default))
            continue
        instant = part.ignores_zone or _is_int96(schema, spans[at].start)
        inner = SourcePart(
            given[at].type, at, spans[at].start, spans[at].stop, instant, _resolution(part, given[at].type)
        )
        try:
            children.append(_matched(part, child, inner, with_ids[at].type if with_ids else None, schema))
        except AsyncpqError as error:
            raise inside(error, child.name) from error.__cause__
    return Match(target, source, None, tuple(children))


def _shredded(wanted: Sequence[tuple[TableField, pa.Field]], target: pa.Field, source: SourcePart) -> Match:
    """Return the match of a shredded variant: each of its leaves in the file may contain a part of the value."""
    restoring(source.type)  # raises an error if the parts cannot be put together
    children = tuple([Match(child, source, None, ()) for _, child in wanted])
    return Match(target, source, None, children, is_shredded=True)


def _position(part: TableField, given: Sequence[pa.Field], with_ids: Sequence[pa.Field]) -> int | None:
    """Return the position of the struct field in a file that matches ``part``, a child of a table's struct; None if no
    field matches.

    ``given`` are the struct's fields in the file; ``with_ids`` the same with field ids, or empty to match by name.
    """
    if with_ids and part.field_id is not None:
        field_id = str(part.field_id).encode()
        positions = [at for at, field in enumerate(with_ids) if (field.metadata or {}).get(_FIELD_ID) == field_id]
    else:
        names, own = part.names or (part.name,), [field.name for field in given]
        first = next((name for name in names if name in own), None)
        positions = [at for at, name in enumerate(own) if name == first]
        if not positions and part.ignores_case:
            in_lower_case = {name.lower() for name in names}
            positions = [at for at, name in enumerate(own) if name.lower() in in_lower_case]
    if len(positions) > 1:
        raise _several(part.name)
    return positions[0] if positions else None
