"""Who signs S3Store's requests, for which region and clock; and that no secret is shown or sent elsewhere."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import s3fs

import asyncpq
from asyncpq.errors import AsyncpqError, CredentialsError, InvalidOptionError, InvalidResponseError, ObjectChangedError
from asyncpq.storage.base import Guarantee, Store, writable
from asyncpq.testing import Fault, ObjectServer
from tests.store_backends import DATA, new_context, open_test_store, opened, shown


@pytest.fixture
async def elsewhere() -> AsyncIterator[ObjectServer]:
    """Where redirects lead, and nobody should follow."""
    async with ObjectServer() as running:
        running.put("bucket/key", DATA)
        yield running


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


@pytest.mark.parametrize("through_s3fs", [False, True])
@pytest.mark.parametrize("code", ["ExpiredToken", "TokenRefreshRequired"])
async def test_expired_credentials_are_renewed_once(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, through_s3fs: bool, code: str
) -> None:
    def used() -> list[str]:
        found = [re.search(r"Credential=(\w+)", request.headers["authorization"]) for request in server.log]
        server.log.clear()
        return [match[1] for match in found if match is not None]

    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "first")
    options: dict[str, Any] = {"endpoint_url": server.endpoint, "client_kwargs": {"region_name": "us-east-1"}}
    store = open_test_store(
        "s3", options | ({"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}} if through_s3fs else {})
    )
    stored = await store.open_object("s3://bucket/key")
    await stored.fetch_tail(9, context=new_context())
    assert used() == ["first"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "second")
    server.faults = [Fault(status=403, code=code)]
    context = new_context()
    assert (await stored.fetch_range(0, 9, context=context)).data == DATA[:9]
    assert [record.status for record in context.metrics.log] == [0 if through_s3fs else 403, 206]
    assert used() == ["first", "second"]
    # the new ones have expired, too: no read tries more than once to get others
    server.faults = [Fault(status=403, code=code, times=None)]
    with pytest.raises(CredentialsError, match=code):
        await stored.fetch_range(0, 9, context=new_context())
    assert used() == ["second", "second"]
    server.faults = []
    assert (await stored.fetch_range(0, 9, context=new_context())).data == DATA[:9]
    await store.close()


async def test_expired_credentials_are_renewed_where_responses_name_the_region(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 adds the bucket's region to refusals that are not about the region."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "first")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    store = open_test_store("s3", {"endpoint_url": server.endpoint, "client_kwargs": {"region_name": "us-east-1"}})
    stored = await store.open_object("s3://bucket/key")
    await store.credential_identity("s3://bucket/key")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "second")
    refusal = Fault(status=400, code="ExpiredToken", headers={"x-amz-bucket-region": "us-east-1"})
    server.faults = lambda request: refusal if "Credential=first/" in request.headers["authorization"] else None
    context = new_context()
    assert (await stored.fetch_tail(9, context=context)).data == DATA[-9:]
    assert [record.status for record in context.metrics.log] == [400, 206]
    await store.close()


@pytest.mark.parametrize("through_s3fs", [False, True])
async def test_expired_credentials_of_the_options_are_final(server: ObjectServer, through_s3fs: bool) -> None:
    store = open_test_store(
        "s3",
        server.storage_options
        | ({"s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"}} if through_s3fs else {}),
    )
    stored = await store.open_object("s3://bucket/key")
    server.faults = [Fault(status=400, code="ExpiredToken", times=None)]
    with pytest.raises(CredentialsError, match="expired") as caught:
        await stored.fetch_tail(9, context=new_context())
    assert caught.value.url == "s3://bucket/key"
    assert len(server.log) == 1
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
        {
            "endpoint_url": "http://AKIA:SECRET@bad host/",
            "s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"},
            "client_kwargs": {"new": 1},
        },
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


@pytest.mark.parametrize("through_s3fs", [False, True])
async def test_credential_identity(server: ObjectServer, monkeypatch: pytest.MonkeyPatch, through_s3fs: bool) -> None:
    options: dict[str, Any] = {"endpoint_url": server.endpoint, "client_kwargs": {"region_name": "us-east-1"}}
    if through_s3fs:
        options["s3_additional_kwargs"] = {"ExpectedBucketOwner": "000000000000"}
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


@pytest.mark.parametrize(
    ("bucket", "client"),
    [
        ("bucket", "direct"),
        ("data--use1-az4--x-s3", "direct"),
        ("arn:aws:s3:us-east-1:123456789012:accesspoint/name", "s3fs"),
    ],
)
async def test_first_opens_of_a_bucket_may_come_together(bucket: str, client: str) -> None:
    """Trust and s3fs's client are loaded once; who comes meanwhile waits for them."""
    options = {"key": "key", "secret": "secret", "endpoint_url": "https://127.0.0.1:9"}
    store = open_test_store("s3", options)
    opened = await asyncio.gather(*(store.open_object(f"s3://{bucket}/{n}") for n in range(5)))
    assert {one.client for one in opened} == {client}
    await store.close()


