"""A file's metadata (parquet.thrift, FileMetaData), decoded lazily.

The schema and the row groups are decoded at once. Of the column chunks, which are most of a footer, only the positions
are found; a chunk is decoded at its first use and kept. So a warm read does nothing proportional to the number of
columns, and a footer in memory is mostly its bytes and these positions.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

from asyncpq.errors import CorruptFileError
from asyncpq.parquet.row_group import CHUNK_WEIGHT, RowGroup, SortingColumn, locate_structs
from asyncpq.parquet.schema import ParquetSchema, decode_schema
from asyncpq.parquet.statistics import ColumnOrder
from asyncpq.parquet.thrift import (
    BINARY,
    DEFAULT_MAX_ELEMENTS,
    FALSE,
    I16,
    I64,
    LIST,
    STOP,
    STRUCT,
    CompactReader,
    Fields,
    Value,
)
from asyncpq.parquet.writer_faults import ARROW_SCHEMA, WriterFaults

# Approximate bytes of the parsed objects.
_ELEMENT_WEIGHT: Final = 400
_LEAF_WEIGHT: Final = 350
_MAX_ROWS: Final = 2**63 - 1  # Arrow's lengths


@dataclass(slots=True, eq=False, kw_only=True, repr=False)
class FileMetadata:
    """A decoded footer. Made by :func:`decode_file_metadata`."""

    data: bytes  # the Thrift bytes
    version: int  # of the format, 1 or 2, as written; not reliable
    schema: ParquetSchema
    num_rows: int
    row_groups: tuple[RowGroup, ...]
    created_by: str | None  # the writer, e.g. "parquet-mr version 1.8.0 (build abc)"
    column_orders: tuple[ColumnOrder, ...] | None  # one for each leaf; all UNKNOWN if their number is not the leaves'
    dropped: tuple[str, ...]  # statements of the footer that contradict the rest of it and are ignored
    has_encryption: bool  # some columns are, or may be, encrypted
    key_value_start: int | None  # position of the key-value metadata in the bytes
    parsed_chunks: list[int]  # the row groups' counter of decoded chunks
    int96_unit: Literal["ns", "us"] = "ns"  # in which timestamps stored as INT96 are decoded
    writer_faults: WriterFaults = field(init=False)
    _key_values: dict[str, str | None] | None = field(default=None, init=False)
    _unparsed_weight: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        self.writer_faults = WriterFaults(self.created_by, lambda: self.key_value_metadata.get(ARROW_SCHEMA))

    def __repr__(self) -> str:
        return f"FileMetadata({self.num_rows} rows, {len(self.row_groups)} row groups, {self.schema!r})"

    @property
    def weight(self) -> int:
        """Approximate bytes held in memory; grows as chunks are decoded."""
        if not self._unparsed_weight:
            schema = _ELEMENT_WEIGHT * len(self.schema.elements) + _LEAF_WEIGHT * len(self.schema.leaves)
            self._unparsed_weight = len(self.data) + schema + sum(group.weight for group in self.row_groups)
        return self._unparsed_weight + CHUNK_WEIGHT * self.parsed_chunks[0]

    @property
    def key_value_metadata(self) -> Mapping[str, str | None]:
        """The file's key-value metadata, the first value of a repeated key as in Arrow; escaped where not UTF-8."""
        if self._key_values is None:
            pairs: dict[str, str | None] = {}
            if self.key_value_start is not None:
                reader = CompactReader(self.data, self.key_value_start)
                for pair in _structs(reader.value(LIST)):
                    key, value = pair.get(1), pair.get(2)
                    if isinstance(key, bytes):
                        text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else None
                        pairs.setdefault(key.decode("utf-8", "backslashreplace"), text)
            self._key_values = pairs
        return self._key_values


def decode_file_metadata(
    data: bytes, *, max_elements: int = DEFAULT_MAX_ELEMENTS, max_schema_elements: int = DEFAULT_MAX_ELEMENTS
) -> FileMetadata:
    """Decode the Thrift bytes of FileMetaData; bytes behind it, a footer's signature, are ignored.

    Args:
        data: the bytes.
        max_elements: schema elements, column chunks and other list elements to accept, together.
        max_schema_elements: schema elements to accept; these are decoded at once.

    Raises:
        CorruptFileError: not FileMetaData, or parts that contradict each other.
        ResourceLimitError: nested deeper than 64 levels, or more elements than allowed.
        UnsupportedFeatureError: the schema has fixed-size vectors.
    """
    reader = CompactReader(data, max_elements=max_elements)
    footer = _Footer(reader, max_schema_elements)
    field_type, field_id = reader.field(0)
    while field_type != STOP:
        footer.read_field(field_id, field_type)
        field_type, field_id = reader.field(field_id)
    return footer.metadata()


