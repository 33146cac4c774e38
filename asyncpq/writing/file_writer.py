"""Write Parquet files that need few requests to read: with page indexes, streamed to the store row group by row group.

:class:`SortCheck` checks that rows have the order that the file declares.
"""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from contextlib import aclosing, contextmanager, suppress
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from asyncpq.decoding.typed_literals import storage_type
from asyncpq.errors import AsyncpqError, InvalidOptionError, SchemaMismatchError, StoreError
from asyncpq.indexing.build.adding import AddedFile
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.runtime import Runtime
from asyncpq.options import KIB
from asyncpq.storage.base import RequestContext, WritableStore, writable
from asyncpq.storage.urls import absolute, safe_url
from asyncpq.writing.dictionaries import short_dictionaries
from asyncpq.writing.file_layout import SortedBy, WriteOptions, check_options, leaf_places, sorting
from asyncpq.writing.nan_bounds import leaves_with_nan, without_bounds


class SortCheck:
    """Checks the order of the rows of one file as they come, in Spark's order, where NaN is the greatest value."""

    def __init__(self, url: str, schema: pa.Schema, columns: Sequence[SortedBy]) -> None:
        self._url = url
        self._columns = [(column, leaf_places(schema, column.column) or ()) for column in columns]
        self._last: list[pa.ChunkedArray] | None = None

    def check(self, rows: pa.Table) -> None:
        """Check the order of the next rows of the file, at least one. Raises InvalidOptionError if a row must stand
        before its predecessor."""
        values = [
            _comparable(pc.struct_field(rows.column(first), rest) if rest else rows.column(first))
            for _, (first, *rest) in self._columns
        ]
        compared = values
        if self._last:
            compared = [pa.chunked_array([*a.chunks, *b.chunks]) for a, b in zip(self._last, values, strict=True)]
        self._last = [leaf.slice(len(leaf) - 1) for leaf in values]
        tied = None  # rows that are equal in the columns so far
        for (column, _), leaf in zip(self._columns, compared, strict=True):
            before, equal = _compared(leaf.slice(0, len(leaf) - 1), leaf.slice(1), column)
            is_ordered = pc.or_(before, equal)
            if tied is not None:
                is_ordered, equal = pc.or_(is_ordered, pc.invert(tied)), pc.and_(equal, tied)
            if not pc.all(is_ordered, min_count=0).as_py():
                raise InvalidOptionError(
                    "sortedBy: the option declares rows sorted by this column, but they are not in this order",
                    url=safe_url(self._url),
                    column=column.column,
                    hint="Sort them within partitions: df.sortWithinPartitions(...). If only nulls are out of place,"
                    " say in sortedBy where they are. Spark puts them last in descending order: sortedBy is then "
                    '[{"column": "id", "descending": true, "nullsFirst": false}].',
                )
            tied = equal


