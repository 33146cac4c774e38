"""Equality deletes of Iceberg tables: which apply to a data file, and which of its rows equal a key.

pyiceberg does not read them, and DuckDB 1.4 takes rows with nulls for deleted: expected are the rows that the table
spec leaves.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import math
import os
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, FileFormat, ManifestContent
from pyiceberg.schema import Schema
from pyiceberg.table import StaticTable, Table
from pyiceberg.table.name_mapping import create_mapping_from_schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import LongType, NestedField, StringType, TimestampNanoType, TimestamptzNanoType

import asyncpq
from asyncpq import ReadOptions, col
from asyncpq.errors import CorruptFileError, RowIndexError, UnsupportedFeatureError
from asyncpq.indexing import Bounds, Keys, MemoryBackend
from tests.costs import cost_of
from tests.iceberg_tables import (
    add_files,
    data_files,
    deletion_vectors,
    edited_metadata,
    equality_deletes,
    make_table,
    path_of,
    position_deletes,
    tagged,
    written_file,
)

_SCHEMA = pa.schema([("id", pa.int32()), ("name", pa.string()), ("x", pa.float64())])


def _rows(start: int, stop: int) -> pa.Table:
    numbers = range(start, stop)
    return pa.table({"id": numbers, "name": [f"n{n % 10}" for n in numbers], "x": [n / 2 for n in numbers]}, _SCHEMA)


@pytest.fixture
def table(tmp_path: Path) -> Table:
    """A file of 100 rows."""
    made = make_table(tmp_path, _SCHEMA)
    made.append(_rows(0, 100))
    return made


def _delete(table: Table, keys: dict[str, Sequence[Any]], like: DataFile | None = None, **more: Any) -> DataFile:
    """A delete file by columns of the present schema."""
    schema = table.schema()
    values = tagged(
        pa.table(
            {name: found if isinstance(found, pa.Array) else pa.array(list(found)) for name, found in keys.items()}
        ),
        schema,
    )
    field_ids = [schema.find_field(name).field_id for name in keys]
    return equality_deletes(table, values, like=like or data_files_of(table)[0], field_ids=field_ids, **more)


def data_files_of(table: Table) -> list[DataFile]:
    """pyiceberg's records of the data files, which it gives for tables without equality deletes only."""
    snapshot = table.current_snapshot()
    assert snapshot is not None
    manifests = [one for one in snapshot.manifests(table.io) if one.content == ManifestContent.DATA]
    return [entry.data_file for manifest in manifests for entry in manifest.fetch_manifest_entry(table.io)]


async def _read(table: Table | str, *, options: dict[str, Any] | None = None, **asked: Any) -> pa.Table:
    async with asyncpq.open_dataset(table, format="iceberg", **(options or {})) as dataset:
        return await dataset.read(**asked)


async def _ids(table: Table | str, **asked: Any) -> list[int]:
    found: list[int] = (await _read(table, columns=["id"], **asked)).column("id").to_pylist()
    return sorted(found)


# -- which delete files apply ---------------------------------------------------------------------


async def test_keys_delete_older_rows_only(table: Table) -> None:
    add_files(table, [_delete(table, {"id": [3, 120, 99]})])
    table.append(_rows(100, 130))
    assert await _ids(table) == [n for n in range(130) if n not in (3, 99)]


async def test_an_upsert_keeps_what_it_writes(table: Table) -> None:
    """Deletes and rows of one commit have one sequence number."""
    rows = tagged(_rows(5, 8), table.schema())
    add_files(table, [_delete(table, {"id": [5, 6, 7]})], data=[written_file(table, rows)])
    found = await _read(table)
    assert sorted(found.column("id").to_pylist()) == list(range(100))
    assert found.num_rows == 100


async def test_several_columns_make_one_key(table: Table) -> None:
    keys: dict[str, Sequence[Any]] = {
        "id": [10, 11, 12, 13],
        "name": ["n0", "n0", "n2", None],
        "x": [5.0, 5.5, 6.0, 6.5],
    }
    add_files(table, [_delete(table, keys)])
    assert await _ids(table) == [n for n in range(100) if n not in (10, 12)]