class _Footer:
    """The fields of FileMetaData as they are read."""

    def __init__(self, reader: CompactReader, max_schema_elements: int) -> None:
        self._reader = reader
        self._max_schema_elements = max_schema_elements
        self._version = 0
        self._schema: ParquetSchema | None = None
        self._num_rows: int | None = None
        self._row_groups: tuple[RowGroup, ...] | None = None
        self._created_by: str | None = None
        self._column_orders: tuple[ColumnOrder, ...] | None = None
        self._has_encryption = False
        self._key_value_start: int | None = None
        self._parsed_chunks = [0]

    def read_field(self, field_id: int, field_type: int) -> None:
        reader = self._reader
        if field_id == 1 and I16 <= field_type <= I64:
            self._version = reader.integer()
        elif field_id == 3:
            self._num_rows = _count(reader, field_type, "row count")
        elif field_id == 6 and field_type == BINARY:
            self._created_by = reader.binary().decode("utf-8", "backslashreplace")
        elif field_id in (2, 4, 5, 7) and field_type == LIST:
            self._read_list(field_id)
        elif field_type > FALSE:
            self._has_encryption = self._has_encryption or field_id == 8
            reader.skip(field_type)

    def _read_list(self, field_id: int) -> None:
        reader = self._reader
        if field_id == 2:
            self._schema = decode_schema(reader, max_elements=self._max_schema_elements)
        elif field_id == 4:
            if self._schema is None:
                raise CorruptFileError("the footer's row groups come before its schema")
            self._row_groups = _row_groups(reader, self._schema, self._parsed_chunks)
        elif field_id == 5:
            self._key_value_start = reader.pos
            reader.skip(LIST)
        else:
            self._column_orders = tuple([_order(union) for union in _structs(reader.value(LIST))])

    def metadata(self) -> FileMetadata:
        """The metadata; CorruptFileError if required fields are missing or row counts disagree."""
        schema, groups = self._schema, self._row_groups
        if schema is None or self._num_rows is None or groups is None:
            raise CorruptFileError("the footer lacks a schema, a row count or row groups")
        dropped: list[str] = []
        orders, num_leaves = self._column_orders, len(schema.leaves)
        if orders is not None and len(orders) != num_leaves:
            alike = len(set(orders)) == 1  # then it does not matter which leaf each is for
            dropped.append(f"the footer has {len(orders)} column orders for {num_leaves} columns")
            orders = (orders[0] if alike else ColumnOrder.UNKNOWN,) * num_leaves
        return FileMetadata(
            data=self._reader.data,
            version=self._version,
            schema=schema,
            num_rows=_checked_rows(self._num_rows, groups, dropped),
            row_groups=groups,
            created_by=self._created_by,
            column_orders=orders,
            dropped=tuple(dropped),
            has_encryption=self._has_encryption,
            key_value_start=self._key_value_start,
            parsed_chunks=self._parsed_chunks,
        )


def _checked_rows(claimed: int, groups: tuple[RowGroup, ...], dropped: list[str]) -> int:
    """The rows of all row groups; the footer's own count may be lower, and is then ``dropped``.

    Writers that add row groups to a file may keep the footer's old count (fastparquet before 2022.11), or write 0
    (old parquet-protobuf). A count that is too high means that row groups are lost.
    """
    num_rows = sum([group.num_rows for group in groups])
    if claimed == num_rows:
        return num_rows
    contradiction = f"the footer says {claimed} rows, its row groups have {num_rows}"
    if not claimed < num_rows <= _MAX_ROWS or not all(group.confirms_num_rows() for group in groups):
        raise CorruptFileError(contradiction)
    dropped.append(contradiction)
    return num_rows


def _row_groups(reader: CompactReader, schema: ParquetSchema, parsed_chunks: list[int]) -> tuple[RowGroup, ...]:
    element_type, length = reader.list_header()
    if length and element_type != STRUCT:
        raise CorruptFileError("the footer's row groups are not structs")
    groups: list[RowGroup] = []
    first_row = 0
    for ordinal in range(length):
        group = _row_group(reader, schema, parsed_chunks, ordinal, first_row)
        groups.append(group)
        first_row += group.num_rows
    return tuple(groups)


def _row_group(
    reader: CompactReader, schema: ParquetSchema, parsed_chunks: list[int], ordinal: int, first_row: int
) -> RowGroup:
    starts: array[int] | None = None
    num_rows = None
    total_byte_size = 0
    sorting: tuple[SortingColumn, ...] = ()
    field_type, field_id = reader.field(0)
    while field_type != STOP:
        if field_id == 1 and field_type == LIST:
            starts = locate_structs(reader, len(schema.leaves))
        elif field_id == 2 and I16 <= field_type <= I64:
            total_byte_size = max(0, reader.integer())
        elif field_id == 3:
            num_rows = _count(reader, field_type, "row count")
        elif field_id == 4 and field_type == LIST:
            sorting = _sorting_columns(_structs(reader.value(field_type)))
        elif field_type > FALSE:
            reader.skip(field_type)
        field_type, field_id = reader.field(field_id)
    if starts is None or num_rows is None:
        raise CorruptFileError(f"row group {ordinal} lacks its columns or its row count")
    return RowGroup(
        data=reader.data,
        schema=schema,
        starts=starts,
        ordinal=ordinal,
        num_rows=num_rows,
        first_row=first_row,
        total_byte_size=total_byte_size,
        sorting_columns=sorting,
        parsed_chunks=parsed_chunks,
    )


def _count(reader: CompactReader, field_type: int, name: str) -> int:
    value = reader.integer() if I16 <= field_type <= I64 else -1
    if value < 0:
        raise CorruptFileError(f"the {name} at byte {reader.pos} of the metadata is negative or not a number")
    return value


def _structs(values: Value) -> list[Fields]:
    if not isinstance(values, list):
        return []
    return [value for value in values if isinstance(value, dict)]


def _sorting_columns(structs: list[Fields]) -> tuple[SortingColumn, ...]:
    """The columns that a row group is sorted by, up to the first invalid entry."""
    columns: list[SortingColumn] = []
    for fields in structs:
        index = fields.get(1)
        if type(index) is not int or index < 0:
            break
        columns.append(SortingColumn(index, fields.get(2) is True, fields.get(3) is True))
    return tuple(columns)


def _order(union: Fields) -> ColumnOrder:
    members = tuple(union)
    if len(members) == 1 and members[0] in (1, 2, 3):
        return ColumnOrder(members[0])
    return ColumnOrder.UNKNOWN
