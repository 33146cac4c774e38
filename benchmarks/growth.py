"""How lookups through an index grow with the number of files: ``python -m benchmarks.growth``.

Small real files, as many as ``--real``, of as many columns as those of W7: so what is known of the footers of 1,000 of
them is already more than a reader keeps whole, and lookups take the same steps as with 100,000. Beyond ``--real``,
entries of files that are not there, which no lookup meets. For each number of files: what the build takes for each
file, and what a lookup of one key takes, cold (a fresh process, opening included) and warm, by ``Bounds`` on a column
in order and by ``Keys`` on one in random order. What a listing of as many files takes is shown apart: no lookup waits
for one. Prints a Markdown table and draws it (``--picture``).
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import asyncpq
from asyncpq.indexing import Bounds, Footers, Keys
from asyncpq.indexing.build.build_executor import write_segments
from asyncpq.indexing.commits import commit, load, new_id
from asyncpq.indexing.index_model import IndexBackend, IndexTable, KeyRange, SegmentQuery, file_key
from asyncpq.indexing.manifest import Manifest
from asyncpq.objects.runtime import runtime_of
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.testing import ObjectServer
from benchmarks.datasets import BUCKET
from benchmarks.run import HERE, ROOT, compile_asyncpq, running_server

FILE_ROWS = 200
GROUP_ROWS = 50
ENTRY_KEYS = 10  # postings of a file that is an entry alone: with all of its rows, they would be hundreds of millions
FOOTERS = 20_000  # such files with footers in the index: those of more would take gigabytes
_MORE_COLUMNS = 8
COLUMNS = ("user", "price")
WARM = 100  # lookups
_BATCH = 100_000


def refs(rows: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The values of ``ref`` in ``rows``: distinct, in random order."""
    return ((rows.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(1)).astype(np.int64)


def write_files(folder: Path, number: int) -> None:
    """``number`` files, of ``FILE_ROWS`` rows each; those that are there are left."""
    folder.mkdir(parents=True, exist_ok=True)
    values = refs(np.arange(number * FILE_ROWS))
    for file in range(number):
        path = folder / f"part-{file:06d}.parquet"
        if path.is_file():
            continue
        rows = range(file * FILE_ROWS, (file + 1) * FILE_ROWS)
        columns = {
            "id": pa.array(rows, pa.int64()),
            "ref": values[rows.start : rows.stop],
            "user": [f"u-{row * 2_654_435_761 % (1 << 32):010d}" for row in rows],
            "price": np.random.default_rng(file).gamma(2.0, 50.0, FILE_ROWS).round(2),
            **{f"c{at}": values[rows.start : rows.stop] >> at for at in range(_MORE_COLUMNS)},
        }
        pq.write_table(pa.table(columns), path, row_group_size=GROUP_ROWS, compression="zstd", write_page_index=True)


# -- building -------------------------------------------------------------------------------------


def options(endpoint: str) -> dict[str, Any]:
    access = {"key": "test", "secret": "test", "endpoint_url": endpoint}
    return {"s3": {**access, "client_kwargs": {"region_name": "us-east-1"}}}


async def build(endpoint: str, files: str, place: Path) -> float:
    """Build the index of the files below a key; returns seconds."""
    shutil.rmtree(place, ignore_errors=True)
    async with asyncpq.Session(options(endpoint)) as session:
        began = time.perf_counter()
        kinds = [Bounds("id"), Keys("ref"), Footers()]
        index = await session.build_index(f"s3://{BUCKET}/{files}", kinds, at=str(place))
        await index.compact()
        return time.perf_counter() - began


async def extend(source: Path, place: Path, number: int) -> None:
    """Copy an index, with entries of further files: ``number`` in all."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(source, place)
    async with asyncpq.Session() as session:
        index = await session.open_index(str(place))
        real, kept = index.manifest.num_files, index.backend
        operation = runtime_of(session).operation("build", str(place))
        with operation:
            segments = []
            added = RowRanges([(real, number)])
            for part in index.manifest.tables:
                rows = further(kept, index.manifest, part, real, number)
                segments += await write_segments(kept, new_id(), part, rows, added, asyncpq.BuildOptions(), operation)

            async def bring(newest: Manifest | None) -> Manifest:
                assert newest is not None
                return replace(
                    newest,
                    segments=(*newest.segments, *segments),
                    next_file=number,
                    num_files=number,
                    num_rows=number * FILE_ROWS,
                )

            await commit(kept, await load(kept, operation), bring, new_id(), operation)
        await (await session.open_index(str(place))).compact()


async def further(
    backend: IndexBackend, manifest: Manifest, part: IndexTable, real: int, number: int
) -> AsyncIterator[pa.RecordBatch]:
    """Rows of ``part`` for the files that are not there, by key."""
    if part.kind == "keys":
        rows = np.arange(real * FILE_ROWS, number * FILE_ROWS, FILE_ROWS // ENTRY_KEYS)
        values = refs(rows)
        order = np.argsort(values)
        rows = rows[order]
        yield from_columns(part, [_keys(values[order]), rows // FILE_ROWS, rows % FILE_ROWS, np.ones_like(rows)])
        return
    if part.kind == "bounds":
        groups = np.arange(-1, FILE_ROWS // GROUP_ROWS)
        counts = np.where(groups < 0, FILE_ROWS, GROUP_ROWS)
        for first in range(real, number, _BATCH):
            files = np.repeat(np.arange(first, min(first + _BATCH, number)), len(groups))
            group, count = (np.tile(one, len(files) // len(groups)) for one in (groups, counts))
            low = files * FILE_ROWS + np.maximum(group, 0) * GROUP_ROWS
            columns = [_keys(low), _keys(low + count - 1), files, group.astype(np.int32), count]
            yield from_columns(part, columns)  # in order: a file's zones begin where those of the last one end
        return
    last = KeyRange.prefix(file_key(real - 1))
    found = [await backend.read_segment(segment, SegmentQuery([last])) for segment in manifest.segments_of(part)]
    sample = pa.concat_tables([table for table in found if table is not None]).combine_chunks()
    rest = [key[8:] for key in sample["key"].to_pylist()]
    for first in range(real, min(number, real + FOOTERS) if part.kind == "footers" else number, _BATCH // len(rest)):
        numbers = range(first, min(first + _BATCH // len(rest), number))
        batch = sample.take(np.tile(np.arange(len(rest)), len(numbers)))
        keys = pa.array([file_key(file) + key for file in numbers for key in rest], pa.binary())
        batch = batch.set_column(0, part.schema.field("key"), keys)
        if part.kind == "files":
            strings = {"path": [f"part-{file:06d}.parquet" for file in numbers]}
            strings["etag"] = [f'"{hashlib.md5(name.encode()).hexdigest()}"' for name in strings["path"]]
            for name, texts in strings.items():
                batch = batch.set_column(batch.schema.get_field_index(name), name, pa.array(texts, pa.string()))
        yield from_columns(part, [column.combine_chunks() for column in batch.columns])


def _keys(values: np.ndarray[Any, Any]) -> pa.Array:
    """The keys of whole numbers, as an index has them."""
    count = len(values)
    tagged = np.ones((count, 9), np.uint8)
    biased = (values.astype(np.uint64) ^ np.uint64(1 << 63)).astype(">u8")
    tagged[:, 1:] = biased.view(np.uint8).reshape(count, 8)
    offsets = pa.py_buffer((np.arange(count + 1, dtype=np.int32) * 9).tobytes())
    return pa.Array.from_buffers(pa.binary(), count, [None, offsets, pa.py_buffer(tagged.tobytes())])


def from_columns(part: IndexTable, columns: Any) -> pa.RecordBatch:
    """A batch of the part's columns."""
    arrays = [
        column if isinstance(column, pa.Array) else pa.array(column, field.type)
        for column, field in zip(columns, part.schema, strict=True)
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=part.schema)


# -- measuring ------------------------------------------------------------------------------------


async def look_up(endpoint: str, files: str, place: str, column: str, real: int, view: Any) -> dict[str, Any]:
    """Cold and warm lookups in this process, which is a fresh one."""
    values = np.arange(real * FILE_ROWS)
    values = refs(values) if column == "ref" else values
    chosen = np.random.default_rng(1).choice(real * FILE_ROWS, WARM + 1, replace=False)
    import aiohttp  # noqa: F401  # asyncpq loads it with the first s3 url; imports are not measured

    stats(endpoint, reset=True)
    before = mib("VmRSS")
    began, cpu = time.perf_counter(), time.process_time()
    async with asyncpq.Session(options(endpoint)) as session:
        dataset = await session.open_dataset(f"s3://{BUCKET}/{files}", index=f"s3://{BUCKET}/{place}", view=view)

        async def one(row: int) -> None:
            table = await dataset.lookup({column: int(values[row])}, columns=["id", *COLUMNS])
            assert table["id"].to_pylist() == [row], (row, table)

        await one(int(chosen[0]))
        cold, cold_cpu = time.perf_counter() - began, time.process_time() - cpu
        await asyncio.sleep(0.05)
        cold_cost = stats(endpoint, reset=True)
        seconds, cpu = [], time.process_time()
        for row in chosen[1:]:
            start = time.perf_counter()
            await one(int(row))
            seconds.append(time.perf_counter() - start)
        warm_cpu = time.process_time() - cpu
        gc.collect()
        held, weighed = mib("VmRSS") - before, runtime_of(session).memory.current_bytes / (1 << 20)
        await asyncio.sleep(0.05)
        warm_cost = stats(endpoint, reset=True)
    return {
        "cold_ms": 1000 * cold,
        "cold_cpu_ms": 1000 * cold_cpu,
        "cold_requests": cold_cost["get"] + cold_cost["head"] + cold_cost["list"],
        "cold_rounds": cold_cost["rounds"],
        "cold_kib": cold_cost["bytes"] / 1024,
        "warm_ms": 1000 * median(seconds),
        "warm_cpu_ms": 1000 * warm_cpu / WARM,
        "warm_requests": warm_cost["get"] / WARM,
        "warm_rounds": warm_cost["rounds"] / WARM,
        "warm_kib": warm_cost["bytes"] / 1024 / WARM,
        "peak_mib": mib("VmHWM"),
        "held_mib": held,
        "weighed_mib": weighed,
    }


def mib(name: str) -> float:
    """The memory of this process: VmRSS, what it has now; VmHWM, the most that it has had (``ru_maxrss`` is that of its
    parent where that had more)."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition(f"{name}:")[2].split()[0]) / 1024


def stats(endpoint: str, *, reset: bool) -> dict[str, int]:
    with urllib.request.urlopen(f"{endpoint}/__stats?reset={int(reset)}") as response:
        counted: dict[str, int] = json.load(response)
        return counted


async def list_all(number: int) -> dict[str, Any]:
    """What a listing of as many objects takes, by the server of asyncpq.testing."""
    async with ObjectServer() as server:
        for file in range(number):
            server.put(f"bucket/lake/part-{file:06d}.parquet", b"x")
        async with asyncpq.Session(server.storage_options) as session:
            store, _ = await runtime_of(session).store("s3://bucket/lake/")
            operation = runtime_of(session).operation("files", "s3://bucket/lake/")
            with operation:
                began = time.perf_counter()
                found = await store.list_objects("s3://bucket/lake/", context=asyncpq_context(operation.metrics))
                took = time.perf_counter() - began
            assert len(found) == number
            return {"list_ms": 1000 * took, "list_requests": operation.metrics.requests}


def asyncpq_context(metrics: asyncpq.ReadMetrics) -> Any:
    from asyncpq.storage.base import RequestContext

    return RequestContext(metrics, purpose="list")


def measure(endpoint: str, files: str, place: str, column: str, real: int, view: str) -> dict[str, Any]:
    """In a fresh process."""
    command = [sys.executable, "-m", "benchmarks.growth", "--measure", endpoint, files, place, column, str(real), view]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True, timeout=600)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The figures for each number of files."""
    objects = args.data / "objects"
    base = objects / BUCKET
    largest = 0
    for number in args.files:
        real = min(number, args.real)
        name = f"growth-{real}"
        write_files(base / name, real)
        place = base / f"{name}-index"
        figures: dict[str, Any] = {"files": number, "real": real}
        with running_server(objects, 0.0) as endpoint:
            if number == real:
                figures["build_ms"] = 1000 * asyncio.run(build(endpoint, f"{name}/", place)) / number
                largest = real
            else:
                source = base / f"growth-{largest}-index"
                place = base / f"growth-{number}-index"
                asyncio.run(extend(source, place, number))
        figures["index_mib"] = sum(file.stat().st_size for file in place.rglob("*") if file.is_file()) / (1 << 20)
        root = max((place / "manifests").iterdir()).stat().st_size
        figures["root_kib"] = root / 1024
        with running_server(objects, args.first_byte_ms) as endpoint:
            for column in ("id", "ref"):
                runs = [
                    measure(endpoint, f"{name}/", f"{place.name}/", column, real, args.view)
                    for _ in range(args.repeats)
                ]
                figures |= {f"{column}_{key}": median(one[key] for one in runs) for key in runs[0]}
        figures |= asyncio.run(list_all(number))
        yield figures


def table(results: list[dict[str, Any]]) -> str:
    """A Markdown table, a column for each number of files."""
    names = list(results[-1] | results[0])
    head = " | ".join(f"{one['files']:,} files" for one in results)
    lines = [f"| | {head} |", "| --- |" + " ---: |" * len(results)]
    for name in names[1:]:
        cells = [f"{one[name]:,.1f}" if name in one else "-" for one in results]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def draw(results: list[dict[str, Any]], picture: Path) -> None:
    """Time and requests of lookups, and of a listing, by the number of files."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4), layout="constrained")
    files = [one["files"] for one in results]
    series = {
        "time of a lookup, ms": [
            ("cold, by bounds", "id_cold_ms"),
            ("warm, by bounds", "id_warm_ms"),
            ("cold, by keys", "ref_cold_ms"),
            ("warm, by keys", "ref_warm_ms"),
            ("a listing, apart", "list_ms"),
        ],
        "requests": [
            ("cold, by bounds", "id_cold_requests"),
            ("warm, by bounds", "id_warm_requests"),
            ("cold, by keys", "ref_cold_requests"),
            ("warm, by keys", "ref_warm_requests"),
            ("a listing, apart", "list_requests"),
        ],
    }
    for axis, (title, lines) in zip(axes, series.items(), strict=False):
        for label, name in lines:
            dashed = "--" if name.startswith("list") else "-"
            axis.plot(files, [one[name] for one in results], dashed, marker="o", label=label)
        axis.set(title=title, xscale="log", yscale="log", xlabel="files")
        axis.grid(alpha=0.3)
        axis.legend()
    built = [one for one in results if "build_ms" in one]
    build = [one["build_ms"] for one in built]
    axes[2].plot([one["files"] for one in built], build, marker="o", label="build, ms a file")
    axes[2].plot(files, [one["id_held_mib"] for one in results], marker="o", label="memory of a reader, MiB")
    axes[2].set(title="building, and memory", xscale="log", xlabel="files", ylim=(0, None))
    axes[2].grid(alpha=0.3)
    axes[2].legend()
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture)


def main() -> None:
    """Parse the command line, run, print, draw."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", nargs="+", type=int, default=[1_000, 10_000, 100_000, 1_000_000])
    parser.add_argument("--real", type=int, default=10_000, help="files that are there, at most")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--first-byte-ms", type=float, default=20.0, help="the server's time to first byte")
    parser.add_argument("--data", type=Path, default=HERE / "data", help="where the files are kept")
    parser.add_argument("--picture", type=Path, default=HERE / "results" / "growth.svg")
    parser.add_argument("--view", choices=["snapshot", "listed"], default="snapshot")
    parser.add_argument("--measure", nargs=6, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        endpoint, files, place, column, real, view = args.measure
        print(json.dumps(asyncio.run(look_up(endpoint, files, place, column, int(real), view))))
        return
    args.data = args.data.resolve()
    compile_asyncpq()
    results = []
    for figures in run(args):
        results.append(figures)
        print(json.dumps(figures), file=sys.stderr, flush=True)
    print(table(results))
    draw(results, args.picture)
    print(f"picture: {os.path.relpath(args.picture)}")


if __name__ == "__main__":
    main()
