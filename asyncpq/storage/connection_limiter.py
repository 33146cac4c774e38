"""The connection limiter: AIMD on throttling, with a share of the connections kept from scans."""

from __future__ import annotations

import asyncio
import math
from collections import deque

from asyncpq.storage.base import StoreLimits

_LEAST = 2  # throttling leaves so many connections, one of them to lookups


class ConnectionLimiter:
    """Limits the requests of one store that are under way at once, and lowers the limit while the store throttles.

    Additive increase, multiplicative decrease: a throttled request halves the limit, once for all requests that were
    under way together; as many successes as the limit has connections raise it by one. Scans lose connections first.
    Connections are granted in the order of the calls, except to scans at their own limit.

    Attributes:
        most: highest value of ``limit``.
        limit: requests that may be under way now.
        scan_limit: how many of them may be requests of scans.
        used: requests under way.
        scans: how many of them are requests of scans.
    """

    __slots__ = (
        "_allowed",
        "_lookups",
        "_most_scans",
        "_scans",
        "_slowed_at",
        "_tickets",
        "limit",
        "most",
        "scan_limit",
        "scans",
        "used",
    )

    def __init__(self, limits: StoreLimits) -> None:
        self.most = limits.max_connections
        self._most_scans = max(1, limits.scan_connections)
        self._allowed = float(self.most)
        self.limit, self.scan_limit = self.most, self._most_scans
        self.used = self.scans = 0
        self._lookups: deque[tuple[int, asyncio.Future[None]]] = deque()  # waiters, by ticket
        self._scans: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._tickets = 0
        self._slowed_at = -math.inf

    def try_take(self, scan: bool) -> bool:
        """Take a connection if one is free. It passes no waiter: those could not have it."""
        if self.used >= self.limit or (scan and self.scans >= self.scan_limit):
            return False
        self.used += 1
        self.scans += scan
        return True

    async def wait(self, scan: bool) -> None:
        """Wait for a connection after :meth:`try_take` failed. A cancelled wait holds none."""
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._tickets += 1
        (self._scans if scan else self._lookups).append((self._tickets, granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give(scan)
            raise

    def give(self, scan: bool) -> None:
        """Give a connection back."""
        self.used -= 1
        self.scans -= scan
        if self._lookups or self._scans:
            self._grant()

    def slow_down(self, sent: float, now: float) -> None:
        """Halve the limit: the store throttled a request sent at ``sent``, which still holds its connection."""
        if sent > self._slowed_at:  # else it was under way when the limit was last halved
            self._slowed_at = now
            self._allow(max(min(self._allowed, float(self.used)) / 2, float(min(_LEAST, self.most))))

    def speed_up(self) -> None:
        """Raise the limit after a successful request."""
        if self._allowed < self.most:
            self._allow(min(self._allowed + 1.0 / self._allowed, float(self.most)))

    def _allow(self, allowed: float) -> None:
        self._allowed = allowed
        self.limit = int(allowed)
        self.scan_limit = min(self._most_scans, max(1, self.limit - (self.most - self._most_scans)))
        self._grant()

    def _grant(self) -> None:
        while self.used < self.limit:
            lookups, scans = self._lookups, self._scans
            scan = bool(scans) and self.scans < self.scan_limit and (not lookups or scans[0][0] < lookups[0][0])
            if not scan and not lookups:
                return
            _, granted = (scans if scan else lookups).popleft()
            if not granted.done():
                self.used += 1
                self.scans += scan
                granted.set_result(None)
