"""Throughput of the service with 1 to 4 workers: lookups and counts over HTTP, as ratios to one worker.

``python -m benchmarks.workers [--seconds 8] [--clients 32]``. The service reads local files, so that the processors are
what limits it, and runs as ``asyncpq serve`` does. Its clients are in this process: they send requests made
beforehand, keep their connections, and share the machine with the service: of as many workers as processors they take
a part of what is measured. *CPU ms* is the time of all of the service's processes for an answer: on a machine that has
other work it says more than the rates.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

ROWS = 1_000_000
FILES = 8
TOKEN = "a token of the benchmark"
WORKERS = (1, 2, 3, 4)
#: Paths, by the number of a row.
QUESTIONS = {
    "lookup, random key": "/v1/events/lookup?id={number}&columns=user,price",
    "lookup, one of 20 keys": "/v1/events/lookup?id={few}&columns=user,price",
    "count of 1 % of the rows": "/v1/events/count?where=price%3C{tenth}.5%20and%20price%3E{tenth}",
}


def main() -> None:
    """Measure each number of workers, twice in turn, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--clients", type=int, default=32, help="connections")
    options = parser.parse_args()
    rates: dict[tuple[str, int], list[float]] = {}
    waits: dict[tuple[str, int], list[float]] = {}
    cpu: dict[tuple[str, int], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        configuration = _configured(Path(folder))
        for _ in range(2):
            for workers in WORKERS:
                with _service(configuration, workers) as (process, port):
                    for question, path in QUESTIONS.items():
                        asyncio.run(_ask(port, path, options.clients, 2.0))  # warm
                        before = _cpu_s(process)
                        took = asyncio.run(_ask(port, path, options.clients, options.seconds))
                        cpu.setdefault((question, workers), []).append((_cpu_s(process) - before) / len(took))
                        rates.setdefault((question, workers), []).append(len(took) / options.seconds)
                        waits.setdefault((question, workers), []).extend(took)
    print(f"{os.cpu_count()} processors, {options.clients} clients\n")
    print("| request | workers | answers/s | x one worker | CPU ms | p50 ms | p99 ms |\n|" + " --- |" * 7)
    for (question, workers), found in rates.items():
        one = statistics.mean(rates[question, 1])
        rate, took = statistics.mean(found), sorted(waits[question, workers])
        middle, late = took[len(took) // 2] * 1e3, took[len(took) * 99 // 100] * 1e3
        work = statistics.mean(cpu[question, workers]) * 1e3
        print(f"| {question} | {workers} | {rate:,.0f} | {rate / one:.2f} | {work:.1f} | {middle:.1f} | {late:.1f} |")


def _configured(folder: Path) -> Path:
    (folder / "events").mkdir()
    size = ROWS // FILES
    for number in range(FILES):
        ids = range(number * size, (number + 1) * size)
        table = pa.table(
            {"id": ids, "user": [f"u{i * 7919 % 5000}" for i in ids], "price": [i * 37 % 10_000 / 100 for i in ids]}
        )
        pq.write_table(table, folder / "events" / f"{number}.parquet", data_page_size=64 << 10, write_page_index=True)
    path = folder / "service.toml"
    path.write_text(
        f"[datasets.events]\nurl = '{folder}/events/'\nlisting_max_age_s = 5\n"
        f"[tokens.all]\nsha256 = '{hashlib.sha256(TOKEN.encode()).hexdigest()}'\ndatasets = {{ events = {{}} }}\n"
    )
    return path


@contextmanager
def _service(configuration: Path, workers: int) -> Iterator[tuple[int, int]]:
    """Run the service on a free port. Yield its process and the port, once each worker has started."""
    command = [sys.executable, "-m", "asyncpq.serve", str(configuration), "--port", "0", "--workers", str(workers)]
    with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            text = ""
            while text.count("Application startup complete") < workers or not re.search(r"http://\S+:\d+", text):
                time.sleep(0.05)
                log.seek(0)
                text = log.read()
                if process.poll() is not None:
                    raise SystemExit(text)
            found = re.search(r"http://\S+:(\d+)", text)
            assert found is not None, text
            yield process.pid, int(found[1])
        finally:
            process.terminate()


def _cpu_s(process: int) -> float:
    """Return the CPU seconds of a process and of its children that run."""
    total = 0
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(status.parent.name) == process or int(fields[1]) == process:
            total += int(fields[11]) + int(fields[12])
    return total / os.sysconf("SC_CLK_TCK")


async def _ask(port: int, path: str, clients: int, seconds: float) -> list[float]:
    """Ask for ``seconds`` from ``clients`` connections; return the seconds that each answer took."""
    took: list[float] = []
    end = time.perf_counter() + seconds

    async def client(seed: int) -> None:
        draw = random.Random(seed)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        while (begin := time.perf_counter()) < end:
            number = draw.randrange(ROWS)
            target = path.format(number=number, few=number % 20 * 50_000, tenth=number % 99)
            writer.write(f"GET {target} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head)
            if not head.startswith(b"HTTP/1.1 200") or length is None:
                raise SystemExit(head.decode())
            await reader.readexactly(int(length[1]))
            took.append(time.perf_counter() - begin)
        writer.close()

    async with asyncio.TaskGroup() as group:
        for seed in range(clients):
            group.create_task(client(seed))
    return took


if __name__ == "__main__":
    main()
