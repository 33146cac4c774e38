"""HttpStore against servers as they are: without suffix ranges, without ranges, without strong ETags."""

from __future__ import annotations

import asyncio
import base64
import random
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    InvalidOptionError,
    InvalidResponseError,
    NotParquetError,
    ObjectChangedError,
    ObjectNotFoundError,
    ThrottledError,
    TransportError,
    UnsupportedStoreError,
)
from asyncpq.options import RetryOptions
from asyncpq.storage.base import Guarantee, Store
from asyncpq.storage.http import SMALL_BODY_BYTES
from asyncpq.storage.response_checks import PAST_CACHES
from asyncpq.testing import Fault, ObjectServer
from tests.store_backends import FAST_RETRIES, new_context, open_test_store

DATA = random.Random(5).randbytes(3_000_000)
SMALL = DATA[:5000]


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        running.put("files/large", DATA, modified=1e9)
        running.put("files/small", SMALL, modified=1e9)
        yield running


@pytest.fixture
async def store() -> AsyncIterator[Store]:
    made = open_test_store("https", {})
    yield made
    await made.close()


@pytest.mark.parametrize(
    "fault",
    [
        Fault(no_suffix=True),  # 416
        Fault(ignore_range=True),  # 200 with the whole object: not read
        Fault(ignore_range=True, chunked=True),
    ],
)
async def test_servers_without_suffix_ranges(store: Store, server: ObjectServer, fault: Fault) -> None:
    server.faults = lambda request: fault if (request.range or "").startswith("bytes=-") else Fault()
    stored = await store.open_object(f"{server.endpoint}/files/large")
    context = new_context()
    tail = await stored.fetch_tail(1000, context=context)
    assert tail.data == DATA[-1000:]
    assert (tail.start, tail.validator.size) == (len(DATA) - 1000, len(DATA))
    assert [request.range for request in server.log] == ["bytes=-1000", "bytes=0-0", "bytes=2999000-2999999"]
    assert context.metrics.rounds == 3
    assert (await stored.fetch_tail(1000, context=new_context())).data == tail.data
    server.log.clear()
    # known for the next object of this host
    other = await store.open_object(f"{server.endpoint}/files/small")
    assert (await other.fetch_tail(100, context=new_context())).data == SMALL[-100:]
    assert [request.range for request in server.log] == ["bytes=0-0", "bytes=4900-4999"]
    # longer than the object
    assert (await other.fetch_tail(10_000, context=new_context())).data == SMALL


async def test_a_host_that_throttles_slows_down_no_other(store: Store, server: ObjectServer) -> None:
    async with ObjectServer() as slow:
        slow.put("files/large", DATA)
        slow.faults = [Fault(status=503, code="SlowDown", times=None)]
        throttled = await store.open_object(f"{slow.endpoint}/files/large")
        other = await store.open_object(f"{server.endpoint}/files/large")
        with pytest.raises(ThrottledError):
            await throttled.fetch_range(0, 9, context=new_context())
        began = asyncio.get_running_loop().time()
        context = new_context()
        await asyncio.gather(*(other.fetch_range(0, 9, context=context) for _ in range(100)))
        assert asyncio.get_running_loop().time() - began < 5  # at 10 requests a second it would take 10


@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("options", [{}, {"client_kwargs": {"trust_env": True}}], ids=["own client", "aiohttp"])
async def test_small_objects_are_read_whole_where_ranges_are_unknown(
    server: ObjectServer, options: dict[str, Any], chunked: bool
) -> None:
    store = open_test_store("https", options)
    server.faults = [Fault(ignore_range=True, chunked=chunked, times=None)]
    stored = await store.open_object(f"{server.endpoint}/files/small")
    tail = await stored.fetch_tail(100, context=new_context())
    assert (tail.data, tail.start) == (SMALL[-100:], 4900)
    result = await stored.fetch_range(10, 30, context=new_context(), pin=tail.validator)
    assert (result.data, result.start) == (SMALL[10:30], 10)
    large = await store.open_object(f"{server.endpoint}/files/large")
    context = new_context()
    with pytest.raises(InvalidResponseError, match="instead of the range"):
        await large.fetch_tail(100, context=context)
    assert context.metrics.bytes_fetched <= (1.25 * SMALL_BODY_BYTES if chunked else 0)
    server.put("files/small", b"")
    with pytest.raises(NotParquetError, match="empty"):
        await (await store.open_object(stored.url)).fetch_tail(100, context=new_context())
    with pytest.raises(ObjectChangedError):
        await stored.fetch_range(10, 30, context=new_context(), pin=tail.validator)
    await store.close()


