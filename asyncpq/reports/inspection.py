"""Describe the contents and layout of files, for :meth:`asyncpq.File.inspect` and :meth:`asyncpq.Dataset.inspect`.

A damaged index is reported as absent, and the document's ``fallbacks`` have the reason. The same holds for statistics
and indexes that reads do not use. A column whose metadata cannot be read has chunks of no bytes.
"""

from __future__ import annotations

import datetime as dt
import itertools
import uuid
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial
from typing import Any, Final, Generic, Literal, TypeVar, cast

import pyarrow as pa

from asyncpq.decoding.arrow import leaf_types
from asyncpq.decoding.field_types import check_arrow_schema, field_types, file_schema
from asyncpq.errors import AsyncpqError, FormatError, ObjectChangedError, plural, printable, size_text
from asyncpq.events import Operation
from asyncpq.expressions.scalars import EPOCH_DAY
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.object_read import ObjectRead
from asyncpq.objects.page_indexes import IndexedChunk, IndexRequest, PageIndexes, Place, indexed_chunk
from asyncpq.objects.source import ObjectSource
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.column_chunk import Codec, ColumnChunk, Encoding, PageType, unsupported
from asyncpq.parquet.embedded_index import entries
from asyncpq.parquet.logical_types import LogicalKind, LogicalType, PhysicalType, Repetition
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.statistics import ChunkBounds
from asyncpq.reports.documents import Chunk, ColumnReport, DatasetInspection, Inspection, PageLists, RowGroupReport
from asyncpq.storage.base import RequestContext, Validator

D_co = TypeVar("D_co", covariant=True)

_SHOWN_COLUMNS: Final = 40  # of a text
_MAX_CHARACTERS: Final = 200  # of a value of the key-value metadata
_DATA_PAGES: Final = (PageType.DATA_PAGE, PageType.DATA_PAGE_V2)
Sorted = Literal["ascending", "descending"]
T = TypeVar("T")


async def report_on(
    source: ObjectSource, version: FileVersion, operation: Operation, make: Callable[[FileVersion], Awaitable[T]]
) -> tuple[FileVersion, T]:
    """Return the object's current version and the result of ``make(version)``. If the object changes during the
    call, start again with its new version."""
    metrics, known = operation.metrics, None if source.freshness.is_expired(version) else version
    while True:
        try:
            if known is None:
                known = await source.version(RequestContext(metrics, round=metrics.rounds + 1))
            source.describe(metrics)
            await check_arrow_schema(known, source.runtime, operation)
            report = await make(known)
            await ObjectRead(source, known, metrics, round=metrics.rounds + 1).ensure_current()
            return known, report
        except ObjectChangedError:
            if not await source.restarts(known, operation):
                raise
            known = None
            metrics.fallbacks.clear()


@dataclass(slots=True)
class FileLayout:
    """The chunks of one version of a file with their page indexes, as far as these can be read."""

    source: ObjectSource
    version: FileVersion
    metrics: ReadMetrics
    indexes: PageIndexes
    chunks: dict[Place, IndexedChunk] = field(default_factory=dict)  # by row group and leaf; those that can be read
    bounds: dict[Place, ChunkBounds] = field(default_factory=dict)

    def leaf_zones(self, leaf: Leaf) -> Iterator[tuple[Any, Any, int] | None]:
        """Yield (min, max, rows) of each page of a leaf, or of a whole chunk if its pages have no bounds. Yield None
        for a chunk without known bounds. Chunks and pages that have only nulls are left out."""
        for group in self.version.metadata.row_groups:
            if not group.num_rows:
                continue
            place = (group.ordinal, leaf.index)
            pages, bounds = self.indexes.zones.get(place), self.bounds.get(place)
            if pages is not None and not pages.zones.unknown and pages.zones.present:
                counts = self.indexes.offsets[place].row_counts(group.num_rows)
                yield from ((low, high, counts[page]) for page, low, high in pages.zones.bounds())
            elif bounds is None or bounds.min is None:
                if bounds is None or not bounds.all_null:
                    yield None
            else:
                yield bounds.min, bounds.max, group.num_rows


