"""Errors in the words of the command line."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncpq
from asyncpq.cli.running import WRONG_USAGE, CommandExit, run
from asyncpq.cli.wording import WORDS, in_options
from asyncpq.errors import AccessDeniedError, InvalidOptionError

PACKAGE = Path(asyncpq.__file__).parent
ROOMS = (
    *("errors.py", "expressions/sql.py", "storage/*.py", "storage/s3/*.py", "datasets/*.py", "opening/*.py"),
    *(
        "indexing/*.py",
        "indexing/b*/*.py",
        "caching/*.py",
        "parquet/*.py",
        "decoding/*.py",
        "scan/*.py",
        "objects/*.py",
    ),
)
PYTHON = re.compile(
    r"storage_options|client_kwargs|Options\b|build_index\(|"
    r"\b(at|index|view|format|columns|snapshot|on_bad_file|schema_policy|disk_cache)="
)
#: No verb of the command line can meet these: they are about arguments that it does not have, or always passes.
UNMET = (
    "in a notebook, `session = await",
    "storage_options for s3 have names",
    "Pass no session in storage_options",
    "the credentials in storage_options have expired",
    "Leave out snapshot=",
    "Leave out ReadOptions(require_pinning=True)",
    "Leave out view=",
    "storage_options of the protocol's obstore",  # the command line does not read through obstore
    "the option obstore to",
    "RetryOptions sets the retries, and other entries go",
    "Pass credentials in storage_options.",
    "out of the storage_options; read other buckets",
    "pass the place of an existing one: index=",
    'For the url of a table, pass format="delta"',
    'For a url, pass its format, too: format="delta"',
    "scan(columns=...)",
    'Pass format="',
    "storage_options must be",
    "filesystem refuses these storage_options",
    "s3fs refuses these storage_options",
    "the auth of storage_options",
    "storage_options mixes",
    "Flat storage_options",
    "Use only headers",
    "storage_options for ",
    "{name} in storage_options",
    "Pass {} in storage_options.",  # of filesystems that only Python has options for
    "names two protocols",
    "client_kwargs.",
    'Pass on_bad_file="raise"',
    'Pass ReadOptions(legacy_calendar="rebase")',
    'Write storage_options={"',
    "aise LimitOptions(",
    "aise LimitOptions.",  # said to be for Python, as the next one
    'schema_policy="permissive": missing columns',
    'pass format="parquet" to read every listed file.',  # the end of a hint that COMPOSED has
)


def texts(node: ast.expr) -> str:
    """Return the text of an expression, with ``{}`` for what is not constant."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(texts(part) if isinstance(part, ast.Constant) else "{}" for part in node.values)
    return ""


#: Put together from parts.
COMPOSED = (
    '; pass on_bad_file="skip" to leave out files that are not Parquet.',
    ', or pass on_bad_file="skip" to leave out files that are not Parquet.',
    "write an endpoint_url that begins",
    'name a private CA in storage_options: client_kwargs={"verify": "ca.pem"}.',
    'name a private CA in storage_options: {"https": {"ssl": an ssl.SSLContext}}.',
    ' with format="delta"; or pass format="parquet" to read every listed file.',
    ' with format="iceberg"; or pass format="parquet" to read every listed file.',
    'Open the table by its catalog, as a DuckLakeTable; or pass format="parquet" to read every listed file.',
)


@functools.cache
def sources() -> str:
    """All the texts of the package, adjacent ones joined as Python joins them."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        if path.name != "wording.py":
            found += [texts(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.expr)]
    return "\n".join(found)


def hints() -> Iterator[tuple[str, str]]:
    for pattern in ROOMS:
        for path in PACKAGE.glob(pattern):
            for node in ast.walk(ast.parse(path.read_text())):
                is_hint = isinstance(node, ast.keyword) and node.arg == "hint"
                targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                names = [getattr(target, "id", "") for target in targets]
                value = getattr(node, "value", None)
                if isinstance(value, ast.expr) and (is_hint or any("HINT" in name for name in names)):
                    for part in ast.walk(value):
                        if isinstance(part, (ast.Constant, ast.JoinedStr)):
                            yield f"{path.name}: ", texts(part)


def test_every_hint_that_a_command_may_print_is_in_its_words() -> None:
    left = [
        where + text
        for where, text in hints()
        if PYTHON.search(in_options(text)) and not any(unmet in text for unmet in UNMET)
    ]
    assert left == [], "say them in the words of asyncpq/cli/wording.py, or name them in UNMET"


@pytest.mark.parametrize("text", [text for text, _ in WORDS if text not in COMPOSED], ids=lambda text: text[:40])
def test_the_words_of_python_are_those_of_the_sources(text: str) -> None:
    pattern = re.escape(text).replace("_asyncpq/", r"(?:_asyncpq/|\{\})")
    assert re.search(pattern, sources())


def test_an_error_of_a_command_names_its_options(capsys: pytest.CaptureFixture[str]) -> None:
    async def denied() -> None:
        raise AccessDeniedError(
            "no", hint="Pass key and secret (or profile) in storage_options, or anon=True for public objects."
        )

    async def misplaced() -> None:
        raise InvalidOptionError("at: is missing, and only the index of a prefix has a default place")

    for command, words in ((denied, "--profile"), (misplaced, "--at is missing")):
        with pytest.raises(CommandExit) as ended:
            run(command())
        assert ended.value.code in (4, WRONG_USAGE)
        error = capsys.readouterr().err
        assert words in error
        assert "storage_options" not in error


def test_arguments_at_the_beginning_of_a_message() -> None:
    assert in_options("compression='x': must be one of zstd") == "--compression='x': must be one of zstd"
    assert in_options("sort_by: the written columns do not include it") == (
        "--sort-by: the written columns do not include it"
    )
    assert in_options("x: compression='x'") == "x: compression='x'"
