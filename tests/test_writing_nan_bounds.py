"""Written files have no bounds where floats hold NaN, so readers of other rules for NaN lose no rows."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from asyncpq.parquet.metadata import decode_file_metadata
from asyncpq.writing import leaves_with_nan, without_bounds
from tests.example_counts import examples
from tests.parquet_bytes import parquet_bytes

_FLOATS = st.sampled_from([None, -math.inf, -1.5, -0.0, 0.0, 2.5, math.inf, math.nan])
SCHEMA = pa.schema(
    [
        ("id", pa.int64()),
        ("d", pa.float64()),
        ("f", pa.float32()),
        ("s", pa.struct([("x", pa.float64()), ("flag", pa.bool_())])),
        ("l", pa.list_(pa.float64())),
    ]
)
_ROW = st.fixed_dictionaries(
    {
        "id": st.integers(0, 9),
        "d": _FLOATS,
        "f": _FLOATS,
        "s": st.none() | st.fixed_dictionaries({"x": _FLOATS, "flag": st.booleans()}),
        "l": st.none() | st.lists(_FLOATS, max_size=2),
    }
)


def has_nan(value: Any) -> bool:
    return isinstance(value, float) and math.isnan(value)


@settings(max_examples=examples(30, thorough=300), deadline=None)
@given(st.lists(_ROW, min_size=1, max_size=8))
def test_leaves_with_nan_are_found(rows: list[dict[str, Any]]) -> None:
    table = pa.Table.from_pylist(rows, SCHEMA)
    expected = {
        1: any(has_nan(row["d"]) for row in rows),
        2: any(has_nan(row["f"]) for row in rows),
        3: any(row["s"] is not None and has_nan(row["s"]["x"]) for row in rows),
        5: any(has_nan(item) for row in rows for item in row["l"] or ()),
    }
    assert leaves_with_nan(table) == {leaf for leaf, holds in expected.items() if holds}


@settings(max_examples=examples(30, thorough=300), deadline=None)
@given(st.data())
def test_a_footer_loses_the_bounds_of_the_named_chunks_and_nothing_else(data: st.DataObject) -> None:
    rows = data.draw(st.lists(_ROW, min_size=1, max_size=12))
    chunks = data.draw(st.frozensets(st.tuples(st.integers(0, 3), st.integers(0, 5)), max_size=6))
    table = pa.Table.from_pylist(rows, SCHEMA)
    written = parquet_bytes(table, row_group_size=4, write_page_index=True)
    size = int.from_bytes(written[-8:-4], "little")
    footer = written[-8 - size : -8]
    changed = without_bounds(footer, chunks)
    assert without_bounds(footer, frozenset()) == footer
    rest = written[: -8 - size]
    rewritten = rest + changed + len(changed).to_bytes(4, "little") + b"PAR1"
    assert pq.read_table(io.BytesIO(rewritten)).to_pylist().__repr__() == table.to_pylist().__repr__()
    before, after = pq.read_metadata(io.BytesIO(written)), pq.read_metadata(io.BytesIO(rewritten))
    mine = decode_file_metadata(changed)
    for group in range(before.num_row_groups):
        for leaf in range(before.num_columns):
            old, new = before.row_group(group).column(leaf), after.row_group(group).column(leaf)
            assert (old.data_page_offset, old.total_compressed_size, old.encodings, old.num_values) == (
                new.data_page_offset, new.total_compressed_size, new.encodings, new.num_values
            )  # fmt: skip
            assert new.has_offset_index
            if (group, leaf) in chunks:
                assert not new.has_column_index
                assert new.statistics is None or not new.statistics.has_min_max
                if old.statistics is not None and old.statistics.has_null_count:
                    assert new.statistics.null_count == old.statistics.null_count
            else:
                assert new.to_dict() == old.to_dict()
    assert mine.num_rows == len(rows)


async def test_other_readers_find_all_rows_of_a_written_lake(tmp_path: Path) -> None:
    """Row groups and pages whose floats are small but for NaN: NaN counts as the greatest in Spark, DuckDB and SQL."""
    values = [math.nan if row % 97 == 0 else row % 500 / 10 for row in range(20_000)]
    values[7] = -0.0
    table = pa.table({"id": range(20_000), "d": values})
    (tmp_path / "lake").mkdir()
    pq.write_table(table, tmp_path / "lake" / "a.parquet")
    layout = asyncpq.WriteOptions(page_rows=500, row_group_rows=4000)
    async with asyncpq.Session() as session:
        done = await session.optimize(f"{tmp_path}/lake/", f"{tmp_path}/fast/", "id", layout=layout)
        fast = await session.open_dataset(f"{tmp_path}/fast/")
        for bound in (49.0, -1.0, 0.0):
            expected = table.filter(pc.greater(table["d"], bound)).num_rows
            assert await fast.count(col("d") > bound) == expected
    (path,) = [tmp_path / "fast" / name for name in done.files]
    metadata = pq.read_metadata(path)
    for group in range(metadata.num_row_groups):
        chunk = metadata.row_group(group).column(1)
        assert not chunk.has_column_index
        assert not chunk.statistics.has_min_max
        assert metadata.row_group(group).column(0).has_column_index
    number_of_nan = sum(map(math.isnan, values))
    for bound in (49.0, 60.0, -1.0):
        greater = sum(value > bound for value in values)
        assert duckdb.sql(f"select count(*) from '{path}' where d > {bound}").fetchall() == [(greater + number_of_nan,)]
        assert pl.scan_parquet(path).filter(pl.col("d") > bound).collect().height == greater + number_of_nan
        assert ds.dataset(path).count_rows(filter=ds.field("d") > bound) == greater
    assert duckdb.sql(f"select count(*) from '{path}' where d = -0.0").fetchall() == [(values.count(0.0),)]
