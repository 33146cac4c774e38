"""What of an Iceberg table is read, and what is refused: snapshots, defaults, partitions, formats, bad metadata."""

from __future__ import annotations

import datetime as dt
import math
import sys
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import FileFormat, ManifestContent
from pyiceberg.table import StaticTable, Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, StringType

import asyncpq
from asyncpq import col, tables
from asyncpq.errors import InvalidOptionError, SchemaMismatchError, UnsupportedFeatureError, UsageError
from asyncpq.tables.iceberg import catalog as iceberg
from asyncpq.tables.iceberg.catalog import IcebergCatalog
from tests.iceberg_tables import (
    LocalReader,
    add_files,
    data_files,
    data_record,
    edited_metadata,
    make_table,
    tagged,
    written_file,
)
from tests.tables.iceberg.id_name_tables import ID_NAME_SCHEMA, id_name_rows, planned_files, read_rows

# -- snapshots ------------------------------------------------------------------------------------


@pytest.fixture
def history(tmp_path: Path) -> tuple[Table, list[int]]:
    """A table whose column ``name`` was renamed, and its three snapshots."""
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 5))
    table.append(id_name_rows(5, 10))
    with table.update_schema() as update:
        update.rename_column("name", "title")
    table.append(id_name_rows(10, 12).rename_columns(["id", "title"]))
    return table, [entry.snapshot_id for entry in table.history()]


async def test_time_travel_is_pyiceberg_s(history: tuple[Table, list[int]]) -> None:
    table, snapshots = history
    for number, stop in zip(snapshots, (5, 10, 12), strict=True):
        expected = table.scan(snapshot_id=number).to_arrow().sort_by("id")
        assert expected.num_rows == stop
        assert (await read_rows(table, number)).equals(expected)
        assert (await read_rows(table.metadata_location, number)).equals(expected)
    assert (await read_rows(table)).column_names == ["id", "title"]
    assert (await read_rows(table, snapshots[0])).column_names == ["id", "name"]
    found = await read_rows(table, snapshots[1], col("name") == "n7")
    assert found.column("id").to_pylist() == [7]


async def test_branches_tags_and_times(history: tuple[Table, list[int]]) -> None:
    table, snapshots = history
    with table.manage_snapshots() as manage:
        manage.create_tag(snapshots[0], "v1")
        manage.create_branch(snapshots[1], "work")
    table.append(id_name_rows(50, 55).rename_columns(["id", "title"]), branch="work")
    assert (await read_rows(table, "v1")).num_rows == 5
    assert (await read_rows(table, "work")).equals(table.scan().use_ref("work").to_arrow().sort_by("id"))
    assert (await read_rows(table)).num_rows == 12
    at = dt.datetime.fromtimestamp(table.history()[1].timestamp_ms / 1000, dt.UTC)
    assert (await read_rows(table, at)).num_rows == 10
    assert (await read_rows(table, at - dt.timedelta(milliseconds=1))).num_rows <= 10


async def test_branches_have_the_columns_of_the_table(history: tuple[Table, list[int]]) -> None:
    """As in Iceberg on Spark; a tag has the columns of its snapshot ("Schema selection with branches and tags")."""
    table, snapshots = history
    with table.manage_snapshots() as manage:
        manage.create_tag(snapshots[0], "v1")
        manage.create_branch(snapshots[1], "work")
    with table.update_schema() as update:
        update.add_column("x", LongType())
    assert (await read_rows(table)).equals(await read_rows(table, "main"))
    for opened in (table, table.metadata_location):
        assert (await read_rows(opened, "main")).column_names == ["id", "title", "x"]
        assert (await read_rows(opened, "work")).column_names == ["id", "title", "x"]
        found = await read_rows(opened, "work", col("title") == "n7")
        assert found.to_pylist() == [{"id": 7, "title": "n7", "x": None}]
        assert (await read_rows(opened, "v1")).column_names == ["id", "name"]
        assert (await read_rows(opened, snapshots[-1])).column_names == ["id", "title"]


