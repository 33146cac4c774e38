"""Urls of stores that asyncpq reads by another url, or with options: the error says which."""

from __future__ import annotations

import sys
import types
from typing import Any

import fsspec
import pytest
from fsspec.registry import _registry, known_implementations

import asyncpq
from tests.session.test_hints import failure
from tests.store_backends import FAST_RETRIES

ABFSS = "abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH"


@pytest.mark.parametrize("dataset", [False, True])
@pytest.mark.parametrize(
    ("url", "hint"),
    [
        (
            "dbfs:/lake/a.parquet",
            "the local path /dbfs/lake/a.parquet. Elsewhere, pass dbfs:///lake/a.parquet with instance and token",
        ),
        ("dbfs:///lake/a.parquet", "Pass instance and token in storage_options."),
        ("uc://catalog.schema.table", "pass a deltalake.DeltaTable of this url"),
        ("wasbs://c@a.blob.core.windows.net/x", f"write {ABFSS}"),
        ("r2://bucket/key", "Write s3:// for a store with S3's protocol, and endpoint_url in storage_options."),
        ("s3n://bucket/key", "Write s3:// for it."),
        ("simplecache://x", "disk_cache= of the session"),
        ("blockcache::s3://bucket/key", "Pass s3://bucket/key, and disk_cache= of the session"),
        ("zip://a.parquet::s3://bucket/key", "Copy the Parquet files out of it"),
        ("unheard-of://x", "Use a protocol that fsspec knows."),
    ],
)
async def test_what_to_write_instead(url: str, hint: str, dataset: bool) -> None:
    error, requests = await failure(url, dataset=dataset)
    assert isinstance(error, asyncpq.UnsupportedStoreError | asyncpq.InvalidOptionError)
    assert hint in (error.hint or "")
    assert requests == 0


class _Azure(fsspec.AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Fails as adlfs 2026.8 does: without options when it is made, with an account's name in the url later."""

    protocol = "abfss"

    def __init__(self, account_name: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        if account_name is None:
            raise ValueError("Must provide either a connection_string or account_name with credentials!!")

    def info(self, path: str, **keywords: Any) -> Any:
        raise type("ClientAuthenticationError", (Exception,), {})("SECRETSECRET")

    cat_file = find = info


@pytest.mark.parametrize("options", [None, {"account_name": "a"}])
async def test_azure_without_credentials(monkeypatch: pytest.MonkeyPatch, options: Any) -> None:
    monkeypatch.setitem(_registry, "abfss", _Azure)
    error, _ = await failure("abfss://c@a.dfs.core.windows.net/x.parquet", options)
    assert isinstance(error, asyncpq.InvalidOptionError if options is None else asyncpq.AccessDeniedError)
    assert (error.hint or "").startswith("Pass account_name and account_key (or sas_token")


async def test_azure_without_its_package() -> None:
    if "abfss" in known_implementations:
        pytest.skip("adlfs is installed")
    error, _ = await failure("abfss://c@a.dfs.core.windows.net/x.parquet")
    assert error.hint == "Install adlfs, and pass account_name and account_key in storage_options."


async def test_a_package_that_has_lost_its_filesystem(monkeypatch: pytest.MonkeyPatch) -> None:
    """As adlfs 2026.8 has lost that of adl://."""
    monkeypatch.setitem(sys.modules, "oldfs", types.ModuleType("oldfs"))
    monkeypatch.setitem(known_implementations, "oldfs", {"class": "oldfs.OldFileSystem", "err": ""})
    async with asyncpq.Session(retry=FAST_RETRIES) as session:
        with pytest.raises(asyncpq.UnsupportedStoreError, match="no filesystem for oldfs://"):
            await session.open_file("oldfs://a/b")
