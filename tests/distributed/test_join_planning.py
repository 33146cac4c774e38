"""Joins by key in tasks: the rows of pyarrow's join, in pinned versions; and how files and seconds are estimated."""

from __future__ import annotations

import asyncio
import math
import pickle
import random
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.datasets.file_statistics import FileStatistics
from asyncpq.datasets.model import DataFile, IndexEntry, View
from asyncpq.distributed import DatasetJoin, FoundFiles, JoinKey, JoinTask, close_workers, join_planning, plan_join
from asyncpq.distributed.join_planning import can_ship
from asyncpq.distributed.join_tasks import KeyPredicate
from asyncpq.distributed.scan_planning import scan_of
from asyncpq.errors import (
    AmbiguousColumnError,
    ColumnNotFoundError,
    InvalidOptionError,
    ObjectChangedError,
    SchemaMismatchError,
    UsageError,
)
from asyncpq.expressions import col
from asyncpq.indexing import Bounds, Footers, Keys
from asyncpq.objects.prices import Prices
from asyncpq.objects.runtime import INLINE_STEPS
from asyncpq.options import LimitOptions, RequestOptions
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.storage.base import Validator
from tests.ducklake_lakes import Lake

_FILES, _ROWS = 6, 300
_PYARROW = {"inner": "inner", "left": "left outer", "semi": "left semi", "anti": "left anti"}


@pytest.fixture(autouse=True)
def no_sessions() -> Iterator[None]:
    yield
    close_workers()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    chance, folder = random.Random(5), tmp_path_factory.mktemp("joined") / "lake"
    folder.mkdir()
    for number in range(_FILES):
        ids = [n * 7919 % (_FILES * _ROWS) for n in range(number * _ROWS, (number + 1) * _ROWS)]
        columns = {
            "id": pa.array(ids, pa.int64()),
            "user": [None if id_ % 7 == 0 else f"u{id_ % 40}" for id_ in ids],
            "x": [chance.choice([None, math.nan, 0.0, 1.5, float(id_)]) for id_ in ids],
            "v": [f"v{id_}" for id_ in ids],
        }
        pq.write_table(pa.table(columns), folder / f"{number}.parquet", write_page_index=True, max_rows_per_page=50)
    with asyncpq.blocking.Session() as session:
        session.build_index(f"{folder}/", [Keys("id"), Keys("user"), Bounds("x"), Footers()], at=f"{folder}-index/")
    return f"{folder}/"


def left_rows(lake: str, on: list[str], count: int = 60) -> pa.Table:
    """Some of the dataset's keys, some twice, and keys that it lacks."""
    chance = random.Random(1)
    keys = ds.dataset(lake).to_table(columns=on).take(chance.sample(range(_FILES * _ROWS), count))
    other = pa.table({name: pa.array([None, None], keys.schema.field(name).type) for name in on})
    if keys.schema.types[0] == pa.int64():
        other = other.set_column(0, on[0], pa.array([10**9, None], pa.int64()))
    keys = pa.concat_tables([keys, keys.slice(0, 5), other])
    return keys.append_column("w", pa.array(range(keys.num_rows), pa.int64()))


def rows_of(table: pa.Table) -> list[str]:
    return sorted(repr([row[name] for name in sorted(row)]) for row in table.to_pylist())


