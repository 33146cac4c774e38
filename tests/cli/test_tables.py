"""Every verb on every kind of url: files, prefixes, patterns, and tables of Delta, Iceberg and DuckLake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from asyncpq.cli.commands import app
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
