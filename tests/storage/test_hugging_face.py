"""hf:// urls: rows of files on the Hub, through redirects to a CDN, and listings, against a stub of both."""

from __future__ import annotations

import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.fsspec import AsyncpqFileSystem
from asyncpq.storage import open_store
from asyncpq.storage.base import StoreLimits
from asyncpq.storage.hugging_face import Place, parse_place
from asyncpq.testing import Fault
from asyncpq.testing.object_server import Answer, LoggedRequest
from asyncpq.testing.store_contract import DATA, STORE_CHECKS
from tests.parquet_bytes import parquet_bytes
from tests.storage.hub_stub import TOKEN, Hub, running_hub
from tests.store_backends import FAST_RETRIES, Backend, new_context, open_test_store

TABLE = pa.table({"id": range(20_000), "text": [f"text {number:06d}" for number in range(20_000)]})


def parquet(table: pa.Table = TABLE) -> bytes:
    return parquet_bytes(table, write_page_index=True, data_page_size=4000, write_batch_size=500, use_dictionary=False)


@pytest.fixture(autouse=True)
def no_token_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "HF_ENDPOINT", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path))


@pytest.fixture
async def hub(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hub]:
    async with running_hub() as hub:
        hub.put("data/trips.parquet", parquet())
        monkeypatch.setenv("HF_ENDPOINT", hub.server.endpoint)
        yield hub


def session(**options: object) -> asyncpq.Session:
    requests = asyncpq.RequestOptions(tail_bytes=2000, gap_bytes=0)
    return asyncpq.Session(**{"retry": FAST_RETRIES, "requests": requests} | options)  # type: ignore[arg-type]


# -- urls -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("hf://datasets/o/n/a/b.parquet", ("datasets", "o/n", "main", "a/b.parquet")),
        ("hf://datasets/o/n@v1.0/a.parquet", ("datasets", "o/n", "v1.0", "a.parquet")),
        (
            "hf://datasets/o/n@refs/convert/parquet/d/0.parquet",
            ("datasets", "o/n", "refs/convert/parquet", "d/0.parquet"),
        ),
        ("hf://datasets/o/n@refs%2Fpr%2F3/x", ("datasets", "o/n", "refs/pr/3", "x")),
        ("hf://datasets/o/n@refs/pr/12/x", ("datasets", "o/n", "refs/pr/12", "x")),
        ("hf://o/n/a@b.parquet", ("models", "o/n", "main", "a@b.parquet")),
        ("hf://models/o/n@main", ("models", "o/n", "main", "")),
        ("hf://spaces/o/n/", ("spaces", "o/n", "main", "")),
    ],
)
def test_urls(url: str, place: tuple[str, ...]) -> None:
    parsed = parse_place(url)
    assert parsed[1:] == place
    assert parsed.root + parsed.path in (url, f"{url}/")


@pytest.mark.parametrize(
    "url", ["hf://", "hf://datasets/o", "hf://datasets/o/n@/x", "hf://buckets/o/n/x", "hf://o/n/../x", "hf:///n/x"]
)
def test_urls_that_name_nothing(url: str) -> None:
    with pytest.raises(asyncpq.UnsupportedStoreError) as caught:
        parse_place(url)
    assert caught.value.hint


def test_requests_are_percent_encoded() -> None:
    place = Place("", "datasets", "o/n", "refs/convert/parquet", "a b/ä%20.parquet")
    assert place.file == "/datasets/o/n/resolve/refs%2Fconvert%2Fparquet/a%20b/%C3%A4%2520.parquet"
    assert place.tree("a b", deep=True) == (
        "/api/datasets/o/n/tree/refs%2Fconvert%2Fparquet/a%20b?recursive=True&expand=False"
    )
    assert Place("", "models", "o/n", "main", "x").file == "/o/n/resolve/main/x"


# -- rows -----------------------------------------------------------------------------------------


