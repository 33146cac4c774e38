"""Leaves -> rows: the decoded pages of one leaf, cut to the wanted rows of one row group.

A *source* holds what was fetched of one leaf of one row group, decodes only the pages that hold
wanted rows, and gives Arrow arrays of exactly those rows. Sources of different leaves have different
page boundaries; rows are what they agree on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import pyarrow as pa

from asyncpq.decoding.arrow import typed_error
from asyncpq.decoding.decoded_size import held_bytes, refuse
from asyncpq.decoding.leaf import DecodeLimits, LeafDecoder
from asyncpq.decoding.page import ChunkPage, Dictionary, LeafArray, Page, PageQueue
from asyncpq.decoding.plain import PackedPage
from asyncpq.decoding.selection import FEW_ROWS, few_copied, join, take_rows
from asyncpq.errors import AsyncpqError, CorruptFileError
from asyncpq.parquet.metadata import ColumnChunk
from asyncpq.parquet.page_index import OffsetIndex
from asyncpq.parquet.page_walker import PageType, PageWalker
from asyncpq.pruning.row_ranges import RowRanges

_RUN_BYTES = 16 << 20  # compressed pages decoded in one splice

_Run: TypeAlias = "list[Page] | LeafArray | PackedPage"


class PagedSource(PageQueue["Page | LeafArray | PackedPage"]):
    """A leaf that is not repeated, whose pages are known one by one.

    Args:
        decoder: of the leaf.
        chunk: the column chunk.
        num_rows: rows of the row group.
        keep: pages are decoded one by one and handed to ``keep``, for a cache of decoded pages;
            without their dictionary, which has an entry of its own. Given back by :meth:`add`, they
            are put together with :attr:`dictionary` again.
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
        self.pages_decoded = 0

    @property
    def has_dictionary(self) -> bool:
        return self.dictionary is not None

    def add_dictionary(self, page: bytes, limits: DecodeLimits) -> Dictionary:
        """The dictionary page has come; returns what is in it."""
        self.dictionary = dictionary = self._decoder.decode_dictionary(self._chunk, page, limits)
        return dictionary

    def select(self, rows: RowRanges, limits: DecodeLimits) -> pa.Array:
        try:
            result = self._select(rows, limits)
        except (pa.ArrowException, OverflowError) as error:
            raise typed_error(error, "rows cannot be picked").locate(column=self._decoder.leaf.dotted) from error
        if len(result) != rows.num_rows:
            raise CorruptFileError(
                f"{len(result)} rows where {rows.num_rows} were planned", column=self._decoder.leaf.dotted
            )
        return result

    def _select(self, rows: RowRanges, limits: DecodeLimits) -> pa.Array:
        pieces: list[pa.Array] = []
        size = 0
        need = rows
        last = self._last
        if last is not None and rows.start >= last.first_row:
            here = rows.clip(last.first_row, last.stop_row)
            if here:
                pieces.append(self._pick(last, here, limits))
                need = rows.clip(last.stop_row, rows.stop)
        few = need.num_rows <= FEW_ROWS
        runs = self._runs(need, alone=few)
        for run in runs:
            picked = self._pick_few(run, need, limits) if few else None
            if picked is not None:
                pieces.append(picked)
                continue
            arrays = self._decode(run, limits)
            for array in arrays:
                self._last = array
                here = need.clip(array.first_row, array.stop_row)
                if here:
                    piece = self._pick(array, here, limits)
                    pieces.append(piece)
                    if len(runs) == len(arrays) == 1:
                        break  # held to the limit by its decoder
                    # without a dictionary the piece is a slice, and holds on to all of the array
                    size += array.weight if array.dictionary is None else held_bytes(piece)
                    if size > limits.max_decoded_bytes:
                        raise refuse("pages", size, limits.max_decoded_bytes, self._decoder.leaf.dotted)
        return join(pieces, self._decoder.arrow_type)

    def _pick_few(self, run: _Run, rows: RowRanges, limits: DecodeLimits) -> pa.Array | None:
        """The wanted ones of ``rows`` of one page, where that is possible without decoding the page."""
        if isinstance(run, LeafArray):
            return None
        packed = run if isinstance(run, PackedPage) else self._decoder.open_page(self._chunk, run[0], limits)
        if packed is None:
            return None
        if self._keep is not None and packed is not run:
            self._keep(packed)
        wanted = list(rows.clip(packed.first_row, packed.stop_row).rows())
        picked = self._decoder.pick(packed, self.dictionary, wanted)
        self.pages_decoded += picked is not None and packed is not run
        return picked

    def _decode(self, run: _Run, limits: DecodeLimits) -> list[LeafArray]:
        if isinstance(run, LeafArray):
            return [run.attached(self.dictionary, self._decoder.leaf.dotted)]
        if isinstance(run, PackedPage):
            run = [run.page]
        self.pages_decoded += len(run)
        if self._keep is None:
            return self._decoder.decode_pages(self._chunk, self.dictionary, run, limits)
        arrays: list[LeafArray] = []
        for page in run:
            (array,) = self._decoder.decode_pages(self._chunk, self.dictionary, (page,), limits)
            self._keep(array.detached())
            arrays.append(array)
        return arrays

    def _runs(self, rows: RowRanges, *, alone: bool) -> list[_Run]:
        """Pages that hold any of ``rows``: runs of pages whose rows follow one another, and decoded ones.

        Args:
            alone: every page is a run of its own.
        """
        runs: list[_Run] = []
        run: list[Page] = []
        size = 0
        for page in self.holding(rows):
            if isinstance(page, PackedPage) and not alone:
                page = page.page
            if not isinstance(page, Page):
                runs.append(page)
                run = []
            elif run and not alone and page.first_row == run[-1].stop_row and size + len(page.data) <= _RUN_BYTES:
                run.append(page)
                size += len(page.data)
            else:
                run = [page]
                runs.append(run)
                size = len(page.data)
        return runs

    def _pick(self, array: LeafArray, rows: RowRanges, limits: DecodeLimits) -> pa.Array:
        values = take_rows(array.values, rows, array.first_row)
        if array.dictionary is None:
            values = few_copied(values)
        return self._decoder.dense(LeafArray(array.first_row, values, array.dictionary), limits)

    def discard_before(self, row: int) -> None:
        super().discard_before(row)
        if self._last is not None and self._last.stop_row <= row:
            self._last = None