@pytest.mark.parametrize("options", [{}, {"client_kwargs": {"trust_env": True}}], ids=["own client", "aiohttp"])
async def test_a_cache_that_sends_whole_objects_is_passed(server: ObjectServer, options: dict[str, Any]) -> None:
    """HAProxy sends the whole object, whatever the range, once anyone has fetched it whole."""
    store = open_test_store("https", options)
    cached = Fault(ignore_range=True, headers={"Age": "0"})
    server.faults = lambda request: Fault() if request.headers.get("cache-control") == "no-cache" else cached
    stored = await store.open_object(f"{server.endpoint}/files/large")
    context = new_context()
    tail = await stored.fetch_tail(100, context=context)
    assert (tail.data, tail.start) == (DATA[-100:], len(DATA) - 100)
    assert [record.status for record in context.metrics.log] == [200, 206]
    assert context.metrics.fallbacks == [PAST_CACHES]
    context = new_context()
    assert (await stored.fetch_range(5, 9, context=context, pin=tail.validator)).data == DATA[5:9]
    assert [record.status for record in context.metrics.log] == [206]  # it is remembered
    assert context.metrics.fallbacks == [PAST_CACHES]
    await store.close()


async def test_no_cache_is_passed_in_vain(store: Store, server: ObjectServer) -> None:
    """The server itself sends whole objects: its cache is asked again."""
    server.faults = [Fault(ignore_range=True, headers={"Age": "0"}, times=None)]
    stored = await store.open_object(f"{server.endpoint}/files/large")
    for sent in ([None, "no-cache"], [None]):
        server.log.clear()
        with pytest.raises(InvalidResponseError, match="instead of the range"):
            await stored.fetch_range(0, 9, context=new_context())
        assert [request.headers.get("cache-control") for request in server.log] == sent


async def test_a_server_without_ranges_is_no_cache(store: Store, server: ObjectServer) -> None:
    server.faults = [Fault(ignore_range=True, times=None)]
    stored = await store.open_object(f"{server.endpoint}/files/large")
    with pytest.raises(InvalidResponseError, match="instead of the range"):
        await stored.fetch_range(0, 9, context=new_context())
    assert len(server.log) == 1


async def test_a_small_object_in_chunks_has_an_end(store: Store, server: ObjectServer) -> None:
    """Of a body in chunks, and of one that ends with its connection, only the former shows that nothing is missing."""
    server.faults = [Fault(ignore_range=True, chunked=True, truncate=0, times=None)]
    stored = await store.open_object(f"{server.endpoint}/files/small")
    with pytest.raises(TransportError):
        await stored.fetch_range(10, 30, context=new_context())
    server.faults = [Fault(ignore_range=True, headers={"Content-Length": None}, times=None)]
    with pytest.raises(InvalidResponseError, match="instead of the range"):
        await stored.fetch_range(10, 30, context=new_context())


async def test_a_small_object_in_chunks_is_one_version(store: Store, server: ObjectServer) -> None:
    server.faults = [Fault(ignore_range=True, chunked=True, etag="none", headers={"Last-Modified": None}, times=None)]
    stored = await store.open_object(f"{server.endpoint}/files/small")
    first = await stored.fetch_range(0, 9, context=new_context())
    assert (first.data, first.validator.size) == (SMALL[:9], len(SMALL))
    server.put("files/small", SMALL + b"x")
    with pytest.raises(ObjectChangedError, match="5001"):
        await stored.fetch_range(0, 9, context=new_context(), pin=first.validator)
    with pytest.raises(InvalidResponseError, match="instead of the range"):
        await stored.fetch_range(5000, 6000, context=new_context())


