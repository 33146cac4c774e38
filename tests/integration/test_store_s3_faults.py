"""S3Store against a server that misbehaves: the right bytes, or one of asyncpq's errors; never others."""

from __future__ import annotations

import asyncio
import hashlib
import random
import re
from collections.abc import AsyncIterator
from typing import Any

import pytest

from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    BucketNotFoundError,
    CredentialsError,
    DeadlineExceededError,
    InvalidOptionError,
    InvalidResponseError,
    NotParquetError,
    ObjectChangedError,
    ObjectNotFoundError,
    ThrottledError,
    TransportError,
)
from asyncpq.storage.base import Guarantee, RangeResult, Store, StoredObject
from asyncpq.testing import Fault, ObjectServer
from tests.store_backends import FAST_RETRIES, new_context, open_test_store

DATA = random.Random(3).randbytes(100_000)
ATTEMPTS = FAST_RETRIES.max_attempts


@pytest.fixture
async def server() -> AsyncIterator[ObjectServer]:
    async with ObjectServer() as running:
        running.put("bucket/key", DATA)
        yield running


@pytest.fixture
async def store(server: ObjectServer) -> AsyncIterator[Store]:
    made = open_test_store("s3", server.storage_options)
    yield made
    await made.close()


def shown(error: BaseException) -> list[str]:
    """What a traceback says: the error's text, and those of its causes and contexts that it shows."""
    following = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return [str(error), *(shown(following) if following is not None else [])]


async def opened(store: Store) -> tuple[StoredObject, RangeResult]:
    stored = await store.open_object("s3://bucket/key")
    return stored, await stored.fetch_tail(1000, context=new_context())


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
        assert {record.range for record in map(server.log.__getitem__, (-1, -2))} == {server.log[-1].range}


ALWAYS: list[tuple[Fault, type[AsyncpqError]]] = [
    (Fault(times=None, status=500), TransportError),
    (Fault(times=None, status=503, code="SlowDown"), ThrottledError),
    (Fault(times=None, status=429, code=""), ThrottledError),
    (Fault(times=None, slow_down_200=True), ThrottledError),
    (Fault(times=None, truncate=500), TransportError),
    (Fault(times=None, truncate=500, reset=True), TransportError),
    (Fault(times=None, stall_body=True, truncate=500), TransportError),
    (Fault(times=None, stall_headers=True), TransportError),
]


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
    (Fault(status=412, code="PreconditionFailed"), ObjectChangedError),
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
        (Fault(shift_range=-1), InvalidResponseError),
        (Fault(ignore_range=True), InvalidResponseError),
        (Fault(no_suffix=True), InvalidResponseError),
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


@pytest.fixture
async def s3fs_store(server: ObjectServer) -> AsyncIterator[Store]:
    made = open_test_store("s3", {**server.storage_options, "requester_pays": True})
    yield made
    await made.close()


@pytest.fixture
async def elsewhere() -> AsyncIterator[ObjectServer]:
    """Where redirects lead, and nobody should follow."""
    async with ObjectServer() as running:
        running.put("bucket/key", DATA)
        yield running


async def test_the_same_through_s3fs(s3fs_store: Store, server: ObjectServer) -> None:
    stored = await s3fs_store.open_object("s3://bucket/key")
    assert stored.client == "s3fs"

    async def fetch(fault: Fault) -> tuple[bytes | AsyncpqError, int]:
        server.put("bucket/key", DATA)
        server.faults = []
        tail = await stored.fetch_tail(1000, context=new_context())
        server.faults = [fault]
        before = len(server.log)
        context = new_context()
        try:
            outcome: bytes | AsyncpqError = (
                await stored.fetch_range(100, 2100, context=context, pin=tail.validator)
            ).data
        except AsyncpqError as error:
            outcome = error
        assert context.metrics.requests == len(server.log) - before
        return outcome, context.metrics.requests

    for fault, error in REFUSED:
        if fault.length_delta < 0:
            continue  # botocore takes the byte too many for a broken connection, so it is tried again
        if fault.redirect is not None:
            continue  # botocore asks for the bucket's region first
        outcome, requests = await fetch(fault)
        assert (type(outcome), requests) == (error, 1), (fault, outcome)
    for fault, error in ALWAYS:
        outcome, requests = await fetch(fault)
        assert (type(outcome), requests) == (error, ATTEMPTS), (fault, outcome)
    for fault in ONCE:
        outcome, requests = await fetch(fault)
        assert (outcome, requests) == (DATA[100:2100], 2), fault


