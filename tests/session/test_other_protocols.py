"""Urls of stores that asyncpq reads by another url, or with options: the error says which."""

from __future__ import annotations

import gc
import sys
import types
import weakref
from pathlib import Path
from typing import Any

import fsspec
import fsspec.asyn
import pytest
from fsspec.registry import _registry, known_implementations

import asyncpq
from asyncpq.errors import command_words
from tests.session.test_hints import DATA, failure
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
        ("wasbs://c@a.blob.core.windows.net/x", f"Write {ABFSS}"),
        ("r2://bucket/key", "Write s3:// for a store with S3's protocol, and endpoint_url in storage_options."),
        ("s3n://bucket/key", "Write s3:// for it."),
        ("simplecache://x", "disk_cache= of the session"),
        ("blockcache::s3://bucket/key", "Pass s3://bucket/key, and disk_cache= of the session"),
        ("zip://a.parquet::s3://bucket/key", "Copy the Parquet files out of it"),
        ("unheard-of://x", "or with another protocol that fsspec knows."),
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
    fails = "ClientAuthenticationError"

    def __init__(self, account_name: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        if account_name is None:
            raise ValueError("Must provide either a connection_string or account_name with credentials!!")

    def info(self, path: str, **keywords: Any) -> Any:
        raise type(self.fails, (Exception,), {})("SECRETSECRET")

    cat_file = find = info


@pytest.mark.parametrize("options", [None, {"account_name": "a"}, {"account_name": "a", "account_key": "malformed"}])
async def test_azure_without_credentials(monkeypatch: pytest.MonkeyPatch, options: Any) -> None:
    monkeypatch.setitem(_registry, "abfss", _Azure)
    if options is not None and "account_key" in options:
        monkeypatch.setattr(_Azure, "fails", "AzureSigningError")
    error, _ = await failure("abfss://c@a.dfs.core.windows.net/x.parquet", options)
    assert isinstance(error, asyncpq.InvalidOptionError if options is None else asyncpq.AccessDeniedError)
    assert (error.hint or "").startswith("Pass account_name and account_key (or sas_token")


CLIENTS = {
    "gs": ("gcsfs", 'storage_options={"gs": {"obstore": {"service_account": "key.json"}}}.'),
    "gcs": ("gcsfs", 'storage_options={"gs": {"obstore": {"service_account": "key.json"}}}.'),
    "az": ("adlfs", 'storage_options={"az": {"obstore": {"account_name": ..., "account_key": ...}}}.'),
    "abfs": ("adlfs", 'storage_options={"az": {"obstore": {"account_name": ..., "account_key": ...}}}.'),
    "abfss": ("adlfs", 'storage_options={"az": {"obstore": {"account_name": ..., "account_key": ...}}}.'),
}


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("protocol", CLIENTS)
async def test_clouds_without_their_package(monkeypatch: pytest.MonkeyPatch, protocol: str, known: bool) -> None:
    """fsspec itself knows some of these protocols, the others only once their package is installed."""
    package, options = CLIENTS[protocol]
    monkeypatch.delitem(_registry, protocol, raising=False)
    monkeypatch.setitem(sys.modules, package, None)  # no such module
    if known:
        monkeypatch.setitem(
            known_implementations, protocol, {"class": f"{package}.FileSystem", "err": "Please install"}
        )
    else:
        monkeypatch.delitem(known_implementations, protocol, raising=False)
    error, requests = await failure(f"{protocol}://bucket/x.parquet")
    assert isinstance(error, asyncpq.UnsupportedStoreError)
    assert error.hint == f"Install {package} or obstore. To read through obstore, pass {options}"
    assert "Please" not in str(error)
    assert command_words(error.hint).startswith(f"Install {package}, and set ")
    assert requests == 0


async def test_a_package_that_cannot_be_imported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "gcsfs.py").write_text("import a_package_that_google_needs")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(_registry, "gs", raising=False)
    monkeypatch.delitem(sys.modules, "gcsfs", raising=False)
    error, _ = await failure("gs://bucket/x.parquet")
    assert "not installed, or cannot be imported (a_package_that_google_needs)" in error.message
    assert "obstore" in (error.hint or "")


class _Google(fsspec.AbstractFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Takes the names of options that gcsfs takes, and connects when it is made, as gcsfs does to check a token."""

    protocol = "gs"

    def __init__(self, token: str | None = None, **options: Any) -> None:
        super().__init__(**options)
        raise ConnectionError("SECRETSECRET")


_Google.__module__ = "gcsfs.core"


@pytest.mark.parametrize("options", [{"anon": True}, {"key": "SECRETSECRET"}, {"token": "no/such/file.json"}])
async def test_google_with_options_of_others(monkeypatch: pytest.MonkeyPatch, options: Any) -> None:
    monkeypatch.setitem(_registry, "gs", _Google)
    error, _ = await failure("gs://bucket/x.parquet", options)
    assert (error.hint or "").endswith('Pass token="key.json" in storage_options, or token="anon" for public objects.')


class _Finalized(fsspec.asyn.AsyncFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Has a finalizer that needs fsspec's own event loop and holds the filesystem, as that of adlfs 2026.8."""

    protocol = "finalized"
    cachable = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.credential: _Finalized | None = self
        self.closed = 0
        weakref.finalize(self, fsspec.asyn.sync, self.loop, self.close, self)

    async def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize("options", [{}, {"credential": "of the caller"}])
async def test_finalizers_that_can_only_fail(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    monkeypatch.setitem(_registry, "finalized", _Finalized)
    session = asyncpq.Session(options)
    async with session:
        with pytest.raises(asyncpq.AsyncpqError):
            await session.open_file("finalized://a/b")
        (filesystem,) = [one for one in gc.get_objects() if type(one) is _Finalized]
    assert filesystem.closed == (not options)
    filesystem.credential = None
    held = weakref.ref(filesystem)
    del filesystem, session
    gc.collect()
    assert held() is None


@pytest.mark.parametrize("dataset", [False, True])
async def test_a_protocol_in_capitals(dataset: bool) -> None:
    fsspec.filesystem("memory").pipe("/capitals/a.parquet", DATA)
    async with asyncpq.Session() as session:
        reader: Any = session.open_dataset if dataset else session.open_file
        assert await (await reader("MEMORY://capitals/" + "a.parquet" * (not dataset))).count() == 2


async def test_a_package_that_has_lost_its_filesystem(monkeypatch: pytest.MonkeyPatch) -> None:
    """As adlfs 2026.8 has lost that of adl://."""
    monkeypatch.setitem(sys.modules, "oldfs", types.ModuleType("oldfs"))
    monkeypatch.setitem(known_implementations, "oldfs", {"class": "oldfs.OldFileSystem", "err": ""})
    async with asyncpq.Session(retry=FAST_RETRIES) as session:
        with pytest.raises(asyncpq.UnsupportedStoreError, match="no filesystem for oldfs://"):
            await session.open_file("oldfs://a/b")
