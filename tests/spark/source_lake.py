"""A small lake with values of many types, NaN and nulls among them, and pages to skip."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 3000


def lake_table(start: int, rows: int) -> pa.Table:
    """Rows whose ``id`` is ``start`` and what follows."""
    numbers = range(start, start + rows)
    special = [float("nan"), -0.0, 0.0, float("inf"), None]
    struct = pa.struct([("a", pa.int32()), ("b", pa.string())])
    return pa.table(
        {
            "id": pa.array(numbers, pa.int64()),
            "Name": pa.array([None if n % 11 == 0 else f"name-{n // 30:03}" for n in numbers]),
            "x": pa.array([special[n // 7 % 5] if n % 7 == 0 else n / 8 for n in numbers], pa.float64()),
            "day": pa.array([date.fromordinal(738_000 + n // 50) for n in numbers]),
            "price": pa.array([Decimal(n) / 100 for n in numbers], pa.decimal128(12, 2)),
            "at": pa.array([n * 60_000_000 for n in numbers], pa.timestamp("us", "UTC")),
            "small": pa.array([n % 200 for n in numbers], pa.uint8()),
            "raw": pa.array([n.to_bytes(2, "big") for n in numbers]),
            "tags": pa.array([[f"t{n % 3}", None] if n % 2 else None for n in numbers]),
            "pair": pa.array([{"a": n, "b": None} for n in numbers], struct),
        }
    )


def write_lake(root: Path) -> str:
    """Six files in three folders of folders; returns the url."""
    for number in range(6):
        folder = root / f"part={number // 2}" / f"Kind={'ab'[number % 2]}"
        folder.mkdir(parents=True, exist_ok=True)
        table = lake_table(number * ROWS // 6, ROWS // 6)
        pq.write_table(
            table, folder / f"{number}.parquet", write_page_index=True, row_group_size=250, max_rows_per_page=50
        )
    return str(root)