async def test_redirects_are_not_followed(
    store: Store, s3fs_store: Store, server: ObjectServer, elsewhere: ObjectServer
) -> None:
    """Headers like a customer's key or a session token would go along."""
    for made in (store, s3fs_store):
        stored = await made.open_object("s3://bucket/key")
        server.faults = [Fault(redirect=f"{elsewhere.endpoint}/bucket/key", times=None)]
        with pytest.raises(InvalidResponseError, match="redirect"):
            await stored.fetch_tail(9, context=new_context())
    assert not elsewhere.log


@pytest.mark.parametrize("location", ["/obj?X-Amz-Signature=SECRET", "//u:SECRET@h/obj?token=SECRET"])
async def test_redirects_are_shown_without_secrets(
    store: Store, s3fs_store: Store, server: ObjectServer, location: str
) -> None:
    for made in (store, s3fs_store):
        stored = await made.open_object("s3://bucket/key")
        server.faults = [Fault(redirect=location, times=None)]
        with pytest.raises(InvalidResponseError, match=r"redirects to.*obj") as caught:
            await stored.fetch_tail(9, context=new_context())
        assert "SECRET" not in "".join(shown(caught.value))


async def test_slow_down_inside_a_200_is_tried_again(store: Store, server: ObjectServer) -> None:
    stored, tail = await opened(store)
    server.faults = [Fault(slow_down_200=True)]
    context = new_context()
    assert (await stored.fetch_range(0, 500, context=context, pin=tail.validator)).data == DATA[:500]
    assert context.metrics.retries == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault(stall_headers=True, times=None),
        Fault(stall_body=True, times=None),
        Fault(status=503, code="SlowDown", times=None, retry_after_s=3600),
    ],
)
async def test_no_hang_beyond_the_deadline(store: Store, server: ObjectServer, fault: Fault) -> None:
    stored, tail = await opened(store)
    server.faults = [fault]
    loop = asyncio.get_running_loop()
    started = loop.time()
    with pytest.raises(DeadlineExceededError):
        await stored.fetch_range(0, 500, context=new_context(0.2), pin=tail.validator)
    assert loop.time() - started < 0.5


async def test_deadline_while_waiting_for_a_connection(store: Store, server: ObjectServer) -> None:
    stored, tail = await opened(store)
    server.faults = [Fault(latency_s=0.25, times=None)]
    context = new_context()
    others = [asyncio.create_task(stored.fetch_range(0, 9, context=context, pin=tail.validator)) for _ in range(8)]
    await asyncio.sleep(0)
    with pytest.raises(DeadlineExceededError):
        await stored.fetch_range(0, 9, context=new_context(0.1), pin=tail.validator)
    assert all(result.data == DATA[:9] for result in await asyncio.gather(*others))
    assert context.metrics.retries == 0  # waiting for a turn is not waiting for a response


async def test_scans_leave_connections_to_lookups(store: Store, server: ObjectServer) -> None:
    stored, tail = await opened(store)
    server.faults = [Fault(latency_s=0.2, times=None)]
    scan = new_context(scan=True)
    scans = [asyncio.create_task(stored.fetch_range(0, 9, context=scan, pin=tail.validator)) for _ in range(30)]
    await asyncio.sleep(0.02)
    loop = asyncio.get_running_loop()
    started = loop.time()
    await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)
    assert loop.time() - started < 0.35
    for task in scans:
        task.cancel()
    await asyncio.gather(*scans, return_exceptions=True)


