"""When a request is sent again: with a clock and randomness of our own."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import DeadlineExceededError, ThrottledError, TransportError
from asyncpq.options import RetryOptions
from asyncpq.storage.retry import RETRY_AFTER_MAX_S, RetryableError, delay_before_retry_s, parse_retry_after_s

OPTIONS = RetryOptions(max_attempts=4, backoff_base_s=0.1, backoff_max_s=1.0)
FAILURE = RetryableError(TransportError("reset", url="s3://b/k"))


def delay(
    failure: RetryableError = FAILURE, *, attempt: int = 1, deadline: float | None = None, draw: float = 0.5
) -> float:
    return delay_before_retry_s(
        failure, attempt=attempt, options=OPTIONS, now=100.0, deadline=deadline, draw=lambda: draw
    )


def test_full_jitter_doubles_up_to_its_bound() -> None:
    assert [delay(attempt=n, draw=1.0) for n in (1, 2, 3)] == [0.2, 0.4, 0.8]
    many = RetryOptions(max_attempts=10_000, backoff_base_s=0.1, backoff_max_s=1.0)
    for attempt in (5, 100, 9_999):
        assert delay_before_retry_s(FAILURE, attempt=attempt, options=many, now=0, deadline=None, draw=lambda: 1) == 1.0
    assert delay(draw=0.0) == 0.0


def test_last_attempt_raises_the_failure() -> None:
    with pytest.raises(TransportError, match="reset"):
        delay(attempt=4)


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
    if 100.0 + wished < 100.0 + left:
        assert delay(failure, attempt=attempt, draw=draw, deadline=100.0 + left) == wished
    else:
        with pytest.raises(DeadlineExceededError) as caught:
            delay(failure, attempt=attempt, draw=draw, deadline=100.0 + left)
        assert isinstance(caught.value.__cause__, ThrottledError)


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
