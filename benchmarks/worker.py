"""One peer, one workload, one fresh process: ``python -m benchmarks.worker`` prints a JSON object."""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks import data
from benchmarks.peers import PEERS, Target


class Workload(NamedTuple):
    """What is done.

    Attributes:
        at_once: lookups at once.
        lookups: of them, at most.
        cold: one lookup, of which opening the file is a part.
        kind: of the file.
    """

    at_once: int
    lookups: int
    cold: bool
    kind: data.Kind = "events"


WORKLOADS = {
    "W1": Workload(1, 1, True),
    "W2": Workload(1, 200, False),
    "W3_16": Workload(16, 1000, False),
    "W3_64": Workload(64, 1000, False),
    "W5b": Workload(1, 1, True, "events-bloom"),
    "W5c": Workload(1, 200, False, "events-bloom"),
    "W7": Workload(1, 1, True, "lake"),
    "W7w": Workload(1, 200, False, "lake"),
    "W7k": Workload(1, 1, True, "lake-refs"),
    "W7kw": Workload(1, 200, False, "lake-refs"),
}


def run(peer_name: str, workload: str, dataset: data.Dataset, endpoint: str, limit_s: float) -> dict[str, Any]:
    """Run the workload and return what it cost, for each lookup.

    Raises:
        SystemExit: the peer returned wrong rows; figures of wrong results are worth nothing.
    """
    at_once, count, cold, _ = WORKLOADS[workload]
    peer = PEERS[peer_name]()
    peer.prepare()
    target = Target(endpoint, dataset.name, dataset.folder_key, dataset.column)
    keys, users = dataset.keys[:count], dataset.users[:count]
    if cold:
        # A key of its own for each repetition would measure the data, not the reader: always the same one.
        began, cpu_began = _restart(endpoint)
        peer.open(target)
        outcome = peer.look_up(keys, at_once, limit_s)
        outcome.seconds = [time.perf_counter() - began]
    else:
        peer.open(target)
        peer.look_up(dataset.warm_up, 1, float("inf"))
        began, cpu_began = _restart(endpoint)
        outcome = peer.look_up(keys, at_once, limit_s)
    wall = time.perf_counter() - began
    cpu = _cpu_seconds() - cpu_began
    time.sleep(0.05)  # the server notes a request's end after its last byte was handed over
    counted = stats(endpoint)
    peer.close()
    if outcome.users != [[user] for user in users[: len(outcome.users)]] or not outcome.users:
        sys.exit(f"{peer_name} {workload}: wrong rows")
    done = len(outcome.users)
    latencies = sorted(1000 * seconds for seconds in outcome.seconds)
    return {
        "peer": peer_name,
        "workload": workload,
        "lookups": done,
        "get": counted["get"] / done,
        "head": counted["head"] / done,
        "list": counted["list"] / done,
        "bytes": counted["bytes"] / done,
        "rounds": counted["rounds"] / done if at_once == 1 else None,
        "p50_ms": latencies[len(latencies) // 2],
        "p99_ms": latencies[int(len(latencies) * 0.99)],
        "per_second": done / wall,
        "cpu_ms": 1000 * cpu / done,
    }


def _restart(endpoint: str) -> tuple[float, float]:
    """Forget what was counted so far; returns the clock and the CPU clock."""
    stats(endpoint, reset=True)
    return time.perf_counter(), _cpu_seconds()


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
    dataset = data.load(args.data, args.rows, WORKLOADS[args.workload].kind)
    print(json.dumps(run(args.peer, args.workload, dataset, args.endpoint, args.limit_s)))


if __name__ == "__main__":
    main()
