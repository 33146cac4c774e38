"""Files with the values that matter, and random conditions on them."""

from __future__ import annotations

import datetime as dt
import math
import random
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq import col
from asyncpq.expressions import Expression, In, Not
from asyncpq.expressions.scalars import as_scalars

NAN, INF = math.nan, math.inf
UTC = dt.UTC
_DAY = dt.date(2021, 11, 1)
#: The clock of New York shows one hour of that night twice.
_NIGHT = dt.datetime(2021, 11, 7)


def _times(zone: dt.tzinfo | None) -> list[dt.datetime]:
    some = [_NIGHT.replace(tzinfo=zone) + dt.timedelta(minutes=20 * step) for step in range(40)]
    return [*some, dt.datetime(1899, 12, 31, 23, 59, tzinfo=zone), dt.datetime(2024, 3, 10, 2, 30, 0, 1, tzinfo=zone)]


#: For each column its type and the values that it has, in the order in which they are mostly written.
COLUMNS: dict[str, tuple[pa.DataType, Sequence[Any]]] = {
    "i": (pa.int32(), [-(2**31), -7, -1, 0, 1, 5, 8, 100, 2**31 - 1]),
    "l": (pa.int64(), [-(2**63), -1, 0, 3, 2**53, 2**53 + 1, 2**63 - 1]),
    "u8": (pa.uint8(), [0, 1, 7, 200, 255]),
    "u64": (pa.uint64(), [0, 1, 2**53 + 1, 2**63, 2**64 - 1]),
    "f": (pa.float32(), [-INF, -1.5, -0.0, 0.0, 0.1, 1.5, 16777216.0, INF, NAN]),
    "d": (pa.float64(), [-INF, -1.5, -0.0, 0.0, 0.1, 1.5, 9007199254740992.0, INF, NAN]),
    "n": (
        pa.decimal128(10, 2),
        [Decimal("-5.00"), Decimal("0.00"), Decimal("0.10"), Decimal("5.25"), Decimal("9999.99")],
    ),
    "wide": (pa.decimal128(38, 10), [Decimal("-1.5"), Decimal(0), Decimal("12345678901234567890.5")]),
    "s": (pa.string(), ["", "A", "B_c", "a", "a%b", "ab", "abc", "b", "é", "日本", "\U0001f600x"]),
    "y": (pa.binary(), [b"", b"A", b"a", b"ab", b"\x80", b"\xff\xff"]),
    "t": (pa.bool_(), [False, True]),
    "day": (
        pa.date32(),
        [dt.date(1500, 1, 1), _DAY, _DAY + dt.timedelta(6), _DAY + dt.timedelta(7), dt.date(2400, 2, 29)],
    ),
    "ts": (pa.timestamp("us", "UTC"), _times(UTC)),
    "ms": (pa.timestamp("ms", "UTC"), _times(UTC)[:-1]),
    "ntz": (pa.timestamp("us"), _times(None)),
}
STRUCT = pa.struct([pa.field("i", pa.int32()), pa.field("D", pa.float64())])


def table(rng: random.Random, rows: int, first: int = 0) -> pa.Table:
    """Values partly in order, so that pages differ; some null, in long runs and alone."""
    columns: dict[str, pa.Array] = {"row": pa.array(range(first, first + rows), pa.int64())}
    for name, (kind, values) in COLUMNS.items():
        columns[name] = pa.array(_values(rng, values, rows), kind)
    numbers, floats = (_values(rng, COLUMNS[name][1], rows) for name in ("i", "d"))
    structs = [None if rng.random() < 0.1 else {"i": i, "D": d} for i, d in zip(numbers, floats, strict=True)]
    columns["st"] = pa.array(structs, STRUCT)
    lists = [None if rng.random() < 0.1 else rng.choices([1, 2, 3, None], k=rng.randrange(3)) for _ in range(rows)]
    columns["li"] = pa.array(lists, pa.list_(pa.int32()))
    return pa.table(columns)


def _values(rng: random.Random, values: Sequence[Any], rows: int) -> list[Any]:
    found: list[Any] = []
    while len(found) < rows:
        style = rng.randrange(4)
        length = rng.randrange(1, 60)
        if style == 0:
            found += [None] * length
        elif style == 1:
            found += [rng.choice([*values, None]) for _ in range(length)]
        else:
            at = rng.randrange(len(values))
            found += [rng.choice(values[at : at + 2]) for _ in range(length)]
    return found[:rows]


