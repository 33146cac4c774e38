"""A table as the bytes of a Parquet file."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def parquet_bytes(table: pa.Table, **options: Any) -> bytes:
    """What pyarrow writes for ``table``; ``options`` are those of ``pq.write_table``."""
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return bytes(sink.getvalue())
