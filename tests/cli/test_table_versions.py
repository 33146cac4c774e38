"""``--version`` and ``--at`` read earlier versions of Delta, Iceberg and DuckLake tables."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import asyncpq
from asyncpq.cli.commands import app
from asyncpq.cli.table_versions import version_of
from asyncpq.errors import InvalidOptionError
from tests.iceberg_tables import make_table


def invoke(*arguments: object, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


def test_what_options_name() -> None:
    assert version_of(None, None) is None
    assert version_of("12", None) == 12
    assert version_of("main", None) == "main"
    assert version_of(None, "2026-05-01") == dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
    assert version_of(None, "2026-05-01T12:00:00+02:00") == dt.datetime(2026, 5, 1, 10, tzinfo=dt.UTC)
    for version, at in (("1", "2026-05-01"), (None, "yesterday")):
        with pytest.raises(InvalidOptionError):
            version_of(version, at)


def test_a_delta_table(tmp_path: Path) -> None:
    for rows in (3, 4):
        deltalake.write_deltalake(tmp_path / "t", pa.table({"id": range(rows)}), mode="append")
    times = [commit["timestamp"] for commit in deltalake.DeltaTable(tmp_path / "t").history()]
    assert invoke("count", tmp_path / "t").stdout == "7\n"
    assert invoke("count", tmp_path / "t", "--version", 0).stdout == "3\n"
    at = dt.datetime.fromtimestamp(max(times) / 1000, dt.UTC).isoformat()
    assert invoke("count", tmp_path / "t", "--at", at).stdout == "7\n"
    assert len(invoke("head", tmp_path / "t", "--version", 0, "--format", "ndjson").stdout.splitlines()) == 3
    assert len(invoke("query", tmp_path / "t", "--version", 0, "--format", "ndjson").stdout.splitlines()) == 3
    assert len(invoke("lookup", tmp_path / "t", "--key", "id=1", "--version", 0, "--format", "ndjson").stdout) > 0
    assert "1 row" in invoke("why", tmp_path / "t", "--key", "id=1", "--version", 0).stdout
    assert invoke("explain", tmp_path / "t", "--version", 0).stdout
    for command in ("inspect", "lint"):
        assert invoke(command, tmp_path / "t", "--version", 0).stdout
    assert "1 file" in invoke("inspect", tmp_path / "t", "--version", 0).stdout
    assert "3 rows" in invoke("meta", tmp_path / "t", "--version", 0).stdout
    assert invoke("take", tmp_path / "t", 2, 0, "--version", 0, "--format", "ndjson").stdout == '{"id": 2}\n{"id": 0}\n'
    for command, arguments in (("take", [0]), ("meta", [])):
        assert "but the url names 2" in invoke(command, tmp_path / "t", *arguments, code=2).stderr
    for option, value, says in (
        ("--version", 99, "version 99 does not exist: the newest version of the table is 1"),
        ("--version", "x", "'x' is no version of a Delta table"),
        ("--at", "2020-01-01", "all commits in the log are newer than 2020-01-01"),
    ):
        said = invoke("count", tmp_path / "t", option, value, code=2).stderr
        assert says in said
        assert "version=" not in said  # as Python writes it


def test_an_iceberg_table(tmp_path: Path) -> None:
    table = make_table(tmp_path, pa.schema([("id", pa.int64())]))
    table.append(pa.table({"id": [1, 2, 3]}))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    first = snapshot.snapshot_id
    table.append(pa.table({"id": [4]}))
    url = table.metadata_location.removeprefix("file://")
    assert invoke("count", url).stdout == "4\n"
    assert invoke("count", url, "--version", first).stdout == "3\n"
    assert invoke("count", url, "--version", "main").stdout == "4\n"
    table.manage_snapshots().create_tag(first, "first").commit()
    url = table.metadata_location.removeprefix("file://")
    assert "Did you mean 'first'?" in invoke("count", url, "--version", "frist", code=2).stderr
    assert "Its branches and tags are 'first', 'main'." in invoke("count", url, "--version", "x", code=2).stderr
    assert "has no snapshot 12. Choose" in invoke("count", url, "--version", 12, code=2).stderr


def test_a_ducklake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which snapshot is read is DuckLakeTable's business."""
    asked: list[dict[str, Any]] = []
    catalog = tmp_path / "lake.sqlite"
    catalog.write_bytes(b"SQLite format 3\0")

    def table(*_: object, **named: Any) -> object:
        asked.append(named)
        raise InvalidOptionError("asked")

    monkeypatch.setattr(asyncpq, "DuckLakeTable", table, raising=False)
    time = dt.datetime(2026, 5, 1, tzinfo=dt.UTC)
    for options in (["--version", 3], ["--at", time.isoformat()]):
        invoke("count", f"ducklake:{catalog}#t", *options, code=2)
    assert asked == [{"snapshot": 3}, {"as_of": time}]
    assert "numbers its snapshots" in invoke("count", f"ducklake:{catalog}#t", "--version", "main", code=2).stderr


def test_files_have_no_versions(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    for url in (tmp_path / "a.parquet", tmp_path):
        assert "names files" in invoke("count", url, "--version", 1, code=2).stderr
