"""Lookups and reads by asyncpq and its peers, side by side in one run: ``make bench``, or

    python -m benchmarks.run [--rows N] [--repeats N] [--peers ...] [--workloads ...]

Every measurement is a fresh process; peers take turns, so that a slow minute of the machine hits all of
them, and each run begins with another one. Prints Markdown tables; writes them, a picture and all measurements to
benchmarks/results/.
"""

from __future__ import annotations

import argparse
import asyncio
import compileall
import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import data, datasets, minimum
from benchmarks.peers import PEERS, AsyncpqIndex, Target
from benchmarks.worker import WORKLOADS

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
DEFAULT_PEERS = ["asyncpq", "asyncpq-no-pages", "datafusion", "polars", "duckdb", "pyarrow"]
INSTEAD = {"W2h": {"asyncpq": "asyncpq-immutable", "asyncpq-no-pages": None}}  # of a peer, in a workload


@contextlib.contextmanager
def running_server(root: Path, first_byte_ms: float, mb_per_s: float | None = None) -> Iterator[str]:
    """The S3 server in a process of its own; yields its endpoint. ``mb_per_s``: of all connections, None for all."""
    command = [sys.executable, "-m", "benchmarks.s3_server", "--root", str(root)]
    command += ["--first-byte-ms", str(first_byte_ms)]
    command += [] if mb_per_s is None else ["--mb-per-s", str(mb_per_s)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            if process.stdout is None or not (line := process.stdout.readline().strip()):
                raise RuntimeError("the S3 server did not start; its message is above")
            yield f"http://127.0.0.1:{line}"
        finally:
            process.terminate()
            process.wait()


def compile_asyncpq() -> None:
    """Compile asyncpq's modules, as an installation does: otherwise each process may compile them anew."""
    compileall.compile_dir(ROOT / "asyncpq", quiet=1)


def ensure_index(args: argparse.Namespace) -> None:
    """The index of the folder of files, unless it is there: of what the server says of them, without its delay."""
    dataset = data.ensure(args.data, args.rows, "lake-refs")
    target = Target("", dataset.name, dataset.folder_key)
    place = args.data / "objects" / datasets.BUCKET / target.index_key
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


def table(workload: str, summaries: list[dict[str, Any]], least_bytes: float | None) -> str:
    """A Markdown table of one workload; ``x best`` is the time relative to the best peer that is not asyncpq."""
    head = ["peer", "n", "GET", "HEAD+LIST", "KiB", "x least", "rounds", "import ms", "open ms", "p50 ms", "p99 ms"]
    head += ["CPU ms", "per s", "per core-s", "first ms", "again ms", "again CPU ms", "first x again", "grown MB"]
    head += ["p50 x best", "CPU x best", "rate x best", "again x best"]
    lines = [f"### {workload}: {WORKLOADS[workload].title}", "", _row(head), _row(["---"] + ["---:"] * (len(head) - 1))]
    others = [summary for summary in summaries if not summary["peer"].startswith("asyncpq")]
    for summary in summaries:
        cells = [
            summary["peer"],
            f"{summary['lookups']:.0f}",
            f"{summary['get']:.1f}",
            f"{summary['head'] + summary['list']:.1f}",
            f"{summary['bytes'] / 1024:,.1f}",
            "-" if least_bytes is None else f"{summary['bytes'] / least_bytes:.2f}",
            "-" if summary["rounds"] is None else f"{summary['rounds']:.2f}",
            f"{summary['import_ms']:.0f}",
            f"{summary['open_ms']:.0f}",
            f"{summary['p50_ms']:.1f}",
            f"{summary['p99_ms']:.1f}",
            f"{summary['cpu_ms']:.2f}",
            f"{summary['per_second']:.1f}",
            f"{summary['per_core_second']:.1f}",
            *_first_and_again(summary),
            "-" if summary["grown_mb"] is None else f"{summary['grown_mb']:.0f}",
        ]
        cells += [
            "-" if not others else f"{summary[name] / best(peer[name] for peer in others):.2f}"
            for name, best in (("p50_ms", min), ("cpu_ms", min), ("per_second", max))
        ]
        again = [peer["again_ms"] for peer in others if peer["again_ms"] is not None]
        cells.append("-" if not again else f"{summary['again_ms'] / min(again):.2f}")
        lines.append(_row(cells))
    return "\n".join([*lines, ""])


def draw(summaries: list[dict[str, Any]], picture: Path) -> None:
    """Bars of the time, CPU and bytes of each workload and peer, on logarithmic scales.

    A variant that stands in for a peer has its color; other variants are left out.
    """
    from matplotlib import pyplot

    workloads = list(dict.fromkeys(summary["workload"] for summary in summaries))
    places = {instead: peer for peers in INSTEAD.values() for peer, instead in peers.items() if instead}
    summaries = [summary | {"peer": places.get(summary["peer"], summary["peer"])} for summary in summaries]
    summaries = [summary for summary in summaries if summary["peer"] == "asyncpq" or "-" not in summary["peer"]]
    peers = list(dict.fromkeys(summary["peer"] for summary in summaries))
    figure, axes = pyplot.subplots(3, 1, figsize=(12, 9), sharex=True, layout="constrained")
    measures = [("p50_ms", "milliseconds"), ("cpu_ms", "CPU milliseconds"), ("bytes", "bytes")]
    for axis, (name, label) in zip(axes, measures, strict=True):
        for number, peer in enumerate(peers):
            figures = {summary["workload"]: summary[name] for summary in summaries if summary["peer"] == peer}
            measured = [place for place, workload in enumerate(workloads) if figures.get(workload)]
            width = 0.8 / len(peers)
            axis.bar(
                [place + (number - len(peers) / 2 + 0.5) * width for place in measured],
                [figures[workloads[place]] for place in measured],
                width,
                label=peer,
                color=f"C{number}",
            )
        axis.set_yscale("log")
        axis.set_ylabel(label)
        axis.grid(axis="y", alpha=0.3)
        axis.spines[["top", "right"]].set_visible(False)
    figure.suptitle("Each lookup or read: less is better")
    figure.legend(*axes[0].get_legend_handles_labels(), ncols=len(peers), loc="outside lower center", frameon=False)
    axes[-1].set_xticks(range(len(workloads)), workloads)
    figure.savefig(picture)
    pyplot.close(figure)


def versions(peers: list[str]) -> str:
    """The versions of what is compared."""
    names = dict.fromkeys(["asyncpq", "pyarrow", *(peer.partition("-")[0] for peer in peers)])
    packages = {"asyncpq": "asyncpq-parquet"}
    found = [f"{name} {metadata.version(packages.get(name, name))}" for name in names]
    return ", ".join([*found, f"Python {platform.python_version()}"])


def _first_and_again(summary: dict[str, Any]) -> list[str]:
    """The cells of opening and reading in a fresh process, without imports, and again with empty caches."""
    first, again, cpu = summary["first_ms"], summary["again_ms"], summary["again_cpu_ms"]
    if again is None:
        return ["-"] * 4
    return [f"{first:.1f}", f"{again:.1f}", f"{cpu:.1f}", f"{first / again:.2f}"]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _kinds(workloads: list[str]) -> list[datasets.Kind]:
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
    compile_asyncpq()

    sources = {kind: data.ensure(args.data, args.rows, kind) for kind in _kinds(args.workloads)}
    least_bytes: dict[datasets.Kind, float] = {
        kind: minimum.lookup_bytes(dataset.file, dataset.places[:200], [dataset.column, *datasets.WANTED])
        for kind, dataset in sources.items()
        if kind != "wide"
    }
    runs: list[dict[str, Any]] = []
    if "asyncpq-index" in args.peers:
        ensure_index(args)
    with running_server(args.data / "objects", args.first_byte_ms) as endpoint:
        for repeat in range(args.repeats):
            for workload in args.workloads:
                peers = list(_peers(args.peers, workload))
                first = repeat * len(peers) // args.repeats
                for peer in peers[first:] + peers[:first]:
                    print(f"run {repeat + 1} of {args.repeats}: {workload} {peer}", file=sys.stderr, flush=True)
                    runs.append(measure(peer, workload, args, endpoint))

    report = [f"{args.rows:,} rows; {args.first_byte_ms:g} ms to first byte; median of {args.repeats} runs in turn."]
    report += [f"{versions(args.peers)}; {os.cpu_count()} cores; {time.strftime('%Y-%m-%d')}.", ""]
    for kind, dataset in sources.items():
        least = f"; the least is {least_bytes[kind] / 1024:.1f} KiB for each lookup" if kind in least_bytes else ""
        report.append(f"{kind}: {dataset.num_bytes / 1e6:.0f} MB{least}.  ")
    report.append("")
    summaries: list[dict[str, Any]] = []
    for workload in args.workloads:
        rows = [
            summarise([run for run in runs if (run["peer"], run["workload"]) == (peer, workload)])
            for peer in _peers(args.peers, workload)
        ]
        is_lookup = WORKLOADS[workload].lookups > 0
        report.append(table(workload, rows, least_bytes[WORKLOADS[workload].kind] if is_lookup else None))
        summaries += rows
    print("\n".join(report))
    args.results.mkdir(parents=True, exist_ok=True)
    path = args.results / time.strftime("%Y%m%d-%H%M%S")
    settings = {name: str(value) for name, value in vars(args).items()}
    measurements = {"settings": settings, "versions": versions(args.peers), "least_bytes": least_bytes, "runs": runs}
    path.with_suffix(".json").write_text(json.dumps(measurements, indent=1))
    path.with_suffix(".md").write_text("\n".join(report))
    if find_spec("matplotlib") is None:
        print("no picture is drawn: matplotlib is not installed")
    else:
        draw(summaries, path.with_suffix(".svg"))
    print(f"tables, picture and all measurements: {path}.md, .svg, .json")


def _peers(peers: list[str], workload: str) -> list[str]:
    """The peers of a workload: a variant stands in for a peer that another setting serves better."""
    chosen = (INSTEAD.get(workload, {}).get(peer, peer) for peer in peers)
    return [peer for peer in dict.fromkeys(chosen) if peer is not None]


if __name__ == "__main__":
    main()
