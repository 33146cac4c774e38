"""Delta's reader features, by tables that are written here action by action: deletion vectors, column mapping, type
widening, v2 checkpoints, absolute paths, and what is refused. Answers are compared with DuckDB's Delta reader."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.errors import CorruptFileError, FormatError, UnsupportedFeatureError
from asyncpq.tables.delta_deletes import decode_z85
from asyncpq.tables.delta_paths import TableRoot
from tests.delta_tables import (
    DeltaWriter,
    FolderReader,
    add,
    column,
    encode_z85,
    inline_vector,
    metadata,
    protocol,
    remove,
    rows_of,
    snapshot_of,
)

VECTORS = protocol("deletionVectors")
ID = column("id", "long")


@pytest.fixture
def writer(tmp_path: Path) -> DeltaWriter:
    return DeltaWriter(tmp_path / "a table")


def ids(*values: int) -> pa.Table:
    return pa.table({"id": pa.array(values, pa.int64())})


@pytest.fixture(scope="session")
def duck() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(config={"threads": 1})
    from duckdb_extensions import import_extension

    import_extension("delta", con=connection)
    connection.execute("LOAD delta; SET TimeZone = 'UTC'")
    return connection


async def assert_same(folder: Path, duck: duckdb.DuckDBPyConnection) -> list[dict[str, Any]]:
    found = (await rows_of(await snapshot_of(folder))).to_pylist()
    expected = duck.execute("SELECT * FROM delta_scan(?)", [str(folder)]).to_arrow_table().to_pylist()
    assert sorted(map(repr, found)) == sorted(map(repr, expected))
    return found


# -- deletion vectors ---------------------------------------------------------------------------


async def test_a_deletion_vector(writer: DeltaWriter, duck: duckdb.DuckDBPyConnection) -> None:
    """Trap: lists of files do not show that rows are deleted."""
    (vector,) = writer.vector_file([0, 3, 4])
    writer.commit(VECTORS, metadata(ID), writer.file("f.parquet", ids(*range(6)), vector=vector))
    assert [row["id"] for row in await assert_same(writer.folder, duck)] == [1, 2, 5]


async def test_where_vectors_are_kept(writer: DeltaWriter, duck: duckdb.DuckDBPyConnection) -> None:
    first, second = writer.vector_file([1], [70000, 2], prefix="ab")
    absolute = writer.vector_file([5])[0]
    name = next(writer.folder.glob("deletion_vector_*"))
    absolute |= {"storageType": "p", "pathOrInlineDv": name.as_uri()}
    big = ids(*range(70010))
    writer.commit(
        VECTORS,
        metadata(ID),
        writer.file("a.parquet", big, vector=first),
        writer.file("b.parquet", big, vector=second),
        writer.file("c.parquet", big, vector=absolute),
        writer.file("d.parquet", big, vector=inline_vector([0, 65536, 70009])),
        writer.file("e.parquet", big, vector=inline_vector([])),
    )
    await assert_same(writer.folder, duck)
    files = (await snapshot_of(writer.folder)).data_files
    deleted = [await file.deletes.rows(FolderReader(), 70010) for file in files if file.deletes is not None]
    assert [list(rows.rows()) for rows in deleted] == [[1], [2, 70000], [5], [0, 65536, 70009], []]
    assert len({file.deletes.identity for file in files if file.deletes is not None}) == 5


async def test_the_newest_vector_of_a_file_counts(writer: DeltaWriter, duck: duckdb.DuckDBPyConnection) -> None:
    plain = writer.file("f.parquet", ids(*range(6)))
    one, two = ({"add": plain["add"] | {"deletionVector": inline_vector(rows)}} for rows in ([1], [1, 2]))
    writer.commit(VECTORS, metadata(ID), plain)
    for before, after in ((plain, one), (one, two), (two, plain)):
        writer.commit(remove(before), after)
        await assert_same(writer.folder, duck)
    writer.commit(one, remove(plain))  # in any order
    assert len(await assert_same(writer.folder, duck)) == 5
    writer.commit(remove(plain))  # the file without a vector is not there: nothing is removed
    assert len(await assert_same(writer.folder, duck)) == 5
    writer.commit(remove(one))
    assert await assert_same(writer.folder, duck) == []


def _flipped(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


async def test_a_damaged_vector_is_an_error(writer: DeltaWriter) -> None:
    (vector,) = writer.vector_file([1, 2, 3])
    writer.commit(VECTORS, metadata(ID), writer.file("f.parquet", ids(*range(6)), vector=vector))
    (path,) = writer.folder.glob("deletion_vector_*")
    whole = path.read_bytes()
    (file,) = (await snapshot_of(writer.folder)).data_files
    assert file.deletes is not None
    assert (await file.deletes.rows(FolderReader(), 6)).num_rows == 3
    for at in range(1, len(whole)):  # the first byte is the file's version, which is not fetched
        _flipped(path, at)
        with pytest.raises(CorruptFileError) as caught:
            await file.deletes.rows(FolderReader(), 6)
        assert caught.value.url == str(path)
        path.write_bytes(whole)
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptFileError, match="not of the"):
        await file.deletes.rows(FolderReader(), 6)
    path.write_bytes(whole)
    with pytest.raises(CorruptFileError, match=r"deletes row 3 of .*f.parquet, which has 3 rows"):
        await file.deletes.rows(FolderReader(), 3)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        ({"cardinality": 4}, CorruptFileError, "has 3 rows, not 4"),
        ({"sizeInBytes": 30}, CorruptFileError, "bytes for a vector of 30"),
        ({"pathOrInlineDv": "%%%%%"}, CorruptFileError, "too large"),
        ({"pathOrInlineDv": "abc"}, CorruptFileError, "Z85"),
        ({"pathOrInlineDv": "ab\x00cd"}, CorruptFileError, "Z85"),
        ({"storageType": "x"}, UnsupportedFeatureError, "storage type 'x'"),
        ({"storageType": 1}, CorruptFileError, "malformed action"),
        ({"cardinality": -1}, CorruptFileError, "malformed action"),
        ({"storageType": "p", "pathOrInlineDv": "s3://b/x.bin"}, UnsupportedFeatureError, "another store"),
        (
            {"pathOrInlineDv": encode_z85(b"\x90\xd3\x39\x64" + bytes(40)), "sizeInBytes": 44},
            UnsupportedFeatureError,
            "magic",
        ),
    ],
)
async def test_a_vector_that_is_not_described_right(
    writer: DeltaWriter, change: dict[str, Any], error: type[FormatError], says: str
) -> None:
    vector = inline_vector([1, 2, 3]) | change
    writer.commit(VECTORS, metadata(ID), writer.file("f.parquet", ids(*range(6)), vector=vector))
    with pytest.raises(error, match=says):
        await rows_of(await snapshot_of(writer.folder))


@given(data=st.binary(max_size=64).map(lambda data: data + bytes(-len(data) % 4)))
def test_z85(data: bytes) -> None:
    assert decode_z85(encode_z85(data)) == data


def test_z85_of_the_specification() -> None:
    assert decode_z85("HelloWorld") == bytes.fromhex("864fd26fb559f75b")
    for text in ("Hello Worl", "%%%%%#", "#####"):
        with pytest.raises(ValueError, match="Z85"):
            decode_z85(text)


# -- column mapping, types ----------------------------------------------------------------------


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


async def test_mapping_counts_only_where_the_protocol_has_it(
    writer: DeltaWriter, duck: duckdb.DuckDBPyConnection
) -> None:
    fields = column("id", "long", physical="phys", id_=1)
    mode = {"delta.columnMapping.mode": "name"}
    writer.commit(protocol(), metadata(fields, configuration=mode), writer.file("f.parquet", ids(1, 2)))
    assert [row["id"] for row in (await rows_of(await snapshot_of(writer.folder))).to_pylist()] == [1, 2]
    writer.commit(protocol(reader=2))
    assert [row["id"] for row in await assert_same(writer.folder, duck)] == [None, None]


async def test_wider_types(writer: DeltaWriter, duck: duckdb.DuckDBPyConnection) -> None:
    def changed(name: str, before: str, after: str) -> dict[str, Any]:
        return column(name, after, **{"delta.typeChanges": [{"fromType": before, "toType": after}]})

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
    rows = await assert_same(writer.folder, duck)
    bounds = (await snapshot_of(writer.folder)).data_files[0].bounds
    for name, found in bounds.items():
        for row in rows:
            assert row[name] is None or found.min <= row[name] <= found.max  # type: ignore[operator]


# -- refused ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "feature", ["variantType", "variantType-preview", "variantShredding-preview", "geospatial", "catalogManaged", "new"]
)
async def test_an_unknown_feature_is_refused_by_name(writer: DeltaWriter, feature: str) -> None:
    writer.commit(protocol("deletionVectors", feature), metadata(ID), writer.file("f.parquet", ids(1)))
    with pytest.raises(UnsupportedFeatureError, match=f"not read: '{feature}'") as caught:
        await snapshot_of(writer.folder)
    assert caught.value.url == str(writer.folder)


async def test_writer_features_do_not_matter(writer: DeltaWriter) -> None:
    said = protocol("timestampNtz", "vacuumProtocolCheck")
    said["protocol"]["writerFeatures"] += ["icebergCompatV2", "rowTracking", "domainMetadata", "appendOnly"]
    others = [
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
        ([metadata(column("v", "variant"))], UnsupportedFeatureError, "type 'variant'"),
        ([metadata(column("v", "void"))], UnsupportedFeatureError, "type 'void'"),
        ([metadata(column("v", {"type": "new"}))], UnsupportedFeatureError, "type 'new'"),
        ([metadata(column("v", "decimal(39,2)"))], CorruptFileError, "Delta schema"),
        ([metadata(ID, column("id", "long"))], CorruptFileError, "two columns have one name"),
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
            [metadata(ID, column("p", "byte"), partition_columns=["p"]), add("x", partition={"p": "128"})],
            CorruptFileError,
            "partition value '128' is not of type int8",
        ),
        (
            [metadata(ID, column("p", "binary"), partition_columns=["p"]), add("x", partition={"p": "a"})],
            UnsupportedFeatureError,
            "binary partition columns",
        ),
        (
            [metadata(ID, column("p", "date"), partition_columns=["p"]), add("x")],
            CorruptFileError,
            "no value of a partition column",
        ),
        (
            [
                protocol("typeWidening"),
                metadata(column("v", "integer", **{"delta.typeChanges": [{"fromType": "long", "toType": "integer"}]})),
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


@pytest.mark.parametrize("content", ["", "{", "[]", '{"add": ', "\x00", '{"protocol": 1}', "null"])
async def test_a_torn_commit_is_an_error(writer: DeltaWriter, content: str) -> None:
    writer.commit(protocol(), metadata(ID), writer.file("f.parquet", ids(1)))
    writer.commit()
    (writer.log / f"{1:020}.json").write_text(content)
    with pytest.raises(CorruptFileError):
        await snapshot_of(writer.folder)


async def test_a_log_without_protocol_or_metadata(writer: DeltaWriter) -> None:
    writer.commit(protocol())
    with pytest.raises(CorruptFileError, match="no protocol or no metadata"):
        await snapshot_of(writer.folder)


# -- paths --------------------------------------------------------------------------------------


async def test_absolute_paths(writer: DeltaWriter, tmp_path: Path, duck: duckdb.DuckDBPyConnection) -> None:
    pq.write_table(ids(5), tmp_path / "other %20.parquet")
    inside = writer.file("in.parquet", ids(1))
    writer.commit(protocol(), metadata(ID), add((tmp_path / "other %20.parquet").as_uri(), num_rows=1), inside)
    outside = (await snapshot_of(writer.folder)).data_files[0].url
    assert outside == str(tmp_path / "other %20.parquet")


@pytest.mark.parametrize(
    ("root", "path", "url"),
    [
        ("s3://bucket/t/", "a%20b.parquet", "s3://bucket/t/a b.parquet"),
        ("s3://bucket/t", "p=x%2520y/f.parquet", "s3://bucket/t/p=x%20y/f.parquet"),
        ("s3://bucket/t", "p=1%3A2%2B3+4/f.parquet", "s3://bucket/t/p=1:2+3+4/f.parquet"),
        ("s3://bucket/t", "s3://other/x%20y", "s3://other/x y"),
        ("s3://bucket/t", "s3a://other/x", "s3://other/x"),
        ("gs://bucket/t", "gs://other/x", "gs://other/x"),
        ("abfss://c@account/t", "abfss://c@account/x%25", "abfss://c@account/x%"),
        ("/tmp/t", "file:/data/x", "/data/x"),
        ("/tmp/t", "file:///data/x%20", "/data/x "),
        ("/tmp/t", "/data/x", "/data/x"),
        ("/tmp/t", "sub/x", "/tmp/t/sub/x"),
        ("memory://t", "x", "memory://t/x"),
    ],
)
def test_where_files_are(root: str, path: str, url: str) -> None:
    assert TableRoot.of(root).resolve(path) == url


@pytest.mark.parametrize(
    ("root", "path"),
    [
        ("s3://bucket/t", "file:///etc/passwd"),
        ("s3://bucket/t", "/etc/passwd"),
        ("s3://bucket/t", "https://host/x"),
        ("/tmp/t", "s3://bucket/x"),
        ("abfss://c@account/t", "abfss://c@other/x"),
        ("https://host/t", "https://other/x"),
        ("https://host/t", "http://host/x"),
    ],
)
def test_a_log_does_not_choose_stores(root: str, path: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match="another store"):
        TableRoot.of(root).resolve(path)


# -- checkpoints --------------------------------------------------------------------------------

CONFIGURATION = pa.map_(pa.string(), pa.string())
ADD = pa.struct(
    [
        ("path", pa.string()),
        ("partitionValues", CONFIGURATION),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats_parsed", pa.struct([("numRecords", pa.int64()), ("maxValues", pa.struct([("id", pa.int64())]))])),
    ]
)


def _write_adds(path: Path, *actions: dict[str, Any]) -> None:
    path.parent.mkdir(exist_ok=True)
    rows = [
        {
            "path": action["add"]["path"],
            "partitionValues": [],
            "size": action["add"]["size"],
            "modificationTime": 0,
            "dataChange": False,
            "stats_parsed": {"numRecords": json.loads(action["add"]["stats"])["numRecords"], "maxValues": {"id": 9}},
        }
        for action in actions
    ]
    pq.write_table(pa.table({"add": pa.array(rows, ADD)}), path)


async def test_a_v2_checkpoint_with_sidecars(writer: DeltaWriter, duck: duckdb.DuckDBPyConnection) -> None:
    said, columns = protocol("v2Checkpoint"), metadata(ID)
    files = [writer.file(f"{number}.parquet", ids(number)) for number in range(4)]
    writer.commit(said, columns, *files)
    (writer.log / f"{0:020}.json").unlink()
    _write_adds(writer.log / "_sidecars/one.parquet", *files[:2])
    _write_adds(writer.log / "_sidecars/two.parquet", *files[2:])
    sidecars: list[dict[str, Any]] = [
        {
            "sidecar": {
                "path": name,
                "sizeInBytes": (writer.log / "_sidecars" / name).stat().st_size,
                "modificationTime": 0,
            }
        }
        for name in ("one.parquet", "two.parquet")
    ]
    meta: dict[str, Any] = {"checkpointMetadata": {"version": 0}}
    name = f"{0:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
    (writer.log / name).write_text("".join(json.dumps(line) + "\n" for line in (meta, said, columns, *sidecars)))
    writer.commit(remove(files[1]), writer.file("4.parquet", ids(4)))
    assert sorted(row["id"] for row in await assert_same(writer.folder, duck)) == [0, 2, 3, 4]
    first = (await snapshot_of(writer.folder)).data_files[0]
    assert (first.num_rows, first.bounds["id"].max) == (1, 9)
    (writer.log / "_sidecars/two.parquet").unlink()
    with pytest.raises(FileNotFoundError):
        await snapshot_of(writer.folder)


async def test_a_checkpoint_in_parts(writer: DeltaWriter) -> None:
    said, columns = protocol(), metadata(ID)
    files = [writer.file(f"{number}.parquet", ids(number)) for number in range(3)]
    writer.commit(said, columns, *files[:2])
    writer.commit(files[2])
    schema = pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())])
    meta = pa.struct(
        [
            ("id", pa.string()),
            ("schemaString", pa.string()),
            ("partitionColumns", pa.list_(pa.string())),
            ("configuration", CONFIGURATION),
        ]
    )
    heads = {
        "protocol": pa.array([said["protocol"], None], schema),
        "metaData": pa.array([None, columns["metaData"] | {"configuration": []}], meta),
    }
    pq.write_table(pa.table(heads), writer.log / f"{1:020}.checkpoint.{1:010}.{2:010}.parquet")
    (writer.log / f"{0:020}.json").rename(writer.log / "kept")
    with pytest.raises(CorruptFileError, match=r"incomplete: .* not there: 0"):  # a part is missing: no checkpoint
        await snapshot_of(writer.folder)
    _write_adds(writer.log / f"{1:020}.checkpoint.{2:010}.{2:010}.parquet", *files)
    assert (await rows_of(await snapshot_of(writer.folder)))["id"].to_pylist() == [0, 1, 2]


# -- statistics ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "low", "high", "expected"),
    [
        ("double", '"-Infinity"', '"NaN"', (float("-inf"), None)),
        ("double", "1", "2.5", (1.0, 2.5)),
        ("long", "1.5", '"7"', (None, None)),
        ("long", "true", "null", (None, None)),
        ("string", '"a"', '"b\\ud800"', ("a", None)),
        ("string", '"' + "a" * 32 + '"', '"' + "b" * 32 + '"', ("a" * 32, "b" * 31 + "c")),
        ("string", '""', '"' + "\U0010ffff" * 32 + '"', ("", None)),
        ("string", "null", '"' + "\ud7ff" * 32 + '"', (None, "\ud7ff" * 31 + "\ue000")),
        ("decimal(5,2)", "1.23", "4", (Decimal("1.23"), Decimal("4.00"))),
        ("decimal(5,2)", '"1.23"', "1e9", (Decimal("1.23"), Decimal("999.99"))),
        ("date", '"2020-01-01"', '"+10000-01-01"', (dt.date(2020, 1, 1), None)),
        (
            "timestamp_ntz",
            '"2020-01-01T00:00:00.001"',
            '"2020-01-01 00:00:00.001"',
            (dt.datetime(2020, 1, 1), dt.datetime(2020, 1, 1, 0, 0, 0, 2000)),
        ),
        (
            "timestamp",
            '"2020-01-01T00:00:00.001-08:00"',
            '"9999-12-31T23:59:59.999Z"',
            (dt.datetime(2020, 1, 1, 8, tzinfo=dt.UTC), None),
        ),
        ("binary", '"a"', '"b"', (None, None)),
    ],
)
async def test_bounds_of_json(writer: DeltaWriter, kind: str, low: str, high: str, expected: tuple[Any, Any]) -> None:
    action = add("x.parquet", num_rows=1)
    action["add"]["stats"] = (
        f'{{"numRecords": 5, "nullCount": {{"v": 1}}, "minValues": {{"v": {low}}}, "maxValues": {{"v": {high}}}}}'
    )
    writer.commit(protocol("timestampNtz"), metadata(column("v", kind)), action)
    (file,) = (await snapshot_of(writer.folder)).data_files
    bounds = file.bounds["v"]
    assert (bounds.min, bounds.max) == expected
    assert (bounds.null_count, bounds.exact, file.num_rows) == (1, False, 5)


@pytest.mark.parametrize("stats", ["", "{", "[]", "5", '{"numRecords": "5"}', '{"minValues": 7}', "[" * 100_000])
async def test_statistics_that_are_not_understood_are_unknown(writer: DeltaWriter, stats: str) -> None:
    action = add("x.parquet")
    action["add"]["stats"] = stats
    writer.commit(protocol(), metadata(ID), action)
    (file,) = (await snapshot_of(writer.folder)).data_files
    assert (file.num_rows, dict(file.bounds)) == (None, {})


@pytest.mark.parametrize(("nulls", "expected"), [(0, (0, False)), (2, (None, False)), (6, (6, True))])
async def test_null_counts_beside_a_vector(writer: DeltaWriter, nulls: int, expected: tuple[int | None, bool]) -> None:
    """They may count deleted rows: only none and all are trusted."""
    stats = {"nullCount": {"id": nulls}, "minValues": {"id": 0}, "tightBounds": False}
    writer.commit(VECTORS, metadata(ID), add("x.parquet", num_rows=6, stats=stats, vector=inline_vector([1])))
    bounds = (await snapshot_of(writer.folder)).data_files[0].bounds["id"]
    assert (bounds.null_count, bounds.all_null) == expected


def test_columns_of_one_dotted_name_have_no_bounds() -> None:
    from asyncpq.tables.delta_schema import Mapped, decode_schema

    inner = {"type": "struct", "fields": [column("b", "long"), column("c", "long")]}
    text = metadata(column("a.b", "long"), column("a", inner))["metaData"]["schemaString"]
    assert [leaf.name for leaf in decode_schema(text, Mapped.NONE, "x").leaves] == ["a.c"]


MUTATIONS: list[Callable[[Any], Any]] = [lambda _: None, lambda _: 7, lambda _: "x", lambda _: [], lambda _: {}]


@given(data=st.data())
async def test_any_damage_to_an_action_is_a_typed_error(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """One value of the log is another one: the rows are those of before, or the error is typed."""
    writer = DeltaWriter(tmp_path_factory.mktemp("damaged") / "t")
    struct = {"type": "struct", "fields": [column("x", {"type": "array", "elementType": "long", "containsNull": True})]}
    actions = [
        protocol("deletionVectors"),
        metadata(ID, column("s", struct), column("p", "string"), partition_columns=["p"]),
        writer.file("f.parquet", ids(1, 2, 3), partition={"p": "x"}, vector=inline_vector([1])),
    ]
    schema = json.loads(actions[1]["metaData"]["schemaString"])
    chosen: Any = data.draw(st.sampled_from([*actions, schema]))
    while True:
        keys = list(chosen) if isinstance(chosen, dict) else list(range(len(chosen)))
        key = data.draw(st.sampled_from(keys))
        if not isinstance(chosen[key], (dict, list)) or not chosen[key] or data.draw(st.booleans()):
            break
        chosen = chosen[key]
    if key == "size":
        return  # what it is worth, whoever reads the file finds out
    chosen[key] = data.draw(st.sampled_from(MUTATIONS))(chosen[key])
    said = actions[1]["metaData"]
    if isinstance(said, dict) and isinstance(said.get("schemaString"), str):
        said["schemaString"] = json.dumps(schema)
    writer.commit(*actions)
    try:
        table = await rows_of(await snapshot_of(writer.folder))
    except (FormatError, FileNotFoundError):
        return
    if "id" in table.column_names and table.num_rows:
        assert table["id"].to_pylist() in ([1, 3], [1, 2, 3], [None] * 2, [None] * 3)
