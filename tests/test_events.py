"""Who is told what a session does: the hook, and the loggers.

Holds: each request and each call is told exactly once, and as the metrics say; a call that fails tells its error; a
hook that raises harms nothing; loggers say the same, a WARNING only where something is wrong; no secret is ever told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

import asyncpq
from asyncpq import events
from asyncpq.events import Event
from asyncpq.testing import Fault, ObjectServer
from tests.costs import cost_of
from tests.faults.operations import parquet
from tests.verbs import DATA, PATH, SETTINGS, URL, VERBS


class Hook:
    """Keeps what it is told."""

    def __init__(self) -> None:
        self.told: list[Event] = []

    def __call__(self, event: Event) -> None:
        self.told.append(event)

    @property
    def requests(self) -> list[asyncpq.RequestEnded]:
        return [event for event in self.told if isinstance(event, asyncpq.RequestEnded)]

    @property
    def reads(self) -> list[asyncpq.ReadEnded]:
        return [event for event in self.told if isinstance(event, asyncpq.ReadEnded)]

    def last(self) -> asyncpq.ReadEnded:
        return self.reads[-1]  # a request that it left to others, or cancelled, may end after it


@pytest.mark.parametrize("faults", [[], [Fault(status=503, code="SlowDown", after=1, times=2)]])
async def test_each_request_and_each_call_is_told_once(faults: list[Fault]) -> None:
    hook = Hook()
    async with ObjectServer() as server:
        server.put(PATH, DATA)
        server.faults = faults
        async with asyncpq.Session(server.storage_options, on_event=hook, **SETTINGS) as session:
            file = await session.open_file(URL)
            assert hook.last().operation == "open"
            assert hook.last().metrics is file.opening
            for name, verb in VERBS.items():
                session.memory_cache.clear()
                before = len(hook.told)
                cost = await cost_of(verb(file))
                *requests, ended = hook.told[before:]
                assert isinstance(ended, asyncpq.ReadEnded)
                assert (ended.operation, ended.url, ended.error) == (name, URL, None)
                assert ended.metrics.counts() == cost.counts()
                assert ended.seconds >= ended.metrics.wait_s > 0
                records = [event.record for event in requests if isinstance(event, asyncpq.RequestEnded)]
                assert len(records) == len(requests)
                assert list(map(id, records)) == list(map(id, cost.log))
            assert len(hook.requests) == len(server.log) == session.metrics.requests
            assert {event.url for event in hook.requests} == {URL}
            assert sum(event.record.attempt > 1 for event in hook.requests) == 2 * len(faults)
    assert len(hook.reads) == 1 + len(VERBS)


async def test_a_request_that_outlives_its_read_is_told_once() -> None:
    hook = Hook()
    async with ObjectServer() as server:
        server.put(PATH, DATA)
        async with asyncpq.Session(server.storage_options, on_event=hook, **SETTINGS) as session:
            file = await session.open_file(URL)
            server.latency_s = 0.5
            asked = len(server.log)
            first = asyncio.ensure_future(file.read(["name"]))
            second = asyncio.ensure_future(file.read(["name"]))
            async with asyncio.timeout(30):
                while len(server.log) == asked:  # noqa: ASYNC110  # then both wait for what the first asked for
                    await asyncio.sleep(0.01)
            first.cancel()
            await asyncio.wait([first])
            assert isinstance(hook.last().error, asyncio.CancelledError)
            told = len(hook.requests)
            assert (await second).num_rows == 4000
            assert len(hook.requests) == len(server.log) == session.metrics.requests > told
            assert sum(event.record.bytes for event in hook.requests) == session.metrics.bytes_fetched


async def failing_open(session: asyncpq.Session) -> None:
    await session.open_file("s3://lake/none.parquet")


async def failing_column(session: asyncpq.Session) -> None:
    await (await session.open_file(URL)).lookup({"id": 1}, ["none"])


async def failing_plan(session: asyncpq.Session) -> None:
    await (await session.open_file(URL)).plan(["none"])


async def failing_scan(session: asyncpq.Session) -> None:
    async with (await session.open_file(URL)).scan(["none"]):
        pass


async def failing_read(session: asyncpq.Session) -> None:
    file = await session.open_file(URL)
    with asyncpq.measure() as cost:
        try:
            await file.read(["none"])
        finally:
            assert cost.guarantee == file.metrics.guarantee == "pinned"  # a read that fails has a cost


@pytest.mark.parametrize(
    ("call", "operation", "error"),
    [
        (failing_open, "open", asyncpq.ObjectNotFoundError),
        (failing_column, "lookup", asyncpq.ColumnNotFoundError),
        (failing_plan, "plan", asyncpq.ColumnNotFoundError),
        (failing_scan, "scan", asyncpq.ColumnNotFoundError),
        (failing_read, "read", asyncpq.ColumnNotFoundError),
    ],
)
async def test_errors_end_the_call(call: Callable[..., Any], operation: str, error: type[Exception]) -> None:
    hook = Hook()
    async with ObjectServer() as server:
        server.put(PATH, DATA)
        async with asyncpq.Session(server.storage_options, on_event=hook, **SETTINGS) as session:
            with pytest.raises(error) as caught:
                await call(session)
            assert (hook.last().operation, hook.last().error) == (operation, caught.value)
            assert [ended.error for ended in hook.reads[:-1]] == [None] * (len(hook.reads) - 1)
            assert session.metrics.requests == len(hook.requests)
    assert [ended.operation == operation for ended in hook.reads].count(True) == 1


async def test_deadlines_and_cancellations_end_the_call() -> None:
    retry = asyncpq.RetryOptions(read_timeout_s=3.0)  # enough to open it on a slow machine

    async def ends_late_and_cancelled(verb: str, file: asyncpq.File, hook: Hook) -> None:
        with pytest.raises(asyncpq.DeadlineExceededError) as caught:
            await VERBS[verb](file)
        assert (hook.last().operation, hook.last().error) == (verb, caught.value)
        task = asyncio.ensure_future(VERBS[verb](file))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait([task])
        assert hook.last().operation == verb
        assert isinstance(hook.last().error, asyncio.CancelledError)
        assert len(hook.reads) == 3

    async with ObjectServer() as server, AsyncExitStack() as sessions:
        server.put(PATH, DATA)
        calls = []
        for verb in VERBS:
            if verb != "plan":  # which asks the store nothing
                hook = Hook()
                session = asyncpq.Session(on_event=hook, retry=retry, **SETTINGS)
                await sessions.enter_async_context(session)
                file = await session.open_file(f"{server.endpoint}/{PATH}")
                session.memory_cache.clear()
                calls.append((verb, file, hook))
        server.faults = [Fault(stall_headers=True, times=None)]
        await asyncio.gather(*(ends_late_and_cancelled(*call) for call in calls))


async def test_a_scan_lives_from_enter_to_close() -> None:
    hook = Hook()
    async with ObjectServer() as server:
        server.put(PATH, DATA)
        async with asyncpq.Session(server.storage_options, on_event=hook, **SETTINGS) as session:
            file = await session.open_file(URL)
            never = file.scan()
            await never.close()
            assert len(hook.reads) == 1
            scan = file.scan(batch_size=10)
            try:
                async with scan:
                    assert await anext(scan)
                    assert len(hook.reads) == 1
                    raise ZeroDivisionError  # the consumer's own, not the scan's
            except ZeroDivisionError:
                pass
            await scan.close()
            assert (hook.last().operation, hook.last().error) == ("scan", None)
            assert hook.last().metrics is scan.metrics
            left = await file.scan(batch_size=10).__aenter__()
            assert await anext(left)
            assert len(hook.reads) == 2
    assert len(hook.reads) == 3  # the session closed it


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError])
async def test_a_hook_that_raises_harms_nothing(error: type[BaseException], caplog: pytest.LogCaptureFixture) -> None:
    def hook(event: Event) -> None:
        raise error("from the hook")

    async with ObjectServer() as server:
        server.put(PATH, DATA)
        async with asyncpq.Session(server.storage_options, on_event=hook, **SETTINGS) as session:
            file = await session.open_file(URL)
            assert (await file.lookup({"id": 5}, ["value"])).to_pylist() == [{"value": 5}]
            reads = 2
            assert session.metrics.requests == len(server.log)
    logged = [record for record in caplog.records if record.name == "asyncpq.events"]
    assert len(logged) == len(server.log) + reads
    assert all(record.levelname == "ERROR" and record.exc_info for record in logged)


async def _hook(event: Event) -> None: ...


@pytest.mark.parametrize("hook", [_hook, "print", 3])
def test_what_cannot_be_called_is_no_hook(hook: Any) -> None:
    with pytest.raises(asyncpq.InvalidOptionError, match="on_event"):
        asyncpq.Session(on_event=hook)


# -- loggers --------------------------------------------------------------------------------------


async def test_loggers_tell_requests_and_reads(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "asyncpq")
    async with ObjectServer() as server:
        server.put(PATH, DATA)
        async with asyncpq.Session(server.storage_options, **SETTINGS) as session:
            file = await session.open_file(URL)
            cost = await cost_of(file.lookup({"id": 5}, ["value"]))
            with pytest.raises(asyncpq.ColumnNotFoundError):
                await file.count(asyncpq.col("none") == 1)
            requests = [record for record in caplog.records if record.name == "asyncpq.requests"]
            assert len(requests) == len(server.log)
            assert all(URL in record.getMessage() and "status 206" in record.getMessage() for record in requests)
            opened, looked, counted = [record for record in caplog.records if record.name == "asyncpq.reads"]
    assert {record.levelno for record in caplog.records} == {logging.DEBUG}
    assert opened.getMessage().startswith(f"open of {URL}, ")
    assert looked.getMessage().startswith(f"lookup of {URL}, ")
    assert f" ms: {cost.requests} requests" in looked.getMessage()
    assert "count" in counted.getMessage()
    assert "failed: ColumnNotFoundError: " in counted.getMessage()


async def test_nothing_is_logged_of_what_goes_well(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "asyncpq")
    async with ObjectServer() as server:
        server.put(PATH, DATA)
        server.faults = [Fault(status=503, times=1)]
        async with asyncpq.Session(server.storage_options, **SETTINGS) as session:
            for verb in VERBS.values():
                await verb(await session.open_file(URL))
    assert [record for record in caplog.records if record.name.startswith("asyncpq")] == []


async def test_a_restart_is_a_warning(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "_RESTARTS", events._Restarts())
    caplog.set_level(logging.INFO, "asyncpq")
    async with ObjectServer() as server:
        server.put(PATH, DATA)
        async with asyncpq.Session(server.storage_options, **SETTINGS) as session:
            file = await session.open_file(URL)
            server.put(PATH, parquet(offset=10_000))
            assert (await file.lookup({"id": 5}, ["value"])).to_pylist() == [{"value": 10_005}]
            assert file.metrics.restarts == 1
    (record,) = [record for record in caplog.records if record.name.startswith("asyncpq")]
    assert (record.name, record.levelno) == ("asyncpq.reads", logging.WARNING)
    assert record.getMessage() == f"lookup of {URL} starts again: the object has changed"


def test_restarts_are_logged_once_a_minute_and_object(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(events, "_RESTARTS", events._Restarts())
    monkeypatch.setattr("asyncpq.events.time.monotonic", lambda: clock[0])
    for second in range(130):
        clock[0] = float(second)
        for url in ("s3://bucket/a", "s3://bucket/b"):
            events.Operation("lookup", url, (), None).restarts()
    lines = [record.getMessage() for record in caplog.records]
    for url in ("s3://bucket/a", "s3://bucket/b"):
        first = f"lookup of {url} starts again: the object has changed"
        again = f"{first} (restarts since the last such line: 59)"
        assert [line for line in lines if url in line] == [first, again, again]


def test_the_objects_that_restarts_are_counted_for_are_bounded() -> None:
    restarts = events._Restarts()
    for number in range(3000):
        assert restarts.count(f"s3://bucket/{number}", 0.0) == 0
    assert len(restarts._by_url) == 1024
    assert restarts.count("s3://bucket/2999", 1.0) is None


# -- secrets --------------------------------------------------------------------------------------

SECRET = "hunter2hunter2"


@pytest.mark.parametrize("path", [PATH, "lake/none.parquet"])
@pytest.mark.parametrize("kind", ["s3", "http", "userinfo"])
async def test_no_secret_is_told(kind: str, path: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    hook = Hook()
    async with ObjectServer() as server:
        server.put(PATH, DATA)
        server.faults = [Fault(status=503, times=1)]
        options: dict[str, Any] = {}
        url = f"{server.endpoint}/{path}?X-Amz-Credential=AKIA&X-Amz-Signature={SECRET}&token={SECRET}"
        if kind == "userinfo":
            url = url.replace("http://", f"http://user:{SECRET}@").partition("?")[0]
        elif kind == "s3":
            url, options = f"s3://{path}", {**server.storage_options, "key": f"key{SECRET}", "secret": SECRET}
        async with asyncpq.Session(options, on_event=hook, **SETTINGS) as session:
            try:
                file = await session.open_file(url)
                await file.lookup({"id": 5}, ["value"])
            except asyncpq.ObjectNotFoundError:
                assert path != PATH
    assert hook.requests
    shown = [repr(hook.told), *(str(event) for event in hook.told), *(str(ended.error) for ended in hook.reads)]
    logged = [record for record in caplog.records if record.name.startswith("asyncpq")]
    assert logged
    shown.extend(logging.Formatter().format(record) for record in logged)
    assert not [text for text in shown if SECRET in text]
