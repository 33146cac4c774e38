"""The session of a command: its shared options, its cost on stderr, and what its url names."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from asyncpq.cli.commands import group_of
from asyncpq.cli.output import write_line
from asyncpq.cli.parameters import Argument, Group, Option
from asyncpq.cli.running import PROCESS, CommandExit
from asyncpq.cli.session_arguments import SessionArguments, with_session
from asyncpq.cli.url_targets import ReadSource, opened
from asyncpq.errors import AccessDeniedError, InvalidOptionError
from asyncpq.session import Session

GROUP = Group("commands", "Commands of the tests.")


@GROUP.command
@with_session
async def count(session: Session, source: ReadSource, times: Annotated[int, Option("--times")] = 1) -> None:
    """Count rows."""
    async with opened(session, source) as target:
        write_line(f"{type(target).__name__} {await target.count() * times}")


ERRORS = {
    "usage": InvalidOptionError("wrong"),
    "rights": AccessDeniedError("no"),
    "bug": KeyError("x"),
    "exit": CommandExit(5),
}


@GROUP.command
@with_session
async def fail(session: Session, error: Annotated[str, Argument()]) -> None:
    """Fail."""
    raise ERRORS[error]


app = group_of(GROUP)
run = CliRunner()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        pq.write_table(pa.table({"x": [1, 2, 3]}), tmp_path / f"{name}.parquet")
    return tmp_path


def test_a_url_names_one_file_or_many(folder: Path) -> None:
    assert run.invoke(app, ["count", str(folder / "a.parquet")]).stdout == "File 3\n"
    assert run.invoke(app, ["count", str(folder)]).stdout == "Dataset 6\n"
    assert run.invoke(app, ["count", f"{folder}/*.parquet", "--times", "2"]).stdout == "Dataset 12\n"
    assert run.invoke(app, ["count", f"{folder}/c.parquet"]).exit_code == 3


def test_the_cost_is_printed_to_stderr(folder: Path) -> None:
    done = run.invoke(app, ["count", str(folder / "a.parquet"), "--stats", "--disk-cache", str(folder / "cache")])
    assert done.stdout == "File 3\n"
    assert done.stderr.startswith("1 request in 1 round")
    assert (folder / "cache").is_dir()


def test_the_cost_of_a_lake_counts_its_files_once(folder: Path) -> None:
    assert " ruled out of 2; " in run.invoke(app, ["count", str(folder), "--stats"]).stderr


def test_each_kind_of_error_has_its_exit_code() -> None:
    codes = {error: run.invoke(app, ["fail", error]).exit_code for error in ERRORS}
    assert codes == {"usage": 2, "rights": 4, "bug": 1, "exit": 5}
    assert run.invoke(app, ["fail", "usage"]).stderr == "asyncpq: wrong\n"
    assert "bug of asyncpq" in run.invoke(app, ["fail", "bug"]).stderr


def test_debug_shows_the_traceback_and_keeps_the_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PROCESS, "debug", True)
    done = run.invoke(app, ["fail", "usage"])
    assert "Traceback" in done.stderr
    assert done.exit_code == 2


def test_the_help_has_the_commands_own_options_and_the_shared_ones() -> None:
    text = run.invoke(app, ["count", "--help"], env={"COLUMNS": "200", "TERM": "dumb"}).stdout
    for option in (
        "--times",
        "--profile",
        "--endpoint-url",
        "--region",
        "--no-sign-request",
        "--disk-cache",
        "--stats",
    ):
        assert option in text
    assert "Count rows." in text
    assert "context" not in text


def test_options_of_s3_do_not_concern_other_stores() -> None:
    assert SessionArguments().storage_options() == {}
    options = SessionArguments(profile="p", endpoint_url="http://h", region="r", no_sign_request=True).storage_options()
    expected = {"profile": "p", "endpoint_url": "http://h", "client_kwargs": {"region_name": "r"}, "anon": True}
    assert options == {"s3": expected, "s3a": expected}
