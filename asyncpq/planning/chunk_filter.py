"""What is known of the bloom filter of one chunk, and which bytes of it to fetch next. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from asyncpq.errors import CorruptFileError
from asyncpq.format.bloom_filter import (
    BLOCK_BYTES,
    MAX_HEADER_BYTES,
    BloomFilterHeader,
    block_of,
    decode_bloom_filter_header,
    may_contain,
    usual_header,
)
from asyncpq.format.thrift import EndOfDataError
from asyncpq.planning.coalesce import ByteRange, coalesce


class ChunkFilter:
    """What is known of the filter of one chunk: its header, and the blocks that were asked for, or all of them.

    Several reads, of several threads too, may use one: each plans by what it sees and then brings its bytes,
    in the meantime others may have brought theirs. No lock is needed: what is set here is the same whoever sets
    it, is never taken back, and is not iterated over; the bitset is there before the blocks go.

    Args:
        start: its first byte in the object.
        stop: the byte behind the last, where the footer gives the length; else None.
        limit: no filter reaches beyond this byte.

    Attributes:
        start: its first byte in the object.
        reason: why it cannot be used, once that is known.
        probes: how often blocks of it were fetched.
    """

    __slots__ = ("_bitset", "_blocks", "_guess", "_header", "_limit", "_stop", "probes", "reason", "start")

    def __init__(self, start: int, stop: int | None, limit: int) -> None:
        self.start = start
        self.reason: str | None = None
        self.probes = 0
        self._stop = stop
        self._limit = limit  # no filter reaches beyond it
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
        """Whether it has been looked at and can be used."""
        return self._header is not None and self.reason is None

    @property
    def stop(self) -> int | None:
        """The byte behind the last, once it is known."""
        header = self._header
        return self._stop if header is None else self.start + header.header_size + header.num_bytes

    def answer(self, hash_: int) -> bool | None:
        """Whether the chunk may hold a value with this hash; None while that is not known."""
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
        """Whether it may tell more about ``hashes`` than it does."""
        if self.reason is not None or self._bitset is not None:
            return False
        return any(self.answer(hash_) is None for hash_ in hashes)

    def ranges(self, hashes: Iterable[int], gap_bytes: int) -> list[ByteRange]:
        """What to fetch next to know more about ``hashes``: as little as that takes, or everything where a
        request costs as much as ``gap_bytes`` and parts would cost no less."""
        header = self._header or self._guess
        if header is None:  # a request brings this much at the price of a header
            stop = self._limit if self._stop is None else self._stop
            return [ByteRange(self.start, min(stop, self.start + max(gap_bytes, MAX_HEADER_BYTES)))]
        bits = self.start + header.header_size
        parts = [] if self._header is not None else [ByteRange(self.start, bits)]
        numbers = {block_of(hash_, header.num_blocks) for hash_ in hashes}
        places = [bits + number * BLOCK_BYTES for number in sorted(numbers) if number not in self._blocks]
        parts += [ByteRange(start, start + BLOCK_BYTES) for start in places]
        merged = coalesce(parts, gap_bytes=gap_bytes, part_bytes=1 << 62, wave=1 << 62, max_requests=None)
        cost = sum([part.stop - part.start + gap_bytes for part in merged])
        whole = ByteRange(self.start, bits + header.num_bytes)
        return [whole] if cost >= whole.stop - whole.start else parts

    def take(self, parts: Sequence[tuple[ByteRange, bytes]], hashes: Iterable[int], *, fetched: bool = True) -> None:
        """Keep what was fetched, as far as it is of use for ``hashes``.

        Args:
            fetched: requests were sent for it.

        Raises:
            FormatError: the filter must not be used.
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
            raise CorruptFileError(
                f"a bloom filter claims the bytes {self.start} to {stop}, the footer says up to "
                f"{self._limit if self._stop is None else self._stop}"
            )
        return header
