"""S3Store against a server that misbehaves: the right bytes, or one of asyncpq's errors; never others."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    BucketNotFoundError,
    CredentialsError,
    InvalidResponseError,
    NotParquetError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    ThrottledError,
    TransportError,
)
from asyncpq.storage.base import Store
from asyncpq.testing import Fault, ObjectServer
from tests.store_backends import DATA, FAST_RETRIES, new_context, open_test_store, opened

pytestmark = pytest.mark.faults

ATTEMPTS = FAST_RETRIES.max_attempts

ONCE = [
    Fault(status=500),
    Fault(status=502, code=""),
    Fault(status=503, code="SlowDown"),
    Fault(status=503, code="SlowDown", retry_after_s=0.02),
    Fault(status=429, code=""),
    Fault(status=408, code="RequestTimeout"),
    Fault(truncate=0),
    Fault(truncate=500),
    Fault(truncate=500, reset=True),
    Fault(truncate=0, reset=True),
    Fault(chunked=True, truncate=1),
    Fault(stall_headers=True),
    Fault(stall_body=True),
    Fault(stall_body=True, truncate=500),
    Fault(drip_s=0.001),
    Fault(chunked=True, surplus=-1),  # ends well, too early
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fault", ONCE, ids=lambda fault: re.sub(r"\w+=(None|False|0|0\.0|1),? ?", "", repr(fault)))
async def test_what_happens_once_is_tried_again(store: Store, server: ObjectServer, fault: Fault) -> None:
    stored, tail = await opened(store)
    for read in ("pinned", "tail"):
        server.faults = [fault]
        sent = server.bytes_sent
        context = new_context()
        if read == "pinned":
            result = await stored.fetch_range(100, 2100, context=context, pin=tail.validator)
            assert result.data == DATA[100:2100]
        else:
            result = await stored.fetch_tail(2000, context=context)
            assert result.data == DATA[-2000:]
        assert [record.attempt for record in context.metrics.log] == [1, 2]
        assert context.metrics.retries == 1
        if fault.drip_s is None and fault.status is None and not fault.reset:
            assert context.metrics.bytes_fetched == server.bytes_sent - sent  # also those of the failed attempt
        first, second = server.log[-2:]
        got = context.metrics.log[0].bytes
        if fault.status is None and 0 < got < 2000 and not fault.surplus:  # the rest, of the same version
            start = (100 if read == "pinned" else len(DATA) - 2000) + got
            assert second.range == f"bytes={start}-{start + 1999 - got}"
            assert second.headers["if-match"] == tail.validator.etag
            assert context.metrics.bytes_fetched == 2000
        else:
            assert first.range == second.range
        if fault.truncate and not fault.chunked and not fault.reset:
            assert got == fault.truncate


ALWAYS: list[tuple[Fault, type[AsyncpqError]]] = [
    (Fault(times=None, status=500), TransportError),
    (Fault(times=None, status=503, code="SlowDown"), ThrottledError),
    (Fault(times=None, status=429, code=""), ThrottledError),
    (Fault(times=None, slow_down_200=True), ThrottledError),
    (Fault(times=None, truncate=300), TransportError),
    (Fault(times=None, truncate=300, reset=True), TransportError),
    (Fault(times=None, stall_body=True, truncate=300), TransportError),
    (Fault(times=None, stall_headers=True), TransportError),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("fault", "error"), ALWAYS)
async def test_what_does_not_end_fails_after_the_last_attempt(
    store: Store, server: ObjectServer, fault: Fault, error: type[AsyncpqError]
) -> None:
    stored, tail = await opened(store)
    server.faults = [fault]
    before = len(server.log)
    context = new_context()
    with pytest.raises(error) as caught:
        await stored.fetch_range(0, 2000, context=context, pin=tail.validator)
    assert type(caught.value) is error
    assert caught.value.url == "s3://bucket/key"
    assert len(server.log) - before == context.metrics.requests == ATTEMPTS
    server.faults = []
    assert (await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)).data == DATA[:9]


REFUSED: list[tuple[Fault, type[AsyncpqError]]] = [
    (Fault(shift_range=1), InvalidResponseError),
    (Fault(shift_range=-1), InvalidResponseError),
    (Fault(length_delta=1, truncate=2000), InvalidResponseError),
    (Fault(length_delta=-1), InvalidResponseError),
    (Fault(surplus=1), InvalidResponseError),
    (Fault(surplus=-1), InvalidResponseError),
    (Fault(surplus=1, chunked=True), InvalidResponseError),
    (Fault(surplus=1500, chunked=True), InvalidResponseError),
    (Fault(ignore_range=True), InvalidResponseError),
    (Fault(gzip=True), InvalidResponseError),
    (Fault(html_200=True), InvalidResponseError),
    (Fault(redirect="http://127.0.0.1:1/elsewhere"), InvalidResponseError),
    (Fault(etag="none"), InvalidResponseError),
    (Fault(etag="weak"), ObjectChangedError),
    (Fault(etag="other"), ObjectChangedError),
    (Fault(replace_with=b"y" * len(DATA)), ObjectChangedError),
    (Fault(replace_with=b"y" * len(DATA), ignore_if_match=True), ObjectChangedError),
    (Fault(replace_with=b"y" * 5000, ignore_if_match=True), ObjectChangedError),
    (Fault(replace_with=b""), ObjectChangedError),
    (Fault(replace_with=b"", ignore_if_match=True), ObjectChangedError),
    (Fault(delete=True), ObjectChangedError),
    (Fault(status=412, code="PreconditionFailed", times=None), ObjectChangedError),
    (Fault(status=404, code="NoSuchBucket"), BucketNotFoundError),
    (Fault(status=403, code="AccessDenied"), AccessDeniedError),
    (Fault(status=403, code="SignatureDoesNotMatch"), CredentialsError),
    (Fault(status=403, code="InvalidAccessKeyId"), CredentialsError),
    (Fault(status=400, code="ExpiredToken", times=None), CredentialsError),
    (Fault(status=416, code="InvalidRange"), ObjectChangedError),
]


@pytest.mark.parametrize(("fault", "error"), REFUSED)
async def test_what_is_not_the_bytes_is_refused(
    store: Store, server: ObjectServer, fault: Fault, error: type[AsyncpqError]
) -> None:
    stored, tail = await opened(store)
    server.faults = [fault]
    context = new_context()
    with pytest.raises(AsyncpqError) as caught:
        await stored.fetch_range(100, 2100, context=context, pin=tail.validator)
    assert type(caught.value) is error, caught.value
    assert caught.value.url == "s3://bucket/key"
    # a body that is refused is not read: what came with the response head at most
    assert context.metrics.bytes_fetched <= 4096


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (Fault(shift_range=-1, times=None), InvalidResponseError),
        (Fault(ignore_range=True, times=None), InvalidResponseError),
        (Fault(status=416, times=None), InvalidResponseError),
        (Fault(status=400, code="InvalidRequest", times=None), StoreError),
        (Fault(gzip=True), InvalidResponseError),
        (Fault(delete=True), ObjectNotFoundError),
        (Fault(replace_with=b""), NotParquetError),
    ],
)
async def test_tail_refused(store: Store, server: ObjectServer, fault: Fault, error: type[AsyncpqError]) -> None:
    stored = await store.open_object("s3://bucket/key")
    server.faults = [fault]
    with pytest.raises(error):
        await stored.fetch_tail(1000, context=new_context())


THROUGH_S3FS: list[tuple[Fault, type[AsyncpqError] | None, int]] = [
    *(
        # If-Match is refused for the first time: the ETag of a GET without it tells whether the server compares
        (
            fault,
            error,
            2 if fault.status == 412 or (fault.replace_with is not None and not fault.ignore_if_match) else 1,
        )
        for fault, error in REFUSED
        if fault.length_delta >= 0  # botocore takes the byte too many for a broken connection, so it is tried again
        and fault.redirect is None  # botocore asks for the bucket's region first
    ),
    *((fault, error, ATTEMPTS) for fault, error in ALWAYS),
    *((fault, None, 2) for fault in ONCE),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("fault", "error", "requests"), THROUGH_S3FS)
async def test_the_same_through_s3fs(
    s3fs_store: Store, server: ObjectServer, fault: Fault, error: type[AsyncpqError] | None, requests: int
) -> None:
    stored, tail = await opened(s3fs_store)
    assert stored.client == "s3fs"
    server.faults = [fault]
    before = len(server.log)
    context = new_context()
    outcome: bytes | memoryview | type[AsyncpqError]
    try:
        outcome = (await stored.fetch_range(100, 2100, context=context, pin=tail.validator)).data
    except AsyncpqError as refused:
        outcome = type(refused)
    assert outcome == (DATA[100:2100] if error is None else error)
    assert context.metrics.requests == len(server.log) - before == requests


async def test_slow_down_inside_a_200_is_tried_again(store: Store, server: ObjectServer) -> None:
    stored, tail = await opened(store)
    server.faults = [Fault(slow_down_200=True)]
    context = new_context()
    assert (await stored.fetch_range(0, 500, context=context, pin=tail.validator)).data == DATA[:500]
    assert context.metrics.retries == 1


@pytest.mark.parametrize("fault", [Fault(truncate=600, times=None), Fault(truncate=600, reset=True, times=None)])
async def test_a_body_that_always_breaks_off_is_put_together(store: Store, server: ObjectServer, fault: Fault) -> None:
    stored, tail = await opened(store)
    server.faults = [fault]
    context = new_context()
    assert (await stored.fetch_range(100, 2100, context=context, pin=tail.validator)).data == DATA[100:2100]
    assert context.metrics.bytes_fetched == 2000
    assert [(record.start, record.stop) for record in context.metrics.log] == [
        (100 + at, 2100) for at in range(0, 2000, 600)
    ]


@pytest.mark.parametrize("etag", ["weak", "none"])
async def test_without_a_strong_etag_a_body_is_fetched_anew(store: Store, server: ObjectServer, etag: str) -> None:
    server.faults = [Fault(etag=etag, times=1), Fault(etag=etag, after=1, truncate=500), Fault(etag=etag, times=None)]
    stored, tail = await opened(store)
    context = new_context()
    result = await stored.fetch_range(100, 2100, context=context, pin=tail.validator)
    assert result.data == DATA[100:2100]
    assert [record.bytes for record in context.metrics.log] == [500, 2000]
    assert {request.range for request in server.log[1:]} == {"bytes=100-2099"}


async def test_the_rest_is_never_of_another_version(store: Store, s3fs_store: Store, server: ObjectServer) -> None:
    for made in (store, s3fs_store):
        server.put("bucket/key", DATA)
        server.faults = []
        stored, tail = await opened(made)
        other = DATA[::-1]
        server.faults = [Fault(truncate=500, replace_after=other)]
        context = new_context()
        with pytest.raises(ObjectChangedError):
            await stored.fetch_range(100, 2100, context=context, pin=tail.validator)
        assert context.metrics.requests == 2
        server.put("bucket/key", DATA)
        server.faults = [Fault(truncate=500, replace_after=other)]
        context = new_context()
        result = await stored.fetch_tail(2000, context=context)  # of whatever version there is: all of the new one
        assert (result.data, result.validator.same_version(tail.validator)) == (other[-2000:], False)
        asked = [request.range for request in server.log[-3:]]
        assert asked == ["bytes=-2000", f"bytes={len(DATA) - 1500}-{len(DATA) - 1}", "bytes=-2000"]
        server.put("bucket/key", DATA)
        server.faults = [Fault(truncate=500), Fault(after=1, delete=True)]
        with pytest.raises(ObjectNotFoundError):
            await stored.fetch_tail(2000, context=new_context())


async def test_a_rest_that_is_not_the_rest_is_refused(store: Store, server: ObjectServer) -> None:
    stored, tail = await opened(store)
    for fault in (Fault(after=1, ignore_range=True), Fault(after=1, shift_range=1), Fault(after=1, surplus=1)):
        server.faults = [Fault(truncate=500), fault]
        with pytest.raises(InvalidResponseError):
            await stored.fetch_range(100, 2100, context=new_context(), pin=tail.validator)


SHORT_FAULTS = {
    "500": Fault(status=500),
    "503": Fault(status=503, code="SlowDown"),
    "slow down in a 200": Fault(slow_down_200=True),
    "closed": Fault(truncate=0),
    "truncated": Fault(truncate=700),
    "reset": Fault(truncate=700, reset=True),
    "chunks cut": Fault(chunked=True, truncate=1),
    "chunked": Fault(chunked=True),
    "short": Fault(surplus=-1),
    "short chunks": Fault(surplus=-1, chunked=True),
    "shifted": Fault(shift_range=1),
    "range ignored": Fault(ignore_range=True),
    "other etag": Fault(etag="other"),
    "weak etag": Fault(etag="weak"),
    "no etag": Fault(etag="none"),
    "replaced": Fault(replace_with=DATA[::-1]),
    "replaced in the middle": Fault(truncate=300, replace_after=DATA[::-1]),
    "replaced unseen": Fault(replace_with=DATA[:5000], ignore_if_match=True),
    "deleted": Fault(delete=True),
}


def in_turn(names: list[str], for_ever: bool) -> list[Fault]:
    """What happens to each request in turn; then all is well, or goes on as it ended."""
    last = {"times": None} if for_ever else {}
    return [
        replace(SHORT_FAULTS[name], after=at, **(last if at == len(names) - 1 else {"times": 1}))
        for at, name in enumerate(names)
    ]


class World:
    """A server with an object, and all the ways to read it."""

    def __init__(self, server: ObjectServer) -> None:
        self.server = server
        self.ways = {
            "s3": (open_test_store("s3", server.storage_options), "s3://bucket/key"),
            "s3fs": (
                open_test_store(
                    "s3", {**server.storage_options, "s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}}
                ),
                "s3://bucket/key",
            ),
            "http": (open_test_store("http", {}), f"{server.endpoint}/bucket/key"),
        }

    async def close(self) -> None:
        for store, _ in self.ways.values():
            await store.close()


@pytest.fixture(scope="module")
def world() -> Iterator[tuple[asyncio.Runner, World]]:
    with ObjectServer.in_thread() as server, asyncio.Runner() as runner:

        async def make() -> World:
            return World(server)

        made = runner.run(make())
        yield runner, made
        runner.run(made.close())


VERSIONS = (DATA, DATA[::-1], DATA[:5000])


@given(
    names=st.lists(st.sampled_from(list(SHORT_FAULTS)), max_size=6),
    for_ever=st.booleans(),
    pinned=st.booleans(),
    way=st.sampled_from(["s3", "s3fs", "http"]),
)
def test_any_misfortune_ends_in_the_right_bytes_or_a_typed_error(
    world: tuple[asyncio.Runner, World], names: list[str], for_ever: bool, pinned: bool, way: str
) -> None:
    async def read(world: World) -> None:
        server = world.server
        server.put("bucket/key", DATA)
        server.faults = []
        store, url = world.ways[way]
        stored = await store.open_object(url)
        pin = (await stored.fetch_tail(9, context=new_context())).validator if pinned else None
        server.faults = in_turn(names, for_ever)
        context = new_context()
        try:
            result = await stored.fetch_tail(2000, context=context, pin=pin)
        except AsyncpqError as error:
            where: str | None = error.url
            assert where == url  # any of them may come, or none
        else:
            found = [data for data in VERSIONS if result.data == data[-2000:]]
            assert len(found) == 1
            if pin is not None:  # of which version is the server's to say: it may still replace it for the last read
                assert pin.etag == f'"{hashlib.md5(found[0], usedforsecurity=False).hexdigest()}"'
        # of a server that seems to know no ranges of the last bytes, the first byte and the size are asked, and then a
        # range; over http a small object is taken whole
        assert context.metrics.requests <= ATTEMPTS * 4 + 1
        assert context.metrics.bytes_fetched <= ATTEMPTS * (len(DATA) + 1 if way == "http" else 2 * 2001)

    runner, made = world
    runner.run(read(made))
