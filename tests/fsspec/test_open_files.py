"""Open files: what is read ahead, and what is not."""

from __future__ import annotations

import io
import random

import pytest

from asyncpq.fsspec.open_files import ReadAhead
from asyncpq.testing import ObjectServer
from tests.fsspec.conftest import Filesystems, requests

DATA = random.Random(1).randbytes(300_000)


class Fetched:
    def __init__(self) -> None:
        self.ranges: list[tuple[int, int]] = []

    def __call__(self, start: int, stop: int) -> bytes:
        assert 0 <= start < stop <= len(DATA)
        self.ranges.append((start, stop))
        return DATA[start:stop]

    @property
    def bytes(self) -> int:
        return sum(stop - start for start, stop in self.ranges)


@pytest.mark.parametrize("seed", range(30))
def test_reads_are_the_objects_bytes(seed: int) -> None:
    choose, fetched = random.Random(seed), Fetched()
    cache = ReadAhead(choose.choice([1000, 50_000]), fetched, len(DATA))
    start = 0
    for _ in range(100):
        if choose.random() < 0.3:
            start = choose.randrange(len(DATA) + 10)
        stop = start + choose.randrange(5000)
        assert cache._fetch(start, stop) == DATA[start:stop]
        start = min(stop, len(DATA))


@pytest.mark.parametrize("step", [1, 100, 8192, 50_000])
def test_a_run_of_small_reads_takes_few_fetches(step: int) -> None:
    fetched = Fetched()
    cache = ReadAhead(1 << 20, fetched, len(DATA))
    whole = 20_000 if step == 1 else len(DATA)
    assert b"".join(cache._fetch(at, at + step) for at in range(0, whole, step)) == DATA[:whole]
    assert len(fetched.ranges) <= 20
    assert fetched.bytes <= 2 * whole
    assert fetched.ranges[-1][1] == len(DATA) or fetched.bytes == fetched.ranges[-1][1]  # each byte once


def test_jumps_fetch_what_they_read() -> None:
    fetched = Fetched()
    cache = ReadAhead(1 << 20, fetched, len(DATA))
    for start in (0, 100, 5000, 200, 100_000, 100_100, 7):
        cache._fetch(start, start + 50)
    assert fetched.bytes == 7 * 50
    cache._fetch(5, 5)
    cache._fetch(len(DATA) + 1, len(DATA) + 9)
    assert len(fetched.ranges) == 7


def test_lines(filesystem: Filesystems, server: ObjectServer) -> None:
    text = "".join(f"line {number}\n" for number in range(100_000))
    server.put("bucket/lines.txt", text.encode())
    with filesystem().open("bucket/lines.txt", "r") as file:
        assert "".join(file) == text
    assert len(requests(server)) < 20
    assert sum(request.sent for request in server.log) <= len(text)


def test_files_are_files(filesystem: Filesystems, server: ObjectServer) -> None:
    server.put("bucket/data", DATA)
    with filesystem().open("bucket/data") as file, io.BytesIO(DATA) as expected:
        for other in (file, expected):
            other.seek(-100, io.SEEK_END)
        assert (file.tell(), file.read()) == (expected.tell(), expected.read())
        buffer = bytearray(64)
        file.seek(1000)
        assert file.readinto(buffer) == 64
        assert buffer == DATA[1000:1064]
        assert (file.seekable(), file.readable(), file.writable()) == (True, True, False)
    with pytest.raises(ValueError, match="closed"):
        file.read(1)


def test_other_caches_of_fsspec(filesystem: Filesystems, server: ObjectServer) -> None:
    server.put("bucket/data", DATA)
    with filesystem().open("bucket/data", cache_type="readahead", block_size=10_000) as file:
        assert file.read(10) == DATA[:10]
    assert requests(server) == ["-65536", "0-10009"]
