"""examples/hive_metastore.py reads the tables of a metastore, here a fake with the Thrift API's calls and shapes."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from examples.hive_metastore import HIVE_NULL, HiveTable

PARQUET = "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat"


def column(name: str, kind: str) -> SimpleNamespace:
    return SimpleNamespace(name=name, type=kind, comment=None)


class Metastore:
    """Answers like ThriftHiveMetastore.Client."""

    def __init__(self) -> None:
        self.tables: dict[tuple[str, str], SimpleNamespace] = {}
        self.partitions: dict[tuple[str, str], list[SimpleNamespace]] = {}

    def get_table(self, database: str, name: str) -> SimpleNamespace:
        return self.tables[database, name]

    def get_partitions(self, database: str, name: str, max_parts: int) -> list[SimpleNamespace]:
        assert max_parts == -1
        return self.partitions[database, name]

    def create(self, name: str, location: Path, columns: list[Any], keys: list[Any], **parameters: str) -> None:
        self.tables["default", name] = SimpleNamespace(
            sd=SimpleNamespace(cols=columns, location=str(location), inputFormat=PARQUET),
            partitionKeys=keys,
            parameters=parameters,
        )
        self.partitions["default", name] = []

    def add(self, name: str, values: list[str], location: Path, table: pa.Table, input_format: str = PARQUET) -> None:
        location.mkdir(parents=True)
        pq.write_table(table, location / "part-0.parquet")
        (location / "_SUCCESS").touch()
        sd = SimpleNamespace(location=str(location), inputFormat=input_format)
        self.partitions["default", name].append(SimpleNamespace(values=values, sd=sd))


@pytest.fixture
def metastore(tmp_path: Path) -> Metastore:
    store = Metastore()
    columns = [column("id", "bigint"), column("name", "varchar(20)"), column("price", "decimal(10,2)")]
    store.create("trips", tmp_path / "trips", columns, [column("day", "date"), column("city", "string")])
    for number, (day, city) in enumerate(
        [("2024-01-30", "a/b c%"), ("2024-01-31", "x"), ("2024-01-31", HIVE_NULL), (HIVE_NULL, "x")]
    ):
        rows = pa.table(
            {
                "name": [f"n{number}{row}" for row in range(10)],
                "id": pa.array(range(number * 10, number * 10 + 10), pa.int32()),  # written before it was a bigint
            }
        )  # and before there were prices
        location = tmp_path / "anywhere" / quote(f"{day} {city}", safe="")
        store.add("trips", [day, city], location, rows)
    return store


async def test_partitions_are_typed_and_prune(metastore: Metastore) -> None:
    async with asyncpq.Session() as session:
        trips = await session.open_dataset(HiveTable(metastore, "default", "trips"))
        assert trips.schema.types == [pa.int64(), pa.string(), pa.decimal128(10, 2), pa.date32(), pa.string()]
        whole = await trips.read()
        assert whole["id"].to_pylist() == list(range(40))
        assert whole["day"].unique().to_pylist() == [dt.date(2024, 1, 30), dt.date(2024, 1, 31), None]
        assert whole["city"].unique().to_pylist() == ["a/b c%", "x", None]
        day = ds.field("day") == dt.date(2024, 1, 31)
        with asyncpq.measure() as cost:
            found = await trips.read(where=(col("day") == dt.date(2024, 1, 31)) & (col("city") == "x"))
        assert found.equals(whole.filter(day & (ds.field("city") == "x")))
        assert cost.files_opened == 1
        assert (await trips.lookup({"id": 25}))["name"].to_pylist() == ["n25"]
        assert (await trips.count(col("city").is_null())) == 10


async def test_a_table_without_partitions(metastore: Metastore, tmp_path: Path) -> None:
    metastore.create("flat", tmp_path / "flat", [column("x", "int")], [])
    metastore.add("flat", [], tmp_path / "flat", pa.table({"x": pa.array([1, 2], pa.int32())}))
    async with asyncpq.Session() as session:
        flat = await session.open_dataset(HiveTable(metastore, "default", "flat"))
        assert (await flat.read()).to_pydict() == {"x": [1, 2]}


async def test_what_is_refused(metastore: Metastore, tmp_path: Path) -> None:
    metastore.create("acid", tmp_path, [column("x", "int")], [], transactional="true")
    metastore.create("maps", tmp_path, [column("x", "map<string,int>")], [])
    metastore.create("orc", tmp_path, [column("x", "int")], [column("p", "int")])
    metastore.add(
        "orc", ["1"], tmp_path / "orc", pa.table({"x": [1]}), "org.apache.hadoop.hive.ql.io.orc.OrcInputFormat"
    )
    async with asyncpq.Session() as session:
        for name in ("acid", "maps", "orc"):
            with pytest.raises(asyncpq.UnsupportedFeatureError):
                await session.open_dataset(HiveTable(metastore, "default", name))
