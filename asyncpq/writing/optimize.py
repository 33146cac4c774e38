"""The order of the rows of a rewrite, their digest, and the result; :mod:`asyncpq.distributed.rewrites` has the tasks.

Rows are sorted by order-preserving keys: nulls first, NaN last, as Spark sorts.

Equal digests of rows in their order show that the written files contain exactly the rows that they should. Rows are
hashed in blocks of equal length, so how they are divided into batches does not matter. Values are hashed as Arrow
stores them; for nulls, the bytes in their slots are ignored.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.dataset import Dataset
from asyncpq.datasets.schemas import output_schema
from asyncpq.decoding.arrow import is_list
from asyncpq.errors import ColumnNotFoundError, InvalidOptionError, nearest_column, plural
from asyncpq.indexing.key_encoding import element_type, is_indexable, sort_keys
from asyncpq.typing import Predicate
from asyncpq.writing.file_layout import SortedBy, leaf_places
from asyncpq.writing.z_order import ZOrder

_SAMPLE_STEP: Final = 16  # rows of a batch that one random number decides on: a sample of runs costs less
_INDEX: Final = pa.int32()
_PLAIN: Final = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}


@dataclass(frozen=True, kw_only=True)
class RewriteResult:
    """Result of :meth:`asyncpq.Session.optimize`.

    Attributes:
        target: url of the folder with the written files.
        files: paths of the written files, relative to ``target``.
        rows: number of rows in all files.
        bytes_before: size of the source's files; None if the store does not tell it.
        bytes_after: size of the written files.
        snapshot: number of the snapshot of the index that lists the files.
        seconds: duration of each step.
    """

    target: str
    files: tuple[str, ...] = field(repr=False)
    rows: int
    bytes_before: int | None
    bytes_after: int
    snapshot: int
    seconds: Mapping[str, float]

    def __str__(self) -> str:
        before = "" if self.bytes_before is None else f" ({self.bytes_before:,} before)"
        steps = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())
        files = plural(len(self.files), "file")
        return (
            f"{self.rows:,} rows in {files}, {self.bytes_after:,} bytes{before}, at {self.target}\n"
            f"verified: the files hold the rows of the source\n{steps}"
        )


@dataclass(frozen=True)
class RowOrder:
    """The order of written rows: by the columns ``keys``; where these are equal, by the place in the z-order of the
    columns ``z_keys``. Both are names, or dotted paths of leaves in structs.

    Raises:
        InvalidOptionError: no column is named, a column is named twice, or its values have no order.
        ColumnNotFoundError: a column is missing.
    """

    schema: pa.Schema
    keys: tuple[str, ...]
    z_keys: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.keys and not self.z_keys:
            raise InvalidOptionError(
                "no column to sort by is named",
                hint="Pass sort_by or zorder_by, in the command --sort-by or --zorder-by.",
            )
        if self.z_keys and not 2 <= len(self.z_keys) <= ZOrder.MOST_COLUMNS:
            raise InvalidOptionError(
                f"zorder_by: must be 2 to {ZOrder.MOST_COLUMNS} columns, not {len(self.z_keys)}", option="zorder_by"
            )
        named = [*self.keys, *self.z_keys]
        if len({*named}) != len(named):
            raise InvalidOptionError(f"sort_by and zorder_by name a column twice: {', '.join(named)}")
        for option, name in [
            *(("sort_by", name) for name in self.keys),
            *(("zorder_by", name) for name in self.z_keys),
        ]:
            self._check(option, name)

    def _check(self, option: str, name: str) -> None:
        is_leaf = leaf_places(self.schema, name) is not None
        if not is_leaf and name not in self.schema.names:
            hint = nearest_column(name, self.schema.names)
            raise ColumnNotFoundError(
                f"{option} names a column that is not among the written columns", column=name, hint=hint
            )
        dtype = self.type_of(name) if is_leaf else self.schema.field(name).type
        if not is_leaf or element_type(dtype) is not None or not is_indexable(dtype):
            raise InvalidOptionError(
                f"{option} names a column of the type {dtype}, whose values have no order",
                column=name,
                hint="Name columns or struct fields of numbers, texts, dates or times.",
            )

    def type_of(self, name: str) -> pa.DataType:
        """Return the Arrow type of the column or struct leaf with the dotted path ``name``."""
        first, *rest = leaf_places(self.schema, name) or ()
        dtype = self.schema.field(first).type
        for place in rest:
            dtype = dtype.field(place).type
        return dtype

    def values(self, name: str, batch: pa.RecordBatch) -> pa.Array:
        """Return the values of a leaf in ``batch``, whose columns are those of the schema."""
        first, *rest = leaf_places(self.schema, name) or ()
        column = batch.column(first)
        return pc.struct_field(column, rest) if rest else column

    def row_keys(self, batch: pa.RecordBatch, z_order: ZOrder | None) -> pa.BinaryArray:
        """Return a binary key for each row. Sorting by these keys gives this order; ``z_order`` is None without
        ``z_keys``."""
        names = [*self.keys, *self.z_keys]
        arrays = [self.values(name, batch) for name in names]
        types = [self.type_of(name) for name in names]
        if z_order is not None:
            arrays.insert(len(self.keys), z_order.places(arrays[len(self.keys) :]))
            types.insert(len(self.keys), pa.int64())
        return sort_keys(arrays, types)

    def sorted_by(self) -> tuple[SortedBy, ...]:
        """Return the columns by which the files declare their rows sorted: the leading ``keys`` whose order Parquet
        defines, so none from the first float on."""

        def is_same(name: str) -> bool:
            return not pa.types.is_floating(self.type_of(name)) and leaf_places(self.schema, name) is not None

        return tuple(SortedBy(column=name) for name in takewhile(is_same, self.keys))


async def sampled_z_order(dataset: Dataset, order: RowOrder, where: Predicate | None) -> ZOrder | None:
    """Return the z-order of the rows, computed from a sample of them; None if ``zorder_by`` is empty."""
    names = order.z_keys
    if not names:
        return None
    schema, chance = writable_schema(output_schema(dataset.schema, list(names), (), ())), random.Random(7)
    total = await dataset.count(where)
    share = min(1.0, ZOrder.SAMPLE_ROWS / max(1, total))
    samples: list[list[pa.Array]] = [[] for _ in names]
    sampled = RowOrder(schema, (), names)
    async with dataset.scan(list(names), where) as scan:
        async for batch in scan:
            starts = [at for at in range(0, batch.num_rows, _SAMPLE_STEP) if share == 1 or chance.random() < share]
            rows = [at + step for at in starts for step in range(min(_SAMPLE_STEP, batch.num_rows - at))]
            taken = batch.cast(schema).take(pa.array(rows, pa.int64()))
            for name, sample in zip(names, samples, strict=True):
                sample.append(sampled.values(name, taken))
    types = [order.type_of(name) for name in names]
    return ZOrder.of_samples(
        [
            pa.concat_arrays(sample) if sample else pa.nulls(0, dtype)
            for sample, dtype in zip(samples, types, strict=True)
        ]
    )


def writable_schema(schema: pa.Schema) -> pa.Schema:
    """Return the schema with which rows are sorted and written: ``schema`` with plain types for views of strings and
    binary, which pyarrow can neither sort nor take, and with wide indices of dictionaries, since those of several row
    groups become one."""
    return pa.schema([field.with_type(_writable_type(field.type)) for field in schema], schema.metadata)


def _writable_type(type_: pa.DataType) -> pa.DataType:
    if isinstance(type_, pa.StructType):
        return pa.struct([field.with_type(_writable_type(field.type)) for field in type_])
    if isinstance(type_, pa.MapType):
        key, item = (field.with_type(_writable_type(field.type)) for field in (type_.key_field, type_.item_field))
        return pa.map_(key, item, type_.keys_sorted)
    if is_list(type_):
        element = type_.value_field.with_type(_writable_type(type_.value_type))
        if isinstance(type_, pa.FixedSizeListType):
            return pa.list_(element, type_.list_size)
        is_large = isinstance(type_, (pa.LargeListType, pa.LargeListViewType))
        return pa.large_list(element) if is_large else pa.list_(element)
    if isinstance(type_, pa.DictionaryType) and type_.index_type.bit_width < _INDEX.bit_width:
        return pa.dictionary(_INDEX, type_.value_type, type_.ordered)
    return _PLAIN.get(type_, type_)


_BLOCK_ROWS: Final = 1 << 16


class RowDigest:
    """Hashes rows as they come; :meth:`hexdigest` is the same for the same rows in the same order."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._hash = hashlib.blake2b(digest_size=16)
        self._held: list[pa.RecordBatch] = []
        self._held_rows = 0
        self.rows: int = 0  # number of all rows

    def update(self, batch: pa.RecordBatch) -> None:
        """Add the next rows, whose columns must be those of the schema."""
        batch = batch.cast(self._schema)
        self.rows += batch.num_rows
        while batch.num_rows:
            taken = batch.slice(0, _BLOCK_ROWS - self._held_rows)
            batch = batch.slice(taken.num_rows)
            self._held.append(taken)
            self._held_rows += taken.num_rows
            if self._held_rows == _BLOCK_ROWS:
                self._end_block()

    def hexdigest(self) -> str:
        """Return the digest of all rows added so far, in hexadecimal digits."""
        if self._held:
            self._end_block()
        return self._hash.hexdigest()

    def _end_block(self) -> None:
        table = pa.Table.from_batches(self._held, self._schema).combine_chunks()
        for column in table.columns:
            for chunk in column.chunks:  # more than one where text exceeds 2 GiB
                for data in _canonical(chunk):
                    self._hash.update(len(data).to_bytes(8, "little"))
                    self._hash.update(data)
        self._held, self._held_rows = [], 0


