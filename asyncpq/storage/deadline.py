"""A deadline for calls that have no clock of their own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

from asyncpq.errors import DeadlineExceededError

T = TypeVar("T")


async def within_deadline(
    call: Awaitable[T], deadline: float | None, url: str, byte_range: tuple[int, int] | None = None
) -> T:
    """Await ``call`` until ``deadline`` (``loop.time()``), which cancels it.

    Raises:
        DeadlineExceededError: the deadline passed.
    """
    if deadline is None:
        return await call
    limit = asyncio.timeout_at(deadline)
    try:
        async with limit:
            return await call
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise DeadlineExceededError(
            "the read's deadline passed", url=url, byte_range=byte_range, hint="Raise read_timeout_s."
        ) from error
