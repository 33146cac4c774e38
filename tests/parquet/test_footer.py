"""The sans-IO footer decoder: what it asks for, what it finds, what it refuses."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import CorruptFileError, NotParquetError, ResourceLimitError, UnsupportedFeatureError
from asyncpq.parquet.metadata import FooterDecoder, FooterFound, NeedBytes
from tests.parquet_samples import find_footer, sample

FILE = sample("flat_no_schema")
LENGTH = int.from_bytes(FILE[-8:-4], "little")


def drive(data: bytes, prefetch: int) -> tuple[FooterFound, list[NeedBytes]]:
    """Feed the decoder as a reader does that first fetches ``prefetch`` bytes."""
    decoder = FooterDecoder(max_footer_bytes=1 << 20)
    start = max(0, len(data) - prefetch)
    asked = []
    while isinstance(step := decoder.next(data[start:], start, len(data)), NeedBytes):
        assert 0 <= step.start < start
        assert step.stop == len(data)
        asked.append(step)
        start = step.start
    return step, asked


@pytest.mark.parametrize(
    ("prefetch", "requests"),
    [(0, 2), (7, 2), (8, 1), (LENGTH + 7, 1), (LENGTH + 8, 0), (LENGTH + 9, 0), (len(FILE), 0), (len(FILE) + 99, 0)],
)
def test_prefetch_sizes_around_the_footer(prefetch: int, requests: int) -> None:
    found, asked = drive(FILE, prefetch)
    assert found == find_footer(FILE)
    assert found.metadata_bytes == FILE[-8 - LENGTH : -8]
    assert found.start == len(FILE) - 8 - LENGTH
    assert len(asked) == requests


@given(st.integers(0, len(FILE) + 10))
def test_any_prefetch_gives_the_same(prefetch: int) -> None:
    found, asked = drive(FILE, prefetch)
    assert found == find_footer(FILE)
    assert len(asked) <= 2


def tail(length: int, magic: bytes = b"PAR1", size: int = 100) -> bytes:
    return bytes(size - 8) + length.to_bytes(4, "little") + magic


@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (b"", NotParquetError, "empty"),
        (b"PAR1", NotParquetError, "few"),
        (b"PAR1" + bytes(3) + b"PAR1", NotParquetError, "few"),
        (b"<html></html>", NotParquetError, "tml>"),
        (FILE[:-1], NotParquetError, "not in"),
        (b"ARROW1", NotParquetError, "as Arrow files do"),
        (b"ORC\x17", NotParquetError, "as ORC files do"),
        (b"VTXF", NotParquetError, "as Vortex files do"),
        (tail(0), CorruptFileError, "metadata have 0 bytes"),
        (tail(93), CorruptFileError, "metadata have 93 bytes"),
        (tail(2**32 - 1), CorruptFileError, "metadata have 4294967295"),
        (tail(51), ResourceLimitError, "the limit is 50"),
        (tail(20, b"PARE"), UnsupportedFeatureError, "encrypted"),
    ],
)
def test_what_is_refused(data: bytes, error: type[Exception], words: str) -> None:
    decoder = FooterDecoder(max_footer_bytes=50)
    with pytest.raises(error, match=words):
        decoder.next(data, 0, len(data))
    # It is refused before anything beyond the last 8 bytes is asked for.
    last = data[-8:]
    with pytest.raises(error, match=words):
        decoder.next(last, len(data) - len(last), len(data))


def test_a_footer_of_the_largest_size_allowed_is_asked_for() -> None:
    data = tail(50)
    assert FooterDecoder(max_footer_bytes=50).next(data[-8:], 92, 100) == NeedBytes(42, 100)


def test_a_footer_may_be_the_whole_file() -> None:
    assert FooterDecoder(max_footer_bytes=100).next(tail(92)[-8:], 92, 100) == NeedBytes(0, 100)


def test_bytes_that_are_not_the_end_are_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="not the end"):
        FooterDecoder(max_footer_bytes=50).next(bytes(8), 0, 100)