async def test_delete_files_add_up(table: Table) -> None:
    add_files(table, [_delete(table, {"id": [1]}), _delete(table, {"id": [2, 1]}), _delete(table, {"name": ["n7"]})])
    add_files(table, [_delete(table, {"x": [4.0]})])
    assert await _ids(table) == [n for n in range(100) if n not in (1, 2, 8) and n % 10 != 7]


async def test_together_with_positions_and_vectors(table: Table) -> None:
    (file,) = data_files(table)
    add_files(table, [_delete(table, {"id": [1, 2]}), position_deletes(table, {file.file_path: [2, 3]}, like=file)])
    assert await _ids(table) == [0, *range(4, 100)]
    add_files(table, deletion_vectors(table, {file.file_path: [2, 3, 50]}, like=file))
    assert await _ids(table) == [0, *(n for n in range(4, 100) if n != 50)]


async def test_partitions_bound_keys_and_no_partition_does_not(tmp_path: Path) -> None:
    table = make_table(tmp_path, pa.schema([("id", pa.int64()), ("part", pa.string())]))
    old = tagged(pa.table({"id": [1, 2], "part": ["a", "b"]}), table.schema())
    add_files(table, [written_file(table, old)], ManifestContent.DATA)
    with table.update_spec() as update:
        update.add_field("part", IdentityTransform(), "part")
    table.append(pa.table({"id": [1, 2, 1, 2], "part": ["a", "a", "b", "b"]}))
    like_a, like_b = sorted(data_files(table), key=lambda file: str(file.partition))[1:]
    assert [like_a.partition, like_b.partition] == [Record("a"), Record("b")]
    add_files(table, [_delete(table, {"id": [1]}, like_a)])
    expected = [(1, "a"), (1, "b"), (2, "a"), (2, "b"), (2, "b")]
    assert sorted(zip(*(await _read(table)).to_pydict().values(), strict=True)) == expected

    like_none = written_file(table, old)
    like_none.spec_id = 0
    add_files(table, [_delete(table, {"id": [2]}, like_none)])
    assert sorted(zip(*(await _read(table)).to_pydict().values(), strict=True)) == [(1, "a"), (1, "b")]


@pytest.mark.parametrize(
    ("partition", "keys", "left"),
    [
        (0.0, {"x": [math.inf]}, [1, 2, 3, 4]),
        (0.0, {"x": [-0.0]}, [0, 2, 3, 4]),
        (0.0, {"x": [0.0]}, [0, 1, 4]),
        (-0.0, {"x": [-0.0]}, [0, 1, 2, 3]),
        (-0.0, {"id": range(5)}, [0, 1, 2, 3]),
    ],
)
async def test_zeros_of_partitions_are_what_the_files_have(
    tmp_path: Path, partition: float, keys: dict[str, Sequence[Any]], left: list[int]
) -> None:
    """Trino 483 gives infinity the partition 0.0, and -0.0 as well; others have a partition for each zero."""
    table = make_table(tmp_path, pa.schema([("id", pa.int64()), ("x", pa.float64())]))
    with table.update_spec() as update:
        update.add_field("x", IdentityTransform(), "part")
    rows = pa.table({"id": range(5), "x": [math.inf, -0.0, 0.0, 0.0, -0.0]})
    files = []
    for row in range(5):
        content = tagged(rows.slice(row, 1), table.schema())
        zero = Record(-0.0 if row == 4 else 0.0)
        files.append(written_file(table, content.drop_columns("x") if row == 3 else content, zero))
    add_files(table, files, ManifestContent.DATA)
    (like,) = [file for file in files[2:5:2] if str(file.partition[0]) == str(partition)]
    add_files(table, [_delete(table, keys, like)])
    assert await _ids(table) == left


async def test_a_spec_of_void_transforms_is_no_partition(table: Table) -> None:
    def add_void_spec(document: dict[str, Any]) -> None:
        part = {"name": "gone", "transform": "void", "source-id": 2, "field-id": 1000}
        document["partition-specs"].append({"spec-id": 1, "fields": [part]})

    url = edited_metadata(table, add_void_spec)
    void = StaticTable.from_metadata(url)
    like = written_file(table, tagged(_rows(0, 1), table.schema()), Record(None))
    like.spec_id = 1
    table.metadata.partition_specs.append(void.metadata.specs()[1])
    add_files(table, [_delete(table, {"id": [4]}, like)])
    assert await _ids(edited_metadata(table, add_void_spec)) == [n for n in range(100) if n != 4]


