"""What reads cost, as their metrics say it.

Holds: a session's figures are the sums of its reads'; requests and bytes by purpose add up to all of them; hits by
tier do to all hits; waiting is wall-clock time, and no decoding; the export is complete and plain.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncpq
from asyncpq.metrics import Purpose, ReadMetrics, RequestRecord
from asyncpq.testing import ObjectServer
from tests.verbs import DATA, PATH, SETTINGS, URL, VERBS

NUMBERS = [
    field.name
    for field in fields(ReadMetrics)
    if isinstance(field.default, (int, float)) and field.init and field.name not in ("began", "ended")
]
COUNTED = {"requests", "retries", "throttles", "hedges", "bytes_fetched", "rounds"}  # of the requests

records = st.builds(
    RequestRecord,
    method=st.just("GET"),
    purpose=st.sampled_from(get_args(Purpose)),
    start=st.just(0),
    stop=st.just(1),
    status=st.just(200),
    bytes=st.integers(0, 100),
    attempt=st.integers(1, 3),
    round=st.integers(1, 4),
    seconds=st.just(0.0),
    throttled=st.booleans(),
    hedge=st.booleans(),
)


@st.composite
def reads(draw: st.DrawFn) -> ReadMetrics:
    metrics = ReadMetrics()
    for name in set(NUMBERS) - COUNTED:
        setattr(metrics, name, draw(st.integers(0, 1000)))
    for record in draw(st.lists(records, max_size=5)):
        metrics.record(record)
    return metrics


@given(st.lists(reads(), max_size=4), st.lists(records, max_size=3))
def test_a_session_adds_up(ended: list[ReadMetrics], late: list[RequestRecord]) -> None:
    session = ReadMetrics()
    with asyncpq.measure() as block:
        for read in ended:
            read.add_to(session, block)
    for name in NUMBERS:
        assert getattr(session, name) == sum(getattr(read, name) for read in ended), name
    assert session.log == []
    if ended:
        for record in late:  # of fetches that outlive the read
            ended[0].record(record)
    log = [record for read in ended for record in read.log]
    assert block.counts() == session.counts()
    assert sorted(map(id, block.log)) == sorted(map(id, log))
    for metrics in (session, *ended):
        own = log if metrics is session else metrics.log
        assert metrics.requests == len(own) == sum(metrics.requests_by_purpose.values())
        assert metrics.bytes_fetched == sum(metrics.bytes_by_purpose.values())
        for purpose in get_args(Purpose):
            asked = [record.bytes for record in own if record.purpose == purpose]
            assert metrics.requests_by_purpose.get(purpose, 0) == len(asked)
            assert metrics.bytes_by_purpose.get(purpose, 0) == sum(asked)
        assert metrics.memory_hits + metrics.disk_hits + metrics.shared_hits == metrics.cache_hits


def test_the_export_is_complete_plain_and_a_copy() -> None:
    metrics = ReadMetrics(cache_hits=7, disk_hits=2, shared_hits=1, fallbacks=["why"], guarantee="pinned")
    exported = metrics.counts()
    assert exported["memory_hits"] == 4
    others = {"began", "ended", "log", "totals", "trace"}
    names = {field.name for field in fields(ReadMetrics) if field.init} - others | {"memory_hits"}
    assert set(exported) == names
    assert json.loads(json.dumps(exported)) == exported
    exported["fallbacks"].append("nothing")
    exported["bytes_by_purpose"]["data"] = 1
    assert (metrics.fallbacks, metrics.bytes_by_purpose) == (["why"], {})


async def test_the_document_of_a_read_has_its_requests_and_when_they_ran() -> None:
    async with ObjectServer() as server:
        server.put(PATH, DATA)
        async with asyncpq.Session(server.storage_options, **SETTINGS) as session:
            file = await session.open_file(URL)
            opened = file.opening
            assert opened is not None
            with asyncpq.measure() as cost:
                await VERBS["lookup"](file)
            documents = [opened.to_dict(), cost.to_dict()]
    for document, metrics in zip(documents, (opened, cost), strict=True):
        assert json.loads(json.dumps(document)) == document
        assert document["metrics"] == metrics.counts()
        requests = document["requests"]
        assert [(request["purpose"], request["bytes"]) for request in requests] == [
            (record.purpose, [record.start, record.stop]) for record in metrics.log
        ]
        for request in requests:
            assert request["url"] == URL
            first_byte_s = request["first_byte_s"]
            assert first_byte_s is not None
            assert request["began_s"] >= 0
            assert 0 <= first_byte_s <= request["seconds"]


async def test_hits_of_each_tier_are_counted(tmp_path: Path) -> None:
    async with ObjectServer() as server:
        server.put(PATH, DATA)
        for known in (False, True):
            async with asyncpq.Session(server.storage_options, disk_cache=tmp_path / "cache", **SETTINGS) as session:
                file = await session.open_file(URL)
                opened = session.metrics.counts()
                with asyncpq.measure() as first:
                    await VERBS["lookup"](file)
                with asyncpq.measure() as again:
                    await VERBS["lookup"](file)
            assert opened["disk_hits"] == known
            assert (opened["memory_hits"], first.memory_hits, first.shared_hits) == (0, 0, 0)
            assert (first.disk_hits > 0, first.cache_misses > 0) == (known, not known)
            assert (again.memory_hits > 0, again.disk_hits, again.cache_misses) == (True, 0, 0)


async def test_requests_are_told_by_purpose() -> None:
    async with ObjectServer() as server:
        server.put(PATH, DATA)
        async with asyncpq.Session(server.storage_options, cache_policy=asyncpq.etag(0), **SETTINGS) as session:
            file = await session.open_file(URL)
            for verb in VERBS.values():
                await verb(file)
            assert set(session.metrics.requests_by_purpose) == {"tail", "footer", "index", "data", "validate"}
            assert sum(session.metrics.requests_by_purpose.values()) == len(server.log)
            assert sum(session.metrics.bytes_by_purpose.values()) == server.bytes_sent


LATE: dict[str, Any] = {
    "requests": asyncpq.RequestOptions(tail_bytes=1700, gap_bytes=0, late_materialization="always"),
    "limits": asyncpq.LimitOptions(unit_bytes=4096),
}


@pytest.mark.parametrize("verb", ["lookup", "scan", "refresh"])
async def test_waiting_is_wall_clock_time_and_no_decoding(verb: str) -> None:
    """Latencies are slept for, so waiting has a least time; what is counted twice exceeds the time that passed."""
    latency_s = 0.08
    async with ObjectServer(latency_s=latency_s) as server:
        server.put(PATH, DATA)
        async with asyncpq.Session(server.storage_options, **LATE) as session:
            began = time.perf_counter()
            file = await session.open_file(URL)
            opened_s = time.perf_counter() - began
            assert 2 * latency_s <= session.metrics.wait_s <= opened_s  # tail, then footer
            began = time.perf_counter()
            await VERBS[verb](file)
            passed_s = time.perf_counter() - began
            cost = file.metrics
            assert cost.rounds * latency_s <= cost.wait_s <= passed_s
            assert cost.decode_s >= 0
            if verb == "lookup":  # one thing after another
                assert cost.rounds == 3
                assert cost.wait_s + cost.decode_s <= passed_s


@given(st.lists(st.lists(records, max_size=4), max_size=4), st.integers(0, 3), records)
def test_parts_add_up_side_by_side(parts: list[list[RequestRecord]], before: int, late: RequestRecord) -> None:
    session, whole = ReadMetrics(), ReadMetrics(rounds=before)
    ended = []
    for some in parts:
        part = whole.part(before)
        for record in some:
            part.record(record)
        whole.add_part(part)
        ended.append(part)
    everything = [record for some in parts for record in some]
    assert whole.requests == len(everything) == len(whole.log)
    assert whole.bytes_fetched == sum(record.bytes for record in everything)
    assert whole.rounds == max([before, *[record.round for record in everything]])  # not their sum
    whole.add_to(session)
    if ended:  # a fetch that outlives the file's part, and the read
        ended[0].record(late)
        assert (whole.requests, session.requests) == (len(everything) + 1, len(everything) + 1)


def test_waits_of_parts_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ReadMetrics()
    one, other = whole.part(0), whole.part(0)
    steps = [(1.0, one.wait_begins), (2.0, other.wait_begins), (4.0, one.wait_ends), (8.0, other.wait_ends)]
    for now, step in steps:
        monkeypatch.setattr("asyncpq.metrics.time.perf_counter", partial(float, now))
        step()
    whole.add_part(one)
    whole.add_part(other)
    assert (one.wait_s, other.wait_s, whole.wait_s) == (3, 6, 7)


async def test_calls_at_the_same_time_are_told_apart() -> None:
    async with ObjectServer() as server, asyncpq.Session(server.storage_options, **SETTINGS) as session:
        server.put(PATH, DATA)
        file = await session.open_file(URL)
        opening = len(server.log)

        async def cost_of(read: Callable[[], Awaitable[object]]) -> asyncpq.ReadMetrics:
            with asyncpq.measure() as cost:
                await read()
            return cost

        lookup, count, scan = await asyncio.gather(
            cost_of(lambda: file.lookup({"id": [5, 6]})), cost_of(file.count), cost_of(lambda: file.read(["id"]))
        )
        assert (lookup.rows_returned, count.requests) == (2, 0)
        assert scan.rows_returned == file.num_rows
        assert lookup.requests == len(lookup.log) > 0
        assert file.metrics.requests == lookup.requests + scan.requests == len(server.log) - opening
        assert session.metrics.requests == len(server.log)


async def test_a_block_counts_what_it_starts_and_nothing_else() -> None:
    async with ObjectServer() as server, asyncpq.Session(server.storage_options, **SETTINGS) as session:
        server.put(PATH, DATA)
        with asyncpq.measure() as outer:
            file = await session.open_file(URL)
            opening = len(server.log)
            with asyncpq.measure() as inner:
                await asyncio.gather(file.lookup({"id": 5}), file.lookup({"id": 6}))
            scan = file.scan(["id"])
            with pytest.raises(asyncpq.ColumnNotFoundError):
                await file.read(["nowhere"])
        assert (inner.rows_returned, outer.rows_returned) == (2, 2)
        assert outer.requests == inner.requests + opening
        async with scan:
            await scan.to_table()
        await file.count()
        assert outer.rows_returned == 2 + file.num_rows  # the scan, which the block made
        assert outer.requests == session.metrics.requests == len(server.log)


async def test_why_tells_of_one_call() -> None:
    async with ObjectServer() as server, asyncpq.Session(server.storage_options, **SETTINGS) as session:
        server.put(PATH, DATA)
        file = await session.open_file(URL)
        first = (await file.why(lookup={"id": 5})).to_dict()
        again = (await file.why(lookup={"id": 5})).to_dict()
        assert len(first["requests"]) > len(again["requests"]) == 0


async def test_a_measured_generator_may_be_abandoned(tmp_path: Path) -> None:
    """asyncio closes it in a task of its own, whose context is another."""
    (tmp_path / "a.parquet").write_bytes(DATA)
    async with asyncpq.Session() as session:
        file = await session.open_file(tmp_path / "a.parquet")

        async def counts() -> AsyncGenerator[tuple[int, ReadMetrics]]:
            with asyncpq.measure() as cost:
                while True:
                    yield await file.count(where="id < 0"), cost

        generator = counts()
        _, cost = await anext(generator)
        await asyncio.create_task(generator.aclose())
        assert cost.requests == session.metrics.requests - 1


def test_blocking_calls_are_measured(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(DATA)
    with asyncpq.measure() as opening, asyncpq.blocking.open_file(tmp_path / "a.parquet") as file:
        assert file.opening is not None
        assert (file.opening.counts(), file.opening.requests) == (opening.counts(), 1)
        with asyncpq.measure() as cost:
            file.lookup({"id": 5})
            assert len(list(file.scan(["id"], limit=3))) == 1
        file.lookup({"id": [6, 7]})
        assert cost.rows_returned == 4
        assert file.metrics.rows_returned == 6
