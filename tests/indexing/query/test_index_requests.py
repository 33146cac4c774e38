"""Which objects a dataset with an index asks for, cold and warm, by bounds and by keys: exact requests and rounds."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import col
from asyncpq.dataset import Dataset
from asyncpq.indexing import Bloom, Bounds, Footers, Keys
from asyncpq.indexing.backends import folder
from asyncpq.indexing.backends import sorted_rows as segment_file
from asyncpq.indexing.backends.folder import FolderBackend
from asyncpq.indexing.commits import Head, latest
from asyncpq.indexing.index_model import IndexTable
from asyncpq.indexing.query.index_query import OpenIndex
from asyncpq.opening.datasets import open_indexed, open_snapshot
from asyncpq.testing import ObjectServer
from tests.lakes import FOOTERS, indexed
from tests.parquet_bytes import parquet_bytes

pytestmark = pytest.mark.io

FILES, ROWS = 20, 1000
LAKE, INDEX = "s3://bucket/lake/", "s3://bucket/index/"
BOUNDS, KEYS = IndexTable("bounds", ("id",)), IndexTable("keys", ("user",))
USERS = random.Random(7).sample(range(FILES * ROWS), FILES * ROWS)


def file_bytes(number: int) -> bytes:
    """Ids ascend over all files, users are in random order; four pages of each column, page index."""
    rows = range(number * ROWS, (number + 1) * ROWS)
    columns = {"id": list(rows), "user": [USERS[row] for row in rows], "text": [f"text {row}" * 20 for row in rows]}
    options: dict[str, Any] = {"max_rows_per_page": 250, "write_batch_size": 250, "use_dictionary": False}
    return parquet_bytes(pa.table(columns), compression="none", write_page_index=True, **options)


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    """A lake with an index beside it."""
    async with ObjectServer() as running:
        for number in range(FILES):
            running.put(f"bucket/lake/{number:02d}.parquet", file_bytes(number))
        await build(running)
        yield running


async def build(server: ObjectServer) -> None:
    async with session(server) as s:
        schema = (await s.open_file(f"{LAKE}00.parquet")).schema
        paths = [f"{number:02d}.parquet" for number in range(FILES)]
        await indexed(s, FolderBackend(s._runtime, INDEX), LAKE, paths, [BOUNDS, KEYS, FOOTERS], schema)
    server.log.clear()


def session(server: ObjectServer, **requested: Any) -> asyncpq.Session:
    requests = asyncpq.RequestOptions(tail_bytes=4096, gap_bytes=0, **requested)
    return asyncpq.Session(server.storage_options, requests=requests)


async def opened(session: asyncpq.Session, max_age_s: float = 0.0) -> OpenIndex:
    backend = FolderBackend(session._runtime, INDEX)
    manifest = await latest(backend)
    assert manifest is not None
    return OpenIndex(backend, Head(backend, manifest), max_age_s)


def taken(server: ObjectServer) -> list[str]:
    """What was asked for since the last call: what it was, and how; sorted."""
    lines = []
    for request in server.log:
        folder, _, path = request.path.partition("bucket/")[2].partition("/")
        kind = path if folder == "lake" else path.partition("/")[0]
        how = " tail" if (request.range or "").startswith("bytes=-") else " range"
        lines.append("LIST" if request.range is None else f"{kind}{how}")
    server.log.clear()
    return sorted(lines)


async def looked_up(dataset: Dataset, **key: Any) -> tuple[int, int, int]:
    """Look one row up. Returns rounds, requests, and files that were opened."""
    with asyncpq.measure() as cost:
        assert (await dataset.lookup(key, ["text"])).num_rows == 1
    return cost.rounds, cost.requests, cost.files_opened


async def test_small_segments_come_whole_beside_the_probe(server: ObjectServer) -> None:
    async with session(server) as s:
        dataset = open_snapshot(s._runtime, await opened(s), skips=False)
        assert taken(server) == ["latest tail"]
        assert await looked_up(dataset, id=7_300) == (2, 6, 1)
        # the probe of the next manifest, beside bounds, files and footers; then pages of one file
        assert taken(server) == ["07.parquet range"] * 2 + ["manifests tail"] + ["segments tail"] * 3
        assert await looked_up(dataset, id=9_900) == (1, 3, 1)
        assert taken(server) == ["09.parquet range", "09.parquet range", "manifests tail"]
        assert await looked_up(dataset, user=USERS[5_700]) == (2, 4, 1)
        assert taken(server) == ["05.parquet range", "05.parquet range", "manifests tail", "segments tail"]
        with asyncpq.measure() as cost:
            assert await looked_up(dataset, user=USERS[3_200]) == (1, 3, 1)
        assert taken(server) == ["03.parquet range", "03.parquet range", "manifests tail"]
        assert cost.rows_scanned == 1  # the posting names the row
        assert (cost.files_total, cost.files_ruled_out) == (FILES, FILES - 1)


async def test_large_segments_take_a_round_for_keys_and_one_for_files(server: ObjectServer) -> None:
    async with session(server, whole_segment_bytes=0) as s:
        dataset = open_snapshot(s._runtime, await opened(s), skips=False)
        taken(server)
        assert await looked_up(dataset, user=USERS[5_700]) == (4, 8, 1)
        # beside the footer of the keys come those of files and footers; then keys; what is known of the footer (the
        # list of files is so short that it came with its own); data
        tails = ["manifests tail"] + ["segments tail"] * 3
        assert taken(server) == ["05.parquet range"] * 2 + [tails[0]] + ["segments range"] * 2 + tails[1:]
        assert await looked_up(dataset, user=USERS[8_700]) == (2, 4, 1)
        assert taken(server) == ["08.parquet range", "08.parquet range", "manifests tail", "segments range"]


@pytest.mark.heavy
async def test_footers_come_piece_by_piece_to_lookups_by_keys(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And whole to those by bounds, which would wait a round more. As in a large lake, in small."""
    monkeypatch.setattr(segment_file, "_WHOLE_BYTES", 0)
    monkeypatch.setattr(segment_file, "_GROUP_BYTES", 4000)
    monkeypatch.setattr(segment_file, "_PACKED_BYTES", 0)
    monkeypatch.setattr(folder, "_SMALL_BYTES", 4000)
    server.objects = {name: found for name, found in server.objects.items() if "/index/" not in name}
    await build(server)
    async with session(server, whole_segment_bytes=64 * 1024) as s:
        dataset = open_snapshot(s._runtime, await opened(s), skips=False)
        assert taken(server) == ["latest tail"]
        assert await looked_up(dataset, user=USERS[5_700]) == (4, 8, 1)
        # files whole, footers of the others beside the probe; keys; what is known of the file; data
        assert taken(server) == ["05.parquet range"] * 2 + ["manifests tail"] + ["segments range"] * 4 + [
            "segments tail"
        ]
        assert await looked_up(dataset, user=USERS[18_700]) == (3, 5, 1)
        assert taken(server) == ["18.parquet range"] * 2 + ["manifests tail"] + ["segments range"] * 2
        assert await looked_up(dataset, user=USERS[18_200]) == (2, 4, 1)
        assert taken(server) == ["18.parquet range"] * 2 + ["manifests tail"] + ["segments range"]
    async with session(server, whole_segment_bytes=64 * 1024) as s:
        dataset = open_snapshot(s._runtime, await opened(s), skips=False)
        assert await looked_up(dataset, id=5_700) == (2, 6, 1)
        assert await looked_up(dataset, id=18_700) == (1, 3, 1)


