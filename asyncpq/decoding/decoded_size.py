"""How many bytes pages decode to, bounded before they are decoded.

The sizes in a file do not bound its decoded values: a dictionary index of a few bits stands for a whole value,
DELTA_BYTE_ARRAY repeats the front of the previous value, a run of levels stands for any number of nulls, and a null in
a fixed-size list takes the room of a list. If the claimed sizes give no bound, indices, prefix lengths or offsets are
decoded alone and summed. ``LeafSize`` and ``leaf_bounds`` check exactly; ``SizeEstimate`` is coarse and cheap.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa

from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import decompress, has_lengths, leaf_types, read_column, stored_as, value_bits
from asyncpq.decoding.field_types import field_types
from asyncpq.decoding.page import Dictionary, LeafArray, PackedPage
from asyncpq.decoding.splice import CODEC_NAMES, dictionary_as_data_page, page_bytes, required_template
from asyncpq.errors import CorruptFileError, FormatError, ResourceLimitError, limit_hint
from asyncpq.objects.read_plan import Item, RowGroupPlan
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.chunk_pages import NeedMore, PageHeader, RawPage, decode_page_header
from asyncpq.parquet.column_chunk import DICTIONARY_ENCODINGS, Codec, ColumnChunk, Encoding, PageType
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.thrift import CompactReader
from asyncpq.records import NamedTuple

LEVEL_BITS = 16  # pyarrow holds levels as int16 while it decodes
OFFSET_BITS = 33  # of a list: its offset and its validity
UNKNOWN = 1 << 62


def refuse(what: str, size: int, limit: int, column: str) -> ResourceLimitError:
    """Return the error to raise because ``what``, a plural such as "3 pages", would decode to ``size`` bytes, more than
    ``limit``."""
    return ResourceLimitError(
        f"{what} decode to {size} bytes, but the memory limit leaves {limit} bytes",
        column=column,
        hint=limit_hint("max_decoded_bytes"),
    )


def taken_bytes(dictionary: pa.Array, indices: pa.Array, type_: pa.DataType) -> int:
    """Return the bytes of ``dictionary.take(indices)`` as ``type_``. Raises ArrowIndexError for an invalid index."""
    size = len(indices) * value_bits(type_) // 8
    if has_lengths(type_) and len(dictionary):
        size += pc.sum(_lengths(dictionary).take(indices)).as_py() or 0
    return size


def largest_value(values: pa.Array) -> int:
    """Return the size in bytes of the largest of ``values`` if they are strings or binary; 0 for other types."""
    return int(pc.max(_lengths(values)).as_py() or 0) if has_lengths(values.type) else 0


def _lengths(values: pa.Array) -> pa.Array:
    """Return the length in bytes of each of ``values``, which are strings or binary of any layout."""
    if isinstance(values, pa.ExtensionArray):
        values = values.storage
    if pa.types.is_binary_view(values.type) or pa.types.is_string_view(values.type):
        values = values.cast(pa.large_binary())
    return pc.binary_length(values)


# -- DELTA_BYTE_ARRAY -------------------------------------------------------------------------------


def prefix_bytes(page: bytes | memoryview, header: PageHeader, leaf: Leaf, codec: int) -> int:
    """Return how many bytes a DELTA_BYTE_ARRAY page repeats from previous values: the sum of its prefix lengths.

    The prefix lengths come first in the page, DELTA_BINARY_PACKED (Encodings.md, Delta Strings), so they are decoded
    alone as a column of integers. For codecs that are not decompressed here, the result is an upper bound.
    """
    if codec != Codec.UNCOMPRESSED and (codec == Codec.LZ4 or codec not in CODEC_NAMES):
        return header.num_values * header.uncompressed_size
    values = _encoded_values(page, header, leaf, codec)
    reader = CompactReader(values[:32])
    reader.varint()  # block size
    reader.varint()  # miniblocks in a block
    count = reader.varint()
    if count > header.num_values:
        raise CorruptFileError(f"a page has {header.num_values} values, but {count} prefix lengths", column=leaf.dotted)
    if count == 0:
        return 0
    numbers = (count, Encoding.DELTA_BINARY_PACKED, Encoding.RLE, Encoding.RLE)
    page_of_lengths = page_bytes(PageType.DATA_PAGE, len(values), values, numbers)
    file = _PREFIX_LENGTHS.splice(b"", [page_of_lengths], num_values=count, num_rows=count)
    lengths = read_column(file, verify_crc=False)
    if pc.min(lengths).as_py() < 0:
        raise CorruptFileError(
            "a page with the encoding DELTA_BYTE_ARRAY has a negative prefix length", column=leaf.dotted
        )
    return int(pc.sum(lengths).as_py())


def _encoded_values(page: bytes | memoryview, header: PageHeader, leaf: Leaf, codec: int) -> bytes:
    """Return the decompressed bytes that follow the levels in a data page."""
    payload = memoryview(page)[header.header_size :]
    size = header.uncompressed_size
    compressed = header.is_compressed and codec != Codec.UNCOMPRESSED
    start = 0
    if header.type is PageType.DATA_PAGE_V2:
        levels = (header.rep_levels_bytes or 0) + (header.def_levels_bytes or 0)
        if not 0 <= levels <= min(size, len(payload)):
            raise CorruptFileError(
                f"a page's levels take {levels} bytes, but the page has {size} bytes", column=leaf.dotted
            )
        payload, size = payload[levels:], size - levels
    values = decompress(CODEC_NAMES[codec], payload, size, column=leaf.dotted) if compressed else bytes(payload)
    if header.type is PageType.DATA_PAGE:
        for encoding, level in (
            (header.rep_encoding, leaf.max_repetition_level),
            (header.def_encoding, leaf.max_definition_level),
        ):
            if level and encoding == Encoding.RLE:
                start += 4 + int.from_bytes(values[start : start + 4], "little")
            elif level:  # BIT_PACKED, deprecated
                start += (header.num_values * level.bit_length() + 7) // 8
            if start > len(values):
                raise CorruptFileError("a page ends inside its levels", column=leaf.dotted)
    return values[start:]


# -- nested fields ----------------------------------------------------------------------------------


def leaf_bounds(
    leaf: Leaf, chunk: ColumnChunk, pages: Sequence[RawPage], type_: pa.DataType, slots: int, limit: int
) -> tuple[int, int]:
    """Return the bytes that ``pages`` of a nested leaf column certainly decode to, and those that may be added.

    ``type_`` and ``slots`` are from :func:`leaf_types`. No closer bound is computed than one below ``limit``.
    """
    bits = value_bits(type_) + 1 + 2 * LEVEL_BITS + OFFSET_BITS * leaf.max_repetition_level
    proven = chunk.num_values * bits // 8
    indexed = repeated = 0
    dictionary: RawPage | None = None
    for page in pages:
        header = page.header
        if header.type is PageType.DICTIONARY_PAGE:
            dictionary = page
        elif header.encoding in DICTIONARY_ENCODINGS:
            indexed += header.num_values
        elif chunk.physical_type == PhysicalType.BYTE_ARRAY:
            proven += header.uncompressed_size
        if header.is_data and header.encoding == Encoding.DELTA_BYTE_ARRAY:
            repeated += prefix_bytes(page.data, header, leaf, chunk.codec)
    # Values of fixed size are counted already. Only decoded values are held to that size.
    proven = proven + repeated if chunk.physical_type == PhysicalType.BYTE_ARRAY else max(proven, repeated)
    possible = chunk.num_values * slots * bits // 8 if slots > 1 else 0
    if indexed and dictionary is not None and chunk.physical_type == PhysicalType.BYTE_ARRAY:
        largest = dictionary.header.uncompressed_size
        proven += largest
        if indexed * largest > limit:
            largest = _largest_value(dictionary, leaf, chunk)
        possible += indexed * largest
    return proven, possible


def _largest_value(dictionary: RawPage, leaf: Leaf, chunk: ColumnChunk) -> int:
    """Return the size in bytes of the largest value in a dictionary page of byte arrays."""
    header = dictionary.header
    if header.num_values * 4 > header.uncompressed_size:  # each value has a length in front
        raise CorruptFileError(
            f"a dictionary page of {header.uncompressed_size} bytes cannot have {header.num_values} values",
            column=leaf.dotted,
        )
    page = dictionary_as_data_page(
        dictionary.data[header.header_size :],
        num_values=header.num_values,
        uncompressed_size=header.uncompressed_size,
        level=0,
    )
    template = required_template(PhysicalType.BYTE_ARRAY, chunk.codec, Encoding.PLAIN)
    count = header.num_values
    values = read_column(template.splice(b"", [page], num_values=count, num_rows=count), verify_crc=False)
    return int(pc.max(pc.binary_length(values)).as_py() or 0)


def nested_bytes(array: pa.Array, type_: pa.DataType) -> int:
    """Return how many bytes ``array`` takes as ``type_``, with dictionaries expanded or other lists."""
    type_ = stored_as(type_)
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    size = len(array) * value_bits(type_) // 8
    if pa.types.is_struct(type_):
        return len(array) // 8 + sum(nested_bytes(array.field(index), child.type) for index, child in enumerate(type_))
    if pa.types.is_fixed_size_list(type_):
        missing = max(0, len(array) * int(type_.list_size) - len(array.values))
        return nested_bytes(array.values, type_.value_type) + missing * value_bits(type_.value_type) // 8
    if pa.types.is_nested(type_):
        return size + nested_bytes(array.values, type_.field(0).type)
    if isinstance(array, pa.DictionaryArray):
        return size if pa.types.is_dictionary(type_) else taken_bytes(array.dictionary, array.indices, type_)
    nbytes: int = array.nbytes
    return max(size, nbytes)


_PREFIX_LENGTHS = required_template(PhysicalType.INT32, Codec.UNCOMPRESSED, Encoding.DELTA_BINARY_PACKED)


class LeafSize:
    """Checks the decoded size of pages before they are decoded to ``arrow_type``. It is used for all leaf columns, not
    repeated, whose types are those of ``leaf``."""

    def __init__(self, leaf: Leaf, arrow_type: pa.DataType) -> None:
        self._has_lengths = leaf.physical_type == PhysicalType.BYTE_ARRAY
        self._may_repeat = self._has_lengths or leaf.physical_type == PhysicalType.FIXED_LEN_BYTE_ARRAY
        # of one row: validities and level
        overhead = len(leaf.path) + LEVEL_BITS if leaf.max_definition_level else 0
        self._value_bits = overhead + value_bits(arrow_type)
        self._index_bits = overhead + 32

    def check_pages(
        self,
        leaf: Leaf,
        headers: Sequence[PageHeader],
        pages: Sequence[bytes | memoryview],
        encoded: bool,
        codec: int,
        limit: int,
    ) -> None:
        """Raise ResourceLimitError if pages of ``leaf`` would decode to more than ``limit`` bytes.

        If ``encoded``, the pages are decoded to dictionary indices, else to values.
        """
        bits = self._index_bits if encoded else self._value_bits
        size = sum([header.num_values for header in headers]) * bits // 8
        if self._has_lengths and not encoded:
            size += sum([header.uncompressed_size for header in headers])
        if self._may_repeat and not encoded:
            repeating = [index for index, header in enumerate(headers) if header.encoding == Encoding.DELTA_BYTE_ARRAY]
            # no value is longer than its whole page
            coarse = sum([headers[index].num_values * headers[index].uncompressed_size for index in repeating])
            if size + coarse > limit:
                repeated = sum([prefix_bytes(pages[index], headers[index], leaf, codec) for index in repeating])
                # Values of fixed size are counted already. Only decoded values are held to that size.
                size = size + repeated if self._has_lengths else max(size, repeated)
        if size > limit:
            raise refuse(f"{len(pages)} pages", size, limit, leaf.dotted)

    def check_expansion(self, leaf: Leaf, dictionary: pa.Array, indices: pa.Array, limit: int) -> None:
        """Raise ResourceLimitError if ``dictionary.take(indices)`` would take more than ``limit`` bytes."""
        if dictionary.nbytes * len(indices) <= limit:  # no value is larger than the whole dictionary
            return
        if not self._may_repeat and len(indices) * self._value_bits <= limit * 8:  # values of a few bytes
            return
        total = taken_bytes(dictionary, indices, dictionary.type)
        if total > limit:
            raise refuse(f"{len(indices)} dictionary-encoded values", total, limit, leaf.dotted)


# -- estimates --------------------------------------------------------------------------------------


class ValueSlot(NamedTuple):
    """The bytes that one value of a leaf column takes when it is decoded, without the bytes of variable-size values."""

    bits: int  # with its levels, and with all slots that a null above it may take
    has_lengths: bool  # values differ in size; ``bits`` does not count their bytes
    repeated: bool  # a row may have several values

    @classmethod
    def flat(cls, leaf: Leaf, value_type: pa.DataType) -> ValueSlot:
        """Return the size of one value of a leaf column that is not repeated and has the Arrow type ``value_type``."""
        return cls(value_bits(value_type) + len(leaf.path) + LEVEL_BITS, has_lengths(value_type), False)


def value_slot(version: FileVersion, ordinal: int, extensions: frozenset[str]) -> ValueSlot:
    """Return the size of one decoded value of the leaf column ``ordinal`` of a file; cached with the file."""

    def make() -> ValueSlot:
        schema = version.metadata.schema
        leaf = schema.leaves[ordinal]
        field = schema.fields[leaf.field_index]
        (field_type,) = field_types(version, [field.index], extensions)
        types = leaf_types(field_type.arrow.type)
        if len(types) != field.leaf_stop - field.first_leaf:
            return ValueSlot(UNKNOWN, True, True)  # the decoder refuses it
        value_type, slots = types[ordinal - field.first_leaf]
        level = leaf.max_repetition_level
        bits = value_bits(value_type) + len(leaf.path) + LEVEL_BITS + (LEVEL_BITS + OFFSET_BITS) * level
        return ValueSlot(bits * slots, has_lengths(value_type), level > 0)

    return version.derived(("slot", ordinal, extensions), make, 200)


class _Content(NamedTuple):
    """The numbers that bound the decoded size of a page or chunk, according to its page headers."""

    num_values: int  # nulls included
    size: int  # bytes, uncompressed
    indexed: bool  # values may be indices into a dictionary
    delta: bool  # values may be DELTA_BYTE_ARRAY


class ExpectedBytes(NamedTuple):
    """Upper bounds of the bytes that fetched pages and chunks decode to.

    Attributes:
        size: whatever the filter accepts.
        spread: more, if it accepts all rows: their values, of any length, in columns that it does not need.
        per_row: of ``spread``, for each row that it accepts.
    """

    size: int
    spread: int
    per_row: int


class SizeEstimate:
    """Computes coarse upper bounds of the bytes that a row group's fetched pages decode to, without decoding them.

    The bound decides whether the event loop may decode a unit itself; exact checks follow when the unit is decoded.
    ``slots`` has the size of one value of each of the plan's columns, by position. The page headers that it decodes
    stay in ``headers``, from which the row group's reader takes them.
    """

    def __init__(self, version: FileVersion, plan: RowGroupPlan, slots: Sequence[ValueSlot]) -> None:
        self.headers: dict[int, PageHeader] = {}  # of pages, by their offset in the object
        self._version = version
        self._plan = plan
        self._slots = slots
        self._largest: dict[int, int] = {}  # bytes of the largest value in a column's dictionary, by position

    def of(self, items: Sequence[Item], values: Iterator[object]) -> ExpectedBytes:
        """Return the bounds for ``items``, which are in row order within each column, dictionaries first.

        ``values`` has what was fetched for each item: bytes, or what the cache has decoded. It may be longer than
        ``items``.
        """
        total = spread = per_row = 0
        plan = self._plan
        for item, value in zip(items, values, strict=False):
            delta = False
            if isinstance(value, (bytes, memoryview)):
                content = self._content(item, value)
                if content is None:
                    total = UNKNOWN
                    continue
                num_values, size, indexed, delta = content
            elif isinstance(value, Dictionary):
                self._largest[item.column] = value.largest
                total += value.num_bytes  # is part of the output if the column comes as dictionary arrays
                continue
            elif isinstance(value, PackedPage):
                num_values, size, indexed = item.num_rows, len(value.content), value.value_bytes < 0
            elif isinstance(value, LeafArray):  # its buffers may be copied
                num_values, size = len(value.values), value.values.get_total_buffer_size()
                indexed = value.lacks_dictionary
            else:
                total = UNKNOWN
                continue
            total += size
            if item.kind == "dictionary":
                self._largest[item.column] = size
                continue
            slot = self._slots[item.column]
            total += num_values * slot.bits // 8
            if indexed and slot.has_lengths:
                largest = size if item.kind == "part" else self._largest.get(item.column, UNKNOWN)
                count = num_values if slot.repeated else min(num_values, plan.rows.num_rows)
                if slot.repeated or not plan.filtered or plan.columns[item.column].predicate:
                    total += largest * count
                else:
                    spread += largest * count
                    per_row += largest
            if delta:
                total += size * num_values
        return ExpectedBytes(total, spread, per_row)

    def _content(self, item: Item, value: bytes | memoryview) -> _Content | None:
        """Return what bounds the decoded size of an item, from its fetched bytes; None if that is unknown."""
        if item.kind == "part":
            chunk = self._version.chunk(self._plan.ordinal, item.leaf)
            if len(value) != chunk.stop - chunk.start:
                return None
        # By the page headers, since footers may claim other sizes.
        num_values = size = position = 0
        indexed = delta = False
        length = len(value)
        while position < length:
            try:
                header = decode_page_header(value, position, complete=True)
            except FormatError:  # is raised again by the decoder
                return None
            if header is NeedMore.NEED_MORE:
                return None
            if position == 0 and item.kind == "page":
                self.headers[item.start] = header
            position += header.header_size + header.compressed_size
            size += header.uncompressed_size
            if header.type is PageType.DATA_PAGE or header.type is PageType.DATA_PAGE_V2:
                num_values += header.num_values
                indexed |= header.encoding in DICTIONARY_ENCODINGS
                delta |= header.encoding == Encoding.DELTA_BYTE_ARRAY
        return _Content(num_values, size, indexed, delta)
