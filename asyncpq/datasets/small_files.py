"""Read small files of a dataset together: those whose bytes came with their footers, and whose columns are alike.

The column chunks of one flat leaf, one for each row group of each file, become one spliced file
(:mod:`asyncpq.decoding.splice`), which pyarrow decodes to one array. It is adapted and filtered once, and kept decoded
in the memory cache. A group with a file or a chunk that is unusual is not read here: its files are read one by one,
which also raises the errors of damaged ones.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Hashable, Mapping, Sequence
from itertools import groupby
from operator import add
from typing import Final, NamedTuple

import pyarrow as pa

from asyncpq.checkpoints import checkpoint
from asyncpq.datasets.opened_file import DatasetColumns, OpenedFile
from asyncpq.decoding.arrow import (
    constant_array,
    counted,
    first_invalid,
    held_bytes,
    join,
    keep,
    read_column,
    value_bits,
)
from asyncpq.decoding.leaf import LeafDecoder, leaf_decoder
from asyncpq.decoding.schema_adapter import AdaptedColumn
from asyncpq.decoding.splice import WholeChunk
from asyncpq.errors import AsyncpqError, CorruptFileError
from asyncpq.expressions import columns as columns_of
from asyncpq.objects.read_plan import Unit
from asyncpq.objects.runtime import Runtime
from asyncpq.objects.source import Tail
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.chunk_pages import NeedMore, check_page_header, decode_page_header, header_contradiction
from asyncpq.parquet.column_chunk import DICTIONARY_ENCODINGS, Codec, ColumnChunk, Encoding, PageType
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.schema import Leaf
from asyncpq.scan.column_resolution import Resolved, WantedColumns, resolve_view
from asyncpq.scan.request import ScanRequest

FEWEST: Final = 8  # fewer files are read one by one
MOST: Final = 1024  # files that are read together
MOST_BYTES: Final = 8 << 20  # of the files that are read together
_MOST_DECODED_BYTES: Final = 256 << 20
_MOST_FILE_BYTES: Final = 64 << 10
_MOST_FILE_ROWS: Final = 1 << 16


class ReadyRows:
    """The rows of small files, which are decoded: the plan of the first of them, as executors take it."""

    has_rows = True
    ahead_bytes = math.inf  # they are there

    def __init__(self, tables: list[pa.Table], rows_matched: int, num_bytes: int) -> None:
        # of the files, or of their rows, which wait in memory for the consumer, if these are more
        self.num_bytes = max(num_bytes, sum([table.nbytes for table in tables]))
        self.rows_matched = rows_matched
        self._tables = tables

    @property
    def file_scan(self) -> ReadyRows:
        """The rows themselves, as one unit."""
        return self

    async def units(self, unit_bytes: int | None) -> list[Unit]:
        """Return the one unit."""
        return [Unit((), self.num_bytes)]

    async def run(self, unit: Unit) -> list[pa.Table]:
        """Return the rows."""
        return self._tables

    async def fetch_unit(self, unit: Unit) -> None:
        """Fetch nothing."""

    async def decode(self, unit: Unit, fetched: object) -> list[pa.Table]:
        """Return the rows."""
        return self._tables


class SmallFiles:
    """Reads groups of small files for one read of a dataset."""

    def __init__(self, runtime: Runtime, request: ScanRequest, columns: DatasetColumns, *, scan: bool) -> None:
        self._runtime = runtime
        self._request = request
        self._columns = columns
        self._scan = scan
        self._unusual: set[Hashable] = set()  # kinds of files that are not read together

    def kind_of(self, opened: OpenedFile) -> Hashable | None:
        """Return what files that are read together have in common; None if ``opened`` is read by itself."""
        file, version = opened.file, opened.version
        metadata = version.metadata
        if (
            version.size > _MOST_FILE_BYTES
            or not opened.is_settled
            or file.deletes is not None
            or file.entry is not None
            or opened.source.tiers_of(version) is not None
            or metadata.num_rows > _MOST_FILE_ROWS
            or metadata.has_encryption
            or metadata.dropped
            or metadata.calendars
            or version.padded_chunks
            or version.drops
            or version.leaves is not None
        ):
            return None
        kind = (*opened.schema_bytes, metadata.created_by, file.fields, *file.partition)
        return None if kind in self._unusual else kind

    async def read(self, files: Sequence[OpenedFile], kind: Hashable) -> ReadyRows | None:
        """Return the matching rows of ``files``, which are of one kind; None if they must be read one by one."""
        began = time.perf_counter()
        decoded = await self._runtime.in_thread(lambda: self._read(files))
        if decoded is None:
            self._unusual.add(kind)
            return None
        rows, num_leaves, num_pages = decoded
        for opened, pages in zip(files, num_pages, strict=True):
            metrics, metadata = opened.operation.metrics, opened.version.metadata
            opened.source.describe(metrics)
            metrics.row_groups_total += len(metadata.row_groups)
            metrics.row_groups_read += len(metadata.row_groups)
            metrics.cache_hits += num_leaves * len(metadata.row_groups)
            metrics.pages_read += pages
            metrics.rows_scanned += metadata.num_rows
        files[0].operation.metrics.decode_s += time.perf_counter() - began
        return rows

    # -- in a thread ------------------------------------------------------------------------------

    def _read(self, files: Sequence[OpenedFile]) -> tuple[ReadyRows, int, list[int]] | None:
        """Return the rows, the number of leaf columns, and how many pages of each file were decoded; None if the files
        must be read one by one."""
        num_pages = [0] * len(files)
        try:
            resolved = self._resolved(files[0])
            arrays = self._arrays(files, resolved, num_pages)
            rows = None if arrays is None else self._rows(files, resolved, arrays)
            return None if rows is None else (rows, len(resolved.columns.leaves), num_pages)
        except (AsyncpqError, pa.ArrowException):
            return None  # reading them one by one raises it, or succeeds

    def _resolved(self, first: OpenedFile) -> Resolved:
        """Resolve the names of the request to the columns of the files, which are alike."""
        request, version = self._request, first.version
        named = () if request.where is None else tuple(columns_of(request.where))
        output = () if request.rows_only else request.columns
        names = None if output is None else tuple(output)
        extensions = self._runtime.options.read.extension_types
        wanted = WantedColumns(names, tuple(request.keys), named, named, (), extensions)
        view = first.view(self._columns)
        return version.recent((view, wanted), lambda: resolve_view(version, view, wanted))

    def _arrays(
        self, files: Sequence[OpenedFile], resolved: Resolved, num_pages: list[int]
    ) -> Mapping[int, pa.Array] | None:
        """Return the values of the columns to read, by the field's ordinal; None if they are not decoded together. Adds
        the pages that are decoded of each file to ``num_pages``."""
        options, memory = self._runtime.options, self._runtime.memory
        first = files[0].version
        digest = hashlib.blake2b(b"".join([opened.version.digest for opened in files])).digest()
        most_bytes = min(options.limits.max_decoded_bytes, _MOST_DECODED_BYTES)
        arrays: dict[int, pa.Array] = {}
        small: list[SmallFile] = []
        for leaf, field, _, _ in resolved.columns.leaves:
            if not is_usual(first.metadata.schema.leaves[leaf]):
                return None
            key = ("small files", digest, leaf, options.read.verify_crc, options.read.extension_types)
            values: pa.Array | None = memory.get(key, scan=self._scan)
            if values is None:
                if not small:
                    tails = memory.get_many([opened.version.tail_key for opened in files], scan=self._scan)
                    small = [
                        SmallFile(opened.version, tail.start, memoryview(tail.data))
                        for opened, tail in zip(files, tails, strict=True)
                        if isinstance(tail, Tail)
                    ]
                    if len(small) < len(files):
                        return None
                decoder = leaf_decoder(first, leaf, options.read.extension_types)
                if decoder is None or isinstance(decoder.arrow_type, pa.DictionaryType):
                    return None
                decoded = decode_small_files(small, decoder, verify_crc=options.read.verify_crc, most_bytes=most_bytes)
                if decoded is None:
                    return None
                values, pages = decoded
                num_pages[:] = map(add, num_pages, pages)
                memory.put(key, values, held_bytes(values), scan=self._scan)
            most_bytes -= held_bytes(values)
            arrays[field] = values
        return arrays

    def _rows(
        self, files: Sequence[OpenedFile], resolved: Resolved, arrays: Mapping[int, pa.Array]
    ) -> ReadyRows | None:
        assert resolved.view is not None, "the columns are a dataset's"
        num_rows = sum([opened.version.metadata.num_rows for opened in files])
        num_bytes = sum([opened.version.size for opened in files])
        mask: pa.BooleanArray | None = None

        def values(column: AdaptedColumn) -> pa.Array:
            projection = column.projection
            if projection is None and column.field.name in files[0].file.partition:
                array = self._partition_values(files, column.field.name)
                return array if mask is None else keep(array, mask)
            if projection is None:
                return column.array(None, count)
            source = arrays[projection.field]
            return column.array(source if mask is None else keep(source, mask), count)

        count = num_rows
        where = self._request.where
        if where is not None:
            by_name = {name: values(column) for name, column in resolved.view.predicate.items()}
            matching = resolved.filters.compile(where).mask(by_name, num_rows)
            count = matching.true_count
            if count < num_rows:
                mask = matching
        if self._request.rows_only or not count:
            return ReadyRows([], count, num_bytes)
        columns = [values(column) for column in resolved.view.output]
        table = pa.Table.from_arrays(columns, schema=resolved.schema) if columns else counted(count)
        if self._runtime.options.read.validate_utf8 and any(first_invalid(column) is not None for column in columns):
            return None
        return ReadyRows([table], count, num_bytes)

    def _partition_values(self, files: Sequence[OpenedFile], name: str) -> pa.Array:
        """Return the values of a partition column in all rows of ``files``."""
        pieces: list[pa.Array] = []
        for _, same in groupby(files, lambda opened: tuple(opened.file.partition.items())):
            group = list(same)
            num_rows = sum([opened.version.metadata.num_rows for opened in group])
            pieces.append(constant_array(group[0].view(self._columns).constants[name], num_rows))
        return join(pieces, pieces[0].type)


# -- decoding --------------------------------------------------------------------------------------

_MOST_CHUNK_BYTES: Final = 1 << 20  # decoded
_LEVEL_BYTES: Final = 8  # of a value, while it is decoded
_CODECS: Final = frozenset(map(int, Codec)) - {Codec.LZO, Codec.LZ4}


class SmallFile(NamedTuple):
    """A version of a small file, and its bytes from ``start`` on."""

    version: FileVersion
    start: int
    data: memoryview


def is_usual(leaf: Leaf) -> bool:
    """Return whether the chunks of a leaf column can be decoded here."""
    return leaf.is_flat and leaf.physical_type is not PhysicalType.INT96


def decode_small_files(
    files: Sequence[SmallFile], decoder: LeafDecoder, *, verify_crc: bool, most_bytes: int
) -> tuple[pa.Array, list[int]] | None:
    """Return the values of a flat leaf column in all rows of ``files``, in order, and the number of data pages of each
    file; None if a chunk is unusual.

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
            sizes = _pages(content, chunk, leaf, group.num_rows, value_bytes)
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


def _pages(
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
        header = decode_page_header(data, position, max_bytes=_MOST_CHUNK_BYTES, complete=True)
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
        if size > _MOST_CHUNK_BYTES:
            return None
        position += header.page_size
    return (dictionary_bytes, pages, size) if position == len(data) and values == num_rows else None
