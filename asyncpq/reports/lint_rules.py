"""The rules of ``lint``. Each finds one property of a file's layout that makes lookups by a column slow.

A rule yields a finding with the predicted saving: it changes the file's shape as the cure would, and compares the costs
of a lookup before and after. A finding is dropped if its cure saves less than 5 % of a lookup's time, no request, and
less than a quarter of the bytes (less than half of them if the cure adds requests).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from asyncpq.errors import plural
from asyncpq.options import KIB, MIB
from asyncpq.parquet.column_chunk import Codec, ColumnChunk
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.writer_faults import WriterFaults
from asyncpq.reports.cures import (
    Snippets,
    advice,
    smaller_chunks,
    snippets_for,
    tail,
    with_dictionary_of,
    with_own_setting,
    without_dictionary,
)
from asyncpq.reports.documents import Cause, Severity
from asyncpq.reports.inspection import FileLayout, gave_up_dictionary, sorted_as
from asyncpq.reports.lookup_cost import (
    GROUP_BYTES,
    GROUP_ROWS,
    PAGE_BYTES,
    PAGE_ROWS,
    KeyZones,
    LookupCost,
    LookupModel,
    Shape,
    Zone,
    disbelieved,
    has_chunk_bounds,
    has_large_pages,
    is_clustered_by_another,
    middle,
    page_count,
    truncated,
    with_bloom_filters,
    with_pages,
    with_plain_pages,
    with_row_groups,
    with_smaller_pages,
    without_statistics,
)
from asyncpq.reports.story import SLOW_CODECS

_LEAST_SHARE: Final = 0.05  # of the seconds of a lookup, that a cure must save,
_LEAST_BYTES_SHARE: Final = 0.25  # or of its bytes, if these are at least so many
_LEAST_BYTES: Final = 64 * KIB


@dataclass(frozen=True, slots=True)
class Cured:
    """The file and its lookups after a cure; None for what the cure does not change."""

    shape: Shape | None = None
    keys: KeyZones | None = None
    model: LookupModel | None = None


@dataclass(slots=True)
class Subject:
    """The lookups by one column of one file, with the file's layout and the cost models that the rules of ``lint``
    need."""

    layout: FileLayout
    leaf: Leaf
    model: LookupModel
    shape: Shape
    keys: KeyZones  # zones of the key from the file's bounds, or from its values if these were read for lack of bounds
    exact: KeyZones | None = None  # zones of the values, where they were read
    ratios: Mapping[int, float] = field(default_factory=dict)  # by leaf, zstd's size of uncompressed pages over theirs
    distinct: Mapping[int, tuple[int, int]] = field(default_factory=dict)  # by leaf: distinct values of so many rows
    single_pages: bool = False  # chunks without an OffsetIndex are one page each
    before: LookupCost = field(init=False)

    def __post_init__(self) -> None:
        self.before = self.model.mean_cost(self.shape, self.keys)

    @property
    def leaves(self) -> tuple[int, ...]:
        """The leaves that a lookup reads."""
        return (self.model.key, *self.model.others)

    def chunks(self, leaf: int) -> list[ColumnChunk]:
        """Return a leaf's column chunks that can be read and have values."""
        indexed = [self.layout.chunks.get((ordinal, leaf)) for ordinal in range(len(self.shape.groups))]
        return [item.chunk for item in indexed if item is not None and item.chunk.num_values]

    def name(self, leaf: int) -> str:
        """Return the dotted path of the leaf with this ordinal."""
        return self.layout.version.metadata.schema.leaves[leaf].dotted

    def finding(
        self, rule: str, title: str, detail: str, cure: str, *, after: Cured, snippets: Snippets | None = None
    ) -> Iterator[Cause]:
        """Yield the finding of the rule ``rule`` if its cure saves enough. The other arguments are fields of
        :class:`asyncpq.reports.documents.Cause`."""
        cost = (after.model or self.model).mean_cost(after.shape or self.shape, after.keys or self.keys)
        saved = self.before - cost
        share = saved.seconds / self.before.seconds if self.before.seconds else 0.0
        least_share = _LEAST_BYTES_SHARE if saved.requests > -0.5 else 2 * _LEAST_BYTES_SHARE
        fewer = saved.num_bytes >= max(_LEAST_BYTES, least_share * self.before.num_bytes)
        if share <= 0 or (share < _LEAST_SHARE and saved.requests < 0.5 and not fewer):
            return
        snippets = snippets_for(rule, self.leaf.dotted) if snippets is None else snippets
        yield Cause(
            id=rule,
            severity=severity(share),
            title=title,
            detail=f"{detail} A lookup by {self.leaf.dotted} takes {cost_text(self.before)}; then {cost_text(cost)}.",
            saves_requests=round(saved.requests),
            saves_bytes=round(saved.num_bytes),
            saves_seconds=round(saved.seconds, 6),
            column=self.leaf.dotted,
            cure=cure,
            snippets=with_own_setting(rule, snippets, self.layout.version.metadata.created_by),
        )


