"""How a writer lays a file out, and what a lookup in it costs: a row of the tables of docs/writers.md."""

from __future__ import annotations

import statistics
import struct
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq.parquet.chunk_pages import PageHeader, decode_page_header
from asyncpq.parquet.column_chunk import ChunkStatistics
from asyncpq.reports.documents import Chunk, Inspection
from asyncpq.testing import ObjectServer
from tests.parquet_files import metadata_of

_REQUESTS: Final = asyncpq.RequestOptions(latency_s=0.03, bandwidth_bytes_s=200e6)
_URL: Final = "s3://bucket/file.parquet"
_ROWS: Final = 1_000_000
_ID: Final = 654_321
_BOX: Final = (58.8, 29.4, 58.801, 29.4005)  # about ten points
_HEADER_BYTES: Final = 64 << 10


@dataclass(kw_only=True)
class Layout:
    """One file, in words."""

    created_by: str
    size: str
    row_groups: str
    pages: str
    page_index: str
    places: str
    bloom: str
    codec: str
    encodings: str
    bounds: str
    exact: str
    nan: str
    zeros: str
    nulls: str
    times: str
    boxes: str
    lookups: dict[str, tuple[int, int]]  # by key column: requests and bytes of one lookup of a whole row


def expected(row: int) -> dict[str, Any]:
    """The values of a row that all writers can write, by the rule of writers/layouts/rows.py."""
    return {
        "id": row,
        "key": f"k{row * 7919 % _ROWS:08d}",
        "text": f"{row:08d}" + "".join(f"{row * (2654435761 + 2 * at) % 2**32:08x}" for at in range(8)),
        "category": f"c{row % 50}",
        "x": row / 4,
        "zero": 0.0,
        "n": row % 1000 if row % 3 else None,
    }


async def look(path: Path, data: bytes) -> Layout:
    """Describe a file and its ``data``, and look a row up in it by ``id`` and by ``key``, each in a new session.

    Raises:
        AssertionError: a lookup does not give the row.
    """
    lookups: dict[str, tuple[int, int]] = {}
    wanted = expected(_ID)
    async with ObjectServer() as server:
        server.put("bucket/file.parquet", data)
        for name in ("id", "key"):
            async with asyncpq.Session(server.storage_options, requests=_REQUESTS) as session:
                (found,) = (await (await session.open_file(_URL)).lookup({name: wanted[name]})).to_pylist()
                found = {column: _plain(found[column]) for column in wanted}
                assert found == wanted, f"{path}: {found}"
                lookups[name] = session.metrics.requests, session.metrics.bytes_fetched
        async with asyncpq.Session(server.storage_options, requests=_REQUESTS) as session:
            file = await session.open_file(_URL)
            if "geometry" in file.schema.names:
                await file.read(["id", "geometry"], asyncpq.col("geometry").intersects_box(*_BOX))
                lookups["box"] = session.metrics.requests, session.metrics.bytes_fetched
            inspection = (await file.inspect()).to_dict()
    return _layout(path, data, inspection, lookups)


