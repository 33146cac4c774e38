"""An event loop whose callbacks run in fair order: first those of the token that has used the loop least.

asyncio runs whatever is ready in the order in which it became ready. If sixteen requests of one token become ready at
once, as when a listing ends that all of them wait for, another token's request waits for all of them, again and again
on its way. Here it waits for one callback.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final, TypeVarTuple

from asyncpq.engine.work import owner_in

Ts = TypeVarTuple("Ts")

TURN_S: Final = 0.001  # an owner's callbacks, one after the other
ITERATION_S: Final = 0.003  # all owners' callbacks, before sockets, timers and what has no owner
BEHIND_S: Final = 0.01  # what an owner may have used less than all others, however long it had nothing to do
_MOST_REMEMBERED: Final = 256  # owners that have nothing to do


class FairEventLoop(asyncio.SelectorEventLoop):
    """A selector's event loop in which callbacks whose context has an owner (:func:`asyncpq.engine.work.set_owner`)
    have their turns by the time that their owners have used: the one with the least comes first. Each owner's callbacks
    keep their order.

    An owner that had nothing to do comes back with the time of the one that has used least, less :data:`BEHIND_S`: so
    it comes first with a little work, and never keeps the others waiting for much.
    """

    def __init__(self, selector: Any = None) -> None:
        super().__init__(selector)
        self._waiting: dict[object, deque[asyncio.Handle]] = {}
        self._used_s: dict[object, float] = {}
        self._no_owner = Context()
        self._least_s = 0.0  # used by any owner that has something to do; never falls
        self._is_due = False  # whether _run_turns is among the callbacks of the next iteration

    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Call ``callback`` as soon as possible; see the class."""
        owner = owner_in(context)
        if owner is None:
            return super().call_soon(callback, *args, context=context)
        if self.is_closed():
            raise RuntimeError("Event loop is closed")  # as asyncio's own says it
        handle = asyncio.Handle(callback, args, self, context)
        waiting = self._waiting.get(owner)
        if waiting is None:
            waiting = self._waiting[owner] = deque()
            self._used_s[owner] = max(self._used_s.get(owner, 0.0), self._least_s - BEHIND_S)
        waiting.append(handle)
        self._call_turns()
        return handle

    def close(self) -> None:
        """Close the loop; callbacks that have not run never do."""
        self._waiting.clear()
        super().close()

    def _call_turns(self) -> None:
        if not self._is_due:
            self._is_due = True
            super().call_soon(self._run_turns, context=self._no_owner)

    def _run_turns(self) -> None:
        """Run callbacks for :data:`ITERATION_S` at most, unless one alone takes longer."""
        self._is_due = False
        now_s = time.monotonic()
        ends_s = now_s + ITERATION_S
        try:
            while self._waiting and now_s < ends_s:
                now_s = self._run_turn(min(self._waiting, key=self._used_s.__getitem__), now_s)
        finally:
            if self._waiting:
                self._call_turns()
            elif len(self._used_s) > _MOST_REMEMBERED:
                self._used_s.clear()
                self._least_s = 0.0

    def _run_turn(self, owner: object, began_s: float) -> float:
        self._least_s = max(self._least_s, self._used_s[owner])
        waiting, now_s = self._waiting[owner], began_s
        try:
            while waiting and now_s < began_s + TURN_S:
                handle = waiting.popleft()
                if not handle.cancelled():
                    handle._run()  # noqa: SLF001  # as any event loop runs it
                    now_s = time.monotonic()
        finally:
            self._used_s[owner] += time.monotonic() - began_s
            if not waiting:
                del self._waiting[owner]
        return now_s