async def test_wrong_region_is_learnt_once(store: Store, server: ObjectServer) -> None:
    server.faults = [Fault(region="eu-central-1", times=None)]
    stored = await store.open_object("s3://bucket/key")
    context = new_context()
    assert (await stored.fetch_tail(9, context=context)).data == DATA[-9:]
    assert [record.status for record in context.metrics.log] == [400, 206]
    other = await store.open_object("s3://bucket/key")
    context = new_context()
    assert (await other.fetch_tail(9, context=context)).data == DATA[-9:]
    assert context.metrics.requests == 1


@pytest.mark.parametrize("skew_s", [3600.0, -7200.0])
async def test_clock_is_corrected_once(store: Store, server: ObjectServer, skew_s: float) -> None:
    server.faults = [Fault(skew_s=skew_s, times=None)]
    stored = await store.open_object("s3://bucket/key")
    context = new_context()
    await stored.fetch_tail(9, context=context)
    assert [record.status for record in context.metrics.log] == [403, 206]
    await stored.fetch_range(0, 9, context=context)
    assert context.metrics.requests == 3


async def test_expired_credentials_are_looked_up_again(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "first")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    options = {"endpoint_url": server.endpoint, "client_kwargs": {"region_name": "us-east-1"}}
    store = open_test_store("s3", options)
    stored = await store.open_object("s3://bucket/key")
    await stored.fetch_tail(9, context=new_context())
    identity = await store.credential_identity("s3://bucket/key")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "second")
    assert await store.credential_identity("s3://bucket/key") == identity  # those in use, not looked up again
    server.faults = [Fault(status=400, code="ExpiredToken")]
    context = new_context()
    reads = [stored.fetch_range(0, 9, context=context) for _ in range(5)]
    assert all(result.data == DATA[:9] for result in await asyncio.gather(*reads))
    assert context.metrics.requests == 6
    await stored.fetch_range(0, 9, context=context)
    used = [re.search(r"Credential=(\w+)", request.headers["authorization"]) for request in server.log]
    assert used[0] is not None
    assert used[-1] is not None
    assert (used[0][1], used[-1][1]) == ("first", "second")
    assert await store.credential_identity("s3://bucket/key") != identity
    await store.close()


async def test_expired_credentials_of_the_options_are_final(server: ObjectServer) -> None:
    store = open_test_store("s3", server.storage_options)
    stored = await store.open_object("s3://bucket/key")
    server.faults = [Fault(status=400, code="ExpiredToken", times=None)]
    with pytest.raises(CredentialsError, match="expired"):
        await stored.fetch_tail(9, context=new_context())
    await store.close()


async def test_size_unknown_in_content_range_costs_one_head(store: Store, server: ObjectServer) -> None:
    server.faults = [Fault(unknown_size=True, method="GET", times=None)]
    stored = await store.open_object("s3://bucket/key")
    context = new_context()
    tail = await stored.fetch_tail(9, context=context)
    assert (tail.start, tail.validator.size) == (len(DATA) - 9, len(DATA))
    assert [request.method for request in server.log] == ["GET", "HEAD"]
    assert server.log[-1].headers["if-match"] == tail.validator.etag
    result = await stored.fetch_range(0, 9, context=context, pin=tail.validator)
    assert result.validator == tail.validator
    assert context.metrics.requests == 3


@pytest.mark.parametrize(("etag", "guarantee"), [("weak", Guarantee.BRACKETED), ("none", Guarantee.BRACKETED)])
async def test_guarantee_without_a_strong_etag(
    store: Store, s3fs_store: Store, server: ObjectServer, etag: str, guarantee: Guarantee
) -> None:
    server.faults = [Fault(etag=etag, times=None)]
    stored, tail = await opened(store)
    assert stored.guarantee is guarantee
    for made in (store, s3fs_store):
        known = await made.open_object("s3://bucket/key")
        known.learn(tail.validator)
        assert known.guarantee is guarantee
        pinned = await made.open_object("s3://bucket/key")
        assert (await pinned.fetch_range(0, 9, context=new_context(), pin=tail.validator)).validates
        assert pinned.guarantee is guarantee
    await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)
    assert "if-match" not in server.log[-1].headers  # a weak one never matches


