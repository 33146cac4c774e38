"""The service's event loop: whose callbacks come first."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextvars import Context, copy_context
from functools import partial

import pytest

from asyncpq.serve import server
from asyncpq.serve.server import BEHIND_S, ITERATION_S, TURN_S, FairEventLoop
from asyncpq.storage.threads import work_owner
from tests.clock import Clock


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(server, "time", clock)
    return clock


@pytest.fixture
def loop() -> Iterator[FairEventLoop]:
    loop = FairEventLoop()
    yield loop
    loop.close()


def owned(owner: object) -> Context:
    context = copy_context()
    context.run(work_owner.set, owner)
    return context


def run(loop: FairEventLoop, until: Callable[[], bool]) -> int:
    """Run iterations of the loop; return their number."""
    iterations = 0
    while not until():
        loop.call_soon(loop.stop)
        loop.run_forever()
        iterations += 1
        assert iterations < 10_000
    return iterations


def test_one_callback_does_not_wait_for_many_of_another_owner(loop: FairEventLoop, clock: Clock) -> None:
    order: list[object] = []

    def work(owner: object, number: int) -> None:
        clock.now_s += 5 * TURN_S
        order.append((owner, number))

    for number in range(20):
        loop.call_soon(work, "many", number, context=owned("many"))
    loop.call_soon(work, "one", 0, context=owned("one"))
    run(loop, lambda: len(order) == 21)
    assert order.index(("one", 0)) <= 1
    assert [entry for entry in order if entry[0] == "many"] == [("many", number) for number in range(20)]  # type: ignore[index]


def test_the_owner_that_used_little_comes_first(loop: FairEventLoop, clock: Clock) -> None:
    order: list[str] = []
    times = {"greedy": 0.5, "modest": 0.01}

    def work(owner: str) -> None:
        clock.now_s += times[owner]
        order.append(owner)

    for owner in ("modest", "greedy"):
        loop.call_soon(work, owner, context=owned(owner))
    run(loop, lambda: len(order) == 2)
    for owner in ("greedy", "modest"):
        loop.call_soon(work, owner, context=owned(owner))
    run(loop, lambda: len(order) == 4)
    assert order[2:] == ["modest", "greedy"]


def test_owners_that_never_pause_share_the_time(loop: FairEventLoop, clock: Clock) -> None:
    used = {"long": 0.0, "short": 0.0}

    def work(owner: str, seconds: float) -> None:
        clock.now_s += seconds
        used[owner] += seconds
        loop.call_soon(work, owner, seconds, context=owned(owner))

    work("long", 0.008)
    work("short", 0.0001)
    run(loop, lambda: sum(used.values()) > 5)
    assert 0.9 < used["long"] / used["short"] < 1.1


def test_who_comes_back_is_first_with_little_and_takes_no_more_than_others(loop: FairEventLoop, clock: Clock) -> None:
    order: list[str] = []

    def work(owner: str, *, again: bool = True) -> None:
        clock.now_s += TURN_S
        order.append(owner)
        if again:
            loop.call_soon(partial(work, owner), context=owned(owner))

    work("busy")
    run(loop, lambda: len(order) >= 5000)
    for _ in range(10):  # again and again a little, as the steps of one request
        loop.call_soon(partial(work, "little", again=False), context=owned("little"))
        before = len(order)
        run(loop, lambda before=before: "little" in order[before:])  # type: ignore[misc]
        assert order.index("little", before) - before <= 1
        run(loop, lambda before=before: len(order) >= before + 20)  # type: ignore[misc]
    before = len(order)
    work("much")
    run(loop, lambda: len(order) >= before + 1000)
    ahead = order[before:].count("much") - order[before:].count("busy")
    assert 0 < ahead <= BEHIND_S / TURN_S + 2


def test_many_owners_that_are_gone_are_forgotten(loop: FairEventLoop) -> None:
    ran: list[int] = []
    for number in range(1000):
        loop.call_soon(ran.append, number, context=owned(f"owner {number}"))
        run(loop, lambda: len(ran) == number + 1)  # noqa: B023
    assert len(loop._used_s) < 300


def test_what_has_no_owner_waits_for_one_iteration(loop: FairEventLoop, clock: Clock) -> None:
    done: list[str] = []

    def work() -> None:
        clock.now_s += TURN_S / 2
        done.append("owned")

    for _ in range(1000):
        loop.call_soon(work, context=owned("many"))
    loop.call_soon(lambda: done.append("first"))
    run(loop, lambda: "first" in done)
    assert done.index("first") <= 2 * ITERATION_S / TURN_S + 2
    loop.call_soon(lambda: done.append("second"))
    before = len(done)
    run(loop, lambda: "second" in done)
    assert done.index("second") - before <= 2 * ITERATION_S / TURN_S + 2


def test_callbacks_run_in_their_contexts_and_can_be_cancelled(loop: FairEventLoop) -> None:
    ran: list[object] = []
    loop.call_soon(lambda: ran.append(work_owner.get()), context=owned("a"))
    loop.call_soon(lambda: ran.append("cancelled"), context=owned("a")).cancel()
    loop.call_soon(lambda: ran.append(work_owner.get()))
    run(loop, lambda: len(ran) == 2)
    run(loop, lambda: not loop._waiting)
    assert sorted(map(str, ran)) == ["None", "a"]


def test_an_interrupt_in_a_callback_leaves_the_others_to_the_next_run(loop: FairEventLoop) -> None:
    ran: list[str] = []

    def interrupt() -> None:
        raise KeyboardInterrupt

    loop.call_soon(interrupt, context=owned("a"))
    for owner in "ab":
        loop.call_soon(ran.append, owner, context=owned(owner))
    with pytest.raises(KeyboardInterrupt):
        loop.run_forever()
    run(loop, lambda: len(ran) == 2)
    assert sorted(ran) == ["a", "b"]


def test_an_error_in_a_callback_is_reported_as_by_any_loop(loop: FairEventLoop) -> None:
    reported: list[dict[str, object]] = []
    ran: list[str] = []
    loop.set_exception_handler(lambda _loop, context: reported.append(context))
    loop.call_soon(lambda: 1 // 0, context=owned("a"))
    loop.call_soon(ran.append, "a", context=owned("a"))
    run(loop, lambda: bool(ran))
    assert isinstance(reported[0]["exception"], ZeroDivisionError)


def test_a_closed_loop_takes_no_callbacks() -> None:
    loop = FairEventLoop()
    loop.call_soon(print, context=owned("a"))
    loop.close()
    with pytest.raises(RuntimeError, match="closed"):
        loop.call_soon(print, context=owned("a"))


def test_tasks_of_owners_run_beside_each_other() -> None:
    async def read(owner: str) -> int:
        work_owner.set(owner)
        total = 0
        for number in range(100):
            await asyncio.sleep(0)
            total += await asyncio.to_thread(lambda number=number: number) if number % 25 == 0 else number  # type: ignore[misc]
        return total

    async def main() -> list[int]:
        async with asyncio.timeout(30):
            return await asyncio.gather(*(read(f"owner {number % 3}") for number in range(30)))

    with asyncio.Runner(loop_factory=FairEventLoop) as runner:
        assert runner.run(main()) == [4950] * 30
