"""Opens the files of a read ahead of their rows, a limited number at once."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import Final, TypeVar

from asyncpq.datasets.model import DataFile
from asyncpq.datasets.opened_file import OpenedFile
from asyncpq.errors import (
    GONE_SINCE,
    AccessDeniedError,
    AsyncpqError,
    CredentialsError,
    FormatError,
    NotParquetError,
    ObjectChangedError,
    ObjectNotFoundError,
    stray_file,
)
from asyncpq.events import Operation
from asyncpq.objects.runtime import Runtime
from asyncpq.storage.urls import safe_url

T = TypeVar("T")

_BAD_FILE: Final = (FormatError, ObjectNotFoundError, AccessDeniedError)


def is_bad_file(error: AsyncpqError) -> bool:
    """Whether the error concerns this file alone: it is not Parquet, is missing, cannot be read, or does not fit.

    Missing credentials concern all files.
    """
    return isinstance(error, _BAD_FILE) and not isinstance(error, CredentialsError)


class Opener:
    """Opens files.

    Args:
        operation: of the read that they are opened for; each of them has a part of it.
        rounds: requests of the read that these wait for, one after another.
        tail_hint: names all of them, whose footers are alike.
        prefix: the folder whose files they are, safe to be shown; None where a pattern, a list or a table names them.
        by_index: a snapshot of an index names them.
        listed_at: when the files' validators were asked for (``time.monotonic()``).
        listed_now: see :meth:`OpenedFile.open`.
        scan: for a scan, which leaves connections to others.
        ordered: files are given in order; else as they become ready.
        few: the first ones may be enough: more are opened once those were given.
        restarts: how often a file that changes meanwhile is opened again.
        skip: told of each bad file, and its part, that is left out; None to raise what is wrong with it.
    """

    def __init__(
        self,
        runtime: Runtime,
        operation: Operation,
        *,
        rounds: int = 0,
        tail_hint: str,
        prefix: str | None = None,
        by_index: bool = False,
        listed_at: float | None = None,
        listed_now: bool = False,
        scan: bool = True,
        ordered: bool = True,
        few: bool = False,
        restarts: int = 0,
        skip: Callable[[int, Operation, AsyncpqError], None] | None = None,
    ) -> None:
        self._runtime = runtime
        self._operation = operation
        self._rounds = rounds
        self._tail_hint = tail_hint
        self._prefix = prefix
        self._by_index = by_index
        self._listed_at = listed_at
        self._listed_now = listed_now
        self._scan = scan
        self._ordered = ordered
        self._few = few
        self._restarts = restarts
        self._skip = skip

    async def files(
        self, todo: Iterable[tuple[int, DataFile]], prepare: Callable[[OpenedFile], Awaitable[T]]
    ) -> AsyncGenerator[tuple[OpenedFile, T]]:
        """Opened files, and what ``prepare`` gave for them. Whoever takes one closes it.

        Args:
            todo: numbers and files.
            prepare: runs for several files at once.
        """
        most = self._runtime.options.limits.files_ahead
        left = iter(todo)
        window: deque[asyncio.Task[tuple[OpenedFile, T] | None]] = deque()
        ahead = 1 if self._few else most
        try:
            while True:
                for number, file in itertools.islice(left, ahead - len(window)):
                    window.append(asyncio.get_running_loop().create_task(self.open(number, file, prepare)))
                if not window:
                    return
                awaited = [window[0]] if self._ordered else window
                task = next((task for task in awaited if task.done()), None)
                if task is None:
                    await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                    task = next(task for task in awaited if task.done())
                window.remove(task)
                ahead = min(ahead * 2, most)
                opened = task.result()
                if opened is not None:
                    yield opened
        finally:
            await self._end(window)

    async def _end(self, window: Iterable[asyncio.Task[tuple[OpenedFile, T] | None]]) -> None:
        """Nobody takes the files that are under way."""
        for task in window:
            task.cancel()
        for task in window:
            await asyncio.wait((task,))
            if not task.cancelled() and task.exception() is None and (found := task.result()) is not None:
                opened, _ = found
                self._operation.metrics.add_part(opened.operation.metrics)
                await opened.close()

    async def open(
        self, number: int, file: DataFile, prepare: Callable[[OpenedFile], Awaitable[T]]
    ) -> tuple[OpenedFile, T] | None:
        """One file, and what ``prepare`` gave for it; None for a file that is left out."""
        part = self._operation.part(safe_url(file.url), self._rounds)
        restarts = self._restarts
        while True:
            try:
                return await self._prepared(number, file, part, prepare)
            except ObjectChangedError:
                if file.pinned:
                    self._operation.metrics.add_part(part.metrics)
                    raise
                if file.entry is not None and file.entry.validator is not None:
                    file = file.unindexed()  # what stands there now is read without the index
                    part.restarts()
                    continue
                if not restarts:
                    self._operation.metrics.add_part(part.metrics)
                    raise
                restarts -= 1
                part.restarts()
            except _BAD_FILE as error:
                if isinstance(error, NotParquetError) and self._prefix is not None:
                    error.hint = stray_file(self._prefix, part.url)
                if isinstance(error, ObjectNotFoundError) and self._by_index:
                    error.hint = GONE_SINCE
                if self._skip is None or not is_bad_file(error):
                    self._operation.metrics.add_part(part.metrics)
                    raise
                self._skip(number, part, error)
                return None
            except BaseException:
                self._operation.metrics.add_part(part.metrics)
                raise

    async def _prepared(
        self, number: int, file: DataFile, part: Operation, prepare: Callable[[OpenedFile], Awaitable[T]]
    ) -> tuple[OpenedFile, T]:
        async with self._runtime.deadline(part.url):
            opened = await OpenedFile.open(
                self._runtime,
                number,
                file,
                part,
                tail_hint=self._tail_hint,
                listed_at=self._listed_at,
                listed_now=self._listed_now,
                scan=self._scan,
            )
            try:
                return opened, await prepare(opened)
            except BaseException as error:
                if isinstance(error, ObjectChangedError):
                    await opened.changed()
                await opened.close()
                raise
