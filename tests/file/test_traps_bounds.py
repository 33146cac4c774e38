"""Correctness traps 1 to 9, bounds: each ends in pyarrow's rows, with statistics trusted or not.

The number in a test's name is the trap's:

1. deprecated min and max                    6. decimals in bytes, unsigned integers, min above max
2. PARQUET-251, bounds of old parquet-mr     7. bounds cut short
3. INT96, unknown column orders              8. types without an order
4. NaN                                       9. literals of another type (all pairs: test_literals)
5. zeros of either sign

What the package's parts make of such bounds is in tests/parquet/test_statistics.py and tests/pruning.
"""

from __future__ import annotations

import datetime as dt
import struct
from decimal import Decimal
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.expressions import Expression
from tests.parquet_files import BINARY, BYTE, FALSE, I32, I64, LIST, STRUCT, TRUE, EditedFile, Items, Struct
from tests.predicates import oracle
from tests.reads import ask, assert_reads, by_pyarrow, row_groups_read, rows_left

pytestmark = pytest.mark.sampled(2)

x = col("x")
NAN = float("nan")
OLD_MR = b"parquet-mr version 1.7.0 (build 0)"
FIXED_MR = b"parquet-mr version 1.8.0 (build 0)"


def column(values: list[Any], kind: pa.DataType, **options: Any) -> EditedFile:
    """One column x in row groups of two rows, without page indexes."""
    options = {"write_page_index": False, "row_group_size": 2, **options}
    return EditedFile.of(pa.table({"x": pa.array(values, kind)}), **options)


def set_bounds(file: EditedFile, group: int, low: bytes | None, high: bytes | None, **more: Any) -> None:
    """Set min_value and max_value, and the flags ``min_exact`` and ``max_exact``; None takes them out."""
    statistics = file.statistics(0, group)
    statistics.put(6, low)
    statistics.put(5, high)
    statistics.put(8, more.get("min_exact"))
    statistics.put(7, more.get("max_exact"))


def set_deprecated(file: EditedFile, group: int, low: bytes, high: bytes) -> None:
    """Leave the deprecated min and max alone."""
    set_bounds(file, group, None, None)
    file.statistics(0, group).put(2, low)
    file.statistics(0, group).put(1, high)


def long(value: int) -> bytes:
    return struct.pack("<q", value)


def double(value: float) -> bytes:
    return struct.pack("<d", value)


# -- 1 ----------------------------------------------------------------------------------------------


def test_01_deprecated_bounds_of_signed_types_are_used_without_column_orders() -> None:
    file = column([-5, 1, 2, 3], pa.int64())
    for group, (low, high) in enumerate([(-5, 1), (2, 3)]):
        set_deprecated(file, group, long(low), long(high))
    file.footer.put(7, None)
    assert_reads(file.data(), x == -5, x > 1, x.is_in([3]), ~(x < 2), x != 2)
    assert row_groups_read(file.data(), x < 0) == 1


def test_01_deprecated_bounds_are_not_used_beside_column_orders() -> None:
    file = column([-5, 1, 2, 3], pa.int64())
    set_deprecated(file, 0, long(100), long(200))
    assert_reads(file.data(), x == -5, x == 150, x > 1)


@pytest.mark.parametrize(
    ("values", "kind", "low", "high"),
    [
        ([1, 2**31 + 5], pa.uint32(), struct.pack("<I", 2**31 + 5), struct.pack("<I", 1)),
        (["a", "é"], pa.string(), "é".encode(), b"a"),
        ([b"\x01", b"\xff"], pa.binary(), b"\xff", b"\x01"),
        ([Decimal("-1"), Decimal("1")], pa.decimal128(20, 0), b"\0" * 8 + b"\1", b"\xff" * 9),
    ],
    ids=["unsigned", "string", "binary", "decimal"],
)
def test_01_deprecated_bounds_of_other_types_mean_nothing(
    values: list[Any], kind: pa.DataType, low: bytes, high: bytes
) -> None:
    """Made by signed comparison of what compares unsigned, or the other way round; swapped they look right."""
    for first, last in ((low, high), (high, low), (low, low)):
        file = column(values, kind)
        set_deprecated(file, 0, first, last)
        file.footer.put(7, None)
        assert_reads(file.data(), *[x == value for value in values], x > values[0], x < values[1], x != values[0])


