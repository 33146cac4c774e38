"""Probe the Bloom filters of the row groups that statistics and page indexes do not rule out.

Filters are fetched through the caches. A probe needs a filter's header, once, and one block of 32 bytes for each value.
Memory keeps one :class:`ChunkFilter` for each column chunk, with its header and the fetched blocks. Other values need
other blocks. So a whole filter is fetched if it is so small that the needed blocks would cost as much, or if it costs
no more than the round trips of twice as many probes as were made so far.

A read probes twice. Before it fetches page indexes, it probes the filters that are in memory and in the object's tail.
Once its pages are planned, the bytes that a filter may save are known; filters are then fetched if that may save more
than it costs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final

from asyncpq.caching.entry_format import ContentKey
from asyncpq.errors import CorruptFileError, FormatError
from asyncpq.expressions import Expression
from asyncpq.objects.coalesce import ByteRange, coalesce, starts_and_stops
from asyncpq.objects.object_read import FileRead
from asyncpq.objects.read_plan import BloomReport
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.bloom_filter import (
    BLOCK_BYTES,
    MAX_HEADER_BYTES,
    BloomFilterHeader,
    block_of,
    decode_bloom_filter_header,
    may_contain,
    usual_header,
)
from asyncpq.parquet.schema import Leaf
from asyncpq.parquet.thrift import EndOfDataError
from asyncpq.parquet.writer_faults import Claim
from asyncpq.pruning.bloom_hashes import Probes, compile_probes, hashes_by_column, may_match, num_values
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.records import NamedTuple


class ChunkFilter:
    """The fetched parts of one column chunk's Bloom filter: its header, and some or all of its blocks.

    Reads in several threads may share one filter without a lock: each only adds bytes that it fetched, which are the
    same for all reads. Nothing is removed or iterated over, except that blocks go once the whole bitset is there.

    ``start``: offset of the filter's first byte in the object. ``stop``: offset after its last byte; None if the footer
    does not give the length. ``limit``: offset before which the file's filters end.
    """

    __slots__ = ("_bitset", "_blocks", "_guess", "_header", "_limit", "_stop", "probes", "reason", "start")

    def __init__(self, start: int, stop: int | None, limit: int) -> None:
        self.start: int = start
        self.reason: str | None = None  # why it cannot be used, once that is known
        self.probes: int = 0  # how often blocks of it were fetched
        self._stop = stop
        self._limit = limit
        self._header: BloomFilterHeader | None = None
        self._guess = None if stop is None else usual_header(stop - start)
        self._blocks: dict[int, bytes] = {}
        self._bitset: bytes | None = None

    @property
    def weight(self) -> int:
        """Approximate bytes held in memory."""
        return 400 + 150 * len(self._blocks) + (len(self._bitset) if self._bitset is not None else 0)

    @property
    def is_known(self) -> bool:
        """Whether the filter's header was read and the filter can be used."""
        return self._header is not None and self.reason is None

    @property
    def stop(self) -> int | None:
        """The offset of the byte after the filter; None until its length is known."""
        header = self._header
        return self._stop if header is None else self.start + header.header_size + header.num_bytes

    def answer(self, hash_: int) -> bool | None:
        """Return False if the chunk has no value with this hash, True if it may have one; None if the needed block is
        not fetched yet."""
        if self.reason is not None:
            return True
        if self._header is None:
            return None
        number = block_of(hash_, self._header.num_blocks)
        blocks, bitset = self._blocks, self._bitset  # in this order: blocks go when the bitset is there
        if bitset is not None:
            return may_contain(bitset[number * BLOCK_BYTES : (number + 1) * BLOCK_BYTES], hash_)
        block = blocks.get(number)
        return None if block is None else may_contain(block, hash_)

    def is_open(self, hashes: Iterable[int]) -> bool:
        """Return whether fetching more of the filter may rule out one of ``hashes``."""
        if self.reason is not None or self._bitset is not None:
            return False
        return any(self.answer(hash_) is None for hash_ in hashes)

    def ranges(self, hashes: Iterable[int], gap_bytes: int) -> list[ByteRange]:
        """Return the byte ranges to fetch next, to test ``hashes``: the hashes' blocks, or the whole filter if that
        costs no more. ``gap_bytes``: a request costs as much as this many bytes."""
        header = self._header or self._guess
        if header is None:  # a request brings this much at the price of a header
            stop = self._limit if self._stop is None else self._stop
            return [ByteRange(self.start, min(stop, self.start + max(gap_bytes, MAX_HEADER_BYTES)))]
        bits = self.start + header.header_size
        parts = [] if self._header is not None else [ByteRange(self.start, bits)]
        numbers = {block_of(hash_, header.num_blocks) for hash_ in hashes}
        places = [bits + number * BLOCK_BYTES for number in sorted(numbers) if number not in self._blocks]
        parts += [ByteRange(start, start + BLOCK_BYTES) for start in places]
        merged = coalesce(
            *starts_and_stops(parts),
            gap_bytes=gap_bytes,
            wave=1 << 62,
            wave_bytes=0,
            part_bytes=1 << 62,
            max_requests=None,
        )
        cost = sum([part.stop - part.start + gap_bytes for part in merged])
        whole = ByteRange(self.start, bits + header.num_bytes)
        return [whole] if cost >= whole.stop - whole.start else parts

    def take(self, parts: Sequence[tuple[ByteRange, bytes]], hashes: Iterable[int], *, fetched: bool = True) -> None:
        """Keep what ``hashes`` need of ``parts``: byte ranges of the object, with their bytes. ``fetched``: whether
        requests were sent for them.

        Raises FormatError if the filter is damaged or of an unknown kind and must not be used.
        """
        self.probes += fetched
        header = self._header or self._read_header(parts)
        if header is None:
            return
        self._header = header
        bits = self.start + header.header_size
        for part, data in parts:
            if part.start <= bits and part.stop >= bits + header.num_bytes:
                self._bitset = data[bits - part.start : bits - part.start + header.num_bytes]
                self._blocks = {}
                return
        for number in {block_of(hash_, header.num_blocks) for hash_ in hashes}:
            start = bits + number * BLOCK_BYTES
            for part, data in parts:
                if part.start <= start and part.stop >= start + BLOCK_BYTES:
                    self._blocks[number] = data[start - part.start : start - part.start + BLOCK_BYTES]

    def _read_header(self, parts: Sequence[tuple[ByteRange, bytes]]) -> BloomFilterHeader | None:
        first = next((data for part, data in parts if part.start == self.start), b"")
        try:
            header = decode_bloom_filter_header(first)
        except EndOfDataError:
            stop = self._limit if self._stop is None else self._stop
            if len(first) >= min(MAX_HEADER_BYTES, stop - self.start):
                raise
            self._guess = None  # it is written in another way: once more, with more bytes
            return None
        stop = self.start + header.header_size + header.num_bytes
        if stop > self._limit or (self._stop is not None and stop != self._stop):
            end = f"must end by byte {self._limit}" if self._stop is None else f"ends at byte {self._stop}"
            raise CorruptFileError(
                f"a bloom filter has the bytes {self.start} to {stop} by its header, but {end} by the footer"
            )
        return header


