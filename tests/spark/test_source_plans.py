"""Plans of the source, called as PySpark calls them, without Spark."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import LongType, StructField, StructType

from asyncpq.distributed import packing
from asyncpq.distributed import worker_sessions as sessions
from asyncpq.errors import InvalidOptionError, ObjectNotFoundError, SchemaMismatchError, TransportError
from asyncpq.spark.source_options import predicate_option
from tests.spark import source_calls
from tests.spark.source_lake import ROWS, lake_table, write_lake

ID = StructType([StructField("id", LongType())])


@pytest.fixture(autouse=True)
def _sessions() -> Iterator[None]:
    yield
    sessions.close_workers()


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_lake(tmp_path_factory.mktemp("plans"))


def _ids(lake: str, **options: str) -> list[int]:
    found: list[int] = source_calls.read_table(source_calls.source(path=lake, **options), ID).column("id").to_pylist()
    return sorted(found)


def test_planned_in_one_process_and_read_in_others(lake: str) -> None:
    assert _ids(lake) == list(range(ROWS))
    assert _ids(lake, splitBytes=str(1 << 16)) == list(range(ROWS))


@pytest.mark.parametrize(
    ("options", "wanted", "most"),
    [
        ({"predicate": predicate_option([("id", "==", 777)])}, [777], 1),
        ({"where": "ID = 777"}, [777], 1),
        ({"where": "Name = 'name-050' AND x < 190"}, [1500, 1501, 1519], 30),
        (
            {"predicate": predicate_option([[("id", "<", 5)], [("part", "==", 2)]])},
            [*range(5), *range(2000, 3000)],
            1050,
        ),
        ({"where": "kind = 'b' and part in (0)"}, range(500, 1000), 500),
        ({"where": "id % 1000 = 7"}, [7, 1007, 2007], ROWS),
        ({"where": "id = 5 and at < timestamp '2000-01-01 00:00:00'"}, [5], 1),
        # whose time zone that is, the source knows only if it is told
        ({"where": "at = timestamp '1970-01-01 00:05:00'"}, [5], ROWS),
        ({"where": "at = timestamp '1970-01-01 00:05:00'", "sessionTimeZone": "UTC"}, [5], 1),
    ],
    ids=str,
)
def test_what_is_left_out(lake: str, options: dict[str, str], wanted: list[int], most: int) -> None:
    found = _ids(lake, **options)
    assert set(wanted) <= set(found)
    assert len(found) <= most


def test_without_the_zone_no_time_without_one_leaves_out_anything(lake: str) -> None:
    assert len(_ids(lake, where="at = timestamp '1970-01-01 00:05:00'")) == ROWS


def test_options_of_streams_are_refused_when_it_is_none(lake: str) -> None:
    source = source_calls.source(path=lake, columns="id", maxFilesPerTrigger="5")
    assert source.schema() == ID
    assert source.streamReader(ID) is not None
    with pytest.raises(InvalidOptionError, match="readStream"):
        source.reader(ID)


def test_an_empty_plan_has_a_task_that_gives_nothing(lake: str) -> None:
    source = source_calls.source(path=lake, where="id < 0")
    reader = source.reader(ID)
    task = source_calls.pickled(reader)
    assert reader.partitions() == []
    there = source_calls.again(reader)
    assert list(there.read(InputPartition(None))) == []
    assert source_calls.rows_of(task, [], ID).num_rows == 0


def test_what_planning_raises_is_raised_by_partitions(tmp_path: Path) -> None:
    # PySpark takes an error in pickling for one of pickling, and planning is done there.
    reader = source_calls.source(path=str(tmp_path / "nothing")).reader(ID)
    source_calls.pickled(reader)
    with pytest.raises(ObjectNotFoundError, match="nothing"):
        reader.partitions()


def test_a_plan_that_comes_after_the_reader_was_sent_is_of_no_use(lake: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Its tasks would have nothing to read by, and give no rows.
    reader = source_calls.source(path=lake).reader(ID)
    with monkeypatch.context() as patch:
        patch.setattr("asyncpq.spark.data_source.run_on_worker", _fail)
        source_calls.pickled(reader)
    with pytest.raises(TransportError):
        reader.partitions()


def _fail(*_: object) -> None:
    raise TransportError("the network is down")


def test_plans_that_are_too_large_lie_in_the_work_folder(
    lake: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packing, "MOST_SENT_BYTES", 1000)
    assert _ids(lake, splitBytes=str(1 << 16)) == list(range(ROWS))
    assert list((Path(lake) / "_asyncpq_plans" / "plans").rglob("*.splits"))  # below the lake, where no reader looks
    assert _ids(lake) == list(range(ROWS))
    work = tmp_path / "work"
    work.mkdir()
    assert _ids(lake, splitBytes=str(1 << 16), workFolder=str(work)) == list(range(ROWS))
    assert list(work.rglob("*.splits"))


def test_tasks_are_told_little(lake: str) -> None:
    reader = source_calls.source(path=lake, columns="id", splitBytes=str(1 << 16)).reader(ID)
    task = source_calls.pickled(reader)
    assert len(task) < 32 << 10
    found = reader.partitions()
    assert len(found) > 1
    assert all(len(source_calls._pickles.dumps(partition)) < 66 << 10 for partition in found)


def test_not_null(lake: str) -> None:
    table = source_calls.read_table(
        source_calls.source(path=lake), StructType([StructField("id", LongType(), nullable=False)])
    )
    assert table.num_rows == ROWS
    assert not table.schema.field("id").nullable
    lacking = StructType([StructField("lacking", LongType(), nullable=False)])
    with pytest.raises(SchemaMismatchError, match=r"NOT NULL.*'lacking'"):
        source_calls.read_table(source_calls.source(path=lake), lacking)


def test_another_schema_than_the_files_reads_what_there_is(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": pa.array([1, None], pa.int32())}), tmp_path / "a.parquet")
    schema = StructType([StructField("b", LongType()), StructField("A", LongType())])
    table = source_calls.read_table(source_calls.source(path=str(tmp_path), where="a = 1"), schema)
    assert {"b": None, "A": 1} in table.to_pylist()


def test_an_index_changes_no_rows_unless_asked_to(tmp_path: Path) -> None:
    import asyncpq.blocking
    from asyncpq.indexing import Keys

    lake = write_lake(tmp_path / "lake")
    with asyncpq.blocking.Session() as session:
        session.build_index(lake, [Keys("id")])
    new = tmp_path / "lake" / "part=0" / "Kind=a" / "new.parquet"
    pq.write_table(lake_table(ROWS, 10), new)
    assert _ids(lake, where="id = 777") == [777]
    for options in ({}, {"view": "listed"}, {"index": "false"}):
        assert len(_ids(lake, **options)) == ROWS + 10
    assert len(_ids(lake, view="snapshot")) == ROWS
    shutil.move(str(tmp_path / "lake" / "_asyncpq"), str(tmp_path / "elsewhere"))
    assert len(_ids(lake, index=str(tmp_path / "elsewhere"))) == ROWS + 10
    assert len(_ids(lake, index=str(tmp_path / "elsewhere"), view="snapshot")) == ROWS
