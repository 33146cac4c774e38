"""Files are ruled out by partition values, a table's bounds and the footers of earlier reads."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.caching.memory import MemoryCache
from asyncpq.datasets import file_statistics
from asyncpq.datasets.dataset_files import FILES_A_STEP
from asyncpq.datasets.file_statistics import FileStatistics, Learnt, kind_of
from asyncpq.datasets.model import ColumnBounds, DataFile
from asyncpq.expressions import Expression
from asyncpq.objects.runtime import INLINE_STEPS
from asyncpq.pruning.literals import Domain
from asyncpq.pruning.zone_maps import Zones
from asyncpq.storage.base import Validator

SCHEMA = pa.schema([pa.field("id", pa.int64()), pa.field("s", pa.struct([pa.field("x", pa.int32())]))])


def bounded(low: int | None, high: int | None, **known: Any) -> ColumnBounds:
    return ColumnBounds(min=low, max=high, may_be_nan=False, **known)


FILES = [
    DataFile(url="a", partition={"id": 1}),
    DataFile(url="b", bounds={"id": bounded(2, 5)}),
    DataFile(url="c", bounds={"id": bounded(None, None, all_null=True)}),
    DataFile(url="d"),
]


@pytest.mark.parametrize(
    ("where", "expected", "untrusted"),
    [
        (col("id") == 1, [0, 3], [0, 1, 2, 3]),
        (col("id") > 4, [1, 3], [1, 2, 3]),
        (col("id").is_null(), [1, 2, 3], [1, 2, 3]),
        (col("s.x") == 1, [0, 1, 2, 3], [0, 1, 2, 3]),
    ],
)
def test_bounds_count_only_where_they_are_trusted(where: Expression, expected: list[int], untrusted: list[int]) -> None:
    assert FileStatistics().search(FILES, where, SCHEMA)() == expected
    assert FileStatistics(trust_statistics=False).search(FILES, where, SCHEMA)() == untrusted


def test_requests_that_name_files() -> None:
    assert FileStatistics().search(FILES, None, SCHEMA, {"b"})() == [1]


async def test_a_read_without_rows_opens_no_file(tmp_path: Path) -> None:
    for number in range(2):
        pq.write_table(pa.table({"id": [number]}), tmp_path / f"{number}.parquet")
    async with asyncpq.Session() as session, await session.open_dataset(f"{tmp_path}/") as dataset:
        with asyncpq.measure() as cost:
            assert (await dataset.read(limit=0)).num_rows == 0
    assert (cost.files_total, cost.files_ruled_out, cost.files_opened) == (2, 2, 0)


async def test_footers_of_earlier_reads_rule_files_out_unopened(tmp_path: Path) -> None:
    for number in range(3):
        ids = range(10 * number, 10 * number + 10)
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), tmp_path / f"{number}.parquet")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        opened = []
        for key in (25, 25, 7):
            with asyncpq.measure() as cost:
                assert (await dataset.lookup({"id": key}))["id"].to_pylist() == [key]
            opened.append(cost.files_opened)
        assert opened == [3, 1, 1]
        pq.write_table(pa.table({"id": pa.array([25] * 3, pa.int64())}), tmp_path / "0.parquet")
        assert await dataset.count(col("id") == 25) == 4  # a replaced file is opened again


@pytest.mark.parametrize(
    ("type_", "domain"),
    [
        (pa.bool_(), Domain.BOOLEAN),
        (pa.uint8(), Domain.INTEGER),
        (pa.float32(), Domain.FLOAT32),
        (pa.float64(), Domain.FLOAT),
        (pa.float16(), Domain.FLOAT16),
        (pa.date32(), Domain.DATE),
        (pa.binary(3), Domain.FIXED),
        (pa.string(), Domain.BYTES),
        (pa.dictionary(pa.int8(), pa.large_string()), Domain.BYTES),
        (pa.decimal128(5, 2), Domain.DECIMAL),
        (pa.time32("ms"), Domain.TIME),
        (pa.timestamp("us", "UTC"), Domain.TIMESTAMP),
        (pa.list_(pa.int8()), Domain.OTHER),
    ],
)
def test_how_values_of_a_type_compare(type_: pa.DataType, domain: Domain) -> None:
    kind = kind_of(type_)
    assert kind.domain is domain
    assert (kind.scale, bool(kind.zoned)) == (2 if domain is Domain.DECIMAL else 0, domain is Domain.TIMESTAMP)


def learnt(size: int, low: int, high: int) -> Learnt:
    return Learnt(Validator(size=size, etag=f'"{size}"'), low, high, 0, 0, False)


def test_statistics_are_remembered_by_column_and_version() -> None:
    memory = MemoryCache(1 << 20)
    files = [DataFile(url=url, validator=Validator(size=size, etag=f'"{size}"')) for url, size in (("a", 1), ("b", 2))]
    first = FileStatistics()
    first.add({"id": {"a": learnt(1, 0, 9), "b": learnt(3, 0, 9)}}, 1 << 20)
    assert first.search(files, col("id") == 20, SCHEMA)() == [1]  # the statistics of b are of another version
    first.remember(memory, "lake")
    for key, where, expected in (
        ("lake", col("id") == 20, [1]),
        ("lake", col("id") == 5, [0, 1]),
        ("lake", col("s.x") == 5, [0, 1]),
        ("other", col("id") == 20, [0, 1]),
    ):
        later = FileStatistics()
        later.recall(memory, key, where, SCHEMA)
        assert later.search(files, where, SCHEMA)() == expected


def test_statistics_that_are_larger_than_memory_are_not_kept() -> None:
    memory = MemoryCache(4096)
    statistics = FileStatistics()
    statistics.add({"id": {str(number): learnt(1, 0, 9) for number in range(4)}}, 4096)
    statistics.add({"id": {str(number): learnt(1, 0, 9) for number in range(100)}}, 4096)
    assert len(statistics.learnt["id"]) == 4
    statistics.remember(memory, "lake")
    assert len(memory) == 1
    statistics.add({"id": {str(number): learnt(1, 0, 9) for number in range(100)}}, 1 << 20)
    statistics.remember(memory, "lake")
    assert len(memory) == 0


def test_what_is_known_of_all_files_is_brought_together_when_it_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a thread does it, and once for all reads of the same files."""
    made: list[str] = []
    zones = file_statistics._zones

    def noted(files: Any, name: str, *others: Any) -> Any:
        made.append(name)
        return zones(files, name, *others)

    monkeypatch.setattr(file_statistics, "_zones", noted)
    files = [DataFile(url=str(day), partition={"day": day}) for day in range(20_000)]
    statistics, schema = FileStatistics(), pa.schema({"day": pa.int64()})
    searches = [statistics.searching(files, where, schema) for where in (col("day") == 3, col("day") > 19_990)]
    assert made == []
    assert [search().num_rows for search in searches] == [1, 9]
    assert made == ["day"]
    assert len(files) // FILES_A_STEP > INLINE_STEPS


