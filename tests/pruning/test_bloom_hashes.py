"""What is known of one chunk's bloom filter: reads that plan at the same time, and filters written in another way."""

from __future__ import annotations

import pytest

from asyncpq.errors import CorruptFileError
from asyncpq.objects.bloom_filters import ChunkFilter
from asyncpq.objects.coalesce import ByteRange
from asyncpq.parquet.bloom_filter import BLOCK_BYTES, BloomFilterHeader, block_of, usual_header
from asyncpq.parquet.thrift import EndOfDataError, varint

START = 1000
LIMIT = 1_000_000
NUM_BLOCKS = 512
HASHES = [(block << 55) + (1 << 54) + 12345 for block in range(NUM_BLOCKS)]  # one of each block


def header(extra: int) -> bytes:
    """A header with an unknown field of ``extra`` bytes."""
    unions = b"\x1c\x1c\x00\x00" * 3
    unknown = b"\x18" + varint(extra) + b"e" * extra if extra else b""
    return b"\x15" + varint(2 * NUM_BLOCKS * BLOCK_BYTES) + unions + unknown + b"\x00"


def longer_than_guessed() -> bytes:
    """A filter whose length lets a shorter header be guessed."""
    return next(
        data
        for extra in range(1, 45)
        if usual_header(len(data := header(extra) + bytes(NUM_BLOCKS * BLOCK_BYTES))) is not None
    )


DATA = longer_than_guessed()


def fetch(parts: list[ByteRange], data: bytes = DATA) -> list[tuple[ByteRange, bytes]]:
    return [(part, data[part.start - START : part.stop - START]) for part in parts]


def ask(known: ChunkFilter, hash_: int, data: bytes = DATA) -> int:
    """Steps until the filter says that no value has the hash."""
    for step in range(4):
        if not known.is_open([hash_]):
            assert known.answer(hash_) is False
            return step
        known.take(fetch(known.ranges([hash_], 0), data), [hash_])
    raise AssertionError("nothing is learnt")


def test_the_samples() -> None:
    guess = usual_header(len(DATA))
    assert guess is not None
    assert guess.header_size < len(DATA) - NUM_BLOCKS * BLOCK_BYTES
    assert [block_of(hash_, NUM_BLOCKS) for hash_ in HASHES] == list(range(NUM_BLOCKS))
    assert usual_header(len(header(0)) + NUM_BLOCKS * BLOCK_BYTES) == BloomFilterHeader(
        len(header(0)), NUM_BLOCKS * BLOCK_BYTES
    )


@pytest.mark.parametrize("readers", [1, 2, 5])
def test_a_header_that_is_longer_than_guessed(readers: int) -> None:
    known = ChunkFilter(START, START + len(DATA), LIMIT)
    plans = [known.ranges([hash_], 0) for hash_ in HASHES[:readers]]  # before any of them has its bytes
    for hash_, parts in zip(HASHES, plans, strict=False):
        known.take(fetch(parts), [hash_])
    assert not known.is_known
    assert [ask(known, hash_) for hash_ in HASHES[:readers]] == [2] + [1] * (readers - 1)


def test_plans_by_the_guess_that_come_after_the_header_is_known() -> None:
    known = ChunkFilter(START, START + len(DATA), LIMIT)
    late = known.ranges([HASHES[7]], 0)
    assert ask(known, HASHES[0]) == 3
    known.take(fetch(late), [HASHES[7]])
    assert ask(known, HASHES[7]) == 1


@pytest.mark.parametrize("stop", [None, START + 40, START + 1024])
def test_a_header_without_an_end(stop: int | None) -> None:
    known = ChunkFilter(START, stop, LIMIT)
    endless = b"\x18" + varint(500_000) + bytes(500_000)
    with pytest.raises(EndOfDataError):
        ask(known, HASHES[0], endless)


def test_a_length_that_the_header_contradicts() -> None:
    known = ChunkFilter(START, START + len(DATA) + 7, LIMIT)
    with pytest.raises(CorruptFileError):
        ask(known, HASHES[0])


def test_probes_are_those_that_took_requests() -> None:
    known = ChunkFilter(START, None, LIMIT)
    for fetched in (True, False, True):
        known.take(fetch(known.ranges(HASHES[:1], 0)), HASHES[:1], fetched=fetched)
    assert known.probes == 2


def test_blocks_that_come_after_the_whole_filter() -> None:
    known = ChunkFilter(START, START + len(DATA), LIMIT)
    assert ask(known, HASHES[0]) == 3
    late = known.ranges([HASHES[7]], 0)
    known.take(fetch([ByteRange(START, START + len(DATA))]), HASHES)
    known.take(fetch(late), [HASHES[7]])
    assert not known.is_open(HASHES)
