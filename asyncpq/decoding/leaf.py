"""Decode the pages of one leaf column that is not repeated to Arrow arrays.

Such a leaf is a flat column, or has only non-repeated structs above it. Every page of it says its number of rows, so
both are read page by page. A leaf in structs decodes to struct arrays with one child each, down to the leaf; ``depth``
counts these structs, and is 0 for a flat column.

Pages of dictionary indices are decoded to indices. Their dictionary is decoded once for the chunk, and cached alone.

The chunks of a flat column in many small files are decoded together, by one call of pyarrow's reader.
"""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Sequence
from itertools import repeat
from typing import Literal

import pyarrow as pa

from asyncpq.checkpoints import checkpoint
from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import (
    FEW_ROWS,
    in_structs,
    join,
    leaf_type,
    leaf_types,
    leaf_values,
    path_type,
    plain_array,
    plain_pages,
    read_column,
    take,
    typed_error,
    value_bits,
)
from asyncpq.decoding.decoded_size import LeafSize, ValueSlot, largest_value
from asyncpq.decoding.field_types import dictionary_type, encode_schema, field_types
from asyncpq.decoding.page import (
    AT_ONCE_BYTES,
    LENGTH_BYTES,
    DataPage,
    Dictionary,
    KnownLevels,
    LeafArray,
    PackedPage,
    Picked,
    array_of_plain,
    check_crc_alike,
    common_length,
    decode_dictionary,
    decode_plain,
    decode_plain_run,
    packs_plain,
    page_header,
    pages_without,
    plain_width,
    present_run,
    present_values,
    stop_of_group,
)
from asyncpq.decoding.splice import (
    ChunksTemplate,
    FooterTemplate,
    WholeChunk,
    bytes_template,
    dictionary_as_data_page,
    identity_dictionary,
    index_template,
    leaf_template,
)
from asyncpq.errors import AsyncpqError, CorruptFileError
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.chunk_pages import (
    NeedMore,
    PageHeader,
    check_page_header,
    decode_page_header,
    header_contradiction,
)
from asyncpq.parquet.column_chunk import DICTIONARY_ENCODINGS, Codec, ColumnChunk, Encoding, PageType
from asyncpq.parquet.logical_types import LogicalKind, PhysicalType, Repetition
from asyncpq.parquet.page_index import PageLocationError
from asyncpq.parquet.schema import Leaf
from asyncpq.records import NamedTuple, dataclass

_SEARCHED_BYTES = 1 << 20  # of pages that are searched at once
# Approximate bytes of a decoder, and of each template that it makes: lookups of single values make none.
_DECODER_WEIGHT = 700
_TEMPLATE_WEIGHT = 1200
# Of the chunks of small files that are decoded together:
_SMALL_CHUNK_BYTES = 1 << 20  # decoded
_LEVEL_BYTES = 8  # of a value, while it is decoded
_CODECS = frozenset(map(int, Codec)) - {Codec.LZO, Codec.LZ4}


@dataclass(slots=True)
class DecodeLimits:
    """The limits and checks for decoding the pages of one read (see :class:`asyncpq.options.LimitOptions`).

    ``max_decoded_bytes`` is what may still be decoded. Each reader lowers it in its own :meth:`copy`.
    """

    verify_crc: bool
    max_page_bytes: int
    max_decoded_bytes: int
    validate_utf8: bool = False

    def copy(self) -> DecodeLimits:
        return DecodeLimits(self.verify_crc, self.max_page_bytes, self.max_decoded_bytes, self.validate_utf8)


class _Layout(NamedTuple):
    """How values of one Parquet type are converted to one Arrow type."""

    slot: ValueSlot
    size: LeafSize
    plain_width: int  # see :func:`plain_width`
    gives_dictionary: bool
    packs_plain: bool  # see :func:`packs_plain`
    is_text: bool

    @classmethod
    def of(cls, leaf: Leaf, arrow_type: pa.DataType, value_type: pa.DataType) -> _Layout:
        return cls(
            ValueSlot.flat(leaf, value_type),
            LeafSize(leaf, arrow_type),
            plain_width(leaf, value_type),
            pa.types.is_dictionary(value_type),
            packs_plain(leaf, value_type),
            leaf.physical_type == PhysicalType.BYTE_ARRAY and value_type in (pa.string(), pa.binary()),
        )


