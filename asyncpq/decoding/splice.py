"""Page splicing: chosen pages are put into a small Parquet file, which pyarrow decodes.

The file has the magic, the pages, and a footer made here (parquet.thrift, FileMetaData). pyarrow silently stops at the
footer's row count, so it is the planned count plus one: then too many rows show as well as too few.

``FooterTemplate`` makes files of one leaf. ``FieldTemplate`` makes files of a top-level field: the schema and a column
chunk for every leaf, but pages only in the leaves to read. pyarrow, asked for these leaves alone, gives the field cut
to them, with the types of the original file. Each leaf may bring pages of other rows, since pyarrow reads a leaf until
its pages end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import pyarrow as pa

from asyncpq.decoding import kernels
from asyncpq.decoding.arrow import compress
from asyncpq.errors import UnsupportedFeatureError
from asyncpq.parquet.chunk_pages import PAGE_HEADER_FIELDS
from asyncpq.parquet.column_chunk import ColumnChunk, Encoding, PageType
from asyncpq.parquet.logical_types import ConvertedType, LogicalKind, PhysicalType, Repetition
from asyncpq.parquet.metadata import MAGIC, FileMetadata
from asyncpq.parquet.schema import Field, Leaf, SchemaElement
from asyncpq.parquet.thrift import BINARY, FALSE, I32, STRUCT, CompactWriter, varint, zigzag_varint
from asyncpq.pruning.zone_maps import GEOMETRIES
from asyncpq.records import NamedTuple

CODEC_NAMES = {1: "snappy", 2: "gzip", 4: "brotli", 5: "lz4_raw", 6: "zstd", 7: "lz4_raw"}

_MARK = 0x5A5A5A5A5A5A  # replaced by a count or an offset; 7 bytes as a varint, never a real value
_MARK_BYTES = zigzag_varint(_MARK)
_REPETITION_FIELD = b"\x05\x06"  # the header of an I32 with the field id 3 in its long form
SHARED_VALUES = 1 << 16
_POOLED_BYTES = 1 << 18  # larger spliced files are in memory of Arrow's pool


class FooterTemplate:
    """Makes spliced files: Parquet files in memory of some pages of one leaf column, which pyarrow decodes. The
    template is their footer without its counts and sizes.

    ``schema_elements`` are the ``num_elements`` Thrift structs of the schema, root first. ``physical_type``, ``codec``
    and ``encodings`` are numbers of Parquet's enums; ``path`` has the names down to the leaf. The footer names the
    file's writer ``created_by``, since pyarrow works around known defects of old writers' pages.
    """

    def __init__(
        self,
        *,
        schema_elements: bytes,
        num_elements: int,
        physical_type: int,
        path: Sequence[bytes],
        codec: int,
        encodings: Sequence[int],
        arrow_schema: bytes | None,
        created_by: str | None,
    ) -> None:
        def parts(dictionary_offset: int | None) -> list[bytes]:
            counts = (_MARK, _MARK, _MARK, _MARK)
            chunk = _column_chunk(physical_type, path, codec, encodings, counts, dictionary_offset)
            group = _row_group([chunk], _MARK, _MARK)
            footer = _file_metadata(schema_elements, num_elements, [group], _MARK, arrow_schema, created_by=created_by)
            return _split(footer, 8)

        self._with_dictionary = parts(len(MAGIC))
        self._without = parts(None)

    def splice(
        self, dictionary_page: bytes, pages: Sequence[bytes | memoryview], *, num_values: int, num_rows: int
    ) -> bytes | pa.Buffer:
        """Return a file of ``pages`` and a ``dictionary_page`` (b"" if absent), each with its header.

        ``num_values`` and ``num_rows`` go into the footer. Pass one more than the pages should have: pyarrow then
        decodes what there is, and the caller sees a page with too many rows as well as one with too few.
        """
        body = sum(map(len, pages)) + len(dictionary_page)
        size = zigzag_varint(body)
        rows = zigzag_varint(num_rows)
        template = self._with_dictionary if dictionary_page else self._without
        counts = (
            rows,
            zigzag_varint(num_values),
            size,  # pyarrow ignores the uncompressed size when it decodes pages
            size,
            zigzag_varint(len(MAGIC) + len(dictionary_page)),
            size,
            rows,
        )
        footer = bytearray(template[0])
        for count, constant in zip(counts, template[1:], strict=True):
            footer += count
            footer += constant
        return _joined((MAGIC, dictionary_page, *pages, footer, len(footer).to_bytes(4, "little"), MAGIC))


def _joined(parts: Sequence[bytes | bytearray | memoryview]) -> bytes | pa.Buffer:
    """Join the parts of a file. A large file is made in memory of Arrow's pool.

    The pool gives memory that was used before. A scan of 394 MB first touched 87 MB of new memory for such files, which
    took a quarter of its CPU.
    """
    size = sum(map(len, parts))
    if size < _POOLED_BYTES:
        return b"".join(parts)
    buffer = pa.allocate_buffer(size)
    view = memoryview(buffer).cast("B")
    start = 0
    for part in parts:
        stop = start + len(part)
        view[start:stop] = part
        start = stop
    return buffer


class WholeChunk(NamedTuple):
    """A whole column chunk of a leaf column that is not repeated, to be put into a spliced file."""

    chunk: ColumnChunk
    data: bytes | memoryview  # its pages, with their headers
    dictionary_bytes: int  # of those, the dictionary page; 0 for none
    num_rows: int


class ChunksTemplate:
    """Makes spliced files of one flat leaf column, with a row group for each of many chunks.

    The chunks may be of different files with the same schema and writer. Each row group has exactly the rows that it
    claims: their page headers must claim as many, since pyarrow silently leaves out further ones.
    """

    def __init__(self, metadata: FileMetadata, leaf: Leaf, arrow_schema: bytes | None) -> None:
        self._leaf = leaf
        self._elements = root_element(1) + raw_element(metadata, leaf.element_index)
        self._arrow_schema = arrow_schema
        self._created_by = written_by(metadata)
        self._row_groups: dict[tuple[int, tuple[int, ...], bool], list[bytes]] = {}

    def splice(self, chunks: Sequence[WholeChunk]) -> bytes | pa.Buffer:
        """Make a file of ``chunks``, with a row group for each."""
        body: list[bytes | memoryview] = [MAGIC]
        groups: list[bytes] = []
        position, total = len(MAGIC), 0
        for chunk, data, dictionary_bytes, num_rows in chunks:
            size, rows = zigzag_varint(len(data)), zigzag_varint(num_rows)
            counts = [rows, size, size, zigzag_varint(position + dictionary_bytes), size, rows, b""]
            if dictionary_bytes:
                counts.insert(4, zigzag_varint(position))
            constants = self._row_group(chunk, has_dictionary=dictionary_bytes > 0)
            groups.append(b"".join([part for pair in zip(constants, counts, strict=True) for part in pair]))
            body.append(data)
            position += len(data)
            total += num_rows
        footer = _file_metadata(self._elements, 2, groups, total, self._arrow_schema, created_by=self._created_by)
        return _joined((*body, footer, len(footer).to_bytes(4, "little"), MAGIC))

    def _row_group(self, chunk: ColumnChunk, *, has_dictionary: bool) -> list[bytes]:
        """Return the constant parts of a row group with a chunk like ``chunk``, between its counts."""
        key = (chunk.codec, chunk.encodings, has_dictionary)
        parts = self._row_groups.get(key)
        if parts is None:
            counts = (_MARK, _MARK, _MARK, _MARK)
            offset = _MARK if has_dictionary else None
            path = _path(self._leaf)
            encoded = _column_chunk(chunk.physical_type, path, chunk.codec, chunk.encodings, counts, offset)
            parts = self._row_groups[key] = _split(_row_group([encoded], _MARK, _MARK), 8 if has_dictionary else 7)
        return parts


def _split(template: bytes, num_parts: int) -> list[bytes]:
    """Return the parts of ``template`` between its marks. Raises UnsupportedFeatureError if it has other marks."""
    parts = template.split(_MARK_BYTES)
    if len(parts) != num_parts:  # a name, a schema or a writer's text happens to contain the mark
        raise UnsupportedFeatureError(
            "a name, type or writer in this file contains a byte sequence that asyncpq reserves"
        )
    return parts


def leaf_template(metadata: FileMetadata, leaf: Leaf, chunk: ColumnChunk, arrow_schema: bytes | None) -> FooterTemplate:
    """Return the template for data pages of a leaf column that is not repeated, to be decoded to its own type, inside
    its structs.

    Encodings and codec come from ``chunk``; a chunk with other encodings or another codec needs its own template.
    """
    element = raw_element(metadata, leaf.element_index)
    encodings = (*chunk.encodings, Encoding.PLAIN)  # of a dictionary that is made a data page
    return _template(metadata, leaf, chunk.codec, element, chunk.physical_type, encodings, arrow_schema)


def bytes_template(metadata: FileMetadata, leaf: Leaf, chunk: ColumnChunk) -> FooterTemplate:
    """Return the template for data pages of byte arrays, to be decoded to binary without their logical type."""
    element = bare_element(metadata, leaf.element_index)
    return _template(metadata, leaf, chunk.codec, element, chunk.physical_type, (*chunk.encodings, Encoding.PLAIN))


def index_template(metadata: FileMetadata, leaf: Leaf, chunk: ColumnChunk) -> FooterTemplate:
    """Return the template for dictionary-encoded data pages, to be decoded to their int32 dictionary indices."""
    element = schema_element(_path(leaf)[-1], leaf.element.repetition, PhysicalType.INT32)
    encodings = (Encoding.PLAIN, Encoding.RLE, Encoding.RLE_DICTIONARY, Encoding.PLAIN_DICTIONARY)
    return _template(metadata, leaf, chunk.codec, element, PhysicalType.INT32, encodings)


def required_template(
    physical_type: PhysicalType, codec: int, encoding: int, *, type_length: int | None = None
) -> FooterTemplate:
    """Return the template for pages of a required column of no file; ``type_length``: of fixed-size byte arrays."""
    element = schema_element(b"x", Repetition.REQUIRED, physical_type, type_length=type_length)
    return FooterTemplate(
        schema_elements=root_element(1) + element,
        num_elements=2,
        physical_type=physical_type,
        path=(b"x",),
        codec=codec,
        encodings=(encoding, Encoding.RLE),
        arrow_schema=None,
        created_by=None,
    )


def _template(
    metadata: FileMetadata,
    leaf: Leaf,
    codec: int,
    element: bytes,
    physical_type: int,
    encodings: Sequence[int],
    arrow_schema: bytes | None = None,
) -> FooterTemplate:
    """Return the template of a leaf in its structs; ``element`` is the leaf's encoded schema element."""
    return FooterTemplate(
        schema_elements=_above(metadata, leaf) + element,
        num_elements=1 + len(leaf.path),
        physical_type=physical_type,
        path=_path(leaf),
        codec=codec,
        encodings=encodings,
        arrow_schema=arrow_schema,
        created_by=written_by(metadata),
    )


