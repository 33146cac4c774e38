"""What a write refuses before Spark runs anything for it."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType

import asyncpq
from asyncpq.distributed import run_on_worker
from asyncpq.errors import (
    AccessDeniedError,
    AmbiguousColumnError,
    AsyncpqError,
    ConcurrentCommitUnsupported,
    InvalidOptionError,
    SchemaMismatchError,
    StaleSnapshotError,
    StoreError,
    TransportError,
)
from asyncpq.indexing.build import adding
from asyncpq.spark.lake_writer import AsyncpqWriter, FrameWrite, TaskFiles, lake_writer, plan_write
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.types.conversion import from_spark

_TYPES = {"bigint": LongType(), "int": IntegerType(), "string": StringType(), "binary": BinaryType()}


def struct(text: str) -> StructType:
    """``"id bigint, name string"``: what reads DDL is in the JVM."""
    pairs = [column.split() for column in text.split(", ")]
    return StructType([StructField(name, _TYPES[kind]) for name, kind in pairs])


_STRUCT = StructType([StructField("id", LongType(), nullable=False), StructField("Name", StringType())])


def plan(target: Path, schema: str | StructType = _STRUCT, *, overwrite: bool = False, **options: str) -> FrameWrite:
    columns = struct(schema) if isinstance(schema, str) else schema
    return plan_write({"path": str(target), **options}, columns, overwrite=overwrite)


def written(writer: AsyncpqWriter, *values: int) -> TaskFiles:
    batch = pa.record_batch([pa.array(values), pa.array(["x"] * len(values))], ["id", "Name"])
    return writer.write(iter([batch]))


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    """With two rows."""
    writer = lake_writer({"path": str(tmp_path / "lake")}, _STRUCT, overwrite=False)
    writer.commit([written(writer, 1, 2)])
    return tmp_path / "lake"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": ""}, "missing"),
        ({"path": "lakes/*/one"}, "pattern"),
        ({"pageRow": "1"}, "'pagerow'"),
        ({"publish": "later"}, "publish"),
        ({"caseSensitive": "1"}, "caseSensitive"),
        ({"indexKinds": "[bounds"}, "JSON"),
        ({"indexKinds": '["bound"]'}, "names of bloom, bounds"),
        ({"indexKinds": '[{"kind": "keys"}]'}, "column"),
        ({"indexKinds": '[{"kind": "keys", "columns": ["nothing"]}]'}, "nothing"),
        ({"indexKinds": '[{"kind": "keys", "columns": ["id"], "much": 1}]'}, "invalid arguments for"),
        ({"secret": "x"}, "credentialsProvider"),
        ({"path": "s3://user:password@bucket/lake"}, "credentialsProvider"),
        ({"bloomFilters": '["nothing"]'}, "no such leaf column"),
    ],
    ids=str,
)  # fmt: skip
def test_options_that_cannot_be(tmp_path: Path, options: dict[str, str], message: str) -> None:
    with pytest.raises(AsyncpqError, match=message):
        plan_write({"path": str(tmp_path / "lake"), **options}, _STRUCT, overwrite=False)
    assert not (tmp_path / "lake").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_files_of_others_are_left_alone(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "data").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "data" / "part-0.parquet")
    with pytest.raises(InvalidOptionError, match="part-0"):
        plan(tmp_path, overwrite=overwrite)


def test_a_write_that_failed_does_not_stop_the_next(tmp_path: Path) -> None:
    writer = lake_writer({"path": str(tmp_path)}, _STRUCT, overwrite=False)
    written(writer, 1)
    assert plan(tmp_path).job != writer.plan.job


def test_plain_folders_are_empty_before(lake: Path, tmp_path: Path) -> None:
    for overwrite in (False, True):
        with pytest.raises(InvalidOptionError, match="not empty"):
            plan(lake, overwrite=overwrite, publish="plain")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "_SUCCESS").touch()
    with pytest.raises(InvalidOptionError, match="not empty"):
        plan(tmp_path / "old", publish="PLAIN")


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("id bigint, name string, more int", "'more'"),
        ("id string, name string", "string"),
        ("id bigint, name binary", "binary"),
    ],
)
def test_columns_that_are_not_the_lakes(lake: Path, schema: str, message: str) -> None:
    with pytest.raises(SchemaMismatchError, match=message):
        plan(lake, schema)
    assert plan(lake, schema, overwrite=True).struct == struct(schema)


def test_columns_by_the_rules_of_spark(lake: Path) -> None:
    found = plan(lake, "NAME string, ID bigint")
    assert (found.struct.fieldNames(), found.order) == (["id", "Name"], (1, 0))
    with pytest.raises(SchemaMismatchError, match="'NAME'"):
        plan(lake, "NAME string, id bigint", caseSensitive="true")
    with pytest.raises(AmbiguousColumnError):
        plan(lake, "name string, NAME string, id bigint")


def test_what_tasks_are_told_can_be_pickled(lake: Path) -> None:
    writer = lake_writer({"path": str(lake), "bloomFilters": '["id"]'}, _STRUCT, overwrite=False)
    again: AsyncpqWriter = pickle.loads(pickle.dumps(writer))
    assert again.plan == writer.plan
    message = written(again, 3)
    assert pickle.loads(pickle.dumps(message)) == message


def ids(lake: Path) -> list[int]:
    async def read(session: asyncpq.Session) -> list[int]:
        table = await (await session.open_dataset(str(lake))).read()
        found: list[int] = sorted(table.column("id").to_pylist())
        return found

    return run_on_worker(SparkSettings(), read)


def test_of_two_messages_of_a_task_one_counts(lake: Path) -> None:
    writer = lake_writer({"path": str(lake)}, _STRUCT, overwrite=True)
    first = written(writer, 3)
    again = TaskFiles(replace(first.part))
    writer.commit([first, again])
    assert ids(lake) == [3]


def test_nothing_is_committed_that_a_task_does_not_tell(lake: Path) -> None:
    writer = lake_writer({"path": str(lake)}, _STRUCT, overwrite=True)
    messages: list[WriterCommitMessage | None] = [written(writer, 3), None]
    with pytest.raises(StoreError, match="only 1 of 2 tasks"):
        writer.commit(messages)
    writer.abort(messages)
    assert not list(lake.glob(f"data/{writer.plan.job}/*"))
    assert ids(lake) == [1, 2]


def test_a_commit_that_is_refused_leaves_no_files(lake: Path) -> None:
    """Somebody has overwritten the lake with other columns meanwhile."""
    writer = lake_writer({"path": str(lake)}, _STRUCT, overwrite=False)
    message = written(writer, 3)
    other = lake_writer({"path": str(lake)}, struct("id bigint"), overwrite=True)
    other.commit([])
    with pytest.raises(SchemaMismatchError):
        writer.commit([message])
    assert not list(lake.glob(f"data/{writer.plan.job}/*"))
    assert ids(lake) == []


@pytest.mark.parametrize(
    ("error", "certain"),
    [
        (SchemaMismatchError("other columns"), True),
        (StaleSnapshotError("overwritten meanwhile"), True),
        (ConcurrentCommitUnsupported("the store replaces objects"), True),
        (TransportError("no answer"), False),
        (AccessDeniedError("not any more"), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_files_are_deleted_where_nothing_was_committed_for_sure(
    lake: Path, monkeypatch: pytest.MonkeyPatch, error: AsyncpqError, certain: bool
) -> None:
    writer = lake_writer({"path": str(lake)}, _STRUCT, overwrite=False)
    message = written(writer, 3)

    async def fail(*rest: object, **more: object) -> int:
        raise error

    monkeypatch.setattr(adding, "add_files", fail)
    with pytest.raises(type(error)):
        writer.commit([message])
    assert bool(list(lake.glob(f"data/{writer.plan.job}/*"))) is not certain
    assert ids(lake) == [1, 2]


def test_what_is_wrong_is_told_by_the_options_names(tmp_path: Path) -> None:
    wrong = [
        ({"pageRows": "0"}, "^pageRows=0: must be"),
        ({"bloomFilters": '["nothing"]'}, "^bloomFilters: there is no such leaf column"),
        ({"sortedBy": '["nothing"]'}, "^sortedBy: the column does not exist"),
        ({"splitBytes": "7"}, "^splitBytes=7: must be"),
    ]
    for options, message in wrong:
        with pytest.raises(InvalidOptionError, match=message):
            plan_write({"path": str(tmp_path / "lake"), **options}, _STRUCT, overwrite=False)


def test_an_abort_after_the_commit_takes_nothing_away(lake: Path) -> None:
    """Its answer was lost: Spark takes it for failed."""
    writer = lake_writer({"path": str(lake)}, _STRUCT, overwrite=False)
    message = written(writer, 3)
    writer.commit([message])
    writer.abort([message])
    writer.abort([None])
    assert ids(lake) == [1, 2, 3]
    failed = lake_writer({"path": str(lake)}, _STRUCT, overwrite=False)
    path = lake / written(failed, 4).part.files[0].path
    failed.abort([message])  # all tasks were done: it was the commit that failed
    assert path.is_file()
    failed.abort([message, None])
    assert not path.exists()


def test_files_of_a_long_write_are_looked_at_again(lake: Path) -> None:
    """A vacuum may have taken them for orphans."""
    writer = lake_writer({"path": str(lake)}, _STRUCT, overwrite=False)
    message = written(writer, 3)
    (lake / message.part.files[0].path).unlink()

    with pytest.raises(AsyncpqError, match=message.part.files[0].path):
        AsyncpqWriter(replace(writer.plan, began=0.0)).commit([message])
    assert ids(lake) == [1, 2]


def test_plain_readers_are_told_when_it_is_done(tmp_path: Path) -> None:
    writer = lake_writer({"path": str(tmp_path), "publish": "plain"}, _STRUCT, overwrite=False)
    message, lost = written(writer, 1), written(LostAttempt(writer.plan), 1)
    assert not (tmp_path / "_SUCCESS").exists()
    writer.commit([message])
    assert (tmp_path / "_SUCCESS").read_bytes() == b""
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.glob("data/*/*")] == [message.part.files[0].path]
    assert lost.part.files[0].path != message.part.files[0].path


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("publish", ["index", "plain"])
def test_folders_whose_index_is_gone_are_left_alone(tmp_path: Path, publish: str, overwrite: bool) -> None:
    """Those who read them by ``_SUCCESS`` would see all that lies there, those who read by a new index what is new."""
    writer = lake_writer({"path": str(tmp_path), "publish": publish}, _STRUCT, overwrite=False)
    writer.commit([written(writer, 1)])
    shutil.rmtree(tmp_path / "_asyncpq")
    with pytest.raises(InvalidOptionError, match="_asyncpq/ is missing"):
        plan(tmp_path, overwrite=overwrite)


def test_a_plain_write_may_follow_one_that_was_only_planned(tmp_path: Path) -> None:
    plan(tmp_path)
    writer = lake_writer({"path": str(tmp_path), "publish": "plain"}, _STRUCT, overwrite=False)
    writer.commit([written(writer, 1)])
    assert (tmp_path / "_SUCCESS").exists()


class LostAttempt(AsyncpqWriter):
    """Of the same job and task."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskFiles:
        columns, plan = from_spark(self.plan.struct, self.plan.conf), self.plan
        batches = (columns.convert(batch) for batch in iterator)
        return TaskFiles(plan.write(batches, 0, "1"))


