"""The schema of a Parquet file: its elements as written, its leaf columns and its top-level fields.

Parquet flattens the schema tree depth first into a list of SchemaElement (parquet.thrift). Only leaves hold values. A
leaf's maximum definition and repetition levels follow from the repetitions on its path.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final, TypeAlias, TypeVar

from asyncpq.errors import (
    AmbiguousColumnError,
    ColumnNotFoundError,
    CorruptFileError,
    ResourceLimitError,
    UnsupportedFeatureError,
    ambiguous_path,
    limit_hint,
    nearest_column,
    shown,
)
from asyncpq.parquet.logical_types import (
    UNRECOGNISED,
    ConvertedType,
    LogicalKind,
    LogicalType,
    PhysicalType,
    Repetition,
    from_converted,
    from_union,
)
from asyncpq.parquet.thrift import (
    BINARY,
    BINARY_VALUE,
    INTEGER_FIELD,
    INTEGER_FIELDS,
    MAX_DEPTH,
    STOP_BYTE,
    STRUCT,
    CompactReader,
    Fields,
    LatePattern,
    annotation_struct,
    any_of,
    headers,
    integer_of,
    repeated,
)
from asyncpq.records import MOST_KEPT, LazyRecords, NamedTuple, dataclass

PHYSICAL_TYPES: Final = tuple(PhysicalType)
_REPETITIONS: Final = tuple(Repetition)
_CONVERTED_TYPES: Final = tuple(ConvertedType)
_T = TypeVar("_T")
_VECTOR: Final = 3  # FieldRepetitionType.VECTOR: its levels differ from those of a repeated field
_MAX_RECENT_BYTES = 64 * 1024


class SchemaElement(NamedTuple):
    """One node of the schema tree (parquet.thrift, SchemaElement).

    Attributes:
        name: as in the file; may be empty or contain dots.
        physical_type: of a leaf; None for a group.
        type_length: bytes of a FIXED_LEN_BYTE_ARRAY value.
        repetition: REQUIRED if missing; of the root meaningless, and None if missing or unknown.
        num_children: of a group; 0 for a leaf.
        converted_type: the deprecated annotation, if it is known.
        logical_type: the annotation, also if it is the deprecated one.
        scale, precision: the deprecated decimal fields.
        field_id: of table formats such as Iceberg.
        raw_start: position of the struct in the metadata bytes.
    """

    name: str
    physical_type: PhysicalType | None
    type_length: int | None
    repetition: Repetition | None
    num_children: int
    converted_type: ConvertedType | None
    logical_type: LogicalType | None
    scale: int | None
    precision: int | None
    field_id: int | None
    raw_start: int
    raw_stop: int


def decode_elements(reader: CompactReader, *, max_elements: int) -> list[SchemaElement]:
    """Decode FileMetaData.schema at the reader's position: a list of SchemaElement, depth first.

    Raises CorruptFileError if the bytes are not a schema, ResourceLimitError if it has more than ``max_elements``.
    """
    element_type, length = reader.list_header()
    if length > max_elements:
        raise ResourceLimitError(
            f"the schema has {length} elements, the limit is {max_elements}", hint=limit_hint("max_schema_elements")
        )
    if element_type != STRUCT or length == 0:
        raise CorruptFileError("the file's schema is empty or not a list of schema elements")
    elements: list[SchemaElement] = []
    # Most elements differ only in the name, so the other bytes are decoded once.
    known: dict[bytes, SchemaElement] = {}
    _USUAL_ELEMENT.expect(length)
    data, match = reader.data, _USUAL_ELEMENT.match
    elements.append(_decode_element(reader, is_root=True))
    for _ in range(1, length):
        start = reader.pos
        usual = match(data, start)
        if usual is None:
            elements.append(_decode_element(reader))
            continue
        head, raw_name, annotation = usual.groups()  # the name with its length, one byte
        like = known.get(key := head + annotation)
        if like is None:
            like = _decode_element(reader)
            known[key] = like
            elements.append(like)
            continue
        reader.pos = stop = usual.end()
        elements.append(SchemaElement._make((_decode_name(raw_name[1:]), *like[1:10], start, stop)))
    return elements


# The bytes of most SchemaElements: numbers, name, then numbers and logical type.
_USUAL_ELEMENT: Final = LatePattern(
    b"(" + INTEGER_FIELDS + headers(BINARY) + b")(" + BINARY_VALUE + b")("
    + repeated(any_of(INTEGER_FIELD, headers(STRUCT) + annotation_struct(3))) + STOP_BYTE + b")"
)  # fmt: skip


def _decode_element(reader: CompactReader, *, is_root: bool = False) -> SchemaElement:
    start = reader.pos
    fields = reader.struct()
    raw_name = fields.get(4)
    if not isinstance(raw_name, bytes):
        raise CorruptFileError(f"the schema element at byte {start} of the metadata has no name")
    name = _decode_name(raw_name)
    physical = _member(fields, 1, PHYSICAL_TYPES, name, "physical type")
    code = integer_of(fields, 3)
    repetition: Repetition | None
    if is_root:
        repetition = _REPETITIONS[code] if code is not None and 0 <= code < len(_REPETITIONS) else None
    elif code == _VECTOR:
        raise UnsupportedFeatureError("asyncpq does not support fixed-size vectors (repetition VECTOR)", column=name)
    else:
        repetition = _member(fields, 3, _REPETITIONS, name, "repetition")
        if repetition is None:  # as other readers do
            repetition = Repetition.REQUIRED
    precision, scale = integer_of(fields, 8), integer_of(fields, 7)
    converted, logical = _annotation(fields, precision, scale)
    return SchemaElement(
        name,
        physical,
        integer_of(fields, 2),
        repetition,
        integer_of(fields, 5) or 0,
        converted,
        logical,
        scale,
        precision,
        integer_of(fields, 9),
        start,
        reader.pos,
    )


def _decode_name(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise CorruptFileError(f"a column name is not UTF-8: {raw[:80]!r}") from None


def _annotation(
    fields: Fields, precision: int | None, scale: int | None
) -> tuple[ConvertedType | None, LogicalType | None]:
    code = integer_of(fields, 6)
    known = code is not None and 0 <= code < len(_CONVERTED_TYPES)
    converted = _CONVERTED_TYPES[code] if code is not None and known else None
    if 10 in fields:
        logical = from_union(fields[10])
        if converted is ConvertedType.INTERVAL and logical.kind is LogicalKind.NULL:
            # no logical type is an interval: parquet-java writes UNKNOWN
            logical = from_converted(converted, None, None)
        return converted, logical
    if converted is not None:
        return converted, from_converted(converted, precision, scale)
    return None, None if code is None else UNRECOGNISED


def _member(fields: Fields, field_id: int, members: tuple[_T, ...], name: str, what: str) -> _T | None:
    code = integer_of(fields, field_id)
    if code is None:
        return None
    if not 0 <= code < len(members):
        raise CorruptFileError(
            f"the schema gives the unknown {what} {code}, expected 0 to {len(members) - 1}", column=name
        )
    return members[code]


@dataclass(slots=True, eq=False)
class Leaf:
    """A leaf column of the file: a leaf of the schema tree, which has values.

    Attributes:
        index: ordinal among the leaves, and of its chunk in every row group.
        path: names from the root's child down to the leaf.
        dotted: ``path`` joined with dots, for users.
        element_index: ordinal of ``element`` in the schema.
        ancestor_indexes: elements above it, the root's child first, without the root.
        field_index: ordinal of its top-level field.
        max_definition_level, max_repetition_level: as in the format's Encodings.md.
    """

    index: int
    path: tuple[str, ...]
    dotted: str
    element: SchemaElement
    element_index: int
    ancestor_indexes: tuple[int, ...]
    field_index: int
    max_definition_level: int
    max_repetition_level: int

    @property
    def is_flat(self) -> bool:
        """Whether the leaf is a top-level column that is not repeated, so that each row has one value or null."""
        return len(self.path) == 1 and self.max_repetition_level == 0

    @property
    def physical_type(self) -> PhysicalType:
        """The physical type. Raises CorruptFileError if the schema states none."""
        physical_type = self.element.physical_type
        if physical_type is None:
            raise CorruptFileError("the schema gives this leaf column no physical type", column=self.dotted)
        return physical_type

    @property
    def logical_type(self) -> LogicalType | None:
        """The logical type, also where the schema has only the deprecated one; None without one."""
        return self.element.logical_type


@dataclass(slots=True, eq=False)
class Field:
    """A top-level field: a leaf column, or a group whose leaf columns are ``leaves[first_leaf:leaf_stop]`` of the
    schema."""

    index: int
    name: str
    element_index: int
    first_leaf: int
    leaf_stop: int


class Projection(NamedTuple):
    """Leaf columns selected from one top-level field.

    Attributes:
        leaves: ordinals of the selected leaves, ascending; all of the field's for the whole field.
    """

    field: int  # its ordinal
    leaves: tuple[int, ...]


class ParquetSchema:
    """The schema tree of a file.

    Attributes:
        elements: all elements, depth first, the root first.
        leaves: the columns in file order; two may have the same path.
        fields: the top-level fields in file order; as in pyarrow, groups that contain no leaf are left out.
    """

    __slots__ = ("__dict__", "elements", "fields", "leaves")

    elements: tuple[SchemaElement, ...]
    leaves: tuple[Leaf, ...]
    fields: Sequence[Field]

    def __init__(self, elements: Sequence[SchemaElement]) -> None:
        """Raises CorruptFileError if the child counts do not add up, ResourceLimitError for more than 64 levels."""
        self.elements = tuple(elements)
        self.leaves, rows = _build(self.elements)
        self.fields = LazyRecords(rows, _field) if len(rows) > MOST_KEPT else tuple(map(_field, rows))

    def __repr__(self) -> str:
        return f"ParquetSchema({len(self.fields)} fields, {len(self.leaves)} leaves)"

    def subtree_stop(self, index: int) -> int:
        """Return the ordinal of the first element after the element at ``index`` and its descendants."""
        position, open_children = index + 1, self.elements[index].num_children
        while open_children:
            open_children += self.elements[position].num_children - 1
            position += 1
        return position

    def has_empty_group(self, field: Field) -> bool:
        """Return whether a top-level field is, or contains, a group without children."""
        elements = self.elements[field.element_index : self.subtree_stop(field.element_index)]
        return any(element.physical_type is None and not element.num_children for element in elements)

    @functools.cached_property
    def optional_map_keys(self) -> frozenset[int]:
        """Ordinals of the elements that are OPTIONAL keys of maps. The format asks for REQUIRED keys; some writers
        declare all fields OPTIONAL."""
        elements = self.elements
        return frozenset(
            [
                index + 2
                for index in self.maps(0, len(elements))
                if elements[index + 2].repetition is Repetition.OPTIONAL
            ]
        )

    @functools.cached_property
    def repeated_groups_as_lists(self) -> frozenset[int]:
        """Ordinals of the repeated groups that are annotated as LIST and repeat nothing. A list in a list of two levels
        has such a group, whose child is repeated."""
        elements = self.elements
        return frozenset(
            [
                index
                for index, element in enumerate(elements)
                if element.repetition is Repetition.REPEATED
                and element.num_children == 1
                and (logical := element.logical_type) is not None
                and logical.kind is LogicalKind.LIST
                and elements[index + 1].repetition is not Repetition.REPEATED
            ]
        )

    def maps(self, start: int, stop: int) -> list[int]:
        """Return the ordinals of the elements from ``start`` to ``stop`` that are maps with a key and a value."""
        elements = self.elements
        return [
            index
            for index in range(start, stop)
            if (logical := elements[index].logical_type) is not None
            and logical.kind is LogicalKind.MAP
            and elements[index].num_children == 1
            and elements[index + 1].repetition is Repetition.REPEATED
            and elements[index + 1].num_children == 2
        ]

    def has_optional_map_key(self, field: Field) -> bool:
        """Return whether a top-level field is, or contains, a map whose key is OPTIONAL."""
        keys = self.optional_map_keys
        return bool(keys) and any(
            index in keys for index in range(field.element_index, self.subtree_stop(field.element_index))
        )

    @functools.cached_property
    def _leaves_by_name(self) -> dict[str, list[Leaf]]:
        return _by_name((leaf.dotted, leaf) for leaf in self.leaves)

    @functools.cached_property
    def _fields_by_name(self) -> dict[str, int]:
        """Ordinals of the top-level fields, keyed by name; of several fields with one name, the last."""
        return {field.name: field.index for field in self.fields}

    @functools.cached_property
    def _repeated_names(self) -> dict[str, list[int]]:
        """Ordinals of the top-level fields whose names other fields have, too, keyed by name."""
        if len(self._fields_by_name) == len(self.fields):
            return {}
        named = _by_name((field.name, field.index) for field in self.fields)
        return {name: ordinals for name, ordinals in named.items() if len(ordinals) > 1}

    @functools.cached_property
    def _leaves_by_path(self) -> dict[str, list[Leaf]]:
        """Nested leaves, keyed by their dotted path and by the dotted paths of the groups above them."""
        return _by_name(
            (".".join(leaf.path[:depth]), leaf)
            for leaf in self.leaves
            if len(leaf.path) > 1
            for depth in range(2, len(leaf.path) + 1)
        )

    @functools.cached_property
    def whole_fields(self) -> tuple[Projection, ...]:
        """All top-level fields in file order, each with all of its leaf columns."""
        return tuple(map(_whole, self.fields))

    def projection(self, key: str | int) -> Projection:
        """Select a top-level field by its name or ordinal, or else the leaf columns at a dotted path.

        The path of a group selects all leaf columns in the group. As in pyarrow, a path names every group of the file,
        also those of lists: ``a.list.element.b``. Raises ColumnNotFoundError if nothing matches, AmbiguousColumnError
        if several fields or paths match.
        """
        if isinstance(key, int) or key in self._fields_by_name or key not in self._leaves_by_path:
            return _whole(self.field(key))
        leaves = self._leaves_by_path[key]
        paths: dict[int, tuple[str, ...]] = {}  # by the element that has the path
        in_lists = False
        for leaf in leaves:
            depth = next(depth for depth in range(2, len(leaf.path) + 1) if ".".join(leaf.path[:depth]) == key)
            way = (*leaf.ancestor_indexes, leaf.element_index)[:depth]
            paths[way[-1]] = leaf.path[:depth]
            in_lists |= any(self.elements[index].repetition is Repetition.REPEATED for index in way)
        if len(paths) > 1:
            raise ambiguous_path(key, list(paths.values()), in_lists=in_lists)
        return Projection(leaves[0].field_index, tuple([leaf.index for leaf in leaves]))

    def ordinals(self, name: str) -> list[int]:
        """Return the ordinals of the top-level fields with this name; an empty list if no field has it."""
        ordinal = self._fields_by_name.get(name)
        return [] if ordinal is None else [*self._repeated_names.get(name, (ordinal,))]

    def field(self, key: str | int) -> Field:
        """Return the top-level field with the name or ordinal ``key``.

        Raises ColumnNotFoundError if no field matches, AmbiguousColumnError if several fields have the name.
        """
        if isinstance(key, int):
            if not 0 <= key < len(self.fields):
                count = len(self.fields)
                raise ColumnNotFoundError(f"there is no column {key}: the file has {count} top-level fields")
            return self.fields[key]
        ordinal = self._fields_by_name.get(key)
        if ordinal is None:
            raise ColumnNotFoundError("the file has no such column", column=key, hint=self._hint(key))
        if key in self._repeated_names:
            raise AmbiguousColumnError(
                f"{len(self._repeated_names[key])} columns of the file have this name",
                column=key,
                hint="Address the column by its ordinal.",
            )
        return self.fields[ordinal]

    def _hint(self, name: str) -> str | None:
        """Return a hint that names the column most similar to ``name``, or the file's first columns."""
        leaf = self._leaves_by_name.get(name)
        if leaf is not None:
            return f"It is inside the top-level column {shown(leaf[0].path[0])}."
        paths = (*self._leaves_by_path, *self._leaves_by_name, *self._fields_by_name)
        return nearest_column(name, paths, [field.name for field in self.fields])


