"""Throughput of the service with 1 to 4 workers: lookups and counts over HTTP, as ratios to one worker.

``python -m benchmarks.workers [--workers 1 2 4] [--s3] [--turns 3] [--seconds 8] [--clients 32]``. The service runs as
``asyncpq serve`` does, and reads local files, or with ``--s3`` those of the S3 server of the benchmarks, a process of
its own, with 20 ms to first byte. The clients are in this process: they send requests made beforehand, keep their
connections, and share the machine with the service: of as many workers as processors they take a part of what is
measured. The numbers of workers take turns, each turn another one first, and *x one worker* is the median over the
turns of the ratio to one worker in the same turn. *CPU ms* is the time of all of the service's processes for an
answer: on a machine that has other work its ratio says more than that of the rates.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
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
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.run import running_server

ROWS = 1_000_000
FILES = 8
BUCKET = "bench"
FIRST_BYTE_MS = 20.0
TOKEN = "a token of the benchmark"
#: Paths, by the number of a row.
QUESTIONS = {
    "lookup, random key": "/v1/events/lookup?id={number}&columns=user,price",
    "lookup, one of 20 keys": "/v1/events/lookup?id={few}&columns=user,price",
    "count of 1 % of the rows": "/v1/events/count?where=price%3C{tenth}.5%20and%20price%3E{tenth}",
}


class Turn(NamedTuple):
    """What one question took in one turn: answers for each second, CPU seconds for each answer, and all their waits."""

    rate: float
    cpu_s: float
    waits: list[float]


def main() -> None:
    """Measure each number of workers in turns, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2, 4], help="numbers of workers; 1 is among them")
    parser.add_argument("--s3", action="store_true", help="read from the S3 server of the benchmarks")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="of each measurement")
    parser.add_argument("--clients", type=int, default=32, help="connections")
    options = parser.parse_args()
    turns: list[dict[tuple[str, int], Turn]] = []
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        _write_files(folder / BUCKET / "events")
        endpoint = stack.enter_context(running_server(folder, FIRST_BYTE_MS)) if options.s3 else None
        configuration = _configured(folder, endpoint)
        for number in range(options.turns):
            first = number % len(options.workers)
            turns.append({})
            for workers in (*options.workers[first:], *options.workers[:first]):
                with _service(configuration, workers) as (process, port):
                    for question, path in QUESTIONS.items():
                        asyncio.run(_ask(port, path, options.clients, 2.0))  # warm
                        before = _cpu_s(process)
                        began = time.perf_counter()
                        waits = asyncio.run(_ask(port, path, options.clients, options.seconds))
                        took_s = time.perf_counter() - began  # the last answers come after the end
                        cpu_s = (_cpu_s(process) - before) / len(waits)
                        turns[-1][question, workers] = Turn(len(waits) / took_s, cpu_s, waits)
    where = f"S3, {FIRST_BYTE_MS:g} ms to first byte" if options.s3 else "local files"
    print(f"{os.cpu_count()} processors, {options.clients} clients, {options.turns} turns, {where}\n")
    print(
        "| request | workers | answers/s | x one worker | CPU ms | x one worker | p50 ms | p99 ms |\n|" + " --- |" * 8
    )
    for question, workers in ((question, workers) for question in QUESTIONS for workers in options.workers):
        took, one = [turn[question, workers] for turn in turns], [turn[question, 1] for turn in turns]
        rate, cpu = statistics.median(turn.rate for turn in took), statistics.median(turn.cpu_s for turn in took)
        rates = statistics.median(turn.rate / single.rate for turn, single in zip(took, one, strict=True))
        cpus = statistics.median(turn.cpu_s / single.cpu_s for turn, single in zip(took, one, strict=True))
        waits = sorted(wait for turn in took for wait in turn.waits)
        late = f"{waits[len(waits) // 2] * 1e3:.1f} | {waits[len(waits) * 99 // 100] * 1e3:.1f}"
        print(f"| {question} | {workers} | {rate:,.0f} | {rates:.2f} | {cpu * 1e3:.1f} | {cpus:.2f} | {late} |")


def _write_files(folder: Path) -> None:
    folder.mkdir(parents=True)
    size = ROWS // FILES
    for number in range(FILES):
        ids = range(number * size, (number + 1) * size)
        table = pa.table(
            {"id": ids, "user": [f"u{i * 7919 % 5000}" for i in ids], "price": [i * 37 % 10_000 / 100 for i in ids]}
        )
        pq.write_table(table, folder / f"{number}.parquet", data_page_size=64 << 10, write_page_index=True)


def _configured(folder: Path, endpoint: str | None) -> Path:
    """Write the service's configuration. ``endpoint``: of the S3 server that has the files; None for local files."""
    url, storage = f"{folder / BUCKET / 'events'}/", ""
    if endpoint is not None:
        url, storage = f"s3://{BUCKET}/events/", f"[storage.s3]\nendpoint_url = '{endpoint}'\nkey = 'k'\nsecret = 's'\n"
    path = folder / "service.toml"
    path.write_text(
        f"[datasets.events]\nurl = '{url}'\nlisting_max_age_s = 5\n{storage}"
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
