"""Pages of one leaf that is not repeated -> Arrow arrays: a flat column, or a leaf in structs.

How large pages of a leaf that is not repeated become once decoded, known before they are.

A leaf in structs that are not repeated: a flat column in as many groups, each of one child.

Every page of such a leaf says its rows, so it is read page by page like a flat one. What is decoded of it
are struct arrays down to the leaf; for a flat column there are none, and all here changes nothing.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.arrow import join, leaf_types, plain_pages, read_column, take, typed_error
from asyncpq.decoding.decoded_size import LeafSize, largest_value
from asyncpq.decoding.field_types import dictionary_type, encode_schema, field_types
from asyncpq.decoding.page import (
    ENCODING_PLAIN,
    LENGTH_BYTES,
    DataPage,
    Dictionary,
    LeafArray,
    PackedPage,
    check_crc_alike,
    common_length,
    decode_dictionary,
    decode_plain,
    packs_plain,
    page_header,
    plain_width,
    present_values,
)
from asyncpq.decoding.splice import (
    FooterTemplate,
    bytes_template,
    dictionary_as_data_page,
    identity_dictionary,
    index_template,
    leaf_template,
)
from asyncpq.errors import AsyncpqError, CorruptFileError
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.chunk_pages import PageHeader, header_contradiction
from asyncpq.parquet.column_chunk import DICTIONARY_ENCODINGS, Codec, ColumnChunk, Encoding, PageType
from asyncpq.parquet.logical_types import LogicalKind, PhysicalType, Repetition
from asyncpq.parquet.metadata import FileMetadata
from asyncpq.parquet.page_index import PageLocationError
from asyncpq.parquet.schema import Leaf


def path_type(kind: pa.DataType, first_leaf: int, leaf: Leaf) -> pa.DataType | None:
    """``kind``, the type of a top-level field, cut to a leaf; None if there are not just structs above it.

    None also for a leaf that may not be null in a struct that may: pyarrow makes up values where the struct
    is null, which mean nothing as indices into a dictionary.

    Args:
        first_leaf: ordinal of the field's first leaf.
    """
    required = leaf.element.repetition is not Repetition.OPTIONAL
    if leaf.max_repetition_level or (required and leaf.max_definition_level):
        return None
    return _cut(kind, first_leaf, leaf.index, list(leaf.path[1:]))


def _cut(kind: pa.DataType, first_leaf: int, leaf: int, names: list[str]) -> pa.DataType | None:
    if not names:
        whole = pa.types.is_nested(kind) or isinstance(kind, (pa.BaseExtensionType, pa.DictionaryType))
        return None if whole else kind
    if not isinstance(kind, pa.StructType):
        return None
    for at in range(kind.num_fields):
        child = kind.field(at)
        stop = first_leaf + len(leaf_types(child.type))
        if leaf < stop:
            inner = _cut(child.type, first_leaf, leaf, names[1:]) if child.name == names[0] else None
            return None if inner is None else pa.struct([pa.field(child.name, inner, child.nullable)])
        first_leaf = stop
    return None


def leaf_type(kind: pa.DataType, depth: int) -> pa.DataType:
    """The leaf's type under ``depth`` structs."""
    for _ in range(depth):
        kind = kind.field(0).type
    return kind


def leaf_values(array: pa.Array, depth: int) -> pa.Array:
    """The leaf's values under ``depth`` structs; null also where one of these is."""
    for _ in range(depth):
        array = array.field(0)
    return array


def in_structs(values: pa.Array, kind: pa.DataType, depth: int, like: pa.Array | None = None) -> pa.Array:
    """``values`` under the ``depth`` structs of ``kind``, null where those of ``like`` are; None for nowhere."""
    if depth == 0:
        return values
    field = kind.field(0)
    child = in_structs(values, field.type, depth - 1, None if like is None else like.field(0))
    mask = pc.is_null(like) if like is not None and like.null_count else None
    return pa.StructArray.from_arrays([child], fields=[field], mask=mask)


class DecodeLimits(NamedTuple):
    """Bounds and checks of one read (see :class:`asyncpq.options.LimitOptions`)."""

    verify_crc: bool
    max_page_bytes: int
    max_decoded_bytes: int
    validate_utf8: bool = False


