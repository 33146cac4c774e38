"""The calendars of dates and timestamps in a file, and the rebase of old values to the Gregorian calendar.

Spark before 3.0 wrote dates and timestamps in the hybrid calendar: Julian before 1582-10-15. These values are rebased:
a day, or wall-clock time in the writer's zone, keeps its name. Days are rebased with arithmetic. For timestamps, Spark
has a table of differences in seconds for each zone. The table is read from Spark's jar, since it has the time zone
rules that Java had when the table was created.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import os
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyspark

from asyncpq.errors import InvalidOptionError, UnsupportedFeatureError
from asyncpq.parquet.logical_types import LogicalKind, PhysicalType
from asyncpq.parquet.metadata import FileMetadata
from asyncpq.spark.types.read_conf import ReadConf, RebaseMode

_KEYS: Final = "org.apache.spark."  # of the metadata that Spark writes

# Days since 1970-01-01 in the hybrid calendar at which the difference to the proleptic Gregorian calendar changes:
# 0001-01-01, then 1 March of each year that is a leap year only in the Julian calendar, and 1582-10-15.
_DAY_SWITCHES: Final = (
    *(-719164, -682945, -646420, -609895, -536845, -500320, -463795, -390745, -354220),
    *(-317695, -244645, -208120, -171595, -141427),
)
_DAY_DIFFERENCES: Final = (2, 1, 0, -1, -2, -3, -4, -5, -6, -7, -8, -9, -10, 0)
#: Earlier literals do not prune, since files may use another calendar, in any zone.
FIRST_SURE_DAY: Final = dt.date(1582, 11, 1)
FIRST_SURE_TIME: Final = dt.datetime(1900, 1, 3)
# From 1900-01-01T00:00:00Z on, no zone has a difference.
_LAST_MICROS_SWITCH: Final = -2_208_988_800_000_000


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
    written = metadata.key_value_metadata
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

    def calendar(by_settings: RebaseMode, first_corrected: str, legacy_key: str) -> RebaseCalendar:
        version, mode = written.get(f"{_KEYS}version"), by_settings
        if version is not None:  # Spark compares versions as text
            is_legacy = version < first_corrected or written.get(_KEYS + legacy_key) is not None
            mode = "LEGACY" if is_legacy else "CORRECTED"
        zone = written.get(f"{_KEYS}timeZone") or conf.jvm_time_zone
        return RebaseCalendar(mode, zone if mode == "LEGACY" else None)

    return FileDates(
        calendar(conf.datetime_rebase_mode, "3.0.0", "legacyDateTime"),
        calendar(conf.int96_rebase_mode, "3.1.0", "legacyINT96"),
        int96,
        int96 & fields[False],
        zone,
    )


def rebase_days(days: pa.Array, calendar: RebaseCalendar) -> pa.Array:
    """Convert int32 days since 1970-01-01 in ``calendar`` to the Gregorian calendar; see :func:`rebase_micros` for
    errors."""
    if not _has_old(days, calendar, _DAY_SWITCHES[-1]):
        return days
    if calendar.mode == "EXCEPTION":
        raise _unknown_calendar("1582-10-15", "datetime")
    return _shifted(days, _DAY_SWITCHES, _DAY_DIFFERENCES)


def rebase_micros(micros: pa.Array, calendar: RebaseCalendar, kind: Literal["datetime", "int96"]) -> pa.Array:
    """Convert int64 microseconds since 1970-01-01T00:00:00Z in ``calendar`` to the Gregorian calendar.

    Values before 1900 (days: before 1582-10-15) in an unknown calendar or zone, or in a zone without a table in Spark,
    and values before 0001-01-01 raise UnsupportedFeatureError. Its hint names Spark's setting for ``kind``.
    """
    if not _has_old(micros, calendar, _LAST_MICROS_SWITCH):
        return micros
    if calendar.mode == "EXCEPTION":
        raise _unknown_calendar("1900-01-01T00:00:00Z", kind)
    if calendar.zone is None:
        raise UnsupportedFeatureError(
            "the column has timestamps before 1900 in the calendar of old Spark versions, and neither the file nor "
            "the plan contains their time zone",
            hint="Read them with spark.read.parquet.",
        )
    table = _zone_tables().get(calendar.zone)
    if table is None:
        raise UnsupportedFeatureError(
            "the column has timestamps before 1900 in the calendar of old Spark versions, and Spark's jars "
            f"contain no table of differences for their time zone {calendar.zone!r}",
            hint="Set SPARK_HOME to a folder with Spark's jars, or read them with spark.read.parquet.",
        )
    return _shifted(micros, *table)


def _has_old(values: pa.Array, calendar: RebaseCalendar, last_switch: int) -> bool:
    """Return whether any value is before ``last_switch`` and may be in a calendar other than the Gregorian one."""
    first = None if calendar.mode == "CORRECTED" else pc.min(values).as_py()
    return first is not None and first < last_switch


def _shifted(values: pa.Array, switches: tuple[int, ...], differences: tuple[int, ...]) -> pa.Array:
    """Return each value plus the item of ``differences`` at the last of the ascending times ``switches`` that is not
    after the value."""
    if pc.min(values).as_py() < switches[0]:
        raise UnsupportedFeatureError(
            "the column has values before 0001-01-01 in the calendar of old Spark versions",
            hint="Read them with spark.read.parquet.",
        )
    kind = values.type
    shift = pa.scalar(differences[-1], kind)
    for switch, before, after in zip(switches[1:], differences, differences[1:], strict=False):
        is_before = pc.less(values, pa.scalar(switch, kind))
        shift = pc.add(shift, pc.if_else(is_before, pa.scalar(before - after, kind), pa.scalar(0, kind)))
    return pc.add_checked(values, shift)


@functools.cache
def _zone_tables() -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Return Spark's table for converting timestamps from the Julian to the Gregorian calendar.

    For each time zone it has the times from which a difference applies, and these differences, all in microseconds. It
    is empty if none of Spark's jars has the table.
    """
    for jar in _jars():
        try:
            with zipfile.ZipFile(jar) as archive:
                records = json.loads(archive.read("julian-gregorian-rebase-micros.json"))
        except (OSError, KeyError, zipfile.BadZipFile):
            continue
        return {record["tz"]: (_in_micros(record["switches"]), _in_micros(record["diffs"])) for record in records}
    return {}


def _in_micros(seconds: Sequence[int]) -> tuple[int, ...]:
    return tuple([second * 1_000_000 for second in seconds])


def _jars() -> Iterator[Path]:
    """Yield the paths of Spark's jars that may contain the conversion tables."""
    homes = [Path(home) for home in [os.environ.get("SPARK_HOME")] if home]
    for home in (*homes, Path(pyspark.__file__).parent):
        for pattern in ("spark-sql-api_*.jar", "spark-catalyst_*.jar"):
            yield from sorted((home / "jars").glob(pattern))


def _unknown_calendar(date: str, kind: Literal["datetime", "int96"]) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"the column has values before {date}, which may be in the calendar of old Spark versions "
        "(Spark: INCONSISTENT_BEHAVIOR_CROSS_VERSION.READ_ANCIENT_DATETIME)",
        hint=f"Set spark.sql.parquet.{kind}RebaseModeInRead to LEGACY to rebase them, or to CORRECTED to read them "
        "as they are.",
    )
