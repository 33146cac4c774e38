"""The end of a Parquet file and its metadata (parquet-format README, File format; parquet.thrift, FileMetaData).

``FooterDecoder`` finds the metadata in the last bytes of an object, or names the bytes that it needs.
``decode_file_metadata`` decodes the schema and the row groups at once. Of the column chunks, which are most of a
footer, only the positions are found; a chunk is decoded at its first use and kept. So a warm read does nothing
proportional to the number of columns, and a footer in memory is mostly its bytes and these positions.

``shared_pieces``, ``leaf_pieces`` and ``join_pieces`` split the bytes of the metadata by leaf column and join them
again, so that a reader can fetch only the column chunks' metadata that it needs. An empty struct replaces a missing
column chunk. ``set_key_values`` changes the footer's key-value metadata.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field
from functools import lru_cache
from typing import TYPE_CHECKING, Final, Literal

from asyncpq.errors import (
    CorruptFileError,
    FormatError,
    NotParquetError,
    ResourceLimitError,
    UnsupportedFeatureError,
    limit_hint,
)
from asyncpq.parquet.column_chunk import KEYS_NEEDED, ColumnChunk
from asyncpq.parquet.row_group import CHUNK_WEIGHT, RowGroup, SortingColumn, alike_chunks, locate_structs
from asyncpq.parquet.schema import Leaf, ParquetSchema, decode_schema
from asyncpq.parquet.statistics import ChunkBounds, ColumnOrder, SortOrder, chunk_bounds, order_of
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
    CompactWriter,
    Fields,
    Value,
)
from asyncpq.parquet.writer_faults import ARROW_SCHEMA, ORIGINAL_WRITERS, WriterFaults, faults_of
from asyncpq.records import dataclass

if TYPE_CHECKING:
    from asyncpq.parquet.alike_chunks import AlikeChunks
    from asyncpq.parquet.calendars import CalendarMode, LegacyCalendar

#: Keys; footers without them say nothing about calendars.
_CALENDAR_MARKS: Final = ("org.apache.spark.version", "writer.date.proleptic")
_MOST_WRITERS: Final = 10_000  # characters
# Approximate bytes of the parsed objects.
_ELEMENT_WEIGHT: Final = 400
_LEAF_WEIGHT: Final = 350
_MAX_ROWS: Final = 2**63 - 1  # Arrow's lengths
#: The orders by the bytes of their union: the header of a field that is a struct, which is empty, and the end.
_ORDERS: Final = {bytes([order.value << 4 | STRUCT, 0, 0]): order for order in ColumnOrder if order.value}


@dataclass(slots=True, eq=False, kw_only=True, repr=False)
class FileMetadata:
    """A file's decoded footer, as :func:`decode_file_metadata` returns it.

    Attributes:
        data: the Thrift bytes.
        version: of the format, 1 or 2, as written; not reliable.
        created_by: the writer, e.g. "parquet-mr version 1.8.0 (build abc)".
        column_orders: one for each leaf; all UNKNOWN if their number is not the leaves'.
        dropped: statements of the footer that contradict the rest of it and are ignored.
        has_encryption: some columns are, or may be, encrypted.
        key_value_start, key_value_stop: span of the key-value metadata in the bytes; empty without them.
        parsed_chunks: the decoded column chunks of all row groups, as in :class:`RowGroup`.
        int96_unit: in which timestamps stored as INT96 are decoded.
        calendar_mode: how values in the calendar of old Spark versions are read.
    """

    data: bytes
    version: int
    schema: ParquetSchema
    num_rows: int
    row_groups: tuple[RowGroup, ...]
    created_by: str | None
    column_orders: tuple[ColumnOrder, ...] | None
    dropped: tuple[str, ...]
    has_encryption: bool
    key_value_start: int
    key_value_stop: int
    parsed_chunks: dict[int, ColumnChunk]
    int96_unit: Literal["ns", "us"] = "ns"
    calendar_mode: CalendarMode = "rebase"
    writer_faults: WriterFaults = field(init=False)
    _key_values: Mapping[str, str | None] | None = field(default=None, init=False)
    known_calendars: dict[int, LegacyCalendar] | None = field(default=None, init=False)
    _unparsed_weight: int = field(default=0, init=False)

    def __post_init__(self) -> None:
        writers = self.created_by
        if self._mentions(ORIGINAL_WRITERS):
            writers = f"{writers or ''}\n{self.key_value_metadata.get(ORIGINAL_WRITERS) or ''}"[:_MOST_WRITERS]
        self.writer_faults = faults_of(writers, lambda: self.key_value_metadata.get(ARROW_SCHEMA))

    def __repr__(self) -> str:
        return f"FileMetadata({self.num_rows} rows, {len(self.row_groups)} row groups, {self.schema!r})"

    def _mentions(self, key: str) -> bool:
        """Return whether the key-value metadata may have ``key``; they are parsed only for a key that matters."""
        return self.data.find(key.encode(), self.key_value_start, self.key_value_stop) >= 0

    @property
    def weight(self) -> int:
        """Approximate bytes held in memory; grows as chunks are decoded."""
        if not self._unparsed_weight:
            schema = _ELEMENT_WEIGHT * len(self.schema.elements) + _LEAF_WEIGHT * len(self.schema.leaves)
            self._unparsed_weight = len(self.data) + schema + sum(group.weight for group in self.row_groups)
        return self._unparsed_weight + CHUNK_WEIGHT * len(self.parsed_chunks)

    @property
    def calendars(self) -> Mapping[int, LegacyCalendar]:
        """The columns whose values are rebased or refused, by the leaf's ordinal; none if ``calendar_mode`` is
        "ignore"."""
        if self.known_calendars is None:
            self.known_calendars = {} if self.calendar_mode == "ignore" else self.legacy_calendars()
        return self.known_calendars

    def legacy_calendars(self) -> dict[int, LegacyCalendar]:
        """Return the columns in the calendar of old Spark versions, by the leaf's ordinal, whatever ``calendar_mode``
        is."""
        if not any(map(self._mentions, _CALENDAR_MARKS)):
            return {}

        from asyncpq.parquet.calendars import legacy_calendar, written_calendars  # few files need them

        written, refused = written_calendars(self.key_value_metadata), self.calendar_mode == "refuse"
        leaves = self.schema.leaves if any(written) else ()
        found = [(leaf.index, legacy_calendar(leaf, written, refused=refused)) for leaf in leaves]
        return {leaf: calendar for leaf, calendar in found if calendar is not None}

    def order_of(self, leaf: Leaf) -> SortOrder:
        """Return the order of a leaf column's bounds; see :func:`asyncpq.parquet.statistics.order_of`."""
        orders = self.column_orders
        return order_of(leaf, None if orders is None else orders[leaf.index])

    def bounds_of(
        self, leaf: Leaf, faults: WriterFaults | None = None
    ) -> Callable[[ColumnChunk, int], tuple[ChunkBounds, str | None]]:
        """Return :func:`asyncpq.parquet.statistics.chunk_bounds` of a leaf column, as a function of the chunk and the
        row group's number of rows. ``faults``: those of another writer than the file's."""
        order, has_orders, calendar = (
            self.order_of(leaf),
            self.column_orders is not None,
            self.calendars.get(leaf.index),
        )
        known = self.writer_faults if faults is None else faults
        return lambda chunk, num_rows: chunk_bounds(chunk, leaf, order, known, has_orders, num_rows, calendar)

    @property
    def key_value_metadata(self) -> Mapping[str, str | None]:
        """The file's key-value metadata, with a repeated key's first value. Bytes that are not UTF-8 are escaped."""
        if self._key_values is None:
            raw = self.data[self.key_value_start : self.key_value_stop]
            self._key_values = _shared_key_values(raw) if len(raw) <= _SHARED_BYTES else _decode_key_values(raw)
        return self._key_values


