"""A clock of a test's own: the time passes when the test says so."""

from __future__ import annotations


class Clock:
    """Stands in for the module ``time`` in a module under test."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s
