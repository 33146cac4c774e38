"""check_catalog accepts catalogs that say what is so, and names what is not."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import ColumnBounds, DataFile, Expression, FileList, Snapshot
from asyncpq.datasets.model import CatalogReader
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.testing import check_catalog

NAN = float("nan")
TABLE = pa.table(
    {
        "i": pa.array([3, 5, None, 9], pa.int32()),
        "f": [1.5, NAN, 2.5, -0.0],
        "s": [{"a": "x", "b": [1]}, {"a": "y", "b": []}, None, {"a": "z", "b": None}],
        "n": pa.nulls(4, pa.string()),
    }
)


@dataclass(frozen=True)
class Gone:
    deleted: RowRanges

    @property
    def identity(self) -> Hashable:
        return self.deleted

    async def rows(self, reader: CatalogReader, num_rows: int) -> RowRanges:
        return self.deleted


@dataclass
class OneTable:
    files: Sequence[DataFile]
    forgets: bool = False

    async def snapshot(self, reader: CatalogReader) -> Snapshot:
        if not self.forgets:
            return FileList(description="a table", data_files=tuple(self.files))
        return Forgetful(FileList(description="a table", data_files=tuple(self.files)))


@dataclass
class Forgetful:
    files_known: FileList
    description = "a table that is pruned too much"
    fields = None

    async def files(self, where: Expression | None, reader: CatalogReader) -> Sequence[DataFile]:
        return self.files_known.data_files if where is None or "null" in str(where) else ()


@pytest.fixture
def url(tmp_path: Path) -> str:
    pq.write_table(TABLE, tmp_path / "file.parquet")
    return str(tmp_path / "file.parquet")


async def check(*files: DataFile, forgets: bool = False) -> None:
    async with asyncpq.Session() as session:
        await check_catalog(session, OneTable(files, forgets))


TRUE: dict[str, Any] = {
    "num_rows": 4,
    "bounds": {
        "i": ColumnBounds(min=3, max=9, null_count=1, exact=True, may_be_nan=False),
        "f": ColumnBounds(min=-1.0, max=2.5, null_count=0),
        "s.a": ColumnBounds(min="", max="zz"),
        "n": ColumnBounds(all_null=True, null_count=4),
    },
}


async def test_what_is_so(url: str) -> None:
    await check(DataFile(url=url, **TRUE))
    await check(DataFile(url=url, deletes=Gone(RowRanges([(1, 3)])), **TRUE))


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ({"partition": {"p": 7}}, "partition column p is not in the table"),
        ({"num_rows": 5}, "has 4 rows, not 5"),
        ({"num_rows": 4, "deletes": Gone(RowRanges([(3, 5)]))}, "row 4 .* is deleted, but the file has only 4 rows"),
        ({"bounds": {"i": ColumnBounds(min=4)}}, "column i: a value is below the minimum 4"),
        ({"bounds": {"i": ColumnBounds(max=8)}}, "column i: a value is above the maximum 8"),
        ({"bounds": {"s.a": ColumnBounds(max="y")}}, "column s.a: a value is above the maximum 'y'"),
        ({"bounds": {"i": ColumnBounds(null_count=0)}}, "column i: more nulls than its null_count of 0"),
        ({"bounds": {"i": ColumnBounds(null_count=2)}}, "column i: fewer nulls than its null_count of 2"),
        ({"bounds": {"i": ColumnBounds(all_null=True)}}, "column i has a value that is not null"),
        ({"bounds": {"f": ColumnBounds(may_be_nan=False)}}, "column f has a NaN"),
        ({"bounds": {"i": ColumnBounds(min=2, max=9, exact=True)}}, "column i: no row has the bound 2"),
    ],
)
async def test_what_is_not(url: str, lie: dict[str, Any], message: str) -> None:
    with pytest.raises(AssertionError, match=message) as caught:
        await check(DataFile(url=url, **lie))
    assert url in str(caught.value)


async def test_files_that_are_twice_or_left_out(url: str) -> None:
    with pytest.raises(AssertionError, match="a file is listed twice"):
        await check(DataFile(url=url), DataFile(url=url))
    with pytest.raises(AssertionError, match="left out for i == 3"):
        await check(DataFile(url=url), forgets=True)