_SHARED_BYTES: Final = 64 * 1024


@lru_cache(maxsize=16)
def _shared_key_values(raw: bytes) -> Mapping[str, str | None]:
    """Decode key-value metadata. Equal bytes give the same object: most files of a dataset have equal ones."""
    return _decode_key_values(raw)


def _decode_key_values(raw: bytes) -> Mapping[str, str | None]:
    pairs: dict[str, str | None] = {}
    for pair in _structs(CompactReader(raw).value(LIST)) if raw else ():
        key, value = pair.get(1), pair.get(2)
        if isinstance(key, bytes):
            text = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else None
            pairs.setdefault(key.decode("utf-8", "backslashreplace"), text)
    return pairs


def decode_file_metadata(
    data: bytes, *, max_elements: int = DEFAULT_MAX_ELEMENTS, max_schema_elements: int = DEFAULT_MAX_ELEMENTS
) -> FileMetadata:
    """Decode the Thrift struct FileMetaData; bytes after the struct (a footer's signature) are ignored.

    Args:
        data: the struct's bytes.
        max_elements: the most schema elements, column chunks and other list elements to accept, in all.
        max_schema_elements: the most schema elements to accept.

    Raises:
        CorruptFileError: the bytes are not FileMetaData, or parts of the metadata contradict each other.
        ResourceLimitError: the metadata are nested deeper than 64 levels, or have too many elements.
        UnsupportedFeatureError: the schema has fixed-size vectors.
    """
    reader = CompactReader(data, max_elements=max_elements)
    footer = _Footer(reader, max_schema_elements)
    field_type, field_id = reader.field(0)
    while field_type != STOP:
        footer.read_field(field_id, field_type)
        field_type, field_id = reader.field(field_id)
    return footer.metadata()