def inspect_memory(source: ObjectSource, version: FileVersion) -> Inspection:
    """Describe one version of a file from memory, without I/O. Page indexes that are in memory are described; for
    others, the document has only what the footer states."""
    return describe_layout(layout_in_memory(source, version), pages=False)


def layout_in_memory(source: ObjectSource, version: FileVersion, leaves: Collection[int] | None = None) -> FileLayout:
    """Return the layout of the column chunks of ``leaves`` (ordinals; None: of all), with those of their page indexes
    that memory has. There is no I/O."""
    layout = _unread_layout(source, version, ReadMetrics())
    _read_chunks(layout, leaves)
    layout.indexes.find(_index_requests(layout))
    return layout


def _unread_layout(source: ObjectSource, version: FileVersion, metrics: ReadMetrics) -> FileLayout:
    return FileLayout(source, version, metrics, PageIndexes(ObjectRead(source, version, metrics, probation=True)))


def _index_requests(layout: FileLayout) -> list[IndexRequest]:
    chunks = layout.chunks.items()
    return [IndexRequest(*place, chunk.bounds is not None) for place, chunk in chunks if chunk.has_index]


async def load_layout(source: ObjectSource, version: FileVersion, metrics: ReadMetrics, *, pages: bool) -> FileLayout:
    """Return the layout of a version's column chunks. With ``pages``, read the page indexes of all chunks in one round
    of requests."""
    layout = _unread_layout(source, version, metrics)
    await source.runtime.in_thread(partial(_read_chunks, layout))
    if pages:
        wanted = _index_requests(layout)
        if wanted:
            await layout.indexes.fetch(wanted)
    if version.has_grown:
        source.keep(version)
    return layout


def _read_chunks(layout: FileLayout, leaves: Collection[int] | None = None) -> None:
    version, metrics = layout.version, layout.metrics
    metadata = version.metadata
    metrics.fall_back_all(version.dropped(()))
    for leaf in metadata.schema.leaves:
        if leaves is not None and leaf.index not in leaves:
            continue
        bounds_of = metadata.bounds_of(leaf)
        for group in metadata.row_groups:
            place = (group.ordinal, leaf.index)
            try:
                chunk = indexed_chunk(version, *place)
            except AsyncpqError as error:
                metrics.fall_back(f"{leaf.dotted}: {error.message}")
                continue
            layout.chunks[place] = chunk
            bounds, reason = bounds_of(chunk.chunk, group.num_rows)
            layout.bounds[place] = bounds
            if reason is not None:
                metrics.fall_back(f"{leaf.dotted}: statistics not used, {reason}")
            if not chunk.has_index and chunk.chunk.offset_index_range is not None:
                metrics.fall_back(f"{leaf.dotted}: its writer may split rows between pages; page indexes are not used")
    metrics.fall_back_all(version.dropped(range(len(metadata.schema.leaves))))


async def inspect_version(
    source: ObjectSource,
    version: FileVersion,
    metrics: ReadMetrics,
    *,
    pages: bool = True,
    page_bounds: Sequence[str] = (),
) -> Inspection:
    """Describe one version of a file.

    Args:
        metrics: counts the requests. Its ``fallbacks`` go into the document.
        pages: fetch all page indexes; without them the document has no pages, and a damaged index shows as present.
        page_bounds: names of columns whose pages have ``mins`` and ``maxs`` in the document.

    Raises:
        ColumnNotFoundError, AmbiguousColumnError: a name of ``page_bounds`` is not that of one column.
    """
    schema = version.metadata.schema
    bounded = frozenset(leaf for name in page_bounds for leaf in schema.projection(name).leaves)
    layout = await load_layout(source, version, metrics, pages=pages)
    return await source.runtime.in_thread(partial(describe_layout, layout, pages=pages, bounded=bounded))


