"""Descriptions of files and tables: a file without its index entry, a table of files that are all known, and what a
file of a table's metadata may decode to."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.datasets import model
from asyncpq.datasets.model import (
    ColumnBounds,
    ColumnPaths,
    DataFile,
    FileList,
    IndexEntry,
    MetadataBudget,
    TableField,
    View,
)
from asyncpq.datasets.providers import RuntimeReader
from asyncpq.errors import ResourceLimitError
from asyncpq.options import LimitOptions
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.storage.base import Validator
from tests.delta_tables import ID, DeltaWriter, column, ids, metadata, protocol

FILE = DataFile(
    url="a",
    validator=Validator(10, '"1"'),
    size=10,
    num_rows=3,
    partition={"day": 1},
    bounds={"id": ColumnBounds(min=1, max=2)},
    entry=IndexEntry(access=AccessPlan.rows([1]), validator=Validator(10, '"1"')),
)


@pytest.mark.parametrize("immutable", [False, True])
def test_a_file_without_its_index_entry(immutable: bool) -> None:
    file = DataFile(url="a", validator=FILE.validator, size=10, num_rows=3, entry=FILE.entry, immutable=immutable)
    unindexed = file.unindexed()
    assert unindexed.entry is None
    # the index may have described an older version, unless the object never changes
    known = (FILE.validator, 10, 3) if immutable else (None, None, None)
    assert (unindexed.validator, unindexed.size, unindexed.num_rows) == known


def test_other_facts_of_a_file_stay() -> None:
    unindexed = FILE.unindexed()
    assert (unindexed.url, unindexed.partition, unindexed.bounds) == (FILE.url, FILE.partition, FILE.bounds)


def test_entries_read_all_rows_by_default() -> None:
    assert IndexEntry().access.is_all
    assert IndexEntry().validator is None


def test_descriptions_can_be_sent_to_other_processes() -> None:
    field = TableField(name="id", type=pa.int64(), field_id=3, children=(), names=("ID",))
    table = FileList(description="t", data_files=(DataFile(url="a", fields=(field,)),), fields=(field,))
    assert pickle.loads(pickle.dumps(table)) == table


async def test_a_list_of_files_gives_all_of_them() -> None:
    table = FileList(description="t", data_files=(FILE, DataFile(url="b")))
    async with asyncpq.Session() as session:
        reader = RuntimeReader(session._runtime, session._runtime.operation("files", "t"))
        assert await table.files(asyncpq.col("id") == 7, reader) == table.data_files  # the caller prunes them


def test_views_are_named_as_users_write_them() -> None:
    assert [str(view) for view in View] == ["snapshot", "listed", "table"]


@pytest.mark.parametrize(
    ("file_bytes", "most", "bound"),
    [(10, 4096, "max_decoded_bytes=4096 bytes"), (100, 25_600, "256 times its own 100 bytes")],
)
def test_the_larger_bound_holds_and_is_named(file_bytes: int, most: int, bound: str) -> None:
    budget = MetadataBudget(file_bytes, LimitOptions(max_decoded_bytes=4096))
    budget.spend(most - 1)
    budget.spend(1)
    assert budget.left == 0
    with pytest.raises(ResourceLimitError, match=f"decodes to more than {bound}"):
        budget.spend(1)


# -- nested columns of tables ----------------------------------------------------------------------


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
    monkeypatch.setattr(model, "_MAX_CHARACTERS", 10_000)
    with pytest.raises(ResourceLimitError, match="paths of the table's nested columns have more than 10000"):
        async with asyncpq.open_dataset(str(writer.folder), format="delta"):
            pass