class LeafDecoder:
    """Decodes the pages of one leaf column of one file. :func:`leaf_decoder` returns one.

    Args:
        version: the file.
        leaf: the leaf column, which is not repeated.
        arrow_type: pyarrow's type of the leaf's field in this file, cut to the leaf (:func:`path_type`).
        arrow_schema: the value of ``ARROW:schema`` for a file of this leaf alone; None if the type needs none.
    """

    def __init__(self, version: FileVersion, leaf: Leaf, arrow_type: pa.DataType, arrow_schema: bytes | None) -> None:
        self.leaf = leaf
        self.arrow_type = arrow_type
        self.depth: int = len(leaf.path) - 1
        depth = self.depth
        self._value_type = value_type = leaf_type(arrow_type, depth)
        # columns of thousands have few types
        key = (leaf.physical_type, leaf.logical_type, depth, leaf.max_definition_level, str(arrow_type))
        known: dict[Hashable, _Layout] = version.derived(("layouts",), dict)
        self._layout = layout = known.get(key) or known.setdefault(key, _Layout.of(leaf, arrow_type, value_type))
        self.slot: ValueSlot = layout.slot
        self._version = version
        self._arrow_schema = arrow_schema
        self._templates: dict[tuple[bool, int, tuple[int, ...]], FooterTemplate] = {}
        self._has_crc: dict[int, bool] = {}  # see check_crc_alike
        self._prefixes: KnownLevels = {}  # seen in pages so far, in any thread
        # whether many rows are decoded at once with the file's own dictionary page: 10 million integers take 45 ms,
        # their indices and the values of these 90 ms
        self.expands_at_once: bool = leaf.physical_type != PhysicalType.BYTE_ARRAY and not layout.gives_dictionary
        # whether the values are those of PLAIN pages, byte by byte, so that pages can be searched for them
        self.searchable: bool = layout.packs_plain
        self.picks: bool = not layout.gives_dictionary  # whether single values may be picked from packed pages
        self._joins_plain = True  # until this fails: pages with nulls, values of several lengths, a codec without sizes
        self._packs_plain = self.searchable  # until a page has values of several lengths
        self._chunks_template: ChunksTemplate | None = None

    def drop(self, what: str) -> None:
        """Record that the pages contradict the footer's statement ``what``, which is then ignored."""
        self._version.drop(self.leaf.index, what)

    # -- dictionaries -----------------------------------------------------------------------------

    def decode_dictionary(self, chunk: ColumnChunk, page: bytes | memoryview, limits: DecodeLimits) -> Dictionary:
        """Decode a dictionary page. Raises CorruptFileError if it is malformed, ResourceLimitError if too large."""
        header = page_header(page, chunk, self.leaf, limits.max_page_bytes)
        if header.type != PageType.DICTIONARY_PAGE:
            raise PageLocationError(
                f"the file has a {header.type.name} where a dictionary page is expected", column=self.leaf.dotted
            )
        payload = page[header.header_size :]
        if limits.verify_crc and header.crc is not None and zlib.crc32(payload) != header.crc & 0xFFFFFFFF:
            raise CorruptFileError("the dictionary page does not match its CRC", column=self.leaf.dotted)
        self._layout.size.check_pages(self.leaf, [header], [page], False, chunk.codec, limits.max_decoded_bytes)
        decoded: tuple[pa.Array, int] | None = None
        if self._layout.plain_width or self._layout.is_text:
            decoded = decode_dictionary(
                memoryview(payload), header, self.leaf, chunk.codec, self._value_type, self._layout.plain_width
            )
        if decoded is None:
            values = self._read_dictionary(chunk, header, payload, limits)
            decoded = values, largest_value(values)
        values, largest = decoded
        return Dictionary(values, identity_dictionary(chunk.codec, len(values)), largest, int(values.nbytes))

    def _read_dictionary(
        self, chunk: ColumnChunk, header: PageHeader, payload: bytes | memoryview, limits: DecodeLimits
    ) -> pa.Array:
        data_page = dictionary_as_data_page(
            payload,
            num_values=header.num_values,
            uncompressed_size=header.uncompressed_size,
            level=self.leaf.max_definition_level,
        )
        values = leaf_values(self._read_values(chunk, [data_page], header.num_values, limits), self.depth)
        if self._layout.gives_dictionary and pa.types.is_dictionary(values.type):
            values = take(values.dictionary, values.indices)
        return values

    # -- pages ------------------------------------------------------------------------------------

    def is_partly_read(self, chunk: ColumnChunk, page: DataPage, num_rows: int, limits: DecodeLimits) -> bool:
        """Return whether ``num_rows`` rows of a page are picked from the parts of it that hold them, where there are
        too many to pick them one by one."""
        if Encoding.ALP not in chunk.encodings or num_rows * 2 > page.num_rows:
            return False
        return self._data_header(page, chunk, limits).encoding == Encoding.ALP

    def decode_pages(
        self,
        chunk: ColumnChunk,
        dictionary: Dictionary | None,
        pages: Sequence[DataPage],
        limits: DecodeLimits,
        dictionary_page: bytes = b"",
    ) -> list[LeafArray]:
        """Decode pages of one chunk to arrays of exactly their rows, in order. Other pages may be missing between them.

        With ``dictionary_page``, many dictionary indices are decoded to values at once, if :attr:`expands_at_once`.
        Raises CorruptFileError if a page contradicts its header, the index or the footer, ResourceLimitError if the
        pages would decode to too many bytes.
        """
        headers = [self._data_header(page, chunk, limits) for page in pages]
        if len(pages) == 1 and self._layout.plain_width:
            page = pages[0]
            values = decode_plain(
                page.data,
                headers[0],
                self.leaf,
                chunk.codec,
                self._value_type,
                self._layout.plain_width,
                verify_crc=limits.verify_crc,
            )
            if values is not None:
                return [LeafArray(page.first_row, in_structs(values, self.arrow_type, self.depth), None)]
        arrays: list[LeafArray] = []
        start = 0
        while start < len(pages):
            kind = _decoded_as(headers[start])
            encoded = kind == Encoding.RLE_DICTIONARY
            stop = start + 1
            while stop < len(pages) and _decoded_as(headers[stop]) == kind:
                stop += 1
            run = pages[start:stop]
            content = [page.data for page in run]
            limit = limits.max_decoded_bytes
            num_rows = sum([page.num_rows for page in run])
            expands = encoded and dictionary is not None and num_rows >= 2 * len(dictionary.values)
            expander = dictionary_page if expands else b""
            encoded = encoded and not expander
            self._layout.size.check_pages(self.leaf, headers[start:stop], content, encoded, chunk.codec, limit)
            array: LeafArray | None
            if kind == Encoding.ALP:
                array = self._alp_run(chunk, run, headers[start:stop], limits)
            else:
                array = self._plain_run(chunk, run, headers[start:stop], limits)
            if array is None:
                array = self._decode_run(chunk, dictionary, run, limits, encoded=encoded, dictionary_page=expander)
            arrays.append(array)
            start = stop
        return arrays

    def _plain_run(
        self, chunk: ColumnChunk, run: Sequence[DataPage], headers: Sequence[PageHeader], limits: DecodeLimits
    ) -> LeafArray | None:
        """Decode ``run`` without pyarrow's Parquet reader; None if that is not possible."""
        width, codec = self._layout.plain_width, chunk.codec
        if headers[0].encoding != Encoding.PLAIN or not (self._joins_plain and (width or self._packs_plain)):
            return None
        values = decode_plain_run(
            run,
            headers,
            self.leaf,
            codec,
            self._value_type,
            width,
            verify_crc=limits.verify_crc,
            prefixes=self._prefixes,
        )
        if values is not None:
            return LeafArray(run[0].first_row, in_structs(values, self.arrow_type, self.depth), None)
        self._joins_plain = False
        return None

    def _alp_run(
        self, chunk: ColumnChunk, run: Sequence[DataPage], headers: Sequence[PageHeader], limits: DecodeLimits
    ) -> LeafArray:
        from asyncpq.decoding import alp  # few files need it

        leaf, codec, verify_crc, first_row = self.leaf, chunk.codec, limits.verify_crc, run[0].first_row
        values = alp.decode_run(run, headers, leaf, codec, verify_crc=verify_crc) if self._layout.plain_width else None
        if values is not None:
            return LeafArray(first_row, in_structs(values, self.arrow_type, self.depth), None)
        plain = [
            alp.as_plain(page.data, header, leaf, codec, verify_crc=verify_crc)
            for page, header in zip(run, headers, strict=True)
        ]
        return LeafArray(first_row, self._read_values(chunk, plain, sum([page.num_rows for page in run]), limits), None)

    def _decode_run(
        self,
        chunk: ColumnChunk,
        dictionary: Dictionary | None,
        run: Sequence[DataPage],
        limits: DecodeLimits,
        *,
        encoded: bool,
        dictionary_page: bytes,
    ) -> LeafArray:
        num_rows = sum([page.num_rows for page in run])
        data = [page.data for page in run]
        if dictionary_page:
            values = self._read(self._template(chunk), dictionary_page, data, num_rows, limits)
            return LeafArray(run[0].first_row, values, None)
        if not encoded:
            return LeafArray(run[0].first_row, self._read_values(chunk, data, num_rows, limits), None)
        if dictionary is None:
            raise CorruptFileError(
                "the column chunk has dictionary-encoded pages, but no dictionary page", column=self.leaf.dotted
            )
        indices = self._read(self._template(chunk, of_indices=True), dictionary.identity_page, data, num_rows, limits)
        return LeafArray(run[0].first_row, indices, dictionary.values)

    def pages_without(
        self, chunk: ColumnChunk, pages: Sequence[DataPage], texts: Sequence[bytes], limits: DecodeLimits
    ) -> tuple[set[int], int]:
        """Search ``pages`` for ``texts`` until about a megabyte is searched.

        Returns the positions of the searched pages that contain none of the texts, and the number of searched pages.
        """
        searched, size = self._first_pages(chunk, pages, _SEARCHED_BYTES, limits)
        if size > limits.max_decoded_bytes:
            return set(), len(searched)
        content = [(page.data, header) for page, header in searched]
        found = pages_without(content, self.leaf, chunk.codec, texts, verify_crc=limits.verify_crc)
        return found, len(searched)

    def open_page(self, chunk: ColumnChunk, page: DataPage, limits: DecodeLimits) -> PackedPage | None:
        """Decompress a page, so that single rows can be picked from it; None if it has to be decoded whole."""
        header = self._data_header(page, chunk, limits) if self.picks else None
        if header is None:
            return None
        if header.encoding == Encoding.ALP:
            if not self._layout.plain_width or header.num_values > limits.max_decoded_bytes:
                return None
            from asyncpq.decoding import alp  # few files need it

            return alp.open_page(page, header, self.leaf, chunk.codec, verify_crc=limits.verify_crc)
        if not self._may_pack(header):
            return None
        values = present_values(
            page.data, header, self.leaf, chunk.codec, verify_crc=limits.verify_crc, prefixes=self._prefixes
        )
        return None if values is None else self._packed(page, header, *values, len(values.data))

    def open_pages(
        self, chunk: ColumnChunk, pages: Sequence[DataPage], limits: DecodeLimits
    ) -> list[PackedPage | None]:
        """Do what :meth:`open_page` does for the first of ``pages``, or for several, decompressed at once (zstd)."""
        if len(pages) == 1 or chunk.codec != Codec.ZSTD:
            return [self.open_page(chunk, pages[0], limits)]
        some, _ = self._first_pages(chunk, pages, AT_ONCE_BYTES, limits)
        if not all(self._may_pack(header) for _, header in some):
            checked = [page._replace(header=header, checked=True) for page, header in some]
            return [self.open_page(chunk, page, limits) for page in checked]
        present = present_run(some, self.leaf, chunk.codec, verify_crc=limits.verify_crc, prefixes=self._prefixes)
        return [
            None if values is None else self._packed(page, header, *values)
            for (page, header), values in zip(some, present, strict=True)
        ]

    def _first_pages(
        self, chunk: ColumnChunk, pages: Sequence[DataPage], most: int, limits: DecodeLimits
    ) -> tuple[list[tuple[DataPage, PageHeader]], int]:
        """Return the first of ``pages`` that together decompress to at most ``most`` bytes, one at least, with their
        headers; and the bytes of these and of the page after them."""
        some: list[tuple[DataPage, PageHeader]] = []
        size = 0
        for page in pages:
            header = self._data_header(page, chunk, limits)
            size += header.uncompressed_size
            if some and size > most:
                break
            some.append((page, header))
        return some, size

    def _may_pack(self, header: PageHeader) -> bool:
        if header.encoding in DICTIONARY_ENCODINGS:
            return True
        return header.encoding == Encoding.PLAIN and (self._layout.plain_width > 0 or self._packs_plain)

    def _packed(self, page: DataPage, header: PageHeader, content: bytes, start: int, stop: int) -> PackedPage | None:
        """Return a page whose encoded values are ``content[start:stop]``; None if they have several lengths."""
        width = self._layout.plain_width
        if header.encoding in DICTIONARY_ENCODINGS:
            if stop < len(content):
                content, start = content[start:stop], 0
            return PackedPage(page.data, page.first_row, page.stop_row, content, start, -1)
        if width:
            whole = stop == start + width * header.num_values
            return PackedPage(page.data, page.first_row, page.stop_row, content, start, width) if whole else None
        length = common_length(content, start, header.num_values, stop)
        if length is None:
            self._packs_plain = False  # so that later pages are not decompressed for nothing
            return None
        return PackedPage(page.data, page.first_row, page.stop_row, content, start, length, LENGTH_BYTES)

    def pick_alp(self, packed: PackedPage, positions: Sequence[int]) -> pa.Array:
        """Return the values at ascending ``positions`` of an ALP page."""
        from asyncpq.decoding import alp  # few files need it

        picked = alp.pick(packed, positions, self.leaf)
        return in_structs(picked, self.arrow_type, self.depth) if self.depth else picked

    def join_picked(self, pieces: Sequence[pa.Array | Picked], dictionary: Dictionary | None) -> list[pa.Array]:
        """Return ``pieces`` in their order as arrays in the column's own type; values picked from pages that follow one
        another become one array. Raises CorruptFileError if an index is outside the dictionary."""
        arrays: list[pa.Array] = []
        start = 0
        while start < len(pieces):
            piece = pieces[start]
            if not isinstance(piece, tuple):
                arrays.append(piece)
                start += 1
                continue
            stop = 1 if len(pieces) == 1 else stop_of_group(pieces, start, dictionary)
            picked, start = pieces[start:stop], stop
            if piece[0] is None:
                array = array_of_plain(picked, self._value_type)
            else:
                indices = (
                    piece[0] if len(picked) == 1 else [index for found, _, _, _ in picked for index in found or ()]
                )
                if dictionary is None or max(indices) >= len(dictionary.values):
                    raise CorruptFileError("a dictionary index is outside the dictionary", column=self.leaf.dotted)
                if len(indices) <= FEW_ROWS:
                    # Copies, since a slice keeps the whole dictionary alive. Faster than a take.
                    array = pa.concat_arrays(list(map(dictionary.values.slice, indices, repeat(1))))
                else:
                    array = take(dictionary.values, plain_array(indices, pa.int32()))
            arrays.append(in_structs(array, self.arrow_type, self.depth) if self.depth else array)
        return arrays

    def encodes(self, dictionary: Dictionary | None, num_rows: int) -> bool:
        """Return whether a filter takes less time on the values of ``dictionary`` than on ``num_rows`` rows."""
        if dictionary is None or self.depth or self._layout.gives_dictionary or not self.slot.has_lengths:
            return False
        return len(dictionary.values) * 2 <= num_rows

    def dense(
        self, values: pa.Array, dictionary: pa.Array | None, limits: DecodeLimits, *, encoded: bool = False
    ) -> pa.Array:
        """Return ``values`` in the column's own type. If there is a ``dictionary``, ``values`` are indices into it, and
        are expanded; if ``encoded``, they become a dictionary array instead.

        Raises CorruptFileError for an index outside the dictionary, ResourceLimitError for too many expanded bytes.
        """
        try:
            if dictionary is None:
                return self._as_asked(values) if self._layout.gives_dictionary else values
            if self._layout.gives_dictionary:
                return self._as_asked(pa.DictionaryArray.from_arrays(values, dictionary))
            if encoded:
                return pa.DictionaryArray.from_arrays(values, dictionary)
            indices = leaf_values(values, self.depth) if self.depth else values
            self._layout.size.check_expansion(self.leaf, dictionary, indices, limits.max_decoded_bytes)
            expanded = take(dictionary, indices)
            return in_structs(expanded, self.arrow_type, self.depth, values) if self.depth else expanded
        except (pa.ArrowException, OverflowError) as error:
            failure = typed_error(error, "dictionary indices cannot be expanded")
            raise failure.locate(column=self.leaf.dotted) from error

    def _as_asked(self, values: pa.Array) -> pa.Array:
        """Return ``values`` as a dictionary array if the read requested one, else unchanged."""
        if values.type == self.arrow_type:
            return values
        if not pa.types.is_dictionary(values.type):
            values = values.cast(self.arrow_type.value_type).dictionary_encode()
        return pc.cast(values, self.arrow_type)

    # -- spliced files ----------------------------------------------------------------------------

    def _data_header(self, page: DataPage, chunk: ColumnChunk, limits: DecodeLimits) -> PageHeader:
        """Return the checked header of a page. Raises PageLocationError if it is not a data page with the planned
        number of rows."""
        if page.header is not None and page.checked:
            return page.header
        header = page_header(page.data, chunk, self.leaf, limits.max_page_bytes, page.header)
        if header.type is PageType.DICTIONARY_PAGE or header.type is PageType.INDEX_PAGE:
            raise PageLocationError(
                f"the file has a {header.type.name} where a data page is expected", column=self.leaf.dotted
            )
        if header.num_values != page.num_rows:
            raise PageLocationError(
                f"a page of the rows {page.first_row} to {page.stop_row - 1} has {header.num_values} rows",
                column=self.leaf.dotted,
            )
        if what := header_contradiction(header, chunk, repeated=False):
            self.drop(what)
        if limits.verify_crc:
            check_crc_alike(self._has_crc, header, chunk, self.leaf)
        return header

    def _read_values(
        self, chunk: ColumnChunk, pages: Sequence[bytes | memoryview], num_rows: int, limits: DecodeLimits
    ) -> pa.Array:
        """Decode pages of values, not of indices. Decimals of no bytes, which mean 0, get one byte for pyarrow."""
        try:
            return self._read(self._template(chunk), b"", pages, num_rows, limits)
        except CorruptFileError:
            leaf, logical = self.leaf, self.leaf.logical_type
            is_decimal = logical is not None and logical.kind is LogicalKind.DECIMAL
            if not is_decimal or leaf.physical_type != PhysicalType.BYTE_ARRAY:
                raise
            array = self._read(bytes_template(self._version.metadata, leaf, chunk), b"", pages, num_rows, limits)
            raw = leaf_values(array, self.depth)
            is_empty = pc.equal(pc.binary_length(raw), 0)
            if not pc.any(is_empty).as_py():
                raise
        array = in_structs(pc.if_else(is_empty, b"\0", raw), array.type, self.depth, array)
        top = self._version.metadata.schema.elements[(*leaf.ancestor_indexes, leaf.element_index)[0]]
        plain = plain_pages(array, nullable=top.repetition is Repetition.OPTIONAL)
        written = chunk._replace(codec=Codec.UNCOMPRESSED, encodings=(Encoding.PLAIN, Encoding.RLE))
        return self._read(self._template(written), b"", [plain], num_rows, limits)

    def _read(
        self,
        template: FooterTemplate,
        dictionary_page: bytes,
        pages: Sequence[bytes | memoryview],
        num_rows: int,
        limits: DecodeLimits,
    ) -> pa.Array:
        """Decode pages in a spliced file. Raises CorruptFileError if they do not have ``num_rows`` rows."""
        file = template.splice(dictionary_page, pages, num_values=num_rows + 1, num_rows=num_rows + 1)
        try:
            column = read_column(file, verify_crc=limits.verify_crc, int96_unit=self._version.metadata.int96_unit)
        except AsyncpqError as error:
            raise error.locate(column=self.leaf.dotted) from error.__cause__
        if len(column) != num_rows:
            count = f"more than {num_rows}" if len(column) > num_rows else len(column)
            raise CorruptFileError(f"pages have {count} rows, expected {num_rows}", column=self.leaf.dotted)
        try:
            return join(column.chunks, column.type)
        except pa.ArrowException as error:
            raise typed_error(error, "pages cannot be put together").locate(column=self.leaf.dotted) from error

    @property
    def chunks_template(self) -> ChunksTemplate:
        """The template for many whole chunks of a flat leaf column."""
        if self._chunks_template is None:
            self._chunks_template = ChunksTemplate(self._version.metadata, self.leaf, self._arrow_schema)
            self._version.grow(_TEMPLATE_WEIGHT)
        return self._chunks_template

    def _template(self, chunk: ColumnChunk, *, of_indices: bool = False) -> FooterTemplate:
        key = (of_indices, chunk.codec, () if of_indices else chunk.encodings)
        template = self._templates.get(key)
        if template is None:
            if of_indices:
                template = index_template(self._version.metadata, self.leaf, chunk)
            else:
                template = leaf_template(self._version.metadata, self.leaf, chunk, self._arrow_schema)
            self._templates[key] = template
            self._version.grow(_TEMPLATE_WEIGHT)
        return template


