"""Which folders conditions on partition columns leave, and whether it takes fewer requests to list these alone."""

from __future__ import annotations

import pyarrow as pa
import pytest

from asyncpq import col
from asyncpq.datasets import relisting
from asyncpq.datasets.model import DataFile
from asyncpq.datasets.partitioning import Partitioning
from asyncpq.datasets.relisting import ListedFolders, conditions, parent
from asyncpq.expressions import Expression, parse_where
from asyncpq.scan.request import ScanRequest

ROOT = "s3://b/lake/"
TYPES = {"year": pa.int32(), "day": pa.string()}
HIVE = Partitioning(types=TYPES)
SCHEMA = pa.schema(list(TYPES.items()))


def folders(*paths: str, partitioning: Partitioning = HIVE) -> ListedFolders:
    return ListedFolders([DataFile(url=ROOT + path) for path in paths], ROOT, ROOT, partitioning)


LAKE = folders(
    "year=2023/day=a/0", "year=2023/day=b/1", "year=2024/day=a/2", "year=2024/3", "year=x/day=a/4", "other/5", "6"
)


def left(where: Expression, lake: ListedFolders = LAKE) -> list[int]:
    """The positions of the files that a listing of the folders left has."""
    return lake.positions(lake.left_by(where, SCHEMA)())


def test_the_folders_of_files_and_those_around_them() -> None:
    assert LAKE.num_folders == 8  # not the top, whose files every listing has
    assert parent("s3://b/lake/year=2023/day=a/") == "s3://b/lake/year=2023/"


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (col("year") == 2023, [0, 1, 4, 5, 6]),
        (col("year") > 2023, [2, 3, 4, 5, 6]),
        (col("day") == "a", [0, 2, 3, 4, 5, 6]),
        ((col("year") == 2024) & (col("day") == "b"), [3, 4, 5, 6]),
        (col("year") < 0, [4, 5, 6]),
    ],
    ids=str,
)
def test_a_folder_is_left_out_only_if_its_own_values_say_so(where: Expression, expected: list[int]) -> None:
    """A value that is not of its column's type, or is missing, leaves the folder: the read then raises the error, or
    reads the file."""
    assert left(where) == expected


def test_folders_that_are_new_are_looked_at_when_they_are_listed() -> None:
    wants = LAKE.left_by(col("year") == 2023, SCHEMA)()
    assert wants(ROOT + "year=2023/day=new/")
    assert not wants(ROOT + "year=2025/")
    assert not wants.covers(ROOT + "year=2025/day=a/")
    assert wants(ROOT + "year=odd/")
    assert wants(ROOT + "unknown/")
    assert wants.covers(ROOT)


def test_a_folder_below_one_that_is_left_out_is_not_listed() -> None:
    """Although the predicate leaves the folder by itself: nothing asks for it."""
    lake = folders("year=2023/plain/0", "year=2024/plain/1")
    assert left(col("year") == 2024, lake) == [1]


def test_folders_by_position() -> None:
    lake = folders("2023/a/0", "2024/a/1", "2024/b/2", partitioning=Partitioning(("year", "day"), TYPES))
    assert left((col("year") == 2024) & (col("day") == "a"), lake) == [1]


def test_listing_some_folders_is_worth_it_in_a_large_lake_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relisting, "_PAGE", 4)
    small, lake = (
        folders(*(f"year={year}/{number}" for year in range(years) for number in range(4))) for years in (2, 20)
    )
    assert not small.save_requests(small.left_by(col("year") == 1, SCHEMA)(), 4)
    assert lake.save_requests(lake.left_by(col("year") == 1, SCHEMA)(), 4)
    assert not lake.save_requests(lake.left_by(col("year") != 1, SCHEMA)(), 76)
    scattered = lake.left_by(col("year").is_in(list(range(0, 20, 2))), SCHEMA)()
    assert not lake.save_requests(scattered, 40)


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("year = 2024 AND id = 3", "year == 2024"),
        ("(year = 2024 AND id = 3) OR (year = 2023 AND id = 4)", "(year == 2024) or (year == 2023)"),
        ("year = 2024 OR id = 3", None),
        ("id = 3", None),
    ],
)
def test_what_a_predicate_says_of_partition_columns(where: str, expected: str | None) -> None:
    said = conditions(ScanRequest(where=parse_where(where)), HIVE)
    assert (None if said is None else str(said)) == expected


def test_nothing_is_said_without_a_predicate_or_partitions() -> None:
    assert conditions(ScanRequest(), HIVE) is None
    assert conditions(ScanRequest(where=col("year") == 1), None) is None