async def test_a_snapshot_is_pinned_when_the_table_is_opened(history: tuple[Table, list[int]]) -> None:
    table, snapshots = history
    async with asyncpq.open_dataset(table) as dataset:
        table.append(id_name_rows(90, 95).rename_columns(["id", "title"]))
        assert await dataset.count() == 12
        assert dataset.description == f"Iceberg table db.events, snapshot {snapshots[-1]}"
        assert dataset.view == "table"
    assert (await read_rows(table)).num_rows == 17


@pytest.mark.parametrize("version", [17, "nowhere", dt.datetime(2001, 1, 1, tzinfo=dt.UTC), dt.datetime(2030, 1, 1)])
async def test_snapshots_that_are_not_there(history: tuple[Table, list[int]], version: Any) -> None:
    with pytest.raises(InvalidOptionError, match=r"has no"):
        await read_rows(history[0], version)


def test_one_way_to_choose_a_snapshot() -> None:
    with pytest.raises(InvalidOptionError, match="Pass only one of them"):
        IcebergCatalog("s3://b/x.metadata.json", snapshot_id=1, ref="main")
    with pytest.raises(InvalidOptionError, match="metadata file"):
        IcebergCatalog("s3://user:secret@b/warehouse/db/events/table.json")
    with pytest.raises(InvalidOptionError, match="not list"):
        IcebergCatalog([])  # type: ignore[arg-type]  # on purpose


async def test_pyiceberg_is_an_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpq.tables.iceberg.catalog", None)
    monkeypatch.delattr(tables, "iceberg")
    with pytest.raises(UsageError, match=r"\[iceberg\]"):
        await read_rows("s3://b/x.metadata.json")


# -- columns --------------------------------------------------------------------------------------


async def test_identity_partition_values_of_files_without_the_column(tmp_path: Path) -> None:
    """As in tables that were migrated from Hive (table spec, "Column projection")."""
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    with table.update_spec() as update:
        update.add_field("name", IdentityTransform(), "other_name")
        update.add_field("id", BucketTransform(4), "bucket")
    with table.update_schema() as update:
        update.rename_column("name", "title")
    field_id = {b"PARQUET:field_id": b"1"}
    for number, value in enumerate(["a", "b", None]):
        file = tmp_path / f"{number}.parquet"
        ids = pa.table({"id": [number]}, pa.schema([pa.field("id", pa.int64(), metadata=field_id)]))
        pq.write_table(ids, file)
        size = file.stat().st_size  # a test's file
        record = data_record(table, f"file://{file}", Record(value, number), record_count=1, file_size_in_bytes=size)
        add_files(table, [record], ManifestContent.DATA)
    expected = [{"id": 0, "title": "a"}, {"id": 1, "title": "b"}, {"id": 2, "title": None}]
    assert table.scan().to_arrow().sort_by("id").to_pylist() == expected
    assert [file.partition for file in await planned_files(table)] == [{"title": "a"}, {"title": "b"}, {}]
    assert (await read_rows(table)).to_pylist() == expected
    assert (await read_rows(table, where=col("title") == "b")).to_pylist() == expected[1:2]
    assert (await read_rows(table, where=col("title").is_null())).to_pylist() == expected[2:]


async def test_initial_defaults(tmp_path: Path) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 3))
    with table.update_schema() as update:
        update.add_column("n", LongType())
        update.add_column("s", StringType())
    table.append(pa.Table.from_pylist([{"id": 9, "name": "x", "n": None, "s": "own"}], table.schema().as_arrow()))

    def with_defaults(document: dict[str, Any]) -> None:
        document.update({"format-version": 3, "next-row-id": 0})
        for schema in document["schemas"]:
            for field in schema["fields"]:
                field.update({"n": {"initial-default": 7}, "s": {"initial-default": "old"}}.get(field["name"], {}))

    url = edited_metadata(table, with_defaults)
    expected = StaticTable.from_metadata(url).scan().to_arrow().sort_by("id")
    assert expected.column("n").to_pylist() == [7, 7, 7, None]
    assert (await read_rows(url)).equals(expected.cast((await read_rows(url)).schema))
    assert (await read_rows(url, where=col("s") == "old")).column("id").to_pylist() == [0, 1, 2]


