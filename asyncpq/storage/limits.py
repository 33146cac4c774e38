"""The limits that all requests of one store share, and those of listings.

``ConnectionLimiter`` grants connections, at the rate of a host that throttles (``Pace``); ``Watchdog`` cancels requests
that stall.

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
from asyncpq.storage.retries import RETRY_AFTER_MAX_S, RetryableError
from asyncpq.storage.threads import work_owner

_MORE_OBJECTS = "raise LimitOptions.max_listed_objects; each object takes about 300 bytes."


#: Requests per second to a host that serves nothing: they use up their attempts and the retry budget, slowly, ...
OUTAGE_RATE = 1.0
#: ... and the rate when it serves the first one; less is not guessed from refusals alone.
FIRST_RATE = 10.0

_TOLERATED = 0.03  # share of refusals that lowers nothing, ...
_MARGIN = 1.5  # ... and of the share that the host refuses at any rate, since refusals come in clusters
_EXCESS = 3.0  # refusals beyond the tolerated share until the rate is lowered, ...
_EXCESS_SHARE = 60.0  # ... and more of them for each refusal at any rate, of which more come by chance
_MOST_UNRELATED = 0.33  # a larger share of refusals comes from a limit
_IN_VAIN = 0.7  # of the share before: a lower rate that leaves so many refusals has nothing to do with them
_KNOWN_S = 15.0  # for which the share that is refused at any rate is taken for known
_TRIED_RATE = 0.9  # of the known limit: the host allows that much, if it has a limit
_TRIED_ANSWERS = 32  # at that rate, and ...
_MOMENT_S = 0.25  # ... for so long, which tell how many are refused at any rate
_RISE_S = 2.0  # after which the rate is at the known limit again, or a moment after if the limit is a guess
_RISES = 5.0  # until requests begin at any rate again; the rate is 7 times the known limit by then
_LEAST_S = 0.001  # that an answer takes: the clocks of some systems advance in steps
_LATE_S = 0.05  # a request that begins so late, since the process was busy, delays no later one
_RECENT = 1 / 64  # weight of one answer in the share of recent refusals


class Pace:
    """The rate at which requests of one host may begin: lowered to what the host serves, then raised along a cubic.

    A count of connections cannot hold the rate of a store that answers in milliseconds and allows 50 requests a second.

    1. Few refusals lower nothing. The count of refusals beyond the tolerated share, since it was last zero, must exceed
       ``_EXCESS`` (a CUSUM test): one stray refusal costs nothing, and a limit is noticed by the fourth.
    2. The rate is lowered to the rate that was *served*, not by a factor: the sent rate times the share of answers that
       were good. So a share that is refused at random lowers it by little, and it cannot spiral down.
    3. For a moment it stays a little below. Refusals that come there come at any rate. Their share is tolerated from
       then on, if it is small, or if a second lower rate leaves as many (the lower rate was in vain and is taken back).
    4. Then the rate rises as in CUBIC (RFC 9438): back to the known limit, slowly past it, faster and faster beyond. A
       first guess rises fast. Time alone raises it, so that after idle time nothing is left of an old limit. Requests
       that the host told to wait (Retry-After) are back before the rate is above the limit.
    5. Refusals alone tell no limit. While nothing is served, the rate falls to one request per second, and the first
       success lets it rise.

    ``limit`` is the rate in requests per second that the host is known to take, infinite if it throttles none.
    ``next_at`` is the time when the next request may begin, ``served`` the number of successes so far, and
    ``lowered_at`` the time when the rate was last lowered: answers to requests sent before say nothing about the rate.
    ``back_at`` is the time until which the host told requests to wait, and ``released`` the last call of
    :meth:`ConnectionLimiter.wait` that does not wait for its turn. Times are those of the event loop, in seconds.
    """

    __slots__ = (
        "_answers",
        "_known_at",
        "_outage",
        "_recent",
        "_refusals",
        "_rise_s",
        "_rises_at",
        "_tried_limit",
        "_tried_share",
        "_trying",
        "_unrelated",
        "_weight",
        "back_at",
        "limit",
        "lowered_at",
        "next_at",
        "released",
        "served",
    )

    def __init__(self) -> None:
        self.limit: float = math.inf
        self.next_at: float = -math.inf
        self.served: int = 0
        self.lowered_at: float = -math.inf
        self.back_at: float = -math.inf
        self.released: int = 0
        self._answers = self._refusals = 0  # since the rate was lowered, or since refusals began to exceed their share
        self._recent = 0.0  # share of refusals among recent answers
        self._weight = _RECENT  # of the next answer in that share
        self._unrelated = 0.0  # share of refusals at any rate
        self._known_at = -math.inf  # when that was measured
        self._trying = False  # the rate is below the limit, for that measurement
        self._outage = False  # nothing was served since the first refusals; the first success ends that
        self._tried_share = 1.0  # of refusals in the measurement before, ...
        self._tried_limit = math.inf  # ... and the limit it was taken at
        self._rise_s = _RISE_S
        self._rises_at = -math.inf  # when the rate began to rise

    def rate(self, now: float) -> float:
        """Return how many requests per second may begin at ``now``; for a time before the last rise, those at its
        start."""
        if self._outage and self.limit <= FIRST_RATE:
            return OUTAGE_RATE
        rises = 0.0 if self._trying else max(0.0, now - self._rises_at) / self._rise_s
        return self.limit * (1.0 + (1.0 - _TRIED_RATE) * (rises - 1.0) ** 3)

    def throttled(self, sent: float, now: float, used: int) -> bool:
        """Count a refusal of a request sent at ``sent``, while ``used`` requests are running; lower the rate if the
        host refuses too many. Return False if the request was sent before the rate was last lowered."""
        if sent <= self.lowered_at:
            return False
        self._refusals += 1
        if now > self._known_at + _KNOWN_S:
            self._unrelated = 0.0
        self._count(sent, now, 1.0, used)
        return True

    def succeeded(self, sent: float, now: float) -> None:
        """Count a success of a request sent at ``sent``."""
        self.served += 1
        if (self._refusals or self.limit < math.inf) and sent > self.lowered_at:
            if self._outage:
                self._rise(now, self.limit, 0.0)
            else:
                self._count(sent, now, 0.0, 0)

    def wait_s(self, now: float) -> float:
        """Return how many seconds the next request has to wait; 0 or less for none."""
        if self.limit < math.inf:
            ends_at = self.next_at + _KNOWN_S if self._trying else self._rises_at + _RISES * self._rise_s
            if now > ends_at:  # or nothing was sent for so long
                self.end()
        return self.next_at - now

    def begin(self, now: float) -> None:
        """Count a request that begins now."""
        self.next_at = now + 1.0 / self.rate(now)

    def end(self) -> None:
        """Forget what is known of the host: let requests begin at any rate."""
        self.limit = math.inf
        self.next_at = -math.inf
        self._trying = self._outage = False
        self._tried_share = 1.0
        self._answers = self._refusals = 0

    def _count(self, sent: float, now: float, refused: float, used: int) -> None:
        self._answers += 1
        answers, refusals = self._answers, self._refusals
        self._recent += (refused - self._recent) * self._weight
        self._weight = max(self._weight / (1.0 + self._weight), _RECENT)
        tolerated = (_TOLERATED + _MARGIN * self._unrelated) * answers
        if self._trying:
            self._try(sent, now, tolerated)
        elif refusals <= tolerated:
            self._answers = self._refusals = 0
        elif refusals - tolerated >= _EXCESS + _EXCESS_SHARE * self._unrelated:
            if self.limit == math.inf:  # a guess: by Little's law, of requests that run, each for the time of this one
                self._lower(now, used / max(now - sent, _LEAST_S) * self._served_share, guess=True)
            else:
                self._lower(now, self.rate(sent) * (1.0 - self._recent), guess=False)

    def _try(self, sent: float, now: float, tolerated: float) -> None:
        """Look at the answers at the lower rate; begin to rise, or lower the rate again."""
        answers, refusals = self._answers, self._refusals
        share = refusals / answers
        enough = answers >= _TRIED_ANSWERS and now >= self.lowered_at + _MOMENT_S
        tolerable = refusals <= tolerated + 2.0  # that many may come by chance
        if enough and share <= _MOST_UNRELATED and (tolerable or share > _IN_VAIN * self._tried_share):
            self._rise(now, (self.limit if tolerable else self._tried_limit) / (1.0 - share), share)
        elif enough or refusals >= _MOST_UNRELATED * answers + _EXCESS:
            rate = self.rate(sent)
            if enough:  # fewer may have been sent than the rate allows
                rate = min(rate, answers / (sent - self.lowered_at))
            self._tried_share, self._tried_limit = share, self.limit
            self._lower(now, rate * self._served_share, guess=False)

    def _rise(self, now: float, limit: float, unrelated: float) -> None:
        self.limit = limit
        self._unrelated = self._recent = unrelated
        self._weight = 1.0 / (2.0 + self._answers)
        self._known_at = self._rises_at = now
        if self._outage:
            self.next_at = now
        if limit > FIRST_RATE or not self._outage:  # what comes back after an outage has a long way to the limit
            self._rise_s = max(self._rise_s, self.back_at - now)
        self._trying = self._outage = False
        self._tried_share = 1.0
        self._answers = self._refusals = 0

    @property
    def _served_share(self) -> float:
        """Share of good answers; by Laplace's rule, since few are counted."""
        return (self._answers - self._refusals + 1) / (self._answers + 1)

    def _lower(self, now: float, limit: float, *, guess: bool) -> None:
        none_served = self._refusals == self._answers and (guess or self._trying)
        if none_served:  # which tells no limit
            limit = max(limit, min(self.limit, FIRST_RATE))
        self._outage = none_served
        first_s = _MOMENT_S * max(1.0, FIRST_RATE / limit)
        if guess or none_served:
            self._rise_s = first_s
        else:
            self._rise_s = max(first_s, min(2 * self._rise_s, max(_RISE_S, _TRIED_ANSWERS / limit)))
        self.limit = limit
        self.lowered_at = now
        self._trying = True
        self._answers = self._refusals = 0
        self.begin(now)


