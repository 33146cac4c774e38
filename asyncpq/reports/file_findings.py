"""What ``lint`` finds about whole files: columns that asyncpq or other programs cannot read, large Bloom filters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from asyncpq.options import MIB
from asyncpq.parquet.column_chunk import Encoding
from asyncpq.reports.documents import Cause
from asyncpq.reports.inspection import ChunkStops, FileLayout
from asyncpq.reports.lint_subject import listed, unpriced
from asyncpq.reports.units import plural, size_text
from asyncpq.reports.unreadable_columns import unreadable_columns

_LEAST_FILTER_BYTES: Final = MIB
_LEAST_FILTER_SHARE: Final = 0.25  # of the file


def file_findings(layout: FileLayout) -> Iterator[Cause]:
    """Yield the findings that do not depend on the column by which rows are looked up."""
    for column, reason in unreadable_columns(layout.version, layout.chunks).items():
        yield unpriced(
            "unreadable-column",
            "high",
            "a column cannot be read",
            f"{column}: {reason}. The other columns can be read.",
            "Write the column with an encoding, a codec and a type that other programs read.",
            column=column,
        )
    leaves = layout.version.metadata.schema.leaves
    alp = dict.fromkeys(leaf for (_, leaf), known in layout.chunks.items() if Encoding.ALP in known.chunk.encodings)
    if alp:
        yield unpriced(
            "few-readers",
            "note",
            "few programs read an encoding",
            f"{listed([leaves[leaf].dotted for leaf in alp])}: pages have the encoding ALP, which asyncpq and the Rust "
            "crate parquet 60 read, and pyarrow 26, DuckDB 2.0 and Polars 2.1 do not. Lookups are not slower.",
            "If other programs read the file, write these columns as BYTE_STREAM_SPLIT with zstd.",
        )
    stops = ChunkStops(layout.version, layout.chunks.values())
    spans = [(known.chunk, stops.bloom_filter(known.chunk)) for known in layout.chunks.values()]
    sizes = [(chunk, span[1] - span[0]) for chunk, span in spans if span is not None]
    total, size = sum(num_bytes for _, num_bytes in sizes), layout.version.size
    if total >= max(_LEAST_FILTER_BYTES, _LEAST_FILTER_SHARE * size):
        values = sum(chunk.num_values for chunk, _ in sizes)
        yield unpriced(
            "large-bloom-filters",
            "low",
            "Bloom filters are large",
            f"{size_text(total)} of the file's {size_text(size)} are Bloom filters of "
            f"{plural(len(sizes), 'column chunk')}: {total * 8 / max(1, values):,.0f} bits for each value, of which 10 "
            "are enough. No saving is predicted: a lookup fetches a filter only where that costs less than the data "
            "that it may rule out.",
            "Write Bloom filters of the columns that lookups are by, for as many distinct values as a row group has.",
        )
