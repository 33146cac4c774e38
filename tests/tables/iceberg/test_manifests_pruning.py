"""Which manifests and files of an Iceberg table are ruled out by partitions and bounds: never one with a matching row.

Every transform, on values that its arithmetic could trip over: nulls, NaN, both zeros, times before 1970.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import math
import struct
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyiceberg.conversions import to_bytes
from pyiceberg.expressions.literals import literal
from pyiceberg.manifest import ManifestContent, ManifestFile, PartitionFieldSummary
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import BinaryType, DoubleType, LongType, NestedField, PrimitiveType, StringType, TimestampType

import asyncpq
from asyncpq.datasets.model import ColumnBounds
from asyncpq.expressions import Expression, col
from asyncpq.expressions import atoms as atoms_of
from asyncpq.expressions.tree import In
from asyncpq.tables.iceberg.catalog import IcebergCatalog, IcebergSnapshot
from asyncpq.tables.iceberg.manifests import PartitionFilter
from asyncpq.tables.iceberg.schema import column_bounds
from tests.example_counts import examples
from tests.iceberg_tables import LocalReader, add_files, data_record, make_table
from tests.predicates import atoms, oracle, trees

_MOMENTS = [dt.datetime(1969, 12, 31, 22), dt.datetime(1970, 1, 1), dt.datetime(1970, 1, 1, 0, 30)]
_MOMENTS += [dt.datetime(1968, 2, 29, 12), dt.datetime(2024, 2, 29, 23, 59, 59, 999999), dt.datetime(2024, 3, 1)]
_MOMENTS += [dt.datetime(1901, 1, 1), dt.datetime(2024, 2, 29, 1)]
_EARLY = dt.datetime(1969, 12, 30, 22)
_EPOCH = dt.datetime(1970, 1, 1)
# Arrow type, kind of tests.predicates, and the values of each column.
_COLUMNS: dict[str, tuple[pa.DataType, str, list[Any]]] = {
    "i": (pa.int32(), "int32", [0, 1, -1, 3, 17, -(2**31), 2**31 - 1]),
    "n": (pa.int64(), "int64", [0, 1, -1, 9, 100, -(2**63), 2**53 + 1]),
    "x": (pa.float64(), "float64", [0.0, -0.0, math.nan, 0.1, -2.0, math.inf]),
    "y": (pa.float32(), "float32", [0.0, -0.0, math.nan, 1.5, -2.0]),
    "s": (pa.string(), "string", ["", "a", "ab", "abc", "abd", "é", "zz" * 40]),
    "b": (pa.binary(), "binary", [b"", b"a", b"ab", b"\xff", b"\x00"]),
    "p": (pa.decimal128(9, 2), "decimal", [Decimal("1.25"), Decimal("-0.50"), Decimal("3.00"), Decimal("100.10")]),
    "d": (pa.date32(), "date32", [moment.date() for moment in _MOMENTS]),
    "t": (pa.timestamp("us"), "timestamp_us", _MOMENTS),
    "u": (pa.timestamp("us", "UTC"), "timestamp_utc", [moment.replace(tzinfo=dt.UTC) for moment in _MOMENTS]),
    "q": (pa.bool_(), "bool", [True, False]),
}
_Parts = list[tuple[str, Transform[Any, Any]]]
_TIMES: list[Transform[Any, Any]] = [YearTransform(), MonthTransform(), DayTransform()]
_SPECS: dict[str, list[_Parts]] = {
    "identity": [[(name, IdentityTransform())] for name in _COLUMNS],
    "bucket": [[(name, BucketTransform(3))] for name in "inspdtub"],
    "truncate": [[(name, TruncateTransform(2))] for name in "insbp"],
    "time": [[(name, transform)] for name in "dtu" for transform in _TIMES]
    + [[(name, HourTransform())] for name in "tu"],
    "several": [
        [("i", BucketTransform(2)), ("s", TruncateTransform(1)), ("t", DayTransform())],
        [("i", VoidTransform()), ("x", IdentityTransform())],
        [],
    ],
}
_SCHEMA = pa.schema([(name, kind) for name, (kind, _, _) in _COLUMNS.items()])


def _rows() -> list[dict[str, Any]]:
    longest = max(len(values) for _, _, values in _COLUMNS.values())
    pools = {name: [*values, None] for name, (_, _, values) in _COLUMNS.items()}
    return [
        {name: pool[(at * step) % len(pool)] for step, (name, pool) in enumerate(pools.items(), 1)}
        for at in range(longest * 5)
    ]


class _Written:
    """A table of manifests; its data files exist as tables only."""

    def __init__(self, folder: Path, parts: _Parts) -> None:
        table = make_table(folder, _SCHEMA)
        schema = table.schema()
        with table.update_spec() as update:
            for name, transform in parts:
                update.add_field(name, transform, f"{name}_part")
        self.rows: dict[str, pa.Table] = {}
        groups: dict[str, tuple[Record, list[dict[str, Any]]]] = {}
        for number, row in enumerate(_rows()):
            partition = Record(*[_transformed(schema, name, transform, row[name]) for name, transform in parts])
            key = repr(partition) if parts else str(number % 4)
            groups.setdefault(key, (partition, []))[1].append(row)
        files = []
        for number, (partition, rows) in enumerate(groups.values()):
            url = f"file:///data/{number}.parquet"
            self.rows[url] = pa.Table.from_pylist(rows, _SCHEMA)
            files.append(data_record(table, url, partition, record_count=len(rows), **_statistics(schema, rows)))
        for start in range(0, len(files), 3):  # several manifests, with summaries that say something
            add_files(table, files[start : start + 3], ManifestContent.DATA)
        self.snapshot: IcebergSnapshot = asyncio.run(IcebergCatalog(table).snapshot(LocalReader()))


def _transformed(schema: Schema, name: str, transform: Transform[Any, Any], value: Any) -> Any:
    if value is None:
        return None
    kind = schema.find_field(name).field_type
    return transform.transform(kind)(value if isinstance(value, float) else literal(value).to(kind).value)


def _statistics(schema: Schema, rows: list[dict[str, Any]]) -> dict[str, dict[int, Any]]:
    lower, upper, nulls, nans = {}, {}, {}, {}
    for field in schema.fields:
        values = [row[field.name] for row in rows if row[field.name] is not None]
        nulls[field.field_id] = len(rows) - len(values)
        ordered = [value for value in values if value == value]
        nans[field.field_id] = len(values) - len(ordered)
        if ordered:
            low, high = min(ordered), max(ordered)
            if isinstance(high, str) and len(high) > 16:
                high = high[:15] + chr(ord(high[15]) + 1)
            assert isinstance(field.field_type, PrimitiveType)
            lower[field.field_id] = to_bytes(field.field_type, low)
            upper[field.field_id] = to_bytes(field.field_type, high)
    return {"lower_bounds": lower, "upper_bounds": upper, "null_value_counts": nulls, "nan_value_counts": nans}


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Callable[[_Parts], _Written]:
    made: dict[str, _Written] = {}

    def make(parts: _Parts) -> _Written:
        if str(parts) not in made:
            made[str(parts)] = _Written(tmp_path_factory.mktemp("iceberg"), parts)
        return made[str(parts)]

    return make


def _predicates(parts: _Parts) -> st.SearchStrategy[Expression]:
    names = [name for name, _ in parts] or list(_COLUMNS)
    columns = [(name, *_COLUMNS[name][1:]) for name in names]
    return trees(st.one_of([atoms(name, kind, own=st.sampled_from(values)) for name, kind, values in columns]))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("specs", _SPECS.values(), ids=list(_SPECS))
@settings(max_examples=examples(12, thorough=250))
@given(data=st.data())
def test_no_file_with_a_matching_row_is_ruled_out(
    written: Callable[[_Parts], _Written], specs: list[_Parts], data: st.DataObject
) -> None:
    parts = data.draw(st.sampled_from(specs))
    where = data.draw(_predicates(parts))
    # pyarrow's is_in takes every integer and date for one of a set of UUIDs
    sets = [atom.values for atom in atoms_of(where) if isinstance(atom, In)]
    assume(not any(isinstance(value, uuid.UUID) for values in sets for value in values))
    _check(written(parts), where)


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("x", ~(col("x") > 1.0)),
        ("x", ~col("x").is_in([0.0])),
        ("x", col("x").is_in([math.nan])),
        ("y", col("y").is_in([math.nan])),
        ("i", ~col("i").is_in([1, None])),
        ("s", ~col("s").starts_with("ab")),
    ],
)
def test_traps(written: Callable[[_Parts], _Written], name: str, where: Expression) -> None:
    _check(written([(name, IdentityTransform())]), where)


@pytest.mark.parametrize(
    "where", [col("t") <= _EARLY, col("t") == _EARLY, col("t").is_in([_EARLY]), ~(col("t") > _EARLY)]
)
async def test_early_writers_rounded_towards_1970(tmp_path: Path, where: Expression) -> None:
    """A time before 1970 may be in the partition of the next day, month or year."""
    day = _transformed(Schema(NestedField(1, "t", TimestampType())), "t", DayTransform(), _EARLY)
    assert await _files_of_day(tmp_path, day + 1, where) == 1


@pytest.mark.parametrize("where", [col("t") < _EPOCH, ~(col("t") >= _EPOCH), col("t") == _EARLY])
async def test_early_writers_put_no_day_beyond_the_first_of_1970(tmp_path: Path, where: Expression) -> None:
    assert await _files_of_day(tmp_path, 0, where) == 1
    assert await _files_of_day(tmp_path, 1, where) == 0


async def _files_of_day(folder: Path, day: int, where: Expression) -> int:
    """How many files are left of a table with one, in the partition of ``day``."""
    table = make_table(folder, _SCHEMA)
    with table.update_spec() as update:
        update.add_field("t", DayTransform(), "day")
    add_files(table, [data_record(table, "file:///x", Record(day), record_count=1)], ManifestContent.DATA)
    reader = LocalReader()
    snapshot = await IcebergCatalog(table).snapshot(reader)
    return len(await snapshot.files(where, reader))


_NAN = struct.pack("<d", math.nan)


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (_NAN, _NAN, (None, None)),  # as early writers did
        (struct.pack("<d", 1.0), _NAN, (None, None)),
        (struct.pack("<f", 1.5), struct.pack("<f", 2.5), (1.5, 2.5)),  # from before the column was a double
        (b"\x00", struct.pack("<d", 2.0), (None, 2.0)),
        (None, struct.pack("<d", 2.0), (None, 2.0)),
    ],
)
def test_bounds_of_doubles(low: bytes | None, high: bytes, expected: tuple[float | None, float | None]) -> None:
    lower = {} if low is None else {1: low}
    file = _entry(num_rows=2, lower_bounds=lower, upper_bounds={1: high}, null_counts={1: 3})
    bounds = column_bounds(NestedField(1, "x", DoubleType()), file)
    assert (bounds.min, bounds.max) == expected
    assert bounds.may_be_nan
    assert bounds.null_count is None  # more nulls than rows say nothing


@pytest.mark.heavy
async def test_files_of_a_large_table_are_few_objects_that_the_garbage_collector_walks_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncpq.tables.iceberg.schema.replace", None)  # no partition has columns of its own
    table = make_table(tmp_path, pa.schema([("id", pa.int64()), ("p", pa.int64())]))
    with table.update_spec() as update:
        update.add_identity("p")
    files = [
        data_record(
            table,
            f"{table.location()}/data/{number}.parquet",
            Record(number % 3),
            lower_bounds={1: struct.pack("<q", number)},
            upper_bounds={1: struct.pack("<q", number)},
            column_sizes={1: 10, 2: 10},
            split_offsets=[4],
        )
        for number in range(2000)
    ]
    add_files(table, (), data=files)
    catalog, reader = IcebergCatalog(table.refresh()), LocalReader()
    await (await IcebergCatalog(table).snapshot(reader)).files(col("id") > 5, reader)  # imports
    del files
    gc.collect()
    before = len(gc.get_objects())
    snapshot = await catalog.snapshot(reader)
    kept = await snapshot.files(col("id") > 5, reader)
    for _ in range(4):  # until tuples of tuples are no longer visited
        gc.collect()
    assert len(gc.get_objects()) - before < 5.5 * len(kept)  # the cached entries of the manifest, and their statistics
    assert kept[7].partition == {"p": 1}
    assert (kept[7].bounds["id"].min, kept[7].bounds["id"].max) == (7, 7)
    assert [file.url for file in await snapshot.files(col("p") == 1, reader)] == [
        file.url for file in kept if file.partition == {"p": 1}
    ]


def _entry(num_rows: int = 1, **statistics: Any) -> Any:
    """What has the statistics of a data file's entry."""
    return SimpleNamespace(**{"num_rows": num_rows, "null_counts": {}, "nan_counts": {}, **statistics})


