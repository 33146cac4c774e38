"""Where to cut a range of keys in two, knowing only some of its keys. Pure.

A bad cut costs a request that finds nothing; no cut loses a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

LAST = "\U0010ffff"  # no key's character comes behind it

_DIGITS = frozenset("0123456789")
_HEX = frozenset("0123456789abcdef")
_LONGEST = 200  # characters that are looked at


class Cut(NamedTuple):
    """A key, or what could be one, between the ends of a range.

    Attributes:
        weight: what part of all keys may be in the range, if they are spread evenly; for comparisons.
    """

    key: str
    weight: float


class Alphabets:
    """Which characters keys have at each position."""

    def __init__(self) -> None:
        self._sets: list[set[str]] = []
        self._sorted: list[str] = []

    def learn(self, keys: Sequence[str]) -> None:
        """Take the keys of a page."""
        longest = min(max(map(len, keys), default=0), _LONGEST)
        while len(self._sets) < longest:
            self._sets.append(set())
            self._sorted.append("")
        for at in range(longest):
            new = {key[at] for key in keys if len(key) > at}
            if new <= self._sets[at]:
                continue
            if not new.isdisjoint(_DIGITS):
                new |= _HEX if new <= _HEX and len(new - _DIGITS) > 2 else _DIGITS
            self._sets[at] |= new
            self._sorted[at] = "".join(sorted(self._sets[at]))

    def at(self, position: int) -> str:
        """The characters at a position, ascending."""
        return self._sorted[position] if position < len(self._sorted) else ""


def skip(first: str, last: str, shorter: int) -> str | None:
    """Behind all keys that begin as ``first`` and ``last`` both do, without its last ``shorter`` characters."""
    common = _common(first, last)
    return None if shorter >= common else first[: common - shorter] + LAST


def middle(low: str, high: str, alphabets: Alphabets) -> Cut | None:
    """A key between ``low`` and ``high``, about in the middle; None if none is in sight.

    Args:
        low, high: the ends, low < high.
    """
    at = _common(low, high)
    weight = 1.0
    for position in range(at):
        weight /= len(alphabets.at(position)) or 1
    head, bound = low[:at], high[at : at + 1]
    below = low[at : at + 1]
    while at < _LONGEST:
        known = alphabets.at(at)
        if not known:
            return None
        between = [mark for mark in known if mark > below and (not bound or mark < bound)]
        part = weight * len(between) / len(known)
        if bound and below and len(high) > at + 1 and bound != LAST:
            between.append(bound)  # between the keys that begin as low, and those that begin as high
        if between:
            return Cut(head + between[len(between) // 2], part or weight / len(known) / 2)
        weight /= len(known)
        if below:  # on among the keys that begin as low
            head, bound, below = head + below, "", low[at + 1 : at + 2]
        elif bound:  # low has ended: on among those that begin as high
            head, bound = head + bound, high[at + 1 : at + 2]
            if not bound:
                return None
        else:
            return None
        at += 1
    return None


def _common(one: str, other: str) -> int:
    """How many characters both begin with."""
    for at, (mark, its) in enumerate(zip(one, other, strict=False)):
        if mark != its:
            return at
    return min(len(one), len(other))
