"""What a cache tier counts, alike for all of them."""

from __future__ import annotations


class TierCounters:
    """Base of the tiers that are counted.

    Attributes:
        hits: entries that were asked for and found, pointers included.
        misses: those that the tier answered not to have; what it did not answer is none.
        errors: calls that failed, in part or whole, or were not answered in time; commands that a server refused.
        skipped: calls that were not made: the tier had failed shortly before, or is closed.
        evictions: entries that this process removed to keep a budget. What a server removes is not known here.
    """

    def __init__(self) -> None:
        self.hits = 0
        self.misses = 0
        self.errors = 0
        self.skipped = 0
        self.evictions = 0

    def counters(self) -> dict[str, int]:
        """All of these, by name, as of now."""
        return {
            "hits": self.hits,
            "misses": self.misses,
            "errors": self.errors,
            "skipped": self.skipped,
            "evictions": self.evictions,
        }