def _decoded_as(header: PageHeader) -> Encoding:
    """Return RLE_DICTIONARY or ALP for pages of these encodings, else PLAIN: pages of one kind are decoded together."""
    if header.encoding in DICTIONARY_ENCODINGS:
        return Encoding.RLE_DICTIONARY
    return Encoding.ALP if header.encoding == Encoding.ALP else Encoding.PLAIN


def leaf_decoder(
    version: FileVersion, ordinal: int, extensions: frozenset[str], as_dictionary: bool = False
) -> LeafDecoder | None:
    """Return the decoder of the leaf column ``ordinal``, cached with the file; None if it is decoded with others.

    Flat columns and leaves that have only structs above them have a decoder. If ``as_dictionary``, a flat column's
    values are decoded to :func:`dictionary_type`.
    """

    def make() -> LeafDecoder | Literal[False]:
        schema = version.metadata.schema
        leaf = schema.leaves[ordinal]
        field = schema.fields[leaf.field_index]
        (field_type,) = field_types(version, [field.index], extensions)
        arrow_type, arrow_schema = field_type.arrow.type, field_type.arrow_schema
        if not leaf.is_flat:
            whole = len(leaf_types(arrow_type)) == field.leaf_stop - field.first_leaf
            arrow_type = path_type(arrow_type, field.first_leaf, leaf) if whole else None
            if arrow_type is None:
                return False
            if arrow_schema is not None:
                top = pa.field(leaf.path[0], arrow_type, field_type.arrow.nullable)
                arrow_schema = encode_schema(pa.schema([top]))
        if as_dictionary:
            arrow_type = dictionary_type(arrow_type)
        return LeafDecoder(version, leaf, arrow_type, arrow_schema)

    return (
        version.derived(("decoder", ordinal, as_dictionary, *sorted(extensions)), make, weight=_DECODER_WEIGHT) or None
    )