def check_last_chunk(metadata: FileMetadata, footer_start: int) -> None:
    """Raise CorruptFileError if the last column chunk ends after ``footer_start``, the footer's offset in the file:
    bytes of the data are then missing, and every later chunk is in another place than the footer says.

    Other chunks are checked when they are read.
    """
    if not metadata.row_groups or not metadata.schema.leaves:
        return
    try:
        chunk = metadata.row_groups[-1].parse_chunk(len(metadata.schema.leaves) - 1)
    except FormatError:
        return  # a read of the column raises it
    if chunk.num_values and chunk.file_path is None and chunk.stop > footer_start:
        raise CorruptFileError(
            f"the footer locates the last column chunk at the bytes {chunk.start} to {chunk.stop}, outside the file's "
            f"data (4 to {footer_start})",
            column=metadata.schema.leaves[-1].dotted,
            hint=_AGAIN,
        )


class _Footer:
    """The fields of the Thrift struct FileMetaData, collected while it is decoded."""

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
        self._key_value_start = self._key_value_stop = 0
        self._parsed_chunks: dict[int, ColumnChunk] = {}

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
            self._key_value_stop = reader.pos
        else:
            self._column_orders = _column_orders(reader)

    def metadata(self) -> FileMetadata:
        """Return the metadata; raise CorruptFileError if required fields are missing or row counts disagree."""
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
            key_value_stop=self._key_value_stop,
            parsed_chunks=self._parsed_chunks,
        )


def _checked_rows(claimed: int, groups: tuple[RowGroup, ...], dropped: list[str]) -> int:
    """Return the number of rows in all row groups. Raises CorruptFileError if the footer's own count, ``claimed``, is
    higher, since row groups are then missing.

    A lower count is ignored, and a message about it is appended to ``dropped``: writers that add row groups to a file
    may keep the old count (fastparquet before 2022.11), or write 0 (old parquet-protobuf).
    """
    num_rows = sum([group.num_rows for group in groups])
    if claimed == num_rows:
        return num_rows
    contradiction = f"the footer says {claimed} rows, but its row groups have {num_rows}"
    if not claimed < num_rows <= _MAX_ROWS or not all(group.confirms_num_rows() for group in groups):
        raise CorruptFileError(contradiction)
    dropped.append(contradiction)
    return num_rows


