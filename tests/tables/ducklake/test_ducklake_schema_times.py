"""Texts of dates and times against Python's datetime, and what Python's datetime does not have."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.tables.ducklake.schema import bounds_of_statistics, is_moment, number_of_text, value_of_text

EPOCH = dt.datetime(1970, 1, 1)
MICROSECOND = dt.timedelta(microseconds=1)
offsets = st.integers(-15 * 60, 15 * 60).map(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes)))


@pytest.mark.property
@given(st.dates())
def test_dates(day: dt.date) -> None:
    assert number_of_text(day.isoformat(), "date") == (day - EPOCH.date()).days


@pytest.mark.property
@given(st.datetimes())
def test_timestamps(time: dt.datetime) -> None:
    micros = (time - EPOCH) // MICROSECOND
    assert number_of_text(time.isoformat(" "), "timestamp") == micros
    assert number_of_text(time.isoformat(" "), "timestamp_ns") == micros * 1000


@pytest.mark.property
@given(st.datetimes(dt.datetime(2, 1, 1), dt.datetime(9998, 1, 1), timezones=offsets))
def test_instants_are_in_utc(time: dt.datetime) -> None:
    micros = (time - EPOCH.replace(tzinfo=dt.UTC)) // MICROSECOND
    assert number_of_text(time.isoformat(" "), "timestamptz") == micros
    assert number_of_text(time.timetz().isoformat(), "timetz") == micros % (86_400 * 10**6)


@pytest.mark.parametrize(
    ("text", "type_name", "number"),
    [
        ("infinity", "date", 2**31 - 1),
        ("-infinity", "date", 1 - 2**31),
        ("infinity", "timestamp", 2**63 - 1),
        ("-infinity", "timestamptz", 1 - 2**63),
        ("24:00:00", "time", 86_400 * 10**6),
        ("0001-12-31 (BC)", "date", -719_163),  # the day before 0001-01-01
        ("0001-02-29 (BC)", "date", -719_163 - 306),  # the year 0 is a leap year
        ("10000-01-01", "date", 2_932_897),
        ("1970-01-01", "timestamp", 0),
        ("1970-01-01 00:00:00.000000001", "timestamp_ns", 1),
    ],
)
def test_values_that_python_lacks(text: str, type_name: str, number: int) -> None:
    assert number_of_text(text, type_name) == number


@pytest.mark.parametrize(
    ("text", "type_name"),
    [
        ("2023-02-29", "date"),
        ("2023-13-01", "date"),
        ("2023-01-00", "date"),
        ("24:00:01", "time"),
        ("25:00:00", "time"),
        ("infinity", "time"),
        ("2023-01-01 24:00:00", "timestamp"),
        ("2023-01-01 00:00:00.0000001", "timestamp"),
        ("2023-01-01 00:00:00", "timestamptz"),
        ("12:00:00", "timetz"),
        ("٢٠٢٣-01-01", "date"),
        ("", "date"),
    ],
)
def test_other_texts_are_errors(text: str, type_name: str) -> None:
    with pytest.raises(ValueError, match="is "):
        number_of_text(text, type_name)


def test_types() -> None:
    assert all(map(is_moment, ("date", "time", "timetz", "timestamp", "timestamptz", "timestamp_ns")))
    assert not any(map(is_moment, ("interval", "varchar", "int64")))


@pytest.mark.parametrize(
    ("type_name", "text", "before", "after"),
    [
        ("timestamp", "1970-01-01 00:00:00", 999, 999),
        ("timestamp", "1969-12-31 23:59:59.999", 999, 999),
        ("timestamptz", "2020-01-02 03:04:05+00", 0, 999),
        ("timestamp", "2020-01-02 03:04:05.000001", 0, 0),
        ("timestamp", "9999-12-31 23:59:59.999", 0, 999),
    ],
)
def test_bounds_that_a_delta_log_has_cut(type_name: str, text: str, before: int, after: int) -> None:
    """delta2ducklake 0.2.1 copies the bounds of the log, which are cut to milliseconds, before 1970 in either
    direction."""
    row = {"min_value": text, "max_value": text, "value_count": 1, "null_count": 0}
    bounds = bounds_of_statistics(type_name, row, 1)
    value = value_of_text(text, type_name)
    assert bounds is not None
    assert isinstance(value, dt.datetime)
    assert bounds.min == value - before * MICROSECOND
    assert bounds.max == value + after * MICROSECOND


def test_a_bound_at_the_end_of_the_calendar_that_may_be_cut_is_unknown() -> None:
    row = {"min_value": "0001-01-01 00:00:00", "max_value": None, "value_count": 1, "null_count": 0}
    bounds = bounds_of_statistics("timestamp", row, 1)
    assert bounds is not None
    assert bounds.min is None