def page_bytes(
    page_type: PageType,
    uncompressed_size: int,
    payload: bytes | memoryview,
    numbers: Sequence[int],
    *,
    compressed: bool = True,
) -> bytes:
    """Return a page with a header; ``numbers`` are the fields of the page type's own header struct, from field 1 on.

    Only a V2 data page, with all of its numbers, may be not ``compressed`` in a chunk with a codec.
    """
    writer = CompactWriter()
    for field_id, number in enumerate((page_type, uncompressed_size, len(payload)), 1):
        writer.field_i32(field_id, number)
    writer.begin_struct(PAGE_HEADER_FIELDS[page_type])
    for field_id, number in enumerate(numbers, 1):
        writer.field_i32(field_id, number)
    if not compressed:
        writer.field_raw(7, FALSE, b"")
    writer.end_struct()
    return writer.getvalue() + payload


def plain_page(rep_levels: bytes, def_levels: bytes, values: bytes | memoryview, counts: tuple[int, int, int]) -> bytes:
    """Return a PLAIN V2 data page that is not compressed, whatever the codec of its chunk. ``counts`` are its numbers
    of values, nulls and rows."""
    payload = b"".join((rep_levels, def_levels, values))
    numbers = (*counts, Encoding.PLAIN, len(def_levels), len(rep_levels))
    return page_bytes(PageType.DATA_PAGE_V2, len(payload), payload, numbers, compressed=False)


