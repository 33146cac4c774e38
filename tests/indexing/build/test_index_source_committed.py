"""Which files of a folder that asyncpq wrote are there, however it is read."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.errors import (
    InvalidOptionError,
    ObjectNotFoundError,
    PartitionError,
    SchemaMismatchError,
    StaleSnapshotError,
    UsageError,
)
from asyncpq.expressions import Expression
from asyncpq.indexing import Bounds, FileSlice, FileSlices, Keys
from asyncpq.indexing.build import index_builder as building
from asyncpq.indexing.build import index_source
from asyncpq.indexing.build.adding import add_files
from asyncpq.indexing.commits import load
from asyncpq.indexing.index_model import Segment
from asyncpq.indexing.manifest import Manifest
from asyncpq.options import BuildOptions
from asyncpq.pruning.access_plan import AccessPlan
from tests.indexing.build.test_adding import SCHEMA, add, ids, numbers, table, write

pytestmark = pytest.mark.sampled(2)

_EVERY_FILE: dict[str, Any] = {"format": "parquet"}


async def _read(session: asyncpq.Session, lake: Path | str, **options: Any) -> list[int]:
    dataset = await session.open_dataset(str(lake), **options)
    return sorted((await dataset.read()).column("id").to_pylist())


async def test_files_that_nobody_committed_are_not_there(tmp_path: Path) -> None:
    """Until an index lists some of them, or ``_SUCCESS`` says that all count."""
    write(tmp_path, 0)
    async with asyncpq.Session() as session:
        for options in ({}, {"index": False}, {"view": "listed"}, {"schema": SCHEMA}):
            with pytest.raises(ObjectNotFoundError, match="never committed"):
                await session.open_dataset(str(tmp_path), **options)
        assert await _read(session, tmp_path, **_EVERY_FILE) == numbers(0)
        await add(session, tmp_path, [write(tmp_path, 10)])
        assert await ids(session, tmp_path) == numbers(10)
        assert await _read(session, tmp_path, index=False, **_EVERY_FILE) == numbers(0, 10)
        folder = await session.open_index(str(tmp_path / "_asyncpq"))
        with pytest.raises(UsageError, match="which files of the folder are committed"):
            await folder.drop()
        with pytest.raises(InvalidOptionError, match="outside of the folder"):
            await session.build_index(str(tmp_path), [Keys("id")])
        assert await ids(session, tmp_path) == numbers(10)
        shutil.rmtree(tmp_path / "_asyncpq")
        (tmp_path / "_SUCCESS").touch()
        assert await _read(session, tmp_path) == numbers(0, 10)


@pytest.mark.parametrize("below", ["", "data/", "data/*/*.parquet", "**", "**/*.parquet", "d*/*/*", "../"])
async def test_what_counts_is_not_passed_by(tmp_path: Path, below: str) -> None:
    """By patterns, by folders in the lake, or around it."""
    lake = tmp_path / "around" / "lake"
    url = f"{lake.parent}/" if below == "../" else f"{lake}/{below}"
    (lake.parent / "other.parquet").parent.mkdir(parents=True)
    pq.write_table(table(90), lake.parent / "other.parquet")
    beside = numbers(90) if below == "../" else []
    first = write(lake, 0)
    async with asyncpq.Session() as session:
        if beside:
            assert await _read(session, url) == beside
        else:
            with pytest.raises(ObjectNotFoundError, match="never committed"):
                await session.open_dataset(url)
        await add(session, lake, [first])
        await add(session, lake, [write(lake, 10)], overwrite=True)
        write(lake, 20)
        if below:
            with pytest.raises(InvalidOptionError, match="only its index knows which files are committed"):
                await session.open_dataset(url)
        else:
            assert await _read(session, url) == numbers(10)
        every = numbers(0, 10, 20) + beside
        assert await _read(session, url, **({"index": False} | _EVERY_FILE)) == sorted(every)
        assert await _read(session, lake / first.path) == numbers(0)  # who names a file means it
        shutil.rmtree(lake / "_asyncpq")
        (lake / "_SUCCESS").touch()
        assert await _read(session, url) == sorted(every)


async def test_a_listing_does_not_bring_back_what_was_replaced(tmp_path: Path) -> None:
    lake, elsewhere = tmp_path / "lake", str(tmp_path / "elsewhere")
    async with asyncpq.Session() as session:
        await add(session, lake, [write(lake, 0), write(lake, 10)])
        await add(session, lake, [write(lake, 20)], overwrite=True)
        for options in ({"index": False}, {"view": "listed"}, {"view": "listed", "index": str(lake / "_asyncpq")}):
            with pytest.raises(InvalidOptionError, match="only its index knows"):
                await session.open_dataset(str(lake), **options)
        index = await session.build_index(str(lake), [Keys("id"), Bounds("id")], at=elsewhere)
        assert index.manifest.num_files == 1
        assert await _read(session, lake, index=elsewhere) == numbers(20)
        write(lake, 30)  # is not committed
        await add(session, lake, [write(lake, 40)])
        done = await index.refresh()
        assert (done.added, done.removed) == (1, 0)
        assert await _read(session, lake, index=elsewhere) == numbers(20, 40)
        await add(session, lake, [write(lake, 50)], overwrite=True)
        done = await index.refresh()
        assert (done.added, done.removed) == (1, 2)
        assert await _read(session, lake, index=elsewhere) == numbers(50)


async def test_an_index_elsewhere_follows_until_nothing_is_left(tmp_path: Path) -> None:
    lake, elsewhere = tmp_path / "lake", str(tmp_path / "elsewhere")
    async with asyncpq.Session() as session:
        await add(session, lake, [write(lake, 0)])
        index = await session.build_index(str(lake), [Keys("id")], at=elsewhere)
        await add(session, lake, [], overwrite=True)
        shutil.rmtree(lake / "data")
        done = await index.refresh()
        assert (done.removed, index.manifest.num_files) == (1, 0)
        assert await _read(session, lake, index=elsewhere, view="snapshot") == []
        await add(session, lake, [write(lake, 10)])
        assert (await index.refresh()).added == 1
        shutil.rmtree(lake / "data")  # but the lake's index lists one
        with pytest.raises(ObjectNotFoundError):
            await index.refresh()


async def test_an_index_elsewhere_sees_commits_that_the_pointer_does_not_tell_yet(tmp_path: Path) -> None:
    lake, elsewhere = tmp_path / "lake", str(tmp_path / "elsewhere")
    async with asyncpq.Session() as session:
        await add(session, lake, [write(lake, 0), write(lake, 10)])
        stale = (lake / "_asyncpq" / "latest").read_bytes()
        await add(session, lake, [write(lake, 20)], overwrite=True)
        (lake / "_asyncpq" / "latest").write_bytes(stale)
    async with asyncpq.Session() as session:
        await session.build_index(str(lake), [Keys("id")], at=elsewhere)
        assert await _read(session, lake, index=elsewhere) == numbers(20)


async def test_an_index_of_all_files_stays_one(tmp_path: Path) -> None:
    lake, elsewhere = tmp_path / "lake", str(tmp_path / "elsewhere")
    async with asyncpq.Session() as session:
        await add(session, lake, [write(lake, 0), write(lake, 10)])
        await add(session, lake, [write(lake, 20)], overwrite=True)
        index = await session.build_index(str(lake), [Keys("id")], at=elsewhere, **_EVERY_FILE)
        assert index.manifest.num_files == 3
        write(lake, 30)
        done = await index.refresh()
        assert (done.added, done.removed) == (1, 0)
        assert await _read(session, lake, index=elsewhere, **_EVERY_FILE) == numbers(0, 10, 20, 30)


class _OneRow:
    """An index of one's own, by which one row of each file may match."""

    def __init__(self, *paths: str) -> None:
        self.paths = paths

    async def prune(self, where: Expression) -> FileSlices:
        return FileSlices(files=dict.fromkeys(self.paths, FileSlice(AccessPlan.rows([3]))), others="none")


