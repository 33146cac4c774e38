"""Stores: urls and byte ranges come in; checked bytes of one version, listings and writes go out.

:func:`open_store` picks the store of a protocol: ``local``, ``http``, ``hugging_face``, ``s3.store`` or ``fsspec``;
``obstore`` where the storage options ask for it. ``base`` is their contract. ``transport`` sends a request by one of
four carriers (``wire`` with ``http1``, ``aiohttp_wire``, s3fs, obstore), resumes and hedges it within the ``limits`` of
the store, and has its response checked by ``response_checks``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncpq.errors import Hint, InvalidOptionError, UnsupportedStoreError
from asyncpq.options import RetryOptions
from asyncpq.storage.base import Store, StoreLimits
from asyncpq.storage.urls import CACHING_PROTOCOLS, KEEP_ON_DISK, word_set

_CLIENT_MODULES = {
    "s3": "asyncpq.storage.s3.store",
    "s3a": "asyncpq.storage.s3.store",
    "http": "asyncpq.storage.http",
    "https": "asyncpq.storage.http",
    "hf": "asyncpq.storage.hugging_face",
}


def client_module(protocol: str, storage_options: Mapping[str, Any]) -> str | None:
    """Return the module to import in advance for a store, since importing it loads the store's client and may take
    long; None if there is no such module."""
    return "asyncpq.storage.obstore" if "obstore" in storage_options else _CLIENT_MODULES.get(protocol)


_WRAPPERS = word_set(
    "async_wrapper asyncwrapper archive blockcache cached dask dir filecache generic libarchive simplecache tar zip"
)


_LIKE_S3 = "Write s3:// for a store with S3's protocol, and " + Hint(
    "endpoint_url in storage_options.", "its --endpoint-url."
)
_PROTOCOLS = "Begin the url with s3://, gs://, az://, https:// or hf://, or with another protocol that fsspec knows."
#: Hints for protocols that neither asyncpq nor fsspec knows.
_UNKNOWN: Mapping[str, str] = {
    **dict.fromkeys(("wasb", "wasbs"), "Write abfss://CONTAINER@ACCOUNT.dfs.core.windows.net/PATH for the url."),
    "uc": "Unity Catalog names tables: pass a deltalake.DeltaTable of this url, or the table's storage location.",
    "s3n": "Write s3:// for it.",
    **dict.fromkeys(("b2", "cos", "cosn", "minio", "obs", "r2"), _LIKE_S3),
}


def open_store(
    protocol: str,
    storage_options: Mapping[str, Any] | None,
    *,
    retry: RetryOptions,
    limits: StoreLimits,
    place: Mapping[str, Any] | None = None,
) -> Store:
    """Return the store for all urls of ``protocol``. It connects with its first request. Call it in a loop.

    ``storage_options`` are those of fsspec's filesystem for the protocol, or ``{"obstore": {...}}``. ``place`` is the
    place of the urls (:func:`asyncpq.storage.urls.place_of`), of which the store then takes no others. Raises
    InvalidOptionError for an unknown option, UnsupportedStoreError if no store serves the protocol, or its package is
    not installed.
    """
    options = dict(storage_options or {})
    for name in options:
        if not isinstance(name, str):
            raise InvalidOptionError(f"storage_options have texts as names, not {name!r}")
    if "obstore" in options:
        from asyncpq.storage.obstore import ObstoreStore

        return ObstoreStore(protocol, options, retry=retry, limits=limits)
    if protocol in ("file", "local"):
        from asyncpq.storage.local import LocalStore

        return LocalStore(options)
    if protocol in ("s3", "s3a"):
        from asyncpq.storage.s3.store import S3Store

        return S3Store(options, retry=retry, limits=limits)
    if protocol in ("http", "https"):
        from asyncpq.storage.http import HttpStore

        return HttpStore(options, retry=retry, limits=limits)
    if protocol == "hf":
        from asyncpq.storage.hugging_face import HuggingFaceStore

        return HuggingFaceStore(options, retry=retry, limits=limits)
    from fsspec.registry import known_implementations, registry

    if protocol not in known_implementations and protocol not in registry:
        from asyncpq.storage.fsspec import CLIENTS

        hint = CLIENTS.get(protocol) or _UNKNOWN.get(protocol, _PROTOCOLS)
        raise UnsupportedStoreError(f"no store serves {protocol}:// urls", hint=hint)
    if protocol == "reference":
        raise UnsupportedStoreError(
            "asyncpq does not support reference:// urls, whose data choose which urls are read",
            hint="Pass the urls that it refers to.",
        )
    if protocol in _WRAPPERS:
        hint = "Copy the Parquet files out of it, and pass their own urls."
        if protocol in CACHING_PROTOCOLS:
            hint = "Pass the files' own urls, and " + KEEP_ON_DISK
        raise UnsupportedStoreError(
            f"asyncpq does not support {protocol}:// urls, which wrap another filesystem", hint=hint
        )
    from asyncpq.storage.fsspec import FsspecStore
    from asyncpq.storage.fsspec_writer import WRITABLE_PROTOCOLS, WritableFsspecStore

    store_class = WritableFsspecStore if protocol in WRITABLE_PROTOCOLS else FsspecStore
    return store_class(protocol, options, retry=retry, limits=limits, place=place)
