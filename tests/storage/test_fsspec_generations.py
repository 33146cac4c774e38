"""Google's objects: read by generation, as gcsfs names it in a path, so that no read mixes two."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import AsyncIterator
from typing import Any

import pyarrow as pa
import pytest
from fsspec.asyn import AsyncFileSystem
from fsspec.registry import _registry

import asyncpq
from asyncpq.errors import ObjectChangedError, ObjectNotFoundError, StoreError, ThrottledError
from asyncpq.storage.base import Guarantee, Store, Validator
from asyncpq.storage.fsspec import FsspecStore
from tests.parquet_bytes import parquet_bytes
from tests.store_backends import FAST_RETRIES, new_context, open_test_store

DATA = random.Random(4).randbytes(10_000)


def parquet(table: pa.Table) -> bytes:
    return parquet_bytes(table, compression="none", use_dictionary=False)


class Bucket:
    """What the fake holds: generations of one object, the last one being current."""

    def __init__(self) -> None:
        self.versions: dict[str, bytes] = {}
        self.versioned = False
        self.metageneration = 1
        self.calls: list[str] = []
        self.fail: list[Exception] = []

    def put(self, data: bytes) -> None:
        if not self.versioned:
            self.versions.clear()
        self.versions[str(1000 + len(self.calls) + len(self.versions))] = data

    @property
    def current(self) -> str:
        return list(self.versions)[-1]


class HttpError(Exception):
    """As gcsfs raises it: no OSError, with a code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"{code} from SECRET")
        self.code = code


class FakeGcs(AsyncFileSystem):  # type: ignore[misc]  # fsspec is not typed
    """The interface of gcsfs that matters here."""

    protocol = ("gs", "gcs")
    bucket = Bucket()

    def __init__(self, version_aware: bool = False, **options: Any) -> None:
        super().__init__(**options)
        self.version_aware = version_aware

    def split(self, path: str) -> str | None:
        _, _, generation = path.partition("#")
        return generation if self.version_aware and generation.isdecimal() else None

    async def _info(self, path: str, **_: Any) -> dict[str, Any]:
        bucket = self.bucket
        bucket.calls.append(f"info {path.partition('#')[2]}")
        if not bucket.versions:
            raise FileNotFoundError(path)
        return {
            "name": path,
            "type": "file",
            "size": len(bucket.versions[bucket.current]),
            "generation": bucket.current,
            "metageneration": str(bucket.metageneration),
            "etag": f"etag-{bucket.current}-{bucket.metageneration}",
            "mtime": f"then, {bucket.metageneration}",
        }

    async def _cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        bucket, generation = self.bucket, self.split(path)
        bucket.calls.append(f"get {generation or ''}")
        if bucket.fail:
            raise bucket.fail.pop()
        data = bucket.versions.get(generation or bucket.current)
        if data is None:
            raise FileNotFoundError(path)
        return data[start:end]


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Bucket:
    made = Bucket()
    made.put(DATA)
    monkeypatch.setattr(FakeGcs, "bucket", made)
    for protocol in FakeGcs.protocol:
        monkeypatch.setitem(_registry, protocol, FakeGcs)
    return made


@pytest.fixture
async def store(bucket: Bucket) -> AsyncIterator[Store]:
    made = open_test_store("gs", {})
    yield made
    await made.close()


async def test_each_get_names_the_generation(store: Store, bucket: Bucket) -> None:
    stored = await store.open_object("gs://bucket/key")
    assert stored.guarantee is Guarantee.PINNED
    tail = await stored.fetch_tail(100, context=new_context())
    assert (tail.data, tail.validates) == (DATA[-100:], True)
    generation = bucket.current
    assert tail.validator == Validator(size=len(DATA), version=generation)
    result = await stored.fetch_range(5, 50, context=new_context(), pin=tail.validator)
    assert result.data == DATA[5:50]
    assert not result.validates  # an old generation may be there still
    assert bucket.calls == ["info ", f"get {generation}", f"get {generation}"]
    bucket.metageneration += 1  # other metadata of the same bytes
    checked = await stored.fetch_range(5, 50, context=new_context().step("validate", 1), pin=tail.validator)
    assert (checked.data, checked.validates) == (DATA[5:50], True)
    assert stored.guarantee is Guarantee.PINNED


@pytest.mark.parametrize("versioned", [False, True])
async def test_a_replaced_object(store: Store, bucket: Bucket, versioned: bool) -> None:
    bucket.versioned = versioned
    stored = await store.open_object("gs://bucket/key")
    pin = (await stored.fetch_tail(8, context=new_context())).validator
    bucket.put(DATA[::-1])
    if versioned:  # the version that the read began with is there to be read
        assert (await stored.fetch_range(0, 9, context=new_context(), pin=pin)).data == DATA[:9]
    else:
        with pytest.raises(ObjectChangedError, match="gone"):
            await stored.fetch_range(0, 9, context=new_context(), pin=pin)
    with pytest.raises(ObjectChangedError, match="generation"):
        await stored.fetch_range(0, 9, context=new_context().step("validate", 1), pin=pin)
    assert (await stored.fetch_tail(9, context=new_context())).data == DATA[::-1][-9:]


