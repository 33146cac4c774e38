"""A dataset's files and columns as an engine has them: by name, of the file's types; and what files are asked by."""

from __future__ import annotations

import datetime as dt
import pickle
import random
from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import DataFile, col
from asyncpq.datasets.providers import FileSet, GivenFiles
from asyncpq.decoding.filter import compile_filter
from asyncpq.distributed import (
    EngineDataset,
    EngineFiles,
    EngineRules,
    EngineScan,
    FooterFacts,
    WorkerOptions,
    plan_tasks,
)
from asyncpq.distributed.engine_scans import condition_on, own_columns
from asyncpq.errors import AmbiguousColumnError
from asyncpq.events import Operation
from asyncpq.expressions import Comparison, Expression, In, IsNull, KeyIn, Not
from asyncpq.expressions.scalars import as_scalars
from asyncpq.scan.request import ScanRequest


class _InUtc(EngineRules):
    @property
    def zoneless_is_utc(self) -> bool:
        return True


RULES = _InUtc(case_sensitive=False)
_NOON = dt.datetime(2024, 5, 1, 12)
_UTC = pa.timestamp("us", "UTC")
#: A lake's types, and those that files have instead; whether these compare as the lake's do.
TYPES: list[tuple[pa.DataType, pa.DataType, bool]] = [
    (pa.int64(), pa.int32(), True),
    (pa.int64(), pa.uint32(), True),
    (pa.int16(), pa.int32(), False),
    (pa.int32(), pa.uint32(), False),
    (pa.float64(), pa.float32(), True),
    (pa.float32(), pa.float64(), False),
    (pa.float64(), pa.int32(), True),
    (pa.float64(), pa.int64(), False),
    (pa.decimal128(20, 2), pa.decimal128(5, 2), True),
    (pa.decimal128(20, 2), pa.decimal128(20, 3), False),
    (pa.decimal128(20, 2), pa.int32(), True),
    (pa.decimal128(11, 2), pa.int32(), False),
    (_UTC, pa.timestamp("us"), True),
    (pa.timestamp("us"), _UTC, True),
    (_UTC, pa.timestamp("ms", "UTC"), True),
    (_UTC, pa.timestamp("ns"), False),
    (pa.timestamp("us"), pa.date32(), False),
    (pa.string(), pa.large_string(), True),
    (pa.string(), pa.binary(), False),
]


def values(kind: pa.DataType) -> list[Any]:
    if pa.types.is_timestamp(kind):
        return [(_NOON + dt.timedelta(hours=at)).replace(tzinfo=None if kind.tz is None else dt.UTC) for at in range(4)]
    if pa.types.is_date(kind):
        return [_NOON.date() + dt.timedelta(days=at) for at in range(4)]
    if kind in (pa.string(), pa.large_string()):
        return ["a", "b", "c", "d"]
    return [b"a", b"b", b"c", b"d"] if kind == pa.binary() else [0, 1, 2, 3]


def atom(rng: random.Random, kind: pa.DataType) -> Expression:
    literals = as_scalars(rng.sample(values(kind), k=2))
    op: Any = rng.choice(["==", "!=", "<", "<=", ">", ">="])
    found: Expression = rng.choice(
        [Comparison("x", op, literals[0]), In("x", literals), KeyIn("x", literals), IsNull("x")]
    )
    return rng.choice([found, Not(found)])


def condition(rng: random.Random, kind: pa.DataType, depth: int = 3) -> Expression:
    if not depth or rng.random() < 0.3:
        return rng.choice([atom(rng, kind), Comparison("y", ">", rng.randrange(3))])
    one, other = condition(rng, kind, depth - 1), condition(rng, kind, depth - 1)
    found: Expression = rng.choice([one & other, one | other, Not(one & other)])
    return found


