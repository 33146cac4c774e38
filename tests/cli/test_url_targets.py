"""Every verb on every kind of url: files, prefixes, patterns, and tables of Delta, Iceberg and DuckLake, of which
``--version`` and ``--at`` read earlier versions."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import asyncpq
from asyncpq.cli.commands import app
from asyncpq.cli.url_targets import version_of
from asyncpq.datasets.table_markers import FoundTable
from asyncpq.errors import InvalidOptionError
from tests.ducklake_lakes import Lake
from tests.iceberg_tables import make_table

pytestmark = pytest.mark.sampled(2)

TRIPS = pa.table({"id": pa.array(range(300), pa.int64()), "user": [f"user-{row * 79 % 90:02}" for row in range(300)]})
PARTS = [TRIPS.slice(start, 100) for start in (0, 100, 200)]
KINDS = ("file", "prefix", "pattern", "delta", "iceberg", "ducklake")
TABLES = ("delta", "iceberg", "ducklake")


@pytest.fixture(scope="module")
def urls(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A url of each kind, all with the same rows."""
    root = tmp_path_factory.mktemp("urls")
    pq.write_table(TRIPS, root / "trips.parquet", write_page_index=True)
    for name in ("lake", "duck"):
        (root / name).mkdir()
    iceberg = make_table(root, TRIPS.schema)
    for number, part in enumerate(PARTS):
        pq.write_table(part, root / f"lake/{number}.parquet")
        deltalake.write_deltalake(root / "delta", part, mode="append")
        iceberg.append(part)
    with Lake(root / "duck") as lake:
        lake.sql('CREATE TABLE trips (id BIGINT, "user" VARCHAR)')
        for number in range(3):
            lake.sql(f"INSERT INTO trips SELECT * FROM '{root}/lake/{number}.parquet'")
    return {
        "file": f"{root}/trips.parquet",
        "prefix": f"{root}/lake",
        "pattern": f"{root}/lake/*.parquet",
        "delta": f"{root}/delta",
        "iceberg": iceberg.location().removeprefix("file://"),
        "ducklake": f"ducklake:{root}/duck/catalog.sqlite#trips",
    }


def invoke(*arguments: object, code: int = 0) -> str:
    done = CliRunner(env={"COLUMNS": "100"}).invoke(app, list(map(str, arguments)))
    assert done.exit_code == code, done.output
    if code:
        assert not done.stdout
        assert done.stderr.count("\n") == 1
    return done.stderr if code else done.stdout


def document(*arguments: object) -> Any:
    return json.loads(invoke(*arguments, "--format", "json"))


@pytest.mark.parametrize("kind", KINDS)
def test_verbs_that_read_rows(urls: dict[str, str], kind: str) -> None:
    url = urls[kind]
    row = {"id": 217, "user": TRIPS["user"][217].as_py()}
    assert document("count", url)["rows"] == 300
    assert document("query", url, "--where", "id = 217")["rows"] == [row]
    assert document("lookup", url, "--key", "id=217")["rows"] == [row]
    if kind == "file":
        assert document("take", url, 217)["rows"] == [row]
    else:
        assert "row numbers count the rows of one file" in invoke("take", url, 217, code=2)


@pytest.mark.parametrize("kind", KINDS)
def test_verbs_that_tell_of_reads(urls: dict[str, str], kind: str) -> None:
    url = urls[kind]
    shown = document("inspect", url)
    assert (shown["rows"] == 300) if kind == "file" else (len(shown["files"]) == 3)
    assert document("lint", url, "--column", "id")["files_checked"] == (1 if kind == "file" else 3)
    assert document("explain", url, "--where", "id = 217")["document"] == "plan"
    assert document("why", url, "--key", "id=217")["rows"] == 1
    assert document("doctor", url)["store"]["error"] is None if kind != "ducklake" else True


@pytest.mark.parametrize("kind", KINDS)
def test_verbs_that_write(urls: dict[str, str], kind: str, tmp_path: Path) -> None:
    url, at = urls[kind], tmp_path / "index"
    assert document("index", "build", url, "--kind", "keys:id", "--at", at)["added"] == (1 if kind == "file" else 3)
    assert document("index", "show", url, "--at", at, "--stale")["stale"] == {"new": 0, "changed": 0, "gone": 0}
    assert document("index", "refresh", url, "--at", at)["added"] == 0
    assert document("index", "verify", url, "--at", at)["problems"] == []
    assert document("lookup", url, "--key", "id=217", "--index", at)["rows"] == [{"id": 217, "user": "user-43"}]
    assert document("optimize", url, tmp_path / "fast", "--sort-by", "user")["rows"] == 300


@pytest.mark.parametrize("kind", ["pattern", *TABLES])
def test_an_index_without_a_default_place(urls: dict[str, str], kind: str) -> None:
    assert "--at" in invoke("index", "build", urls[kind], code=2)