def describe_layout(layout: FileLayout, *, pages: bool = True, bounded: frozenset[int] = frozenset()) -> Inspection:
    """Return the document that describes ``layout``. ``pages``: whether page indexes were read. ``bounded``:
    ordinals of the leaves whose pages are listed with their bounds."""
    version, metrics = layout.version, layout.metrics
    metadata, url = version.metadata, layout.source.handle.url
    stops = ChunkStops(version, layout.chunks.values())
    groups = [_row_group(layout, ordinal, stops, pages=pages) for ordinal in range(len(metadata.row_groups))]
    columns = _columns(layout, groups)
    for leaf in sorted(bounded):
        _add_page_bounds(layout, metadata.schema.leaves[leaf], groups)
    try:
        embedded = sorted(entries(metadata.key_value_metadata, url))
    except FormatError as error:
        metrics.fall_back(f"embedded indexes are not used: {error.message}")
        embedded = []
    return Inspection(
        document="inspection",
        url=url,
        size=version.size,
        version=version_text(version.validator),
        guarantee=str(layout.source.handle.guarantee),
        writer=metadata.created_by,
        format_version=metadata.version,
        rows=metadata.num_rows,
        footer=[version.footer_start, version.size],
        footer_encrypted=version.decryption is not None and not version.footer.endswith(b"PAR1"),
        key_value_metadata={key: _cut(value or "") for key, value in metadata.key_value_metadata.items()},
        embedded_indexes=embedded,
        columns=columns,
        row_groups=groups,
        sorted_by=_sorted_by(layout, columns),
        unreadable=unreadable_columns(version, layout.chunks),
        legacy_calendar=[metadata.schema.leaves[leaf].dotted for leaf in metadata.legacy_calendars()],
        fallbacks=list(metrics.fallbacks),
        requests=metrics.requests,
        bytes_fetched=metrics.bytes_fetched,
    )


def version_text(validator: Validator) -> str:
    """Return a text that names a version: its ETag, its version id or its size."""
    return validator.etag or validator.version or f"{validator.size} bytes"


def _cut(text: str, most: int = _MAX_CHARACTERS) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


class ChunkStops:
    """Finds the ends of structures, such as Bloom filters, of which the footer gives only the beginning: at the
    latest where the next structure begins."""

    def __init__(self, version: FileVersion, chunks: Iterable[IndexedChunk]) -> None:
        starts = {version.footer_start}
        for chunk in (item.chunk for item in chunks):
            starts.add(chunk.start)
            starts.update(filter(None, (chunk.offset_index_offset, chunk.column_index_offset)))
            if chunk.bloom_filter_offset is not None:
                starts.add(chunk.bloom_filter_offset)
        self._starts = sorted(starts)
        self._footer_start = version.footer_start

    def bloom_filter(self, chunk: ColumnChunk) -> list[int] | None:
        """Return the byte range [start, stop] of a chunk's Bloom filter; None if it has none, or none inside the
        file's data."""
        start, length = chunk.bloom_filter_offset, chunk.bloom_filter_length
        if start is None or not 4 <= start < self._footer_start:
            return None
        if length is None:
            return [start, self._starts[bisect_right(self._starts, start)]]
        return [start, start + length] if 0 < length <= self._footer_start - start else None


def _row_group(layout: FileLayout, ordinal: int, stops: ChunkStops, *, pages: bool) -> RowGroupReport:
    group = layout.version.metadata.row_groups[ordinal]
    leaves = layout.version.metadata.schema.leaves
    chunks = [_chunk(layout, ordinal, leaf, stops, pages=pages) for leaf in leaves]
    filled = [chunk["bytes"] for chunk in chunks if chunk["bytes"][1]]
    return RowGroupReport(
        ordinal=ordinal,
        first_row=group.first_row,
        rows=group.num_rows,
        bytes=[min(span[0] for span in filled), max(span[1] for span in filled)] if filled else [0, 0],
        uncompressed_bytes=sum(chunk["uncompressed_bytes"] for chunk in chunks),
        chunks=chunks,
    )


