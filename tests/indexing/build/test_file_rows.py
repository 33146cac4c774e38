"""The rows of one file: of which version, what is wrong with it, and which names are ambiguous."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.datasets.model import DataFile, TableField
from asyncpq.errors import AmbiguousColumnError, NotParquetError
from asyncpq.indexing.build.file_rows import FileCollector, FileRows, IndexSpec
from asyncpq.indexing.build.index_source import FileTask
from asyncpq.indexing.index_model import IndexTable, file_key
from asyncpq.indexing.kinds import Bounds, Footers, Keys
from asyncpq.indexing.manifest import FILES
from asyncpq.options import BuildOptions

TABLE = pa.table({"id": [3, 1, 2], "s": pa.array([{"x": 1}] * 3)})
KINDS = (Footers(), Bounds("id"), Keys("id"))


async def collected(url: Path, schema: pa.Schema = TABLE.schema, **spec: Any) -> FileRows:
    index_tables: list[IndexTable] = [table for kind in KINDS for table in kind.tables(TABLE.schema)]
    wanted = IndexSpec(
        schema=schema, fields=spec.get("fields"), tables=tuple(index_tables), tail_hint="", options=BuildOptions()
    )
    async with asyncpq.Session() as session:
        operation = session._runtime.operation("build", str(url))
        collector = FileCollector(session._runtime, wanted)
        task = FileTask(id=5, path=url.name, file=DataFile(url=str(url), partition=spec.get("partition", {})))
        rows = await collector.collect(task, operation)
    return rows


async def test_rows_of_every_table(tmp_path: Path) -> None:
    pq.write_table(TABLE, tmp_path / "a", row_group_size=2)
    rows = await collected(tmp_path / "a")
    kinds = {table.kind: rows.tables[table].to_pylist() for table in rows.tables}
    assert kinds.keys() == {"files", "footers", "bounds", "keys"}
    assert (rows.num_rows, rows.problem, rows.gone) == (3, None, False)
    (file,) = kinds["files"]
    assert (file["key"], file["path"], file["num_rows"], file["row_groups"]) == (file_key(5), "a", 3, [2, 1])
    assert rows.validator is not None
    assert file["size"] == rows.validator.size == (tmp_path / "a").stat().st_size
    assert {row["file"] for row in kinds["bounds"] + kinds["keys"]} == {5}
    assert sorted(row["row"] for row in kinds["keys"]) == [0, 1, 2]


async def test_a_file_that_is_gone_or_damaged_is_no_error_of_the_build(tmp_path: Path) -> None:
    gone = await collected(tmp_path / "none")
    assert (gone.gone, gone.tables) == (True, {})
    (tmp_path / "bad").write_bytes(b"no parquet" * 10)
    bad = await collected(tmp_path / "bad")
    assert isinstance(bad.problem, NotParquetError)
    assert (bad.num_rows, bad.gone, list(bad.tables)) == (None, False, [FILES])
    (row,) = bad.tables[FILES].to_pylist()
    assert row["num_rows"] is None
    assert row["problem"].startswith("NotParquetError: ")


@pytest.mark.parametrize(
    ("columns", "known", "partition", "name"),
    [
        (["ID"], ["id"], {}, "ID"),
        (["id", "ID"], ["id"], {}, "ID"),
        (["id"], ["id"], {}, None),
        (["ID"], ["id"], {"id": 7}, None),  # the file's own column is not read
    ],
)
async def test_names_that_differ_in_case_are_not_indexed(
    tmp_path: Path, columns: list[str], known: list[str], partition: dict[str, Any], name: str | None
) -> None:
    pq.write_table(pa.table([[1]] * len(columns), names=columns), tmp_path / "a")
    rows = await collected(tmp_path / "a", pa.schema([(column, pa.int64()) for column in known]), partition=partition)
    if name is None:
        assert rows.problem is None
        return
    assert isinstance(rows.problem, AmbiguousColumnError)
    assert rows.problem.column == name
    assert rows.tables.keys() == {FILES}


async def test_names_inside_of_structs_and_those_of_tables(tmp_path: Path) -> None:
    inner = pa.struct([("X", pa.int64())])
    pq.write_table(pa.table({"id": [1], "s": pa.array([{"X": 1}], inner)}), tmp_path / "a")
    rows = await collected(tmp_path / "a")
    assert isinstance(rows.problem, AmbiguousColumnError)
    assert rows.problem.column == "s.X"
    fields = tuple(TableField(name=field.name, type=field.type) for field in TABLE.schema)
    assert (await collected(tmp_path / "a", fields=fields)).problem is None  # a table says how files have its columns
