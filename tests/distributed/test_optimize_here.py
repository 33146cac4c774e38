"""``Session.optimize``: the same rows, in order, in files of which lookups read little; or nothing at all."""

from __future__ import annotations

import datetime as dt
import math
import random
import resource
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import asyncpq
import asyncpq.blocking
from asyncpq import col
from asyncpq.distributed.optimize import RowDigest
from asyncpq.distributed.row_order import RowOrder
from asyncpq.errors import (
    ColumnNotFoundError,
    CorruptFileError,
    InvalidOptionError,
    ObjectNotFoundError,
    SchemaMismatchError,
    StoreError,
)
from asyncpq.testing import Fault, ObjectServer
from tests.example_counts import examples

_LITTLE = asyncpq.BuildOptions(memory_bytes=1 << 16)
_TEXTS = st.text(alphabet="ab\x00é", max_size=3) | st.just("x" * 70 + "b") | st.just("x" * 70 + "a")
COLUMNS: Mapping[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "id": (pa.int64(), st.integers(-5, 5)),
    "real": (pa.float64(), st.sampled_from([math.nan, -0.0, 0.0, 1.5, -math.inf])),
    "name": (pa.string(), _TEXTS),
    "key": (pa.binary(), st.binary(max_size=2)),
    "row": (pa.list_(pa.int32()), st.lists(st.integers(0, 3), max_size=2)),
    "s": (pa.struct([("x", pa.int32())]), st.fixed_dictionaries({"x": st.none() | st.integers(-2, 2)})),
}
SCHEMA = pa.schema([(name, dtype) for name, (dtype, _) in COLUMNS.items()])
ROWS = st.lists(st.fixed_dictionaries({name: st.none() | value for name, (_, value) in COLUMNS.items()}), max_size=40)


def rank(value: Any) -> tuple[int, Any]:
    """Sorts as the files do: nulls first, NaN last, text by its bytes."""
    if value is None:
        return (0, 0)
    if isinstance(value, float) and math.isnan(value):
        return (2, 0)
    return (1, value.encode() if isinstance(value, str) else value)


def leaf(row: Mapping[str, Any], name: str) -> Any:
    first, _, rest = name.partition(".")
    value = row[first]
    return value if not rest or value is None else value[rest]