def _chunk(layout: FileLayout, ordinal: int, leaf: Leaf, stops: ChunkStops, *, pages: bool) -> Chunk:
    place = (ordinal, leaf.index)
    known = layout.chunks.get(place)
    if known is None:
        return _unreadable(layout.version, ordinal, leaf)
    chunk, bounds = known.chunk, layout.bounds[place]
    offsets = layout.indexes.offsets.get(place)
    located = None
    has_dictionary = chunk.start < chunk.data_page_offset
    dictionary = [chunk.start, chunk.data_page_offset] if has_dictionary else None
    if offsets is not None and offsets.offsets:
        located = PageLists(starts=[*offsets.offsets], sizes=[*offsets.sizes], first_rows=[*offsets.first_rows])
        dictionary = [chunk.start, offsets.offsets[0]] if chunk.start < offsets.offsets[0] else None
    by_footer = not pages and known.has_index
    distinct = None if chunk.statistics is None else chunk.statistics.distinct_count
    return Chunk(
        column=leaf.index,
        bytes=[chunk.start, chunk.stop] if chunk.num_values else [0, 0],
        dictionary=dictionary,
        pages=located,
        offset_index=_span(chunk.offset_index_range) if located is not None or by_footer else None,
        column_index=_span(chunk.column_index_range) if place in layout.indexes.zones or by_footer else None,
        bloom_filter=stops.bloom_filter(chunk),
        codec=_codec(chunk.codec),
        encodings=encodings_of(chunk),
        uncompressed_bytes=chunk.total_uncompressed_size,
        values=chunk.num_values,
        nulls=0 if leaf.max_definition_level == 0 else bounds.null_count,
        distinct=distinct,
        min=None if bounds.min is None else value_text(bounds.min, leaf),
        max=None if bounds.max is None else value_text(bounds.max, leaf),
    )


def _add_page_bounds(layout: FileLayout, leaf: Leaf, groups: Sequence[RowGroupReport]) -> None:
    for group in groups:
        pages, zones = group["chunks"][leaf.index]["pages"], layout.indexes.zones.get((group["ordinal"], leaf.index))
        if pages is None:
            continue
        mins: list[str | None] = [None] * len(pages["starts"])
        maxs = list(mins)
        for page, low, high in [] if zones is None else zones.zones.bounds():
            mins[page], maxs[page] = value_text(low, leaf), value_text(high, leaf)
        pages["mins"], pages["maxs"] = mins, maxs


def _unreadable(version: FileVersion, ordinal: int, leaf: Leaf) -> Chunk:
    """Return the description of a chunk that cannot be read, such as an encrypted one, as far as the footer
    describes it."""
    span, codec, size, values, encodings = [0, 0], "unknown", 0, 0, list[str]()
    try:
        chunk = version.metadata.row_groups[ordinal].parse_chunk(leaf.index)
    except AsyncpqError:
        pass
    else:
        codec, size, values = _codec(chunk.codec), chunk.total_uncompressed_size, chunk.num_values
        encodings = encodings_of(chunk)
        if 4 <= chunk.start <= chunk.stop <= version.footer_start:
            span = [chunk.start, chunk.stop]
    return Chunk(
        column=leaf.index,
        bytes=span,
        dictionary=None,
        pages=None,
        offset_index=None,
        column_index=None,
        bloom_filter=None,
        codec=codec,
        encodings=encodings,
        uncompressed_bytes=size,
        values=values,
        nulls=None,
        distinct=None,
        min=None,
        max=None,
    )


def _span(span: tuple[int, int] | None) -> list[int] | None:
    return None if span is None else list(span)


def _codec(code: int) -> str:
    return Codec(code).name if code in Codec.__members__.values() else f"codec {code}"


def encodings_of(chunk: ColumnChunk) -> list[str]:
    """Return the encodings of a chunk's data pages. If the footer does not list these separately, return the encodings
    of all pages and levels."""
    codes: Iterable[int] = chunk.encodings
    if chunk.encoding_stats:
        codes = [item.encoding for item in chunk.encoding_stats if item.page_type in _DATA_PAGES] or codes
    return [_ENCODINGS.get(code, f"encoding {code}") for code in dict.fromkeys(codes)]


