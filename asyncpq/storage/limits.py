"""The limits that all requests of one store share, and those of listings.

``ConnectionLimiter`` grants connections, and lowers their number and the rate of a host's requests (``Pace``) while it
throttles; ``Watchdog`` cancels requests that stall.

A server may answer every page of a listing with a further one. ``PageSequence`` demands something new of each page, so
the objects run out or exceed ``LimitOptions.max_listed_objects`` (``ListingLimit``).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import field
from heapq import heappop, heappush
from typing import Final, Literal, TypeVar

from asyncpq.errors import Hint, InvalidResponseError, ResourceLimitError, TransportError
from asyncpq.options import RetryOptions
from asyncpq.records import dataclass
from asyncpq.storage.base import StoreLimits
from asyncpq.storage.retries import RetryableError
from asyncpq.storage.threads import work_owner

_MORE_OBJECTS = "raise LimitOptions.max_listed_objects; each object takes about 300 bytes."


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
_FORGIVEN = 0.03  # throttled answers for each success that lower nothing
_MOST_FORGIVEN = 5.0  # in a row
_RECENT = 0.01  # weight of one answer in the share of throttled ones: the last hundred count
_WELL_BELOW = 0.6  # a rate by two decreases lower; bursts let a rate by one decrease lower still be too high
_MOST_UNRELATED = 0.15  # a larger share comes from a limit, which has fallen
_MARGIN = 1.5  # throttled answers come in clusters


class Pace:
    """The rate at which requests may begin: additive increase, multiplicative decrease, with a slow start.

    A count of connections cannot hold the rate of a store that answers in milliseconds and allows 50 requests a second.
    A store that throttles a share of the requests at any rate is not to be slowed down: each success forgives a little
    of a throttled answer, and more of it if the host throttles some at rates well below one that was too high.

    ``rate`` is in requests per second, infinite if the store does not throttle. ``next_at`` is the time when the next
    request may begin, ``served`` the number of successes so far, and ``slowed_at`` the time of the last decrease. Times
    are those of the event loop, in seconds.
    """

    __slots__ = (
        "_before",
        "_count",
        "_forgiven",
        "_near",
        "_served_then",
        "_share",
        "_since",
        "_too_high",
        "_unrelated",
        "_weight",
        "next_at",
        "rate",
        "served",
        "slowed_at",
    )

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
        self._forgiven = 0.0  # throttled answers that will lower nothing
        self._share = 1.0  # of throttled answers among the recent ones
        self._weight = 0.2  # of one answer in that share; falls to ``_RECENT``
        self._unrelated = 0.0  # the share that is throttled whatever the rate
        self._too_high = 0.0  # highest rate at which more were throttled than are forgiven

    def throttled(self) -> None:
        """Count a throttled answer that lowers nothing."""
        self._share += (1.0 - self._share) * self._weight

    def slow_down(self, now: float) -> bool:
        """Lower the rate, unless the throttled answer is forgiven; return whether it was lowered.

        For answers to requests that were sent after the last decrease.
        """
        self.throttled()
        if self._forgiven >= 1.0:
            self._forgiven -= 1.0
            return False
        if self.rate < _WELL_BELOW * self._too_high and self._share <= _MOST_UNRELATED:
            self._unrelated, self._too_high = self._share, self.rate  # the decreases were in vain
            return False
        self._unrelated = 0.0
        rate = self._success_rate(now) if self.rate == math.inf else self.rate
        self._too_high = max(self._too_high, rate)
        if self.rate == math.inf:
            self.rate = max(rate * _DECREASE, FIRST_RATE)
            self._near = math.inf
        else:
            decreased = rate * _DECREASE
            if self.served > self._served_then:
                self._near = self.rate = max(decreased, min(LEAST_RATE, self._success_rate(now)))
            else:  # an outage, which says nothing about the limit
                least = LEAST_RATE if now > self._since + OUTAGE_S else 0.0
                self.rate = max(decreased, min(FIRST_RATE, rate), least)
        self.slowed_at, self._served_then = now, self.served
        self.next_at = now + 1.0 / self.rate
        return True

    def succeeded(self, now: float) -> None:
        """Count a success; raise the rate if it is limited."""
        self.served += 1
        self._share -= self._share * self._weight
        if self._weight > _RECENT:
            self._weight *= 0.95
        if self._forgiven < _MOST_FORGIVEN:
            self._forgiven += _FORGIVEN + _MARGIN * self._unrelated
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
        self._too_high = 0.0

    def _success_rate(self, now: float) -> float:
        """Return the successes per second, of this window or the one before."""
        elapsed = now - self._since
        before = self._before if elapsed < 2 * _WINDOW_S else 0.0
        return max(before, self._count / max(elapsed, _WINDOW_S))


T = TypeVar("T")

_LEAST_CONNECTIONS = 2  # connections that throttling leaves, one of them for lookups

_SLOWING_ATTEMPTS = 3  # those of one request that can lower the limit and the rate

_MOST_HOSTS = 64  # with a pace of their own; further ones share one

_Waiters = list[tuple[int, int, asyncio.Future[None]]]  # a heap by ticket and order of the calls


class ConnectionLimiter:
    """Limits how many requests of a store run at once; lowers the limit while the store throttles.

    Additive increase, multiplicative decrease: a throttled request halves the limit, once for all requests that were
    running together; as many successes as the limit has connections raise it by one. Scans lose connections first.
    Connections are granted in the order of the calls, except to scans at their own limit; owners
    (:data:`work_owner`, such as tokens of the service) have their turns one after the other. While a host throttles,
    they are granted to its requests at the rate of its :meth:`pace_of` at most.

    ``used`` requests are running; ``limit`` are allowed now, ``most`` without throttling. ``scans`` and ``scan_limit``
    count those of scans alone. ``pace`` is that of requests whose host is not named.
    """

    def __init__(self, limits: StoreLimits) -> None:
        self.most: int = limits.max_connections
        self._most_scans = max(1, limits.scan_connections)
        self._allowed = float(self.most)
        self.limit: int = self.most
        self.scan_limit: int = self._most_scans
        self.used: int = 0
        self.scans: int = 0
        self._queues: dict[Pace, tuple[_Waiters, _Waiters]] = {}  # lookups and scans that wait
        self._ticket = 0  # the highest one granted
        self._tickets: dict[object, int] = {}  # the last one of each owner, while any waits
        self._calls = 0
        self._slowed_at = -math.inf
        self.pace: Pace = Pace()
        self._paces: dict[str, Pace] = {}
        self._turn: asyncio.TimerHandle | None = None  # grants the next connection when a pace allows it

    def pace_of(self, host: str) -> Pace:
        """Return the pace of a host's requests."""
        pace = self._paces.get(host)
        if pace is None:
            if len(self._paces) >= _MOST_HOSTS:
                now = asyncio.get_running_loop().time()
                quiet = [other for other, known in self._paces.items() if known.wait_s(now) == -math.inf]
                if not quiet:
                    return self.pace
                del self._paces[quiet[0]]
            pace = self._paces[host] = Pace()
        return pace

    def is_slowed(self, pace: Pace) -> bool:
        """Return whether the number of requests or the rate of ``pace`` is lowered."""
        return self.limit < self.most or pace.rate < math.inf

    def try_take(self, scan: bool, pace: Pace | None = None) -> bool:
        """Take a connection if the limit, and for a ``scan`` also the limit of scans, leaves one; return whether it
        did."""
        if self.used >= self.limit or (scan and self.scans >= self.scan_limit):
            return False
        pace = pace or self.pace
        if pace.rate < math.inf:
            now = asyncio.get_running_loop().time()
            if pace in self._queues or pace.wait_s(now) > 0.0:
                return False
            pace.begin(now)
        self.used += 1
        self.scans += scan
        return True

    async def wait(self, scan: bool, pace: Pace | None = None) -> float:
        """Wait for a connection and take it, after :meth:`try_take` failed; return the seconds for which throttling
        delayed it. A cancelled wait takes no connection."""
        pace = pace or self.pace
        loop = asyncio.get_running_loop()
        began, slowed = loop.time(), self.is_slowed(pace)
        granted = loop.create_future()
        owner = work_owner.get()
        ticket = self._tickets[owner] = max(self._ticket, self._tickets.get(owner, 0)) + 1
        self._calls += 1
        heappush(self._queues.setdefault(pace, ([], []))[scan], (ticket, self._calls, granted))
        if pace.rate < math.inf:
            self._grant()  # which looks again when the pace allows it
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give(scan)
            elif self._tickets.get(owner) == ticket:
                self._tickets[owner] -= 1
            raise
        return loop.time() - began if slowed or self.is_slowed(pace) else 0.0

    def give(self, scan: bool) -> None:
        """Give a connection back."""
        self.used -= 1
        self.scans -= scan
        if self._queues:
            self._grant()

    def slow_down(self, sent: float, now: float, attempt: int = 1, pace: Pace | None = None) -> bool:
        """Halve the limit and lower the rate, unless the pace forgives it: the store throttled a request sent at
        ``sent``, which still holds its connection. Return False, and lower nothing, if the request was under way when
        they were last lowered.

        Later attempts lower neither: a store that serves others and never this request, such as a hot key, is not to
        slow down the reads of all other keys.
        """
        pace = pace or self.pace
        if sent <= pace.slowed_at or attempt > _SLOWING_ATTEMPTS:
            pace.throttled()
            return sent > pace.slowed_at
        if not pace.slow_down(now):
            return True
        if sent > self._slowed_at:
            self._slowed_at = now
            least = float(min(_LEAST_CONNECTIONS, self.most))
            self._allow(max(min(self._allowed, float(self.used)) / 2, least))
        return True

    def speed_up(self, now: float, pace: Pace | None = None) -> None:
        """Count a successful request; raise the limit and the rate if they are lowered."""
        (pace or self.pace).succeeded(now)
        if self._allowed < self.most:
            self._allow(min(self._allowed + 1.0 / self._allowed, float(self.most)))

    def end_pace(self, pace: Pace | None = None) -> None:
        """Let requests begin at any rate until the store throttles again."""
        (pace or self.pace).end()
        self._grant()

    def _allow(self, allowed: float) -> None:
        self._allowed = allowed
        self.limit = int(allowed)
        self.scan_limit = min(self._most_scans, max(1, self.limit - (self.most - self._most_scans)))
        self._grant()

    def _grant(self) -> None:
        while self.used < self.limit and self._queues:
            first, begins = None, math.inf
            for pace, (lookups, scans) in self._queues.items():
                scan = bool(scans) and self.scans < self.scan_limit and (not lookups or scans[0] < lookups[0])
                if not scan and not lookups:
                    continue
                waiter = (scans if scan else lookups)[0]
                granted = waiter[2]
                if not granted.done() and pace.rate < math.inf:
                    now = granted.get_loop().time()
                    wait_s = pace.wait_s(now)
                    if wait_s > 0.0:
                        begins = min(begins, now + wait_s)
                        continue
                if first is None or waiter < first[0]:
                    first = waiter, scan, pace
            if first is None:
                if begins < math.inf:
                    self._grant_at(begins)
                return
            (ticket, _, granted), scan, pace = first
            self._ticket = max(self._ticket, ticket)
            self._drop_first(pace, scan)
            if not granted.done():
                if pace.rate < math.inf:
                    pace.begin(granted.get_loop().time())
                self.used += 1
                self.scans += scan
                granted.set_result(None)

    def _drop_first(self, pace: Pace, scan: bool) -> None:
        queue = self._queues[pace]
        heappop(queue[scan])
        if not queue[0] and not queue[1]:
            del self._queues[pace]
            if not self._queues:
                self._tickets.clear()

    def _grant_at(self, due: float) -> None:
        """Grant again at ``due``, when a pace allows the next request."""
        if self._turn is not None:
            if self._turn.when() <= due:
                return
            self._turn.cancel()
        self._turn = asyncio.get_running_loop().call_at(due, self._take_turn)

    def _take_turn(self) -> None:
        self._turn = None
        self._grant()


