"""The rate at which the requests of one host begin while it throttles."""

from __future__ import annotations

import math

#: The first rate of a store of which too few answers are known, in requests per second. Without any success the rate
#: does not fall below it, so that an outage is told from throttling within seconds.
FIRST_RATE = 10.0
#: The rate does not fall below this one, or below the rate of successes if that is lower: the store allows that little.
LEAST_RATE = 5.0
#: A store that has served nothing for so many seconds may be down, so the rate is ``LEAST_RATE`` at least.
OUTAGE_S = 5.0
#: Seconds after the last throttled answer until requests begin at any rate again.
QUIET_S = 10.0

_DECREASE = 0.7  # of the rate, by a throttled answer
_START_INCREASE = 2.0  # of the rate, by each success until the known limit is near: doubles it every 0.35 s
_INCREASE = 0.1  # of the known limit, each second, near and above it; for low limits
_LOW_INCREASE = 0.2  # ... up to one request per second
_WINDOW_S = 1.0  # over which successes are counted


class Pace:
    """The rate at which requests may begin: additive increase, multiplicative decrease, with a slow start.

    A count of connections cannot hold the rate of a store that answers in milliseconds and allows 50 requests a second.
    ``rate`` is in requests per second, infinite if the store does not throttle. ``next_at`` is the time when the next
    request may begin, ``served`` the number of successes so far, and ``slowed_at`` the time of the last decrease. Times
    are those of the event loop, in seconds.
    """

    __slots__ = ("_before", "_count", "_near", "_served_then", "_since", "next_at", "rate", "served", "slowed_at")

    def __init__(self) -> None:
        self.rate: float = math.inf
        self.next_at: float = -math.inf
        self.served: int = 0
        self._near = math.inf  # the rate up to which the increase is fast
        self._served_then = 0  # ``served`` at the last decrease
        self.slowed_at: float = -math.inf
        self._since = -math.inf  # beginning of the window in which ``_count`` requests succeeded
        self._count = 0
        self._before = 0.0  # rate of successes in the window before

    def slow_down(self, now: float) -> None:
        """Lower the rate: the store throttled a request that was sent after the last decrease."""
        if self.rate == math.inf:
            self.rate = max(self._success_rate(now) * _DECREASE, FIRST_RATE)
            self._near = math.inf
        else:
            decreased = self.rate * _DECREASE
            if self.served > self._served_then:
                self._near = self.rate = max(decreased, min(LEAST_RATE, self._success_rate(now)))
            else:  # an outage, which says nothing about the limit
                least = LEAST_RATE if now > self._since + OUTAGE_S else 0.0
                self.rate = max(decreased, min(FIRST_RATE, self.rate), least)
        self.slowed_at, self._served_then = now, self.served
        self.next_at = now + 1.0 / self.rate

    def succeeded(self, now: float) -> None:
        """Count a success; raise the rate if it is limited."""
        self.served += 1
        elapsed = now - self._since
        if elapsed >= _WINDOW_S:
            self._before = self._count / elapsed
            self._since, self._count = now, 0
        self._count += 1
        if self.rate < math.inf:
            near = self._near
            fast = self.rate < near
            self.rate += _START_INCREASE if fast else max(min(1.0, near * _LOW_INCREASE), near * _INCREASE) / self.rate

    def wait_s(self, now: float) -> float:
        """Return how many seconds the next request has to wait; 0 or less for none."""
        if now > self.slowed_at + QUIET_S:
            self.end()
        return self.next_at - now

    def begin(self, now: float) -> None:
        """Count a request that begins now."""
        self.next_at = now + 1.0 / self.rate

    def end(self) -> None:
        """Let requests begin at any rate."""
        self.rate = math.inf
        self.next_at = -math.inf

    def _success_rate(self, now: float) -> float:
        """Return the successes per second, of this window or the one before."""
        elapsed = now - self._since
        before = self._before if elapsed < 2 * _WINDOW_S else 0.0
        return max(before, self._count / max(elapsed, _WINDOW_S))
