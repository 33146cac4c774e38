"""The service under load: ``make load``, or ``make load ARGS="--seconds 30 --json figures.json"``.

It starts ``python -m asyncpq.serve`` and prints one row of figures for each of:

* idle: ordinary tokens ask lookups, counts and small scans on a fixed schedule;
* crowd: 500 clients at once, 50 of which are killed in the middle, twice;
* single: /healthz under each of the most expensive requests;
* greedy: the ordinary tokens again, beside two that keep sending the most expensive requests at their full limit;
* SIGTERM: the end of the process in the middle of that.

It fails if a goal is missed: no errors of ordinary tokens and their p99 at most 3 times that of the idle service,
/healthz within 50 ms under each single request, nothing left of the clients, the end by ``drain_s`` and 5 s.
Run it on an idle machine: clients and service share its cores.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.load.phases import LoadTest, Report, Settings, load_average
from tests.load.questions import EXPENSIVE

_IDLE = 0.5  # processes that ran before, on average of a minute


def shown(report: Report) -> Iterator[str]:
    """The figures, line by line."""
    for phase, row in report.rows.items():
        if phase == "greedy":
            yield from _shown_single(report.health)
        verbs: dict[str, dict[str, float]] = row.get("verbs", {})
        parts = [
            f"{verb} {one['p50_ms']:g}/{one['p99_ms']:g}/{one['max_ms']:g} ms ({one['answers']})"
            for verb, one in verbs.items()
        ]
        if parts:
            parts[0] = f"p50/p99/max {parts[0]}"
        parts += [f"{name} {_text(value)}" for name, value in row.items() if name != "verbs"]
        yield f"{phase:8}{'; '.join(parts)}"


def _shown_single(health: dict[str, dict[str, Any]]) -> Iterator[str]:
    for name, one in health.items():
        yield f"single  {name:22}{'; '.join(f'{key} {value}' for key, value in one.items())}"


def _text(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(one)}" for key, one in value.items()) or "none"
    return " -> ".join(map(str, value)) if isinstance(value, list) else str(value)


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(prog="make load", description=__doc__)
    parser.add_argument("--seconds", type=float, default=Settings.seconds, help="about how long")
    parser.add_argument("--clients", type=int, default=Settings.clients)
    parser.add_argument("--killed", type=int, default=Settings.killed, help="of the clients")
    parser.add_argument("--seed", type=int, default=Settings.seed)
    parser.add_argument("--only", default="", help="those expensive requests whose names have this text")
    parser.add_argument("--s3", action="store_true", help="read the files from an S3 server, not from a folder")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    given = parser.parse_args()
    names = tuple(name for name in EXPENSIVE if given.only in name)
    if not names:
        parser.error(f"no request's name has {given.only!r}: {'; '.join(EXPENSIVE)}")
    settings = Settings(
        seconds=given.seconds, clients=given.clients, killed=given.killed, seed=given.seed, names=names, s3=given.s3
    )
    load = load_average()
    with tempfile.TemporaryDirectory(prefix="asyncpq-load-") as folder:
        test = LoadTest(settings, Path(folder))
        gc.collect()
        gc.freeze()  # else collections of what is loaded would count as time of the service
        report = asyncio.run(test.run())
    sys.stdout.write(f"load of the machine before: {load:.2f}; starts of the service: {test.service.starts}\n")
    for line in shown(report):
        sys.stdout.write(f"{line}\n")
    if given.json is not None:
        given.json.write_text(json.dumps({"load_before": load, **vars(report)}, indent=2), encoding="utf-8")
    if load > _IDLE:
        sys.stdout.write("the machine was busy before: the latencies say little of the service\n")
    for line in report.missed:
        sys.stdout.write(f"missed: {line}\n")
    sys.stdout.write("FAILED\n" if report.missed else "ok\n")
    return 1 if report.missed else 0


if __name__ == "__main__":
    sys.exit(main())
