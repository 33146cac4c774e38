"""Many reads of one object at once, several loops and threads, forks.

Holds: what many ask for at once is fetched once, and a reader that leaves harms nobody; sessions live in the loop
and process that they were entered in, side by side with others, and say so elsewhere; nothing hangs.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncpq
from asyncpq.testing import ObjectServer
from tests.faults.operations import OPERATIONS, REQUESTS, Rows, by_pyarrow, options_for, parquet, url_for
from tests.leaks import assert_back_to, held

ROOT = Path(__file__).resolve().parents[2]
DATA = parquet()
PATH = "lake/file.parquet"
URL = f"s3://{PATH}"


async def whole_read(session: asyncpq.Session, operation: str, url: str = URL) -> None:
    rows = Rows()
    await OPERATIONS[operation](await session.open_file(url), rows)
    assert rows.value is not None
    assert rows.value.equals(by_pyarrow(operation, DATA))


@pytest.mark.heavy
@pytest.mark.parametrize("cancelled", [False, True])
async def test_two_hundred_cold_lookups_are_one(cancelled: bool) -> None:
    async with ObjectServer(latency_s=0.1) as server:
        server.put(PATH, DATA)
        before = held()
        async with asyncpq.Session(server.storage_options, requests=REQUESTS) as session:
            await whole_read(session, "lookup")
            alone = Counter(request.range for request in server.log)
            session.memory_cache.clear()
            server.log.clear()
            first, *others = (asyncio.ensure_future(whole_read(session, "lookup")) for _ in range(200))
            for _ in range(1000):  # until the first has sent its request; the answer takes longer
                if server.log:
                    break
                await asyncio.sleep(0.001)
            if cancelled:
                first.cancel()
            await asyncio.gather(*others)
            await asyncio.wait([first])
            assert first.cancelled() == cancelled
            tails = [request.range for request in server.log if (request.range or "").startswith("bytes=-")]
            assert len(tails) == 1, "one GET for the footer"
            assert len(server.log) <= sum(alone.values()), "and each of the others once"
        await assert_back_to(before)


async def test_every_leader_is_cancelled_in_turn() -> None:
    async with ObjectServer(latency_s=0.05) as server:
        server.put(PATH, DATA)
        async with asyncpq.Session(server.storage_options, requests=REQUESTS) as session:
            reads = [asyncio.ensure_future(whole_read(session, "scan")) for _ in range(20)]
            for read in reads[:-1]:
                await asyncio.sleep(0.004)
                read.cancel()
            await reads[-1]
            assert sum(read.cancelled() for read in reads) >= 10
            assert session._runtime.budget.used == 0
            assert not session._runtime.flights._flights


@pytest.mark.heavy
@pytest.mark.parametrize("client", ["S3", "s3fs", "HTTP"])
def test_two_loops_in_two_threads(client: str) -> None:
    """Each with its session; the memory cache is shared."""
    cache = asyncpq.MemoryCache(1 << 24)
    problems: list[BaseException] = []

    async def work(server: ObjectServer) -> None:
        url = url_for(client, server, PATH)
        for _ in range(3):
            async with asyncpq.Session(
                options_for(client, server), requests=REQUESTS, memory_cache=cache, cache_policy=asyncpq.etag(0)
            ) as session:
                await asyncio.gather(*(whole_read(session, operation, url) for operation in OPERATIONS for _ in "12"))

    def run(server: ObjectServer) -> None:
        try:
            asyncio.run(work(server))
        except BaseException as problem:  # noqa: BLE001  # shown by the test
            problems.append(problem)

    with ObjectServer.in_thread() as server:
        server.put(PATH, DATA)
        threads = [threading.Thread(target=run, args=(server,)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
    assert not problems, problems


@pytest.mark.parametrize("client", ["S3", "s3fs", "HTTP"])
def test_asyncio_run_twice(client: str) -> None:
    with ObjectServer.in_thread() as server:
        server.put(PATH, DATA)
        url = url_for(client, server, PATH)
        kept: list[asyncpq.Session] = []

        async def work() -> None:
            async with asyncpq.Session(options_for(client, server)) as session:
                await whole_read(session, "lookup", url)

        async def keep() -> None:
            kept.append(await asyncpq.Session(options_for(client, server)).__aenter__())
            await whole_read(kept[0], "lookup", url)

        for _ in range(2):
            asyncio.run(work())
        with asyncio.Runner() as first, asyncio.Runner() as second:
            first.run(keep())
            second.run(refused(kept[0], url))
            first.run(kept[0].close())


async def refused(session: asyncpq.Session, url: str) -> None:
    """A session of another loop."""
    with pytest.raises(asyncpq.UsageError, match="event loop"):
        await session.open_file(url)
    with pytest.raises(asyncpq.UsageError, match="event loop"):
        await session.__aenter__()


@pytest.fixture(scope="module")
def server() -> Iterator[ObjectServer]:
    with ObjectServer.in_thread(latency_s=0.01) as running:
        running.put(PATH, DATA)
        yield running


MOMENTS = ["before", "during", "after", "blocking", "one_off"]
QUICK = {("S3", "during"), ("HTTP", "before"), ("local", "after"), ("local", "blocking"), ("S3", "one_off")}


@pytest.mark.parametrize(
    ("client", "moment"),
    [
        pytest.param(client, moment, marks=[] if (client, moment) in QUICK else pytest.mark.slow)
        for client in ("S3", "s3fs", "HTTP", "local")
        for moment in MOMENTS
    ],
)
def test_fork(client: str, moment: str, server: ObjectServer, tmp_path: Path) -> None:
    if client == "local":
        url, options = str(tmp_path / "file.parquet"), {}
        (tmp_path / "file.parquet").write_bytes(DATA)
    else:
        url, options = url_for(client, server, PATH), options_for(client, server)
    done = subprocess.run(
        [sys.executable, "-m", "tests.session.fork_script", moment, url],
        cwd=ROOT,
        env=os.environ | {"STORAGE_OPTIONS": json.dumps(options)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.split("\n")[:2] == ["child ok", "parent ok"], done.stdout + done.stderr
    assert done.returncode == 0


async def test_a_thread_is_waited_for_however_often_that_is_cancelled() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        go_on.wait(30)

    async with asyncpq.Session() as session:
        task = asyncio.create_task(session._runtime.in_thread(work))
        await asyncio.to_thread(begun.wait, 30)
        for _ in range(3):
            task.cancel()
            await asyncio.sleep(0.01)
            assert not task.done()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
