"""Delta snapshots (files, columns, bounds, deleted rows) of tables that deltalake wrote, against deltalake's readers.

Each file of a snapshot is read whole by pyarrow here: reads through a session are in test_delta_reads.py.
"""

from __future__ import annotations

import datetime as dt
import json
import random
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, write_deltalake
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpq.datasets.model import ColumnBounds
from asyncpq.errors import CorruptFileError, InvalidOptionError, ObjectNotFoundError
from asyncpq.tables.delta.catalog import DeltaCatalog
from tests.delta_tables import FolderReader, rows_of, snapshot_of
from tests.example_counts import examples

SPECIAL = ["a b", "50%", "x=y", "ü/é", "100%25", "?q#f", "a+b&c", "::s3://", "..", "'\"", "\n", None]


def sorted_rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


async def assert_same(folder: Path | str, version: int | None = None) -> pa.Table:
    table = DeltaTable(str(folder), version=version)
    found = await rows_of(await snapshot_of(str(folder), version))
    assert found.schema.equals(pa.schema(table.schema().to_arrow()))
    assert sorted_rows(found) == sorted_rows(table.to_pyarrow_table())
    return found


def all_types() -> pa.Table:
    utc = pa.timestamp("us", "UTC")
    moment = dt.datetime(2024, 2, 29, 23, 59, 59, 123456)
    struct = pa.struct([("a", pa.int64()), ("b", pa.struct([("c", pa.string())]))])
    return pa.table(
        {
            "i8": pa.array([1, None, -128], pa.int8()),
            "i16": pa.array([1, 2, 3], pa.int16()),
            "i32": pa.array([1, 2, 3], pa.int32()),
            "i64": pa.array([1, 2**62, None], pa.int64()),
            "f32": pa.array([1.1, -0.0, float("nan")], pa.float32()),
            "f64": pa.array([1.1, float("inf"), None], pa.float64()),
            "s": pa.array(["", "ü" * 100, None]),
            "bytes": pa.array([b"\xff", b"", None]),
            "flag": pa.array([True, False, None]),
            "day": pa.array([dt.date(1969, 12, 31), dt.date(9999, 12, 31), None]),
            "utc": pa.array([moment, dt.datetime(1960, 1, 1, 0, 0, 0, 1), None], utc),
            "local": pa.array([moment, dt.datetime.max, None], pa.timestamp("us")),
            "money": pa.array([Decimal("1.10"), Decimal("-999.99"), None], pa.decimal128(5, 2)),
            "large": pa.array([Decimal("12345678901234567890.123456789"), Decimal(0), None], pa.decimal128(38, 9)),
            "struct": pa.array([{"a": 1, "b": {"c": "x"}}, {"a": None, "b": None}, None], struct),
            "list": pa.array([[1, None], [], None], pa.list_(pa.int64())),
            "structs": pa.array([[{"a": 1, "b": None}], [None], None], pa.list_(struct)),
            "map": pa.array([[("k", 1)], [], None], pa.map_(pa.string(), pa.int64())),
        }
    )


async def test_all_types_with_and_without_a_checkpoint(tmp_path: Path) -> None:
    write_deltalake(tmp_path / "t", all_types())
    await assert_same(tmp_path / "t")
    before = await snapshot_of(tmp_path / "t")
    DeltaTable(tmp_path / "t").create_checkpoint()
    (tmp_path / "t/_delta_log/00000000000000000000.json").unlink()
    after = await snapshot_of(tmp_path / "t")
    assert before.fields == after.fields
    assert [file.url for file in before.data_files] == [file.url for file in after.data_files]
    assert dict(before.data_files[0].bounds) == dict(after.data_files[0].bounds)


async def test_encoded_paths_of_partitions(tmp_path: Path) -> None:
    """Trap: paths in the log are url-encoded; a name with % is encoded twice, as the folder's name is encoded too."""
    values = pa.array(SPECIAL)
    write_deltalake(tmp_path / "t", pa.table({"id": list(range(len(SPECIAL))), "p": values}), partition_by=["p"])
    table = await assert_same(tmp_path / "t")
    assert dict(zip(*table.to_pydict().values(), strict=True)) == dict(enumerate(SPECIAL))


@pytest.mark.parametrize(
    "values",
    [
        pa.array(["", "x", None]),
        pa.array([1, -128, None], pa.int8()),
        pa.array([2**63 - 1, -(2**63), None]),
        pa.array([1.5, float("nan"), float("-inf")]),
        pa.array([0.1, -0.0, None], pa.float32()),
        pa.array([True, False, None]),
        pa.array([Decimal("1.5"), Decimal("-1"), None], pa.decimal128(7, 3)),
        pa.array([dt.date(1, 1, 1), dt.date(9999, 12, 31), None]),
        pa.array([dt.datetime(2020, 1, 1, 1, 2, 3, 4), dt.datetime(1960, 1, 1), None], pa.timestamp("us", "UTC")),
        pa.array([dt.datetime(2020, 1, 1, 1, 2, 3, 4), dt.datetime(1960, 1, 1), None], pa.timestamp("us")),
    ],
    ids=lambda values: str(values.type),
)
async def test_partition_values_are_typed(tmp_path: Path, values: pa.Array) -> None:
    write_deltalake(tmp_path / "t", pa.table({"id": [1, 2, 3], "p": values}), partition_by=["p"])
    await assert_same(tmp_path / "t")