async def test_a_young_snapshot_is_not_probed(server: ObjectServer) -> None:
    async with session(server) as s:
        dataset = open_snapshot(s._runtime, await opened(s, max_age_s=60), skips=False)
        await dataset.lookup({"id": 7_300}, ["text"])
        taken(server)
        await dataset.lookup({"id": 7_700}, ["id"])
        assert taken(server) == ["07.parquet range"]


async def test_listed_files_are_pruned_by_the_index(server: ObjectServer) -> None:
    """Also those of which nothing else is known; one that was replaced is read without it."""
    async with session(server) as s:
        base = await s.open_dataset(LAKE)
        taken(server)
        dataset = open_indexed(s._runtime, base, await opened(s))
        taken(server)
        assert (await dataset.lookup({"user": USERS[5_700]}, ["text"])).num_rows == 1
        asked = taken(server)
        assert [line for line in asked if "parquet" in line] == ["05.parquet range", "05.parquet range"]
        server.put("bucket/lake/19.parquet", file_bytes(5))
        assert (await dataset.lookup({"user": USERS[5_700]}, ["text"])).num_rows == 2
        assert "19.parquet tail" in taken(server)


async def below(server: ObjectServer, num_files: int = FILES) -> None:
    """An index in its place below the prefix, of files without page indexes and statistics of ``user``."""
    for number in range(num_files):
        server.put(f"bucket/lake/{number:03d}.parquet", file_bytes(number % FILES))
    async with session(server) as s:
        await s.build_index(LAKE, [Bounds("id"), Keys("user"), Footers()])
    server.log.clear()


def asked_of(server: ObjectServer) -> list[str]:
    """What was asked for since the last call: listings, of the index, and data files by name; sorted."""
    lines = []
    for request in server.log:
        path = request.path.partition("bucket/")[2].removeprefix("lake/")
        lines.append("LIST" if request.range is None else "index" if path.startswith("_asyncpq/") else path)
    server.log.clear()
    return sorted(lines)