# -- how values are compared ----------------------------------------------------------------------


async def test_values_are_compared_as_java_does(tmp_path: Path) -> None:
    """``Float.compare`` and ``Double.compare``: NaN equals NaN, -0.0 is not 0.0; null equals null."""
    for kind in (pa.float32(), pa.float64()):
        table = make_table(tmp_path, pa.schema([("id", pa.int64()), ("x", kind)]))
        other_nan = pa.array([0x7FC00001 if kind == pa.float32() else 0x7FF8000000000001]).cast(
            pa.int32() if kind == pa.float32() else pa.int64()
        )
        values = pa.concat_arrays([pa.array([0.0, -0.0, math.nan, None, 1.5], kind), other_nan.view(kind)])
        rows = pa.table({"id": range(6), "x": values})
        table.append(rows)
        (file,) = data_files(table)
        for keys, left in (([-0.0], {0, 2, 3, 4, 5}), ([math.nan, None], {0, 4}), ([0.0], {4})):
            add_files(table, [_delete(table, {"x": pa.array(keys, kind)}, file)])
            assert set(await _ids(table)) == left


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "values",
    [
        pa.array([True, False, None, True]),
        pa.array([Decimal("1.10"), Decimal("-2.00"), None, Decimal("9.99")], pa.decimal128(5, 2)),
        pa.array([dt.date(2024, 2, 29), dt.date(1500, 1, 1), None, dt.date(1970, 1, 1)]),
        pa.array([dt.time(1, 2, 3, 4), dt.time(0), None, dt.time(23, 59)], pa.time64("us")),
        pa.array([dt.datetime(2024, 1, 1, 1), dt.datetime(1900, 1, 1), None, dt.datetime(1, 1, 1)], pa.timestamp("us")),
        pa.array(
            [dt.datetime(2024, 1, 1), dt.datetime(1900, 1, 1), None, dt.datetime(1, 1, 1)], pa.timestamp("us", "UTC")
        ),
        pa.array(["", "ä", None, "x" * 300]),
        pa.array([b"", b"\xff\x00", None, b"x" * 300]),
        pa.array([b"abcd", b"\xff\xff\xff\xff", None, b"\x00\x00\x00\x00"], pa.binary(4)),
        pa.array([2**62, -(2**63), None, 0]),
    ],
    ids=lambda values: str(values.type),
)
async def test_each_type_of_key(tmp_path: Path, values: pa.Array) -> None:
    table = make_table(tmp_path, pa.schema([("id", pa.int64()), ("key", values.type)]))
    table.append(pa.table({"id": range(8), "key": pa.concat_arrays([values, values])}))
    (file,) = data_files(table)
    left = set(range(8))
    for number in (1, 2, 0):
        add_files(table, [_delete(table, {"key": values.slice(number, 1)}, file)])
        left -= {at for at in range(8) if values[at % 4] == values[number]}
        assert set(await _ids(table)) == left
    assert left == ({3, 7} if values.type != pa.bool_() else set())


@pytest.mark.parametrize("number", [1, 2000], ids=["few", "many"])
@pytest.mark.parametrize(
    ("values", "other"),
    [
        (pa.array([dt.date(1970, 1, 1), dt.date(2024, 2, 29), None]), pa.array([4_000_000], pa.date32())),
        (pa.array(["a", "b", None]), pa.array([b"\xff"]).view(pa.string())),
        (pa.array([dt.datetime(1970, 1, 1), dt.datetime(2024, 2, 29), None]), pa.array([10**18], pa.timestamp("us"))),
    ],
    ids=["year 12921", "no UTF-8", "year 33658"],
)
async def test_keys_that_python_does_not_have(tmp_path: Path, values: pa.Array, other: pa.Array, number: int) -> None:
    table = make_table(tmp_path, pa.schema([("id", pa.int64()), ("key", values.type)]))
    table.append(pa.table({"id": range(3), "key": values}))
    (file,) = data_files(table)
    plain = [str(n) for n in range(number)] if values.type == pa.string() else range(number)
    keys = pa.concat_arrays([values.slice(0, 1), other, pa.array(plain, values.type)])
    add_files(table, [_delete(table, {"key": keys}, file)])
    assert await _ids(table) == [1, 2]