async def test_rows(hub: Hub) -> None:
    async with session() as opened:
        file = await opened.open_file("hf://datasets/o/n/data/trips.parquet")
        assert (len(hub.server.log), len(hub.cdn.log)) == (1, 1)
        assert (await file.lookup({"id": 17_123})).equals(TABLE.slice(17_123, 1))
        assert len(hub.server.log) == 1  # the CDN is asked at once
        assert (await file.read()).equals(TABLE)
        assert file.metrics.guarantee == "pinned"
        assert "SECRET" not in (await file.plan(where=col("id") == 3)).explain()


async def test_revisions_are_read_apart(hub: Hub) -> None:
    hub.put("data/trips.parquet", parquet(TABLE.slice(5)), revision="refs/convert/parquet")
    async with session() as opened:
        for revision, table in [("", TABLE), ("@main", TABLE), ("@refs/convert/parquet", TABLE.slice(5))]:
            file = await opened.open_file(f"hf://datasets/o/n{revision}/data/trips.parquet")
            assert (await file.read()).equals(table)


async def test_signatures_that_expire(hub: Hub) -> None:
    async with session() as opened:
        file = await opened.open_file("hf://datasets/o/n/data/trips.parquet")
        hub.valid = 3
        for number in range(0, 20_000, 1000):
            assert (await file.lookup({"id": number})).equals(TABLE.slice(number, 1))
    assert len(hub.server.log) > 2


async def test_a_new_commit_is_another_version(hub: Hub) -> None:
    new = TABLE.slice(0, 500)
    async with session(cache_policy=asyncpq.etag(max_age_s=0)) as opened:
        file = await opened.open_file("hf://datasets/o/n/data/trips.parquet")
        hub.put("data/trips.parquet", parquet(new))
        assert (await file.read()).equals(new)
        plan = await file.plan(where=col("id") == 3)
        hub.put("data/trips.parquet", parquet())
        assert plan
        with pytest.raises(asyncpq.ObjectChangedError):
            await file.take([499, 3])


async def _opened_anew(url: str) -> None:
    async with session() as opened:
        await opened.open_dataset(url)


async def test_datasets_of_folders_and_patterns(hub: Hub) -> None:
    for part in range(7):
        hub.put(f"lake/year={2020 + part}/part 0.parquet", parquet(TABLE.slice(part * 100, 100)))
    hub.put("README.md", b"# A dataset")
    async with session() as opened:
        lake = await opened.open_dataset("hf://datasets/o/n/lake/")
        assert (await lake.read(["id"]))["id"].to_pylist() == list(range(700))
        assert (await lake.lookup({"id": 321}))["year"].to_pylist() == [2023]
        some = await opened.open_dataset("hf://datasets/o/n@main/lake/*2[1-3]/*.parquet")
        assert await some.count() == 300
        with pytest.raises(asyncpq.ObjectNotFoundError):
            await opened.open_dataset("hf://datasets/o/n/none/")
        hub.put("lake/_delta_log/0.json", b"{}")
        for inside in ("year=2020/", "year=*/*.parquet", "year=202[1-3]/part*"):
            with pytest.raises(asyncpq.InvalidOptionError, match="a Delta table, hf://datasets/o/n/lake/"):
                await _opened_anew(f"hf://datasets/o/n/lake/{inside}")


async def test_through_fsspec(hub: Hub) -> None:
    hub.put("lake/a/x.parquet", b"1")
    options = {"endpoint": hub.server.endpoint}
    reader = AsyncpqFileSystem("hf", options, asynchronous=True, skip_instance_cache=True)
    assert await reader._ls("datasets/o/n", detail=False) == ["datasets/o/n/data", "datasets/o/n/lake"]
    assert await reader._find("hf://datasets/o/n/lake") == ["datasets/o/n/lake/a/x.parquet"]
    assert await reader._isdir("datasets/o/n/lake")
    assert not await reader._exists("datasets/o/n/none")
    assert (await reader._info("datasets/o/n"))["type"] == "directory"
    data = await reader._cat_file("datasets/o/n/data/trips.parquet")
    assert pq.read_table(io.BytesIO(data)).equals(TABLE)
    await reader._close()