def write(path: Path, rows: pa.Table, **options: Any) -> Path:
    """With page indexes, small pages and several row groups."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {"row_group_size": 400, "max_rows_per_page": 50, "write_page_index": True, **options}
    pq.write_table(rows, path, **known)
    return path


# -- conditions -----------------------------------------------------------------------------------


def literal(rng: random.Random, name: str) -> Any:
    """A value to compare a column with: mostly one that it has, or close to it."""
    _, values = COLUMNS[name]
    value = rng.choice(values)
    if name in ("i", "l", "u8", "u64"):
        return rng.choice([value, value + 1, 0, 3, 300, -1])
    if name in ("f", "d"):
        return rng.choice([value, 0.1, 0, 1, 2.5, NAN, 16777217, Decimal("0.1")])
    if name in ("n", "wide"):
        return rng.choice([value, Decimal("0.101"), 5, 0, 2**40])
    if name == "day":
        return rng.choice([value, _DAY + dt.timedelta(3), "2021-11-07", dt.datetime(2021, 11, 7, 1)])
    if name in ("ts", "ms"):
        near = value + dt.timedelta(seconds=rng.choice([0, 0, 1, 3600]), microseconds=rng.choice([0, 1]))
        return rng.choice([value, near, near.replace(tzinfo=None), "2021-11-07 01:20:00", dt.date(2021, 11, 7)])
    if name == "ntz":
        return rng.choice([value, value + dt.timedelta(minutes=1), "2021-11-07 01:20:00", dt.date(2021, 11, 7)])
    return value


def condition(rng: random.Random, depth: int = 2) -> Expression:
    """A random one of asyncpq's expressions."""
    if depth and rng.random() < 0.6:
        left, right = condition(rng, depth - 1), condition(rng, depth - 1)
        return rng.choice([left & right, left | right, ~left])
    name = rng.choice(list(COLUMNS))
    path = rng.choice([name, name, name.upper()])
    shape = rng.randrange(10)
    if shape == 0:
        return rng.choice([col(path).is_null(), col(path).is_valid(), col("f").is_null(nan_is_null=True)])
    if shape == 1:
        path, name = rng.choice([("st.i", "i"), ("ST.d", "d"), ("st.D", "d")])
    if shape == 2 and name in ("s", "y"):
        prefix = literal(rng, name)[:1]
        return rng.choice([col(path).starts_with(prefix), col(path).contains(prefix)])
    if shape in (2, 3):
        return rng.choice([col("s").like(text) for text in ("a%", "%b%", "a_c", "_", "a\\%b", "abc", "%", "日%")])
    if shape == 4:
        same = [value for value in COLUMNS[name][1] if rng.random() < 0.5] or [literal(rng, name)]
        found = In(path, as_scalars([*same, *rng.choice([[], [], [None]])]))
        return rng.choice([found, Not(found)])
    if shape == 5:
        return rng.choice([col("li").has(2), ~col("li").has(7), col("i") < col("l")])
    compared, value = col(path), literal(rng, name)
    one: Expression = rng.choice(
        [compared == value, compared != value, compared < value, compared <= value, compared > value, compared >= value]
    )
    return one


def sql(rng: random.Random, depth: int = 2) -> str:
    """A random condition in SQL."""
    if depth and rng.random() < 0.6:
        left, right = sql(rng, depth - 1), sql(rng, depth - 1)
        return rng.choice([f"({left}) AND {right}", f"({left}) OR ({right})", f"NOT ({left})", f"{left} or {right}"])
    name = rng.choice(list(COLUMNS))
    path = rng.choice([name, f"`{name}`", name.upper()])
    shape = rng.randrange(8)
    if shape == 0:
        return f"{path} IS {rng.choice(['', 'NOT '])}NULL"
    if shape == 1:
        path, name = rng.choice([("st.i", "i"), ("ST.d", "d"), ("`st`.`D`", "d")])
    if shape == 2:
        return rng.choice(
            ["s LIKE 'a%'", "s LIKE '%b_'", "s NOT LIKE 'a%'", "s LIKE 'a!%b' ESCAPE '!'", "s RLIKE 'a.'"]
        )
    if shape == 3:
        values = [spoken(literal(rng, name)) for _ in range(3)]
        return f"{path} {rng.choice(['', 'NOT '])}IN ({', '.join([*values, *rng.choice([[], [], ['NULL']])])})"
    if shape == 4:
        return f"{path} BETWEEN {spoken(literal(rng, name))} AND {spoken(literal(rng, name))}"
    if shape == 5:
        return rng.choice(
            ["length(s) > 1", "i % 2 = 1", "get(li, 0) = 1", "i <=> NULL", "abs(d) < 2", "NOT i <=> 5", "true"]
        )
    op = rng.choice(["=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"])
    sides = [path, spoken(literal(rng, name))]
    if op != "<=>" and rng.random() < 0.3:
        sides.reverse()
    return f"{sides[0]} {op} {sides[1]}"


def spoken(value: Any) -> str:
    """A literal as Spark's SQL has it."""
    if isinstance(value, bool):
        return str(value)
    if isinstance(value, float):
        if value != value or value in (INF, -INF):
            return f"double('{value}')"
        return double(value)
    if isinstance(value, bytes):
        return f"X'{value.hex()}'"
    if isinstance(value, dt.datetime):
        kind = "TIMESTAMP" if value.tzinfo is not None else "TIMESTAMP_NTZ"
        return f"{kind} '{value.replace(tzinfo=None).isoformat(' ')}'"
    if isinstance(value, dt.date):
        return f"DATE '{value.isoformat()}'"
    if isinstance(value, str):
        return f"'{value}'"
    return str(value)


def double(value: float) -> str:
    """A double, which without its letter would be a decimal."""
    return f"{value!r}D" if "e" not in repr(value) else repr(value)
