"""Find the causes of slow lookups in a file or lake, for :meth:`asyncpq.File.lint` and :meth:`asyncpq.Dataset.lint`.

Savings are predicted for one lookup of one row by a column, in a session with empty caches. If a file's statistics do
not show the order of a key column, its values are read, up to 32 MiB.

A lookup in a lake lists the files, opens each file that is not ruled out, and reads data from files whose bounds may
hold the key. The predictions extrapolate from the layouts of a sample of the files.

The cost of a lookup through an index of kinds ``keys`` and ``footers`` that is not built yet: it reads the manifest,
then the index's rows for the key, for the file and for its footer, and then the data. The sizes of the segments are
computed from the number of rows. The constants were measured with the folder backend, on sorted and unsorted columns of
numbers and texts; ``tests/reports/test_lake_lint.py`` compares them with real indexes.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import mean
from typing import Any, Final, cast, get_args

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.errors import FormatError, ResourceLimitError, plural, printable, seconds_text, size_text
from asyncpq.events import Operation
from asyncpq.objects.prices import Prices
from asyncpq.objects.source import ObjectSource
from asyncpq.objects.version import FileVersion
from asyncpq.options import KIB, MIB
from asyncpq.parquet.chunk_pages import PageHeader, decode_page_header
from asyncpq.parquet.column_chunk import Codec, Encoding
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.schema import Leaf
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.reports.cures import advice, snippets_for
from asyncpq.reports.documents import Cause, Lint, Severity
from asyncpq.reports.inspection import ChunkStops, FileLayout, encodings_of, load_layout, sorted_as, unreadable_columns
from asyncpq.reports.lint_rules import RULES, Subject, listed, mean_text, severity, unpriced
from asyncpq.reports.lookup_cost import (
    PAGE_ROWS,
    KeyZones,
    LookupCost,
    LookupModel,
    Shape,
    has_chunk_bounds,
    middle,
    put_together,
    shape_of,
    truncated,
    zones_of,
    zones_of_values,
)
from asyncpq.scan.executor import OneFile, ScanExecutor, joined
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
_SEVERITIES: Final = get_args(Severity)


@dataclass(frozen=True, slots=True)
class Linted:
    """The result of linting one file: its findings, and the lookups that were examined, by key column.

    Attributes:
        subjects: lookups by each of the columns.
        ends: by column, the bounds of all of its values; None: not known.
    """

    findings: list[Cause]
    columns: list[str]
    subjects: dict[str, Subject]
    rows: int
    size: int
    ends: dict[str, tuple[object, object] | None]


async def lint_version(
    source: ObjectSource,
    version: FileVersion,
    operation: Operation,
    columns: Sequence[str] | None,
    *,
    one_of_many: bool = False,
) -> Linted:
    """Find the causes that make lookups by each of ``columns`` slow in one version of a file, for lookups of all
    columns.

    Args:
        columns: names of key columns; None: those that are likely keys.
        one_of_many: the file is in a folder whose other files were opened before, so that the size of footers is known.

    Raises:
        ColumnNotFoundError, AmbiguousColumnError: a name of ``columns`` is not that of one column.
    """
    layout = await load_layout(source, version, operation.metrics, pages=True)
    in_thread = source.runtime.in_thread
    keys = _named_leaves(layout, columns) if columns is not None else await in_thread(partial(_key_leaves, layout))
    ratios = await _ratios(layout, operation)
    distinct = await _distinct(layout, operation)
    single = await _has_single_pages(layout, operation)
    findings: list[Cause] = []
    subjects: dict[str, Subject] = {}
    for leaf in keys:
        zones, exact = await _zones(layout, leaf, operation)
        model = _model(layout, leaf, learns=one_of_many)
        shape = await in_thread(partial(shape_of, layout, leaf))
        make = partial(Subject, layout, leaf, model, shape, zones, exact, ratios, distinct, single)
        subject = subjects[leaf.dotted] = await in_thread(make)
        findings += await in_thread(partial(_findings, subject))
    findings += await in_thread(lambda: list(_file_findings(layout)))
    return Linted(
        ordered(findings),
        [leaf.dotted for leaf in keys],
        subjects,
        version.metadata.num_rows,
        version.size,
        await in_thread(lambda: {leaf.dotted: _ends(layout, leaf) for leaf in keys}),
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
    """Sort findings by their severity, and those of one by their saving, the largest first; drop duplicates."""
    best: dict[tuple[str, str | None], Cause] = {}
    for cause in findings:
        known = best.get((cause["id"], cause["column"]))
        if known is None or (cause["saves_seconds"] or 0) > (known["saves_seconds"] or 0):
            best[cause["id"], cause["column"]] = cause
    return sorted(best.values(), key=_rank)


def _rank(cause: Cause) -> tuple[int, float, str]:
    return _SEVERITIES.index(cause["severity"]), -(cause["saves_seconds"] or 0), cause["id"]


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
    zones = await layout.source.runtime.in_thread(partial(zones_of, layout, leaf))
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
        (tables,) = (await ScanExecutor(source.runtime, source.handle.url, file).collect()).values()
    except FormatError as error:
        part.metrics.fall_back(error.message)
        return None
    finally:
        operation.metrics.add_part(part.metrics)
    plan = file.plan
    assert plan is not None, "a file that was read was planned"
    return await joined(source.runtime, tables, plan.shape.schema)


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
            f"{column}: {reason.rstrip('.')}. The other columns can be read.",
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


SMALL_FILE: Final = 16 << 20
FILE_BYTES: Final = 256 << 20
MANY_FILES: Final = 8
_FIRST_FILES: Final = 3  # of a read: they are planned before it is known how many follow


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeFacts:
    """Facts about a lake (the files of a dataset) that are known before files are opened.

    Attributes:
        sizes: of its files.
        deletes: files with deleted rows.
        tables: of its external indexes, such as "keys(user)".
        first_bytes: of the first GET of a file in a new folder.
        tail_bytes: of the first GETs of the next files, once one was opened.
    """

    sizes: Sequence[int | None]
    deletes: int
    tables: Sequence[str]
    prices: Prices
    first_bytes: int
    tail_bytes: int


def lint_lake(lake: LakeFacts, linted: Sequence[Linted]) -> list[Cause]:
    """Return the findings about a lake: about the lake as a whole, and about the files in ``linted``, a sample.

    The saving of a finding about a file is multiplied by the number of files that a lookup reads.
    """
    findings: list[Cause] = []
    for column in dict.fromkeys(name for item in linted for name in item.columns):
        files = [item for item in linted if column in item.subjects]
        read = _files_with(files, column, len(lake.sizes))
        findings += _merged([[cause for cause in item.findings if cause["column"] == column] for item in files], read)
        findings += [cause for cause in _of_lake(lake, files, column, read) if (cause["saves_seconds"] or 0) > 0]
    return [*findings, *_of_deletes(lake)]


def _files_with(files: Sequence[Linted], column: str, num_files: int) -> float:
    """Estimate how many of the dataset's ``num_files`` files a lookup by ``column`` must read, because their bounds
    include its key. The estimate is based on the bounds of ``files``, a sample."""
    if any(item.ends[column] is None for item in files):
        return float(num_files)
    ends = [item.ends[column] for item in files]
    shares = [
        mean([other[0] <= key <= other[1] for at, other in enumerate(ends) if other is not None and at != number])
        for number, own in enumerate(ends)
        if own is not None and len(ends) > 1
        for key in [middle(*own)]
    ]
    return 1 + mean(shares) * (num_files - 1) if shares else 1.0


def _merged(findings: Sequence[Sequence[Cause]], files_read: float) -> list[Cause]:
    """Join the findings of several files into one for each rule and column. Its saving is the mean saving in a file
    times ``files_read``."""
    by_rule: dict[tuple[str, str | None], list[Cause]] = {}
    for some in findings:
        for cause in some:
            by_rule.setdefault((cause["id"], cause["column"]), []).append(cause)
    merged: list[Cause] = []
    for causes in by_rule.values():
        share, first = len(causes) / max(1, len(findings)), causes[0].copy()
        have_it = f"Of {len(findings)} files that were looked at, {len(causes)} have this."
        first["detail"] = f"{have_it} The first of them: {first['detail']}"
        times = share * files_read
        first["saves_requests"] = _times(times, [cause["saves_requests"] for cause in causes])
        first["saves_bytes"] = _times(times, [cause["saves_bytes"] for cause in causes])
        seconds = [cause["saves_seconds"] for cause in causes if cause["saves_seconds"] is not None]
        first["saves_seconds"] = round(mean(seconds) * times, 6) if seconds else None
        merged.append(first)
    return merged


def _times(times: float, values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return round(mean(known) * times) if known else None


def _of_lake(lake: LakeFacts, files: Sequence[Linted], column: str, read: float) -> list[Cause]:
    num_files = len(lake.sizes)
    if num_files < 2 or not files:
        return []
    known = sorted(size for size in lake.sizes if size is not None) or [item.size for item in files]
    size, typical = mean(known), known[len(known) // 2]
    one = LookupCost(*[mean(values) for values in zip(*[item.subjects[column].before for item in files], strict=True)])
    data = LookupCost(max(0.0, one.requests - 1), max(0.0, one.num_bytes - min(size, lake.tail_bytes)), 0.0)
    parts = [
        _data(item.subjects[column].model, item.subjects[column].shape, item.subjects[column].keys, read)
        for item in files
    ]
    first = max(0.0, min(size, lake.first_bytes) - min(size, lake.tail_bytes))  # more than the next files take
    tails = num_files * min(size, lake.tail_bytes) + first
    before = LookupCost(
        num_files + mean(cost.requests for cost in parts), tails + mean(cost.num_bytes for cost in parts), 0.0
    )
    found: list[Cause] = []
    fewer = max(1, -(-int(size * num_files) // FILE_BYTES))
    if "footers" not in lake.tables and num_files >= MANY_FILES and typical < SMALL_FILE and fewer * 2 <= num_files:
        detail = f"{num_files:,} files of {typical:,} bytes (median): a lookup opens each that nothing rules out."
        cure = f"Put them together to {fewer:,} of about {FILE_BYTES >> 20} MiB."
        after = _put_together(lake, files[len(files) // 2].subjects[column], -(-num_files // fewer), fewer, read)
        found.append(_cause(lake, "tiny-files", "files are small", detail, cure, column, (before, after)))
    index = index_cost(indexed_lake([item.subjects[column] for item in files], num_files, in_order=read < 2))
    opening = min(size, lake.first_bytes)  # of the first file, for its columns
    after = LookupCost(index.requests + 1 + max(1.0, data.requests), index.num_bytes + opening + data.num_bytes, 0.0)
    if before.requests > after.requests and not {f"keys({column})", f"blooms({column})"} & set(lake.tables):
        detail = f"A lookup by {column} opens {num_files:,} files and reads data of {mean_text(read)}."
        cure = advice("no-index", column)
        found.append(_cause(lake, "no-index", "no external index of the column", detail, cure, column, (before, after)))
    return found


def _put_together(lake: LakeFacts, subject: Subject, times: int, num_files: int, read: float) -> LookupCost:
    """Return the cost of a lookup after compaction into ``num_files`` files, each with the rows of ``times`` old
    files. ``read``: the number of the new files that may have the key."""
    keys = KeyZones(subject.keys.zones, is_sorted=subject.keys.is_sorted or read < 2)
    shape, keys = put_together(subject.shape, keys, times)
    model = replace(subject.model, tail_bytes=lake.first_bytes, learns=False)
    data = _data(model, shape, keys, min(read, num_files))
    tails = num_files * min(shape.size, lake.first_bytes)
    return LookupCost(num_files + data.requests, tails + data.num_bytes, 0.0)


def _data(model: LookupModel, shape: Shape, keys: KeyZones, read: float) -> LookupCost:
    """Return the cost of a lookup in ``read`` files of the layout ``shape``, one of which has the key, without the
    first GET of each. The other columns are read only from the file with the key, if so many files are read that
    this saves bytes."""
    tail = LookupCost(1, min(shape.size, model.first_bytes(shape)), 0.0)
    many = replace(model, files=max(1, round(read)))
    early = min(read - 1, float(_FIRST_FILES))
    costs = [(1.0, many.mean_cost(shape, keys))]
    if read > 1:
        costs.append((early, model.mean_cost(shape, keys, found=False)))
        costs.append((read - 1 - early, many.mean_cost(shape, keys, found=False)))
    return LookupCost(
        sum(times * max(0.0, cost.requests - tail.requests) for times, cost in costs),
        sum(times * max(0.0, cost.num_bytes - tail.num_bytes) for times, cost in costs),
        0.0,
    )


def _of_deletes(lake: LakeFacts) -> list[Cause]:
    if lake.deletes * 10 <= len(lake.sizes):
        return []
    return [
        unpriced(
            "deleted-rows",
            "medium",
            "many files have deleted rows",
            f"{lake.deletes:,} of {len(lake.sizes):,} files have deleted rows: reads of these fetch which. "
            "No saving is predicted: it depends on which files a read comes to.",
            "Rewrite these files without the deleted rows.",
            snippets=snippets_for("deleted-rows"),
        )
    ]


def _cause(
    lake: LakeFacts, rule: str, title: str, detail: str, cure: str, column: str, costs: tuple[LookupCost, LookupCost]
) -> Cause:
    prices = lake.prices
    before, after = costs

    def seconds(cost: LookupCost) -> float:
        waves = max(1.0, cost.requests / prices.connections)
        return prices.latency_s * waves + prices.request_s * cost.requests + cost.num_bytes / prices.bandwidth_bytes_s

    saved = seconds(before) - seconds(after)
    return Cause(
        id=rule,
        severity=severity(saved / seconds(before)),
        title=title,
        detail=detail,
        saves_requests=round(before.requests - after.requests),
        saves_bytes=round(before.num_bytes - after.num_bytes),
        saves_seconds=round(saved, 6),
        column=column,
        cure=cure,
        snippets=snippets_for(rule, column),
    )


_MANIFEST_BYTES: Final = 1800
_GROUP_BYTES: Final = 64 * KIB  # of a row group of a segment, before compression
_GROUP_FOOTER_BYTES: Final = 52  # of each in the packed footer
_NUMBERS_BYTES: Final = 16  # of the four numbers of a row, before compression,
_PLACE_BYTES: Final = 0.95  # and after, where rows of a key are in any file
_RUN_SHARE: Final = 0.3  # of a row of the data, where keys and files are in one order: differences compress well
_FOOTER_ROW_BYTES: Final = 46  # of each column of each file,
_FOOTER_PLAIN_BYTES: Final = 280  # and before compression
_FILE_ROW_BYTES: Final = 22  # of each file,
_FILE_PLAIN_BYTES: Final = 150
_FEW_FILES_BYTES: Final = 1350  # and of its columns' footers
_SMALL_BYTES: Final = 64 * KIB  # smaller segments always come whole
_DECODED_TIMES: Final = 4  # a whole segment may have so many times its bytes in memory


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedLake:
    """The facts about a lake (many files) from which the cost of an index that does not exist yet is predicted.

    Attributes:
        rows, files, columns: numbers of rows, files and columns of the lake.
        key_bytes: bytes of a key before compression.
        value_bytes: compressed bytes of a row of the key column in the data files.
        in_order: whether the ranges of the key in the files follow one another without overlap.
        whole_bytes: ``RequestOptions.whole_segment_bytes``.
    """

    rows: int
    files: int
    columns: int
    key_bytes: float
    value_bytes: float
    in_order: bool
    whole_bytes: int = MIB


def indexed_lake(subjects: Sequence[Subject], num_files: int, *, in_order: bool) -> IndexedLake:
    """Return the facts for :func:`index_cost`, estimated from ``subjects``: some of the lake's ``num_files`` files.

    ``in_order``: the ranges of the key in the files follow one another without overlap.
    """
    rows, compressed, lengths = 0, 0.0, list[int]()
    for subject in subjects:
        rows += subject.layout.version.metadata.num_rows
        size = sum([chunk.total_compressed_size for chunk in subject.chunks(subject.model.key)])
        compressed += size * subject.ratios.get(subject.model.key, 1.0)
        lengths += [len(zone.low) for zone in subject.keys.zones if isinstance(zone.low, bytes)]
    first = subjects[0].layout
    return IndexedLake(
        rows=rows * num_files // max(1, len(subjects)),
        files=num_files,
        columns=len(first.version.metadata.schema.leaves),
        key_bytes=sum(lengths) / len(lengths) + 2 if lengths else 9,
        value_bytes=compressed / max(1, rows),
        in_order=in_order,
        whole_bytes=first.source.runtime.options.requests.whole_segment_bytes,
    )


def index_cost(lake: IndexedLake) -> LookupCost:
    """Return the requests and bytes that one lookup spends on the index, including the index's manifest."""
    per_row = lake.value_bytes * _RUN_SHARE if lake.in_order else lake.value_bytes + _PLACE_BYTES
    keys = _segment(lake.rows * (lake.key_bytes + _NUMBERS_BYTES), lake.rows * per_row, lake.whole_bytes)
    footers = lake.files * (lake.columns + 1)  # rows
    # While keys take a second round, the footer of the segment of footers is fetched: then it does not come whole.
    whole = lake.whole_bytes if keys[0] == 1 else 0
    parts = [
        (1, _MANIFEST_BYTES),
        keys,
        _segment(footers * _FOOTER_PLAIN_BYTES, footers * _FOOTER_ROW_BYTES, whole),
        _segment(lake.files * _FILE_PLAIN_BYTES, _FEW_FILES_BYTES + lake.files * _FILE_ROW_BYTES, lake.whole_bytes),
    ]
    return LookupCost(sum(requests for requests, _ in parts), sum(size for _, size in parts), 0.0)


