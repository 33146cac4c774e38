"""Calls into an event loop of another thread end, whatever that loop does."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.scan import arrow_stream
from asyncpq.scan.arrow_stream import OtherThread


async def one() -> int:
    return 1


async def test_it_runs_in_the_loop_and_raises_what_the_call_raises() -> None:
    loop = OtherThread()

    async def here() -> int:
        return threading.get_ident()

    async def fails() -> int:
        raise TimeoutError("of the read")

    assert await asyncio.to_thread(loop.call, here) == threading.get_ident()
    with pytest.raises(TimeoutError, match="of the read"):
        await asyncio.to_thread(loop.call, fails)


async def test_the_loops_own_thread_says_so() -> None:
    with pytest.raises(asyncpq.UsageError, match=r"asyncio\.to_thread"):
        OtherThread().call(one)


def test_an_ended_loop_says_so() -> None:
    async def make() -> OtherThread:
        return OtherThread()

    loop = asyncio.run(make())
    assert not loop.runs
    loop.post(lambda: None)  # type: ignore[arg-type, return-value]  # not called
    with pytest.raises(asyncpq.UsageError, match="has ended"):
        loop.call(one)


def test_a_loop_that_ends_during_the_call_says_so() -> None:
    said: list[BaseException] = []

    async def make() -> None:
        loop, waits = OtherThread(), asyncio.Event()

        async def never() -> None:
            waits.set()
            await asyncio.Event().wait()

        def call() -> None:
            try:
                loop.call(never)
            except BaseException as error:  # noqa: BLE001
                said.append(error)

        thread.append(threading.Thread(target=call))
        thread[0].start()
        await waits.wait()

    thread: list[threading.Thread] = []
    asyncio.run(make())
    thread[0].join(30)
    assert "has ended" in str(said[0])


@pytest.mark.heavy
async def test_a_loop_that_waits_for_its_consumer_ends_the_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DuckDB and joined threads consume in threads of their own, for which the loop's thread waits."""
    monkeypatch.setattr(arrow_stream, "BLOCKED_S", 0.0)
    table = pa.table({"id": range(100)})
    pq.write_table(table, tmp_path / "0.parquet")
    async with asyncpq.open_dataset(tmp_path) as dataset, dataset.scan() as entered:
        reader = await entered.to_reader()
        with ThreadPoolExecutor(1) as pool:
            for consume in (
                lambda: pa.table(dataset.scan()),
                lambda: pa.table(entered),
                lambda: pa.schema(dataset.scan()),
                lambda: reader.read_all(),
            ):
                with pytest.raises(asyncpq.UsageError, match=r"run nothing for .* asyncio\.to_thread"):
                    pool.submit(consume).result(60)
        assert (await entered.to_table()) == table, "a call that was given up takes no batch"


async def test_a_read_that_failed_says_so_to_each_thread() -> None:
    async def fails() -> int:
        raise asyncpq.AccessDeniedError("refused")

    puller = arrow_stream.BatchPuller(fails, None)
    for _ in range(2):
        with pytest.raises(asyncpq.AccessDeniedError):
            await asyncio.to_thread(next, puller)