_DEFAULTS = [
    ("date", "2024-02-29", dt.date(2024, 2, 29)),
    ("timestamp", "2024-02-29T01:02:03.000004", dt.datetime(2024, 2, 29, 1, 2, 3, 4)),
    ("timestamptz", "2024-02-29T01:02:03+00:00", dt.datetime(2024, 2, 29, 1, 2, 3, tzinfo=dt.UTC)),
    ("time", "01:02:03", dt.time(1, 2, 3)),
    ("binary", "00ff", b"\x00\xff"),
    ("boolean", False, False),
    ("double", 1.5, 1.5),
    ("float", "-Infinity", -math.inf),
    ("timestamp_ns", "1960-01-01T00:00:00.000000001", pa.scalar(-315_619_199_999_999_999, pa.timestamp("ns"))),
    ("timestamptz_ns", "1970-01-01T01:00:00+01:00", pa.scalar(0, pa.timestamp("ns", "UTC"))),
]


@pytest.mark.parametrize(("kind", "default", "value"), _DEFAULTS, ids=[kind for kind, _, _ in _DEFAULTS])
async def test_defaults_of_each_type(tmp_path: Path, kind: str, default: object, value: object) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 2))

    def with_default(document: dict[str, Any]) -> None:
        document.update({"format-version": 3, "next-row-id": 0})
        added = {"id": 3, "name": "d", "type": kind, "required": False, "initial-default": default}
        document["schemas"][0]["fields"].append(added)
        document["last-column-id"] = 3

    column = (await read_rows(edited_metadata(table, with_default))).column("d")
    assert column.equals(pa.chunked_array([[value, value]], column.type))


async def test_a_default_may_be_nan(tmp_path: Path) -> None:
    """Iceberg's Java library writes it as a string, and refuses to read it back."""
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 2))

    def with_default(document: dict[str, Any]) -> None:
        document.update({"format-version": 3, "next-row-id": 0, "last-column-id": 3})
        added = {"id": 3, "name": "d", "type": "double", "required": False, "initial-default": "NaN"}
        document["schemas"][0]["fields"].append(added)

    url = edited_metadata(table, with_default)
    assert (await read_rows(url, where=col("d").is_nan()))["id"].to_pylist() == [0, 1]
    assert (await read_rows(url, where=col("d") >= 0)).num_rows == 0


_STRUCT = {"type": "struct", "fields": [{"id": 4, "name": "a", "type": "int", "required": False}]}


@pytest.mark.parametrize(
    ("kind", "default"),
    [
        ("date", "10000-01-01"),
        ("timestamp", "+10000-01-01T00:00:00"),
        ("timestamp_ns", "1500-01-01T00:00:00"),
        ("timestamp_ns", "1960-01-01T00:00:00+00:00"),
        ("uuid", "x"),
        ("double", "x"),
        ("geometry", "POINT(1 2)"),
        ("variant", {"a": 1}),
        ("unknown", 1),
        (_STRUCT, {}),
    ],
)
async def test_a_default_that_cannot_be_read_refuses_its_column(tmp_path: Path, kind: object, default: object) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 2))

    def with_default(document: dict[str, Any]) -> None:
        document.update({"format-version": 3, "next-row-id": 0, "last-column-id": 4})
        added = {"id": 3, "name": "d", "type": kind, "required": False, "initial-default": default}
        document["schemas"][0]["fields"].append(added)

    async with asyncpq.open_dataset(edited_metadata(table, with_default), format="iceberg") as dataset:
        assert (await dataset.read(["name"], where=col("id") == 1)).to_pylist() == [{"name": "n1"}]
        with pytest.raises(UnsupportedFeatureError) as caught:
            await dataset.read()
        assert caught.value.column == "d"


