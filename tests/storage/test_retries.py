"""Which failed requests are sent again, after how long, and how often in all."""

from __future__ import annotations

import math
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import DeadlineExceededError, InvalidResponseError, ThrottledError, TransportError
from asyncpq.options import RetryOptions
from asyncpq.storage.base import StoreLimits
from asyncpq.storage.limits import ConnectionLimiter, Pace
from asyncpq.storage.retries import (
    RETRY_AFTER_MAX_S,
    Attempts,
    RetryableError,
    RetryBudget,
    delay_before_retry_s,
    parse_retry_after_s,
)

OPTIONS = RetryOptions(max_attempts=4, backoff_base_s=0.1, backoff_max_s=1.0)
FAILURE = RetryableError(TransportError("reset", url="s3://b/k"))


def delay(
    failure: RetryableError = FAILURE,
    *,
    attempt: int = 1,
    left_s: float = math.inf,
    draw: float = 0.5,
    options: RetryOptions = OPTIONS,
    budget: RetryBudget | None = None,
) -> float:
    with patch("random.random", lambda: draw):
        return delay_before_retry_s(
            failure, attempt=attempt, options=options, budget=budget or RetryBudget(None), left_s=left_s
        )


def test_full_jitter_doubles_up_to_its_bound() -> None:
    assert [delay(attempt=n, draw=1.0) for n in (1, 2, 3)] == [0.2, 0.4, 0.8]
    many = RetryOptions(max_attempts=10_000, backoff_base_s=0.1, backoff_max_s=1.0)
    for attempt in (5, 100, 9_999):
        assert delay(attempt=attempt, options=many, draw=1.0) == 1.0
    assert delay(draw=0.0) == 0.0


def test_last_attempt_raises_the_failure_and_says_so() -> None:
    with pytest.raises(TransportError, match=r"^reset; given up after 4 attempts; s3://b/k\. .*RetryOptions\.max_"):
        delay(RetryableError(TransportError("reset", url="s3://b/k")), attempt=4)
    with pytest.raises(ThrottledError, match=r"given up after 5 attempts\. .*LimitOptions\.max_connections"):
        delay(RetryableError(ThrottledError("slow")), attempt=5)
    with pytest.raises(TransportError, match=r"Check the weather\.$"):
        delay(RetryableError(TransportError("reset", hint="Check the weather.")), attempt=4)
    with pytest.raises(InvalidResponseError, match=r"attempts\. Raise RetryOptions\.max_attempts"):  # no default hint
        delay(RetryableError(InvalidResponseError("short")), attempt=4)


def test_corrected_causes_are_sent_again_at_once_and_do_not_count() -> None:
    corrected = RetryableError(TransportError("wrong region"), at_once=True)
    assert delay(corrected, attempt=4, draw=1.0) == 0.0


def test_retry_after_is_a_minimum_with_a_bound() -> None:
    assert delay(RetryableError(ThrottledError("slow"), retry_after_s=7.0)) == 7.0
    assert delay(RetryableError(ThrottledError("slow"), retry_after_s=0.01), draw=1.0) == 0.2
    assert delay(RetryableError(ThrottledError("slow"), retry_after_s=1e9)) == RETRY_AFTER_MAX_S


@given(
    attempt=st.integers(1, 3),
    left=st.floats(0, 10),
    retry_after=st.floats(0, 1e6),
    draw=st.floats(0, 1, exclude_max=True),
)
def test_never_waits_past_the_deadline(attempt: int, left: float, retry_after: float, draw: float) -> None:
    failure = RetryableError(ThrottledError("slow"), retry_after_s=retry_after)
    wished = delay(failure, attempt=attempt, draw=draw)
    if max(wished, retry_after) < left:
        assert delay(failure, attempt=attempt, draw=draw, left_s=left) == wished
    else:
        with pytest.raises(DeadlineExceededError) as caught:
            delay(failure, attempt=attempt, draw=draw, left_s=left)
        assert isinstance(caught.value.__cause__, ThrottledError)


