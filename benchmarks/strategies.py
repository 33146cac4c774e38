"""What the planner chooses, against readers that always do the same: ``python -m benchmarks.strategies``.

For each time to the first byte and bandwidth, the server is started with both, and warm lookups (W2), a range (W4) and
1,000 keys at once (W9) are read by sessions that take turns: one with the defaults, which learns the server's prices,
and one for each fixed strategy: a gap that is always read through, the filter's columns always first or never. Fetched
pages are dropped before each read; footer, indexes and dictionaries stay. Prints a Markdown table of
the fastest turns, since whatever else runs only adds; the planner's time over that of the best fixed strategy of the
same line is what counts.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median
from typing import Any, Literal

import asyncpq
from asyncpq import col
from benchmarks import data
from benchmarks.datasets import BUCKET, WANTED, Dataset, Question
from benchmarks.run import running_server

KIB = 1024
PLANNER = "planner"
WORKLOADS = ("W2", "W4", "W9")
LOOKUPS = 10  # of one turn of W2


def strategies() -> dict[str, asyncpq.RequestOptions]:
    """The planner, and the fixed strategies."""
    made = {PLANNER: asyncpq.RequestOptions()}
    choices: tuple[Literal["never", "always"], ...] = ("never", "always")
    for late, gap_kib in itertools.product(choices, (0, 16, 128, 1024)):
        name = f"{'two rounds' if late == 'always' else 'one round'}, {gap_kib} KiB"
        made[name] = asyncpq.RequestOptions(gap_bytes=gap_kib * KIB, late_materialization=late)
    return made


class Reader:
    """One session with a strategy, and what its reads took."""

    def __init__(self, session: asyncpq.Session, file: asyncpq.File) -> None:
        self._session = session
        self._file = file
        self.seconds: list[float] = []
        self.requests = self.bytes = 0

    async def turn(self, workload: str, dataset: Dataset, keys: list[int]) -> None:
        """Read once, or look up ``keys`` one after another; note the median time."""
        times = []
        for key in keys if workload == "W2" else keys[:1]:
            self._session.memory_cache.discard_if(lambda part: getattr(part, "kind", None) == "page")
            before = self._session.metrics.requests, self._session.metrics.bytes_fetched
            began = time.perf_counter()
            if workload == "W2":
                num_rows = int((await self._file.lookup({"id": key}, columns=list(WANTED))).num_rows)
                expected = 1
            else:
                question = dataset.questions[workload]
                num_rows, expected = await self._read(question), question.num_rows
            times.append(time.perf_counter() - began)
            if num_rows != expected:
                raise AssertionError(f"{num_rows} rows instead of {expected}")
            self.requests = self._session.metrics.requests - before[0]
            self.bytes = self._session.metrics.bytes_fetched - before[1]
        self.seconds.append(median(times))

    async def _read(self, question: Question) -> int:
        columns = None if question.columns is None else list(question.columns)
        if question.where is None:
            raise ValueError("the question has no filter")
        name, operator, operand = question.where
        if operator == "in":
            table = await self._file.lookup({name: operand}, columns=columns)
        else:
            low, high = operand
            table = await self._file.read(columns, col(name).between(low, high))
        return int(table.num_rows)


async def measure(endpoint: str, workload: str, dataset: Dataset, repeats: int) -> dict[str, Reader]:
    """Let all strategies read by turns, one turn more than is counted: the first one warms up and teaches prices."""
    options: dict[str, Any] = {"key": "test", "secret": "test", "endpoint_url": endpoint}
    options["client_kwargs"] = {"region_name": "us-east-1"}
    readers: dict[str, Reader] = {}
    async with AsyncExitStack() as stack:
        for name, requests in strategies().items():
            session = await stack.enter_async_context(asyncpq.Session(options, requests=requests))
            readers[name] = Reader(session, await session.open_file(f"s3://{BUCKET}/{dataset.name}"))
        for number in range(repeats + 1):
            keys = dataset.keys[number * LOOKUPS : (number + 1) * LOOKUPS]
            for reader in readers.values():
                await reader.turn(workload, dataset, keys)
    return readers


def line(first_byte_ms: float, mb_per_s: float, workload: str, readers: dict[str, Reader]) -> tuple[str, float]:
    """A line of the table, and the ratio of the planner to the best fixed strategy."""
    times = {name: 1000 * min(reader.seconds[1:]) for name, reader in readers.items()}
    planner, chosen = times.pop(PLANNER), readers[PLANNER]
    best = min(times, key=times.__getitem__)
    worst = max(times, key=times.__getitem__)
    ratio = planner / times[best]
    cells = [workload, f"{first_byte_ms:g}", f"{mb_per_s:g}", f"{planner:.1f}", f"{1000 * chosen.seconds[0]:.1f}"]
    cells += [str(chosen.requests), f"{chosen.bytes / KIB:,.0f}", f"{times[best]:.1f}", best]
    cells += [str(readers[best].requests), f"{readers[best].bytes / KIB:,.0f}", f"{times[worst]:.1f}", worst]
    return f"| {' | '.join([*cells, f'{ratio:.2f}'])} |", ratio


def main() -> None:
    """Parse the command line, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(__file__).resolve().parent / "data")
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--first-byte-ms", type=float, nargs="+", default=[1.0, 20.0, 100.0])
    parser.add_argument("--mb-per-s", type=float, nargs="+", default=[100.0, 1000.0])
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS, choices=WORKLOADS)
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    dataset = data.ensure(args.data, args.rows)
    head = ["", "first byte ms", "MB/s", "planner ms", "first time ms", "GET", "KiB", "best fixed ms", "best fixed"]
    head += ["GET", "KiB", "worst fixed ms", "worst fixed", "planner / best"]
    print(f"| {' | '.join(head)} |\n|{' --- |' * len(head)}")
    ratios = []
    for first_byte_ms, mb_per_s in itertools.product(args.first_byte_ms, args.mb_per_s):
        with running_server(args.data / "objects", first_byte_ms, mb_per_s) as endpoint:
            for workload in args.workloads:
                readers = asyncio.run(measure(endpoint, workload, dataset, args.repeats))
                text, ratio = line(first_byte_ms, mb_per_s, workload, readers)
                ratios.append(ratio)
                print(text, flush=True)
    print(f"\nThe planner takes at most {max(ratios):.2f} times as long as the best fixed strategy.")


if __name__ == "__main__":
    main()
