"""Pages of the leaves of one top-level field, put into a small Parquet file that pyarrow decodes.

The file has the whole field's schema and a column chunk for every leaf of it, but pages only in those that
are to be read: pyarrow, asked for just these leaves, gives the field cut to them, with the types that it
would give in the file itself. Each leaf may bring pages of other rows than the next one: pyarrow reads a leaf
until its pages end, if the footer claims more rows than they hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from asyncpq.decoding.splice import MAGIC, bare_element, key_values, raw_element, root_element, subtree_size, written_by
from asyncpq.format.metadata import ColumnChunk, FileMetadata
from asyncpq.format.schema import Field, Leaf
from asyncpq.format.thrift import BINARY, I32, STRUCT, CompactWriter


class LeafContent(NamedTuple):
    """What one leaf brings into a spliced file.

    Attributes:
        chunk: where its pages come from.
        dictionary: a dictionary page with its header; empty for none.
        pages: data pages with their headers.
        num_values: values in ``pages``, by their headers.
    """

    chunk: ColumnChunk
    dictionary: bytes
    pages: Sequence[bytes]
    num_values: int


class FieldTemplate:
    """All of a spliced file's footer that is the same for every choice of pages.

    Args:
        metadata: the footer of the file that the pages are from.
        field: a top-level field.
        arrow_schema: value of ``ARROW:schema`` for a file of this field alone, or None.
        bare: byte arrays are to have no logical type.
    """

    def __init__(self, metadata: FileMetadata, field: Field, arrow_schema: bytes | None, *, bare: bool = False) -> None:
        self._leaves = metadata.schema.leaves[field.first_leaf : field.leaf_stop]
        first, stop = field.element_index, field.element_index + subtree_size(metadata, field.element_index)
        element = bare_element if bare else raw_element
        elements = [element(metadata, index) for index in range(first, stop)]
        self._num_elements = len(elements) + 1
        self._elements = root_element(1) + b"".join(elements)
        self._without_pages = [_column_chunk(leaf, None, len(MAGIC)) for leaf in self._leaves]
        self._arrow_schema = arrow_schema
        self._created_by = written_by(metadata)
        self.int96_unit = metadata.int96_unit

    def splice(self, contents: Mapping[int, LeafContent], *, num_rows: int) -> bytes:
        """The small file.

        Args:
            contents: by leaf ordinal in the schema; a leaf that is not there has no pages.
            num_rows: what the footer is to claim: more than any leaf's pages hold.
        """
        body: list[bytes] = [MAGIC]
        position = len(MAGIC)
        chunks: list[bytes] = []
        for leaf, empty in zip(self._leaves, self._without_pages, strict=True):
            content = contents.get(leaf.index)
            if content is None:
                chunks.append(empty)
                continue
            chunks.append(_column_chunk(leaf, content, position))
            body += (content.dictionary, *content.pages)
            position += len(content.dictionary) + sum(map(len, content.pages))
        writer = CompactWriter()
        writer.field_i32(1, 2)
        writer.field_list(2, STRUCT, self._num_elements)
        writer.raw(self._elements)
        writer.field_i64(3, num_rows)
        writer.field_list(4, STRUCT, 1)
        writer.begin_element()
        writer.field_list(1, STRUCT, len(chunks))
        writer.raw(b"".join(chunks))
        writer.field_i64(2, position - len(MAGIC))
        writer.field_i64(3, num_rows)
        writer.end_struct()
        key_values(writer, self._arrow_schema)
        if self._created_by is not None:
            writer.field_binary(6, self._created_by.encode("utf-8", "surrogateescape"))
        footer = writer.getvalue()
        return b"".join((*body, footer, len(footer).to_bytes(4, "little"), MAGIC))


def _column_chunk(leaf: Leaf, content: LeafContent | None, position: int) -> bytes:
    """A ColumnChunk whose pages begin at ``position`` of the spliced file; without values where there are none."""
    chunk = None if content is None else content.chunk
    dictionary = 0 if content is None else len(content.dictionary)
    size = 0 if content is None else dictionary + sum(map(len, content.pages))
    encodings = () if chunk is None else chunk.encodings
    writer = CompactWriter()
    writer.field_i64(2, 0)
    writer.begin_struct(3)
    writer.field_i32(1, leaf.physical_type)
    writer.field_list(2, I32, len(encodings))
    for encoding in encodings:
        writer.element_i32(encoding)
    writer.field_list(3, BINARY, len(leaf.path))
    for name in leaf.path:
        writer.element_binary(name.encode())
    writer.field_i32(4, 0 if chunk is None else chunk.codec)
    writer.field_i64(5, 0 if content is None else content.num_values)
    writer.field_i64(6, size)  # the uncompressed size is not looked at when pages are decoded
    writer.field_i64(7, size)
    writer.field_i64(9, position + dictionary)
    if dictionary:
        writer.field_i64(11, position)
    writer.end_struct()
    return writer.getvalue()
