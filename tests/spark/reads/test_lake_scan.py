"""Plans and reads of lakes without Spark: what executors ask for, versions, names, and large plans."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.parquet_bytes import parquet_bytes

pytest.importorskip("pyspark")

from pyspark.sql.types import DataType, IntegerType, LongType, StringType, StructField, StructType

from asyncpq import col
from asyncpq.distributed import packing, scan_planning
from asyncpq.distributed import worker_sessions as sessions
from asyncpq.distributed.scan_tasks import decode_files, read_task, unpack_task
from asyncpq.errors import (
    AmbiguousColumnError,
    AsyncpqError,
    InvalidOptionError,
    ObjectChangedError,
    ObjectNotFoundError,
)
from asyncpq.expressions import Expression
from asyncpq.indexing import Bounds, Keys
from asyncpq.session import Session
from asyncpq.spark.reads.lake_scan import LakePlan, plan_lake, spark_struct
from asyncpq.spark.reads.opened_lake import LakeTarget, open_lake
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.types.read_conf import ReadConf
from asyncpq.testing import Fault, ObjectServer

ROWS = 40_000


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectServer]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    with ObjectServer.in_thread() as running:
        yield running
        sessions.close_workers()


def settings(server: ObjectServer, **given: Any) -> SparkSettings:
    options = {"endpoint_url": server.endpoint, "client_kwargs": {"region_name": "us-east-1"}}
    return SparkSettings(storage_options=json.dumps(options), disk_cache="off", **given)


def content(**options: Any) -> bytes:
    """Six columns, of which one is in order."""
    rng = random.Random(1)
    columns: dict[str, Any] = {"id": range(ROWS)}
    for name in "abcde":
        columns[name] = [rng.random() for _ in range(ROWS)]
    known = {"row_group_size": 10_000, "max_rows_per_page": 1000, "write_page_index": True, "use_dictionary": False}
    return parquet_bytes(pa.table(columns), **{**known, **options})


def plan(
    where: Expression | None = None,
    *,
    on: SparkSettings,
    target: Any = "s3://lake/t/",
    columns: Sequence[str] | None = None,
    conf: ReadConf = ReadConf(),  # noqa: B008
    **options: Any,
) -> LakePlan:
    asked = LakeTarget(target=target, **options)

    async def work(session: Session) -> LakePlan:
        opened = await open_lake(session, asked, conf)
        return await plan_lake(opened, settings=on, columns=columns, where=where)

    return sessions.run_on_worker(on, work)


def on_another_worker(found: LakePlan) -> LakePlan:
    """With a session that knows nothing."""
    fresh = replace(found.scan.settings, memory_cache_bytes=(found.scan.settings.memory_cache_bytes or 1 << 26) + 1)
    return replace(found, scan=replace(found.scan, settings=fresh))


def rows(found: LakePlan) -> pa.Table:
    tables = [pa.Table.from_batches([batch]) for task in found.encoded() for batch in read_task(found.scan, task)]
    return pa.concat_tables(tables) if tables else pa.table({})


def test_a_task_asks_for_pages_of_the_columns_alone(server: ObjectServer) -> None:
    server.put("lake/t/0.parquet", content())
    found = on_another_worker(plan(col("id") == 12_345, on=settings(server), columns=["id", "b"]))
    server.log.clear()
    assert rows(found).column("id").to_pylist() == [12_345]
    metadata = pq.read_metadata(pa.BufferReader(server.objects["lake/t/0.parquet"].data))
    spans = []
    for leaf in (0, 2):
        chunk = metadata.row_group(1).column(leaf)
        spans.append((chunk.data_page_offset, chunk.data_page_offset + chunk.total_compressed_size))
    asked = [request.headers["range"].removeprefix("bytes=").split("-") for request in server.log]
    assert len(asked) == 2
    for first, last in asked:
        assert any(start <= int(first) and int(last) < stop for start, stop in spans), (first, last, spans)
        assert int(last) - int(first) < 20_000  # one page of ten
    assert all("if-match" in request.headers for request in server.log)


def test_rows_of_which_all_match_are_read_without_an_index(server: ObjectServer) -> None:
    server.put("lake/t/0.parquet", content())
    found = on_another_worker(plan((col("id") >= 10_000) & (col("id") < 25_000), on=settings(server), columns=["id"]))
    files = [one for task in found.encoded() for one in decode_files(unpack_task(task)[0])]  # type: ignore[arg-type]
    assert [one.filtered for one in files] == [False, True]
    server.log.clear()
    assert rows(found).column("id").to_pylist() == list(range(10_000, 25_000))
    assert all(request.method == "GET" and "if-match" in request.headers for request in server.log)
    assert len(server.log) == 2


def test_a_footer_that_is_too_large_to_be_sent_is_read(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.put("lake/t/0.parquet", content())
    monkeypatch.setattr(scan_planning, "_MOST_FOOTER_BYTES", 100)
    found = on_another_worker(plan(col("id") == 12_345, on=settings(server), columns=["id"]))
    assert max(map(len, found.encoded())) < 3000
    server.log.clear()
    assert rows(found).num_rows == 1
    assert any("bytes=-" in request.headers["range"] for request in server.log)


@pytest.mark.parametrize("where", [None, col("id") >= 0], ids=str)
def test_a_plan_counts_all_files_and_keeps_some_versions(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, where: Expression | None
) -> None:
    monkeypatch.setattr(packing, "MOST_VERSIONS", 2)
    data = content()
    for number in range(5):
        server.put(f"lake/t/{number}.parquet", data)
    found = plan(where, on=settings(server, split_bytes=1 << 16))  # files of several parts
    assert (found.num_files, found.whole_bytes, found.num_rows) == (5, 5 * len(data), 5 * ROWS)
    assert list(found.versions) == [f"s3://lake/t/{number}.parquet" for number in range(3)]


@pytest.mark.parametrize("payloads", [True, False])
@pytest.mark.parametrize("where", [None, col("id") >= 0], ids=str)
def test_files_that_vanish_after_planning_are_left_out_if_spark_says_so(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, where: Expression | None, payloads: bool
) -> None:
    if not payloads:
        monkeypatch.setattr(scan_planning, "_MOST_FOOTER_BYTES", 0)
    for name in "012":
        server.put(f"lake/t/{name}.parquet", content())
    found = plan(where, on=settings(server), columns=["id"], conf=ReadConf(ignore_missing_files=True))
    del server.objects["lake/t/0.parquet"]
    assert rows(on_another_worker(found)).num_rows == 2 * ROWS
    strict = replace(found, scan=replace(found.scan, rules=ReadConf(), skips_missing=False))
    with pytest.raises((ObjectNotFoundError, ObjectChangedError), match=r"0\.parquet"):
        rows(on_another_worker(strict))
    server.put("lake/t/1.parquet", content(row_group_size=20_000))  # a replaced file is no missing one
    with pytest.raises(ObjectChangedError, match=r"1\.parquet"):
        rows(on_another_worker(found))


@pytest.mark.parametrize("ignored", [True, False])
def test_files_that_vanish_between_listing_and_planning(server: ObjectServer, ignored: bool) -> None:
    for name in "012":
        server.put(f"lake/t/{name}.parquet", content())
    on, conf = settings(server), ReadConf(ignore_missing_files=ignored)

    async def work(session: Session) -> LakePlan:
        opened = await open_lake(session, LakeTarget(target="s3://lake/t/"), conf)
        del server.objects["lake/t/1.parquet"]
        return await plan_lake(opened, settings=on, where=col("id") == 17)

    if ignored:
        assert rows(sessions.run_on_worker(on, work)).column("id").to_pylist() == [17, 17]
    else:
        with pytest.raises(ObjectNotFoundError, match=r"1\.parquet"):
            sessions.run_on_worker(on, work)


@pytest.mark.parametrize("payloads", [True, False])
@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_an_object_that_is_not_the_one_that_was_planned(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, change: str, payloads: bool
) -> None:
    if not payloads:
        monkeypatch.setattr(scan_planning, "_MOST_FOOTER_BYTES", 0)
    server.put("lake/t/0.parquet", content())
    server.put("lake/t/1.parquet", content())
    found = plan(on=settings(server), columns=["id"])
    if change == "replaced":
        server.put("lake/t/1.parquet", content(compression="zstd"))
    else:
        server.delete("lake/t/1.parquet")
    for one in (found, on_another_worker(found)):
        with pytest.raises(ObjectChangedError if change == "replaced" else Exception, match=r"t/1\.parquet") as caught:
            rows(one)
        assert "Plan again" in str(caught.value)


@pytest.mark.parametrize("change", ["replaced", "deleted"])
def test_a_warm_worker_notices_that_an_object_is_not_the_one_that_was_planned(
    server: ObjectServer, change: str
) -> None:
    server.put("lake/t/0.parquet", content())
    found = plan(col("id") < 10, on=settings(server), columns=["id"])
    rows(found)
    before = len(server.log)
    assert rows(found).num_rows > 0
    assert len(server.log) - before == 1  # everything is cached, and the version is asked for
    if change == "replaced":
        server.put("lake/t/0.parquet", content(compression="zstd"))
    else:
        server.delete("lake/t/0.parquet")
    with pytest.raises(AsyncpqError, match=r"t/0\.parquet.*Plan again"):
        rows(found)


def test_a_large_plan_lies_in_the_work_folder(server: ObjectServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "MOST_SENT_BYTES", 6000)
    monkeypatch.setattr(packing, "FILE_COST_BYTES", packing.LEAST_TASK_BYTES)
    for number in range(12):
        server.put(f"lake/t/{number}.parquet", content())
    server.faults = [Fault(method="PUT", path="_asyncpq_plans/", status=403, times=None)]
    with pytest.raises(InvalidOptionError, match="requires a work folder; none is set"):
        plan(col("id") < 10, on=settings(server))
    server.faults = []
    assert rows(plan(col("id") < 10, on=settings(server))).num_rows == 120
    assert any(name.startswith("lake/t/_asyncpq_plans/plans/") for name in server.objects)
    found = plan(col("id") < 10, on=settings(server, work_folder="s3://bucket/here"))
    written = {name: item.data for name, item in server.objects.items() if name.startswith("bucket/here/plans/")}
    assert len(written) > 1
    assert sum(map(len, found.encoded())) < 100 * 12
    assert all(b"pickle" not in data and data[:1] == b"3" for data in written.values())
    assert sorted(rows(on_another_worker(found)).column("id").to_pylist()) == sorted([*range(10)] * 12)


@pytest.mark.parametrize("fault", [None, Fault(method="DELETE", path="plans/", status=403, times=None)])
def test_old_plans_go_with_the_next_one(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch, fault: Fault | None
) -> None:
    monkeypatch.setattr(packing, "MOST_SENT_BYTES", 1000)
    monkeypatch.setattr(packing, "_MOST_REMOVED", 2)
    for number in range(4):
        server.put(f"lake/t/{number}.parquet", content())
    old, young = time.time() - packing.PLAN_S - 60, time.time() - packing.PLAN_S + 600
    folder = "bucket/here/plans/"
    kept = {f"{folder}{'a' * 32}/0.splits": young, f"{folder}notes/0.splits": old, f"{folder}0.splits": old}
    gone = {f"{folder}{letter * 32}/{at}.splits": old for letter in "bc" for at in range(2)}
    for name, modified in {**kept, **gone}.items():
        server.put(name, b"x", modified=modified)
    server.faults = [] if fault is None else [fault]
    for left in (2, 0) if fault is None else (4,):
        found = plan(on=settings(server, work_folder="s3://bucket/here"))
        names = set(server.objects)
        assert names >= kept.keys()
        assert len(names & gone.keys()) == left
        assert rows(found).num_rows  # what was put down now is there


# -- names and partitions -------------------------------------------------------------------------


def local() -> SparkSettings:
    return SparkSettings(disk_cache="off")


def test_names_in_other_cases(tmp_path: Path) -> None:
    pq.write_table(pa.table({"Id": [1, 2], "v": [10, 20]}), tmp_path / "a.parquet")
    pq.write_table(pa.table({"V": [30], "iD": [3]}), tmp_path / "b.parquet")
    pq.write_table(pa.table({"other": [5]}), tmp_path / "c.parquet")
    target = str(tmp_path)
    assert rows(plan(on=local(), target=target)).to_pylist() == [
        {"Id": 1, "v": 10}, {"Id": 2, "v": 20}, {"Id": 3, "v": 30}, {"Id": None, "v": None}
    ]  # fmt: skip
    assert rows(plan(col("Id") == 3, on=local(), target=target, columns=["V"])).to_pylist() == [{"v": 30}]
    exact = rows(plan(on=local(), target=target, conf=ReadConf(case_sensitive=True)))
    assert exact.column("Id").to_pylist() == [1, 2, None, None]
    pq.write_table(pa.table({"id": [1], "ID": [2], "v": [3]}), tmp_path / "d.parquet")
    assert rows(plan(on=local(), target=target, columns=["v"])).num_rows == 5  # which of them is meant matters not
    with pytest.raises(AmbiguousColumnError, match="'id', 'ID'"):
        plan(col("v") == 3, on=local(), target=target)
    assert rows(plan(on=local(), target=target, columns=["v"])).num_rows == 5  # which of them is meant matters not
    with pytest.raises(AmbiguousColumnError, match="'id', 'ID'"):
        rows(plan(on=local(), target=target))


def test_partitions_have_the_types_of_spark(tmp_path: Path) -> None:
    for number, day in enumerate(["2024-01-01", "2024-02-03", "__HIVE_DEFAULT_PARTITION__"]):
        folder = tmp_path / f"day={day}" / f"n={number * 3_000_000_000}"
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"v": [number]}), folder / "f.parquet")
    found = plan(on=local(), target=str(tmp_path))
    assert spark_struct(found.scan.spark_schema).simpleString() == "struct<v:bigint,day:date,n:bigint>"
    table = rows(on_another_worker(found))
    assert [str(value) for value in table.column("day").to_pylist()] == ["2024-01-01", "2024-02-03", "None"]
    assert table.column("n").to_pylist() == [0, 3_000_000_000, 6_000_000_000]
    texts = plan(on=local(), target=str(tmp_path), conf=ReadConf(infer_partition_types=False))
    assert spark_struct(texts.scan.spark_schema).simpleString() == "struct<v:bigint,day:string,n:string>"


@pytest.mark.parametrize("kind", [None, IntegerType(), StringType()])
@pytest.mark.parametrize("partitioning", ["hive", ("p",)])
def test_an_index_of_a_partition_column_prunes_whatever_its_type(
    tmp_path: Path, partitioning: Any, kind: DataType | None
) -> None:
    for number in (1, 2):
        folder = tmp_path / "lake" / (f"p={number}" if partitioning == "hive" else f"{number}")
        folder.mkdir(parents=True)
        pq.write_table(pa.table({"v": [number, 10 + number]}), folder / "f.parquet")
    at, target = str(tmp_path / "index"), str(tmp_path / "lake")

    async def build(session: Session) -> None:
        await session.build_index(target, [Keys("p"), Bounds("p", "v")], at=at, partitioning=partitioning)

    sessions.run_on_worker(local(), build)
    struct = None if kind is None else StructType([StructField("v", LongType()), StructField("p", kind)])
    where = col("p") == ("1" if kind == StringType() else 1)
    for index in (at, False):
        found = plan(where, on=local(), target=target, index=index, partitioning=partitioning, schema=struct)
        assert rows(found)["v"].to_pylist() == [1, 11]
        sessions.close_workers()  # which forgets the statistics of footers
        found = plan(col("v") == 12, on=local(), target=target, index=index, partitioning=partitioning, schema=struct)
        assert rows(found).to_pylist() == [{"v": 12, "p": "2" if kind == StringType() else 2}]
        assert found.metrics.files_ruled_out == (1 if index and (partitioning == "hive" or kind is None) else 0)


def test_files_are_not_opened_where_a_listing_tells_their_versions(server: ObjectServer) -> None:
    for number in range(5):
        server.put(f"lake/t/{number}.parquet", content())
    found = plan(on=settings(server), columns=["id"])
    assert found.unopened == 5
    assert sorted({request.path for request in server.log}) == ["/lake", "/lake/t/0.parquet"]  # its schema
    assert rows(on_another_worker(found)).num_rows == 5 * ROWS


def test_a_file_is_cut_at_row_groups(tmp_path: Path) -> None:
    rng = random.Random(2)
    table = pa.table({"v": [rng.random() for _ in range(60_000)]})
    pq.write_table(table, tmp_path / "f.parquet", row_group_size=10_000, use_dictionary=False, compression="none")
    found = plan(on=SparkSettings(disk_cache="off", split_bytes=200_000), target=str(tmp_path))
    assert ([task.num_files for task in found], found.num_files) == ([1, 1, 1], 1)
    assert rows(found).num_rows == 60_000
    least = plan(on=SparkSettings(disk_cache="off", split_bytes=65_536), target=str(tmp_path))
    assert len(least) == 6  # a row group is larger, and one split
    few = SparkSettings(disk_cache="off", split_bytes=65_536, most_splits=4)
    assert len(plan(on=few, target=str(tmp_path))) <= 4
