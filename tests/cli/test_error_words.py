"""Errors say to a user of the command line what the command line can do."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import asyncpq
from asyncpq.cli.commands import app
from asyncpq.cli.running import WRONG_USAGE, CommandExit, run
from asyncpq.errors import AccessDeniedError, Hint, InvalidOptionError

PACKAGE = Path(asyncpq.__file__).parent
#: The rooms whose errors a command may meet.
ROOMS = (
    *("*.py", "expressions", "storage", "datasets", "opening", "indexing", "caching", "parquet", "decoding", "scan"),
    *("objects", "writing", "tables"),
)
PYTHON = re.compile(
    r"storage_options|client_kwargs|Options\b|build_index\(|refresh\(\)|open_dataset|"
    r"\b(at|index|view|format|columns|snapshot|on_bad_file|schema_policy|disk_cache|progress|workers)=|"
    r"\bawait |\b[a-z_]{2,}=(?=[,;. )]|$)"
)
#: No verb of the command line can meet these: they are about arguments that it does not have, or always passes.
UNMET = (
    "Write `async with ",
    "await the method of its `asynchronous` object",
    "await asyncio.to_thread(query, scan)",
    "Check that decryption_properties= are",
    "Keys belong to lookup(), or to lookup=",
    "Use where= of scan",
    "Session.open_dataset reads a list of files.",
    "Flat storage_options are for",
    "Leave out format=.",
    "Put others into the dict that DeltaTable() was given",
    "in a notebook, `session = await",
    "Pass no session in storage_options",
    "Leave out snapshot=",
    "Leave out ReadOptions(require_pinning=True)",
    "Leave out view=",
    "storage_options of the protocol's obstore",  # the command line does not read through obstore
    "the option obstore to",
    "RetryOptions sets the retries, and other entries go",
    "Pass credentials in storage_options.",
    "out of the storage_options; read other buckets",
    'For the url of a table, pass format="delta"',
    'For a url, pass its format, too: format="delta"',
    "scan(columns=...)",
    'Write storage_options={"',
    'Pass on_bad_file="raise"',
    'Pass ReadOptions(legacy_calendar="rebase")',
)


def text_of(node: ast.expr) -> str:
    """Return the text of an expression, with ``{}`` for what is not constant."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return ""


def is_hint_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Hint"


def words_of_commands(node: ast.AST) -> Iterator[str]:
    """Yield the texts below a node, except the first of each Hint, which only the library shows."""
    if isinstance(node, ast.Call) and is_hint_call(node):
        for argument in node.args[1:]:
            yield from words_of_commands(argument)
    elif isinstance(node, (ast.Constant, ast.JoinedStr)):
        yield text_of(node)
    else:
        for child in ast.iter_child_nodes(node):
            yield from words_of_commands(child)


def hints() -> Iterator[str]:
    """Yield the texts of all hints that a command may print, each after the name of its module."""
    for room in ROOMS:
        for path in PACKAGE.glob(room if room.endswith(".py") else f"{room}/**/*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                names = [getattr(target, "id", getattr(target, "attr", "")) for target in targets]
                value = getattr(node, "value", None)
                is_argument = isinstance(node, ast.keyword) and node.arg == "hint"
                if value is not None and (is_argument or any("hint" in name.lower() for name in names)):
                    yield from (f"{path.name}: {text}" for text in words_of_commands(value))
                elif is_hint_call(node):
                    yield from (f"{path.name}: {text}" for text in words_of_commands(node))


@pytest.mark.heavy
def test_every_hint_that_a_command_may_print_is_in_its_words() -> None:
    texts = list(hints())
    left = [
        text
        for text in texts
        if PYTHON.search(text) and not any(unmet in text for unmet in UNMET) and "in python, " not in text.lower()
    ]
    assert left == [], "give the Hint the words of the command line, or name them in UNMET"
    assert [unmet for unmet in UNMET if not any(unmet in text for text in texts)] == []


def test_an_error_of_a_command_names_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    async def denied() -> None:
        raise AccessDeniedError("no", hint="Or " + Hint("anon=True in storage_options", "--no-sign-request") + ".")

    async def misplaced() -> None:
        raise InvalidOptionError("sort_by: is missing", option="sort_by")

    for command, words in ((denied, "no. Or --no-sign-request.\n"), (misplaced, "--sort-by: is missing\n")):
        with pytest.raises(CommandExit) as ended:
            run(command(), {"sort_by": "--sort-by"})
        assert ended.value.code in (4, WRONG_USAGE)
        assert capsys.readouterr().err == f"asyncpq: {words}"


def test_an_argument_that_is_no_option_of_the_command_keeps_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    async def failing() -> None:
        raise InvalidOptionError("partitioning=1: must be a list", option="partitioning")

    with pytest.raises(CommandExit):
        run(failing(), {"sort_by": "--sort-by"})
    assert capsys.readouterr().err == "asyncpq: partitioning=1: must be a list\n"


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake")
    pq.write_table(pa.table({"id": range(100), "text": [str(i) for i in range(100)]}), folder / "a.parquet")
    return folder


MISTAKES = {
    "optimize LAKE NEW --sort-by id --compression x": "--compression='x': must be one of",
    "optimize LAKE NEW --sort-by id --publish x": "--publish='x': must be",
    "optimize LAKE NEW --sort-by nope": "nope",
    "optimize LAKE NEW --zorder-by id": "--zorder-by: must be 2 to",
    "index build LAKE --kind keys:id --at LAKE/inside/": "--at: is inside the dataset",
    "index build LAKE/*.parquet --kind keys:id": "--at",
    "index vacuum LAKE --older-than x": "--older-than 'x'",
    "query LAKE/a.parquet --where x>": "x>",
    "query LAKE/a.parquet --where 'id>1 LIMIT 5'": "Leave out LIMIT: the limit is an option of its own.",
    "query LAKE/a.parquet --where ''": "Leave the condition out to read all rows.",
    "query LAKE/a.parquet --columns idd": "Did you mean 'id'",
    "query r2://bucket/key": "and its --endpoint-url.",
    "query simplecache::s3://bucket/key": "--disk-cache FOLDER",
    "query s3://bucket/key --endpoint-url 127.0.0.1:9": "--endpoint-url: does not begin with http:// or https://",
    "query s3://bucket/key --endpoint-url http://127.0.0.1:0": "--endpoint-url: has port 0",
    "query s3://key:secret@bucket/key": "Name a profile with --profile",
    "query s3://bucket/key --profile nobody-has-this": "the profile that --profile or AWS_PROFILE names",
    "cache show --disk-cache LAKE/none": "use as disk cache",
    "index show LAKE": "`asyncpq index build` builds it",
}


@pytest.mark.parametrize("line", MISTAKES)
def test_mistakes_are_told_in_the_words_of_the_command_line(lake: Path, tmp_path: Path, line: str) -> None:
    import shlex

    words = [word.replace("LAKE", str(lake)).replace("NEW", str(tmp_path / "new")) for word in shlex.split(line)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code in (1, 2, 3, 4), done.output
    text = " ".join(done.stderr.split())
    assert MISTAKES[line] in text
    assert not PYTHON.search(text)
