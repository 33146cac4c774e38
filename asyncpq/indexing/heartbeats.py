"""Signs of life of whoever writes an index, so that others let what it has not committed yet alone."""

from __future__ import annotations

import asyncio
import logging
import time
from types import TracebackType
from typing import Self

from asyncpq.errors import AsyncpqError, StaleSnapshotError
from asyncpq.events import Operation
from asyncpq.indexing.model import Place

logger = logging.getLogger(__name__)


class Heartbeat:
    """``async with``: the place is told now and then that ``build`` is alive.

    Args:
        grace_s: who has been silent for so long counts as dead: it must not commit.
        operation: counts the requests.
    """

    def __init__(self, place: Place, build: str, grace_s: float, operation: Operation) -> None:
        self.build = build
        self._place = place
        self._grace_s = grace_s
        self._operation = operation
        self._last = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._touch()
        self._task = asyncio.get_running_loop().create_task(self._beat())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait((self._task,))
        try:
            await self._place.end_build(self.build, operation=self._operation)
        except AsyncpqError as failed:
            logger.warning("%s still names the build %s: %s", self._place.description, self.build, failed)

    def check(self) -> None:
        """
        Raises:
            StaleSnapshotError: others may have taken it for dead.
        """
        silent = time.time() - self._last
        if silent > self._grace_s:
            raise StaleSnapshotError(
                f"this build gave no sign of life for {silent:.0f} s, and others may have taken its place",
                url=self._place.description,
                hint="Run it again: what it has committed is used.",
            )

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._grace_s / 8)
            try:
                await self._touch()
            except AsyncpqError as error:
                logger.warning("%s took no sign of life: %s", self._place.description, error)

    async def _touch(self) -> None:
        began = time.time()
        await self._place.touch(self.build, operation=self._operation)
        self._last = began