class StreamedSource:
    """A leaf that is not repeated, without known page locations: page headers are walked as the chunk's bytes come.

    ``keep`` is called with each page, for the reads that will know the locations.

    Attributes:
        locations: where the pages are, as an OffsetIndex would say it, once the chunk has come and is whole.
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
        self._first_page = chunk.start  # where data pages begin if nothing but a dictionary stands before them
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

    def feed(self, data: bytes) -> None:
        """The chunk's next bytes.

        Raises:
            CorruptFileError: page headers contradict the footer.
        """
        try:
            self._feed(data)
        except AsyncpqError as error:
            raise error.locate(column=self._decoder.leaf.dotted) from error.__cause__

    def _feed(self, data: bytes) -> None:
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
                        f"pages hold more than the row group's {self._num_rows} rows", column=self._decoder.leaf.dotted
                    )
                self._pages.add(Page(page.data, self._next_row, rows))
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
                    f"pages hold {self._next_row} rows, the row group {self._num_rows}",
                    column=self._decoder.leaf.dotted,
                )
            if self._offsets[:1] == [self._first_page]:
                self.locations = OffsetIndex(self._offsets, self._sizes, self._first_rows)

    def select(self, rows: RowRanges, limits: DecodeLimits) -> pa.Array:
        return self._pages.select(rows, limits)

    def discard_before(self, row: int) -> None:
        self._pages.discard_before(row)
