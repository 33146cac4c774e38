"""How conditions of many terms grow, by the form in which they are written: ``python -m benchmarks.long_filters``.

Each form says the same twice: as that many equalities joined by OR, and as one list of as many values. The figures are
CPU seconds to make the condition, to make both and read a small file with it, and the ratio of the equalities to the
list, from runs in turns in one process. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import operator
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

import asyncpq
from asyncpq import col

TURNS = 3


def _balanced(terms: list[Any]) -> Any:
    """Join expressions pairwise: pyarrow follows a chain of thousands by recursion, and crashes."""
    while len(terms) > 1:
        terms = [functools.reduce(operator.or_, terms[at : at + 2]) for at in range(0, len(terms), 2)]
    return terms[0]


#: For each form: the condition of equalities, and that of one list.
FORMS: dict[str, tuple[Callable[[range], Any], Callable[[range], Any]]] = {
    "col": (
        lambda values: functools.reduce(operator.or_, [col("id") == value for value in values]),
        lambda values: col("id").is_in(list(values)),
    ),
    "SQL": (
        lambda values: " OR ".join([f"id = {value}" for value in values]),
        lambda values: f"id IN ({', '.join(map(str, values))})",
    ),
    "filter lists": (
        lambda values: [[("id", "=", value)] for value in values],
        lambda values: [("id", "in", list(values))],
    ),
    "pyarrow": (
        lambda values: _balanced([pc.field("id") == value for value in values]),
        lambda values: pc.field("id").isin(list(values)),
    ),
}


async def _cpu_s(file: asyncpq.File, make: Callable[[range], Any], values: range) -> float:
    began = time.process_time()
    table = await file.read(where=make(values))
    took = time.process_time() - began
    assert table.num_rows == len(values), table.num_rows
    return took


async def measure(path: Path, counts: list[int]) -> None:
    """Print the CPU seconds of each form and number of terms, and their ratio."""
    print("| form | terms | equalities, CPU ms | one list, CPU ms | ratio |")
    print("| --- | ---: | ---: | ---: | ---: |")
    async with asyncpq.open_file(str(path)) as file:
        for form, makes in FORMS.items():
            for make in makes:
                await _cpu_s(file, make, range(10))  # loads what the form needs
            for count in counts:
                runs = [[await _cpu_s(file, make, range(count)) for make in makes] for _ in range(TURNS)]
                equalities, one_list = (min(times) for times in zip(*runs, strict=True))
                print(
                    f"| {form} | {count:,} | {1000 * equalities:.1f} | {1000 * one_list:.1f} "
                    f"| {equalities / one_list:.2f} |"
                )


def main() -> None:
    """Write a small file, and measure with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--terms", type=int, nargs="*", default=[100, 1000, 10_000])
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "numbers.parquet"
        pq.write_table(pa.table({"id": range(max(arguments.terms) + 1000)}), path)
        asyncio.run(measure(path, arguments.terms))


if __name__ == "__main__":
    main()
