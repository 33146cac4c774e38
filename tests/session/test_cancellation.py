"""Every read cancelled at each of its awaits, one after another.

Holds: a cancelled read ends in CancelledError and leaves no task, no byte of the budget, no flight and, once the
session is closed, no descriptor or thread; the next read of the same session is right. For each verb, cold and
warm, with and without decode threads, in asyncio's loop and uvloop's, over cache tiers that are empty and full;
cancelled while something is awaited, and in the moment in which that is done.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.testing import ObjectServer
from tests.faults.operations import OPERATIONS, REQUESTS, Rows, by_pyarrow, options_for, parquet, url_for
from tests.faults.stepping import CancelledAt
from tests.leaks import assert_back_to, held
from tests.servers import ValkeyServer

pytestmark = pytest.mark.faults

DATA = parquet()
PATH = "lake/file.parquet"


def session(client: str, server: ObjectServer, threads: int, **tiers: Any) -> asyncpq.Session:
    limits = asyncpq.LimitOptions(decode_threads=threads, inline_decode_bytes=0, unit_bytes=20_000)
    options = options_for(client, server)
    # a warm read asks whether the object is still the same: it awaits something, too
    return asyncpq.Session(options, requests=REQUESTS, limits=limits, cache_policy=asyncpq.etag(0), **tiers)


def run(loop: str, work: Callable[[], object]) -> None:
    """``work()`` in a loop of that kind."""
    if loop == "uvloop":
        factory = pytest.importorskip("uvloop", reason="uvloop has no build for this system").new_event_loop
    else:
        factory = asyncio.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(work())  # type: ignore[arg-type]  # a coroutine


TIERS = ("disk cold", "disk warm", "disk cold, shared warm")
# Each operation and each state of the tiers at least once.
QUICK = {
    ("open", "disk cold, shared warm"),
    *(("lookup", tiers) for tiers in TIERS),
    ("scan", "disk cold"),
    ("take", "disk warm"),
    ("count", "disk cold, shared warm"),
}


async def assert_nothing_runs(session: asyncpq.Session, tasks: int) -> None:
    runtime = session._runtime

    def running() -> tuple[int, int, int, int]:
        flights = runtime.flights
        return len(asyncio.all_tasks()), runtime.budget.used, len(flights._flights), len(flights._tasks)

    for _ in range(1000):
        held_tasks, *others = running()
        if held_tasks <= tasks and not any(others):  # fewer: a tier was still connecting before
            return
        await asyncio.sleep(0.001)
    raise AssertionError((running(), asyncio.all_tasks()))


async def until_tiers_are_told(session: asyncpq.Session) -> None:
    """Of what was read before."""
    while tasks := session._runtime.tiers._tasks:
        await asyncio.wait(tasks, timeout=30)


async def cancel_everywhere(
    session: asyncpq.Session,
    url: str,
    operation: str,
    *,
    warm: bool,
    late: bool,
    empty_tiers: Callable[[], object] = lambda: None,
) -> int:
    """Returns at how many awaits the operation was cancelled.

    Args:
        warm: memory holds what the read needs; else nothing.
        empty_tiers: called before each read, whatever the tiers have to hold then.
    """
    wanted = by_pyarrow(operation, DATA)
    file = await session.open_file(url)
    await OPERATIONS[operation](file, Rows())
    await until_tiers_are_told(session)
    tasks = len(asyncio.all_tasks())
    step = 0
    while True:
        step += 1
        rows = Rows()
        await until_tiers_are_told(session)
        if not warm:
            session.memory_cache.clear()
        empty_tiers()

        async def read(rows: Rows = rows) -> None:
            # a handle of before knows the footer: only opening and "open" fetch it
            await OPERATIONS[operation](await session.open_file(url) if operation == "open" else file, rows)

        stepped = CancelledAt(read(), step, late=late)
        try:
            async with asyncio.timeout(30):
                await stepped
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
            assert stepped.reached
        else:
            assert rows.value is not None
            assert rows.value.equals(wanted)
            if not stepped.reached:
                return step - 1
            await asyncio.sleep(0)  # it came to its end all the same: take the cancellation here
        await assert_nothing_runs(session, tasks)
        await until_tiers_are_told(session)
        if not warm:
            session.memory_cache.clear()
        empty_tiers()
        again = Rows()
        await OPERATIONS[operation](await session.open_file(url) if operation == "open" else file, again)
        assert again.value is not None
        assert again.value.equals(wanted)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("loop", "threads"),
    [
        ("asyncio", 0),
        pytest.param("asyncio", 2, marks=pytest.mark.slow),
        pytest.param("uvloop", 0, marks=pytest.mark.slow),
        ("uvloop", 2),
    ],
)
@pytest.mark.parametrize(
    ("operation", "warm"),
    # opening what is cached awaits nothing
    [(operation, warm) for operation in OPERATIONS for warm in (False, True) if (operation, warm) != ("open", True)],
)
def test_at_every_await(operation: str, warm: bool, threads: int, loop: str) -> None:
    async def work() -> None:
        async with ObjectServer() as server:
            server.put(PATH, DATA)
            before = held()
            for late in (False, True):
                async with session("S3", server, threads) as s:
                    places = await cancel_everywhere(s, url_for("S3", server, PATH), operation, warm=warm, late=late)
                assert places >= 1
                await assert_back_to(before)

    run(loop, work)


@pytest.mark.parametrize(
    ("operation", "tiers"),
    [
        pytest.param(operation, tiers, marks=[] if (operation, tiers) in QUICK else pytest.mark.slow)
        for operation in OPERATIONS
        for tiers in TIERS
    ],
)
def test_at_every_await_with_tiers(tmp_path: Path, operation: str, tiers: str) -> None:
    """Memory holds nothing: all comes from the tiers, or on its way from the store goes into them."""
    folder = tmp_path / "cache"

    def empty_tiers() -> None:
        if tiers != "disk warm":
            shutil.rmtree(folder, ignore_errors=True)

    async def work(shared: dict[str, Any]) -> None:
        async with ObjectServer() as server:
            server.put(PATH, DATA)
            for late in (False, True):
                before = held()
                async with session("S3", server, 0, disk_cache=folder, **shared) as s:
                    places = await cancel_everywhere(
                        s, url_for("S3", server, PATH), operation, warm=False, late=late, empty_tiers=empty_tiers
                    )
                    counters = s.cache_counters()
                    assert {name: tier["errors"] for name, tier in counters.items()} == dict.fromkeys(counters, 0)
                    if tiers != "disk cold":
                        assert counters["shared" if shared else "disk"]["hits"] > places
                assert places >= 1
                await assert_back_to(before)

    if tiers == "disk cold, shared warm":
        (tmp_path / "valkey").mkdir()
        with ValkeyServer(tmp_path / "valkey") as valkey:
            options = asyncpq.SharedCacheOptions(url=valkey.url, timeout_s=20.0, connect_timeout_s=20.0)
            run("asyncio", lambda: work({"shared_cache": options}))
    else:
        run("asyncio", lambda: work({}))


async def test_a_session_that_is_closed_cancels_no_reader(tmp_path: Path) -> None:
    """Reads of local files end with their rows or a UsageError, wherever they are."""
    for number in range(3):
        pq.write_table(pa.table({"id": [number]}), tmp_path / f"{number}.parquet")
    for turns in range(12):
        async with asyncpq.Session() as session:
            dataset = await session.open_dataset(str(tmp_path))
            urls = await dataset.files()
            reads = [dataset.take([(url, 0) for url in urls]), dataset.read(), dataset.count("id > 0")]
            tasks = [asyncio.ensure_future(read) for read in reads]
            for _ in range(turns):
                await asyncio.sleep(0)
            await session.close()
            done, late = await asyncio.wait(tasks, timeout=20)
        assert not late
        assert not [task for task in done if task.cancelled()], turns
        assert {type(task.exception()) for task in done} <= {type(None), asyncpq.UsageError}