@pytest.mark.parametrize("named", [False, True])
async def test_a_refresh_does_not_bring_back_what_was_replaced(tmp_path: Path, named: bool) -> None:
    """Also where events of the store name the files that were written, committed or not."""
    lake, backend = tmp_path / "lake", str(tmp_path / "index")
    first = write(lake, 0)
    async with asyncpq.Session() as session:
        await add(session, lake, [first])
        index = await session.build_index(str(lake), [Bounds("id")], at=backend)
        new, lost = write(lake, 10), write(lake, 20)
        await add(session, lake, [new], overwrite=True)
        urls = [str(lake / file.path) for file in (first, new, lost)]
        await index.refresh(**({"files": urls} if named else {}))
        assert await _read(session, lake, index=backend) == numbers(10)
        assert (await index.refresh(files=urls[::-1])).added == 0
        assert await _read(session, lake, index=backend) == numbers(10)


@pytest.mark.parametrize("inside", [False, True])
async def test_files_are_not_committed_by_an_index_that_others_built(tmp_path: Path, inside: bool) -> None:
    """Beside files of others, in the folder itself or in one below it; a pattern finds what the folder has."""
    lost = write(tmp_path / "in" if inside else tmp_path, 0)
    pq.write_table(table(90), tmp_path / "other.parquet")
    url = str(tmp_path / ("in" if inside else "") / lost.path)
    async with asyncpq.Session() as session:
        index = await session.build_index(str(tmp_path), [Bounds("id")])
        for _ in range(2):
            await index.refresh()
            await index.refresh(files=[url])
            for options in ({}, {"view": "listed"}, {"index": False}):
                assert await _read(session, tmp_path, **options) == numbers(90)
            assert await _read(session, tmp_path / "**") == numbers(90)
        assert await _read(session, url) == numbers(0)
        (tmp_path / "in" if inside else tmp_path).joinpath("_SUCCESS").touch()
        await index.refresh()
        assert await _read(session, tmp_path) == await _read(session, tmp_path / "**") == numbers(0, 90)