# Recent schemas: position in the footer, bytes, list elements in them, and the decoded schema.
_RECENT: deque[tuple[int, bytes, int, ParquetSchema]] = deque(maxlen=8)


def decode_schema(reader: CompactReader, *, max_elements: int) -> ParquetSchema:
    """Decode FileMetaData.schema at the reader's position.

    Files of one dataset mostly have the same schema bytes at the same position; they then share one object. Raises
    CorruptFileError if the schema is malformed, ResourceLimitError if it is too deep or too large, and
    UnsupportedFeatureError if it has fixed-size vectors.
    """
    start, allowed = reader.pos, reader.elements_left
    for position, raw, spent, known in tuple(_RECENT):
        if position != start or spent > allowed or len(known.elements) > max_elements:
            continue
        if reader.data.startswith(raw, start):
            reader.pos += len(raw)
            reader.elements_left -= spent
            return known
    schema = ParquetSchema(decode_elements(reader, max_elements=max_elements))
    raw = reader.data[start : reader.pos]
    if len(raw) <= _MAX_RECENT_BYTES:
        _RECENT.append((start, raw, allowed - reader.elements_left, schema))
    return schema


#: The attributes of a :class:`Field`.
_FieldRow: TypeAlias = tuple[int, str, int, int, int]


def _field(row: _FieldRow) -> Field:
    return Field(*row)


