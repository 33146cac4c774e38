"""The command line as a process: help, version, and what is missing."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import NoReturn

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import asyncpq
from asyncpq.cli import main, parameters
from asyncpq.cli.commands import app

pytestmark = pytest.mark.sampled(2)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "asyncpq", *arguments], capture_output=True, text=True, timeout=60)


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"asyncpq {asyncpq.__version__}\n", "")


ON_STDOUT: list[list[str]] = [["--version"], ["--help"], [], ["count", "--help"], ["--debug", "--version"]]


#: Each writes to stdout in another way. x.parquet is in the folder.
WRITERS: list[list[str]] = [
    *ON_STDOUT,
    ["count", "x.parquet"],
    ["query", "x.parquet", "--format", "arrow"],
    ["inspect", "x.parquet", "--format", "json"],
    ["serve", "--new-token"],
]


def in_shell(arguments: list[str], redirections: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command whose output Python holds back, as it does for users."""
    pq.write_table(pa.table({"id": [1]}), folder / "x.parquet")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.run(
        ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment,
        cwd=folder,
    )


@pytest.mark.heavy
@pytest.mark.skipif(os.name == "nt", reason="needs a shell of Unix")
@pytest.mark.parametrize("module", ["asyncpq", "asyncpq.serve"])
@pytest.mark.parametrize(
    ("redirections", "reason"), [(">&-", "Bad file descriptor"), (">/dev/full", "No space left on device")]
)
def test_a_stdout_that_cannot_be_written(redirections: str, reason: str, module: str, tmp_path: Path) -> None:
    if "/dev/full" in redirections and not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    for arguments in WRITERS if module == "asyncpq" else [["--new-token"]]:
        done = in_shell(["-m", module, *arguments], redirections, tmp_path)
        assert (done.returncode, done.stderr) == (1, f"asyncpq: cannot write to stdout: {reason}.\n"), arguments


@pytest.mark.heavy
@pytest.mark.skipif(os.name == "nt", reason="needs a shell of Unix")
@pytest.mark.parametrize("redirections", ["2>&-", "2>/dev/full"])
def test_a_stderr_that_cannot_be_written_changes_no_exit_code(redirections: str, tmp_path: Path) -> None:
    if "/dev/full" in redirections and not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    for arguments, code, said in (
        (["count", "x.parquet"], 0, "1\n"),
        (["count", "none.parquet"], 3, ""),
        (["count", "x.parquet", "--where", "nosuch = 1"], 2, ""),
        (["frobnicate"], 2, ""),
    ):
        done = in_shell(["-m", "asyncpq", *arguments], redirections, tmp_path)
        assert (done.returncode, done.stdout) == (code, said), arguments


@pytest.mark.skipif(os.name == "nt", reason="needs a shell of Unix")
def test_rows_go_to_their_file_without_a_stdout(tmp_path: Path) -> None:
    """The file does not take the number of the closed stdout."""
    done = in_shell(["-m", "asyncpq", "query", "x.parquet", "-o", "x.csv"], "<&- >&- 2>&-", tmp_path)
    assert done.returncode == 0
    assert (tmp_path / "x.csv").read_text().split() == ['"id"', "1"]


@pytest.mark.parametrize("arguments", ON_STDOUT, ids=str)
def test_a_closed_pipe_is_quiet(arguments: list[str]) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "asyncpq", *arguments]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.heavy
@pytest.mark.parametrize("form", ["table", "json"])
def test_the_verdict_does_not_depend_on_who_reads_it(form: str, tmp_path: Path) -> None:
    """`lint --strict | head -0` fails in a script as `lint --strict` does."""
    path = tmp_path / "x.parquet"
    rows = random.Random(1)
    pq.write_table(pa.table({"id": [rows.randbytes(100) for _ in range(100_000)]}), path)
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "asyncpq", "lint", str(path), "--column", "id", "--strict", "--format", form]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
    os.close(writer)
    assert (done.returncode, done.stderr) == (5, "")


def test_an_interrupt_while_a_command_is_loaded_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: str) -> NoReturn:
        raise KeyboardInterrupt

    monkeypatch.setattr(parameters, "import_module", load)
    done = CliRunner().invoke(app, ["count", "x.parquet"])
    assert (done.exit_code, done.stderr) == (130, "asyncpq: interrupted\n")


