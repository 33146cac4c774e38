"""HTTP redirects: an origin that sends each read to a signed target on another server, as model hubs and CDNs do."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import AsyncIterator, Callable

import pyarrow as pa
import pytest
from yarl import URL

import asyncpq
from asyncpq import col
from asyncpq.storage.base import RangeResult, Validator
from asyncpq.storage.http import HttpStore, Redirect, RedirectTarget
from asyncpq.testing import Fault, LoggedRequest, ObjectServer
from tests.parquet_bytes import parquet_bytes
from tests.predicates import oracle
from tests.store_backends import FAST_RETRIES, new_context, open_test_store

SECRET = "SECRET"
TABLE = pa.table({"id": range(20_000), "text": [f"text {number:06d}" for number in range(20_000)]})
LIMITED = asyncpq.RequestOptions(tail_bytes=2000, gap_bytes=0)


def parquet(table: pa.Table = TABLE) -> bytes:
    return parquet_bytes(table, write_page_index=True, data_page_size=4000, write_batch_size=500, use_dictionary=False)


DATA = parquet()


class Hub:
    """An origin whose files stand on a CDN, under urls that are signed anew with each redirect.

    Attributes:
        valid: how often a signature is taken before it expires; None for ever.
        refusal: what the CDN says to an expired one.
    """

    def __init__(self, origin: ObjectServer, cdn: ObjectServer) -> None:
        self.origin, self.cdn = origin, cdn
        self.valid: int | None = None
        self.refusal = Fault(status=403, code="")
        self.status = 302
        self.location: Callable[[str, int], str] = lambda path, number: (
            f"{self.cdn.endpoint}/blobs{path}?X-Amz-Signature={SECRET}{number}&Expires=1"
        )
        self._numbers = itertools.count()
        self._used: dict[str, int] = {}
        origin.faults = self._redirect
        cdn.faults = self._check

    @property
    def url(self) -> str:
        return self.origin.endpoint

    def _redirect(self, request: LoggedRequest) -> Fault:
        location = self.location(request.path, next(self._numbers))
        return Fault(redirect=location, redirect_status=self.status)

    def _check(self, request: LoggedRequest) -> Fault | None:
        used = self._used[request.target] = self._used.get(request.target, 0) + 1
        return self.refusal if self.valid is not None and used > self.valid else None

    def counts(self) -> tuple[int, int]:
        """Requests to origin and CDN since the last call."""
        counts = len(self.origin.log), len(self.cdn.log)
        self.origin.log.clear()
        self.cdn.log.clear()
        return counts


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    async with ObjectServer() as origin, ObjectServer() as cdn:
        cdn.put("blobs/trips.parquet", DATA)
        yield Hub(origin, cdn)


def session(**options: object) -> asyncpq.Session:
    return asyncpq.Session(**{"retry": FAST_RETRIES, "requests": LIMITED} | options)  # type: ignore[arg-type]


# -- what is followed -----------------------------------------------------------------------------


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_rows_behind_a_redirect(hub: Hub, status: int) -> None:
    hub.status = status
    async with session() as opened:
        file = await opened.open_file(f"{hub.url}/trips.parquet")
        assert (await file.read()).equals(TABLE)
        assert (await file.lookup({"id": 17_123})).equals(TABLE.slice(17_123, 1))
        assert opened.metrics.requests == sum(hub.counts())
        assert file.metrics.guarantee == "pinned"


@pytest.mark.parametrize(
    "location", ["/blobs/trips.parquet?x=1", "../blobs/./trips.parquet", "//{host}/blobs/trips.parquet"]
)
async def test_relative_locations(location: str) -> None:
    async with ObjectServer() as server, session() as opened:
        server.put("blobs/trips.parquet", DATA)
        server.faults = [Fault(path="/files/", redirect=location.format(host=f"127.0.0.1:{server.port}"), times=None)]
        file = await opened.open_file(f"{server.endpoint}/files/trips.parquet")
        assert await file.count() == TABLE.num_rows


async def test_the_target_is_sent_as_it_was_signed(hub: Hub) -> None:
    hub.cdn.put("blobs/a b+c/é.parquet", DATA)
    signed = "/blobs/a%20b+c/%C3%A9.parquet?sig=a%2Bb%3D%7E&c=d+e"
    hub.location = lambda path, number: f"{hub.cdn.endpoint}{signed}#fragment"
    async with session() as opened:
        await opened.open_file(f"{hub.url}/trips.parquet")
    assert {request.target for request in hub.cdn.log} == {signed}


async def test_five_redirects_are_followed_and_not_six() -> None:
    async with ObjectServer() as server, session() as opened:
        server.put("hop/0", DATA)
        server.faults = lambda request: (
            None if request.path == "/hop/0" else Fault(redirect=f"/hop/{int(request.path[5:]) - 1}?sig={SECRET}")
        )
        file = await opened.open_file(f"{server.endpoint}/hop/5")
        assert await file.count() == TABLE.num_rows
        assert opened.metrics.rounds == 6
        with pytest.raises(
            asyncpq.InvalidResponseError, match=r"more than 5 times, the last time to .*/hop/0"
        ) as caught:
            await opened.open_file(f"{server.endpoint}/hop/6")
        assert SECRET not in str(caught.value)


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("location", "what"),
    [
        ("", "without a Location"),
        ("/trips.parquet", "in a loop"),
        (f"ftp://elsewhere.example/x?sig={SECRET}", "something other than an http url"),
        (f"http://[{SECRET}", "something other than an http url"),
        (f"http://user:{SECRET}@elsewhere.example/x", "user or password"),
    ],
)
async def test_redirects_that_lead_nowhere(hub: Hub, location: str, what: str) -> None:
    hub.location = lambda path, number: location
    async with session() as opened:
        with pytest.raises(asyncpq.InvalidResponseError, match=what) as caught:
            await opened.open_file(f"{hub.url}/trips.parquet")
    assert caught.value.hint
    assert caught.value.url == f"{hub.url}/trips.parquet"
    assert SECRET not in str(caught.value)
    assert not hub.cdn.log


async def test_a_redirect_without_location(hub: Hub) -> None:
    hub.origin.faults = [Fault(status=307, code="", times=None)]
    async with session() as opened:
        with pytest.raises(asyncpq.InvalidResponseError, match="without a Location"):
            await opened.open_file(f"{hub.url}/trips.parquet")


async def test_a_target_that_refuses_is_named(hub: Hub) -> None:
    hub.valid = 0
    async with session() as opened:
        with pytest.raises(asyncpq.AccessDeniedError) as caught:
            await opened.open_file(f"{hub.url}/trips.parquet")
    assert f"redirects to {hub.cdn.endpoint}" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert hub.counts() == (1, 1)


# -- who gets which headers -----------------------------------------------------------------------

HEADERS = {"Authorization": SECRET, "X-Api-Key": SECRET, "Cookie": SECRET, "User-Agent": "me", "Accept-Language": "de"}


@pytest.mark.parametrize(
    ("options", "user_info"),
    [
        ({"headers": HEADERS}, ""),
        ({"client_kwargs": {"headers": HEADERS}}, ""),
        ({"auth": ("user", SECRET), "headers": {"x-api-key": SECRET}}, ""),
        ({}, f"user:{SECRET}@"),
    ],
)
async def test_headers_of_the_user_stay_at_the_origin(hub: Hub, options: dict[str, object], user_info: str) -> None:
    url = f"http://{user_info}127.0.0.1:{hub.origin.port}/trips.parquet"
    async with session(storage_options=options) as opened:
        file = await opened.open_file(url)
        await file.read()
    assert hub.origin.log
    assert all({"authorization", "x-api-key", "cookie"} & set(request.headers) for request in hub.origin.log)
    own = {"host", "accept", "accept-encoding", "user-agent", "range", "if-match"}
    assert set().union(*(request.headers for request in hub.cdn.log)) - {"accept-language"} == own
    if "User-Agent" in str(options):
        assert {request.headers["user-agent"] for request in hub.cdn.log} == {"me"}


async def test_headers_of_the_user_stay_where_they_are_asked_for() -> None:
    """Within one origin they go along; once a redirect has left it, not even back to it."""
    async with ObjectServer() as server, ObjectServer() as other:
        server.put("files/key", DATA)
        server.faults = [
            Fault(path="/login", redirect="/door", times=None),
            Fault(path="/door", redirect=f"{other.endpoint}/back", times=None),
        ]
        other.faults = [Fault(redirect=f"{server.endpoint}/files/key", times=None)]
        async with session(storage_options={"headers": {"X-Api-Key": SECRET}}) as opened:
            await opened.open_file(f"{server.endpoint}/login")
        with_key = {request.path for request in server.log if "x-api-key" in request.headers}
        assert with_key == {"/login", "/door"}
        assert {request.path for request in server.log} == {"/login", "/door", "/files/key"}


# -- what is remembered ---------------------------------------------------------------------------


async def test_a_warm_read_asks_the_target_alone(hub: Hub) -> None:
    async with session() as opened:
        file = await opened.open_file(f"{hub.url}/trips.parquet")
        assert hub.counts() == (1, 1)
        for number in (5, 12_000, 19_999):
            with asyncpq.measure() as cost:
                assert (await file.lookup({"id": number}, ["text"])).num_rows == 1
            assert cost.rounds <= 2  # an index, and pages
        origin, cdn = hub.counts()
        assert (origin, cdn > 3) == (0, True)
        again = await opened.open_file(f"{hub.url}/trips.parquet")  # another handle
        await again.lookup({"id": 3}, ["text"])
        assert hub.counts()[0] == 0


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410])
async def test_an_expired_target_is_asked_for_again(hub: Hub, status: int) -> None:
    hub.refusal = Fault(status=status, code="")
    async with session() as opened:
        file = await opened.open_file(f"{hub.url}/trips.parquet")
        hub.valid = 4
        for where in (col("id") == 77, col("id") > 19_000, col("text") < "text 000100", None):
            assert (await file.read(where=where)).equals(TABLE.filter(oracle(where)) if where is not None else TABLE)
    refused = sum(request.status == status for request in hub.cdn.log)
    assert refused > 1
    assert 1 < len(hub.origin.log) <= refused + 1  # one of the reads that run at once asks for all


async def test_one_fetch_asks_for_all(hub: Hub) -> None:
    """Ranges that are fetched at once find their target expired at once."""
    store = open_test_store("http", {})
    stored = await store.open_object(f"{hub.url}/trips.parquet")
    pin = (await stored.fetch_tail(8, context=new_context())).validator
    hub.cdn.faults = lambda request: hub.refusal if f"{SECRET}0" in request.target else None
    hub.counts()

    async def fetch(number: int) -> bytes:
        return bytes((await stored.fetch_range(number, number + 10, context=new_context(), pin=pin)).data)

    fetches = [fetch(number) for number in range(8)]
    for number, data in enumerate(await asyncio.gather(*fetches)):
        assert data == DATA[number : number + 10]
    assert hub.counts()[0] == 1
    await store.close()


async def test_who_asks_may_be_cancelled(hub: Hub) -> None:
    """The next of the reads that wait asks in its place; nothing is left behind."""
    store = open_test_store("http", {})
    stored = await store.open_object(f"{hub.url}/trips.parquet")
    pin = (await stored.fetch_tail(8, context=new_context())).validator
    asked = asyncio.Event()

    def redirect(request: LoggedRequest) -> Fault:
        first = not asked.is_set()
        asked.set()
        return Fault(stall_headers=True) if first else Fault(redirect=hub.location(request.path, 1))

    hub.origin.faults = redirect
    hub.cdn.faults = lambda request: hub.refusal if f"{SECRET}0" in request.target else None

    def fetch(number: int) -> asyncio.Task[RangeResult]:
        return asyncio.create_task(stored.fetch_range(number, number + 10, context=new_context(), pin=pin))

    reads = [fetch(0)]
    await asked.wait()
    reads += [fetch(number) for number in range(1, 4)]
    await asyncio.sleep(0)
    reads[0].cancel()
    for number, read in enumerate(reads):
        if number == 0:
            with pytest.raises(asyncio.CancelledError):
                await read
        else:
            assert (await read).data == DATA[number : number + 10]
    assert len(hub.origin.log) == 3  # the first, the cancelled one, and one for all others
    await store.close()


async def test_a_new_target_of_another_version(hub: Hub) -> None:
    """Bytes of two versions never mix: the new location has the pinned ETag, or the read says that it has not."""
    store = open_test_store("http", {})
    stored = await store.open_object(f"{hub.url}/trips.parquet")
    pin = (await stored.fetch_tail(8, context=new_context())).validator
    hub.cdn.put("blobs/new/trips.parquet", DATA[:-1] + b"?")
    hub.location = lambda path, number: f"{hub.cdn.endpoint}/blobs/new{path}?sig={number}"
    hub.cdn.faults = lambda request: hub.refusal if SECRET in request.target else None
    with pytest.raises(asyncpq.ObjectChangedError):
        await stored.fetch_range(0, 10, context=new_context(), pin=pin)
    await store.close()


async def test_a_target_that_fails_for_good_is_asked_for_once(hub: Hub) -> None:
    async with session() as opened:
        file = await opened.open_file(f"{hub.url}/trips.parquet")
        hub.valid = 0
        hub.counts()
        with pytest.raises(asyncpq.AccessDeniedError, match="redirects to"):
            await file.read(["id"], where=col("id") == 1)
    origin, cdn = hub.counts()
    assert origin <= 2
    assert cdn <= 4


async def test_a_target_that_cannot_be_reached_any_more(hub: Hub) -> None:
    async with ObjectServer() as second, session() as opened:
        second.put("blobs/trips.parquet", DATA)
        file = await opened.open_file(f"{hub.url}/trips.parquet")
        await hub.cdn.close()
        hub.location = lambda path, number: f"{second.endpoint}/blobs{path}"
        hub.origin.log.clear()
        assert (await file.read()).equals(TABLE)
        assert len(hub.origin.log) == 1
        assert opened.metrics.retries == 0


async def test_a_body_that_breaks_off_goes_on_at_the_target(hub: Hub) -> None:
    async with session() as opened:
        file = await opened.open_file(f"{hub.url}/trips.parquet")
        hub.counts()
        hub.cdn.faults = [Fault(truncate=100)]
        assert (await file.read()).equals(TABLE)
        assert hub.counts()[0] == 0


# -- versions -------------------------------------------------------------------------------------

NEW = pa.table({"id": range(500), "text": [f"new {number}" for number in range(500)]})


@pytest.mark.parametrize("max_age_s", [0.0, 1e6])
async def test_another_target_is_another_version(hub: Hub, max_age_s: float) -> None:
    """A target says what it has, and not that the url still leads to it."""
    hub.cdn.put("blobs/new/trips.parquet", parquet(NEW))
    async with session(cache_policy=asyncpq.etag(max_age_s=max_age_s)) as opened:
        file = await opened.open_file(f"{hub.url}/trips.parquet")
        assert (await file.lookup({"id": 7})).equals(TABLE.slice(7, 1))
        hub.location = lambda path, number: f"{hub.cdn.endpoint}/blobs/new{path}?sig={number}"
        rows = await file.lookup({"id": 8})
        assert rows.equals((TABLE if max_age_s else NEW).slice(8, 1))
        assert file.metrics.restarts == (0 if max_age_s else 1)
        await file.refresh()
        assert (await file.read()).equals(NEW)


async def test_a_replaced_target_is_noticed(hub: Hub) -> None:
    async with session() as opened:
        file = await opened.open_file(f"{hub.url}/trips.parquet")
        hub.cdn.put("blobs/trips.parquet", parquet(NEW))
        assert (await file.read()).equals(NEW)


async def test_mirrors_with_the_same_etag(hub: Hub) -> None:
    async with ObjectServer() as second, session(cache_policy=asyncpq.etag(max_age_s=0)) as opened:
        second.put("blobs/trips.parquet", DATA)
        hub.location = lambda path, number: f"{(hub.cdn if number % 2 else second).endpoint}/blobs{path}"
        file = await opened.open_file(f"{hub.url}/trips.parquet")
        for number in range(100, 106):
            assert (await file.lookup({"id": number})).equals(TABLE.slice(number, 1))
            assert file.metrics.restarts == 0
        assert second.log
        assert hub.cdn.log


async def test_if_match_goes_to_the_target(hub: Hub) -> None:
    async with session() as opened:
        file = await opened.open_file(f"{hub.url}/trips.parquet")
        assert isinstance(file.version, Validator)
        await file.read()
        etags = {request.headers.get("if-match") for request in hub.cdn.log}
        assert etags == {None, file.version.etag}


# -- servers as they are --------------------------------------------------------------------------


async def test_a_target_without_suffix_ranges(hub: Hub) -> None:
    hub.valid, hub.refusal = 0, Fault(no_suffix=True)
    store = open_test_store("http", {})
    stored = await store.open_object(f"{hub.url}/trips.parquet")
    context = new_context()
    assert (await stored.fetch_tail(1000, context=context)).data == DATA[-1000:]
    assert [record.round for record in context.metrics.log] == [1, 2, 3, 4]
    assert hub.counts() == (1, 3)  # suffix, one byte, range
    for version, requests in ((2, 3), (3, 2)):  # remembered after the second refusal
        other = await store.open_object(f"{hub.url}/trips.parquet?{version}")
        assert (await other.fetch_tail(1000, context=context)).data == DATA[-1000:]
        assert hub.counts() == (1, requests)
    await store.close()


async def test_a_server_without_suffix_ranges_that_redirects_to_itself() -> None:
    """The first byte is then asked of the url, too: another target is another version."""
    async with ObjectServer() as server, session() as opened:
        server.put("old", DATA)
        server.put("new", parquet(NEW))
        leads_to = "/old"
        server.faults = lambda request: Fault(redirect=leads_to) if request.path == "/url" else Fault(no_suffix=True)
        assert (await (await opened.open_file(f"{server.endpoint}/url")).read()).equals(TABLE)
        leads_to = "/new"
        opened.memory_cache.clear()
        assert (await (await opened.open_file(f"{server.endpoint}/url")).read()).equals(NEW)


async def test_a_target_that_does_not_say_the_size(hub: Hub) -> None:
    hub.valid, hub.refusal = 0, Fault(unknown_size=True)
    store = open_test_store("http", {})
    stored = await store.open_object(f"{hub.url}/trips.parquet")
    tail = await stored.fetch_tail(1000, context=new_context())
    assert (tail.data, tail.validator.size) == (DATA[-1000:], len(DATA))
    assert [request.method for request in hub.cdn.log] == ["GET", "HEAD"]
    await store.close()


async def test_a_dataset_behind_redirects(hub: Hub) -> None:
    tables = [pa.table({"id": range(part * 100, part * 100 + 100), "part": [part] * 100}) for part in range(5)]
    for part, table in enumerate(tables):
        hub.cdn.put(f"blobs/part-{part}.parquet", parquet(table))
    async with session() as opened:
        dataset = await opened.open_dataset([f"{hub.url}/part-{part}.parquet" for part in range(5)])
        assert (await dataset.read()).sort_by("id").equals(pa.concat_tables(tables))
        hub.counts()
        assert (await dataset.lookup({"id": 321}))["part"].to_pylist() == [3]
        assert hub.counts()[0] == 0
        assert SECRET not in (await dataset.plan(where=col("id") == 3)).explain()


async def test_nothing_shows_a_signature(hub: Hub, caplog: pytest.LogCaptureFixture) -> None:
    events: list[object] = []
    with caplog.at_level(logging.DEBUG):
        async with session(on_event=events.append) as opened:
            file = await opened.open_file(f"{hub.url}/trips.parquet")
            plan = await file.plan(where=col("id") == 3)
            await file.read()
            hub.valid = 0
            with pytest.raises(asyncpq.AccessDeniedError) as caught:
                await file.refresh()
            stored = file._source.handle
            shown = [repr(stored), repr(vars(stored)), stored.identity, plan.explain(), str(caught.value), caplog.text]
            shown += [repr(event) for event in events] + [str(error) for error in _chain(caught.value)]
    assert events
    assert not [text for text in shown if SECRET in text]


def _chain(error: BaseException | None) -> list[BaseException]:
    found = []
    while error is not None:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


async def test_remembered_redirects_are_bounded() -> None:
    store = open_test_store("https", {})
    assert isinstance(store, HttpStore)
    target = RedirectTarget(URL("https://cdn.example/x"), own=False)
    for number in range(5000):
        store.redirects[f"https://data.example/{number}"] = Redirect(target)
    assert list(store.redirects) == [f"https://data.example/{number}" for number in range(5000 - 2048, 5000)]
    await store.close()
