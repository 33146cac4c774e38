"""Types of Delta tables that few writers use: as Spark 4.1, deltalake 1.6 and DuckDB 1.5 read them, where they do."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.errors import CorruptFileError, SchemaMismatchError, UnsupportedFeatureError
from asyncpq.expressions import Expression
from tests.delta_tables import ID, DeltaWriter, add, assert_same_as_duckdb, column, ids, metadata, protocol

UTC = dt.UTC
NTZ = protocol("timestampNtz")


async def read(writer: DeltaWriter, where: Expression | None = None) -> pa.Table:
    """The rows, which are counted, too."""
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(writer.folder), format="delta")
        found = await dataset.read(where=where)
        assert await dataset.count(where) == found.num_rows
        return found


# -- void, variant and others ---------------------------------------------------------------------


async def test_void_columns_are_null(writer: DeltaWriter) -> None:
    """Files do not have them. Also in structs, and as "null", as Spark once named the type."""
    parts = [column("x", "long"), column("n", "void")]
    struct = {"type": "struct", "fields": parts}
    stored = pa.table({"id": [1, 2], "s": [{"x": 3}, None]})
    writer.commit(protocol(), metadata(ID, column("v", "void"), column("s", struct)), writer.file("f.parquet", stored))
    found = await read(writer)
    assert found.schema.field("v").type == pa.null()
    assert found.to_pylist() == [{"id": 1, "v": None, "s": {"x": 3, "n": None}}, {"id": 2, "v": None, "s": None}]
    assert (await read(writer, col("v").is_null())).num_rows == 2
    assert (await read(writer, col("v").is_valid() & (col("id") == 1))).num_rows == 0
    # the column gets a type, and values
    more = pa.table({"id": [3], "v": ["x"], "s": [{"x": 1, "n": 2}]})
    parts[1] = column("n", "long")
    changed = column("v", "string", more={"delta.typeChanges": [{"fromType": "void", "toType": "string"}]})
    writer.commit(metadata(ID, changed, column("s", struct)), writer.file("g.parquet", more))
    assert (await read(writer))["v"].to_pylist() == [None, None, "x"]
    assert (await read(writer, col("s.n") == 2))["id"].to_pylist() == [3]


VARIANT = pa.struct([pa.field("value", pa.binary(), False), pa.field("metadata", pa.binary(), False)])
FIVE, NOTHING = {"metadata": b"\x01\x00\x00", "value": b"\x0c\x05"}, {"metadata": b"\x01\x00\x00", "value": b"\x00"}


@pytest.mark.parametrize("feature", ["variantType", "variantType-preview", "variantShredding"])
async def test_variants_are_structs_of_their_bytes(writer: DeltaWriter, feature: str) -> None:
    """As pyarrow gives the group, and deltalake; in the protocol's order, whatever that in the file."""
    stored = pa.table({"id": [1, 2, 3], "v": pa.array([FIVE, NOTHING, None], VARIANT)})
    stored = stored.append_column("l", pa.array([[FIVE], [], None], pa.list_(VARIANT)))
    listed = {"type": "array", "elementType": "variant", "containsNull": True}
    said = protocol(*{"variantType", feature})
    action = writer.file("f.parquet", stored, stats={"nullCount": {"v": 1}})
    writer.commit(said, metadata(ID, column("v", "variant"), column("l", listed)), action)
    found = await read(writer)
    assert found["v"].type == pa.struct([pa.field(name, pa.binary(), False) for name in ("metadata", "value")])
    assert found.to_pylist() == stored.to_pylist()
    assert (await read(writer, col("v").is_null()))["id"].to_pylist() == [3]
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(writer.folder), format="delta")
        assert (await dataset.read(["v.value"]))["v"].to_pylist()[0] == {"value": b"\x0c\x05"}