# -- tokens ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["option", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME"])
async def test_tokens(where: str, hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hub.token = TOKEN
    options = {}
    if where == "option":
        options = {"token": TOKEN}
    elif where == "HF_TOKEN":
        monkeypatch.setenv("HF_TOKEN", TOKEN)
    else:
        path = tmp_path / ("token" if where == "HF_HOME" else "elsewhere")
        path.write_text(f"{TOKEN}\n")
        monkeypatch.setenv("HF_TOKEN_PATH", str(path)) if where == "HF_TOKEN_PATH" else None
    async with session(storage_options={"hf": options}) as opened:
        file = await opened.open_file("hf://datasets/o/n/data/trips.parquet")  # the stub's CDN refuses tokens
        assert await file.count() == TABLE.num_rows
        await opened.open_dataset("hf://datasets/o/n/data/")


@pytest.mark.parametrize("way", ["option", "environment"])
async def test_no_token(way: str, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    if way == "environment":
        monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    options = {"hf": {"token": False}} if way == "option" else None
    async with session(storage_options=options) as opened:
        await opened.open_file("hf://datasets/o/n/data/trips.parquet")
        assert "authorization" not in hub.server.log[0].headers
        hub.token = TOKEN
        for refused in (opened.open_file, opened.open_dataset):
            with pytest.raises(asyncpq.AccessDeniedError, match="HF_TOKEN") as caught:
                await refused("hf://datasets/o/n/data/other.parquet")
            assert "SECRET" not in str(caught.value)


def test_options() -> None:
    refused: list[tuple[dict[str, object], str]] = [
        ({"tokn": "x"}, "Did you mean 'token'"),
        ({"token": 5}, "str or a bool"),
        ({"endpoint": "hub.example"}, "https://"),
    ]
    for options, match in refused:
        with pytest.raises(asyncpq.InvalidOptionError, match=match):
            open_test_store("hf", options)


# -- what goes wrong ------------------------------------------------------------------------------


async def test_what_is_not_there(hub: Hub) -> None:
    async with session() as opened:
        with pytest.raises(asyncpq.ObjectNotFoundError) as caught:
            await opened.open_file("hf://datasets/o/n/data/none.parquet")
        assert caught.value.url == "hf://datasets/o/n/data/none.parquet"
        with pytest.raises(asyncpq.ObjectNotFoundError, match="no such repository or revision"):
            await opened.open_dataset("hf://datasets/o/n@v9/")
        with pytest.raises(asyncpq.ObjectNotFoundError, match="folder"):
            await opened.open_file("hf://datasets/o/n")


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b'[{"path": 1}]', b'[{"type": "file", "path": "x"}]', b"[1]"])
async def test_listings_that_are_none(body: bytes, hub: Hub) -> None:
    hub.server.put("api/datasets/o/n/tree/main", body)
    hub.server.faults = []
    store = open_test_store("hf", {})
    with pytest.raises(asyncpq.InvalidResponseError, match="API"):
        await store.list_objects("hf://datasets/o/n/", context=new_context())
    await store.close()


@pytest.mark.parametrize(
    ("link", "match"),
    [
        ("<http://elsewhere.example/x>; rel=next", "on another server"),
        ("</api/datasets/o/n/tree/main?x>; rel=next", "does not end"),
    ],
)
async def test_pages_that_lead_astray(link: str, match: str, hub: Hub) -> None:
    hub.server.put("api/datasets/o/n/tree/main", b"[]")
    hub.server.faults = [Fault(headers={"Link": link}, times=None)]
    store = open_test_store("hf", {"token": TOKEN})
    with pytest.raises(asyncpq.InvalidResponseError, match=match):
        await store.list_objects("hf://datasets/o/n/", context=new_context())
    await store.close()