async def test_the_predicate_is_not_simplified_again_for_each_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        pq.write_table(pa.table({"id": [number, number + 10]}), tmp_path / f"{number}.parquet")
    again: list[Expression] = []
    monkeypatch.setattr(file_statistics, "simplify", again.append)
    async with asyncpq.Session() as session, await session.open_dataset(f"{tmp_path}/") as dataset:
        where = ~~((col("id") > 1) & (col("id") < 12))
        assert (await dataset.read(where=where))["id"].to_pylist() == [10, 11, 2, 3]
    assert again == []


async def test_files_that_are_ruled_out_keep_no_zones(tmp_path: Path) -> None:
    for number in range(20):
        pq.write_table(pa.table({"id": range(10 * number, 10 * number + 10)}), tmp_path / f"{number:02}.parquet")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path))
        before = sum(isinstance(value, Zones) for value in gc.get_objects())
        assert (await dataset.lookup({"id": 55})).num_rows == 1
        assert dataset.metrics.files_opened == 20
        assert sum(isinstance(value, Zones) for value in gc.get_objects()) - before < 10


class Watched(dict[str, Any]):
    """A dict that calls ``seen`` after each change, and ``found`` once, after an item was looked up, as if another
    thread had its turn then."""

    seen: Callable[[], object] = staticmethod(lambda: None)
    found: Callable[[], object] = staticmethod(lambda: None)

    def __setitem__(self, key: str, value: Any) -> None:
        super().__setitem__(key, value)
        self.seen()

    def get(self, key: str, default: Any = None) -> Any:
        value = super().get(key, default)
        found, self.found = self.found, lambda: None
        found()
        return value


def test_numbers_of_rows_are_those_of_their_version_in_other_threads() -> None:
    def counted(version: Validator, num_rows: int) -> Any:
        metadata = SimpleNamespace(num_rows=num_rows)
        versioned = SimpleNamespace(validator=version, metadata=metadata, can_validate=True)
        return SimpleNamespace(file=DataFile(url="a"), version=versioned)

    old, new = Validator(9, etag='"1"'), Validator(9, etag='"2"')
    known = FileStatistics()
    known._num_rows = numbers = Watched()
    seen: list[tuple[int | None, int | None]] = []

    def look() -> None:
        seen.append(
            (known.num_rows_of(DataFile(url="a", validator=old)), known.num_rows_of(DataFile(url="a", validator=new)))
        )

    numbers.seen = look
    known.learn_num_rows(counted(old, 10))
    known.learn_num_rows(counted(new, 20))
    assert {pair for pair in seen if pair != (None, None)} == {(10, None), (None, 20)}
    numbers.found = lambda: known.learn_num_rows(counted(old, 10))
    assert known.num_rows_of(DataFile(url="a", validator=new)) in (None, 20)
    look()
    assert seen[-1] == (10, None)