async def test_defaults_of_writers_are_not_read(tmp_path: Path) -> None:
    """pyiceberg cannot decode this one."""
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 2))

    def with_default(document: dict[str, Any]) -> None:
        document.update({"format-version": 3, "next-row-id": 0, "last-column-id": 3})
        added = {
            "id": 3,
            "name": "d",
            "type": "timestamp_ns",
            "required": False,
            "write-default": "2024-01-01T00:00:00",
        }
        document["schemas"][0]["fields"].append(added)

    assert (await read_rows(edited_metadata(table, with_default))).column("d").null_count == 2


async def test_the_default_of_a_part_may_be_false(tmp_path: Path) -> None:
    rows = pa.table({"id": [1, 2], "s": pa.array([{"a": 1}, None], pa.struct([("a", pa.int64())]))})
    table = make_table(tmp_path, rows.schema)
    table.append(rows)

    def with_default(document: dict[str, Any]) -> None:
        document.update({"format-version": 3, "next-row-id": 0, "last-column-id": 4})
        added = {"id": 4, "name": "d", "type": "boolean", "required": False, "initial-default": False}
        document["schemas"][0]["fields"][1]["type"]["fields"].append(added)

    assert (await read_rows(edited_metadata(table, with_default)))["s"].to_pylist() == [{"a": 1, "d": False}, None]


async def test_names_of_files_without_ids_come_from_the_mapping_alone(tmp_path: Path) -> None:
    """A column that the mapping lacks is null there; without a mapping such files are refused, as by pyiceberg."""
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    pq.write_table(id_name_rows(0, 3), tmp_path / "plain.parquet")
    table.add_files([f"file://{tmp_path}/plain.parquet"])

    def only_id(document: dict[str, Any]) -> None:
        document["properties"]["schema.name-mapping.default"] = '[{"field-id": 1, "names": ["absent", "id"]}]'

    assert (await read_rows(edited_metadata(table, only_id))).to_pylist() == [{"id": n, "name": None} for n in range(3)]

    def none(document: dict[str, Any]) -> None:
        del document["properties"]["schema.name-mapping.default"]

    url = edited_metadata(table, none)
    with pytest.raises(ValueError, match="field-ids"):
        StaticTable.from_metadata(url).scan().to_arrow()
    with pytest.raises(SchemaMismatchError, match="no field ids"):
        await read_rows(url)


async def test_statistics_of_a_column_whose_name_another_has(tmp_path: Path) -> None:
    """Manifests tell the values that are ``name``'s by now as those of ``title``, which is null there."""
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    pq.write_table(id_name_rows(0, 3), tmp_path / "plain.parquet")
    table.add_files([f"file://{tmp_path}/plain.parquet"])
    with table.update_schema() as update:
        update.rename_column("name", "title")
    with table.update_schema() as update:
        update.add_column("name", StringType())
    expected = table.scan().to_arrow().sort_by("id").to_pylist()
    assert expected == [{"id": n, "title": None, "name": f"n{n}"} for n in range(3)]
    assert (await read_rows(table, where=col("title").is_null())).to_pylist() == expected
    assert (await read_rows(table, where=col("name") == "n1")).to_pylist() == expected[1:2]


async def test_deleted_entries_beside_live_ones(tmp_path: Path) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    live, gone = (data_record(table, f"file:///{name}", Record(), record_count=1) for name in ("live", "gone"))
    add_files(table, [live], ManifestContent.DATA, deleted=[gone])
    assert [file.url for file in await planned_files(table)] == ["file:///live"]


# -- requests -------------------------------------------------------------------------------------


async def test_manifests_are_pruned_and_read_once(tmp_path: Path) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    with table.update_spec() as update:
        update.add_field("name", IdentityTransform(), "name")
    for number in range(4):
        table.append(id_name_rows(number, number + 1))
    reader = LocalReader()
    snapshot = await IcebergCatalog(table.metadata_location).snapshot(reader)
    assert [url.rpartition(".")[2] for url in reader.read] == ["json"]
    (file,) = await snapshot.files(col("name") == "n2", reader)
    assert [url.rpartition(".")[2] for url in reader.read[1:]] == ["avro", "avro"]  # the list, one of four manifests
    assert file.partition == {"name": "n2"}
    assert len(await snapshot.files(None, reader)) == 4
    assert len(reader.read) == 6
    await snapshot.files(col("id") == 3, reader)
    assert len(reader.read) == 6


