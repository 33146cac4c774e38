"""Retries: which failures are retried, when, and within which budget. Exponential backoff with full jitter.

See https://aws.amazon.com/builders-library/timeouts-retries-and-backoff-with-jitter/. Clock and randomness are
arguments.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime

from asyncpq.errors import DeadlineExceededError, StoreError, ThrottledError, TransportError
from asyncpq.options import RetryOptions

#: Bound of the wait that a server's Retry-After can ask for.
RETRY_AFTER_MAX_S = 60.0

#: Statuses that do not blame the request itself (RFC 9110, section 15).
RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})


#: Hints for requests that failed in every attempt.
_HINTS: Mapping[type[StoreError], str] = {
    ThrottledError: "Ask for less at once (LimitOptions.max_connections), or wait longer (RetryOptions.max_attempts, "
    "backoff_max_s).",
    TransportError: "If the store is slow or far, raise RetryOptions.max_attempts or its timeouts.",
}


class RetryableError(Exception):
    """One attempt failed, and another may succeed. Never leaves the storage package.

    Attributes:
        error: raised when no attempt is left.
        retry_after_s: the server's own wish, 0 for none.
        at_once: the cause (region, clock, credentials) is known and corrected: retry now, whatever the number of
            attempts. Code that sets it bounds how often.
    """

    def __init__(self, error: StoreError, *, retry_after_s: float = 0.0, at_once: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after_s = retry_after_s
        self.at_once = at_once


class RetryBudget:
    """Retries that all requests of a store have left together, so that retries do not feed an outage.

    The token bucket of the AWS SDKs' standard mode, counted in retries: a retry takes one, its success gives it back,
    any other success gives a fifth.

    Attributes:
        left, most: retries; infinite without a bound.
    """

    __slots__ = ("left", "most")

    def __init__(self, retries: float | None) -> None:
        self.left = self.most = math.inf if retries is None else float(retries)

    def take(self) -> bool:
        """Take a retry if one is left."""
        if self.left < 1.0:
            return False
        self.left -= 1.0
        return True

    def succeeded(self, attempt: int) -> None:
        """Count the success of a request with its ``attempt`` (from 1)."""
        if self.left < self.most:
            self.left = min(self.most, self.left + (1.0 if attempt > 1 else 0.2))


def delay_before_retry_s(
    failure: RetryableError,
    *,
    attempt: int,
    options: RetryOptions,
    budget: RetryBudget,
    now: float,
    deadline: float | None,
    draw: Callable[[], float] = random.random,
) -> float:
    """Seconds to wait after the failed ``attempt`` (from 1).

    Args:
        now, deadline: on one clock, in seconds; ``deadline=None`` for none.
        draw: a random number in [0, 1).

    Raises:
        StoreError: the failure's own error, if no attempt or no retry of the budget is left.
        DeadlineExceededError: the wait, or the server's wish for one, would pass the deadline.
    """
    if failure.at_once:
        return 0.0
    error = failure.error
    if attempt >= options.max_attempts:
        error.message += f"; given up after {attempt} attempt{'' if attempt == 1 else 's'}"
        error.hint = error.hint or _HINTS.get(type(error), "Raise RetryOptions.max_attempts to retry more often.")
        raise error from failure.__cause__
    bound = min(options.backoff_max_s, options.backoff_base_s * 2.0 ** min(attempt, 60))
    delay = draw() * bound
    if deadline is not None and now + max(delay, failure.retry_after_s) >= deadline:
        wish = f" (Retry-After: {failure.retry_after_s:g} s)" if failure.retry_after_s > delay else ""
        raise DeadlineExceededError(
            f"the read's deadline leaves no time for attempt {attempt + 1}: {error.message}{wish}",
            url=error.url,
            byte_range=error.byte_range,
            hint="Raise read_timeout_s to wait longer for the store.",
        ) from error
    if not budget.take():
        error.message += f"; not retried after attempt {attempt}: the retry budget is used up"
        error.hint = error.hint or "Other requests to the store failed too; see RetryOptions.retry_budget."
        raise error from failure.__cause__
    return max(delay, min(failure.retry_after_s, RETRY_AFTER_MAX_S))


def parse_retry_after_s(value: str | None, *, now: float) -> float:
    """Seconds of a Retry-After header (RFC 9110, section 10.2.3); 0 if it is missing or malformed.

    Args:
        now: seconds since the epoch.
    """
    if value is None:
        return 0.0
    text = value.strip()
    if text.isascii() and text.isdigit() and len(text) < 10:
        return float(text)
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - now)
    except (ValueError, OverflowError):
        return 0.0
