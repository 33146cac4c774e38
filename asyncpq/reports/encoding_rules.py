"""The rules of ``lint`` about the encodings and codecs of pages: dictionaries, and compression."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from asyncpq.options import KIB
from asyncpq.parquet.column_chunk import Codec
from asyncpq.parquet.logical_types import PhysicalType
from asyncpq.reports.cpu_work import SLOW_CODECS
from asyncpq.reports.cures import CURES, advice, with_dictionary_of, without_dictionary
from asyncpq.reports.documents import Cause
from asyncpq.reports.file_shapes import PAGE_ROWS, with_plain_pages, with_smaller_pages
from asyncpq.reports.inspection import gave_up_dictionary
from asyncpq.reports.lint_subject import Subject, listed, unpriced

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
        shape=shape,
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
            shape=shape,
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
            shape=shape,
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
            snippets=CURES["slow-codec"](subject.leaf.dotted),
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
            "calendar. asyncpq and Spark convert them, other readers return other days. No saving is predicted.",
            "Write the file again in today's calendar.",
            column=subject.leaf.dotted,
            snippets=CURES["legacy-calendar"](subject.leaf.dotted),
        )
