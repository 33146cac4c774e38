"""Decide which pages and dictionaries of a scan the caches keep, encoded or decoded.

Memory keeps pages as fetched. While it is less than half full, pages of small reads, and of reads of one page of each
column, are kept decoded instead; after that, only from their second use on, since most pages are used once and a
decoded page is several times larger. Pages of a filtered read of up to a sixteenth of memory, such as a lookup in a
column that is not sorted, are kept decoded from their second use on: decoding a million keys takes 12 ms.

A scan without a filter does not look up single pages itself. It caches its pages for other reads only if it reads
little: copying 32 MB of pages took a fifth of the CPU time of the scan of a column.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from asyncpq.caching.entry_format import ContentKey
from asyncpq.decoding.page import ChunkPage, Dictionary, LeafArray, PackedPage
from asyncpq.decoding.row_group_reader import QueryShape, RowGroupReader
from asyncpq.objects.object_read import FileRead
from asyncpq.objects.page_indexes import indexed_chunk
from asyncpq.objects.read_plan import PART_BYTES, Item, RowGroupPlan
from asyncpq.records import NamedTuple

_SMALL_DICTIONARY = 4096  # bytes, decoded
_PROBED_PAGES = 8  # of a chunk: if one of them is in memory, others may be


class _Unproven(NamedTuple):
    """A page that was fetched with its whole column chunk and is not yet decoded, so it may be damaged."""

    key: ContentKey  # of the page, or dictionary
    stop_row: int  # once the row group's rows before this one were decoded, it is not
    # its bytes, if all rows of the row group are decoded, and others find it by the chunk's own OffsetIndex
    data: bytes | None


class PageKeeper:
    """Decides which pages and dictionaries of one scan are kept in memory, encoded or decoded, and which are written to
    the cache tiers outside this process.

    Pages that were fetched with their whole column chunk may be damaged: they are written to the tiers once they were
    decoded.
    """

    def __init__(self, read: FileRead, shape: QueryShape, *, rows_only: bool) -> None:
        self.use_decoded: bool = not shape.extensions
        self.new: set[ContentKey] = set()  # parts that no cache had
        self.unproven: dict[int, list[_Unproven]] = {}  # pages of chunks that come whole, by row group
        self._read = read
        self._shape = shape
        self._memory = memory = read.source.runtime.memory
        self._rows_only = rows_only
        # Decoded pages are shared with sessions that check CRCs and that allow no extension types; and
        # decoded pages are several times larger: one read would evict all other entries.
        self._may_decode = shape.limits.verify_crc and self.use_decoded
        self._decoded_room = memory.max_bytes // 16 if read.admit and self._may_decode else 0
        self._is_small = read.num_bytes * 64 < memory.max_bytes
        self._leaves_parts = read.num_bytes * 16 < memory.max_bytes
        #: Whether :meth:`stream_chunks` may be called. Other processes share pages, not chunks.
        self.may_stream: bool = not self._leaves_parts and read.tiers is None
        #: Whether decoded pages, and pages of chunks that come whole, are kept for the next reads of the same pages.
        self.keeps_decoded: bool = self._decoded_room > 0 and self._leaves_parts and not read.scan
        self._shares = read.tiers is not None and read.tiers.take(read.num_bytes)
        self._keeping: set[int] = set()  # ordinals of the row groups whose pages are kept decoded
        self._has_room: bool | None = None  # in memory, for decoded pages; looked up for the first one
        self._page_keys: dict[tuple[int, int, int], ContentKey] = {}
        self._proven: dict[ContentKey, bytes] = {}  # pages for the tiers

    def stream_chunks(self, groups: Iterable[RowGroupPlan]) -> None:
        """Let the filter's columns come as chunks where all pages of large ones are read.

        For 2,450 pages, their keys, copies and cache entries took 50 ms of CPU, 20 of them before the first request. A
        chunk whose pages are in memory is read page by page.
        """
        read = self._read
        for group in groups:
            for column in group.columns:
                is_large = column.num_bytes >= PART_BYTES and not column.streamed
                if group.filtered and column.predicate and is_large and column.is_whole:
                    probed = column.pages[:: -(-len(column.pages) // _PROBED_PAGES)]
                    keys = read.version.keys(column.items(0, probed, dictionary=False))
                    column.streamed |= not any(self._memory.get_many(keys, scan=True))

    def reader(self, plan: RowGroupPlan) -> RowGroupReader:
        """Return a new reader of a row group, which reports its decoded pages to this keeper."""
        keep = None
        again = self._leaves_parts and plan.filtered and not self.new
        if self._decoded_room > 0 and (self._is_small or again or _is_wide(plan)):
            keep = self._keep
            self._keeping.add(plan.ordinal)
        admits = self._read.admit and (self._leaves_parts or plan.filtered)
        keep_part = partial(self._keep_part, plan, admits) if (admits or self._shares) and self._may_decode else None
        return RowGroupReader(self._read.version, plan, self._shape, keep=keep, keep_part=keep_part)

    def add(self, reader: RowGroupReader, items: Sequence[Item], arrived: Iterable[tuple[ContentKey, object]]) -> None:
        """Pass what was fetched for ``items`` to ``reader``, and choose what to keep. ``arrived`` has the cache key and
        the bytes, or decoded form, of each."""
        decoding, keeps = reader.sources.decoding, reader.plan.ordinal in self._keeping
        for item, (key, value) in zip(items, arrived, strict=True):
            if isinstance(value, (bytes, memoryview)):
                if item.kind == "dictionary":
                    self._add_dictionary(reader, item, key, bytes(value))
                    continue
                # most pages are used once: without room, they are kept decoded from their second use on
                if keeps and item.kind == "page" and (key not in self.new or self._room()):
                    self._page_keys[reader.plan.ordinal, item.leaf, item.first_row] = key
                elif item.kind == "part" and key in self.new and reader.plan.columns[item.column].offsets is not None:
                    self._keep_chunk(key, value)
                reader.add(item, value)
            elif isinstance(value, (LeafArray, PackedPage)):
                decoding[item.column].add(value)
            elif isinstance(value, Dictionary):
                decoding[item.column].dictionary = value

    def _add_dictionary(self, reader: RowGroupReader, item: Item, key: ContentKey, page: bytes) -> None:
        """Pass a fetched dictionary page to ``reader``, and put the dictionary into memory: decoded, if it can be.

        Of many reads that fetched it at once, the first one decodes it: a thousand lookups would take 4 GB.
        """
        beside = self.use_decoded and len(self._read.source.runtime.calls) > 1
        held = self._memory.get(key, scan=True) if beside else None
        if isinstance(held, Dictionary):
            reader.sources.decoding[item.column].dictionary = held
            return
        made = reader.add_dictionary(item, page)
        if made is None:
            if self._read.admit:
                self._memory.put(key, page, len(page), scan=self._read.probation)
        elif self._may_decode:
            weight = made.weight  # small ones are kept as page indexes are: every scan needs them again
            probation = self._read.probation and weight > _SMALL_DICTIONARY
            self._memory.put(key, made, weight, scan=probation)

    def _keep_chunk(self, key: ContentKey, part: bytes | memoryview) -> None:
        """Put a part of a chunk that was read in place of its pages into memory, as they would have been."""
        if self._read.admit and self.use_decoded:
            if isinstance(part, memoryview) and part.nbytes + 1 < memoryview(part.obj).nbytes:
                part = bytes(part)  # a view keeps the whole response in memory
            self._memory.put(key, part, len(part), scan=self._read.probation)
            self._read.version.keep_whole(key)

    def _room(self) -> bool:
        """Return whether memory has room for decoded pages that may be used only once: it is less than half full."""
        if self._has_room is None:
            self._has_room = self._memory.current_bytes * 2 < self._memory.max_bytes
        return self._has_room

    def _keep(self, row_group: int, leaf: int, array: LeafArray | PackedPage) -> None:
        """Put a decoded page into memory, unless this scan's decoded pages have used up their share of it."""
        key = self._page_keys.get((row_group, leaf, array.first_row))
        if key is not None and self._decoded_room >= (weight := array.weight):
            self._decoded_room -= weight
            self._memory.put(key, array, weight, scan=self._read.probation)

    def _keep_part(self, plan: RowGroupPlan, admits: bool, row_group: int, leaf: int, page: ChunkPage) -> None:
        """Put a page, or a decoded dictionary, of a chunk that was fetched whole into memory if ``admits``, and note it
        as not yet proven."""
        made = page.dictionary
        key = self._read.version.key("page" if made is None else "dictionary", page.start, page.stop)
        known = self._memory.get(key, scan=True) is not None
        if admits and not known:
            if made is None:
                self._memory.offer(key, bytes(page.data), len(page.data))
            else:
                self._memory.offer(key, made, made.weight)
        found_again = (
            self._shares
            and not known
            and not (plan.filtered or self._rows_only)
            and plan.rows.num_rows == plan.num_rows
            and indexed_chunk(self._read.version, row_group, leaf).has_index
        )
        unproven = _Unproven(key, page.stop_row, bytes(page.data) if found_again else None)
        self.unproven.setdefault(row_group, []).append(unproven)

    def prove(self, row_group: int, stop_row: int) -> None:
        """Mark the pages of a row group that end before ``stop_row`` as good, since they were decoded."""
        pages = self.unproven.pop(row_group, ())
        self._proven.update({page.key: page.data for page in pages if page.data and page.stop_row <= stop_row})
        later = [page for page in pages if page.stop_row > stop_row]
        if later:
            self.unproven[row_group] = later

    def unproven_keys(self) -> list[ContentKey]:
        """Return the keys of pages that may be damaged."""
        return [page.key for pages in self.unproven.values() for page in pages]

    def share_proven(self) -> None:
        """Write the pages that proved to be good, and are not yet written, to the cache tiers outside this process."""
        pages = dict([self._proven.popitem() for _ in range(len(self._proven))])  # others are proven meanwhile
        self._read.share_pages(pages, scan=self._read.scan)


def _is_wide(plan: RowGroupPlan) -> bool:
    """Return whether a filtered read takes at most one page of each column. Its decoded pages are kept whatever the
    read's size, since this splits no runs of pages that are decoded together. (The second whole row of 5,000 columns
    took 1.6 times as long.)"""
    return plan.filtered and all(len(column.pages) <= 1 for column in plan.columns)
