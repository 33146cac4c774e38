"""When a failing tier is left alone, and asked again: pauses grow, one call goes first, others do not wait for it."""

from __future__ import annotations

from asyncpq.caching.tiers import Attempt, Backoff


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def begun(backoff: Backoff) -> Attempt:
    attempt = backoff.begin()
    assert attempt is not None
    return attempt


def test_pauses_grow_and_end() -> None:
    clock = Clock()
    backoff = Backoff(failures=2, first_s=1.0, longest_s=5.0, clock=clock)
    assert not begun(backoff).failed()
    for number, pause in enumerate((1.0, 2.0, 4.0, 5.0, 5.0)):
        assert begun(backoff).failed() == (number == 0), "told once"
        clock.now += pause - 0.01
        assert backoff.begin() is None
        clock.now += 0.02
    assert begun(backoff).succeeded(), "told once"
    assert not begun(backoff).succeeded()
    assert not begun(backoff).failed()
    assert begun(backoff).failed(), "two in a row, again"


def test_one_call_goes_first() -> None:
    clock = Clock()
    backoff = Backoff(failures=1, first_s=1.0, clock=clock)
    begun(backoff).failed()
    clock.now += 1.0
    first = begun(backoff)
    assert backoff.begin() is None, "while it is under way"
    first.withdrawn()
    second = begun(backoff)
    assert backoff.begin() is None
    first.succeeded()
    assert backoff.begin() is None, "what was withdrawn says nothing any more"
    second.succeeded()
    third, fourth = begun(backoff), begun(backoff)
    assert third.failed()
    assert not fourth.failed()


def test_what_began_before_the_pause_does_not_lengthen_it() -> None:
    clock = Clock()
    backoff = Backoff(failures=2, first_s=1.0, clock=clock)
    attempts = [begun(backoff) for _ in range(20)]
    assert [attempt.failed() for attempt in attempts] == [False, True] + [False] * 18
    clock.now += 1.0
    assert backoff.begin() is not None
