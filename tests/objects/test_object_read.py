"""Parts of one version of an object: in several requests, from memory, and what is kept of them. Rounds of requests
teach what a server's requests and bytes cost; one that is broken off teaches nothing."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.object_read import MeasuredRound, ObjectRead
from asyncpq.objects.prices import Burst, Measured, PriceBook
from asyncpq.objects.source import open_source
from asyncpq.options import MIB, LimitOptions, RequestOptions
from asyncpq.storage.base import RequestContext
from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes

URL = "s3://lake/file.parquet"
SIZE = 64 * 1024


def parquet() -> bytes:
    return parquet_bytes(
        pa.table({"id": pa.array(range(40_000), pa.int64())}), compression="none", use_dictionary=False
    )


DATA = parquet()


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        running.put("lake/file.parquet", DATA)
        yield running


@pytest.mark.parametrize("admit", [True, False])
async def test_each_part_is_whole_wherever_the_requests_are_cut(server: ObjectServer, admit: bool) -> None:
    """Admitted parts stay in memory, and keep no response alive; those that are used once do not stay."""
    requests = asyncpq.RequestOptions(tail_bytes=4096, gap_bytes=0, part_bytes=SIZE)
    async with asyncpq.Session(server.storage_options, requests=requests) as session:
        await session.open_file(URL)
        runtime = session._runtime
        source = await open_source(runtime, URL)
        metrics = ReadMetrics()
        version = await source.version(RequestContext(metrics))
        edges = [4, 5, 1000, 50_000, 70_000, 70_001, 140_000, 200_000, 260_000]
        keys = [version.key("page", start, stop) for start, stop in itertools.pairwise(edges)]
        held = pa.total_allocated_bytes()
        server.log.clear()
        parts = await ObjectRead(source, version, metrics, admit=admit).fetch(keys, "data", 2)
        assert [bytes(part) for part in parts.data.values()] == [DATA[key.start : key.stop] for key in keys]
        ranges = [tuple(map(int, str(request.range)[6:].split("-"))) for request in server.log]
        assert len(ranges) == 4
        assert all(last - first < SIZE for first, last in ranges)
        if admit:
            assert [runtime.memory.get(key) for key in keys] == list(parts.data.values())
            assert pa.total_allocated_bytes() == held
            server.log.clear()
            again = await ObjectRead(source, version, metrics).fetch(keys, "data", 3)
            assert again.data == parts.data
            assert not server.log
        else:
            assert not any(runtime.memory.get_many(keys))
            del parts
            assert pa.total_allocated_bytes() == held


async def test_parts_of_a_replaced_object_are_refused(server: ObjectServer) -> None:
    requests = asyncpq.RequestOptions(tail_bytes=4096)
    async with asyncpq.Session(server.storage_options, requests=requests) as session:
        source = await open_source(session._runtime, URL)
        metrics = ReadMetrics()
        version = await source.version(RequestContext(metrics))
        server.put("lake/file.parquet", DATA + b"PAR1")
        with pytest.raises(asyncpq.ObjectChangedError):
            await ObjectRead(source, version, metrics).fetch([version.key("page", 4, 1000)], "data", 2)


# -- rounds ----------------------------------------------------------------------------------------


class _Source:
    """The part of an object's source that a round uses."""

    def __init__(self) -> None:
        self.book = PriceBook(RequestOptions(), LimitOptions())
        self.learned: list[Measured] = []

    def burst(self) -> Burst:
        return self.book.burst("s3")

    def learn_prices(self, measured: Measured) -> None:
        self.learned.append(measured)


def _round(source: Any, sizes: list[int]) -> MeasuredRound:
    return MeasuredRound(source, [], sizes, 8 * MIB)


def test_small_rounds_count_alone_and_large_ones_together() -> None:
    source = _Source()
    small, *large = _round(source, [1000]), _round(source, [9 * MIB]), _round(source, [MIB] * 3)
    small.ended()
    assert [(one.requests, one.num_bytes) for one in source.learned] == [(1, 1000)]
    large[1].ended()
    assert len(source.learned) == 1  # most bytes are still under way
    large[0].ended()
    assert (source.learned[1].requests, source.learned[1].num_bytes) == (5, 12 * MIB)
    for one in (small, *large):
        one.close()
    assert len(source.learned) == 2


def test_a_round_that_is_broken_off_leaves_no_burst_behind() -> None:
    source = _Source()
    broken, other = _round(source, [9 * MIB]), _round(source, [9 * MIB])
    broken.close()
    other.ended()
    assert source.learned == []
    following = _round(source, [9 * MIB])
    following.ended()
    assert [one.num_bytes for one in source.learned] == [9 * MIB]
