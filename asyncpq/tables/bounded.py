"""Many calls, a few at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

_T = TypeVar("_T")
_U = TypeVar("_U")


async def call_each(call: Callable[[_T], Awaitable[_U]], arguments: Iterable[_T], *, at_once: int) -> list[_U]:
    """The results, in order. The first error ends the other calls; none is left behind."""
    free = asyncio.Semaphore(at_once)

    async def bounded(argument: _T) -> _U:
        async with free:
            return await call(argument)

    tasks = [asyncio.ensure_future(bounded(argument)) for argument in arguments]
    if not tasks:
        return []
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