def dictionary_as_data_page(
    payload: bytes | memoryview, *, num_values: int, uncompressed_size: int, level: int
) -> bytes:
    """Return a dictionary page's payload as a V2 data page that contains each value once.

    A dictionary page has only PLAIN values. A V2 data page has its levels outside the compressed part, so the payload
    stays as it is, after the levels "all present" if the leaf's definition ``level`` is not 0.
    """
    levels = varint(num_values << 1) + bytes((level,)) if level else b""
    numbers = (num_values, 0, num_values, Encoding.PLAIN, len(levels), 0)  # values, nulls, rows, ..., levels' bytes
    return page_bytes(PageType.DATA_PAGE_V2, uncompressed_size + len(levels), levels + payload, numbers)


def identity_dictionary(codec: int, num_values: int) -> bytes:
    """Return a dictionary page in which each int32 value is its own index, so that pages decode to their indices. It
    has at least ``num_values`` values, and is compressed with ``codec``.

    Small pages are shared by all dictionaries. Their sizes are powers of two up to 65,536, which take 512 KiB for each
    codec.
    """
    if num_values <= SHARED_VALUES:
        return _shared_identity(codec, 1 << max(3, (num_values - 1).bit_length()))
    return _identity_dictionary(codec, num_values)


@lru_cache(maxsize=128)  # never full: 14 sizes, 7 codecs
def _shared_identity(codec: int, size: int) -> bytes:
    return _identity_dictionary(codec, size)


