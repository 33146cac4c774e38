"""Dates and timestamps in the calendar of old versions of Spark and Hive, for engines that read files as they are
stored."""

from __future__ import annotations

import pyarrow as pa

from asyncpq.decoding import calendars
from asyncpq.errors import UnsupportedFeatureError

__all__ = ["rebased"]


def rebased(array: pa.Array, zone: str | None = None, *, refusal: UnsupportedFeatureError | None = None) -> pa.Array:
    """Convert dates or timestamps of the hybrid calendar, Julian before 1582-10-15, to the Gregorian calendar. Values
    that are the same in both stay as they are.

    Args:
        array: of a type of dates, or of timestamps, whose clocks before 1900 are those of the writer's zone.
        zone: the writer's time zone; only timestamps before 1900 need it.
        refusal: the error to raise instead of converting a value.

    Raises:
        UnsupportedFeatureError: ``refusal``, or the zone of timestamps before 1900 is not known.
        ArrowInvalid: a value does not fit its type once it is converted.
    """
    return calendars.rebased(array, zone, refusal)
