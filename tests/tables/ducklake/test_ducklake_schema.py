"""Values and bounds that a DuckLake's catalog stores as text, against what DuckDB writes."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpq.datasets.model import ColumnBounds
from asyncpq.errors import CorruptFileError, UnsupportedFeatureError
from asyncpq.expressions.scalars import Timestamp
from asyncpq.tables.ducklake.schema import arrow_type, bounds_of_statistics, columns_of_rows, typed, value_of_text

_connection = duckdb.connect()


def text_of(value: object, kind: str) -> str:
    found = _connection.execute(f"SELECT CAST(CAST(? AS {kind}) AS VARCHAR)", [value]).fetchall()[0][0]
    assert isinstance(found, str)
    return found


@pytest.mark.parametrize(
    ("type_name", "kind", "values"),
    [
        ("boolean", "BOOLEAN", st.booleans()),
        ("int64", "BIGINT", st.integers(-(2**63), 2**63 - 1)),
        ("float64", "DOUBLE", st.floats(allow_nan=False)),
        ("float32", "FLOAT", st.floats(allow_nan=False, width=32)),
        ("decimal(38,6)", "DECIMAL(38,6)", st.decimals(-(10**30), 10**30, places=6)),
        ("varchar", "VARCHAR", st.text(st.characters(codec="utf-8"))),
        ("blob", "BLOB", st.binary()),
        ("date", "DATE", st.dates()),
        ("time", "TIME", st.times()),
        ("timestamp", "TIMESTAMP", st.datetimes()),
        ("uuid", "UUID", st.uuids()),
    ],
)
@settings(max_examples=40)
@given(data=st.data())
def test_text_is_what_duckdb_writes(
    type_name: str, kind: str, values: st.SearchStrategy[object], data: st.DataObject
) -> None:
    value = data.draw(values)
    found = value_of_text(text_of(value, kind), type_name)
    assert found == value
    assert type(found) is type(value)


def test_text_of_finer_and_zoned_times() -> None:
    assert value_of_text("1969-12-31 23:59:59.999999999", "timestamp_ns") == Timestamp(-1)
    assert value_of_text("2020-01-02 03:04:05.5+05:30", "timestamptz") == dt.datetime(
        2020, 1, 1, 21, 34, 5, 500000, tzinfo=dt.UTC
    )
    assert value_of_text("2020-01-02", "timestamp") == dt.datetime(2020, 1, 2)  # a bound from when it was a date


@pytest.mark.parametrize(
    ("type_name", "text"),
    [
        ("int32", "1.0"),
        ("int32", "１"),  # noqa: RUF001  # a digit, but not DuckDB's
        ("boolean", "t"),
        ("float64", "1_0"),
        ("decimal(5,2)", "NaN"),
        ("date", "infinity"),
        ("date", "0044-03-15 (BC)"),
        ("timestamp", "290000-12-22 00:00:00"),
        ("timestamp", "2020-01-01 00:00:00+00"),
        ("timestamp", "2020-01-01 00:00:00.123456789"),
        ("timestamptz", "2020-01-01 00:00:00"),
        ("time", "24:00:00"),
        ("timetz", "12:00:00"),
        ("blob", "\\xZ"),
        ("blob", "é"),
        ("variant", "1"),
    ],
)
def test_other_text_is_refused(type_name: str, text: str) -> None:
    with pytest.raises(ValueError):
        value_of_text(text, type_name)


@given(st.floats(allow_nan=False, width=32))
def test_a_float_bound_holds_as_either_type(value: float) -> None:
    """The text of a FLOAT, read as a DOUBLE, bounds the FLOAT."""
    text = text_of(value, "FLOAT")
    row = {"min_value": text, "max_value": text, "value_count": 1, "null_count": 0, "contains_nan": False}
    bounds = bounds_of_statistics("float64", row, 1)
    assert bounds is not None
    assert isinstance(bounds.min, float)
    assert isinstance(bounds.max, float)
    exact = pa.scalar(value, pa.float32()).as_py()
    assert bounds.min <= exact <= bounds.max
    assert bounds.min <= float(text) <= bounds.max


@pytest.mark.parametrize(
    ("value_count", "null_count", "record_count", "known", "all_null"),
    [
        (7, 3, 10, 3, False),
        (10, 0, 10, 0, False),
        (0, 10, 10, 10, True),
        (0, 0, 10, None, False),  # not counted
        (20, 3, 10, None, False),  # of a list's elements
        (None, None, 10, None, False),
    ],
)
def test_counts(value_count: int, null_count: int, record_count: int, known: int | None, all_null: bool) -> None:
    row = {
        "min_value": "-1.50",
        "max_value": "2",
        "value_count": value_count,
        "null_count": null_count,
        "contains_nan": None,
    }
    bounds = bounds_of_statistics("decimal(5,2)", row, record_count)
    assert bounds == ColumnBounds(
        min=Decimal("-1.50"), max=Decimal(2), null_count=known, all_null=all_null, may_be_nan=False
    )


def test_decimals_that_a_delta_log_has_rounded() -> None:
    """delta2ducklake 0.2.1 copies the bounds of the log, for which deltalake makes floats of decimals."""
    values = [Decimal("12345678901234567890.123"), Decimal("12345678901234567891.456"), Decimal("1234567890123456.789")]
    row = {
        "value_count": 3,
        "null_count": 0,
        "min_value": str(float(min(values))),
        "max_value": str(float(max(values))),
    }
    bounds = bounds_of_statistics("decimal(38,3)", row, 3)
    assert bounds is not None
    assert bounds.min <= min(values) < max(values) <= bounds.max  # type: ignore[operator]


@pytest.mark.parametrize(
    ("contains_nan", "size", "may_be_nan"),
    [(False, 43, False), (False, None, True), (True, 43, True), (None, 43, True)],
)
def test_nan_that_a_delta_log_does_not_tell(contains_nan: bool | None, size: int | None, may_be_nan: bool) -> None:
    """delta2ducklake 0.2.1 writes ``contains_nan`` false beside the log's bounds, and no size."""
    row = {"min_value": "1.0", "max_value": "3.0", "value_count": 3, "null_count": 0, "contains_nan": contains_nan}
    bounds = bounds_of_statistics("float64", {**row, "column_size_bytes": size}, 3)
    assert bounds is not None
    assert bounds.may_be_nan is may_be_nan


