"""Dotted paths of nested columns take a bounded part of memory."""

from __future__ import annotations

from pathlib import Path

import pytest

import asyncpq
from asyncpq.errors import ResourceLimitError
from asyncpq.tables import nested_columns
from asyncpq.tables.nested_columns import ColumnPaths
from tests.delta_tables import ID, DeltaWriter, column, ids, metadata, protocol


def test_paths() -> None:
    paths = ColumnPaths()
    assert paths.join(paths.join("", "a"), "b.c") == "a.b.c"


async def test_a_huge_name_above_many_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each path repeats it; names of top-level columns are in the schema once and do not count."""
    fields = [column(f"x{number}", "long") for number in range(10)]
    writer = DeltaWriter(tmp_path / "t")
    writer.commit(
        protocol(),
        metadata(ID, column("n" * 500, {"type": "struct", "fields": fields}), column("m" * 50_000, "long")),
        writer.file("f.parquet", ids(1)),
    )
    async with asyncpq.open_dataset(str(writer.folder), format="delta") as dataset:
        assert (await dataset.read(["id"])).num_rows == 1
    monkeypatch.setattr(nested_columns, "_MAX_CHARACTERS", 10_000)
    with pytest.raises(ResourceLimitError, match="paths of the table's nested columns have more than 10000"):
        async with asyncpq.open_dataset(str(writer.folder), format="delta"):
            pass
