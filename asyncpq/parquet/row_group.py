"""A row group of the metadata, whose column chunks are decoded at their first use.

``locate_structs`` finds the positions of the chunks' structs without decoding them. One compiled pattern matches the
usual form of a ColumnChunk about ten times faster than a Python loop; :mod:`alike_chunks` makes one of the chunks of a
wide row group that is faster still. Other chunks are skipped field by field. So are the first few chunks of a process,
since making and compiling the pattern takes 5 ms.
"""

from __future__ import annotations

import functools
import re
from array import array
from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Final

from asyncpq.errors import CorruptFileError
from asyncpq.parquet.column_chunk import ColumnChunk, IndexPlaces, decode_column_chunk, index_range
from asyncpq.parquet.schema import ParquetSchema
from asyncpq.parquet.thrift import (
    BINARY,
    BINARY_VALUE,
    INTEGER_FIELDS,
    INTEGER_LIST_FIELD,
    INTEGER_STRUCT,
    LIST,
    STATISTICS,
    STOP_BYTE,
    STRUCT,
    CompactReader,
    any_of,
    binary_value,
    headers,
    list_of,
    optional,
)
from asyncpq.records import NamedTuple, dataclass

if TYPE_CHECKING:
    from asyncpq.parquet.alike_chunks import AlikeChunks

# parquet.thrift, ColumnChunk: meta_data; offset and length of the OffsetIndex, of the ColumnIndex; crypto_metadata.
_METADATA_ID: Final = 3
_INDEX_IDS: Final = (4, 5, 6, 7)
_CRYPTO_ID: Final = 8

_FEW_COLUMNS: Final = 16
_FEW_CHUNKS: Final = 320  # skipping so many field by field takes as long as compiling the pattern
_MANY_CHUNKS: Final = 500  # of a row group: then learning their forms pays
_num_read = 0  # chunks of all footers of the process
_MAX_PATH: Final = 5  # longest column path that the pattern follows
_MAX_NESTED_NAME: Final = 40  # longest name in a path of several
# Approximate bytes of the decoded objects.
CHUNK_WEIGHT: Final = 900
_ROW_GROUP_WEIGHT: Final = 500


def alike_chunks(num_chunks: int) -> AlikeChunks | None:
    """Return what learns the forms of the chunks of row groups of ``num_chunks``, if that pays; None otherwise."""
    if num_chunks < _MANY_CHUNKS:
        return None
    from asyncpq.parquet.alike_chunks import AlikeChunks  # few files are so wide

    return AlikeChunks()


def locate_structs(reader: CompactReader, expected: int, alike: AlikeChunks | None) -> Sequence[int]:
    """Return the positions of the structs in the list at the reader's position, and the end of the last one.
    ``expected`` is their number; ``alike``, the result of :func:`alike_chunks`, serves all row groups of a footer.

    The reader moves past the list. Raises CorruptFileError if the list has another number of elements, or the bytes are
    not Thrift's compact protocol.
    """
    element_type, length = reader.list_header()
    if length != expected or (length and element_type != STRUCT):
        raise CorruptFileError(f"a row group has {length} column chunks, but the schema has {expected} columns")
    if alike is not None:
        from asyncpq.parquet.alike_chunks import locate_alike

        return locate_alike(reader, length, alike, _pass_structs)
    positions = _pass_structs(reader, length)
    # of many small files: the garbage collector walks over arrays, not over tuples of numbers
    return tuple(positions) if length <= _FEW_COLUMNS else positions


def _pass_structs(reader: CompactReader, count: int = 1) -> array[int]:
    """Move the reader past ``count`` ColumnChunk structs; return their positions, and the end of the last one."""
    data, pos, pattern = reader.data, reader.pos, usual_chunk(count)
    positions = array("q", [pos])
    for _ in range(count):
        usual = None if pattern is None else pattern.match(data, pos)
        if usual is not None:
            pos = usual.end()
        elif data[pos : pos + 1] == b"\0":  # an empty struct
            pos += 1
        else:
            reader.pos = pos
            reader.skip_struct()
            pos = reader.pos
        positions.append(pos)
    reader.pos = pos
    return positions


