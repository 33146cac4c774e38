"""The same call for many, a few of them at once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

T = TypeVar("T")

_AT_ONCE = 16


async def all_of(items: Sequence[T], call: Callable[[T], Awaitable[None]]) -> None:
    """Await ``call(item)`` for each. The first error ends all, and is raised once they have ended."""
    if not items:
        return
    left = iter(items)

    async def work() -> None:
        for item in left:
            await call(item)

    tasks = [asyncio.ensure_future(work()) for _ in range(min(_AT_ONCE, len(items)))]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
