"""asyncpq on Spark and Spark's own reader, side by side: ``make bench-spark``, or

    python -m benchmarks.spark.run [--workloads ...] [--repeats N] [--large-files N]

Every workload is a fresh process with a JVM of its own, ``local[2]``, in which the sides take turns, each with keys
that were not asked for before, each making its DataFrame anew but for "native-loaded". Prints Markdown tables, and
writes them, all measurements and a picture of the joins to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

import asyncpq
from asyncpq.indexing import IndexKind
from benchmarks.run import HERE, ROOT, running_server
from benchmarks.spark import jars, lakes
from benchmarks.spark.lakes import Lake
from benchmarks.spark.workloads import JOIN_KEYS, QUERIES, WORKLOADS, LakeName, Store


def ensure_lake(name: LakeName, args: argparse.Namespace) -> Lake:
    """Made where it is not there yet."""
    if name == "one":
        return lakes.ensure_one_file(args.data, args.rows)
    if name in ("large", "random"):
        return lakes.ensure_folder(args.data, args.large_files, lakes.LARGE_ROWS, is_shuffled=name == "random")
    return lakes.ensure_folder(args.data, args.small_files, lakes.SMALL_ROWS)


async def ensure_index(lake: Lake, store: Store, kinds: Sequence[IndexKind]) -> None:
    """Build the index of a lake in this process, without Spark, unless it is there."""
    place = lake.index_folder(store)
    if (place / "latest").is_file():
        return
    print(f"building an index in {place} ...", flush=True)
    with running_server(lake.root, 0.0) as endpoint:
        access = {"key": "test", "secret": "test", "endpoint_url": endpoint}
        url = f"s3://{lake.folder.parent.name}/{lake.key}/" if store == "s3" else f"{lake.folder}/"
        async with asyncpq.Session({"s3": {**access, "client_kwargs": {"region_name": "us-east-1"}}}) as session:
            await session.build_index(url, list(kinds), at=str(place))


def measure(name: str, lake: Lake, endpoint: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """All questions of one workload, in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.spark.worker", name, "--root", str(lake.root), "--lake", lake.key]
    command += ["--rows", str(lake.rows), "--jars", str(args.data / "jars"), "--endpoint", endpoint]
    command += ["--repeats", str(args.repeats), "--limit-s", str(args.limit_s)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=900, check=False)
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


def summary(runs: list[dict[str, Any]]) -> str:
    """A Markdown table of all workloads: the median of each side's warm questions (*of* how many), relative to the
    first side's.
    """
    lines = ["### all workloads", "", _row(["workload", "side", "of", "median s", "x"])]
    lines.append(_row(["---", "---", "---:", "---:", "---:"]))
    for name in dict.fromkeys(run["workload"] for run in runs):
        medians = {side: _median_s(runs, name, side) for side in WORKLOADS[name].sides}
        base = next(iter(medians.values()))
        if WORKLOADS[name].against_first:
            base = next(run["seconds"] for run in runs if run["workload"] == name)
        of = str(len({run["number"] for run in runs if run["workload"] == name and run["warm"]}))
        lines += [_row([name, side, of, f"{value:.3f}", f"{value / base:.2f}"]) for side, value in medians.items()]
    return "\n".join([*lines, ""])


def _median_s(runs: list[dict[str, Any]], name: str, side: str) -> float:
    return float(
        median(run["seconds"] for run in runs if (run["workload"], run["side"]) == (name, side) and run["warm"])
    )


