"""Which files and columns an index is of: those of a pattern, one file, a folder that was moved, files that are named
one by one; columns of tables that come to have another's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.datasets.model import TableField
from asyncpq.errors import InvalidOptionError, SchemaMismatchError
from asyncpq.indexing import MemoryBackend
from asyncpq.indexing.build.index_source import field_ids
from asyncpq.indexing.kinds import Bloom, Bounds, Footers, IndexKind, Keys, ValueSet
from asyncpq.testing import ObjectServer
from tests.delta_tables import DeltaWriter, column, metadata, protocol


def _numbers(path: Path, *numbers: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.new")  # another inode: another version, whatever the clock's grain
    pq.write_table(pa.table({"x": numbers}), new)
    new.replace(path)


async def test_files_named_of_a_pattern_have_the_values_of_all_folders(tmp_path: Path) -> None:
    """Also of those that the pattern itself names."""
    for path in ("year=2024/m=1/a.parquet", "year=2024/m=2/a.parquet"):
        _numbers(tmp_path / path, 1, 2)
    pattern = f"{tmp_path}/year=2024/*/*.parquet"
    async with asyncpq.Session() as session:
        index = await session.build_index(pattern, [Keys("year"), Keys("m")], at=MemoryBackend())
        _numbers(tmp_path / "year=2024/m=3/new.parquet", 3)
        done = await index.refresh([f"{tmp_path}/year=2024/m=3/new.parquet"])
        assert (done.added, done.problems) == (1, ())
        for view in ("snapshot", "listed"):
            found = await session.open_dataset(pattern, index=index, view=view)
            assert await found.count(asyncpq.col("year") == 2024) == 5
            assert (await found.read(["x"], asyncpq.col("m") == 3)).to_pylist() == [{"x": 3}]


async def test_only_files_of_the_dataset_can_be_named(tmp_path: Path) -> None:
    lake, backend = tmp_path / "lake", MemoryBackend()
    _numbers(lake / "a.parquet", 1, 2)
    _numbers(lake / "_temporary" / "b.parquet", 3)
    _numbers(tmp_path / "lake-2" / "c.parquet", 4)
    async with asyncpq.Session() as session:
        index = await session.build_index(lake, [Keys("x")], at=backend)
        snapshot = await session.open_dataset(lake, index=index, view="snapshot")
        done = await index.refresh([str(lake / "_temporary" / "b.parquet")])
        assert (done.added, await snapshot.count()) == (0, 2)
        for url in (f"file://{lake}/a.parquet", str(tmp_path / "lake-2" / "c.parquet")):
            with pytest.raises(InvalidOptionError, match="the dataset has no such file"):
                await index.refresh([url])
        assert await snapshot.count() == 2
        with pytest.raises(InvalidOptionError, match="not those of"):
            await session.build_index(tmp_path / "lake-2", [Keys("x")], at=backend)


async def test_a_dataset_whose_paths_hold_other_columns_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "year=2024" / "a.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"x": [1], "year": pa.array([7], pa.int32())}), path)
    async with asyncpq.Session() as session:
        index = await session.build_index(tmp_path, [Keys("year")], at=MemoryBackend())
        exact = await session.open_dataset(tmp_path, index=index, view="listed")
        assert await exact.count(asyncpq.col("year") == 2024) == 1
        with pytest.raises(InvalidOptionError, match="built with 'hive'"):
            await session.open_dataset(tmp_path, index=index, view="listed", partitioning=None)


async def test_one_file(tmp_path: Path) -> None:
    _numbers(tmp_path / "one.parquet", 1, 2)
    async with asyncpq.Session() as session:
        index = await session.build_index(tmp_path / "one.parquet", [Keys("x")], at=MemoryBackend())
        _numbers(tmp_path / "one.parquet", 1, 2, 2)
        assert ((done := await index.refresh([str(tmp_path / "one.parquet")])).added, done.removed) == (1, 1)
        for view in ("snapshot", "listed"):
            dataset = await session.open_dataset(tmp_path / "one.parquet", index=index, view=view)
            assert (await dataset.lookup({"x": 2})).num_rows == 2


async def test_files_of_a_list_are_compared_with_the_index_when_they_are_opened(tmp_path: Path) -> None:
    """No listing tells their versions."""
    urls = [str(tmp_path / f"{number}.parquet") for number in range(3)]
    for number, url in enumerate(urls):
        _numbers(Path(url), number)
    async with asyncpq.Session() as session:
        index = await session.build_index(urls, [Keys("x"), Bounds("x"), Footers()], at=MemoryBackend())
        dataset = await session.open_dataset(urls, index=index)
        assert dataset.view == "listed"
        _numbers(tmp_path / "1.parquet", 7, 2)
        for _ in range(2):
            assert (await dataset.lookup({"x": 7})).num_rows == 1
            assert (await dataset.lookup({"x": 1})).num_rows == 0
            assert await dataset.count(asyncpq.col("x") == 2) == 2
            assert sorted((await dataset.read())["x"].to_pylist()) == [0, 2, 2, 7]
        explained = (await dataset.plan(lookup={"x": 7})).explain()
        assert "3 files have versions that the listing does not tell" in explained
        assert "view='snapshot' would save looking at each file" in explained


async def test_an_index_below_a_prefix_that_does_not_fit_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It hides no file and is no error, unless it is asked for."""
    _numbers(tmp_path / "a.parquet", 1, 2)
    wider = pa.schema([("x", pa.float64())])
    async with asyncpq.Session() as session:
        index = await session.build_index(tmp_path, [Keys("x")])
        dataset = await session.open_dataset(tmp_path, schema=wider)
        assert "another column than the one that was indexed" in caplog.text
        assert (await dataset.lookup({"x": 2.0})).num_rows == 1
        with pytest.raises(SchemaMismatchError, match="another column"):
            await session.open_dataset(tmp_path, schema=wider, index=index)
        manifest = next((tmp_path / "_asyncpq" / "manifests").iterdir())
        caplog.clear()
        for path in (manifest, tmp_path / "_asyncpq" / "latest"):
            path.write_bytes(b"{")
    async with asyncpq.Session() as session:
        assert await (await session.open_dataset(tmp_path)).count() == 2
        assert "is not used" in caplog.text
        with pytest.raises(asyncpq.errors.CorruptIndexError):
            await session.open_dataset(tmp_path, view="snapshot")


