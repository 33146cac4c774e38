"""Good files for the fuzzers: small, each written in another way; those written here have CRCs."""

from __future__ import annotations

import datetime as dt
import decimal
import functools
import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq.errors import FormatError
from tests.alp_pages import alp_file
from tests.fuzz.parquet_parts import ParquetParts
from tests.parquet_bytes import parquet_bytes
from tests.parquet_samples import corpus_files

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
    "alp": (False, {"use_dictionary": False, "compression": "none"}),
    "alp_v2": (False, {"use_dictionary": False, "compression": "none", **_V2}),
}
WRITTEN = tuple(_OPTIONS)
UNREADABLE = {"alp": "real", "alp_v2": "real"}  # the column that pyarrow does not read
_MAX_BYTES = 20_000  # of a file from the corpus


@functools.cache
def _from_corpus() -> dict[str, bytes]:
    """Small files that pyarrow did not write, where there are some: those that it reads, and that can be
    taken apart and put together again."""
    found: dict[str, bytes] = {}
    for path in corpus_files():
        if path.stat().st_size > _MAX_BYTES:
            continue
        data = path.read_bytes()
        try:
            metadata = pq.read_metadata(io.BytesIO(data))
            if sum(metadata.row_group(at).total_byte_size for at in range(metadata.num_row_groups)) > 1 << 20:
                continue  # a bomb
            wanted = pq.read_table(io.BytesIO(data))
            again = pq.read_table(io.BytesIO(ParquetParts(data).rebuilt()), page_checksum_verification=True)
        except (pa.ArrowException, OSError, ValueError, AssertionError, FormatError):
            continue
        if again.num_rows and again.schema == wanted.schema:
            found[f"corpus {path.stem}"] = data
    return found


@functools.cache
def names() -> tuple[str, ...]:
    """All files; those of the corpus where it is there."""
    return (*WRITTEN, *_from_corpus())


def has_crc(name: str) -> bool:
    """Whether every page has a CRC, so that values cannot be changed unnoticed."""
    return name in _OPTIONS


@functools.cache
def table(name: str) -> pa.Table:
    """What the file holds."""
    if name not in _OPTIONS:
        return pq.read_table(io.BytesIO(data(name)))
    return _nested() if _OPTIONS[name][0] else _table()


def options(name: str) -> dict[str, Any]:
    """How a file that is written here is written."""
    return {**_PAGES, **_OPTIONS[name][1]}


@functools.cache
def data(name: str) -> bytes:
    """The file's bytes."""
    if name not in _OPTIONS:
        return _from_corpus()[name]
    if name in UNREADABLE:
        given = {key: value for key, value in options(name).items() if key not in ("compression", "max_rows_per_page")}
        file = alp_file(table(name), [table(name).column_names.index(UNREADABLE[name])], alp={"log": 4}, **given)
        return ParquetParts(file).rebuilt()  # without the pages that pyarrow wrote
    return parquet_bytes(table(name), **options(name))


@functools.cache
def keys(name: str) -> tuple[str, list[Any]] | None:
    """A column to ask for, and its values in order; None if there is none that they have an order in."""
    good = table(name)
    for field in good.schema:
        if good.column_names.count(field.name) > 1 or not (
            pa.types.is_integer(field.type) or pa.types.is_string(field.type) or pa.types.is_float64(field.type)
        ):
            continue
        found = good.column(field.name).drop_null().to_pylist()
        values = sorted({value for value in found if value == value})
        if values:
            return field.name, values
    return None
