"""Convert arrays from the calendar of old Spark versions to the Gregorian calendar; see ``parquet/calendars.py``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from asyncpq.decoding import kernels as pc
from asyncpq.decoding.arrow import child_leaves, children_of, leaf_types, plain_scalar, typed_error
from asyncpq.decoding.casts import Cast, cast_children
from asyncpq.errors import AsyncpqError, UnsupportedFeatureError
from asyncpq.parquet.calendars import (
    DAY_SECONDS,
    FIRST_SAME_DAY,
    FIRST_SAME_SECOND,
    LegacyCalendar,
    Steps,
    ZoneOffsets,
    day_steps,
    zone_offsets,
)

_PER_SECOND: Final = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}


def rebase_column(
    array: pa.Array, leaves: Sequence[int], calendars: Mapping[int, LegacyCalendar], name: str
) -> pa.Array:
    """Convert the values of a top-level field, cut to the leaf columns ``leaves`` (ordinals), to the Gregorian
    calendar, where they are in another one.

    Raises UnsupportedFeatureError, which names the column ``name``, for old values that are refused, or whose time zone
    is unknown; CorruptFileError for values that do not fit their type once they are converted.
    """
    try:
        change = _change(array.type, [calendars.get(leaf) for leaf in leaves])
        return array if change is None else change(array)
    except AsyncpqError as error:
        raise error.locate(column=name) from error.__cause__
    except (pa.ArrowException, OverflowError) as error:
        raise typed_error(error, "old timestamps cannot be rebased").locate(column=name) from error


def _change(type_: pa.DataType, calendars: Sequence[LegacyCalendar | None]) -> Cast | None:
    """Return the function that rebases arrays of ``type_``, with leaf columns in ``calendars``; None if none
    changes."""
    if not any(calendars):
        return None
    if isinstance(type_, pa.BaseExtensionType):
        change = _change(type_.storage_type, calendars)
        return None if change is None else lambda array: pa.ExtensionArray.from_storage(type_, change(array.storage))
    if pa.types.is_nested(type_):
        if len(calendars) != len(leaf_types(type_)):
            raise UnsupportedFeatureError(
                f"asyncpq cannot tell which values of type {type_} are in the calendar of old Spark versions",
                hint="Leave the column out.",
            )
        parts = [calendars[span.start : span.stop] for span in child_leaves(type_, 0)]
        children = zip(children_of(type_), parts, strict=True)
        return cast_children(type_, [_change(child.type, part) for child, part in children])
    (calendar,) = calendars
    assert calendar is not None, "one of them is set"
    return lambda array: rebased(array, calendar.zone, _refusal(calendar) if calendar.refused else None)


def rebased(array: pa.Array, zone: str | None = None, refusal: AsyncpqError | None = None) -> pa.Array:
    """Return dates or timestamps of the hybrid calendar (Julian before 1582-10-15), as old versions of Spark and Hive
    wrote them, converted to the Gregorian calendar.

    Args:
        array: dates or timestamps. Timestamps before 1900 are taken to be in the local time of ``zone``.
        zone: the writer's time zone; only timestamps before 1900 need it.
        refusal: the error to raise if a value needs conversion; None converts it.

    Raises:
        UnsupportedFeatureError: ``refusal``, or the zone of timestamps before 1900 is not known.
        ArrowInvalid: a value does not fit its type once it is converted.
    """
    type_ = array.type
    if pa.types.is_dictionary(type_):
        return pa.DictionaryArray.from_arrays(array.indices, rebased(array.dictionary, zone, refusal))
    if pa.types.is_date(type_):
        width, of_day = (pa.int32(), 1) if type_.bit_width == 32 else (pa.int64(), DAY_SECONDS * 1_000)
        values = array.view(width)
        if has_before(values, FIRST_SAME_DAY * of_day):
            if refusal is not None:
                raise refusal
            return rebase_days(values, of_day).view(type_)
    elif pa.types.is_timestamp(type_):
        values, unit = array.view(pa.int64()), _PER_SECOND[type_.unit]
        if has_before(values, FIRST_SAME_SECOND * unit):
            if refusal is not None:
                raise refusal
            return rebase_timestamps(values, unit, zone_offsets(zone)).view(type_)
    return array


def _refusal(calendar: LegacyCalendar) -> UnsupportedFeatureError:
    what = "dates before 1582-10-15" if calendar.is_date else "timestamps before 1900"
    return UnsupportedFeatureError(
        f"the column has {what} in the calendar of old Spark versions, and of Hive",
        hint='Pass ReadOptions(legacy_calendar="rebase") to convert them as their writer does, or "ignore" to read '
        "them as they are stored.",
    )


def has_before(values: pa.Array, limit: int) -> bool:
    """Return whether any of the integers ``values`` is below ``limit``; nulls are not."""
    return bool(values.null_count < len(values)) and bool(_least(values) < limit)


def rebase_days(days: pa.Array, of_day: int = 1) -> pa.Array:
    """Convert days of the hybrid calendar to the Gregorian calendar. ``days`` are integers since 1970-01-01, not all
    null, ``of_day`` of which are one day. Raises ArrowInvalid if one does not fit its type."""
    return _added(days, _scaled(day_steps(_least(days) // of_day), of_day))


def rebase_timestamps(values: pa.Array, unit: int, zone: ZoneOffsets) -> pa.Array:
    """Convert timestamps that were written in ``zone`` to the Gregorian calendar. ``values`` are int64, ``unit`` of
    which are one second, and not all null. Raises ArrowInvalid if one does not fit 64 bits.

    A clock that was shown twice is the later one, as with Spark, and one that was never shown is taken as if the zone's
    clock had not been changed yet.
    """
    last = plain_scalar(FIRST_SAME_SECOND * unit, pa.int64())
    is_old = pc.less(values, last)
    old = pc.if_else(is_old, values, last)  # keeps the others from overflows
    clocks = rebase_days(pc.add_checked(old, plain_scalar(zone.standard * unit, pa.int64())), DAY_SECONDS * unit)
    offsets = _scaled(zone.local, unit)
    rebased = _added(clocks, Steps(offsets.starts, tuple([-offset for offset in offsets.values])))
    return pc.if_else(is_old, rebased, values)


def _least(values: pa.Array) -> int:
    return int(pc.min_max(values)["min"].as_py())


def _scaled(steps: Steps, factor: int) -> Steps:
    return Steps(tuple([start * factor for start in steps.starts]), tuple([value * factor for value in steps.values]))


def _added(values: pa.Array, steps: Steps) -> pa.Array:
    """Return each of ``values`` plus the value of ``steps`` at it. Raises ArrowInvalid if a sum does not fit."""
    ends = pc.min_max(values)
    least, most = ends["min"].as_py(), ends["max"].as_py()
    shift: Any = plain_scalar(steps.at(least), values.type)
    for start, value in zip(steps.starts, steps.values, strict=True):
        if least < start <= most:
            is_before = pc.less(values, plain_scalar(start, values.type))
            shift = pc.if_else(is_before, shift, plain_scalar(value, values.type))
    return pc.add_checked(values, shift)