async def test_a_null_struct_is_no_struct_of_nulls(tmp_path: Path) -> None:
    place = pa.struct([("city", pa.string()), ("zip", pa.int32())])
    table = make_table(tmp_path, pa.schema([("id", pa.int64()), ("place", place)]))
    places = [None, {"city": None, "zip": 1}, {"city": "x", "zip": 1}, {"city": "x", "zip": None}]
    table.append(pa.table({"id": range(4), "place": pa.array(places, place)}))
    (file,) = data_files(table)
    city = table.schema().find_field("place.city").field_id
    part = pa.schema([table.schema().select("place.city").as_arrow().field("place")])
    for key, left in (({"city": None}, [0, 2, 3]), ({"city": "x"}, [0]), (None, [])):
        keys = pa.table({"place": pa.array([key], pa.struct([("city", pa.string())]))}).cast(part)
        add_files(table, [equality_deletes(table, keys, like=file, field_ids=[city])])
        assert await _ids(table) == left


# -- columns that changed -------------------------------------------------------------------------


async def test_renamed_promoted_added_and_dropped_columns(table: Table) -> None:
    old = table.schema()
    by_name = tagged(pa.table({"name": ["n1", "n2"]}), old)
    with table.update_schema(allow_incompatible_changes=True) as update:
        update.rename_column("id", "key")
        update.update_column("id", LongType())
        update.delete_column("name")
        update.add_column("extra", StringType())
    with table.update_schema() as update:
        update.add_column("name", StringType())  # another column than the dropped one
    rows = pa.table({"key": [100, 101, 2**40], "x": [0.0, 1.0, 2.0], "extra": ["e", None, "f"], "name": ["n1"] * 3})
    table.append(rows.select(table.schema().as_arrow().names))
    like = data_files(table)[0]

    async def keys() -> list[int]:
        found: list[int] = (await _read(table, columns=["key"])).column("key").to_pylist()
        return sorted(found)

    left = [*range(100), 100, 101, 2**40]
    add_files(table, [_delete(table, {"key": [5, 2**40]}, like)])
    left = [n for n in left if n not in (5, 2**40)]
    assert await keys() == left
    # the dropped column still counts, under its id
    add_files(table, [equality_deletes(table, by_name, like=like, field_ids=[2])])
    left = [n for n in left if n >= 100 or n % 10 not in (1, 2)]
    assert await keys() == left
    add_files(table, [_delete(table, {"name": ["n1"], "key": [100]}, like)])
    left.remove(100)
    assert await keys() == left
    add_files(table, [_delete(table, {"extra": pa.array([None] * 2, pa.string()), "key": [7, 101]}, like)])
    left = [n for n in left if n not in (7, 101)]
    assert await keys() == left
    nulls = tagged(pa.table({"name": pa.array([None], pa.string())}), old)
    table.append(rows.slice(0, 1).select(table.schema().as_arrow().names))
    add_files(table, [equality_deletes(table, nulls, like=like, field_ids=[2])])
    left = [n for n in left if n < 100]  # rows that lack the dropped column are null there
    assert await keys() == left


async def test_a_default_is_a_value(table: Table) -> None:
    with table.update_schema() as update:
        update.add_column("country", StringType())

    def add_default(document: dict[str, Any]) -> None:
        document["format-version"], document["next-row-id"] = 3, 0
        for schema in document["schemas"]:
            for part in schema["fields"]:
                if part["name"] == "country":
                    part["initial-default"] = part["write-default"] = "CH"

    nowhere = pa.array([None], pa.string())
    add_files(table, [_delete(table, {"country": ["CH"] * 2, "id": [1, 2]})])
    add_files(table, [_delete(table, {"country": nowhere, "id": [3]})])
    assert await _ids(edited_metadata(table, add_default)) == [0, *range(3, 100)]
    assert await _ids(table) == [n for n in range(100) if n != 3]