def _segment(plain: float, size: float, whole_bytes: int) -> tuple[int, float]:
    """Return the requests and bytes of a lookup in one segment of ``size`` bytes, which are ``plain`` bytes before
    compression."""
    if size <= _SMALL_BYTES or (size <= whole_bytes and plain <= _DECODED_TIMES * whole_bytes):
        return 1, size
    groups = max(1.0, plain / _GROUP_BYTES)
    return 2, max(4 * KIB, groups * _GROUP_FOOTER_BYTES) + size / groups


# -- the report -----------------------------------------------------------------------------------


class LintReport(dict[str, Any]):
    """The findings that :meth:`asyncpq.File.lint` and :meth:`asyncpq.Dataset.lint` return: a dict of JSON values
    with the keys of :class:`asyncpq.reports.documents.Lint`."""

    def to_dict(self) -> Lint:
        """Return this dict, typed as a :class:`asyncpq.reports.documents.Lint`."""
        return cast("Lint", self)

    def explain(self) -> str:
        """Return the report as text of several lines."""
        document = self.to_dict()
        by = f" for lookups by {', '.join(document['columns'])}" if document["columns"] else ""
        lines = [printable(f"{document['url']}: {plural(len(document['findings']), 'finding')}{by}")]
        for number, cause in enumerate(document["findings"], 1):
            lines.append(printable(f"{number}. {cause['severity']}: {cause['title']} [{cause['id']}]"))
            saves = saving_text(cause)
            lines += [printable(f"   {line}") for line in (cause["detail"], *([saves] if saves else []))]
            lines.append(printable(f"   Cure: {cause['cure']}"))
        return "\n".join(lines)

    __str__ = explain

    def _repr_html_(self) -> str:
        """Return the findings for notebooks."""
        document = self.to_dict()
        parts = [f"<b>{html.escape(document['url'])}</b>: {plural(len(document['findings']), 'finding')}<ol>"]
        for cause in document["findings"]:
            texts = [
                html.escape(text) for text in (cause["detail"], saving_text(cause), f"Cure: {cause['cure']}") if text
            ]
            code = "".join(
                f"<br>{html.escape(writer)}: <code>{html.escape(snippet)}</code>"
                for writer, snippet in cause["snippets"].items()
            )
            title = f"{html.escape(cause['severity'])}: <b>{html.escape(cause['title'])}</b>"
            parts.append(f"<li>{title}<br>{'<br>'.join(texts)}{code}</li>")
        return "".join([*parts, "</ol>"])


def saving_text(cause: Cause) -> str:
    """Return, as text, what the cure of a finding is predicted to save: requests, bytes and time."""
    parts: list[str] = []
    more: list[str] = []
    for saved, text in ((cause["saves_requests"], plural), (cause["saves_bytes"], None)):
        if saved:
            words = size_text(abs(saved)) if text is None else text(abs(saved), "request")
            (parts if saved > 0 else more).append(words)
    if cause["saves_seconds"]:
        parts.append(seconds_text(cause["saves_seconds"]))
    if not parts:
        return ""
    costs = f", for {' and '.join(more)} more" if more else ""
    return f"Saves {', '.join(parts)}{costs}: a lookup by {cause['column']}." if cause["column"] else ""
