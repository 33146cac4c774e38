"""The first open of a session: what it loads, and where; and small objects on servers that ignore ranges."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.testing import Fault, ObjectServer
from tests.parquet_bytes import parquet_bytes

OPEN = """
import asyncio, sys, threading
import asyncpq

threads, files = {}, []

class Watch:
    def find_spec(self, name, path=None, target=None):
        threads.setdefault(name, threading.current_thread().name)

sys.meta_path.insert(0, Watch())

def watch_files():
    import botocore.loaders
    load = botocore.loaders.JSONFileLoader.load_file

    def watched(*arguments):
        content = load(*arguments)
        if content is not None:  # None of a file that does not exist
            files.append(threading.current_thread().name)
        return content

    botocore.loaders.JSONFileLoader.load_file = watched

async def main():
    through_s3fs = {"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}}
    options = {"anon": True, "endpoint_url": "http://127.0.0.1:9", **through_s3fs}
    async with asyncpq.Session(options, retry=asyncpq.RetryOptions(max_attempts=1, connect_timeout_s=1.0)) as session:
        try:
            await session.open_file("s3://bucket/key")
        except asyncpq.TransportError:
            print(threads["s3fs"], threads["botocore"], threading.main_thread().name, *files)

if "files" in sys.argv:
    watch_files()
asyncio.run(main())
"""


@pytest.mark.heavy
@pytest.mark.parametrize("watched", ["modules", "files"])
def test_clients_are_imported_and_read_their_files_in_a_thread(watched: str) -> None:
    """botocore alone takes some tenths of a second, in which the event loop would stand still."""
    ran = subprocess.run([sys.executable, "-c", OPEN, watched], capture_output=True, text=True, check=True, timeout=100)
    s3fs, botocore, main, *files = ran.stdout.split()
    if watched == "modules":
        assert main not in (s3fs, botocore)
    else:
        assert files
        assert main not in files


MEANWHILE = """
import asyncio, os, sys
import asyncpq
from asyncpq.storage.threads import is_imported

def new_session():
    through_s3fs = {"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}}
    options = {"anon": True, "endpoint_url": "http://127.0.0.1:9", **through_s3fs}
    return asyncpq.Session(options, retry=asyncpq.RetryOptions(max_attempts=1, connect_timeout_s=1.0))

async def opened(session):
    try:
        await session.open_file("s3://bucket/key")
    except (asyncpq.TransportError, asyncpq.UsageError, asyncio.CancelledError) as error:
        return type(error).__name__

async def alone():
    async with new_session() as session:
        return await opened(session)

async def main(what):
    async with new_session() as session:
        task = asyncio.create_task(opened(session))
        while "asyncpq.storage.s3.client" not in sys.modules:
            await asyncio.sleep(0.001)
        assert not task.done()
        if what == "open":
            other = asyncio.create_task(opened(session))
            await asyncio.sleep(0)
            assert not is_imported("asyncpq.storage.s3.client"), "it waited for the import"
            print(await other)
        elif what == "close":
            await session.close()
        elif what == "cancel":
            task.cancel()
        elif what == "fork":
            child = os.fork()
            if not child:
                asyncio.events._set_running_loop(None)
                loop = asyncio.new_event_loop()
                print(loop.run_until_complete(asyncio.wait_for(alone(), 60)), flush=True)
                os._exit(0)
            os.waitpid(child, 0)
        print(await task)

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("what", "said"),
    [
        ("open", ["TransportError", "TransportError"]),
        ("close", ["UsageError"]),
        ("cancel", ["CancelledError"]),
        ("fork", ["TransportError", "TransportError"]),
    ],
)
def test_while_clients_are_imported(what: str, said: list[str]) -> None:
    """Another open does not stand still, what is closed opens nothing, and a forked child does not hang."""
    ran = subprocess.run(
        [sys.executable, "-c", MEANWHILE, what], capture_output=True, text=True, check=True, timeout=100
    )
    assert ran.stdout.split() == said


def parquet(rows: int) -> bytes:
    return parquet_bytes(pa.table({"id": range(rows)}), use_dictionary=False, compression="none")


@pytest.mark.parametrize(
    "more", [{}, {"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}}], ids=["direct", "s3fs"]
)
async def test_a_200_with_all_of_a_small_object_is_what_was_asked_for(
    server: ObjectServer, more: dict[str, Any]
) -> None:
    """As docs/faults.md says: the first GET asks for at least as much."""
    server.faults = [Fault(ignore_range=True, times=None)]
    async with asyncpq.Session({**server.storage_options, **more}) as session:
        server.put("bucket/small.parquet", parquet(100))
        server.put("bucket/large.parquet", parquet(200_000))
        file = await session.open_file("s3://bucket/small.parquet")
        assert (await file.read()).num_rows == 100
        with pytest.raises(asyncpq.InvalidResponseError):
            await session.open_file("s3://bucket/large.parquet")