async def test_shredded_variants_are_put_together(writer: DeltaWriter) -> None:
    """Beside files that shred nothing, and others; also in lists and structs, by parts, and where they are null."""
    numbers: list[Any] = [
        {"metadata": b"\x01\x00\x00", "value": None, "typed_value": 5},
        {"metadata": b"\x01\x00\x00", "value": b"\x00", "typed_value": None},
        None,
    ]
    nullable = pa.struct([("value", pa.binary()), ("metadata", pa.binary()), ("typed_value", pa.int64())])
    stored = pa.table({"id": [1, 2, 3], "v": pa.array(numbers, nullable)})
    stored = stored.append_column("l", pa.array([numbers, [], None], pa.list_(nullable)))
    plain = pa.table({"id": [4], "v": pa.array([FIVE], VARIANT), "l": pa.array([[FIVE]], pa.list_(VARIANT))})
    listed = {"type": "array", "elementType": "variant", "containsNull": True}
    writer.commit(
        protocol("variantType", "variantShredding"),
        metadata(ID, column("v", "variant"), column("l", listed)),
        writer.file("f.parquet", stored),
        writer.file("g.parquet", plain),
    )
    found = await read(writer)
    assert found["v"].to_pylist() == [FIVE, NOTHING, None, FIVE]
    assert found["l"].to_pylist() == [[FIVE, NOTHING, None], [], None, [FIVE]]
    assert (await read(writer, col("v").is_null()))["id"].to_pylist() == [3]
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(writer.folder), format="delta")
        for part in ("value", "metadata"):
            parts = (await dataset.read([f"v.{part}"]))["v"].to_pylist()
            assert parts == [None if one is None else {part: one[part]} for one in (FIVE, NOTHING, None, FIVE)]
        assert (await dataset.lookup({"id": [2, 3]}, columns=["v"]))["v"].to_pylist() == [NOTHING, None]


async def test_a_variant_in_parts_that_are_none_is_refused_where_it_is_read(writer: DeltaWriter) -> None:
    odd = pa.struct([*VARIANT, pa.field("typed_value", pa.uint64())])
    stored = pa.table({"id": [1], "v": pa.array([{**FIVE, "typed_value": 7}], odd)})
    writer.commit(protocol("variantType"), metadata(ID, column("v", "variant")), writer.file("f.parquet", stored))
    with pytest.raises(UnsupportedFeatureError, match="not shredded into uint64") as caught:
        await read(writer)
    assert (caught.value.column, str(caught.value.url)) == ("v", str(writer.folder / "f.parquet"))
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(writer.folder), format="delta")
        assert (await dataset.read(["id"]))["id"].to_pylist() == [1]


async def test_names_of_types_that_spark_knows(writer: DeltaWriter) -> None:
    vector = {"type": "struct", "fields": [column("size", "integer"), column("at", "double")]}
    udt = {"type": "udt", "class": "org.example.Vector", "pyClass": "example.Vector", "sqlType": vector}
    table = pa.table(
        {
            "d": pa.array([Decimal(3)], pa.decimal128(10, 0)),
            "c": ["a"],
            "u": pa.array([{"size": 1, "at": 2.5}], pa.struct([("size", pa.int32()), ("at", pa.float64())])),
        }
    )
    fields = [column("d", "decimal"), column("c", "varchar(5)"), column("u", udt)]
    writer.commit(protocol(), metadata(*fields), writer.file("f.parquet", table))
    assert (await read(writer)).equals(table)


# -- timestamps -----------------------------------------------------------------------------------

TIMES = [dt.datetime(1960, 1, 1, 1, 2, 3, 456000), dt.datetime(2020, 1, 1), None, dt.datetime(2262, 1, 1)]