async def test_one_partition_s_files_are_opened(tmp_path: Path) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    with table.update_spec() as update:
        update.add_field("id", BucketTransform(8), "bucket")
    table.append(id_name_rows(0, 50))
    assert len(data_files(table)) == 8
    async with asyncpq.open_dataset(table) as dataset:
        found = await dataset.read(where=col("id") == 17)
        assert found.to_pylist() == [{"id": 17, "name": "n17"}]
        assert dataset.metrics.files_opened == 1


async def test_metadata_is_decoded_off_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 1))
    threads = []
    for name in ("decode_table_metadata", "decode_manifest_list", "decode_manifest"):
        call = getattr(iceberg, name)

        def noted(*args: Any, call: Any = call) -> Any:
            threads.append(threading.current_thread())
            return call(*args)

        monkeypatch.setattr(iceberg, name, noted)
    await planned_files(table.metadata_location)
    assert len(threads) == 3
    assert threading.main_thread() not in threads


# -- what is refused ------------------------------------------------------------------------------


@pytest.mark.parametrize("file_format", [FileFormat.ORC, FileFormat.AVRO])
async def test_other_data_files_are_refused_where_they_are_read(tmp_path: Path, file_format: FileFormat) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 5))
    bounds = {side: {1: (100).to_bytes(8, "little")} for side in ("lower_bounds", "upper_bounds")}
    record = data_record(table, "file:///x.other", Record(), file_format=file_format, record_count=7, **bounds)
    add_files(table, [record], ManifestContent.DATA)
    refused = rf"db\.events has data files in {file_format.value}: only Parquet is read; .*x\.other"
    with pytest.raises(UnsupportedFeatureError, match=refused):
        await read_rows(table)
    with pytest.raises(UnsupportedFeatureError, match=refused):
        await read_rows(table, where=col("id") == 100)
    assert (await read_rows(table, where=col("id") < 100)).equals(id_name_rows(0, 5))
    async with asyncpq.open_dataset(table, on_bad_file="skip") as dataset:
        assert await dataset.count() == 12  # the manifest knows
        assert (await dataset.read()).num_rows == 5
        assert [skipped.url for skipped in dataset.skipped] == ["file:///x.other"]


async def test_file_sizes_of_manifests_are_advisory(tmp_path: Path) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    for start, wrong in ((0, 1), (5, 10**9), (10, 0), (15, -4)):
        rows = tagged(id_name_rows(start, start + 5), table.schema())
        add_files(table, [written_file(table, rows, file_size_in_bytes=wrong)], ManifestContent.DATA)
    assert (await read_rows(table)).equals(id_name_rows(0, 20))
    async with asyncpq.open_dataset(table) as dataset:
        assert (await dataset.lookup({"id": 7})).num_rows == 1
        plan = await dataset.plan(where=col("id") == 7)
        assert "the table's size of a file, 1000000000 bytes, is ignored" in plan.explain()
        assert [reason for one in plan.files for reason in one.fallbacks if "size of a file" in reason]


@pytest.mark.parametrize("mapping", ["not JSON", "[{]", '{"a": 1}', '[{"field-id": "x", "names": 3}]', "[" * 5000])
async def test_a_bad_name_mapping_concerns_files_without_ids(
    tmp_path: Path, mapping: str, caplog: pytest.LogCaptureFixture
) -> None:
    table = make_table(tmp_path, ID_NAME_SCHEMA)
    table.append(id_name_rows(0, 5))
    with table.transaction() as transaction:
        transaction.set_properties({"schema.name-mapping.default": mapping})
    assert (await read_rows(table)).equals(id_name_rows(0, 5))
    assert "schema.name-mapping.default is ignored" in caplog.text
    add_files(table, [written_file(table, id_name_rows(5, 6))], ManifestContent.DATA)
    with pytest.raises(SchemaMismatchError, match="no valid name mapping"):
        await read_rows(table)
