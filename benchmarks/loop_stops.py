"""How long reads stop the event loop: ``python -m benchmarks.loop_stops``.

A task that wakes up every millisecond sees how late it does, during each read, in a fresh process. The objects that
the process has before the read, most of them those of imported modules, are frozen: else each full garbage collection
would look at them for some 30 ms. Shown are the longest stop, the stops of more than 20 ms, the CPU time of the longest
of the loop's own turns, time and CPU time of the read, and how far it raised the peak of the process's memory. Other
programs on the same processors lengthen the stops, not the turns.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq import col
from asyncpq.indexing import Bounds
from asyncpq.testing import ObjectServer
from benchmarks.large_lakes import LAKE

KEYS = 1_000_000
COLUMNS = 20_000
PAGES = 10_000
ROW_GROUPS = 5_000
LOOKUPS = 2_000
MANY_FILES = 10_000
LIMIT_S = 0.02
FILES = (
    "a million keys",
    "with_keys=True",
    "20,000 columns",
    "10,000 pages",
    "5,000 row groups",
    "2,000 lookups",
    "64 lookups without page index",
    "8,000 pairs",
    "10,000 files",
)
LAKES = ("open", "first lookup", "lookup", "build", "refresh", "count")
NAMES = ("longest, ms", "over 20 ms", "longest turn, CPU ms", "ms", "CPU ms", "memory, MiB")


class Stops:
    """How late a task is that wakes up every millisecond."""

    def __init__(self) -> None:
        self.stops_s: list[float] = []
        self.turns_s: list[float] = []  # CPU time of the loop's thread between two wakings

    async def watch(self) -> None:
        """Measure until cancelled."""
        last, last_cpu = time.perf_counter(), time.thread_time()
        while True:
            await asyncio.sleep(0.001)
            now, cpu = time.perf_counter(), time.thread_time()
            self.stops_s.append(now - last - 0.001)
            self.turns_s.append(cpu - last_cpu)
            last, last_cpu = now, cpu


def peak_kib() -> int:
    """Return the peak of this process's memory; getrusage() has that of the process that started it, if it is more."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("VmHWM")))


@asynccontextmanager
async def measured(figures: dict[str, Any]) -> AsyncIterator[None]:
    """Measure the block."""
    stops = Stops()
    watch = asyncio.ensure_future(stops.watch())
    await asyncio.sleep(0.01)
    gc.collect()
    gc.freeze()
    await asyncio.sleep(0.01)
    stops.stops_s.clear()
    stops.turns_s.clear()
    memory = peak_kib()
    began, cpu_began = time.perf_counter(), time.process_time()
    yield
    figures["ms"] = round(1000 * (time.perf_counter() - began))
    figures["CPU ms"] = round(1000 * (time.process_time() - cpu_began))
    await asyncio.sleep(0.01)
    figures["longest, ms"] = round(1000 * max(stops.stops_s), 1)
    figures["over 20 ms"] = sum(stop > LIMIT_S for stop in stops.stops_s)
    figures["longest turn, CPU ms"] = round(1000 * max(stops.turns_s), 1)
    figures["memory, MiB"] = round((peak_kib() - memory) / 1024)
    watch.cancel()
    await asyncio.wait((watch,))