@pytest.mark.parametrize("stored", [pa.timestamp(unit, zone) for unit in ("ms", "us", "ns") for zone in (None, "UTC")])
@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
async def test_timestamps_of_every_unit_and_zone(writer: DeltaWriter, stored: pa.DataType, kind: str) -> None:
    """The table's type counts: deltalake 0.14 and 0.15 leave out the zone, Trino writes milliseconds."""
    table = pa.table({"id": range(4), "t": pa.array(TIMES, stored)})
    nested = {"type": "array", "elementType": {"type": "struct", "fields": [column("t", kind)]}, "containsNull": True}
    table = table.append_column("l", pa.array([[{"t": time}] for time in TIMES], pa.list_(pa.struct([("t", stored)]))))
    fields = (ID, column("t", kind), column("l", nested))
    writer.commit(NTZ, metadata(*fields), writer.file("f.parquet", table.slice(0, 2)))
    writer.commit(writer.file("g.parquet", table.slice(2)))
    zone = UTC if kind == "timestamp" else None
    times = [None if time is None else time.replace(tzinfo=zone) for time in TIMES]
    found = await read(writer)
    assert found["t"].type == pa.timestamp("us", "UTC" if zone else None)
    assert found["t"].to_pylist() == times
    assert found["l"].to_pylist() == [[{"t": time}] for time in times]
    await assert_same_as_duckdb(writer.folder)
    for time in times:
        if time is not None:
            assert (await read(writer, col("t") == time))["t"].to_pylist() == [time]
            later = [other for other in times if other is not None and other > time]
            assert (await read(writer, col("t") > time))["t"].to_pylist() == later


EXTREMES = [dt.datetime(1, 1, 1), dt.datetime(1600, 7, 7), dt.datetime(9999, 12, 31, 23, 59, 59, 999999), None]


@pytest.mark.parametrize("kind", ["timestamp", "timestamp_ntz"])
async def test_int96_of_every_year(writer: DeltaWriter, kind: str) -> None:
    """Spark's default. The table has microseconds, so they are read in those; a file by itself is read as before."""
    nested = {"type": "array", "elementType": kind, "containsNull": True}
    stored = pa.table({"id": range(4), "t": pa.array(EXTREMES, pa.timestamp("us"))})
    stored = stored.append_column("l", pa.array([[time] for time in EXTREMES], pa.list_(pa.timestamp("us"))))
    action = writer.file("f.parquet", stored)
    path = writer.folder / "f.parquet"
    pq.write_table(stored, path, use_deprecated_int96_timestamps=True)
    action["add"]["size"] = path.stat().st_size
    writer.commit(NTZ, metadata(ID, column("t", kind), column("l", nested)), action)
    zone = UTC if kind == "timestamp" else None
    times = [None if time is None else time.replace(tzinfo=zone) for time in EXTREMES]
    await assert_same_as_duckdb(writer.folder)
    async with asyncpq.Session() as session:
        for _ in range(2):  # from the file, then from what memory keeps of it decoded
            table = await session.open_dataset(str(writer.folder), format="delta")
            assert (await table.read())["t"].to_pylist() == times
            assert (await table.read())["l"].to_pylist() == [[time] for time in times]
            for number, time in enumerate(times[:3]):
                assert (await table.read(["id"], col("t") == time))["id"].to_pylist() == [number]
            file = await session.open_file(str(path))
            assert (await file.read()).equals(pq.read_table(path))
            assert (await file.lookup({"id": [0, 2]})).equals(pq.read_table(path).take([0, 2]))


async def test_digits_that_a_table_has_not(writer: DeltaWriter) -> None:
    """Of INT96 they are cut off, as Spark does; nanoseconds in 64 bits are an error, as Spark's and pyarrow's."""
    nanoseconds = pa.table({"t": pa.array([1_500], pa.timestamp("ns"))})
    action = writer.file("f.parquet", nanoseconds)
    writer.commit(protocol(), metadata(column("t", "timestamp")), action)
    with pytest.raises(SchemaMismatchError, match="would lose data"):
        await read(writer)
    pq.write_table(nanoseconds, writer.folder / "f.parquet", use_deprecated_int96_timestamps=True)
    writer.commit({"add": action["add"] | {"size": (writer.folder / "f.parquet").stat().st_size}})
    assert (await read(writer))["t"].cast(pa.int64()).to_pylist() == [1]