def test_bounds_that_say_nothing() -> None:
    file = _entry(lower_bounds={1: b"\xff"}, upper_bounds={1: b"a"})
    assert column_bounds(NestedField(1, "x", StringType()), file).min is None  # cut inside a character
    early = struct.pack("<q", -(1 << 60))
    file = _entry(lower_bounds={1: early}, upper_bounds={1: early})
    assert column_bounds(NestedField(1, "x", TimestampType()), file) == ColumnBounds(may_be_nan=False)


def _check(written: _Written, where: Expression) -> None:
    try:
        question = oracle(where)
        matching = {url for url, table in written.rows.items() if table.filter(question).num_rows}
    except (pa.ArrowException, ValueError, TypeError, OverflowError):  # not a question for pyarrow
        assume(False)
    given_files = asyncio.run(written.snapshot.files(where, LocalReader()))
    assert matching <= {file.url for file in given_files}
    for file in given_files:
        table = written.rows[file.url]
        assert file.num_rows == table.num_rows
        for name, value in file.partition.items():
            constant = pa.scalar(value, table.schema.field(name).type)
            assert repr(table.column(name).unique().to_pylist()) == repr([constant.as_py()])
        for name, bounds in file.bounds.items():
            _holds(bounds, table.column(name))


def _holds(bounds: ColumnBounds, values: pa.ChunkedArray) -> None:
    assert bounds.null_count == values.null_count
    assert bounds.all_null == (values.null_count == len(values))
    known = values.drop_null()
    if pa.types.is_floating(known.type):
        assert bounds.may_be_nan == pc.any(pc.is_nan(known), min_count=0).as_py()
        known = known.filter(pc.invert(pc.is_nan(known)))
    assert (bounds.min is None) == (len(known) == 0)
    for value in known.to_pylist():
        assert bounds.min <= value <= bounds.max


