"""Intervals that the part "bounds" keeps of a file: every value's key is in one of its row group's and its file's, in
the dataset's type; and they are no wider than statistics are.
"""

from __future__ import annotations

import shutil
import zlib
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from asyncpq.datasets.column_matching import view_of
from asyncpq.decoding.paths import type_of
from asyncpq.indexing import Bounds
from asyncpq.indexing.build.file_rows import bounds_of, bounds_rows, zone_rows
from asyncpq.indexing.build.file_values import WHOLE_FILE
from asyncpq.indexing.index_model import AFTER_ALL, NAN_KEY, NULL_KEY, TABLE_SCHEMAS, UNKNOWN_KEY
from asyncpq.indexing.key_encoding import is_indexable, normalised
from asyncpq.indexing.manifest import BOUNDS_VERSION, decode
from asyncpq.objects.version import FileVersion
from tests.parquet_bytes import parquet_bytes
from tests.parquet_files import EditedFile
from tests.parquet_samples import OpenFile
from tests.random_tables import WriterOptions, tables, writer_options

few = settings(max_examples=max(10, settings().max_examples // 4))  # of each type
FILE = 3


def write(table: pa.Table, **options: Any) -> bytes:
    return parquet_bytes(table, **options)


def rows_of(version: FileVersion, name: str, schema: pa.Schema, partition: dict[str, Any] | None = None) -> pa.Table:
    return bounds_rows(version, FILE, name, schema, view_of(version, schema, None, partition or {}))


def keys_of(column: pa.ChunkedArray, type_: pa.DataType) -> list[bytes]:
    array = column.combine_chunks()
    plain = array.dictionary_decode() if isinstance(array, pa.DictionaryArray) else array
    found: list[bytes] = normalised(plain if plain.type == type_ else plain.cast(type_), type_).to_pylist()
    return found


def check(data: bytes, rows: pa.Table, keys: list[bytes]) -> None:
    """Every key is in an interval of its zones, and intervals hold as many as they say."""
    assert rows.schema == TABLE_SCHEMAS["bounds"]
    found = rows.to_pylist()
    assert [row["key"] for row in found] == sorted(row["key"] for row in found)
    assert {row["file"] for row in found} <= {FILE}
    metadata = OpenFile(data).metadata
    zones = {group.ordinal: keys[group.first_row : group.first_row + group.num_rows] for group in metadata.row_groups}
    for zone, held in {WHOLE_FILE: keys, **zones}.items():
        intervals = [row for row in found if row["group"] == zone]
        assert bool(held) or not intervals
        for row in intervals:
            inside = [key for key in held if row["key"] <= key <= row["max"]]
            assert row["values"] is None or row["key"] == UNKNOWN_KEY or len(inside) == row["values"]
        for key in held:
            assert any(row["key"] <= key <= row["max"] for row in intervals)


@given(drawn=tables(nested=False), options=writer_options)
def test_every_value_is_in_an_interval(drawn: tuple[pa.Table, dict[str, str]], options: WriterOptions) -> None:
    table, _ = drawn
    data = options.write(table)
    read = pq.ParquetFile(pa.BufferReader(data)).read()
    version = OpenFile(data).version
    for name in table.column_names:
        type_ = read.schema.field(name).type
        if not is_indexable(type_):
            continue
        type_ = type_.value_type if isinstance(type_, pa.DictionaryType) else type_
        check(data, rows_of(version, name, read.schema), keys_of(read.column(name), type_))


WIDENED = [
    (pa.int8(), pa.int64(), st.integers(-128, 127)),
    (pa.uint32(), pa.int64(), st.integers(0, 2**32 - 1)),
    (pa.int16(), pa.float64(), st.integers(-(2**15), 2**15 - 1)),
    (pa.int32(), pa.decimal128(20, 4), st.integers(-(2**31), 2**31 - 1)),
    (pa.float32(), pa.float64(), st.sampled_from([0.1, -0.0, 0.0, float("nan"), float("inf"), -2.5])),
    (pa.decimal128(9, 2), pa.decimal128(30, 5), st.decimals(-1000, 1000, places=2)),
    (pa.decimal128(20, 0), pa.decimal256(50, 3), st.decimals(-(10**18), 10**18, places=0)),
    (pa.timestamp("ms"), pa.timestamp("us"), st.integers(-(2**40), 2**40)),
    (pa.timestamp("us", "UTC"), pa.timestamp("ns", "UTC"), st.integers(-(2**50), 2**50)),
    (pa.time32("ms"), pa.time64("ns"), st.integers(0, 86_399_999)),
    (pa.date32(), pa.date32(), st.integers(-1000, 20_000)),
    (pa.string(), pa.large_string(), st.text(max_size=80)),
    (pa.binary(), pa.binary(), st.binary(max_size=70) | st.just(b"\xff" * 70)),
    (pa.binary(4), pa.binary(4), st.binary(min_size=4, max_size=4)),
    (pa.bool_(), pa.bool_(), st.booleans()),
    (pa.uint64(), pa.uint64(), st.integers(0, 2**64 - 1)),
]


@pytest.mark.parametrize(("source", "target", "some"), WIDENED, ids=[f"{item[0]}-{item[1]}" for item in WIDENED])
@few
@given(data=st.data())
def test_bounds_are_those_of_the_datasets_type(
    source: pa.DataType, target: pa.DataType, some: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    column = data.draw(st.lists(st.none() | some, min_size=1, max_size=20))
    table = pa.table({"x": pa.array(column, source)})
    file = write(table, row_group_size=data.draw(st.integers(1, 10)))
    keys = keys_of(table.column("x"), target)
    rows = rows_of(OpenFile(file).version, "x", pa.schema([pa.field("x", target)]))
    check(file, rows, keys)
    values = [key for key in keys if key not in (NULL_KEY, NAN_KEY)]
    whole = [row for row in rows.to_pylist() if row["group"] == WHOLE_FILE and row["key"][:1] == b"\x01"]
    if NAN_KEY in keys:
        return  # a row group with nothing else has no statistics
    assert bool(whole) == bool(values)
    if values and not pa.types.is_large_string(target) and target != pa.binary():
        assert whole[0]["key"] == min(values)
        assert whole[0]["max"] == max(values) or pa.types.is_fixed_size_binary(target)


@pytest.mark.parametrize(("source", "target", "some"), WIDENED, ids=[f"{item[0]}-{item[1]}" for item in WIDENED])
@few
@given(data=st.data())
def test_bounds_of_values_hold_them(
    source: pa.DataType, target: pa.DataType, some: st.SearchStrategy[Any], data: st.DataObject
) -> None:
    column = data.draw(st.lists(st.none() | some, min_size=1, max_size=20))
    split = data.draw(st.integers(0, len(column)))
    array = pa.array(column, source).cast(target)
    file = write(pa.table({"x": array}))
    pieces = (array.slice(0, split), array.slice(split))
    zone = bounds_of(pieces[0], target) | bounds_of(pieces[1], target)
    keys = normalised(array, target).to_pylist()
    check(file, zone_rows(FILE, {0: zone}), keys)
    assert (zone.nulls, zone.nans) == (keys.count(NULL_KEY), keys.count(NAN_KEY))


def test_durations_have_bounds() -> None:
    table = pa.table({"x": pa.array([5, -3, None], pa.duration("us"))})
    data = write(table)
    schema = pa.schema([pa.field("x", pa.duration("us"))])
    check(data, rows_of(OpenFile(data).version, "x", schema), keys_of(table.column("x"), pa.duration("us")))
    zone = bounds_of(table.column("x").combine_chunks(), pa.duration("us"))
    assert [zone.low, zone.high] == sorted(
        normalised(pa.array([5, -3], pa.duration("us")), pa.duration("us")).to_pylist()
    )


@pytest.mark.parametrize("kind", [pa.string(), pa.binary()], ids=str)
@pytest.mark.parametrize(
    ("value", "low", "high"),
    [(b"abc", b"a", b"a"), (b"a\x7fc", b"", b"a\x7f"), (b"zz" * 50, b"zz", b"zz" * 40), ("é€".encode(), b"", b"\xc3")],
    ids=["one byte", "empty min", "long", "inside a character"],
)
def test_bounds_that_were_cut_short_hold_the_values(kind: pa.DataType, value: bytes, low: bytes, high: bytes) -> None:
    table = pa.table({"x": pa.array([value.decode()]).cast(kind)})
    file = EditedFile.of(table)
    file.statistics().put(6, low)
    file.statistics().put(5, high)
    for flag in (7, 8):
        file.statistics().pop(flag, None)
    keys = keys_of(table.column("x"), kind)
    rows = rows_of(OpenFile(file.data()).version, "x", table.schema)
    check(file.data(), rows, keys)
    assert len(rows) == 2
    assert rows.column("max")[0].as_py() < b"\x01\xff"  # it has an end


def test_a_max_without_a_successor_has_no_end() -> None:
    table = pa.table({"x": pa.array([b"\xff" * 100], pa.binary())})
    file = EditedFile.of(table)
    file.statistics().put(5, b"\xff" * 3)
    file.statistics().put(6, b"\xff" * 3)
    for flag in (7, 8):
        file.statistics().pop(flag, None)
    rows = rows_of(OpenFile(file.data()).version, "x", table.schema)
    check(file.data(), rows, keys_of(table.column("x"), pa.binary()))
    assert rows.column("max")[0].as_py() < NAN_KEY


UNKNOWN = [{"key": UNKNOWN_KEY, "max": AFTER_ALL, "file": FILE, "group": zone, "values": None} for zone in (-1, 0)]
TABLE = pa.table({"a": [1, 2, None], "s": [{"x": 1, "y": None}, None, {"x": 3, "y": None}], "l": [[1], [2], []]})


@pytest.mark.parametrize(
    ("name", "type_"),
    [("a", pa.string()), ("a", pa.timestamp("us")), ("l", pa.list_(pa.int64())), ("s", TABLE.schema.field("s").type)],
    ids=str,
)
def test_what_compares_otherwise_is_unknown(name: str, type_: pa.DataType) -> None:
    schema = pa.schema([pa.field(name, type_)])
    assert rows_of(OpenFile(write(TABLE)).version, name, schema).to_pylist() == UNKNOWN


@pytest.mark.parametrize(
    ("source", "target", "held"),
    [
        (pa.int64(), pa.int8(), (-128, 127)),
        (pa.int64(), pa.int32(), (-(2**31), 2**31 - 1)),
        (pa.int32(), pa.uint16(), (0, 2**16 - 1)),
        (pa.int64(), pa.uint64(), (0, 2**63 - 1)),
        (pa.int32(), pa.decimal128(5, 2), (-999, 999)),
        (pa.int64(), pa.decimal256(40, 38), (-99, 99)),
        (pa.timestamp("ms"), pa.timestamp("ns"), (-(2**63 // 10**6), (2**63 - 1) // 10**6)),
    ],
    ids=str,
)
def test_values_that_the_datasets_type_does_not_hold_are_unknown(
    source: pa.DataType, target: pa.DataType, held: tuple[int, int]
) -> None:
    schema = pa.schema([pa.field("x", target)])
    for values, known in ((held, True), ((held[0] - 1, 0), False), ((0, held[1] + 1), False)):
        if max(values) > 2**63 - 1:
            continue  # of no source
        table = pa.table({"x": pa.array(values, source)})
        rows = rows_of(OpenFile(write(table)).version, "x", schema)
        if known:
            plain = [Decimal(value) for value in values] if pa.types.is_decimal(target) else table["x"].combine_chunks()
            keys = normalised(pa.array(plain, target) if isinstance(plain, list) else plain.cast(target), target)
            check(write(table), rows, keys.to_pylist())
        else:
            assert rows.to_pylist() == UNKNOWN


def test_files_without_statistics_have_intervals_that_hold_everything() -> None:
    data = write(TABLE.select(["a"]), write_statistics=False)
    rows = rows_of(OpenFile(data).version, "a", TABLE.schema)
    check(data, rows, keys_of(TABLE.column("a"), pa.int64()))
    assert {row["values"] for row in rows.to_pylist()} == {None}


def test_leaves_in_structs_count_the_nulls_above_them() -> None:
    data = write(TABLE)
    rows = rows_of(OpenFile(data).version, "s.x", TABLE.schema)
    type_ = type_of(TABLE.schema, "s.x")
    assert type_ is not None
    check(data, rows, normalised(pa.array([1, None, 3], pa.int64()), type_).to_pylist())
    assert rows.column("values").to_pylist() == [1, 1, 2, 2]


def test_a_column_that_a_file_lacks_is_null() -> None:
    data = write(TABLE.select(["a"]))
    schema = TABLE.schema.append(pa.field("new", pa.int64()))
    rows = rows_of(OpenFile(data).version, "new", schema)
    check(data, rows, [NULL_KEY] * 3)
    inside = pa.schema([pa.field("s", pa.struct([("x", pa.int64()), ("z", pa.string())]))])
    check(write(TABLE), rows_of(OpenFile(write(TABLE)).version, "s.z", inside), [NULL_KEY] * 3)


@pytest.mark.parametrize(
    ("value", "type_"),
    [
        (5, pa.int32()),
        (None, pa.int32()),
        ("a" * 90, pa.string()),
        (float("nan"), pa.float64()),
        (Decimal("1.5"), pa.decimal128(9, 3)),
    ],
    ids=lambda item: str(item)[:9],
)
def test_partition_values_are_those_of_every_row(value: Any, type_: pa.DataType) -> None:
    data = write(TABLE, row_group_size=2)
    schema = TABLE.schema.append(pa.field("part", type_))
    rows = rows_of(OpenFile(data).version, "part", schema, {"part": value})
    check(data, rows, normalised(pa.array([value] * 3, type_), type_).to_pylist())


def test_an_empty_file_has_no_interval() -> None:
    data = write(TABLE.slice(0, 0))
    for name in ("a", "s.x", "l"):
        assert rows_of(OpenFile(data).version, name, TABLE.schema).num_rows == 0


_TAIL = b',"crc32":'


def as_built_before(content: bytes, version: bytes) -> bytes:
    """A manifest whose bounds are of an older version."""
    body = content.rpartition(_TAIL)[0].replace(b',"bounds_version":%d' % BOUNDS_VERSION, version)
    return b"%s%s%d}" % (body, _TAIL, zlib.crc32(body))


@pytest.mark.parametrize("version", [b"", b',"bounds_version":1'])
async def test_older_bounds_are_left_out_until_they_are_built_again(tmp_path: Path, version: bytes) -> None:
    for number in range(3):
        pq.write_table(pa.table({"x": [number * 10, number * 10 + 1]}), tmp_path / f"{number}.parquet")
    at = tmp_path / "_asyncpq"
    async with asyncpq.Session() as session:
        await session.build_index(str(tmp_path), [Bounds("x")], at=str(at))
    newest = max((at / "manifests").glob("*.json"))
    assert "bounds" in [segment.table.kind for segment in decode(newest.read_bytes()).segments]
    for manifest in (at / "manifests").glob("*.json"):
        manifest.write_bytes(as_built_before(manifest.read_bytes(), version))
    snapshot, _, copy = (at / "latest").read_bytes().partition(b"\n")
    (at / "latest").write_bytes(snapshot + b"\n" + as_built_before(copy, version))
    assert "bounds" not in [segment.table.kind for segment in decode(newest.read_bytes()).segments]

    async def files_opened() -> int:
        async with asyncpq.Session() as session:
            dataset = await session.open_dataset(str(tmp_path), index=str(at))
            async with dataset.scan(where=col("x") == 11) as scan:
                assert [batch.to_pydict() async for batch in scan] == [{"x": [11]}]
            return scan.metrics.files_opened

    assert await files_opened() == 3
    shutil.rmtree(at)
    async with asyncpq.Session() as session:
        await session.build_index(str(tmp_path), [Bounds("x")], at=str(at))
    assert await files_opened() == 1
