"""Write Parquet files that need few requests to read: with page indexes, streamed to the store row group by row group.

Rows and a layout come in (:class:`WriteOptions`: pages, row groups, codecs, Bloom filters, declared orders); written
files go out, which readers see once a commit to the lake's index lists them. ``distributed`` plans and commits writes,
and rewrites lakes with their rows in another order. :class:`SortCheck` checks that rows have the order that the file
declares.

A lookup reads one page of a column and the chunk's dictionary. A dictionary of many values is longer than the page. If
a dictionary exceeds 1 MiB, pyarrow stops using it in the middle of the chunk, and lookups read it for nothing. So
:func:`short_dictionaries` chooses the leaves that have one.

Parquet's min and max do not count NaN. For some readers, such as Spark, NaN is greater than all numbers. From the max
of a page or row group they conclude that it has no greater values, and skip its NaN. So float columns with NaN have no
bounds here, as in Spark's own files: neither statistics nor a column index.
"""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence, Set
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from asyncpq.decoding.typed_literals import storage_type
from asyncpq.errors import AsyncpqError, InvalidOptionError, SchemaMismatchError, StoreError, nearest_column
from asyncpq.indexing.build.adding import AddedFile
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.runtime import Runtime
from asyncpq.options import KIB, MIB, require_whole
from asyncpq.parquet.metadata import TRAILER_BYTES
from asyncpq.parquet.thrift import FALSE, STOP, TRUE, CompactReader, CompactWriter
from asyncpq.storage.base import RequestContext, WritableStore, writable
from asyncpq.storage.urls import absolute, safe_url

COMPRESSIONS: Final = ("zstd", "snappy", "gzip", "lz4_raw", "none")


@dataclass(frozen=True, kw_only=True)
class BloomFilter:
    """Options for the Bloom filters of a column, one filter in each row group: an item of
    :attr:`WriteOptions.bloom_filters`. A value that is not allowed raises :class:`asyncpq.InvalidOptionError`.

    Attributes:
        column: name, or dotted path of a leaf.
        ndv: number of distinct values; None: the number of rows in the file's first row group.
        fpp: false positive probability, between 0 and 1.
    """

    column: str
    ndv: int | None = None
    fpp: float = 0.01

    def __post_init__(self) -> None:
        if self.ndv is not None:
            require_whole("ndv", self.ndv)
        share: Any = self.fpp
        if not isinstance(share, (int, float)) or not 0 < share < 1:
            raise InvalidOptionError(
                f"fpp={share!r}: must be a number between 0 and 1", option="fpp", column=self.column
            )


