"""What a cancelled wait leaves."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from asyncpq.waiting import wait_futures


class Held:
    """What a task holds."""


async def test_a_cancelled_wait_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    asyncios = asyncio.wait

    async def of_python_3_14(*arguments: Any, **options: Any) -> Any:
        current = asyncio.current_task()
        result = await asyncios(*arguments, **options)
        assert current is not None
        return result

    async def waits(held: Held, future: asyncio.Future[None]) -> None:
        await wait_futures((future,))

    monkeypatch.setattr(asyncio, "wait", of_python_3_14)
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    held = Held()
    reference = weakref.ref(held)
    task = asyncio.create_task(waits(held, future))
    del held
    gc.collect()
    gc.disable()
    try:
        await asyncio.sleep(0)
        task.cancel()
        while not task.done():  # noqa: ASYNC110  # awaiting it would take its error away
            await asyncio.sleep(0)
        assert task.cancelled()
        del task
        assert reference() is None
    finally:
        gc.enable()


async def test_the_results_are_those_of_asyncio() -> None:
    loop = asyncio.get_running_loop()
    done: asyncio.Future[int] = loop.create_future()
    open_: asyncio.Future[int] = loop.create_future()
    done.set_result(1)
    assert await wait_futures((done, open_), return_when=asyncio.FIRST_COMPLETED) == ({done}, {open_})
    assert await wait_futures((done, open_), timeout=0) == ({done}, {open_})
    assert await wait_futures({done}) == ({done}, set())