@pytest.mark.parametrize(
    ("fault", "guarantee"),
    [
        (Fault(times=None), Guarantee.PINNED),
        (Fault(times=None, etag="weak"), Guarantee.BRACKETED),
        (Fault(times=None, etag="none"), Guarantee.BRACKETED),
        (Fault(times=None, etag="none", headers={"Last-Modified": None}), Guarantee.NONE),
    ],
)
async def test_guarantee_is_what_the_server_gives(
    store: Store, server: ObjectServer, fault: Fault, guarantee: Guarantee
) -> None:
    server.faults = [fault]
    stored = await store.open_object(f"{server.endpoint}/files/large")
    tail = await stored.fetch_tail(100, context=new_context())
    assert stored.guarantee is guarantee
    assert tail.validates is (guarantee is not Guarantee.NONE)
    # a handle that knows the version from a cache, and one that only sees pinned responses
    known = await store.open_object(stored.url)
    known.learn(tail.validator)
    assert known.guarantee is guarantee
    pinned = await store.open_object(stored.url)
    assert (await pinned.fetch_range(0, 9, context=new_context(), pin=tail.validator)).validates is tail.validates
    assert pinned.guarantee is guarantee
    result = await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)
    assert result.data == DATA[:9]
    assert ("if-match" in server.log[-1].headers) == (guarantee is Guarantee.PINNED)
    server.put("files/large", b"y" * len(DATA), modified=1.0)
    if guarantee is Guarantee.NONE:
        assert (await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)).data == b"y" * 9
    else:
        with pytest.raises(ObjectChangedError):
            await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(shift_range=1), InvalidResponseError),
        (Fault(gzip=True), InvalidResponseError),
        (Fault(html_200=True), InvalidResponseError),
        (Fault(redirect="https://user:pw@elsewhere.example/x?sig=SECRET"), InvalidResponseError),
        (Fault(redirect="//user:pw@elsewhere.example/x?token=SECRET"), InvalidResponseError),
        (Fault(etag="other"), ObjectChangedError),
        (Fault(replace_with=b"y" * len(DATA), ignore_if_match=True), ObjectChangedError),
        (Fault(delete=True), ObjectChangedError),
        (Fault(status=404, code=""), ObjectChangedError),
        (Fault(status=410, code=""), ObjectChangedError),
        (Fault(status=401, code=""), AccessDeniedError),
        (Fault(status=403, code=""), AccessDeniedError),
        (Fault(status=416, code=""), ObjectChangedError),
        (Fault(status=429, code="", times=None), ThrottledError),
        (Fault(status=502, code="", times=None), TransportError),
        (Fault(truncate=10, times=None), TransportError),
    ],
)
async def test_what_is_not_the_bytes_is_refused(
    store: Store, server: ObjectServer, fault: Fault, error: type[AsyncpqError]
) -> None:
    url = f"{server.endpoint}/files/large?sig=SECRET"
    stored = await store.open_object(url)
    tail = await stored.fetch_tail(100, context=new_context())
    server.faults = [fault]
    with pytest.raises(AsyncpqError) as caught:
        await stored.fetch_range(0, 2000, context=new_context(), pin=tail.validator)
    assert type(caught.value) is error, caught.value
    assert "SECRET" not in str(caught.value) + repr(stored)
    if fault.redirect is not None:
        assert "elsewhere.example" in str(caught.value)
        assert "pw" not in str(caught.value)