def find_indexes(data: bytes, start: int, stop: int) -> IndexPlaces | None:
    """Return where a chunk's page indexes are, without decoding the rest of its ColumnChunk struct,
    ``data[start:stop]``.

    None if the caller has to decode the whole struct: it is encrypted, has an unusual form, or is one of the process's
    first.
    """
    pattern = usual_chunk(1)
    usual = None if pattern is None else pattern.match(data, start)
    if usual is None or usual.end() != stop:
        return None
    last_id, _ = _integers(data, *usual.span(1), 0)
    if last_id + (data[usual.start(2)] >> 4) != _METADATA_ID:
        return None
    _, places = _integers(data, *usual.span(3), _METADATA_ID)
    if _CRYPTO_ID in places:
        return None
    offset, length, column_offset, column_length = (places.get(field) for field in _INDEX_IDS)
    return IndexPlaces(index_range(offset, length), index_range(column_offset, column_length))


def _integers(data: bytes, pos: int, stop: int, last_id: int) -> tuple[int, dict[int, int]]:
    """Decode the integer fields in ``data[pos:stop]``; return the last field's id, and the values keyed by field id.

    ``last_id`` is the id of the field before them. All fields have short headers, as the chunk pattern has checked.
    """
    reader = CompactReader(data, pos)
    values: dict[int, int] = {}
    while reader.pos < stop:
        last_id += data[reader.pos] >> 4
        reader.pos += 1
        values[last_id] = reader.integer()
    return last_id, values


def usual_chunk(num_chunks: int) -> re.Pattern[bytes] | None:
    """Return :func:`chunk_pattern` if it is worth compiling, that is once this process has read enough chunks.
    ``num_chunks`` more are about to be read. None otherwise."""
    global _num_read
    _num_read += num_chunks
    return chunk_pattern() if _num_read > _FEW_CHUNKS else None


@functools.cache
def chunk_pattern() -> re.Pattern[bytes]:
    """Return the pattern of a usual ColumnChunk.

    Its groups are the fields before the metadata, the header of the metadata, and the fields after the metadata.
    Fields are matched in the order of their ids, by their types alone: integers between the structs and lists that
    are present.
    """
    metadata = [
        INTEGER_FIELDS,  # type
        INTEGER_LIST_FIELD,  # encodings
        headers(LIST)
        + any_of(
            list_of((BINARY,), BINARY_VALUE, longest=1),
            list_of((BINARY,), binary_value(_MAX_NESTED_NAME), longest=_MAX_PATH, shortest=2),
        ),
        INTEGER_FIELDS,  # codec, counts, sizes, offsets
        optional(headers(STRUCT) + STATISTICS),
        optional(headers(LIST) + list_of((STRUCT,), INTEGER_FIELDS + STOP_BYTE, longest=6)),  # encoding stats
        INTEGER_FIELDS,  # bloom filter
        optional(headers(STRUCT) + INTEGER_STRUCT),  # size statistics
        STOP_BYTE,
    ]
    # The file offset stands before the metadata, the locations of the indexes after them.
    chunk = [b"(", INTEGER_FIELDS, b")(", headers(STRUCT), b")", *metadata, b"(", INTEGER_FIELDS, b")", STOP_BYTE]
    return re.compile(b"".join(chunk), re.DOTALL)


class UnknownLeafError(CorruptFileError):
    """The footer was joined from pieces (``metadata.join_pieces``) without those of this leaf column.

    The caller that joined them then reads the file's own footer. Users do not see this error.
    """


class SortingColumn(NamedTuple):
    """One of the columns that a row group's rows are sorted by (parquet.thrift, SortingColumn)."""

    column_index: int
    descending: bool
    nulls_first: bool