# -- 2 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("created_by", [OLD_MR, None, b"parquet-mr", b"no writer that is known", b""])
@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.binary(2)])
def test_02_wrong_bounds_of_binary_columns(created_by: bytes | None, kind: pa.DataType) -> None:
    file = column([b"aa", b"zz", b"bb", b"cc"], kind)
    set_bounds(file, 0, b"bb", b"cc", min_exact=True, max_exact=True)
    set_bounds(file, 1, b"zz", b"zz", min_exact=True, max_exact=True)
    file.footer.put(6, created_by)
    own = [value.decode() if kind == pa.string() else value for value in (b"aa", b"bb", b"zz")]
    assert_reads(file.data(), *[x == value for value in own], x != own[2], x < own[1], x.is_in(own))


@pytest.mark.parametrize("created_by", [FIXED_MR, b"parquet-mr version 1.5.0-cdh5.5.0 (build 0)", b"other version 1.0"])
def test_02_bounds_of_others_are_used(created_by: bytes) -> None:
    file = column(["a", "b", "c", "d"], pa.string())
    file.footer.put(6, created_by)
    assert_reads(file.data(), x == "a", x > "b")
    assert row_groups_read(file.data(), x == "a") == 1


# -- 3 ----------------------------------------------------------------------------------------------


def test_03_bounds_of_int96() -> None:
    days = [dt.datetime(1969, 12, 31), dt.datetime(2024, 1, 1), dt.datetime(2025, 1, 1), dt.datetime(2026, 1, 1)]
    file = column(days, pa.timestamp("ns"), use_deprecated_int96_timestamps=True)
    set_bounds(file, 0, b"\0" * 12, b"\1" * 12)
    set_bounds(file, 1, b"\xff" * 12, b"\xff" * 12)
    assert_reads(file.data(), x == days[0], x > days[1], x != days[2], x.is_in(days[1:3]), x.is_null())


def int96(moment: str) -> bytes:
    """Nanoseconds of the day, Julian day."""
    days, nanos = divmod(int(np.datetime64(moment, "ns").astype(int)), 86_400 * 10**9)
    return struct.pack("<QI", nanos, days + 2_440_588)


_MOMENTS = [
    "1969-12-31T23:59:59.999999999",
    "2024-01-01T00:00:00.000000001",
    "2024-01-01T00:00:00.000001500",
    "2026-01-01T00:00:00",
]


@pytest.mark.parametrize("unit", ["ns", "us"])
@pytest.mark.parametrize("with_index", [False, True])
def test_03_bounds_of_int96_in_chronological_order(unit: Literal["ns", "us"], with_index: bool) -> None:
    moments = [np.datetime64(moment, "ns") for moment in _MOMENTS]
    options: dict[str, Any] = {"row_group_size": 4, "rows_per_page": 1, "write_page_index": True} if with_index else {}
    file = column(moments, pa.timestamp("ns"), use_deprecated_int96_timestamps=True, **options)
    file.footer.value(7)[0] = Struct({3: (STRUCT, Struct())})
    raw = list(map(int96, _MOMENTS))
    if with_index:
        set_bounds(file, 0, raw[0], raw[3])
        pages = {1: Items(TRUE, [False] * 4), 2: Items(BINARY, raw), 3: Items(BINARY, raw)}
        index = Struct({number: (LIST, items) for number, items in pages.items()})
        index.put(4, 1, I32)
        index.put(5, Items(I64, [0] * 4))
        file.set_column_index(index)
    else:
        set_bounds(file, 0, raw[0], raw[1])
        set_bounds(file, 1, raw[2], raw[3])
    literals = [np.datetime64(t, "ns") for t in (*_MOMENTS, "2024-01-01", "2024-01-01T00:00:00.000001")]
    where = [e for t in literals for e in (x == t, x < t, x <= t, x > t, x >= t, x != t, ~(x > t), x.is_in([t]))]
    data = file.data()
    read = asyncpq.ReadOptions(int96_unit=unit)
    whole = pq.ParquetFile(pa.BufferReader(data), coerce_int96_timestamp_unit=unit).read()

    async def question(reader: asyncpq.File) -> None:
        for expr in [*where, x.is_null(), x.is_valid()]:
            rows = whole.filter(oracle(expr))
            assert (await reader.read(where=expr)).to_pydict() == rows.to_pydict(), expr
            assert await reader.count(where=expr) == len(rows), expr

    ask(data, question, read=read)
    assert rows_left(data, x > dt.datetime(2025, 1, 1)) == (1 if with_index else 2)
    assert rows_left(data, x < dt.datetime(2024, 1, 1)) == (1 if with_index else 2)