@pytest.mark.parametrize(("asked", "have", "compares"), TYPES, ids=str)
def test_no_row_is_lost(asked: pa.DataType, have: pa.DataType, compares: bool) -> None:
    rng = random.Random(f"{asked}{have}")
    lake, own = (pa.schema([("x", kind), ("y", pa.int64())]) for kind in (asked, have))
    numbers = pa.array([0, 1, 2, 3, 0])
    mine = pa.array([*values(asked), None], asked)
    theirs = pa.array([*values(have), None], have)
    used = 0
    for _ in range(150):
        where = condition(rng, asked)
        found = condition_on(RULES, where, lake, own)
        if found is None:
            continue
        wanted = compile_filter(where, lake).mask({"x": mine, "y": numbers}, 5).to_pylist()
        kept = compile_filter(found, own).mask({"x": theirs, "y": numbers}, 5).to_pylist()
        assert all(keep for want, keep in zip(wanted, kept, strict=True) if want), (where, found)
        used += "x" in str(found)
    assert bool(used) is compares


def test_timestamps_without_a_zone() -> None:
    lake, own = (pa.schema([("x", kind)]) for kind in (_UTC, pa.timestamp("us")))
    where = Comparison("x", ">", values(_UTC)[0])
    assert condition_on(RULES, where, lake, own) == Comparison("x", ">", values(pa.timestamp("us"))[0])
    assert condition_on(EngineRules(), where, lake, own) is None


def test_fields_by_name() -> None:
    inner = pa.struct([("a", pa.int64()), ("b", pa.string())])
    lake = pa.schema([("s", inner), ("l", pa.list_(inner)), ("m", pa.map_(pa.string(), inner)), ("p", pa.int32())])
    theirs = pa.struct([("more", pa.int8()), ("A", pa.int32())])
    names, types = ["P", "L", "s", "m"], [pa.int32(), pa.large_list(theirs), theirs, pa.map_(pa.string(), theirs)]
    fields, ambiguous = own_columns(RULES, lake, names, types, {"p": 1})
    assert fields is not None
    assert not ambiguous
    seen = pa.struct([("a", pa.int32()), ("b", pa.string())])
    assert [one.type for one in fields] == [seen, pa.large_list(seen), pa.map_(pa.string(), seen), pa.int32()]
    assert [one.names for one in fields] == [("s",), ("L",), ("m",), ()]
    assert [child.names for child in fields[0].children] == [("A",), ()]
    assert own_columns(RULES, lake, lake.names, lake.types, {}) == (None, {})
    exact, _ = own_columns(EngineRules(), lake, names, types, {})
    assert exact is not None
    assert [child.names for child in exact[0].children] == [(), ()]
    assert exact[1].names == ()


def test_names_that_mean_two_fields() -> None:
    lake = pa.schema([("a", pa.int64()), ("s", pa.struct([("t", pa.struct([("x", pa.int64())]))]))])
    twice = pa.struct([("t", pa.struct([("x", pa.int64()), ("X", pa.int64())]))])
    fields, ambiguous = own_columns(RULES, lake, ["a", "A", "s"], [pa.int64(), pa.int64(), twice], {})
    assert fields is None
    assert {name: error.column for name, error in ambiguous.items()} == {"a": "a", "s": "s.t.x"}
    assert all(isinstance(error, AmbiguousColumnError) for error in ambiguous.values())


@dataclass(frozen=True, kw_only=True)
class _Converting(EngineScan):
    """A scan of an engine that casts, as docs/how-to/own-engine.md has one."""

    def converter(
        self, schema: pa.Schema, of_file: Any, names: Mapping[str, str]
    ) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        assert self.output is not None
        wanted = self.output

        def converted(batch: pa.RecordBatch) -> pa.RecordBatch:
            own = {self.rules.key(name): batch.column(at) for at, name in enumerate(batch.schema.names)}
            columns = [own[field.name].cast(field.type) for field in wanted]
            return pa.RecordBatch.from_arrays(columns, schema=wanted)

        return converted


def _read(task: bytes) -> pa.Table:
    table: pa.Table = pickle.loads(task).to_table()
    return table


