"""Every file of apache/parquet-testing: equal to pyarrow where pyarrow reads it, else a typed error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import asyncpq
from tests.corpus import BAD_DATA, DATA, corpus_files, requires_corpus

FILES = corpus_files(DATA)
BAD_FILES = corpus_files(BAD_DATA)

# pyarrow reads the flipped bits of these unless it is told to check CRCs; asyncpq checks by default.
WRONG_CRC = {"datapage_v1-corrupt-checksum.parquet", "rle-dict-uncompressed-corrupt-checksum.parquet"}


def by_pyarrow(path: Path) -> pa.Table | None:
    """The whole table, or None where pyarrow cannot read it."""
    try:
        return pq.ParquetFile(path).read()
    except (pa.ArrowException, OSError, ValueError, RuntimeError):
        return None


async def by_asyncpq(path: Path, **options: Any) -> pa.Table | asyncpq.AsyncpqError:
    try:
        async with asyncpq.open_file(path) as file:
            return await file.read(**options)
    except asyncpq.AsyncpqError as error:
        return error


def same(found: pa.Table, wanted: pa.Table) -> bool:
    """Equal types and values; dictionaries may be ordered in another way, and NaN is NaN."""
    if not found.schema.equals(wanted.schema):
        return False
    if found.equals(wanted):
        return True
    return repr([column.to_pylist() for column in found.columns]) == repr(
        [column.to_pylist() for column in wanted.columns]
    )


@requires_corpus
@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
async def test_whole_file(path: Path) -> None:
    wanted = by_pyarrow(path)
    found = await by_asyncpq(path)
    if wanted is None:
        assert isinstance(found, asyncpq.AsyncpqError) or found.num_rows >= 0
        return
    if path.name in WRONG_CRC:
        assert isinstance(found, asyncpq.CorruptFileError)
        assert "CRC" in str(found)
        return
    if isinstance(found, asyncpq.AsyncpqError):
        raise found
    assert same(found, wanted)


@requires_corpus
@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
async def test_with_a_predicate(path: Path) -> None:
    """Rows whose first comparable column equals one of its own values."""
    wanted = by_pyarrow(path)
    if wanted is None or path.name in WRONG_CRC:
        pytest.skip("pyarrow cannot read this file, or reads flipped bits: test_whole_file has it")
    names = wanted.column_names
    for name in names:
        column = wanted.column(name)
        if names.count(name) > 1 or pa.types.is_nested(column.type):
            continue
        values = [value for value in column.drop_null().slice(0, 1).to_pylist() if value == value]
        if not values:
            continue
        try:
            rows = wanted.filter(pc.field(name) == values[0])
        except pa.ArrowException:
            continue  # no kernel compares this type
        found = await by_asyncpq(path, where=asyncpq.col(name) == values[0])
        if isinstance(found, asyncpq.AsyncpqError):
            raise found
        assert rows.num_rows > 0
        assert same(found, rows)
        return
    pytest.skip("no column that pyarrow compares with ==")


@requires_corpus
@pytest.mark.parametrize("path", BAD_FILES, ids=[path.name for path in BAD_FILES])
async def test_broken_file(path: Path) -> None:
    """A typed error, or pyarrow's own answer."""
    found = await by_asyncpq(path)
    if isinstance(found, pa.Table):
        wanted = by_pyarrow(path)
        assert wanted is not None
        assert same(found, wanted)
