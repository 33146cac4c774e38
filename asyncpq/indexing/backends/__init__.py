"""Where indexes are kept, and the place that a url names."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from asyncpq.errors import InvalidOptionError
from asyncpq.indexing.backends.folder import FolderBackend
from asyncpq.indexing.backends.json import JsonBackend, is_json
from asyncpq.indexing.backends.objects import ObjectBackend
from asyncpq.indexing.model import IndexBackend
from asyncpq.objects.runtime import Runtime

if TYPE_CHECKING:
    from asyncpq.indexing.backends.sql import SqlBackend
    from asyncpq.indexing.backends.valkey import ValkeyBackend

_SQL = ("postgresql", "postgres", "sqlite", "mysql", "mariadb", "mssql", "oracle", "duckdb")  # SqlBackend has not all
_VALKEY = ("redis", "rediss", "unix", "valkey", "valkeys")


async def open_backend(runtime: Runtime, at: str | IndexBackend, *, create: bool) -> IndexBackend:
    """The place that ``at`` names; closed with the session if it was made here.

    Args:
        at: a place; or the url of a folder, of an index in JSON (``.json``), of SQLAlchemy (``sqlite:///...``,
            ``postgresql+psycopg://...``), or of a Valkey server.
        create: an index is to be made there.

    Raises:
        InvalidOptionError: it is neither.
        UnsupportedStoreError: an index is to be made where nothing can be written.
    """
    if not isinstance(at, str):
        if not hasattr(at, "read_segment"):
            raise InvalidOptionError(f"the place of an index is a url or a place, not a {type(at).__name__}")
        return at
    if not at:
        raise InvalidOptionError("the place of an index is a url or a place, not ''")
    scheme = at.partition("://")[0].partition("+")[0] if "://" in at else ""
    backend: ObjectBackend | SqlBackend | ValkeyBackend
    if scheme in _SQL:
        from asyncpq.indexing.backends.sql import SqlBackend

        backend = SqlBackend(at)
    elif scheme in _VALKEY:
        from asyncpq.indexing.backends.valkey import ValkeyBackend

        backend = ValkeyBackend(at)
    else:
        backend = JsonBackend(runtime, at) if is_json(at) else FolderBackend(runtime, at)
        if create:
            await backend.check_writable()
    runtime.register(backend, backend.close)
    return cast("IndexBackend", backend)