async def test_tasks_of_an_engine_give_tables_of_its_types(tmp_path: Path, workers: ProcessPoolExecutor) -> None:
    pq.write_table(pa.table({"id": pa.array(range(500), pa.int64()), "name": ["a"] * 500}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"ID": pa.array(range(500, 900), pa.int32())}), tmp_path / "b.parquet")
    output = pa.schema([("id", pa.decimal128(20)), ("name", pa.large_string())])
    columns: Any = {"schema": pa.schema([("id", pa.int64()), ("name", pa.string())]), "schema_policy": "permissive"}
    async with asyncpq.Session() as session, await session.open_dataset(tmp_path, **columns) as lake:
        state = EngineDataset.of(lake)
        for where, ids in ((None, range(900)), (col("id") == 700, [700]), (col("id") > 900, [])):
            scan = _Converting.of(
                state, columns=("id", "name"), where=where, output=output, rules=RULES, settings=WorkerOptions()
            )
            tasks = await plan_tasks(state, scan, parallelism=2)
            assert tasks.schema == output
            tables = list(workers.map(_read, [pickle.dumps(task) for task in tasks]))
            assert all(table.schema == output for table in tables)
            assert [int(row) for table in tables for row in table.column("id").to_pylist()] == [*ids]


class _Named(EngineRules):
    """Tells the planner who wrote the files."""

    def facts(self, footer: FooterFacts) -> frozenset[str]:
        return frozenset({footer.created_by.partition(" ")[0]})


async def test_the_planner_opens_all_files_for_what_an_engine_must_know_of_them(tmp_path: Path) -> None:
    for name in "abc":
        pq.write_table(pa.table({"id": [1]}), tmp_path / f"{name}.parquet")
    async with asyncpq.Session() as session, await session.open_dataset(tmp_path) as lake:
        state = EngineDataset.of(lake)
        scan = EngineScan.of(state, columns=("id",), rules=_Named(), settings=WorkerOptions())
        for opens_all, unopened, writers in ((False, 3, ""), (True, 0, "parquet-cpp-arrow")):
            tasks = await plan_tasks(state, scan, opens_all=opens_all)
            assert (tasks.num_files, tasks.unopened, "".join(tasks.facts)) == (3, unopened, writers)


_FILES = [DataFile(url=f"s3://lake/p={at}/x.parquet", size=at, partition={"p": str(at)}) for at in range(3)]
_RULES = EngineRules(case_sensitive=False)


class _Recorded(GivenFiles):
    """Files that remember the conditions by which they were asked."""

    def __init__(self) -> None:
        super().__init__(_FILES)
        self.asked: list[str] = []

    async def files(self, ask: ScanRequest, operation: Operation, **options: Any) -> FileSet:
        self.asked.append(str(ask.where))
        return await super().files(ask, operation, **options)


_NO_OPERATION: Any = None


async def test_files_and_values_of_an_engine() -> None:
    source = _Recorded()
    files = EngineFiles(
        source, _RULES, reads=lambda file: file.size != 0, values=lambda file: {"p": file.size}, retyped=["p"]
    )
    request = ScanRequest(where=(col("p") == 5) & (col("a") == 1))
    found = await files.files(request, _NO_OPERATION)
    assert [file.partition for file in found.files] == [{"p": 1}, {"p": 2}]
    assert source.asked == ["a == 1"]  # its own values of p are texts
    assert files.known is None
    async for some in files.sets(request, _NO_OPERATION, most_files=1):
        assert some.files == found.files


async def test_an_index_gets_only_what_its_columns_can_evaluate() -> None:
    source = _Recorded()
    schemas = pa.schema([("a", pa.int64()), ("b", pa.int64())]), pa.schema([("a", pa.int32()), ("b", pa.string())])
    files = EngineFiles(source, _RULES, schemas=schemas)
    await files.files(ScanRequest(where=(col("a") == 1) & (col("b") == 1)), _NO_OPERATION)
    assert source.asked == ["a == 1"]
    assert files.index is None


async def test_a_dataset_of_an_engine(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(tmp_path)
        made = EngineDataset.of(dataset, skips_missing=True)
        assert (made.skips_missing, made.unifier, made.url) == (True, None, dataset.url)
        operation = made.runtime.operation("files", made.url)
        assert [[file.url for file in files] async for files in made.files(operation)] == [await dataset.files()]
        made.source = GivenFiles(_FILES)
        assert [len(files) async for files in made.files(operation)] == [3]


@pytest.mark.parametrize(
    ("target", "folder"),
    [
        ("s3://b/lake", "s3://b/lake/"),
        ("s3://b/lake/", "s3://b/lake/"),
        ("s3://b/*.parquet", None),
        (["s3://b/a"], None),
    ],
)
def test_folders(target: object, folder: str | None) -> None:
    assert EngineDataset.folder_of(target) == folder