def test_the_catalog_of_a_ducklake(urls: dict[str, str], tmp_path: Path) -> None:
    path = urls["ducklake"].removeprefix("ducklake:").partition("#")[0]
    for catalog in (f"sqlite:{path}", f"sqlite:///{path}"):
        assert document("count", f"ducklake:{catalog}#main.trips")["rows"] == 300
    assert "no table 'nothing'" in invoke("count", f"ducklake:{path}#nothing", code=3)
    assert "ducklake:CATALOG#TABLE" in invoke("count", f"ducklake:{path}", code=2)
    assert "there is no DuckLake catalog" in invoke("count", "ducklake:nothing.db#t", code=3)
    (tmp_path / "text").write_text("not a database")
    assert "not a SQLite or DuckDB database" in invoke("count", f"ducklake:{tmp_path}/text#t", code=2)
    assert "secret" not in invoke("count", "ducklake:nonsense://u:secret@h/d#t", code=2)


def test_a_ducklake_whose_catalog_is_a_duckdb_file(tmp_path: Path) -> None:
    with Lake(tmp_path, own_catalog=True) as lake:
        lake.sql("CREATE TABLE t AS SELECT 1 AS x")
        lake.sql("INSERT INTO t VALUES (2)")
    assert document("count", f"ducklake:{tmp_path}/catalog.ducklake#t")["rows"] == 2


@pytest.mark.parametrize("kind", ["folder", "empty", "file"])
def test_a_folder_that_is_no_table(urls: dict[str, str], kind: str, tmp_path: Path) -> None:
    wrong = {"folder": tmp_path / "nothing", "empty": tmp_path, "file": tmp_path / "nothing.parquet"}[kind]
    invoke("count", wrong, code=3)


@pytest.mark.parametrize(("table_format", "code"), [("delta", 0), ("iceberg", 3), (None, 2)])
def test_the_format_of_a_table_is_no_matter_of_words(
    table_format: Any, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def error(found: FoundTable, target: str) -> InvalidOptionError:
        told = InvalidOptionError("in words of its own", url=target)
        told.table_format = table_format
        return told

    monkeypatch.setattr(FoundTable, "error", error)
    deltalake.write_deltalake(tmp_path / "t", pa.table({"id": [1]}))
    invoke("count", tmp_path / "t", code=code)


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
    assert invoke("count", tmp_path / "t") == "7\n"
    assert invoke("count", tmp_path / "t", "--version", 0) == "3\n"
    at = dt.datetime.fromtimestamp(max(times) / 1000, dt.UTC).isoformat()
    assert invoke("count", tmp_path / "t", "--at", at) == "7\n"
    assert len(invoke("head", tmp_path / "t", "--version", 0, "--format", "ndjson").splitlines()) == 3
    assert len(invoke("query", tmp_path / "t", "--version", 0, "--format", "ndjson").splitlines()) == 3
    assert len(invoke("lookup", tmp_path / "t", "--key", "id=1", "--version", 0, "--format", "ndjson")) > 0
    assert "1 row" in invoke("why", tmp_path / "t", "--key", "id=1", "--version", 0)
    assert invoke("explain", tmp_path / "t", "--version", 0)
    for command in ("inspect", "lint"):
        assert invoke(command, tmp_path / "t", "--version", 0)
    assert "1 file" in invoke("inspect", tmp_path / "t", "--version", 0)
    assert "3 rows" in invoke("meta", tmp_path / "t", "--version", 0)
    assert invoke("take", tmp_path / "t", 2, 0, "--version", 0, "--format", "ndjson") == '{"id": 2}\n{"id": 0}\n'
    for command, arguments in (("take", [0]), ("meta", [])):
        assert "but the url names 2" in invoke(command, tmp_path / "t", *arguments, code=2)
    for option, value, says in (
        ("--version", 99, "version 99 does not exist: the newest version of the table is 1"),
        ("--version", "x", "'x' is no version of a Delta table: it must be a number or a time. Pass a time as --at."),
        ("--at", "2020-01-01", "all commits in the log are newer than 2020-01-01"),
    ):
        said = invoke("count", tmp_path / "t", option, value, code=2)
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
    assert invoke("count", url) == "4\n"
    assert invoke("count", url, "--version", first) == "3\n"
    assert invoke("count", url, "--version", "main") == "4\n"
    table.manage_snapshots().create_tag(first, "first").commit()
    url = table.metadata_location.removeprefix("file://")
    assert "Did you mean 'first'?" in invoke("count", url, "--version", "frist", code=2)
    assert "Its branches and tags are 'first', 'main'." in invoke("count", url, "--version", "x", code=2)
    assert "has no snapshot 12. Choose" in invoke("count", url, "--version", 12, code=2)


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
    assert "numbers its snapshots" in invoke("count", f"ducklake:{catalog}#t", "--version", "main", code=2)


def test_files_have_no_versions(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    for url in (tmp_path / "a.parquet", tmp_path):
        assert "names files" in invoke("count", url, "--version", 1, code=2)
