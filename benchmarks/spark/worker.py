"""One workload in a fresh process, its sides by turns: ``python -m benchmarks.spark.worker`` prints a JSON object."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.spark import jars
from benchmarks.spark.lakes import Lake
from benchmarks.spark.session import running_session
from benchmarks.spark.workloads import WORKLOADS, Stage
from benchmarks.worker import stats

_WARM_UPS = {"local": 2, "s3": 1}


def run(name: str, stage: Stage, repeats: int, limit_s: float) -> list[dict[str, Any]]:
    """What each side cost, question by question.

    The first questions, of a cold JVM and empty caches, are marked, and are the same for all sides. Later each side is
    asked for keys of its own, as S3A keeps what it has read, too. ``limit_s`` seconds after the first warm round began
    no further one begins.

    Raises:
        SystemExit: the sides found different rows, or too few; figures of wrong results are worth nothing.
    """
    workload = WORKLOADS[name]
    runs: list[dict[str, Any]] = []
    ends = 0.0
    warm_ups = _WARM_UPS[stage.store]
    for number in range(warm_ups + repeats):
        if number == warm_ups:
            ends = time.perf_counter() + limit_s
        elif number > warm_ups and time.perf_counter() > ends:
            break
        warm = number >= warm_ups
        answers = {}
        for place, (side, ask) in enumerate(workload.sides.items()):
            keys = stage.lake.keys(workload.keys, seed=1000 * number + (place if warm else 0))
            if stage.store == "s3":
                stats(stage.endpoint, reset=True)
            began = time.perf_counter()
            answers[side] = ask(stage, keys)
            seconds = time.perf_counter() - began
            time.sleep(0.05)  # the server notes a request's end after its last byte was handed over
            counted = stats(stage.endpoint) if stage.store == "s3" else {}
            runs.append({"workload": name, "side": side, "number": number, "warm": warm, "seconds": seconds, **counted})
        first = next(iter(answers.values()))
        same = warm or all(answer == first for answer in answers.values())
        if not same or any(answer is not None and len(answer) != workload.keys for answer in answers.values()):
            sys.exit(f"{name}: the sides found different rows, or too few")
    return runs


def main() -> None:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", choices=WORKLOADS)
    parser.add_argument("--root", type=Path, required=True, help="where the lakes are")
    parser.add_argument("--lake", required=True, help="folder in the bucket")
    parser.add_argument("--rows", type=int, required=True)
    parser.add_argument("--jars", type=Path, required=True)
    parser.add_argument("--endpoint", required=True)
    parser.add_argument("--repeats", type=int, required=True)
    parser.add_argument("--limit-s", type=float, required=True)
    args = parser.parse_args()
    store = WORKLOADS[args.workload].store
    s3a = jars.ensure(args.jars) if store == "s3" else []
    with running_session(s3a, args.endpoint if store == "s3" else None) as spark:
        stage = Stage(spark, store, args.endpoint, Lake(args.root, args.lake, args.rows))
        print(json.dumps(run(args.workload, stage, args.repeats, args.limit_s)))


if __name__ == "__main__":
    main()
