"""The transport at stores that throttle, in virtual time: for each kind, what it serves and what it refuses.

A store that refuses a share of the requests at any rate is read at full speed; a limit is held with few refusals.
"""

from __future__ import annotations

import asyncio
import heapq
import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpq.errors import ThrottledError
from asyncpq.options import RetryOptions
from asyncpq.storage import limits, retries
from asyncpq.storage.base import RequestContext, StoreLimits, Validator
from asyncpq.storage.http1 import Body, Receiver
from asyncpq.storage.response_checks import ExpectedBody, RangeRequest
from asyncpq.storage.retries import RetryableError
from asyncpq.storage.transport import Transport
from tests.store_backends import new_context
from tests.virtual_time import VirtualLoop

LATENCY_S = 0.02
DATA = b"123456789"
EXPECTED = ExpectedBody(0, len(DATA), Validator(100, '"a"'))
URL = "s3://bucket/key"


@dataclass
class ThrottlingStore:
    """Serves ``rate(second)`` requests per second (a token bucket of ``burst``); refuses a random ``share`` of them,
    and all while it is down."""

    rate: Callable[[float], float] | None = None
    burst: float = 1.0
    share: float = 0.0
    down: Callable[[float], bool] = lambda second: False
    retry_after_s: float = 0.0
    served: int = 0
    refused: int = 0
    _random: random.Random = field(default_factory=lambda: random.Random(1))
    _tokens: float = 0.0
    _at: float = 0.0

    def answers(self, second: float) -> bool:
        """Decide on a request that comes at ``second``."""
        good = not self.down(second) and self._random.random() >= self.share
        if self.rate is not None:
            self._tokens = min(self.burst, self._tokens + (second - self._at) * self.rate(second))
            self._at = second
            good = good and self._tokens >= 1.0
            self._tokens -= good
        self.served += good
        self.refused += not good
        return good

    def latency_s(self) -> float:
        return LATENCY_S * (0.5 + self._random.random())


@dataclass
class Request:
    """An exchange with a store of virtual time."""

    store: ThrottlingStore
    method: str = "GET"
    request: RangeRequest = field(default_factory=lambda: RangeRequest(0, len(DATA), URL))
    host: str = ""

    def prepare(self, context: RequestContext) -> None:
        return None

    async def send(self, receiver: Receiver) -> Body:
        good = self.store.answers(asyncio.get_running_loop().time() - BEGIN_S)
        await asyncio.sleep(self.store.latency_s())
        receiver.head(206 if good else 503, {})
        return Body(DATA, True)

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        return EXPECTED if status == 206 else None

    def refuse(self, status: int, headers: Mapping[str, str], body: bytes) -> RetryableError:
        return RetryableError(ThrottledError("slow down", url=URL), retry_after_s=self.store.retry_after_s)


BEGIN_S = VirtualLoop.BEGIN_S


def read(
    store: ThrottlingStore,
    monkeypatch: pytest.MonkeyPatch,
    *,
    seconds: float = 10.0,
    workers: int = 16,
    method: str = "GET",
    retry: RetryOptions | None = None,
    failed: list[ThrottledError] | None = None,
) -> list[int]:
    """Send one request after the other from each worker; return the good answers of each second. No request fails,
    unless ``failed`` is to have the errors."""
    monkeypatch.setattr(retries, "random", random.Random(7))

    async def run() -> list[int]:
        transport = Transport(retry=retry or RetryOptions(), limits=StoreLimits(64, 48))
        loop = asyncio.get_running_loop()
        good = [0] * max(int(seconds), 1)

        async def work() -> None:
            while (second := loop.time() - BEGIN_S) < seconds:
                try:
                    _, data = await transport.send(Request(store, method), new_context())
                except ThrottledError as error:
                    if failed is None:
                        raise
                    failed.append(error)
                    continue
                assert data == DATA
                good[min(int(second), len(good) - 1)] += 1

        await asyncio.gather(*[work() for _ in range(workers)])
        assert transport._limiter.used == 0
        await transport.close()
        return good

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(run())