async def test_int96_takes_no_request_more(tmp_path: Path) -> None:
    """The footer's tail, which holds all of a small file, is used whatever the unit."""
    server_reads = {}
    for int96 in (False, True):
        writer = DeltaWriter(tmp_path / str(int96))
        stored = pa.table({"t": pa.array(TIMES, pa.timestamp("us", "UTC"))})
        pq.write_table(stored, writer.folder / "f.parquet", use_deprecated_int96_timestamps=int96)
        writer.commit(
            protocol(),
            metadata(column("t", "timestamp")),
            add("f.parquet", size=(writer.folder / "f.parquet").stat().st_size),
        )
        async with asyncpq.Session() as session:
            dataset = await session.open_dataset(str(writer.folder), format="delta")
            assert (await dataset.read()).equals(stored)
            server_reads[int96] = dataset.metrics.requests
    assert server_reads[True] == server_reads[False]


# -- partition values -----------------------------------------------------------------------------


def _date(year: int, month: int, day: int) -> int:
    """Days since 1970, of any year."""
    shift, inside = divmod(year, 400)
    return (dt.date(inside + 400, month, day) - dt.date(1970, 1, 1)).days + (shift - 1) * 146_097


PARTITIONS: list[tuple[str, Any, Any, pa.DataType]] = [
    ("date", "-0044-03-15", _date(-44, 3, 15), pa.date32()),
    ("date", "0000-01-01", _date(0, 1, 1), pa.date32()),
    ("date", "0001-01-01", _date(1, 1, 1), pa.date32()),
    ("date", "2020-1-2", _date(2020, 1, 2), pa.date32()),
    ("date", "2020-01-02 00:00:00", _date(2020, 1, 2), pa.date32()),
    ("date", "9999-12-31", _date(9999, 12, 31), pa.date32()),
    ("date", "+10000-01-01", _date(10000, 1, 1), pa.date32()),
    ("date", "+5881580-07-11", 2**31 - 1, pa.date32()),
    ("timestamp", "-0044-03-15 01:02:03", (_date(-44, 3, 15) * 86400 + 3723) * 10**6, pa.timestamp("us", "UTC")),
    ("timestamp", "+10000-01-01 00:00:00.5", _date(10000, 1, 1) * 86400 * 10**6 + 500_000, pa.timestamp("us", "UTC")),
    ("timestamp", "+294247-01-10 04:00:54.775807", 2**63 - 1, pa.timestamp("us", "UTC")),
    ("timestamp", "1970-01-01T02:00:00.123456789+02:00", 123456, pa.timestamp("us", "UTC")),
    ("timestamp", "1970-01-01T00:00:00.1Z", 100_000, pa.timestamp("us", "UTC")),
    ("timestamp", "1970-01-01 00:01", 60_000_000, pa.timestamp("us", "UTC")),
    ("timestamp_ntz", "1970-01-02", 86400 * 10**6, pa.timestamp("us")),
    ("timestamp_ntz", "1970-01-01T00:00:01+02:00", 1_000_000, pa.timestamp("us")),
    ("timestamp_ntz", "-0044-03-15 00:00:00", _date(-44, 3, 15) * 86400 * 10**6, pa.timestamp("us")),
    ("binary", "abc", b"abc", pa.binary()),
    ("binary", "\u0001\u00e9\u20ac", "\u0001\u00e9\u20ac".encode(), pa.binary()),
    ("binary", "\\u0001", b"\\u0001", pa.binary()),
    ("binary", "", None, pa.binary()),
    ("integer", 7, 7, pa.int32()),
    ("boolean", True, True, pa.bool_()),
    ("double", 1.5, 1.5, pa.float64()),
    ("integer", None, None, pa.int32()),
    ("void", None, None, pa.null()),
]


