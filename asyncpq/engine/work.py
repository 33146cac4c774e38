"""Fair sharing of a session among many users, for services.

Each owner (:func:`set_owner`), such as the token of a request, gets an equal share of a session's event loop, decoding
threads and connections.
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
    """Set the owner of the running task's work, such as the token of a service's request. Tasks that it starts inherit
    the owner. ``owner``: any hashable value; None for work without an owner."""
    work_owner.set(owner)


def owner_in(context: Context | None = None) -> object:
    """Return the owner that :func:`set_owner` set in ``context`` (None: the current context); None if there is no
    owner."""
    return work_owner.get() if context is None else context.get(work_owner)


async def in_thread(session: Session, work: Callable[[], T], *, small: bool = False) -> T:
    """Run ``work`` in one of the session's threads when its owner has its turn (:func:`set_owner`); return its result.

    If the caller is cancelled, the work stops at its next :func:`checkpoint`, and the cancellation is raised then.

    Args:
        session: an entered session, in whose event loop this is awaited.
        work: called without arguments; its exceptions are raised here.
        small: run the work on the event loop instead, when its owner has its turn there: for work of less than some
            tenths of a millisecond, which a change of threads would cost.
    """
    runtime = runtime_of(session)
    if small:
        await runtime.turns.turn()
    return await runtime.in_thread(work, small=small)


@contextmanager
def loop_first(niceness: int) -> Iterator[BaseSelector]:
    """Give one event loop of this process priority over work in threads, which waits at each :func:`checkpoint` while
    the loop is busy.

    Args:
        niceness: added to the niceness of threads that start in the block; only Linux has one for each thread.

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
    """Return a context manager. ``watcher`` is called with the events of the session's calls that begin in the block,
    in addition to ``on_event`` of :class:`asyncpq.Session`, which lists the events. It must not block; its exceptions
    are logged and ignored."""
    return runtime_of(session).watched(watcher)
