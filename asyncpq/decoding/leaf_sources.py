"""Return the rows of one leaf column, which is not repeated, in one row group, from its fetched pages.

``PagedSource`` knows its pages' locations beforehand, ``StreamedSource`` finds them in the chunk's bytes. Both decode
only the pages that hold requested rows.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa

from asyncpq.checkpoints import checkpoint, checks
from asyncpq.decoding.arrow import FEW_ROWS, few_copied, held_bytes, join, take_rows, typed_error
from asyncpq.decoding.decoded_size import refuse
from asyncpq.decoding.leaf import DecodeLimits, LeafDecoder
from asyncpq.decoding.page import ChunkPage, DataPage, Dictionary, LeafArray, PackedPage, PageQueue, Picked
from asyncpq.errors import AsyncpqError, CorruptFileError
from asyncpq.parquet.chunk_pages import PageWalker
from asyncpq.parquet.column_chunk import ColumnChunk, Encoding, PageType
from asyncpq.parquet.page_index import OffsetIndex
from asyncpq.pruning.row_ranges import RowRanges

_PICKED_ROWS = 4  # of each page on average: so few are picked one by one, in half of the time of decoding the pages
_OPENED_PAGES = 64  # at once, at most
_RUN_BYTES = 16 << 20  # compressed pages decoded in one splice

_Run: TypeAlias = "DataPage | list[DataPage] | LeafArray | PackedPage"


class PagedSource(PageQueue["DataPage | LeafArray | PackedPage"]):
    """Returns the rows of a leaf column that is not repeated and whose page locations are known.

    ``keep``, if set, is called with each decoded page, without its dictionary, to cache it; pages are then decoded one
    by one. A cached page that is passed to :meth:`add` is joined with :attr:`dictionary` again.
    """

    def __init__(
        self,
        decoder: LeafDecoder,
        chunk: ColumnChunk,
        num_rows: int,
        *,
        keep: Callable[[LeafArray | PackedPage], None] | None = None,
    ) -> None:
        super().__init__(num_rows)
        self._decoder = decoder
        self._chunk = chunk
        self._keep = keep
        self._last: LeafArray | None = None  # the run decoded last may reach into the next selection
        self.dictionary: Dictionary | None = None
        self._dictionary_page = b""  # kept where it decodes many rows at once
        self.pages_decoded: int = 0

    @property
    def has_dictionary(self) -> bool:
        return self.dictionary is not None

    def add_dictionary(self, page: bytes | memoryview, limits: DecodeLimits) -> Dictionary:
        """Decode the fetched dictionary page, keep the dictionary for later pages, and return it."""
        self.dictionary = dictionary = self._decoder.decode_dictionary(self._chunk, page, limits)
        if self._keep is None and self._decoder.expands_at_once:
            self._dictionary_page = bytes(page)  # a view keeps its whole response in memory
        return dictionary

    def rows_with(self, rows: RowRanges, texts: Sequence[bytes], limits: DecodeLimits) -> RowRanges:
        """Return ``rows`` without those on pages that contain none of ``texts``. All pages of ``rows`` are there.

        The search stops once it has ruled out less than half of the searched pages. Decoded pages are not searched. If
        a cache keeps decoded pages, no page is searched. Raises the errors of :meth:`select`.
        """
        if self._keep is not None or not self._decoder.searchable:
            return rows
        pages = self.holding(rows)
        fetched = [page for page in pages if isinstance(page, DataPage)]
        absent: list[DataPage] = []
        start = 0
        while start < len(fetched) and len(absent) * 2 >= start:
            without, count = self._decoder.pages_without(self._chunk, fetched[start:], texts, limits)
            absent += [fetched[start + position] for position in sorted(without)]
            start += count
        self.pages_decoded += len(absent)
        return rows - RowRanges.from_sorted([(page.first_row, page.stop_row) for page in absent])

    def select(self, rows: RowRanges, limits: DecodeLimits, *, encoded: bool = False) -> pa.Array:
        """Return the values of exactly ``rows``, whose pages must have arrived. With ``encoded``, the result is a
        dictionary array if a filter is faster on one; see :meth:`dense`.

        Raises CorruptFileError if a page contradicts its header, the index or the footer, ResourceLimitError if the
        pages would decode to too many bytes.
        """
        try:
            encoded = encoded and self._decoder.encodes(self.dictionary, rows.num_rows)
            pieces = self._pieces(rows, limits, encoded)
            if encoded and not all(isinstance(piece, pa.DictionaryArray) for piece in pieces):
                pieces = [self.dense(piece, limits) for piece in pieces]  # the dictionary was full
            result = pieces[0] if len(pieces) == 1 else join(pieces, self._decoder.arrow_type)
        except (pa.ArrowException, OverflowError) as error:
            raise typed_error(error, "rows cannot be picked").locate(column=self._decoder.leaf.dotted) from error
        if len(result) != rows.num_rows:
            raise CorruptFileError(
                f"the column's pages have {len(result)} rows, expected {rows.num_rows}",
                column=self._decoder.leaf.dotted,
            )
        return result

    def dense(self, array: pa.Array, limits: DecodeLimits) -> pa.Array:
        """Convert a result of :meth:`select` to the column's own type. Raises ResourceLimitError if it is too large."""
        if isinstance(array, pa.DictionaryArray) and array.type != self._decoder.arrow_type:
            return self._decoder.dense(array.indices, array.dictionary, limits)
        return array

    def _pieces(self, rows: RowRanges, limits: DecodeLimits, encoded: bool) -> list[pa.Array]:
        pieces: list[pa.Array | Picked] = []
        size = 0
        needed = rows
        last = self._last
        if last is not None and rows.start >= last.first_row:
            here = rows.clip(last.first_row, last.stop_row)
            if here:
                pieces.append(self._cut(last, here, limits, encoded))
                needed = rows.clip(last.stop_row, rows.stop)
        pages = self.holding(needed)
        few = needed.num_rows <= max(FEW_ROWS, len(pages) * _PICKED_ROWS)
        apart = () if few else self._partly_read(pages, needed, limits)
        runs: list[_Run] = [*pages] if few or len(pages) == 1 else _runs(pages, apart)
        opened: deque[PackedPage | None] = deque()  # the next of ``runs``, while they are picked from
        picks = False
        number = 0
        while number < len(runs):
            run = runs[number]
            if not isinstance(run, (LeafArray, list)) and (few or run.first_row in apart):
                picked = self._pick(runs, number, opened, needed, limits)
                if picked is not None:
                    pieces.append(picked)
                    picks = True
                    number += 1
                    continue
                one_by_one, few = few, needed.num_rows <= FEW_ROWS
                if one_by_one and not few:  # adjacent pages are decoded together from here on
                    runs = [*runs[:number], *_runs(pages[number:])]
                    run = runs[number]
            number += 1
            arrays = self._decode(run, limits)
            placed: Iterable[tuple[LeafArray, RowRanges]]
            if isinstance(run, list):
                placed = self._placed(run, arrays, needed)
            else:
                (last,) = arrays
                self._last = last
                here = needed if len(pages) == 1 else needed.clip(last.first_row, last.stop_row)
                placed = ((last, here),)
            for array, here in placed:
                if here.num_rows:
                    piece = self._cut(array, here, limits, encoded)
                    pieces.append(piece)
                    if len(runs) == len(arrays) == 1:
                        break  # its decoder has checked its size
                    # Without a dictionary the piece is a slice, which keeps the whole array alive.
                    size += array.weight if array.dictionary is None else held_bytes(piece)
                    if size > limits.max_decoded_bytes:
                        raise refuse("pages", size, limits.max_decoded_bytes, self._decoder.leaf.dotted)
        return self._decoder.join_picked(pieces, self.dictionary) if picks else pieces

    def _partly_read(
        self, pages: Sequence[DataPage | LeafArray | PackedPage], needed: RowRanges, limits: DecodeLimits
    ) -> Collection[int]:
        """Return the first rows of the pages of which only parts are decoded (:meth:`LeafDecoder.is_partly_read`)."""
        if Encoding.ALP not in self._chunk.encodings:
            return ()
        apart: set[int] = set()
        for page in pages:
            num_rows = needed.clip(page.first_row, page.stop_row).num_rows
            if isinstance(page, PackedPage):
                page = page.page
            if isinstance(page, DataPage) and self._decoder.is_partly_read(self._chunk, page, num_rows, limits):
                apart.add(page.first_row)
        return apart

    def _placed(
        self, run: Sequence[DataPage], arrays: Sequence[LeafArray], needed: RowRanges
    ) -> Iterator[tuple[LeafArray, RowRanges]]:
        """Yield each of ``arrays``, to which the pages ``run`` were decoded, and its needed rows, as row numbers that
        fit ``first_row`` of the yielded array. Remember the last array."""
        if run[-1].stop_row - run[0].first_row == sum([page.num_rows for page in run]):
            for array in arrays:
                self._last = array
                yield array, needed.clip(array.first_row, array.stop_row)
            return
        pages = iter(run)
        for array in arrays:  # pages are missing between its pages
            spans: list[tuple[int, int]] = []
            stop = 0
            while stop < len(array.values):
                page = next(pages)
                shift, stop = stop - page.first_row, stop + page.num_rows
                here = needed.clip(page.first_row, page.stop_row)
                spans += [(start + shift, end + shift) for start, end in here]
                self._last = LeafArray(page.first_row, array.values.slice(stop - page.num_rows), array.dictionary)
            yield array._replace(first_row=0), RowRanges.from_sorted(spans)

    def _pick(
        self, runs: Sequence[_Run], number: int, opened: deque[PackedPage | None], rows: RowRanges, limits: DecodeLimits
    ) -> Picked | pa.Array | None:
        """Return the values of ``rows`` on the page ``runs[number]``, without decoding the other values. None if the
        page has to be decoded whole. ``opened``, which is updated, has the pages from there on that are open
        already."""
        page = runs[number]
        if isinstance(page, DataPage):
            packed = self._open(runs, number, opened, limits)
        else:
            packed = page if isinstance(page, PackedPage) else None
        if packed is None or not self._decoder.picks:
            return None
        if self._keep is not None and packed is not page:
            self._keep(packed)
        first, stop = packed.first_row, packed.stop_row
        positions: list[int] = []
        starts, stops = rows.starts, rows.stops
        number = bisect_right(stops, first)
        while number < len(starts) and starts[number] < stop:
            positions += range(max(starts[number], first) - first, min(stops[number], stop) - first)
            number += 1
        indices, data = None, b""
        if packed.is_alp:
            self.pages_decoded += packed is not page
            return self._decoder.pick_alp(packed, positions)
        if packed.value_bytes >= 0:
            content, length = packed.content, packed.value_bytes
            begin, stride = packed.start + packed.prefix_bytes, length + packed.prefix_bytes
            for position in positions:
                start = begin + position * stride
                data += content[start : start + length]
        else:
            indices = None if self.dictionary is None else packed.indices(positions)
            if indices is None:
                return None
        self.pages_decoded += packed is not page
        return indices, data, len(positions), packed.value_bytes if packed.prefix_bytes else -1

    def _open(
        self, runs: Sequence[_Run], number: int, opened: deque[PackedPage | None], limits: DecodeLimits
    ) -> PackedPage | None:
        """Open the page ``runs[number]``, and some after it at once, unless they are kept."""
        if not opened:
            if checks:  # some thread runs work that may stop
                checkpoint()
            page = runs[number]
            if self._keep is not None and isinstance(page, DataPage):
                return self._decoder.open_page(self._chunk, page, limits)
            some: list[DataPage] = []
            for page in runs[number : number + _OPENED_PAGES]:
                if not isinstance(page, DataPage):
                    break
                some.append(page)
            opened.extend(self._decoder.open_pages(self._chunk, some, limits))
        return opened.popleft()

    def _decode(self, run: _Run, limits: DecodeLimits) -> list[LeafArray]:
        if isinstance(run, LeafArray):
            return [run.attached(self.dictionary, self._decoder.leaf.dotted) if run.lacks_dictionary else run]
        if checks:
            checkpoint()
        pages = run if isinstance(run, list) else [run.page if isinstance(run, PackedPage) else run]
        self.pages_decoded += len(pages)
        if self._keep is None:
            return self._decoder.decode_pages(self._chunk, self.dictionary, pages, limits, self._dictionary_page)
        arrays: list[LeafArray] = []
        for page in pages:
            (array,) = self._decoder.decode_pages(self._chunk, self.dictionary, (page,), limits)
            self._keep(array.detached())
            arrays.append(array)
        return arrays

    def _cut(self, array: LeafArray, rows: RowRanges, limits: DecodeLimits, encoded: bool) -> pa.Array:
        values = take_rows(array.values, rows, array.first_row)
        if array.dictionary is None and len(values) < len(array.values):
            values = few_copied(values)
        return self._decoder.dense(values, array.dictionary, limits, encoded=encoded)

    def discard_before(self, row: int) -> None:
        super().discard_before(row)
        if self._last is not None and self._last.stop_row <= row:
            self._last = None