async def test_pinned_gets_carry_if_match(store: Store, server: ObjectServer) -> None:
    stored, tail = await opened(store)
    await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)
    assert "if-match" not in server.log[0].headers
    assert server.log[1].headers["if-match"] == tail.validator.etag
    assert server.log[1].headers["accept-encoding"] == "identity"


async def test_server_without_if_match_is_compared(server: ObjectServer) -> None:
    store = open_test_store("s3", {**server.storage_options, "local_expiry_check": True})
    stored, tail = await opened(store)
    assert stored.guarantee is Guarantee.COMPARED
    known = await store.open_object("s3://bucket/key")
    known.learn(tail.validator)
    assert known.guarantee is Guarantee.COMPARED
    await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)
    assert "if-match" not in server.log[-1].headers
    server.put("bucket/key", b"z" * len(DATA))
    with pytest.raises(ObjectChangedError):
        await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)
    await store.close()


KEYS = [
    *["a b", "a+b", "100%", "%2F", "é/ü", "//", "a//b", "../x", "a/../b", "a/./b", "?q=1", "#f", "a&b=c", "~"],
    *["'\"", "日本", "/lead", "trail/", "a\\b", "a:b@c", "[x]{y}|^`", "\x7f\t"],
]


async def test_keys_arrive_as_they_are(store: Store, server: ObjectServer) -> None:
    for key in KEYS:
        server.put(f"bucket/{key}", key.encode())
        stored = await store.open_object(f"s3://bucket/{key}")
        assert (await stored.fetch_tail(1000, context=new_context())).data == key.encode()
        assert server.log[-1].path == f"/bucket/{key}"


async def test_version_of_the_url(store: Store, server: ObjectServer) -> None:
    stored = await store.open_object("s3://bucket/key?versionId=a%2Fb+c")
    plain = await store.open_object("s3://bucket/key")
    await stored.fetch_tail(9, context=new_context())
    assert server.log[-1].target.partition("?")[2].split("&")[-1] == "versionId=a%252Fb%2Bc"
    assert stored.identity != plain.identity
    assert stored.url == plain.url


async def test_version_aware_pins_by_version_id(server: ObjectServer) -> None:
    store = open_test_store("s3", {**server.storage_options, "version_aware": True})
    server.faults = [Fault(headers={"x-amz-version-id": "v1"}, times=None)]
    stored, tail = await opened(store)
    assert tail.validator.version == "v1"
    await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)
    assert server.log[-1].target.endswith("/bucket/key?versionId=v1")
    await store.close()


