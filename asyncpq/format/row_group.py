"""A row group of the metadata, whose column chunks are parsed when they are asked for."""

from __future__ import annotations

from array import array
from typing import Final, NamedTuple

from asyncpq.errors import CorruptFileError
from asyncpq.format.chunk_walk import find_indexes
from asyncpq.format.column_chunk import ColumnChunk, IndexPlaces, decode_column_chunk
from asyncpq.format.schema import ParquetSchema

# Approximate bytes of the parsed objects.
CHUNK_WEIGHT: Final = 1200
_ROW_GROUP_WEIGHT: Final = 500


class UnknownLeafError(CorruptFileError):
    """Of this leaf's column chunks nothing is known: the metadata were put together from some leaves' alone.

    Whoever opened them so reads the file's own; it is not shown to users.
    """


class SortingColumn(NamedTuple):
    """A column that a row group's rows are sorted by (parquet.thrift, SortingColumn)."""

    column_index: int
    descending: bool
    nulls_first: bool


class RowGroup:
    """Rows ``[first_row, first_row + num_rows)`` of the file.

    Attributes:
        ordinal: index in the file.
        num_rows: rows in it.
        first_row: row number in the file of its first row.
        total_byte_size: uncompressed bytes, as the writer said; 0 if it said nothing that can be.
        sorting_columns: as the writer said; not verified.
        num_columns: the number of the schema's leaves.
    """

    __slots__ = (
        "_chunks",
        "_data",
        "_parsed_chunks",
        "_schema",
        "_starts",
        "first_row",
        "num_columns",
        "num_rows",
        "ordinal",
        "sorting_columns",
        "total_byte_size",
    )

    def __init__(
        self,
        data: bytes,
        schema: ParquetSchema,
        starts: array[int],
        *,
        ordinal: int,
        num_rows: int,
        first_row: int,
        total_byte_size: int,
        sorting_columns: tuple[SortingColumn, ...],
        parsed_chunks: list[int],
    ) -> None:
        """``parsed_chunks``: counts the chunks parsed of the whole file, in its only element."""
        self._data = data
        self._schema = schema
        self._starts = starts  # of the chunks' structs, and the end of the last
        self._chunks: dict[int, ColumnChunk] = {}
        self._parsed_chunks = parsed_chunks
        self.ordinal = ordinal
        self.num_rows = num_rows
        self.first_row = first_row
        self.total_byte_size = total_byte_size
        self.sorting_columns = sorting_columns
        self.num_columns = len(starts) - 1

    def __repr__(self) -> str:
        return f"RowGroup({self.ordinal}, rows {self.first_row} to {self.first_row + self.num_rows})"

    @property
    def weight(self) -> int:
        """Approximate bytes held in memory, without parsed chunks."""
        return _ROW_GROUP_WEIGHT + 8 * len(self._starts)

    @property
    def chunks_span(self) -> tuple[int, int]:
        """Where in the metadata bytes the column chunks' structs are, all of them."""
        return self._starts[0], self._starts[-1]

    def chunk_span(self, leaf_index: int) -> tuple[int, int]:
        """Where in the metadata bytes the struct of a leaf's column chunk is."""
        return self._starts[leaf_index], self._starts[leaf_index + 1]

    def index_places(self, leaf_index: int) -> IndexPlaces:
        """Where a leaf's page indexes are; its chunk is parsed only if it has to be.

        Raises:
            CorruptFileError, UnsupportedFeatureError: as :meth:`chunk`, where it is parsed.
        """
        found = find_indexes(self._data, *self.chunk_span(leaf_index))
        if found is not None:
            return found
        chunk = self.parse_chunk(leaf_index)
        if chunk.has_crypto or chunk.file_path is not None:
            return IndexPlaces(None, None)
        return IndexPlaces(chunk.offset_index_range, chunk.column_index_range)

    def chunk(self, leaf_index: int) -> ColumnChunk:
        """The chunk of a leaf, parsed at the first call. Safe to call from several threads.

        Raises:
            CorruptFileError: it has another physical type, or a required field is missing or negative.
            UnsupportedFeatureError: its metadata are encrypted.
        """
        chunk = self._chunks.get(leaf_index)
        if chunk is None:
            chunk = self.parse_chunk(leaf_index)
            # Two threads may both parse it: the results are equal and the first is kept.
            kept = self._chunks.setdefault(leaf_index, chunk)
            self._parsed_chunks[0] += kept is chunk
            chunk = kept
        return chunk

    def confirms_num_rows(self) -> bool:
        """Whether a chunk of a leaf that is not repeated claims one value for each row; True if there is none.

        Raises:
            CorruptFileError, UnsupportedFeatureError: as :meth:`chunk`.
        """
        for leaf in self._schema.leaves:
            start, stop = self.chunk_span(leaf.index)
            if leaf.max_repetition_level == 0 and stop - start > 1:
                return decode_column_chunk(self._data, start, stop, leaf).num_values == self.num_rows
        return True

    def parse_chunk(self, leaf_index: int) -> ColumnChunk:
        """As :meth:`chunk`, but what is parsed is not kept: for who looks at all chunks."""
        known = self._chunks.get(leaf_index)
        if known is not None:
            return known
        if not 0 <= leaf_index < self.num_columns:
            raise IndexError(leaf_index)
        starts = self._starts
        leaf = self._schema.leaves[leaf_index]
        if starts[leaf_index + 1] - starts[leaf_index] == 1:  # an empty struct
            raise UnknownLeafError("nothing is known of the column's chunks", column=leaf.dotted)
        chunk = decode_column_chunk(self._data, starts[leaf_index], starts[leaf_index + 1], leaf)
        # A leaf that is not repeated has a value in each row, which its pages are held to. Statistics that were
        # counted with another number of values are not trusted.
        if leaf.max_repetition_level == 0 and chunk.num_values != self.num_rows:
            what = f"a column chunk claims {chunk.num_values} values in a row group of {self.num_rows} rows"
            return chunk._replace(num_values=self.num_rows, statistics=None, dropped=(*chunk.dropped, what))
        return chunk