class LeafDecoder:
    """Decodes pages of one leaf of one file.

    Args:
        metadata: the file's footer.
        leaf: one that is not repeated.
        arrow_type: the type pyarrow gives the leaf's field in this file, cut to the leaf (see ``struct_path``).
        arrow_schema: value of ``ARROW:schema`` for a file of this leaf alone, where ``arrow_type``
            differs without it; else None.
        drop: called with what metadata contradict the pages, and are not used.
    """

    def __init__(
        self,
        metadata: FileMetadata,
        leaf: Leaf,
        arrow_type: pa.DataType,
        arrow_schema: bytes | None,
        *,
        drop: Callable[[str], None] | None = None,
    ) -> None:
        self.leaf = leaf
        self.drop = drop
        self.arrow_type = arrow_type
        self._metadata = metadata
        self._arrow_schema = arrow_schema
        self._templates: dict[tuple[object, ...], FooterTemplate] = {}
        self._has_crc: dict[int, bool] = {}  # see check_crc_alike
        self._depth = depth = len(leaf.path) - 1  # structs above the leaf
        self._value_type = value_type = leaf_type(arrow_type, depth)
        self._plain_width = plain_width(leaf, value_type)
        self._gives_dictionary = pa.types.is_dictionary(value_type)
        self._packs_plain = packs_plain(leaf, value_type)  # until a page shows values of several lengths
        self._is_text = leaf.physical_type == PhysicalType.BYTE_ARRAY and value_type in (pa.string(), pa.binary())
        self._size = LeafSize(leaf, arrow_type, value_type)

    # -- dictionaries -----------------------------------------------------------------------------

    def decode_dictionary(self, chunk: ColumnChunk, page: bytes, limits: DecodeLimits) -> Dictionary:
        """Decode a dictionary page.

        Raises:
            CorruptFileError: it is not one, or its CRC, size or count is wrong.
            ResourceLimitError: it claims to be larger than allowed.
        """
        header = page_header(page, chunk, self.leaf, limits.max_page_bytes)
        if header.type != PageType.DICTIONARY_PAGE:
            raise PageLocationError(f"a {header.type.name} where the dictionary page belongs", column=self.leaf.dotted)
        payload = page[header.header_size :]
        if limits.verify_crc and header.crc is not None and zlib.crc32(payload) != header.crc & 0xFFFFFFFF:
            raise CorruptFileError("the dictionary page does not match its CRC", column=self.leaf.dotted)
        self._size.check_pages([header], [page], False, chunk.codec, limits.max_decoded_bytes)
        found: tuple[pa.Array, int] | None = None
        if self._plain_width or self._is_text:
            found = decode_dictionary(
                memoryview(payload), header, self.leaf, chunk.codec, self._value_type, self._plain_width
            )
        if found is None:
            values = self._read_dictionary(chunk, header, payload, limits)
            found = values, largest_value(values)
        return Dictionary(found[0], identity_dictionary(chunk.codec, len(found[0])), found[1])

    def _read_dictionary(
        self, chunk: ColumnChunk, header: PageHeader, payload: bytes, limits: DecodeLimits
    ) -> pa.Array:
        data_page = dictionary_as_data_page(
            payload,
            num_values=header.num_values,
            uncompressed_size=header.uncompressed_size,
            level=self.leaf.max_definition_level,
        )
        array = self._read_values(chunk, [data_page], header.num_values, limits)
        values = leaf_values(array, self._depth)
        if self._gives_dictionary and pa.types.is_dictionary(values.type):
            values = values.dictionary_decode()
        return values

    # -- pages ------------------------------------------------------------------------------------

    def decode_pages(
        self, chunk: ColumnChunk, dictionary: Dictionary | None, pages: Sequence[DataPage], limits: DecodeLimits
    ) -> list[LeafArray]:
        """Decode consecutive pages of one chunk.

        Returns:
            Arrays that follow one another in row order, together holding exactly the pages' rows.

        Raises:
            CorruptFileError: a page is not what header, index or footer say of it.
            ResourceLimitError: the pages would decode to more bytes than allowed.
        """
        headers = [self._data_header(page, chunk, limits) for page in pages]
        if len(pages) == 1 and self._plain_width:
            page = pages[0]
            values = decode_plain(
                page.data,
                headers[0],
                self.leaf,
                chunk.codec,
                self._value_type,
                self._plain_width,
                verify_crc=limits.verify_crc,
            )
            if values is not None:
                return [LeafArray(page.first_row, in_structs(values, self.arrow_type, self._depth), None)]
        arrays: list[LeafArray] = []
        start = 0
        while start < len(pages):
            encoded = headers[start].encoding in DICTIONARY_ENCODINGS
            stop = start + 1
            while stop < len(pages) and (headers[stop].encoding in DICTIONARY_ENCODINGS) == encoded:
                stop += 1
            run = pages[start:stop]
            content = [page.data for page in run]
            self._size.check_pages(headers[start:stop], content, encoded, chunk.codec, limits.max_decoded_bytes)
            arrays.append(self._decode_run(chunk, dictionary if encoded else None, run, encoded, limits))
            start = stop
        return arrays

    def open_page(self, chunk: ColumnChunk, page: DataPage, limits: DecodeLimits) -> PackedPage | None:
        """The page for picking single rows, if it can be had without decoding all of it.

        Raises:
            CorruptFileError: the page is not what header, index or footer say of it, or cannot be decompressed.
        """
        if self._gives_dictionary:
            return None
        header = self._data_header(page, chunk, limits)
        is_indices = header.encoding in DICTIONARY_ENCODINGS
        width = self._plain_width
        if not is_indices and not (header.encoding == ENCODING_PLAIN and (width or self._packs_plain)):
            return None
        values = present_values(page.data, header, self.leaf, chunk.codec, verify_crc=limits.verify_crc)
        if values is None:
            return None
        if is_indices:
            return PackedPage(page, *values, -1)
        if width:
            whole = len(values.data) == values.start + width * header.num_values
            return PackedPage(page, *values, width) if whole else None
        length = common_length(*values, header.num_values)
        if length is None:
            self._packs_plain = False  # nor will others open: they would be decompressed in vain
            return None
        return PackedPage(page, *values, length, LENGTH_BYTES)

    def pick(self, packed: PackedPage, dictionary: Dictionary | None, rows: Sequence[int]) -> pa.Array | None:
        """The values of a few ascending ``rows`` of an opened page; None if the page has to be decoded.

        Raises:
            CorruptFileError: an index points outside the dictionary.
        """
        if self._gives_dictionary:
            return None
        if not packed.is_indices:
            return in_structs(packed.plain(rows, self._value_type), self.arrow_type, self._depth)
        indices = packed.indices(rows)
        if indices is None or dictionary is None:
            return None
        values = dictionary.values
        if max(indices) >= len(values):
            raise CorruptFileError("a dictionary index is outside the dictionary", column=self.leaf.dotted)
        # copies, as a slice would hold on to all of the dictionary; less work than a take
        picked = pa.concat_arrays([values.slice(index, 1) for index in indices])
        return in_structs(picked, self.arrow_type, self._depth)

    def _decode_run(
        self,
        chunk: ColumnChunk,
        dictionary: Dictionary | None,
        run: Sequence[DataPage],
        encoded: bool,
        limits: DecodeLimits,
    ) -> LeafArray:
        num_rows = run[-1].stop_row - run[0].first_row
        data = [page.data for page in run]
        if not encoded:
            return LeafArray(run[0].first_row, self._read_values(chunk, data, num_rows, limits), None)
        if dictionary is None:
            raise CorruptFileError("dictionary-encoded pages without a dictionary page", column=self.leaf.dotted)
        indices = self._read(self._index_template(chunk), dictionary.identity_page, data, num_rows, limits)
        return LeafArray(run[0].first_row, indices, dictionary.values)

    def dense(self, array: LeafArray, limits: DecodeLimits) -> pa.Array:
        """The values of ``array`` in the column's own type; dictionary indices are expanded.

        Raises:
            CorruptFileError: an index points outside the dictionary.
            ResourceLimitError: the expanded values would be larger than allowed.
        """
        values = array.values
        try:
            if array.dictionary is None:
                return self._as_asked(values)
            if self._gives_dictionary:
                return self._as_asked(pa.DictionaryArray.from_arrays(values, array.dictionary))
            indices = leaf_values(values, self._depth)
            self._size.check_expansion(array.dictionary, indices, limits.max_decoded_bytes)
            return in_structs(take(array.dictionary, indices), self.arrow_type, self._depth, values)
        except (pa.ArrowException, OverflowError) as error:
            raise self._expansion_error(error) from error

    def _expansion_error(self, error: Exception) -> AsyncpqError:
        return typed_error(error, "dictionary indices cannot be expanded").locate(column=self.leaf.dotted)

    def _as_asked(self, values: pa.Array) -> pa.Array:
        """``values`` as dictionary array of the asked type, where the column comes so and they do not."""
        if not self._gives_dictionary or values.type == self.arrow_type:
            return values
        if not pa.types.is_dictionary(values.type):
            values = values.cast(self.arrow_type.value_type).dictionary_encode()
        return values.cast(self.arrow_type)

    # -- inside -----------------------------------------------------------------------------------

    def _data_header(self, page: DataPage, chunk: ColumnChunk, limits: DecodeLimits) -> PageHeader:
        """The header of a page that must be a data page with the planned rows."""
        header = page_header(page.data, chunk, self.leaf, limits.max_page_bytes, page.header)
        if header.type is PageType.DICTIONARY_PAGE or header.type is PageType.INDEX_PAGE:
            raise PageLocationError(f"a {header.type.name} where a data page belongs", column=self.leaf.dotted)
        if header.num_values != page.num_rows:
            raise PageLocationError(
                f"the page of rows {page.first_row}-{page.stop_row - 1} holds {header.num_values} rows",
                column=self.leaf.dotted,
            )
        if self.drop is not None and (what := header_contradiction(header, chunk, repeated=False)):
            self.drop(what)
        if limits.verify_crc:
            check_crc_alike(self._has_crc, header, chunk, self.leaf)
        return header

    def _read_values(self, chunk: ColumnChunk, pages: Sequence[bytes], num_rows: int, limits: DecodeLimits) -> pa.Array:
        """Decode pages of values. Decimals without bytes are 0, which pyarrow does not read: they are given one."""
        try:
            return self._read(self._plain_template(chunk), b"", pages, num_rows, limits)
        except CorruptFileError:
            leaf, logical = self.leaf, self.leaf.logical_type
            if (
                logical is None
                or logical.kind is not LogicalKind.DECIMAL
                or leaf.physical_type != PhysicalType.BYTE_ARRAY
            ):
                raise
            array = self._read(bytes_template(self._metadata, leaf, chunk), b"", pages, num_rows, limits)
            found = leaf_values(array, self._depth)
            is_empty = pc.equal(pc.binary_length(found), 0)
            if not pc.any(is_empty).as_py():
                raise
        array = in_structs(pc.if_else(is_empty, b"\0", found), array.type, self._depth, array)
        top = self._metadata.schema.elements[(*leaf.ancestor_indexes, leaf.element_index)[0]]
        plain = plain_pages(array, nullable=top.repetition is Repetition.OPTIONAL)
        written = chunk._replace(codec=Codec.UNCOMPRESSED, encodings=(Encoding.PLAIN, Encoding.RLE))
        return self._read(self._plain_template(written), b"", [plain], num_rows, limits)

    def _read(
        self,
        template: FooterTemplate,
        dictionary_page: bytes,
        pages: Sequence[bytes],
        num_rows: int,
        limits: DecodeLimits,
    ) -> pa.Array:
        """Splice, decode, and hold the row count to what was planned."""
        file = template.splice(dictionary_page, pages, num_values=num_rows + 1, num_rows=num_rows + 1)
        try:
            column = read_column(file, verify_crc=limits.verify_crc, int96_unit=self._metadata.int96_unit)
        except AsyncpqError as error:
            raise error.locate(column=self.leaf.dotted) from error.__cause__
        if len(column) != num_rows:
            raise CorruptFileError(
                f"pages planned to hold {num_rows} rows hold {'more' if len(column) > num_rows else len(column)}",
                column=self.leaf.dotted,
            )
        try:
            return join(column.chunks, column.type)
        except pa.ArrowException as error:
            raise typed_error(error, "pages cannot be put together").locate(column=self.leaf.dotted) from error

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