async def test_files_without_field_ids_go_by_the_name_mapping(table: Table) -> None:
    location = f"{table.location()}/data/plain.parquet"
    pq.write_table(_rows(100, 110), path_of(location))
    mapping = create_mapping_from_schema(table.schema()).model_dump_json()
    with table.transaction() as transaction:
        transaction.set_properties({"schema.name-mapping.default": mapping})
    table.add_files([location])
    (like, *_) = data_files(table)
    plain = pa.table({"name": ["n3"], "id": pa.array([103], pa.int32())})
    add_files(table, [equality_deletes(table, plain, like=like, field_ids=[2, 1]), _delete(table, {"id": [4]}, like)])
    assert await _ids(table) == [n for n in range(110) if n not in (4, 103)]


# -- reads ----------------------------------------------------------------------------------------


@pytest.fixture
def deleted(table: Table) -> Table:
    """Of 100 rows, those of ids 10 to 19, and those with a name that ends in 7."""
    add_files(table, [_delete(table, {"id": range(10, 20)}), _delete(table, {"name": ["n7"]})])
    return table


async def test_every_verb_sees_the_rows_that_are_left(deleted: Table) -> None:
    left = [n for n in range(100) if not 10 <= n < 20 and n % 10 != 7]
    async with asyncpq.open_dataset(deleted) as dataset:
        assert await dataset.count() == len(left)
        assert await dataset.count(where=col("id") < 30) == len([n for n in left if n < 30])
        assert await dataset.count(where=col("name") == "n7") == 0
        assert (await dataset.read(["x"])).column("x").to_pylist() == [n / 2 for n in left]
        assert (await dataset.read(["id"], where=col("x") > 20)).column("id").to_pylist() == [n for n in left if n > 40]
        assert (await dataset.read(["x"], where=col("x") == 5.0)).num_rows == 0
        assert (await dataset.lookup({"id": [3, 15, 27, 28]}, columns=["name"])).num_rows == 2
        assert (await dataset.read(["id"], limit=12)).column("id").to_pylist() == left[:12]
        async with dataset.scan(["name"], where=col("id") >= 50) as scan:
            found: list[str] = []
            async for batch in scan:
                found += batch.column(0).to_pylist()
        assert found == [f"n{n % 10}" for n in left if n >= 50]
        (url,) = await dataset.files()
        assert (await dataset.take([(url, 20), (url, 8)], columns=["id"])).column("id").to_pylist() == [20, 8]
        with pytest.raises(RowIndexError, match="deleted"):
            await dataset.take([(url, 12)])
        text = (await dataset.plan(["x"])).explain()
        assert f"rows that may match: {len(left)} of 100" in text


async def test_a_file_s_deletes_are_loaded_once(deleted: Table) -> None:
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(deleted)
        cost = await cost_of(dataset.count())
        # manifest list and manifests; the file, and two delete files
        assert cost.requests_by_purpose == {"table": 3, "tail": 3}
        cost = await cost_of(asyncio.gather(dataset.count(where=col("x") > 1), dataset.read(["id"])))
        assert cost.requests == 0


async def test_an_index_lists_rows_that_are_deleted_since(table: Table) -> None:
    async with asyncpq.Session() as session:
        at = MemoryBackend()
        await session.build_index(table, [Keys("id"), Bounds("x")], at=at)
        add_files(table, [_delete(table, {"id": [3, 50]})])
        index = await session.build_index(table, [Keys("id"), Bounds("x")], at=at)
        dataset = await session.open_dataset(table, index=index)
        found = await dataset.lookup({"id": [2, 3, 50, 51]}, columns=["id"])
        assert sorted(found["id"].to_pylist()) == [2, 51]
        assert await dataset.count(where=col("x") >= 25.0) == 49
        assert await dataset.count() == 98


async def test_delete_files_with_keys_outside_of_a_file_are_not_read(table: Table) -> None:
    def bounds(field_id: int, low: int, high: int) -> dict[str, Any]:
        return {
            "lower_bounds": {field_id: low.to_bytes(4, "little")},
            "upper_bounds": {field_id: high.to_bytes(4, "little")},
            "null_value_counts": {field_id: 0},
        }

    far = _delete(table, {"id": [700]}, **bounds(1, 700, 700))
    near = _delete(table, {"id": [99, 700]}, **bounds(1, 99, 700))
    add_files(table, [far])
    os.unlink(path_of(far.file_path))
    assert await _ids(table) == list(range(100))
    async with asyncpq.open_dataset(table) as dataset:
        assert await dataset.count() == 100
        assert dataset.metrics.files_opened == 0  # no delete can touch it: the manifest's count holds
    add_files(table, [near])
    assert await _ids(table) == list(range(99))
    with pytest.raises(FileNotFoundError):  # bounds do not count, so all are read
        await _read(table, options={"read": ReadOptions(trust_statistics=False)})