@pytest.mark.parametrize(
    ("low", "high"),
    [
        (int96("2024-01-01"), struct.pack("<QI", 86_400 * 10**9, 2_440_588 + 20_000)),  # more than a day of nanoseconds
        (struct.pack("<QI", 0, 0), int96("2027-01-01")),  # before 1677: 64 bits of nanoseconds begin anew
        (int96("2024-01-01")[:8], int96("2027-01-01")),
        (int96("2027-01-01"), int96("2024-01-01")),
    ],
)
def test_03_bounds_of_int96_that_are_no_timestamps(low: bytes, high: bytes) -> None:
    days = [dt.datetime(2024, 1, 1), dt.datetime(2026, 1, 1)]
    file = column(days, pa.timestamp("ns"), use_deprecated_int96_timestamps=True)
    file.footer.value(7)[0] = Struct({3: (STRUCT, Struct())})
    set_bounds(file, 0, low, high)
    assert_reads(file.data(), x == days[0], x > days[0], x < dt.datetime(1990, 1, 1))
    assert row_groups_read(file.data(), x < dt.datetime(1990, 1, 1)) == 1


def test_03_unknown_column_orders_leave_counts_alone() -> None:
    file = column([1, 2, None, 4], pa.int64())
    set_bounds(file, 0, long(100), long(200))
    file.footer.value(7)[0] = Struct({99: (STRUCT, Struct())})
    assert_reads(file.data(), x == 1, x > 50, x != 100, x.is_null(), x.is_valid())
    assert row_groups_read(file.data(), x == 1) == 2
    assert row_groups_read(file.data(), x.is_null()) == 1


# -- 4 ----------------------------------------------------------------------------------------------

_FLOAT_ATOMS: list[Expression] = [
    x != 3.0,
    ~(x == 3.0),
    x == 3.0,
    x > 2.0,
    ~(x <= 2.0),
    ~(x > 2.0),
    x == NAN,
    x != NAN,
    x.is_in([NAN]),
    ~x.is_in([NAN]),
    x.is_in([3.0]),
    ~x.is_in([3.0]),
    x.is_null(nan_is_null=True),
    ~x.is_null(nan_is_null=True),
    x.is_null(),
]


@pytest.mark.parametrize("values", [[3.0, NAN, 3.0, 3.0], [1.0, NAN, 3.0, 4.0], [NAN, NAN, 1.0, None], [None, NAN]])
@pytest.mark.parametrize("kind", [pa.float32(), pa.float64()])
def test_04_nan_is_outside_of_the_bounds(values: list[float | None], kind: pa.DataType) -> None:
    for index, rows in ((False, 1), (True, 1), (True, 2)):
        file = column(values, kind, write_page_index=index, rows_per_page=rows, use_dictionary=False)
        assert_reads(file.data(), *_FLOAT_ATOMS)


