"""The directory of a snapshot's files: matches listings as a table of whole entries would, in 40 bytes a file."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from asyncpq.datasets.model import DataFile
from asyncpq.indexing import Bounds
from asyncpq.indexing.commits import files_in
from asyncpq.indexing.index_model import TABLE_SCHEMAS, file_key
from asyncpq.indexing.manifest import FILES, Manifest
from asyncpq.indexing.query.file_entries import FileDirectory, directory_rows
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.storage.base import Validator

PATHS = st.sampled_from(["a", "b", "c/d", "\udcff", "0" * 50])
TEXTS = st.sampled_from([None, '"x"', 'W/"x"', '"y"'])
SIZES = st.integers(0, 1)
VALIDATORS = st.builds(Validator, SIZES, TEXTS, st.sampled_from([None, "Monday"]), st.sampled_from([None, "1"]))
LISTED = st.builds(
    lambda path, validator, size, immutable: DataFile(
        url=f"s3://b/{path}", validator=validator, size=size, immutable=immutable
    ),
    PATHS,
    st.none() | VALIDATORS,
    st.none() | SIZES,
    st.booleans(),
)


def manifest_of(count: int, retired: RowRanges | None = None) -> Manifest:
    return Manifest(
        index="i",
        snapshot=1,
        commit="c",
        created=datetime.now(UTC),
        root="s3://b/",
        schema=pa.schema([]),
        tables=(FILES,),
        next_file=count,
        retired=RowRanges() if retired is None else retired,
    )


def file_rows(files: list[tuple[str, Validator | None, bool]]) -> pa.Table:
    """Rows of the list of files: path, version, and whether the file could be read."""
    rows = []
    for number, (path, validator, is_readable) in enumerate(files):
        version = validator or Validator(0)
        rows.append(
            {
                "key": file_key(number),
                "path": path,
                "size": version.size,
                "etag": version.etag,
                "last_modified": version.last_modified,
                "version": version.version,
                "num_rows": 5 if is_readable and validator is not None else None,
                "problem": "p",
            }
        )
    return pa.Table.from_pylist(rows, schema=TABLE_SCHEMAS["files"])


@pytest.mark.property
@given(
    st.lists(st.tuples(PATHS.filter(str.isascii), st.none() | VALIDATORS, st.booleans()), max_size=6),
    st.lists(LISTED.filter(lambda file: file.url.isascii()), max_size=8),
    st.sets(st.integers(0, 5)),
    st.integers(0, 6),
)
def test_a_directory_matches_as_whole_entries_do(
    files: list[tuple[str, Validator | None, bool]], listed: list[DataFile], retired: set[int], cut: int
) -> None:
    manifest = manifest_of(6, RowRanges.from_rows(sorted(retired)))
    rows = file_rows(files)
    newest = {f"s3://b/{file.path}": file for file in files_in(rows) if file.id not in retired}
    known: dict[int, int] = {}
    unsure: dict[int, int] = {}
    unknown: list[int] = []
    for position, file in enumerate(listed):
        entry = newest.get(file.url)
        if entry is None or entry.id in known or entry.id in unsure:  # a list may repeat a file
            unknown.append(position)
        elif entry.is_version_of(file):
            known[entry.id] = position
        elif file.validator is None and not file.immutable and entry.validator is not None:
            unsure[entry.id] = position
        else:
            unknown.append(position)
    pieces = [directory_rows(manifest, piece) for piece in (rows.slice(cut), rows.slice(0, cut))]
    match = FileDirectory(pa.concat_tables(pieces)).match(listed, manifest)
    assert dict(zip(match.ids.rows(), match.positions, strict=True)) == known
    assert match.unsure == unsure
    assert list(match.unknown) == unknown
    without = {file for file, position in {**known, **unsure}.items() if listed[position].validator is None}
    assert without <= set(match.unversioned)


def test_a_file_takes_48_bytes_however_long_its_url_is() -> None:
    count = 1000
    rows = file_rows([(f"{number:0200d}", Validator(number, f'"{number:064d}"'), True) for number in range(count)])
    manifest = manifest_of(count)
    assert FileDirectory(directory_rows(manifest, rows)).weight <= 49 * count


@pytest.mark.parametrize("budget", [0, 1 << 24])
async def test_a_directory_that_memory_does_not_keep_is_loaded_again(tmp_path: Path, budget: int) -> None:
    async with asyncpq.Session(memory_cache_bytes=budget) as session:
        for number in range(5):
            pq.write_table(pa.table({"a": [number]}), tmp_path / f"{number}.parquet")
        await session.build_index(tmp_path, [Bounds("a")])
        dataset = await session.open_dataset(tmp_path)
        assert (await dataset.lookup({"a": 3}))["a"].to_pylist() == [3]
        pq.write_table(pa.table({"a": [3]}), tmp_path / "9.parquet")  # another listing, which is matched anew
        for _ in range(2):
            with asyncpq.measure() as cost:
                assert await dataset.count(where=col("a") == 3) == 2
            assert cost.files_opened == 2
