"""Backends: where an index is kept, behind :class:`asyncpq.indexing.index_model.IndexBackend`.

In come segments (sorted rows of one table) and manifests (bytes with a number); out come rows in key ranges, and
manifests. :func:`open_backend` finds the backend for a url. ``folder`` keeps Parquet or JSON files in object stores
(``objects``), ``sql`` and ``valkey`` use servers, ``memory_backend`` this process. ``sorted_rows`` has what they share.

A new backend is a module, a name and perhaps a scheme here, and a name in ``asyncpq.indexing``. It passes the checks
of :mod:`asyncpq.testing.backend_contract`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from asyncpq.errors import InvalidOptionError
from asyncpq.indexing.backends.folder import FolderBackend, JsonBackend, is_json
from asyncpq.indexing.backends.memory_backend import MemoryBackend
from asyncpq.indexing.backends.sql import SqlBackend
from asyncpq.indexing.backends.valkey import ValkeyBackend
from asyncpq.indexing.index_model import IndexBackend
from asyncpq.objects.runtime import Runtime

__all__ = ["FolderBackend", "JsonBackend", "MemoryBackend", "SqlBackend", "ValkeyBackend", "open_backend"]

#: Backends by the scheme of a url, up to a "+". The url of an object store names a folder.
_BY_SCHEME: Final[Mapping[str, Callable[[str], IndexBackend]]] = {
    # SqlBackend refuses most of these, with a hint
    **dict.fromkeys(("postgresql", "postgres", "sqlite", "mysql", "mariadb", "mssql", "oracle", "duckdb"), SqlBackend),
    **dict.fromkeys(("redis", "rediss", "unix", "valkey", "valkeys"), ValkeyBackend),
}


async def open_backend(runtime: Runtime, at: str | IndexBackend, *, create: bool) -> IndexBackend:
    """Return the backend ``at``, or the one that it names: by the url of a folder, of an index in JSON (``.json``), of
    SQLAlchemy (``sqlite:///...``, ``postgresql+psycopg://...``) or of a Valkey server. The session closes a backend
    that is made here. Anything else raises InvalidOptionError. With ``create``, a store that cannot be written
    raises UnsupportedStoreError."""
    if not isinstance(at, str):
        if not hasattr(at, "read_segment"):
            raise InvalidOptionError(f"the place of an index is a url or a backend, not a {type(at).__name__}")
        return at
    if not at:
        raise InvalidOptionError("the place of an index is a url or a backend, not ''")
    scheme = at.partition("://")[0].partition("+")[0] if "://" in at else ""
    backend: IndexBackend
    if scheme in _BY_SCHEME:
        backend = _BY_SCHEME[scheme](at)
    else:
        backend = folder = JsonBackend(runtime, at) if is_json(at) else FolderBackend(runtime, at)
        if create:
            await folder.check_writable()
    runtime.register(backend, backend.close)
    return backend