def rows_of(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.heavy
@pytest.mark.parametrize("sort_by", ["id", ["real", "name"], ["name"], ["s.x", "key"]], ids=str)
@settings(
    max_examples=examples(6, thorough=60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(rows=ROWS)
async def test_rows_are_the_same_and_sorted(
    tmp_path_factory: pytest.TempPathFactory, sort_by: list[str] | str, rows: list[dict[str, Any]]
) -> None:
    source = tmp_path_factory.mktemp("source")
    for number in range(2):
        pq.write_table(pa.Table.from_pylist(rows[number::2], SCHEMA), source / f"{number}.parquet")
    target = f"{tmp_path_factory.mktemp('target')}/lake/"
    async with asyncpq.Session() as session:
        done = await session.optimize(f"{source}/", target, sort_by, building=_LITTLE)
        assert done.rows == len(rows)
        if not rows:
            assert done.files == ()
            return
        dataset = await session.open_dataset(target)
        table = await dataset.read()
        assert rows_of(table) == rows_of(pa.Table.from_pylist(rows, SCHEMA))
        names = [sort_by] if isinstance(sort_by, str) else sort_by
        found = [tuple(rank(leaf(row, name)) for name in names) for row in table.to_pylist()]
        assert found == sorted(found)


def write_lake(folder: Path, rows: int = 20_000, files: int = 4) -> pa.Table:
    """Write a lake of files in random order."""
    folder.mkdir()
    rng = random.Random(5)
    tables = []
    for number in range(files):
        ids = [rng.randrange(10**6) for _ in range(rows // files)]
        columns = {"id": ids, "x": [rng.random() for _ in ids], "y": [rng.random() for _ in ids]}
        tables.append(pa.table(columns))
        pq.write_table(tables[-1], folder / f"{number}.parquet")
    return pa.concat_tables(tables)


def below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


@pytest.mark.heavy
async def test_rows_that_exceed_the_memory_go_to_local_files(tmp_path: Path) -> None:
    table = write_lake(tmp_path / "lake")
    local = tmp_path / "local"
    local.mkdir()
    steps: list[asyncpq.Progress] = []

    def note(event: object) -> None:
        if isinstance(event, asyncpq.Progress):
            steps.append(event)

    building = asyncpq.BuildOptions(memory_bytes=1 << 17, folder=str(local))
    layout = asyncpq.WriteOptions(row_group_rows=3000, file_bytes=100_000)
    async with asyncpq.Session(on_event=note) as session:
        target = str(tmp_path / "fast")
        done = await session.optimize(f"{tmp_path}/lake/", target, "id", layout=layout, building=building)
        assert below(local) == []
        assert len(done.files) > 1
        assert done.bytes_before == sum(path.stat().st_size for path in below(tmp_path / "lake"))
        read = await (await session.open_dataset(target + "/")).read()
    assert read["id"].to_pylist() == sorted(table["id"].to_pylist())
    assert rows_of(read) == rows_of(table)
    assert {step.step for step in steps} == {"read and sort", "write", "verify"}
    assert all(step.operation == "optimize" for step in steps)
    assert steps[-1].done == steps[-1].total == 20_000
    assert (tmp_path / "fast" / "_SUCCESS").exists()


async def test_rows_that_local_files_have_no_room_for(tmp_path: Path) -> None:
    """As on a full disk: a typed error, and nothing is left. The lake can still be read."""
    write_lake(tmp_path / "lake")
    local = tmp_path / "local"
    local.mkdir()
    building = asyncpq.BuildOptions(memory_bytes=1 << 17, folder=str(local))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    async with asyncpq.Session() as session:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
        try:
            with pytest.raises(StoreError, match="a local file for sorting rows cannot be written") as raised:
                await session.optimize(f"{tmp_path}/lake/", str(tmp_path / "fast"), "id", building=building)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert "BuildOptions.folder" in str(raised.value.hint)
        assert below(local) == []
        assert not (tmp_path / "fast").exists()
        dataset = await session.open_dataset(f"{tmp_path}/lake/")
        assert (await dataset.read()).num_rows == 20_000


async def test_a_lookup_reads_less_than_before(tmp_path: Path) -> None:
    table = write_lake(tmp_path / "lake", rows=100_000)
    key = table["id"][500].as_py()
    costs = []
    async with asyncpq.Session() as session:
        layout = asyncpq.WriteOptions(page_rows=1000)
        await session.optimize(f"{tmp_path}/lake/", f"{tmp_path}/fast/", "id", layout=layout)
        for folder in ("lake", "fast"):
            dataset = await session.open_dataset(f"{tmp_path}/{folder}/")
            found = await dataset.lookup({"id": key})
            assert rows_of(found) == rows_of(table.filter(pc.equal(table["id"], key)))
            costs.append(dataset.metrics.rows_scanned)
    assert costs[1] * 10 < costs[0]


@pytest.mark.heavy
async def test_a_z_order_serves_ranges_of_each_of_its_columns(tmp_path: Path) -> None:
    table = write_lake(tmp_path / "lake", rows=50_000)
    layout = asyncpq.WriteOptions(page_rows=500)
    async with asyncpq.Session() as session:
        await session.optimize(f"{tmp_path}/lake/", f"{tmp_path}/z/", zorder_by=["x", "y"], layout=layout)
        dataset = await session.open_dataset(f"{tmp_path}/z/")
        assert rows_of(await dataset.read()) == rows_of(table)
        for name in ("x", "y"):
            with asyncpq.measure() as cost:
                found = await dataset.read(where=col(name).between(0.5, 0.51))
            expected = table.filter((pc.field(name) >= 0.5) & (pc.field(name) <= 0.51))
            assert rows_of(found) == rows_of(expected)
            assert cost.rows_scanned < 50_000 / 3


async def test_columns_conditions_and_tables_of_an_index(tmp_path: Path) -> None:
    table = write_lake(tmp_path / "lake")
    kinds = [asyncpq.indexing.Keys("id"), asyncpq.indexing.Footers()]
    async with asyncpq.Session() as session:
        done = await session.optimize(
            f"{tmp_path}/lake/",
            f"{tmp_path}/some/",
            "id",
            columns=["x", "id"],
            where=col("id") < 1000,
            kinds=kinds,
            publish="index",
        )
        dataset = await session.open_dataset(f"{tmp_path}/some/")
        read = await dataset.read()
    expected = table.filter(pc.field("id") < 1000).select(["x", "id"])
    assert read.column_names == ["x", "id"]
    assert rows_of(read) == rows_of(expected)
    assert done.rows == len(expected)
    assert not (tmp_path / "some" / "_SUCCESS").exists()


async def test_dictionaries_with_more_values_than_their_narrow_indices_count_are_united(tmp_path: Path) -> None:
    """Each row group of a file may have a dictionary of its own."""
    chunks = [
        pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), [f"{name}{number}" for number in range(100)])
        for name in "ba"
    ]
    table = pa.table({"name": pa.chunked_array(chunks), "row": range(200)})
    (tmp_path / "lake").mkdir()
    with pq.ParquetWriter(tmp_path / "lake" / "a.parquet", table.schema) as writer:
        for start in (0, 100):
            writer.write_table(table.slice(start, 100))
    async with asyncpq.Session() as session:
        await session.optimize(str(tmp_path / "lake"), str(tmp_path / "sorted"), sort_by="name")
        rows = await (await session.open_dataset(str(tmp_path / "sorted"))).read()
    assert sorted(map(tuple, map(dict.values, rows.to_pylist()))) == sorted(
        map(tuple, map(dict.values, table.to_pylist()))
    )
    (written,) = (tmp_path / "sorted" / "data").rglob("*.parquet")
    assert pq.read_table(written)["name"].to_pylist() == sorted(table["name"].to_pylist())


async def test_views_are_written_as_plain_types(tmp_path: Path) -> None:
    views = pa.schema(
        {
            "s": pa.string_view(),
            "b": pa.binary_view(),
            "n": pa.struct([("s", pa.string_view()), ("l", pa.list_(pa.binary_view()))]),
            "m": pa.map_(pa.string(), pa.string_view()),
        }
    )
    rows = [
        {"s": f"k{n}", "b": n.encode(), "n": {"s": f"n{n}", "l": [b"x", None]}, "m": [("a", f"{n}")]} for n in "31024"
    ]
    pq.write_table(pa.Table.from_pylist([*rows, dict.fromkeys(views.names)], views), tmp_path / "views.parquet")
    async with asyncpq.Session() as session:
        await session.optimize(str(tmp_path / "views.parquet"), str(tmp_path / "sorted"), sort_by=["s"])
        dataset = await session.open_dataset(str(tmp_path / "sorted"))
        assert "view" not in str(dataset.schema)
        nulls = dict.fromkeys(views.names)
        assert (await dataset.read()).to_pylist() == [nulls, *sorted(rows, key=lambda row: str(row["s"]))]
        assert (await dataset.lookup({"n.s": "n3"})).to_pylist() == [rows[0]]


_UUIDS = pa.array([b"\xff" * 16, None, b"\x00" * 16, b"\x01" * 16], pa.binary(16))
_UNUSUAL = {
    "uuid": pa.ExtensionArray.from_storage(pa.uuid(), _UUIDS),
    "fixed": pa.array([b"\xff", None, b"\x00", b"b"], pa.binary(1)),
    "nothing": pa.nulls(4),
    "view": pa.array(["z", None, "", "a"], pa.string()).cast(pa.string_view()),
    "encoded": pa.array(["z", None, "", "a"]).dictionary_encode(),
    "decimal": pa.array([99, None, -1, 0], pa.int64()).cast(pa.decimal256(40, 2)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", _UNUSUAL)
@pytest.mark.parametrize("zorder", [False, True], ids=["sort_by", "zorder_by"])
async def test_columns_of_unusual_types_are_sorted_by(tmp_path: Path, name: str, zorder: bool) -> None:
    pq.write_table(pa.table({**_UNUSUAL, "id": pa.array([0, 0, 0, 0])}), tmp_path / "a.parquet")
    order: dict[str, Any] = {"zorder_by": ["id", name]} if zorder else {"sort_by": name}
    async with asyncpq.Session() as session:
        await session.optimize(f"{tmp_path}/a.parquet", f"{tmp_path}/sorted/", **order)
        found = await (await session.open_dataset(f"{tmp_path}/sorted/")).read()
        rows = (await (await session.open_file(f"{tmp_path}/a.parquet")).read()).to_pylist()
    assert found.to_pylist() == (rows if name == "nothing" else [*rows[1:], rows[0]])


def test_the_blocking_session_has_it(tmp_path: Path) -> None:
    write_lake(tmp_path / "lake", rows=100)
    with asyncpq.blocking.Session() as session:
        done = session.optimize(f"{tmp_path}/lake/", f"{tmp_path}/fast/", "id")
    assert str(done).startswith("100 rows in 1 file, ")


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({}, InvalidOptionError, "no column to sort by"),
        ({"sort_by": "nothing"}, ColumnNotFoundError, "nothing"),
        ({"sort_by": ["id", "id"]}, InvalidOptionError, "twice"),
        ({"zorder_by": ["x"]}, InvalidOptionError, "2 to 8"),
        ({"sort_by": "id", "columns": ["x"]}, ColumnNotFoundError, "id"),
        ({"sort_by": "id", "target": "lake/fast/"}, InvalidOptionError, "overlap"),
        ({"sort_by": "id", "target": "lake/"}, InvalidOptionError, "overlap"),
        ({"sort_by": "id", "target": "full/"}, InvalidOptionError, "not empty"),
        ({"sort_by": "id", "target": "a*/"}, InvalidOptionError, "one folder"),
        ({"sort_by": "id", "publish": "later"}, InvalidOptionError, "publish"),
    ],
    ids=str,
)  # fmt: skip
async def test_what_cannot_be_is_refused(
    tmp_path: Path, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    write_lake(tmp_path / "lake", rows=100)
    write_lake(tmp_path / "full", rows=100)
    before = sorted(below(tmp_path))
    arguments = {"target": "fast/", **given}
    async with asyncpq.Session() as session:
        with pytest.raises(error, match=message):
            await session.optimize(f"{tmp_path}/lake/", f"{tmp_path}/{arguments.pop('target')}", **arguments)
    assert sorted(below(tmp_path)) == before


async def test_values_that_parquet_cannot_hold_leave_nothing(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    times = pa.array([1, 2], pa.timestamp("ns"))
    pq.write_table(pa.table({"t": times, "id": [1, 2]}), tmp_path / "lake" / "a.parquet")
    async with asyncpq.Session() as session:
        with pytest.raises(SchemaMismatchError, match="would lose data"):
            await session.optimize(f"{tmp_path}/lake/", f"{tmp_path}/fast/", "id")
    assert not [path for path in below(tmp_path / "fast") if path.suffix == ".parquet"]


async def test_files_that_differ_are_not_committed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lake(tmp_path / "lake", rows=100)
    digests = iter(["one", "other"])
    monkeypatch.setattr(RowDigest, "hexdigest", lambda self: next(digests))
    async with asyncpq.Session() as session:
        with pytest.raises(CorruptFileError, match="differ from the source"):
            await session.optimize(f"{tmp_path}/lake/", f"{tmp_path}/fast/", "id")
    assert not [path for path in below(tmp_path / "fast") if path.suffix == ".parquet"]


@pytest.mark.faults
@pytest.mark.parametrize("after", range(6))
async def test_readers_see_all_rows_or_none_whenever_the_store_fails(
    server: ObjectServer, tmp_path: Path, after: int
) -> None:
    table = write_lake(tmp_path / "lake", rows=100)
    server.faults = [Fault(status=403, code="AccessDenied", method="PUT", after=after, times=None)]
    async with asyncpq.Session({"s3": server.storage_options}) as session:
        try:
            await session.optimize(f"{tmp_path}/lake/", "s3://bucket/fast/", "id")
        except StoreError:
            server.faults = []
        try:
            rows = await (await session.open_dataset("s3://bucket/fast/")).read()
        except ObjectNotFoundError:
            return
    assert rows_of(rows) == rows_of(table)


@pytest.mark.parametrize("option", ["sort_by", "zorder_by"])
@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("none", ColumnNotFoundError, "names a column that is not among the written columns"),
        ("l", InvalidOptionError, r"names a column of the type list<.*>, whose values have no order"),
    ],
)
def test_errors_name_the_option_of_the_column(option: str, name: str, error: type[Exception], message: str) -> None:
    schema = pa.schema({"id": pa.int64(), "l": pa.list_(pa.int8())})
    keys, z_keys = (("id", name), ()) if option == "sort_by" else (("id",), ("id2", name))
    schema = schema.append(pa.field("id2", pa.int64()))
    with pytest.raises(error, match=f"^{option} {message}"):
        RowOrder(schema, keys, z_keys)


_INTS = st.integers(-100, 100)
TYPES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "int8": (pa.int8(), _INTS),
    "uint64": (pa.uint64(), st.integers(0, 2**64 - 1)),
    "float": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "double": (pa.float64(), st.floats(allow_nan=False)),
    "bool": (pa.bool_(), st.booleans()),
    "string": (pa.string(), st.text(max_size=5)),
    "large binary": (pa.large_binary(), st.binary(max_size=5)),
    "fixed": (pa.binary(3), st.binary(min_size=3, max_size=3)),
    "date": (pa.date32(), st.dates()),
    "timestamp": (pa.timestamp("us", "UTC"), st.datetimes().map(lambda time: time.replace(tzinfo=dt.UTC))),
    "decimal": (pa.decimal128(10, 2), _INTS.map(Decimal)),
    "decimal32": (pa.decimal32(5, 2), _INTS.map(Decimal)),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), st.text(max_size=2)),
    "list": (pa.list_(pa.string()), st.lists(st.none() | st.text(max_size=2), max_size=3)),
    "pairs": (pa.list_(pa.int64(), 2), st.lists(st.none() | _INTS, min_size=2, max_size=2)),
    "struct": (pa.struct([("x", pa.int64())]), st.fixed_dictionaries({"x": st.none() | _INTS})),
    "map": (pa.map_(pa.string(), pa.int64()), st.lists(st.tuples(st.text(max_size=2), _INTS), max_size=2)),
}


