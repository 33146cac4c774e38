"""Rebase dates and timestamps of the hybrid calendar, which Spark before 3.0 wrote: Julian before 1582-10-15.

A rebased day, or wall-clock time in the writer's zone, keeps its name. Days are rebased by arithmetic. For timestamps
Spark has a table of differences in seconds for each zone. It is read from Spark's jar, since it has the time zone rules
of Java at the time when the table was made.
"""

from __future__ import annotations

import datetime as dt
import functools
import json
import os
import zipfile
from collections.abc import Iterator
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

VERSION_KEY: Final = "org.apache.spark.version"
LEGACY_DATETIME_KEY: Final = "org.apache.spark.legacyDateTime"
LEGACY_INT96_KEY: Final = "org.apache.spark.legacyINT96"
TIME_ZONE_KEY: Final = "org.apache.spark.timeZone"

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
_MICROS: Final = 1_000_000


class RebaseCalendar(NamedTuple):
    """The calendar of a file's values."""

    mode: RebaseMode  # LEGACY: hybrid; CORRECTED: Gregorian; EXCEPTION: unknown, so old values are refused
    zone: str | None = None  # of wall-clock times in LEGACY; None if unknown


_AS_IT_IS: Final = RebaseCalendar("CORRECTED")


@dataclass(frozen=True)
class FileDates:
    """How Spark reads the dates and timestamps of a file."""

    datetime: RebaseCalendar = _AS_IT_IS  # of DATE and TIMESTAMP
    int96: RebaseCalendar = _AS_IT_IS
    int96_fields: frozenset[str] = frozenset()  # names of top-level fields with INT96
    mixed_fields: frozenset[str] = frozenset()  # those of them that have other timestamps as well
    int96_zone: str | None = None  # of the wall-clock times in INT96, if Spark converts them; None for UTC


def file_dates(metadata: FileMetadata, conf: ReadConf) -> FileDates:
    """The calendars of a file, from its writer's metadata and the settings.

    If INT96 depends on the session's time zone, and that is unknown, it raises InvalidOptionError.
    """
    said = metadata.key_value_metadata
    schema = metadata.schema
    kinds: dict[str, set[bool]] = {}  # whether timestamps are INT96, by field
    for leaf in schema.leaves:
        is_int96, logical = leaf.element.physical_type is PhysicalType.INT96, leaf.logical_type
        if is_int96 or (logical is not None and logical.kind is LogicalKind.TIMESTAMP):
            kinds.setdefault(schema.fields[leaf.field_index].name, set()).add(is_int96)
    int96 = frozenset(name for name, some in kinds.items() if True in some)
    zone = None
    if int96 and conf.int96_timestamp_conversion and not (metadata.created_by or "").startswith("parquet-mr"):
        zone = conf.session_time_zone
        if zone is None:
            raise InvalidOptionError(
                "INT96 means times of the session's time zone (int96TimestampConversion), which the source cannot see",
                column=min(int96),
                hint="Set the option sessionTimeZone, such as Europe/Berlin.",
            )

    def calendar(by_settings: RebaseMode, first_corrected: str, legacy_key: str) -> RebaseCalendar:
        version = said.get(VERSION_KEY)
        mode = by_settings
        if version is not None:  # Spark compares versions as text
            is_legacy = version < first_corrected or said.get(legacy_key) is not None
            mode = "LEGACY" if is_legacy else "CORRECTED"
        return RebaseCalendar(mode, (said.get(TIME_ZONE_KEY) or conf.jvm_time_zone) if mode == "LEGACY" else None)

    return FileDates(
        calendar(conf.datetime_rebase_mode, "3.0.0", LEGACY_DATETIME_KEY),
        calendar(conf.int96_rebase_mode, "3.1.0", LEGACY_INT96_KEY),
        int96,
        frozenset(name for name in int96 if False in kinds[name]),
        zone,
    )