async def test_a_bucket_whose_trust_cannot_be_loaded_is_refused_again_and_again(tmp_path: Path) -> None:
    options = {"anon": True, "endpoint_url": "https://127.0.0.1:9", "client_kwargs": {"verify": str(tmp_path / "ca")}}
    store = open_test_store("s3", options)
    for _ in range(2):
        with pytest.raises(InvalidOptionError, match="CA bundle"):
            await store.open_object("s3://bucket/key")
    await store.close()


async def test_s3fs_path_is_visible(server: ObjectServer) -> None:
    sse = {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": "x" * 32, "ExpectedBucketOwner": "0" * 12}
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


async def test_the_requester_pays_for_every_request(server: ObjectServer) -> None:
    """Also for listings and writes; the header is signed."""
    server.put("bucket/lake/a.parquet", DATA)
    async with asyncpq.Session({**server.storage_options, "requester_pays": True}) as session:
        store, _ = await session._runtime.store("s3://bucket/lake/")
        stored = await store.open_object("s3://bucket/lake/a.parquet")
        await stored.fetch_tail(9, context=new_context())
        with pytest.raises(AsyncpqError):  # there is no Parquet file
            await session.build_index("s3://bucket/lake/", [])
    assert stored.client == "direct"
    assert {request.method for request in server.log} >= {"GET"}
    for request in server.log:
        headers = {name.lower(): value for name, value in request.headers.items()}
        assert headers["x-amz-request-payer"] == "requester"
        assert ";x-amz-date;x-amz-request-payer" in headers["authorization"]


@pytest.mark.skipif(
    s3fs.__version__ < "2026.9", reason="an older s3fs does not send what an anonymous requester would pay"
)
async def test_who_is_anonymous_pays_through_s3fs(server: ObjectServer) -> None:
    """S3 refuses it; its answer is told."""
    store = open_test_store("s3", {"anon": True, "endpoint_url": server.endpoint, "requester_pays": True})
    assert (await store.open_object("s3://bucket/key")).client == "s3fs"
    await store.close()


# -- requests through s3fs -------------------------------------------------------------------------


async def test_the_metrics_name_the_reason(s3fs_store: Store) -> None:
    stored, tail = await opened(s3fs_store)
    assert (stored.client, stored.guarantee) == ("s3fs", Guarantee.PINNED)
    context = new_context()
    result = await stored.fetch_range(5, 9, context=context, pin=tail.validator)
    assert (result.data, result.validates) == (DATA[5:9], True)
    assert context.metrics.fallbacks == ["read through s3fs: header x-amz-expected-bucket-owner"]


async def test_another_version_is_refused(s3fs_store: Store, server: ObjectServer) -> None:
    stored, tail = await opened(s3fs_store)
    for path in list(server.objects):
        server.put(path, DATA[::-1])
    with pytest.raises(ObjectChangedError):
        await stored.fetch_range(5, 9, context=new_context(), pin=tail.validator)
    assert (await stored.fetch_tail(4, context=new_context())).data == DATA[::-1][-4:]


async def test_writes_do_not_wait_for_the_server_to_expect_them(s3fs_store: Store, server: ObjectServer) -> None:
    """aiohttp would wait for ever, behind a proxy that does not pass ``100 Continue`` on."""
    await writable(s3fs_store, "s3://bucket/").put_object("s3://bucket/new", DATA, context=new_context())
    assert server.log[-1].method == "PUT"
    assert "expect" not in server.log[-1].headers


@pytest.mark.parametrize(
    "options",
    [
        {"config_kwargs": {"connect_timeout": "SECRET"}},
        {"config_kwargs": {"read_timeout": []}},
        {"config_kwargs": {"max_pool_connections": "SECRET"}},
        {"config_kwargs": {"retries": {"max_attempts": "SECRET"}}},
        {"config_kwargs": {"retries": "SECRET"}},
        {"token": 1},
        {"session": 1},
        {"key": 1},
        {"endpoint_url": 1},
        {1: "SECRET"},
    ],
    ids=str,
)
async def test_options_of_wrong_types_are_refused(options: dict[Any, Any]) -> None:
    """They ended as the ValueError or AttributeError of the step that met them."""
    given = {"key": "k", "secret": "s", "endpoint_url": "http://127.0.0.1:1", **options}
    async with asyncpq.Session(given) as session:
        with pytest.raises(InvalidOptionError) as caught:
            await session.open_file("s3://bucket/key")
    assert "SECRET" not in str(caught.value)
