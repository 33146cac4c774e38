"""``schema=`` says of which types the values in paths are, as it does in pyarrow.dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.indexing import Keys


def write(folder: Path, *segments: str) -> None:
    for number, segment in enumerate(segments):
        path = folder / segment / "f.parquet"
        path.parent.mkdir(parents=True)
        pq.write_table(pa.table({"id": [number]}), path)


@pytest.mark.parametrize(
    ("kind", "texts"),
    [
        (pa.string(), ["007", "1", "-0"]),
        (pa.string(), ["1", "1.0", "__HIVE_DEFAULT_PARTITION__"]),
        (pa.large_string(), ["007", "1"]),
        (pa.int64(), ["007", "-1"]),
        (pa.float64(), ["007", "1.5", "nan"]),
        (pa.float64(), ["1", "2"]),
        (pa.bool_(), ["true", "false"]),
        (pa.date32(), ["2020-01-01", "1969-12-31"]),
        (pa.timestamp("us"), ["2020-01-01 01%3A02%3A03.5"]),
    ],
    ids=str,
)
async def test_equal_to_pyarrow(tmp_path: Path, kind: pa.DataType, texts: list[str]) -> None:
    write(tmp_path, *(f"p={text}" for text in texts))
    schema = pa.schema([("id", pa.int64()), ("p", kind)])
    expected = ds.dataset(tmp_path, schema=schema, partitioning="hive").to_table()
    async with asyncpq.Session() as session:
        for target in (
            f"{tmp_path}/",
            f"{tmp_path}/**/*.parquet",
            [f"{tmp_path}/p={text}/f.parquet" for text in texts],
        ):
            dataset = await session.open_dataset(target, schema=schema)
            assert dataset.schema.equals(schema)
            found = (await dataset.read()).sort_by("id")
            assert found.schema.equals(schema)
            assert repr(found.to_pylist()) == repr(expected.sort_by("id").to_pylist())


async def test_filters_lookups_and_files_compare_text(tmp_path: Path) -> None:
    write(tmp_path, "p=007", "p=7", "p=8")
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(tmp_path, schema=schema)
        assert (await dataset.read(where=col("p") == "007"))["id"].to_pylist() == [0]
        assert (await dataset.lookup({"p": ["7", "8"]}))["id"].to_pylist() == [1, 2]
        assert len(await dataset.files(col("p") == "7")) == 1
        write(tmp_path, "p=x")  # found by the next listing
        assert sorted((await dataset.read())["p"].to_pylist()) == ["007", "7", "8", "x"]


async def test_a_value_of_another_type_names_its_file(tmp_path: Path) -> None:
    write(tmp_path, "p=1", "p=x")
    schema = pa.schema([("id", pa.int64()), ("p", pa.int32())])
    async with asyncpq.Session() as session:
        with pytest.raises(asyncpq.PartitionError, match="'x' in the file's path is not a valid int32") as caught:
            await session.open_dataset(tmp_path, schema=schema)
        assert str(caught.value.url).endswith("p=x/f.parquet")
        dataset = await session.open_dataset(tmp_path, schema=schema, on_bad_file="skip")
        assert (await dataset.read()).to_pylist() == [{"id": 0, "p": 1}]


async def test_partition_types_say_how_a_text_is_read(tmp_path: Path) -> None:
    """They come first; a column that the schema leaves out is not read."""
    write(tmp_path, "p=007/q=x")
    options: dict[str, Any] = {"partition_types": {"p": pa.int32()}}
    async with asyncpq.Session() as session:
        wide = await session.open_dataset(
            tmp_path, schema=pa.schema([("id", pa.int64()), ("p", pa.int64())]), **options
        )
        assert (await wide.read()).to_pylist() == [{"id": 0, "p": 7}]
        named = await session.open_dataset(
            tmp_path, partitioning=["a", "b"], schema=pa.schema([("a", pa.string()), ("id", pa.int64())])
        )
        assert (await named.read()).to_pylist() == [{"a": "p=007", "id": 0}]


async def test_an_index_keeps_the_text(tmp_path: Path) -> None:
    write(tmp_path, "p=007", "p=8")
    schema = pa.schema([("id", pa.int64()), ("p", pa.string())])
    async with asyncpq.Session() as session:
        await session.build_index(str(tmp_path), [Keys("id")], schema=schema)
        for view in ("snapshot", "listed"):
            given: Any = {"schema": schema} if view == "listed" else {}
            dataset = await session.open_dataset(tmp_path, view=view, **given)
            assert (await dataset.lookup({"id": 0})).to_pylist() == [{"id": 0, "p": "007"}]
