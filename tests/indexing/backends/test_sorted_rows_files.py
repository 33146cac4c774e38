"""The size of segment files and of their footers."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.indexing import FolderBackend
from asyncpq.indexing.backends import sorted_rows as segment_file
from asyncpq.indexing.index_model import Segment, SegmentQuery
from asyncpq.metrics import ReadMetrics
from asyncpq.testing import ObjectServer
from asyncpq.testing.backend_contract import write
from tests.indexing.backends.postings import postings

pytestmark = pytest.mark.io

NUM_ROWS = 120_000


async def test_a_long_footer_comes_deflated(tmp_path: Path) -> None:
    """From a copy of it in the file, which others read as any."""
    async with ObjectServer() as server:
        server.put("bucket/x", b"")
        requests = asyncpq.RequestOptions(whole_segment_bytes=1000)
        async with asyncpq.Session(storage_options=server.storage_options, requests=requests) as session:
            backend = FolderBackend(session._runtime, "s3://bucket/index")
            rows = postings(NUM_ROWS)
            segment = await write(backend, "a", "keys", rows)
            packed, tail = segment.extra["packed"], segment.extra["tail"]
            assert packed < tail / 2
            server.log.clear()
            await brought(backend, session, segment)
            stop = segment.size - tail
            assert [request.range for request in server.log] == [f"bytes={stop - packed}-{stop - 1}"]
            path = tmp_path / "segment.parquet"
            path.write_bytes(server.objects["bucket/index/segments/a.parquet"].data)
            assert pq.read_table(path).equals(rows)


async def brought(backend: FolderBackend, session: asyncpq.Session, segment: Segment) -> ReadMetrics:
    """What it takes to bring what is kept of a segment to find its rows."""
    operation = session._runtime.operation("lookup", "x")
    with operation:
        await backend.read_segment(segment, SegmentQuery([]), operation=operation)
    return operation.metrics


async def test_a_posting_takes_at_most_16_bytes_and_its_key(tmp_path: Path) -> None:
    async with asyncpq.Session() as session:
        backend = FolderBackend(session._runtime, str(tmp_path))
        segment = await write(backend, "a", "keys", postings(NUM_ROWS))
        assert segment.size / NUM_ROWS < 16


async def test_the_footer_stays_small_whatever_the_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As 20 million rows and 256 KiB would, in small."""
    monkeypatch.setattr(segment_file, "FOOTER_BYTES", 4096)
    async with asyncpq.Session() as session:
        backend = FolderBackend(session._runtime, str(tmp_path))
        segment = await write(backend, "a", "keys", postings(NUM_ROWS))
        assert 1024 < segment.extra["tail"] <= 4096
