"""What a pipeline decodes at once, and that a closed one leaves nothing, also when closing is cancelled."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from asyncpq.errors import ObjectChangedError, UsageError
from asyncpq.objects.read_plan import DECODED_AHEAD
from asyncpq.objects.runtime import ByteBudget
from asyncpq.scan.prefetch import Pipeline, jobs_of
from tests.virtual_time import VirtualLoop


class Decoded(int):
    """The number of a unit, in the place of its rows."""

    nbytes = 10
    num_columns = 1


class Unbounded:
    """A read that wants everything ahead."""

    def ahead_bytes(self, pace_bytes: float | None) -> float:
        return 1000

    def may_decode(self, unit: object, others: int, num_bytes: float) -> bool:
        return True


class SlowToEnd(Unbounded):
    """A read whose first units fail, and whose last one takes a moment to be cancelled."""

    async def fetch_unit(self, unit: Any) -> None:
        if unit.pieces[0].items[0] < 2:
            await asyncio.sleep(0.01)
            raise ObjectChangedError("changed")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)


async def test_a_cancelled_close_can_be_called_again() -> None:
    """As a scan does that is cancelled while it begins again."""
    unseen: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unseen.append(context["message"]))
    budget = ByteBudget(1000)
    runtime = SimpleNamespace(budget=budget)
    units = [
        SimpleNamespace(num_bytes=10, first_bytes=10, pieces=[SimpleNamespace(items=[number], last=True)])
        for number in range(3)
    ]
    pipeline = Pipeline(jobs_of(cast("Any", SlowToEnd()), cast("Any", units)), cast("Any", runtime))
    pipeline.start()

    async def consumer() -> None:
        try:
            try:
                await pipeline.next()
            except ObjectChangedError:
                await pipeline.close()
        finally:
            await pipeline.close()

    reading = asyncio.ensure_future(consumer())
    await asyncio.sleep(0.03)
    reading.cancel()
    await asyncio.wait([reading])
    assert reading.cancelled()
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert budget.used == 0
    gc.collect()  # exceptions that nobody looks at are told of when their tasks go
    assert unseen == []


class NeverDone(Unbounded):
    """A read whose bytes never come."""

    async def fetch_unit(self, unit: Any) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("ordered", [True, False])
async def test_who_waits_is_told_that_it_was_closed(ordered: bool) -> None:
    """As by a session that ends under its reads."""
    runtime = SimpleNamespace(budget=ByteBudget(1000))
    units = [
        SimpleNamespace(num_bytes=10, first_bytes=10, pieces=[SimpleNamespace(items=[number], last=True)])
        for number in range(3)
    ]
    jobs = jobs_of(cast("Any", NeverDone()), cast("Any", units))
    pipeline = Pipeline(jobs, cast("Any", runtime), ordered=ordered)
    pipeline.start()
    reading = asyncio.ensure_future(pipeline.next())
    for _ in range(10):
        await asyncio.sleep(0)
    await pipeline.close()
    done, _ = await asyncio.wait([reading], timeout=20)
    assert done
    with pytest.raises(UsageError, match="closed"):
        reading.result()


@pytest.mark.parametrize("ordered", [True, False])
async def test_who_is_about_to_wait_is_told_that_it_was_closed(ordered: bool) -> None:
    runtime = SimpleNamespace(budget=ByteBudget(1000))
    unit = SimpleNamespace(num_bytes=10, first_bytes=10, pieces=[SimpleNamespace(items=[0], last=True)])
    jobs = jobs_of(cast("Any", NeverDone()), cast("Any", [unit]))
    pipeline = Pipeline(jobs, cast("Any", runtime), ordered=ordered)
    pipeline.start()
    for _ in range(10):
        await asyncio.sleep(0)

    @asynccontextmanager
    async def closed_meanwhile() -> AsyncIterator[None]:
        await pipeline.close()
        yield

    with pytest.raises(UsageError, match="closed"):
        await pipeline.next(closed_meanwhile())


class DoneAtOnce(Unbounded):
    """A read whose units take no time."""

    async def fetch_unit(self, unit: Any) -> None:
        return None

    async def decode(self, unit: object, fetched: None) -> list[object]:
        return []


async def test_who_consumes_is_told_that_it_was_closed() -> None:
    budget = ByteBudget(1000)
    runtime = SimpleNamespace(budget=budget)
    units = [
        SimpleNamespace(num_bytes=10, first_bytes=10, pieces=[SimpleNamespace(items=[number], last=True)])
        for number in range(3)
    ]
    pipeline = Pipeline(jobs_of(cast("Any", DoneAtOnce()), cast("Any", units)), cast("Any", runtime))
    pipeline.start()
    assert await pipeline.next() is not None
    await pipeline.close()
    with pytest.raises(UsageError, match="closed"):
        pipeline.done_with_head()
    assert budget.used == 0


class InPairs(Unbounded):
    """A read whose units are decoded only while another is."""

    def __init__(self, patience_s: float) -> None:
        self.pair = asyncio.Barrier(2)
        self.patience_s = patience_s

    async def fetch_unit(self, unit: Any) -> None:
        return None

    async def decode(self, unit: Any, fetched: None) -> list[object]:
        async with asyncio.timeout(self.patience_s):
            await self.pair.wait()
        return [Decoded(unit.number)]


async def _run_in_pairs(last: bool, patience_s: float) -> list[object]:
    runtime = SimpleNamespace(budget=ByteBudget(1000))
    pieces = [[SimpleNamespace(items=[number], last=last)] for number in range(10)]
    units = [
        SimpleNamespace(num_bytes=10, first_bytes=10, number=number, pieces=some) for number, some in enumerate(pieces)
    ]
    pipeline = Pipeline(jobs_of(cast("Any", InPairs(patience_s)), cast("Any", units)), cast("Any", runtime))
    pipeline.start()
    delivered: list[object] = []
    try:
        while (landed := await pipeline.next()) is not None:
            delivered += landed.tables
            pipeline.done_with_head()
    finally:
        await pipeline.close()
    return delivered


async def test_units_of_different_row_groups_are_decoded_side_by_side() -> None:
    assert await _run_in_pairs(last=True, patience_s=60) == [*range(10)]


async def test_units_of_one_row_group_are_decoded_in_turn() -> None:
    with pytest.raises(TimeoutError):
        await _run_in_pairs(last=False, patience_s=0.05)


class LastFirst(Unbounded):
    """A read of three row groups whose last unit is decoded first."""

    def __init__(self) -> None:
        self.last_is_done = asyncio.Event()

    async def fetch_unit(self, unit: Any) -> None:
        return None

    async def decode(self, unit: Any, fetched: None) -> list[object]:
        if unit.number == 2:
            self.last_is_done.set()
        else:
            await self.last_is_done.wait()
            await asyncio.sleep(0)
        return [Decoded(unit.number)]


@pytest.mark.parametrize("ordered", [True, False])
async def test_the_last_unit_of_a_scan_is_delivered_last(ordered: bool) -> None:
    """It says that the scan is complete, which is then checked."""
    runtime = SimpleNamespace(budget=ByteBudget(1000))
    pieces = [[SimpleNamespace(items=[number], last=True)] for number in range(3)]
    units = [
        SimpleNamespace(num_bytes=10, first_bytes=10, number=number, pieces=some) for number, some in enumerate(pieces)
    ]
    pipeline = Pipeline(jobs_of(cast("Any", LastFirst()), cast("Any", units)), cast("Any", runtime), ordered=ordered)
    pipeline.start()
    delivered: list[tuple[object, bool]] = []
    try:
        while (landed := await pipeline.next()) is not None:
            delivered.append((landed.tables[0], landed.job.last))
            pipeline.done_with_head()
    finally:
        await pipeline.close()
    assert delivered == [(0, False), (1, False), (2, True)]


class Narrow(Unbounded):
    """A read that wants 20 bytes ahead, and decodes a unit when it is told to. It notes what is fetched."""

    def __init__(self, num_units: int) -> None:
        self.fetched: list[int] = []
        self.may_end = [asyncio.Event() for _ in range(num_units)]

    def ahead_bytes(self, pace_bytes: float | None) -> float:
        return 20

    async def fetch_unit(self, unit: Any) -> None:
        self.fetched += unit.pieces[0].items

    async def decode(self, unit: Any, fetched: None) -> list[object]:
        await self.may_end[unit.pieces[0].items[0]].wait()
        return []


async def test_no_more_is_fetched_ahead_than_the_scan_wants() -> None:
    """What is being decoded does not count. A unit that is larger is fetched once no other waits."""
    runtime = SimpleNamespace(budget=ByteBudget(1000))
    sizes = [10, 10, 10, 30, 10]
    units = [
        SimpleNamespace(num_bytes=size, first_bytes=size, pieces=[SimpleNamespace(items=[number], last=False)])
        for number, size in enumerate(sizes)
    ]
    scan = Narrow(len(units))
    pipeline = Pipeline(jobs_of(cast("Any", scan), cast("Any", units)), cast("Any", runtime))
    pipeline.start()
    seen: list[list[int]] = []
    for may_end in scan.may_end:
        for _ in range(10):
            await asyncio.sleep(0)
        seen.append(list(scan.fetched))
        may_end.set()
        await pipeline.next()
        pipeline.done_with_head()
    assert await pipeline.next() is None
    await pipeline.close()
    assert seen == [[0, 1, 2], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4], [0, 1, 2, 3, 4]]
    assert runtime.budget.used == 0


class Timed(Unbounded):
    """A read of 20 units of one row group, whose fetches and decoding take some time."""

    def __init__(self, fetch_s: float, decode_s: float) -> None:
        self.fetch_s = fetch_s
        self.decode_s = decode_s
        self.waiting = 0  # units that are under way or wait to be decoded
        self.most = 0  # of them, after the first units

    def ahead_bytes(self, pace_bytes: float | None) -> float:
        return 50 if pace_bytes is None else min(50, pace_bytes + 10)

    async def fetch_unit(self, unit: Any) -> None:
        self.waiting += 1
        if unit.number > 6:
            self.most = max(self.most, self.waiting)
        await asyncio.sleep(self.fetch_s)

    async def decode(self, unit: Any, fetched: None) -> list[object]:
        self.waiting -= 1
        await asyncio.sleep(self.decode_s)
        return [Decoded(unit.number)]


@pytest.mark.parametrize(("fetch_s", "decode_s", "most"), [(0.35, 0.1, 4), (0.5, 0.2, 3), (0.1, 0.3, 1)])
def test_so_many_bytes_are_under_way_as_are_decoded_during_a_fetch(fetch_s: float, decode_s: float, most: int) -> None:
    """And one unit more; the decoding never waits."""
    scan = Timed(fetch_s, decode_s)
    units = [
        SimpleNamespace(num_bytes=10, first_bytes=10, number=number, pieces=[SimpleNamespace(last=False)])
        for number in range(20)
    ]

    async def seconds() -> float:
        loop = asyncio.get_running_loop()
        began = loop.time()
        runtime = SimpleNamespace(budget=ByteBudget(1000))
        pipeline = Pipeline(jobs_of(cast("Any", scan), cast("Any", units)), cast("Any", runtime))
        pipeline.start()
        while await pipeline.next() is not None:
            pipeline.done_with_head()
        await pipeline.close()
        return loop.time() - began

    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        assert runner.run(seconds()) == pytest.approx(fetch_s + 20 * decode_s)
    assert scan.most == most


class OneByOne(DoneAtOnce):
    """A read that wants one decoded unit beside the one that is consumed."""

    def __init__(self) -> None:
        self.decoded: list[int] = []

    def may_decode(self, unit: object, others: int, num_bytes: float) -> bool:
        return others < 1

    async def decode(self, unit: Any, fetched: None) -> list[object]:
        self.decoded += unit.pieces[0].items
        return [Decoded(0)]


async def test_no_more_is_decoded_ahead_than_the_scan_wants() -> None:
    scan = OneByOne()
    units = [
        SimpleNamespace(num_bytes=10, first_bytes=10, pieces=[SimpleNamespace(items=[number], last=True)])
        for number in range(5)
    ]
    runtime = SimpleNamespace(budget=ByteBudget(1000))
    pipeline = Pipeline(jobs_of(cast("Any", scan), cast("Any", units)), cast("Any", runtime))
    pipeline.start()
    seen: list[int] = []
    while True:
        for _ in range(20):
            await asyncio.sleep(0)
        seen.append(len(scan.decoded))
        if await pipeline.next() is None:
            break
        for _ in range(20):
            await asyncio.sleep(0)
        seen.append(len(scan.decoded))
        pipeline.done_with_head()
    await pipeline.close()
    assert seen == [1, 2, 2, 3, 3, 4, 4, 5, 5, 5, 5]


class HeadLast(Unbounded):
    """A read whose first unit is decoded last, and whose others have ``nbytes`` bytes of rows."""

    def __init__(self, nbytes: int) -> None:
        self.rows = SimpleNamespace(nbytes=nbytes, num_columns=1)
        self.decoded: list[int] = []
        self.head = asyncio.Event()

    async def fetch_unit(self, unit: Any) -> None:
        return None

    async def decode(self, unit: Any, fetched: None) -> list[object]:
        if unit.number == 0:
            await self.head.wait()
        self.decoded.append(unit.number)
        return [self.rows]


@pytest.mark.parametrize(("nbytes", "others"), [(1, 9), (10, DECODED_AHEAD - 1)])
async def test_units_of_few_rows_do_not_stop_the_decoding_of_others(nbytes: int, others: int) -> None:
    pieces = [[SimpleNamespace(items=[number], last=True)] for number in range(10)]
    units = [
        SimpleNamespace(num_bytes=10, first_bytes=10, number=number, pieces=some) for number, some in enumerate(pieces)
    ]
    scan = HeadLast(nbytes)
    pipeline = Pipeline(
        jobs_of(cast("Any", scan), cast("Any", units)), cast("Any", SimpleNamespace(budget=ByteBudget(1000)))
    )
    pipeline.start()
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(scan.decoded) == others
    scan.head.set()
    while await pipeline.next() is not None:
        pipeline.done_with_head()
    assert sorted(scan.decoded) == [*range(10)]
    await pipeline.close()


@pytest.mark.parametrize(("nbytes", "fetched"), [(1, 10), (10, 3)])
async def test_decoded_units_of_few_rows_leave_the_budget_to_others(nbytes: int, fetched: int) -> None:
    """While the consumer still waits for one before them. Their rows count until they are consumed."""
    pieces = [[SimpleNamespace(items=[number], last=True)] for number in range(10)]
    units = [
        SimpleNamespace(num_bytes=10, first_bytes=10, number=number, pieces=some) for number, some in enumerate(pieces)
    ]
    scan, budget = HeadLast(nbytes), ByteBudget(30)
    pipeline = Pipeline(jobs_of(cast("Any", scan), cast("Any", units)), cast("Any", SimpleNamespace(budget=budget)))
    pipeline.start()
    for _ in range(200):
        await asyncio.sleep(0)
    assert len(pipeline._running) == fetched
    assert budget.used == 10 + (fetched - 1) * nbytes
    scan.head.set()
    while await pipeline.next() is not None:
        pipeline.done_with_head()
    assert sorted(scan.decoded) == [*range(10)]
    assert budget.used == 0
    await pipeline.close()
    assert budget.used == 0