def draw(runs: list[dict[str, Any]], picture: Path) -> None:
    """Draw the time of the joins over their number of keys, for each measured store and order of the rows."""
    from matplotlib import pyplot

    joins = [run["workload"] for run in runs if run["workload"].startswith("join-")]
    stores = [store for store in ("local", "s3") if any(name.endswith(f"-{store}") for name in joins)]
    if not stores:
        return
    figure, axes = pyplot.subplots(
        1, len(stores), figsize=(5.5 * len(stores) + 1.5, 4.5), layout="constrained", squeeze=False
    )
    for axis, store in zip(axes[0], stores, strict=True):
        for color, lake in enumerate(("large", "random")):
            counts = [
                count for count in JOIN_KEYS if any(run["workload"] == f"join-{count}-{lake}-{store}" for run in runs)
            ]
            for side, style in (("broadcast", "--"), ("asyncpq", "-")):
                seconds = [_median_s(runs, f"join-{count}-{lake}-{store}", side) for count in counts]
                rows = "sorted" if lake == "large" else "random order"
                axis.plot(counts, seconds, style, marker="o", color=f"C{color}", label=f"{side}, {rows}")
        axis.set_title("local files" if store == "local" else "S3")
        axis.set_xscale("log")
        axis.set_yscale("log")
        axis.set_xlabel("keys")
        axis.set_ylabel("seconds")
        axis.grid(alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Join of some keys with 20 million rows in 500 files: less is better")
    figure.legend(
        *axes[0][0].get_legend_handles_labels(), ncols=2 * len(stores), loc="outside lower center", frameon=False
    )
    figure.savefig(picture)
    pyplot.close(figure)


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Make the data, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(QUERIES))
    parser.add_argument("--repeats", type=int, default=5, help="warm questions of each side")
    parser.add_argument(
        "--limit-s", type=float, default=20.0, help="seconds after which a workload has no further round"
    )
    parser.add_argument("--rows", type=int, default=10_000_000, help="of the one file")
    parser.add_argument("--large-files", type=int, default=lakes.LARGE_FILES, help="of 40,000 rows (500: 0.8 GB)")
    parser.add_argument("--small-files", type=int, default=lakes.SMALL_FILES, help="of 5,000 rows")
    parser.add_argument("--first-byte-ms", type=float, default=20.0, help="the server's time to first byte")
    parser.add_argument("--data", type=Path, default=HERE / "data", help="where files and jars are kept")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where all measurements are written")
    args = parser.parse_args()
    args.data = args.data.resolve()

    chosen = {name: ensure_lake(WORKLOADS[name].lake, args) for name in args.workloads}
    for name, lake in chosen.items():
        if WORKLOADS[name].index:
            asyncio.run(ensure_index(lake, WORKLOADS[name].store, WORKLOADS[name].index))
    failed = []
    if any(WORKLOADS[name].store == "s3" for name in chosen):
        try:
            jars.ensure(args.data / "jars")
        except OSError as error:
            print(f"S3A cannot be fetched, so the workloads over S3 are left out: {error}", file=sys.stderr, flush=True)
            failed = [name for name in chosen if WORKLOADS[name].store == "s3"]
    report = [
        f"{args.first_byte_ms:g} ms to first byte; median of {args.repeats}; Python {platform.python_version()}.\n"
    ]
    runs: list[dict[str, Any]] = []
    with running_server(args.data / "objects", args.first_byte_ms) as endpoint:
        for name, lake in chosen.items():
            if name in failed:
                continue
            print(name, file=sys.stderr, flush=True)
            try:
                measured = measure(name, lake, endpoint, args)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                print(error, file=sys.stderr, flush=True)
                failed.append(name)
                continue
            runs += measured
            report.append(table(name, measured))
            print(report[-1], flush=True)
    report.append(summary(runs))
    print(report[-1])
    args.results.mkdir(parents=True, exist_ok=True)
    path = args.results / f"spark-{time.strftime('%Y%m%d-%H%M%S')}"
    settings = {name: str(value) for name, value in vars(args).items()}
    path.with_suffix(".json").write_text(json.dumps({"settings": settings, "runs": runs}, indent=1))
    path.with_suffix(".md").write_text("\n".join(report))
    if find_spec("matplotlib") is None:
        print("no picture is drawn: matplotlib is not installed")
    else:
        draw(runs, path.with_suffix(".svg"))
    print(f"tables, all measurements and picture of the joins: {path}.md, .json, .svg")
    if failed:
        sys.exit(f"without results: {', '.join(failed)}")


if __name__ == "__main__":
    main()