def _row_groups(
    reader: CompactReader, schema: ParquetSchema, parsed_chunks: dict[int, ColumnChunk]
) -> tuple[RowGroup, ...]:
    element_type, length = reader.list_header()
    if length and element_type != STRUCT:
        raise CorruptFileError("the footer's row groups are not structs")
    groups: list[RowGroup] = []
    alike = alike_chunks(len(schema.leaves))
    first_row = 0
    for ordinal in range(length):
        group = _row_group(reader, schema, alike, parsed_chunks, ordinal, first_row)
        groups.append(group)
        first_row += group.num_rows
    return tuple(groups)


def _row_group(
    reader: CompactReader,
    schema: ParquetSchema,
    alike: AlikeChunks | None,
    parsed_chunks: dict[int, ColumnChunk],
    ordinal: int,
    first_row: int,
) -> RowGroup:
    starts: Sequence[int] | None = None
    num_rows = None
    total_byte_size = 0
    sorting: tuple[SortingColumn, ...] = ()
    field_type, field_id = reader.field(0)
    while field_type != STOP:
        if field_id == 1 and field_type == LIST:
            starts = locate_structs(reader, len(schema.leaves), alike)
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
        raise CorruptFileError(f"the {name} before byte {reader.pos} of the metadata is negative or not a number")
    return value


def _structs(values: Value) -> list[Fields]:
    if not isinstance(values, list):
        return []
    return [value for value in values if isinstance(value, dict)]


def _sorting_columns(structs: list[Fields]) -> tuple[SortingColumn, ...]:
    """Return the columns that a row group is sorted by, most significant first, up to the first invalid entry."""
    columns: list[SortingColumn] = []
    for fields in structs:
        index = fields.get(1)
        if type(index) is not int or index < 0:
            break
        columns.append(SortingColumn(index, fields.get(2) is True, fields.get(3) is True))
    return tuple(columns)


def _column_orders(reader: CompactReader) -> tuple[ColumnOrder, ...]:
    """Decode the list of column orders, which usually are all the same; each union holds one empty struct."""
    at = reader.pos
    element_type, length = reader.list_header()
    first = reader.data[reader.pos : reader.pos + 3]
    order = _ORDERS.get(first)
    if order is not None and element_type == STRUCT and reader.data.startswith(first * length, reader.pos):
        reader.pos += len(first) * length
        return _same(order, length)
    reader.pos, reader.elements_left = at, reader.elements_left + length
    return tuple([_order(union) for union in _structs(reader.value(LIST))])


@lru_cache(maxsize=16)
def _same(order: ColumnOrder, length: int) -> tuple[ColumnOrder, ...]:
    return (order,) * length


def _order(union: Fields) -> ColumnOrder:
    members = tuple(union)
    if len(members) == 1 and members[0] in (1, 2, 3):
        return ColumnOrder(members[0])
    return ColumnOrder.UNKNOWN


MAGIC: Final = b"PAR1"
ENCRYPTED_MAGIC: Final = b"PARE"

TRAILER_BYTES: Final = 8  # 4 bytes length, 4 bytes magic
_AGAIN = "Write or copy the file again: it is damaged or cut off."
_WEB_PAGE = "It is a web page: open the url in a browser, look for a login, and copy the link of the file itself."
_MIN_FILE_BYTES: Final = 12  # magic, length, magic
#: Formats whose files have other last bytes. The last byte of an ORC file is a length.
_OTHER_FORMATS: Final = {b"ROW1": "Arrow", b"ORC": "ORC", b"LANC": "Lance", b"VTXF": "Vortex", b"PFA1": "Puffin"}
_UNKNOWN: Final = b"\0"
_KEY_VALUES: Final = 5  # of FileMetaData