def _runs(pages: Sequence[DataPage | LeafArray | PackedPage], apart: Collection[int] = ()) -> list[_Run]:
    """Group pages for decoding: decoded pages, and those whose first rows are in ``apart``, stand alone; other pages
    form runs that are decoded together."""
    runs: list[_Run] = []
    run: list[DataPage] = []
    size = 0
    for page in pages:
        if isinstance(page, PackedPage) and page.first_row not in apart:
            page = page.page
        if isinstance(page, (LeafArray, PackedPage)) or page.first_row in apart:
            runs.append(page)
            run = []
        elif run and size + len(page.data) <= _RUN_BYTES:
            run.append(page)
            size += len(page.data)
        else:
            run = [page]
            runs.append(run)
            size = len(page.data)
    return runs


class StreamedSource:
    """Returns the rows of a leaf column that is not repeated, and whose page locations are found in the chunk's bytes
    as they arrive.

    ``keep``, if set, is called with each page, to cache it. Once the whole chunk has arrived, ``locations`` are set.
    ``padded`` is explained in :class:`asyncpq.parquet.chunk_pages.PageWalker`.
    """

    def __init__(
        self,
        decoder: LeafDecoder,
        chunk: ColumnChunk,
        num_rows: int,
        limits: DecodeLimits,
        *,
        padded: bool = False,
        keep: Callable[[ChunkPage], None] | None = None,
    ) -> None:
        self._pages = PagedSource(decoder, chunk, num_rows)
        self._keep = keep
        self._walker = PageWalker(
            chunk,
            max_page_bytes=limits.max_page_bytes,
            leaf=decoder.leaf,
            padded=padded,
            verify_crc=limits.verify_crc,
            drop=decoder.drop,
        )
        self._decoder = decoder
        self._chunk = chunk
        self._num_rows = num_rows
        self._limits = limits
        self._next_row = 0
        self._fed = chunk.start
        self._first_page = chunk.start  # the first data page, if only a dictionary stands before it
        self._offsets: list[int] = []
        self._sizes: list[int] = []
        self._first_rows: list[int] = []
        self.locations: OffsetIndex | None = None

    @property
    def rows_available(self) -> int:
        return self._num_rows if self._fed == self._chunk.stop else self._next_row

    @property
    def pages_decoded(self) -> int:
        return self._pages.pages_decoded

    def feed(self, data: bytes | memoryview) -> None:
        """Add the chunk's next bytes; raise CorruptFileError if page headers contradict the footer."""
        try:
            self._feed(data)
        except AsyncpqError as error:
            raise error.locate(column=self._decoder.leaf.dotted) from error.__cause__

    def _feed(self, data: bytes | memoryview) -> None:
        for page in self._walker.feed(data):
            if page.header.type == PageType.DICTIONARY_PAGE:
                dictionary = self._pages.add_dictionary(page.data, self._limits)
                self._first_page = page.offset + len(page.data)
                if self._keep is not None:
                    self._keep(ChunkPage(page.offset, page.data, 0, dictionary))
            elif page.header.type != PageType.INDEX_PAGE:
                rows = page.header.num_values
                if rows == 0:
                    continue
                if self._next_row + rows > self._num_rows:
                    raise CorruptFileError(
                        f"pages have more rows than the row group, which has {self._num_rows}",
                        column=self._decoder.leaf.dotted,
                    )
                self._pages.add(DataPage(page.data, self._next_row, rows, page.header, checked=True))
                if self._keep is not None:
                    self._keep(ChunkPage(page.offset, page.data, self._next_row + rows, None))
                self._offsets.append(page.offset)
                self._sizes.append(len(page.data))
                self._first_rows.append(self._next_row)
                self._next_row += rows
        self._fed += len(data)
        if self._fed == self._chunk.stop:
            self._walker.finish()
            if self._next_row != self._num_rows:
                raise CorruptFileError(
                    f"pages have {self._next_row} rows, but the row group has {self._num_rows}",
                    column=self._decoder.leaf.dotted,
                )
            if self._offsets[:1] == [self._first_page]:
                self.locations = OffsetIndex(tuple(self._offsets), tuple(self._sizes), tuple(self._first_rows))

    def select(self, rows: RowRanges, limits: DecodeLimits, *, encoded: bool = False) -> pa.Array:
        return self._pages.select(rows, limits, encoded=encoded)

    def rows_with(self, rows: RowRanges, texts: Sequence[bytes], limits: DecodeLimits) -> RowRanges:
        return self._pages.rows_with(rows, texts, limits)

    def dense(self, array: pa.Array, limits: DecodeLimits) -> pa.Array:
        return self._pages.dense(array, limits)

    def discard_before(self, row: int) -> None:
        self._pages.discard_before(row)