def test_04_a_nan_count_is_believed_where_there_is_one() -> None:
    file = column([3.0, NAN, 3.0, 3.0], pa.float64())
    for group, nans in enumerate((1, 0)):
        file.statistics(0, group).put(9, nans)
    assert_reads(file.data(), *_FLOAT_ATOMS)
    assert row_groups_read(file.data(), x != 3.0) == 1


@pytest.mark.parametrize("low", [NAN, 1.0])
def test_04_a_bound_that_is_nan(low: float) -> None:
    file = column([1.0, 2.0, NAN, 4.0], pa.float64())
    set_bounds(file, 0, double(low), double(NAN))
    assert_reads(file.data(), *_FLOAT_ATOMS, x == 1.0, x < 2.0)
    index = column([1.0, 2.0], pa.float64(), write_page_index=True, rows_per_page=1)
    bounds = index.column_index()
    for field in (2, 3):
        bounds.value(field)[0] = double(NAN)
    index.set_column_index(bounds)
    assert_reads(index.data(), *_FLOAT_ATOMS, x == 1.0, x < 2.0)


# -- 5 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("low", [0.0, -0.0])
@pytest.mark.parametrize("high", [0.0, -0.0])
def test_05_a_zero_stands_for_both(low: float, high: float) -> None:
    zeros = [x == 0.0, x == -0.0, x.is_in([0.0]), x.is_in([-0.0]), ~x.is_in([0.0]), ~x.is_in([-0.0])]
    compared = [x < 0.0, x >= 0.0, x > -0.0, x <= -0.0, x != 0.0, x == 0]
    for values in ([-0.0, 0.0], [0.0, 0.0], [-0.0, -0.0]):
        file = column(values, pa.float64(), write_page_index=True, rows_per_page=1)
        set_bounds(file, 0, double(low), double(high))
        file.statistics().put(9, 0)
        bounds = file.column_index()
        for page in range(2):
            bounds.value(2)[page], bounds.value(3)[page] = double(low), double(high)
        file.set_column_index(bounds)
        assert_reads(file.data(), *zeros, *compared)


# -- 6 ----------------------------------------------------------------------------------------------


def as_decimal(file: EditedFile, precision: int, scale: int) -> None:
    """Annotate the column as DECIMAL."""
    element = file.element()
    element.put(6, 5, I32)
    element.put(7, scale, I32)
    element.put(8, precision, I32)
    element.put(10, Struct({5: (STRUCT, Struct({1: (I32, scale), 2: (I32, precision)}))}))


def test_06_decimals_in_byte_arrays_of_any_length() -> None:
    unscaled = [-1, 5, 128, 300, -70000, -2]
    raw = [b"\xff", b"\x05", b"\0\x80", b"\x01\x2c", b"\xfe\xee\x90", b"\xff\xff\xfe"]
    file = column(raw, pa.binary(), store_schema=False)
    as_decimal(file, 9, 2)
    for group in range(3):
        pair = sorted((unscaled[at], raw[at]) for at in (2 * group, 2 * group + 1))
        set_bounds(file, group, pair[0][1], pair[1][1])
    values = [Decimal(value) / 100 for value in unscaled]
    assert_reads(file.data(), *[x == value for value in values], x < 0, x > Decimal("1.27"), x.is_in(values[:2]))
    assert row_groups_read(file.data(), x > Decimal("1.27")) == 1
    assert row_groups_read(file.data(), x < Decimal("-1")) == 1


def test_06_decimals_of_fixed_length_and_of_integers() -> None:
    values = [Decimal("-1.50"), Decimal("0.25"), Decimal("2.00"), Decimal("99.99")]
    for integers in (False, True):
        for kind in (pa.decimal128(7, 2), pa.decimal128(17, 2), pa.decimal128(30, 2)):
            file = column(values, kind, store_decimal_as_integer=integers)
            assert_reads(file.data(), *[x == value for value in values], x < 0, x > Decimal("0.25"), x != 2)
            assert row_groups_read(file.data(), x < 0) == 1


