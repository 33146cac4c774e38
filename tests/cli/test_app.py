"""The command line as a process: help, version, and what is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

import asyncpq
from asyncpq.cli.app import app


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


COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]  # it is a group


def test_the_page_of_the_command_line_explains_every_command() -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    headings = " ".join(line for line in page.splitlines() if line.startswith("## "))
    assert [name for name in COMMANDS if re.search(rf"\b{name}\b", headings) is None] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_that_ends_as_a_sentence(name: str) -> None:
    done = CliRunner(env={"COLUMNS": "400", "TERM": "dumb"}).invoke(app, [name, "--help"])
    assert done.exit_code == 0
    assert "Usage:" in done.stdout
    for line in done.stdout.splitlines():
        if "--" in line and line.startswith("│"):
            assert re.search(r"[.)\]]\s*│$", line), line


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shells_complete_commands(shell: str) -> None:
    variable = "_ASYNCPQ_COMPLETE"
    script = CliRunner(env={variable: f"source_{shell}"}).invoke(app, [], prog_name="asyncpq")
    assert variable in script.stdout
    words = {"COMP_WORDS": "asyncpq cou", "COMP_CWORD": "1"}  # of bash
    others = {"_TYPER_COMPLETE_ARGS": "asyncpq cou", "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    done = CliRunner(env={variable: f"complete_{shell}", **words, **others}).invoke(app, [], prog_name="asyncpq")
    assert "count" in done.stdout
    assert "lookup" not in done.stdout