@dataclass(slots=True, eq=False, kw_only=True, repr=False)
class RowGroup:
    """One row group: the rows ``[first_row, first_row + num_rows)`` of the file, and its column chunks."""

    data: bytes  # of the metadata
    schema: ParquetSchema
    starts: Sequence[int]  # of the chunks' structs in the metadata, and the end of the last
    ordinal: int
    num_rows: int
    first_row: int
    total_byte_size: int  # uncompressed bytes as the writer claims; 0 if missing or negative
    sorting_columns: tuple[SortingColumn, ...]  # as the writer claims; not verified
    #: The decoded chunks of the whole file, by ``ordinal * num_columns`` and the leaf's ordinal.
    parsed_chunks: dict[int, ColumnChunk]
    num_columns: int = field(init=False)  # the schema's leaves

    def __post_init__(self) -> None:
        self.num_columns = len(self.starts) - 1

    def __repr__(self) -> str:
        return f"RowGroup({self.ordinal}, rows {self.first_row} to {self.first_row + self.num_rows})"

    @property
    def weight(self) -> int:
        """Approximate bytes held in memory, without decoded chunks."""
        return _ROW_GROUP_WEIGHT + 8 * len(self.starts)

    @property
    def chunks_span(self) -> tuple[int, int]:
        """The range ``(start, stop)`` of the structs of all column chunks in the metadata bytes."""
        return self.starts[0], self.starts[-1]

    def chunk_span(self, leaf_index: int) -> tuple[int, int]:
        """Return the range ``(start, stop)`` of the struct of a leaf's column chunk in the metadata bytes."""
        return self.starts[leaf_index], self.starts[leaf_index + 1]

    def index_places(self, leaf_index: int) -> IndexPlaces:
        """Return the locations of a leaf's page indexes. Raises the same errors as :meth:`chunk`."""
        places = find_indexes(self.data, *self.chunk_span(leaf_index))
        if places is not None:
            return places
        chunk = self.parse_chunk(leaf_index)
        if chunk.has_crypto or chunk.file_path is not None:
            return IndexPlaces(None, None)
        return IndexPlaces(chunk.offset_index_range, chunk.column_index_range)

    def chunk(self, leaf_index: int) -> ColumnChunk:
        """Return the column chunk of a leaf, decoded at the first call. Safe to call from several threads.

        Raises CorruptFileError if the chunk's physical type is not the leaf's, or a required field is missing or
        negative; UnsupportedFeatureError if the chunk's metadata are encrypted.
        """
        number = self.ordinal * self.num_columns + leaf_index
        chunk = self.parsed_chunks.get(number) if 0 <= leaf_index < self.num_columns else None
        if chunk is None:
            # Two threads may both decode it: the results are equal, and the first is kept.
            chunk = self.parsed_chunks.setdefault(number, self.parse_chunk(leaf_index))
        return chunk

    def confirms_num_rows(self) -> bool:
        """Return whether the first non-repeated leaf column has as many values as the row group has rows; True if no
        such column has a chunk."""
        for leaf in self.schema.leaves:
            start, stop = self.chunk_span(leaf.index)
            if leaf.max_repetition_level == 0 and stop - start > 1:
                return decode_column_chunk(self.data, start, stop, leaf).num_values == self.num_rows
        return True

    def parse_chunk(self, leaf_index: int) -> ColumnChunk:
        """Decode the column chunk of a leaf as :meth:`chunk` does, but do not keep it: for callers that use it once."""
        if not 0 <= leaf_index < self.num_columns:
            raise IndexError(leaf_index)
        known = self.parsed_chunks.get(self.ordinal * self.num_columns + leaf_index)
        if known is not None:
            return known
        start, stop = self.chunk_span(leaf_index)
        leaf = self.schema.leaves[leaf_index]
        if stop - start == 1:  # an empty struct
            raise UnknownLeafError("the joined metadata do not contain this column's chunks", column=leaf.dotted)
        chunk = decode_column_chunk(self.data, start, stop, leaf)
        # A leaf that is not repeated has one value in each row, and its pages are checked against that. Statistics of
        # another number of values are not trusted.
        if leaf.max_repetition_level == 0 and chunk.num_values != self.num_rows:
            claim = f"a column chunk's metadata say {chunk.num_values} values in a row group of {self.num_rows} rows"
            return chunk._replace(num_values=self.num_rows, raw_statistics=None, dropped=(*chunk.dropped, claim))
        return chunk
