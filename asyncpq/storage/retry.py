"""When a request is sent again, and after how long: exponential backoff with full jitter.

https://aws.amazon.com/builders-library/timeouts-retries-and-backoff-with-jitter/. Pure: the clock and
the randomness are arguments.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from email.utils import parsedate_to_datetime

from asyncpq.errors import DeadlineExceededError, StoreError
from asyncpq.options import RetryOptions

#: No server makes a read wait longer than this, whatever its Retry-After says.
RETRY_AFTER_MAX_S = 60.0

#: Statuses that say nothing about the request itself (RFC 9110, section 15).
RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})


class RetryableError(Exception):
    """One attempt failed in a way that another may not. Never leaves the storage package.

    Attributes:
        error: what to raise when there is no further attempt.
        retry_after_s: the server's own wish, 0 for none.
        at_once: the cause is known and corrected (region, clock, credentials): send again, now,
            whatever the number of attempts. Whoever sets it bounds how often.
    """

    def __init__(self, error: StoreError, *, retry_after_s: float = 0.0, at_once: bool = False) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after_s = retry_after_s
        self.at_once = at_once


def delay_before_retry_s(
    failure: RetryableError,
    *,
    attempt: int,
    options: RetryOptions,
    now: float,
    deadline: float | None,
    draw: Callable[[], float] = random.random,
) -> float:
    """Seconds to wait after the failed ``attempt`` (from 1).

    Args:
        now, deadline: on one clock, in seconds; ``deadline=None`` for none.
        draw: a random number in [0, 1).

    Raises:
        StoreError: the failure's own error, when no attempt is left.
        DeadlineExceededError: when the wait would pass the deadline.
    """
    if failure.at_once:
        return 0.0
    if attempt >= options.max_attempts:
        raise failure.error from failure.__cause__
    bound = min(options.backoff_max_s, options.backoff_base_s * 2.0 ** min(attempt, 60))
    delay = max(draw() * bound, min(failure.retry_after_s, RETRY_AFTER_MAX_S))
    if deadline is not None and now + delay >= deadline:
        raise DeadlineExceededError(
            f"the read's deadline leaves no time for attempt {attempt + 1}: {failure.error.message}",
            url=failure.error.url,
            byte_range=failure.error.byte_range,
        ) from failure.error
    return delay


def parse_retry_after_s(value: str | None, *, now: float) -> float:
    """Seconds of a Retry-After header (RFC 9110, section 10.2.3), 0 if there is none or it is not understood.

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
        return 0.0  # a header that says nothing asks for nothing