@pytest.mark.parametrize("verb", ["build", "refresh", "refresh of files"])
async def test_an_overwrite_between_the_listing_and_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str
) -> None:
    """The lake is as it was before or after, not what both have in common."""
    lake, backend = tmp_path / "lake", str(tmp_path / "index")
    first, second, committing_index = write(lake, 0), write(lake, 10), index_source.committing_index
    files: list[str] = [str(lake / first.path)]

    async def overwritten(*args: Any) -> Any:
        monkeypatch.setattr(index_source, "committing_index", committing_index)
        new = write(lake, 20)
        files.append(str(lake / new.path))
        await add(session, lake, [new], overwrite=True)
        return await committing_index(*args)

    async with asyncpq.Session() as session:
        await add(session, lake, [first, second])
        if verb == "build":
            monkeypatch.setattr(index_source, "committing_index", overwritten)
        index = await session.build_index(str(lake), [Keys("id")], at=backend)
        if verb != "build":
            monkeypatch.setattr(index_source, "committing_index", overwritten)
            await index.refresh(files if verb == "refresh of files" else None)
        expected = numbers(10) if verb == "refresh of files" else numbers(20)
        assert await _read(session, lake, index=backend, view="snapshot") == expected
        assert await _read(session, lake, index=backend) == numbers(20)  # what the lake's own index lists
        if verb == "refresh of files":  # of these alone
            await index.refresh(files)
            assert await _read(session, lake, index=backend, view="snapshot") == numbers(10, 20)
        await index.refresh()
        assert await _read(session, lake, index=backend, view="snapshot") == numbers(20)


async def test_an_index_has_the_columns_of_the_files_that_count(tmp_path: Path) -> None:
    lake, backend = tmp_path / "lake", str(tmp_path / "index")
    schema = pa.schema([("id", pa.string()), ("more", pa.string())])
    async with asyncpq.Session() as session:
        await add(session, lake, [write(lake, 0, job=f"0{uuid.uuid4().hex[1:]}")])  # the first one by path
        new = write(lake, 10, job=f"f{uuid.uuid4().hex[1:]}", schema=schema)
        await add(session, lake, [new], overwrite=True, schema=schema)
        index = await session.build_index(str(lake), [Keys("more")], at=backend)
        assert index.manifest.schema.equals(schema)
        dataset = await session.open_dataset(str(lake), index=backend)
        found = await dataset.read(where=col("more") == "13")
        assert found.to_pylist() == [{"id": "13", "more": "13"}]


async def test_files_of_a_lake_that_are_gone(tmp_path: Path) -> None:
    """Its own index forgets them, one that is elsewhere does not pass them over."""
    lake, backend = tmp_path / "lake", str(tmp_path / "index")
    first, second = write(lake, 0), write(lake, 10)
    async with asyncpq.Session() as session:
        await add(session, lake, [first, second])
        elsewhere = await session.build_index(str(lake), [Bounds("id")], at=backend)
        (lake / second.path).unlink()
        await elsewhere.refresh()
        with pytest.raises(ObjectNotFoundError, match=second.path):
            await _read(session, lake, index=backend)
        own = await session.open_index(str(lake / "_asyncpq"))
        assert (await own.refresh()).removed == 1
        (lake / first.path).unlink()
        assert (await own.refresh()).removed == 1
        assert await ids(session, lake) == []
        assert (await elsewhere.refresh()).removed == 2


async def test_the_index_of_a_lake_that_was_made_since_is_not_dropped(tmp_path: Path) -> None:
    pq.write_table(table(90), tmp_path / "other.parquet")
    async with asyncpq.Session() as session:
        old = await session.build_index(str(tmp_path), [Keys("id")])
        await (await session.open_index(str(tmp_path / "_asyncpq"))).drop()
        await add(session, tmp_path, [write(tmp_path, 0)])
        with pytest.raises(UsageError, match="which files of the folder are committed"):
            await old.drop()
        assert await ids(session, tmp_path) == numbers(0)
        broken = await session.build_index(str(tmp_path / "other.parquet"), [Keys("id")], at=str(tmp_path / "broken"))
        for path in (tmp_path / "broken" / "manifests").iterdir():
            path.write_bytes(b"no manifest")
        await broken.drop()
        assert not (tmp_path / "broken").exists()