def _whole(field: Field) -> Projection:
    return Projection(field.index, tuple(range(field.first_leaf, field.leaf_stop)))


def _build(elements: tuple[SchemaElement, ...]) -> tuple[tuple[Leaf, ...], list[_FieldRow]]:
    """Return the leaves and the rows of the top-level fields of a flattened schema tree."""
    root = elements[0]
    if root.num_children < 0 or (root.physical_type is not None and not root.num_children):
        raise CorruptFileError("the root of the schema is not a group")
    leaves: list[Leaf] = []
    fields: list[_FieldRow] = []
    path: tuple[str, ...] = ()
    ancestors: tuple[int, ...] = ()
    definition = repetition = 0
    missing = root.num_children  # children of the open group that have still to come
    # The state of the groups around the open group, outermost first.
    open_groups: list[tuple[int, tuple[str, ...], tuple[int, ...], int, int]] = []
    first_leaf = field_element = 0
    for index in range(1, len(elements)):
        while missing == 0:
            if not open_groups:
                raise _lying_counts(len(elements))
            missing, path, ancestors, definition, repetition = open_groups.pop()
        missing -= 1
        element = elements[index]
        name = element.name
        if not ancestors:
            if len(leaves) > first_leaf:
                fields.append((len(fields), elements[field_element].name, field_element, first_leaf, len(leaves)))
            first_leaf, field_element = len(leaves), index
        max_definition = definition + (element.repetition is not Repetition.REQUIRED)
        max_repetition = repetition + (element.repetition is Repetition.REPEATED)
        full = (*path, name) if path else (name,)
        if element.physical_type is not None and not element.num_children:
            dotted = ".".join(full)
            leaves.append(
                Leaf(len(leaves), full, dotted, element, index, ancestors, len(fields), max_definition, max_repetition)
            )
            continue
        if element.num_children < 0:
            raise _lying_counts(len(elements))
        open_groups.append((missing, path, ancestors, definition, repetition))
        if len(open_groups) > MAX_DEPTH:
            raise ResourceLimitError(
                f"the schema is nested deeper than {MAX_DEPTH} levels", hint="Write it with fewer levels."
            )
        missing, path, ancestors = element.num_children, full, (*ancestors, index)
        definition, repetition = max_definition, max_repetition
    if missing or any(group[0] for group in open_groups):
        raise _lying_counts(len(elements))
    if len(leaves) > first_leaf:
        fields.append((len(fields), elements[field_element].name, field_element, first_leaf, len(leaves)))
    return tuple(leaves), fields


def _lying_counts(length: int) -> CorruptFileError:
    return CorruptFileError(f"the schema's child counts do not add up to its {length} elements")


def _by_name(pairs: Iterable[tuple[str, _T]]) -> dict[str, list[_T]]:
    names: dict[str, list[_T]] = {}
    for name, item in pairs:
        names.setdefault(name, []).append(item)
    return names
