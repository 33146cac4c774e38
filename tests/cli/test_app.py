"""The command line as a process: help, version, and what is missing."""

from __future__ import annotations

import subprocess
import sys

import asyncpq


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "asyncpq", *arguments], capture_output=True, text=True, timeout=60)


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"asyncpq {asyncpq.__version__}\n", "")


def test_an_unknown_command_is_wrong_usage() -> None:
    done = run("frobnicate")
    assert done.returncode == 2
    assert "frobnicate" in done.stderr
    assert "Traceback" not in done.stderr
