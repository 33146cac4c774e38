"""Objects through obstore: one checked GET each, typed errors without secrets, and options that are refused early.

The client is obstore itself; the server is the tests' own, which speaks what obstore asks of S3, of Google's XML API,
and of Azure for reads.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
from obstore.exceptions import AlreadyExistsError, GenericError, NotSupportedError, UnauthenticatedError
from obstore.store import MemoryStore

import asyncpq
import asyncpq.storage.obstore
from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    BucketNotFoundError,
    CorruptFileError,
    CredentialsError,
    InvalidOptionError,
    InvalidResponseError,
    NotParquetError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    ThrottledError,
    TransportError,
    UnsupportedStoreError,
    UsageError,
)
from asyncpq.storage.base import Guarantee, ObjectExistsError, Store, StoredObject, writable
from asyncpq.storage.http1 import Body, Receiver
from asyncpq.storage.obstore import ObstoreBucket, ObstoreExchange
from asyncpq.storage.response_checks import COMPARED, SIZE_FIRST, RangeRequest
from asyncpq.storage.retries import RetryableError
from asyncpq.testing import CATALOGUE, Fault, ObjectServer, Scene
from tests.leaks import assert_back_to, held
from tests.store_backends import (
    DATA,
    FAST_RETRIES,
    FAST_TIMEOUTS,
    new_context,
    obstore_options,
    open_test_store,
    retries_for,
    shown,
)


@pytest.fixture(params=["gs", "s3", "az"])
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
async def store(protocol: str, server: ObjectServer, request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    made = open_test_store(protocol, obstore_options(server, protocol), retries_for(request))
    yield made
    await made.close()


@pytest.fixture
def url(protocol: str) -> str:
    return f"{protocol}://bucket/key"


async def test_each_fetch_is_one_pinned_get(store: Store, url: str, protocol: str, server: ObjectServer) -> None:
    stored = await store.open_object(url)
    context = new_context()
    tail = await stored.fetch_tail(1000, context=context)
    result = await stored.fetch_range(10, 30, context=context, pin=tail.validator)
    again = await stored.fetch_tail(1000, context=context, pin=tail.validator)
    assert (tail.data, result.data, again.data) == (DATA[-1000:], DATA[10:30], DATA[-1000:])
    assert (stored.guarantee, tail.validates) == (Guarantee.PINNED, True)
    last = f"bytes={len(DATA) - 1000}-{len(DATA) - 1}" if protocol == "az" else "bytes=-1000"
    heads = [("HEAD", None, None)] if protocol == "az" else []
    pin = tail.validator.etag
    assert [(sent.method, sent.range, sent.headers.get("if-match")) for sent in server.log] == [
        *heads,
        ("GET", last, pin if heads else None),
        ("GET", "bytes=10-29", pin),
        ("GET", last, pin),
    ]
    rounds = [("HEAD", "stat", 1, 200), ("GET", "data", 2, 206)] if heads else [("GET", "data", 1, 206)]
    recorded = [(record.method, record.purpose, record.round, record.status) for record in context.metrics.log]
    assert recorded == [*rounds, ("GET", "data", 1, 206), ("GET", "data", 1, 206)]


async def test_short_bodies_are_views_and_long_ones_come_in_pieces(
    store: Store, url: str, server: ObjectServer
) -> None:
    data = DATA * 50
    server.put("bucket/key", data)
    stored = await store.open_object(url)
    context = new_context()
    short = await stored.fetch_range(0, 1000, context=context)
    assert isinstance(short.data, memoryview)
    server.faults = [Fault(method="GET", truncate=3_000_000)]
    whole = await stored.fetch_range(0, len(data), context=context, pin=short.validator)
    assert whole.data == data
    first, second = server.log[-2:]
    assert first.range == f"bytes=0-{len(data) - 1}"
    begin = int(re.fullmatch(rf"bytes=(\d+)-{len(data) - 1}", second.range or "")[1])  # type: ignore[index]
    assert 1_000_000 <= begin <= 3_000_000  # the rest alone, of the same version
    assert second.headers["if-match"] == short.validator.etag


@pytest.mark.parametrize("protocol", ["gs", "s3"])
@pytest.mark.parametrize(
    "fault",
    [
        Fault(status=416, code="InvalidRange"),  # without Content-Range
        Fault(no_suffix=True),  # with it
        Fault(status=400, code="InvalidArgument"),
        Fault(status=501, code="NotImplemented"),
        Fault(shift_range=-len(DATA) + 2000),  # the first bytes for the last
        Fault(headers={"Content-Range": "bytes 0--1/0"}),
        Fault(headers={"Content-Range": None}),
        Fault(ignore_range=True),
    ],
)
async def test_the_size_is_asked_where_the_last_bytes_do_not_come(
    store: Store, url: str, server: ObjectServer, fault: Fault
) -> None:
    server.put("bucket/empty", b"")
    server.faults = lambda request: fault if (request.range or "").startswith("bytes=-") else Fault()
    for requests in (3, 3, 2):  # remembered after the second refusal
        context = new_context()
        stored = await store.open_object(url)
        assert (await stored.fetch_tail(2000, context=context)).data == DATA[-2000:]
        assert len(context.metrics.log) == requests
        assert SIZE_FIRST in context.metrics.fallbacks
    with pytest.raises(NotParquetError, match="empty"):
        await (await store.open_object(url.replace("key", "empty"))).fetch_tail(2000, context=new_context())


@pytest.mark.parametrize("status", [412, 400, 501])
async def test_if_match_that_never_matches(store: Store, url: str, server: ObjectServer, status: int) -> None:
    server.faults = lambda request: Fault(status=status, code="") if "if-match" in request.headers else Fault()
    stored = await store.open_object(url)
    pin = (await stored.fetch_range(0, 9, context=new_context())).validator
    for requests in (2, 2, 1):  # remembered after the second refusal
        context = new_context()
        assert (await stored.fetch_range(100, 2100, context=context, pin=pin)).data == DATA[100:2100]
        assert len(context.metrics.log) == requests
        assert COMPARED in context.metrics.fallbacks
        assert stored.guarantee is Guarantee.COMPARED
    server.put("bucket/key", DATA[::-1])
    with pytest.raises(ObjectChangedError):
        await stored.fetch_range(100, 2100, context=new_context(), pin=pin)


@pytest.mark.parametrize("protocol", ["gs", "s3"])
async def test_a_refusal_of_everything_is_no_trait(store: Store, url: str, server: ObjectServer) -> None:
    server.faults = [Fault(status=400, code="InvalidArgument", times=None)]
    stored = await store.open_object(url)
    for _ in range(3):
        with pytest.raises(StoreError, match="400"):
            await stored.fetch_tail(2000, context=new_context())
    server.faults = []
    context = new_context()
    await stored.fetch_tail(2000, context=context)
    assert len(context.metrics.log) == 1


SCENE = Scene(other=DATA[::-1], location="http://127.0.0.1:1/loop", elsewhere="http://localhost:1/x", drip_s=0.01)
NAMES = sorted(name for name in CATALOGUE if name != "one byte at a time")


@pytest.mark.faults
@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
async def test_faults_give_right_bytes_or_an_error_without_secrets(server: ObjectServer, name: str) -> None:
    url = "gs://bucket/key"
    store = open_test_store("gs", obstore_options(server, "gs"), FAST_TIMEOUTS if "stall" in name else FAST_RETRIES)
    stored = await store.open_object(url)
    pin = (await stored.fetch_tail(8, context=new_context())).validator
    for times in (1, None):
        server.put("bucket/key", DATA)
        server.faults = [replace(CATALOGUE[name](SCENE), times=times, method="GET")]
        try:
            result = await stored.fetch_range(0, 1000, context=new_context(), pin=pin)
        except AsyncpqError as error:
            text = " ".join(shown(error))
            assert f"; {url}" in text
            assert not [hidden for hidden in ("SECRET", server.endpoint, "Debug source", "<Error>") if hidden in text]
        else:
            assert result.data == DATA[:1000]
            assert result.validator.same_version(pin)
    await store.close()


REFUSALS: list[tuple[Fault, type[AsyncpqError], int]] = [
    (Fault(times=None, status=500), TransportError, 4),
    (Fault(times=None, status=503, code="SlowDown"), ThrottledError, 4),
    (Fault(times=None, status=503, code="ServerBusy"), ThrottledError, 4),
    (Fault(times=None, status=429, code=""), ThrottledError, 4),
    (Fault(times=None, hang_up=True), TransportError, 4),
    (Fault(times=None, truncate=300), TransportError, 4),
    (Fault(times=None, stall_headers=True), TransportError, 4),
    (Fault(times=None, stall_body=True, truncate=300), TransportError, 4),
    (Fault(times=None, status=401, code=""), AccessDeniedError, 1),
    (Fault(times=None, status=403, code="AccessDenied"), AccessDeniedError, 1),
    (Fault(times=None, status=404, code="NoSuchBucket"), BucketNotFoundError, 1),
    (Fault(times=None, status=404, code="ContainerNotFound"), BucketNotFoundError, 1),
    (Fault(times=None, delete=True), ObjectChangedError, 1),
    (Fault(times=None, status=412, code="ConditionNotMet"), ObjectChangedError, 1),
    (Fault(times=None, replace_with=DATA[::-1]), ObjectChangedError, 1),
    (Fault(times=None, replace_with=DATA[::-1], ignore_if_match=True, keep_modified=True), ObjectChangedError, 1),
    (Fault(times=None, etag="other"), ObjectChangedError, 1),
    (Fault(times=None, etag="none"), InvalidResponseError, 1),
    (Fault(times=None, ignore_range=True), InvalidResponseError, 1),
    (Fault(times=None, shift_range=1), InvalidResponseError, 1),
    (Fault(times=None, surplus=1), InvalidResponseError, 1),
    (Fault(times=None, html_200=True), InvalidResponseError, 1),
]


@pytest.mark.sampled(2)
@pytest.mark.faults
@pytest.mark.parametrize("protocol", ["az"])
@pytest.mark.parametrize(("fault", "error", "requests"), REFUSALS)
async def test_refusals_are_typed(
    store: Store, url: str, server: ObjectServer, fault: Fault, error: type[AsyncpqError], requests: int
) -> None:
    stored = await store.open_object(url)
    pin = (await stored.fetch_tail(8, context=new_context())).validator
    await stored.fetch_range(0, 8, context=new_context(), pin=pin)  # with If-Match, so the server is believed
    server.faults = [fault]
    before = len(server.log)
    context = new_context()
    with pytest.raises(error) as caught:
        await stored.fetch_range(0, 1000, context=context, pin=pin)
    assert type(caught.value) is error
    assert len(server.log) - before == context.metrics.requests == requests
    statuses = {record.status for record in context.metrics.log}
    assert fault.status is None or statuses == {fault.status}


async def test_an_empty_or_missing_object(store: Store, url: str, server: ObjectServer) -> None:
    server.put("bucket/key", b"")
    stored = await store.open_object(url)
    with pytest.raises(NotParquetError):
        await stored.fetch_tail(8, context=new_context())
    server.delete("bucket/key")
    with pytest.raises(ObjectNotFoundError):
        await stored.fetch_tail(8, context=new_context())


async def cancelled_reads(stored: StoredObject, server: ObjectServer) -> None:
    """Cancel four reads that are under way. Their errors end here: tracebacks hold what they passed through."""
    asked = len(server.log)
    reads = [asyncio.ensure_future(stored.fetch_range(0, 9, context=new_context())) for _ in range(4)]
    while len(server.log) < asked + 4:  # noqa: ASYNC110 - nobody else waits for it
        await asyncio.sleep(0.01)
    for read in reads:
        read.cancel()
    assert [type(end) for end in await asyncio.gather(*reads, return_exceptions=True)] == [asyncio.CancelledError] * 4


async def test_a_cancelled_read_ends_and_leaks_nothing(protocol: str, url: str, server: ObjectServer) -> None:
    warm = open_test_store(protocol, obstore_options(server, protocol))
    await (await warm.open_object(url)).fetch_tail(8, context=new_context())  # starts obstore's own threads
    await warm.close()
    while server._connections.transports:  # the server's ends would else count as held before  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    before = held()
    store = open_test_store(protocol, obstore_options(server, protocol))
    stored = await store.open_object(url)
    server.faults = [Fault(times=None, stall_headers=True)]
    await cancelled_reads(stored, server)
    server.faults = []
    assert (await stored.fetch_range(0, 9, context=new_context())).data == DATA[:9]
    await store.close()
    await assert_back_to(before)  # the server's ends of the connections, too
    with pytest.raises(UsageError):
        await stored.fetch_range(0, 9, context=new_context())


@pytest.mark.parametrize("protocol", ["gs", "s3"])
async def test_listing_leaves_out_folders_and_other_names(store: Store, protocol: str, server: ObjectServer) -> None:
    for name in ("lake/", "lake/a/", "lake/a/1", "lake/a/2", "lake/ab", "lake/a-1", "other"):
        server.put(f"bucket/{name}", b"" if name.endswith("/") else b"12")
    names = {}
    for prefix in ("lake/", "lake/a", "lake/a/", ""):
        listed = await store.list_objects(f"{protocol}://bucket/{prefix}", context=new_context())
        names[prefix] = [found.url.removeprefix(f"{protocol}://bucket/") for found in listed]
    assert names == {
        "lake/": ["lake/a-1", "lake/a/1", "lake/a/2", "lake/ab"],
        "lake/a": ["lake/a-1", "lake/a/1", "lake/a/2", "lake/ab"],
        "lake/a/": ["lake/a/1", "lake/a/2"],
        "": ["key", "lake/a-1", "lake/a/1", "lake/a/2", "lake/ab", "other"],
    }


@pytest.mark.parametrize("protocol", ["gs", "s3"])
async def test_a_conflict_is_tried_again_and_a_lost_answer_may_have_created(
    store: Store, url: str, server: ObjectServer
) -> None:
    writer = writable(store, url)
    server.faults = [Fault(method="PUT", status=409, code="ConditionalRequestConflict")]
    context = new_context()
    assert await writer.create_object(f"{url}-new", b"1", context=context) is True
    assert [(record.status, record.attempt) for record in context.metrics.log] == [(409, 1), (200, 2)]
    server.faults = [Fault(method="PUT", lose_answer=True)]
    assert await writer.create_object(f"{url}-lost", b"1", context=new_context()) is False
    assert server.objects["bucket/key-lost"].data == b"1"
    server.creates = False
    server.faults = []
    assert await writer.probe_create(url, context=new_context()) is False


BAD_OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("gs", {"obstore": {"nonsense": "SECRET"}}, "nonsense"),
    ("gs", {"obstore": {"service_account": "/SECRET/missing.json"}}, "service_account"),
    ("gs", {"obstore": {"client_options": {"timeuot": "1s"}}}, "timeuot"),
    ("gs", {"obstore": {"bearer_token": 5}}, "TypeError"),
    ("gs", {"obstore": {}, "token": "SECRET"}, "beside obstore: token"),
    ("gs", {"obstore": {"bucket": "other"}}, "must not have bucket"),
    ("gs", {"obstore": {"google_bucket_name": "other"}}, "must not have google_bucket_name"),
    ("az", {"obstore": {"container_name": "other"}}, "must not have container_name"),
    ("gs", {"obstore": {"prefix": "a", "retry_config": {}}}, "must not have prefix, retry_config"),
    ("gs", {"obstore": True}, "must be a mapping"),
    ("az", {"obstore": {}}, "Set account_name"),
    ("https", {"obstore": {}}, "does not serve https://"),
    ("memory", {"obstore": {}}, "does not serve memory://"),
]


@pytest.mark.parametrize(("protocol", "options", "says"), BAD_OPTIONS)
async def test_bad_options_are_named(
    protocol: str, options: dict[str, Any], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)

    async def opened() -> None:
        await open_test_store(protocol, options).open_object(f"{protocol}://bucket/key")

    with pytest.raises(InvalidOptionError, match=re.escape(says)) as caught:
        await opened()
    assert "SECRET" not in " ".join(shown(caught.value))


@pytest.mark.parametrize(
    "bad", ["gs://", "gs:///key", "gs://bucket", "gs://bucket/folder/", "gs://user:SECRET@bucket/key"]
)
async def test_bad_urls_are_refused(bad: str) -> None:
    store = open_test_store("gs", {"obstore": {"skip_signature": True}})
    with pytest.raises(InvalidOptionError) as caught:
        await store.open_object(bad)
    assert "SECRET" not in str(caught.value)


async def test_names_that_obstore_cannot_write_are_refused() -> None:
    store = open_test_store("gs", {"obstore": {"skip_signature": True}})
    for name in ("a//b", "a/./b", "../b", "a\0b"):
        stored = await store.open_object(f"gs://bucket/{name}")
        with pytest.raises(InvalidOptionError, match="obstore cannot name this object"):
            await stored.fetch_tail(8, context=new_context())
    versions = open_test_store("s3", {"obstore": {"skip_signature": True}})
    with pytest.raises(UnsupportedStoreError, match="version of an S3 object"):
        await versions.open_object("s3://bucket/key?versionId=1")


async def test_an_endpoint_without_tls_must_be_allowed(server: ObjectServer) -> None:
    store = open_test_store("gs", {"obstore": {"base_url": server.endpoint, "skip_signature": True}})
    stored = await store.open_object("gs://bucket/key")
    with pytest.raises(InvalidOptionError, match="allow_http"):
        await stored.fetch_tail(8, context=new_context())


async def test_azure_urls_may_name_the_account(server: ObjectServer) -> None:
    options = obstore_options(server, "az")
    url = "abfss://bucket@devstoreaccount1.dfs.core.windows.net/key"
    stored = await open_test_store("abfss", options).open_object(url)
    assert (await stored.fetch_tail(8, context=new_context())).data == DATA[-8:]
    for other in ("abfss://bucket@other.dfs.core.windows.net/key", "abfss://bucket@other.example.com/key"):
        with pytest.raises(InvalidOptionError):
            await open_test_store("abfss", options).open_object(other)


async def test_caches_tell_places_and_credentials_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    async def identities(**options: str) -> tuple[str, str]:
        store = open_test_store("az", {"obstore": {"account_name": "one", "account_key": "c2VjcmV0", **options}})
        stored = await store.open_object("az://bucket/key")
        return stored.identity, await store.credential_identity("az://bucket/key")

    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "SECRET")
    first = await identities()
    assert await identities() == first
    assert await identities(account_key="b3RoZXI=") == first  # options are part of the session's namespace
    for place in ({"account_name": "two"}, {"endpoint": "https://example.com/one"}):
        assert (await identities(**place))[0] != first[0]
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "OTHER SECRET")
    second = await identities()
    assert (second[0] == first[0], second[1] == first[1]) == (True, False)
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "https://example.com/two")
    assert (await identities())[0] != first[0]
    assert "SECRET" not in repr((first, second))


async def test_a_forked_process_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncpq.storage.obstore, "_process", 1)  # of the parent
    store = open_test_store("gs", {"obstore": {"skip_signature": True}})
    with pytest.raises(UsageError, match="forked"):
        await store.open_object("gs://bucket/key")


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "asyncpq.storage.obstore")
    monkeypatch.setitem(sys.modules, "obstore.exceptions", None)
    with pytest.raises(UnsupportedStoreError, match=r"Install obstore: pip install .*\[obstore\]"):
        open_test_store("gs", {"obstore": {}})


async def test_no_other_client_is_loaded_for_what_a_url_says(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []
    monkeypatch.setattr("fsspec.get_filesystem_class", loaded.append)
    options = {"obstore": {"account_key": "a2V5"}}
    async with asyncpq.Session({"gs": {"obstore": {}}, "abfss": options}) as session:
        await session._runtime.store("gs://bucket/a.parquet")
        one, _ = await session._runtime.store("abfss://files@one.dfs.core.windows.net/a.parquet")
        two, _ = await session._runtime.store("abfss://files@two.dfs.core.windows.net/a.parquet")
        assert one is two
        handles = [await one.open_object(f"abfss://files@{account}.dfs.core.windows.net/a") for account in ("x", "y")]
        assert handles[0].identity != handles[1].identity
    assert loaded == []


async def test_a_session_reads_through_obstore(server: ObjectServer) -> None:
    options = {"gs": obstore_options(server, "gs")}
    async with asyncpq.Session(storage_options=options) as session:
        with pytest.raises((NotParquetError, CorruptFileError)):
            await session.open_file("gs://bucket/key")
        with pytest.raises((NotParquetError, CorruptFileError)):
            await session.open_file("gcs://bucket/key")  # another name of the same


TOKEN = "Error performing token request: Error performing GET http://169.254.169.254/computeMetadata/v1/token in 1ms"
WITH_STATUS = "Error performing GET https://host/SECRET in 1ms - Server returned non-2xx status code:"

MEANINGS: list[tuple[Exception, type[AsyncpqError], bool]] = [
    (GenericError(f"Generic GCS error: {TOKEN} - Server returned non-2xx status code: 404 "), CredentialsError, True),
    (GenericError("Generic GCS error: GCP credential error: Unable to open /SECRET"), CredentialsError, True),
    (
        GenericError("Generic S3 error: Error performing PUT http://169.254.169.254/latest/api/token in 1ms"),
        CredentialsError,
        True,
    ),
    # the words of an url mean nothing
    (GenericError("Generic S3 error: Error performing GET http://host/credential/token in 1ms"), TransportError, True),
    (GenericError(f"Generic GCS error: {WITH_STATUS} 503 Service Unavailable: "), ThrottledError, True),
    (GenericError(f"Generic GCS error: {WITH_STATUS} 500 Internal Server Error: "), TransportError, True),
    (GenericError("Generic GCS error: HTTP error: request or response body error"), TransportError, True),
    (
        GenericError("Generic MicrosoftAzure error: Wanted range starting at 5, but object was only 5 bytes long"),
        InvalidResponseError,
        False,
    ),
    (
        GenericError('Generic GCS error: Failed to parse value for CONTENT_RANGE header: "SECRET"'),
        InvalidResponseError,
        False,
    ),
    (GenericError("Generic GCS error: Requested 0..5, got 1..6"), InvalidResponseError, False),
    (GenericError("Generic GCS error: ETag Header missing from response"), InvalidResponseError, False),
    (
        GenericError(
            f"Generic S3 error: {WITH_STATUS.partition(' - ')[0]} - Received redirect without LOCATION, this normally"
        ),
        InvalidResponseError,
        False,
    ),
    (
        GenericError("Generic S3 error: Error performing GET http://host/SECRET: HTTP error: builder error"),
        InvalidOptionError,
        False,
    ),
    (NotSupportedError("Operation not supported: SECRET"), UnsupportedStoreError, False),
    (UnauthenticatedError("SECRET"), AccessDeniedError, False),
    (AlreadyExistsError("Object at location SECRET already exists"), ObjectExistsError, False),
    (ValueError("Could not parse path: SECRET"), InvalidOptionError, False),
]


class Failing(ObstoreExchange):
    """A call that raises ``error``, and creates."""

    creates = True

    def __init__(self, error: Exception) -> None:
        bucket: Any = ObstoreBucket(MemoryStore(), "bucket", has_suffixes=True)  # type: ignore[arg-type]
        super().__init__(bucket, "key", RangeRequest(0, 5, "gs://bucket/key"))
        self._error = error

    async def call(self, client: Any, receiver: Receiver) -> Body:
        raise self._error


class Seen:
    """A receiver that keeps the status."""

    received = 0
    status = 0

    def head(self, status: int, headers: Mapping[str, str]) -> int:
        self.status = status
        return 0

    def cut_off(self, data: bytes | memoryview) -> None:
        """Keep nothing."""


@pytest.mark.parametrize(("error", "meaning", "retried"), MEANINGS, ids=lambda value: str(value)[:60])
async def test_exceptions_become_typed_errors(error: Exception, meaning: type[AsyncpqError], retried: bool) -> None:
    exchange, seen = Failing(error), Seen()
    try:
        body = await exchange.send(seen)
        assert body == (b"", True)
        raised: Exception = exchange.refuse(seen.status, {}, b"")
    except (AsyncpqError, RetryableError) as caught:
        raised = caught
    assert isinstance(raised, RetryableError) is retried
    typed = raised.error if isinstance(raised, RetryableError) else raised
    assert type(typed) is meaning
    assert typed.url == "gs://bucket/key"
    assert "SECRET" not in str(typed)
    assert raised.__cause__ is None


async def test_other_exceptions_are_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        await Failing(ZeroDivisionError()).send(Seen())
