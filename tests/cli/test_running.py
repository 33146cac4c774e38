"""A command ends with one exit code, and an error with one line."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from asyncpq import errors
from asyncpq.cli.commands import app
from asyncpq.cli.running import FINDINGS, INTERRUPTED, CommandExit, exit_code, fail, interruptible, run
from asyncpq.session import Session

pytestmark = pytest.mark.sampled(2)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidOptionError("x"), 2),
        (errors.UsageError("x"), 2),
        (errors.ExpressionError("x"), 2),
        (errors.ColumnNotFoundError("x"), 2),
        (errors.ObjectNotFoundError("x"), 3),
        (errors.AccessDeniedError("x"), 4),
        (errors.StoreError("x"), 1),
        (errors.CorruptFileError("x"), 1),
        (OSError("x"), 1),
        (KeyError("x"), 1),
    ],
)
def test_exit_codes(error: Exception, code: int) -> None:
    assert exit_code(error) == code


def test_a_result_is_returned_and_an_exit_of_the_command_stays() -> None:
    async def three() -> int:
        return 3

    async def findings() -> None:
        raise CommandExit(FINDINGS)

    assert run(three()) == 3
    with pytest.raises(CommandExit) as ended:
        run(findings())
    assert ended.value.code == FINDINGS


def test_an_interrupt_ends_with_the_shells_code(capsys: pytest.CaptureFixture[str]) -> None:
    async def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(CommandExit) as ended:
        run(interrupted())
    assert ended.value.code == 130
    assert capsys.readouterr().err == "asyncpq: interrupted\n"


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandExit) as ended:
        fail("first\n  second", 1)
    assert ended.value.code == 1
    assert capsys.readouterr() == ("", "asyncpq: first second\n")


@pytest.mark.usefixtures("ctrl_c")
def test_an_interrupted_block_says_what_becomes_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    async def command() -> None:
        with interruptible("The same command continues."):
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.Event().wait()

    with pytest.raises(CommandExit) as ended:
        run(command())
    assert ended.value.code == INTERRUPTED
    assert capsys.readouterr().err == "asyncpq: interrupted. The same command continues.\n"


@pytest.mark.usefixtures("ctrl_c")
@pytest.mark.parametrize(
    ("arguments", "method", "said"),
    [
        ("index build lake", "build_index", "The same command continues the build where it stopped."),
        ("optimize lake new --sort-by id", "optimize", "Repeat the command with another folder."),
    ],
)
def test_ctrl_c_in_long_work(
    arguments: str, method: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hang(*_: object, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Session, method, hang)
    (tmp_path / "lake").mkdir()
    pq.write_table(pa.table({"id": [1]}), "lake/x.parquet")
    done = CliRunner().invoke(app, arguments.split())
    assert done.exit_code == INTERRUPTED
    assert done.stderr.startswith("asyncpq: interrupted. ")
    assert done.stderr.endswith(f"{said}\n")


@pytest.mark.parametrize("answer", ["n\n", ""])
def test_an_index_stays_unless_someone_agrees(answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lake").mkdir()
    pq.write_table(pa.table({"id": [1]}), "lake/x.parquet")
    assert CliRunner().invoke(app, ["index", "build", "lake"]).exit_code == 0
    done = CliRunner().invoke(app, ["index", "drop", "lake"], input=answer)
    assert done.exit_code == 1
    assert "asyncpq: the index stays" in done.stderr
    assert ("--yes" in done.stderr) is (answer == "")
    assert CliRunner().invoke(app, ["index", "show", "lake"]).exit_code == 0
    assert CliRunner().invoke(app, ["index", "drop", "lake", "--yes"]).exit_code == 0
    gone = CliRunner().invoke(app, ["index", "show", "lake"])
    assert gone.exit_code == 3
    assert "`asyncpq index build`" in gone.stderr


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["query", "x", "--filter", "id > 1"], "no such option: --filter. Did you mean --where? See `"),
        (["query", "x", "-l", "3"], "no such option: -l. Did you mean --limit? See `"),
        (["count", "x", "-n", "3"], "no such option: -n. See `"),
        (["head", "x", "--limit", "3"], "no such option: --limit. Did you mean --rows? See `"),
        (["schema", "x", "--json"], "no such option: --json. Did you mean --format json? See `"),
        (["query", "x", "--csv"], "no such option: --csv. Did you mean --format csv? See `"),
        (["query", "x", "--select", "id"], "no such option: --select. Did you mean --columns? See `"),
        (["lint", "x", "--columns", "id"], "no such option: --columns. Did you mean --column? See `"),
        (["serve", "--prot", "80"], "no such option: --prot. Did you mean --port or --host? See `"),
        (["select", "x"], "no such command 'select'. Did you mean 'query'? See `"),
        (["quer", "x"], "no such command 'quer'. Did you mean 'query'? See `"),
        (["selct", "x"], "no such command 'selct'. Did you mean 'query'? See `"),
        (["schem", "x"], "no such command 'schem'. Did you mean 'schema'"),
        (["haed", "x"], "no such command 'haed'. Did you mean 'head'? See `"),
        (["xyzzy", "x"], "no such command 'xyzzy'. See `"),
        (["trips.parquet"], "Name the command before the url, such as: asyncpq inspect trips.parquet. See `"),
        (["s3://b/k", "--columns", "id"], "Name the command before the url, such as: asyncpq inspect s3://b/k. See `"),
        (["why", "x", "--html"], "option '--html' requires an argument. See `asyncpq why --help`."),
        (["index", "select"], "no such command 'select'. See `"),
        (
            ["--endpoint-url", "u", "query", "x"],
            "--endpoint-url stands before the command. Write it behind the command",
        ),
        (["index", "--at", "u", "build", "x"], "--at stands before the command. Write it behind the command"),
        (["query", "x", "--debug"], "--debug stands behind the command. Write it before: asyncpq --debug ..."),
        (["query", "a", "b"], "there is no place for: b. Put a pattern of many files"),
        (["query", "a", "b", "=", "5"], "there is no place for: b = 5. Write a condition behind --where, in quotes"),
        (["count", "a", "b<5"], "there is no place for: b<5. Write a condition behind --where, in quotes"),
        (["head", "a", "3"], "there is no place for: 3. Write the number of rows behind --rows"),
        (["query", *"abcdef"], "there is no place for: b c d ... 5 in all. Put a pattern of many files"),
    ],
)
def test_options_and_commands_of_other_tools_get_a_hint(arguments: list[str], says: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert says in done.stderr


@pytest.mark.heavy
@pytest.mark.parametrize("arguments", [["--help"], ["query", "--help"], ["index", "--help"]])
def test_the_reader_of_the_help_may_leave(arguments: list[str]) -> None:
    reads, writes = os.pipe()
    os.close(reads)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "asyncpq", *arguments],
            stdout=writes,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    finally:
        os.close(writes)
    assert (done.returncode, done.stderr) == (0, b"")