def _plain(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value  # a writer may leave out that bytes are text


def _layout(path: Path, data: bytes, inspection: Inspection, lookups: dict[str, tuple[int, int]]) -> Layout:
    names = [column["name"] for column in inspection["columns"]]
    chunks = {name: [group["chunks"][at] for group in inspection["row_groups"]] for at, name in enumerate(names)}
    metadata = metadata_of(data)
    raw = {
        leaf.dotted: [group.chunk(leaf.index).statistics for group in metadata.row_groups]
        for leaf in metadata.schema.leaves
    }
    rows = pq.read_table(path, columns=["x", "zero", "at"])
    groups = [group["rows"] for group in inspection["row_groups"]]
    return Layout(
        created_by=inspection["writer"] or "",
        size=_bytes(len(data)),
        row_groups=f"{len(groups)} of {max(groups):,}" if len(groups) > 1 else f"1 of {groups[0]:,}",
        pages=f"{_page_rows(data, chunks['id'][0], groups[0]):,}; {_page_rows(data, chunks['text'][0], groups[0]):,}",
        page_index=_page_index(inspection, raw),
        places=_places(inspection, data),
        bloom=_bloom(inspection, chunks),
        codec=", ".join(sorted({codec for column in inspection["columns"] for codec in column["codecs"]})),
        encodings=_encodings(inspection),
        bounds=_bound_bytes(raw["text"]),
        exact=_exact(raw["text"]),
        nan=_nan(raw["x"], rows["x"]),
        zeros=_zeros(raw["zero"], rows["zero"]),
        nulls=_stated(raw, names),
        times=_times(rows["at"].type),
        boxes=_boxes(inspection, metadata.key_value_metadata),
        lookups=lookups,
    )


def _bytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB" if num_bytes >= 100_000 else f"{num_bytes / 1e3:.0f} kB"


def _page_rows(data: bytes, chunk: Chunk, rows: int) -> int:
    """Rows of a chunk's pages, the median by its index; without one, of its first page, by the header."""
    pages = chunk["pages"]
    if pages is not None:
        starts = [*pages["first_rows"], rows]
        return int(statistics.median(stop - start for start, stop in pairwise(starts)))
    at = chunk["bytes"][0]
    while True:
        header = decode_page_header(data[at : at + _HEADER_BYTES], complete=True)
        assert isinstance(header, PageHeader)
        if header.is_data:
            return header.num_values
        at += header.page_size


def _page_index(inspection: Inspection, raw: dict[str, list[ChunkStatistics | None]]) -> str:
    columns = [column for column in inspection["columns"] if column["name"] in raw]
    offsets = sum(column["offset_indexes"] > 0 for column in columns)
    bounds = sum(column["column_indexes"] > 0 for column in columns)
    if not offsets:
        return "none"
    some = f"of {offsets} of {len(columns)} columns" if offsets < len(columns) else "yes"
    return some if offsets == bounds else f"{some}, bounds of {bounds}"


def _places(inspection: Inspection, data: bytes) -> str:
    """Where indexes and Bloom filters lie, and how many bytes from there to the end of the file."""
    chunks = [chunk for group in inspection["row_groups"] for chunk in group["chunks"]]
    last = max(chunk["bytes"][1] for chunk in chunks)
    texts = []
    for kind, what in (("offset_index", "indexes"), ("bloom_filter", "filters")):
        starts = [span[0] for chunk in chunks if (span := chunk[kind]) is not None]  # type: ignore[literal-required]
        if starts:
            inside = sum(start < last for start in starts)
            where = "at the end" if not inside else "between the row groups" if inside > 1 else "after a row group"
            texts.append(f"{what} {where}" + ("" if inside else f", {_bytes(len(data) - min(starts))}"))
    return "; ".join(texts) or f"footer {_bytes(len(data) - inspection['footer'][0])}"


def _bloom(inspection: Inspection, chunks: dict[str, list[Chunk]]) -> str:
    named = [column["name"] for column in inspection["columns"] if column["bloom_filters"]]
    spans = [chunk["bloom_filter"] for name in named for chunk in chunks[name] if chunk["bloom_filter"] is not None]
    if not spans:
        return "none"
    return f"{', '.join(named)}: {_bytes(sum(stop - start for start, stop in spans))}"


def _encodings(inspection: Inspection) -> str:
    found: dict[str, list[str]] = {}
    for column in inspection["columns"]:
        values = [name for name in column["encodings"] if name not in ("RLE", "BIT_PACKED")]  # those are of levels
        found.setdefault(" and ".join(sorted(values, reverse=True)), []).append(column["name"])
    most = max(found, key=lambda key: len(found[key]))
    others = [f"{', '.join(names)}: {key}" for key, names in found.items() if key != most]
    return "; ".join([*others, most if not others else f"else {most}"])


def _bound_bytes(found: list[ChunkStatistics | None]) -> str:
    ends = [
        end
        for each in found
        if each is not None
        for end in (each.min_value or each.deprecated_min, each.max_value or each.deprecated_max)
        if end is not None
    ]
    deprecated = any(each is not None and each.min_value is None and each.deprecated_min for each in found)
    return f"{max(map(len, ends))}{', deprecated fields' if deprecated else ''}" if ends else "no bounds"


def _exact(found: list[ChunkStatistics | None]) -> str:
    said = {flag for each in found if each for flag in (each.is_min_value_exact, each.is_max_value_exact)}
    return "not said" if said <= {None} else ", ".join(sorted("exact" if flag else "inexact" for flag in said - {None}))


def _doubles(found: list[ChunkStatistics | None]) -> list[tuple[float, float]]:
    return [
        (struct.unpack("<d", each.min_value)[0], struct.unpack("<d", each.max_value)[0])
        for each in found
        if each is not None and each.min_value and each.max_value
    ]


def _nan(found: list[ChunkStatistics | None], values: pa.ChunkedArray) -> str:
    stored = "" if not values.null_count else "becomes null; "
    bounds = _doubles(found)
    ends = (
        "no bounds"
        if not bounds
        else "is a bound"
        if any(low != low or high != high for low, high in bounds)
        else "left out of bounds"
    )
    counted = ", counted" if any(each is not None and each.nan_count is not None for each in found) else ""
    return f"{stored}{ends}{counted}"


def _zeros(found: list[ChunkStatistics | None], values: pa.ChunkedArray) -> str:
    bounds = _doubles(found)
    signs = Counter(str(value) for value in values.to_numpy()[:100].tolist())
    lost = "" if len(signs) == 2 else f"all become {next(iter(signs))}; "
    return lost + (f"{bounds[0][0]} to {bounds[0][1]}" if bounds else "no bounds")


def _stated(raw: dict[str, list[ChunkStatistics | None]], names: list[str]) -> str:
    lacking = [name for name in names if any(each is None or each.null_count is None for each in raw[name])]
    return "all" if not lacking else "none" if len(lacking) == len(names) else f"not of {', '.join(lacking)}"


def _times(kind: pa.DataType) -> str:
    return str(kind.unit) if pa.types.is_timestamp(kind) else str(kind)


def _boxes(inspection: Inspection, metadata: Any) -> str:
    found = next((column for column in inspection["columns"] if column["name"] == "geometry"), None)
    if found is None:
        return ""
    kind = found["logical_type"] or "bytes"
    return f"{kind}; key geo: {'yes' if 'geo' in metadata else 'no'}"