@dataclass(frozen=True, slots=True)
class NeedBytes:
    """A request for the object's bytes ``[start, stop)``; ``stop`` is the object's size."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class FooterFound:
    """The bytes of the metadata and their file offset ``start``. The bytes of an encrypted footer are still
    encrypted."""

    start: int
    metadata_bytes: bytes


class FooterDecoder:
    """Finds the metadata at an object's end. ``max_footer_bytes`` limits their size; ``encrypted``: accept encrypted
    metadata."""

    def __init__(self, *, max_footer_bytes: int, encrypted: bool = False) -> None:
        self._max_footer_bytes = max_footer_bytes
        self._magics = (MAGIC, ENCRYPTED_MAGIC) if encrypted else (MAGIC,)

    def next(self, tail: bytes, tail_start: int, size: int) -> NeedBytes | FooterFound:
        """Find the metadata in ``tail``, an object's bytes ``[tail_start, size)``; NeedBytes if the tail is too short.

        Raises:
            NotParquetError: the object does not end in the Parquet magic, or is too short for a Parquet file.
            CorruptFileError: the object ends in the magic, but the length of the metadata is impossible.
            UnsupportedFeatureError: the metadata are encrypted, and ``encrypted`` is False.
            ResourceLimitError: the metadata are longer than ``max_footer_bytes``.
        """
        if tail_start + len(tail) != size:
            raise ValueError(f"{len(tail)} bytes at {tail_start} are not the end of an object of {size} bytes")
        needed = min(size, TRAILER_BYTES)
        if len(tail) < needed:
            return NeedBytes(size - needed, size)
        magic = tail[-4:]
        if magic == ENCRYPTED_MAGIC and magic not in self._magics and size >= _MIN_FILE_BYTES:
            raise UnsupportedFeatureError("the file's footer is encrypted", hint=KEYS_NEEDED)
        if magic not in self._magics:
            other = _OTHER_FORMATS.get(magic) or _OTHER_FORMATS.get(magic[:3])
            like = f"as {other} files do, " if other else ""
            what = f"it ends in {magic!r}, {like}not in {MAGIC!r}" if magic else "it is empty"
            web_page = tail[-1024:].rstrip().lower().endswith(b"</html>")
            raise NotParquetError(f"not a Parquet file: {what}", hint=_WEB_PAGE if web_page else None)
        if size < _MIN_FILE_BYTES:
            raise NotParquetError(f"not a Parquet file: {size} bytes are too few", hint=_AGAIN)
        length = int.from_bytes(tail[-8:-4], "little")
        # Without row groups, some writers leave out the magic at the start.
        if length == 0 or length > size - TRAILER_BYTES:
            raise CorruptFileError(
                f"the footer says that its metadata have {length} bytes, impossible in a file of {size} bytes",
                byte_range=(size - TRAILER_BYTES, size),
                hint=_AGAIN,
            )
        if length > self._max_footer_bytes:
            raise ResourceLimitError(
                f"the footer has {length} bytes of metadata, the limit is {self._max_footer_bytes}",
                byte_range=(size - TRAILER_BYTES, size),
                hint=limit_hint("max_footer_bytes"),
            )
        start = size - TRAILER_BYTES - length
        if start < tail_start:
            return NeedBytes(start, size)
        return FooterFound(start, bytes(tail[start - tail_start : len(tail) - TRAILER_BYTES]))


def shared_pieces(metadata: FileMetadata) -> list[bytes]:
    """Return the parts of the footer's bytes that do not describe column chunks: those before, between and after the
    row groups' lists of chunks. There is one more of them than row groups."""
    pieces: list[bytes] = []
    start = 0
    for group in metadata.row_groups:
        first, stop = group.chunks_span
        pieces.append(metadata.data[start:first])
        start = stop
    return [*pieces, metadata.data[start:]]


def leaf_pieces(metadata: FileMetadata, leaf: int) -> list[bytes]:
    """Return, for each row group, the footer's bytes that describe the leaf column's chunk (its ColumnChunk struct)."""
    return [metadata.data[slice(*group.chunk_span(leaf))] for group in metadata.row_groups]


