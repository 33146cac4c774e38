"""External indexes: what is known about the files of a dataset, kept beside them (docs/indexes.md)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from asyncpq.indexing.backends.folder import FolderPlace
    from asyncpq.indexing.backends.json import JsonPlace
    from asyncpq.indexing.backends.memory import MemoryPlace
    from asyncpq.indexing.backends.sql import SqlPlace
    from asyncpq.indexing.backends.valkey import ValkeyPlace
    from asyncpq.indexing.build.embedding import EmbeddedIndexWriter, embed_indexes
    from asyncpq.indexing.index import Index, IndexReport, PartReport, Staleness
    from asyncpq.indexing.kinds import Bloom, Bounds, Footers, Keys, Kind, NGrams, Pages, Text, ValueSet
    from asyncpq.indexing.model import KeyRange, Part, Place, Segment
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
    "FolderPlace",
    "Footers",
    "Index",
    "IndexReport",
    "JsonPlace",
    "KeyRange",
    "Keys",
    "Kind",
    "MemoryPlace",
    "NGrams",
    "Pages",
    "Part",
    "PartReport",
    "Place",
    "Segment",
    "SqlPlace",
    "Staleness",
    "Text",
    "ValkeyPlace",
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
    "FolderPlace": "asyncpq.indexing.backends.folder",
    "Footers": "asyncpq.indexing.kinds",
    "Index": "asyncpq.indexing.index",
    "IndexReport": "asyncpq.indexing.index",
    "JsonPlace": "asyncpq.indexing.backends.json",
    "KeyRange": "asyncpq.indexing.model",
    "Keys": "asyncpq.indexing.kinds",
    "Kind": "asyncpq.indexing.kinds",
    "MemoryPlace": "asyncpq.indexing.backends.memory",
    "NGrams": "asyncpq.indexing.kinds",
    "Pages": "asyncpq.indexing.kinds",
    "Part": "asyncpq.indexing.model",
    "PartReport": "asyncpq.indexing.index",
    "Place": "asyncpq.indexing.model",
    "Segment": "asyncpq.indexing.model",
    "SqlPlace": "asyncpq.indexing.backends.sql",
    "Staleness": "asyncpq.indexing.index",
    "Text": "asyncpq.indexing.kinds",
    "ValkeyPlace": "asyncpq.indexing.backends.valkey",
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
