"""The command line as a process: help, version, and what is missing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer
from typer.testing import CliRunner

import asyncpq
from asyncpq.cli.commands import app


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


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["frobnicate"], "no such command 'frobnicate'"),
        (["index", "frobnicate"], "no such command 'frobnicate'"),
        (["query"], "missing argument 'URL'"),
        (["query", "x.parquet", "--nope"], "no such option: --nope"),
        (["query", "x.parquet", "--limit", "abc"], "invalid value for '--limit'"),
        (["query", "x.parquet", "--format", "xml"], "invalid value for '--format': 'xml' is not one of"),
        (["query", "x.parquet", "--columns", ""], "--columns has no column name"),
        (["take", "x.parquet"], "missing argument 'ROW...'"),
        (["lookup", "x.parquet"], "missing option '--key'"),
        (["lint", "x.parquet", "--writer", "polar"], "--writer 'polar': there is no cure for this writer"),
        (["index", "build", "x", "--kind", "bloom:user,zzz=1"], "--kind 'bloom:user,zzz=1': these columns or options"),
        (["index", "build", "x", "--kind", "bloom:user,zzz=1.x"], "--kind 'bloom:user,zzz=1.x': these columns or"),
        (["index", "build", "x", "--kind", "keys"], "--kind 'keys': an index of this kind needs the name of a column"),
    ],
)
def test_wrong_usage_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"id": [1]}), "x.parquet")
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"asyncpq: {said}"), done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""


def test_a_group_without_a_command_shows_its_help() -> None:
    for arguments in ([], ["index"]):
        done = CliRunner().invoke(app, arguments)
        assert done.exit_code == 2
        assert "Usage:" in done.stdout
        assert done.stderr == ""


def test_files_that_cannot_be_written_have_the_names_that_the_user_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"id": [1]}), "x.parquet")
    for option in ("query x.parquet -o none/rows.csv", "inspect x.parquet --svg none/map.svg"):
        done = CliRunner().invoke(app, option.split())
        assert done.exit_code == 1
        assert done.stderr == (
            f"asyncpq: cannot write {option.split()[-1]}: No such file or directory. Make its folder first.\n"
        )
    missing = CliRunner().invoke(app, ["query", "missing.parquet"])
    assert missing.exit_code == 3
    assert "open_dataset" not in missing.stderr


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
