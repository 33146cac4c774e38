"""The encoding ALP: values a second of whole pages, and what a lookup decodes; run by ``python -m benchmarks.alp``.

The pages are made here (``tests/alp_pages.py``), as the Rust crate ``parquet`` 60 makes them: vectors of 1,024 values,
20,000 values a page. ``--write FOLDER`` stores each column as a file, for other readers. CPU time of one thread, the
least of many runs.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import struct
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import fsspec
import pyarrow as pa

import asyncpq
from asyncpq.decoding.alp import AlpPage, Vector, decoded
from asyncpq.parquet.logical_types import PhysicalType
from tests.alp_pages import alp_file, encoded

ROWS = 20_000  # of a page
PAGES = 10
REPEATS = 100


def _decimals(digits: int) -> list[float]:
    chosen = random.Random(digits)
    return [chosen.randrange(10**digits) / 100 for _ in range(ROWS)]


def _walk() -> list[float]:
    chosen, at, values = random.Random(1), 0, list[float]()
    for _ in range(ROWS):
        at += chosen.randrange(-100, 101)
        values.append(at / 100)
    return values


def _with_exceptions() -> list[float]:
    return [value / 3 if at % 50 == 0 else value for at, value in enumerate(_decimals(5))]


#: Name, values, bits of a value, exponent and factor.
COLUMNS: Sequence[tuple[str, Callable[[], list[float]], int, tuple[int, int]]] = (
    ("prices below 10, double", lambda: _decimals(3), 64, (14, 12)),
    ("prices below 10,000, double", lambda: _decimals(6), 64, (14, 12)),
    ("random walk, double", _walk, 64, (14, 12)),
    ("2 % exceptions, double", _with_exceptions, 64, (14, 12)),
    ("prices below 10, float", lambda: _decimals(3), 32, (6, 4)),
)


def _packed(values: Sequence[float], bits: int) -> bytes:
    return struct.pack(f"<{len(values)}{'f' if bits == 32 else 'd'}", *values)


def _values_a_second(values: Sequence[float], bits: int, pair: tuple[int, int]) -> tuple[float, float]:
    """Return millions of values a second, and bits of a stored value."""
    data = encoded(_packed(values, bits), bits, pairs=[pair])
    kind = PhysicalType.FLOAT if bits == 32 else PhysicalType.DOUBLE
    best = float("inf")
    for _ in range(REPEATS):
        start = time.thread_time()
        pages = [AlpPage(data, 0, kind, ROWS, "x") for _ in range(PAGES)]
        decoded([(page, range(page.num_vectors)) for page in pages])
        best = min(best, time.thread_time() - start)
    return PAGES * ROWS / best / 1e6, len(data) * 8 / ROWS


async def _lookup(data: bytes) -> int:
    """Return the packed bytes of the vectors that a lookup of one row touches."""
    touched: list[int] = []
    original = AlpPage.vector

    def vector(self: AlpPage, number: int) -> Vector:
        found = original(self, number)
        touched.append(found.stop - found.packed)
        return found

    fsspec.filesystem("memory").pipe_file("/benchmarks/alp.parquet", data)
    async with asyncpq.Session() as session:
        file = await session.open_file("memory://benchmarks/alp.parquet")
        AlpPage.vector = vector  # type: ignore[method-assign]
        try:
            await file.lookup({"id": 7_777})
        finally:
            AlpPage.vector = original  # type: ignore[method-assign]
    return sum(touched)


def _file(values: Sequence[float], bits: int, pair: tuple[int, int]) -> bytes:
    kind = pa.float32() if bits == 32 else pa.float64()
    table = pa.table({"id": pa.array(range(ROWS * PAGES)), "x": pa.array([*values] * PAGES, kind)})
    return alp_file(table, [1], rows_per_page=ROWS, row_group_size=ROWS * PAGES, alp={"pairs": [pair]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", type=Path, help="a folder for the columns as files; nothing is measured")
    folder = parser.parse_args().write
    if folder is None:
        print("| column | bits a value | M values/s | bytes of a page | of them touched by a lookup |")
        print("| --- | --- | --- | --- | --- |")
    for name, make, bits, pair in COLUMNS:
        values = make()
        if folder is not None:
            (folder / f"{name.replace(' ', '-').replace(',', '')}.parquet").write_bytes(_file(values, bits, pair))
            continue
        speed, width = _values_a_second(values, bits, pair)
        touched = asyncio.run(_lookup(_file(values, bits, pair)))
        print(f"| {name} | {width:.1f} | {speed:.0f} | {ROWS * width / 8:,.0f} | {touched:,} |")


if __name__ == "__main__":
    main()
