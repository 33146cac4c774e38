"""Good files for the fuzzers: small, each written in another way, all with CRCs."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 200
ID = "id"  # the column of the predicates: 0, 2, 4, ...


def _table() -> pa.Table:
    rows = range(ROWS)
    return pa.table(
        {
            ID: pa.array([2 * row for row in rows], pa.int64()),
            "word": pa.array([f"word {row % 7}" if row % 9 else None for row in rows]),
            "text": pa.array([f"{row:04d}" * (row % 3) for row in rows]),
            "real": pa.array([row / 3 if row % 5 else None for row in rows]),
            "flag": pa.array([row % 3 == 0 for row in rows]),
            "fixed": pa.array([row.to_bytes(4, "big") for row in rows], pa.binary(4)),
            "price": pa.array([decimal.Decimal(row) / 4 for row in rows], pa.decimal128(9, 2)),
            "time": pa.array([dt.datetime(2024, 1, 1) + dt.timedelta(minutes=row) for row in rows]),
        }
    )


def _nested() -> pa.Table:
    rows = range(ROWS)
    return pa.table(
        {
            ID: pa.array([2 * row for row in rows], pa.int32()),
            "list": pa.array([list(range(row % 4)) if row % 11 else None for row in rows], pa.list_(pa.int32())),
            "struct": [{"a": row, "b": f"b{row % 5}"} if row % 13 else None for row in rows],
            "map": pa.array([[(f"k{row % 3}", row)] * (row % 3) for row in rows], pa.map_(pa.string(), pa.int16())),
            "deep": [[{"x": [row, None]}] * (row % 3) for row in rows],
        }
    )


_PAGES: dict[str, Any] = {
    "write_page_checksum": True,
    "max_rows_per_page": 40,
    "write_batch_size": 20,
    "row_group_size": 120,
    "write_page_index": True,
}
_BLOOM = {"word": {"ndv": 16, "fpp": 0.1}, ID: {"ndv": 100, "fpp": 0.1}}
_ENCODINGS = {
    ID: "DELTA_BINARY_PACKED",
    "word": "DELTA_BYTE_ARRAY",
    "text": "DELTA_LENGTH_BYTE_ARRAY",
    "real": "BYTE_STREAM_SPLIT",
    "flag": "RLE",
    "fixed": "DELTA_BYTE_ARRAY",
    "price": "BYTE_STREAM_SPLIT",
    "time": "DELTA_BINARY_PACKED",
}
_V2 = {"data_page_version": "2.0"}

_OPTIONS: dict[str, tuple[bool, dict[str, Any]]] = {  # nested or flat
    "plain": (False, {"use_dictionary": False, "compression": "none"}),
    "dictionary": (False, {"compression": "none"}),
    "plain_v2": (False, {"use_dictionary": False, "compression": "zstd", **_V2}),
    "dictionary_v2": (False, {"compression": "snappy", **_V2}),
    "encodings": (False, {"use_dictionary": False, "column_encoding": _ENCODINGS, "compression": "none"}),
    "encodings_v2": (False, {"use_dictionary": False, "column_encoding": _ENCODINGS, "compression": "snappy", **_V2}),
    "fallback": (False, {"dictionary_pagesize_limit": 60, "compression": "lz4"}),
    "bloom": (False, {"bloom_filter_options": _BLOOM, "compression": "gzip"}),
    "no_index": (False, {"write_page_index": False, "compression": "snappy"}),
    "bare": (False, {"store_schema": False, "write_statistics": False, "compression": "brotli"}),
    "nested": (True, {"compression": "none"}),
    "nested_v2": (True, {"compression": "zstd", **_V2}),
    "nested_plain": (True, {"use_dictionary": False, "compression": "none", "write_page_index": False}),
}
NAMES = tuple(_OPTIONS)


@functools.cache
def table(name: str) -> pa.Table:
    """What the file holds."""
    return _nested() if _OPTIONS[name][0] else _table()


@functools.cache
def data(name: str) -> bytes:
    """The file's bytes."""
    sink = io.BytesIO()
    pq.write_table(table(name), sink, **{**_PAGES, **_OPTIONS[name][1]})
    return sink.getvalue()
