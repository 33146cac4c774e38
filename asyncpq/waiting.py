"""``asyncio.wait`` that keeps nothing when it is cancelled: what a read holds is free at once, also in Python 3.14."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any, TypeVar

FutureT = TypeVar("FutureT", bound="asyncio.Future[Any]")


async def wait_futures(
    futures: Iterable[FutureT],
    *,
    timeout: float | None = None,  # noqa: ASYNC109  # as asyncio has it
    return_when: str = asyncio.ALL_COMPLETED,
) -> tuple[set[FutureT], set[FutureT]]:
    """Return what ``asyncio.wait`` returns.

    The frame of ``asyncio.wait`` refers to the current task in Python 3.14. A task that is cancelled there refers to
    its error, whose traceback refers to that frame: a cycle, with all that the task's frames hold. So the traceback
    begins here.
    """
    try:
        return await asyncio.wait(futures, timeout=timeout, return_when=return_when)
    except asyncio.CancelledError as error:
        raise error.with_traceback(None)  # noqa: B904  # the same error
