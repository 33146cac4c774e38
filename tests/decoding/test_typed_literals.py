"""Columns cast in pyarrow's expressions: what is understood has pyarrow.dataset's answer, the rest is refused."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from asyncpq.decoding.arrow_expressions import from_pyarrow
from asyncpq.decoding.filter import compile_filter
from asyncpq.decoding.typed_literals import is_exact_cast
from asyncpq.errors import ExpressionError
from asyncpq.expressions import ColumnComparison, Comparison, In, IsNull, is_nan
from tests.example_counts import examples
from tests.predicates import array, arrays

_INTEGERS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
_FLOATS = [pa.float32(), pa.float64()]
_STRINGS = [pa.string(), pa.large_string()]
_INSTANTS = [pa.timestamp("ms", "UTC"), pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Paris")]
# For each kind of column the types that it is cast to.
_TARGETS: dict[str, list[pa.DataType]] = {
    **{kind: [*_INTEGERS, *_FLOATS] for kind in ("int8", "int32", "int64", "uint8", "uint32", "uint64")},
    **{kind: [*_FLOATS, pa.int64()] for kind in ("float32", "float64")},
    **{kind: [*_STRINGS, pa.binary()] for kind in ("string", "large_string", "dictionary")},
    **{kind: [pa.timestamp("s"), pa.timestamp("us"), pa.date32()] for kind in ("timestamp_ms", "timestamp_us")},
    **{kind: [*_INSTANTS, pa.timestamp("us")] for kind in ("timestamp_utc", "timestamp_zone")},
    "binary": [pa.binary(), pa.large_binary(), pa.string()],
    "date32": [pa.timestamp("us"), pa.date64()],
    "time32": [pa.time64("us"), pa.time32("s")],
    "decimal": [pa.decimal128(22, 3), pa.decimal128(22, 1), pa.decimal256(50, 4), pa.float64()],
}
_OPS = ["equal", "not_equal", "less", "less_equal", "greater", "greater_equal"]


def literals(kind: str, target: pa.DataType) -> st.SearchStrategy[Any]:
    """Values of the type that is cast to, also such as the column does not hold."""
    if pa.types.is_integer(target):
        bound = 1 << (target.bit_width - pa.types.is_signed_integer(target))
        low = -bound if pa.types.is_signed_integer(target) else 0
        return st.integers(-4, 6).filter(lambda n: n >= low) | st.sampled_from([low, bound - 1])
    if pa.types.is_floating(target):
        return st.sampled_from([0.0, -0.0, 1.0, 1.5, -1.0, 2.0, float("nan"), float("inf"), 0.1, 16777216.0, 1e30])
    if pa.types.is_decimal(target):
        return st.integers(-50, 120).map(lambda n: Decimal(n) / 40).filter(lambda n: n == round(n, target.scale))
    if pa.types.is_timestamp(target):
        zone = None if target.tz is None else dt.UTC
        step = dt.timedelta(hours=8) if kind != "timestamp_us" else dt.timedelta(microseconds=1)
        return st.integers(-3, 6).map(lambda n: dt.datetime(2024, 2, 29, tzinfo=zone) + n * step)
    if pa.types.is_date(target):
        return st.integers(-3, 6).map(lambda n: dt.date(2024, 2, 29) + dt.timedelta(n))
    if pa.types.is_time(target):
        return st.integers(0, 6).map(lambda n: dt.time(n, 0, 0, 0 if target.unit == "s" else n))
    strings = st.sampled_from(["", "a", "ab", "b", "é"])
    return strings if target in _STRINGS else strings.map(str.encode)


@pytest.mark.heavy
@settings(max_examples=examples(150, thorough=1000))
@given(st.sampled_from(list(_TARGETS)), st.data())
def test_casts_have_the_answer_of_pyarrow_dataset(kind: str, data: st.DataObject) -> None:
    target = data.draw(st.sampled_from(_TARGETS[kind]))
    values = data.draw(arrays(kind))
    column = array(kind, values)
    table = pa.table({"x": column, "row": pa.array(range(len(values)), pa.int64())})
    literal = literals(kind, target)
    cast = pc.field("x").cast(target, safe=data.draw(st.booleans()))
    form = data.draw(st.sampled_from(["compare", "compare", "mirrored", "isin", "valid"]))
    try:
        if form == "isin":
            found = cast.isin(pa.array(data.draw(st.lists(literal | st.none(), min_size=1, max_size=3)), target))
        elif form == "valid":
            found = cast.is_valid()
        else:
            operands = [cast, pc.scalar(pa.scalar(data.draw(literal), target))]
            operands = operands[::-1] if form == "mirrored" else operands
            found = pc.Expression._call(data.draw(st.sampled_from(_OPS)), operands)
    except pa.ArrowException:
        assume(False)
    if data.draw(st.booleans()):
        found = ~found
    try:
        translated = from_pyarrow(found, table.schema)
    except ExpressionError:
        exact = is_exact_cast(column.type, target) and column.type != target
        assert not exact
        return
    compiled = compile_filter(translated, table.schema)
    rows = table.filter(compiled.mask({"x": column} if compiled.columns else {}, len(values)))["row"].to_pylist()
    assert rows == ds.dataset(table).to_table(filter=found)["row"].to_pylist()


@pytest.mark.parametrize(
    ("source", "target", "exact"),
    [
        ("int32", "int64", True),
        ("int64", "int32", False),
        ("uint32", "int64", True),
        ("uint32", "int32", False),
        ("int8", "uint16", False),
        ("uint8", "uint64", True),
        ("int32", "float64", True),
        ("int64", "float64", False),
        ("int32", "float32", False),
        ("uint16", "float32", True),
        ("float32", "float64", True),
        ("float64", "float32", False),
        ("float32", "int64", False),
        ("string", "large_string", True),
        ("large_string", "string", True),
        ("string", "binary", False),
        ("date32", "date64", False),
        ("bool", "int8", False),
        ("int64", "timestamp[us]", False),
        ("timestamp[ms]", "timestamp[us]", True),
        ("timestamp[us]", "timestamp[ms]", False),
        ("time32[ms]", "time64[us]", True),
    ],
)
def test_exact_casts(source: str, target: str, exact: bool) -> None:
    types = [pa.type_for_alias(name) for name in (source, target)]
    assert is_exact_cast(*types) is exact


def test_zones_and_decimals() -> None:
    assert is_exact_cast(pa.timestamp("ms", "UTC"), pa.timestamp("us", "Europe/Paris"))
    assert not is_exact_cast(pa.timestamp("ms", "UTC"), pa.timestamp("us"))
    assert not is_exact_cast(pa.timestamp("ms"), pa.timestamp("us", "UTC"))
    assert is_exact_cast(pa.decimal128(7, 2), pa.decimal128(9, 3))
    assert not is_exact_cast(pa.decimal128(7, 2), pa.decimal128(7, 3))
    assert not is_exact_cast(pa.decimal128(7, 2), pa.decimal128(9, 1))


_SCHEMA = pa.schema(
    [
        ("a", pa.int32()),
        ("b", pa.int64()),
        ("s", pa.string()),
        ("x", pa.float32()),
        ("in", pa.struct([("y", pa.int8())])),
    ]
)


@pytest.mark.parametrize(
    ("expression", "translated"),
    [
        (pc.field("a").cast("int64") == 2**40, Comparison("a", "==", 2**40)),
        (pc.scalar(2**40) > pc.field("a").cast("int64"), Comparison("a", "<", 2**40)),
        (pc.field("a").cast("float64") < 1.5, Comparison("a", "<", 1.5)),
        (pc.field("a").cast("int64") == pc.field("b"), ColumnComparison("a", "==", "b")),
        (pc.field("a").cast("int64").isin([1, 2**40]), In("a", (1,))),
        (pc.field("a").cast("float64").isin([0.0, -0.0, 1.5]), In("a", (0.0,))),
        (pc.field("a").cast("int64").is_null(), IsNull("a")),
        (pc.field("s").cast("large_string") == "", Comparison("s", "==", "")),
        (pc.is_nan(pc.field("x").cast("float64")), is_nan("x")),
        (pc.field("in", "y").cast("int16") == 5, Comparison("in.y", "==", 5)),
    ],
)
def test_forms(expression: pc.Expression, translated: Any) -> None:
    assert from_pyarrow(expression, _SCHEMA) == translated


@pytest.mark.parametrize(
    "expression",
    [
        pc.field("b").cast("int32") == 1,
        pc.field("b").cast("int32", safe=False) == 1,
        pc.field("s").cast("int32") == 1,
        pc.field("a").cast("int64").cast("float64") == 1.0,
        (pc.field("a") + 1).cast("int64") == 1,
        pc.field("a").cast("bool"),
        pc.field("a").cast("string") == "1",
    ],
)
def test_other_casts_are_refused(expression: pc.Expression) -> None:
    with pytest.raises(ExpressionError, match="cast") as caught:
        from_pyarrow(expression, _SCHEMA)
    assert "asyncpq.col()" in str(caught.value)
