"""The calendars in which files store dates and timestamps, and bounds in the Gregorian calendar.

Spark before 3.0, and later versions with ``datetimeRebaseModeInWrite=LEGACY``, write days and timestamps of the hybrid
calendar: Julian before 1582-10-15. Hive 4 writes such days. The footer says so. A day, or the clock of the writer's
time zone, keeps its name when it is converted to the proleptic Gregorian calendar, which Parquet means: 1500-01-01 is
stored as the number of 1500-01-10. 29 February of a year that is a leap year in the Julian calendar alone becomes 1
March.

Clocks need the zone's offsets. The writers' Java has the zone's present standard offset before 1900, readers have the
offsets of that time, such as local mean time. ``legacy_zones.txt`` has both, as Spark uses them: each line has the
present offset, the first offset, pairs of a local time and the offset from then on, all in seconds, and the names of
the zones.
``decoding/calendars.py`` converts arrays.
"""

from __future__ import annotations

import functools
import re
from bisect import bisect_right
from collections.abc import Mapping
from importlib.resources import files
from typing import TYPE_CHECKING, Final, Literal, NamedTuple, TypeAlias

from asyncpq.errors import Hint, UnsupportedFeatureError
from asyncpq.parquet.logical_types import LogicalKind, PhysicalType

if TYPE_CHECKING:
    from asyncpq.parquet.schema import Leaf

CalendarMode: TypeAlias = Literal["rebase", "refuse", "ignore"]

_KEYS: Final = "org.apache.spark."
_HIVE_DATES: Final = "writer.date.proleptic"
#: Key-value metadata that say in which calendar values are stored. They are not true of rebased values.
CALENDAR_KEYS: Final = (
    *(_KEYS + name for name in ("version", "timeZone", "legacyDateTime", "legacyINT96")),
    _HIVE_DATES,
)

DAY_SECONDS: Final = 86_400
#: Days since 1970-01-01 from which on both calendars agree (1582-10-15), and seconds from which on all zones agree
#: (1900-01-01T00:00:00Z).
FIRST_SAME_DAY: Final = -141_427
FIRST_SAME_SECOND: Final = -2_208_988_800
#: Values from here on are the same in all calendars and zones, and no earlier value becomes one of them. Zones' offsets
#: differ by more than a day where the date line has moved.
FIRST_SURE_SECOND: Final = FIRST_SAME_SECOND + 2 * DAY_SECONDS


class Steps(NamedTuple):
    """A function of time that is constant between the ascending times ``starts``: ``values[i]`` holds from
    ``starts[i]`` on, and ``values[0]`` before it, too."""

    starts: tuple[int, ...]
    values: tuple[int, ...]

    def at(self, time: int) -> int:
        """Return the value in effect at ``time``; before the first step, the first value."""
        return self.values[max(0, bisect_right(self.starts, time) - 1)]


class ZoneOffsets(NamedTuple):
    """The offsets from UTC of a time zone before 1900, in seconds.

    Attributes:
        standard: the present standard offset, which the writers' Java took.
        local: the offsets of that time, by local time in seconds since 1970-01-01T00:00:00.
    """

    standard: int
    local: Steps


class WrittenCalendars(NamedTuple):
    """The statements of a footer about the calendars of the file's values."""

    datetimes: bool | None  # whether DATE and TIMESTAMP are hybrid; None if the footer does not say
    int96: bool | None
    zone: str | None  # the writer's time zone
    hive_dates: bool = False  # whether DATE is hybrid, as Hive says


