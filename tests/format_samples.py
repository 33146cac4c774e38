"""Parquet files made by pyarrow, many kinds of them, for the tests of ``asyncpq.parquet``."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq.parquet.footer import FooterDecoder, FooterFound
from asyncpq.parquet.metadata import FileMetadata, decode_file_metadata
from asyncpq.parquet.schema import Leaf

MAX_FOOTER_BYTES = 1 << 28
MAX_PAGE_BYTES = 1 << 30
ROWS = 3000


def _flat() -> pa.Table:
    rows = range(ROWS)
    nullable = [None if i % 7 == 0 else i for i in rows]
    return pa.table(
        {
            "id": pa.array(rows, pa.int64()),
            "small": pa.array([i % 100 - 50 for i in rows], pa.int8()),
            "unsigned": pa.array([i * 1_000_000 % 2**32 for i in rows], pa.uint32()),
            "large": pa.array([2**64 - 1 - i for i in rows], pa.uint64()),
            "nullable": pa.array(nullable, pa.int32()),
            "all_null": pa.nulls(ROWS, pa.float64()),
            "flag": pa.array([i % 3 == 0 for i in rows]),
            "double": pa.array([i / 7 - 100 for i in rows]),
            "float": pa.array([-i / 8 for i in rows], pa.float32()),
            "with_nan": pa.array([float("nan") if i % 5 == 0 else i / 2 for i in rows]),
            "half": pa.array([float(i % 50) for i in rows], pa.float16()),
            "text": [f"user {i:06d}" for i in rows],
            "long_text": ["x" * (i % 200) + str(i) for i in rows],
            "binary": pa.array([i.to_bytes(3, "big") for i in rows], pa.binary()),
            "fixed": pa.array([i.to_bytes(5, "little") for i in rows], pa.binary(5)),
            "day": pa.array([dt.date(2020, 1, 1) + dt.timedelta(i) for i in rows]),
            "time": pa.array([i * 1000 for i in rows], pa.time32("ms")),
            "stamp": pa.array([i * 10**6 for i in rows], pa.timestamp("us", tz="UTC")),
            "stamp_ns": pa.array([i * 10**9 for i in rows], pa.timestamp("ns")),
            "dec_small": pa.array([decimal.Decimal(i) / 100 - 5 for i in rows], pa.decimal128(8, 2)),
            "dec_large": pa.array([decimal.Decimal(i) * 10**20 - 10**22 for i in rows], pa.decimal128(38, 0)),
            "category": pa.array([f"kind {i % 9}" for i in rows]).dictionary_encode(),
        }
    )


def _nested() -> pa.Table:
    rows = range(ROWS)
    return pa.table(
        {
            "list": [list(range(i % 4)) if i % 11 else None for i in rows],
            "struct": [{"a": i, "b": {"c": str(i)}} if i % 13 else None for i in rows],
            "map": pa.array([[(str(i), i)] * (i % 3) for i in rows], pa.map_(pa.string(), pa.int32())),
            "lists": [[[i, None], []] if i % 2 else [] for i in rows],
            "structs": [[{"x": i, "y": None}] * (i % 3) for i in rows],
        }
    )


def _write(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


_PAGES = {"max_rows_per_page": 250, "data_page_size": 4096}

SAMPLES: dict[str, dict[str, Any]] = {
    "flat": {"table": _flat, "write_page_index": True, **_PAGES},
    "flat_plain": {"table": _flat, "write_page_index": True, "use_dictionary": False, "compression": "none", **_PAGES},
    "flat_v2": {"table": _flat, "data_page_version": "2.0", "write_page_checksum": True, **_PAGES},
    "flat_v1_checksum": {"table": _flat, "write_page_checksum": True, "compression": "zstd", **_PAGES},
    "flat_row_groups": {"table": _flat, "write_page_index": True, "row_group_size": 700, **_PAGES},
    "flat_no_statistics": {"table": _flat, "write_statistics": False, "compression": "gzip"},
    "flat_no_schema": {"table": _flat, "store_schema": False, "version": "1.0"},
    "flat_decimal_integers": {"table": _flat, "store_decimal_as_integer": True},
    "flat_sorted": {"table": _flat, "sorting_columns": [pq.SortingColumn(0), pq.SortingColumn(3, True, True)]},
    "nested": {"table": _nested, "write_page_index": True, **_PAGES},
    "nested_v2": {"table": _nested, "data_page_version": "2.0", "row_group_size": 1000, **_PAGES},
    "empty": {"table": lambda: _flat().slice(0, 0), "write_page_index": True},
    "no_columns": {"table": lambda: pa.table({})},
    "int96": {"table": lambda: _flat().select(["stamp_ns", "id"]), "use_deprecated_int96_timestamps": True},
}


@functools.cache
def sample(name: str) -> bytes:
    """The bytes of one of :data:`SAMPLES`."""
    options = dict(SAMPLES[name])
    return _write(options.pop("table")(), **options)


def find_footer(data: bytes) -> FooterFound:
    """The footer of a whole file."""
    found = FooterDecoder(max_footer_bytes=MAX_FOOTER_BYTES).next(data, 0, len(data))
    assert isinstance(found, FooterFound)
    return found


def metadata_of(data: bytes) -> FileMetadata:
    """The decoded metadata of a whole file."""
    return decode_file_metadata(find_footer(data).metadata_bytes)


@functools.cache
def sample_metadata(name: str) -> FileMetadata:
    """The decoded metadata of one of :data:`SAMPLES`."""
    return metadata_of(sample(name))


def flat_leaf(type_: pa.DataType, *, nullable: bool = True) -> Leaf:
    """The leaf that pyarrow writes for a column of a type."""
    schema = pa.schema([pa.field("x", type_, nullable=nullable)])
    return metadata_of(_write(schema.empty_table())).schema.leaves[0]