async def test_a_session_does_not_stay_with_an_old_generation(bucket: Bucket) -> None:
    """It is there to be read, but that says nothing of the object's present version."""
    bucket.versioned = True
    old, new = (pa.table({"id": range(10_000), "tag": [tag] * 10_000}) for tag in (1, 2))
    bucket.put(parquet(old))
    requests = asyncpq.RequestOptions(tail_bytes=4096)
    async with asyncpq.Session({"version_aware": True}, cache_policy=asyncpq.etag(0), requests=requests) as session:
        file = await session.open_file("gs://bucket/key")
        bucket.put(parquet(new))
        assert await file.lookup({"id": 7}) == new.slice(7, 1)
        assert await file.read() == new


@pytest.mark.parametrize("key", ["what?", "a?b#c", "a#b"])
async def test_a_key_that_gcsfs_would_take_for_more(store: Store, bucket: Bucket, key: str) -> None:
    """Beside a generation gcsfs takes ``?`` and ``#`` of a name for its own marks: the name alone is read."""
    stored = await store.open_object(f"gs://bucket/{key}")
    tail = await stored.fetch_tail(100, context=new_context())
    assert tail.data == DATA[-100:]
    assert stored.guarantee is Guarantee.BRACKETED  # by the generations before and after
    bucket.put(DATA[::-1])
    with pytest.raises(ObjectChangedError):
        await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)


async def test_an_object_that_has_become_shorter(store: Store, bucket: Bucket) -> None:
    stored = await store.open_object("gs://bucket/key")
    pin = (await stored.fetch_tail(8, context=new_context())).validator
    bucket.fail = [HttpError(416)]
    with pytest.raises(ObjectChangedError, match="shorter"):
        await stored.fetch_range(5000, 6000, context=new_context(), pin=pin)


async def test_replaced_between_info_and_read(store: Store, bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    info = FakeGcs._info

    async def then_replaced(self: FakeGcs, path: str, **options: Any) -> dict[str, Any]:
        found = await info(self, path, **options)
        bucket.put(DATA[::-1])
        return found

    monkeypatch.setattr(FakeGcs, "_info", then_replaced)
    stored = await store.open_object("gs://bucket/key")
    with pytest.raises(ObjectChangedError):
        await stored.fetch_tail(9, context=new_context())


async def test_whoever_wants_no_versions_gets_a_bracket(bucket: Bucket) -> None:
    store = open_test_store("gcs", {"version_aware": False})
    stored = await store.open_object("gcs://bucket/key")
    tail = await stored.fetch_tail(9, context=new_context())
    assert stored.guarantee is Guarantee.BRACKETED
    assert bucket.calls == ["info ", "get ", "info "]
    bucket.put(DATA)
    with pytest.raises(ObjectChangedError):
        await stored.fetch_range(0, 9, context=new_context(), pin=tail.validator)
    await store.close()


async def test_nothing_there(store: Store, bucket: Bucket) -> None:
    bucket.versions.clear()
    stored = await store.open_object("gs://bucket/key")
    with pytest.raises(ObjectNotFoundError):
        await stored.fetch_tail(9, context=new_context())


async def test_a_clients_own_statuses(store: Store, bucket: Bucket) -> None:
    assert isinstance(store, FsspecStore)
    stored = await store.open_object("gs://bucket/key")
    pin = (await stored.fetch_tail(8, context=new_context())).validator
    bucket.fail = [HttpError(503), HttpError(429), HttpError(500)]
    context = new_context()
    assert (await stored.fetch_range(0, 9, context=context, pin=pin)).data == DATA[:9]
    assert (context.metrics.retries, context.metrics.throttles) == (3, 2)
    bucket.fail = [HttpError(429) for _ in range(20)]
    with pytest.raises(ThrottledError, match="slow down"):
        await stored.fetch_range(0, 9, context=new_context(), pin=pin)
    assert len(bucket.fail) == 20 - FAST_RETRIES.max_attempts
    bucket.fail = [HttpError(400)]
    with pytest.raises(StoreError) as caught:
        await stored.fetch_range(0, 9, context=new_context(), pin=pin)
    assert "SECRET" not in str(caught.value)
    assert store.limiter.pace.limit < math.inf
    await asyncio.sleep(0)
    assert store.limiter.used == 0