def _comparable(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert values of types that pyarrow cannot compare, such as UUID, to values of another type that sort in the
    same order."""
    dtype = storage_type(values.type)
    return values.cast(pa.int8() if pa.types.is_null(dtype) else dtype)


def _compared(
    ones: pa.ChunkedArray, others: pa.ChunkedArray, column: SortedBy
) -> tuple[pa.ChunkedArray, pa.ChunkedArray]:
    """Return two boolean arrays: for each pair of values at one position, whether that of ``ones`` sorts before that
    of ``others``, and whether the two are equal."""
    if column.descending:
        return _compared(others, ones, SortedBy(column=column.column, nulls_first=not column.nulls_first))
    before, equal = pc.less(ones, others), pc.equal(ones, others)
    if pa.types.is_floating(ones.type):
        nan, other_nan = pc.is_nan(ones), pc.is_nan(others)
        before = pc.or_(before, pc.and_not(other_nan, nan))
        equal = pc.or_(equal, pc.and_(nan, other_nan))
    null, other_null = pc.is_null(ones), pc.is_null(others)
    by_null = pc.and_not(null, other_null) if column.nulls_first else pc.and_not(other_null, null)
    return pc.or_(pc.fill_null(before, False), by_null), pc.or_(pc.fill_null(equal, False), pc.and_(null, other_null))


#: Maximum bytes of a file's end in a commit message for the index; the driver holds the messages until it commits.
TAIL_BYTES: Final = 64 * KIB
_TRAILER_BYTES: Final = 8  # footer length and PAR1
_BATCH_ROWS: Final = 256  # pyarrow checks the size of a page after so many rows


def folder_url(target: str) -> str:
    """Return the absolute url of a folder, with a slash at its end."""
    return str(absolute(target)).removesuffix("/") + "/"


async def write_files(
    runtime: Runtime,
    target: str,
    stem: str,
    batches: AsyncIterator[pa.RecordBatch],
    schema: pa.Schema,
    options: WriteOptions,
) -> list[AddedFile]:
    """Write rows to new files, and return these in order. Without rows, no file is written.

    Args:
        target: url of a folder.
        stem: prefix of the file names: ``<stem>-00000.parquet``, and so on. No other write may use it.
        schema: schema of the batches; its metadata is written into the footer.

    Raises:
        InvalidOptionError: an option does not fit the schema, or rows are not sorted as declared.
        SchemaMismatchError: Parquet cannot hold the rows as the schema declares.
        StoreError: the store failed, or a file of this name exists. Files that were written stay.
    """
    runtime.check()
    folder = folder_url(target)
    store = writable((await runtime.store(folder))[0], safe_url(folder))
    check_options(schema, options)
    written: list[AddedFile] = []
    async with aclosing(_row_groups(batches, options)) as groups:
        while (first := await anext(groups, None)) is not None:
            path = f"{stem}-{len(written):05d}.parquet"
            file = _FileWriter(runtime, folder + path, schema, options)
            written.append(await file.write(store, path, first, groups))
    return written


async def _row_groups(
    batches: AsyncIterator[pa.RecordBatch], options: WriteOptions
) -> AsyncGenerator[list[pa.RecordBatch]]:
    """Divide the rows of ``batches`` into row groups, and yield the batches of each; no list is empty."""
    held: list[pa.RecordBatch] = []
    rows = size = 0
    async for batch in batches:
        while batch.num_rows:
            fitting = -(-(options.row_group_bytes - size) * batch.num_rows // max(1, batch.nbytes))
            taken = min(options.row_group_rows - rows, max(1, fitting))
            piece, batch = batch.slice(0, taken), batch.slice(taken)
            held.append(piece)
            rows, size = rows + piece.num_rows, size + piece.nbytes
            if rows >= options.row_group_rows or size >= options.row_group_bytes:
                yield held
                held, rows, size = [], 0, 0
    if held:
        yield held


class _Sink(io.BytesIO):
    """A buffer of the encoder's output. ``take`` removes and returns its content; ``tell`` returns the position in
    the file."""

    taken = 0

    def tell(self) -> int:
        return self.taken + super().tell()

    def take(self) -> bytes:
        data = self.getvalue()
        self.taken += len(data)
        self.seek(0)
        self.truncate()
        return data


class _FileWriter:
    """Encodes the rows of one file and streams them to the store."""

    def __init__(self, runtime: Runtime, url: str, schema: pa.Schema, options: WriteOptions) -> None:
        self._runtime = runtime
        self._url = url
        self._schema = schema
        self._stored = with_wkb_types(schema)
        self._options = options
        self._order = SortCheck(url, schema, options.sorted_by)
        self._sink = _Sink()
        self._writer: pq.ParquetWriter | None = None
        self._rows = self._footer_start = 0
        self._tail = self._ending = b""
        self._metadata: list[pq.FileMetaData] = []
        self._groups = 0
        self._with_nan: set[tuple[int, int]] = set()  # ordinals of row groups and leaves

    async def write(
        self, store: WritableStore, path: str, first: list[pa.RecordBatch], groups: AsyncIterator[list[pa.RecordBatch]]
    ) -> AddedFile:
        """Write row groups until ``groups`` ends or the file reaches ``file_bytes``; return the written file."""
        context = RequestContext(ReadMetrics(), purpose="write")
        try:
            async with aclosing(self._pieces(first, groups)) as pieces:
                created = await store.create_stream(self._url, pieces, context=context)
        finally:
            await self._runtime.in_thread(self._close)
        stored = await store.open_object(self._url)
        try:
            context = context.step("tail", context.round + 1)
            tail = await stored.fetch_tail(1 if created else len(self._ending), context=context)
        finally:
            await stored.close()
        if tail.validator.size != self._sink.tell() or (not created and tail.data != self._ending):
            raise StoreError(
                "the file was not written: another file of this name exists",
                url=safe_url(self._url),
                hint="Write again: each write makes new names.",
            )
        return AddedFile(
            path=path, validator=tail.validator, num_rows=self._rows, footer_start=self._footer_start, tail=self._tail
        )

    async def _pieces(
        self, group: list[pa.RecordBatch] | None, groups: AsyncIterator[list[pa.RecordBatch]]
    ) -> AsyncGenerator[bytes]:
        while group is not None:
            yield await self._runtime.in_thread(partial(self._encode, group))
            if self._sink.tell() >= self._options.file_bytes:
                break
            group = await anext(groups, None)
        yield await self._runtime.in_thread(self._end)

    def _encode(self, group: list[pa.RecordBatch]) -> bytes:
        rows = sum(batch.num_rows for batch in group)
        with self._typed():
            table = pa.Table.from_batches([batch.cast(self._schema) for batch in group], self._schema)
            if self._writer is None:
                self._writer = self._opened(table)
            self._order.check(table)
            self._writer.write_table(table.cast(self._stored), row_group_size=rows)
        self._with_nan.update((self._groups, leaf) for leaf in leaves_with_nan(table))
        self._groups += 1
        self._rows += rows
        return self._sink.take()

    def _end(self) -> bytes:
        assert self._writer is not None
        begin = self._sink.tell()
        with self._typed():
            self._writer.close()
        written = self._sink.take()
        footer_bytes = int.from_bytes(written[-_TRAILER_BYTES:-4], "little")
        self._footer_start = self._sink.tell() - _TRAILER_BYTES - footer_bytes
        if self._with_nan:
            rest = written[: -_TRAILER_BYTES - footer_bytes]
            footer = without_bounds(written[len(rest) : -_TRAILER_BYTES], self._with_nan)
            self._sink.taken += len(footer) - footer_bytes
            written = b"".join((rest, footer, len(footer).to_bytes(4, "little"), written[-4:]))
        (metadata,) = self._metadata
        tail = written[max(0, _bloom_filters_end(metadata) - begin) :]
        self._tail = tail if len(tail) <= TAIL_BYTES else b""
        self._ending = written[-TAIL_BYTES:]
        return written

    def _close(self) -> None:
        """Close the encoder; the output of an unfinished file is discarded."""
        if self._writer is not None and self._writer.is_open:
            with suppress(pa.ArrowException, RuntimeError):
                self._writer.close()
            self._writer.is_open = False  # otherwise its finalizer closes again

    def _opened(self, first: pa.Table) -> pq.ParquetWriter:
        """Open the encoder for a file that begins with the row group ``first``."""
        options, rows = self._options, first.num_rows
        names = options.dictionary_columns
        if names is None:
            names = short_dictionaries(first, min(options.page_rows, rows), options.page_bytes)
        writer = pq.ParquetWriter(
            self._sink,
            self._stored,
            compression=options.compression.upper(),
            compression_level=options.compression_level,
            use_dictionary=list(names),
            data_page_size=options.page_bytes,
            max_rows_per_page=options.page_rows,
            write_batch_size=min(_BATCH_ROWS, options.page_rows),
            write_page_index=True,
            write_page_checksum=True,
            sorting_columns=sorting(self._schema, options.sorted_by),
            bloom_filter_options={
                bloom.column: {"ndv": bloom.ndv or rows, "fpp": float(bloom.fpp)} for bloom in options.bloom_filters
            }
            or None,
            coerce_timestamps="us",
            store_schema=options.store_schema,
            metadata_collector=self._metadata,
        )
        if not options.store_schema and self._schema.metadata:  # omitted together with the schema
            writer.add_key_value_metadata(dict(self._schema.metadata))
        return writer

    @contextmanager
    def _typed(self) -> Iterator[None]:
        try:
            yield
        except AsyncpqError:
            raise
        except (pa.ArrowException, ValueError) as error:  # ValueError: other columns, or in another order
            raise SchemaMismatchError(
                f"pyarrow cannot write the rows: {error}",
                url=safe_url(self._url),
                hint="Give the rows the columns of the schema, in its order, with types that Parquet has.",
            ) from error


def _bloom_filters_end(metadata: pq.FileMetaData) -> int:
    """Return the offset in the file at which the last Bloom filter ends; 0 if the file has no Bloom filter."""
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    chunks = [group.column(leaf) for group in groups for leaf in range(metadata.num_columns)]
    ends = [
        chunk.bloom_filter_offset + chunk.bloom_filter_length
        for chunk in chunks
        if chunk.bloom_filter_offset is not None
    ]
    return max(ends, default=0)


#: Key of field metadata in schemas to write: JSON parameters of GeoArrow's type "geoarrow.wkb".
WKB_KEY: Final = b"asyncpq.geoarrow.wkb"


class _Wkb(pa.ExtensionType):  # type: ignore[misc]  # pyarrow has no types
    """GeoArrow's "geoarrow.wkb", which pyarrow writes as GEOMETRY or GEOGRAPHY. Not registered: readers get binary."""

    def __init__(self, about: bytes) -> None:
        self._about = about
        super().__init__(pa.binary(), "geoarrow.wkb")

    def __arrow_ext_serialize__(self) -> bytes:
        return self._about

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> _Wkb:
        return cls(serialized)


def with_wkb_types(schema: pa.Schema) -> pa.Schema:
    """Return the schema with which pyarrow writes: columns of GeoArrow's "geoarrow.wkb" get the extension type that
    it writes as GEOMETRY or GEOGRAPHY."""
    return pa.schema([_with_wkb(field) for field in schema], metadata=schema.metadata)


def _with_wkb(field: pa.Field) -> pa.Field:
    about = (field.metadata or {}).get(WKB_KEY)
    if about is not None:
        return pa.field(field.name, _Wkb(about), field.nullable)
    dtype = field.type
    if isinstance(dtype, pa.StructType):
        return field.with_type(pa.struct([_with_wkb(child) for child in dtype]))
    if isinstance(dtype, pa.MapType):
        return field.with_type(pa.map_(_with_wkb(dtype.key_field), _with_wkb(dtype.item_field)))
    if isinstance(dtype, pa.ListType):
        return field.with_type(pa.list_(_with_wkb(dtype.value_field)))
    return field