@pytest.mark.parametrize("type_name", ["timetz", "interval", "int128", "blob", "json", "variant"])
def test_types_without_bounds_say_nothing(type_name: str) -> None:
    """DuckDB up to 1.4 writes that none of them is null, whatever they hold."""
    row = {"min_value": None, "max_value": None, "value_count": 10, "null_count": 0, "contains_nan": None}
    bounds = bounds_of_statistics(type_name, row, 10)
    assert bounds is None


def test_zero_has_no_sign_in_text() -> None:
    row = {"min_value": "0.0", "max_value": "-0.0", "value_count": 1, "null_count": 0, "contains_nan": False}
    bounds = bounds_of_statistics("float64", row, 1)
    assert bounds is not None
    assert repr((bounds.min, bounds.max)) == "(-0.0, 0.0)"


@pytest.mark.parametrize("name", ["decimal(39,0)", "decimal(0,0)", "decimal(5,6)", "decimal(99999999999,0)"])
def test_decimals_of_impossible_digits(name: str) -> None:
    assert arrow_type(name) is None


@pytest.mark.parametrize(
    ("text", "type_name"),
    [
        ("1e-100000000", "decimal(9,2)"),  # crashes pyarrow 26
        ("1e100000000", "decimal(9,2)"),
        ("1.505", "decimal(9,2)"),
        ("1e300", "float32"),
        ("9" * 5000, "int64"),
        ("9" * 5000 + " years", "interval"),
    ],
)
def test_texts_that_are_no_value_of_their_type(text: str, type_name: str) -> None:
    with pytest.raises(ValueError):
        value_of_text(text, type_name)


@pytest.mark.parametrize(("text", "type_name"), [("9" * 30, "int64"), ("9999-01-01 00:00:00", "timestamp_ns")])
def test_values_beyond_arrow_s_types(text: str, type_name: str) -> None:
    kind = arrow_type(type_name)
    assert kind is not None
    with pytest.raises(ValueError, match="is not a value of type"):
        typed(text, type_name, kind)


def test_a_column_that_is_its_own_part() -> None:
    """Two rows of one id at each of 60 levels: 2**60 columns."""

    def row(number: int, parent: int | None) -> dict[str, object]:
        names = {"column_name": f"c{number}", "column_type": "struct", "column_order": number}
        return {"column_id": number, "parent_column": parent, "initial_default": None, "nulls_allowed": True, **names}

    rows = [row(number, number - 1 if number else None) for number in range(60) for _ in range(2)]
    with pytest.raises(CorruptFileError, match="two columns of one id"):
        columns_of_rows(rows, "t")
    deep = [row(number, number - 1 if number else None) for number in range(5000)]
    with pytest.raises(UnsupportedFeatureError, match="nested too deeply"):
        columns_of_rows(deep, "t")
