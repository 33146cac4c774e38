"""A process that judges the seeds it is sent, a line each, and answers a line each.

A process of its own, so that a crash, a hang or a memory bomb ends it and not the fuzzer.
"""

from __future__ import annotations

import asyncio
import resource
import sys
import tempfile
import traceback
from pathlib import Path

from tests.fuzz import mutations
from tests.fuzz.judge import judge

ADDRESS_SPACE = 6 << 30  # bytes; virtual memory, of which threads and libraries take most
RESIDENT_GROWTH = 500 << 10  # KiB over the whole life of a worker


def _resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Serve until standard input ends. An answer is ``ok``, or ``fail`` and what happened, escaped."""
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    start = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "case.parquet"
        for line in sys.stdin:
            seed = int(line)
            try:
                case = mutations.make(seed)
                path.write_bytes(case.data)
                asyncio.run(judge(case, path, seed))
            except BaseException:  # noqa: BLE001 - whatever it was is the answer
                answer = f"fail {traceback.format_exc()!r}"
            else:
                answer = "ok"
            start = start or _resident()
            if answer == "ok" and _resident() - start > RESIDENT_GROWTH:
                answer = f"fail 'memory grew by {_resident() - start} KiB'"
            sys.stdout.write(f"{answer}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