def _identity_dictionary(codec: int, size: int) -> bytes:
    values = kernels.cast(pa.arange(0, size), pa.int32()).buffers()[1].slice(0, 4 * size)
    payload = compress(CODEC_NAMES[codec], values) if codec in CODEC_NAMES else values.to_pybytes()
    return page_bytes(PageType.DICTIONARY_PAGE, 4 * size, payload, (size, Encoding.PLAIN))


def schema_file(
    metadata: FileMetadata, fields: Sequence[Field], arrow_schema: bytes | None, *, geometries: bool = False
) -> bytes:
    """Return a Parquet file without rows whose schema has the top-level ``fields``, from which pyarrow reads their
    Arrow types. ``geometries``: keep the GEOMETRY and GEOGRAPHY annotations (:func:`raw_element`)."""
    element = stored_element if geometries else raw_element
    elements = [
        element(metadata, index)
        for field in fields
        for index in range(field.element_index, metadata.schema.subtree_stop(field.element_index))
    ]
    pairs = {key: value for key, value in metadata.key_value_metadata.items() if key != "ARROW:schema"}
    schema = b"".join((root_element(len(fields)), *elements))
    footer = _file_metadata(schema, len(elements) + 1, (), 0, arrow_schema, pairs=pairs)
    return b"".join((MAGIC, footer, len(footer).to_bytes(4, "little"), MAGIC))


def written_by(metadata: FileMetadata) -> str | None:
    """Return the writer's name for the footers of spliced files; None for writers with PARQUET-816, for which pyarrow
    would read past the chunks."""
    return None if metadata.writer_faults.omits_dictionary_header else metadata.created_by


def raw_element(metadata: FileMetadata, index: int) -> bytes:
    """Return the Thrift struct of the schema element at ``index``, as :func:`stored_element` does, but without the
    annotations GEOMETRY and GEOGRAPHY: from these pyarrow makes the extension type "geoarrow.wkb", if Python code
    registered one.
    """
    element = metadata.schema.elements[index]
    logical = element.logical_type
    if logical is None or logical.kind not in GEOMETRIES or element.physical_type is None:
        return stored_element(metadata, index)
    return schema_element(element.name.encode(), element.repetition, element.physical_type, element.field_id)


def stored_element(metadata: FileMetadata, index: int) -> bytes:
    """Return the Thrift struct of the schema element at ``index``, as encoded in the file, but keys of maps as
    REQUIRED: Arrow has no other keys, and their values are checked. A group with an annotation that asyncpq does not
    know, such as FILE, has none, since pyarrow refuses it, nor has the repeated group of a list that Tableau Hyper
    calls a LIST, too. An interval has no logical type: pyarrow reads the UNKNOWN that parquet-java writes as a column
    of nulls."""
    element = metadata.schema.elements[index]
    logical = element.logical_type
    if element.physical_type is None and logical is not None and logical.kind is LogicalKind.UNRECOGNISED:
        return _group_element(element, element.num_children, element.converted_type)
    if index in metadata.schema.repeated_groups_as_lists:
        return _group_element(element, element.num_children)
    if element.physical_type is not None and logical is not None and logical.kind is LogicalKind.INTERVAL:
        return schema_element(
            element.name.encode(),
            element.repetition,
            element.physical_type,
            element.field_id,
            type_length=element.type_length,
            converted=element.converted_type,
        )
    raw = metadata.data[element.raw_start : element.raw_stop]
    return _with_repetition(raw, Repetition.REQUIRED) if index in metadata.schema.optional_map_keys else raw


def _with_repetition(element: bytes, repetition: Repetition) -> bytes:
    """Return the Thrift struct of a schema element with another repetition: a repeated field overrides an earlier
    one."""
    return element[:-1] + _REPETITION_FIELD + zigzag_varint(repetition) + b"\0"