def _count(written: _Written, where: Expression) -> int:
    return len(asyncio.run(written.snapshot.files(where, LocalReader())))


@pytest.mark.parametrize(
    ("parts", "where"),
    [
        ([("i", BucketTransform(3))], col("i") == 3),
        ([("s", TruncateTransform(2))], col("s") == "abc"),
        ([("s", TruncateTransform(2))], col("s").starts_with("abd")),
        ([("t", DayTransform())], col("t") >= dt.datetime(2024, 3, 1)),
        ([("d", MonthTransform())], col("d").is_in([dt.date(2024, 3, 1)])),
        ([("u", HourTransform())], col("u") < dt.datetime(1970, 1, 1, tzinfo=dt.UTC)),
        ([("x", IdentityTransform())], col("x").is_null()),
        ([("x", IdentityTransform())], col("x").is_in([math.nan])),
        ([("p", IdentityTransform())], col("p") == Decimal("3.0")),
        ([("n", TruncateTransform(2))], ~(col("n") <= 8)),
        ([("i", BucketTransform(2)), ("s", TruncateTransform(1)), ("t", DayTransform())], col("s") == "zzzz"),
    ],
)
def test_partitions_rule_files_out(tmp_path: Path, parts: _Parts, where: Expression) -> None:
    written = _Written(tmp_path, parts)
    assert _count(written, where) < len(written.rows)


