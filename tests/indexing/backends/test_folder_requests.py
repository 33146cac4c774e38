"""The requests of lookups in segments of a folder."""

from __future__ import annotations

import pytest

import asyncpq
from asyncpq.indexing import FolderBackend
from asyncpq.indexing.index_model import Segment, SegmentQuery
from asyncpq.metrics import ReadMetrics
from asyncpq.testing import ObjectServer
from asyncpq.testing.backend_contract import write
from tests.indexing.backends.postings import POINTS, cost, point_of, postings

pytestmark = pytest.mark.io

NUM_ROWS = 120_000


async def test_a_small_segment_is_one_request_and_then_none() -> None:
    async with ObjectServer() as server:
        server.put("bucket/x", b"")
        async with asyncpq.Session(storage_options=server.storage_options) as session:
            backend = FolderBackend(session._runtime, "s3://bucket/index")
            segment = await write(backend, "a", "keys", postings(20_000))
            cold = await cost(backend, session, segment, POINTS[0])
            assert (cold.requests, cold.rounds, cold.bytes_fetched) == (1, 1, segment.size)
            warm = await cost(backend, session, segment, POINTS[1])
            assert (warm.requests, warm.rounds, warm.cache_hits) == (0, 0, 1)
            assert (warm.rows_scanned, warm.row_groups_read, warm.pages_read) == (0, 0, 0)


async def test_a_large_segment_is_its_footer_and_one_request_a_key() -> None:
    async with ObjectServer() as server:
        server.put("bucket/x", b"")
        requests = asyncpq.RequestOptions(whole_segment_bytes=1000)
        async with asyncpq.Session(storage_options=server.storage_options, requests=requests) as session:
            backend = FolderBackend(session._runtime, "s3://bucket/index")
            segment = await write(backend, "a", "keys", postings(NUM_ROWS))
            cold = await cost(backend, session, segment, POINTS[0])
            assert (cold.requests, cold.rounds) == (2, 2)
            assert cold.bytes_fetched < 64 * 1024
            warm = await cost(backend, session, segment, POINTS[2])
            assert (warm.requests, warm.rounds) == (1, 1)
            assert warm.bytes_fetched < 40 * 1024
            hot = await cost(backend, session, segment, POINTS[2])
            assert (hot.requests, hot.rounds) == (0, 0)
            async with asyncpq.Session(storage_options=server.storage_options, requests=requests) as other:
                backend = FolderBackend(other._runtime, "s3://bucket/index")
                operation = other._runtime.operation("lookup", "x")
                with operation:
                    await backend.read_segment(segment, SegmentQuery([]), operation=operation)  # brings what is kept
                assert operation.metrics.requests == 1
                warmed = await cost(backend, other, segment, POINTS[0])
                assert (warmed.requests, warmed.rounds) == (1, 1)
                operation = other._runtime.operation("lookup", "x")
                with operation:
                    assert await backend.read_segment(segment, SegmentQuery(limit=1000), operation=operation) is None
                assert operation.metrics.requests == 0, "too many rows are known from the footer"


async def brought(backend: FolderBackend, session: asyncpq.Session, segment: Segment) -> ReadMetrics:
    """What it takes to bring what is kept of a segment to find its rows."""
    operation = session._runtime.operation("lookup", "x")
    with operation:
        await backend.read_segment(segment, SegmentQuery([]), operation=operation)
    return operation.metrics


async def test_a_segment_comes_whole_or_piece_by_piece() -> None:
    """Not above a megabyte: whole by a question, in one round; in pieces by one whose footer was asked for before."""
    async with ObjectServer() as server:
        server.put("bucket/x", b"")
        async with asyncpq.Session(storage_options=server.storage_options) as session:
            backend = FolderBackend(session._runtime, "s3://bucket/index")
            segment = await write(backend, "a", "keys", postings(60_000))
            assert 128 * 1024 < segment.size < 1024 * 1024
        for ahead in (True, False):
            async with asyncpq.Session(storage_options=server.storage_options) as session:
                backend = FolderBackend(session._runtime, "s3://bucket/index")
                if ahead:
                    footer = await brought(backend, session, segment)
                    assert footer.requests == 1
                    assert footer.bytes_fetched < 32 * 1024
                first, second = [await cost(backend, session, segment, point_of(at)) for at in (7, 50_007)]
                if ahead:
                    assert (first.requests, second.requests) == (1, 1)
                    assert first.bytes_fetched + second.bytes_fetched < 128 * 1024
                else:
                    assert (first.requests, first.bytes_fetched, second.requests) == (1, segment.size, 0)
