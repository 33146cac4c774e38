"""Lakes for the tests of ``optimize``, and what its files are."""

from __future__ import annotations

import datetime as dt
import random
import string
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq.spark.optimize_lake import OptimizeResult

_EPOCH = dt.datetime(2024, 1, 1)
_SCALARS: dict[str, tuple[pa.DataType, Callable[[random.Random], Any]]] = {
    "long": (pa.int64(), lambda r: r.randint(-(2**63), 2**63 - 1)),
    "byte": (pa.int8(), lambda r: r.randint(-3, 3)),
    "flag": (pa.bool_(), lambda r: r.random() < 0.5),
    "double": (pa.float64(), lambda r: r.choice([0.0, -0.0, float("nan"), float("inf"), r.random()])),
    "float": (pa.float32(), lambda r: float(r.randint(-4, 4))),
    "text": (pa.string(), lambda r: "".join(r.choices(string.printable + "é字", k=r.randint(0, 6)))),
    "bytes": (pa.binary(), lambda r: r.randbytes(r.randint(0, 4))),
    "date": (pa.date32(), lambda r: _EPOCH.date() + dt.timedelta(days=r.randint(-900_000 // 12, 90_000))),
    "instant": (pa.timestamp("us", "UTC"), lambda r: _EPOCH + dt.timedelta(microseconds=r.randint(-(10**15), 10**15))),
    "wall": (pa.timestamp("us"), lambda r: _EPOCH + dt.timedelta(microseconds=r.randint(-(10**15), 10**15))),
    "small": (pa.decimal128(9, 2), lambda r: Decimal(r.randint(-(10**9) + 1, 10**9 - 1)).scaleb(-2)),
    "large": (pa.decimal128(38, 10), lambda r: Decimal(r.randint(-(10**30), 10**30)).scaleb(-10)),
}

Kind = tuple[pa.DataType, Callable[[random.Random], Any]]


def random_kind(chance: random.Random, depth: int = 2) -> Kind:
    """A type, and what makes its values, nulls among them."""
    shape = chance.choice(["scalar", "list", "struct", "map"]) if depth else "scalar"
    if shape == "scalar":
        kind, make = chance.choice(list(_SCALARS.values()))
        return kind, lambda r: None if r.random() < 0.2 else make(r)
    inner, one = random_kind(chance, depth - 1)
    if shape == "list":
        return pa.list_(inner), lambda r: None if r.random() < 0.2 else [one(r) for _ in range(r.randint(0, 3))]
    if shape == "map":
        keys = range(3)
        return pa.map_(pa.int32(), inner), lambda r: None if r.random() < 0.2 else [(key, one(r)) for key in keys]
    other, two = random_kind(chance, depth - 1)
    fields: pa.DataType = pa.struct([("x", inner), ("y z", other)])
    return fields, lambda r: None if r.random() < 0.2 else {"x": one(r), "y z": two(r)}


def random_table(seed: int, rows: int = 400) -> pa.Table:
    """Column ``key`` to sort by, then columns of random types; many rows are there twice."""
    chance = random.Random(seed)
    sortable, make = chance.choice(list(_SCALARS.values()))
    kinds: list[Kind] = [
        (sortable, lambda r: None if r.random() < 0.1 else make(r)),
        *[random_kind(chance) for _ in range(5)],
    ]
    names = ["key", "b", "c.d", "E", "f g", "h"]
    made = [[one(chance) for _, one in kinds] for _ in range(rows // 2)]
    picked = [chance.choice(made) for _ in range(rows)]
    columns = [pa.array([row[at] for row in picked], kind) for at, (kind, _) in enumerate(kinds)]
    return pa.table(columns, names=names)


def write_lake(folder: Path, table: pa.Table, files: int = 3, **options: Any) -> str:
    """Returns the folder's path."""
    folder.mkdir(parents=True)
    size = -(-table.num_rows // files)
    for at in range(files):
        pq.write_table(table.slice(at * size, size), folder / f"part-{at}.parquet", **options)
    return str(folder)


def written(result: OptimizeResult) -> list[Path]:
    """The files, in the order of their keys."""
    return [Path(result.target) / path for path in result.files]


def table_of(result: OptimizeResult) -> pa.Table:
    """All rows, in that order, read by pyarrow."""
    return pa.concat_tables([pq.ParquetFile(file).read() for file in written(result)])


def multiset(table: pa.Table) -> list[str]:
    """The rows in no order; NaN is itself, the zeros differ."""
    return sorted(map(repr, zip(*[column.to_pylist() for column in table.columns], strict=True)))


def spark_order(value: Any) -> Any:
    """By which Spark sorts a value: nulls first, NaN last, text by its bytes."""
    if value is None:
        return (0,)
    if isinstance(value, float) and value != value:
        return (2,)
    return (1, value.encode() if isinstance(value, str) else value)


def files_left(folder: Path) -> list[str]:
    """Files below a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
