"""The long run of damaged indexes and listings: ``make fuzz ARGS="--served indexes --minutes 20"``, or one seed again:
``--served listings --seed 123``."""

from __future__ import annotations

import random
import sys
import time

KINDS = ("indexes", "listings")


def main(kind: str, minutes: float, first: int | None, seed: int | None) -> int:
    """Judge cases of one of ``KINDS`` for so many minutes, from a seed on; or one seed. Returns how many failed."""
    from tests.fuzz.run import Worker

    start = seed if seed is not None else random.randrange(1 << 40) if first is None else first
    sys.stdout.write(f"damaged {kind}, from seed {start}\n")
    stop = time.monotonic() + minutes * 60
    worker = Worker("tests.fuzz.served_worker", kind)
    failures = done = 0
    slowest = 0.0
    try:
        while time.monotonic() < stop:
            began = time.monotonic()
            wrong = worker.judge(start + done)
            slowest = max(slowest, time.monotonic() - began)
            if wrong is not None:
                failures += 1
                sys.stdout.write(f'\n{wrong}\nagain: make fuzz ARGS="--served {kind} --seed {start + done}"\n')
                sys.stdout.flush()
            done += 1
            if seed is not None:
                break
    finally:
        worker.close()
    sys.stdout.write(f"{done} damaged {kind}, {failures} failures, the slowest took {slowest:.1f} s\n")
    return failures