async def test_partition_columns_of_one_text(tmp_path: Path) -> None:
    table = pa.table({"id": [1, 2], "p": ["1", None], "q": [1, None], "r": [1.0, None]})
    write_deltalake(tmp_path / "t", table, partition_by=["p", "q", "r"])
    await assert_same(tmp_path / "t")


@pytest.mark.heavy
async def test_appends_overwrites_deletes_and_time_travel(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    chosen = random.Random(7)
    for step in range(25):
        rows = pa.table(
            {"id": [chosen.randrange(100) for _ in range(5)], "p": [chosen.choice("abc") for _ in range(5)]}
        )
        kind = chosen.choice(["append", "append", "append", "overwrite", "delete", "merge", "checkpoint"])
        if step == 0 or kind == "append":
            merge: Any = None if step == 0 else "merge"
            write_deltalake(folder, rows, partition_by=["p"], mode="append", schema_mode=merge)
        elif kind == "overwrite":
            write_deltalake(folder, rows, mode="overwrite", schema_mode="overwrite")
        elif kind == "delete":
            DeltaTable(folder).delete(f"id < {chosen.randrange(60)}")
        elif kind == "checkpoint":
            DeltaTable(folder).create_checkpoint()
        else:
            more = rows.append_column(f"more_{step}", pa.array([float(step)] * 5))
            write_deltalake(folder, more, mode="append", schema_mode="merge")
    latest = DeltaTable(folder).version()
    for version in range(latest + 1):
        await assert_same(folder, version)
    assert (await snapshot_of(folder)).description == f"Delta table {folder}, version {latest}"


async def test_a_checkpoint_and_later_commits(tmp_path: Path) -> None:
    """Trap: both count, also where the commits before the checkpoint are gone."""
    folder = tmp_path / "t"
    for step in range(6):
        write_deltalake(folder, pa.table({"id": [step]}), mode="append")
        if step == 3:
            DeltaTable(folder).create_checkpoint()
    for version in range(3):
        (folder / f"_delta_log/{version:020}.json").unlink()
    table = await rows_of(await snapshot_of(folder))
    assert sorted(table["id"].to_pylist()) == [0, 1, 2, 3, 4, 5]
    assert (await rows_of(await snapshot_of(folder, 3))).num_rows == 4
    with pytest.raises(InvalidOptionError, match=r"version=2 is no longer in the log, whose oldest version is 3"):
        await snapshot_of(folder, 2)


async def test_removed_files_are_not_in_the_table(tmp_path: Path) -> None:
    """Trap: they are still in the folder."""
    folder = tmp_path / "t"
    write_deltalake(folder, pa.table({"id": [1, 2]}))
    write_deltalake(folder, pa.table({"id": [3]}), mode="append")
    DeltaTable(folder).delete("id = 3")
    DeltaTable(folder).delete("id = 1")
    assert len(list(folder.glob("*.parquet"))) == 3
    assert (await rows_of(await snapshot_of(folder)))["id"].to_pylist() == [2]
    DeltaTable(folder).create_checkpoint()
    assert (await rows_of(await snapshot_of(folder)))["id"].to_pylist() == [2]


async def test_a_time_chooses_the_version(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    for step in range(3):
        write_deltalake(folder, pa.table({"id": [step]}), mode="append")
        log = folder / f"_delta_log/{step:020}.json"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        lines[0]["commitInfo"]["timestamp"] = (1_000, 3_000, 2_000)[step]  # a clock that went back
        log.write_text("\n".join(map(json.dumps, lines)))

    async def version_at(milliseconds: int) -> str:
        time = dt.datetime.fromtimestamp(milliseconds / 1000, dt.UTC)
        return (await snapshot_of(folder, time)).description.rpartition(" ")[2]

    assert [await version_at(at) for at in (1_000, 2_999, 3_000, 3_001, 99_999)] == ["0", "0", "1", "2", "2"]
    with pytest.raises(InvalidOptionError, match="all commits in the log are newer"):
        await version_at(999)


async def test_a_table_object_names_folder_and_version(tmp_path: Path) -> None:
    folder = tmp_path / "a folder ü%"
    for step in range(3):
        write_deltalake(folder, pa.table({"id": [step]}), mode="append")
    table = DeltaTable(folder, version=1)
    assert sorted((await rows_of(await snapshot_of(table)))["id"].to_pylist()) == [0, 1]
    assert (await rows_of(await snapshot_of(table, 0)))["id"].to_pylist() == [0]


async def test_where_there_is_no_table(tmp_path: Path) -> None:
    with pytest.raises(ObjectNotFoundError, match="no Delta table"):
        await snapshot_of(tmp_path)
    write_deltalake(tmp_path / "t", pa.table({"id": [1]}))
    with pytest.raises(InvalidOptionError, match="version 5 does not exist: the newest version of the table is 0"):
        await snapshot_of(tmp_path / "t", 5)
    for version in (-1, True, "1", dt.datetime(2024, 1, 1)):
        with pytest.raises(InvalidOptionError):
            DeltaCatalog.of(tmp_path, version=version)  # type: ignore[arg-type]
    with pytest.raises(InvalidOptionError, match="not a Delta table"):
        DeltaCatalog.of(5)


async def test_a_log_with_a_hole_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    for step in range(4):
        write_deltalake(folder, pa.table({"id": [step]}), mode="append")
    (folder / "_delta_log/00000000000000000002.json").unlink()
    with pytest.raises(CorruptFileError, match="needs commits that are missing: 2"):
        await snapshot_of(folder)
    assert (await rows_of(await snapshot_of(folder, 1))).num_rows == 2


async def test_only_the_needed_log_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    for step in range(5):
        write_deltalake(folder, pa.table({"id": [step]}), mode="append")
        if step == 2:
            DeltaTable(folder).create_checkpoint()
    reader = FolderReader()
    await DeltaCatalog.of(folder).snapshot(reader)
    names = {Path(url).name for url in reader.urls}
    assert names == {f"{2:020}.checkpoint.parquet", f"{3:020}.json", f"{4:020}.json"}


# -- bounds -------------------------------------------------------------------------------------


async def bounds_of(folder: Path) -> dict[str, ColumnBounds]:
    (file,) = (await snapshot_of(folder)).data_files
    return dict(file.bounds)


async def test_a_timestamp_cut_to_milliseconds(tmp_path: Path) -> None:
    """Trap: the log says .123 of a row at .123456, which must lie within the bounds."""
    moment = dt.datetime(2024, 1, 1, 0, 0, 0, 123456, tzinfo=dt.UTC)
    early = dt.datetime(1960, 1, 1, 0, 0, 0, 999999)
    table = pa.table({"utc": pa.array([moment], pa.timestamp("us", "UTC")), "local": pa.array([early])})
    write_deltalake(tmp_path / "t", table)
    bounds = await bounds_of(tmp_path / "t")
    low, high = bounds["utc"].min, bounds["utc"].max
    assert isinstance(low, dt.datetime)
    assert isinstance(high, dt.datetime)
    assert low <= moment <= high
    assert high - low <= dt.timedelta(milliseconds=2)
    assert bounds["local"].min <= early <= bounds["local"].max  # type: ignore[operator]


async def test_a_nan_column(tmp_path: Path) -> None:
    """Trap: bounds do not speak of NaN, and may be missing because of it."""
    nan = float("nan")
    write_deltalake(tmp_path / "t", pa.table({"some": [1.0, nan, 2.0], "only": [nan] * 3, "nulls": pa.nulls(3, "f8")}))
    bounds = await bounds_of(tmp_path / "t")
    assert bounds["some"].may_be_nan
    assert (bounds["some"].min, bounds["some"].max) in [(1.0, 2.0), (None, None)]
    assert (bounds["only"].min, bounds["only"].max, bounds["only"].all_null) == (None, None, False)
    assert bounds["nulls"].all_null


_VALUES: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "i": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "f": (pa.float32(), st.floats(width=32)),
    "x": (pa.float64(), st.floats()),
    "s": (pa.string(), st.text(st.sampled_from("aü\ud7ff\ue000\U0010ffff"), max_size=80)),
    "d": (pa.date32(), st.dates()),
    "t": (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(dt.UTC))),
    "n": (pa.timestamp("us"), st.datetimes()),
    "c": (pa.decimal128(9, 2), st.decimals(-9999999, 9999999, places=2)),
    "l": (pa.decimal128(38, 10), st.decimals(-(10**27), 10**27, places=10)),
    "b": (pa.bool_(), st.booleans()),
}


@settings(max_examples=examples(20, thorough=200))
@given(data=st.data())
async def test_no_value_lies_outside_of_its_bounds(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    rows = data.draw(st.integers(1, 4))
    columns = {
        name: pa.array(data.draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)
        for name, (kind, values) in _VALUES.items()
    }
    nested = pa.StructArray.from_arrays(list(columns.values()), list(columns))
    folder = tmp_path_factory.mktemp("bounds")
    write_deltalake(folder, pa.table({**columns, "nested": nested}))
    if data.draw(st.booleans()):
        DeltaTable(folder).create_checkpoint()
    bounds = await bounds_of(folder)
    assert set(bounds) >= {name for name, column in columns.items() if column.null_count == rows}
    for name, column in columns.items():
        for found in (bounds.get(name), bounds.get(f"nested.{name}")):
            if found is None:
                continue
            assert found.null_count in (None, column.null_count)
            assert found.all_null == (column.null_count == rows)
            for value in column.drop_null().to_pylist():
                if value == value:
                    assert found.min is None or found.min <= value
                    assert found.max is None or value <= found.max