@dataclass(frozen=True, kw_only=True)
class SortedBy:
    """A column by which the rows are sorted: an item of :attr:`WriteOptions.sorted_by`. A write of rows in another
    order, or of a column that does not exist or has no order, raises :class:`asyncpq.InvalidOptionError`.

    Attributes:
        column: name, or dotted path of a leaf in structs.
        descending: whether the largest value comes first.
        nulls_first: whether nulls come before all values, as in Spark's ascending order.
    """

    column: str
    descending: bool = False
    nulls_first: bool = True

    def __post_init__(self) -> None:
        flags: Any = (self.descending, self.nulls_first)
        if not all(isinstance(flag, bool) for flag in flags):
            raise InvalidOptionError(
                f"sorted_by: descending and nulls_first must be bools, not {flags}",
                option="sorted_by",
                column=self.column,
            )


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Options for the layout of written files: ``layout`` of :meth:`asyncpq.Session.optimize`. Picklable.

    Attributes:
        compression: the codec: "zstd", "snappy", "gzip", "lz4_raw" or "none".
        compression_level: the codec's level; None for the codec's default.
        page_rows, page_bytes: maximum rows of a page, and its approximate maximum bytes, encoded and uncompressed. A
            lookup reads one page of each column. Smaller pages make a larger page index, which lookups read as well.
        row_group_rows, row_group_bytes: maximum rows of a row group, and maximum bytes in memory. Writing takes twice
            as much memory, and 40 MiB for requests.
        file_bytes: a file ends after the row group with which it reaches this size in bytes.
        bloom_filters: Bloom filters to write, for unsorted columns that lookups compare for equality.
        sorted_by: the columns by which the rows are sorted, as recorded in each row group.
        dictionary_columns: paths of leaves with dictionaries, as long as these are small. None: those for which a
            dictionary of the file's first row group is shorter than the bytes that it saves in a page.
        store_schema: whether the footer has the Arrow schema.
    """

    compression: str = "zstd"
    compression_level: int | None = None
    page_rows: int = 8192
    page_bytes: int = 256 * KIB
    row_group_rows: int = 1 << 20
    row_group_bytes: int = 64 * MIB
    file_bytes: int = 256 * MIB
    bloom_filters: tuple[BloomFilter, ...] = ()
    sorted_by: tuple[SortedBy, ...] = ()
    dictionary_columns: tuple[str, ...] | None = None
    store_schema: bool = True

    def __post_init__(self) -> None:
        if self.compression not in COMPRESSIONS:
            raise InvalidOptionError(
                f"compression={self.compression!r}: must be one of {', '.join(COMPRESSIONS)}", option="compression"
            )
        if self.compression_level is not None and type(self.compression_level) is not int:
            raise InvalidOptionError(
                f"compression_level={self.compression_level!r}: must be a whole number", option="compression_level"
            )
        for name in ("page_rows", "page_bytes", "row_group_rows", "row_group_bytes", "file_bytes"):
            require_whole(name, getattr(self, name))


def check_options(schema: pa.Schema, options: WriteOptions) -> None:
    """Check the options against the schema of the files.

    Raises InvalidOptionError if an option names a missing column or a column of an unsuitable type, and
    SchemaMismatchError if Parquet cannot store a column's type.
    """
    try:
        if options.compression_level is not None:
            pa.Codec(options.compression, compression_level=options.compression_level)
        types = dict(leaf_types(schema, options.compression, options.compression_level))
    except pa.ArrowNotImplementedError as error:
        raise SchemaMismatchError(
            f"pyarrow cannot write the type of a column to Parquet: {error}",
            hint="Cast the column to another type first.",
        ) from error
    except (pa.ArrowException, ValueError) as error:
        raise InvalidOptionError(
            f"compression={options.compression!r} and compression_level={options.compression_level} cannot be combined:"
            f" {error}",
            option="compression",
        ) from error
    blooms = [bloom.column for bloom in options.bloom_filters]
    for option, columns in (("bloom_filters", blooms), ("dictionary_columns", options.dictionary_columns or ())):
        for column in columns:
            if column not in types:
                raise InvalidOptionError(
                    f"{option}: there is no such leaf column in the files",
                    option=option,
                    column=column,
                    hint=nearest_column(column, list(types)),
                )
    for column in blooms:
        if types[column] == "BOOLEAN":
            raise InvalidOptionError(
                "bloom_filters: a boolean column cannot have a Bloom filter", option="bloom_filters", column=column
            )
    sorting(schema, options.sorted_by)


def leaf_types(schema: pa.Schema, compression: str = "none", level: int | None = None) -> list[tuple[str, str]]:
    """Return the path and the physical type of each leaf, in Parquet's order; names with dots may make two paths
    equal. Raises pyarrow's errors if it cannot write the schema with this compression and level."""
    sink = pa.BufferOutputStream()
    pq.ParquetWriter(sink, schema, compression=compression.upper(), compression_level=level).close()
    written = pq.read_metadata(pa.BufferReader(sink.getvalue())).schema
    columns = [written.column(at) for at in range(len(written.names))]
    return [(column.path, column.physical_type) for column in columns]


def sorting(schema: pa.Schema, columns: Sequence[SortedBy]) -> list[pq.SortingColumn] | None:
    """Return the sorting columns in pyarrow's form; None if ``columns`` is empty. Raises InvalidOptionError if a
    column does not exist or has no sort order."""
    orders: list[pq.SortingColumn] = []
    for key in columns:
        order, nulls = "descending" if key.descending else "ascending", "at_start" if key.nulls_first else "at_end"
        try:
            if leaf_places(schema, key.column) is None:
                raise ValueError(key.column)
            orders += pq.SortingColumn.from_ordering(schema, [(key.column, order)], nulls)
        except ValueError as error:
            raise InvalidOptionError(
                "sorted_by: the column does not exist, or its type has no sort order",
                option="sorted_by",
                column=key.column,
                hint="Name a column, or a field of a struct by its dotted path; lists and maps have no order.",
            ) from error
    return orders or None


