"""No secret leaves by a pickle, a copy or a repr of what the stores are made of."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import fsspec
import pyarrow as pa
import pytest

import asyncpq
from asyncpq.storage import open_store
from asyncpq.storage.base import StoreLimits, Validator
from asyncpq.storage.response_checks import strong_etag
from asyncpq.storage.s3.sigv4 import Credentials, Signer
from tests.parquet_bytes import parquet_bytes

LIMITS = StoreLimits(4, 2)
OPTIONS: dict[str, dict[str, Any]] = {
    "s3": {"key": "SECRET", "secret": "SECRET", "token": "SECRET", "endpoint_url": "http://127.0.0.1:1"},
    "s3 through s3fs": {
        "key": "SECRET",
        "secret": "SECRET",
        "s3_additional_kwargs": {"ExpectedBucketOwner": "000000000000"},
    },
    "http": {"headers": {"Authorization": "SECRET"}},
    "gs through obstore": {"obstore": {"bearer_token": "SECRET", "base_url": "http://127.0.0.1:1"}},
    "az through obstore": {"obstore": {"account_name": "one", "sas_key": "sig=SECRET"}},
    "memory": {},
    "file": {},
}
URLS = {
    "s3": "s3://bucket/key?X-Amz-Signature=SECRET",
    "s3 through s3fs": "s3://bucket/key",
    "http": "http://user:SECRET@127.0.0.1:1/file?sig=SECRET",
    "gs through obstore": "gs://bucket/key?sig=SECRET",
    "az through obstore": "az://bucket/key",
    "memory": "memory://key",
    "file": __file__,
}
WAYS: list[Callable[[Any], Any]] = [pickle.dumps, copy.copy, copy.deepcopy]


@pytest.mark.parametrize("kind", OPTIONS)
async def test_stores_and_handles_are_not_pickled(kind: str) -> None:
    store = open_store(kind.split()[0], OPTIONS[kind], retry=asyncpq.RetryOptions(), limits=LIMITS)
    stored = await store.open_object(URLS[kind])
    for item in (store, stored):
        assert "SECRET" not in repr(item)
        for way in WAYS:
            with pytest.raises(TypeError, match=f"a {type(item).__name__} cannot be pickled"):
                way(item)
    await store.close()


@pytest.mark.parametrize("way", WAYS)
def test_credentials_are_not_pickled(way: Callable[[Any], Any]) -> None:
    credentials = Credentials("SECRET", "SECRET", "SECRET")
    for item in (credentials, Signer(credentials, "us-east-1")):
        with pytest.raises(TypeError, match="cannot be pickled"):
            way(item)


def test_an_etag_that_would_break_its_line_is_never_sent() -> None:
    assert strong_etag(Validator(size=1, etag='"a"')) == '"a"'
    for etag in ('"a"\r\nX: y', "\n", "a\0", 'W/"a"', None):
        assert strong_etag(Validator(size=1, etag=etag)) is None


async def test_sessions_and_files_are_not_pickled() -> None:
    fsspec.filesystem("memory").pipe_file("/secrets.parquet", parquet())
    async with asyncpq.Session(storage_options={"memory": {}, "s3": {"secret": "SECRET"}}) as session:
        file = await session.open_file("memory://secrets.parquet")
        for item in (session, file):
            assert "SECRET" not in repr(item)
            for way in WAYS:
                with pytest.raises(TypeError, match=f"a {type(item).__name__} cannot be pickled"):
                    way(item)


def parquet() -> bytes:
    return parquet_bytes(pa.table({"a": [1]}))