def write_file(workload: str, path: Path) -> None:
    """Write the file, or the folder of files, of a workload."""
    if "files" in workload:
        path.mkdir()
        pq.write_table(pa.table({"id": range(100)}), path / "0.parquet")
        for number in range(1, MANY_FILES):
            os.link(path / "0.parquet", path / f"{number}.parquet")
    elif "column" in workload:
        table = pa.table({"id": pa.array(range(1000)), **{f"c{number}": range(1000) for number in range(COLUMNS - 1)}})
        pq.write_table(table, path, row_group_size=500, write_page_index=True)
    elif "pages" in workload:
        rows = range(PAGES * 100)
        columns = {"id": rows, "other": [row * 2_654_435_761 % (1 << 40) for row in rows]}
        pages = {"max_rows_per_page": 100, "write_batch_size": 100, "use_dictionary": False}
        pq.write_table(pa.table(columns), path, row_group_size=len(rows), write_page_index=True, **pages)
    elif "row groups" in workload:
        rows = range(ROW_GROUPS * 10)
        pq.write_table(pa.table({"id": rows, "v": rows}), path, row_group_size=10, write_page_index=True)
    else:
        table, indexed = pa.table({"id": range(2 * KEYS), "v": range(2 * KEYS)}), workload == "2,000 lookups"
        pq.write_table(table, path, row_group_size=KEYS // 5, write_page_index=indexed)


async def run_file(workload: str, path: str) -> dict[str, Any]:
    """Run a workload on one file, or a folder of files; return its figures."""
    figures: dict[str, Any] = {}
    keys = {"id": list(range(0, 2 * KEYS, 2))}
    few = [{"id": key} for key in range(0, 2 * KEYS, 2 * KEYS // LOOKUPS)]
    pairs = [[("id", "=", key), ("v", "=", key)] for key in range(8000)]
    reads: dict[str, Callable[[Any], Awaitable[Any]]] = {
        "a million keys": lambda file: file.lookup(keys),
        "with_keys=True": lambda file: file.lookup(keys, with_keys=True),
        "20,000 columns": lambda file: file.lookup({"id": 77}),
        "10,000 pages": lambda file: file.read(where=(col("other") > 5) & (col("id") > 999_900), columns=["id"]),
        "5,000 row groups": lambda file: file.read(),
        "2,000 lookups": lambda file: asyncio.gather(*[file.lookup(key) for key in few]),
        "64 lookups without page index": lambda file: asyncio.gather(*[file.lookup(key) for key in few[:64]]),
        "8,000 pairs": lambda file: file.scan(where=pairs).to_table(),
        "10,000 files": lambda dataset: dataset.count(),
    }
    async with asyncpq.Session() as session:
        one = os.path.join(path, "0.parquet") if "files" in workload else path
        await (await session.open_file(one)).lookup({"id": [5, 6]}, columns=["id"], with_keys=True)  # loads modules
    async with asyncpq.Session() as session:
        target = await (session.open_dataset(path) if "files" in workload else session.open_file(path))
        async with measured(figures):
            await reads[workload](target)
    return figures


async def run_lake(workload: str, port: int, index: str) -> dict[str, Any]:
    """Run a workload on the lake of the server; return its figures."""
    figures: dict[str, Any] = {}
    url, options = f"s3://{LAKE}/", ObjectServer(port=port).storage_options
    async with asyncpq.Session({"s3": options}) as session:  # loads modules
        small = await session.open_dataset(f"{url}day=000003/", index=False)
        await small.lookup({"id": 5})
        await session.build_index(f"{url}day=000003/", [Bounds("id")], at=f"{index}-of-a-folder")
    async with asyncpq.Session({"s3": options}) as session:
        keys = {"day": 3, "id": 5}
        if workload == "build":
            async with measured(figures):
                await session.build_index(url, [Bounds("id")], at=index)
        elif workload == "refresh":
            opened = await session.open_index(index)
            async with measured(figures):
                await opened.refresh()
        elif workload == "open":
            async with measured(figures):
                await session.open_dataset(url, index=False)
        else:
            dataset = await session.open_dataset(url, index=index if workload == "count" else False)
            if workload != "first lookup":
                await (dataset.count() if workload == "count" else dataset.lookup(keys))
            async with measured(figures):
                await (dataset.count() if workload == "count" else dataset.lookup(keys))
    return figures


def show(workload: str, arguments: list[str]) -> None:
    """Run a workload in a process of its own, and print its figures."""
    command = [sys.executable, "-m", "benchmarks.loop_stops", "--run", workload, *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=3600)
    figures = json.loads(done.stdout.splitlines()[-1])
    print(f"| {workload} | {' | '.join(f'{figures[name]:,}' for name in NAMES)} |", flush=True)


def main() -> None:
    """Parse the command line, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=100_000, help="files of the lake")
    parser.add_argument("--first-byte-ms", type=float, default=20.0)
    parser.add_argument("--workloads", nargs="*", choices=(*FILES, *LAKES), default=(*FILES, *LAKES))
    parser.add_argument("--run", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        workload, *rest = arguments.run
        running = run_file(workload, rest[0]) if workload in FILES else run_lake(workload, int(rest[0]), rest[1])
        print(json.dumps(asyncio.run(running)))
        return
    print(f"| read | {' | '.join(NAMES)} |")
    print(f"| --- |{' ---: |' * len(NAMES)}")
    with tempfile.TemporaryDirectory() as folder:
        for workload in FILES:
            if workload in arguments.workloads:
                path = Path(folder) / workload.replace(" ", "-")
                write_file(workload, path)
                show(workload, [str(path)])
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        if set(arguments.workloads).isdisjoint(LAKES):
            return
        lake = [str(arguments.files), "100", str(arguments.first_byte_ms)]
        command = [sys.executable, "-m", "benchmarks.large_lakes", "--serve", *lake]
        server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert server.stdin is not None
        assert server.stdout is not None
        with server:
            port = server.stdout.readline().strip()
            for workload in LAKES:
                if workload in arguments.workloads:
                    show(workload, [port, os.path.join(folder, "index")])
            server.stdin.close()


if __name__ == "__main__":
    main()
