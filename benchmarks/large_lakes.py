"""What reads of a lake of many files cost: ``python -m benchmarks.large_lakes``.

The lake has folders ``day=...`` of as many small files each, on an S3 server in a process of its own. Each workload
runs in a fresh process. Shown are the requests of one read, its time, the CPU time of the process, and the longest stop
of the event loop, as a task sees it that wakes up every millisecond.

Workloads: *open*, *lookup* (``day =`` and a key, warm), *one folder* (the same lookup in a dataset of that folder
alone), *count*, and *indexed count* (through an index of bounds, whose build is not measured).
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import io
import json
import subprocess
import sys
import tempfile
import time
from bisect import bisect_left
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq.indexing import Bounds
from asyncpq.testing import Fault, ObjectServer
from asyncpq.testing.object_server import Answer, LoggedRequest, answer_list, listing_query

LAKE = "bucket/lake"
ROWS = 100  # of a file
WARM = 5  # reads that are measured
WORKLOADS = ("open", "lookup", "one folder", "count", "indexed count")


def content(number: int) -> bytes:
    """Return the file at a position of a folder, whose keys are in order."""
    sink = io.BytesIO()
    pq.write_table(pa.table({"id": range(number * ROWS, (number + 1) * ROWS)}), sink)
    return sink.getvalue()


def answer(request: LoggedRequest, server: ObjectServer, paths: list[str]) -> Answer | None:
    """Answer a LIST from the part of the lake that it asks for: the server itself would look at all of its objects."""
    query = listing_query(request)
    if query is None:
        return None
    bucket, prefix = LAKE.split("/")[0], query.get("prefix", "")
    token = query.get("continuation-token")
    after = query.get("start-after", "") if token is None else base64.urlsafe_b64decode(token).decode()
    first = bisect_left(paths, f"{bucket}/{max(prefix, after)}")
    last = bisect_left(paths, f"{bucket}/{prefix}\U0010ffff")
    wanted = paths[first : min(last, first + server.page_keys + 2)]
    if "delimiter" in query:  # the first file of each folder is enough
        wanted = []
        while first < last:
            wanted.append(paths[first])
            end = paths[first].find("/", len(bucket) + 1 + len(prefix))
            first = first + 1 if end < 0 else bisect_left(paths, f"{paths[first][:end]}0", first)
    objects = {path: server.objects[path] for path in wanted}
    return answer_list(query, bucket, objects, server.page_keys, Fault())


async def serve(files: int, a_folder: int, first_byte_ms: float) -> None:
    """Serve the lake until standard input ends; print the port."""
    contents = [content(number) for number in range(a_folder)]
    async with ObjectServer(latency_s=first_byte_ms / 1000) as server:
        for file in range(files):
            day, number = divmod(file, a_folder)
            server.put(f"{LAKE}/day={day:06d}/part-{number:06d}.parquet", contents[number])
        paths = sorted(server.objects)
        server.before = lambda request: answer(request, server, paths)
        print(server.port, flush=True)
        await asyncio.to_thread(sys.stdin.read)


class Stops:
    """Measures the longest time in which a task that wakes up every millisecond did not."""

    longest_s = 0.0

    async def watch(self) -> None:
        """Measure until cancelled."""
        last = time.perf_counter()
        while True:
            await asyncio.sleep(0.001)
            now = time.perf_counter()
            self.longest_s, last = max(self.longest_s, now - last - 0.001), now


@asynccontextmanager
async def measured(figures: dict[str, Any], reads: int = 1) -> AsyncIterator[None]:
    """Measure the block, which makes so many reads."""
    stops = Stops()
    watch = asyncio.ensure_future(stops.watch())
    await asyncio.sleep(0.01)
    stops.longest_s = 0.0
    began, cpu_began = time.perf_counter(), time.process_time()
    yield
    figures["ms"] = round(1000 * (time.perf_counter() - began) / reads, 1)
    figures["CPU ms"] = round(1000 * (time.process_time() - cpu_began) / reads, 1)
    await asyncio.sleep(0.01)
    figures["longest stop, ms"] = round(1000 * stops.longest_s, 1)
    watch.cancel()
    await asyncio.wait((watch,))


def counted(metrics: asyncpq.ReadMetrics) -> dict[str, int]:
    """Return the requests of a read."""
    lists = metrics.requests_by_purpose.get("list", 0)
    return {"LIST": lists, "other requests": metrics.requests - lists, "rounds": metrics.rounds}


async def run(workload: str, port: int, files: int, a_folder: int, index: str) -> dict[str, Any]:
    """Run one workload; return its figures."""
    figures: dict[str, Any] = {}
    options = ObjectServer(port=port).storage_options
    url = f"s3://{LAKE}/"
    async with asyncpq.Session({"s3": options}) as session:
        if workload == "open":
            async with measured(figures):
                dataset = await session.open_dataset(url, index=False)
            assert dataset.opening is not None
            return figures | counted(dataset.opening)
        if workload == "indexed count":
            built = await session.build_index(url, [Bounds("id")], at=index)
            assert built is not None
        if workload == "one folder":
            url += "day=000003/"
        async with asyncpq.Session({"s3": options}) as other:
            dataset = await other.open_dataset(url, index=index if workload == "indexed count" else False)
            read: Callable[[], Awaitable[Any]] = dataset.count
            expected = files * ROWS
            if "count" not in workload:
                keys = {"id": ROWS * (a_folder // 2)} | ({"day": 3} if workload == "lookup" else {})
                read, expected = lambda: dataset.lookup(keys), 1
                await read()  # learns the bounds of the files
                await read()
            reads = 1 if "count" in workload else WARM
            cost = asyncpq.ReadMetrics()
            async with measured(figures, reads):
                for _ in range(reads):
                    with asyncpq.measure() as cost:
                        found = await read()
                    assert (found if isinstance(found, int) else found.num_rows) == expected, found
            return figures | counted(cost)


def measure(arguments: argparse.Namespace) -> None:
    """Serve lakes, and run the workloads on them."""
    print("| files | workload | LIST | other requests | rounds | ms | CPU ms | longest stop, ms |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for files in arguments.files:
        a_folder = min(arguments.a_folder, files)
        command = [sys.executable, "-m", "benchmarks.large_lakes"]
        lake = [str(files), str(a_folder)]
        server = subprocess.Popen(
            [*command, "--serve", *lake, str(arguments.first_byte_ms)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert server.stdin is not None
        assert server.stdout is not None
        with server, tempfile.TemporaryDirectory() as folder:
            port = server.stdout.readline().strip()
            for workload in arguments.workloads:
                one = [*command, "--run", workload, port, *lake, str(Path(folder) / "index")]
                done = subprocess.run(one, stdout=subprocess.PIPE, text=True, check=True, timeout=1800)
                figures = json.loads(done.stdout.splitlines()[-1])
                names = ("LIST", "other requests", "rounds", "ms", "CPU ms", "longest stop, ms")
                print(f"| {files:,} | {workload} | {' | '.join(f'{figures[name]:,}' for name in names)} |", flush=True)
            server.stdin.close()


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--a-folder", type=int, default=100, help="files in each folder")
    parser.add_argument("--first-byte-ms", type=float, default=20.0)
    parser.add_argument("--workloads", nargs="*", choices=WORKLOADS, default=WORKLOADS)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--run", nargs=5, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        files, a_folder, first_byte_ms = arguments.serve
        asyncio.run(serve(int(files), int(a_folder), float(first_byte_ms)))
    elif arguments.run:
        workload, port, files, a_folder, index = arguments.run
        print(json.dumps(asyncio.run(run(workload, int(port), int(files), int(a_folder), index))))
    else:
        measure(arguments)


if __name__ == "__main__":
    main()
