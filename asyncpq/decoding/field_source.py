"""A top-level field, nested or not, read as whole column chunks."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from asyncpq.decoding.arrow import read_table, typed_error
from asyncpq.decoding.decoded_size import check_nested, leaf_bounds, leaf_types, refuse
from asyncpq.decoding.leaf import DecodeLimits
from asyncpq.decoding.selection import join, take_rows
from asyncpq.decoding.splice import splice_field
from asyncpq.errors import AsyncpqError, CorruptFileError, UnsupportedFeatureError
from asyncpq.format.metadata import ColumnChunk, FileMetadata
from asyncpq.format.page_header import PageType, PageWalker
from asyncpq.format.schema import Field, PhysicalType
from asyncpq.pruning.row_ranges import RowRanges


class FieldSource:
    """A top-level field read as whole column chunks of all its leaves, nested or not.

    Args:
        metadata: the footer.
        field: a top-level field.
        chunks: its leaves' chunks in schema order.
        num_rows: rows of the row group.
        arrow_type: what pyarrow gives the field in this file.
        arrow_schema: value of ``ARROW:schema`` for a file of this field alone, or None.
    """

    def __init__(
        self,
        metadata: FileMetadata,
        field: Field,
        chunks: Sequence[ColumnChunk],
        num_rows: int,
        arrow_type: pa.DataType,
        arrow_schema: bytes | None,
        *,
        padded: bool = False,
    ) -> None:
        self._padded = padded
        self._metadata = metadata
        self._field = field
        self._chunks = tuple(chunks)
        self._num_rows = num_rows
        self._arrow_type = arrow_type
        self._arrow_schema = arrow_schema
        self._data: list[list[bytes]] = [[] for _ in chunks]
        self._missing = sum(chunk.stop - chunk.start for chunk in chunks)
        self._decoded: pa.Array | None = None
        self.pages_decoded = 0

    @property
    def rows_available(self) -> int:
        return self._num_rows if self._missing == 0 else 0

    def feed(self, leaf_position: int, data: bytes) -> None:
        """The next bytes of the chunk of the ``leaf_position``-th leaf of the field."""
        self._data[leaf_position].append(data)
        self._missing -= len(data)

    def select(self, rows: RowRanges, limits: DecodeLimits) -> pa.Array:
        if self._decoded is None:
            try:
                self._decoded = self._decode(limits)
            except (pa.ArrowException, OverflowError) as error:
                raise typed_error(error, "pages cannot be put together").locate(column=self._field.name) from error
            self._data = [[] for _ in self._chunks]
        return take_rows(self._decoded, rows, 0)

    def _decode(self, limits: DecodeLimits) -> pa.Array:
        claimed = sum(chunk.total_uncompressed_size for chunk in self._chunks)
        if claimed > limits.max_decoded_bytes:
            raise refuse("a nested column", claimed, limits.max_decoded_bytes, self._field.name)
        data = self._checked_data(limits)
        file = splice_field(
            self._metadata,
            self._field,
            list(zip(self._chunks, data, strict=True)),
            num_rows=self._num_rows + 1,
            arrow_schema=self._arrow_schema,
        )
        try:
            column = read_table(file, verify_crc=limits.verify_crc).column(0)
        except AsyncpqError as error:
            raise error.locate(column=self._field.name) from error.__cause__
        if len(column) != self._num_rows:
            raise CorruptFileError(
                f"a row group of {self._num_rows} rows whose pages hold {len(column)}", column=self._field.name
            )
        return join(column.chunks, self._arrow_type)

    def _checked_data(self, limits: DecodeLimits) -> list[bytes]:
        """The chunks' bytes, known to be whole pages that do not decode to more than allowed."""
        limit = limits.max_decoded_bytes
        kinds = leaf_types(self._arrow_type)
        if len(kinds) != len(self._chunks):
            raise UnsupportedFeatureError(
                f"pyarrow gives {len(kinds)} leaves to a field that has {len(self._chunks)}", column=self._field.name
            )
        data: list[bytes] = []
        proven = possible = 0
        for at, (chunk, parts) in enumerate(zip(self._chunks, self._data, strict=True)):
            chunk_data = b"".join(parts)
            leaf = self._metadata.schema.leaves[self._field.first_leaf + at]
            if chunk.num_values < self._num_rows:
                raise CorruptFileError(
                    f"a column chunk of {chunk.num_values} values in {self._num_rows} rows", column=leaf.dotted
                )
            walker = PageWalker(chunk, max_page_bytes=limits.max_page_bytes, padded=self._padded)
            try:
                pages = walker.feed(chunk_data)
                walker.finish()
                bounds = leaf_bounds(leaf, chunk, pages, *kinds[at], limit)
            except AsyncpqError as error:
                raise error.locate(column=leaf.dotted) from error.__cause__
            self.pages_decoded += sum(page.header.type != PageType.DICTIONARY_PAGE for page in pages)
            data.append(chunk_data[: walker.stop - chunk.start])
            proven += bounds[0]
            possible += bounds[1]
            if proven > limit:
                raise refuse("the pages of a nested column in one row group", proven, limit, leaf.dotted)
        if proven + possible > limit:
            self._check_exactly(data, limits)
        return data

    def _check_exactly(self, data: Sequence[bytes], limits: DecodeLimits) -> None:
        """Decode with dictionaries left as they are and lists as plain lists, to see what all would take."""
        file = splice_field(
            self._metadata,
            self._field,
            list(zip(self._chunks, data, strict=True)),
            num_rows=self._num_rows + 1,
            arrow_schema=None,
            bare=True,
        )
        paths = [".".join(chunk.path) for chunk in self._chunks if chunk.physical_type == PhysicalType.BYTE_ARRAY]
        if len(set(paths)) != len(paths):
            raise UnsupportedFeatureError("a large nested column with two leaves of one name", column=self._field.name)
        try:
            column = read_table(file, verify_crc=limits.verify_crc, as_dictionary=paths).column(0)
        except AsyncpqError as error:
            raise error.locate(column=self._field.name) from error.__cause__
        check_nested(column.chunks, self._arrow_type, limits.max_decoded_bytes, self._field.name)

    def discard_before(self, row: int) -> None:
        if row >= self._num_rows:
            self._decoded = None
