"""Find the causes of slow lookups in a file or lake, for :meth:`asyncpq.File.lint` and :meth:`asyncpq.Dataset.lint`.

Savings are predicted for one lookup of one row by a column, in a session with empty caches. If a file's statistics do
not show the order of a key column, its values are read, up to 32 MiB.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.errors import FormatError, ResourceLimitError
from asyncpq.events import Operation
from asyncpq.objects.prices import Prices
from asyncpq.objects.source import ObjectSource
from asyncpq.objects.version import FileVersion
from asyncpq.options import MIB
from asyncpq.parquet.chunk_pages import PageHeader, decode_page_header
from asyncpq.parquet.column_chunk import Codec, Encoding
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.schema import Leaf
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.reports.documents import Cause, Lint
from asyncpq.reports.inspection import ChunkStops, FileLayout, encodings_of, load_layout, sorted_as, unreadable_columns
from asyncpq.reports.lint_rules import RULES, Subject, listed, unpriced
from asyncpq.reports.lookup_cost import (
    PAGE_ROWS,
    KeyZones,
    LookupModel,
    has_chunk_bounds,
    shape_of,
    truncated,
    zones_of,
    zones_of_values,
)
from asyncpq.reports.units import plural, size_text
from asyncpq.scan.executor import OneFile, ScanExecutor, one_table
from asyncpq.scan.file_planner import ScanPlanner
from asyncpq.scan.request import ScanRequest
from asyncpq.storage.base import RequestContext

_READ_BYTES: Final = 32 << 20  # of a key column whose order statistics do not show
_SAMPLE_BYTES: Final = 256 << 10  # of a chunk that is not compressed
_SAMPLES: Final = 8  # columns, the largest ones, of which pages are looked at
_HEADER_BYTES: Final = 4 << 10  # that hold a page's header
_MOST_COLUMNS: Final = 5
_LEAST_FILTER_BYTES: Final = MIB
_LEAST_FILTER_SHARE: Final = 0.25  # of the file
_KEY_NAME: Final = re.compile(r"(^|_)(id|key|uuid|guid)$|[a-z](Id|Key|ID)$", re.IGNORECASE)
_FALLBACK_CODECS: Final = frozenset({"RLE_DICTIONARY", "PLAIN_DICTIONARY"})


@dataclass(frozen=True, slots=True)
class Linted:
    """The result of linting one file: its findings, and the lookups that were examined, by key column."""

    findings: list[Cause]
    columns: list[str]
    subjects: dict[str, Subject]  # lookups by each of the columns
    rows: int
    size: int
    ends: dict[str, tuple[object, object] | None]  # by column, the bounds of all of its values; None: not known


async def lint_version(
    source: ObjectSource,
    version: FileVersion,
    operation: Operation,
    columns: Sequence[str] | None,
    *,
    one_of_many: bool = False,
) -> Linted:
    """Find the causes that make lookups by each of ``columns`` slow in one version of a file. The lookups return all
    columns.

    Args:
        columns: names of key columns; None: those that are likely keys.
        one_of_many: the file is in a folder whose other files were opened before, so that the size of footers is known.

    Raises:
        ColumnNotFoundError, AmbiguousColumnError: a name of ``columns`` is not that of one column.
    """
    layout = await load_layout(source, version, operation.metrics, pages=True)
    keys = _key_leaves(layout) if columns is None else _named_leaves(layout, columns)
    ratios = await _ratios(layout, operation)
    distinct = await _distinct(layout, operation)
    single = await _has_single_pages(layout, operation)
    findings: list[Cause] = []
    subjects: dict[str, Subject] = {}
    for leaf in keys:
        zones, exact = await _zones(layout, leaf, operation)
        model = _model(layout, leaf, learns=one_of_many)
        subject = Subject(layout, leaf, model, shape_of(layout, leaf), zones, exact, ratios, distinct, single)
        subjects[leaf.dotted] = subject
        found = await source.runtime.in_thread(partial(_findings, subject))
        findings += found
    findings += await source.runtime.in_thread(lambda: list(_file_findings(layout)))
    return Linted(
        ordered(findings),
        [leaf.dotted for leaf in keys],
        subjects,
        version.metadata.num_rows,
        version.size,
        {leaf.dotted: _ends(layout, leaf) for leaf in keys},
    )


def _model(layout: FileLayout, leaf: Leaf, *, learns: bool) -> LookupModel:
    options = layout.source.runtime.options
    return LookupModel(
        key=leaf.index,
        others=[other.index for other in layout.version.metadata.schema.leaves if other.index != leaf.index],
        prices=layout.source.prices(),
        limits=options.limits,
        tail_bytes=options.requests.tail_bytes,
        learns=learns,
        blooms=options.requests.bloom_filters != "never",
    )


def _findings(subject: Subject) -> list[Cause]:
    if not any(group.rows for group in subject.shape.groups) or subject.layout.version.decryption is not None:
        return []  # encrypted files are read by whole chunks, whatever their pages
    return [cause for rule in RULES for cause in rule(subject)]


def ordered(findings: Iterable[Cause]) -> list[Cause]:
    """Sort findings by their saving, the largest first, and drop duplicates."""
    best: dict[tuple[str, str | None], Cause] = {}
    for cause in findings:
        known = best.get((cause["id"], cause["column"]))
        if known is None or (cause["saves_seconds"] or 0) > (known["saves_seconds"] or 0):
            best[cause["id"], cause["column"]] = cause
    return sorted(best.values(), key=lambda cause: (-(cause["saves_seconds"] or 0), cause["id"]))


def lint_document(
    url: str, linted: Sequence[Linted], findings: Iterable[Cause], prices: str, operation: Operation
) -> Lint:
    """Return the JSON document of the findings about one or several files. ``prices``: text that states the assumed
    latency and bandwidth."""
    return Lint(
        document="lint",
        url=url,
        files_checked=len(linted),
        findings=ordered(findings),
        columns=list(dict.fromkeys(name for item in linted for name in item.columns)),
        prices=prices,
        requests=operation.metrics.requests,
        bytes_fetched=operation.metrics.bytes_fetched,
    )


def prices_text(prices: Prices) -> str:
    """Return a text that states the latency and bandwidth with which the savings are predicted."""
    return (
        f"{prices.latency_s * 1000:.3g} ms to the first byte, {prices.bandwidth_bytes_s / 1e6:.0f} MB/s, "
        f"{prices.request_s * 1e6:.0f} us a request, {prices.connections} at once"
    )


# -- columns ------------------------------------------------------------------------------------------


def _named_leaves(layout: FileLayout, columns: Sequence[str]) -> list[Leaf]:
    schema = layout.version.metadata.schema
    return [schema.leaves[leaf] for name in columns for leaf in schema.projection(name).leaves]


def _key_leaves(layout: FileLayout) -> list[Leaf]:
    """Return the leaves that are likely keys of lookups: the file is sorted by the leaf, it has Bloom filters, or its
    name ends in "id" or "key". If there are none, return the first leaf whose values can be compared."""
    leaves = [leaf for leaf in layout.version.metadata.schema.leaves if not leaf.max_repetition_level]
    leaves = [leaf for leaf in leaves if leaf.physical_type not in (PhysicalType.BOOLEAN, PhysicalType.INT96)]
    named = [leaf for leaf in leaves if _KEY_NAME.search(leaf.path[-1])]
    filtered = [leaf for leaf in leaves if _has_filter(layout, leaf)]
    in_order = [leaf for leaf in leaves if sorted_as(layout.leaf_zones(leaf)) is not None]
    candidates = list({leaf.index: leaf for leaf in (*named, *filtered, *in_order[:1])}.values())
    return (candidates or leaves[:1])[:_MOST_COLUMNS]


def _has_filter(layout: FileLayout, leaf: Leaf) -> bool:
    known = layout.chunks.get((0, leaf.index))
    return known is not None and known.chunk.bloom_filter_offset is not None


def _ends(layout: FileLayout, leaf: Leaf) -> tuple[object, object] | None:
    bounds = [layout.bounds.get((group.ordinal, leaf.index)) for group in layout.version.metadata.row_groups]
    known = [item for item in bounds if item is not None and item.min is not None]
    if not known or len(known) != len(bounds):
        return None
    return min(item.min for item in known), max(item.max for item in known)  # type: ignore[type-var]  # not None


# -- what is read -------------------------------------------------------------------------------------


async def _zones(layout: FileLayout, leaf: Leaf, operation: Operation) -> tuple[KeyZones, KeyZones | None]:
    """Return the zones (ranges of rows with bounds) by which reads prune a key column, and the exact zones of its
    values; None instead of the exact zones if the values did not have to be read."""
    zones = zones_of(layout, leaf)
    places = [(group.ordinal, leaf.index) for group in layout.version.metadata.row_groups if group.num_rows]
    chunks = [layout.chunks[place].chunk for place in places if place in layout.chunks]
    paged = all(place in layout.indexes.zones for place in places)
    sound = all(zone.known for zone in zones.zones) and not truncated(zones.zones) and not has_chunk_bounds(zones)
    if paged and sound and all(zone.stop - zone.start <= 2 * PAGE_ROWS for zone in zones.zones):
        return zones, None
    if len(chunks) < len(places) or sum(chunk.total_compressed_size for chunk in chunks) > _READ_BYTES:
        return zones, None
    table = await _readable_rows(layout, operation, [leaf.dotted])
    if table is None:
        return zones, None
    values = table.column(0).flatten()[-1] if pa.types.is_struct(table.schema.field(0).type) else table.column(0)
    if pa.types.is_nested(values.type) or pa.types.is_dictionary(values.type):
        return zones, None
    try:
        group_rows = [group.num_rows for group in layout.version.metadata.row_groups]
        exact = await layout.source.runtime.in_thread(partial(zones_of_values, values, group_rows))
    except pa.ArrowNotImplementedError:  # values without an order
        return zones, None
    return (zones if paged and not sound else exact), exact


async def _readable_rows(
    layout: FileLayout, operation: Operation, columns: Sequence[str], rows: RowRanges | None = None
) -> pa.Table | None:
    """Return the given ``rows`` (None: all) of columns of a file. Return None if they cannot be read: then only the
    layout is linted."""
    source, version = layout.source, layout.version
    access = None if rows is None else AccessPlan.row_ranges(rows)
    part = operation.part(source.handle.url, operation.metrics.rounds)
    part.metrics.fall_back_all(operation.metrics.fallbacks)  # what was told of the file is not told again
    request = ScanRequest(columns=list(columns), access=access)
    file = OneFile(ScanPlanner(source, request, version, part), scan=False)
    try:
        ((_, tables),) = await ScanExecutor(source.runtime, source.handle.url, file).collect()
    except FormatError as error:
        part.metrics.fall_back(error.message)
        return None
    finally:
        operation.metrics.add_part(part.metrics)
    plan = file.plan
    assert plan is not None, "a file that was read was planned"
    return one_table([batch for table in tables for batch in table.to_batches()], plan.shape.schema)


async def _ratios(layout: FileLayout, operation: Operation) -> dict[int, float]:
    """Return, by leaf ordinal, how much zstd would compress: compressed size divided by uncompressed size, measured
    on a sample of the largest columns that are not compressed."""
    plain: dict[int, tuple[int, int]] = {}
    for (_, leaf), known in layout.chunks.items():
        chunk = known.chunk
        if chunk.codec == Codec.UNCOMPRESSED and chunk.num_values:
            start, stop = plain.get(leaf, (0, 0))
            if chunk.total_compressed_size > stop - start:
                plain[leaf] = (chunk.data_page_offset, chunk.stop)
    ratios: dict[int, float] = {}
    compressor = pa.Codec("zstd")
    source, version, metrics = layout.source, layout.version, operation.metrics
    for leaf, (start, stop) in sorted(plain.items(), key=lambda item: item[1][0] - item[1][1])[:_SAMPLES]:
        stop = min(stop, start + _SAMPLE_BYTES)
        if stop - start < 1024:
            continue
        context = RequestContext(metrics, round=metrics.rounds + 1, purpose="data")
        sample = await source.handle.fetch_range(start, stop, context=context, pin=version.validator)
        ratios[leaf] = len(compressor.compress(bytes(sample.data))) / (stop - start)
    return ratios


async def _has_single_pages(layout: FileLayout, operation: Operation) -> bool:
    """Return whether the largest chunk without an OffsetIndex is one page, as its first page's header shows."""
    known = [item.chunk for place, item in layout.chunks.items() if place not in layout.indexes.offsets]
    chunk = max(known, key=lambda item: item.total_compressed_size, default=None)
    if chunk is None or not chunk.num_values:
        return False
    source, version, metrics = layout.source, layout.version, operation.metrics
    context = RequestContext(metrics, round=metrics.rounds + 1, purpose="data")
    start, stop = chunk.data_page_offset, min(chunk.stop, chunk.data_page_offset + _HEADER_BYTES)
    head = await source.handle.fetch_range(start, stop, context=context, pin=version.validator)
    try:
        header = decode_page_header(head.data)
    except (FormatError, ResourceLimitError):  # reads of the chunk say so
        return False
    return isinstance(header, PageHeader) and header.is_data and header.num_values == chunk.num_values