class SmallFile(NamedTuple):
    """A version of a small file, and its bytes from ``start`` on."""

    version: FileVersion
    start: int
    data: memoryview


def is_decoded_together(leaf: Leaf) -> bool:
    """Return whether :func:`decode_together` may decode the chunks of a leaf column."""
    return leaf.is_flat and leaf.physical_type is not PhysicalType.INT96


def decode_together(
    files: Sequence[SmallFile], decoder: LeafDecoder, *, verify_crc: bool, most_bytes: int
) -> tuple[pa.Array, list[int]] | None:
    """Decode a flat leaf column of many small files at once: return its values in all rows, in order, and the number of
    data pages of each file; None if a chunk is unusual.

    Args:
        files: have equal schemas, and the same writer.
        decoder: of the leaf in one of them.
        most_bytes: that they may decode to; for more, the result is None.

    Raises:
        AsyncpqError: a file is damaged.
    """
    leaf, template = decoder.leaf, decoder.chunks_template
    value_bytes = value_bits(decoder.arrow_type) // 8 + _LEVEL_BYTES
    chunks: list[WholeChunk] = []
    num_pages: list[int] = []
    for version, start, data in files:
        checkpoint()
        pages_of_file = 0
        for group in version.metadata.row_groups:
            if not group.num_rows:
                continue
            chunk = version.chunk(group.ordinal, leaf.index)
            if chunk.start < start:
                return None
            content = data[chunk.start - start : chunk.stop - start]
            sizes = _chunk_pages(content, chunk, leaf, group.num_rows, value_bytes)
            if sizes is None:
                return None
            dictionary_bytes, pages, size = sizes
            most_bytes -= size
            if most_bytes < 0:
                return None
            chunks.append(WholeChunk(chunk, content, dictionary_bytes, group.num_rows))
            pages_of_file += pages
        num_pages.append(pages_of_file)
    column = read_column(template.splice(chunks), verify_crc=verify_crc)
    values = join(column.chunks, column.type)
    num_rows = sum([chunk.num_rows for chunk in chunks])
    if len(values) != num_rows or values.type != decoder.arrow_type:
        raise CorruptFileError(f"pages have {len(values)} rows, expected {num_rows}", column=leaf.dotted)
    return values, num_pages


