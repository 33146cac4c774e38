"""What test_shipping.py runs in tasks."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

#: Of the answers, for mapInArrow.
ANSWER = "place string, rows long"


class ReadFile:
    """Reads a Parquet file with the asyncpq that is found, as one row: where that is, and the rows of the file."""

    def __init__(self, url: str) -> None:
        self._url = url

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import asyncpq

        for _ in batches:
            with asyncpq.blocking.Session() as session:
                rows = session.open_file(self._url).num_rows
            yield pa.record_batch({"place": [asyncpq.__file__], "rows": [rows]})