def gave_up_dictionary(chunk: ColumnChunk) -> bool:
    """Return whether the writer began the chunk with a dictionary and went on without."""
    names = set(encodings_of(chunk))
    return not names.isdisjoint(DICTIONARIES) and Encoding.PLAIN.name in names


DICTIONARIES: Final = frozenset({Encoding.PLAIN_DICTIONARY.name, Encoding.RLE_DICTIONARY.name})
_ENCODINGS: Final[Mapping[int, str]] = {int(item): item.name for item in Encoding}


# -- columns ------------------------------------------------------------------------------------------


def _columns(layout: FileLayout, groups: Sequence[RowGroupReport]) -> list[ColumnReport]:
    types = arrow_types(layout.version, layout.source.runtime.options.read.extension_types)
    return [
        _column(layout, leaf, types[leaf.index], [group["chunks"][leaf.index] for group in groups])
        for leaf in layout.version.metadata.schema.leaves
    ]


def _column(layout: FileLayout, leaf: Leaf, arrow_type: str, chunks: Sequence[Chunk]) -> ColumnReport:
    schema, logical = layout.version.metadata.schema, leaf.logical_type
    above = (schema.elements[index] for index in leaf.ancestor_indexes)
    bounds = [layout.bounds.get((ordinal, leaf.index)) for ordinal in range(len(chunks))]
    known = [item for item in bounds if item is not None and item.min is not None]
    whole = len(known) == len([item for item in bounds if item is None or not item.all_null]) and bool(known)
    nulls = [chunk["nulls"] for chunk in chunks]
    pages = [len(chunk["pages"]["starts"]) for chunk in chunks if chunk["pages"] is not None]
    return ColumnReport(
        name=leaf.dotted,
        physical_type=leaf.physical_type.name,
        logical_type=None if logical is None else _logical(logical),
        arrow_type=arrow_type,
        nullable=any(item.repetition is not Repetition.REQUIRED for item in (leaf.element, *above)),
        repeated=leaf.max_repetition_level > 0,
        compressed_bytes=sum(chunk["bytes"][1] - chunk["bytes"][0] for chunk in chunks),
        uncompressed_bytes=sum(chunk["uncompressed_bytes"] for chunk in chunks),
        codecs=list(dict.fromkeys(chunk["codec"] for chunk in chunks)),
        encodings=list(dict.fromkeys(name for chunk in chunks for name in chunk["encodings"])),
        nulls=None if None in nulls else sum(filter(None, nulls)),
        min=value_text(min(item.min for item in known), leaf) if whole else None,  # type: ignore[type-var]  # checked
        max=value_text(max(item.max for item in known), leaf) if whole else None,  # type: ignore[type-var]  # checked
        pages=sum(pages) if pages else None,
        sorted=None if leaf.max_repetition_level else sorted_as(layout.leaf_zones(leaf)),
        bloom_filters=sum(chunk["bloom_filter"] is not None for chunk in chunks),
        column_indexes=sum(chunk["column_index"] is not None for chunk in chunks),
        offset_indexes=sum(chunk["offset_index"] is not None for chunk in chunks),
    )


def _logical(logical: LogicalType) -> str:
    details = [str(value) for value in logical[1:] if value is not None and not isinstance(value, bool)]
    if logical.is_adjusted_to_utc:
        details.append("UTC")
    if logical.is_signed is False:
        details.append("unsigned")
    return logical.kind.value + (f"({', '.join(details)})" if details else "")