_MAX_STEPS: Final = 3  # header and blocks at once; else a header, then its blocks; one more for an unusual header
_MANY: Final = 10  # values for each row group; with more, nearly every row group has one of the values
_MAX_CHECKS: Final = 50_000  # values times row groups that are looked up in filters, on the event loop
_MEMORY_SHARE: Final = 8  # whole filters take at most this part of the memory cache at a time


class FilterPlaces(NamedTuple):
    """The positions of the Bloom filters of one leaf column in the object."""

    # by row group, first byte and, where the footer gives the length, the byte after the last
    spans: Mapping[int, tuple[int, int | None]]
    misplaced: bool  # a filter has an impossible position
    wrong: str | None = None  # why the filters of the file's writer are ignored; None if they are used


class RowGroupFilters:
    """The Bloom filters that one query may probe.

    ``probes``: the conditions of the query, as hashes to look up. ``places``: the filters' positions, by column name.
    """

    def __init__(self, read: FileRead, probes: Probes, places: Mapping[str, FilterPlaces]) -> None:
        self._read = read
        self._probes = probes
        self._hashes = hashes_by_column(probes)
        self._places = places
        self._prices = read.prices
        self._filters: dict[tuple[int, str], ChunkFilter | None] = {}
        self.dropped: set[int] = set()  # ordinals of the row groups ruled out so far
        for column in self._hashes:
            if places[column].misplaced:
                read.metrics.fall_back(
                    f"{column}: a bloom filter is said to be outside the file's data; the bloom filter is not used"
                )

    def report(self) -> BloomReport:
        """Return which columns' filters were probed, in which row groups, and the row groups that they ruled out."""
        asked = {ordinal for (ordinal, _), filter_ in self._filters.items() if filter_ is not None and filter_.is_known}
        return BloomReport(
            tuple(self._hashes), RowRanges.from_rows(sorted(asked)), RowRanges.from_rows(sorted(self.dropped))
        )

    async def rule_out(self, row_groups: Sequence[int], stakes: Mapping[int, int] | None = None) -> None:
        """Rule out row groups without matching rows: add them to ``dropped``. Only ``row_groups`` (ordinals) count.

        ``stakes`` maps each row group to the bytes that reading it would take; filters are fetched if that may save
        more than it costs. Without ``stakes``, only filters in memory, or in the object's cached tail, are probed.
        """
        pending = self._pending(row_groups)
        if pending and stakes is not None and not self._is_worth_it(pending, stakes, len(row_groups)):
            stakes = None
        whole = stakes is not None and self._buys(pending)
        for _ in range(_MAX_STEPS):
            wanted = [(filter_, column, self._ranges(filter_, column, whole)) for _, column, filter_ in pending]
            if stakes is None:
                tail_start = self._tail_start()
                wanted = [item for item in wanted if all(part.start >= tail_start for part in item[2])]
            if not wanted:
                return
            await self._fetch(wanted)
            pending = self._pending(row_groups)

    def _pending(self, row_groups: Sequence[int]) -> list[tuple[int, str, ChunkFilter]]:
        """Probe the filters as far as they are fetched. Return (row group, column, filter) of those that may rule out
        more once more of them is fetched."""
        pending: list[tuple[int, str, ChunkFilter]] = []
        for ordinal in row_groups:
            if ordinal in self.dropped:
                continue
            if not may_match(self._probes, partial(self._contains, ordinal)):
                self.dropped.add(ordinal)
                continue
            for column, hashes in self._hashes.items():
                filter_ = self._filter(ordinal, column)
                if filter_ is not None and filter_.is_open(hashes):
                    pending.append((ordinal, column, filter_))
        return pending

    def _contains(self, ordinal: int, column: str, hash_: int) -> bool:
        filter_ = self._filter(ordinal, column)
        return filter_ is None or filter_.answer(hash_) is not False

    def _filter(self, ordinal: int, column: str) -> ChunkFilter | None:
        place = (ordinal, column)
        if place in self._filters:
            return self._filters[place]
        filter_: ChunkFilter | None = None
        span = self._places[column].spans.get(ordinal)
        if span is not None:
            filter_ = self._read.source.runtime.memory.get(_kept(self._read.version, span[0]))
            if filter_ is None:
                self._read.metrics.cache_misses += 1
                filter_ = ChunkFilter(*span, self._read.version.footer_start)
            else:
                self._read.metrics.cache_hits += 1
            if filter_.reason is not None:
                self._read.metrics.fall_back(f"{column}: {filter_.reason}")
        self._filters[place] = filter_
        return filter_

    def _ranges(self, filter_: ChunkFilter, column: str, whole: bool) -> list[ByteRange]:
        stop = filter_.stop
        if whole and stop is not None:
            return [ByteRange(filter_.start, stop)]
        return filter_.ranges(self._hashes[column], self._prices.gap_bytes)

    async def _fetch(self, wanted: Sequence[tuple[ChunkFilter, str, list[ByteRange]]]) -> None:
        """Fetch the byte ranges of each filter, all in one round. Each filter then has more blocks, or the reason why
        it cannot be used."""
        read, version, metrics = self._read, self._read.version, self._read.metrics
        keys = {part: version.key("bloom_filter", *part) for _, _, parts in wanted for part in parts}
        found = await read.fetch(list(keys.values()), "bloom", metrics.rounds + 1)
        data, sent = found.data, set(found.asked)
        good = True
        for filter_, column, parts in wanted:
            fetched = any(keys[part] in sent for part in parts)
            try:
                filter_.take([(part, data[keys[part]]) for part in parts], self._hashes[column], fetched=fetched)
            except FormatError as error:
                filter_.reason = f"{error.message}; the bloom filter is not used"
                metrics.fall_back(f"{column}: {filter_.reason}")
                good = False
            read.source.runtime.memory.put(_kept(version, filter_.start), filter_, filter_.weight)
        if good:
            read.share(found)

    def _tail_start(self) -> int:
        version = self._read.version
        tail: bytes | None = self._read.source.runtime.memory.get(version.tail_key)
        return version.size if tail is None else version.tail_start(tail)

    # -- costs ----------------------------------------------------------------------------

    def _is_worth_it(
        self, pending: Sequence[tuple[int, str, ChunkFilter]], stakes: Mapping[int, int], num_row_groups: int
    ) -> bool:
        """Return whether probing the ``pending`` filters is expected to save more time than fetching them takes; True
        if the options request all filters.

        The estimate assumes that each value is equally likely to be in any one of the row groups, or in none. The
        saving is the share of ``stakes`` (bytes by row group) that lies in row groups without any of the values.
        """
        options = self._read.source.runtime.options
        if options.requests.bloom_filters == "always":
            return True
        tail_start = self._tail_start()
        ranges = [
            part
            for _, column, filter_ in pending
            for part in self._ranges(filter_, column, False)
            if part.start < tail_start
        ]
        prices = self._prices
        cost_s = prices.round_s(prices.requests(ranges))
        absent = (1 - 1 / (num_row_groups + 1)) ** num_values(self._probes)
        saved = absent * sum([stakes[ordinal] for ordinal in {ordinal for ordinal, _, _ in pending}])
        return saved / prices.bandwidth_bytes_s > cost_s

    def _buys(self, pending: Sequence[tuple[int, str, ChunkFilter]]) -> bool:
        """Return whether to fetch the ``pending`` filters whole. If they had been in memory, each probe so far would
        have saved a round trip; as many probes are expected again."""
        size = sum([filter_.stop - filter_.start for _, _, filter_ in pending if filter_.stop is not None])
        probes = max((filter_.probes for _, _, filter_ in pending), default=0)
        return (
            probes * 2 * self._prices.round_bytes >= size
            and probes > 0
            and size <= self._read.source.runtime.memory.max_bytes // _MEMORY_SHARE
        )


