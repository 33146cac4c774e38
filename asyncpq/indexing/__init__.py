"""External indexes: what is known about the files of a dataset, kept beside them (docs/indexes.md)."""

from asyncpq.format.embedded_index import EmbeddedIndex, EmbeddedIndexEntry
from asyncpq.indexing.embedded import EmbeddedIndexWriter, embed_indexes
from asyncpq.indexing.file_index import FileIndex, FileSlice, FileSlices
from asyncpq.indexing.index import Index
from asyncpq.indexing.kinds import Bloom, Bounds, Footers, Keys, Kind, NGrams, Pages, Text, ValueSet
from asyncpq.indexing.model import KeyRange, Part, Place, Segment
from asyncpq.indexing.places import FolderPlace, JsonPlace, MemoryPlace, SqlPlace, ValkeyPlace
from asyncpq.indexing.reports import IndexReport, PartReport, Staleness

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
