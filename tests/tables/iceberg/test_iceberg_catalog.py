"""Iceberg tables as pyiceberg writes them, read through a session: equal to pyiceberg's own reader.

Histories of writes, deletes, changed columns and changed partitions; random predicates on each.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import DecimalType, DoubleType, LongType, StringType

import asyncpq
from asyncpq.expressions import Expression
from tests.example_counts import examples
from tests.iceberg_tables import add_files, data_files, deletion_vectors, make_table, position_deletes
from tests.predicates import atoms, oracle, trees

_DAY = dt.datetime(2024, 2, 29)
_SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("name", pa.string()),
        ("price", pa.float32()),
        ("cost", pa.decimal128(5, 2)),
        ("at", pa.timestamp("us")),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("counts", pa.map_(pa.string(), pa.int64())),
    ]
)


def rows(start: int, stop: int) -> pa.Table:
    """Rows of ``_SCHEMA`` with nulls in all columns but the first."""

    def row(n: int) -> dict[str, Any]:
        return {
            "id": n,
            "name": None if n % 7 == 3 else f"name {n % 10}",
            "price": None if n % 5 == 1 else (float("nan"), -0.0, 0.0)[n % 3] if n % 11 == 4 else n / 4,
            "cost": None if n % 6 == 2 else Decimal(n % 900) / 4,
            "at": None if n % 9 == 5 else _DAY + dt.timedelta(hours=n),
            "tags": None if n % 4 == 3 else [f"t{n}", None][: n % 3],
            "place": None if n % 8 == 6 else {"city": f"c{n % 3}", "zip": n if n % 3 else None},
            "counts": None if n % 10 == 9 else {f"k{n}": n},
        }

    return pa.Table.from_pylist([row(n) for n in range(start, stop)], _SCHEMA)


async def read(table: Table | str, where: Expression | None = None, version: Any = None) -> pa.Table:
    async with asyncpq.open_dataset(table, format="iceberg", version=version) as dataset:
        return await dataset.read(where=where)


def same_rows(found: pa.Table, expected: pa.Table) -> None:
    """As text, in which NaN equals itself and -0.0 is not 0.0."""
    assert found.schema.names == expected.schema.names
    assert list(map(repr, found.sort_by("id").to_pylist())) == list(
        map(repr, expected.cast(found.schema).sort_by("id").to_pylist())
    )


# -- histories ------------------------------------------------------------------------------------


def appended(folder: Path) -> Table:
    table = make_table(folder, _SCHEMA)
    for start in (0, 50, 80):
        table.append(rows(start, start + 30))
    return table


def overwritten(folder: Path) -> Table:
    table = appended(folder)
    table.overwrite(rows(200, 220), "id < 10")
    table.delete("name == 'name 4' or id == 60")
    table.delete("id >= 90 and id < 200")
    return table


def partitioned(folder: Path) -> Table:
    table = make_table(folder, _SCHEMA)
    with table.update_spec() as update:
        update.add_field("name", IdentityTransform(), "name")
    table.append(rows(0, 40))
    table.dynamic_partition_overwrite(rows(100, 105))
    table.delete("name == 'name 1'")
    return table


def repartitioned(folder: Path) -> Table:
    table = make_table(folder, _SCHEMA)
    table.append(rows(0, 30))
    with table.update_spec() as update:
        update.add_field("id", IdentityTransform(), "id")
        update.add_field("cost", IdentityTransform(), "cost_now")
    table.append(rows(30, 36))
    with table.update_spec() as update:
        update.remove_field("id")
        update.rename_field("cost_now", "cost_then")
        update.add_field("at", DayTransform(), "day")
    table.append(rows(40, 52))
    return table


def evolved(folder: Path) -> Table:
    """Renamed, added again under the old name, dropped, reordered, promoted."""
    table = appended(folder)
    with table.update_schema() as update:
        update.rename_column("name", "title")
        update.update_column("id", LongType())
        update.update_column("price", DoubleType())
        update.update_column("cost", DecimalType(12, 2))
    with table.update_schema() as update:
        update.add_column("name", StringType())
        update.move_first("cost")
    table.append(
        rows(300, 320)
        .rename_columns(["id", "title", *_SCHEMA.names[2:]])
        .set_column(0, "id", pa.array(range(300, 320), pa.int64()))
        .set_column(2, "price", rows(300, 320).column("price").cast(pa.float64()))
        .set_column(3, "cost", rows(300, 320).column("cost").cast(pa.decimal128(12, 2)))
        .append_column("name", pa.array([f"new {n}" for n in range(20)]))
    )
    with table.update_schema() as update:
        update.delete_column("at")
        update.rename_column("cost", "at")  # another column under the name of one that is gone
    return table


def nested(folder: Path) -> Table:
    """Parts of structs, lists and maps added, renamed, dropped and promoted."""
    kind = pa.struct([("x", pa.int32()), ("y", pa.struct([("z", pa.int32()), ("w", pa.string())]))])
    schema = pa.schema([("id", pa.int32()), ("s", kind), ("l", pa.list_(kind)), ("m", pa.map_(pa.int32(), kind))])

    def part(n: int) -> dict[str, Any] | None:
        return None if n % 5 == 4 else {"x": n, "y": None if n % 3 == 2 else {"z": n, "w": f"w{n}"}}

    def many(start: int, stop: int) -> pa.Table:
        return pa.Table.from_pylist(
            [
                {
                    "id": n,
                    "s": part(n),
                    "l": None if n % 7 == 6 else [part(n + at) for at in range(n % 4)],
                    "m": None if n % 6 == 5 else [(n + at, part(n + at)) for at in range(n % 3)],
                }
                for n in range(start, stop)
            ],
            schema,
        )

    table = make_table(folder, schema)
    table.append(many(0, 25))
    with table.update_schema() as update:
        update.update_column(("s", "x"), LongType())
        update.rename_column(("s", "y", "z"), "zz")
        update.delete_column(("s", "y", "w"))
        update.delete_column(("m", "value", "y"))
        update.add_column(("l", "element", "new"), DoubleType())
        update.rename_column(("l", "element", "x"), "xx")
        update.move_first(("l", "element", "y"))
    with table.update_schema() as update:
        update.add_column(("s", "y", "z"), StringType())
        update.add_column(("m", "value", "y"), StringType())
    table.append(
        pa.Table.from_pylist([{"id": 100, "s": {"x": 1, "y": {"zz": 2, "z": "q"}}}], table.schema().as_arrow())
    )
    return table


def mapped(folder: Path) -> Table:
    """Files without field ids, found by the name mapping; columns renamed and added since."""
    table = make_table(folder, _SCHEMA)
    for number in range(2):
        pq.write_table(rows(number * 20, number * 20 + 20), folder / f"plain{number}.parquet")
    table.add_files([f"file://{folder}/plain{number}.parquet" for number in range(2)])
    with table.update_schema() as update:
        update.rename_column("name", "title")
        update.rename_column(("place", "city"), "town")
    with table.update_schema() as update:
        update.add_column("name", StringType())
        update.add_column(("place", "city"), StringType())
        update.move_first("tags")
    table.append(pa.Table.from_pylist([{"id": 100, "title": "t", "name": "n"}], table.schema().as_arrow()))
    return table


def merged_on_read(folder: Path) -> Table:
    """Position deletes and deletion vectors over changed columns."""
    table = evolved(folder)
    files = data_files(table)
    add_files(table, [position_deletes(table, {file.file_path: [0, 3, 4, 19] for file in files}, like=files[0])])
    add_files(table, deletion_vectors(table, {files[1].file_path: [0, 3, 4, 5, 6, 19, 20]}, like=files[0]))
    return table


def emptied(folder: Path) -> Table:
    table = appended(folder)
    table.delete("id >= 0")
    return table


def never_written(folder: Path) -> Table:
    return make_table(folder, _SCHEMA)


HISTORIES: dict[str, Callable[[Path], Table]] = {
    history.__name__: history
    for history in (
        appended,
        overwritten,
        partitioned,
        repartitioned,
        evolved,
        nested,
        mapped,
        merged_on_read,
        emptied,
        never_written,
    )
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("history", HISTORIES.values(), ids=list(HISTORIES))
async def test_whole_tables(tmp_path: Path, history: Callable[[Path], Table]) -> None:
    table = history(tmp_path)
    expected = table.scan().to_arrow()
    same_rows(await read(table), expected)
    same_rows(await read(table.metadata_location), expected)
    async with asyncpq.open_dataset(table) as dataset:
        assert await dataset.count() == expected.num_rows


# -- predicates -----------------------------------------------------------------------------------

_KINDS = {
    "id": "int32",
    "name": "string",
    "title": "string",
    "price": "float32",
    "cost": "decimal",
    "at": "timestamp_us",
}
_OWN: dict[str, st.SearchStrategy[Any]] = {
    "id": st.integers(-1, 330),
    "name": st.sampled_from(["name 1", "name 4", "new 3", "name", "z", "t", "n"]),
    "title": st.sampled_from(["name 1", "name 4", "new 3", "t"]),
    "price": st.integers(-1, 90).map(lambda n: n / 4) | st.sampled_from([0.0, -0.0, float("nan")]),
    "cost": st.integers(-1, 90).map(lambda n: Decimal(n) / 4),
    "at": st.integers(-1, 100).map(lambda n: _DAY + dt.timedelta(hours=n)),
}


def predicates(names: list[str]) -> st.SearchStrategy[Expression]:
    leaves = [atoms(name, kind, own=_OWN[name]) for name, kind in _KINDS.items() if name in names]
    if "place" in names:
        leaves += [atoms("place.zip", "int32", own=st.integers(-1, 100)), atoms("place.city", "string")]
    return trees(st.one_of(leaves))


_MIXED = ["appended", "overwritten", "partitioned", "repartitioned", "evolved", "mapped", "merged_on_read"]


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Table, pa.Table]]:
    made = {name: HISTORIES[name](tmp_path_factory.mktemp(name)) for name in _MIXED}
    return {name: (table, table.scan().to_arrow()) for name, table in made.items()}


@pytest.mark.heavy
@settings(max_examples=examples(25, thorough=250))
@given(st.data())
async def test_random_predicates(tables: dict[str, tuple[Table, pa.Table]], data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(_MIXED))
    table, whole = tables[name]
    names = [name for name in whole.column_names if name in _KINDS or name == "place"]
    if name in ("evolved", "merged_on_read"):
        names.remove("at")  # a decimal there
    where = data.draw(predicates(names))
    try:
        expected = whole.filter(oracle(where))
    except (pa.ArrowException, ValueError, TypeError, OverflowError):
        assume(False)
    try:
        found = await read(table, where)
    except asyncpq.ExpressionError:
        assume(False)
    same_rows(found, expected)
