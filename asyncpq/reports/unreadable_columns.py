"""Which columns of a file a read refuses as not supported: types that Arrow lacks, unknown encodings and codecs."""

from __future__ import annotations

from collections.abc import Mapping

from asyncpq.decoding.field_types import field_types
from asyncpq.errors import AsyncpqError
from asyncpq.objects.page_indexes import IndexedChunk
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.column_chunk import unsupported


def unreadable_columns(version: FileVersion, chunks: Mapping[tuple[int, int], IndexedChunk]) -> dict[str, str]:
    """Return the leaf columns that a read refuses as not supported, by dotted path, each with the reason.

    ``chunks`` are those whose metadata can be read, by row group and leaf.
    """
    schema, reasons = version.metadata.schema, dict[str, str]()
    try:
        field_types(version, range(len(schema.fields)), frozenset())
    except AsyncpqError:  # of some of the fields
        for field in schema.fields:
            try:
                field_types(version, [field.index], frozenset())
            except AsyncpqError as error:
                leaves = schema.leaves[field.first_leaf : field.leaf_stop]
                reasons.update({leaf.dotted: error.message for leaf in leaves})
    for (_, ordinal), known in chunks.items():
        chunk = known.chunk
        encodings = {*chunk.encodings, *(item.encoding for item in chunk.encoding_stats or ())}
        reason = unsupported(encodings, chunk.codec) if chunk.num_values else None
        if reason is not None:
            reasons.setdefault(schema.leaves[ordinal].dotted, f"it has {reason}")
    return reasons
