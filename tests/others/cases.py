"""Rows on which readers differ, and the conditions that show it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from tests.parquet_files import I32, STRUCT, EditedFile, Struct

NAN = math.nan


@dataclass(frozen=True)
class Condition:
    """``x`` compared with a value, or with the values of a list for "in" and "not in"; None for "is null"."""

    operator: str
    value: Any = None

    def __str__(self) -> str:
        if self.operator == "is null":
            return "x IS NULL"
        if isinstance(self.value, list):
            return f"x {self.operator.upper()} ({', '.join(map(_text, self.value))})"
        return f"x {self.operator} {_text(self.value)}"


def _text(value: Any) -> str:
    if isinstance(value, str):
        return f"'{value}'" if len(value) < 20 else f"'{value[0]}' x {len(value)}"
    return "NaN" if isinstance(value, float) and math.isnan(value) else str(value)


@dataclass(frozen=True)
class Case:
    """A file of two columns: ``id``, and ``x`` with the values of each row group."""

    title: str
    what: str  # about the rows, for the page
    type: pa.DataType
    groups: list[list[Any]]
    conditions: list[Condition]
    edit: Callable[[EditedFile], None] | None = None  # what pyarrow does not write
    metadata: dict[str, str] | None = None  # of the file
    options: tuple[tuple[str, Any], ...] = ()  # of pyarrow's writer

    def write(self, path: Path, *, statistics: bool) -> None:
        """Write the file, with statistics of its row groups or without."""
        schema = pa.schema([("id", pa.int64()), ("x", self.type)])
        first = 0
        sink = pa.BufferOutputStream()
        options = {"store_schema": False, **dict(self.options)}
        with pq.ParquetWriter(sink, schema, write_statistics=statistics, **options) as writer:
            writer.add_key_value_metadata(self.metadata or {})
            for values in self.groups:
                ids = range(first, first + len(values))
                writer.write_table(pa.table({"id": ids, "x": pa.array(values, self.type)}, schema=schema))
                first += len(values)
        file = EditedFile(sink.getvalue().to_pybytes())
        if self.edit is not None:
            self.edit(file)
        if not statistics:
            for group in range(len(self.groups)):
                file.meta(1, group).put(12, None)
        path.write_bytes(file.data())


def _bounds(file: EditedFile, group: int, low: bytes, high: bytes) -> None:
    statistics = file.statistics(1, group)
    statistics.put(5, high)
    statistics.put(6, low)


def _decimals(file: EditedFile) -> None:
    """Declare the bytes to be decimal(2, 0), of which 127 has a digit too many."""
    element = file.element(1)
    element.put(6, 5, I32)  # ConvertedType: DECIMAL
    element.put(7, 0, I32)
    element.put(8, 2, I32)
    element.put(10, Struct({5: (STRUCT, Struct({1: (I32, 0), 2: (I32, 2)}))}))
    _bounds(file, 0, b"\xff", b"\x05")
    _bounds(file, 1, b"\x7f", b"\x7f")


def _cut(file: EditedFile) -> None:
    """Cut bounds to 8 bytes, the upper one with its last byte raised, as several writers do."""
    _bounds(file, 0, b"a" * 8, b"a" * 7 + b"b")
    _bounds(file, 1, b"b" * 8, b"b" * 7 + b"c")


LONG_A, LONG_B = "a" * 40, "b" * 40

CASES: dict[str, Case] = {
    "nan": Case(
        "NaN beside numbers",
        "Row groups [1.0, 2.0, NaN] and [200.0]. Writers leave NaN out of bounds: those of the first group are 1.0 and "
        "2.0. IEEE 754 says that NaN is greater than nothing; Spark, DuckDB and DataFusion order it above all numbers.",
        pa.float64(),
        [[1.0, 2.0, NAN], [200.0]],
        [Condition(">", 100.0), Condition("<", 100.0), Condition("!=", 1.0), Condition("=", NAN)],
    ),
    "equal-bounds": Case(
        "NaN or null beside one number",
        "Row groups [1.0, NaN, 1.0] and [1.0, null, 1.0]. Both bounds of each group are 1.0.",
        pa.float64(),
        [[1.0, NAN, 1.0], [1.0, None, 1.0]],
        [Condition("=", 1.0), Condition("!=", 1.0), Condition("<=", 1.0), Condition("not in", [1.0, 2.0])],
    ),
    "zeros": Case(
        "Zeros of both signs",
        "Row groups [0.0], [-0.0] and [0.0, -0.0]. The two zeros are equal.",
        pa.float64(),
        [[0.0], [-0.0], [0.0, -0.0]],
        [Condition("=", 0.0), Condition("=", -0.0), Condition("<", 0.0), Condition("in", [-0.0, 5.0])],
    ),
    "int96": Case(
        "INT96 after the year 2262",
        "Row groups [2020-01-01] and [3000-01-01], as INT96, which old Spark, Hive and Impala write. Nanoseconds since "
        "1970 in 64 bits end in 2262.",
        pa.timestamp("us"),
        [[datetime(2020, 1, 1)], [datetime(3000, 1, 1)]],
        [Condition(">", datetime(2500, 1, 1)), Condition("<", datetime(2019, 1, 1))],
        options=(("use_deprecated_int96_timestamps", True),),
    ),
    "legacy-dates": Case(
        "Dates of the legacy calendar",
        "1500-01-01 and 2020-01-01, as Spark writes them in the Julian calendar, with "
        "`datetimeRebaseModeInWrite=LEGACY`. The file's metadata says so.",
        pa.date32(),
        [[date(1500, 1, 10)], [date(2020, 1, 1)]],
        [Condition("=", date(1500, 1, 1)), Condition("<", date(1500, 1, 5))],
        metadata={"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""},
    ),
    "wide-decimals": Case(
        "Decimals wider than they are declared",
        "Row groups [5, -1] and [127], declared as decimal(2, 0) and stored in one byte, as ClickHouse and Trino have "
        "written them.",
        pa.binary(1),
        [[b"\x05", b"\xff"], [b"\x7f"]],
        [Condition("=", Decimal(127)), Condition(">=", Decimal(100)), Condition("<", Decimal(100))],
        edit=_decimals,
    ),
    "cut-bounds": Case(
        "Bounds that are cut",
        "Row groups ['a' x 40] and ['b' x 40]. Bounds have 8 bytes: the lower ones are beginnings, the upper ones are "
        "raised. They do not say that they are inexact.",
        pa.string(),
        [[LONG_A], [LONG_B]],
        [Condition("=", LONG_A), Condition(">", "aaaaaaaa"), Condition("!=", "aaaaaaaa"), Condition("<=", LONG_A)],
        edit=_cut,
    ),
    "far-dates": Case(
        "First and last dates",
        "Row groups [0001-01-01], [2020-01-01] and [9999-12-31].",
        pa.date32(),
        [[date(1, 1, 1)], [date(2020, 1, 1)], [date(9999, 12, 31)]],
        [Condition(">", date(3000, 1, 1)), Condition("<", date(1000, 1, 1)), Condition("=", date(9999, 12, 31))],
    ),
    "far-timestamps": Case(
        "First and last timestamps",
        "Row groups [0001-01-01], [2020-01-01] and [9999-12-31 23:59:59.999999], in microseconds.",
        pa.timestamp("us"),
        [[datetime(1, 1, 1)], [datetime(2020, 1, 1)], [datetime(9999, 12, 31, 23, 59, 59, 999999)]],
        [Condition(">", datetime(3000, 1, 1)), Condition("<", datetime(1000, 1, 1))],
    ),
    "unsigned": Case(
        "Unsigned integers",
        "Row groups [1, 2] and [2^63 + 1], as UINT64. Deprecated bounds of old writers compare them as signed.",
        pa.uint64(),
        [[1, 2], [2**63 + 1]],
        [Condition(">", 5), Condition("<", 5), Condition("=", 2**63 + 1)],
    ),
    "lists": Case(
        "Null, empty and one null",
        "Row groups [null], [[]], [[null]] and [[1]], lists of integers.",
        pa.list_(pa.int64()),
        [[None], [[]], [[None]], [[1]]],
        [Condition("is null")],
    ),
}