async def _distinct(layout: FileLayout, operation: Operation) -> dict[int, tuple[int, int]]:
    """Return, by leaf ordinal, the numbers of distinct values and of rows in a sample of each of the largest string
    columns without a dictionary."""
    groups = [group for group in layout.version.metadata.row_groups if group.num_rows]
    if not groups:
        return {}
    group = groups[len(groups) // 2]
    sizes: dict[int, int] = {}
    for leaf in layout.version.metadata.schema.leaves:
        known = layout.chunks.get((group.ordinal, leaf.index))
        plain = known is not None and _FALLBACK_CODECS.isdisjoint(encodings_of(known.chunk))
        if leaf.is_flat and leaf.physical_type is PhysicalType.BYTE_ARRAY and known is not None and plain:
            sizes[leaf.index] = known.chunk.total_compressed_size
    largest = sorted(sizes, key=lambda leaf: -sizes[leaf])[:_SAMPLES]
    if not largest:
        return {}
    stop = group.first_row + min(group.num_rows, PAGE_ROWS)
    names = [layout.version.metadata.schema.leaves[leaf].dotted for leaf in largest]
    table = await _readable_rows(layout, operation, names, RowRanges.single(group.first_row, stop))
    if table is None:
        return {}
    columns = zip(largest, table.columns, strict=True)
    return {
        leaf: (pc.count_distinct(column).as_py(), table.num_rows)
        for leaf, column in columns
        if pa.types.is_string(column.type) or pa.types.is_binary(column.type)
    }


def _file_findings(layout: FileLayout) -> Iterator[Cause]:
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
