"""The rules of ``lint``. Each finds one property of a file's layout that makes lookups by a column slow.

A rule yields a finding with the predicted saving: it changes the file's shape as the cure would, and compares the costs
of a lookup before and after.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

from asyncpq.options import KIB, MIB
from asyncpq.parquet.statistics import chunk_bounds, order_of
from asyncpq.parquet.writer_faults import WriterFaults
from asyncpq.reports.cures import advice, pages, smaller_chunks, tail
from asyncpq.reports.documents import Cause
from asyncpq.reports.encoding_rules import codecs, dictionaries, legacy_calendar, no_dictionary
from asyncpq.reports.file_shapes import (
    GROUP_BYTES,
    GROUP_ROWS,
    PAGE_BYTES,
    PAGE_ROWS,
    has_chunk_bounds,
    has_large_pages,
    middle,
    page_count,
    with_bloom_filters,
    with_pages,
    with_row_groups,
)
from asyncpq.reports.inspection import sorted_as
from asyncpq.reports.key_bounds import disbelieved, is_clustered_by_another, truncated, without_statistics
from asyncpq.reports.lint_subject import Subject, listed
from asyncpq.reports.lookup_cost import KeyZones, Zone

_A_GOOD_WRITER: Final = "parquet-cpp-arrow version 26.0.0"


# -- pages --------------------------------------------------------------------------------------------


def no_page_index(subject: Subject) -> Iterator[Cause]:
    """Yield a finding if a lookup reads columns without an OffsetIndex, or the key has no ColumnIndex."""
    shape, key = subject.shape, subject.model.key
    lacking = [leaf for leaf in subject.leaves if _lacks_pages(subject, leaf)]
    unbounded = not without_statistics(subject.shape) and any(
        chunk.offsets is not None and chunk.column_index is None
        for chunk in (group.chunks[key] for group in shape.groups)
    )
    if not lacking and not unbounded:
        return
    there = with_pages(shape, _counts(subject, only_without=True), key, _bound_bytes(subject))
    what = f"{len(lacking)} of the {len(subject.leaves)} columns that a lookup reads have no OffsetIndex: "
    title = "no page index" if lacking else "no ColumnIndex of the key column"
    detail = what + "whole column chunks are read." if lacking else "Pages cannot be ruled out by their bounds."
    cure, snippets = advice("no-page-index"), pages()
    if subject.single_pages:
        detail += " Each chunk is one page."
        cure, snippets = "Write smaller pages and page indexes, or smaller row groups.", smaller_chunks()
    findings = list(subject.finding("no-page-index", title, detail, cure, shape=there, snippets=snippets))
    if not findings:  # all pages of the key may have it, so that they help little before rows are sorted
        in_order = replace(subject, keys=KeyZones(subject.keys.zones, is_sorted=True))
        detail += " This is what page indexes save once the rows are sorted."
        findings = list(in_order.finding("no-page-index", title, detail, cure, shape=there, snippets=snippets))
    yield from findings


def _lacks_pages(subject: Subject, leaf: int) -> bool:
    return any(
        group.chunks[leaf].offsets is None and group.chunks[leaf].stop > group.chunks[leaf].start
        for group in subject.shape.groups
    )


def _counts(
    subject: Subject, *, only_without: bool = False, only_bounds: bool = False
) -> Callable[[int, int], int | None]:
    """Return the ``counts`` argument of :func:`with_pages`: a function that gives the advised number of pages for a row
    group and leaf, or None to keep its pages.

    Chunks that have about the advised number of pages keep them. ``only_without``: chunks with an OffsetIndex keep
    their pages. ``only_bounds``: only the key's chunks change; afterwards they have bounds.
    """
    used = frozenset(subject.leaves)

    def count(ordinal: int, leaf: int) -> int | None:
        group, known = subject.shape.groups[ordinal], subject.layout.chunks.get((ordinal, leaf))
        chunk = group.chunks[leaf]
        if leaf not in used or known is None:
            return None
        advised = page_count(group.rows, known.chunk.total_uncompressed_size)
        if only_bounds:
            pages = None if chunk.offsets is None else chunk.offsets.num_pages
            return pages if leaf == subject.model.key and chunk.column_index is None else None
        if only_without:
            lacks_bounds = leaf == subject.model.key and chunk.column_index is None
            return advised if chunk.offsets is None or lacks_bounds else None
        plain, offsets = known.chunk.total_uncompressed_size, chunk.offsets
        return advised if offsets is not None and has_large_pages(group.rows, plain, offsets.num_pages) else None

    return count


def _bound_bytes(subject: Subject) -> int:
    lengths = [len(zone.low) for zone in subject.keys.zones if isinstance(zone.low, bytes)]
    return max(lengths, default=8)


def large_pages(subject: Subject) -> Iterator[Cause]:
    """Yield a finding if pages have far more rows or bytes than a lookup of one row needs."""
    counts = _counts(subject, only_without=False)
    large = [
        subject.name(leaf)
        for leaf in subject.leaves
        if any(counts(ordinal, leaf) is not None for ordinal in range(len(subject.shape.groups)))
    ]
    if large:
        yield from subject.finding(
            "huge-pages",
            "pages are large",
            f"{listed(large)} {'have' if len(large) > 1 else 'has'} pages of more than {PAGE_ROWS:,} rows or "
            f"{PAGE_BYTES // KIB} KiB: a lookup of one row reads and decodes a whole page of each.",
            advice("huge-pages"),
            shape=with_pages(subject.shape, counts, subject.model.key, _bound_bytes(subject)),
        )


# -- order --------------------------------------------------------------------------------------------


def unsorted(subject: Subject) -> Iterator[Cause]:
    """Yield a finding if statistics cannot rule out most row groups or pages for a key, because rows are not sorted
    by it."""
    keys = _true_keys(subject) if has_chunk_bounds(subject.keys) else subject.keys
    if keys.is_sorted or len(keys.zones) < 2 or without_statistics(subject.shape) or _in_order(keys):
        return
    has_blooms = any(group.chunks[subject.model.key].bloom_filter for group in subject.shape.groups)
    if is_clustered_by_another(subject.layout, subject.leaf, subject.shape):
        findings = list(
            subject.finding(
                "no-bloom-filter",
                "no Bloom filter of the lookup column, and rows are in the order of another one",
                f"Statistics leave {subject.before.row_groups:.1f} of {len(subject.shape.groups)} row groups to a key.",
                advice("no-bloom-filter", subject.leaf.dotted),
                shape=with_bloom_filters(subject.shape, subject.model.key),
            )
        )
        if findings:
            yield from findings
            return
    detail = (
        f"Of {len(subject.shape.groups)} row groups, statistics leave {subject.before.row_groups:.1f} to a lookup of "
        f"one key, and data of {subject.before.groups:.1f} are read{', Bloom filters included' if has_blooms else ''}."
    )
    yield from subject.finding(
        "random-order",
        "rows are not sorted by the lookup column",
        detail,
        advice("random-order", subject.leaf.dotted, has_filters=has_blooms),
        keys=KeyZones(subject.keys.zones, is_sorted=True),
    )


def _in_order(keys: KeyZones) -> bool:
    zones = [zone for zone in keys.zones if zone.low is not None]
    return sorted_as((zone.low, zone.high, 0) if zone.known else None for zone in zones) is not None


def _true_keys(subject: Subject) -> KeyZones:
    """Return the exact zones of the key's values. If the values were not read, zones from the statistics, in which
    row groups that follow one another in order also count as sorted inside."""
    if subject.exact is not None:
        return subject.exact
    groups = subject.keys.groups
    return KeyZones(subject.keys.zones, is_sorted=groups is not None and len(groups.zones) > 1 and _in_order(groups))


def page_bounds(subject: Subject) -> Iterator[Cause]:
    """Yield a finding if all pages of a chunk of the key have the bounds of the whole chunk, although their own are
    narrower."""
    if not has_chunk_bounds(subject.keys) or truncated(subject.keys.zones) or without_statistics(subject.shape):
        return
    yield from subject.finding(
        "chunk-bounds",
        "each page has the bounds of its whole chunk",
        f"The page index gives all pages of a chunk of {subject.leaf.dotted} the same min and max, although their "
        "values differ: a lookup reads all pages of a row group. Polars 2.1 does so for columns with a dictionary.",
        advice("chunk-bounds"),
        keys=_true_keys(subject),
    )


def bounds(subject: Subject) -> Iterator[Cause]:
    """Yield a finding if bounds of pages or row groups are missing, or so short that they overlap."""
    zones, groups = subject.keys.zones, [group for group in subject.shape.groups if group.rows]
    if subject.exact is None or subject.exact is subject.keys or not groups or without_statistics(subject.shape):
        return  # they are as they should be, or there are no statistics at all
    unknown = sum(not zone.known for zone in zones)
    if unknown:
        title, rule = "bounds of pages are missing", "missing-bounds"
        detail = f"{unknown} of {len(zones)} pages have no bounds, and are read for every key."
    elif truncated(zones):
        title, rule = "bounds are truncated until they overlap", "truncated-bounds"
        detail = "Values have long common beginnings, which is all that the bounds of pages hold."
    else:
        return
    yield from subject.finding(rule, title, detail, advice(rule, subject.leaf.dotted), keys=_like(subject))


def _like(subject: Subject) -> KeyZones:
    """Return the exact zones, restricted to the keys with which the current zones are tested, so that the costs
    before and after the cure are those of the same lookups."""
    assert subject.exact is not None, "the rule asked"
    known = [zone for zone in subject.keys.zones if zone.key is not None]
    if not known or len(known) == len(subject.keys.zones):
        return subject.exact
    starts = [zone.start for zone in known]

    def is_known(zone: Zone) -> bool:
        at = bisect_right(starts, zone.start) - 1
        return at >= 0 and zone.stop <= known[at].stop

    return KeyZones([zone if is_known(zone) else zone._replace(key=None) for zone in subject.exact.zones])


# -- statistics ---------------------------------------------------------------------------------------


def no_statistics(subject: Subject) -> Iterator[Cause]:
    """Yield a finding if chunks of the key have no min and max."""
    without = without_statistics(subject.shape)
    if not without or disbelieved(subject.layout, subject.leaf):
        return
    shape = with_pages(subject.shape, _counts(subject, only_bounds=True), subject.model.key, _bound_bytes(subject))
    groups = tuple(replace(group, bounded=True) for group in shape.groups)
    yield from subject.finding(
        "no-statistics",
        "the lookup column has no statistics",
        f"{without} of {len(subject.shape.groups)} row groups have no min and max of it: every lookup reads them.",
        advice("no-statistics", subject.leaf.dotted),
        shape=replace(shape, groups=groups),
    )


def statistics_not_believed(subject: Subject) -> Iterator[Cause]:
    """Yield a finding if reads ignore the key's statistics, because the file's writer is known to get them wrong."""
    reason = disbelieved(subject.layout, subject.leaf)
    if reason is None or not without_statistics(subject.shape):
        return
    zones = _claimed_zones(subject)
    if zones is None:
        return
    groups = tuple(replace(group, bounded=True) for group in subject.shape.groups)
    yield from replace(subject, keys=zones).finding(
        "statistics-not-believed",
        "the statistics of this writer are not believed",
        f"Min and max are there but not used: {reason}.",
        advice("statistics-not-believed"),
        shape=replace(subject.shape, groups=groups),
    )


def _claimed_zones(subject: Subject) -> KeyZones | None:
    metadata, leaf = subject.layout.version.metadata, subject.leaf
    orders = metadata.column_orders
    order = order_of(leaf, None if orders is None else orders[leaf.index])
    calendar = metadata.calendars.get(leaf.index)
    zones: list[Zone] = []
    for group in metadata.row_groups:
        known = subject.layout.chunks.get((group.ordinal, leaf.index))
        if known is None or not group.num_rows:
            continue
        found, _ = chunk_bounds(
            known.chunk, leaf, order, WriterFaults(_A_GOOD_WRITER), orders is not None, group.num_rows, calendar
        )
        if found.min is None:
            return None
        key = middle(found.min, found.max)
        zones.append(Zone(group.first_row, group.first_row + group.num_rows, found.min, found.max, True, key))
    return KeyZones(zones)


# -- row groups and footers ---------------------------------------------------------------------------


def row_groups(subject: Subject) -> Iterator[Cause]:
    """Yield a finding if row groups have so few rows that the footer is long, or too many rows."""
    groups = [group for group in subject.shape.groups if group.rows]
    if not groups:
        return
    rows = sum(group.rows for group in groups) / len(groups)
    size = sum(chunk.stop - chunk.start for group in groups for chunk in group.chunks) / len(groups)
    advised = max(1, min(GROUP_ROWS, int(rows * GROUP_BYTES / max(size, 1))))
    if len(groups) > 8 and (size < MIB or rows < 20_000):
        rule, title = "small-row-groups", "row groups are small"
    elif rows > 2 * GROUP_ROWS or size > 4 * GROUP_BYTES:
        rule, title = "large-row-groups", "row groups are large"
    else:
        return
    spans = [group.chunks_span for group in subject.layout.version.metadata.row_groups]
    per_group = sum(stop - start for start, stop in spans) // len(spans)
    yield from subject.finding(
        rule,
        title,
        f"{len(groups)} row groups have {rows:,.0f} rows and {size / MIB:,.2f} MiB on average.",
        f"Write row groups of about {advised:,} rows.",
        shape=with_row_groups(subject.shape, advised, per_group),
    )


def large_footer(subject: Subject) -> Iterator[Cause]:
    """Yield a finding if the footer is longer than the first GET."""
    shape, version = subject.shape, subject.layout.version
    footer = shape.size - shape.footer_start
    if footer <= subject.model.tail_bytes or subject.model.learns:
        return
    metadata = version.metadata
    chunks = sum(stop - start for start, stop in (group.chunks_span for group in metadata.row_groups))
    key_values = sum(len(key) + len(value or "") for key, value in metadata.key_value_metadata.items())
    advised = -(-footer * 5 // 4 // 65536) * 65536
    yield from subject.finding(
        "big-footer",
        "the footer is larger than the first GET",
        f"It has {footer:,} bytes for {len(metadata.row_groups)} row groups of {len(metadata.schema.leaves)} columns "
        f"({chunks:,} of chunks and their statistics, {key_values:,} of key-value metadata); the first GET has "
        f"{subject.model.tail_bytes:,}.",
        advice("big-footer"),
        model=replace(subject.model, tail_bytes=advised),
        snippets=tail(advised),
    )


def wide_bounds(subject: Subject) -> Iterator[Cause]:
    """Yield a finding if bounds beyond 64 bytes take a quarter of the footer or more, and cost requests or bytes."""
    excess = 0
    for known in subject.layout.chunks.values():
        statistics = known.chunk.statistics
        if statistics is not None:
            ends = (statistics.min_value, statistics.max_value, statistics.deprecated_min, statistics.deprecated_max)
            excess += sum(max(0, len(value) - 64) for value in ends if value is not None)
    shape = subject.shape
    if excess * 4 < shape.size - shape.footer_start:
        return
    yield from subject.finding(
        "wide-bounds",
        "statistics hold long strings",
        f"{excess:,} of the footer's {shape.size - shape.footer_start:,} bytes are of bounds beyond 64 bytes.",
        "Truncate statistics to 64 bytes, or write none of columns with long values.",
        shape=replace(shape, size=shape.size - excess),
    )


Rule = Callable[[Subject], Iterator[Any]]
RULES: Final[tuple[Rule, ...]] = (
    no_page_index,
    large_pages,
    unsorted,
    page_bounds,
    bounds,
    no_statistics,
    statistics_not_believed,
    row_groups,
    large_footer,
    wide_bounds,
    dictionaries,
    no_dictionary,
    codecs,
    legacy_calendar,
)
