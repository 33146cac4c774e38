"""External indexes: what is known about the files of a dataset, kept beside them (docs/indexes.md)."""

from asyncpq.indexing.backends import FolderPlace, JsonPlace, MemoryPlace, SqlPlace, ValkeyPlace
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
