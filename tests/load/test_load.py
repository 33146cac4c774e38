"""Some seconds of `make load`: no request hangs, nothing of a client stays, the process ends in time.

Latencies have no goals here: the tests share the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import pytest

from tests.load.client import HOST, NO_ANSWER, Answer, Client, request
from tests.load.clients import Seconds, Tally, ordinary_questions
from tests.load.phases import LoadTest, Report, Settings
from tests.load.questions import EXPENSIVE, MAX_BODY, expensive
from tests.load.run import shown
from tests.load.service import Limits

SMALL = Settings(
    seconds=5,
    rows=8000,
    clients=40,
    killed=9,
    timed=False,
    names=("4 MB of []", "scan of all, json", "count, 24 likes", "like, 300 letters"),
    limits=Limits(drain_s=1, greedy_s=1, greedy_concurrent=4),
)


@pytest.mark.slow
async def test_a_small_load(tmp_path: Path) -> None:
    test = LoadTest(SMALL, tmp_path)
    report = await test.run()
    lines = "\n".join(shown(report))
    assert not report.missed, "\n".join([*report.missed, lines])
    assert set(report.rows) == {"idle", "crowd", "greedy", "SIGTERM"}
    assert set(report.health) == set(SMALL.names)
    assert test.service.starts == 1


@pytest.mark.parametrize("name", EXPENSIVE)
def test_expensive_requests_are_within_the_limits_on_lengths(name: str) -> None:
    head, _, body = expensive(name, "secret").partition(b"\r\n\r\n")
    assert len(head) < 64 << 10
    assert len(body) <= MAX_BODY


def test_percentiles() -> None:
    seconds = Seconds([one / 1000 for one in range(200, 0, -1)])
    assert [seconds.at(share) for share in (0, 0.5, 0.99, 1)] == [0.001, 0.101, 0.199, 0.2]
    assert Seconds().at(0.99) == 0
    assert Tally(seconds={"lookup": seconds}).latency() == {
        "lookup": {"answers": 200, "p50_ms": 101.0, "p99_ms": 199.0, "max_ms": 200.0}
    }


def test_what_is_wrong_with_an_answer() -> None:
    questions = ordinary_questions(100, 1)
    data = questions.made[0][1]
    vars(questions)["_right"][data] = b"rows"
    assert questions.wrong(data, Answer(200, b"rows", True)) is None
    assert questions.wrong(data, Answer(200, b"row", True)) == "another answer"
    assert questions.wrong(data, Answer(200, b"ro", False)) == "cut"
    assert questions.wrong(data, Answer(0, b"", False)) == "no connection"
    assert questions.wrong(data, Answer(504, b"", True)) == "504"
    assert questions.wrong(data, None) == "no answer"


async def test_a_kept_connection_that_the_server_has_closed_is_no_error() -> None:
    heads: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n1\r\nc\r\n0\r\n\r\n")
        with contextlib.suppress(EOFError):
            await reader.readexactly(1)  # the next request begins, and is not answered
        writer.close()

    async with await asyncio.start_server(answer, HOST, 0) as server:
        client = Client(server.sockets[0].getsockname()[1])
        for _ in range(2):
            assert await client.ask(request("GET", "/"), 5) == Answer(200, b"abc", True, True)
        assert len(heads) == 2
        client.close()
        server.close()
        assert await client.ask(request("GET", "/"), 5) == NO_ANSWER


async def test_a_client_that_gets_no_answer_in_time_has_none() -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf")
        if b"cut" not in await reader.readuntil(b"\r\n\r\n"):
            await reader.read()  # until the client is gone
        writer.close()

    async with await asyncio.start_server(answer, HOST, 0) as server:
        client = Client(server.sockets[0].getsockname()[1])
        assert await client.ask(request("GET", "/"), 0.2) is None
        assert await client.ask(request("GET", "/cut"), 5) == Answer(200, b"half", False)


def test_missed_goals_are_noted() -> None:
    report = Report()
    report.need(True, "a goal that is met")
    report.need(False, "one that is not")
    assert report.missed == ["one that is not"]
