"""When a second request may be sent: late, seldom, and from what recent ones took."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.storage.transport import Hedging


def test_too_few_times_say_nothing() -> None:
    hedging = Hedging(0.05)
    for _ in range(19):
        hedging.learn(0.01)
        assert hedging.begin() is None


@given(st.lists(st.floats(0.0, 10.0), min_size=32, max_size=600))
def test_the_95th_percentile_of_recent_times(times: list[float]) -> None:
    hedging = Hedging(0.05)
    for seconds in times:
        hedging.learn(seconds)
    delay = hedging.begin()
    assert delay is not None
    recent = times[: len(times) // 16 * 16][-128:]
    assert sum(seconds > delay for seconds in recent) <= len(recent) * 0.05
    assert sum(seconds >= delay for seconds in recent) >= len(recent) * 0.05


def test_old_times_are_forgotten() -> None:
    hedging = Hedging(0.05)
    for seconds in [9.0] * 200 + [0.01] * 144:
        hedging.learn(seconds)
    assert hedging.begin() == 0.01


@given(ratio=st.floats(0.001, 1.0), asked=st.lists(st.booleans(), max_size=400))
def test_second_requests_stay_within_the_ratio(ratio: float, asked: list[bool]) -> None:
    hedging, second = Hedging(ratio), 0
    for first, late in enumerate(asked, 1):
        hedging.begin()
        second += late and hedging.take()
        assert second <= first * ratio + 1e-6


def test_what_was_not_used_is_not_saved_up_for_long() -> None:
    hedging = Hedging(0.5)
    for _ in range(1000):
        hedging.begin()
    assert [hedging.take() for _ in range(6)] == [True] * 4 + [False] * 2


def test_a_ratio_that_adds_up() -> None:
    hedging = Hedging(0.25)
    sent = []
    for _ in range(12):
        hedging.begin()
        sent.append(hedging.take())
    assert sent.count(True) == pytest.approx(3, abs=1)
