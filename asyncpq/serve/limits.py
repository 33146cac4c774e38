"""Limits on the number of concurrent requests, for each token and for all tokens together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from asyncpq.serve.configuration import Token
from asyncpq.serve.problems import Problem

RETRY_AFTER_S = 1


class Slots:
    """Counts running requests, for each token and in all. A request over the limit is refused at once: a queue would
    hide from clients that they send too many."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """The number of running requests."""
        return self._taken.total()

    def take(self, token: Token, concurrent: int) -> Callable[[], None]:
        """Count one request of ``token`` as running, until the returned function is called. Further calls of it do
        nothing.

        Raises Problem 429 if the token has reached its own limit, or all tokens together have ``concurrent`` running
        requests.
        """
        if self._taken[token.name] >= token.limits.concurrent:
            raise _busy(f"the token has {token.limits.concurrent} running requests, which is its limit")
        if self.taken >= concurrent:
            raise _busy("the service has reached its limit of concurrent requests")
        self._taken[token.name] += 1
        held = [token.name]

        def free() -> None:
            if held:
                self._taken[held.pop()] -= 1

        return free


def _busy(detail: str) -> Problem:
    headers = {"retry-after": str(RETRY_AFTER_S)}
    return Problem(429, detail, hint=f"Ask again in {RETRY_AFTER_S} s, or fewer at once.", headers=headers)
