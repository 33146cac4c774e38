"""A deadline for another's answer that does not run while this process is too busy to look for it."""

from __future__ import annotations

import asyncio
from typing import Final

_LATE_S: Final = 0.005  # what a loop may be late without having been busy
_MAX_FORGIVEN: Final = 3


class Patience:
    """Has an entered timeout end in ``allowed_s``, at most four times as late where the loop was busy.

    A loop that decodes for longer than a server is given would count as the server's failure: when the time
    is over, nobody may have looked at the socket yet.
    """

    def __init__(self, timeout: asyncio.Timeout, allowed_s: float) -> None:
        self._timeout = timeout
        self._allowed_s = allowed_s
        self._forgiven = 0
        self._loop = asyncio.get_running_loop()
        self._start()

    def _start(self) -> None:
        self._due = self._loop.time() + self._allowed_s
        self._timeout.reschedule(self._due + 0.001)  # after the look at how late it is
        self._handle = self._loop.call_at(self._due, self._look)

    def _look(self) -> None:
        when = self._timeout.when()
        if self._timeout.expired() or when is None or when < self._due:
            return  # it was ended, or told to end before
        late_s = self._loop.time() - self._due
        if late_s > max(_LATE_S, 0.1 * self._allowed_s) and self._forgiven < _MAX_FORGIVEN:
            self._forgiven += 1
            self._start()

    def end(self) -> None:
        """The answer is there, or not wanted any more."""
        self._handle.cancel()
