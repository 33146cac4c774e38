"""Names of columns are completed from the file that the command line names."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from asyncpq.cli.commands import app
from asyncpq.cli.completion import column_lists, keys


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(pa.table({"id": [1], "user": ["u"], "used": [1]}), "a.parquet")


def test_lists_of_columns() -> None:
    given = "a.parquet"
    assert column_lists(given, "") == ["id", "user", "used"]
    assert column_lists(given, "us") == ["user", "used"]
    assert column_lists(given, "id,us") == ["id,user", "id,used"]
    assert column_lists(given, "user,us") == ["user,used"]


def test_keys() -> None:
    assert keys("a.parquet", "u") == ["user=", "used="]
    assert keys("a.parquet", "user=7") == []


@pytest.mark.parametrize("url", [None, "", "missing.parquet", "nosuch://bucket/key"])
def test_what_cannot_be_opened_completes_nothing(url: str | None) -> None:
    assert column_lists(url, "") == []


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
