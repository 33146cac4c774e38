"""How many requests may be under way at once, of each token and of all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from asyncpq.serve.configuration import Token
from asyncpq.serve.problems import Problem

RETRY_AFTER_S = 1


class Slots:
    """Counts the requests under way. One that finds no slot is refused at once: a queue would hide from clients that
    they ask too much."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """Requests under way."""
        return self._taken.total()

    @contextmanager
    def taken_by(self, token: Token, concurrent: int) -> Iterator[Callable[[], None]]:
        """Take a slot for the block, and give a function that frees it before the block ends.

        Raises Problem 429 if the token, or with all others ``concurrent``, has too many.
        """
        if self._taken[token.name] >= token.limits.concurrent:
            raise _busy(f"the token has {token.limits.concurrent} requests under way, which is its limit")
        if self.taken >= concurrent:
            raise _busy("the service has as many requests under way as it may")
        self._taken[token.name] += 1
        held = [token.name]

        def free() -> None:
            if held:
                self._taken[held.pop()] -= 1

        try:
            yield free
        finally:
            free()


def _busy(detail: str) -> Problem:
    headers = {"retry-after": str(RETRY_AFTER_S)}
    return Problem(429, detail, hint=f"Ask again in {RETRY_AFTER_S} s, or fewer at once.", headers=headers)
