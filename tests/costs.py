"""What a call costs: its metrics, the Python that it runs, and the parts of a file that it requests."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from types import FrameType
from typing import Any

from asyncpq.metrics import ReadMetrics, measure
from asyncpq.parquet.bloom_filter import BLOCK_BYTES, decode_bloom_filter_header
from asyncpq.parquet.chunk_pages import PageWalker
from asyncpq.parquet.metadata import FooterDecoder, FooterFound, decode_file_metadata
from asyncpq.parquet.page_index import decode_offset_index
from asyncpq.testing import LoggedRequest
from tests.parquet_files import metadata_of


async def cost_of(call: Awaitable[object]) -> ReadMetrics:
    """The cost of one call, with the log of its requests."""
    with measure() as cost:
        await call
    return cost


def python_calls(call: Callable[[], object]) -> int:
    """Functions called and generators resumed, C functions among them."""
    count = 0

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return count


@dataclass(frozen=True)
class Part:
    """A named range of bytes."""

    start: int
    stop: int
    label: str


def parts_of(data: bytes) -> list[Part]:
    """Every page, dictionary, index and the footer, in file order."""
    found = FooterDecoder(max_footer_bytes=len(data)).next(data, 0, len(data))
    assert isinstance(found, FooterFound)
    metadata = decode_file_metadata(found.metadata_bytes)
    parts = [Part(found.start, len(data), "footer")]
    for group in metadata.row_groups:
        for leaf in metadata.schema.leaves:
            chunk = group.chunk(leaf.index)
            name = f"{leaf.dotted}[{group.ordinal}]"
            if chunk.bloom_filter_offset is not None:
                parts.extend(_bloom_filter(data, chunk.bloom_filter_offset, name))
            if chunk.offset_index_range is None:
                parts.append(Part(chunk.start, chunk.stop, f"{name} chunk"))
                continue
            start, stop = chunk.offset_index_range
            parts.append(Part(start, stop, f"{name} OffsetIndex"))
            pages = decode_offset_index(data[start:stop])
            if pages.offsets[0] > chunk.start:
                parts.append(Part(chunk.start, pages.offsets[0], f"{name} dictionary"))
            parts.extend(
                Part(offset, offset + size, f"{name} page {number}")
                for number, (offset, size) in enumerate(zip(pages.offsets, pages.sizes, strict=True))
            )
            if chunk.column_index_range is not None:
                parts.append(Part(*chunk.column_index_range, f"{name} ColumnIndex"))
    return sorted(parts, key=lambda part: part.start)


def _bloom_filter(data: bytes, start: int, name: str) -> list[Part]:
    """The header and every block of a bloom filter."""
    header = decode_bloom_filter_header(data[start : start + 64])
    first = start + header.header_size
    blocks = [
        Part(first + BLOCK_BYTES * number, first + BLOCK_BYTES * (number + 1), f"{name} block {number}")
        for number in range(header.num_blocks)
    ]
    return [Part(start, first, f"{name} bloom header"), *blocks]


def walked_parts(data: bytes) -> list[Part]:
    """Every page and dictionary of flat chunks, in file order, found by their headers."""
    parts: list[Part] = []
    metadata = metadata_of(data)
    for group in metadata.row_groups:
        for leaf in metadata.schema.leaves:
            chunk = group.chunk(leaf.index)
            number = 0
            for page in PageWalker(chunk, max_page_bytes=len(data)).feed(data[chunk.start : chunk.stop]):
                label = f"page {number}" if page.header.is_data else "dictionary"
                number += page.header.is_data
                parts.append(Part(page.offset, page.offset + len(page.data), f"{leaf.dotted}[{group.ordinal}] {label}"))
    return parts


def trace(requests: list[LoggedRequest], parts: list[Part]) -> list[str]:
    """One line for each request, sorted by place: method, range kind, and the parts wholly inside."""
    lines: list[tuple[int, str]] = []
    for request in requests:
        assert request.range is not None, request
        first, _, last = request.range.removeprefix("bytes=").partition("-")
        if not first:
            lines.append((1 << 62, f"{request.method} last {last} bytes"))
            continue
        start, stop = int(first), int(last) + 1
        inside = [part for part in parts if part.start >= start and part.stop <= stop]
        assert inside, request.range
        exact = inside[0].start == start and inside[-1].stop == stop
        lines.append((start, f"{request.method} {_joined(inside)}{'' if exact else ' and more'}"))
    return [line for _, line in sorted(lines)]


def _joined(parts: list[Part]) -> str:
    """Labels, with runs of pages (or blocks) of one chunk written as "page 3-7"."""
    labels: list[str] = []
    for part in parts:
        name, _, number = part.label.rpartition(" ")
        if number.isdigit() and labels and labels[-1].startswith(f"{name} "):
            first = labels[-1].rpartition(" ")[2].partition("-")[0]
            labels[-1] = f"{name} {first}-{number}"
        else:
            labels.append(part.label)
    return ", ".join(labels)
