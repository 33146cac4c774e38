"""Pages of one flat leaf -> Arrow arrays."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.arrow import read_table
from asyncpq.decoding.plain import decode_plain, plain_width
from asyncpq.decoding.splice import (
    DICTIONARY_ENCODINGS,
    FooterTemplate,
    dictionary_as_data_page,
    identity_dictionary,
    index_template,
    leaf_template,
)
from asyncpq.errors import AsyncpqError, CorruptFileError, ResourceLimitError
from asyncpq.format.metadata import ColumnChunk, FileMetadata
from asyncpq.format.page_header import NeedMore, PageHeader, PageType, check_page_header, decode_page_header
from asyncpq.format.schema import Leaf


class DecodeLimits(NamedTuple):
    """Bounds and checks of one read (see :class:`asyncpq.options.LimitOptions`)."""

    verify_crc: bool
    max_page_bytes: int
    max_decoded_bytes: int


class Page(NamedTuple):
    """A data page as fetched.

    Attributes:
        data: header and payload.
        first_row: its first row, counted in the row group.
        num_rows: how many rows it must hold: planned from the OffsetIndex, or from its own header.
    """

    data: bytes
    first_row: int
    num_rows: int

    @property
    def stop_row(self) -> int:
        return self.first_row + self.num_rows


class Dictionary(NamedTuple):
    """A column chunk's dictionary, decoded once.

    Attributes:
        values: Arrow array of the dictionary's values, in the leaf's Arrow type.
        page: the dictionary page, header included, for pages that must be decoded the plain way.
    """

    values: pa.Array
    page: bytes

    @property
    def weight(self) -> int:
        return len(self.page) + int(self.values.nbytes)


class LeafDecoder:
    """Decodes pages of one flat leaf of one file.

    Args:
        metadata: the file's footer.
        leaf: a flat leaf.
        arrow_type: the type pyarrow gives the leaf in this file.
        arrow_schema: value of ``ARROW:schema`` for a file of this leaf alone, where ``arrow_type``
            differs without it; else None.
    """

    def __init__(self, metadata: FileMetadata, leaf: Leaf, arrow_type: pa.DataType, arrow_schema: bytes | None) -> None:
        self.leaf = leaf
        self.arrow_type = arrow_type
        self._metadata = metadata
        self._arrow_schema = arrow_schema
        self._templates: dict[tuple[object, ...], FooterTemplate] = {}
        self._plain_width = plain_width(leaf, arrow_type)
        self._gives_dictionary = pa.types.is_dictionary(arrow_type)

    # -- dictionaries -----------------------------------------------------------------------------

    def decode_dictionary(self, chunk: ColumnChunk, page: bytes, limits: DecodeLimits) -> Dictionary:
        """Decode a dictionary page.

        Raises:
            CorruptFileError: it is not one, or its CRC, size or count is wrong.
            ResourceLimitError: it claims to be larger than allowed.
        """
        header = self._header(page, chunk, limits)
        if header.type != PageType.DICTIONARY_PAGE:
            raise CorruptFileError(f"a {header.type.name} where the dictionary page belongs", column=self.leaf.dotted)
        payload = page[header.header_size :]
        if limits.verify_crc and header.crc is not None and zlib.crc32(payload) != header.crc & 0xFFFFFFFF:
            raise CorruptFileError("the dictionary page does not match its CRC", column=self.leaf.dotted)
        data_page = dictionary_as_data_page(
            payload, self.leaf, num_values=header.num_values, uncompressed_size=header.uncompressed_size
        )
        values = self._read(self._plain_template(chunk), b"", [data_page], header.num_values, limits)
        if self._gives_dictionary and pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        return Dictionary(values, page)

    # -- pages ------------------------------------------------------------------------------------

    def decode_pages(
        self, chunk: ColumnChunk, dictionary: Dictionary | None, pages: Sequence[Page], limits: DecodeLimits
    ) -> list[LeafArray]:
        """Decode consecutive pages of one chunk.

        Returns:
            Arrays that follow one another in row order, together holding exactly the pages' rows.

        Raises:
            CorruptFileError: a page is not what header, index or footer say of it.
        """
        headers = [self._header(page.data, chunk, limits) for page in pages]
        for header, page in zip(headers, pages, strict=True):
            if header.type == PageType.DICTIONARY_PAGE or header.type == PageType.INDEX_PAGE:
                raise CorruptFileError(f"a {header.type.name} where a data page belongs", column=self.leaf.dotted)
            rows = header.num_values if header.num_rows is None else header.num_rows
            if rows != page.num_rows or header.num_values != page.num_rows:
                raise CorruptFileError(
                    f"the page of rows {page.first_row}-{page.stop_row - 1} holds {rows} rows", column=self.leaf.dotted
                )
        if len(pages) == 1 and self._plain_width:
            page = pages[0]
            values = decode_plain(
                page.data,
                headers[0],
                self.leaf,
                chunk.codec,
                self.arrow_type,
                self._plain_width,
                verify_crc=limits.verify_crc,
            )
            if values is not None:
                return [LeafArray(page.first_row, values, None)]
        arrays: list[LeafArray] = []
        start = 0
        while start < len(pages):
            encoded = headers[start].encoding in DICTIONARY_ENCODINGS
            stop = start + 1
            while stop < len(pages) and (headers[stop].encoding in DICTIONARY_ENCODINGS) == encoded:
                stop += 1
            run = pages[start:stop]
            arrays.append(self._decode_run(chunk, dictionary if encoded else None, run, encoded, limits))
            start = stop
        return arrays

    def _decode_run(
        self,
        chunk: ColumnChunk,
        dictionary: Dictionary | None,
        run: Sequence[Page],
        encoded: bool,
        limits: DecodeLimits,
    ) -> LeafArray:
        num_rows = run[-1].stop_row - run[0].first_row
        data = [page.data for page in run]
        if not encoded:
            return LeafArray(
                run[0].first_row, self._read(self._plain_template(chunk), b"", data, num_rows, limits), None
            )
        if dictionary is None:
            raise CorruptFileError("dictionary-encoded pages without a dictionary page", column=self.leaf.dotted)
        size = max(8, 1 << max(0, len(dictionary.values) - 1).bit_length())
        indices = self._read(
            self._index_template(chunk), identity_dictionary(chunk.codec, size), data, num_rows, limits
        )
        return LeafArray(run[0].first_row, indices, dictionary.values)

    def dense(self, array: LeafArray, limits: DecodeLimits) -> pa.Array:
        """The values of ``array`` in the column's own type; dictionary indices are expanded.

        Raises:
            CorruptFileError: an index points outside the dictionary.
            ResourceLimitError: the expanded values would be larger than allowed.
        """
        values = array.values
        if array.dictionary is None:
            return values
        try:
            if self._gives_dictionary:
                encoded = pa.DictionaryArray.from_arrays(values, array.dictionary)
                return encoded if encoded.type == self.arrow_type else encoded.cast(self.arrow_type)
            self._check_expansion(array, limits)
            return array.dictionary.take(values)
        except (pa.ArrowIndexError, pa.ArrowInvalid) as error:
            raise CorruptFileError(f"a dictionary index is out of range: {error}", column=self.leaf.dotted) from error

    def _check_expansion(self, array: LeafArray, limits: DecodeLimits) -> None:
        """Refuse before expanding what would not fit; exact only where the cheap bound is too large."""
        dictionary = array.dictionary
        if dictionary is None or len(dictionary) == 0:
            return
        largest = dictionary.nbytes  # no value is larger than all of them together
        if largest * len(array.values) <= limits.max_decoded_bytes:
            return
        kind = dictionary.type
        if (
            pa.types.is_binary(kind)
            or pa.types.is_string(kind)
            or pa.types.is_large_binary(kind)
            or (pa.types.is_large_string(kind))
        ):
            total = pc.sum(pc.binary_length(dictionary).take(array.values)).as_py() or 0
        else:
            total = dictionary.nbytes // len(dictionary) * len(array.values)
        if total > limits.max_decoded_bytes:
            raise ResourceLimitError(
                f"{len(array.values)} dictionary-encoded values expand to {total} bytes",
                column=self.leaf.dotted,
                hint="Raise LimitOptions.max_decoded_bytes if the file is to be trusted.",
            )

    # -- inside -----------------------------------------------------------------------------------

    def _header(self, page: bytes, chunk: ColumnChunk, limits: DecodeLimits) -> PageHeader:
        header = decode_page_header(page, 0, max_bytes=limits.max_page_bytes)
        if isinstance(header, NeedMore):
            raise CorruptFileError("a page ends inside its header", column=self.leaf.dotted)
        check_page_header(header, expected_size=len(page), chunk=chunk)
        if header.uncompressed_size > limits.max_page_bytes:
            raise ResourceLimitError(
                f"a page claims {header.uncompressed_size} bytes, allowed are {limits.max_page_bytes}",
                column=self.leaf.dotted,
                hint="Raise LimitOptions.max_page_bytes if the file is to be trusted.",
            )
        return header

    def _read(
        self,
        template: FooterTemplate,
        dictionary_page: bytes,
        pages: Sequence[bytes],
        num_rows: int,
        limits: DecodeLimits,
    ) -> pa.Array:
        """Splice, decode, and hold the row count to what was planned."""
        width = self.arrow_type.bit_width if not dictionary_page and pa.types.is_primitive(self.arrow_type) else 32
        if num_rows * width // 8 > limits.max_decoded_bytes:
            raise ResourceLimitError(f"pages of {num_rows} rows in one unit", column=self.leaf.dotted)
        file = template.splice(dictionary_page, pages, num_values=num_rows + 1, num_rows=num_rows + 1)
        try:
            column = read_table(file, verify_crc=limits.verify_crc).column(0)
        except AsyncpqError as error:
            raise error.locate(column=self.leaf.dotted) from error.__cause__
        if len(column) != num_rows:
            raise CorruptFileError(
                f"pages planned to hold {num_rows} rows hold {'more' if len(column) > num_rows else len(column)}",
                column=self.leaf.dotted,
            )
        if column.num_chunks == 1:
            return column.chunk(0)
        return pa.concat_arrays(column.chunks) if column.num_chunks else pa.array([], column.type)

    def _plain_template(self, chunk: ColumnChunk) -> FooterTemplate:
        key = (False, chunk.codec, chunk.encodings)
        template = self._templates.get(key)
        if template is None:
            template = leaf_template(self._metadata, self.leaf, chunk, self._arrow_schema)
            self._templates[key] = template
        return template

    def _index_template(self, chunk: ColumnChunk) -> FooterTemplate:
        key = (True, chunk.codec)
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = index_template(self._metadata, self.leaf, chunk)
        return template


class LeafArray(NamedTuple):
    """Decoded rows of a leaf, still as dictionary indices where the pages were.

    Attributes:
        first_row: in the row group.
        values: the values, or int32 indices into ``dictionary``.
        dictionary: values of the dictionary, or None.
    """

    first_row: int
    values: pa.Array
    dictionary: pa.Array | None

    @property
    def stop_row(self) -> int:
        return self.first_row + len(self.values)

    @property
    def weight(self) -> int:
        """Bytes held in memory; the dictionary is accounted for by its own entry."""
        return int(self.values.nbytes)
