"""Backends, which store an index and implement :class:`asyncpq.indexing.index_model.IndexBackend`.

They store segments (sorted rows of one index table) and manifests (bytes with a number), and return manifests, and the
rows of segments in key ranges. :func:`open_backend` finds the backend for a url. ``folder`` writes Parquet or JSON
files to object stores, ``sql`` and ``valkey`` use servers, ``memory_backend`` this process.
``sorted_rows`` has shared code.

A new backend is a module, a name and perhaps a scheme here, and a name in ``asyncpq.indexing``. It passes the checks
of :mod:`asyncpq.testing.backend_contract`.
"""

from __future__ import annotations

from typing import Final

from asyncpq.errors import InvalidOptionError
from asyncpq.indexing.backends.folder import FolderBackend, JsonBackend, is_json
from asyncpq.indexing.backends.memory_backend import MemoryBackend
from asyncpq.indexing.backends.valkey import ValkeyBackend
from asyncpq.indexing.index_model import IndexBackend
from asyncpq.objects.runtime import Runtime

__all__ = ["FolderBackend", "JsonBackend", "MemoryBackend", "ValkeyBackend", "open_backend"]

#: Schemes of a url, up to a "+". The url of an object store names a folder. SqlBackend refuses most of its own, with a
#: hint.
_SQL: Final = ("postgresql", "postgres", "sqlite", "mysql", "mariadb", "mssql", "oracle", "duckdb")
_PLACE_HINT: Final = "Pass a url such as 's3://bucket/indexes/trips/', or a backend such as MemoryBackend()."
_VALKEY: Final = ("redis", "rediss", "unix", "valkey", "valkeys")


async def open_backend(runtime: Runtime, at: str | IndexBackend, *, create: bool) -> IndexBackend:
    """Return the backend for ``at``, which is a backend or a url: of a folder, of an index in JSON (``.json``), of
    SQLAlchemy (``sqlite:///...``, ``postgresql+psycopg://...``) or of a Valkey server. The session closes a backend
    that is made here. Raises InvalidOptionError if ``at`` is anything else; with ``create``, UnsupportedStoreError
    if the store cannot be written."""
    if not isinstance(at, str):
        if not hasattr(at, "read_segment"):
            raise InvalidOptionError(
                f"the place of an index must be a url or a backend, not {type(at).__name__}", hint=_PLACE_HINT
            )
        return at
    if not at:
        raise InvalidOptionError("the place of an index must be a url or a backend, not ''", hint=_PLACE_HINT)
    scheme = at.partition("://")[0].partition("+")[0] if "://" in at else ""
    backend: IndexBackend
    if scheme in _SQL:
        from asyncpq.indexing.backends.sql_backend import SqlBackend  # loads SQLAlchemy

        backend = SqlBackend(at)
    elif scheme in _VALKEY:
        backend = ValkeyBackend(at)
    else:
        backend = folder = JsonBackend(runtime, at) if is_json(at) else FolderBackend(runtime, at)
        if create:
            await folder.check_writable()
    runtime.register(backend, backend.close)
    return backend
