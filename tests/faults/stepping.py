"""Cancelling a coroutine at one of its awaits, whichever is wanted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class CancelledAt(Generic[T]):
    """Awaits ``work``, and cancels the awaiting task when ``work`` suspends for the ``step``-th time.

    Args:
        step: from 1.
        late: cancel when what is awaited has just been done, before ``work`` gets to know of it; otherwise
            cancel while it is awaited.

    Attributes:
        reached: whether ``work`` suspended that often.
    """

    def __init__(self, work: Coroutine[Any, Any, T], step: int, *, late: bool) -> None:
        self._work = work
        self._step = step
        self._late = late
        self._seen = 0

    @property
    def reached(self) -> bool:
        return self._seen >= self._step

    def __await__(self) -> Generator[Any, Any, T]:
        task = asyncio.current_task()
        assert task is not None
        go_on: Callable[[Any], Any] = self._work.send
        value: Any = None
        while True:
            try:
                awaited = go_on(value)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]  # StopIteration knows no type
            self._seen += 1
            if self._seen == self._step:
                if self._late and awaited is not None:
                    awaited.add_done_callback(lambda _: task.cancel())
                else:
                    task.cancel()
            try:
                value = yield awaited
                go_on = self._work.send
            except BaseException as error:  # noqa: BLE001  # given to whom it is for
                value, go_on = error, self._work.throw