def arrow_types(version: FileVersion, extensions: frozenset[str]) -> list[str]:
    """Return the Arrow type of each leaf as text; the physical type for leaves that pyarrow cannot represent."""
    leaves = version.metadata.schema.leaves
    texts = [leaf.physical_type.name.lower() for leaf in leaves]
    try:
        schema = file_schema(version, version.metadata.schema.whole_fields, extensions)
    except AsyncpqError:
        return texts
    for column, arrow_field in zip(version.metadata.schema.fields, schema, strict=True):
        types = [type_ for type_, _ in leaf_types(arrow_field.type)]
        if column.leaf_stop - column.first_leaf == 1 == len(types) and not pa.types.is_nested(arrow_field.type):
            types = [arrow_field.type]  # a dictionary, or an extension
        if len(types) == column.leaf_stop - column.first_leaf:
            texts[column.first_leaf : column.leaf_stop] = map(str, types)
    return texts


# -- order --------------------------------------------------------------------------------------------


def sorted_as(zones: Iterable[tuple[Any, Any, int] | None]) -> Sorted | None:
    """Return the order ("ascending" or "descending") in which the bounds of ``zones``, (min, max, rows) of each page
    or chunk, follow one another without overlap. None if the zones overlap, if bounds are missing, or if there is
    only one zone or value, which shows no order."""
    known: list[tuple[Any, Any]] = []
    for zone in zones:
        if zone is None:
            return None
        known.append(zone[:2])
    if len(known) < 2 or (known[0][0] == known[-1][1] and known[0][1] == known[-1][0]):
        return None
    if all(_follows(before, after) for before, after in itertools.pairwise(known)):
        return "ascending"
    return "descending" if all(_follows(after, before) for before, after in itertools.pairwise(known)) else None


def _follows(low: tuple[Any, Any], high: tuple[Any, Any]) -> bool:
    """Return whether all values within the bounds ``low`` may be at most those within ``high``; pairs of min and max.

    A max of bytes may be a truncated value that was increased by one in its last byte.
    """
    top, bottom = low[1], high[0]
    if top <= bottom:
        return True
    if not isinstance(top, bytes) or not isinstance(bottom, bytes) or low[0] > bottom or top > high[1] or not top:
        return False
    return top[:-1] + bytes([max(top[-1] - 1, 0)]) <= bottom[: len(top)]


def _sorted_by(layout: FileLayout, columns: Sequence[ColumnReport]) -> list[str]:
    """Return the names of the columns by which the rows are sorted. Columns that the writer declares come first, in
    its order."""
    sorted_names = [column["name"] for column in columns if column["sorted"] is not None]
    groups = layout.version.metadata.row_groups
    declared: list[str] = []
    if groups:
        indexes = [item.column_index for item in groups[0].sorting_columns]
        declared = [columns[index]["name"] for index in indexes if index < len(columns)]
    return sorted(sorted_names, key=lambda name: declared.index(name) if name in declared else len(declared))


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


_MAX_BOUND_CHARACTERS: Final = 80  # of a bound that is text
_PER_SECOND: Final = {"ms": 10**3, "us": 10**6, "ns": 10**9}
_INT96: Final = LogicalType(LogicalKind.TIMESTAMP, "us")
_TEXTS: Final = (LogicalKind.STRING, LogicalKind.ENUM, LogicalKind.JSON)


def value_text(value: Any, leaf: Leaf) -> str:
    """Return a bound of ``leaf``'s statistics as text.

    ``value`` is a bound as :mod:`asyncpq.parquet.statistics` decodes it. Dates, times and timestamps are ISO 8601, or
    the stored number if they are outside of the calendar. Strings are cut after 80 characters; other bytes are
    hexadecimal.
    """
    if isinstance(value, bool):
        return str(value).lower()
    logical = leaf.logical_type
    if isinstance(value, bytes):
        return _bytes_text(value, logical)
    if leaf.physical_type is PhysicalType.INT96 and isinstance(value, int):
        logical = _INT96
    if logical is None or not isinstance(value, int):
        return str(value)
    if logical.kind is LogicalKind.DECIMAL:
        return format(Decimal(value).scaleb(-(logical.scale or 0)), "f")
    if logical.kind is LogicalKind.DATE:
        return _date(value) or str(value)
    if logical.kind in (LogicalKind.TIME, LogicalKind.TIMESTAMP) and logical.unit is not None:
        return _moment(value, logical, _PER_SECOND[logical.unit]) or str(value)
    return str(value)


