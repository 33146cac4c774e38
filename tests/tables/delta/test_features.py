"""Delta's column mapping and type widening, in tables that are written here, and what is refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.errors import AmbiguousColumnError, CorruptFileError, FormatError, UnsupportedFeatureError
from tests.delta_tables import (
    ID,
    DeltaWriter,
    add,
    assert_same_as_duckdb,
    column,
    ids,
    metadata,
    protocol,
    rows_of,
    snapshot_of,
)


def _with_ids(schema: pa.Schema, first: int) -> pa.Schema:
    fields = [field.with_metadata({"PARQUET:field_id": str(first + index)}) for index, field in enumerate(schema)]
    return pa.schema(fields)


async def test_columns_by_physical_name(writer: DeltaWriter) -> None:
    """Also in structs, statistics and partition values; a column added under an old name is another column.

    DuckDB 1.5.5 gives null for mapped partition columns.
    """
    mode = {"delta.columnMapping.mode": "name"}
    struct = {"type": "struct", "fields": [column("x", "integer", physical="phys-x", id_=3)]}
    fields = [column("a", "long", physical="phys-a", id_=1), column("s", struct, physical="phys-s", id_=2)]
    part = column("p", "date", physical="phys-p", id_=4)
    inner = pa.array([{"phys-x": 7}, {"phys-x": None}], pa.struct([("phys-x", pa.int32())]))
    stats = {"minValues": {"phys-a": 1, "phys-s": {"phys-x": 7}}, "nullCount": {"phys-a": 0, "phys-s": {"phys-x": 1}}}
    first = writer.file(
        "f.parquet", pa.table({"phys-a": [1, 2], "phys-s": inner}), stats=stats, partition={"phys-p": "2020-01-02"}
    )
    writer.commit(
        protocol("columnMapping"), metadata(*fields, part, partition_columns=["p"], configuration=mode), first
    )
    rows = (await rows_of(await snapshot_of(writer.folder))).to_pylist()
    assert rows[1] == {"a": 2, "s": {"x": None}, "p": dt.date(2020, 1, 2)}
    renamed = [fields[0] | {"name": "b"}, fields[1], part, column("a", "long", physical="other-a", id_=9)]
    writer.commit(metadata(*renamed, partition_columns=["p"], configuration=mode))
    rows = (await rows_of(await snapshot_of(writer.folder))).to_pylist()
    assert rows[0] == {"b": 1, "s": {"x": 7}, "p": dt.date(2020, 1, 2), "a": None}
    bounds = (await snapshot_of(writer.folder)).data_files[0].bounds
    assert bounds["b"].min == 1
    assert (bounds["s.x"].min, bounds["s.x"].null_count) == (7, 1)
    assert "a" not in bounds


async def test_columns_by_id(writer: DeltaWriter) -> None:
    """As Spark does, and the protocol says; DuckDB 1.5.5 goes by name."""
    fields = [column("a", "long", physical="x", id_=1), column("b", "long", physical="y", id_=2)]
    table = pa.table({"y": [1, 2], "x": [3, 4]})
    ided = table.cast(_with_ids(table.schema, 1))  # ids cross the names
    writer.commit(
        protocol("columnMapping"),
        metadata(*fields, configuration={"delta.columnMapping.mode": "id"}),
        writer.file("f.parquet", ided),
    )
    assert (await rows_of(await snapshot_of(writer.folder))).to_pylist()[0] == {"a": 1, "b": 3}
    (first, second) = (await snapshot_of(writer.folder)).fields or ()
    assert (first.field_id, first.names, second.field_id) == (1, ("x",), 2)


def _protocol(reader: int, writer: int, **features: list[str]) -> dict[str, Any]:
    return {"protocol": {"minReaderVersion": reader, "minWriterVersion": writer, **features}}


@pytest.mark.parametrize("mode", ["name", "id", "NAME"])
@pytest.mark.parametrize(
    "said",
    [
        _protocol(3, 7, readerFeatures=[], writerFeatures=["columnMapping"]),
        _protocol(3, 7, readerFeatures=["columnMapping"], writerFeatures=[]),
        _protocol(3, 7, readerFeatures=["columnMapping"], writerFeatures=["columnMapping"]),
        _protocol(1, 7, writerFeatures=["columnMapping"]),
        _protocol(2, 7, writerFeatures=["columnMapping"]),
        _protocol(2, 5),
    ],
)
async def test_either_list_of_the_protocol_may_have_column_mapping(
    writer: DeltaWriter, said: dict[str, Any], mode: str
) -> None:
    """As Spark reads such tables, and deltalake those of the first kind: values under physical names, not nulls."""
    fields = [column("a", "long", physical="x", id_=1), column("p", "long", physical="y", id_=2)]
    table = pa.table({"x": [1, 2]}, _with_ids(pa.schema([("x", pa.int64())]), 1))
    stats = {"minValues": {"x": 1}, "maxValues": {"x": 2}}
    writer.commit(
        said,
        metadata(*fields, partition_columns=["p"], configuration={"delta.columnMapping.mode": mode}),
        writer.file("f.parquet", table, partition={"y": "7"}, stats=stats),
    )
    snapshot = await snapshot_of(writer.folder)
    assert (await rows_of(snapshot)).to_pylist() == [{"a": 1, "p": 7}, {"a": 2, "p": 7}]
    assert snapshot.data_files[0].bounds["a"].max == 2
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(writer.folder), format="delta")
        assert (await dataset.read(where=asyncpq.col("a") == 2)).to_pylist() == [{"a": 2, "p": 7}]


@pytest.mark.parametrize("mode", ["name", "id"])
@pytest.mark.parametrize("stored", [("x", "s", "y"), ("c-1", "c-2", "c-3")])
async def test_a_mapping_that_the_list_of_features_lacks_has_no_effect(
    writer: DeltaWriter, mode: str, stored: tuple[str, str, str]
) -> None:
    """As in tables of deltalake 1.6.6 with a timestamp without time zone. Files with physical names are read, too."""
    x, s, y = stored
    ntz = ["timestampNtz"]
    inner = {"type": "struct", "fields": [column("y", "long", physical="c-3", id_=3)]}
    fields = [
        column("x", "timestamp_ntz", physical="c-1", id_=1),
        column("s", inner, physical="c-2", id_=2),
        column("p", "long", physical="c-4", id_=4),
    ]
    times = [dt.datetime(2024, 5, 1), None]
    table = pa.table({x: pa.array(times, pa.timestamp("us")), s: [{y: 5}, {y: None}]})
    stats = {"minValues": {s: {y: 5}}, "maxValues": {s: {y: 5}}, "nullCount": {s: {y: 1}}}
    writer.commit(
        _protocol(3, 7, readerFeatures=ntz, writerFeatures=ntz),
        metadata(*fields, partition_columns=["p"], configuration={"delta.columnMapping.mode": mode}),
        writer.file("f.parquet", table, partition={"p": "7"}, stats=stats),
    )
    expected = [{"x": times[0], "s": {"y": 5}, "p": 7}, {"x": None, "s": {"y": None}, "p": 7}]
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(writer.folder), format="delta")
        assert (await dataset.read()).to_pylist() == expected
        assert (await dataset.read(where=asyncpq.col("s.y") == 5)).to_pylist() == expected[:1]
        assert (await dataset.read(where=asyncpq.col("x").is_null())).to_pylist() == expected[1:]
        assert (await dataset.lookup({"x": times[:1]})).to_pylist() == expected[:1]
        assert await dataset.count(where=asyncpq.col("p") == 7) == 2


async def test_a_mapping_that_an_older_protocol_lacks_is_refused(writer: DeltaWriter) -> None:
    """Where names differ: deltalake does not apply it, Spark does, and DuckDB refuses."""
    said = _protocol(1, 2)
    mode = {"delta.columnMapping.mode": "name"}
    inner = {"type": "struct", "fields": [column("x", "long", physical="x")]}
    writer.commit(said, metadata(column("id", "long", physical="id"), column("s", inner), configuration=mode))
    writer.commit(writer.file("f.parquet", ids(1, 2)))
    assert [row["id"] for row in (await rows_of(await snapshot_of(writer.folder))).to_pylist()] == [1, 2]
    inner["fields"] = [column("x", "long", physical="phys")]
    writer.commit(metadata(ID, column("s", inner), configuration=mode))
    with pytest.raises(UnsupportedFeatureError, match="'phys' or as 'x'") as caught:
        await snapshot_of(writer.folder)
    assert caught.value.column == "s.x"
    writer.commit(metadata(ID, column("s", inner)))  # without the mode, names are names
    assert (await rows_of(await snapshot_of(writer.folder))).num_rows == 2


async def test_a_file_may_have_a_name_in_another_case(writer: DeltaWriter) -> None:
    """As in tables that were converted; Spark and DuckDB find such columns. The exact name comes first."""
    inner = {"type": "struct", "fields": [column("x", "long"), column("Y", "long")]}
    columns = [column("Id", "long"), column("s", inner), column("other", "long")]
    first = pa.table({"ID": [1], "S": [{"X": 2, "y": 3}]})
    second = pa.table({"ID": [0], "Id": [4], "s": [{"X": 0, "x": 5, "Y": 6}], "OTHER": [7]})
    writer.commit(protocol(), metadata(*columns), writer.file("f.parquet", first), writer.file("g.parquet", second))
    expected = [{"Id": 1, "s": {"x": 2, "Y": 3}, "other": None}, {"Id": 4, "s": {"x": 5, "Y": 6}, "other": 7}]
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(writer.folder), format="delta")
        assert (await dataset.read()).to_pylist() == expected
        assert (await dataset.read(where=asyncpq.col("s.x") == 2)).to_pylist() == expected[:1]
        assert (await dataset.lookup({"Id": [1, 4]})).to_pylist() == expected
        writer.commit(writer.file("h.parquet", pa.table({"iD": [8], "ID": [9]})))
        dataset = await session.open_dataset(str(writer.folder), format="delta")
        with pytest.raises(AmbiguousColumnError, match="'Id'"):
            await dataset.read()
        assert (await dataset.read(["other"]))["other"].to_pylist() == [None, 7, None]


async def test_wider_types(writer: DeltaWriter) -> None:
    def changed(name: str, before: str, after: str) -> dict[str, Any]:
        return column(name, after, more={"delta.typeChanges": [{"fromType": before, "toType": after}]})

    old = pa.table(
        {
            "i": pa.array([1, -5], pa.int32()),
            "f": pa.array([1.1, -0.1], pa.float32()),
            "d": pa.array([Decimal("1.25"), None], pa.decimal128(5, 2)),
            "t": pa.array([dt.date(2020, 1, 1), None]),
            "k": pa.array([3, 4], pa.int32()),
        }
    )
    stats = {
        "minValues": {"i": -5, "f": -0.1, "d": 1.25, "t": "2020-01-01", "k": 3},
        "maxValues": {"i": 1, "f": 1.1, "d": 1.25, "t": "2020-01-01", "k": 4},
    }
    writer.commit(
        protocol("typeWidening", "timestampNtz"),
        metadata(
            changed("i", "integer", "long"),
            changed("f", "float", "double"),
            changed("d", "decimal(5,2)", "decimal(12,4)"),
            changed("t", "date", "timestamp_ntz"),
            changed("k", "integer", "decimal(12,1)"),
        ),
        writer.file("f.parquet", old, stats=stats),
    )
    rows = await assert_same_as_duckdb(writer.folder)
    bounds = (await snapshot_of(writer.folder)).data_files[0].bounds
    for name, found in bounds.items():
        for row in rows:
            assert row[name] is None or found.min <= row[name] <= found.max


# -- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize("feature", ["geospatial", "catalogManaged", "new"])
async def test_an_unknown_feature_is_refused_by_name(writer: DeltaWriter, feature: str) -> None:
    writer.commit(protocol("deletionVectors", feature), metadata(ID), writer.file("f.parquet", ids(1)))
    with pytest.raises(
        UnsupportedFeatureError, match=f"does not support reader features of the Delta table: '{feature}'"
    ) as caught:
        await snapshot_of(writer.folder)
    assert caught.value.url == str(writer.folder)


async def test_the_protocol_is_looked_at_first(writer: DeltaWriter) -> None:
    """What a new feature changes in other actions must not make the log look damaged. Older protocols do not matter."""
    writer.commit(protocol("old"), metadata(ID))
    writer.commit({"add": {"path": None, "new": 1}}, {"metaData": {}})
    writer.commit(protocol("new"))
    writer.commit({"protocol": None})
    with pytest.raises(UnsupportedFeatureError, match="reader features of the Delta table: 'new'"):
        await snapshot_of(writer.folder)
    writer.commit(protocol(), {"remove": {"path": "x"}})
    with pytest.raises(CorruptFileError, match="malformed action"):
        await snapshot_of(writer.folder)


async def test_writer_features_do_not_matter(writer: DeltaWriter) -> None:
    said = protocol("timestampNtz", "vacuumProtocolCheck")
    said["protocol"]["writerFeatures"] += ["icebergCompatV2", "rowTracking", "domainMetadata", "appendOnly"]
    others: list[dict[str, Any]] = [
        {"txn": {"appId": "a", "version": 1}},
        {"domainMetadata": {"domain": "d", "configuration": ""}},
        {"cdc": {}},
    ]
    writer.commit(said, metadata(ID), writer.file("f.parquet", ids(1)), *others)
    assert (await rows_of(await snapshot_of(writer.folder))).num_rows == 1


@pytest.mark.parametrize(
    ("actions", "error", "says"),
    [
        ([protocol(reader=4)], UnsupportedFeatureError, "reader version 4"),
        ([{"protocol": {}}], CorruptFileError, "minReaderVersion"),
        ([metadata(column("v", "interval day"))], UnsupportedFeatureError, "type 'interval day'"),
        ([metadata(column("v", "geometry(EPSG:4326)"))], UnsupportedFeatureError, "type 'geometry"),
        ([metadata(column("v", {"type": "new"}))], UnsupportedFeatureError, "type 'new'"),
        ([metadata(column("v", "decimal(39,2)"))], CorruptFileError, "Delta schema"),
        ([metadata(ID, column("id", "long"))], CorruptFileError, "two columns have one name"),
        ([metadata(column("\ud800", "long"))], CorruptFileError, "surrogates"),
        ([metadata(ID, partition_columns=["p"])], CorruptFileError, "no partition column 'p'"),
        ([metadata({"name": "x"})], CorruptFileError, "Delta schema"),
        ([{"metaData": {"schemaString": "{"}}], CorruptFileError, "Delta schema"),
        ([{"metaData": {"schemaString": "{}", "format": {"provider": "orc"}}}], UnsupportedFeatureError, "'orc'"),
        ([{"metaData": {}}], CorruptFileError, "schemaString"),
        ([{"add": {"path": "x"}}], CorruptFileError, "malformed action"),
        ([{"add": {"path": 5, "partitionValues": {}}}], CorruptFileError, "malformed action"),
        ([{"add": []}], CorruptFileError, "malformed action"),
        ([{"remove": {}}], CorruptFileError, "malformed action"),
        ([add("s3://elsewhere/x.parquet")], UnsupportedFeatureError, "another store"),
        ([add("https://host/x.parquet")], UnsupportedFeatureError, "another store"),
        ([add("%ff.parquet")], CorruptFileError, "not url-encoded"),
        (
            [metadata(ID, column("p", "integer"), partition_columns=["p"]), add("x", partition={"p": "1.5"})],
            CorruptFileError,
            "partition value '1.5' is not of type int32",
        ),
        (
            [metadata(ID, column("p", "long"), partition_columns=["p"]), add("x", partition={"p": "1_0"})],
            CorruptFileError,
            "partition value '1_0' is not of type int64",
        ),
        (
            [metadata(ID, column("p", "byte"), partition_columns=["p"]), add("x", partition={"p": "128"})],
            CorruptFileError,
            "partition value '128' is not of type int8",
        ),
        (
            [
                protocol("typeWidening"),
                metadata(
                    column("v", "integer", more={"delta.typeChanges": [{"fromType": "long", "toType": "integer"}]})
                ),
            ],
            UnsupportedFeatureError,
            "changed from long to integer",
        ),
        (
            [protocol(reader=2), metadata(ID, configuration={"delta.columnMapping.mode": "new"})],
            UnsupportedFeatureError,
            "mapping mode 'new'",
        ),
        (
            [protocol(reader=2), metadata(ID, configuration={"delta.columnMapping.mode": "name"})],
            CorruptFileError,
            "physicalName",
        ),
    ],
)
async def test_refused(writer: DeltaWriter, actions: list[Any], error: type[FormatError], says: str) -> None:
    writer.commit(protocol(), metadata(ID))
    writer.commit(*actions)
    with pytest.raises(error, match=says) as caught:
        await snapshot_of(writer.folder)
    assert caught.value.url is not None
    assert caught.value.url.startswith(str(writer.folder))
