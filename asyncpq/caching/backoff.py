"""When to leave a failing tier alone, and when to ask it again."""

from __future__ import annotations

import time
from collections.abc import Callable


class Backoff:
    """Counts failures in a row. After some of them the tier is left alone; then one call goes first, and the others
    if it succeeds. Each time that it fails the pause is longer.

    Args:
        failures: in a row that the pause begins with.
        first_s: the first pause; each further failure doubles it.
        longest_s: no pause is longer.
        clock: seconds that never go back.
    """

    def __init__(
        self,
        *,
        failures: int = 3,
        first_s: float = 1.0,
        longest_s: float = 60.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowed = failures
        self._first_s = first_s
        self._longest_s = longest_s
        self._clock = clock
        self._failures = 0
        self._until = float("-inf")
        self._probe: Attempt | None = None

    def begin(self) -> Attempt | None:
        """One call that may be made now, which must be told how it ended; None: leave the tier alone."""
        attempt = Attempt(self)
        if self._failures >= self._allowed:
            if self._probe is not None or self._clock() < self._until:
                return None
            self._probe = attempt
        return attempt

    def _failed(self, attempt: Attempt) -> bool:
        paused = self._failures >= self._allowed
        if paused and attempt is not self._probe:
            return False  # it had begun before
        self._failures += 1
        beyond = self._failures - self._allowed
        if beyond >= 0:
            self._until = self._clock() + min(self._first_s * 2.0 ** min(beyond, 32), self._longest_s)
        return beyond >= 0 and not paused

    def _succeeded(self) -> bool:
        paused = self._failures >= self._allowed
        self._failures = 0
        return paused

    def _ended(self, attempt: Attempt) -> None:
        if attempt is self._probe:
            self._probe = None


class Attempt:
    """A call that :class:`Backoff` allowed. Tell it one of these; what comes after that changes nothing."""

    __slots__ = ("_backoff",)

    def __init__(self, backoff: Backoff) -> None:
        self._backoff: Backoff | None = backoff

    def failed(self) -> bool:
        """True if the tier is left alone from now on."""
        backoff = self._backoff
        begins = backoff is not None and backoff._failed(self)
        self.withdrawn()
        return begins

    def succeeded(self) -> bool:
        """True if the tier was left alone until now."""
        backoff = self._backoff
        ends = backoff is not None and backoff._succeeded()
        self.withdrawn()
        return ends

    def withdrawn(self) -> None:
        """Nobody knows how it would have ended."""
        if self._backoff is not None:
            self._backoff._ended(self)
            self._backoff = None