def root_element(num_children: int) -> bytes:
    """Encode a schema root with ``num_children`` fields."""
    writer = CompactWriter()
    writer.field_binary(4, b"schema")
    writer.field_i32(5, num_children)
    return writer.getvalue()


def bare_element(metadata: FileMetadata, index: int) -> bytes:
    """Return the Thrift struct of the schema element at ``index``; for a byte array, without the logical type."""
    element = metadata.schema.elements[index]
    if element.physical_type != PhysicalType.BYTE_ARRAY:
        return raw_element(metadata, index)
    return schema_element(element.name.encode(), element.repetition, PhysicalType.BYTE_ARRAY)


def _group_element(element: SchemaElement, num_children: int, converted: ConvertedType | None = None) -> bytes:
    """Encode the schema element of a group without a logical type."""
    return schema_element(
        element.name.encode(),
        element.repetition,
        None,
        element.field_id,
        num_children=num_children,
        converted=converted,
    )


def _above(metadata: FileMetadata, leaf: Leaf) -> bytes:
    """Encode the schema elements above a leaf column: root and groups, each with one child, without logical types."""
    elements = [root_element(1)]
    elements += [
        _group_element(metadata.schema.elements[index]._replace(field_id=None), 1) for index in leaf.ancestor_indexes
    ]
    return b"".join(elements)


def schema_element(
    name: bytes,
    repetition: Repetition | None,
    physical_type: PhysicalType | None,
    field_id: int | None = None,
    *,
    type_length: int | None = None,
    num_children: int | None = None,
    converted: ConvertedType | None = None,
) -> bytes:
    """Encode a schema element without a logical type: of a leaf, or with ``num_children`` of a group."""
    writer = CompactWriter()
    if physical_type is not None:
        writer.field_i32(1, physical_type)
    if type_length is not None:
        writer.field_i32(2, type_length)
    writer.field_i32(3, Repetition.REQUIRED if repetition is None else repetition)
    writer.field_binary(4, name)
    if num_children is not None:
        writer.field_i32(5, num_children)
    if converted is not None:
        writer.field_i32(6, converted)
    if field_id is not None:
        writer.field_i32(9, field_id)
    return writer.getvalue()


def _path(leaf: Leaf) -> tuple[bytes, ...]:
    return tuple(name.encode() for name in leaf.path)


def _row_group(chunks: Sequence[bytes], num_bytes: int, num_rows: int) -> bytes:
    """Encode a RowGroup struct with ``chunks``, which are encoded."""
    writer = CompactWriter()
    writer.field_list(1, STRUCT, len(chunks))
    writer.raw(b"".join(chunks))
    writer.field_i64(2, num_bytes)
    writer.field_i64(3, num_rows)
    return writer.getvalue()


def _file_metadata(
    elements: bytes,
    num_elements: int,
    row_groups: Sequence[bytes],
    num_rows: int,
    arrow_schema: bytes | None,
    *,
    created_by: str | None = None,
    pairs: Mapping[str, str | None] | None = None,
) -> bytes:
    """Encode FileMetaData with ``row_groups``, which are encoded; ``pairs`` is other key-value metadata."""
    writer = CompactWriter()
    writer.field_i32(1, 2)  # version
    writer.field_list(2, STRUCT, num_elements)
    writer.raw(elements)
    writer.field_i64(3, num_rows)
    writer.field_list(4, STRUCT, len(row_groups))
    writer.raw(b"".join(row_groups))
    texts = {key: None if value is None else _encoded(value) for key, value in (pairs or {}).items()}
    if arrow_schema is not None:
        texts["ARROW:schema"] = arrow_schema
    if texts:
        writer.field_list(5, STRUCT, len(texts))
    for key, value in texts.items():
        writer.begin_element()
        writer.field_binary(1, key.encode())
        if value is not None:
            writer.field_binary(2, value)
        writer.end_struct()
    if created_by is not None:
        writer.field_binary(6, _encoded(created_by))
    return writer.getvalue()


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


class LeafContent(NamedTuple):
    """The pages of one leaf column that are put into a spliced file."""

    chunk: ColumnChunk
    dictionary: bytes  # a dictionary page with its header; empty for none
    pages: Sequence[bytes | memoryview]  # data pages with their headers
    num_values: int  # values in ``pages``, by their headers