def unpriced(
    rule: str,
    severity: Severity,
    title: str,
    detail: str,
    cure: str,
    *,
    column: str | None = None,
    snippets: Snippets | None = None,
) -> Cause:
    """Return a finding for whose cure no saving is predicted. The arguments are fields of
    :class:`asyncpq.reports.documents.Cause`."""
    return Cause(
        id=rule,
        severity=severity,
        title=title,
        detail=detail,
        saves_requests=None,
        saves_bytes=None,
        saves_seconds=None,
        column=column,
        cure=cure,
        snippets=snippets or {},
    )


def severity(share: float) -> Literal["high", "medium", "low"]:
    """Return the severity of a finding whose cure saves the fraction ``share`` of a lookup's time."""
    return "high" if share >= 0.4 else "medium" if share >= 0.15 else "low"


def mean_text(number: float) -> str:
    """Return a mean of counts as text with at most one digit after the point, such as ``2.5`` or ``12``."""
    return f"{number:.1f}".removesuffix(".0")


def cost_text(cost: LookupCost) -> str:
    """Return a cost as text: requests, bytes and seconds."""
    return f"{mean_text(cost.requests)} requests and {cost.num_bytes:,.0f} bytes"


def listed(names: Sequence[str], most: int = 5) -> str:
    """Join names with commas; after ``most`` names, say how many follow."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


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
    cure, snippets = advice("no-page-index"), snippets_for("no-page-index")
    if subject.single_pages:
        detail += " Each chunk is one page."
        cure, snippets = "Write smaller pages and page indexes, or smaller row groups.", smaller_chunks()
    findings = list(subject.finding("no-page-index", title, detail, cure, after=Cured(shape=there), snippets=snippets))
    if not findings:  # all pages of the key may have it, so that they help little before rows are sorted
        in_order = replace(subject, keys=KeyZones(subject.keys.zones, is_sorted=True))
        detail += " This is what page indexes save once the rows are sorted."
        findings = list(
            in_order.finding("no-page-index", title, detail, cure, after=Cured(shape=there), snippets=snippets)
        )
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
            after=Cured(shape=with_pages(subject.shape, counts, subject.model.key, _bound_bytes(subject))),
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
                f"Statistics leave {mean_text(subject.before.row_groups)} of {len(subject.shape.groups)} row groups to "
                "a key.",
                advice("no-bloom-filter", subject.leaf.dotted),
                after=Cured(shape=with_bloom_filters(subject.shape, subject.model.key)),
            )
        )
        if findings:
            yield from findings
            return
    detail = (
        f"Of {plural(len(subject.shape.groups), 'row group')}, statistics leave {mean_text(subject.before.row_groups)} "
        f"to a lookup of one key, which reads data of {mean_text(subject.before.groups)}"
        f"{', Bloom filters included' if has_blooms else ''}."
    )
    yield from subject.finding(
        "random-order",
        "rows are not sorted by the lookup column",
        detail,
        advice("random-order", subject.leaf.dotted, has_filters=has_blooms),
        after=Cured(keys=KeyZones(subject.keys.zones, is_sorted=True)),
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
        after=Cured(keys=_true_keys(subject)),
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
    yield from subject.finding(rule, title, detail, advice(rule, subject.leaf.dotted), after=Cured(keys=_like(subject)))


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
        after=Cured(shape=replace(shape, groups=groups)),
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
        after=Cured(shape=replace(subject.shape, groups=groups)),
    )


def _claimed_zones(subject: Subject) -> KeyZones | None:
    metadata, leaf = subject.layout.version.metadata, subject.leaf
    bounds_of = metadata.bounds_of(leaf, WriterFaults(_A_GOOD_WRITER))
    zones: list[Zone] = []
    for group in metadata.row_groups:
        known = subject.layout.chunks.get((group.ordinal, leaf.index))
        if known is None or not group.num_rows:
            continue
        found, _ = bounds_of(known.chunk, group.num_rows)
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
        after=Cured(shape=with_row_groups(subject.shape, advised, per_group)),
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
        after=Cured(model=replace(subject.model, tail_bytes=advised)),
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
        after=Cured(shape=replace(shape, size=shape.size - excess)),
    )


# -- dictionaries, compression and calendars ----------------------------------------------------------

LARGE_DICTIONARY: Final = 64 * KIB
_FIXED: Final = {
    PhysicalType.INT32: 4,
    PhysicalType.INT64: 8,
    PhysicalType.INT96: 12,
    PhysicalType.FLOAT: 4,
    PhysicalType.DOUBLE: 8,
}


def dictionaries(subject: Subject) -> Iterator[Cause]:
    """Yield a finding if a column's dictionary costs a lookup more bytes than it saves."""
    large: dict[bool, list[int]] = {True: [], False: []}  # by whether the writer gave them up
    for leaf in subject.leaves:
        sizes = [group.chunks[leaf].dictionary_bytes for group in subject.shape.groups if group.chunks[leaf].offsets]
        width = _plain_width(subject, leaf)
        if sizes and width is not None and max(sizes) >= max(LARGE_DICTIONARY, 2 * PAGE_ROWS * width):
            large[any(map(gave_up_dictionary, subject.chunks(leaf)))].append(leaf)
    for given_up, leaves in large.items():
        if leaves:
            yield from _without_dictionaries(subject, leaves, given_up=given_up)


