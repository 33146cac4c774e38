"""Dates and timestamps that Spark before 3.0 wrote by the hybrid calendar: Julian before 1582-10-15, Gregorian after.

Spark rebases such values when it reads them: the day, or the wall clock in the writer's time zone, keeps its name.
For days this is arithmetic. For timestamps Spark has a table of each zone's differences, in seconds; it is read from
Spark's own jar, since it holds what Java thought of zones before 1900 when the table was made.
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

# First days since 1970-01-01, by the hybrid calendar, from which the difference to the proleptic Gregorian day is
# the one beside it: 0001-01-01, then each 1 March of a year that is a leap year for Julius Caesar only, 1582-10-15.
_DAY_SWITCHES: Final = (
    *(-719164, -682945, -646420, -609895, -536845, -500320, -463795, -390745, -354220),
    *(-317695, -244645, -208120, -171595, -141427),
)
_DAY_DIFFERENCES: Final = (2, 1, 0, -1, -2, -3, -4, -5, -6, -7, -8, -9, -10, 0)
_LAST_DAY_SWITCH: Final = -141427
#: Literals before these prune nothing: files may count by another calendar than Spark, in whatever zone.
FIRST_SURE_DAY: Final = dt.date(1582, 11, 1)
FIRST_SURE_TIME: Final = dt.datetime(1900, 1, 3)
# In no zone is there a difference from 1900-01-01T00:00:00Z on.
_LAST_MICROS_SWITCH: Final = -2_208_988_800_000_000
_MICROS: Final = 1_000_000


class RebaseCalendar(NamedTuple):
    """How a file's values of one kind were counted.

    Attributes:
        mode: LEGACY: by the hybrid calendar; CORRECTED: by today's; EXCEPTION: unknown, so that old values are refused.
        zone: whose wall clock timestamps keep, in LEGACY; None where nothing says so.
    """

    mode: RebaseMode
    zone: str | None = None


_AS_IT_IS: Final = RebaseCalendar("CORRECTED")


@dataclass(frozen=True)
class FileDates:
    """What the dates and timestamps of a file are to Spark.

    Attributes:
        datetime: of DATE and TIMESTAMP.
        int96: of INT96.
        int96_fields: names of the top-level fields with INT96 in them.
        mixed_fields: those of them that have timestamps of other kinds as well.
        int96_zone: zone of the wall clock that INT96 means, where Spark converts it; None for UTC.
    """

    datetime: RebaseCalendar = _AS_IT_IS
    int96: RebaseCalendar = _AS_IT_IS
    int96_fields: frozenset[str] = frozenset()
    mixed_fields: frozenset[str] = frozenset()
    int96_zone: str | None = None


def file_dates(metadata: FileMetadata, conf: ReadConf) -> FileDates:
    """What Spark takes a file's dates and timestamps for, by its writer's words and the settings.

    Raises:
        InvalidOptionError: INT96 means the wall clock of the session's time zone, which nobody said.
    """
    said = metadata.key_value_metadata
    schema = metadata.schema
    kinds: dict[str, set[bool]] = {}  # whether its timestamps are INT96
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
                hint="Name it: option sessionTimeZone, such as Europe/Berlin.",
            )

    def calendar(by_settings: RebaseMode, first_corrected: str, legacy_key: str) -> RebaseCalendar:
        version = said.get(VERSION_KEY)
        mode = by_settings
        if version is not None:  # compared as text, as Spark does
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
    """Days since 1970-01-01 by today's calendar.

    Args:
        days: int32.

    Raises:
        UnsupportedFeatureError: values before 1582-10-15 in a file whose calendar is not known, or before 0001-01-01.
    """
    if calendar.mode == "CORRECTED":
        return days
    first = pc.min(days).as_py()
    if first is None or first >= _LAST_DAY_SWITCH:
        return days
    if calendar.mode == "EXCEPTION":
        raise _unknown_calendar("1582-10-15", "datetime")
    if first < _DAY_SWITCHES[0]:
        raise _before_our_era()
    return _shifted(days, _DAY_SWITCHES, _DAY_DIFFERENCES)


def rebase_micros(micros: pa.Array, calendar: RebaseCalendar, kind: Literal["datetime", "int96"]) -> pa.Array:
    """Microseconds since 1970-01-01T00:00:00Z by today's calendar.

    Args:
        micros: int64.
        kind: which of Spark's settings decides.

    Raises:
        UnsupportedFeatureError: values before 1900 in a file whose calendar or zone is not known, in a zone for which
            Spark has no table, or before 0001-01-01.
    """
    if calendar.mode == "CORRECTED":
        return micros
    first = pc.min(micros).as_py()
    if first is None or first >= _LAST_MICROS_SWITCH:
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
            hint="Is SPARK_HOME set, with Spark's jars below it? Otherwise read them with spark.read.parquet.",
        )
    if first < table.switches[0]:
        raise _before_our_era()
    return _shifted(micros, table.switches, table.differences)


def _shifted(values: pa.Array, switches: tuple[int, ...], differences: tuple[int, ...]) -> pa.Array:
    """Each value plus the difference that belongs to the last switch that is not after it."""
    kind = values.type
    shift = pa.scalar(differences[-1], kind)
    for switch, before, after in zip(switches[1:], differences, differences[1:], strict=False):
        is_before = pc.less(values, pa.scalar(switch, kind))
        shift = pc.add(shift, pc.if_else(is_before, pa.scalar(before - after, kind), pa.scalar(0, kind)))
    return pc.add_checked(values, shift)


class _ZoneTable(NamedTuple):
    """Of one zone, in microseconds."""

    switches: tuple[int, ...]
    differences: tuple[int, ...]


@functools.cache
def _zone_tables() -> dict[str, _ZoneTable]:
    """Spark's differences by zone; none where its jars are not found."""
    for jar in _jars():
        try:
            with zipfile.ZipFile(jar) as archive:
                records = json.loads(archive.read("julian-gregorian-rebase-micros.json"))
        except (OSError, KeyError, zipfile.BadZipFile):
            continue
        return {
            record["tz"]: _ZoneTable(
                tuple([second * _MICROS for second in record["switches"]]),
                tuple([second * _MICROS for second in record["diffs"]]),
            )
            for record in records
        }
    return {}


def _jars() -> Iterator[Path]:
    """Spark's jars that may hold the table."""
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


def _before_our_era() -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        "values before 0001-01-01 by the calendar of old Spark versions", hint="Read them with spark.read.parquet."
    )