#: Requests per second of 16 workers at a store that throttles none.
FULL = 16 / LATENCY_S


@pytest.mark.parametrize(("share", "least"), [(0.001, 0.95), (0.005, 0.95), (0.01, 0.9), (0.02, 0.5)])
def test_a_share_of_refusals_at_any_rate_leaves_the_speed(
    share: float, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ThrottlingStore(share=share)
    good = read(store, monkeypatch)
    assert sum(good) > least * 10 * FULL
    assert store.refused < 2 * share * store.served


@pytest.mark.parametrize(("share", "least"), [(0.05, 0.75), (0.1, 0.6), (0.2, 0.4)])
def test_a_larger_share_is_told_from_a_limit_at_once(
    share: float, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused request waits for 50 ms and more, so that fewer run: without any pace, 0.85, 0.7 and 0.47."""
    good = read(ThrottlingStore(share=share), monkeypatch)
    assert sum(good) > least * 10 * FULL


@pytest.mark.parametrize("refused", [1, 2, 3])
def test_stray_refusals_of_a_fresh_store_cost_nothing(refused: int, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ThrottlingStore(down=lambda second: store.refused < refused)
    good = read(store, monkeypatch, seconds=2.0)
    assert store.refused == refused
    assert good[0] > 0.95 * FULL


def test_a_fresh_store_that_refuses_all_first_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ThrottlingStore(down=lambda second: second == 0.0)
    good = read(store, monkeypatch, seconds=4.0)
    assert sum(good) > 0.75 * 4 * FULL


@pytest.mark.parametrize("method", ["GET", "PUT"])
@pytest.mark.parametrize("hedge_ratio", [0.0, 0.05])
def test_one_refusal_of_a_hundred_for_writes_and_hedged_reads(
    method: str, hedge_ratio: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = read(
        ThrottlingStore(share=0.01),
        monkeypatch,
        seconds=5.0,
        method=method,
        retry=RetryOptions(hedge_ratio=hedge_ratio),
    )
    assert sum(good) > 0.85 * 5 * FULL


def test_one_refusal_of_a_hundred_for_a_single_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    good = read(ThrottlingStore(share=0.01), monkeypatch, seconds=60.0, workers=1)
    assert sum(good) > 0.85 * 60 / LATENCY_S


@pytest.mark.parametrize(
    ("rate", "burst", "served", "refused"),
    [
        (5.0, 1.0, 0.6, 0.45),
        (50.0, 1.0, 0.8, 0.08),
        (50.0, 10.0, 0.95, 0.06),
        (50.0, 100.0, 0.95, 0.08),
        (300.0, 1.0, 0.85, 0.03),
        (500.0, 10.0, 0.95, 0.02),
        (500.0, 100.0, 0.95, 0.02),
    ],
)
def test_a_limit_is_held(
    rate: float, burst: float, served: float, refused: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``served``: least part of what the limit allows; ``refused``: most refusals for each request that is served."""
    store = ThrottlingStore(rate=lambda second: rate, burst=burst)
    good = read(store, monkeypatch, seconds=30.0)
    assert sum(good) > served * 30 * rate
    assert store.refused < refused * store.served


@pytest.mark.parametrize(("share", "served", "refused"), [(0.01, 0.9, 0.05), (0.05, 0.85, 0.12), (0.2, 0.5, 0.5)])
def test_a_limit_with_a_share_of_refusals_below_it(
    share: float, served: float, refused: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = ThrottlingStore(rate=lambda second: 300.0, burst=10.0, share=share)
    good = read(store, monkeypatch, seconds=30.0)
    assert sum(good) > served * 30 * 300
    assert store.refused < refused * store.served


def test_a_limit_that_falls(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ThrottlingStore(rate=lambda second: 2000.0 if second < 5 else 50.0, burst=50.0)
    good = read(store, monkeypatch, seconds=20.0)
    assert sum(good[3:5]) > 0.9 * 2 * FULL
    assert sum(good[6:]) > 0.7 * 14 * 50
    assert store.refused < 90


def test_a_limit_that_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ThrottlingStore(rate=lambda second: 50.0 if second < 5 else 2000.0, burst=50.0)
    good = read(store, monkeypatch, seconds=30.0)
    assert sum(good[:5]) > 0.5 * 5 * 50
    assert min(good[20:]) > 0.9 * FULL


@pytest.mark.sampled(3)
@pytest.mark.parametrize("workers", [16, 64, 200])
@pytest.mark.parametrize(("start", "down_s"), [(0, 3), (3, 3), (0, 12), (3, 30)])
def test_an_outage_fails_no_read(start: int, down_s: int, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few requests find out whether it is over, so that they use up neither their attempts nor the retry budget."""
    store = ThrottlingStore(down=lambda second: start <= second < start + down_s)
    good = read(store, monkeypatch, seconds=start + down_s + 6.0, workers=workers)
    assert store.refused < 150 + down_s
    assert min(good[start + down_s + 3 :]) > 0.9 * FULL


@pytest.mark.parametrize("down_s", [2, 10, 30])
def test_an_outage_fails_few_reads_of_one(down_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each read has its attempts, as fast as they may begin while nothing is served."""
    store = ThrottlingStore(down=lambda second: 3 <= second < 3 + down_s)
    failed: list[ThrottledError] = []
    good = read(store, monkeypatch, seconds=down_s + 8.0, workers=1, failed=failed)
    assert len(failed) <= 1 + down_s / 4
    assert good[-1] > 0.9 / LATENCY_S


@pytest.mark.parametrize("burst", [1.0, 5.0])
@pytest.mark.parametrize("rate", [1.0, 2.0])
@pytest.mark.parametrize("workers", [1, 4, 16, 50])
def test_a_limit_of_one_or_two_a_second_fails_no_read(
    workers: int, rate: float, burst: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reads wait for their turn. Their deadline alone would end them, of which there is none here."""
    store = ThrottlingStore(rate=lambda second: rate, burst=burst)
    good = read(store, monkeypatch, seconds=120.0, workers=workers, retry=RetryOptions(read_timeout_s=1000.0))
    assert sum(good) > 0.6 * 120 * rate
    assert store.refused < store.served


@pytest.mark.heavy
@pytest.mark.parametrize("rate", [50.0, 500.0])
def test_requests_that_wait_for_retry_after_come_back_to_a_rate(rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    store = ThrottlingStore(rate=lambda second: rate, burst=rate / 5, retry_after_s=5.0)
    good = read(store, monkeypatch, seconds=60.0, workers=64)
    assert sum(good[10:]) > 0.95 * 50 * rate
    assert store.refused < (0.01 if rate > 100 else 0.06) * store.served


def test_a_request_that_begins_late_delays_no_later_one() -> None:
    """The event loop has other things to do when the turn of the first comes: the others catch up."""

    async def run() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        limiter = limits.ConnectionLimiter(StoreLimits(64, 48))
        pace = limiter.pace
        for _ in range(4):
            limiter.refused(loop.time() - 0.1, loop.time())
        limiter.succeeded(math.inf, loop.time())  # from here on, ten requests per second and more
        pace.begin(loop.time())
        waiting = [asyncio.ensure_future(limiter.wait(False)) for _ in range(20)]
        await asyncio.sleep(0)
        pace.limit = 1000.0
        loop.now_s = pace.next_at + 0.005
        for _ in range(3):
            await asyncio.sleep(0)
        assert 4 <= sum(task.done() for task in waiting) <= 8
        for task in waiting:
            await task

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


@pytest.mark.parametrize("share", [0.0, 0.02])
def test_many_reads_at_once_wait_for_their_turn(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a hundred reads, few are refused more than once."""
    store = ThrottlingStore(rate=lambda second: 50.0, share=share)
    read(store, monkeypatch, seconds=1e-6, workers=100)
    assert store.served == 100
    assert store.refused < 150


def test_a_burst_after_idle_time_is_not_held_to_an_old_limit() -> None:
    pace = limits.Pace()
    for number in range(10):
        pace.throttled(number / 100, number / 100 + 0.02, 4)
    assert pace.limit < math.inf
    pace.succeeded(1.0, 1.02)
    assert pace.wait_s(60.0) == -math.inf


@given(
    st.lists(st.tuples(st.booleans(), st.sampled_from([0.0, 0.001, 0.02, 0.3, 5.0])), max_size=300), st.integers(1, 500)
)
def test_the_rate_is_positive_whatever_is_answered(answers: list[tuple[bool, float]], used: int) -> None:
    pace, now = limits.Pace(), 0.0
    for good, gap_s in answers:
        now += gap_s
        if pace.wait_s(now) > 0.0:
            now = pace.next_at
        if pace.limit < math.inf:
            pace.begin(now)
            assert 0.0 < pace.next_at - now < 60.0
        if good:
            pace.succeeded(now, now + 0.02)
        else:
            pace.throttled(now, now + 0.02, used)


@pytest.mark.parametrize("answer_s", [0.0, 0.02, 2.0])
@pytest.mark.parametrize("refused", [0.5, 0.9])
def test_the_rate_is_positive_while_many_requests_run(answer_s: float, refused: float) -> None:
    """Answers come to requests that were sent before the rate was last changed, out of order, or at once."""
    for seed in range(100):
        chance, pace, now = random.Random(seed), limits.Pace(), 0.0
        running: list[tuple[float, float]] = []
        for _ in range(600):
            while len(running) < 32 and pace.wait_s(now) <= 0.0:
                if pace.limit < math.inf:
                    pace.begin(now)
                heapq.heappush(running, (now + answer_s * chance.uniform(0.2, 1.8), now))
            if len(running) < 32 and (not running or pace.next_at < running[0][0]):
                now = pace.next_at
                continue
            now, sent = heapq.heappop(running)
            if chance.random() < refused:
                pace.throttled(sent, now, len(running) + 1)
            else:
                pace.succeeded(sent, now)
            assert pace.limit > 0.0
            assert pace.limit == math.inf or pace.rate(now) > 0.0


@given(
    actions=st.lists(st.tuples(st.floats(0.0, 0.3), st.booleans()), min_size=1, max_size=40),
    rate=st.sampled_from([5.0, 50.0, 500.0]),
)
@settings(max_examples=30, deadline=None)
def test_cancelled_waits_lose_no_turn(actions: list[tuple[float, bool]], rate: float) -> None:
    """Requests that are cancelled at any time, or meet their deadline while they wait, give everything back."""

    async def run() -> None:
        transport = Transport(retry=RetryOptions(), limits=StoreLimits(8, 6))
        store = ThrottlingStore(rate=lambda second: rate)
        loop = asyncio.get_running_loop()

        async def work(after_s: float, cancelled: bool) -> None:
            began = loop.time()
            try:
                async with asyncio.timeout(after_s if cancelled else None):
                    await transport.send(Request(store), new_context())
            except TimeoutError:
                assert loop.time() == pytest.approx(began + after_s)

        await asyncio.gather(*[work(*action) for action in actions])
        await transport.send(Request(ThrottlingStore()), new_context())
        limiter = transport._limiter
        assert (limiter.used, limiter.scans, limiter._queues) == (0, 0, {})
        await transport.close()

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(run())


def test_no_reader_starves(monkeypatch: pytest.MonkeyPatch) -> None:
    """200 readers have their turns one after the other, though some of their requests are refused."""
    monkeypatch.setattr(retries, "random", random.Random(7))

    async def run() -> list[int]:
        transport = Transport(retry=RetryOptions(), limits=StoreLimits(64, 48))
        store = ThrottlingStore(rate=lambda second: 200.0, burst=20.0, share=0.05)
        loop = asyncio.get_running_loop()
        done = [0] * 200

        async def work(number: int) -> None:
            while loop.time() - BEGIN_S < 20.0:
                await transport.send(Request(store), new_context())
                done[number] += 1

        await asyncio.gather(*map(work, range(200)))
        await transport.close()
        return done

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        done = runner.run(run())
    assert min(done) > 0.6 * max(done)
