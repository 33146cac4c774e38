"""Files that are there once an index lists them: added, replaced by several writers at once, removed when unlisted."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.errors import (
    AsyncpqError,
    InvalidOptionError,
    ObjectChangedError,
    ObjectNotFoundError,
    SchemaMismatchError,
    StaleSnapshotError,
    TransportError,
)
from asyncpq.indexing import Bounds, Footers, Keys
from asyncpq.indexing.build.adding import AddedFile, add_files, discard_files, lake_backend, vacuum_files
from asyncpq.indexing.build.index_builder import Refreshed
from asyncpq.indexing.commits import load, manifest_ages, numbered
from asyncpq.indexing.kinds import IndexKind
from asyncpq.options import BuildOptions
from asyncpq.storage.base import Validator
from asyncpq.storage.local import local_validator
from asyncpq.testing import RecordingStore, StoreWrite, WrappedStore, wrap_store

pytestmark = pytest.mark.sampled(2)

T = TypeVar("T")

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())], metadata={"made": "here"})
_OPTIONS = BuildOptions(max_segments=3)


def table(start: int, schema: pa.Schema = SCHEMA) -> pa.Table:
    ids = pa.array(range(start, start + 10))
    return pa.table([ids.cast(schema.field("id").type), ids.cast(pa.string())], schema=schema)


def write(lake: Path, start: int, *, job: str = "", schema: pa.Schema = SCHEMA, tail: bool = True) -> AddedFile:
    """A file of 10 rows."""
    path = f"data/{job or uuid.uuid4().hex}/{start:05d}-0.parquet"
    (lake / path).parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table(start, schema), lake / path, write_page_index=True)
    data = (lake / path).read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    chunk = pq.read_metadata(lake / path).row_group(0).column(1)
    indexes = chunk.file_offset + chunk.total_compressed_size if chunk.file_offset else footer - 200
    return AddedFile(
        path=path,
        validator=local_validator((lake / path).stat()),
        num_rows=10,
        footer_start=footer if tail else 0,
        tail=data[min(indexes, footer - 200) :] if tail else b"",
    )


async def add(
    session: asyncpq.Session,
    lake: Path,
    files: Sequence[AddedFile],
    *,
    overwrite: bool = False,
    schema: pa.Schema = SCHEMA,
    kinds: Sequence[IndexKind] | None = None,
) -> Refreshed:
    return await add_files(
        session._runtime, f"{lake}/", files, schema, overwrite=overwrite, kinds=kinds, options=_OPTIONS
    )


async def ids(session: asyncpq.Session, lake: Path) -> list[int]:
    dataset = await session.open_dataset(str(lake))
    found = (await dataset.read()).column("id").to_pylist()
    assert await dataset.count() == len(found)
    for number in found[::7]:
        assert await dataset.count(where=col("id") == number) == found.count(number)
    return sorted(found)


def numbers(*starts: int) -> list[int]:
    return sorted(number for start in starts for number in range(start, start + 10))


# -- adding and replacing -------------------------------------------------------------------------


@pytest.mark.parametrize("tail", [True, False], ids=["with the footer", "fetched"])
async def test_files_are_there_from_their_commit_on(tmp_path: Path, tail: bool) -> None:
    async with asyncpq.Session() as session:
        first = await add(session, tmp_path, [write(tmp_path, 0, tail=tail), write(tmp_path, 10, tail=tail)])
        assert (first.added, first.removed, first.manifest.num_rows) == (2, 0, 20)
        assert first.manifest.schema.equals(SCHEMA, check_metadata=True)
        write(tmp_path, 500)  # nobody commits it
        assert await ids(session, tmp_path) == numbers(0, 10)
        dataset = await session.open_dataset(str(tmp_path), index=str(tmp_path / "_asyncpq"), view="snapshot")
        await add(session, tmp_path, [write(tmp_path, 20, tail=tail)])
        assert sorted((await dataset.read()).column("id").to_pylist()) == numbers(0, 10, 20)
        done = await add(session, tmp_path, [write(tmp_path, 30, tail=tail)], overwrite=True)
        assert (done.added, done.removed, done.manifest.num_rows, done.manifest.builds) == (1, 3, 10, ())
        assert await ids(session, tmp_path) == numbers(30)
        index = await session.open_index(str(tmp_path / "_asyncpq"))
        assert (await index.verify(sample=9)).problems == []


async def test_what_comes_along_spares_reading_the_files(tmp_path: Path) -> None:
    files = {tail: [write(tmp_path, start, tail=tail) for start in (0, 10, 20)] for tail in (True, False)}
    async with asyncpq.Session() as session:
        store = wrap_store(session, str(tmp_path), RecordingStore)
        await add(session, tmp_path, [])
        asked: dict[bool, int] = {}
        for tail, some in files.items():
            store.calls.clear()
            await add(session, tmp_path, some)
            asked[tail] = sum("/data/" in call.url for call in store.calls)
        assert asked == {True: 0, False: 3}
        assert await ids(session, tmp_path) == sorted(2 * numbers(0, 10, 20))


async def test_no_files_are_a_commit_too(tmp_path: Path) -> None:
    async with asyncpq.Session() as session:
        await add(session, tmp_path, [])
        dataset = await session.open_dataset(str(tmp_path))
        assert (await dataset.read()).equals(SCHEMA.empty_table())
        assert (await add(session, tmp_path, [])).manifest.num_files == 0
        await add(session, tmp_path, [write(tmp_path, 0)])
        assert (await add(session, tmp_path, [], overwrite=True)).removed == 1
        assert await ids(session, tmp_path) == []


async def test_columns_must_be_those_of_the_lake(tmp_path: Path) -> None:
    other = pa.schema([("id", pa.string()), ("name", pa.string())])
    async with asyncpq.Session() as session:
        await add(session, tmp_path, [write(tmp_path, 0)])
        for schema in (other, pa.schema([("id", pa.int64())]), SCHEMA.append(pa.field("more", pa.int32()))):
            with pytest.raises(SchemaMismatchError, match="column"):
                await add(session, tmp_path, [], schema=schema)
        with pytest.raises(InvalidOptionError, match="tables footers, bounds"):
            await add(session, tmp_path, [write(tmp_path, 10)], kinds=[Keys("id")])
        assert await ids(session, tmp_path) == numbers(0)
        # overwritten, it has other columns, and is another index
        dataset = await session.open_dataset(str(tmp_path))
        done = await add(session, tmp_path, [write(tmp_path, 10, schema=other)], schema=other, overwrite=True)
        assert (done.removed, done.manifest.num_rows) == (1, 10)
        with pytest.raises(StaleSnapshotError):
            await dataset.read()
        table = await (await session.open_dataset(str(tmp_path))).read()
        assert table.column("id").to_pylist() == [str(number) for number in range(10, 20)]
        assert (await (await session.open_index(str(tmp_path / "_asyncpq"))).verify()).problems == []
        done = await add(session, tmp_path, [], schema=other, overwrite=True, kinds=[Footers(), Keys("id")])
        assert [str(part) for part in done.manifest.tables] == ["files", "footers", "keys(id)"]
        await add(session, tmp_path, [write(tmp_path, 20, schema=other)], schema=other)
        dataset = await session.open_dataset(str(tmp_path))
        assert (await dataset.lookup({"id": "25"})).num_rows == 1


async def test_metadata_makes_no_other_index(tmp_path: Path) -> None:
    async with asyncpq.Session() as session:
        first = await add(session, tmp_path, [write(tmp_path, 0)], kinds=[Keys("id")])
        dataset = await session.open_dataset(str(tmp_path))
        schema = SCHEMA.with_metadata({"made": "later"})
        done = await add(session, tmp_path, [write(tmp_path, 10)], schema=schema, overwrite=True)
        assert (done.manifest.index, done.manifest.tables) == (first.manifest.index, first.manifest.tables)
        assert done.manifest.schema.equals(schema, check_metadata=True)
        assert sorted((await dataset.read()).column("id").to_pylist()) == numbers(10)


async def test_wide_tables_have_few_bounds(tmp_path: Path) -> None:
    schema = pa.schema([(f"c{number}", pa.int64()) for number in range(100)])
    async with asyncpq.Session() as session:
        done = await add(session, tmp_path, [], schema=schema)
        assert [str(part) for part in done.manifest.tables[2:]] == [f"bounds(c{number})" for number in range(32)]


async def test_an_index_of_what_others_write_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    pq.write_table(table(0), tmp_path / "plain" / "a.parquet")
    async with asyncpq.Session() as session:
        await session.build_index(str(tmp_path), [Bounds()])
        for overwrite in (False, True):
            with pytest.raises(InvalidOptionError, match="asyncpq did not write"):
                await add(session, tmp_path, [write(tmp_path, 0)], overwrite=overwrite)


@pytest.mark.parametrize("tail", [True, False], ids=["with the footer", "fetched"])
async def test_a_file_that_was_removed_or_replaced_is_not_committed(tmp_path: Path, tail: bool) -> None:
    async with asyncpq.Session() as session:
        await add(session, tmp_path, [write(tmp_path, 0)])
        gone, changed = write(tmp_path, 10, tail=tail), write(tmp_path, 20, tail=False)
        (tmp_path / gone.path).unlink()
        (tmp_path / changed.path).write_bytes((tmp_path / changed.path).read_bytes())
        for file, kind in ((gone, ObjectNotFoundError), (changed, ObjectChangedError)):
            with pytest.raises(kind) as caught:
                await add(session, tmp_path, [write(tmp_path, 40), file])
            assert file.path in str(caught.value)
        assert await ids(session, tmp_path) == numbers(0)


async def test_a_refresh_takes_in_nothing_that_was_not_committed(tmp_path: Path) -> None:
    async with asyncpq.Session() as session:
        kept, lost = write(tmp_path, 0), write(tmp_path, 10)
        await add(session, tmp_path, [kept, lost])
        write(tmp_path, 20)
        index = await session.open_index(str(tmp_path / "_asyncpq"))
        stale = (await index.show(staleness=True)).staleness
        assert stale is not None
        assert (stale.new, stale.changed, stale.gone) == (0, 0, 0)
        (tmp_path / lost.path).unlink()
        assert (await index.refresh()).removed == 1
        assert (await index.refresh([str(tmp_path / kept.path)])).added == 0
        assert await ids(session, tmp_path) == numbers(0)


# -- several at once ------------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("seed", range(4))
async def test_writers_at_once_are_as_if_one_after_the_other(tmp_path: Path, seed: int) -> None:
    """In the order of their commits; a reader meanwhile sees each of them as a whole or not at all."""
    randomness = random.Random(seed)
    jobs = [(overwrite, [number * 100, number * 100 + 10]) for number, overwrite in enumerate(
        randomness.random() < 0.3 for _ in range(8)
    )]  # fmt: skip
    sessions = [asyncpq.Session() for _ in range(3)]
    snapshots: dict[int, int] = {}
    for session in sessions:
        await session.__aenter__()
    try:
        await add(sessions[0], tmp_path, [])

        async def run(number: int, overwrite: bool, starts: list[int]) -> None:
            files = [write(tmp_path, start) for start in starts]
            await asyncio.sleep(randomness.random() * 0.1)
            done = await add(sessions[number % 2], tmp_path, files, overwrite=overwrite)
            snapshots[number] = done.manifest.snapshot

        seen: list[list[int]] = []

        async def read() -> None:
            dataset = await sessions[2].open_dataset(str(tmp_path), index=str(tmp_path / "_asyncpq"), view="snapshot")
            while len(snapshots) < len(jobs):
                seen.append(sorted((await dataset.read()).column("id").to_pylist()))

        await asyncio.gather(read(), *(run(number, *job) for number, job in enumerate(jobs)))
        expected: list[int] = []
        states = [[]] if not jobs else [list[int]()]
        for number in await commit_order(sessions[0], tmp_path, [starts for _, starts in jobs]):
            overwrite, starts = jobs[number]
            expected = numbers(*starts) if overwrite else sorted([*expected, *numbers(*starts)])
            states.append(expected)
        assert await ids(sessions[0], tmp_path) == expected
        assert all(found in states for found in seen)
        assert (await (await sessions[0].open_index(str(tmp_path / "_asyncpq"))).verify(sample=99)).problems == []
    finally:
        for session in sessions:
            await session.close()


async def commit_order(session: asyncpq.Session, lake: Path, starts: list[list[int]]) -> list[int]:
    """Which jobs each snapshot saw for the first time: by the rows of all snapshots that there were."""
    backend = await lake_backend(session._runtime, f"{lake}/", create=False)
    found: list[int] = []
    for number in sorted(await manifest_ages(backend)):
        manifest = await numbered(backend, number)
        if manifest is None or not manifest.is_built:
            continue
        index = await session.open_index(str(lake / "_asyncpq"), snapshot=number)
        dataset = await session.open_dataset(str(lake), index=index, view="snapshot")
        rows = set((await dataset.read()).column("id").to_pylist())
        found += [at for at, some in enumerate(starts) if some[0] in rows and at not in found]
    return found


async def test_who_overwrites_with_other_columns_stops_who_appends(tmp_path: Path) -> None:
    other = pa.schema([("id", pa.string()), ("name", pa.string())])
    async with asyncpq.Session() as session, asyncpq.Session() as second:
        await add(session, tmp_path, [write(tmp_path, 0)])
        held, go_on = asyncio.Event(), asyncio.Event()

        class Waiting(WrappedStore):
            async def create_object(self, url: str, data: bytes, *, context: object) -> bool:
                if "/manifests/" in url and b'"builds":[]' in data:
                    held.set()
                    await go_on.wait()
                return await super().create_object(url, data, context=context)  # type: ignore[arg-type]

        wrap_store(second, str(tmp_path), Waiting)
        appending = asyncio.ensure_future(add(second, tmp_path, [write(tmp_path, 10)]))
        await held.wait()
        await add(session, tmp_path, [write(tmp_path, 20, schema=other)], schema=other, overwrite=True)
        go_on.set()
        with pytest.raises(StaleSnapshotError):
            await appending
        table = await (await session.open_dataset(str(tmp_path))).read()
        assert table.column("id").to_pylist() == [str(number) for number in range(20, 30)]


async def test_a_commit_whose_answer_was_lost_counts_once(tmp_path: Path) -> None:
    async with asyncpq.Session() as session, asyncpq.Session() as second:
        await add(session, tmp_path, [write(tmp_path, 0)])

        class Losing(WrappedStore):
            async def around_write(self, call: StoreWrite, write: Callable[[], Awaitable[T]]) -> T:
                done = await write()
                if call.name == "create_object" and "/manifests/" in call.urls[0]:
                    raise TransportError("the answer was lost", url=call.urls[0])
                return done

        wrap_store(second, str(tmp_path), Losing)
        done = await add(second, tmp_path, [write(tmp_path, 10)])
        assert done.manifest.num_files == 2
        assert await ids(session, tmp_path) == numbers(0, 10)


# -- what is not listed ---------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("columns", ["same", "others"])
async def test_overwriting_once_more_with_the_same_files_changes_nothing(tmp_path: Path, columns: str) -> None:
    """As a commit does that is repeated since nobody knows whether it was made."""
    schema = SCHEMA if columns == "same" else pa.schema([("id", pa.int32()), ("name", pa.string())])
    async with asyncpq.Session() as session:
        await add(session, tmp_path, [write(tmp_path, 500)])
        files = [write(tmp_path, start, schema=schema) for start in (0, 10)]
        for _ in range(3):
            done = await add(session, tmp_path, files, schema=schema, overwrite=True)
            assert (done.manifest.num_files, done.manifest.num_rows) == (2, 20)
            assert await ids(session, tmp_path) == numbers(0, 10)
        both = [add(session, tmp_path, files, schema=schema, overwrite=True) for _ in range(2)]
        assert {done.manifest.num_rows for done in await asyncio.gather(*both)} == {20}
        assert await ids(session, tmp_path) == numbers(0, 10)


async def test_files_of_a_write_that_failed_are_deleted(tmp_path: Path) -> None:
    async with asyncpq.Session() as session:
        folder, runtime = f"{tmp_path}/", session._runtime
        assert await discard_files(runtime, folder, "data/none/") == []
        lost = write(tmp_path, 10, job="a" * 32)
        assert await discard_files(runtime, folder, f"data/{'a' * 32}/") == [lost.path]
        kept, lost = write(tmp_path, 0, job="b" * 32), write(tmp_path, 10, job="b" * 32)
        other = write(tmp_path, 10, job="c" * 32)
        await add(session, tmp_path, [kept])
        assert await discard_files(runtime, folder, f"data/{'b' * 32}/") == [lost.path]
        assert (tmp_path / other.path).is_file()
        assert await ids(session, tmp_path) == numbers(0)


async def test_a_vacuum_keeps_what_a_snapshot_lists(tmp_path: Path) -> None:
    async with asyncpq.Session() as session:
        folder, runtime = f"{tmp_path}/", session._runtime
        with pytest.raises(ObjectNotFoundError):
            await vacuum_files(runtime, folder, older_than_s=0)
        first, orphan = write(tmp_path, 0), write(tmp_path, 10)
        await add(session, tmp_path, [first])
        old = await session.open_index(str(tmp_path / "_asyncpq"))
        await add(session, tmp_path, [write(tmp_path, 20)], overwrite=True)
        assert await vacuum_files(runtime, folder, older_than_s=3600) == []
        assert await vacuum_files(runtime, folder, older_than_s=-60) == [orphan.path]
        pinned = await session.open_index(str(tmp_path / "_asyncpq"), snapshot=old.snapshot)
        dataset = await session.open_dataset(str(tmp_path), index=pinned, view="snapshot")
        assert sorted((await dataset.read()).column("id").to_pylist()) == numbers(0)
        await old.vacuum(keep=1, older_than=timedelta(0))
        assert await vacuum_files(runtime, folder, older_than_s=-60) == [first.path]
        assert await ids(session, tmp_path) == numbers(20)
        (tmp_path / "plain").mkdir()
        pq.write_table(table(0), tmp_path / "plain" / "a.parquet")
        await session.build_index(str(tmp_path / "plain"), [Bounds()])
        with pytest.raises(InvalidOptionError):
            await vacuum_files(runtime, f"{tmp_path}/plain/", older_than_s=-60)


async def test_a_vacuum_keeps_what_is_being_committed(tmp_path: Path) -> None:
    """Files whose segments are there, though their last commit is not."""
    async with asyncpq.Session() as session, asyncpq.Session() as second:
        await add(session, tmp_path, [write(tmp_path, 0)])
        files = [write(tmp_path, start, tail=False) for start in range(10, 60, 10)]

        class Failing(WrappedStore):
            async def create_object(self, url: str, data: bytes, *, context: object) -> bool:
                if "/manifests/" in url and b'"builds":[]' in data:
                    raise AsyncpqError("it dies here")
                return await super().create_object(url, data, context=context)  # type: ignore[arg-type]

        wrap_store(second, str(tmp_path), Failing)
        options = BuildOptions(checkpoint_files=1)
        with pytest.raises(AsyncpqError, match="dies"):
            await add_files(second._runtime, f"{tmp_path}/", files, SCHEMA, options=options)
        manifest = await load(await lake_backend(session._runtime, f"{tmp_path}/", create=False))
        assert manifest is not None
        assert len(manifest.builds) == 1
        removed = await vacuum_files(session._runtime, f"{tmp_path}/", older_than_s=-60)
        assert removed == [files[-1].path]  # of the last one nothing was committed
        assert await ids(session, tmp_path) == numbers(0)


def test_validators_are_those_of_reads(tmp_path: Path) -> None:
    file = write(tmp_path, 0)
    assert isinstance(file.validator, Validator)
    assert file.validator.size == (tmp_path / file.path).stat().st_size
