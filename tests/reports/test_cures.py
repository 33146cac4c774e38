"""Snippets are code that runs."""

from __future__ import annotations

import ast
import re
import sqlite3
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncpq.cli.index_commands import parse_kind
from asyncpq.reports.cures import (
    CURES,
    WRITER_SETTINGS,
    Snippets,
    quoted,
    setting_of,
    snippets_for,
    tail,
    with_dictionary_of,
    without_dictionary,
)
from tests.reports.lookups import encoded, finding, linted, trips
from tests.zoo.layouts import LAYOUT_WRITERS
from tests.zoo.registry import PROGRAMS, Writer

TABLE = pa.table({"it's": [3, 1, 2], "user": ["a", "b", "c"]})
ALL: dict[str, Snippets] = {
    **{rule: snippets_for(rule, "user") for rule in CURES},
    "without dictionary": without_dictionary(["user"]),
    "with dictionary": with_dictionary_of(["user"]),
    "tail": tail(65536),
}


def snippets(writer: str) -> list[Any]:
    return [pytest.param(some[writer], id=name) for name, some in ALL.items() if writer in some]


@pytest.mark.parametrize("code", snippets("pyarrow"))
def test_pyarrow(code: str, tmp_path: Path) -> None:
    if "write_dataset" in code:
        ast.parse(code)
        return
    path = tmp_path / "file.parquet"
    exec(code, {"pq": pq, "table": TABLE, "path": path})
    assert pq.read_metadata(path).row_group(0).column(0).has_offset_index


@pytest.mark.parametrize("code", snippets("polars"))
def test_polars(code: str, tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "in.parquet")
    path = tmp_path / "file.parquet"
    exec(code, {"pl": pl, "df": pl.DataFrame(TABLE), "path": path, "url": tmp_path / "in.parquet"})
    assert pq.read_metadata(path).num_rows == 3


