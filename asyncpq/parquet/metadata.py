"""The file's metadata (parquet.thrift, FileMetaData), parsed no further than it is asked.

The schema and the row groups are read at once; of the column chunks, which are most of a footer, only
the places are found (``chunk_walk``). A chunk is parsed when it is first asked for, and kept.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
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


class FileMetadata:
    """What a footer says.

    Attributes:
        data: the Thrift bytes.
        version: 1 or 2; says little.
        schema: the columns.
        num_rows: rows in all row groups.
        row_groups: in file order.
        created_by: the writer, e.g. "parquet-mr version 1.8.0 (build abc)".
        column_orders: one for each leaf; None when the file has none. All UNKNOWN where there are more or fewer
            than leaves, unless they are all the same.
        dropped: what the footer says that contradicts the rest of it, and is not used.
        has_encryption: some columns are, or may be, encrypted.
        int96_unit: in which its readers want timestamps stored as INT96, "ns" or "us".
    """

    __slots__ = (
        "_key_value_span",
        "_key_values",
        "_parsed_chunks",
        "_unparsed_weight",
        "_writer_faults",
        "column_orders",
        "created_by",
        "data",
        "dropped",
        "has_encryption",
        "int96_unit",
        "num_rows",
        "row_groups",
        "schema",
        "version",
    )

    data: bytes
    version: int
    schema: ParquetSchema
    num_rows: int
    row_groups: tuple[RowGroup, ...]
    created_by: str | None
    column_orders: tuple[ColumnOrder, ...] | None
    dropped: tuple[str, ...]
    has_encryption: bool
    int96_unit: Literal["ns", "us"]

    def __init__(self, data: bytes) -> None:
        """Called by :func:`decode_file_metadata`, which fills in the rest."""
        self.data = data
        self.version = 0
        self.num_rows = 0
        self.row_groups = ()
        self.created_by = None
        self.column_orders = None
        self.dropped = ()
        self.has_encryption = False
        self.int96_unit = "ns"
        self._key_value_span: int | None = None
        self._key_values: dict[str, str | None] | None = None
        self._parsed_chunks = [0]
        self._unparsed_weight = 0
        self._writer_faults: WriterFaults | None = None

    def __repr__(self) -> str:
        return f"FileMetadata({self.num_rows} rows, {len(self.row_groups)} row groups, {self.schema!r})"

    @property
    def weight(self) -> int:
        """Approximate bytes held in memory; grows as chunks are parsed."""
        if not self._unparsed_weight:  # asked for at every read: only the first looks at all row groups
            schema = _ELEMENT_WEIGHT * len(self.schema.elements) + _LEAF_WEIGHT * len(self.schema.leaves)
            self._unparsed_weight = len(self.data) + schema + sum(group.weight for group in self.row_groups)
        return self._unparsed_weight + CHUNK_WEIGHT * self._parsed_chunks[0]

    @property
    def writer_faults(self) -> WriterFaults:
        """What of the file is not believed, as its writer is known to get it wrong."""
        if self._writer_faults is None:
            self._writer_faults = WriterFaults(self.created_by, lambda: self.key_value_metadata.get(ARROW_SCHEMA))
        return self._writer_faults

    @property
    def key_value_metadata(self) -> Mapping[str, str | None]:
        """The file's key-value metadata; of a key that occurs twice the first value, as in Arrow.

        Bytes that are not UTF-8 are shown escaped.
        """
        if self._key_values is None:
            pairs: dict[str, str | None] = {}
            if self._key_value_span is not None:
                reader = CompactReader(self.data, self._key_value_span)
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
    """Read a footer's metadata bytes (without length and magic).

    Args:
        data: the Thrift bytes of FileMetaData; bytes after it are ignored (a footer's signature).
        max_elements: schema elements, column chunks and other list elements that a file may have.
        max_schema_elements: schema elements that it may have; these are parsed at once.

    Raises:
        CorruptFileError: not FileMetaData, or parts that contradict each other.
        ResourceLimitError: deeper than 64 levels, or more elements than allowed.
        UnsupportedFeatureError: a schema with fixed-size vectors.
    """
    reader = CompactReader(data, max_elements=max_elements)
    metadata = FileMetadata(data)
    schema: ParquetSchema | None = None
    num_rows = groups_at = None
    last_id = 0
    while True:
        kind, last_id = reader.field(last_id)
        if kind == STOP:
            break
        if last_id == 1 and I16 <= kind <= I64:
            metadata.version = reader.integer()
        elif last_id == 2 and kind == LIST:
            schema = decode_schema(reader, max_elements=max_schema_elements)
        elif last_id == 3:
            num_rows = _count(reader, kind, "row count")
        elif last_id == 4 and kind == LIST:
            if schema is None:
                raise CorruptFileError("the footer's row groups come before its schema")
            groups_at = reader.pos
            metadata.schema = schema
            metadata.row_groups = _row_groups(reader, metadata)
        elif last_id == 5 and kind == LIST:
            metadata._key_value_span = reader.pos
            reader.skip(kind)
        elif last_id == 6 and kind == BINARY:
            metadata.created_by = reader.binary().decode("utf-8", "backslashreplace")
        elif last_id == 7 and kind == LIST:
            metadata.column_orders = tuple([_order(union) for union in _structs(reader.value(kind))])
        elif kind > FALSE:
            metadata.has_encryption = metadata.has_encryption or last_id == 8
            reader.skip(kind)
    if schema is None or num_rows is None or groups_at is None:
        raise CorruptFileError("the footer lacks a schema, a row count or row groups")
    _match_orders(metadata)
    _count_rows(metadata, num_rows)
    return metadata


def _count_rows(metadata: FileMetadata, claimed: int) -> None:
    """Take the row groups' rows, where the footer's own count is those or less.

    Writers that add row groups to a file may leave the footer's count as it was (fastparquet before 2022.11), or 0
    (old parquet-protobuf). A count that is too high tells of row groups that are lost.
    """
    metadata.num_rows = sum([group.num_rows for group in metadata.row_groups])
    if claimed == metadata.num_rows:
        return
    what = f"the footer says {claimed} rows, its row groups have {metadata.num_rows}"
    if not claimed < metadata.num_rows <= _MAX_ROWS or not all(g.confirms_num_rows() for g in metadata.row_groups):
        raise CorruptFileError(what)
    metadata.dropped += (what,)


def _match_orders(metadata: FileMetadata) -> None:
    """Have one column order for each leaf."""
    orders, num_leaves = metadata.column_orders, len(metadata.schema.leaves)
    if orders is None or len(orders) == num_leaves:
        return
    alike = len(set(orders)) == 1  # then it does not matter which leaf each is for
    metadata.column_orders = (orders[0] if alike else ColumnOrder.UNKNOWN,) * num_leaves
    metadata.dropped += (f"the footer has {len(orders)} column orders for {num_leaves} columns",)


def _row_groups(reader: CompactReader, metadata: FileMetadata) -> tuple[RowGroup, ...]:
    element_type, length = reader.list_header()
    if length and element_type != STRUCT:
        raise CorruptFileError("the footer's row groups are not structs")
    groups: list[RowGroup] = []
    first_row = 0
    for ordinal in range(length):
        group = _row_group(reader, metadata, ordinal, first_row)
        groups.append(group)
        first_row += group.num_rows
    return tuple(groups)


def _row_group(reader: CompactReader, metadata: FileMetadata, ordinal: int, first_row: int) -> RowGroup:
    starts: array[int] | None = None
    num_rows = None
    total_byte_size = 0
    sorting: tuple[SortingColumn, ...] = ()
    last_id = 0
    while True:
        kind, last_id = reader.field(last_id)
        if kind == STOP:
            break
        if last_id == 1 and kind == LIST:
            starts = locate_structs(reader, len(metadata.schema.leaves))
        elif last_id == 2 and I16 <= kind <= I64:
            total_byte_size = max(0, reader.integer())
        elif last_id == 3:
            num_rows = _count(reader, kind, "row count")
        elif last_id == 4 and kind == LIST:
            sorting = _sorting_columns(_structs(reader.value(kind)))
        elif kind > FALSE:
            reader.skip(kind)
    if starts is None or num_rows is None:
        raise CorruptFileError(f"row group {ordinal} lacks its columns or its row count")
    return RowGroup(
        metadata.data,
        metadata.schema,
        starts,
        ordinal=ordinal,
        num_rows=num_rows,
        first_row=first_row,
        total_byte_size=total_byte_size,
        sorting_columns=sorting,
        parsed_chunks=metadata._parsed_chunks,
    )


def _count(reader: CompactReader, kind: int, name: str) -> int:
    value = reader.integer() if I16 <= kind <= I64 else -1
    if value < 0:
        raise CorruptFileError(f"the {name} at byte {reader.pos} of the metadata is negative or not a number")
    return value


def _structs(values: Value) -> list[Fields]:
    if not isinstance(values, list):
        return []
    return [value for value in values if isinstance(value, dict)]


def _sorting_columns(structs: list[Fields]) -> tuple[SortingColumn, ...]:
    """The columns that a row group is sorted by; those before the first that names no column."""
    found: list[SortingColumn] = []
    for fields in structs:
        index = fields.get(1)
        if type(index) is not int or index < 0:
            break
        found.append(SortingColumn(index, fields.get(2) is True, fields.get(3) is True))
    return tuple(found)


def _order(union: Fields) -> ColumnOrder:
    members = tuple(union)
    if len(members) == 1 and members[0] in (1, 2, 3):
        return ColumnOrder(members[0])
    return ColumnOrder.UNKNOWN