def _in_files(root: Path, path: str, *values: int) -> None:
    """A file that has a column p, wherever it lies."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"p": pa.array(values, pa.int32())}), root / path)


@pytest.mark.parametrize("kind", [Bounds("p"), Keys("p"), Bloom("p"), ValueSet("p")])
async def test_what_an_index_knows_of_files_is_not_said_of_their_paths(tmp_path: Path, kind: IndexKind) -> None:
    """A column that is in the files is another one where the folders above them name it, too."""
    _in_files(tmp_path, "lake/p=1/a.parquet", 7)
    inner, outer = tmp_path / "lake" / "p=1", tmp_path / "lake"
    async with asyncpq.Session() as session:
        of_inner = await session.build_index(inner, [kind], at=MemoryBackend())
        of_outer = await session.build_index(outer, [kind], at=MemoryBackend())
        for target in (outer, f"{outer}/*/*.parquet", [f"{inner}/a.parquet"]):
            with pytest.raises(SchemaMismatchError, match="in the paths and were not"):
                await session.open_dataset(target, index=of_inner)
            assert await (await session.open_dataset(target, index=of_outer)).count(col("p") == 1) == 1
        with pytest.raises(SchemaMismatchError, match="in the files and were not"):
            await session.open_dataset(inner, index=of_outer)
        assert await (await session.open_dataset(inner, index=of_inner)).count(col("p") == 7) == 1


@pytest.mark.parametrize("kind", [Bounds("p"), Keys("p"), Bloom("p"), ValueSet("p")])
async def test_folders_may_come_to_name_a_column_that_is_in_the_files(tmp_path: Path, kind: IndexKind) -> None:
    """Then it is null where the path does not say it, whatever the index knows."""
    _in_files(tmp_path, "a.parquet", 7)
    async with asyncpq.Session() as session:
        index = await session.build_index(tmp_path, [kind])
        before = await session.open_dataset(tmp_path)
        plain = await session.open_dataset(tmp_path, index=False)
        for dataset in (before, plain):
            assert await dataset.count(col("p") == 7) == 1
        _in_files(tmp_path, "p=1/b.parquet", 8)
        await index.refresh()
        for dataset in (before, plain, await session.open_dataset(tmp_path)):
            assert [await dataset.count(col("p") == value) for value in (1, 7, 8)] == [1, 0, 0]
            assert await dataset.count(col("p").is_null()) == 1


async def test_what_is_read_and_what_it_costs_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    _numbers(tmp_path / "a.parquet", 1, 2)
    caplog.set_level("INFO", "asyncpq.opening")
    async with asyncpq.Session() as session:
        await session.open_dataset(tmp_path)
        assert "view listed" in caplog.text
        assert "the listing took 1 request, " in caplog.text
        assert "would save" not in caplog.text
        await session.build_index(tmp_path, [Keys("x")])
        await session.open_dataset(tmp_path)
        assert "which view='snapshot' would save" in caplog.text
        caplog.clear()
        await session.open_dataset(tmp_path, view="snapshot")
        assert "view snapshot" in caplog.text
        assert "the listing took" not in caplog.text


@pytest.mark.parametrize("at", [None, "_asyncpq/", "_asyncpq"])
@pytest.mark.parametrize("store", ["file", "s3"])
async def test_the_index_of_one_file_is_not_kept_below_its_key(tmp_path: Path, store: str, at: str | None) -> None:
    """Else the object would be a folder to whoever opens it next."""
    _numbers(tmp_path / "one.parquet", 1, 2)
    async with ObjectServer() as server, asyncpq.Session({"s3": server.storage_options}) as session:
        url = str(tmp_path / "one.parquet") if store == "file" else "s3://bucket/one.parquet"
        server.put("bucket/one.parquet", (tmp_path / "one.parquet").read_bytes())
        with pytest.raises(InvalidOptionError, match="the index of one file cannot be below") as caught:
            await session.build_index(url, [Keys("x")], at=None if at is None else f"{url}/{at}")
        assert "at=" in str(caught.value)
        assert [name for name in server.objects if "_asyncpq" in name] == []
        dataset = await session.open_dataset(url)
        assert (await dataset.lookup({"x": 2})).num_rows == 1
        server.put("bucket/one.parquet/a.parquet", (tmp_path / "one.parquet").read_bytes())
        if store == "s3":  # a prefix, too, whatever else has its name
            await session.build_index(url, [Keys("x")])
            assert await (await session.open_dataset(url)).count() == 2


@pytest.mark.parametrize("again", ["open", "build"])
async def test_a_folder_that_was_moved_with_its_index_is_refreshed_where_it_is(tmp_path: Path, again: str) -> None:
    _numbers(tmp_path / "old" / "a.parquet", 1, 2)
    async with asyncpq.Session() as session:
        await session.build_index(tmp_path / "old", [Keys("x")])
        new = (tmp_path / "old").rename(tmp_path / "new")
        _numbers(new / "b.parquet", 2)
        if again == "open":
            index = await session.open_index(new / "_asyncpq")
            done = await index.refresh()
        else:
            index = await session.build_index(new, [Keys("x")])
            assert index.refreshed is not None
            done = index.refreshed
        assert (done.added, done.removed) == (1, 0)
        assert (await index.verify()).problems == []
        dataset = await session.open_dataset(new)
        assert (dataset.view, await dataset.count(asyncpq.col("x") == 2)) == ("listed", 2)
        assert (await dataset.plan(where=asyncpq.col("x") == 1)).files_ruled_out == 1


@pytest.mark.parametrize("kind", [Keys, Bounds])
async def test_another_column_of_an_indexed_ones_name_is_refused(
    tmp_path: Path, kind: type[Keys] | type[Bounds]
) -> None:
    """Delta names the columns in files by itself: a column can be renamed, and its name be given to another."""

    def columns(**names: str) -> dict[str, Any]:
        made = [column(name, "long", physical=names[name], id_=at) for at, name in enumerate(names)]
        return metadata(*made, configuration={"delta.columnMapping.mode": "name"})

    lake, url = DeltaWriter(tmp_path / "table"), str(tmp_path / "table")
    lake.commit(protocol("columnMapping"), columns(a="p1"), lake.file("1.parquet", pa.table({"p1": [1, 2]})))
    async with asyncpq.Session() as session:
        index = await session.build_index(url, [kind("a")], at=MemoryBackend(), format="delta")
        lake.commit(columns(b="p1"), lake.file("2.parquet", pa.table({"p1": [1]})))
        assert (await index.refresh()).added == 1  # of the new file nothing is known: its column can be "a" again
        assert (await index.verify()).problems == []
        lake.commit(columns(b="p1", a="p2"), lake.file("3.parquet", pa.table({"p1": [1], "p2": [1]})))
        with pytest.raises(SchemaMismatchError, match="of the same name"):
            await session.open_dataset(url, index=index, format="delta")
        with pytest.raises(SchemaMismatchError, match="another column"):
            await index.refresh()
        lake.commit(columns(a="p1"))
        dataset = await session.open_dataset(url, index=index, format="delta")
        assert await dataset.count(asyncpq.col("a") == 1) == 3


def test_columns_are_told_apart_down_to_the_leaf() -> None:
    leaf, other = (TableField(name="a", type=pa.int64(), field_id=number) for number in (3, 9))
    struct = pa.struct([("a", pa.int64())])
    ids = [
        field_ids([TableField(name="s", type=struct, field_id=2, children=(child,))], ["s.a", "x"])
        for child in (leaf, other)
    ]
    assert ids == [{"s": 2, "s.a": 3}, {"s": 2, "s.a": 9}]
    possible: list[tuple[str, ...]] = [(), ("a",), ("b",), ("c",)]
    named = [field_ids([TableField(name="a", type=pa.int64(), names=names)], ["a"]) for names in possible]
    assert named[0] == named[1] == {}
    assert named[2] != named[3]
