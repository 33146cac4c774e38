"""External indexes of a dataset's files, kept beside the files (docs/indexes.md).

An index is a set of sorted tables. A segment is an immutable run of rows of one table; a snapshot, described by its
manifest, lists the segments and the indexed files at one time. ``build/`` makes segments and snapshots from files.
``manifest`` defines manifests, ``commits`` loads and commits them. ``backends/`` store segments and manifests.
``query/`` finds the rows that may match a read's predicate. ``index`` has the user's handle, ``kinds`` the kinds of
index, ``index_model`` the classes that all modules share. ``key_encoding`` and ``entry_encoding`` encode keys (and
Bloom filters of them) and payloads.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncpq.indexing.backends import FolderBackend, JsonBackend, MemoryBackend, ValkeyBackend
    from asyncpq.indexing.backends.sql_backend import SqlBackend
    from asyncpq.indexing.build.embedding import EmbeddedIndexWriter, embed_indexes
    from asyncpq.indexing.build.index_builder import Refreshed
    from asyncpq.indexing.build.maintenance import Compacted, Vacuumed, Verified
    from asyncpq.indexing.index import Index, IndexReport, Staleness, TableReport
    from asyncpq.indexing.index_model import IndexBackend, IndexTable, KeyRange, Segment, SegmentQuery
    from asyncpq.indexing.kinds import Bloom, Bounds, Footers, IndexKind, Keys, NGrams, Pages, Text, ValueSet
    from asyncpq.indexing.query.file_selection import FileIndex, FileSlice, FileSlices
    from asyncpq.parquet.embedded_index import EmbeddedIndex, EmbeddedIndexEntry

__all__ = [
    "Bloom",
    "Bounds",
    "Compacted",
    "EmbeddedIndex",
    "EmbeddedIndexEntry",
    "EmbeddedIndexWriter",
    "FileIndex",
    "FileSlice",
    "FileSlices",
    "FolderBackend",
    "Footers",
    "Index",
    "IndexReport",
    "JsonBackend",
    "KeyRange",
    "Keys",
    "IndexKind",
    "MemoryBackend",
    "NGrams",
    "Pages",
    "IndexTable",
    "TableReport",
    "IndexBackend",
    "Refreshed",
    "Segment",
    "SegmentQuery",
    "SqlBackend",
    "Staleness",
    "Text",
    "ValkeyBackend",
    "Vacuumed",
    "ValueSet",
    "Verified",
    "embed_indexes",
]

# A read through an index loads no builder: each module loads when one of its names is first used.
_MODULES = {
    "asyncpq.indexing.backends": ("FolderBackend", "JsonBackend", "MemoryBackend", "ValkeyBackend"),
    "asyncpq.indexing.backends.sql_backend": ("SqlBackend",),
    "asyncpq.indexing.build.embedding": ("EmbeddedIndexWriter", "embed_indexes"),
    "asyncpq.indexing.build.index_builder": ("Refreshed",),
    "asyncpq.indexing.build.maintenance": ("Compacted", "Vacuumed", "Verified"),
    "asyncpq.indexing.index": ("Index", "IndexReport", "Staleness", "TableReport"),
    "asyncpq.indexing.index_model": ("IndexBackend", "IndexTable", "KeyRange", "Segment", "SegmentQuery"),
    "asyncpq.indexing.kinds": (
        "Bloom",
        "Bounds",
        "Footers",
        "IndexKind",
        "Keys",
        "NGrams",
        "Pages",
        "Text",
        "ValueSet",
    ),
    "asyncpq.indexing.query.file_selection": ("FileIndex", "FileSlice", "FileSlices"),
    "asyncpq.parquet.embedded_index": ("EmbeddedIndex", "EmbeddedIndexEntry"),
}
_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

if not TYPE_CHECKING:  # type checkers would take it that every name exists

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module 'asyncpq.indexing' has no attribute {name!r}")
        value = getattr(import_module(_MODULE_OF[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
