"""Files that an index knows, and that were replaced since: the first GET says so, and what comes is the new one's."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.testing import ObjectServer
from tests.lakes import ask_known, keep
from tests.parquet_bytes import parquet_bytes

KEY = "bucket/file.parquet"
URL = f"s3://{KEY}"
ROWS = 1000


def file_bytes(tag: int, *, page_index: bool = True) -> bytes:
    table = pa.table({"id": range(ROWS), "tag": [tag] * ROWS})
    options = {"write_batch_size": 100, "data_page_size": 400, "use_dictionary": False}
    return parquet_bytes(table, write_page_index=page_index, **options)


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        yield running


def session(server: ObjectServer) -> asyncpq.Session:
    return asyncpq.Session(server.storage_options, requests=asyncpq.RequestOptions(tail_bytes=8, gap_bytes=0))


def taken(server: ObjectServer) -> list[tuple[int, str]]:
    """Status of each request since the last call, and whether a suffix or a range was asked for."""
    log = [
        (request.status, "tail" if (request.range or "").startswith("bytes=-") else "range") for request in server.log
    ]
    server.log.clear()
    return log


async def tags(file: asyncpq.File) -> list[int]:
    found: list[int] = (await file.lookup({"id": 700}, columns=["tag"]))["tag"].to_pylist()
    return found


@pytest.mark.parametrize("page_index", [True, False])
async def test_a_lookup_is_one_round_of_pinned_pages(server: ObjectServer, page_index: bool) -> None:
    server.put(KEY, file_bytes(1, page_index=page_index))
    async with session(server) as building:
        known = (await keep(building, URL)).known()
    taken(server)
    async with session(server) as reading:

        async def question(file: asyncpq.File) -> list[int]:
            found = await tags(file)
            assert file.metrics.rounds == 1
            return found

        assert await ask_known(reading, URL, known, question) == [1]
        assert all("if-match" in request.headers for request in server.log)
        assert taken(server) == [(206, "range")] * 2  # a page of each column
        assert await ask_known(reading, URL, known, tags) == [1]
        assert taken(server) == []  # the policy lets what was just validated be served


async def test_a_replaced_file_is_read_anew(server: ObjectServer) -> None:
    server.put(KEY, file_bytes(1))
    async with session(server) as building:
        known = (await keep(building, URL)).known()
    server.put(KEY, file_bytes(2))
    taken(server)
    async with session(server) as reading:
        assert await ask_known(reading, URL, known, tags) == [2]
        log = taken(server)
        assert {entry for entry in log if entry[0] == 412} == {(412, "range")}
        assert (206, "tail") in log
        # by now the session knows better than the index
        assert await ask_known(reading, URL, known, tags) == [2]
        assert taken(server) == []


async def test_a_version_that_is_gone_is_asked_for_once(server: ObjectServer) -> None:
    server.put(KEY, file_bytes(1))
    async with session(server) as building:
        known = (await keep(building, URL)).known()
    server.put(KEY, file_bytes(2))
    async with asyncpq.Session(server.storage_options, cache_policy=asyncpq.etag(max_age_s=0)) as reading:
        assert await ask_known(reading, URL, known, tags) == [2]
        taken(server)
        assert await ask_known(reading, URL, known, tags) == [2]
        assert {entry[0] for entry in taken(server)} == {206}


async def test_what_the_session_has_just_seen_counts_more_than_an_index(server: ObjectServer) -> None:
    server.put(KEY, file_bytes(1))
    async with session(server) as building:
        known = (await keep(building, URL)).known()
    server.put(KEY, file_bytes(2))
    async with session(server) as reading:
        async with await reading.open_file(URL) as file:
            assert await tags(file) == [2]
        taken(server)
        assert await ask_known(reading, URL, known, tags) == [2]
        assert taken(server) == []


async def test_an_index_newer_than_what_was_seen_long_ago_is_believed(server: ObjectServer) -> None:
    server.put(KEY, file_bytes(1))
    policy = asyncpq.etag(max_age_s=0)
    async with asyncpq.Session(server.storage_options, cache_policy=policy) as reading:
        async with await reading.open_file(URL) as file:
            assert await tags(file) == [1]
        server.put(KEY, file_bytes(2))
        async with session(server) as building:
            known = (await keep(building, URL)).known()
        taken(server)
        assert await ask_known(reading, URL, known, tags) == [2]
        assert {entry[1] for entry in taken(server)} == {"range"}


async def test_positions_of_a_replaced_file_are_not_guessed(server: ObjectServer) -> None:
    server.put(KEY, file_bytes(1))
    async with session(server) as building:
        known = (await keep(building, URL)).known()
    server.put(KEY, file_bytes(2))
    async with session(server) as reading:
        with pytest.raises(asyncpq.ObjectChangedError):
            await ask_known(reading, URL, known, lambda file: file.take([700]))