class Watchdog:
    """One timer for all timeouts of a store's fetches (first byte, silence, low throughput).

    ``asyncio.timeout`` for each of them, or one timer for each fetch, would cost more than everything else that asyncpq
    adds to a GET. On expiry the watchdog does what ``asyncio.timeout`` does: it cancels the task, takes the
    cancellation back, and raises a typed error.
    """

    def __init__(self, options: RetryOptions) -> None:
        self.options = options
        # The shortest timeout of all phases, so that a timer set for one phase is in time for the next one. Bodies are
        # looked at four times as often: only their progress between looks is known.
        self._period = min(options.stall_timeout_s / 4, options.connect_timeout_s + options.first_byte_timeout_s)
        self.watches: set[Watch] = set()  # of the fetches under way
        self._handle: asyncio.TimerHandle | None = None
        self._due = math.inf

    def add(self, watch: Watch, now: float) -> None:
        """Add a watch, whose timeouts count from now on."""
        self.watches.add(watch)
        due = now + self._period
        if due < self._due:
            self._arm(watch.loop, due)

    def close(self) -> None:
        """Stop the timer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
            self._due = math.inf

    def _arm(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        self.close()
        self._due = due
        self._handle = loop.call_at(due, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        self._handle, self._due = None, math.inf
        now = loop.time()
        due = min([watch.look(now) for watch in tuple(self.watches)], default=math.inf)
        if self.watches:
            self._arm(loop, min(due, now + self._period))


class Watch:
    """Measures the timeouts of one fetch for the watchdog, from its creation until :meth:`stop`.

    ``upload_s``: additional seconds until the response head must have arrived, for a request with a body.
    """

    def __init__(self, dog: Watchdog, upload_s: float = 0.0) -> None:
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a fetch must run inside an asyncio task")
        self._dog = dog
        self._task = task
        self.loop: asyncio.AbstractEventLoop = task.get_loop()
        loop = self.loop
        self._upload_s = upload_s
        self._cancelling = task.cancelling()
        self._phase: Literal["rest", "head", "body"] = "rest"
        self.since: float = loop.time()  # beginning of the current attempt or of its body
        self._last = now = self.since
        self._expired = ""  # why the task was cancelled
        self.received: int = 0  # body bytes of the attempt so far
        self._seen = 0
        self.head_s: float | None = None  # from the beginning of the attempt until the head came
        dog.add(self, now)

    def rest(self) -> None:
        """Suspend the timeouts while the fetch waits for a connection or the next attempt."""
        self._phase = "rest"

    def expect_head(self) -> float:
        """Begin an attempt, which waits for the response head; return the event loop's time in seconds."""
        self._phase = "head"
        self.received = self._seen = 0
        self.head_s = None
        self.since = now = self.loop.time()
        return now

    def expect_body(self) -> float:
        """Record that the head has arrived, and wait for the body; return the seconds that the head took."""
        began = self.since
        self._phase = "body"
        self.since = self._last = now = self.loop.time()
        self.head_s = seconds = now - began
        return seconds

    @property
    def without_response(self) -> bool:
        """Whether an attempt is running and no byte of a response has arrived."""
        return self._phase == "head" and not self._expired

    def stop(self) -> None:
        """End the watch."""
        self._phase = "rest"
        self._dog.watches.discard(self)

    def raise_if_silent(self, url: str, byte_range: tuple[int, int] | None) -> None:
        """Raise RetryableError if the watchdog cancelled the task for a timeout. For use in ``except
        CancelledError``."""
        reason = self._expired
        if reason and reason != "hedge" and self._task.uncancel() <= self._cancelling:
            self._expired = ""
            self._phase = "rest"
            raise RetryableError(TransportError(reason, url=url, byte_range=byte_range)) from None

    def overtake(self) -> None:
        """Cancel the attempt, since a second request (a hedge) has the bytes; does nothing if it is ending."""
        if self._phase != "rest" and not self._expired:
            self._expire("hedge")

    def overtaken(self) -> bool:
        """Return whether :meth:`overtake` cancelled the task, and undo the cancellation.

        For use in ``except CancelledError``.
        """
        if self._expired == "hedge" and self._task.uncancel() <= self._cancelling:
            self._expired = ""
            return True
        return False

    def look(self, now: float) -> float:
        """Cancel the task if a timeout has passed; return the event loop's time at which to look again."""
        if self._expired:
            return math.inf  # cancelled; it has not run since
        options = self._dog.options
        if self._phase == "head":
            due = self.since + options.connect_timeout_s + options.first_byte_timeout_s + self._upload_s
            if now >= due:
                return self._expire(f"no response within {now - self.since:.1f} s")
            return due
        if self._phase == "body":
            if self.received != self._seen:
                self._seen, self._last = self.received, now
            due = self._last + options.stall_timeout_s
            if now >= due:
                return self._expire(f"the response body stopped for {now - self._last:.1f} s")
            whole = now - self.since
            if whole < options.stall_timeout_s:
                due = min(due, self.since + options.stall_timeout_s)
            elif self.received < whole * options.min_throughput_bytes_s:
                return self._expire(f"the response body came at {self.received / whole:.0f} bytes/s")
            return due
        return math.inf

    def _expire(self, reason: str) -> float:
        self._expired = reason
        self._task.cancel()
        return math.inf