def leaf_places(fields: Iterable[pa.Field], path: str) -> tuple[int, ...] | None:
    """Return the positions on the path to a leaf: that of its top-level column in ``fields``, then of the field in
    each struct. None if there is no such leaf, or it is inside a list."""
    for at, field in enumerate(fields):
        if field.name == path and not pa.types.is_nested(field.type):
            return (at,)
        if pa.types.is_struct(field.type) and path.startswith(f"{field.name}."):
            inner = leaf_places(field.type, path.removeprefix(f"{field.name}."))
            if inner is not None:
                return (at, *inner)
    return None


# -- dictionaries and declared orders -------------------------------------------------------------


_SLICE_ROWS: Final = 1 << 16  # counted at once; most columns of many values are known after the first slice
_LENGTH_BYTES: Final = 4  # before each string in PLAIN


def short_dictionaries(table: pa.Table, page_rows: int, page_bytes: int) -> tuple[str, ...]:
    """Return the paths of the leaves of ``table``, one row group, that are better written with a dictionary: it is
    shorter than the bytes that it saves in a page.

    Args:
        page_rows, page_bytes: most rows of a page, and most bytes of its values.
    """
    leaves = [leaf for column in table.combine_chunks().columns for leaf in leaf_arrays(_joined(column))]
    paths = [path for path, _ in leaf_types(table.schema)]
    short = dict.fromkeys(paths, True)
    for path, leaf in zip(paths, leaves, strict=True):  # paths of names with dots may be equal
        short[path] = short[path] and _is_short(leaf, page_rows, page_bytes)
    return tuple(path for path, is_short in short.items() if is_short)


def _joined(column: pa.ChunkedArray) -> pa.Array:
    array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    return array.dictionary_decode() if pa.types.is_dictionary(array.type) else array


def _is_short(leaf: pa.Array, page_rows: int, page_bytes: int) -> bool:
    """Whether a dictionary of the leaf's values, plus a page of indices into it, takes no more bytes than a page of
    the plain values."""
    if pa.types.is_null(leaf.type) or pa.types.is_boolean(leaf.type):
        return False
    page = min(page_bytes, _plain_bytes(leaf) * min(1.0, page_rows / max(1, len(leaf))))
    distinct = leaf.slice(0, 0)
    for begin in range(0, len(leaf), _SLICE_ROWS):
        distinct = pc.unique(pa.concat_arrays([distinct, pc.unique(leaf.slice(begin, _SLICE_ROWS))]))
        if _plain_bytes(distinct) + page_rows * len(distinct).bit_length() / 8 > page:
            return False
    return True


def _plain_bytes(values: pa.Array) -> int:
    """Return the bytes that the values take in the encoding PLAIN."""
    if values.type.num_buffers == 2:
        return len(values) * int(values.type.bit_width) // 8
    return int(pc.sum(pc.binary_length(values)).as_py() or 0) + _LENGTH_BYTES * len(values)


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
    """Convert values of types that pyarrow cannot compare, such as UUID, to another type that sorts alike."""
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


# -- files ----------------------------------------------------------------------------------------


#: Maximum bytes of a file's end in a commit message for the index; the driver holds the messages until it commits.
TAIL_BYTES: Final = 64 * KIB
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
    """A buffer of the encoder's output. ``take`` removes and returns its content; ``tell``: the file position."""

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
        footer_bytes = int.from_bytes(written[-TRAILER_BYTES:-4], "little")
        self._footer_start = self._sink.tell() - TRAILER_BYTES - footer_bytes
        if self._with_nan:
            rest = written[: -TRAILER_BYTES - footer_bytes]
            footer = without_bounds(written[len(rest) : -TRAILER_BYTES], self._with_nan)
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


# Ids of fields in Parquet's Thrift structs.
_ROW_GROUPS: Final = 4  # FileMetaData
_COLUMNS: Final = 1  # RowGroup
_META_DATA: Final = 3  # ColumnChunk
_COLUMN_INDEX: Final = (6, 7)  # ColumnChunk: offset and length
_STATISTICS: Final = 12  # ColumnMetaData
_BOUNDS: Final = frozenset({1, 2, 5, 6, 7, 8})  # Statistics: least and greatest values, and whether they are exact


