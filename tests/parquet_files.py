"""Parquet files: edited field by field, with bloom filters, with many pages.

The Thrift here is a small tree of its own that keeps every field and its type; it is not the package's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from asyncpq.expressions import Expression
from asyncpq.parquet.bloom_filter import BLOCK_BYTES, block_of, decode_bloom_filter_header, may_contain
from asyncpq.parquet.metadata import FileMetadata, decode_file_metadata
from asyncpq.parquet.page_index import decode_column_index, decode_offset_index, validate_offset_index
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.statistics import page_bounds
from asyncpq.pruning.bloom_hashes import compile_probes, may_match
from asyncpq.pruning.zone_maps import PageZones, RowGroupZones
from tests.parquet_bytes import parquet_bytes

TRUE, FALSE, BYTE, I16, I32, I64, DOUBLE, BINARY, LIST, _, _, STRUCT = range(1, 13)


class Items(list[Any]):
    """A Thrift list and the type of its elements."""

    def __init__(self, kind: int, values: Iterable[Any] = ()) -> None:
        super().__init__(values)
        self.kind = kind


class Struct(dict[int, tuple[int, Any]]):
    """A Thrift struct: type and value by field id."""

    def value(self, field_id: int, default: Any = None) -> Any:
        return self[field_id][1] if field_id in self else default

    def put(self, field_id: int, value: Any, kind: int = I64) -> None:
        """Set a field, or take it out (None). A field that is there keeps its type, but for bool."""
        if value is None:
            self.pop(field_id, None)
        elif isinstance(value, bool):
            self[field_id] = (TRUE if value else FALSE, value)
        elif isinstance(value, (bytes, Struct, Items)):
            self[field_id] = (
                BINARY if isinstance(value, bytes) else STRUCT if isinstance(value, Struct) else LIST,
                value,
            )
        else:
            self[field_id] = (self[field_id][0] if field_id in self else kind, value)


def decode(data: bytes, at: int = 0) -> tuple[Struct, int]:
    """The struct at ``data[at:]``, and where it ends."""
    reader = _Reader(data, at)
    return reader.struct(), reader.at


class _Reader:
    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def varint(self) -> int:
        result = shift = 0
        while (byte := self.byte()) > 0x7F:
            result |= (byte & 0x7F) << shift
            shift += 7
        return result | byte << shift

    def integer(self) -> int:
        n = self.varint()
        return (n >> 1) ^ -(n & 1)

    def take(self, size: int) -> bytes:
        self.at += size
        return self.data[self.at - size : self.at]

    def struct(self) -> Struct:
        found = Struct()
        last = 0
        while header := self.byte():
            last = last + (header >> 4) if header >> 4 else self.integer()
            kind = header & 0x0F
            found[last] = (kind, kind == TRUE if kind in (TRUE, FALSE) else self.any(kind))
        return found

    def any(self, kind: int) -> Any:
        if kind in (I16, I32, I64):
            return self.integer()
        if kind == BINARY:
            return self.take(self.varint())
        if kind == STRUCT:
            return self.struct()
        if kind == LIST:
            header = self.byte()
            length = header >> 4 if header >> 4 < 15 else self.varint()
            return Items(header & 0x0F, [self.any(header & 0x0F) for _ in range(length)])
        if kind in (TRUE, FALSE):
            return self.byte() == TRUE
        if kind in (BYTE, DOUBLE):
            return self.take(1 if kind == BYTE else 8)
        raise AssertionError(f"Thrift type {kind}")


def encode(struct: Struct) -> bytes:
    """The struct in the compact protocol."""
    out = bytearray()
    last = 0
    for field_id, (kind, value) in sorted(struct.items()):
        delta = field_id - last
        out += bytes([delta << 4 | kind]) if 0 < delta <= 15 else bytes([kind]) + _zigzag(field_id)
        last = field_id
        if kind not in (TRUE, FALSE):
            out += _any(kind, value)
    return bytes(out) + b"\0"


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    return bytes([*out, n])


def _zigzag(n: int) -> bytes:
    return _varint((n << 1) ^ (n >> 63))


def _any(kind: int, value: Any) -> bytes:
    if kind in (I16, I32, I64):
        return _zigzag(value)
    if kind == BINARY:
        return _varint(len(value)) + bytes(value)
    if kind == STRUCT:
        return encode(value)
    if kind == LIST:
        length = len(value)
        head = bytes([length << 4 | value.kind]) if length < 15 else bytes([0xF0 | value.kind]) + _varint(length)
        return head + b"".join([_any(value.kind, item) for item in value])
    if kind in (TRUE, FALSE):
        return bytes([TRUE if value else FALSE])
    return bytes(value)


class RawPage(NamedTuple):
    """A page taken apart: parquet.thrift's PageHeader and the payload behind it."""

    header: Struct
    payload: bytes

    @property
    def kind(self) -> int:
        """A code of PageType."""
        return int(self.header.value(1))

    @property
    def num_values(self) -> int:
        return int(self.header.value({0: 5, 2: 7, 3: 8}[self.kind]).value(1))

    def encoded(self) -> bytes:
        return encode(self.header) + self.payload


