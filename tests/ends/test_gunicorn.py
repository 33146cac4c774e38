"""Blocking sessions in the green threads of gunicorn's gevent workers."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

REQUESTS = 30
STARTS_S = 40.0  # of imports on a machine with other work
ENDS_S = 15.0  # 5 on a machine without other work


@pytest.fixture(params=["after the patch", pytest.param("before the patch", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """That of a server which imports asyncpq before or after gevent patches Python's modules."""
    pq.write_table(pa.table({"id": range(1000)}), tmp_path / "a.parquet", row_group_size=100)
    early = ["--preload"] if request.param == "before the patch" else []
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.set_inheritable(True)
        options = ["--graceful-timeout", "1", "--no-control-socket", "--bind", f"fd://{listening.fileno()}", *early]
        process = subprocess.Popen(
            [sys.executable, "-m", "gunicorn", "-k", "gevent", *options, "tests.ends.wsgi:application"],
            pass_fds=[listening.fileno()],
            env={
                **os.environ,
                "ASYNCPQ_TEST_FILE": str(tmp_path / "a.parquet"),
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
            process.terminate()
            began = time.monotonic()
            assert process.wait(STARTS_S) == 0
            assert time.monotonic() - began < 1 + ENDS_S
        finally:
            process.kill()
            process.wait()


@pytest.mark.heavy
async def test_sessions_in_green_threads(url: str) -> None:
    def get() -> bytes:
        with urllib.request.urlopen(url, timeout=STARTS_S) as response:
            return bytes(response.read())

    assert await asyncio.gather(*[asyncio.to_thread(get) for _ in range(REQUESTS)]) == [b"{10}"] * REQUESTS