def leaves_with_nan(table: pa.Table) -> frozenset[int]:
    """Return the ordinals of the leaves, in Parquet's order, that hold NaN in at least one row."""
    found: set[int] = set()
    for chunk in table.combine_chunks().to_batches():
        ordinal = 0
        for column in chunk.columns:
            for leaf in leaf_arrays(column):
                if pa.types.is_floating(leaf.type) and pc.any(pc.is_nan(_wide(leaf))).as_py():
                    found.add(ordinal)
                ordinal += 1
    return frozenset(found)


def _wide(leaf: pa.Array) -> pa.Array:
    return leaf.cast(pa.float32()) if pa.types.is_float16(leaf.type) else leaf


def leaf_arrays(array: pa.Array) -> Iterator[pa.Array]:
    """Yield the values of each leaf of ``array``, in Parquet's order; of a dictionary its distinct values."""
    dtype = array.type
    if isinstance(dtype, pa.BaseExtensionType):
        yield from leaf_arrays(array.storage)
    elif pa.types.is_dictionary(dtype):
        yield array.dictionary
    elif pa.types.is_struct(dtype):
        for child in array.flatten():
            yield from leaf_arrays(child)
    elif pa.types.is_map(dtype):
        yield from leaf_arrays(array.keys)
        yield from leaf_arrays(array.items)
    elif pa.types.is_nested(dtype):
        yield from leaf_arrays(array.flatten())
    else:
        yield array


def without_bounds(footer: bytes, chunks: Set[tuple[int, int]]) -> bytes:
    """Return ``footer``, a serialized ``FileMetaData``, without the bounds and column indexes of ``chunks``: pairs
    of a row group's and a leaf's ordinal. Everything else stays the same, byte by byte where Thrift has only one
    encoding."""

    def chunk(reader: CompactReader, writer: CompactWriter) -> None:
        for field, type_ in _fields(reader):
            if field in _COLUMN_INDEX:
                _skip(reader, type_)
            elif field == _META_DATA:
                writer.begin_struct(field)
                _copy(reader, writer, _STATISTICS)
                writer.end_struct()
            else:
                _copy_field(reader, writer, field, type_)

    changed = {group for group, _ in chunks}
    reader, writer = CompactReader(footer), CompactWriter()
    for field, type_ in _fields(reader):
        if field != _ROW_GROUPS:
            _copy_field(reader, writer, field, type_)
            continue
        element, groups = reader.list_header()
        writer.field_list(field, element, groups)
        for group in range(groups):
            writer.begin_element()
            for inner, inner_type in _fields(reader):
                if inner != _COLUMNS or group not in changed:
                    _copy_field(reader, writer, inner, inner_type)
                    continue
                element, leaves = reader.list_header()
                writer.field_list(inner, element, leaves)
                for leaf in range(leaves):
                    if (group, leaf) in chunks:
                        writer.begin_element()
                        chunk(reader, writer)
                        writer.end_struct()
                    else:
                        start = reader.pos
                        reader.skip_struct()
                        writer.raw(footer[start : reader.pos])
            writer.end_struct()
    return writer.getvalue()


def _fields(reader: CompactReader) -> Iterator[tuple[int, int]]:
    """Yield the id and Thrift type of each field of a struct; the caller must read or skip the field's value."""
    last = 0
    while True:
        type_, last = reader.field(last)
        if type_ == STOP:
            return
        yield last, type_


def _skip(reader: CompactReader, type_: int) -> None:
    """Move past a field's value; a bool's is in the field's header."""
    if type_ not in (TRUE, FALSE):
        reader.skip(type_)


def _copy_field(reader: CompactReader, writer: CompactWriter, field: int, type_: int) -> None:
    start = reader.pos
    _skip(reader, type_)
    writer.field_raw(field, type_, reader.data[start : reader.pos])


def _copy(reader: CompactReader, writer: CompactWriter, statistics: int) -> None:
    """Copy the fields of a struct; the struct in its field ``statistics`` is copied without bounds."""
    for field, type_ in _fields(reader):
        if field != statistics:
            _copy_field(reader, writer, field, type_)
            continue
        writer.begin_struct(field)
        for inner, inner_type in _fields(reader):
            if inner in _BOUNDS:
                _skip(reader, inner_type)
            else:
                _copy_field(reader, writer, inner, inner_type)
        writer.end_struct()