class LegacyCalendar(NamedTuple):
    """The hybrid calendar of one leaf column, which is rebased to the Gregorian one or refused.

    Attributes:
        is_date: values are days, else timestamps.
        unit: of bounds of timestamps: units in a second.
        zone: the writer's time zone; None if unknown.
    """

    is_date: bool
    unit: int
    zone: str | None
    refused: bool  # reads refuse old values

    @property
    def first_sure(self) -> int:
        """The first of the bounds' values that is the same in both calendars, and which no earlier one becomes."""
        return FIRST_SAME_DAY if self.is_date else FIRST_SURE_SECOND * self.unit

    def bounds(self, low: int, high: int) -> tuple[int, int, bool]:
        """Convert bounds of stored values to bounds of the Gregorian values; return them, and whether they are exact.

        Days keep their order. Timestamps do not where a zone's clock was changed, so their bounds are widened, which
        needs no zone.
        """
        if self.is_date:
            return rebased_day(low), rebased_day(high), True
        if low >= FIRST_SAME_SECOND * self.unit:
            return low, high, True
        # the clock is less than a day from UTC, at present and in the past
        day = DAY_SECONDS * self.unit
        low = (rebased_day(low // day - 1) - 1) * day
        if high < FIRST_SAME_SECOND * self.unit:
            high = (rebased_day(high // day + 1) + 2) * day
        else:
            high = max(high, self.first_sure)
        return low, high, False


# -- footers ----------------------------------------------------------------------------------------


def written_calendars(pairs: Mapping[str, str | None]) -> WrittenCalendars:
    """Return what the key-value metadata of a footer say about its calendars, as Spark and Hive understand them."""
    version = pairs.get(f"{_KEYS}version")
    if version is None:
        return WrittenCalendars(None, None, None, pairs.get(_HIVE_DATES) == "false")
    # Spark compares versions as text
    return WrittenCalendars(
        version < "3.0.0" or pairs.get(f"{_KEYS}legacyDateTime") is not None,
        version < "3.1.0" or pairs.get(f"{_KEYS}legacyINT96") is not None,
        pairs.get(f"{_KEYS}timeZone") or None,
    )


def legacy_calendar(leaf: Leaf, written: WrittenCalendars, *, refused: bool) -> LegacyCalendar | None:
    """Return the calendar of a leaf column; None if it is Gregorian, or the column has neither dates nor instants."""
    if leaf.physical_type is PhysicalType.INT96:
        return LegacyCalendar(False, 1_000_000, written.zone, refused) if written.int96 else None
    logical = leaf.logical_type
    if logical is None or not (written.datetimes or written.hive_dates):
        return None
    if logical.kind is LogicalKind.DATE and leaf.physical_type is PhysicalType.INT32:
        return LegacyCalendar(True, 1, None, refused)
    if written.hive_dates or logical.kind is not LogicalKind.TIMESTAMP or leaf.physical_type is not PhysicalType.INT64:
        return None
    unit = _UNITS.get(logical.unit or "")  # Spark writes no nanoseconds, and never rebases clocks without a zone
    return LegacyCalendar(False, unit, written.zone, refused) if unit and logical.is_adjusted_to_utc else None


_UNITS: Final = {"ms": 1_000, "us": 1_000_000}

# -- days -------------------------------------------------------------------------------------------


def day_steps(first: int) -> Steps:
    """Return what is added to a day of the hybrid calendar, as a function of the day, from the day ``first`` on."""
    # it changes on 1 March of each hundredth year that is a leap year in the Julian calendar alone
    starts: list[int] = []
    values: list[int] = []
    for century in range(min(_LAST_CENTURY, (first - _YEAR_0_MARCH) // _CENTURY_DAYS), _LAST_CENTURY + 1):
        difference = century // 4 - century + 2
        if not values or difference != values[-1]:
            starts.append(_YEAR_0_MARCH + century * _CENTURY_DAYS)
            values.append(difference)
    return Steps((*starts, FIRST_SAME_DAY), (*values, 0))


_YEAR_0_MARCH: Final = -719_470  # 1 March of the year before 1, in the Julian calendar
_CENTURY_DAYS: Final = 36_525
_LAST_CENTURY: Final = 15


def rebased_day(day: int) -> int:
    """Convert a day of the hybrid calendar to the Gregorian calendar; both are numbers since 1970-01-01."""
    return day if day >= FIRST_SAME_DAY else day + day_steps(day).at(day)


# -- zones ------------------------------------------------------------------------------------------

_GMT: Final = re.compile(r"GMT([+-])(\d{1,2})(?::?(\d{2}))?")
_OFFSET: Final = re.compile(r"(?:UTC|UT)?[+-]\d{1,2}(?::?\d{2}){0,2}|Z")


@functools.cache
def _zones() -> Mapping[str, ZoneOffsets]:
    text = (files(__package__) / "legacy_zones.txt").read_text("ascii")
    zones: dict[str, ZoneOffsets] = {}
    for line in text.splitlines():
        words = line.split()
        names = [word for word in words if not _NUMBER.fullmatch(word)]
        standard, first, *pairs = map(int, words[: len(words) - len(names)])
        offsets = ZoneOffsets(standard, Steps((_LONG_AGO, *pairs[::2]), (first, *pairs[1::2])))
        zones.update(dict.fromkeys(names, offsets))
    return zones


_NUMBER: Final = re.compile(r"-?\d+")
_LONG_AGO: Final = -(1 << 62)


def zone_offsets(zone: str | None) -> ZoneOffsets:
    """Return the offsets of a time zone before 1900. Raises UnsupportedFeatureError if the zone is not known."""
    known = None if zone is None else _zones().get(zone) or _fixed(zone)
    if known is None:
        what = "its file does not name the" if zone is None else f"asyncpq does not know {zone!r}, the"
        raise UnsupportedFeatureError(
            "the column has timestamps before 1900 in the calendar of old Spark versions, and "
            f"{what} time zone of its writer",
            hint=Hint(
                'Pass ReadOptions(legacy_calendar="ignore") to read them as they are stored, or write the file again '
                "with a current Spark.",
                "Write the file again with a current Spark, or leave the column out, with --columns.",
            ),
        )
    return known


def _fixed(zone: str) -> ZoneOffsets | None:
    match = _GMT.fullmatch(zone)
    if match is None and not _OFFSET.fullmatch(zone):
        return None
    offset = 0  # Spark asks Java for the zone, which takes all offsets but GMT's for GMT
    if match is not None:
        offset = (int(match[2]) * 3600 + int(match[3] or 0) * 60) * (-1 if match[1] == "-" else 1)
    return ZoneOffsets(offset, Steps((_LONG_AGO,), (offset,)))