def _chunk_pages(
    data: memoryview, chunk: ColumnChunk, leaf: Leaf, num_rows: int, value_bytes: int
) -> tuple[int, int, int] | None:
    """Check the page headers of a chunk; return the size of its dictionary page, the number of its data pages, and the
    most bytes that they decode to. None if the chunk is unusual, or may decode to many bytes. Raises CorruptFileError
    if headers contradict the footer.

    ``value_bytes``: of a value, decoded, without the bytes of a text.
    """
    if chunk.codec not in _CODECS or chunk.num_values != num_rows:
        return None
    position = values = pages = dictionary_bytes = entries_bytes = 0
    size = num_rows * value_bytes
    has_lengths = chunk.physical_type is PhysicalType.BYTE_ARRAY
    while position < len(data):
        header = decode_page_header(data, position, max_bytes=_SMALL_CHUNK_BYTES, complete=True)
        if isinstance(header, NeedMore):
            return None
        check_page_header(header, chunk=chunk, leaf=leaf)
        if header_contradiction(header, chunk, repeated=False) is not None:
            return None
        if header.type is PageType.DICTIONARY_PAGE:
            if position or header.num_values > header.uncompressed_size:
                return None
            dictionary_bytes, entries_bytes = header.page_size, header.uncompressed_size
        else:
            if header.encoding in DICTIONARY_ENCODINGS:
                if not dictionary_bytes:
                    return None
                size += header.num_values * entries_bytes * has_lengths
            elif header.encoding in (Encoding.ALP, Encoding.DELTA_BYTE_ARRAY):
                return None
            values += header.num_values
            pages += 1
        size += header.uncompressed_size
        if size > _SMALL_CHUNK_BYTES:
            return None
        position += header.page_size
    return (dictionary_bytes, pages, size) if position == len(data) and values == num_rows else None
