"""Key lookups by asyncpq and its peers, side by side in one run: ``make bench``, or

    python -m benchmarks.run [--rows N] [--repeats N] [--peers ...] [--workloads ...]

Every measurement is a fresh process; peers take turns, so that a slow minute of the machine hits all of
them. Prints Markdown tables and writes all measurements to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import data, minimum
from benchmarks.peers import PEERS, AsyncpqIndex, Target
from benchmarks.worker import WORKLOADS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
TITLES = {
    "W1": "W1: one cold lookup, opening included",
    "W2": "W2: warm lookups, one after another",
    "W3_16": "W3_16: warm lookups, 16 at once",
    "W3_64": "W3_64: warm lookups, 64 at once",
    "W5b": "W5b: one cold lookup through bloom filters in an unsorted file, opening included",
    "W5c": "W5c: warm lookups through bloom filters in an unsorted file, one after another",
    "W7": "W7: one cold lookup in 500 files, opening included",
    "W7w": "W7w: warm lookups in 500 files, one after another",
    "W7k": "W7k: one cold lookup in a column in random order of 500 files, opening included",
    "W7kw": "W7kw: warm lookups in a column in random order of 500 files, one after another",
}
DEFAULT_PEERS = ["asyncpq", "asyncpq-no-pages", "datafusion", "pyarrow"]
BASELINE = "datafusion"


@contextlib.contextmanager
def running_server(root: Path, first_byte_ms: float) -> Iterator[str]:
    """The S3 server in a process of its own; yields its endpoint."""
    command = [sys.executable, "-m", "benchmarks.s3_server", "--root", str(root)]
    command += ["--first-byte-ms", str(first_byte_ms)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or not (line := process.stdout.readline().strip()):
                raise RuntimeError("the S3 server did not start; its message is above")
            yield f"http://127.0.0.1:{line}"
        finally:
            process.terminate()
            process.wait()


def ensure_index(args: argparse.Namespace) -> None:
    """The index of the folder of files, unless it is there: of what the server says of them, without its delay."""
    dataset = data.ensure(args.data, args.rows, "lake-refs")
    target = Target("", dataset.name, dataset.folder_key)
    place = args.data / "objects" / data.BUCKET / target.index_key
    if (place / "latest").is_file():
        return
    print(f"building an index in {place} ...", flush=True)
    with running_server(args.data / "objects", 0.0) as endpoint:
        peer = AsyncpqIndex()
        peer.prepare()
        asyncio.run(peer.build(replace(target, endpoint=endpoint), str(place)))


def measure(peer: str, workload: str, args: argparse.Namespace, endpoint: str) -> dict[str, Any]:
    """One measurement in a fresh process."""
    command = [sys.executable, "-m", "benchmarks.worker", peer, workload, "--data", str(args.data)]
    command += ["--rows", str(args.rows), "--endpoint", endpoint, "--limit-s", str(args.limit_s)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, timeout=600, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{peer} {workload} failed; its message is above")
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def summarise(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The median of each figure over the repetitions."""
    summary: dict[str, Any] = {"peer": runs[0]["peer"], "workload": runs[0]["workload"]}
    for name in runs[0].keys() - summary.keys():
        values = [run[name] for run in runs]
        summary[name] = None if None in values else median(values)
    return summary


def table(workload: str, summaries: list[dict[str, Any]], least_bytes: float) -> str:
    """A Markdown table of one workload; ``x DF`` is relative to DataFusion, for time, CPU and rate."""
    head = ["peer", "n", "GET", "HEAD+LIST", "KiB", "x least", "rounds", "p50 ms", "p99 ms", "CPU ms", "per s"]
    head += ["p50 x DF", "CPU x DF", "rate x DF"]
    lines = [f"### {TITLES[workload]}", "", _row(head), _row(["---"] + ["---:"] * (len(head) - 1))]
    baseline = next((summary for summary in summaries if summary["peer"] == BASELINE), None)
    for summary in summaries:
        cells = [
            summary["peer"],
            f"{summary['lookups']:.0f}",
            f"{summary['get']:.1f}",
            f"{summary['head'] + summary['list']:.1f}",
            f"{summary['bytes'] / 1024:,.1f}",
            f"{summary['bytes'] / least_bytes:.2f}",
            "-" if summary["rounds"] is None else f"{summary['rounds']:.2f}",
            f"{summary['p50_ms']:.1f}",
            f"{summary['p99_ms']:.1f}",
            f"{summary['cpu_ms']:.2f}",
            f"{summary['per_second']:.1f}",
        ]
        cells += [
            "-" if baseline is None else f"{summary[name] / baseline[name]:.2f}"
            for name in ("p50_ms", "cpu_ms", "per_second")
        ]
        lines.append(_row(cells))
    return "\n".join([*lines, ""])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _kinds(workloads: list[str]) -> list[data.Kind]:
    """The files that the workloads need, and no others."""
    return list(dict.fromkeys(WORKLOADS[workload].kind for workload in workloads))


def main() -> None:
    """Make the data, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows of each file (10 million: 400 MB or more)")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--limit-s", type=float, default=8.0, help="seconds after which a measurement stops")
    parser.add_argument("--first-byte-ms", type=float, default=20.0, help="the server's time to first byte")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=DEFAULT_PEERS)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--data", type=Path, default=HERE / "data", help="where the files are kept")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where all measurements are written")
    args = parser.parse_args()
    args.data = args.data.resolve()

    datasets = {kind: data.ensure(args.data, args.rows, kind) for kind in _kinds(args.workloads)}
    least_bytes = {
        kind: minimum.lookup_bytes(dataset.file, dataset.places[:200], [dataset.column, *data.WANTED])
        for kind, dataset in datasets.items()
    }
    runs: list[dict[str, Any]] = []
    if "asyncpq-index" in args.peers:
        ensure_index(args)
    with running_server(args.data / "objects", args.first_byte_ms) as endpoint:
        for repeat in range(args.repeats):
            for workload in args.workloads:
                for peer in args.peers:
                    print(f"run {repeat + 1} of {args.repeats}: {workload} {peer}", file=sys.stderr, flush=True)
                    runs.append(measure(peer, workload, args, endpoint))

    print(f"{args.rows:,} rows; {args.first_byte_ms:g} ms to first byte.", end=" ")
    print(f"Median of {args.repeats} runs; Python {platform.python_version()}.")
    for kind, dataset in datasets.items():
        size = dataset.num_bytes / 1e6
        print(f"{kind}: {size:.0f} MB; the least is {least_bytes[kind] / 1024:.1f} KiB for each lookup.")
    print()
    for workload in args.workloads:
        summaries = []
        for peer in args.peers:
            same = [run for run in runs if (run["peer"], run["workload"]) == (peer, workload)]
            summaries.append(summarise(same))
        print(table(workload, summaries, least_bytes[WORKLOADS[workload].kind]))
    args.results.mkdir(parents=True, exist_ok=True)
    path = args.results / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    settings = {name: str(value) for name, value in vars(args).items()}
    path.write_text(json.dumps({"settings": settings, "least_bytes": least_bytes, "runs": runs}, indent=1))
    print(f"all measurements: {path}")


if __name__ == "__main__":
    main()
