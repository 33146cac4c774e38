"""Lakes that the driver opens for a plan, without a JVM."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from pyspark.sql.types import LongType, StringType, StructField, StructType

import asyncpq
from asyncpq.distributed.scan_tasks import read_task
from asyncpq.errors import ColumnNotFoundError, InvalidOptionError, SchemaMismatchError
from asyncpq.expressions import col
from asyncpq.indexing import Footers, Keys
from asyncpq.spark.reads.conditions import Condition
from asyncpq.spark.reads.lake_scan import plan_lake
from asyncpq.spark.reads.opened_lake import LakeTarget, open_lake
from asyncpq.spark.settings import SparkSettings
from asyncpq.spark.types.read_conf import ReadConf
from asyncpq.testing import ObjectServer

_ID = StructType([StructField("id", LongType())])


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """Two files, of which the first has narrower ids."""
    folder = tmp_path / "lake"
    folder.mkdir()
    pq.write_table(pa.table({"id": pa.array([1, 2], pa.int32()), "name": ["a", "b"]}), folder / "0.parquet")
    pq.write_table(pa.table({"id": pa.array([3, 1 << 40], pa.int64()), "name": ["c", "d"]}), folder / "1.parquet")
    return f"{folder}/"


async def _rows(session: asyncpq.Session, target: LakeTarget, where: object = None) -> list[dict[str, object]]:
    conf = ReadConf(session_time_zone="UTC")
    opened = await open_lake(session, target, conf)
    condition = None if where is None else Condition(where)
    plan = await plan_lake(
        opened,
        settings=SparkSettings(disk_cache="off"),
        columns=None,
        where=None if condition is None else condition.terms(opened.struct, opened.schema, conf, {}),
        parallelism=1,
    )
    return [row for split in plan.encoded() for batch in read_task(plan.scan, split) for row in batch.to_pylist()]


async def test_columns_are_those_of_the_first_file(lake: str) -> None:
    async with asyncpq.Session() as session:
        opened = await open_lake(session, LakeTarget(target=lake), ReadConf())
    assert opened.struct.simpleString() == "struct<id:int,name:string>"
    assert opened.columns(["NAME", "nothing"]) == [1]
    assert opened.known_top("name.first") == "name"
    with pytest.raises(ColumnNotFoundError, match="no such column"):
        opened.known_top("nothing")


async def test_a_schema_with_the_types_of_the_index_is_read_through_the_index(lake: str) -> None:
    async with asyncpq.Session() as session:
        index = await session.build_index(lake, [Keys("id"), Footers()], schema_policy="permissive")
        with pytest.raises(SchemaMismatchError):
            await open_lake(session, LakeTarget(target=lake, index=index), ReadConf())
        target = LakeTarget(target=lake, index=index, schema=_ID)
        opened = await open_lake(session, target, ReadConf())
        assert opened.schema.field("id").type == pa.int64()
        assert await _rows(session, target) == [{"id": 1}, {"id": 2}, {"id": 3}, {"id": 1 << 40}]
        assert await _rows(session, target, col("id") == 1 << 40) == [{"id": 1 << 40}]
        assert {"id": 2} in await _rows(session, target, col("id") == 2)


async def test_a_schema_that_contradicts_the_index_is_refused(lake: str) -> None:
    async with asyncpq.Session() as session:
        index = await session.build_index(lake, [Keys("id")], schema_policy="permissive")
        text = StructType([StructField("id", StringType())])
        with pytest.raises(SchemaMismatchError, match="indexed"):
            await open_lake(session, LakeTarget(target=lake, index=index, schema=text), ReadConf())


async def test_two_columns_of_a_schema_cannot_name_the_same_column(lake: str) -> None:
    both = StructType([StructField("id", LongType()), StructField("ID", LongType())])
    async with asyncpq.Session() as session:
        with pytest.raises(InvalidOptionError, match="the same column"):
            await open_lake(session, LakeTarget(target=lake, schema=both), ReadConf())


async def test_a_dictionary_of_the_first_file_is_that_of_no_index_of_all(tmp_path: Path) -> None:
    words = pa.array(["a", "b"])
    pq.write_table(pa.table({"name": words.dictionary_encode()}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"name": words}), tmp_path / "1.parquet")
    text = StructType([StructField("name", StringType())])
    async with asyncpq.Session() as session:
        index = await session.build_index(str(tmp_path), [Keys("name"), Footers()], schema_policy="permissive")
        for schema in (None, text):
            target = LakeTarget(target=str(tmp_path), index=index, schema=schema)
            assert sorted(str(row["name"]) for row in await _rows(session, target)) == ["a", "a", "b", "b"]
            found = await _rows(session, target, col("name") == "b")
            assert {"name": "b"} in found


def _fill(server: ObjectServer, folder: Path) -> None:
    for path in filter(Path.is_file, folder.rglob("*")):
        server.put(f"bucket/t/{path.relative_to(folder)}", path.read_bytes())


@pytest.mark.parametrize("options", [{}, {"config_kwargs": {"read_timeout": 60}}, {"s3": {"anon": False}}])
async def test_tasks_read_a_loaded_table_from_its_own_endpoint(
    options: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ObjectServer() as production, ObjectServer() as staging:
        write_deltalake(tmp_path, pa.table({"name": ["production"]}))
        for server in (production, staging):
            _fill(server, tmp_path)
        keys = {"AWS_ACCESS_KEY_ID": str(production.storage_options["key"]), "AWS_SECRET_ACCESS_KEY": "hidden"}
        own = {**keys, "AWS_REGION": "us-east-1", "AWS_ALLOW_HTTP": "true", "AWS_ENDPOINT_URL": production.endpoint}
        table = await asyncio.to_thread(DeltaTable, "s3://bucket/t", None, own)
        for name, value in {**keys, "AWS_ENDPOINT_URL": staging.endpoint}.items():
            monkeypatch.setenv(name, value)
        settings = SparkSettings(disk_cache="off", storage_options=json.dumps(options))
        async with asyncpq.Session(options) as session:
            opened = await open_lake(session, LakeTarget(target=table), ReadConf())
            plan = await plan_lake(opened, settings=settings, parallelism=1)
            assert "hidden" not in repr(plan.scan)
        rows = [
            batch.to_pylist()
            for split in plan.encoded()
            for batch in await asyncio.to_thread(lambda split: list(read_task(plan.scan, split)), split)
        ]
        assert rows == [[{"name": "production"}]]
        assert staging.log == []