@pytest.mark.heavy
async def test_the_index_below_a_prefix_is_found_in_the_listing(server: ObjectServer) -> None:
    """It is opened beside the first footer; a lookup asks one listing, and pages. Without it, each file is opened."""
    await below(server)
    async with session(server) as s:
        dataset = await s.open_dataset(LAKE)
        assert dataset.view == "listed"
        assert asked_of(server) == ["00.parquet", "LIST", "index"]
        assert dataset.opening is not None
        assert dataset.opening.rounds == 2
        with asyncpq.measure() as cost:
            assert (await dataset.lookup({"user": USERS[5_700]}, ["text"])).num_rows == 2  # two files have them
        asked = asked_of(server)
        assert [line for line in asked if line != "index"] == ["005.parquet"] * 2 + ["05.parquet"] * 2 + ["LIST"]
        assert cost.rounds <= 3
        with asyncpq.measure() as cost:
            assert (await dataset.lookup({"user": USERS[3_200]}, ["text"])).num_rows == 2
        assert asked_of(server) == ["003.parquet"] * 2 + ["03.parquet"] * 2 + ["LIST"]
        assert cost.rounds <= 2  # a fast listing may have ended before the pages are asked for
        server.put("bucket/lake/006.parquet", file_bytes(3))
        assert (await dataset.lookup({"user": USERS[3_200]}, ["id"])).num_rows == 3
        assert "006.parquet" in asked_of(server)
        assert (await dataset.lookup({"user": USERS[6_200]}, ["id"])).num_rows == 1
        await (await s.open_index(f"{LAKE}_asyncpq/")).refresh()
        await dataset.count(col("user") == -1)  # looks for a newer snapshot beside it all
        asked_of(server)
        assert (await dataset.lookup({"user": USERS[6_700]}, ["id"])).num_rows == 1
        assert [line for line in asked_of(server) if line != "index"] == ["06.parquet"] * 2 + ["LIST"]
        assert await dataset.count(col("user") == -1) == 0
        assert asked_of(server) == ["LIST"]


@pytest.mark.heavy
async def test_lookups_in_the_listed_view_open_only_files_that_may_match(server: ObjectServer) -> None:
    server.objects = {name: found for name, found in server.objects.items() if "/lake/" not in name}
    await below(server, 100)
    for view in (None, "listed"):
        async with session(server) as s:
            dataset = await s.open_dataset(LAKE, view=view)
            server.log.clear()
            assert (await dataset.lookup({"user": USERS[5_700]}, ["text"])).num_rows == 5
            metrics = dataset.metrics
            assert (metrics.files_opened, metrics.requests_by_purpose["list"]) == (5, 1)
            assert metrics.requests - 2 * 5 <= 7  # two pages of each file
            explained = (await dataset.plan(lookup={"user": USERS[5_700]})).explain()
            assert "view listed" in explained
            assert "listing: 1 request" in explained
            assert "view='snapshot' would save the listing (1 request" in explained


@pytest.mark.heavy
async def test_the_snapshot_view_lists_nothing(server: ObjectServer) -> None:
    await below(server)
    async with session(server) as s:
        dataset = await s.open_dataset(LAKE, view="snapshot")
        assert (await dataset.lookup({"user": USERS[5_700]}, ["text"])).num_rows == 2
        assert "LIST" not in asked_of(server)
        for options in ({"index": False}, {"partitioning": None}):
            with pytest.raises(asyncpq.InvalidOptionError):
                await s.open_dataset(LAKE, view="snapshot", **options)


@pytest.mark.heavy
async def test_a_young_listing_serves_lookups_by_the_index(server: ObjectServer) -> None:
    await below(server)
    async with session(server) as s:
        dataset = await s.open_dataset(LAKE, listing_max_age_s=60)
        await dataset.lookup({"user": USERS[5_700]}, ["text"])
        asked_of(server)
        await dataset.lookup({"user": USERS[3_200]}, ["text"])
        assert asked_of(server) == ["003.parquet"] * 2 + ["03.parquet"] * 2


@pytest.mark.heavy
async def test_bloom_filters_are_asked_of_listed_files(server: ObjectServer) -> None:
    async with session(server) as s:
        await s.build_index(LAKE, [Bloom("user")])
        dataset = await s.open_dataset(LAKE)
        assert await dataset.count(col("user") == USERS[5_700]) == 1
        assert dataset.metrics.files_opened <= 3


async def test_a_replaced_file_of_a_snapshot_is_read_anew(server: ObjectServer) -> None:
    async with session(server) as s:
        dataset = open_snapshot(s._runtime, await opened(s), skips=False)
        server.put("bucket/lake/05.parquet", file_bytes(4))
        taken(server)
        assert (await dataset.lookup({"user": USERS[5_700]}, ["text"])).num_rows == 0
        assert "05.parquet tail" in taken(server)
        assert dataset.metrics.restarts == 1
        server.put("bucket/lake/06.parquet", file_bytes(5))
        assert (await dataset.lookup({"id": 6_100}, ["id"])).num_rows == 0
        assert (await dataset.lookup({"id": 5_100}, ["id"])).num_rows == 0  # of 05, which has others now
        explained = (await dataset.plan(lookup={"id": 7_000})).explain()
        assert "snapshot 1 of 2026-01-02" in explained
        assert "index bounds(id): 1 of 20 files" in explained
        assert "files written since are not seen" in explained


async def test_what_no_file_can_match_costs_the_probe_alone(server: ObjectServer) -> None:
    async with session(server) as s:
        dataset = open_snapshot(s._runtime, await opened(s), skips=False)
        await dataset.lookup({"id": 1}, ["id"])
        taken(server)
        assert await dataset.count(asyncpq.col("id") < 0) == 0
        assert taken(server) == ["manifests tail"]