@pytest.mark.parametrize("kind", [pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()])
def test_06_unsigned_integers(kind: pa.DataType) -> None:
    top = (1 << kind.bit_width) - 1
    file = column([0, top, 1, 2], kind)
    assert_reads(file.data(), x == top, x > 2, x == 0, x != 0, x < 2, x >= -1, x == -1)
    assert row_groups_read(file.data(), x > 2) == 1


@pytest.mark.parametrize(("bits", "signed"), [(8, True), (16, True), (8, False), (16, False)])
def test_06_integers_that_their_type_does_not_hold(bits: int, signed: bool) -> None:
    """pyarrow reads their lowest bits."""
    file = column([300, 70_000, -1, -200], pa.int32(), store_schema=False, write_page_index=True, rows_per_page=1)
    kind = Struct({1: (BYTE, bytes([bits])), 2: (TRUE if signed else FALSE, signed)})
    file.element().put(10, Struct({10: (STRUCT, kind)}))
    if not signed:
        for group, (low, high) in enumerate([(300, 70_000), (2**32 - 200, 2**32 - 1)]):
            set_bounds(file, group, struct.pack("<I", low), struct.pack("<I", high))
    held = by_pyarrow(file.data())["x"].to_pylist()
    assert held != [300, 70_000, -1, -200]
    assert_reads(file.data(), *[x == value for value in held], *[x != value for value in held], x > 0, x <= 44)


def test_06_a_min_above_the_max() -> None:
    file = column([1, 2, 3, 4], pa.int64())
    set_bounds(file, 0, long(9), long(-9))
    assert_reads(file.data(), x == 1, x < 3, x != 9, x > 8)


# -- 7 ----------------------------------------------------------------------------------------------


def _text_atoms(*words: str) -> list[Expression]:
    atoms: list[Expression] = []
    for word in words:
        atoms += [x == word, x != word, x < word, x <= word, x > word, x >= word, ~(x == word)]
        atoms += [x.is_in([word]), ~x.is_in([word]), x.starts_with(word), ~x.starts_with(word)]
    return atoms


@pytest.mark.parametrize(
    ("low", "high", "flags"),
    [
        ("ba", "bc", (False, False)),  # cut, and the max raised
        ("ba", "bb", (False, False)),  # a bare prefix as max
        ("ba", "bb", (None, None)),
        ("b", "b", (None, None)),
        ("b", "b", (False, False)),
        ("ba1", "bb3", (True, True)),
    ],
)
def test_07_strings_cut_short(low: str, high: str, flags: tuple[bool | None, bool | None]) -> None:
    file = column(["ba1", "bb3", "c", "d"], pa.string(), write_page_index=True, rows_per_page=2)
    set_bounds(file, 0, low.encode(), high.encode(), min_exact=flags[0], max_exact=flags[1])
    index = file.column_index()
    index.value(2)[0], index.value(3)[0] = low.encode(), high.encode()
    file.set_column_index(index)
    assert_reads(file.data(), *_text_atoms("b", "ba", "ba1", "bb", "bb3", "bb9", "bc", "c"))


def test_07_a_max_that_cannot_be_raised() -> None:
    values = [b"\xff\xff\x01", b"\xff\xff\xff\xff", b"a", b"b"]
    file = column(values, pa.binary())
    for high in (b"\xff\xff", b"\xff", None):
        set_bounds(file, 0, b"\xff", high)
        atoms = [x == value for value in values] + [x > b"\xff\xff\xfe", x > values[1], x >= values[1], x != b"\xff"]
        assert_reads(file.data(), *atoms)


def test_07_equal_bounds_prove_equality_only_where_they_are_exact() -> None:
    file = column(["prefix 1", "prefix 2", "other", "other"], pa.string())
    set_bounds(file, 0, b"prefix", b"prefix")
    assert_reads(file.data(), *_text_atoms("prefix", "prefix 1", "other"))