def _without_dictionaries(subject: Subject, leaves: Sequence[int], *, given_up: bool) -> Iterator[Cause]:
    shape, names, size = subject.shape, [subject.name(leaf) for leaf in leaves], 0.0
    for leaf in leaves:
        width = _plain_width(subject, leaf) or 1.0
        sizes = [group.chunks[leaf].dictionary_bytes for group in shape.groups if group.rows]
        size += sum(sizes) / len(sizes)
        shape = with_plain_pages(shape, leaf, lambda rows, width=width: max(1, int(rows * width)))  # type: ignore[misc]
    rule = "dictionary-fallback" if given_up else "huge-dictionary"
    yield from subject.finding(
        rule,
        "dictionaries were given up half-way" if given_up else "dictionaries are large",
        f"A lookup of one row reads the dictionary of {listed(names)} too: {size:,.0f} bytes.",
        advice(rule, listed(names)),
        after=Cured(shape=shape),
        snippets=without_dictionary(names),
    )


def _plain_width(subject: Subject, leaf: int) -> float | None:
    """Estimate the compressed bytes of one value without a dictionary; None if the file gives no clue."""
    schema_leaf = subject.layout.version.metadata.schema.leaves[leaf]
    chunks = subject.chunks(leaf)
    size, plain = (
        sum(chunk.total_compressed_size for chunk in chunks),
        sum(chunk.total_uncompressed_size for chunk in chunks),
    )
    ratio = min(1.0, size / plain) if plain else 1.0
    width: float | None = _FIXED.get(schema_leaf.physical_type)
    if width is None and schema_leaf.physical_type is PhysicalType.FIXED_LEN_BYTE_ARRAY:
        width = schema_leaf.element.type_length
    if width is None:
        bounds = [bound for (_, at), bound in subject.layout.bounds.items() if at == leaf]
        lengths = [len(end) for bound in bounds for end in (bound.min, bound.max) if isinstance(end, bytes)]
        width = 4 + sum(lengths) / len(lengths) if lengths else None
    return None if width is None else width * ratio