class EditedFile:
    """A file's bytes, its footer as a tree, and what is added behind its pages.

    Attributes:
        body: all that stands before the footer.
        footer: parquet.thrift's FileMetaData.
    """

    def __init__(self, data: bytes) -> None:
        length = int.from_bytes(data[-8:-4], "little")
        self.body = bytearray(data[: -8 - length])
        self.footer, _ = decode(data, len(data) - 8 - length)

    @classmethod
    def of(cls, table: pa.Table, **options: Any) -> EditedFile:
        """A table written by pyarrow, by default with small pages and page indexes."""
        options.setdefault("write_page_index", True)
        options.setdefault("data_page_size", 1)
        rows = options.pop("rows_per_page", 10)
        options = {"write_batch_size": rows, "max_rows_per_page": rows, **options}
        return cls(parquet_bytes(table, **options))

    def data(self) -> bytes:
        footer = encode(self.footer)
        return bytes(self.body) + footer + len(footer).to_bytes(4, "little") + b"PAR1"

    def append(self, data: bytes) -> int:
        """Put bytes behind the pages; returns their offset."""
        self.body += data
        return len(self.body) - len(data)

    # -- the footer -------------------------------------------------------------------------------

    def row_group(self, group: int = 0) -> Struct:
        found: Struct = self.footer.value(4)[group]
        return found

    def chunk(self, column: int = 0, group: int = 0) -> Struct:
        """parquet.thrift's ColumnChunk."""
        found: Struct = self.row_group(group).value(1)[column]
        return found

    def meta(self, column: int = 0, group: int = 0) -> Struct:
        """parquet.thrift's ColumnMetaData."""
        found: Struct = self.chunk(column, group).value(3)
        return found

    def statistics(self, column: int = 0, group: int = 0) -> Struct:
        """parquet.thrift's Statistics; made where the chunk has none."""
        meta = self.meta(column, group)
        if meta.value(12) is None:
            meta.put(12, Struct())
        found: Struct = meta.value(12)
        return found

    def element(self, leaf: int = 0) -> Struct:
        """parquet.thrift's SchemaElement of a leaf of a flat schema."""
        found: Struct = self.footer.value(2)[leaf + 1]
        return found

    # -- page indexes -----------------------------------------------------------------------------

    def offset_index(self, column: int = 0, group: int = 0) -> Struct:
        found, _ = decode(bytes(self.body), self.chunk(column, group).value(4))
        return found

    def column_index(self, column: int = 0, group: int = 0) -> Struct:
        found, _ = decode(bytes(self.body), self.chunk(column, group).value(6))
        return found

    def set_offset_index(self, index: Struct | None, column: int = 0, group: int = 0) -> None:
        self._set_index(4, index, column, group)

    def set_column_index(self, index: Struct | None, column: int = 0, group: int = 0) -> None:
        self._set_index(6, index, column, group)

    def _set_index(self, field_id: int, index: Struct | None, column: int, group: int) -> None:
        chunk = self.chunk(column, group)
        encoded = b"" if index is None else encode(index)
        chunk.put(field_id, None if index is None else self.append(encoded), I64)
        chunk.put(field_id + 1, None if index is None else len(encoded), I32)

    # -- pages ------------------------------------------------------------------------------------

    def pages(self, column: int = 0, group: int = 0) -> list[RawPage]:
        """The pages of a chunk, the dictionary page among them."""
        meta = self.meta(column, group)
        at = min(meta.value(9), meta.value(11) or meta.value(9))
        stop = at + meta.value(7)
        pages = []
        while at < stop:
            header, at = decode(bytes(self.body), at)
            pages.append(RawPage(header, bytes(self.body[at : at + header.value(3)])))
            at += header.value(3)
        return pages

    def set_pages(self, pages: Sequence[RawPage], column: int = 0, group: int = 0, *, index: bool = True) -> None:
        """Write a flat chunk's pages anew, behind all others, with an OffsetIndex for them if asked."""
        meta = self.meta(column, group)
        places: list[tuple[RawPage, int, int]] = []
        for page in pages:
            encoded = page.encoded()
            places.append((page, self.append(encoded), len(encoded)))
        first_data = next(at for page, at, _ in places if page.kind != 2)
        meta.put(9, first_data)
        meta.put(11, places[0][1] if places[0][1] < first_data else None)
        meta.put(7, sum(size for _, _, size in places))
        meta.put(6, sum(size - page.header.value(3) + page.header.value(2) for page, _, size in places))
        locations = Items(STRUCT)
        row = 0
        for page, at, size in places:
            if page.kind != 2:
                if page.num_values:
                    locations.append(Struct({1: (I64, at), 2: (I32, size), 3: (I64, row)}))
                row += page.num_values
        self.set_offset_index(Struct({1: (LIST, locations)}) if index else None, column, group)