def test_a_wish_beyond_the_deadline_ends_at_once_even_if_nobody_would_wait_so_long() -> None:
    failure = RetryableError(ThrottledError("slow", url="s3://b/k", byte_range=(0, 9)), retry_after_s=3600.0)
    assert delay(failure, left_s=3600.1) == RETRY_AFTER_MAX_S
    with pytest.raises(DeadlineExceededError, match="Retry-After: 3600 s") as caught:
        delay(failure, left_s=100.0)
    assert (caught.value.url, caught.value.byte_range) == ("s3://b/k", (0, 9))


def test_a_retry_takes_of_the_budget_and_successes_give_back() -> None:
    budget = RetryBudget(2.0)
    delay(budget=budget)
    delay(RetryableError(TransportError("wrong region"), at_once=True), budget=budget)  # a correction takes nothing
    with pytest.raises(DeadlineExceededError):
        delay(RetryableError(ThrottledError("slow"), retry_after_s=9.0), left_s=1.0, budget=budget)
    assert budget.available == 1.0
    budget.succeeded(2)
    assert budget.available == 2.0
    budget.succeeded(1)
    assert budget.available == 2.0, "no more than at first"
    delay(budget=budget)
    delay(budget=budget)
    with pytest.raises(TransportError, match="reset; not retried after attempt 1: the retry budget is used up"):
        delay(RetryableError(TransportError("reset")), budget=budget)
    for _ in range(5):
        budget.succeeded(1)
    delay(budget=budget)
    assert budget.available == pytest.approx(0.0)


def attempts(options: RetryOptions, budget: RetryBudget, pace: Pace | None = None, began: float = 0.0) -> Attempts:
    pace = pace or Pace()
    return Attempts(ConnectionLimiter(StoreLimits(4, 4)), pace, budget, options, began, pace.served)


def test_turns_at_a_host_that_serves_others_are_no_attempts_and_take_nothing() -> None:
    options, budget, pace = RetryOptions(max_attempts=2, backoff_base_s=0.0), RetryBudget(5.0), Pace()
    counted = attempts(options, budget, pace)
    for _ in range(2):
        pace.served += 1
        counted.delay_s(RetryableError(ThrottledError("slow")), now=1.0)
    assert (counted.number, budget.available) == (3, 5.0)
    counted.delay_s(RetryableError(TransportError("reset")), now=1.0)
    assert budget.available == 4.0
    with pytest.raises(TransportError, match="given up after 4 attempts"):
        counted.delay_s(RetryableError(TransportError("reset")), now=1.0)


def test_the_deadline_is_counted_from_the_beginning_of_the_request() -> None:
    options = RetryOptions(read_timeout_s=10.0, backoff_base_s=0.0)
    failure = RetryableError(ThrottledError("slow"), retry_after_s=3.0)
    assert attempts(options, RetryBudget(None), began=100.0).delay_s(failure, now=106.0) == 3.0
    with pytest.raises(DeadlineExceededError):
        attempts(options, RetryBudget(None), began=100.0).delay_s(failure, now=107.5)


@given(st.lists(st.sampled_from(["fail", "succeed", "retried"])), st.integers(0, 5))
def test_a_budget_stays_between_nothing_and_all(events: list[str], most: int) -> None:
    budget, taken, given_back = RetryBudget(float(most)), 0, 0.0
    for event in events:
        if event == "fail":
            taken += budget.take()
        else:
            budget.succeeded(1 if event == "succeed" else 2)
            given_back += 0.2 if event == "succeed" else 1.0
        assert 0.0 <= budget.available <= most
    assert taken <= most + given_back


@pytest.mark.parametrize(
    ("value", "seconds"),
    [
        (None, 0.0),
        ("0", 0.0),
        ("120", 120.0),
        (" 3 ", 3.0),
        ("-3", 0.0),
        ("1.5", 0.0),
        ("soon", 0.0),
        ("9" * 400, 0.0),
        ("Thu, 01 Jan 1970 00:16:50 GMT", 10.0),
        ("Thu, 01 Jan 1970 00:00:00 GMT", 0.0),
    ],
)
def test_retry_after_header(value: str | None, seconds: float) -> None:
    assert parse_retry_after_s(value, now=1000.0) == seconds


@given(st.text(max_size=40))
def test_any_retry_after_header_is_a_time(value: str) -> None:
    seconds = parse_retry_after_s(value, now=0.0)
    assert seconds >= 0
    assert math.isfinite(seconds)
