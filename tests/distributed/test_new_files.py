"""How far a stream has come: every version of a file once, whatever order they come in."""

from __future__ import annotations

import asyncio
import json
import pickle
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.distributed import new_files, plan_scan
from asyncpq.distributed.new_files import FolderSource, IndexOffset, ListedFile, ListedOffset, NewFiles, Offset, fitting
from asyncpq.errors import InvalidOptionError, ObjectChangedError, UsageError
from asyncpq.indexing import Bounds
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.session import Session
from asyncpq.storage.base import Validator


def _file(modified_s: float, name: str, size: int = 10, etag: str | None = None) -> ListedFile:
    validator = None if etag is None else Validator(size, etag)
    return ListedFile(round(modified_s * 1e6), name, f"s3://b/{name}", size, validator)


def _again(offset: ListedOffset) -> ListedOffset:
    """As a checkpoint gives it back."""
    return ListedOffset.parse(json.loads(json.dumps(offset.to_json())))


def _step(offset: ListedOffset, listed: list[ListedFile], max_files: int, max_age_s: float = 100.0) -> ListedOffset:
    new = offset.new(listed)
    batch = new[: fitting([file.size for file in new], max_files, None)]
    return _again(offset.advanced(listed, batch, max_age_s)) if batch else offset


@st.composite
def arrivals(draw: st.DrawFn) -> list[tuple[int, int, int]]:
    """Of each file: at which step it shows up, when it says it was written, and when it is deleted."""
    steps = st.tuples(st.integers(0, 12), st.integers(0, 60), st.integers(1, 30))
    return [(step, step * 10 - late, step + lives) for step, late, lives in draw(st.lists(steps, max_size=40))]