async def test_times_of_the_last_day_of_pythons_years(tmp_path: Path) -> None:
    """In UTC they lie outside of them; they rule out nothing."""
    times = [dt.datetime(2024, 3, 1, tzinfo=dt.UTC), dt.datetime.max.replace(tzinfo=dt.UTC)]
    table = make_table(tmp_path, pa.schema([("t", pa.timestamp("us", "UTC"))]))
    table.append(pa.table({"t": pa.array(times, pa.timestamp("us", "UTC"))}))
    east, west = (dt.timezone(dt.timedelta(hours=hours)) for hours in (5, -5))
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(table)
        assert await dataset.count(col("t") < dt.datetime.max.replace(tzinfo=west)) == 2
        assert await dataset.count(col("t") >= dt.datetime.max.replace(tzinfo=west)) == 0
        assert await dataset.count(col("t") > dt.datetime.min.replace(tzinfo=east)) == 2
        assert await dataset.count(col("t").is_in([dt.datetime.min.replace(tzinfo=east)])) == 0


def _questions_of(value: Any) -> list[Expression]:
    return [col("v") == value, col("v") <= value, col("v") < value, col("v").is_valid(), col("v").is_null()]


@pytest.mark.parametrize(
    "values", [["", "a"], [None, "", "a"], [None, ""], [""], [b"", b"a"], [None, 1], [1, 2], [None, math.nan]], ids=str
)
@pytest.mark.parametrize("bounds", ["as they are", "none if empty"])
def test_manifests_whose_summaries_lack_empty_bounds(values: list[Any], bounds: str) -> None:
    # iceberg-go 0.7.0 leaves out the bound '', as if all partitions were null
    kind, literal_of = {str: (StringType(), "a"), bytes: (BinaryType(), b"a"), int: (LongType(), 1)}.get(
        type(values[-1]), (DoubleType(), 1.0)
    )
    column = NestedField(1, "v", kind, required=False)
    spec = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "part"))
    known: list[bytes | None] = [
        to_bytes(kind, value) for value in sorted(each for each in values if each is not None and each == each)
    ]
    if bounds == "none if empty":
        known = [bound or None for bound in known]
    contains_null, contains_nan = None in values, math.nan in values
    ends = (known[0], known[-1]) if known else (None, None)
    summary = PartitionFieldSummary(contains_null, contains_nan, *ends)
    manifest = ManifestFile.from_args(manifest_path="m.avro", partition_spec_id=0, partitions=[summary])
    for where in _questions_of(literal_of):
        rows = pa.table({"v": values})
        kept = PartitionFilter(where, Schema(column), {"v": column}).keeps_manifest(manifest, spec)
        assert kept or not rows.filter(oracle(where)).num_rows, where
    if kind == LongType():
        assert not PartitionFilter(col("v") > 2, Schema(column), {"v": column}).keeps_manifest(manifest, spec)
