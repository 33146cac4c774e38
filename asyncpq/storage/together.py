"""Work done side by side, of which none is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

_AT_ONCE = 16


async def results_of(work: Sequence[Awaitable[T]]) -> list[T]:
    """What all of ``work`` gives, in its order. The first error ends all, and is raised once they have ended."""
    if len(work) == 1:
        return [await work[0]]
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def all_of(items: Sequence[T], call: Callable[[T], Awaitable[None]], at_once: int = _AT_ONCE) -> None:
    """Await ``call(item)`` for each, a few of them at once. The first error ends all, and is raised once they have
    ended."""
    left = iter(items)

    async def work() -> None:
        for item in left:
            await call(item)

    await results_of([work() for _ in range(min(at_once, len(items)))])
