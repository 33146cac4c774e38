"""Snippets are code that runs."""

from __future__ import annotations

import ast
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
from asyncpq.reports.cures import CURES, Snippets, quoted, tail, with_dictionary_of, without_dictionary

TABLE = pa.table({"it's": [3, 1, 2], "user": ["a", "b", "c"]})
ALL: dict[str, Snippets] = {
    **{name: cure("user") for name, cure in CURES.items()},
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