# -- 8 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("converted", "logical"),
    [
        (21, None),  # INTERVAL
        (None, Struct({16: (STRUCT, Struct())})),  # VARIANT, where it does not belong
        (None, Struct({17: (STRUCT, Struct())})),  # GEOMETRY
        (None, Struct({18: (STRUCT, Struct())})),  # GEOGRAPHY
        (None, Struct({77: (STRUCT, Struct())})),  # newer than this reader
    ],
    ids=["interval", "variant", "geometry", "geography", "unknown"],
)
def test_08_types_without_an_order(converted: int | None, logical: Struct | None) -> None:
    raw = [bytes([n]) * 12 for n in (1, 2, 3, 4)]
    kind = pa.binary(12) if converted is not None else pa.binary()
    file = column(raw, kind, store_schema=False)
    file.element().put(6, converted, I32)
    file.element().put(10, logical)
    for group in range(2):
        set_bounds(file, group, b"\x09" * 12, b"\x0a" * 12)
    if converted is None:
        assert_reads(file.data(), x.is_null(), x.is_valid())
    else:
        assert_reads(file.data(), *[x == value for value in raw], x > raw[2], x != raw[1], x.is_null())


def test_08_lists_and_maps() -> None:
    table = pa.table(
        {
            "list": pa.array([[1], [], None, [None]], pa.list_(pa.int64())),
            "map": pa.array([[("a", 1)], [], None, [("b", None)]], pa.map_(pa.string(), pa.int64())),
        }
    )
    file = EditedFile.of(table, row_group_size=2, rows_per_page=1)
    assert_reads(file.data(), *[col(name).is_null() for name in ("list", "map")], col("list").is_valid())


# -- 9 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind", "atoms"),
    [
        ([1, 44, 100, -1], pa.int8(), [x == 300, x < 300, x > -300, x != 300, x == 44.0, x > 43.5, x.is_in([44])]),
        ([1, 2, 3, 2**63 - 1], pa.int64(), [x == 2**63, x < 2**63, x > 2**64, x == 2**63 - 1, x != 2**64 + 1]),
        ([0, 1, 2, 2**32 - 1], pa.uint32(), [x == -1, x > -1, x < 2**32, x == 2**32, x == 2**32 - 1]),
        ([1, 2, 3, 4], pa.int32(), [x > 1.5, x == 2.0, x == 2.5, x != 2.5, x < Decimal("2.5"), x == Decimal(2)]),
        (
            [Decimal("1.25"), Decimal("2.00")],
            pa.decimal128(7, 2),
            [x == Decimal("1.250"), x > Decimal("1.249"), x == 2],
        ),
        (
            [dt.datetime(2024, 1, 1), dt.datetime(2024, 1, 1, 0, 0, 0, 1000)],
            pa.timestamp("ms"),
            [
                x == dt.date(2024, 1, 1),
                x > dt.datetime(2024, 1, 1, 0, 0, 0, 1),
                x < dt.datetime(2024, 1, 1, 0, 0, 0, 999),
            ],
        ),
        (
            [dt.date(2024, 1, 1), dt.date(2024, 1, 2)],
            pa.date32(),
            [x < dt.datetime(2024, 1, 1, 12), x > dt.datetime(2024, 1, 1, 12), x == dt.datetime(2024, 1, 1)],
        ),
        (
            [dt.datetime(2024, 1, 1, tzinfo=dt.UTC), dt.datetime(2024, 1, 2, tzinfo=dt.UTC)],
            pa.timestamp("us", "+02:00"),
            [x == dt.datetime(2024, 1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=1)))],
        ),
    ],
    ids=["int8", "int64", "uint32", "fractions", "decimal", "timestamp", "date", "zone"],
)
def test_09_literals_of_another_type(values: list[Any], kind: pa.DataType, atoms: list[Expression]) -> None:
    for index in (False, True):
        file = column(values, kind, row_group_size=1, write_page_index=index)
        assert_reads(file.data(), *atoms)