def _canonical(array: pa.Array) -> Iterator[Any]:
    """Yield buffers with the content of ``array`` that are the same for equal arrays, whatever their offsets and
    null slots."""
    dtype = array.type
    if isinstance(dtype, pa.BaseExtensionType):
        yield from _canonical(array.storage)
        return
    if pa.types.is_dictionary(dtype):
        yield from _canonical(array.dictionary_decode())
        return
    if pa.types.is_map(dtype):
        array = array.cast(pa.list_(pa.struct([("key", dtype.key_type), ("value", dtype.item_type)])))
        dtype = array.type
    yield _bytes(array.is_valid().cast(pa.uint8()))
    if pa.types.is_null(dtype):
        return
    if pa.types.is_struct(dtype):
        for child in array.flatten():
            yield from _canonical(child)
    elif pa.types.is_nested(dtype):
        yield _bytes(pc.fill_null(pc.list_value_length(array).cast(pa.int64()), 0))
        yield from _canonical(array.flatten())
    elif pa.types.is_boolean(dtype):
        yield _bytes(pc.fill_null(array, False).cast(pa.uint8()))
    elif _is_bytes(dtype):
        values = pc.fill_null(array.cast(pa.large_binary()), b"")
        yield _bytes(pc.binary_length(values))
        start, stop = values.buffers()[1][values.offset * 8 :], len(values)
        ends = memoryview(start).cast("q")
        data = values.buffers()[2]
        yield b"" if data is None else memoryview(data)[ends[0] : ends[stop]]
    else:
        yield _bytes(array if not array.null_count else pc.if_else(array.is_valid(), array, _zero(dtype)))


def _is_bytes(dtype: pa.DataType) -> bool:
    tests = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view, pa.types.is_binary)
    more = (pa.types.is_large_binary, pa.types.is_binary_view, pa.types.is_fixed_size_binary)
    return any(test(dtype) for test in (*tests, *more)) and not pa.types.is_decimal(dtype)


def _zero(dtype: pa.DataType) -> pa.Scalar:
    return pa.Array.from_buffers(dtype, 1, [None, pa.py_buffer(bytes(dtype.bit_width // 8))])[0]


def _bytes(array: pa.Array) -> memoryview:
    """Return the bytes of an array of fixed width."""
    width = array.type.bit_width // 8
    data = array.buffers()[1]
    return memoryview(b"" if data is None else data)[array.offset * width : (array.offset + len(array)) * width]
