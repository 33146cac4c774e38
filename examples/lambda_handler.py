"""A handler for AWS Lambda that looks up rows in a Parquet object, and what its cold start takes.

    python -m examples.lambda_handler     # five fresh processes against a store that answers after 20 ms

The session lives outside of the handler: the calls of one instance share connections, footers and pages. On Lambda,
TRIPS is the object's url, and credentials come from the function's role.
"""

from __future__ import annotations

import io
import os
import statistics
import subprocess
import sys
import time
from functools import cache
from typing import Any

import asyncpq.blocking


@cache
def trips() -> asyncpq.blocking.File:
    """Open the file, at the first call of this instance; if that fails, the next call tries again."""
    session = asyncpq.blocking.Session(memory_cache_bytes=64 << 20, disk_cache=os.environ.get("TRIPS_CACHE"))
    return session.open_file(os.environ["TRIPS"])


def handler(event: dict[str, Any], context: object) -> dict[str, Any]:
    """Return the rows whose id is ``event["id"]``, and what finding them took."""
    file = trips()
    with asyncpq.measure() as cost:
        rows = file.lookup({"id": int(event["id"])}, columns=["user", "price"])
    return {"rows": rows.to_pylist(), "requests": cost.requests, "bytes": cost.bytes_fetched}


# -- the cold start, measured -------------------------------------------------------------------

_PROCESS = """
import time
began = time.perf_counter()
from examples.lambda_handler import handler
imported = time.perf_counter()
first = handler({"id": 42}, None)
answered = time.perf_counter()
handler({"id": 500_000}, None)
print(imported - began, answered - imported, time.perf_counter() - answered, first["rows"][0]["user"])
"""


def cold_starts(processes: int, rows: int = 1_000_000, latency_s: float = 0.02) -> list[tuple[float, float, float]]:
    """Return for each fresh process the seconds of the imports, of the first call and of a warm one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from asyncpq.testing import ObjectServer

    ids = range(rows)
    table = pa.table({"id": ids, "user": [f"u-{number % 500}" for number in ids], "price": [n % 97 / 10 for n in ids]})
    sink = io.BytesIO()
    pq.write_table(table, sink, write_page_index=True, max_rows_per_page=8192)
    measured = []
    with ObjectServer.in_thread(latency_s=latency_s) as server:
        server.put("bucket/trips.parquet", sink.getvalue())
        environment = {
            **os.environ,
            "TRIPS": "s3://bucket/trips.parquet",
            "AWS_ENDPOINT_URL": server.endpoint,
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_REGION": "us-east-1",
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        }
        for _ in range(processes):
            done = subprocess.run([sys.executable, "-c", _PROCESS], env=environment, stdout=subprocess.PIPE, check=True)
            *seconds, user = done.stdout.split()
            if user != b"u-42":
                raise RuntimeError(f"the handler found {user!r}")
            imported, first, warm = map(float, seconds)
            measured.append((imported, first, warm))
    return measured


def main() -> None:
    """Print the medians."""
    began = time.perf_counter()
    columns = zip(*cold_starts(5), strict=True)
    for title, seconds in zip(("imports", "first call", "warm call"), columns, strict=True):
        print(f"{title:<12}{statistics.median(seconds) * 1000:7.1f} ms")
    print(f"measured in {time.perf_counter() - began:.1f} s; the store answers after 20 ms")


if __name__ == "__main__":
    main()