@pytest.mark.parametrize(("kind", "text", "value", "arrow"), PARTITIONS)
async def test_partition_values(writer: DeltaWriter, kind: str, text: Any, value: Any, arrow: pa.DataType) -> None:
    """As Spark reads them: deltalake and DuckDB do so, too, where they do not fail."""
    plain: Sequence[Mapping[str, Any]] = [
        writer.file("f.parquet", ids(1), partition={"p": text}),
        writer.file("g.parquet", ids(2), partition={"p": None}),
    ]
    writer.commit(NTZ, metadata(ID, column("p", kind), partition_columns=["p"]), *plain)
    found = await read(writer)
    assert found["p"].type == arrow
    stored = pa.array([value, None], pa.int64() if pa.types.is_temporal(arrow) else arrow)
    stored = stored.cast(pa.int32()).cast(arrow) if pa.types.is_date(arrow) else stored.cast(arrow)
    assert found["p"].combine_chunks().equals(stored)
    assert (await read(writer, col("p").is_null()))["id"].to_pylist() == ([2] if value is not None else [1, 2])
    if value is not None:
        assert (await read(writer, col("p").is_valid()))["id"].to_pylist() == [1]
        if pa.types.is_temporal(arrow):
            early = dt.date(1500, 1, 1) if pa.types.is_date(arrow) else dt.datetime(1500, 1, 1, tzinfo=UTC)
            if isinstance(early, dt.datetime) and kind == "timestamp_ntz":
                early = early.replace(tzinfo=None)
            expected = pc.less(stored, pa.scalar(early, arrow))[0].as_py()
            assert (await read(writer, col("p") < early)).num_rows == expected
            assert (await read(writer, col("p") >= early)).num_rows == 1 - expected


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("date", "2020-02-30"),
        ("date", "+5881580-07-12"),
        ("date", "x"),
        ("date", "\u0661\u0669\u0667\u0660-01-01"),
        ("timestamp", "+294247-01-10 04:00:54.775808"),
        ("timestamp", "2020-01-01 25:00:00"),
        ("timestamp", "2020-01-01 00:00:60"),
        ("timestamp_ntz", "now"),
        ("decimal(4,2)", "123"),
        ("binary", "\ud800"),
    ],
)
async def test_partition_values_that_arrow_does_not_hold(writer: DeltaWriter, kind: str, text: str) -> None:
    action = writer.file("f.parquet", ids(1), partition={"p": text})
    writer.commit(NTZ, metadata(ID, column("p", kind), partition_columns=["p"]), action)
    with pytest.raises(CorruptFileError, match=r"partition value .* is not of type") as caught:
        await read(writer)
    assert (caught.value.column, str(caught.value.url)) == ("p", str(writer.folder / "f.parquet"))


async def test_a_value_that_is_not_named_is_null(writer: DeltaWriter) -> None:
    """As for Spark, deltalake and DuckDB. Where the action names a column that is none instead, nothing is known."""
    fields = (ID, column("p", "integer"), column("q", "integer"))
    said = metadata(*fields, partition_columns=["p", "q"])
    writer.commit(protocol(), said, writer.file("f.parquet", ids(1), partition={"q": "7"}))
    assert (await read(writer)).to_pylist() == [{"id": 1, "p": None, "q": 7}]
    await assert_same_as_duckdb(writer.folder)
    writer.commit(writer.file("g.parquet", ids(1), partition={"Q": "7"}))
    with pytest.raises(CorruptFileError, match="partition values of Q, but none of this column"):
        await read(writer)


# -- wider types ----------------------------------------------------------------------------------

_WHOLE = {"byte": (pa.int8(), 7), "short": (pa.int16(), 15), "integer": (pa.int32(), 31), "long": (pa.int64(), 63)}


