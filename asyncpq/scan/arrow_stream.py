"""Arrow streams of a scan whose event loop runs in another thread than their consumer."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final, Generic, Self, TypeVar

import pyarrow as pa

from asyncpq.errors import AsyncpqError, QueryError, UsageError
from asyncpq.objects.loop_threads import LoopCall, ended_error, post, runs

T = TypeVar("T")

_ELSEWHERE: Final = (
    "Consume in another thread, such as `await asyncio.to_thread(pa.table, scan)`; or await scan.to_table(); or use "
    "asyncpq.blocking."
)
BLOCKED_S: Final = 30.0  # an event loop that begins nothing for so long waits for its own consumer


class OtherThread:
    """Lets other threads run coroutines in the event loop that creates this object."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        self._loop = loop or asyncio.get_running_loop()
        self._process = os.getpid()

    @property
    def runs(self) -> bool:
        """Whether the loop is running in this process."""
        return self._process == os.getpid() and runs(self._loop)

    def check(self, hint: str = _ELSEWHERE) -> None:
        """Raise UsageError, with ``hint``, if this is the loop's own thread, or if the loop has ended."""
        if _runs_here(self._loop):
            raise UsageError(
                "the scan's stream was consumed in the thread of its own event loop, which blocks it", hint=hint
            )
        if not self.runs:
            raise ended_error()

    def call(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run the coroutine that ``make`` returns in the loop, wait for it, and return its result.

        Raises:
            UsageError: this is the loop's own thread; the loop has ended, or does not run for 30 s.
            AsyncpqError: reading failed.
        """
        self.check()
        call = LoopCall(self._loop, make())
        blocked_at = time.monotonic() + BLOCKED_S

        def look() -> None:
            if not self.runs:
                raise ended_error()
            if not call.begun and time.monotonic() > blocked_at:
                raise _blocked()

        return call.result(look)

    def post(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Schedule the coroutine that ``work`` returns in the loop, without waiting. Does nothing if the loop is not
        running."""
        if self.runs:
            post(self._loop, work)


class BatchPuller(Generic[T]):
    """An iterator, for another thread, over the batches that an event loop makes. Create it in the loop's own thread.

    ``next_batch`` returns the next batch, None after the last one. ``close`` ends the source of the batches when the
    iterator is dropped early; it is None if the source is closed elsewhere.
    """

    def __init__(
        self,
        next_batch: Callable[[], Coroutine[Any, Any, T | None]],
        close: Callable[[], Coroutine[Any, Any, None]] | None,
    ) -> None:
        self._next_batch = next_batch
        self._close = close
        self._loop = OtherThread()
        self._failed: AsyncpqError | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> T:
        """Return the next batch. Raises the errors of :meth:`OtherThread.call`.

        After an error of the read, each later call raises it again, because consumers with several threads report only
        the last error.
        """
        if self._failed is not None:
            raise self._failed
        try:
            batch = self._loop.call(self._next_batch)
        except UsageError:
            raise
        except AsyncpqError as error:
            self._failed = error
            raise
        if batch is None:
            self._close = None
            raise StopIteration
        return batch

    def __del__(self) -> None:
        close, self._close = self._close, None
        if close is not None:
            self._loop.post(close)


def stream_capsule(reader: pa.RecordBatchReader, requested_schema: object) -> object:
    """Return an Arrow PyCapsule stream of the batches of ``reader``, cast to ``requested_schema`` (a PyCapsule; None
    for no cast). Raises QueryError if they cannot be cast."""
    try:
        return reader.__arrow_c_stream__(requested_schema)
    except (ValueError, TypeError, NotImplementedError) as error:
        raise QueryError(
            f"the scan's batches cannot be cast to the requested schema: {error}",
            hint="Name the columns in scan(columns=...), and cast the resulting table.",
        ) from error


def _runs_here(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:  # none runs in this thread
        return False


def _blocked() -> UsageError:
    return UsageError(
        f"the scan's event loop has run nothing for {BLOCKED_S:g} s: it seems to wait for the consumer of the scan",
        hint="Run the consumer in another thread and await it, such as `await asyncio.to_thread(query, scan)`.",
    )
