"""asyncpq on Spark and Spark's own reader, side by side: ``make bench-spark``, or

    python -m benchmarks.spark.run [--workloads ...] [--repeats N] [--large-files N]

Every workload is a fresh process with a JVM of its own, ``local[2]``, in which the sides take turns, each with keys
that were not asked for before, each making its DataFrame anew but for "native-loaded". Prints Markdown tables and
writes all measurements to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.run import HERE, ROOT, running_server
from benchmarks.spark import jars, lakes
from benchmarks.spark.lakes import Lake
from benchmarks.spark.workloads import WORKLOADS, LakeName, Store


def ensure_lake(name: LakeName, args: argparse.Namespace) -> Lake:
    """Made where it is not there yet."""
    if name == "one":
        return lakes.ensure_one_file(args.data, args.rows)
    if name == "large":
        return lakes.ensure_folder(args.data, args.large_files, lakes.LARGE_ROWS)
    return lakes.ensure_folder(args.data, args.small_files, lakes.SMALL_ROWS)


async def ensure_index(lake: Lake, store: Store) -> None:
    """Bounds and footers of a lake, by one process without Spark, unless they are there."""
    import asyncpq
    from asyncpq.indexing import Bounds, Footers

    place = lake.index_folder(store)
    if (place / "latest").is_file():
        return
    print(f"building an index in {place} ...", flush=True)
    with running_server(lake.root, 0.0) as endpoint:
        access = {"key": "test", "secret": "test", "endpoint_url": endpoint}
        url = f"s3://{lake.folder.parent.name}/{lake.key}/" if store == "s3" else f"{lake.folder}/"
        async with asyncpq.Session({"s3": {**access, "client_kwargs": {"region_name": "us-east-1"}}}) as session:
            await session.build_index(url, [Bounds("id"), Footers()], at=str(place))


def measure(name: str, lake: Lake, endpoint: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All questions of one workload, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.spark.worker", name, "--root", str(lake.root), "--lake", lake.key]
    command += ["--rows", str(lake.rows), "--jars", str(args.data / "jars"), "--endpoint", endpoint]
    command += ["--repeats", str(args.repeats)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=3600, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{name} failed; its message is above")
    runs: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return runs


def table(name: str, runs: list[dict[str, Any]]) -> str:
    """A Markdown table of one workload; ``x`` is relative to the first side, below 1 is better."""
    head = ["side", "first s", "median s", "least s", "x", "GET", "HEAD+LIST", "KiB", "KiB x", "rounds"]
    lines = [f"### {name}: {WORKLOADS[name].title}", "", _row(head), _row(["---"] + ["---:"] * (len(head) - 1))]
    base: dict[str, float] = {}
    for side in WORKLOADS[name].sides:
        mine = [run for run in runs if run["side"] == side]
        warm = [run for run in mine if run["warm"]]
        seconds = [run["seconds"] for run in warm]
        cells = [side, f"{mine[0]['seconds']:.2f}", f"{median(seconds):.3f}", f"{min(seconds):.3f}"]
        figures = {"seconds": median(seconds)}
        if not base and WORKLOADS[name].against_first:
            base = {"seconds": mine[0]["seconds"]}
        if "bytes" in warm[0]:
            figures |= {key: median(run[key] for run in warm) for key in ("get", "head", "list", "bytes", "rounds")}
        base = base or figures
        cells.append(f"{figures['seconds'] / base['seconds']:.2f}")
        if "bytes" in figures:
            cells += [f"{figures['get']:.0f}", f"{figures['head'] + figures['list']:.0f}"]
            cells += [f"{figures['bytes'] / 1024:,.0f}", f"{figures['bytes'] / base['bytes']:.3f}"]
            cells.append(f"{figures['rounds']:.0f}")
        else:
            cells += ["-"] * 5
        lines.append(_row(cells))
    return "\n".join([*lines, ""])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Make the data, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--repeats", type=int, default=7, help="warm questions of each side")
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the one file")
    parser.add_argument("--large-files", type=int, default=lakes.LARGE_FILES, help="of 200,000 rows (500: 4 GB)")
    parser.add_argument("--small-files", type=int, default=lakes.SMALL_FILES, help="of 5,000 rows")
    parser.add_argument("--first-byte-ms", type=float, default=20.0, help="the server's time to first byte")
    parser.add_argument("--data", type=Path, default=HERE / "data", help="where files and jars are kept")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where all measurements are written")
    args = parser.parse_args()
    args.data = args.data.resolve()

    chosen = {name: ensure_lake(WORKLOADS[name].lake, args) for name in args.workloads}
    for name, lake in chosen.items():
        if WORKLOADS[name].indexed:
            asyncio.run(ensure_index(lake, WORKLOADS[name].store))
    if any(WORKLOADS[name].store == "s3" for name in chosen):
        jars.ensure(args.data / "jars")
    print(f"{args.first_byte_ms:g} ms to first byte; median of {args.repeats}; Python {platform.python_version()}.\n")
    runs: list[dict[str, Any]] = []
    with running_server(args.data / "objects", args.first_byte_ms) as endpoint:
        for name, lake in chosen.items():
            print(name, file=sys.stderr, flush=True)
            measured = measure(name, lake, endpoint, args)
            runs += measured
            print(table(name, measured), flush=True)
    args.results.mkdir(parents=True, exist_ok=True)
    path = args.results / f"spark-{time.strftime('%Y%m%d-%H%M%S')}.json"
    settings = {name: str(value) for name, value in vars(args).items()}
    path.write_text(json.dumps({"settings": settings, "runs": runs}, indent=1))
    print(f"all measurements: {path}")


if __name__ == "__main__":
    main()