async def test_only_pages_with_keys_are_read_of_a_large_file(tmp_path: Path) -> None:
    table = make_table(tmp_path, _SCHEMA)
    many = tagged(_rows(0, 200_000), table.schema())
    add_files(table, [written_file(table, many, row_group_size=10_000)], ManifestContent.DATA)
    add_files(table, [_delete(table, {"id": [5, 150_000]})])
    async with asyncpq.open_dataset(table) as dataset:
        assert await dataset.count() == 199_998
        with asyncpq.measure() as cost:
            assert (await dataset.lookup({"id": [4, 5, 150_000, 150_001]}, columns=["id"])).num_rows == 2
        assert cost.bytes_fetched < 200_000


async def test_more_keys_than_are_listed(tmp_path: Path) -> None:
    table = make_table(tmp_path, _SCHEMA)
    table.append(_rows(0, 20_000))
    keys = [None, *range(1, 20_000, 3)]
    add_files(table, [_delete(table, {"id": pa.array(keys, pa.int32())})])
    assert await _ids(table) == [n for n in range(20_000) if n % 3 != 1]


# -- what cannot be read --------------------------------------------------------------------------


async def test_other_formats_are_refused_where_they_apply(table: Table) -> None:
    record = _delete(table, {"id": [3]})
    record._data[2] = FileFormat.ORC
    add_files(table, [record])
    table.append(_rows(100, 110))
    with pytest.raises(UnsupportedFeatureError, match=r"db\.events has equality deletes in ORC: only Parquet is read"):
        await _read(table)
    with pytest.raises(UnsupportedFeatureError, match="equality deletes in ORC"):
        async with asyncpq.open_dataset(table) as dataset:
            await dataset.count()
    assert await _ids(table, where=col("id") >= 100) == list(range(100, 110))


@pytest.mark.parametrize("field_ids", [[], [77]])
async def test_keys_of_unknown_columns_are_corrupt(table: Table, field_ids: list[int]) -> None:
    keys = tagged(pa.table({"id": [3]}), table.schema())
    add_files(table, [equality_deletes(table, keys, like=data_files(table)[0], field_ids=field_ids)])
    with pytest.raises(CorruptFileError, match="equality deletes by unknown fields"):
        await _read(table)


@pytest.mark.parametrize("zone", [None, "UTC"])
async def test_keys_of_nanoseconds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, zone: str | None) -> None:
    table = make_table(tmp_path, pa.schema([("t", pa.timestamp("us", zone))]))
    schema = Schema(NestedField(1, "t", TimestamptzNanoType() if zone else TimestampNanoType(), required=False))
    monkeypatch.setattr(table, "schema", lambda: schema)  # pyiceberg 0.12 writes no format 3

    def moments(*numbers: int) -> pa.Table:
        return tagged(pa.table({"t": pa.array(numbers, pa.int64()).cast(pa.timestamp("ns", zone))}), schema)

    def bounds(low: int, high: int) -> dict[str, Any]:
        ends = {"lower_bounds": low, "upper_bounds": high}
        return {name: {1: end.to_bytes(8, "little", signed=True)} for name, end in ends.items()}

    data = [written_file(table, moments(-1, 0, 1), **bounds(-1, 1), null_value_counts={1: 0})]
    data.append(written_file(table, moments(7, 8), **bounds(7, 8), null_value_counts={1: 0}))
    add_files(table, data, ManifestContent.DATA)
    keys = equality_deletes(table, moments(0, 1), like=data[0], field_ids=[1], **bounds(0, 1), null_value_counts={1: 0})
    add_files(table, [keys])

    def edit(document: dict[str, Any]) -> None:
        document.update({"format-version": 3, "next-row-id": 5})
        document["schemas"][0]["fields"][0]["type"] = str(schema.fields[0].field_type)

    async with asyncpq.open_dataset(edited_metadata(table, edit), format="iceberg") as dataset:
        assert (await dataset.read()).sort_by("t").equals(moments(-1, 7, 8).cast(dataset.schema))
