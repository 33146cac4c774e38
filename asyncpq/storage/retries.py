"""Retries: which failed requests of a store are sent again, and when.

:class:`Attempts` decides for one request, by the store's :class:`RetryBudget` and the pace of its host; ``transport``
sends the request again.

https://aws.amazon.com/builders-library/timeouts-retries-and-backoff-with-jitter/
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING

from asyncpq.errors import DeadlineExceededError, Hint, StoreError, ThrottledError, TransportError
from asyncpq.options import RetryOptions
from asyncpq.storage.base import http_date_s

if TYPE_CHECKING:
    from asyncpq.storage.limits import ConnectionLimiter, Pace

#: Maximum of the wait that a server's Retry-After can cause, in seconds.
RETRY_AFTER_MAX_S = 60.0

#: Statuses of failures that a retry may cure (RFC 9110, section 15).
RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})

#: Hints for requests that failed in every attempt.
_HINTS: Mapping[type[StoreError], str] = {
    ThrottledError: Hint(
        "Lower LimitOptions.max_connections, or wait longer with RetryOptions.max_attempts and backoff_max_s.",
        "Try again later, or with fewer commands at once.",
    ),
    TransportError: Hint(
        "If the store is slow or far, raise RetryOptions.max_attempts or its timeouts.",
        "The store may be slow or far, or its url needs the other of http:// and https://.",
    ),
}
_RETRY_MORE = Hint("Raise RetryOptions.max_attempts to retry more often.", "Try again later.")


class RetryableError(Exception):
    """One attempt failed, and another may succeed. ``error`` is raised if there is no other attempt.

    ``retry_after_s`` is the server's Retry-After. ``at_once``: the cause (region, clock, credentials) is corrected, so
    the request is retried now, whatever the number of attempts; code that sets ``at_once`` bounds how often.
    ``throttled``: the store asked to slow down; ``known``: it had asked so since the request was sent.
    """

    def __init__(self, error: StoreError, *, retry_after_s: float = 0.0, at_once: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after_s = retry_after_s
        self.at_once = at_once
        self.known = False
        self.throttled: bool = isinstance(error, ThrottledError)


class RetryBudget:
    """The number of retries that all requests of a store still have together: retries must not prolong an outage.

    This is the token bucket of the AWS SDKs' standard mode, counted in retries: a retry takes one, its success gives it
    back, any other success gives a fifth. ``retries`` is the number at first, and the maximum; None for no limit.
    """

    def __init__(self, retries: float | None) -> None:
        self.most: float = math.inf if retries is None else float(retries)
        self.available: float = self.most

    def take(self) -> bool:
        """Take a retry if one is left, and return whether it was taken."""
        if self.available < 1.0:
            return False
        self.available -= 1.0
        return True

    def succeeded(self, attempt: int) -> None:
        """Count the success of a request in its attempt number ``attempt`` (from 1)."""
        if self.available < self.most:
            self.available = min(self.most, self.available + (1.0 if attempt > 1 else 0.2))


def delay_before_retry_s(
    failure: RetryableError,
    *,
    attempt: int,
    options: RetryOptions,
    budget: RetryBudget,
    left_s: float = math.inf,
    turns: int = 0,
    free: bool = False,
) -> float:
    """Return how many seconds to wait after the failed attempt number ``attempt`` (from 1): exponential backoff with
    full jitter.

    ``turns`` of the attempts do not count in ``max_attempts``: they waited for their turn at a store that throttled
    them and served others, or received a part of the body. A ``free`` retry takes nothing of the budget.

    Raises the failure's own error if no attempt or no retry of the budget is left, and DeadlineExceededError if the
    wait, or the server's Retry-After, is not shorter than the ``left_s`` seconds until the read's deadline.
    """
    if failure.at_once:
        return 0.0
    error = failure.error
    if attempt - turns >= options.max_attempts:
        error.message += f"; given up after {attempt} attempt{'' if attempt == 1 else 's'}"
        if error.hint == error.default_hint:
            error.hint = _HINTS.get(type(error), _RETRY_MORE)
        raise error from failure.__cause__
    delay = random.random() * min(options.backoff_max_s, options.backoff_base_s * 2.0 ** min(attempt, 60))
    if max(delay, failure.retry_after_s) >= left_s:
        wish = f" (Retry-After: {failure.retry_after_s:g} s)" if failure.retry_after_s > delay else ""
        raise DeadlineExceededError(
            f"the read's deadline leaves no time for attempt {attempt + 1}: {error.message}{wish}",
            url=error.url,
            byte_range=error.byte_range,
            hint="Raise read_timeout_s to wait longer for the store.",
        ) from error
    if not free and not budget.take():
        error.message += f"; not retried after attempt {attempt}: the retry budget is used up"
        if error.hint == error.default_hint:
            error.hint = (
                "Wait until the store answers again"
                + Hint(", or raise RetryOptions.retry_budget", "")
                + ": other requests failed, too."
            )
        raise error from failure.__cause__
    return max(delay, min(failure.retry_after_s, RETRY_AFTER_MAX_S))


def parse_retry_after_s(value: str | None, *, now: float) -> float:
    """Parse a Retry-After header (RFC 9110, section 10.2.3) to seconds; 0 if the header is missing or malformed.

    ``now`` is in seconds since the epoch.
    """
    if value is None:
        return 0.0
    text = value.strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    date = http_date_s(text)
    return 0.0 if date is None else max(0.0, date - now)


class Attempts:
    """Decides, for one request, when each attempt after a failed one begins."""

    __slots__ = ("_budget", "_deadline", "_limiter", "_options", "_pace", "_served", "_turns", "_went_on", "number")

    def __init__(
        self,
        limiter: ConnectionLimiter,
        pace: Pace,
        budget: RetryBudget,
        options: RetryOptions,
        began: float,
        served: int,
    ) -> None:
        """``began``, ``served``: the event loop's time, and ``pace.served``, when the first attempt began."""
        self._limiter = limiter
        self._pace = pace
        self._budget = budget
        self._options = options
        self._deadline = math.inf if options.read_timeout_s is None else began + options.read_timeout_s
        self._served = served
        self._turns = 0
        self._went_on = 0
        self.number: int = 1  # of the current attempt

    def delay_s(self, failure: RetryableError, now: float, *, went_on: bool = False) -> float:
        """Return how many seconds to wait after the failed attempt, and count the next one.

        ``went_on``: it received a good part of the body, which is kept. It does not count, so that a body which breaks
        off again and again comes whole.
        A request that the host throttled, while it served others, waits for its turn: at most for as many turns as it
        has attempts, since the host may never serve this one. A host that serves no request is down. Raises the errors
        of :func:`delay_before_retry_s`.
        """
        options, pace, budget = self._options, self._pace, self._budget
        if went_on and options.max_attempts > 1 and now < self._deadline:
            self._went_on += 1
            self.number += 1
            return 0.0
        waits = (
            failure.throttled
            and pace.served > self._served
            and options.read_timeout_s is not None
            and self._turns < options.max_attempts
            and options.max_attempts > 1
        )
        self._turns += waits
        self._served = pace.served
        if failure.throttled and not waits and budget.available < 1.0:
            self._limiter.release(pace)  # the store is down: those that wait for their turn fail at once, too
        delay = delay_before_retry_s(
            failure,
            attempt=self.number,
            options=options,
            budget=budget,
            left_s=self._deadline - now,
            turns=self._turns + self._went_on,
            free=waits or (failure.known and self.number == 1),
        )
        self.number += 1
        return delay
