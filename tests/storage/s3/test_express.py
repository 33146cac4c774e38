"""Directory buckets of S3 Express One Zone, against a gate that checks every header of every request."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq import col
from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    BucketNotFoundError,
    CredentialsError,
    InvalidOptionError,
    InvalidResponseError,
)
from asyncpq.indexing.kinds import Keys
from asyncpq.storage.base import Store, WritableStore, writable
from asyncpq.storage.s3.sigv4 import Credentials
from asyncpq.testing import Answer, Fault, ObjectServer
from asyncpq.testing.store_contract import DATA, STORE_CHECKS, STORE_WRITE_CHECKS
from tests.directory_buckets import BUCKET, OWN_KEY, OWN_SECRET, OWN_TOKEN, DirectoryBuckets
from tests.lakes import ROWS, file_bytes
from tests.store_backends import new_context, open_test_store, shown

URL = f"s3://{BUCKET}/"


class DirectoryStorage:
    """For the shipped contracts of stores."""

    def __init__(self, gate: DirectoryBuckets, store: Store) -> None:
        self.store = store
        self._gate = gate

    def url(self, key: str) -> str:
        return URL + key

    async def put(self, key: str, data: bytes) -> None:
        self._gate.put(key, data)

    async def delete(self, key: str) -> None:
        self._gate.server.delete(f"{BUCKET}/{key}")


@pytest.mark.parametrize("check", [*STORE_CHECKS, *STORE_WRITE_CHECKS], ids=lambda check: check.__name__)
async def test_contract_of_stores(gate: DirectoryBuckets, express: Store, check: Any) -> None:
    if check.__name__ != "check_nothing_is_left":  # the others count the requests that follow the opening of a session
        stored = await express.open_object(URL + "key")
        await stored.fetch_tail(1, context=new_context())
    await check(DirectoryStorage(gate, express))
    assert gate.opened == 1
    assert not [code for code in gate.refused if code not in ("412 PreconditionFailed", "404 NoSuchKey")]


async def test_the_session_is_one_more_request_and_round(gate: DirectoryBuckets, express: Store) -> None:
    stored = await express.open_object(URL + "key")
    context = new_context()
    assert (await stored.fetch_tail(9, context=context)).data == DATA[-9:]
    assert [(record.purpose, record.round) for record in context.metrics.log] == [("session", 1), ("data", 2)]
    assert (stored.client, context.metrics.rounds, context.metrics.fallbacks) == ("direct", 2, [])
    warm = new_context()
    await stored.fetch_range(0, 9, context=warm)
    assert [(record.purpose, record.round) for record in warm.metrics.log] == [("data", 1)]


async def test_a_cold_dataset_is_one_more_request_and_round(server: ObjectServer) -> None:
    found = []
    async with ObjectServer() as plain:
        gate = DirectoryBuckets(server)
        for number in range(3):
            plain.put(f"bucket/lake/{number}.parquet", file_bytes(number))
            gate.put(f"lake/{number}.parquet", file_bytes(number))
        for options, url in ((plain.storage_options, "s3://bucket/lake/"), (gate.storage_options, URL + "lake/")):
            async with asyncpq.Session({"s3": options}) as session:
                await session.open_dataset(url)
                found.append((session.metrics.rounds, session.metrics.requests))
    assert found[1] == (found[0][0] + 1, found[0][1] + 1)


async def test_reads_at_once_share_the_opening_of_a_session(gate: DirectoryBuckets, express: Store) -> None:
    """Also when they hold all connections of the store, which are fewer."""
    gate.server.latency_s = 0.02
    stored = await express.open_object(URL + "key")
    contexts = [new_context() for _ in range(64)]
    results = await asyncio.gather(*(stored.fetch_range(n, n + 9, context=one) for n, one in enumerate(contexts)))
    assert [bytes(result.data) for result in results] == [DATA[n : n + 9] for n in range(64)]
    assert gate.opened == 1
    assert sum(one.metrics.requests for one in contexts) == 65
    assert gate.refused == []


async def test_requests_and_bytes_of_a_warm_lookup_are_those_of_other_buckets(server: ObjectServer) -> None:
    data = file_bytes(0)
    found = []
    async with ObjectServer() as plain:
        plain.put("bucket/file.parquet", data)
        gate = DirectoryBuckets(server)
        gate.put("file.parquet", data)
        for options, url in ((plain.storage_options, "s3://bucket/"), (gate.storage_options, URL)):
            small_tails = asyncpq.RequestOptions(tail_bytes=2048)
            async with asyncpq.Session({"s3": options}, requests=small_tails) as session:
                file = await session.open_file(url + "file.parquet")
                await file.lookup({"id": 3}, columns=["text"])
                with asyncpq.measure() as metrics:
                    table = await file.lookup({"id": ROWS - 1}, columns=["text"])
                requests = [(record.purpose, record.start, record.stop) for record in metrics.log]
                found.append((table.to_pylist(), metrics.rounds, metrics.bytes_fetched, requests))
    assert found[0] == found[1]
    assert found[0][1] == 1
    assert {purpose for purpose, _, _ in found[0][3]} == {"data"}
    assert gate.opened == 1


async def test_an_expired_session_is_renewed_once_for_all(gate: DirectoryBuckets, express: Store) -> None:
    stored = await express.open_object(URL + "key")
    await stored.fetch_tail(9, context=new_context())
    gate.end_sessions()
    contexts = [new_context() for _ in range(5)]
    results = await asyncio.gather(*(stored.fetch_range(0, 9, context=one) for one in contexts))
    assert {bytes(result.data) for result in results} == {DATA[:9]}
    assert gate.opened == 2
    assert set(gate.refused) == {"400 ExpiredToken"}
    assert len(gate.refused) <= 5


async def test_a_session_that_is_expired_again_is_an_error(gate: DirectoryBuckets, express: Store) -> None:
    stored = await express.open_object(URL + "key")
    gate.lasts_s = 0.0
    with pytest.raises(CredentialsError, match="ExpiredToken"):
        await stored.fetch_range(0, 9, context=new_context())
    assert gate.opened == 2
    gate.lasts_s = 300.0
    assert (await stored.fetch_range(0, 9, context=new_context())).data == DATA[:9]


async def test_the_next_session_is_opened_before_the_present_one_expires(
    gate: DirectoryBuckets, express: Store
) -> None:
    """A read does not wait for it, and its signature stays valid."""
    stored = await express.open_object(URL + "key")
    gate.lasts_s = 60.0
    await stored.fetch_range(0, 9, context=new_context())
    gate.lasts_s = 300.0
    gate.server.faults = [Fault(latency_s=0.2, path=f"{BUCKET}", ranged=False)]  # the opening of a session
    context = new_context()
    bucket = express._buckets[BUCKET]  # type: ignore[attr-defined]
    signers = bucket.signers
    signers._fetched_at = None  # recent no longer
    await stored.fetch_range(0, 9, context=context)
    assert [(record.purpose, record.round) for record in context.metrics.log] == [("data", 1)]
    await asyncio.wait(bucket.sessions._flights._tasks)
    signers._fetched_at = None
    await stored.fetch_range(0, 9, context=new_context())
    assert "Credential=AKSESSION2/" in gate.server.log[-1].headers["authorization"]
    assert (gate.opened, gate.refused) == (2, [])


async def test_a_session_is_used_to_its_end_if_no_other_is_to_be_had(gate: DirectoryBuckets, express: Store) -> None:
    stored = await express.open_object(URL + "key")
    gate.lasts_s = 20.0  # less than until the signers look again
    await stored.fetch_range(0, 9, context=new_context())
    gate.modes.clear()
    express._buckets[BUCKET].signers._fetched_at = None  # type: ignore[attr-defined]
    assert (await stored.fetch_range(0, 9, context=new_context())).data == DATA[:9]
    assert gate.refused == ["403 AccessDenied"]
    gate.end_sessions()
    with pytest.raises(AccessDeniedError, match="no session"):
        await stored.fetch_range(0, 9, context=new_context())


async def test_a_failed_renewal_is_logged_and_the_session_stays_in_use(
    gate: DirectoryBuckets, express: Store, caplog: pytest.LogCaptureFixture
) -> None:
    stored = await express.open_object(URL + "key")
    gate.lasts_s = 60.0
    await stored.fetch_range(0, 9, context=new_context())
    gate.modes.clear()
    bucket = express._buckets[BUCKET]  # type: ignore[attr-defined]
    for _ in range(3):
        bucket.signers._fetched_at = None
        await stored.fetch_range(0, 9, context=new_context())
        if bucket.sessions._flights._tasks:
            await asyncio.wait(bucket.sessions._flights._tasks)
    assert gate.opened == 2  # not with each read
    assert "could not be opened (AccessDeniedError)" in caplog.text


async def test_a_cancelled_read_leaves_the_opening_to_others(gate: DirectoryBuckets, express: Store) -> None:
    gate.server.faults = [Fault(latency_s=0.2, ranged=False)]
    stored = await express.open_object(URL + "key")
    first, second = (asyncio.ensure_future(stored.fetch_range(0, 9, context=new_context())) for _ in range(2))
    await asyncio.sleep(0.05)
    first.cancel()
    assert (await second).data == DATA[:9]
    assert first.cancelled()
    assert gate.opened == 1


async def test_a_cancelled_only_read_opens_nothing_for_later(gate: DirectoryBuckets, express: Store) -> None:
    gate.server.faults = [Fault(stall_headers=True, ranged=False)]
    stored = await express.open_object(URL + "key")
    read = asyncio.ensure_future(stored.fetch_range(0, 9, context=new_context()))
    await asyncio.sleep(0.05)
    read.cancel()
    await asyncio.wait((read,))
    assert read.cancelled()
    assert (await stored.fetch_range(0, 9, context=new_context())).data == DATA[:9]
    assert gate.opened == 2


async def test_a_store_can_be_closed_while_a_session_is_opened(gate: DirectoryBuckets) -> None:
    gate.server.faults = [Fault(stall_headers=True, times=None)]
    store = open_test_store("s3", gate.storage_options)
    stored = await store.open_object(URL + "key")
    read = asyncio.ensure_future(stored.fetch_range(0, 9, context=new_context()))
    await asyncio.sleep(0.05)
    await store.close()
    with pytest.raises(AsyncpqError, match="closed"):
        await read


async def test_who_may_only_read(gate: DirectoryBuckets, express: Store) -> None:
    gate.modes = {"ReadOnly"}
    stored = await express.open_object(URL + "key")
    assert (await stored.fetch_range(0, 9, context=new_context())).data == DATA[:9]
    assert len(await express.list_objects(URL, context=new_context())) == 1
    with pytest.raises(AccessDeniedError) as caught:
        await writable(express, URL).put_object(URL + "new", b"1", context=new_context())
    assert "s3express:SessionMode" in (caught.value.hint or "")


async def test_who_may_open_no_session(gate: DirectoryBuckets, express: Store) -> None:
    gate.modes.clear()
    stored = await express.open_object(URL + "key")
    with pytest.raises(AccessDeniedError, match="no session") as caught:
        await stored.fetch_range(0, 9, context=new_context())
    assert "s3express:CreateSession" in (caught.value.hint or "")
    assert gate.opened == 1


@pytest.mark.parametrize("fault", [Fault(status=503, code="SlowDown"), Fault(hang_up=True)])
async def test_the_opening_of_a_session_is_tried_again(gate: DirectoryBuckets, express: Store, fault: Fault) -> None:
    gate.server.faults = [fault]
    stored = await express.open_object(URL + "key")
    context = new_context()
    assert (await stored.fetch_range(0, 9, context=context)).data == DATA[:9]
    assert [record.purpose for record in context.metrics.log] == ["session", "session", "data"]


async def test_a_bucket_that_does_not_exist(gate: DirectoryBuckets, express: Store) -> None:
    stored = await express.open_object("s3://other--use1-az4--x-s3/key")
    with pytest.raises(BucketNotFoundError):
        await stored.fetch_range(0, 9, context=new_context())


@pytest.mark.parametrize("body", [b"<html></html>", b"<Credentials><AccessKeyId>k</AccessKeyId></Credentials>", b""])
async def test_a_server_without_sessions(gate: DirectoryBuckets, express: Store, body: bytes) -> None:
    gate.server.before = lambda request: Answer(200, {}, body)
    stored = await express.open_object(URL + "key")
    with pytest.raises(InvalidResponseError, match="CreateSession") as caught:
        await stored.fetch_range(0, 9, context=new_context())
    assert "--x-s3" in (caught.value.hint or "")


@pytest.mark.parametrize("skew_s", [3600.0, -7200.0])
async def test_clocks_that_differ(gate: DirectoryBuckets, express: Store, skew_s: float) -> None:
    """The clock is corrected once for sessions and once for what they sign; a session lasts as long as S3 says."""
    gate.skew_s = skew_s
    stored = await express.open_object(URL + "key")
    context = new_context()
    assert (await stored.fetch_range(0, 9, context=context)).data == DATA[:9]
    assert set(gate.refused) == {"403 RequestTimeTooSkewed"}
    assert gate.opened == 2
    await stored.fetch_range(0, 9, context=context)
    assert gate.opened == 2


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("anonymous", {"anon": True}),
        ("requester pays", {"requester_pays": True}),
        ("SSE-C", {"s3_additional_kwargs": {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "x" * 32}}),
    ],
)
async def test_options_that_directory_buckets_do_not_have(
    gate: DirectoryBuckets, name: str, options: dict[str, Any]
) -> None:
    given = {"endpoint_url": gate.server.endpoint} if name == "anonymous" else gate.storage_options
    store = open_test_store("s3", {**given, **options})
    with pytest.raises(InvalidOptionError, match=name) as caught:
        await store.open_object(URL + "key")
    assert next(iter(options)) in (caught.value.hint or "")
    await store.close()
    assert gate.server.log == []


async def test_the_bucket_is_part_of_the_host(gate: DirectoryBuckets, monkeypatch: pytest.MonkeyPatch) -> None:
    """As at AWS: only addresses have it in the path."""
    resolve = socket.getaddrinfo
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *more, **named: resolve("127.0.0.1", *more, **named))
    options = {**gate.storage_options, "endpoint_url": f"http://express.test:{gate.server.port}"}
    async with asyncpq.Session({"s3": options}) as session:
        store: Any = (await session._runtime.store(URL))[0]
        stored = await store.open_object(URL + "key")
        assert (await stored.fetch_range(0, 9, context=new_context())).data == DATA[:9]
        assert await store.create_object(URL + "lake/a b", b"1", context=new_context())
        assert [each.url for each in await store.list_objects(URL + "lake/", context=new_context())] == [
            URL + "lake/a b"
        ]
        await store.delete_objects([URL + "lake/a b"], context=new_context())
    assert {request.headers["host"] for request in gate.server.log} == {f"{BUCKET}.express.test:{gate.server.port}"}
    targets = [request.target.partition("?")[0] for request in gate.server.log]
    assert targets == ["/", "/key", "/lake/a%20b", "/", "/lake/a%20b"]
    assert gate.refused == []


async def test_headers_that_only_s3fs_sends_are_sent(gate: DirectoryBuckets) -> None:
    options = {**gate.storage_options, "s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}}
    store = open_test_store("s3", options)
    stored = await store.open_object(URL + "key")
    await stored.fetch_range(0, 9, context=new_context())
    assert stored.client == "s3fs"
    assert gate.server.log[-1].headers["x-amz-expected-bucket-owner"] == "000000000000"
    await store.close()


async def test_the_session_of_other_keys_is_not_used(gate: DirectoryBuckets, express: Store) -> None:
    """Keys that a container or an instance replaces need not belong to the same role."""
    stored = await express.open_object(URL + "key")
    await stored.fetch_range(0, 9, context=new_context())
    bucket = express._buckets[BUCKET]  # type: ignore[attr-defined]
    bucket.sessions._bucket.signers._use(Credentials("AKOTHER", "unknown to the gate", OWN_TOKEN))
    bucket.signers._fetched_at = None
    with pytest.raises(CredentialsError, match="SignatureDoesNotMatch"):
        await stored.fetch_range(0, 9, context=new_context())
    assert gate.opened == 2


async def test_new_keys_open_a_session_of_their_own(
    gate: DirectoryBuckets, server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of an environment that expire are found again, as in other buckets."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKOLD")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "old")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "old")
    store = open_test_store("s3", {"endpoint_url": server.endpoint, "client_kwargs": {"region_name": "us-east-1"}})
    stored = await store.open_object(URL + "key")
    await store.credential_identity(URL)
    for name, value in ("ACCESS_KEY_ID", OWN_KEY), ("SECRET_ACCESS_KEY", OWN_SECRET), ("SESSION_TOKEN", OWN_TOKEN):
        monkeypatch.setenv(f"AWS_{name}", value)
    server.faults = [Fault(status=400, code="ExpiredToken")]
    assert (await stored.fetch_range(0, 9, context=new_context())).data == DATA[:9]
    assert gate.opened == 2
    await store.close()


async def test_nothing_secret_is_shown(
    gate: DirectoryBuckets, express: Store, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(0)
    stored = await express.open_object(URL + "key")
    context = new_context()
    await stored.fetch_range(0, 9, context=context)
    (session,) = gate.sessions.values()
    gate.server.faults = [Fault(status=403, code="AccessDenied", times=None)]
    with pytest.raises(AccessDeniedError) as caught:
        await stored.fetch_range(0, 9, context=new_context())
    bucket = express._buckets[BUCKET]  # type: ignore[attr-defined]
    said = [repr(item) for item in (bucket, bucket.sessions, bucket.sessions._session, bucket.signers, context)]
    said += [*shown(caught.value), caplog.text, stored.identity, await express.credential_identity(URL)]
    said += [str(await express.settings(URL))]  # type: ignore[attr-defined]
    secrets = (session.key, session.secret, session.token, OWN_KEY, OWN_SECRET, OWN_TOKEN)
    assert not [text for text in said for secret in secrets if secret in text]


async def test_the_clock_of_the_store(gate: DirectoryBuckets, express: Store) -> None:
    store: WritableStore = writable(express, URL)
    assert abs(await store.clock(URL + "lake/part-", context=new_context()) - gate._now()) < 5


# -- all of it together -----------------------------------------------------------------------------


async def test_a_lake_is_indexed_read_and_written_while_sessions_expire(gate: DirectoryBuckets) -> None:
    for number in range(6):
        gate.put(f"lake/day={number}/part.parquet", file_bytes(number))
    gate.page_keys = 3
    url = URL + "lake/"
    async with asyncpq.Session({"s3": gate.storage_options}) as session:
        await session.build_index(url, [Keys("id")])
        assert gate.opened == 1
        gate.end_sessions()
        dataset = await session.open_dataset(url)
        found = await dataset.lookup({"id": 3 * ROWS + 7}, columns=["text", "day"])
        assert found.to_pylist() == [{"text": f"3 {3 * ROWS + 7}", "day": 3}]
        total, seen = 0, 0
        async with dataset.scan(columns=["id"], where=col("id") >= ROWS, batch_size=50) as batches:
            async for batch in batches:
                if seen % 10 == 0:
                    gate.end_sessions()
                seen += 1
                total += pa.compute.sum(batch.column("id")).as_py()
        assert total == sum(range(ROWS, 6 * ROWS))
        gate.put("lake/day=6/part.parquet", file_bytes(6))
        await session.build_index(url, [Keys("id")])
        again = await session.open_dataset(url)
        assert await again.count(where=col("id") >= 6 * ROWS) == ROWS
    assert set(gate.refused) <= {"400 ExpiredToken", "404 NoSuchKey", "412 PreconditionFailed"}
    assert "400 ExpiredToken" in gate.refused
    creates = [request for request in gate.server.log if request.headers.get("if-none-match") == "*"]
    assert creates