def _bytes_text(value: bytes, logical: LogicalType | None) -> str:
    if logical is not None and logical.kind in _TEXTS:
        text = value.decode("utf-8", "backslashreplace")
    elif logical is not None and logical.kind is LogicalKind.UUID and len(value) == 16:
        text = str(uuid.UUID(bytes=value))
    else:
        text = f"0x{value.hex()}"
    return _cut(text, _MAX_BOUND_CHARACTERS)


def _date(days: int) -> str | None:
    ordinal = EPOCH_DAY + days
    return dt.date.fromordinal(ordinal).isoformat() if 1 <= ordinal <= dt.date.max.toordinal() else None


def _moment(value: int, logical: LogicalType, per_second: int) -> str | None:
    seconds, fraction = divmod(value, per_second)
    days, seconds = divmod(seconds, 86_400)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if fraction:
        clock += f".{fraction:0{len(str(per_second)) - 1}}".rstrip("0")
    if logical.kind is LogicalKind.TIME:
        return clock if days == 0 else None
    date = _date(days)
    return None if date is None else f"{date}T{clock}{'Z' if logical.is_adjusted_to_utc else ''}"


# -- the report -----------------------------------------------------------------------------------


class InspectionReport(dict[str, Any], Generic[D_co]):
    """The layout of a file, or of a dataset's files, as :meth:`asyncpq.File.inspect` and
    :meth:`asyncpq.Dataset.inspect` return it: a dict of JSON values with the keys of
    :class:`asyncpq.reports.documents.Inspection` or :class:`asyncpq.reports.documents.DatasetInspection`."""

    def to_dict(self) -> D_co:
        """Return this dict itself, for type checkers as :class:`asyncpq.reports.documents.Inspection`, or that of a
        dataset as :class:`asyncpq.reports.documents.DatasetInspection`."""
        return cast("D_co", self)

    def explain(self) -> str:
        """Return the report as text of several lines."""
        document = cast("Inspection | DatasetInspection", self)
        if document["document"] == "inspection":
            return "\n".join(_file_lines(document))
        size = "" if document["total_bytes"] is None else f", {size_text(document['total_bytes'])}"
        lines = [f"{document['url']}: {plural(len(document['files']), 'file')}{size}, view {document['view']}"]
        lines += [f"  {field['name']}: {field['arrow_type']}" for field in document["schema"][:_SHOWN_COLUMNS]]
        sample = document["sample"]
        if sample is not None:
            lines += ["  the first file:", *[f"  {line}" for line in _file_lines(sample)]]
        return "\n".join(map(printable, lines))

    __str__ = explain

    def _repr_html_(self) -> str | None:
        """Return the page map for notebooks."""
        from asyncpq.page_map import framed

        return framed(cast("Inspection | DatasetInspection", self))


def _file_lines(document: Inspection) -> list[str]:
    groups, columns = document["row_groups"], document["columns"]
    lines = [
        f"{document['url']}: {plural(document['rows'], 'row')} in {plural(len(groups), 'row group')}, "
        f"{size_text(document['size'])}, written by {document['writer'] or 'an unnamed writer'}",
        f"  sorted by {', '.join(document['sorted_by'])}" if document["sorted_by"] else "  sorted by no column",
    ]
    for number, column in enumerate(columns[:_SHOWN_COLUMNS]):
        chunks = [group["chunks"][number] for group in groups]
        size = sum(chunk["bytes"][1] - chunk["bytes"][0] for chunk in chunks)
        codecs = ", ".join(sorted({chunk["codec"].lower() for chunk in chunks}))
        lines.append(f"  {column['name']}: {column['physical_type']}, {size_text(size)}, {codecs}")
    if len(columns) > _SHOWN_COLUMNS:
        lines.append(f"  ... and {plural(len(columns) - _SHOWN_COLUMNS, 'column')} more")
    return [printable(line) for line in lines]