@pytest.mark.parametrize("code", snippets("duckdb"))
def test_duckdb(code: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    pq.write_table(TABLE, tmp_path / "in/0.parquet")
    connection = duckdb.connect()
    connection.register("t", TABLE)
    code = code.replace("'path'", f"'{tmp_path}/file.parquet'").replace("'out'", f"'{tmp_path}/out'")
    connection.sql(code.replace("'url/", f"'{tmp_path}/in/"))
    assert list(tmp_path.glob("file.parquet")) or list(tmp_path.glob("out/*"))


@pytest.mark.parametrize("code", snippets("delta-rs"))
def test_delta_rs(code: str, tmp_path: Path) -> None:
    given_names = ("WriterProperties", "ColumnProperties", "BloomFilterProperties", "DeltaTable")
    names = {name: getattr(deltalake, name) for name in given_names}
    deltalake.write_deltalake(tmp_path, TABLE)
    given = {"write_deltalake": lambda *args, **kw: deltalake.write_deltalake(*args, mode="append", **kw)}
    exec(
        code.replace("write_deltalake(table, data", "write_deltalake(table, data"),
        {**names, **given, "table": str(tmp_path), "data": TABLE},
    )
    assert deltalake.DeltaTable(tmp_path).version() >= 0


@pytest.mark.parametrize("code", snippets("spark"))
def test_spark(code: str) -> None:
    if not code.startswith(("REORG", "OPTIMIZE")):
        ast.parse(code)


@pytest.mark.parametrize("code", snippets("asyncpq"))
def test_asyncpq(code: str) -> None:
    if "tail_bytes" in code:
        ast.parse(code)
        return
    assert code.startswith(("asyncpq optimize URL TARGET", "asyncpq index build URL"))
    words = code.split()
    kinds = [words[at + 1] for at, word in enumerate(words) if word == "--kind"]
    assert all(parse_kind(kind).name for kind in kinds)


def test_names_are_quoted() -> None:
    assert quoted('a"b') == '"a""b"'
    assert sqlite3.connect(":memory:").execute(f"select 1 as {quoted('x y')}").fetchall() == [(1,)]
    assert all(some for some in ALL.values())


ZOO = Path(__file__).resolve().parents[1] / "data" / "zoo"


@pytest.mark.parametrize(
    ("created_by", "name"),
    [
        ("Carquet", "carquet"),
        ("ClickHouse version 26.9.2 (build bb16200a28a249679746508237b5ed3997b7292a)", "chdb"),
        ("DuckDB", "duckdb"),
        ("DuckDB version v2.0.1 (build 8d78114e90)", "duckdb"),
        ("Polars (python) version 2.1.0 (build 7f902bd3ffd27ff82d14278a09a295ff2f7aed92)", "polars"),
        ("Polars", "polars"),
        ("Salesforce hyper-db main.0.0.26963.r84171622", "hyper"),
        ("datafusion version 55.2.0", "datafusion"),
        ("datafusion version 54.1.0", "datafusion"),  # SedonaDB 0.5
        ("fastparquet-python version 2026.9.0 (build 0)", "fastparquet"),
        ("github.com/parquet-go/parquet-go version 0.32.0(build )", "parquet-go"),
        ("hyparquet", "hyparquet-writer"),
        ("parquet-cpp-arrow version 26.0.1", "pyarrow"),
        ("parquet-cpp version 1.5.1-SNAPSHOT", "pyarrow"),
        ("parquet-go version latest", "xitongsys-parquet-go"),
        ("parquet-mr version 1.16.0 (build 402c3810c372d29603e181771acebfecc71bef61)", "spark"),  # Carpet 0.5
        ("parquet-rs version 60.1.0", "parquet-rs"),
        ("delta-rs version py-1.6.6", "delta-rs"),
        ("rugo version 0.5.6", "rugo"),
        ("Arrow2 - Native Rust implementation of Arrow", None),
        ("impala version 4.5.0", None),
        ("", None),
        (None, None),
    ],
)
def test_the_writer_that_a_file_names(created_by: str | None, name: str | None) -> None:
    found = setting_of(created_by)
    assert (None if found is None else found.name) == name


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("chdb-4.4.0", "chdb"),
        ("datafusion-55.0.0", "datafusion"),
        ("duckdb-2.0.0", "duckdb"),
        ("fastparquet-2026.9.0", "fastparquet"),
        ("parquet-java-1.18.1", "spark"),
        ("parquet-rs-60.1.0", "parquet-rs"),
        ("polars-2.1.0", "polars"),
        ("pyarrow-26.0.1", "pyarrow"),
        ("spark-3.5.9", "spark"),
    ],
)
def test_the_writer_of_real_files(folder: str, name: str) -> None:
    paths = sorted((ZOO / folder).glob("*.parquet"))
    assert paths
    for path in paths:
        found = setting_of(pq.read_metadata(path).created_by)
        assert found is not None
        assert found.name == name


@pytest.mark.parametrize("name", ["rugo", "duckdb", None])
async def test_lint_gives_the_setting_of_the_files_writer_first(name: str | None) -> None:
    own = {"rugo": b"rugo version 0.5.6", "duckdb": b"DuckDB version v2.0.1"}.get(name or "", b"impala version 4.5.0")
    data = encoded(trips(), write_page_index=False)
    (created_by,) = set(re.findall(rb"parquet-cpp-arrow version [\d.]+", data))
    data = data.replace(created_by, own.ljust(len(created_by)))
    found = finding(await linted(data, ["id"]), "no-page-index")["snippets"]
    general = snippets_for("no-page-index", "id")
    first = {} if name is None else {each.name: each.setting for each in WRITER_SETTINGS if each.name == name}
    assert list(found.items()) == list({**first, **general}.items())


async def test_other_cures_are_those_of_all_writers() -> None:
    found = finding(await linted(encoded(trips()), ["user"]), "random-order")
    assert found["snippets"] == snippets_for("random-order", "user")


@pytest.mark.parametrize("writer", LAYOUT_WRITERS, ids=lambda writer: writer.name)
def test_a_setting_is_the_code_that_was_tried(writer: Writer) -> None:
    """Programs for Python get it; the others have it in their source."""
    (setting,) = (each.setting for each in WRITER_SETTINGS if each.name == writer.name)
    program = PROGRAMS / writer.program
    arguments = getattr(writer.environment, "arguments", ())
    sources = [program] if program.is_file() else [path for path in program.rglob("*") if path.is_file()]
    assert setting in arguments or any(setting in path.read_text() for path in sources)


def test_names_are_unique() -> None:
    names = [each.name for each in WRITER_SETTINGS]
    assert len(set(names)) == len(names)