@pytest.mark.parametrize("options", [{}, {"client_kwargs": {"trust_env": True}}], ids=["own client", "aiohttp"])
async def test_a_body_that_always_breaks_off_comes_in_the_end(server: ObjectServer, options: dict[str, Any]) -> None:
    """Some middleboxes cut each connection after a number of bytes."""
    store = open_test_store("https", options, RetryOptions(max_attempts=2, retry_budget=1))
    stored = await store.open_object(f"{server.endpoint}/files/large")
    tail = await stored.fetch_tail(100, context=new_context())
    server.faults = [Fault(truncate=200_000, times=None)]
    context = new_context()
    result = await stored.fetch_range(0, len(DATA), context=context, pin=tail.validator)
    assert result.data == DATA
    assert context.metrics.requests == 15
    server.faults = [Fault(truncate=20_000, times=None)]
    with pytest.raises(TransportError, match="given up after 2 attempts"):
        await stored.fetch_range(0, len(DATA), context=new_context(), pin=tail.validator)
    await store.close()


@pytest.mark.parametrize("status", [401, 403, 410])
async def test_refusals_of_links_that_expire(store: Store, server: ObjectServer, status: int) -> None:
    """nginx's secure_link and Swift's and Backblaze's links say no code of S3."""
    server.faults = [Fault(status=status, code="", times=None)]
    for query, may_be_signed in [("?sig=SECRET", True), ("", False)]:
        stored = await store.open_object(f"{server.endpoint}/files/large{query}")
        with pytest.raises(AccessDeniedError if status < 410 else ObjectNotFoundError) as caught:
            await stored.fetch_tail(100, context=new_context())
        assert ("may have expired" in str(caught.value)) is may_be_signed
        assert ("Bearer" in str(caught.value)) is (status < 410)


async def test_nothing_there(store: Store, server: ObjectServer) -> None:
    stored = await store.open_object(f"{server.endpoint}/files/missing")
    with pytest.raises(ObjectNotFoundError):
        await stored.fetch_tail(100, context=new_context())


@pytest.mark.parametrize("fault", [Fault(times=None), Fault(no_suffix=True, times=None)])
async def test_empty_object(store: Store, server: ObjectServer, fault: Fault) -> None:
    server.faults = [fault]
    server.put("files/empty", b"")
    stored = await store.open_object(f"{server.endpoint}/files/empty")
    with pytest.raises(NotParquetError):
        await stored.fetch_tail(100, context=new_context())


async def test_unreachable_server(store: Store, server: ObjectServer) -> None:
    await server.close()
    stored = await store.open_object(f"{server.endpoint}/files/large")
    context = new_context()
    with pytest.raises(TransportError, match="connection failed"):
        await stored.fetch_tail(100, context=context)
    assert context.metrics.requests == FAST_RETRIES.max_attempts
    assert {record.status for record in context.metrics.log} == {0}


async def test_size_unknown_in_content_range_costs_one_head(store: Store, server: ObjectServer) -> None:
    server.faults = [Fault(unknown_size=True, method="GET", times=None)]
    stored = await store.open_object(f"{server.endpoint}/files/large")
    tail = await stored.fetch_tail(100, context=new_context())
    assert (tail.start, tail.validator.size) == (len(DATA) - 100, len(DATA))
    assert [request.method for request in server.log] == ["GET", "HEAD"]


@pytest.mark.parametrize(
    ("url", "sent"),
    [
        ("/files/a b?x=1", "/files/a%20b?x=1"),
        ("/files/a%2Fb%7E?sig=a%2Bb%3D&c=d+e#frag", "/files/a%2Fb%7E?sig=a%2Bb%3D&c=d+e"),
        ("/files/é", "/files/%C3%A9"),
        ("/files/..%2Fx//y", "/files/..%2Fx//y"),
    ],
)
async def test_urls_are_sent_as_they_are(store: Store, server: ObjectServer, url: str, sent: str) -> None:
    stored = await store.open_object(server.endpoint + url)
    with pytest.raises(ObjectNotFoundError):
        await stored.fetch_tail(100, context=new_context())
    assert server.log[-1].target == sent


