"""Bounds of chunks and pages enclose the values that they speak of, in files of all types and of the corpus."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from asyncpq.parquet.logical_types import LogicalKind
from asyncpq.parquet.page_index import BoundaryOrder, decode_column_index, decode_offset_index
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.statistics import ColumnOrder, SortOrder, page_bounds
from tests.parquet_samples import DATA, SAMPLES, metadata_of, requires_corpus, sample


def comparables(values: pa.Array, leaf: Leaf) -> list[Any]:
    """The values as ``decode_values`` gives them; None for null."""
    if leaf.logical_type is not None and leaf.logical_type.kind is LogicalKind.DECIMAL:
        scale = leaf.logical_type.scale or 0
        return [None if v is None else int(v.scaleb(scale)) for v in values.to_pylist()]
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    if pa.types.is_temporal(values.type):
        wide = pa.types.is_timestamp(values.type) or pa.types.is_time64(values.type)
        return list(values.cast(pa.int64() if wide else pa.int32()).to_pylist())
    return [v.encode() if isinstance(v, str) else v for v in values.to_pylist()]


def assert_encloses(low: Any, high: Any, values: list[Any], context: object) -> None:
    real = [value for value in values if value is not None and value == value]
    if low is not None:
        assert low <= min(real), context
        assert high >= max(real), context
    else:
        assert high is None


@pytest.mark.parametrize("name", [name for name in SAMPLES if name.startswith(("flat", "empty", "int96"))])
def test_bounds_enclose_the_data(name: str) -> None:
    data = sample(name)
    metadata = metadata_of(data)
    table = pq.read_table(pa.BufferReader(data))
    bounded = 0
    for group, leaf in itertools.product(metadata.row_groups, metadata.schema.leaves):
        column = table.column(leaf.index).combine_chunks()
        rows = comparables(column.slice(group.first_row, group.num_rows), leaf)
        chunk = group.chunk(leaf.index)
        order = metadata.order_of(leaf)
        found, reason = metadata.bounds_of(leaf)(chunk, group.num_rows)
        assert reason is None
        assert_encloses(found.min, found.max, rows, leaf.dotted)
        if found.null_count is not None:
            assert found.null_count == rows.count(None)
            assert found.all_null == all(value is None for value in rows)
        if found.min is not None and order is not SortOrder.BYTES:
            assert found.min in rows
            assert found.max in rows
        bounded += found.min is not None
        if chunk.column_index_range is None or chunk.offset_index_range is None:
            continue
        index = decode_offset_index(data[slice(*chunk.offset_index_range)])
        counts = index.row_counts(group.num_rows)
        pages = page_bounds(decode_column_index(data[slice(*chunk.column_index_range)]), leaf, order, counts)
        for page in range(index.num_pages):
            start, stop = index.rows_of_page(page, group.num_rows)
            assert_encloses(pages.mins[page], pages.maxs[page], rows[start:stop], leaf.dotted)
            assert pages.null_pages[page] == all(value is None for value in rows[start:stop])
            assert pages.null_counts is not None
            assert pages.null_counts[page] == rows[start:stop].count(None)
            assert (pages.mins[page] is None) == (pages.null_pages[page] or order is SortOrder.UNDEFINED)
        if leaf.dotted == "id":
            assert pages.boundary_order is BoundaryOrder.ASCENDING
    assert (bounded > 0) is (name not in ("flat_no_statistics", "empty"))


@requires_corpus
def test_total_orders_of_the_corpus() -> None:
    metadata = metadata_of((DATA / "floating_orders_nan_count.parquet").read_bytes())
    assert metadata.column_orders is not None
    assert ColumnOrder.IEEE_754_TOTAL_ORDER in metadata.column_orders
    table = pq.read_table(DATA / "floating_orders_nan_count.parquet")
    with_counts = 0
    for group, leaf in itertools.product(metadata.row_groups, metadata.schema.leaves):
        found, _ = metadata.bounds_of(leaf)(group.chunk(leaf.index), group.num_rows)
        values = [None if v is None else float(v) for v in table.column(leaf.index).to_pylist()]
        rows = values[group.first_row : group.first_row + group.num_rows]
        assert_encloses(found.min, found.max, rows, (leaf.dotted, group.ordinal))
        if found.nan_count is not None:
            with_counts += 1
            assert found.nan_count == sum(value is not None and math.isnan(value) for value in rows)
    assert with_counts > 0


@requires_corpus
@pytest.mark.parametrize("name", ["int96_from_spark.parquet", "fixed_length_decimal_legacy.parquet"])
def test_files_whose_bounds_must_not_be_used(name: str) -> None:
    metadata = metadata_of((DATA / name).read_bytes())
    for group, leaf in itertools.product(metadata.row_groups, metadata.schema.leaves):
        found, _ = metadata.bounds_of(leaf)(group.chunk(leaf.index), group.num_rows)
        assert found.min is None


def test_the_sample_has_what_the_comparison_needs() -> None:
    table = pq.read_table(pa.BufferReader(sample("flat")))
    assert pc.any(pc.is_nan(table["with_nan"])).as_py()
    assert table["all_null"].null_count == table.num_rows
    assert table["day"][0].as_py() == dt.date(2020, 1, 1)
