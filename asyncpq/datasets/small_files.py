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
from typing import Final

import pyarrow as pa

from asyncpq.datasets.opened_file import DatasetColumns, OpenedFile
from asyncpq.decoding.arrow import constant_array, counted, first_invalid, held_bytes, join, keep
from asyncpq.decoding.leaf import SmallFile, decode_together, is_decoded_together, leaf_decoder
from asyncpq.decoding.schema_adapter import AdaptedColumn
from asyncpq.errors import AsyncpqError
from asyncpq.expressions import columns as columns_of
from asyncpq.objects.read_plan import Unit
from asyncpq.objects.runtime import Runtime
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

    def ahead_bytes(self, pace_bytes: float | None) -> float:
        """Return no bound: they are there."""
        return math.inf

    def may_decode(self, unit: Unit, others: int, num_bytes: float) -> bool:
        """Return True: they are decoded."""
        return True

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
            if not is_decoded_together(first.metadata.schema.leaves[leaf]):
                return None
            key = ("small files", digest, leaf, options.read.verify_crc, options.read.extension_types)
            values: pa.Array | None = memory.get(key, scan=self._scan)
            if values is None:
                if not small:
                    tails: list[bytes | None] = memory.get_many(
                        [opened.version.tail_key for opened in files], scan=self._scan
                    )
                    small = [
                        SmallFile(opened.version, opened.version.tail_start(tail), memoryview(tail))
                        for opened, tail in zip(files, tails, strict=True)
                        if tail is not None
                    ]
                    if len(small) < len(files):
                        return None
                decoder = leaf_decoder(first, leaf, options.read.extension_types)
                if decoder is None or isinstance(decoder.arrow_type, pa.DictionaryType):
                    return None
                decoded = decode_together(small, decoder, verify_crc=options.read.verify_crc, most_bytes=most_bytes)
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
        """Return the values of a partition column in all rows of ``files``; 0.0 and -0.0 are two of them."""
        pieces: list[pa.Array] = []
        for _, same in groupby(files, lambda opened: repr(opened.file.partition)):
            group = list(same)
            num_rows = sum([opened.version.metadata.num_rows for opened in group])
            pieces.append(constant_array(group[0].view(self._columns).constants[name], num_rows))
        return join(pieces, pieces[0].type)
