"""Rows that a DuckLake's delete files name; what of such a file cannot be trusted is an error."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from asyncpq import CorruptFileError, Expression, UnsupportedFeatureError
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.tables.ducklake.catalog import SNAPSHOT_COLUMN, DuckLakeDeletes
from tests.lakes import PlainReader

NUM_ROWS = 100


class Held(PlainReader):
    """Gives one table, or bytes, whatever is asked for."""

    def __init__(self, table: pa.Table | None = None, data: bytes = b"") -> None:
        self._table = table
        self._data = data

    async def read_bytes(
        self, url: str, start: int = 0, stop: int | None = None, *, at_most: int | None = None
    ) -> bytes:
        return self._data[start:stop]

    async def read_table(
        self, url: str, columns: Sequence[str] | None = None, where: Expression | None = None
    ) -> pa.Table:
        assert self._table is not None
        return self._table if columns is None else self._table.select(columns)

    async def list_names(self, url: str) -> list[str]:
        return []


def positions(rows: Sequence[int | None], snapshots: Sequence[int | None] | None = None) -> pa.Table:
    columns = {"file_path": pa.array(["f"] * len(rows)), "pos": pa.array(rows, pa.int64())}
    if snapshots is not None:
        columns[SNAPSHOT_COLUMN] = pa.array(snapshots, pa.int64())
    return pa.table(columns)


def deletes(kind: str = "parquet", **options: Any) -> DuckLakeDeletes:
    values = {"data_url": "f", "snapshot": 5, "files": (("d", kind),), "inlined": RowRanges(), **options}
    return DuckLakeDeletes(**values)


def vector(rows: Sequence[int]) -> bytes:
    bitmap = b"\xd1\xd3\x39\x64" + BitMap64(rows).serialize()
    return struct.pack(">I", len(bitmap)) + bitmap + struct.pack(">I", zlib.crc32(bitmap))


@given(st.sets(st.integers(0, NUM_ROWS - 1)), st.sets(st.integers(0, NUM_ROWS - 1)))
async def test_positions_and_vectors(rows: set[int], inlined: set[int]) -> None:
    wanted = sorted(rows | inlined)
    more = RowRanges.from_rows(sorted(inlined))
    found = await deletes(inlined=more).rows(Held(positions(list(rows))), NUM_ROWS)
    assert list(found.rows()) == wanted
    found = await deletes("puffin", inlined=more).rows(Held(data=vector(list(rows))), NUM_ROWS)
    assert list(found.rows()) == wanted


async def test_deletes_of_later_snapshots_do_not_count() -> None:
    held = Held(positions([1, 2, 3], [4, 5, 6]))
    assert list((await deletes().rows(held, NUM_ROWS)).rows()) == [1, 2]


async def test_equal_deletes_have_one_identity() -> None:
    assert deletes().identity == deletes().identity
    assert hash(deletes().identity) == hash(deletes().identity)
    assert deletes().identity != deletes(snapshot=6).identity


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (positions([1, None]), "null or not"),
        (positions([-1]), "negative"),
        (positions([1], [None]), "no snapshot"),
        (positions([NUM_ROWS]), r"delete row 100 \(counted from 0\) of f, which has only 100 rows"),
        (pa.table({"file_path": ["f"]}), "no column pos"),
        (pa.table({"pos": [1.0]}), "null or not"),
    ],
    ids=["null", "negative", "no snapshot", "deletes_out_of_range", "no positions", "floats"],
)
async def test_delete_files_that_are_not(table: pa.Table, message: str) -> None:
    with pytest.raises(CorruptFileError, match=message):
        await deletes().rows(Held(table), NUM_ROWS)


@pytest.mark.parametrize("change", [slice(0, -1), slice(1, None), slice(0, 0), slice(0, 10)])
async def test_vectors_that_are_cut(change: slice) -> None:
    with pytest.raises(CorruptFileError):
        await deletes("puffin").rows(Held(data=vector([1, 2])[change]), NUM_ROWS)


async def test_vectors_that_are_damaged() -> None:
    good = vector([1, 2, 70])
    for at in range(len(good)):
        bad = bytearray(good)
        bad[at] ^= 1
        with pytest.raises(CorruptFileError):
            await deletes("puffin").rows(Held(data=bytes(bad)), NUM_ROWS)


async def test_a_puffin_file_proper_is_refused() -> None:
    with pytest.raises(UnsupportedFeatureError, match="several snapshots"):
        await deletes("puffin").rows(Held(data=b"PFA1" + vector([1])), NUM_ROWS)


async def test_rows_of_a_merged_file() -> None:
    later = deletes(files=(), later_rows=True)
    assert list((await later.rows(Held(pa.table({SNAPSHOT_COLUMN: [4, 6, 5, 7]})), 4)).rows()) == [1, 3]
    for snapshots in ([4, 6, 5], [4, None, 5, 7]):
        with pytest.raises(CorruptFileError, match="merged"):
            await later.rows(Held(pa.table({SNAPSHOT_COLUMN: pa.array(snapshots, pa.int64())})), 4)
    assert list((await deletes(files=(), visible_rows=3).rows(Held(), 5)).rows()) == [3, 4]