@pytest.mark.parametrize(
    ("options", "user_info", "header"),
    [
        ({"headers": {"X-Token": "t"}}, "", ("x-token", "t")),
        ({"client_kwargs": {"headers": {"X-Token": "t"}}}, "", ("x-token", "t")),
        ({"auth": ("user", "pw")}, "", ("authorization", "user:pw")),
        ({"client_kwargs": {"auth": ("user", "pw")}}, "", ("authorization", "user:pw")),
        ({}, "me:p%40w@", ("authorization", "me:p@w")),
        ({"block_size": 5, "cache_type": "none", "simple_links": True}, "", ("accept-encoding", "identity")),
    ],
)
async def test_options(server: ObjectServer, options: dict[str, Any], user_info: str, header: tuple[str, str]) -> None:
    store = open_test_store("http", options)
    stored = await store.open_object(f"http://{user_info}127.0.0.1:{server.port}/files/small")
    await stored.fetch_tail(100, context=new_context())
    name, value = header
    if name == "authorization":
        value = "Basic " + base64.b64encode(value.encode()).decode()
    assert server.log[-1].headers[name] == value
    assert "@" not in stored.url + stored.identity
    await store.close()


@pytest.mark.parametrize("options", [{"timeout": 3}, {"client_kwargs": {"proxy": "p"}}, {"auth": 7}, {"get_client": 1}])
async def test_unknown_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError, match=r"auth|timeout|proxy|get_client"):
        open_test_store("http", options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"headers": "SECRET"}, "headers of storage_options must be a mapping, not str"),
        ({"headers": {"A": "SECRET\r\nB: 1"}}, "header A .* has a line break"),
        ({"headers": {"A": "SECRET\n"}, "client_kwargs": {"trust_env": True}}, "header A .* has a line break"),
        ({"headers": [("X-Token", "SECRET")]}, "must be a mapping, not list"),
        ({"headers": {"Authorization": None}}, "header Authorization of .* must be a text, not NoneType"),
        ({"client_kwargs": {"headers": {"X-Token": b"SECRET"}}}, "header X-Token of .* must be a text, not bytes"),
        ({"headers": {1: "SECRET"}}, "a name that HTTP does not allow: 1"),
        ({"headers": {"X Token": "SECRET"}}, "a name that HTTP does not allow: 'X Token'"),
        ({"headers": {"": "SECRET"}}, "a name that HTTP does not allow: ''"),
        ({"client_kwargs": "SECRET"}, "client_kwargs of storage_options must be a mapping, not str"),
        ({"auth": "user:SECRET"}, r"auth of storage_options must be \(user, password\), not str"),
        ({"auth": ("user", None)}, r"must be \(user, password\), not tuple of other values"),
        ({"client_kwargs": {"auth": ["SECRET"]}}, r"must be \(user, password\), not list"),
        ({"ssl": "SECRET"}, "ssl of storage_options must be a bool, .*, not str"),
    ],
    ids=str,
)
async def test_malformed_options_are_refused(options: dict[str, Any], message: str) -> None:
    """They were sent as other headers and passwords, or failed without a name."""
    with pytest.raises(InvalidOptionError, match=message) as caught:
        open_test_store("http", options)
    assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("url", ["ftp://host/x", "http:///x", "s3://b/k", "http://u:SECRET@h:p/x", "http://[h/x"])
async def test_urls_that_cannot_be(store: Store, url: str) -> None:
    with pytest.raises(UnsupportedStoreError) as caught:
        await store.open_object(url)
    assert "SECRET" not in str(caught.value)


async def test_credential_identity(store: Store) -> None:
    assert await store.credential_identity("https://host/x?sig=SECRET") == ""
    url = "https://user:SECRET@host/x"
    found = {await store.credential_identity(f"https://{user}@host/x") for user in ("user:SECRET", "user:b", "b", "c")}
    assert len(found) == 4
    assert await store.credential_identity(url) == await store.credential_identity(url.replace("/x", "/y"))
    assert all(re.fullmatch("[0-9a-f]{16}", identity) for identity in found)
    for options in ({"headers": {"authorization": "a"}}, {"auth": ("u", "p")}, {"client_kwargs": {"auth": ("u", "q")}}):
        other = open_test_store("https", options)
        identity = await other.credential_identity("https://host/x")
        assert re.fullmatch("[0-9a-f]{16}", identity)
        assert identity not in found
        found.add(identity)
        assert await other.credential_identity(url) != await store.credential_identity(url)
        await other.close()
