"""The order of written rows: by keys, and by a z-order, which keeps rows together that are close in several columns.

Rows are sorted by order-preserving keys: nulls first, NaN last, as Spark sorts.

For a z-order, the values of each column become ranks of equal size, by the quantiles of a sample, so types and
distributions do not matter: nulls first, then values in their order. A row's place interleaves the bits of its ranks,
highest bits first. Values that the sample does not separate share a rank.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import takewhile
from typing import ClassVar, Final, Self

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.dataset import Dataset
from asyncpq.datasets.schemas import output_schema
from asyncpq.decoding.arrow import children_of, with_children
from asyncpq.decoding.typed_literals import storage_values
from asyncpq.errors import ColumnNotFoundError, Hint, InvalidOptionError, nearest_column
from asyncpq.indexing.key_encoding import element_type, is_indexable, is_variable, sort_keys
from asyncpq.typing import Predicate
from asyncpq.writing import SortedBy, leaf_places

_SAMPLE_STEP: Final = 16  # rows of a batch that one random number decides on: a sample of runs costs less
_INDEX: Final = pa.int32()
_PLAIN: Final = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
_PLACE_BITS: Final = 62  # bits of a non-negative int64
_MOST_BITS: Final = 12  # of one column: 4,096 ranks


@dataclass(frozen=True)
class ZOrder:
    """A z-order: it maps the values of several columns in a row to one integer, the row's place, by which rows are
    sorted, so that rows with close values in all columns are close together. Picklable.

    Attributes:
        bounds: for each column the ascending values that divide it into ranks.
        spread: for each column, by rank, the bits (int64) that it adds to a place.
        MOST_COLUMNS: maximum number of columns; more would have too few bits each.
        SAMPLE_ROWS: number of randomly chosen rows that :meth:`of_samples` should get.
    """

    MOST_COLUMNS: ClassVar[int] = 8
    SAMPLE_ROWS: ClassVar[int] = 100_000

    bounds: tuple[pa.Array, ...]
    spread: tuple[pa.Array, ...]

    @classmethod
    def of(cls, bounds: Sequence[pa.Array], bits: int) -> Self:
        """Return a z-order by given bounds; :meth:`of_samples` chooses them.

        Args:
            bounds: for each column its ascending distinct values, at most ``2**bits - 2``, that divide it into ranks.
                A column with few bounds weighs as much as the others: its ranks are scaled to ``bits`` bits.
            bits: number of bits of a rank; times the number of columns, at most 62.
        """
        columns = len(bounds)
        tables = []
        for at, values in enumerate(bounds):
            most = len(values) + 1
            scaled = [rank * ((1 << bits) - 1) // most for rank in range(most + 1)]
            tables.append(pa.array([_spread(rank, columns, at) for rank in scaled], pa.int64()))
        return cls(tuple(bounds), tuple(tables))

    @classmethod
    def of_samples(cls, samples: Sequence[pa.Array]) -> Self:
        """Return a z-order for columns with the distribution of ``samples``: sampled values of each column."""
        bits = min(_MOST_BITS, _PLACE_BITS // len(samples))
        return cls.of([rank_bounds(values, (1 << bits) - 2) for values in samples], bits)

    def places(self, columns: Sequence[pa.Array]) -> pa.Array:
        """Return the place of each row in the z-order, as int64 without nulls. ``columns`` are the values of each
        column, in the order of ``bounds``."""
        bits = [
            pc.take(spread, ranks_of(values, bounds))
            for values, bounds, spread in zip(columns, self.bounds, self.spread, strict=True)
        ]
        return reduce(pc.add, bits)


def ranks_of(values: pa.Array, bounds: pa.Array) -> pa.Array:
    """Return each value's rank: 0 for null, else 1 plus the number of ``bounds`` not greater than it."""
    places = pc.search_sorted(bounds, _orderable(values), side="right")
    return pc.fill_null(pc.add(pc.cast(places, pa.int64()), 1), 0)


def rank_bounds(values: pa.Array, most: int) -> pa.Array:
    """Return at most ``most`` distinct ascending values that divide ``values`` into groups of about equal size."""
    ordered = _orderable(values).drop_null()
    ordered = ordered.take(pc.sort_indices(ordered))
    count = min(most, len(ordered))
    picked = ordered.take(pa.array([(at * len(ordered)) // (count + 1) for at in range(1, count + 1)], pa.int64()))
    return pc.unique(picked)


def _orderable(values: pa.Array) -> pa.Array:
    """Convert ``values`` to numbers or bytes in the same order as Spark's, of a type that pyarrow can search."""
    values = storage_values(values)  # a UUID's bytes
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    dtype = values.type
    if pa.types.is_null(dtype):
        return values.cast(pa.int64())
    if pa.types.is_decimal(dtype):
        return values.cast(pa.float64())  # may merge close values
    if pa.types.is_floating(dtype):
        return pc.add(values, pa.scalar(0.0, dtype))  # -0 becomes 0
    if pa.types.is_boolean(dtype):
        return values.cast(pa.uint8())
    if pa.types.is_temporal(dtype):
        return values.cast(pa.int32() if dtype.bit_width == 32 else pa.int64())
    return values.cast(pa.binary()) if is_variable(dtype) else values


def _spread(rank: int, columns: int, at: int) -> int:
    """Return ``rank`` with its bits ``columns`` places apart, such that the ranks of all columns can be added
    without overlap. ``at``: position of the column; that of 0 has the highest bits."""
    spread, step = 0, columns - 1 - at
    while rank:
        spread |= (rank & 1) << step
        rank >>= 1
        step += columns
    return spread


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
                hint=Hint("Pass sort_by or zorder_by.", "Add --sort-by COLUMNS or --zorder-by COLUMNS."),
            )
        if self.z_keys and not 2 <= len(self.z_keys) <= ZOrder.MOST_COLUMNS:
            raise InvalidOptionError(
                f"zorder_by: must be 2 to {ZOrder.MOST_COLUMNS} columns, not {len(self.z_keys)}", option="zorder_by"
            )
        named = [*self.keys, *self.z_keys]
        if len({*named}) != len(named):
            raise InvalidOptionError(f"the rows are to be sorted by a column twice: {', '.join(named)}")
        for option, name in [
            *(("sort_by", name) for name in self.keys),
            *(("zorder_by", name) for name in self.z_keys),
        ]:
            self._check(option, name)

    def _check(self, option: str, name: str) -> None:
        is_leaf = leaf_places(self.schema, name) is not None
        if not is_leaf and name not in self.schema.names:
            hint = nearest_column(name, self.schema.names)
            error = ColumnNotFoundError(
                f"{option} names a column that is not among the written columns", column=name, hint=hint
            )
            error.option = option
            raise error
        dtype = self.type_of(name) if is_leaf else self.schema.field(name).type
        if not is_leaf or element_type(dtype) is not None or not is_indexable(dtype):
            raise InvalidOptionError(
                f"{option} names a column of the type {dtype}, whose values have no order",
                option=option,
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
    if isinstance(type_, (pa.ListViewType, pa.LargeListViewType)):
        type_ = (pa.list_ if isinstance(type_, pa.ListViewType) else pa.large_list)(type_.value_field)
    if children := [field.with_type(_writable_type(field.type)) for field in children_of(type_)]:
        return with_children(type_, children)
    if isinstance(type_, pa.DictionaryType) and type_.index_type.bit_width < _INDEX.bit_width:
        return pa.dictionary(_INDEX, type_.value_type, type_.ordered)
    return _PLAIN.get(type_, type_)
