"""The calendars of dates and timestamps in a file as Spark determines them: by the file's footer, else by Spark's
settings.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import pyarrow as pa

from asyncpq.engine.array_conversions import rebased
from asyncpq.errors import InvalidOptionError, UnsupportedFeatureError

if TYPE_CHECKING:
    from asyncpq.distributed import FooterFacts
    from asyncpq.spark.types.read_conf import ReadConf

RebaseMode = Literal["EXCEPTION", "CORRECTED", "LEGACY"]
#: Earlier literals do not prune, since files may use another calendar, in any zone.
FIRST_SURE_DAY: Final = dt.date(1582, 11, 1)
FIRST_SURE_TIME: Final = dt.datetime(1900, 1, 3)


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

    def renamed(self, names: Mapping[str, str]) -> FileDates:
        """Return the same of fields that have other names in the lake: ``names``, by those of the file."""
        if not names or not self.int96_fields:
            return self
        int96, mixed = (
            frozenset(names.get(name, name) for name in group) for group in (self.int96_fields, self.mixed_fields)
        )
        return replace(self, int96_fields=int96, mixed_fields=mixed)


def file_dates(footer: FooterFacts, conf: ReadConf) -> FileDates:
    """Return the calendars of a file, according to the metadata of the file's writer and the settings. Raises
    InvalidOptionError if INT96 values depend on the session's time zone, and that zone is unknown."""
    written = footer.calendars
    int96, zone = written.int96_fields, None
    if int96 and conf.int96_timestamp_conversion and not footer.created_by.startswith("parquet-mr"):
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
        int96 & written.timestamp_fields,
        zone,
    )


def rebase_days(days: pa.Array, calendar: RebaseCalendar) -> pa.Array:
    """Convert int32 days since 1970-01-01 in ``calendar`` to the Gregorian calendar. Raises UnsupportedFeatureError,
    whose hint names Spark's setting, for days before 1582-10-15 in an unknown calendar."""
    if calendar.mode == "CORRECTED":
        return days
    refusal = None if calendar.mode == "LEGACY" else _unknown_calendar("1582-10-15", "datetime")
    return rebased(days.view(pa.date32()), refusal=refusal).view(pa.int32())


def rebase_micros(micros: pa.Array, calendar: RebaseCalendar, kind: Literal["datetime", "int96"]) -> pa.Array:
    """Convert int64 microseconds since 1970-01-01T00:00:00Z in ``calendar`` to the Gregorian calendar.

    Values before 1900 in an unknown calendar or zone raise UnsupportedFeatureError. Its hint names Spark's setting for
    ``kind``.
    """
    if calendar.mode == "CORRECTED":
        return micros
    refusal = None if calendar.mode == "LEGACY" else _unknown_calendar("1900-01-01T00:00:00Z", kind)
    try:
        return rebased(micros.view(pa.timestamp("us")), calendar.zone, refusal=refusal).view(pa.int64())
    except UnsupportedFeatureError as error:
        if refusal is None:  # the zone is not known
            error.hint = "Read them with spark.read.parquet."
        raise


def _unknown_calendar(date: str, kind: Literal["datetime", "int96"]) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"the column has values before {date}, which may be in the calendar of old Spark versions "
        "(Spark: INCONSISTENT_BEHAVIOR_CROSS_VERSION.READ_ANCIENT_DATETIME)",
        hint=f"Set spark.sql.parquet.{kind}RebaseModeInRead to LEGACY to rebase them, or to CORRECTED to read them "
        "as they are.",
    )