async def test_a_value_of_another_type_in_a_new_path(tmp_path: Path) -> None:
    """No file is left out without a word."""
    (tmp_path / "p=1").mkdir()
    pq.write_table(table(0), tmp_path / "p=1" / "a.parquet")
    async with asyncpq.Session() as session:
        index = await session.build_index(str(tmp_path), [Bounds("id")])
        (tmp_path / "p=x").mkdir()
        pq.write_table(table(10), tmp_path / "p=x" / "b.parquet")
        for _ in range(2):
            with pytest.raises(PartitionError, match=r"b\.parquet"):
                await index.refresh()
        (tmp_path / "p=x" / "b.parquet").unlink()
        assert (await index.refresh()).added == 0
        assert await _read(session, tmp_path) == numbers(0)


async def test_an_index_of_ones_own_is_asked_about_the_files_that_count(tmp_path: Path) -> None:
    async with asyncpq.Session() as session:
        old, new = write(tmp_path, 0), write(tmp_path, 10)
        await add(session, tmp_path, [old])
        await add(session, tmp_path, [new], overwrite=True)
        dataset = await session.open_dataset(str(tmp_path), index=_OneRow(old.path, new.path))
        assert sorted((await dataset.read()).column("id").to_pylist()) == numbers(10)
        found = await dataset.read(where=col("id") >= 0)
        assert found.column("id").to_pylist() == [13]


async def test_folders_of_others_below_data(tmp_path: Path) -> None:
    """Such as are named by other digests than asyncpq's, or hold files of other names."""
    md5, own = "d41d8cd98f00b204e9800998ecf8427e", "0f8fad5bd9cb469fa16570867728950e"
    paths = [f"data/{md5}/train.parquet", f"data/{md5}/00000-1.parquet", f"data/{own}/train.parquet"]
    for number, path in enumerate(paths):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table(number * 10), tmp_path / path)
    async with asyncpq.Session() as session:
        assert await _read(session, tmp_path) == numbers(0, 10, 20)
        index = await session.build_index(str(tmp_path), [Keys("id")])
        assert index.manifest.num_files == 3
        assert await _read(session, tmp_path) == numbers(0, 10, 20)


async def test_a_commit_whose_base_is_long_gone_comes_behind_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers behind its base were vacuumed meanwhile, and are free."""
    monkeypatch.setattr("asyncpq.indexing.commits._OLD_S", 0.0)
    finish = building.IndexBuilder._finish
    waits, goes = asyncio.Event(), asyncio.Event()

    async def slow(self: Any, manifest: Manifest, segments: Any) -> Manifest:
        if not waits.is_set():
            waits.set()
            await goes.wait()
        return await finish(self, manifest, segments)

    async with asyncpq.Session() as session:
        await add(session, tmp_path, [write(tmp_path, 0)])
        monkeypatch.setattr(building.IndexBuilder, "_finish", slow)
        slow_one = asyncio.create_task(add(session, tmp_path, [write(tmp_path, 10)]))
        await waits.wait()
        for start in (20, 30):
            await add(session, tmp_path, [write(tmp_path, start)])
        index = await session.open_index(str(tmp_path / "_asyncpq"))
        await index.vacuum(keep=1, older_than=timedelta(0))
        assert len(await index.backend.ages("manifests")) == 1
        goes.set()
        await slow_one
        assert await ids(session, tmp_path) == numbers(0, 10, 20, 30)


async def test_a_compaction_during_an_overwrite_with_other_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of what a long overwrite finds nothing is committed on the way, which a compaction would merge into its own."""
    schema = SCHEMA.set(0, SCHEMA.field("id").with_type(pa.int32()))
    finish = building.IndexBuilder._finish

    async def compacted(self: Any, manifest: Manifest, segments: list[Segment]) -> Manifest:
        await index.compact()
        return await finish(self, manifest, segments)

    async with asyncpq.Session() as session:
        for start in (0, 10, 20, 30):
            await add(session, tmp_path, [write(tmp_path, start)])
        index = await session.open_index(str(tmp_path / "_asyncpq"))
        monkeypatch.setattr(building.IndexBuilder, "_finish", compacted)
        files = [write(tmp_path, start, schema=schema) for start in (40, 50, 60)]
        options = BuildOptions(checkpoint_files=1)
        await add_files(session._runtime, f"{tmp_path}/", files, schema, overwrite=True, options=options)
    async with asyncpq.Session() as session:
        assert await ids(session, tmp_path) == numbers(40, 50, 60)
        manifest = await load((await session.open_index(str(tmp_path / "_asyncpq"))).backend)
        assert manifest is not None
        assert manifest.builds == ()
        with pytest.raises((SchemaMismatchError, StaleSnapshotError)):
            await add(session, tmp_path, [write(tmp_path, 70)])
