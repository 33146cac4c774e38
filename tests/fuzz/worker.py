"""A process that judges the seeds it is sent, a line each, and answers a line each.

A process of its own, so that a crash, a hang or a memory bomb ends it and not the fuzzer.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path

from tests.fuzz import mutations
from tests.fuzz.judge import judge

ADDRESS_SPACE = 6 << 30  # bytes; virtual memory, of which threads and libraries take most
RESIDENT_GROWTH = 500 << 10  # KiB over the whole life of a worker


def resident() -> int:
    """Return the most KiB that this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def serve(judge_seed: Callable[[int], None], growth: int, start: int = 0) -> None:
    """Serve until standard input ends.

    It writes a line when it is ready, and an answer for each seed: ``ok`` and by how many KiB memory has grown at most,
    or ``fail`` and what happened, escaped.

    Args:
        growth: KiB that memory may grow by. start: where it begins; by default, after the first seed.
    """
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    _write("ready")
    for line in sys.stdin:
        wrong: str | None = None
        try:
            judge_seed(int(line))
        except BaseException:  # noqa: BLE001 - whatever it was is the answer
            wrong = traceback.format_exc()
        start = start or resident()
        grown = resident() - start
        if wrong is None and grown > growth:
            wrong = f"memory grew by {grown} KiB"
        _write(f"ok {grown}" if wrong is None else f"fail {wrong!r}")


def _write(answer: str) -> None:
    sys.stdout.write(f"{answer}\n")
    sys.stdout.flush()


def main() -> None:
    """Serve damaged files."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.parquet"

        def judge_seed(seed: int) -> None:
            case = mutations.make(seed)
            path.write_bytes(case.data)
            asyncio.run(judge(case, path, seed))

        serve(judge_seed, RESIDENT_GROWTH)


if __name__ == "__main__":
    main()
