"""Dates and timestamps of the old calendar; against Spark: tests/spark/types/test_calendars.py."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest

from asyncpq.engine.old_calendars import rebased
from asyncpq.errors import UnsupportedFeatureError

_OLD = pa.array([dt.date(1500, 1, 10), None, dt.date(1970, 1, 1)])  # the first is 1500-01-01 in the Julian calendar


def test_values_of_both_calendars() -> None:
    assert rebased(_OLD).to_pylist() == [dt.date(1500, 1, 1), None, dt.date(1970, 1, 1)]
    new = pa.array([dt.datetime(1950, 1, 1), None])
    assert rebased(new, "no zone").equals(new)
    old = pa.array([-3_000_000_000_000_000], pa.timestamp("us", "UTC"))
    assert rebased(old, "UTC").equals(old)  # the Gregorian calendar was in use


def test_what_is_refused() -> None:
    refusal = UnsupportedFeatureError("old")
    with pytest.raises(UnsupportedFeatureError) as raised:
        rebased(_OLD, refusal=refusal)
    assert raised.value is refusal
    assert rebased(_OLD.slice(1), refusal=refusal).equals(_OLD.slice(1))
    with pytest.raises(UnsupportedFeatureError, match="does not name"):
        rebased(pa.array([-3_000_000_000_000_000], pa.timestamp("us")))