def rebase_days(days: pa.Array, calendar: RebaseCalendar) -> pa.Array:
    """Rebase int32 days since 1970-01-01 to the Gregorian calendar.

    Days before 1582-10-15 in an unknown calendar, or before 0001-01-01, raise UnsupportedFeatureError.
    """
    if not _has_old(days, calendar, _DAY_SWITCHES[-1]):
        return days
    if calendar.mode == "EXCEPTION":
        raise _unknown_calendar("1582-10-15", "datetime")
    return _shifted(days, _DAY_SWITCHES, _DAY_DIFFERENCES)


def rebase_micros(micros: pa.Array, calendar: RebaseCalendar, kind: Literal["datetime", "int96"]) -> pa.Array:
    """Rebase int64 microseconds since 1970-01-01T00:00:00Z to the Gregorian calendar.

    UnsupportedFeatureError is raised for values before 1900 in an unknown calendar or zone, or in a zone without a
    table in Spark, and for values before 0001-01-01. It names the setting of ``kind``.
    """
    if not _has_old(micros, calendar, _LAST_MICROS_SWITCH):
        return micros
    if calendar.mode == "EXCEPTION":
        raise _unknown_calendar("1900-01-01T00:00:00Z", kind)
    if calendar.zone is None:
        raise UnsupportedFeatureError(
            "timestamps before 1900 by the calendar of old Spark versions, and neither the file nor the plan says in "
            "which time zone",
            hint="Read them with spark.read.parquet.",
        )
    table = _zone_tables().get(calendar.zone)
    if table is None:
        raise UnsupportedFeatureError(
            f"timestamps before 1900 by the calendar of old Spark versions, in the zone {calendar.zone!r}, for which "
            "Spark has no table, or whose table is not found",
            hint="Set SPARK_HOME to a folder with Spark's jars, or read them with spark.read.parquet.",
        )
    return _shifted(micros, *table)


def _has_old(values: pa.Array, calendar: RebaseCalendar, last_switch: int) -> bool:
    """Whether values are before ``last_switch`` and not in the Gregorian calendar."""
    first = None if calendar.mode == "CORRECTED" else pc.min(values).as_py()
    return first is not None and first < last_switch


def _shifted(values: pa.Array, switches: tuple[int, ...], differences: tuple[int, ...]) -> pa.Array:
    """Add to each value the difference of the last switch that is not after it."""
    if pc.min(values).as_py() < switches[0]:
        raise UnsupportedFeatureError(
            "values before 0001-01-01 by the calendar of old Spark versions", hint="Read them with spark.read.parquet."
        )
    kind = values.type
    shift = pa.scalar(differences[-1], kind)
    for switch, before, after in zip(switches[1:], differences, differences[1:], strict=False):
        is_before = pc.less(values, pa.scalar(switch, kind))
        shift = pc.add(shift, pc.if_else(is_before, pa.scalar(before - after, kind), pa.scalar(0, kind)))
    return pc.add_checked(values, shift)


@functools.cache
def _zone_tables() -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """Spark's switches and differences, in microseconds, by zone; empty if its jars are not found."""
    for jar in _jars():
        try:
            with zipfile.ZipFile(jar) as archive:
                records = json.loads(archive.read("julian-gregorian-rebase-micros.json"))
        except (OSError, KeyError, zipfile.BadZipFile):
            continue
        return {
            record["tz"]: (
                tuple([second * _MICROS for second in record["switches"]]),
                tuple([second * _MICROS for second in record["diffs"]]),
            )
            for record in records
        }
    return {}


def _jars() -> Iterator[Path]:
    """The jars of Spark that may contain the tables."""
    homes = [Path(home) for home in [os.environ.get("SPARK_HOME")] if home]
    for home in (*homes, Path(pyspark.__file__).parent):
        for pattern in ("spark-sql-api_*.jar", "spark-catalyst_*.jar"):
            yield from sorted((home / "jars").glob(pattern))


def _unknown_calendar(date: str, kind: Literal["datetime", "int96"]) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"values before {date}, which may be by the calendar of old Spark versions "
        "(Spark: INCONSISTENT_BEHAVIOR_CROSS_VERSION.READ_ANCIENT_DATETIME)",
        hint=f"Set spark.sql.parquet.{kind}RebaseModeInRead to LEGACY to rebase them, or to CORRECTED to read them "
        "as they are.",
    )