@pytest.mark.parametrize(("of_page", "error"), [(0, asyncpq.InvalidResponseError), (50, asyncpq.ResourceLimitError)])
async def test_pages_for_ever(of_page: int, error: type[asyncpq.AsyncpqError], hub: Hub) -> None:
    """Each with new files, or with none, and the link of a new page."""
    seen = 0

    def before(request: LoggedRequest) -> Answer | None:
        nonlocal seen
        if "/tree/" not in request.path:
            return None
        seen += 1
        assert seen < 500
        entries = [{"type": "file", "path": f"data/{seen}-{at}.parquet", "size": 7} for at in range(of_page)]
        link = f'</api/datasets/o/n/tree/main/data?cursor={seen}>; rel="next"'
        return Answer(200, {"Link": link, "Content-Type": "application/json"}, json.dumps(entries).encode())

    hub.server.faults = []
    hub.server.before = before
    limits = StoreLimits(8, 6, max_listed_objects=1000)
    store = open_store("hf", {"token": TOKEN}, retry=FAST_RETRIES, limits=limits)
    with pytest.raises(error):
        await store.list_objects("hf://datasets/o/n/data/", context=new_context())
    await store.close()


@pytest.mark.parametrize(
    "entry",
    [
        {"type": "file", "path": "data/x", "size": 10**30},
        {"type": "file", "path": "data/x", "size": -1},
        {"type": "file", "path": "data/x", "size": 1e999},
        {"type": "file", "path": "data/x", "size": True},
        {"type": "file", "path": "data/\ud800", "size": 1},
        {"type": "file", "path": "elsewhere/x", "size": 1},
        {"type": "directory", "path": "data/" + "x/" * 3000},
    ],
    ids=range(7),
)
async def test_entries_that_are_impossible(entry: dict[str, object], hub: Hub) -> None:
    body = json.dumps([entry]).encode()
    hub.server.faults = []
    hub.server.before = lambda request: Answer(200, {}, body) if "/tree/" in request.path else None
    store = open_test_store("hf", {"token": TOKEN})
    with pytest.raises(asyncpq.InvalidResponseError):
        await store.list_objects("hf://datasets/o/n/data/", context=new_context(), wants=lambda folder: True)
    await store.close()


async def test_listings_are_retried(hub: Hub) -> None:
    answer = hub.server.faults
    assert callable(answer)
    failures: Iterator[dict[str, Any]] = iter([{"status": 503, "code": ""}, {"truncate": 1}, {"hang_up": True}])
    hub.server.faults = lambda request: replace(answer(request) or Fault(), **next(failures, {}))
    store = open_test_store("hf", {})
    found = await store.list_objects("hf://datasets/o/n/", context=new_context())
    assert [item.url for item in found] == ["hf://datasets/o/n/data/trips.parquet"]
    await store.close()


# -- the contract ---------------------------------------------------------------------------------


class HubBackend(Backend):
    def __init__(self, hub: Hub) -> None:
        super().__init__(open_test_store("hf", {"endpoint": hub.server.endpoint}), "hf://datasets/o/n/")
        self.hub = hub

    async def put(self, key: str, data: bytes) -> None:
        self.hub.put(key, data)

    async def delete(self, key: str) -> None:
        self.hub.delete(key)


@pytest.mark.parametrize("check", STORE_CHECKS, ids=lambda check: check.__name__)
async def test_contract(check: Callable[[Backend], Awaitable[None]]) -> None:
    async with running_hub() as hub:
        made = HubBackend(hub)
        await made.put("key", DATA)
        await check(made)
        await made.store.close()


async def test_many_folders_are_listed_at_once(hub: Hub) -> None:
    """A folder takes a request of its own, and a page of all files has those of many folders."""
    hub.page = 1000
    for number in range(60):
        hub.put(f"data/day={number:02d}/0.parquet", b"x")
    store = open_test_store("hf", {"token": TOKEN})
    for wanted, requests in ((3, 1 + 3), (40, 1 + 1)):
        hub.server.log.clear()
        folders = [f"hf://datasets/o/n/data/day={number:02d}/" for number in range(wanted)]
        listed = await store.list_objects("hf://datasets/o/n/data/", context=new_context(), wants=folders.__contains__)
        assert {f"{folder}0.parquet" for folder in folders} <= {found.url for found in listed}
        assert sum("/tree/" in request.path for request in hub.server.log) == requests
    await store.close()
