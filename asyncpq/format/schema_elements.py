"""The elements of a schema as a footer lists them (parquet.thrift, SchemaElement)."""

from __future__ import annotations

import functools
import re
from typing import Final, NamedTuple, TypeVar

from asyncpq.errors import CorruptFileError, ResourceLimitError, UnsupportedFeatureError
from asyncpq.format.logical_types import (
    UNRECOGNISED,
    ConvertedType,
    LogicalType,
    PhysicalType,
    Repetition,
    from_converted,
    from_union,
)
from asyncpq.format.thrift import BINARY, STRUCT, CompactReader, Fields
from asyncpq.format.thrift_patterns import (
    BINARY_VALUE,
    INTEGER_FIELD,
    INTEGER_FIELDS,
    STOP_BYTE,
    annotation_struct,
    any_of,
    headers,
    repeated,
)

_PHYSICAL_TYPES: Final = tuple(PhysicalType)
_REPETITIONS: Final = tuple(Repetition)
_CONVERTED_TYPES: Final = tuple(ConvertedType)
_T = TypeVar("_T")
_VECTOR: Final = 3  # FieldRepetitionType.VECTOR: its levels differ from those of a repeated field


class SchemaElement(NamedTuple):
    """One node of the schema tree (parquet.thrift, SchemaElement).

    Attributes:
        name: as in the file; may be empty or contain dots.
        physical_type: of a leaf; None for a group.
        type_length: bytes of a FIXED_LEN_BYTE_ARRAY value.
        repetition: REQUIRED where it is missing; of the root it means nothing, None where it is missing or unknown.
        num_children: of a group; 0 for a leaf.
        converted_type: the deprecated annotation, if the file has one that is known.
        logical_type: of the annotation, the deprecated one included; None without any.
        scale, precision: the deprecated decimal fields.
        field_id: of table formats such as Iceberg.
        raw_start, raw_stop: where the element's struct lies in the metadata bytes.
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
    """Read FileMetaData.schema at the reader's position: a list of SchemaElement, depth first.

    Raises:
        CorruptFileError: not such a list. ResourceLimitError: more than ``max_elements``.
    """
    element_type, length = reader.list_header()
    if length > max_elements:
        raise ResourceLimitError(
            f"the schema has {length} elements, allowed are {max_elements}",
            hint="Raise LimitOptions.max_schema_elements if the file is trusted.",
        )
    if element_type != STRUCT or length == 0:
        raise CorruptFileError("the file's schema is empty or not a list of schema elements")
    elements: list[SchemaElement] = []
    # Of most elements only the name differs from that of others: what follows the name is parsed once.
    known: dict[bytes, SchemaElement] = {}
    data, match = reader.data, _usual_element().match
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


@functools.cache
def _usual_element() -> re.Pattern[bytes]:
    """A SchemaElement: numbers, the name (with its length), then numbers and the logical type."""
    annotation = repeated(any_of(INTEGER_FIELD, headers(STRUCT) + annotation_struct(3))) + STOP_BYTE
    head = INTEGER_FIELDS + headers(BINARY)
    return re.compile(b"(" + head + b")(" + BINARY_VALUE + b")(" + annotation + b")", re.DOTALL)


def _decode_element(reader: CompactReader, *, is_root: bool = False) -> SchemaElement:
    start = reader.pos
    fields = reader.struct()
    raw_name = fields.get(4)
    if not isinstance(raw_name, bytes):
        raise CorruptFileError(f"the schema element at byte {start} of the metadata has no name")
    name = _decode_name(raw_name)
    physical = _member(fields, 1, _PHYSICAL_TYPES, name, "physical type")
    code = _optional(fields, 3)
    repetition: Repetition | None
    if is_root:
        repetition = _REPETITIONS[code] if code is not None and 0 <= code < len(_REPETITIONS) else None
    elif code == _VECTOR:
        raise UnsupportedFeatureError("fixed-size vectors (repetition VECTOR) are not supported", column=name)
    else:
        repetition = _member(fields, 3, _REPETITIONS, name, "repetition")
        if repetition is None:  # as other readers take it
            repetition = Repetition.REQUIRED
    precision, scale = _optional(fields, 8), _optional(fields, 7)
    converted, logical = _annotation(fields, precision, scale)
    return SchemaElement(
        name,
        physical,
        _optional(fields, 2),
        repetition,
        _optional(fields, 5) or 0,
        converted,
        logical,
        scale,
        precision,
        _optional(fields, 9),
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
    code = _optional(fields, 6)
    known = code is not None and 0 <= code < len(_CONVERTED_TYPES)
    converted = _CONVERTED_TYPES[code] if code is not None and known else None
    if 10 in fields:
        return converted, from_union(fields[10])
    if converted is not None:
        return converted, from_converted(converted, precision, scale)
    return None, None if code is None else UNRECOGNISED


def _optional(fields: Fields, field_id: int) -> int | None:
    value = fields.get(field_id)
    return value if type(value) is int else None


def _member(fields: Fields, field_id: int, members: tuple[_T, ...], name: str, what: str) -> _T | None:
    code = _optional(fields, field_id)
    if code is None:
        return None
    if not 0 <= code < len(members):
        raise CorruptFileError(f"unknown {what} {code} in the schema", column=name)
    return members[code]
