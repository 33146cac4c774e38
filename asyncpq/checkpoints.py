"""Places where long work can stop or pause: loops that may take longer than some milliseconds call :func:`checkpoint`,
whichever thread they run in."""

from __future__ import annotations

import _thread  # by its name, which gevent may patch after this import
import itertools
import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, TypeVar

T = TypeVar("T")

#: Values that one call of Python's own functions is given, such as ``sorted``: it holds Python's lock to its end, so
#: that the event loop waits for it also if it runs in a thread.
PIECE: Final = 1 << 14

#: What :func:`checkpoint` calls, by the number of the thread; threading.local would be one for all threads if gevent
#: patches later.
checks: Final[dict[int, Callable[[], None]]] = {}
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=checks.clear)


def checkpoint() -> None:
    """Let work that runs in a session's thread (:func:`asyncpq.engine.work.in_thread`) stop here if its caller was
    cancelled, or pause while another owner has its turn. Does nothing in other threads. Never call it while holding a
    lock that other reads need."""
    check = checks.get(_thread.get_ident())
    if check is not None:
        check()


def paused(items: Iterable[T]) -> Iterator[T]:
    """Yield ``items``, with a :func:`checkpoint` before each."""
    for item in items:
        checkpoint()
        yield item


def pieces(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield slices of at most :data:`PIECE` values, with a :func:`checkpoint` before each."""
    if len(values) <= PIECE:
        checkpoint()
        yield values
        return
    for start in range(0, len(values), PIECE):
        checkpoint()
        yield values[start : start + PIECE]


def each(values: Sequence[T]) -> Iterator[T]:
    """Yield ``values``, with a :func:`checkpoint` every :data:`PIECE` of them: for loops that do little with each."""
    return itertools.chain.from_iterable(pieces(values))


def sorted_distinct(values: Iterable[Any]) -> list[Any]:
    """Return the distinct values, ascending, as ``sorted(set(values))`` does, in pieces of about :data:`PIECE` values.

    Sorted runs are cut at bounds between which each has few values; the parts between two bounds are then sorted.
    """
    remaining = iter(values)
    runs: list[list[Any]] = []
    while run := sorted(set(itertools.islice(remaining, PIECE))):
        checkpoint()
        runs.append(run)
    if len(runs) <= 1:
        return runs[0] if runs else []
    # One of a run's bounds in each stretch of PIECE / len(runs) values: between two bounds are about PIECE values.
    step = max(1, PIECE // len(runs))
    bounds = sorted(itertools.chain.from_iterable(run[step::step] for run in runs))[len(runs) - 1 :: len(runs)]
    result: list[Any] = []
    starts = [0] * len(runs)
    for bound in (*bounds, None):
        checkpoint()
        stops = [len(run) if bound is None else bisect_left(run, bound) for run in runs]
        parts = [run[start:stop] for run, start, stop in zip(runs, starts, stops, strict=True)]
        result += sorted(set(itertools.chain.from_iterable(parts)))
        starts = stops
    return result