def run(task: JoinTask, part: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    return list(task(part))


async def joined(task: JoinTask, left: pa.Table, pool: ProcessPoolExecutor) -> pa.Table:
    """Parts of the left in processes, the last one first, and the first one twice."""
    parts = left.to_batches(max_chunksize=20)
    calls = [pool.submit(run, task, [part]) for part in (*reversed(parts), parts[0])]
    *found, again = [await asyncio.wrap_future(call) for call in calls]
    assert rows_of(pa.Table.from_batches(found[-1], again[0].schema)) == rows_of(pa.Table.from_batches(again))
    return pa.Table.from_batches([batch for batches in found for batch in batches])


@pytest.mark.parametrize("index", [None, "keys"])
@pytest.mark.parametrize(
    ("on", "how"), [(["id"], "inner"), (["user"], "left"), (["user", "id"], "semi"), (["id", "user"], "anti")]
)
async def test_rows_are_those_of_pyarrow(
    lake: str, workers: ProcessPoolExecutor, index: str | None, on: list[str], how: Any
) -> None:
    left = left_rows(lake, on)
    async with asyncpq.Session() as session:
        at: Any = f"{lake[:-1]}-index/" if index else False
        task = await plan_join(session, lake, on, left.schema, columns=["v", "x"], how=how, index=at, batch_keys=7)
    found = await joined(task, left, workers)
    right = ds.dataset(lake).to_table(columns=[*on, "v", "x"])
    if how in ("semi", "anti"):
        right = right.select(on)
    expected = left.join(right, keys=on, join_type=_PYARROW[how])
    assert found.column_names == [*left.column_names, *([] if how in ("semi", "anti") else ["v", "x"])]
    assert rows_of(found) == rows_of(expected)
    assert len(pickle.dumps(task)) < 20_000


async def test_floats_and_narrower_keys_match_as_numbers(lake: str) -> None:
    left = pa.table({"x": pa.array([math.nan, -0.0, 1.5, None], pa.float64()), "w": [0, 1, 2, 3]})
    rows = ds.dataset(lake).to_table(columns=["x"]).column("x").to_pylist()
    async with asyncpq.Session() as session:
        task = await plan_join(session, lake, "x", left.schema, columns=[])
        found = pa.Table.from_batches(await asyncio.to_thread(run, task, left.to_batches()))
        counts = [found.column("w").to_pylist().count(w) for w in range(4)]
        assert counts == [sum(x is not None and x != x for x in rows), rows.count(0.0), rows.count(1.5), 0]
        narrow = pa.table({"id": pa.array([5, 6], pa.int16())})
        task = await plan_join(session, lake, "id", narrow.schema, columns=["v"])
        found = pa.Table.from_batches(await asyncio.to_thread(run, task, narrow.to_batches()))
    assert sorted(found.column("v").to_pylist()) == ["v5", "v6"]


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (pa.timestamp("ms"), [-1, 0, 1_600_000_000_123]),
        (pa.timestamp("ms", "Europe/Berlin"), [-1, 0, 1_600_000_000_123]),
        (pa.timestamp("ns"), [-1, 0, 1_600_000_000_123_456_789]),
        (pa.timestamp("ns", "UTC"), [-1000, 0, 1]),
        (pa.time64("ns"), [0, 1, 86_399_999_999_999]),
        (pa.duration("ns"), [-1, 0, 1]),
        (pa.string_view(), ["", "a", "ab"]),
        (pa.binary_view(), [b"", b"a", b"\xff"]),
        (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "c"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("how", ["inner", "left", "semi", "anti"])
async def test_keys_of_each_type_find_their_rows(
    kind: pa.DataType, values: list[Any], how: Any, tmp_path: Path
) -> None:
    def table(name: str, some: list[Any]) -> pa.Table:
        plain = pa.array(some, pa.int64()).view(kind) if isinstance(values[0], int) else pa.array(some, kind)
        return pa.table({"k": plain, name: range(len(some))})

    pq.write_table(table("v", [*values, None]), tmp_path / "a.parquet")
    parts = [table("w", [values[2], None]), table("w", [values[1], values[2]])]  # of dictionaries that differ
    parts = [part.to_batches()[0] for part in parts]
    async with asyncpq.Session() as session:
        task = await plan_join(session, f"{tmp_path}/", "k", parts[0].schema, how=how)
        found = pa.Table.from_batches(await asyncio.to_thread(run, task, parts))
    assert found.schema.field("k").type == kind
    pairs = found.select(["w", "v"] if how in ("inner", "left") else ["w"]).to_pylist()
    met: list[dict[str, int | None]] = [{"w": 0, "v": 2}, {"w": 0, "v": 1}, {"w": 1, "v": 2}]
    expected: dict[str, list[dict[str, int | None]]] = {
        "inner": met,
        "left": [*met, {"w": 1, "v": None}],
        "semi": [{"w": pair["w"]} for pair in met],
        "anti": [{"w": 1}],
    }
    assert sorted(map(repr, pairs)) == sorted(map(repr, expected[how]))


async def test_versions_that_change_under_the_plan(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(pa.table({"id": [number], "v": [number]}), tmp_path / f"{number}.parquet")
    left = pa.table({"id": [0, 1, 2]})
    async with asyncpq.Session() as session:
        task = await plan_join(session, f"{tmp_path}/", "id", left.schema)
        pq.write_table(pa.table({"id": [9]}), tmp_path / "9.parquet")
        found = await asyncio.to_thread(run, task, left.to_batches())
        assert sorted(pa.Table.from_batches(found).column("v").to_pylist()) == [0, 1, 2]
        pq.write_table(pa.table({"id": [1, 1], "v": [7, 8]}), tmp_path / "1.parquet")
        close_workers()
        with pytest.raises(ObjectChangedError, match=r"1\.parquet") as caught:
            await asyncio.to_thread(run, task, left.to_batches())
    assert "plan_join() again" in str(caught.value)


@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "rows_of_the_catalog"])
async def test_a_table_of_ducklake_is_joined_as_it_was_planned(tmp_path: Path, inlined: int) -> None:
    """Deleted rows match nothing; the rows that the catalog holds are a file in memory, which nothing replaces."""
    left = pa.table({"id": pa.array([1, 2, 3, 7], pa.int32())})
    with Lake(tmp_path, inline_rows=inlined) as lake:
        lake.sql(
            "CREATE TABLE t (id INTEGER, v VARCHAR)",
            "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
            "INSERT INTO t SELECT i, 'many' FROM range(3, 30) r(i)",
            "DELETE FROM t WHERE id IN (2, 3)",
        )
        async with asyncpq.Session() as session:
            task = pickle.loads(pickle.dumps(await plan_join(session, lake.table("t"), "id", left.schema)))
        lake.sql("UPDATE t SET v = 'later'", "ALTER TABLE t RENAME v TO w")
        found = await asyncio.to_thread(run, task, left.to_batches())
    assert rows_of(pa.Table.from_batches(found)) == rows_of(pa.table({"id": [1, 7], "v": ["a", "many"]}))


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"on": "none"}, ColumnNotFoundError, "left side"),
        ({"on": "w"}, ColumnNotFoundError, "w"),
        ({"on": "user"}, SchemaMismatchError, "type int64 on the left and string"),
        ({"on": []}, InvalidOptionError, "on"),
        ({"on": ["id", 1]}, InvalidOptionError, "on=.*: must be a list of names"),
        ({"on": None}, InvalidOptionError, "on=None: must be a list of names"),
        ({"columns": "v"}, InvalidOptionError, "columns='v': must be a list of names"),
        ({"on": "twice"}, AmbiguousColumnError, "several"),
        ({"how": "outer"}, InvalidOptionError, "how"),
        ({"batch_keys": 0}, InvalidOptionError, "batch_keys"),
        ({"column": ["v"]}, InvalidOptionError, "no argument column"),
    ],
    ids=str,
)
async def test_what_cannot_be_is_refused(
    lake: str, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    names = ["id", "user", "w", "twice", "twice"]
    left = pa.schema([(name, pa.int64()) for name in names])
    arguments = {"on": "id", **given}
    async with asyncpq.Session() as session:
        with pytest.raises(error, match=message):
            await plan_join(session, lake, arguments.pop("on"), left, **arguments)


async def test_keys_of_half_floats_are_refused(tmp_path: Path) -> None:
    table = pa.table({"k": pa.array([1.0], pa.float16())})
    pq.write_table(table, tmp_path / "a.parquet")
    async with asyncpq.Session() as session:
        with pytest.raises(SchemaMismatchError, match="halffloat"):
            await plan_join(session, f"{tmp_path}/", "k", table.schema)


async def test_the_left_is_given_by_its_schema(lake: str) -> None:
    async with asyncpq.Session() as session:
        with pytest.raises(UsageError, match="not Table") as caught:
            await plan_join(session, lake, "id", pa.table({"id": [1]}))
        assert caught.value.hint is not None
        assert "table.schema" in caught.value.hint


# -- keys that are known first --------------------------------------------------------------------


async def _join(session: asyncpq.Session, lake: str, name: str) -> DatasetJoin:
    dataset = await session.open_dataset(lake, index=f"{lake[:-1]}-index/")
    scan = await scan_of(dataset, [name, "v"])
    type_ = dataset.schema.field(name).type
    key = JoinKey(name=name, stored=type_, candidates=(0,), place=0, type=type_)
    return DatasetJoin(state=dataset._state, scan=scan, keys=(key,), target=lake)


async def test_files_that_have_the_keys_are_read_once(lake: str, workers: ProcessPoolExecutor) -> None:
    keys = [0, 3, 1500]
    async with asyncpq.Session() as session:
        join = await _join(session, lake, "id")
        found = await join.find([pa.array(keys, pa.int64())])
        assert found is not None
        assert 0 < found.num_files <= len(keys) < found.total == _FILES
        assert found.sampled == found.matched == found.num_files
        read, tasks = found.reader(join.scan), found.tasks(2)
        asking = join.index_estimate(len(keys), 50.0, 2)
        assert asking is not None
        assert asking.num_files == _FILES
        assert asking.seconds > 0
        matching = await found.matching()
        assert matching.files == found.files
        assert found.seconds(3, 1) > found.seconds(3, 2) > 0
    batches = [await asyncio.wrap_future(workers.submit(_read, read, task)) for task in reversed(tasks)]
    rows = pa.Table.from_batches([batch for some in batches for batch in some])
    assert sorted(rows.filter(pa.compute.is_in(rows["id"], pa.array(keys)))["v"].to_pylist()) == ["v0", "v1500", "v3"]


def _read(read: Any, task: bytes) -> list[pa.RecordBatch]:
    return list(read(task))


async def test_bounds_of_too_many_keys_rule_out_files(tmp_path: Path) -> None:
    for number in range(4):
        pq.write_table(pa.table({"id": range(number * 10, number * 10 + 10)}), tmp_path / f"{number}.parquet")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(f"{tmp_path}/", partitioning=None)
        key = JoinKey(name="id", stored=pa.int64(), candidates=(0,), place=0, type=pa.int64())
        join = DatasetJoin(
            state=dataset._state, scan=await scan_of(dataset, ["id"]), keys=(key,), target=f"{tmp_path}/"
        )
        found = await join.find(None, [pa.array([12, 25], pa.int64())])
        assert found is not None
        assert [file.url[-9:] for file in (await found.matching()).files] == ["1.parquet", "2.parquet"]
        assert await join.find(None) is None


async def test_many_files_are_searched_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The search parses the statistics of a large Delta table."""
    pq.write_table(pa.table({"id": range(10)}), tmp_path / "0.parquet")
    searched_in: list[threading.Thread] = []

    def search(self: FileStatistics, files: Any, *_: object) -> Callable[[], Sequence[int]]:
        def found() -> Sequence[int]:
            searched_in.append(threading.current_thread())
            return range(len(files))

        return found

    monkeypatch.setattr(FileStatistics, "search", search)
    monkeypatch.setattr(join_planning, "FILES_A_STEP", 1 / INLINE_STEPS / 2)
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(f"{tmp_path}/")
        key = JoinKey(name="id", stored=pa.int64(), candidates=(0,), place=0, type=pa.int64())
        scan = await scan_of(dataset, ["id"])
        join = DatasetJoin(state=dataset._state, scan=scan, keys=(key,), target=f"{tmp_path}/")
        assert await join.find([pa.array([3], pa.int64())]) is not None
    assert searched_in[0] is not threading.main_thread()


async def test_the_cost_of_a_key_is_measured(lake: str) -> None:
    async with asyncpq.Session() as session:
        join = await (await (await _join(session, lake, "id")).pin()).measured(session)
        assert join.cost is not None
        assert join.cost.is_little
        assert join.cost.num_files == _FILES
        few, many = (join.estimate(count, RequestOptions()) for count in (1, 10**6))
    assert few.scan_s == many.scan_s
    assert few.seconds < many.seconds
    assert "keys(id)" in str(join.index_table)


# -- files and estimates --------------------------------------------------------------------------


def _file(number: int, etag: str | None = '"a"') -> DataFile:
    return DataFile(url=f"s3://b/{number}.parquet", validator=Validator(size=10, etag=etag), size=10)


def _found(files: list[DataFile]) -> FoundFiles:
    return FoundFiles(
        join=SimpleNamespace(),  # type: ignore[arg-type]  # not asked
        predicate=KeyPredicate(col("id") == 1),
        files=tuple(files),
        total=len(files),
        sampled=0,
        matched=0,
        matched_bytes=0,
        open_s=0.001,
        prices=Prices.initial(RequestOptions(), LimitOptions()),
    )


@pytest.mark.parametrize(("count", "tasks"), [(1, 4), (4, 4), (9, 4), (100, 7)])
def test_each_file_goes_to_one_task(count: int, tasks: int) -> None:
    files = [_file(number) for number in range(count)]
    packed = [pickle.loads(task) for task in _found(files).tasks(tasks)]
    assert len(packed) == min(count, tasks)
    assert [file.url for task in packed for file in task] == [file.url for file in files]
    sizes = [len(task) for task in packed]
    assert max(sizes) - min(sizes) <= 1


def test_shipped_files_are_pinned_and_keep_their_rows() -> None:
    async def known(operation: Any) -> None:
        """Tasks cannot call this."""

    entry = IndexEntry(access=AccessPlan.rows([1, 5]), validator=Validator(size=10, etag='"a"'), known=known)
    ((shipped,),) = [pickle.loads(task) for task in _found([replace(_file(0), entry=entry)]).tasks(3)]
    assert shipped.pinned
    assert shipped.entry == IndexEntry(access=entry.access, validator=entry.validator)


def test_what_cannot_be_shipped() -> None:
    def lake(*, skips: bool = False, view: View = View.LISTED) -> Any:
        return SimpleNamespace(skips=skips, source=SimpleNamespace(view=view))

    assert can_ship(lake(), [_file(0)])
    assert not can_ship(lake(), [_file(0), _file(1, etag=None)])
    assert not can_ship(lake(), [replace(_file(0), validator=None)])
    assert not can_ship(lake(skips=True), [_file(0)])
    assert not can_ship(lake(view=View.TABLE), [_file(0)])


def test_estimates_from_a_sample() -> None:
    found = replace(
        _found([_file(number) for number in range(40)]), total=50, sampled=8, matched=2, matched_bytes=16, open_s=0.001
    )
    assert (found.share, found.num_bytes, found.most_bytes, found.total_bytes) == (0.25, 80, 80, 400)
    none = replace(found, matched=0, matched_bytes=0)
    assert (none.share, none.num_bytes, none.most_bytes) == (0.0, 0, 20)