def _changes() -> list[tuple[str, str, pa.Array, pa.DataType]]:
    """All that the protocol has, and what holds all values besides."""
    found: list[tuple[str, str, pa.Array, pa.DataType]] = []
    for name, (arrow, bits) in _WHOLE.items():
        values = pa.array([-(2**bits), 2**bits - 1, 0, None], arrow)
        least = {"byte": 3, "short": 5, "integer": 10, "long": 19}[name]
        digits = [(least, 0), (least + 1, 1), (20, 0), (38, 38 - least)]
        found += [(name, f"decimal({p},{s})", values, pa.decimal128(p, s)) for p, s in digits if p - s >= least]
        found += [(name, wide, values, kind) for wide, (kind, size) in _WHOLE.items() if size > bits]
        if name != "long":
            found.append((name, "double", values, pa.float64()))
    found.append(("float", "double", pa.array([0.1, -0.0, float("nan"), None], pa.float32()), pa.float64()))
    days = pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), dt.date(1969, 12, 31), None])
    found.append(("date", "timestamp_ntz", days, pa.timestamp("us")))
    money = pa.array([Decimal("-999.99"), Decimal("0.01"), None], pa.decimal128(5, 2))
    found += [("decimal(5,2)", f"decimal({p},{s})", money, pa.decimal128(p, s)) for p, s in ((6, 2), (6, 3), (38, 35))]
    return found


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("before", "after", "values", "arrow"), _changes(), ids=str)
async def test_every_wider_type(
    writer: DeltaWriter, before: str, after: str, values: pa.Array, arrow: pa.DataType
) -> None:
    """On columns, and inside of lists and structs; read, filtered by the file's own statistics, and counted."""
    change = {"delta.typeChanges": [{"fromType": before, "toType": after}]}
    inside = {"delta.typeChanges": [{"fromType": before, "toType": after, "fieldPath": "element"}]}
    struct = {"type": "struct", "fields": [column("x", after, more=change)]}
    fields = [
        column("v", after, more=change),
        column("l", {"type": "array", "elementType": after, "containsNull": True}, more=inside),
        column("s", struct),
    ]
    lists = pa.ListArray.from_arrays(pa.array(range(len(values) + 1), pa.int32()), values)
    table = pa.table({"v": values, "l": lists, "s": pa.StructArray.from_arrays([values], ["x"])})
    writer.commit(protocol("typeWidening", "timestampNtz"), metadata(*fields), writer.file("f.parquet", table))
    if pa.types.is_integer(values.type) and pa.types.is_decimal(arrow):
        expected = pa.array([None if value is None else Decimal(value) for value in values.to_pylist()], arrow)
    else:
        expected = values.cast(arrow)
    found = await read(writer)
    assert found["v"].combine_chunks().equals(expected) or repr(found["v"].to_pylist()) == repr(expected.to_pylist())
    assert repr(found["l"].to_pylist()) == repr([[value] for value in expected.to_pylist()])
    assert repr(found["s"].to_pylist()) == repr([{"x": value} for value in expected.to_pylist()])
    for value in expected.drop_null():
        where = pc.field("v") == value
        rows = found.filter(where)
        async with asyncpq.Session() as session:
            dataset = await session.open_dataset(str(writer.folder), format="delta")
            assert repr((await dataset.read(where=where)).to_pylist()) == repr(rows.to_pylist())
            assert await dataset.count(where) == rows.num_rows


@pytest.mark.parametrize("kind", ["decimal(39,0)", "decimal(0,0)", "decimal(38,1000000)", "decimal(99999999999,0)"])
async def test_decimals_of_impossible_digits_are_refused(writer: DeltaWriter, kind: str) -> None:
    writer.commit(protocol(), metadata(ID, column("x", kind)), writer.file("f.parquet", ids(1)))
    with pytest.raises(CorruptFileError, match="decimals have 1 to 38 digits"):
        await read(writer)
