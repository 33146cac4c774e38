"""The calendars of dates and timestamps in a file as Spark determines them: by the file's footer, else by Spark's
settings. ``decoding/calendars.py`` rebases old values.
"""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import pyarrow as pa

from asyncpq.decoding import calendars
from asyncpq.decoding.calendars import has_before
from asyncpq.errors import InvalidOptionError, UnsupportedFeatureError
from asyncpq.parquet.calendars import FIRST_SAME_DAY, FIRST_SAME_SECOND, written_calendars, zone_offsets
from asyncpq.parquet.logical_types import LogicalKind, PhysicalType
from asyncpq.parquet.metadata import FileMetadata
from asyncpq.spark.types.read_conf import ReadConf, RebaseMode

#: Earlier literals do not prune, since files may use another calendar, in any zone.
FIRST_SURE_DAY: Final = dt.date(1582, 11, 1)
FIRST_SURE_TIME: Final = dt.datetime(1900, 1, 3)
_MICROS: Final = 1_000_000


class RebaseCalendar(NamedTuple):
    """The calendar in which a file's dates or timestamps are stored."""

    mode: RebaseMode  # LEGACY: hybrid; CORRECTED: Gregorian; EXCEPTION: unknown, so old values are refused
    zone: str | None = None  # of wall-clock times in LEGACY; None if unknown


_AS_IT_IS: Final = RebaseCalendar("CORRECTED")


@dataclass(frozen=True)
class FileDates:
    """The calendars and time zones in which a file stores its dates and timestamps, as Spark determines them."""

    datetime: RebaseCalendar = _AS_IT_IS  # of DATE and TIMESTAMP
    int96: RebaseCalendar = _AS_IT_IS
    int96_fields: frozenset[str] = frozenset()  # names of top-level fields with INT96
    mixed_fields: frozenset[str] = frozenset()  # those of them that have other timestamps as well
    int96_zone: str | None = None  # of the wall-clock times in INT96, if Spark converts them; None for UTC


def file_dates(metadata: FileMetadata, conf: ReadConf) -> FileDates:
    """Return the calendars of a file, according to the metadata of the file's writer and the settings. Raises
    InvalidOptionError if INT96 values depend on the session's time zone, and that zone is unknown."""
    written = written_calendars(metadata.key_value_metadata)
    schema = metadata.schema
    fields: dict[bool, set[str]] = {True: set(), False: set()}  # with timestamps, by whether they are INT96
    for leaf in schema.leaves:
        is_int96, logical = leaf.element.physical_type is PhysicalType.INT96, leaf.logical_type
        if is_int96 or (logical is not None and logical.kind is LogicalKind.TIMESTAMP):
            fields[is_int96].add(schema.fields[leaf.field_index].name)
    int96 = frozenset(fields[True])
    zone = None
    if int96 and conf.int96_timestamp_conversion and not (metadata.created_by or "").startswith("parquet-mr"):
        zone = conf.session_time_zone
        if zone is None:
            raise InvalidOptionError(
                "with int96TimestampConversion, INT96 values depend on the session's time zone, which is not set",
                column=min(int96),
                hint="Set the option sessionTimeZone, such as Europe/Berlin.",
            )

    def calendar(by_settings: RebaseMode, is_legacy: bool | None) -> RebaseCalendar:
        mode = by_settings if is_legacy is None else "LEGACY" if is_legacy else "CORRECTED"
        return RebaseCalendar(mode, written.zone or conf.jvm_time_zone if mode == "LEGACY" else None)

    return FileDates(
        calendar(conf.datetime_rebase_mode, written.datetimes),
        calendar(conf.int96_rebase_mode, written.int96),
        int96,
        int96 & fields[False],
        zone,
    )


def rebase_days(days: pa.Array, calendar: RebaseCalendar) -> pa.Array:
    """Convert int32 days since 1970-01-01 in ``calendar`` to the Gregorian calendar. Raises UnsupportedFeatureError,
    whose hint names Spark's setting, for days before 1582-10-15 in an unknown calendar."""
    if calendar.mode == "CORRECTED" or not has_before(days, FIRST_SAME_DAY):
        return days
    if calendar.mode == "EXCEPTION":
        raise _unknown_calendar("1582-10-15", "datetime")
    return calendars.rebase_days(days)


def rebase_micros(micros: pa.Array, calendar: RebaseCalendar, kind: Literal["datetime", "int96"]) -> pa.Array:
    """Convert int64 microseconds since 1970-01-01T00:00:00Z in ``calendar`` to the Gregorian calendar.

    Values before 1900 in an unknown calendar or zone raise UnsupportedFeatureError. Its hint names Spark's setting for
    ``kind``.
    """
    if calendar.mode == "CORRECTED" or not has_before(micros, FIRST_SAME_SECOND * _MICROS):
        return micros
    if calendar.mode == "EXCEPTION":
        raise _unknown_calendar("1900-01-01T00:00:00Z", kind)
    try:
        zone = zone_offsets(calendar.zone)
    except UnsupportedFeatureError as error:
        error.hint = "Read them with spark.read.parquet."
        raise
    return calendars.rebase_timestamps(micros, _MICROS, zone)


def _unknown_calendar(date: str, kind: Literal["datetime", "int96"]) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"the column has values before {date}, which may be in the calendar of old Spark versions "
        "(Spark: INCONSISTENT_BEHAVIOR_CROSS_VERSION.READ_ANCIENT_DATETIME)",
        hint=f"Set spark.sql.parquet.{kind}RebaseModeInRead to LEGACY to rebase them, or to CORRECTED to read them "
        "as they are.",
    )