def join_pieces(shared: Sequence[bytes], leaves: Mapping[int, Sequence[bytes]], num_leaves: int) -> bytes:
    """Return the bytes of a footer that describes the column chunks of ``leaves`` only; all others are empty structs.

    Args:
        shared: the result of :func:`shared_pieces`.
        leaves: the results of :func:`leaf_pieces`, by ordinal of the leaf column.
        num_leaves: the number of leaf columns in the schema.

    Raises:
        CorruptFileError: the pieces do not belong to the same footer.
    """
    known = sorted(leaves)
    groups = len(shared) - 1
    if groups < 0 or any(len(leaves[leaf]) != groups for leaf in known) or (known and known[-1] >= num_leaves):
        raise CorruptFileError(f"the metadata of {len(known)} columns are not from a footer with {groups} row groups")
    out: list[bytes] = [shared[0]]
    for group in range(groups):
        following = 0
        for leaf in known:
            out.append(_UNKNOWN * (leaf - following))
            out.append(leaves[leaf][group])
            following = leaf + 1
        out.append(_UNKNOWN * (num_leaves - following))
        out.append(shared[group + 1])
    return b"".join(out)


def set_key_values(metadata: bytes, values: Mapping[str, str], *, max_elements: int) -> bytes:
    """Return ``metadata``, the bytes of the Thrift struct FileMetaData, with changed key-value metadata.

    Each key of ``values`` replaces all pairs with that key. Unknown fields, and bytes after the struct, stay as they
    are. Raises CorruptFileError if ``metadata`` is malformed, ResourceLimitError if it has more than ``max_elements``
    list elements.
    """
    reader = CompactReader(metadata, max_elements=max_elements)
    pairs, fields = _split_key_values(reader, {key.encode() for key in values})
    for key, value in values.items():
        pair = CompactWriter()
        pair.field_binary(1, key.encode())
        pair.field_binary(2, value.encode())
        pairs.append(pair.getvalue())
    writer = CompactWriter()
    for field_id, kind, value_bytes in fields:
        if field_id < _KEY_VALUES:
            writer.field_raw(field_id, kind, value_bytes)
    if pairs:
        writer.field_list(_KEY_VALUES, STRUCT, len(pairs))
        for pair_bytes in pairs:
            writer.raw(pair_bytes)
    for field_id, kind, value_bytes in fields:
        if field_id > _KEY_VALUES:
            writer.field_raw(field_id, kind, value_bytes)
    return writer.getvalue() + metadata[reader.pos :]


def _split_key_values(
    reader: CompactReader, replaced: Collection[bytes]
) -> tuple[list[bytes], list[tuple[int, int, bytes]]]:
    """Return the encoded key-value pairs whose keys are not ``replaced``, and the other fields as (id, type, value)."""
    pairs: list[bytes] = []
    fields: list[tuple[int, int, bytes]] = []
    field_type, last_id = reader.field(0)
    while field_type != STOP:
        start = reader.pos
        if last_id == _KEY_VALUES:
            if field_type != LIST:
                raise CorruptFileError("the footer's key-value metadata is not a list")
            pairs = [pair for pair in _pairs(reader) if _key(pair) not in replaced]  # the last list counts
        else:
            if field_type > FALSE:
                reader.skip(field_type)
            fields.append((last_id, field_type, reader.data[start : reader.pos]))
        field_type, last_id = reader.field(last_id)
    return pairs, fields


def _pairs(reader: CompactReader) -> list[bytes]:
    """Read the list at the reader's position, and return the encoded bytes of each of its structs."""
    element, length = reader.list_header()
    if length and element != STRUCT:
        raise CorruptFileError("the footer's key-value metadata is not a list of structs")
    structs = []
    for _ in range(length):
        start = reader.pos
        reader.skip_struct(1)
        structs.append(reader.data[start : reader.pos])
    return structs


def _key(pair: bytes) -> bytes | None:
    key = CompactReader(pair).struct().get(1)
    return key if isinstance(key, bytes) else None