async def test_without_credentials(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/nonexistent")
    store = open_test_store("s3", {"endpoint_url": server.endpoint})
    with pytest.raises(CredentialsError, match="credentials"):
        await store.open_object("s3://bucket/key")
    await store.close()
    assert not server.log


@pytest.mark.parametrize(
    "options",
    [
        {"no_such_option": 1},
        {"key": "k", "username": "u"},
        {"client_kwargs": {"no_such": 1}},
        {"config_kwargs": {"no_such": 1}},
        {"client_kwargs": {"verify": "/no/such/bundle"}, "endpoint_url": "https://127.0.0.1:1"},
        {"profile": "no-such-profile"},
        {"endpoint_url": "http://AKIA:SECRET@bad host/"},
        {"endpoint_url": "http://AKIA:SECRET@bad host/", "requester_pays": True, "client_kwargs": {"new": 1}},
        {"client_kwargs": {"endpoint_url": "http://AKIA:SECRET@bad host/"}},
        {"client_kwargs": {"region_name": "SECRET SECRET"}},
        {"client_kwargs": {"aws_secret_access_key": 7}},
        {"config_kwargs": {"s3": {"addressing_style": "SECRET"}}},
        {"config_kwargs": {"signature_version": "SECRET"}},
    ],
)
async def test_options_that_cannot_be(options: dict[str, Any]) -> None:
    async def use() -> None:
        store = open_test_store("s3", {"key": "AKIASECRET", "secret": "SECRET", **options})
        try:
            await store.open_object("s3://bucket/key")
        finally:
            await store.close()

    with pytest.raises((InvalidOptionError, CredentialsError)) as caught:
        await use()
    assert "SECRET" not in "".join(shown(caught.value))
    if "bad host" in repr(options.get("endpoint_url")) and len(options) == 1:
        assert "endpoint_url (ValueError)" in caught.value.message


@pytest.mark.parametrize("user", ["AKIA:SECRET@", "SECRET@", "AKIA:SEC/SECRET@"])
async def test_urls_hold_no_credentials(store: Store, s3fs_store: Store, user: str) -> None:
    for made in (store, s3fs_store):
        with pytest.raises(InvalidOptionError, match="storage_options") as caught:
            await made.open_object(f"s3://{user}bucket/key")
        assert "SECRET" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "s3:///key", "s3://in valid!/key"])
async def test_urls_that_cannot_be(store: Store, url: str) -> None:
    with pytest.raises(InvalidOptionError):
        await store.open_object(url)


async def test_a_signed_query_in_a_key_is_not_shown(store: Store, s3fs_store: Store) -> None:
    for made in (store, s3fs_store):
        stored = await made.open_object("s3://bucket/key?X-Amz-Signature=SECRET")
        assert "SECRET" not in stored.url + repr(stored)


@pytest.mark.parametrize("through_s3fs", [False, True])
async def test_credential_identity(server: ObjectServer, monkeypatch: pytest.MonkeyPatch, through_s3fs: bool) -> None:
    options: dict[str, Any] = {"endpoint_url": server.endpoint, "client_kwargs": {"region_name": "us-east-1"}}
    if through_s3fs:
        options["requester_pays"] = True
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    found = []
    for key in ("first", "second", "first"):
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
        store = open_test_store("s3", options)
        identity = await store.credential_identity("s3://bucket/key")  # before anything is opened
        await store.open_object("s3://bucket/key")
        assert identity == await store.credential_identity("s3://bucket/other")
        found.append(identity)
        await store.close()
    assert found[0] == found[2] != found[1]
    assert found[0] == hashlib.sha256(b"first").hexdigest()[:16]
    for other, expected in (
        ({"key": "second", "secret": "s"}, found[1]),
        ({"client_kwargs": {"aws_access_key_id": "second", "aws_secret_access_key": "s"}}, found[1]),
        ({"anon": True}, "anonymous"),
    ):
        store = open_test_store("s3", {**options, **other})
        assert await store.credential_identity("s3://bucket/key") == expected
        await store.close()
    assert not server.log


async def test_environment_proxy_is_honoured_by_s3fs(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server.endpoint)
    monkeypatch.setenv("no_proxy", "")
    store = open_test_store("s3", server.storage_options)
    stored = await store.open_object("s3://bucket/key")
    assert stored.client == "s3fs"
    await store.close()


async def test_s3fs_path_is_visible(server: ObjectServer) -> None:
    sse = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "x" * 32}
    store = open_test_store("s3", {**server.storage_options, "s3_additional_kwargs": sse})
    stored = await store.open_object("s3://bucket/key")
    assert stored.client == "s3fs"
    context = new_context()
    await stored.fetch_range(0, 9, context=context)
    (reason,) = context.metrics.fallbacks
    assert "s3fs" in reason
    assert "x-amz-server-side-encryption-customer" in server.log[-1].headers.__str__()
    assert "x" * 32 not in reason
    await store.close()