@given(arrivals(), st.integers(1, 6), st.integers(0, 5))
def test_each_file_is_read_once_however_late_it_shows_up(
    files: list[tuple[int, int, int]], max_files: int, replays: int
) -> None:
    # Late by at most 60 s of 100 s; times of several files are the same.
    offset = ListedOffset()
    read: list[str] = []
    seen: set[str] = set()
    for step in range(60):
        named = [(f"f{number}", *file) for number, file in enumerate(files)]
        listed = [_file(written, name) for name, shown, written, gone in named if shown <= step < gone]
        end = _step(offset, listed, max_files)
        batch, expected = offset.until(end, listed)
        assert len(batch) == expected <= max_files
        # What comes later, or is gone by then, changes nothing of what a batch is made of.
        later = [
            *listed,
            *(_file(written, name) for name, shown, written, _ in named if step < shown <= step + replays),
        ]
        assert offset.until(end, later) == (batch, expected)
        assert offset.until(end, batch[1:]) == (batch[1:], expected)
        read += [file.name for file in batch]
        seen |= {file.name for file in listed}
        offset = end
    assert len(read) == len(set(read)), "a file twice"
    # What was there until all was read is lost by nobody; files may be deleted before their turn.
    stayed = {f"f{number}" for number, file in enumerate(files) if file[2] > 12 + len(files) // max_files + 1}
    assert stayed <= set(read) <= seen


@given(arrivals(), st.integers(1, 40))
def test_memory_is_bounded_and_loses_only_what_is_older_than_it(
    files: list[tuple[int, int, int]], max_files: int
) -> None:
    offset = ListedOffset()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(new_files, "REMEMBERED", 3)
        for step in range(30):
            listed = [_file(written, f"f{number}") for number, (shown, written, _) in enumerate(files) if shown <= step]
            unread = {file.name for file in offset.new(listed)}
            end = _step(offset, listed, max_files)
            batch, _ = offset.until(end, listed)
            waits = end.new(listed)  # files beyond an unread one are not forgotten
            assert len(end.marks) <= 3 + len(batch) or waits or end == offset
            # Nothing that is there and was not read is ever taken for read.
            assert {file.name for file in end.new(listed)} == unread - {file.name for file in batch}
            offset = end


def test_nothing_is_forgotten_beyond_a_late_file_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(new_files, "REMEMBERED", 1)
    listed = [_file(100 + number, f"f{number}") for number in range(4)]
    offset = _step(ListedOffset(), listed, 4)
    listed += [_file(number, f"late{number}") for number in range(2)]
    offset = _step(offset, listed, 1)
    assert [file.name for file in offset.new(listed)] == ["late1"]


def test_a_file_that_is_older_than_the_memory_counts_as_read() -> None:
    offset = ListedOffset()
    listed = [_file(0, "old"), _file(1000, "new"), _file(2000, "newer")]
    for _ in range(3):
        offset = _step(offset, listed, 1)
    assert offset.after == (0, "old") or offset.after == _file(1000, "new").key
    offset = _step(offset, [*listed, _file(2001, "newest")], 1)
    late = [_file(999, "late"), _file(1950, "late, but not too late")]
    assert [file.name for file in offset.new([*listed, *late])] == ["late, but not too late"]


def test_the_first_batch_takes_files_of_any_age() -> None:
    listed = [_file(0, "a"), _file(1e6, "b"), _file(2e6, "c")]
    assert [file.name for file in ListedOffset().new(listed)] == ["a", "b", "c"]


def test_a_replaced_file_is_a_new_one_and_its_old_version_is_missing() -> None:
    old, new = _file(1, "a", etag='"1"'), _file(1, "a", etag='"2"')
    start = ListedOffset()
    end = _step(start, [old], 10)
    assert start.until(end, [new]) == ([], 1)
    assert end.new([old]) == []
    assert end.new([new]) == [new]


@pytest.mark.heavy
def test_offsets_stay_small() -> None:
    offset = ListedOffset()
    listed = [_file(number, f"a/long/path/of/a/file/{number:08}.parquet") for number in range(10_000)]
    while offset.new(listed):
        offset = _step(offset, listed, 1000, max_age_s=1e9)
    assert len(json.dumps(offset.to_json())) < 64 << 10


@pytest.mark.parametrize(
    ("max_files", "max_bytes", "expected"), [(2, None, 2), (None, 25, 2), (None, 1, 1), (None, 30, 3), (None, None, 4)]
)
def test_limits(max_files: int | None, max_bytes: int | None, expected: int) -> None:
    assert fitting([10] * 4, max_files, max_bytes) == expected


# -- an index's snapshots -------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4), st.booleans()), max_size=12), st.integers(1, 4))
def test_each_id_is_read_once_though_builds_commit_later_than_others(
    builds: list[tuple[int, int, bool]], max_files: int
) -> None:
    """Each build reserves some ids, commits them some steps later, or never."""
    offset = IndexOffset("i")
    read: list[int] = []
    next_file = 0
    open_builds: list[tuple[RowRanges, int]] = []
    live = RowRanges()
    committed: set[int] = set()
    for step in range(60):
        if step < len(builds):
            size, wait, commits = builds[step]
            ids = RowRanges([(next_file, next_file + size)])
            next_file += size
            open_builds.append((ids, step + wait if commits else 10_000 if wait else -1))
        for ids, when in [*open_builds]:
            if when <= step:
                open_builds.remove((ids, when))
                if when >= 0:
                    live, committed = live | ids, committed | set(ids.rows())
        reserved = RowRanges([part for ids, _ in open_builds for part in ids])
        new = offset.new(live)
        if new:
            batch = new.slice(0, max_files)
            end = offset.advanced(new, batch, reserved, next_file)
            end = IndexOffset.parse(json.loads(json.dumps(end.to_json())), "i")
            assert offset.until(end, live) == batch
            assert offset.until(end, live - batch) == RowRanges()
            assert end.num_files == batch.num_rows
            read += batch.rows()
            offset = end
    assert sorted(read) == sorted(committed)


@pytest.mark.parametrize("value", [{}, {"version": 2, "after": [0, ""]}, {"version": 1, "index": "i"}])
def test_a_checkpoint_of_something_else_is_refused(value: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ListedOffset.parse(value)


def test_a_checkpoint_of_another_index_is_refused() -> None:
    with pytest.raises(UsageError, match="another index"):
        IndexOffset.parse(IndexOffset("i").to_json(), "j")
    assert IndexOffset.parse(IndexOffset("").to_json(), "j") == IndexOffset("j")


async def test_a_stream_of_a_pattern_inside_of_a_table(tmp_path: Path) -> None:
    deltalake.write_deltalake(tmp_path / "t", pa.table({"id": range(9)}))
    pattern = f"{tmp_path}/t/part-*.parquet"
    async with Session() as session:
        with pytest.raises(InvalidOptionError, match=f"a Delta table, {tmp_path}/t/"):
            await NewFiles(pattern)._kind(session)
        assert await NewFiles(pattern, format="parquet")._kind(session) is FolderSource


# -- batches, read by tasks -----------------------------------------------------------------------


def _write(folder: Path, name: str, ids: range) -> None:
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), folder / f"{name}.parquet")


