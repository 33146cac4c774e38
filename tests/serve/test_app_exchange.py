"""The work on a request ends with its client; its body is bounded."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import httpx
import pytest

from asyncpq.serve import app
from asyncpq.serve.app import ClientGoneError, ServerExchange
from asyncpq.serve.problems import Problem
from asyncpq.serve.requests import MAX_BODY
from tests.serve.services import TOKEN, bearer, client_of, configuration, listening, service_of, write_lake


def exchange(*messages: dict[str, Any], method: str = "GET") -> ServerExchange:
    queue = list(messages)

    async def receive() -> Any:
        if not queue:
            await asyncio.Event().wait()
        return queue.pop(0)

    async def send(message: Any) -> None: ...

    scope = {"type": "http", "method": method, "query_string": b"", "headers": [], "path": "/"}
    return ServerExchange(scope, receive, send)


GONE: dict[str, Any] = {"type": "http.disconnect"}


async def test_work_is_cancelled_when_the_client_goes() -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # what ends takes its time, and is waited for
            ended.append("work")

    with pytest.raises(ClientGoneError):
        await exchange(GONE).while_client_waits(work())
    assert ended == ["work"]
    task = asyncio.create_task(exchange().while_client_waits(work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == ["work", "work"]


@pytest.mark.parametrize("grace_s", [0.0, 10.0])
async def test_work_that_was_given_up_holds_nothing(monkeypatch: pytest.MonkeyPatch, grace_s: float) -> None:
    """Else cancelled answers would keep gigabytes until the garbage collector runs."""
    monkeypatch.setattr(app, "GRACE_S", grace_s)

    class Held:
        pass

    held: list[weakref.ref[Held]] = []

    async def work(one: ServerExchange) -> None:
        rows = Held()
        held.append(weakref.ref(rows))
        await asyncio.sleep(10)
        del rows, one

    gc.collect()
    gc.disable()
    try:
        one = exchange(GONE)
        with pytest.raises(ClientGoneError):
            await one.while_client_waits(work(one))
        for _ in range(3):
            await asyncio.sleep(0)
        assert one.unfinished is None
        del one
        assert [ref() for ref in held] == [None]
    finally:
        gc.enable()


async def test_work_that_ends_gives_its_error() -> None:
    async def work() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await exchange().while_client_waits(work())


async def test_a_body_is_read_to_its_end() -> None:
    first: dict[str, Any] = {"type": "http.request", "body": b"a", "more_body": True}
    assert await exchange(first, {"type": "http.request", "body": b"b"}).body() == b"ab"
    with pytest.raises(ClientGoneError):
        await exchange(first, GONE).body()
    with pytest.raises(Problem, match="more than"):
        await exchange({"type": "http.request", "body": b" " * (MAX_BODY + 1), "more_body": True}).body()


@pytest.mark.faults
async def test_a_read_ends_when_its_client_closes_the_connection(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_lake(tmp_path)
    async with client_of(configuration(f"{tmp_path}/")) as client:
        service = service_of(client)
        served = service._datasets["trips"]
        began, ended = asyncio.Event(), asyncio.Event()

        async def wait() -> Any:
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                ended.set()

        monkeypatch.setattr(served, "dataset", wait)
        async with (
            listening(service.app, lifespan="off") as url,
            httpx.AsyncClient(base_url=url, headers=bearer(TOKEN)) as real,
        ):
            task = asyncio.create_task(real.get("/v1/trips/scan"))
            await began.wait()
            assert service._slots.taken == 1
            task.cancel()
            await ended.wait()
            text = (await real.get("/metrics")).text
        assert service._slots.taken == 0
        assert 'asyncpq_serve_requests_total{dataset="trips",status="gone",verb="scan"} 1.0' in text


@pytest.mark.faults
async def test_a_client_that_sends_too_slowly_is_ended(tmp_path: Any) -> None:
    """A body that never ends holds its slot no longer than an answer may take."""
    write_lake(tmp_path)
    async with client_of(configuration(f"{tmp_path}/", limits={"seconds": 0.05})) as client:
        service = service_of(client)
        sent: list[Any] = []

        async def receive() -> Any:
            if not service._slots.taken:
                raise AssertionError
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        headers = [(b"authorization", f"Bearer {TOKEN}".encode())]
        scope = {"type": "http", "method": "POST", "path": "/v1/trips/scan", "query_string": b"", "headers": headers}
        await service.app(scope, receive, send)
        assert sent[0]["status"] == 504
        assert service._slots.taken == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("verb", "asked", "status"),
    [
        ("lookup", b"{", 400),
        ("lookup", b"[" * 100_000, 400),
        ("lookup", {"keys": {"nothing": [1]}}, 400),
        ("count", {"where": "id = 1 and"}, 400),
        ("count", {"where": "nothing = 1"}, 400),
        ("count", {"where": " or ".join(f"id = {number}.5" for number in range(300))}, 400),
        ("scan", {"columns": ["nothing"]}, 400),
    ],
)
async def test_a_request_that_failed_is_freed_at_once(tmp_path: Any, verb: str, asked: Any, status: int) -> None:
    """Its frames have its body, of up to 4 MB: until the garbage collector runs, hundreds of them would stay."""
    write_lake(tmp_path)

    def problems() -> int:
        return sum(isinstance(one, Problem) for one in gc.get_objects())

    async with client_of(configuration(f"{tmp_path}/")) as client:
        content = {"content": asked} if isinstance(asked, bytes) else {"json": asked}
        await client.post(f"/v1/trips/{verb}", headers=bearer(TOKEN), **content)
        gc.collect()
        gc.disable()
        try:
            before = problems()
            for _ in range(3):
                answer = await client.post(f"/v1/trips/{verb}", headers=bearer(TOKEN), **content)
                assert answer.status_code == status, answer.text
            await asyncio.sleep(0.01)
            assert problems() <= before
        finally:
            gc.enable()