def write(
    table: pa.Table, columns: Iterable[str], *, rows_per_group: int, ndv: int = 100, fpp: float = 0.01, **options: Any
) -> bytes:
    """A file with filters of ``columns``; without statistics, so that nothing else prunes, unless asked for."""
    options.setdefault("write_statistics", False)
    filters = {name: {"ndv": ndv, "fpp": fpp} for name in columns}
    return parquet_bytes(table, row_group_size=rows_per_group, bloom_filter_options=filters, **options)


def metadata_of(data: bytes) -> FileMetadata:
    length = int.from_bytes(data[-8:-4], "little")
    return decode_file_metadata(data[-8 - length : -8])


def row_groups_left(data: bytes, where: Expression) -> list[int]:
    """Ordinals of the row groups that the filters do not rule out."""
    metadata = metadata_of(data)
    leaves = {leaf.dotted: leaf for leaf in metadata.schema.leaves}
    probes = compile_probes(where, leaves)
    if probes is None:
        return list(range(len(metadata.row_groups)))

    def contains(group: int, column: str, hash_: int) -> bool:
        start = metadata.row_groups[group].chunk(leaves[column].index).bloom_filter_offset
        if start is None:
            return True
        header = decode_bloom_filter_header(data[start : start + 64])
        block = start + header.header_size + block_of(hash_, header.num_blocks) * BLOCK_BYTES
        return may_contain(data[block : block + BLOCK_BYTES], hash_)

    return [
        group
        for group in range(len(metadata.row_groups))
        if may_match(probes, lambda column, hash_, group=group: contains(group, column, hash_))  # type: ignore[misc]
    ]


class PrunedFile:
    """A table written by pyarrow with page indexes, read back as far as pruning needs."""

    def __init__(self, table: pa.Table, *, rows_per_page: int, rows_per_group: int | None = None, **options: Any):
        self._load(
            parquet_bytes(
                table,
                write_page_index=True,
                data_page_size=1,
                write_batch_size=rows_per_page,
                row_group_size=rows_per_group or max(len(table), 1),
                **options,
            )
        )

    @classmethod
    def of_bytes(cls, data: bytes) -> PrunedFile:
        file = cls.__new__(cls)
        file._load(data)
        return file

    def _load(self, data: bytes) -> None:
        self.data = data
        footer = int.from_bytes(data[-8:-4], "little")
        self.metadata: FileMetadata = decode_file_metadata(data[-8 - footer : -8])
        self.num_row_groups = len(self.metadata.row_groups)

    def leaf(self, name: str) -> Leaf:
        schema = self.metadata.schema
        return schema.leaves[schema.projection(name).leaves[0]]

    def row_group_zones(self, *names: str) -> dict[str, RowGroupZones]:
        return {name: RowGroupZones(self.metadata, self.leaf(name)) for name in names}

    def page_zones(self, row_group: int, *names: str) -> dict[str, PageZones]:
        """Of those columns that have indexes: a chunk of NaN and nulls alone has none."""
        found = {name: self._pages(row_group, self.leaf(name)) for name in names}
        return {name: zones for name, zones in found.items() if zones is not None}

    def _pages(self, row_group: int, leaf: Leaf) -> PageZones | None:
        group = self.metadata.row_groups[row_group]
        chunk = group.chunk(leaf.index)
        if chunk.offset_index_range is None or chunk.column_index_range is None:
            return None
        start, stop = chunk.offset_index_range
        offsets = decode_offset_index(self.data[start:stop])
        validate_offset_index(offsets, chunk_start=chunk.start, chunk_stop=chunk.stop, num_rows=group.num_rows)
        start, stop = chunk.column_index_range
        order = self.metadata.order_of(leaf)
        index = decode_column_index(self.data[start:stop])
        bounds = page_bounds(index, leaf, order, offsets.row_counts(group.num_rows))
        return PageZones(leaf, order, bounds, offsets, group.num_rows)
