"""How much the items of a unit may decode to, told without decoding any.

An upper bound, coarse and cheap: by it is decided whether the event loop may decode a unit itself.
What may be decoded at all is held to exact sizes later (``decoded_size``, ``leaf_size``).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from asyncpq.decoding.decoded_size import (
    ENCODING_DELTA_BYTE_ARRAY,
    LEVEL_BITS,
    OFFSET_BITS,
    has_lengths,
    leaf_types,
    value_bits,
)
from asyncpq.decoding.page import Dictionary, LeafArray
from asyncpq.decoding.row_access import PackedPage
from asyncpq.decoding.types import field_types
from asyncpq.errors import FormatError
from asyncpq.fetching.version import FileVersion
from asyncpq.format.column_chunk import DICTIONARY_ENCODINGS
from asyncpq.format.page_header import NeedMore, PageHeader, decode_page_header
from asyncpq.planning.read_plan import Item, RowGroupPlan

UNKNOWN = 1 << 62


class _Slot(NamedTuple):
    """What one value of a leaf takes.

    Attributes:
        bits: with its levels, and all slots that a null above it may take.
        has_lengths: values differ in size; ``bits`` are without their bytes.
        repeated: a row may have several.
    """

    bits: int
    has_lengths: bool
    repeated: bool


class _Content(NamedTuple):
    """What stands in a page or chunk.

    Attributes:
        num_values: nulls included.
        size: bytes, uncompressed.
        indexed: values may be indices into a dictionary.
        delta: they may be DELTA_BYTE_ARRAY.
    """

    num_values: int
    size: int
    indexed: bool
    delta: bool


class ExpectedSize:
    """Bounds for the items of one row group.

    Attributes:
        headers: of the pages that were looked at; each is taken out where the page is used.
    """

    def __init__(self, version: FileVersion, plan: RowGroupPlan, allowed_extensions: frozenset[str]) -> None:
        self.headers: dict[Item, PageHeader] = {}
        self._version = version
        self._plan = plan
        self._extensions = allowed_extensions
        self._largest: dict[int, int] = {}  # bytes of the largest value in a column's dictionary, by position

    def of(self, items: Sequence[Item], values: Iterator[object]) -> int:
        """At most what ``items`` decode to, in bytes.

        Args:
            items: in row order within each column, dictionaries first.
            values: their content, as fetched, or decoded before; others' may follow.
        """
        total = 0
        wanted = self._plan.rows.num_rows
        for item, value in zip(items, values, strict=False):
            if isinstance(value, Dictionary):
                self._largest[item.column] = value.largest
                total += value.values.nbytes  # comes out itself, where values come as dictionary arrays
                continue
            content = self._content(item, value)
            if content is None:
                total = UNKNOWN
                continue
            total += content.size
            if item.kind == "dictionary":
                self._largest[item.column] = content.size
                continue
            slot = self._slot(item.leaf)
            total += content.num_values * slot.bits // 8
            if content.indexed and slot.has_lengths:
                largest = content.size if item.kind == "part" else self._largest.get(item.column, UNKNOWN)
                total += largest * (content.num_values if slot.repeated else min(content.num_values, wanted))
            if content.delta:
                total += content.size * content.num_values
        return total

    def _content(self, item: Item, value: object) -> _Content | None:
        """None if it cannot be told."""
        if isinstance(value, LeafArray):
            held: int = value.values.get_total_buffer_size()  # may be copied
            return _Content(len(value.values), held, value.lacks_dictionary, False)
        if isinstance(value, PackedPage):
            return _Content(item.num_rows, len(value.content), value.is_indices, False)
        if not isinstance(value, bytes):
            return None
        if item.kind == "part":
            chunk = self._version.chunk(self._plan.ordinal, item.leaf)
            return _chunk_content(value) if len(value) == chunk.stop - chunk.start else None
        try:
            header = decode_page_header(value, complete=True)
        except FormatError:  # is raised again where the page is decoded
            return None
        if isinstance(header, NeedMore):
            return None
        if item.kind == "page":
            self.headers[item] = header
        encoding = header.encoding
        return _Content(
            header.num_values,
            header.uncompressed_size,
            encoding in DICTIONARY_ENCODINGS,
            encoding == ENCODING_DELTA_BYTE_ARRAY,
        )

    def _slot(self, leaf: int) -> _Slot:
        return self._version.derived(("slot", leaf, self._extensions), lambda: self._make_slot(leaf), 200)

    def _make_slot(self, ordinal: int) -> _Slot:
        schema = self._version.metadata.schema
        leaf = schema.leaves[ordinal]
        field = schema.fields[leaf.field_index]
        (kind,) = field_types(self._version, [field.index], self._extensions)
        kinds = leaf_types(kind.arrow.type)
        if len(kinds) != field.leaf_stop - field.first_leaf:
            return _Slot(UNKNOWN, True, True)  # refused where it is decoded
        value, slots = kinds[ordinal - field.first_leaf]
        bits = value_bits(value) + len(leaf.path) + LEVEL_BITS + (LEVEL_BITS + OFFSET_BITS) * leaf.max_repetition_level
        return _Slot(bits * slots, has_lengths(value), leaf.max_repetition_level > 0)


def _chunk_content(chunk: bytes) -> _Content | None:
    """What stands in a whole chunk, by its page headers: footers may claim other sizes. None if it cannot be told."""
    num_values = size = at = 0
    indexed = delta = False
    while at < len(chunk):
        try:
            header = decode_page_header(chunk, at, complete=True)
        except FormatError:  # is raised again where the chunk is decoded
            return None
        if isinstance(header, NeedMore):
            return None
        at += header.page_size
        size += header.uncompressed_size
        if header.is_data:
            num_values += header.num_values
            indexed |= header.encoding in DICTIONARY_ENCODINGS
            delta |= header.encoding == ENCODING_DELTA_BYTE_ARRAY
    return _Content(num_values, size, indexed, delta)
