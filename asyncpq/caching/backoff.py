"""When to leave a failing tier alone, and when to ask it again."""

from __future__ import annotations

import time
from collections.abc import Callable


class Backoff:
    """Counts failures in a row. After some of them the tier is left alone, each time for longer.

    Args:
        failures: in a row that are taken without a pause.
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

    @property
    def ready(self) -> bool:
        """Whether the tier may be asked now."""
        return self._clock() >= self._until

    @property
    def failing(self) -> bool:
        """Whether it failed when it was last asked."""
        return self._failures > 0

    def failed(self) -> None:
        self._failures += 1
        beyond = self._failures - self._allowed
        if beyond >= 0:
            self._until = self._clock() + min(self._first_s * 2.0 ** min(beyond, 32), self._longest_s)

    def succeeded(self) -> None:
        self._failures = 0