def row_group_filters(read: FileRead, prune: Expression | None, leaves: Mapping[str, Leaf]) -> RowGroupFilters | None:
    """Return the Bloom filters that may rule out row groups for the predicate ``prune``; None if no such filter exists
    or the options disable Bloom filters.

    Args:
        leaves: the columns of ``prune`` that are leaf columns, keyed by name.
    """
    version, options = read.version, read.source.runtime.options
    if prune is None or not options.read.trust_statistics or options.requests.bloom_filters == "never":
        return None
    places = {name: _places_of(version, leaf) for name, leaf in leaves.items()}
    for name, found in places.items():
        if found.wrong is not None:
            read.metrics.fall_back(f"{name}: {found.wrong}; they are not used")
    known = {name: leaves[name] for name, found in places.items() if found.spans}
    if not known:
        return None
    groups = len(version.metadata.row_groups)
    most = None if options.requests.bloom_filters == "always" else min(_MANY * groups, _MAX_CHECKS // groups)
    calendars = version.metadata.calendars
    rebased = {name: calendars[leaf.index] for name, leaf in known.items() if leaf.index in calendars}
    probes = compile_probes(prune, known, max_values=most, calendars=rebased)
    return None if probes is None else RowGroupFilters(read, probes, places)


def may_have_filters(version: FileVersion, leaves: Iterable[Leaf]) -> bool:
    """Return whether the footer may list Bloom filters of ``leaves``."""
    places = [_places_of(version, leaf) for leaf in leaves]
    return any(place.spans or place.wrong is not None for place in places)


def _places_of(version: FileVersion, leaf: Leaf) -> FilterPlaces:
    weight = 100 * len(version.metadata.row_groups)
    return version.derived(("bloom filters", leaf.index), partial(_places, version, leaf), weight)


def _places(version: FileVersion, leaf: Leaf) -> FilterPlaces:
    spans: dict[int, tuple[int, int | None]] = {}
    misplaced = False
    for group in version.metadata.row_groups:
        chunk = group.chunk(leaf.index)
        start, length = chunk.bloom_filter_offset, chunk.bloom_filter_length
        if start is None or chunk.has_crypto:  # an encrypted column's filter is encrypted, too
            continue
        stop = None if length is None else start + length
        if start < 4 or (start if stop is None else stop) > version.footer_start or (length is not None and length < 1):
            misplaced = True
        else:
            spans[group.ordinal] = (start, stop)
    fault = version.metadata.writer_faults.find(Claim.BLOOM_FILTERS, leaf)
    if fault is not None and (spans or misplaced):
        return FilterPlaces({}, False, fault.reason(Claim.BLOOM_FILTERS))
    return FilterPlaces(spans, misplaced)


def _kept(version: FileVersion, start: int) -> ContentKey:
    """Return the key under which the memory cache keeps the filter that begins at byte ``start``.

    The key's byte range is empty, so it differs from the keys of fetched parts.
    """
    return version.key("bloom_filter", start, start)