_EMPTY_PAGES: Final = 100  # in a row, before a listing fails
# After so many pages, they must have so many objects on average: stores return hundreds, and a few short pages
_PAGES: Final = 1000
_FEWEST_OBJECTS: Final = 10


@dataclass(slots=True)
class ListingLimit:
    """Counts the objects of one listing. ``url`` is that of the listing, without secrets."""

    url: str
    most: int
    _received: int = 0

    def receive(self, num_objects: int) -> None:
        """Count the objects and folders of one response. Raises ResourceLimitError once they are so many that the
        listing must have more than ``most`` objects, though some come twice."""
        self._received += num_objects
        if self._received > 2 * self.most:
            raise self._too_many()

    def check(self, num_objects: int) -> None:
        """Raise ResourceLimitError if the whole listing has more than ``most`` objects."""
        if num_objects > self.most:
            raise self._too_many()

    def endless(self, why: str) -> InvalidResponseError:
        """Return the error for a listing that does not end; ``why`` is the last part of its message."""
        return InvalidResponseError(
            f"the store's listing does not end: {why}",
            url=self.url,
            hint="Pass the urls of the files instead of a prefix.",
        )

    def _too_many(self) -> ResourceLimitError:
        return ResourceLimitError(
            f"the listing has more than {self.most} objects",
            url=self.url,
            hint="List a narrower prefix, or " + Hint(_MORE_OBJECTS, f"in Python, {_MORE_OBJECTS}"),
        )


@dataclass(slots=True)
class PageSequence:
    """The pages of a listing that continue one another, each named by a token of the page before."""

    limit: ListingLimit
    _tokens: set[int] = field(default_factory=set)  # their hashes
    _pages: int = 0
    _objects: int = 0
    _empty: int = 0  # in a row

    def begin(self, token: str) -> None:
        """Note the token of the first page, for listings whose first page has one."""
        self._tokens.add(hash(token))

    def follow(self, token: str, objects: Sequence[object], folders: Sequence[object] = ()) -> None:
        """Count a page with ``objects`` and ``folders``, whose next page is named by ``token``.

        Raises InvalidResponseError if the token came before, or the pages have next to nothing.
        """
        number = len(objects) + len(folders)
        self._pages += 1
        self._objects += number
        self._empty = 0 if number else self._empty + 1
        if hash(token) in self._tokens:
            raise self.limit.endless("a page leads back to an earlier one")
        if self._empty > _EMPTY_PAGES:
            raise self.limit.endless(f"{self._empty} pages in a row are empty")
        if self._pages > _PAGES and self._objects < _FEWEST_OBJECTS * self._pages:
            raise self.limit.endless(f"{self._pages} pages have {self._objects} objects")
        self._tokens.add(hash(token))
