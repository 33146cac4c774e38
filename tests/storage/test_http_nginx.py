"""A file behind nginx: the HTTP path against a production server that checks If-Match and ranges."""

from __future__ import annotations

import getpass
import os
import random
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.errors import ObjectChangedError, ObjectNotFoundError

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(NGINX is None, reason="nginx is not installed (a system package, for example apt: nginx-light)"),
]

CONFIG = """
{user}
worker_processes 1;
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log {folder}/access.log;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen 127.0.0.1:{port};
        root {folder}/www;
        location /no-etag/ {{ alias {folder}/www/; etag off; }}
    }}
}}
"""


@dataclass(frozen=True)
class Served:
    """A running nginx: its url, the folder that it serves, and its access log."""

    url: str
    folder: Path
    access_log: Path


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def nginx(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("nginx")
    (folder / "www").mkdir()
    port = free_port()
    config = folder / "nginx.conf"
    # Only root may, and must, say whom the worker runs as: the folder is readable by nobody else.
    user = f"user {getpass.getuser()};" if os.geteuid() == 0 else ""
    config.write_text(CONFIG.format(folder=folder, port=port, user=user))
    command = [str(NGINX), "-p", str(folder), "-c", str(config), "-e", str(folder / "error.log")]
    with subprocess.Popen(command) as process:
        try:
            wait_for(port, process, folder / "error.log")
            yield Served(f"http://127.0.0.1:{port}", folder / "www", folder / "access.log")
        finally:
            process.terminate()
            process.wait(10)


def wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 10
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail(f"nginx did not start: {log.read_text() if log.exists() else process.returncode}")


def write(path: Path, rows: int, seed: int = 0) -> pa.Table:
    """A file that is larger than the tail which a session fetches first, so that pages cost GETs."""
    noise = random.Random(seed)
    table = pa.table({"id": pa.array(range(rows), pa.int64()), "noise": [noise.randbytes(24) for _ in range(rows)]})
    unfinished = path.with_suffix(".unfinished")
    pq.write_table(table, unfinished, row_group_size=rows // 4, write_page_index=True, data_page_size=16_384)
    unfinished.replace(path)
    return table


async def test_reads_equal_pyarrow(nginx: Served) -> None:
    table = write(nginx.folder / "a file + more.parquet", 80_000)
    async with asyncpq.Session() as session:
        file = await session.open_file(f"{nginx.url}/a%20file%20+%20more.parquet")
        assert (await file.lookup({"id": 12_345}, columns=["noise"])).equals(table.slice(12_345, 1).select(["noise"]))
        assert (await file.read(where=[("id", ">=", 79_990)])).equals(table.slice(79_990))
        assert (await file.take([7, 3, 7])).equals(table.take(pa.array([7, 3, 7])))
        assert session.metrics.guarantee == "pinned"
    requests = nginx.access_log.read_text().splitlines()
    assert requests
    assert all('"GET ' in line and '" 206 ' in line for line in requests), "only range GETs, no HEAD"


async def test_a_replaced_file_is_noticed(nginx: Served) -> None:
    path = nginx.folder / "changing.parquet"
    write(path, 80_000, seed=1)
    async with asyncpq.Session() as session:
        file = await session.open_file(f"{nginx.url}/changing.parquet")
        await file.take([0], columns=["noise"])
        table = write(path, 90_000, seed=2)
        with pytest.raises(ObjectChangedError):
            await file.take([15_000], columns=["noise"])  # positions are of the version that was opened
    async with asyncpq.Session() as session:
        file = await session.open_file(f"{nginx.url}/changing.parquet")
        assert (await file.take([15_000])).equals(table.slice(15_000, 1))


async def test_without_an_etag_the_guarantee_says_so(nginx: Served) -> None:
    table = write(nginx.folder / "plain.parquet", 8_000)
    async with asyncpq.Session() as session:
        file = await session.open_file(f"{nginx.url}/no-etag/plain.parquet")
        assert (await file.lookup({"id": 77})).equals(table.slice(77, 1))
        assert session.metrics.guarantee in ("bracketed", "none")


async def test_missing_file(nginx: Served) -> None:
    async with asyncpq.Session() as session:
        with pytest.raises(ObjectNotFoundError):
            await session.open_file(f"{nginx.url}/missing.parquet")