T = TypeVar("T")

_SLOWING_ATTEMPTS = 3  # those of one request that can lower the rate first

_MOST_HOSTS = 64  # with a pace of their own; further ones share one

_Waiters = list[tuple[int, int, asyncio.Future[None]]]  # a heap by ticket and order of the calls


class ConnectionLimiter:
    """Limits how many requests of a store run at once, and how many of a host that throttles begin in a second.

    Connections are granted in the order of the calls, except to scans at their own limit; owners
    (:data:`work_owner`, such as tokens of the service) have their turns one after the other. While a host throttles,
    they are granted to its requests at the rate of its :meth:`pace_of` at most.

    ``used`` requests are running, and ``limit`` are allowed. ``scans`` and ``scan_limit`` count those of scans alone.
    ``pace`` is that of requests whose host is not named.
    """

    def __init__(self, limits: StoreLimits) -> None:
        self.limit: int = limits.max_connections
        self.scan_limit: int = max(1, limits.scan_connections)
        self.used: int = 0
        self.scans: int = 0
        self._queues: dict[Pace, tuple[_Waiters, _Waiters]] = {}  # lookups and scans that wait
        self._ticket = 0  # the highest one granted
        self._tickets: dict[object, int] = {}  # the last one of each owner, while any waits
        self._calls = 0
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

    def try_take(self, scan: bool, pace: Pace | None = None) -> bool:
        """Take a connection if the limit, and for a ``scan`` also the limit of scans, leaves one; return whether it
        did."""
        if self.used >= self.limit or (scan and self.scans >= self.scan_limit):
            return False
        pace = pace or self.pace
        if pace.limit < math.inf:
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
        began, paced = loop.time(), pace.limit < math.inf
        granted = loop.create_future()
        owner = work_owner.get()
        ticket = self._tickets[owner] = max(self._ticket, self._tickets.get(owner, 0)) + 1
        self._calls += 1
        heappush(self._queues.setdefault(pace, ([], []))[scan], (ticket, self._calls, granted))
        if pace.limit < math.inf:
            self._grant()  # which looks again when the pace allows it
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.give(scan)
            elif self._tickets.get(owner) == ticket:
                self._tickets[owner] -= 1
            raise
        return loop.time() - began if paced or pace.limit < math.inf else 0.0

    def give(self, scan: bool) -> None:
        """Give a connection back."""
        self.used -= 1
        self.scans -= scan
        if self._queues:
            self._grant()

    def refused(
        self, sent: float, now: float, attempt: int = 1, pace: Pace | None = None, retry_after_s: float = 0.0
    ) -> bool:
        """Count a request sent at ``sent`` that the store throttled, which still holds its connection. Return False if
        it was under way when the rate was last lowered, so that it says nothing new.

        Later attempts do not count while requests begin at any rate: a store that serves others and never this request,
        such as a hot key, is not to slow down the reads of all other keys. ``retry_after_s``: the store's Retry-After.
        """
        pace = pace or self.pace
        pace.back_at = max(pace.back_at, now + min(retry_after_s, RETRY_AFTER_MAX_S))
        if attempt > _SLOWING_ATTEMPTS and pace.limit == math.inf:
            return sent > pace.lowered_at
        return pace.throttled(sent, now, self.used)

    def succeeded(self, sent: float, now: float, pace: Pace | None = None) -> None:
        """Count a successful request sent at ``sent``."""
        (pace or self.pace).succeeded(sent, now)

    def release(self, pace: Pace | None = None) -> None:
        """Let the requests that wait for their turn begin at once: the host is down, so that they fail with the others.
        Those that come next wait for theirs."""
        pace = pace or self.pace
        now = asyncio.get_running_loop().time()
        if now > pace.lowered_at + 1.0 / OUTAGE_RATE:
            pace.lowered_at, pace.released = now, self._calls
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
                if waiter[1] > pace.released and not granted.done() and pace.limit < math.inf:
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
            (ticket, call, granted), scan, pace = first
            self._ticket = max(self._ticket, ticket)
            self._drop_first(pace, scan)
            if not granted.done():
                if call > pace.released and pace.limit < math.inf:
                    pace.begin(max(pace.next_at, granted.get_loop().time() - _LATE_S))
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
