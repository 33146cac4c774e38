"""Bounds as text, held to the text of pyarrow's values."""

from __future__ import annotations

import datetime as dt
import io
import uuid
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncpq.parquet.statistics import chunk_bounds, order_of
from asyncpq.reports.value_text import value_text
from tests.parquet_files import metadata_of

NOON = dt.datetime(2026, 11, 24, 12, 30, 5, 120_000)


def texts(values: list[Any], type_: pa.DataType) -> tuple[str, str]:
    sink = io.BytesIO()
    pq.write_table(pa.table({"c": pa.array(values, type_)}), sink)
    metadata = metadata_of(sink.getvalue())
    leaf, group = metadata.schema.leaves[0], metadata.row_groups[0]
    assert metadata.column_orders is not None
    order = order_of(leaf, metadata.column_orders[0])
    bounds, _ = chunk_bounds(group.chunk(0), leaf, order, metadata.writer_faults, True, group.num_rows)
    return value_text(bounds.min, leaf), value_text(bounds.max, leaf)


@pytest.mark.parametrize(
    ("value", "type_", "text"),
    [
        (True, pa.bool_(), "true"),
        (-5, pa.int8(), "-5"),
        (2**64 - 1, pa.uint64(), "18446744073709551615"),
        (0.25, pa.float32(), "0.25"),
        (Decimal("-12.340"), pa.decimal128(9, 3), "-12.340"),
        (Decimal("0.00000001"), pa.decimal128(30, 8), "0.00000001"),
        (dt.date(1969, 12, 31), pa.date32(), "1969-12-31"),
        (dt.time(1, 2, 3, 450_000), pa.time64("us"), "01:02:03.45"),
        (NOON, pa.timestamp("ms"), "2026-11-24T12:30:05.12"),
        (NOON.replace(microsecond=0), pa.timestamp("us", "UTC"), "2026-11-24T12:30:05Z"),
        (dt.datetime(1969, 12, 31, 23, 59, 59, 999_999), pa.timestamp("ns"), "1969-12-31T23:59:59.999999"),
        ("schön", pa.string(), "schön"),
        ("x" * 90, pa.string(), "x" * 79 + "…"),
        (b"\x00\xff", pa.binary(), "0x00ff"),
        (uuid.UUID(int=7).bytes, pa.uuid(), "00000000-0000-0000-0000-000000000007"),
    ],
)
def test_each_type(value: Any, type_: pa.DataType, text: str) -> None:
    assert texts([value], type_) == (text, text)


def test_days_that_no_calendar_has_are_numbers() -> None:
    assert texts([2**31 - 1, -(2**31)], pa.date32()) == (str(-(2**31)), str(2**31 - 1))
    assert texts([2**62], pa.timestamp("ms"))[0] == str(2**62)
