"""Whose work runs, and where: for doors that many people share.

The work of each owner (:func:`set_owner`) gets an equal share of what a session has: of the turns on its event loop, of
the threads that decode, of the connections to a store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import Context
from selectors import BaseSelector
from typing import TypeVar

from asyncpq.checkpoints import checkpoint
from asyncpq.events import Event
from asyncpq.objects.fair_threads import FairThreads, LoopFirst
from asyncpq.objects.runtime import runtime_of
from asyncpq.session import Session
from asyncpq.storage.threads import shared_context, work_owner

__all__ = ["checkpoint", "in_thread", "loop_first", "owner_in", "set_owner", "shared_context", "watched"]

T = TypeVar("T")


def set_owner(owner: object) -> None:
    """Say whose work the running task does, such as the token of a service's request; tasks that it starts inherit it.
    ``owner``: any hashable value; None for work of nobody in particular."""
    work_owner.set(owner)


def owner_in(context: Context | None = None) -> object:
    """Return the owner that :func:`set_owner` set in ``context``, by default the present one; None if there is none."""
    return work_owner.get() if context is None else context.get(work_owner)


async def in_thread(session: Session, work: Callable[[], T], *, small: bool = False) -> T:
    """Return the result of ``work``, which runs in the session's threads when its owner has its turn.

    If the caller is cancelled, the work stops at its next :func:`checkpoint`, and the cancellation is raised then.

    Args:
        session: an entered session, in whose event loop this is awaited.
        work: called without arguments; its exceptions are raised here.
        small: the work takes less time than a change of threads, some tenths of a millisecond: it runs on the event
            loop, when its owner has its turn there.
    """
    runtime = runtime_of(session)
    if small:
        await runtime.turns.turn()
    return await runtime.in_thread(work, small=small)


@contextmanager
def loop_first(niceness: int) -> Iterator[BaseSelector]:
    """Let one event loop of this process come before the work in threads: at its checkpoints, work waits while the loop
    has something to do.

    Args:
        niceness: added to that of threads that start in the block, where threads have their own (Linux).

    Returns:
        A context manager that yields the loop's selector, for ``asyncio.SelectorEventLoop(selector)``.
    """
    before, selector = FairThreads.niceness, LoopFirst()
    FairThreads.loop_first, FairThreads.niceness = selector, niceness
    try:
        yield selector
    finally:
        FairThreads.loop_first, FairThreads.niceness = None, before


def watched(session: Session, watcher: Callable[[Event], None]) -> AbstractContextManager[None]:
    """Return a context manager, in whose block ``watcher`` gets the events of the session's calls that begin there, in
    addition to ``on_event`` of :class:`asyncpq.Session`, which lists the events. It must not block; its exceptions are
    logged and ignored."""
    return runtime_of(session).watched(watcher)
