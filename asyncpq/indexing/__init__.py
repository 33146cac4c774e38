"""External indexes of a dataset's files, kept beside them (docs/indexes.md).

``build/`` makes segments and snapshots from files; ``manifest/`` holds snapshots; ``backends/`` store both; ``query/``
answers predicates of reads. They share the model (``index_model``), the kinds that users name (``kinds``), the handle
(``index``), and keys and payloads as bytes (``key_encoding``, ``blooms``, ``entry_encoding``).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncpq.indexing.backends.folder import FolderBackend, JsonBackend
    from asyncpq.indexing.backends.memory_backend import MemoryBackend
    from asyncpq.indexing.backends.sql import SqlBackend
    from asyncpq.indexing.backends.valkey import ValkeyBackend
    from asyncpq.indexing.build.embedding import EmbeddedIndexWriter, embed_indexes
    from asyncpq.indexing.index import Index, IndexReport, Staleness, TableReport
    from asyncpq.indexing.index_model import IndexBackend, IndexTable, KeyRange, Segment
    from asyncpq.indexing.kinds import Bloom, Bounds, Footers, IndexKind, Keys, NGrams, Pages, Text, ValueSet
    from asyncpq.indexing.query.file_selection import FileIndex, FileSlice, FileSlices
    from asyncpq.parquet.embedded_index import EmbeddedIndex, EmbeddedIndexEntry

__all__ = [
    "Bloom",
    "Bounds",
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
    "Segment",
    "SqlBackend",
    "Staleness",
    "Text",
    "ValkeyBackend",
    "ValueSet",
    "embed_indexes",
]

# A read through an index loads no builder and no other backend: each module loads when one of its names is first used.
_MODULES = {
    "Bloom": "asyncpq.indexing.kinds",
    "Bounds": "asyncpq.indexing.kinds",
    "EmbeddedIndex": "asyncpq.parquet.embedded_index",
    "EmbeddedIndexEntry": "asyncpq.parquet.embedded_index",
    "EmbeddedIndexWriter": "asyncpq.indexing.build.embedding",
    "FileIndex": "asyncpq.indexing.query.file_selection",
    "FileSlice": "asyncpq.indexing.query.file_selection",
    "FileSlices": "asyncpq.indexing.query.file_selection",
    "FolderBackend": "asyncpq.indexing.backends.folder",
    "Footers": "asyncpq.indexing.kinds",
    "Index": "asyncpq.indexing.index",
    "IndexReport": "asyncpq.indexing.index",
    "JsonBackend": "asyncpq.indexing.backends.folder",
    "KeyRange": "asyncpq.indexing.index_model",
    "Keys": "asyncpq.indexing.kinds",
    "IndexKind": "asyncpq.indexing.kinds",
    "MemoryBackend": "asyncpq.indexing.backends.memory_backend",
    "NGrams": "asyncpq.indexing.kinds",
    "Pages": "asyncpq.indexing.kinds",
    "IndexTable": "asyncpq.indexing.index_model",
    "TableReport": "asyncpq.indexing.index",
    "IndexBackend": "asyncpq.indexing.index_model",
    "Segment": "asyncpq.indexing.index_model",
    "SqlBackend": "asyncpq.indexing.backends.sql",
    "Staleness": "asyncpq.indexing.index",
    "Text": "asyncpq.indexing.kinds",
    "ValkeyBackend": "asyncpq.indexing.backends.valkey",
    "ValueSet": "asyncpq.indexing.kinds",
    "embed_indexes": "asyncpq.indexing.build.embedding",
}

if not TYPE_CHECKING:  # type checkers would take it that every name exists

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module 'asyncpq.indexing' has no attribute {name!r}")
        value = getattr(import_module(_MODULES[name]), name)
        globals()[name] = value
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
