"""The format decoders under atheris, which looks for inputs by coverage, where it is installed."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAMES = ("footer", "metadata", "page_header", "column_index", "offset_index", "bloom_filter", "alp", "thrift")
CASE_TIMEOUT_S = 10
MEMORY_MB = 1500


def run_atheris(seconds: float) -> int:
    """Every decoder for its share of the time. Returns how many failed."""
    if importlib.util.find_spec("atheris") is None:
        sys.stdout.write("atheris is not installed: the format decoders are left out\n")
        return 0
    failures = 0
    for name in NAMES:
        with tempfile.TemporaryDirectory() as corpus:
            command = [sys.executable, "-m", "tests.fuzz.targets", name, corpus, "-print_final_stats=1"]
            bounds = [f"-timeout={CASE_TIMEOUT_S}", f"-rss_limit_mb={MEMORY_MB}", "-max_len=20000"]
            artifacts = [f"-artifact_prefix={tempfile.gettempdir()}/asyncpq-{name}-"]
            total = f"-max_total_time={max(1, int(seconds / len(NAMES)))}"
            done = subprocess.run(
                [*command, *bounds, *artifacts, total], cwd=ROOT, stderr=subprocess.PIPE, text=True, check=False
            )
        lines = done.stderr.splitlines()
        runs = next((line.split()[-1] for line in lines if "number_of_executed_units" in line), "?")
        sys.stdout.write(f"atheris, {name}: {runs} runs, {'ok' if done.returncode == 0 else 'FAILED'}\n")
        if done.returncode:
            failures += 1
            sys.stdout.write("\n".join(lines[-60:]) + "\n")
            sys.stdout.write(f"again: python -m tests.fuzz.targets {name} <the file named above>\n")
    return failures


def main() -> None:
    """One decoder: its name, then the arguments of libFuzzer (a folder to work in, or files to try again)."""
    import atheris

    with atheris.instrument_imports(include=["asyncpq.parquet"]):
        from tests.fuzz import decoders
    name = sys.argv.pop(1)
    if len(sys.argv) > 1 and Path(sys.argv[1]).is_dir():
        for number, data in enumerate(decoders.examples(name)):
            (Path(sys.argv[1]) / f"example-{number}").write_bytes(data)
    atheris.Setup(sys.argv, lambda data: decoders.check(name, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()