async def _read(session: Session, files: NewFiles, start: Offset, end: Offset) -> list[int]:
    """Ids of the batch between two offsets, read by tasks that were pickled."""
    batch = await files.batch(session, start, end)
    if batch is None:
        return []
    tasks = await plan_scan(await files.open(session, pickle.loads(pickle.dumps(batch))))
    found = [await asyncio.to_thread(task.to_table) for task in pickle.loads(pickle.dumps(list(tasks)))]
    return sorted(pa.concat_tables(found).column("id").to_pylist())


@pytest.mark.parametrize("by_index", [False, True])
async def test_batches_are_read_by_tasks_each_file_once(tmp_path: Path, by_index: bool) -> None:
    lake, offset, read = tmp_path / "lake", dict(NewFiles.first_offset), list[int]()
    options: dict[str, Any] = {"index": str(tmp_path / "index"), "view": "snapshot"} if by_index else {}
    async with Session() as session:
        for step in range(3):
            for number in range(3):
                _write(lake, f"{step}{number}", range(100 * step + 10 * number, 100 * step + 10 * number + 10))
            if by_index:
                await session.build_index(str(lake), [Bounds("id")], at=options["index"])
            files = NewFiles(str(lake), **options)  # another process, which knows the offset
            while (end := await files.advance(session, offset, max_files=2)) != offset:
                end = json.loads(json.dumps(end))
                batch = await _read(session, files, offset, end)
                assert batch == await _read(session, NewFiles(str(lake), **options), offset, end), "it runs again"
                read += batch
                offset = end
    assert sorted(read) == sorted(ds.dataset(lake).to_table().column("id").to_pylist())


async def test_files_that_changed_under_the_batch(tmp_path: Path) -> None:
    lake, start = tmp_path / "lake", dict(NewFiles.first_offset)
    for number in range(3):
        _write(lake, str(number), range(10 * number, 10 * number + 10))
    async with Session() as session:
        files = NewFiles(str(lake))
        end = await files.advance(session, start)
        batch = await files.batch(session, start, end)
        assert batch is not None
        tasks = await plan_scan(await files.open(session, batch))
        _write(lake, "0", range(1000, 1500))
        with pytest.raises(ObjectChangedError, match="1 of the 3 files"):
            await NewFiles(str(lake)).batch(session, start, end)
        with pytest.raises(ObjectChangedError, match=r"0\.parquet"):
            await asyncio.to_thread(lambda: [task.to_table() for task in tasks])
        skipping = NewFiles(str(lake), skip_missing=True)
        assert await _read(session, skipping, start, end) == [*range(10, 30)]
        later = await skipping.advance(session, end)
        assert await _read(session, skipping, end, later) == [*range(1000, 1500)]


async def test_the_end_is_fixed(tmp_path: Path) -> None:
    start = dict(NewFiles.first_offset)
    _write(tmp_path / "lake", "a", range(5))
    async with Session() as session:
        files = NewFiles(str(tmp_path / "lake"))
        await files.fix_end(session)
        _write(tmp_path / "lake", "b", range(5, 10))
        end = await files.advance(session, start)
        assert await _read(session, files, start, end) == [*range(5)]
        assert await files.advance(session, end) == end


@pytest.mark.parametrize("given", [{"target": ["a", "b"]}, {"target": "a", "format": "delta"}])
def test_a_table_has_no_new_files(given: dict[str, Any]) -> None:
    with pytest.raises(InvalidOptionError, match="one folder or pattern"):
        NewFiles(**given)


def test_an_unknown_option_is_named_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(InvalidOptionError, match="no argument partitionning") as caught:
        NewFiles(str(tmp_path), partitionning=None)  # type: ignore[call-arg]
    assert "partitioning" in str(caught.value.hint)


async def test_a_folder_that_does_not_exist_yet_has_nothing_new(tmp_path: Path) -> None:
    start, files = dict(NewFiles.first_offset), NewFiles(f"{tmp_path}/lake/")
    async with Session() as session:
        assert await files.advance(session, start) == start
        (tmp_path / "lake").mkdir()
        pq.write_table(pa.table({"id": [1]}), tmp_path / "lake" / "a.parquet")
        end = await files.advance(session, start)
        batch = await files.batch(session, start, end)
        assert batch is not None
        assert (await (await files.open(session, batch)).read()).num_rows == 1