def test_a_missing_package_has_a_hint_whenever_it_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "x.parquet")
    monkeypatch.setitem(sys.modules, "rich.console", None)
    done = CliRunner().invoke(app, ["query", str(tmp_path / "x.parquet"), "--format", "table"])
    assert done.exit_code == 1
    assert done.stderr.startswith("asyncpq: the command line requires rich.console. Install it"), done.stderr
    assert done.stderr.count("\n") == 1
    monkeypatch.setattr(sys, "argv", ["asyncpq", "inspect", str(tmp_path / "x.parquet")])
    with pytest.raises(SystemExit) as ended:
        main()
    # while the command's module is loaded, or once it runs
    said = f"{ended.value.code} {capsys.readouterr().err}"
    assert "asyncpq: the command line requires rich.console. Install it" in said

    def load(name: str) -> NoReturn:
        raise ModuleNotFoundError("No module named 'rich'", name="rich")

    monkeypatch.setattr(parameters, "import_module", load)
    with pytest.raises(SystemExit, match=r"asyncpq: the command line requires rich\. Install it"):
        main()


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
        (["--install-completion", "fsh"], "--install-completion takes no value, such as fsh: it is for the current"),
        (["--show-completion", "zsh"], "--show-completion takes no value, such as zsh: it is for the current shell."),
        (["query"], "missing argument 'URL'"),
        (["query", "x.parquet", "--nope"], "no such option: --nope"),
        (["query", "x.parquet", "--limit", "abc"], "invalid value for '-n' / '--limit': it must be a whole number."),
        (["query", "x.parquet", "--limit", "-3"], "invalid value for '-n' / '--limit': it must be at least 0."),
        (["query", "x.parquet", "--format", "xml"], "invalid value for '--format': 'xml' is not one of"),
        (["query", "x.parquet", "--columns", ""], "--columns has no column name"),
        (["take", "x.parquet"], "missing argument 'ROW...'"),
        (["take", "x.parquet", "-1"], "there is no row -1: rows are counted from 0."),
        (["lookup", "x.parquet"], "missing option '--key'"),
        (["lint", "x.parquet", "--writer", "polar"], "--writer 'polar': there is no cure for this writer"),
        (["index", "build", "x", "--kind", "bloom:user,zzz=1"], "--kind 'bloom:user,zzz=1': there is no option 'zzz'"),
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


def test_the_help_is_shown_once_without_a_command() -> None:
    done = subprocess.run([sys.executable, "-m", "asyncpq"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert (done.stdout + done.stderr).count("Usage:") == 1


LOADS: dict[str, tuple[list[str], set[str]]] = {
    # arguments of a command, and what it does not load
    "version": (["--version"], {"asyncio", "pyarrow", "re", "typer", "typing"}),
    "help": (["--help"], {"asyncio", "pyarrow", "re", "typer", "typing"}),
    "count": (
        ["count", "x.parquet"],
        {"rich", "numpy", "pandas", "asyncpq.dataset", "asyncpq.indexing", "asyncpq.page_map"},
    ),
    "lookup": (
        ["lookup", "x.parquet", "--key", "id=1"],
        {"rich", "numpy", "pandas", "pyarrow.compute", "asyncpq.dataset", "asyncpq.indexing", "asyncpq.page_map"},
    ),
}


@pytest.mark.parametrize("command", LOADS)
def test_a_command_loads_what_it_needs(command: str, tmp_path: Path) -> None:
    arguments, unneeded = LOADS[command]
    pq.write_table(pa.table({"id": [1, 2], "text": ["a", "b"], "price": [0.5, 1.5]}), tmp_path / "x.parquet")
    code = (
        "import sys, atexit\n"
        "atexit.register(lambda: print('loaded', *sys.modules, file=sys.stderr))\n"
        "from asyncpq.cli import main\n"
        f"sys.argv = ['asyncpq', *{arguments}]\n"
        "main()\n"
    )
    done = subprocess.run(
        [
            sys.executable,
            "-S",
            "-c",
            f"import sys; sys.path[:0] = {sys.path}\n{code}",
        ],  # -S: site loads modules of its own
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    loaded = set(done.stderr.split())
    assert "loaded" in loaded
    assert "asyncpq.cli" in loaded
    assert loaded.isdisjoint(unneeded)
