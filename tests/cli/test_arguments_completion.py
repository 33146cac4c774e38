"""Names of columns are completed from the file that the command line names."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from asyncpq.cli.arguments import complete_columns, complete_key
from asyncpq.cli.commands import app


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"id": [1], "user": ["u"], "used": [1]}), "a.parquet")


def test_lists_of_columns() -> None:
    given = "a.parquet"
    assert complete_columns(given, "") == ["id", "user", "used"]
    assert complete_columns(given, "us") == ["user", "used"]
    assert complete_columns(given, "id,us") == ["id,user", "id,used"]
    assert complete_columns(given, "user,us") == ["user,used"]


def test_keys() -> None:
    assert complete_key("a.parquet", "u") == ["user=", "used="]
    assert complete_key("a.parquet", "user=7") == []


@pytest.mark.parametrize("url", [None, "", "missing.parquet", "nosuch://bucket/key"])
def test_what_cannot_be_opened_completes_nothing(url: str | None) -> None:
    assert complete_columns(url, "") == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("asyncpq query a.parquet --columns us", {"user", "used"}),
        ("asyncpq lookup a.parquet --key u", {"user=", "used="}),
    ],
)
def test_a_shell_asks(line: str, expected: set[str]) -> None:
    words = len(line.split()) - 1
    environment = {
        "_ASYNCPQ_COMPLETE": "complete_bash",
        "_TYPER_COMPLETE_ARGS": line,
        "COMP_WORDS": line,
        "COMP_CWORD": str(words),
    }
    done = CliRunner().invoke(app, [], env=environment, prog_name="asyncpq")
    assert set(done.stdout.split()) == expected