def reads_alone(version: FileVersion, leaf: int, allowed_extensions: frozenset[str]) -> bool:
    """Whether a leaf has a decoder of its own: flat columns, and leaves that have just structs above them.

    Args:
        leaf: its ordinal.
    """
    if version.metadata.schema.leaves[leaf].is_flat:
        return True
    return version.derived(
        ("alone", leaf, allowed_extensions), lambda: _path_type(version, leaf, allowed_extensions) is not None, 200
    )


def _path_type(version: FileVersion, ordinal: int, allowed_extensions: frozenset[str]) -> pa.DataType | None:
    """The type of a leaf's field cut to the leaf, where the leaf reads alone."""
    schema = version.metadata.schema
    leaf = schema.leaves[ordinal]
    (kind,) = field_types(version, [leaf.field_index], allowed_extensions)
    if leaf.is_flat:
        return kind.arrow.type
    field = schema.fields[leaf.field_index]
    if len(leaf_types(kind.arrow.type)) != field.leaf_stop - field.first_leaf:
        return None
    return path_type(kind.arrow.type, field.first_leaf, leaf)


def leaf_decoder(
    version: FileVersion, leaf: int, allowed_extensions: frozenset[str], *, as_dictionary: bool = False
) -> LeafDecoder:
    """The decoder of a leaf that :func:`reads_alone`.

    Args:
        leaf: its ordinal.
        as_dictionary: values of a flat column come as :func:`dictionary_type` says.
    """

    def make() -> LeafDecoder:
        schema_leaf = version.metadata.schema.leaves[leaf]
        (kind,) = field_types(version, [schema_leaf.field_index], allowed_extensions)
        type_ = _path_type(version, leaf, allowed_extensions)
        arrow_schema = kind.arrow_schema
        if arrow_schema is not None and not schema_leaf.is_flat:
            arrow_schema = encode_schema(pa.schema([pa.field(schema_leaf.path[0], type_, kind.arrow.nullable)]))
        kind_asked = dictionary_type(type_) if as_dictionary else type_
        drop = partial(version.drop, leaf)
        return LeafDecoder(version.metadata, schema_leaf, kind_asked, arrow_schema, drop=drop)

    return version.derived(("decoder", leaf, allowed_extensions, as_dictionary), make, weight=4000)