def digest(schema: pa.Schema, *batches: pa.RecordBatch) -> str:
    digest = RowDigest(schema)
    for batch in batches:
        digest.update(batch)
    assert digest.rows == sum(batch.num_rows for batch in batches)
    return digest.hexdigest()


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", TYPES)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_equal_rows_have_equal_digests_and_others_have_others(name: str, data: st.DataObject) -> None:
    dtype, value = TYPES[name]
    schema = pa.schema([("c", dtype)])
    ones = data.draw(st.lists(st.none() | value, min_size=1, max_size=20))
    others = data.draw(st.lists(st.none() | value, min_size=1, max_size=20))
    first, second = (pa.record_batch([pa.array(values, dtype)], schema=schema) for values in (ones, others))
    cut = data.draw(st.integers(0, len(ones)))
    assert digest(schema, first) == digest(schema, first.slice(0, cut), first.slice(cut))
    assert (digest(schema, first) == digest(schema, second)) == (first.to_pylist() == second.to_pylist())


def test_rows_of_many_blocks() -> None:
    schema = pa.schema([("id", pa.int64()), ("name", pa.string())])
    ids = pa.array(range(200_000))
    batch = pa.record_batch([ids, ids.cast(pa.string())], schema=schema)
    whole = digest(schema, batch)
    assert digest(schema, *[batch.slice(start, 999) for start in range(0, 200_000, 999)]) == whole
    swapped = pa.array([1, 0, *range(2, 200_000)])
    assert digest(schema, batch.take(swapped)) != whole


def test_nulls_hide_what_is_behind_them() -> None:
    schema = pa.schema([("c", pa.int64())])
    values = pa.array([1, 2, 3])
    masked = pa.Array.from_buffers(pa.int64(), 3, [pa.py_buffer(b"\x05"), values.buffers()[1]])
    ones = pa.record_batch([masked], schema=schema)
    others = pa.record_batch([pa.array([1, None, 3])], schema=schema)
    assert digest(schema, ones) == digest(schema, others)
