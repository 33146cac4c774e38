"""One file with page indexes and a column of each kind of value."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal

import pyarrow as pa

from asyncpq.parquet.schema import Leaf
from tests.parquet_files import PrunedFile

NAN = float("nan")


DAY = dt.datetime(2024, 1, 1)


# Ten pages of ten rows; page 5 of "holes" is nothing but nulls, page 7 of "x" holds a NaN.
ROWS = 100


TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "down": pa.array(range(ROWS, 0, -1), pa.int32()),
        "mixed": pa.array([(row // 10 * 7) % 10 for row in range(ROWS)], pa.int32()),
        "holes": pa.array([None if 50 <= row < 60 else row for row in range(ROWS)], pa.int64()),
        "name": pa.array([f"n{row // 10}-{row:03d}" for row in range(ROWS)]),
        "x": pa.array([NAN if row == 75 else row / 2 for row in range(ROWS)]),
        "when": pa.array([DAY + dt.timedelta(hours=row) for row in range(ROWS)], pa.timestamp("ms")),
        "day": pa.array([DAY.date() + dt.timedelta(days=row) for row in range(ROWS)]),
        "price": pa.array([Decimal(row) / 4 for row in range(ROWS)], pa.decimal128(9, 2)),
        "big": pa.array([2**63 + row for row in range(ROWS)], pa.uint64()),
        "flag": pa.array([row >= 30 for row in range(ROWS)]),
        "uid": pa.array([uuid.UUID(int=row << 120).bytes for row in range(ROWS)], pa.uuid()),
        "tags": pa.array([[row] for row in range(ROWS)]),
        "inner": pa.array([{"leaf": row, "maybe": None if row < 20 else row} for row in range(ROWS)]),
    }
)


FILE = PrunedFile(TABLE, rows_per_page=10)


def leaf(name: str) -> Leaf:
    return FILE.leaf(name)
