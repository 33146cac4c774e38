"""Places where long work can stop or pause: loops that may take longer than some milliseconds call :func:`checkpoint`,
whichever thread they run in."""

from __future__ import annotations

import _thread  # by its name, which gevent may patch after this import
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

#: What :func:`checkpoint` calls, by the number of the thread; threading.local would be one for all threads if gevent
#: patches later.
checks: Final[dict[int, Callable[[], None]]] = {}
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=checks.clear)


def checkpoint() -> None:
    """Stop or pause here, if the calling thread runs work of :class:`asyncpq.objects.fair_threads.FairThreads` and
    there is reason to. Never call it with a lock that other reads need."""
    check = checks.get(_thread.get_ident())
    if check is not None:
        check()


def paused(items: Iterable[T]) -> Iterator[T]:
    """Yield ``items``, with a :func:`checkpoint` before each."""
    for item in items:
        checkpoint()
        yield item