def no_dictionary(subject: Subject) -> Iterator[Cause]:
    """Yield a finding if string columns with few distinct values have no dictionary."""
    shape, few = subject.shape, list[int]()
    for leaf, (distinct, rows) in subject.distinct.items():
        pages = [group.chunks[leaf].offsets for group in subject.shape.groups]
        sizes = [size for offsets in pages if offsets is not None for size in offsets.sizes]
        width = _plain_width(subject, leaf)
        if not sizes or width is None or distinct * 10 > rows or leaf not in subject.leaves:
            continue
        bits = max(1, (distinct - 1).bit_length())
        ratio = (rows * bits / 8 + distinct * width) / max(1.0, sum(sizes) / len(sizes))
        if ratio < 0.7:
            few.append(leaf)
            shape = with_smaller_pages(shape, leaf, ratio)
    names = [subject.name(leaf) for leaf in few]
    if few:
        distinct, rows = subject.distinct[few[0]]
        yield from subject.finding(
            "no-dictionary",
            "few values, and no dictionary",
            f"{rows:,} rows of {names[0]} have {distinct:,} distinct values; its pages have no dictionary.",
            f"Write {listed(names)} with a dictionary.",
            after=Cured(shape=shape),
            snippets=with_dictionary_of(names),
        )


def codecs(subject: Subject) -> Iterator[Cause]:
    """Yield a finding if pages are uncompressed, or compressed with a slow codec."""
    plain = [leaf for leaf in subject.leaves if subject.ratios.get(leaf, 1.0) < 0.8]
    if plain:
        shape = subject.shape
        for leaf in plain:
            shape = with_smaller_pages(shape, leaf, subject.ratios[leaf])
        yield from subject.finding(
            "uncompressed",
            "pages are not compressed",
            f"{listed([subject.name(leaf) for leaf in plain])}: zstd makes "
            f"{sum(subject.ratios[leaf] for leaf in plain) / len(plain):.0%} of a page.",
            "Compress with zstd.",
            after=Cured(shape=shape),
        )
    slow = [leaf for leaf in subject.leaves if any(chunk.codec in SLOW_CODECS for chunk in subject.chunks(leaf))]
    if slow:
        names = {Codec(chunk.codec).name.lower() for leaf in slow for chunk in subject.chunks(leaf)}
        yield unpriced(
            "slow-codec",
            "low",
            "pages are compressed with a slow codec",
            f"{', '.join(sorted(names))} takes two to three times longer to decode than zstd, at a similar "
            "size. No saving is predicted: it is time of the CPU, which depends on the machine.",
            advice("slow-codec"),
            column=subject.leaf.dotted,
            snippets=snippets_for("slow-codec"),
        )


def legacy_calendar(subject: Subject) -> Iterator[Cause]:
    """Yield a finding if the file has dates or timestamps in the calendar of old Spark versions."""
    metadata = subject.layout.version.metadata
    names = [metadata.schema.leaves[leaf].dotted for leaf in metadata.legacy_calendars()]
    if names:
        yield unpriced(
            "legacy-calendar",
            "low",
            "dates are in the calendar of old Spark versions",
            f"{listed(names)}: days before 1582-10-15 and timestamps before 1900 are stored in another "
            "calendar. asyncpq converts them, as Spark or Hive, which wrote them, do; other readers return other days. "
            "No saving is predicted.",
            "Write the file again in today's calendar.",
            column=subject.leaf.dotted,
            snippets=snippets_for("legacy-calendar"),
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