def test_appended_columns_are_widened_and_missing_ones_null(lake: Path) -> None:
    writer = lake_writer({"path": str(lake)}, struct("ID int"), overwrite=False)
    assert writer.plan.struct == struct("id bigint, Name string")
    batch = pa.RecordBatch.from_pydict({"ID": pa.array([7, None], pa.int32())})
    writer.commit([writer.write(iter([batch]))])

    async def read(session: asyncpq.Session) -> pa.Table:
        return await (await session.open_dataset(str(lake))).read()

    rows = run_on_worker(SparkSettings(), read)
    assert rows.schema.types == [pa.int64(), pa.string()]
    assert {"id": 7, "Name": None} in rows.to_pylist()
    assert {"id": None, "Name": None} in rows.to_pylist()


@pytest.mark.parametrize("text", ["id, Name", '["id", "Name"]'])
def test_names_are_json_or_separated_by_commas(tmp_path: Path, text: str) -> None:
    assert [item.column for item in plan(tmp_path, sortedBy=text).options.sorted_by] == ["id", "Name"]
    assert plan(Path(f"file:{tmp_path}"), bloomFilters="id").folder == f"file://{tmp_path}/"


def test_an_append_keeps_the_kinds_of_the_index(lake: Path) -> None:
    with pytest.raises(InvalidOptionError, match=r"^indexKinds: an append .* Append without indexKinds"):
        plan(lake, indexKinds='[{"kind": "keys", "columns": ["id"]}]')
    assert plan(lake, indexKinds='["footers", "bounds"]').order == (0, 1)
