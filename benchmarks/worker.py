"""One peer, one workload, one fresh process: ``python -m benchmarks.worker`` prints a JSON object."""

from __future__ import annotations

import argparse
import gc
import json
import resource
import sys
import time
import urllib.request
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks import datasets
from benchmarks.peers import PEERS, Target

_AGAIN = 3  # more runs of a single lookup or read in the same process


class Workload(NamedTuple):
    """What is measured: lookups, ``at_once`` at a time, or else one read of many rows.

    ``lookups`` is their number, 0 for a read; ``repeats`` looks the same keys up again. A ``cold`` one includes opening
    the file, a ``fresh`` one imports as well.
    """

    title: str
    lookups: int = 0
    at_once: int = 1
    repeats: int = 1
    cold: bool = False
    fresh: bool = False
    kind: datasets.Kind = "events"


WORKLOADS = {
    "W1": Workload("one lookup in a fresh process: imports, opening, lookup", 1, cold=True, fresh=True),
    "W2": Workload("warm lookups, one after another", 200),
    "W2h": Workload("20 lookups again and again, all in memory", 20, repeats=40),
    "W3_4": Workload("warm lookups, 4 at once", 1000, at_once=4),
    "W3_16": Workload("warm lookups, 16 at once", 1000, at_once=16),
    "W3_64": Workload("warm lookups, 64 at once", 1000, at_once=64),
    "W3_256": Workload("warm lookups, 256 at once", 1000, at_once=256),
    "W4": Workload("0.1 % of the rows, by a range of the sorted key"),
    "W5": Workload("one value of a column in random order"),
    "W5b": Workload("one cold lookup through bloom filters in an unsorted file", 1, cold=True, kind="events-bloom"),
    "W5c": Workload("warm lookups through bloom filters in an unsorted file", 200, kind="events-bloom"),
    "W6": Workload("5 of 2,000 columns, cold", cold=True, kind="wide"),
    "W7": Workload("one cold lookup in 500 files", 1, cold=True, kind="lake"),
    "W7w": Workload("warm lookups in 500 files", 200, kind="lake"),
    "W7k": Workload("one cold lookup in a column in random order of 500 files", 1, cold=True, kind="lake-refs"),
    "W7kw": Workload("warm lookups in a column in random order of 500 files", 200, kind="lake-refs"),
    "W8": Workload("one whole column, counted and summed up"),
    "W9": Workload("1,000 keys at once"),
    "W10": Workload("all rows and columns, batch by batch"),
}


def run(peer_name: str, workload: str, dataset: datasets.Dataset, endpoint: str, limit_s: float) -> dict[str, Any]:
    """Run the workload and return what it cost, for each lookup or read.

    Raises:
        SystemExit: the peer returned wrong rows; figures of wrong results are worth nothing.
    """
    _, count, at_once, repeats, cold, fresh, kind = WORKLOADS[workload]
    peer = PEERS[peer_name]()
    target = Target(endpoint, dataset.name, dataset.folder_key, dataset.column, kind)
    # A key of its own for each repetition would measure the data, not the reader: always the same ones.
    keys, users = dataset.keys[:count] * repeats, dataset.users[:count] * repeats
    counter = _Counter(endpoint) if fresh else None
    import_began = time.perf_counter()
    peer.prepare(fresh=fresh)
    import_ms = 1000 * (time.perf_counter() - import_began)
    counter = counter or (_Counter(endpoint) if cold else None)
    open_began = time.perf_counter()
    peer.open(target)
    open_ms = 1000 * (time.perf_counter() - open_began)
    if counter is None:
        if count:
            peer.look_up(dataset.warm_up if repeats == 1 else keys, 1, float("inf"))
        counter = _Counter(endpoint)
    base_mb = _reset_peak_mb()
    if count:
        outcome = peer.look_up(keys, at_once, limit_s)
        seconds, right = outcome.seconds, outcome.users == [[user] for user in users[: len(outcome.users)]]
    else:
        question = dataset.questions[workload]
        began = time.perf_counter()
        right = peer.read(question) == question.num_rows
        seconds = [time.perf_counter() - began]
    wall, cpu, counted = counter.stop()
    peak_mb = _peak_mb()
    peer.close()
    again = [] if count > 1 else [_again(peer_name, workload, dataset, target) for _ in range(_AGAIN)]
    if not right or not seconds or None in again:
        sys.exit(f"{peer_name} {workload}: wrong rows")
    latencies = [1000 * wall] if cold else sorted(1000 * one for one in seconds)
    done = len(latencies)
    return {
        "peer": peer_name,
        "workload": workload,
        "lookups": done,
        "get": counted["get"] / done,
        "head": counted["head"] / done,
        "list": counted["list"] / done,
        "bytes": counted["bytes"] / done,
        "rounds": counted["rounds"] / done if at_once == 1 else None,
        "import_ms": import_ms,
        "open_ms": open_ms,
        "p50_ms": latencies[len(latencies) // 2],
        "p99_ms": latencies[int(len(latencies) * 0.99)],
        "per_second": done / wall,
        "cpu_ms": 1000 * cpu / done,
        "per_core_second": done / cpu,
        "first_ms": open_ms + 1000 * sum(seconds) if again else None,
        "again_ms": median(1000 * wall for wall, _ in filter(None, again)) if again else None,
        "again_cpu_ms": median(1000 * cpu for _, cpu in filter(None, again)) if again else None,
        "grown_mb": None if base_mb is None or peak_mb is None else peak_mb - base_mb,
    }


def _again(peer_name: str, workload: str, dataset: datasets.Dataset, target: Target) -> tuple[float, float] | None:
    """Open the file with a new peer, whose caches are empty, and do a lookup or read that this process has done; return
    its wall and CPU seconds, opening included. None if its rows are wrong."""
    peer = PEERS[peer_name]()
    peer.prepare()
    gc.collect()
    began, cpu = time.perf_counter(), _cpu_seconds()
    peer.open(target)
    if WORKLOADS[workload].lookups:
        right = peer.look_up(dataset.keys[:1], 1, float("inf")).users == [[dataset.users[0]]]
    else:
        right = peer.read(dataset.questions[workload]) == dataset.questions[workload].num_rows
    seconds = time.perf_counter() - began, _cpu_seconds() - cpu
    peer.close()
    return seconds if right else None


class _Counter:
    """Wall time, CPU time and requests from now on."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        stats(endpoint, reset=True)
        self._cpu = _cpu_seconds()
        self._began = time.perf_counter()

    def stop(self) -> tuple[float, float, dict[str, int]]:
        wall, cpu = time.perf_counter() - self._began, _cpu_seconds() - self._cpu
        time.sleep(0.05)  # the server notes a request's end after its last byte was handed over
        return wall, cpu, stats(self._endpoint)


def _reset_peak_mb() -> float | None:
    """Let the peak of the resident memory start anew; return the memory of now. None where Linux does not tell."""
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _peak_mb()


def _peak_mb() -> float | None:
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return None
    return int(status.partition("VmHWM:")[2].split()[0]) / 1024


def stats(endpoint: str, *, reset: bool = False) -> dict[str, int]:
    with urllib.request.urlopen(f"{endpoint}/__stats?reset={int(reset)}") as response:
        counted: dict[str, int] = json.load(response)
        return counted


def _cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--limit-s", type=float, required=True)
    args = parser.parse_args()
    dataset = datasets.load(args.data, args.rows, WORKLOADS[args.workload].kind)
    print(json.dumps(run(args.peer, args.workload, dataset, args.endpoint, args.limit_s)))


if __name__ == "__main__":
    main()
