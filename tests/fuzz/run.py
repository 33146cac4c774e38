"""The long run: ``make fuzz ARGS="--minutes 20"``, or one seed again: ``--seed 123``.

Every failure is printed with the command that repeats it, and its damaged file is written to tests/fuzz/seeds,
where it is a test from then on.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import selectors
import subprocess
import sys
import tempfile
import time
from ast import literal_eval
from pathlib import Path

from tests.fuzz import mutations, served, table_metadata
from tests.fuzz.judge import judge
from tests.fuzz.targets import run_atheris

ROOT = Path(__file__).resolve().parents[2]
SEEDS = Path(__file__).resolve().parent / "seeds"
CASE_TIMEOUT_S = 120.0  # a case takes seconds of CPU, of which a busy machine gives a tenth
START_TIMEOUT_S = 200.0


def _has_output(process: subprocess.Popen[str], timeout_s: float) -> bool:
    """Wait for output of a process, or its end; return whether it came in time."""
    with selectors.DefaultSelector() as selector:
        assert process.stdout is not None
        selector.register(process.stdout, selectors.EVENT_READ)
        return bool(selector.select(timeout_s))


class Worker:
    """A child process that judges seeds; a new one is made after it has died. ``module`` is what it runs, with
    ``arguments``.

    Attributes:
        peak_kib: the most by which its memory grew.
    """

    def __init__(self, module: str = "tests.fuzz.worker", *arguments: str) -> None:
        self.peak_kib: int = 0
        self._command = [sys.executable, "-m", module, *arguments]
        self._process: subprocess.Popen[str] | None = None

    def judge(self, seed: int) -> str | None:
        """What is wrong with a seed's case, or None."""
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{seed}\n")
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it has died, as its empty answer says
        if not _has_output(process, CASE_TIMEOUT_S):
            self.close()
            return f"no answer after {CASE_TIMEOUT_S} s"
        answer = process.stdout.readline().rstrip("\n")
        if not answer:
            code = process.wait()
            self.close()
            return f"the process died, exit status {code}"
        if answer.startswith("ok "):
            self.peak_kib = max(self.peak_kib, int(answer.removeprefix("ok ")))
            return None
        self.close()  # memory that grew must not be blamed on the next case
        return str(literal_eval(answer.removeprefix("fail ")))

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            self._process = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
            # imports and preparations do not count as the time of the first case
            if _has_output(self._process, START_TIMEOUT_S):
                assert self._process.stdout is not None
                self._process.stdout.readline()
        return self._process

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(BrokenPipeError):
                        stream.close()


def keep(seed: int) -> Path:
    """Write the damaged file of a seed to the kept ones."""
    case = mutations.make(seed)
    SEEDS.mkdir(exist_ok=True)
    path = SEEDS / f"{case.base}-{'other' if case.says_other else 'same'}-{seed}.parquet"
    path.write_bytes(case.data)
    return path


def main() -> int:
    """Run for as long as asked. Returns the exit status."""
    parser = argparse.ArgumentParser(prog="make fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--first", type=int, help="first seed of the run; by default a random one")
    parser.add_argument("--seed", type=int, help="only this seed, in this process")
    parser.add_argument("--no-atheris", action="store_true")
    parser.add_argument("--served", choices=served.KINDS, help="only the indexes, or the listings, of a server")
    options = parser.parse_args()
    if options.served is not None:
        return served.main(options.served, options.minutes, options.first, options.seed)
    if options.seed is not None:
        case = mutations.make(options.seed)
        sys.stdout.write(f"{case.base}: {case.what}\n")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "case.parquet"
            path.write_bytes(case.data)
            asyncio.run(judge(case, path, options.seed))
        return 0
    seconds = options.minutes * 60
    failures = 0
    if not options.no_atheris:
        failures += run_atheris(seconds / 4)
        seconds *= 0.75
    for kind in served.KINDS:
        failures += served.main(kind, seconds / 60 / 5, options.first, None)
    failures += _run(seconds * 0.3, options.first)
    failures += table_metadata.run(seconds * 0.3, options.first)
    return 1 if failures else 0


def _run(seconds: float, first: int | None) -> int:
    seed = random.randrange(1 << 40) if first is None else first
    sys.stdout.write(f"damaged files, from seed {seed}\n")
    stop = time.monotonic() + seconds
    worker = Worker()
    failures = done = 0
    try:
        while time.monotonic() < stop:
            wrong = worker.judge(seed)
            if wrong is not None:
                failures += 1
                sys.stdout.write(f"\n{mutations.make(seed).what}\n{wrong}\n")
                sys.stdout.write(f'again: make fuzz ARGS="--seed {seed}"; the file is {keep(seed)}\n')
                sys.stdout.flush()
            seed += 1
            done += 1
    finally:
        worker.close()
    sys.stdout.write(f"{done} damaged files, {failures} failures\n")
    return failures


if __name__ == "__main__":
    sys.exit(main())
