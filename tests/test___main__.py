"""``python -m asyncpq`` is the command line."""

from __future__ import annotations

import subprocess
import sys

import asyncpq


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "asyncpq", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


def test_it_is_the_command_line() -> None:
    version = run("--version")
    assert (version.returncode, version.stdout) == (0, f"asyncpq {asyncpq.__version__}\n")
    assert "python -m asyncpq [OPTIONS] COMMAND" in run("--help").stdout


def test_its_exit_code_is_the_command_s() -> None:
    missing = run("count", "/no/such.parquet")
    assert missing.returncode == 3
    assert missing.stderr.startswith("asyncpq: ")
    assert missing.stderr.count("\n") == 1