class FieldTemplate:
    """Makes spliced files of one top-level field: their footer without counts and sizes.

    In a field with a map whose key is OPTIONAL, maps are lists of structs: pyarrow refuses the map, and the pages have
    the levels of an optional key.
    """

    def __init__(self, metadata: FileMetadata, field: Field, arrow_schema: bytes | None, *, bare: bool = False) -> None:
        self._leaves = metadata.schema.leaves[field.first_leaf : field.leaf_stop]
        first, stop = field.element_index, metadata.schema.subtree_stop(field.element_index)
        element = bare_element if bare else raw_element
        elements = [element(metadata, index) for index in range(first, stop)]
        if metadata.schema.has_optional_map_key(field):
            for index in metadata.schema.maps(first, stop):
                elements[index - first : index - first + 3] = _map_as_list(metadata, index, elements[index - first + 2])
        self._num_elements = len(elements) + 1
        self._elements = root_element(1) + b"".join(elements)
        self._without_pages = [_leaf_chunk(leaf, None, len(MAGIC)) for leaf in self._leaves]
        self._arrow_schema = arrow_schema
        self._created_by = written_by(metadata)
        self.int96_unit = metadata.int96_unit

    def splice(self, contents: Mapping[int, LeafContent], *, num_rows: int) -> bytes | pa.Buffer:
        """Return a file with the pages ``contents``, by the ordinal of their leaf column; others have no pages.

        ``num_rows`` must be larger than the number of rows in any leaf's pages.
        """
        body: list[bytes | memoryview] = [MAGIC]
        position = len(MAGIC)
        chunks: list[bytes] = []
        for leaf, empty in zip(self._leaves, self._without_pages, strict=True):
            content = contents.get(leaf.index)
            if content is None:
                chunks.append(empty)
                continue
            chunks.append(_leaf_chunk(leaf, content, position))
            body += (content.dictionary, *content.pages)
            position += len(content.dictionary) + sum(map(len, content.pages))
        footer = _file_metadata(
            self._elements,
            self._num_elements,
            [_row_group(chunks, position - len(MAGIC), num_rows)],
            num_rows,
            self._arrow_schema,
            created_by=self._created_by,
        )
        return _joined((*body, footer, len(footer).to_bytes(4, "little"), MAGIC))


def _map_as_list(metadata: FileMetadata, index: int, key: bytes) -> list[bytes]:
    """Encode the elements of a map, of its repeated group and of its ``key``, as those of a list of structs."""
    outer, repeated, element = metadata.schema.elements[index : index + 3]
    return [
        _group_element(outer, outer.num_children, ConvertedType.LIST),
        _group_element(repeated, repeated.num_children),
        _with_repetition(key, element.repetition or Repetition.REQUIRED),
    ]


def _leaf_chunk(leaf: Leaf, content: LeafContent | None, position: int) -> bytes:
    """Encode a ColumnChunk whose pages begin at ``position`` of the spliced file; without values if it has no pages."""
    path = _path(leaf)
    if content is None:
        return _column_chunk(leaf.physical_type, path, 0, (), (0, 0, 0, position), None)
    dictionary = len(content.dictionary)
    size = dictionary + sum(map(len, content.pages))
    counts = (content.num_values, size, size, position + dictionary)
    chunk = content.chunk
    offset = position if dictionary else None
    encodings = (*chunk.encodings, Encoding.PLAIN)  # of ALP pages
    return _column_chunk(leaf.physical_type, path, chunk.codec, encodings, counts, offset)


def _column_chunk(
    physical_type: int,
    path: Sequence[bytes],
    codec: int,
    encodings: Sequence[int],
    counts: tuple[int, int, int, int],
    dictionary_offset: int | None,
) -> bytes:
    """Encode a ColumnChunk struct.

    ``counts`` are the chunk's number of values, uncompressed size (which pyarrow ignores when it decodes pages), size
    in bytes, and the offset of its first data page.
    """
    encodings = [encoding for encoding in encodings if encoding != Encoding.ALP]  # such pages come as PLAIN
    writer = CompactWriter()
    writer.field_i64(2, 0)
    writer.begin_struct(3)  # ColumnMetaData
    writer.field_i32(1, physical_type)
    writer.field_list(2, I32, len(encodings))
    for encoding in encodings:
        writer.element_i32(encoding)
    writer.field_list(3, BINARY, len(path))
    for name in path:
        writer.element_binary(name)
    writer.field_i32(4, codec)
    for field_id, count in zip((5, 6, 7, 9), counts, strict=True):
        writer.field_i64(field_id, count)
    if dictionary_offset is not None:
        writer.field_i64(11, dictionary_offset)
    writer.end_struct()
    return writer.getvalue()
