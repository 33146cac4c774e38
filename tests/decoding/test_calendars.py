"""Arrays of the calendar of old Spark versions are converted to the Gregorian calendar: days, clocks, nested values."""

from __future__ import annotations

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.decoding.calendars import rebase_column, rebase_days, rebase_timestamps
from asyncpq.errors import CorruptFileError, UnsupportedFeatureError
from asyncpq.parquet.calendars import LegacyCalendar, day_steps, rebased_day, zone_offsets

pytestmark = pytest.mark.property

DATES = LegacyCalendar(True, 1, None, False)
_EPOCH_DAY = dt.date(1970, 1, 1).toordinal()
#: Seconds since 1970 as Spark 4.3 stores them and reads them, with the zone of the writer.
SECONDS = [
    ("UTC", -62_135_769_600, -62_135_596_800),  # 0001-01-01
    ("UTC", -12_219_292_801, -12_220_156_801),  # 1582-10-04 23:59:59
    ("UTC", -12_219_292_800, -12_219_292_800),  # 1582-10-15
    ("America/Los_Angeles", -12_219_264_001, -12_220_128_423),
    ("America/Los_Angeles", -12_219_264_000, -12_219_264_422),
    ("America/Los_Angeles", -2_717_640_001, -2_717_640_423),  # the clock goes from 12:07:02 to 12:00: the later one
    ("America/Los_Angeles", -2_717_640_000, -2_717_640_000),
    ("Europe/Amsterdam", -2_208_988_801, -2_208_985_201),
    ("Europe/Amsterdam", -2_208_988_800, -2_208_988_800),
    ("Asia/Manila", -3_944_620_801, -3_944_534_641),  # the date line moved
    ("Asia/Manila", -3_944_620_800, -3_944_621_040),
    ("GMT+05:30", -12_219_312_601, -12_220_176_601),
    ("GMT+0530", -12_219_312_600, -12_219_312_600),
    ("GMT-8", -12_219_264_001, -12_220_128_001),
    ("GMT-8", -12_219_264_000, -12_219_264_000),
    ("+05:30", -12_219_292_801, -12_220_156_801),  # as UTC
    ("UTC+2", -12_219_292_800, -12_219_292_800),
    ("Z", -12_219_292_800, -12_219_292_800),
]


def julian_day(year: int, month: int, day: int) -> int:
    """Days since 1970-01-01 of a date by the Julian calendar; the year 0 is the one before 1."""
    years, months = year + 4800 - (14 - month) // 12, month + 12 * ((14 - month) // 12) - 3
    number = day + (153 * months + 2) // 5 + 365 * years + years // 4 - 32083
    return number - 2_440_588


@given(st.dates(max_value=dt.date(1582, 10, 4)))
def test_days_keep_their_names(date: dt.date) -> None:
    stored = julian_day(date.year, date.month, date.day)
    assert rebased_day(stored) == date.toordinal() - _EPOCH_DAY
    assert rebase_days(pa.array([stored, None, 0], pa.int32())).to_pylist() == [rebased_day(stored), None, 0]
    clock = pa.array([stored * 86_400_000 + 1, None], pa.int64())
    assert rebase_timestamps(clock, 1000, zone_offsets("UTC")).to_pylist() == [
        rebased_day(stored) * 86_400_000 + 1,
        None,
    ]


@given(st.integers(-40_000, 15))
def test_days_of_29_february_become_1_march(century: int) -> None:
    """Also before the year 1, where 400 years have 146,097 days."""
    if century % 4 == 0:
        return
    leap, march = julian_day(100 * (century % 48), 2, 29), julian_day(100 * (century % 48), 3, 1)
    shift = century // 48 * 48  # centuries
    leap, march = (day + shift * 36_525 for day in (leap, march))
    eras, year = divmod(100 * century, 400)
    expected = dt.date(year + 2000, 3, 1).toordinal() - _EPOCH_DAY + (eras - 5) * 146_097
    assert rebased_day(leap) == rebased_day(march) == expected
    assert rebased_day(leap - 1) == expected - 1
    assert day_steps(march).at(march) == expected - march


@pytest.mark.parametrize(("zone", "stored", "expected"), SECONDS)
@pytest.mark.parametrize("unit", [1, 1000, 1_000_000])
def test_clocks_of_zones(zone: str, stored: int, expected: int, unit: int) -> None:
    values = pa.array([stored * unit, None, 0], pa.int64())
    assert rebase_timestamps(values, unit, zone_offsets(zone)).to_pylist() == [expected * unit, None, 0]


@given(st.sampled_from(SECONDS), st.integers(-62_135_769_600, -2_000_000_000), st.integers(0, 10_000_000_000))
def test_bounds_hold_all_values_between_them(case: tuple[str, int, int], low: int, width: int) -> None:
    """A clock that is set back lets times change their order."""
    zone, switch, _ = case
    times = sorted({low, low + width, switch, *[switch + delta for delta in (-90_000, -600, -1, 1, 600, 90_000)]})
    calendar = LegacyCalendar(False, 1, zone, False)
    rebased = rebase_timestamps(pa.array(times, pa.int64()), 1, zone_offsets(zone)).to_pylist()
    for first in range(len(times)):
        for last in range(first, len(times)):
            least, most, exact = calendar.bounds(times[first], times[last])
            inside = rebased[first : last + 1]
            assert least <= min(inside)
            assert max(inside) <= most
            assert not exact or (least, most) == (times[first], times[last]) == (min(inside), max(inside))
    assert all(new == old for old, new in zip(times, rebased, strict=True) if new >= calendar.first_sure)


def test_bounds_of_days_are_exact() -> None:
    low, high = julian_day(1, 1, 1), julian_day(1500, 2, 29)
    assert DATES.bounds(low, high) == (rebased_day(low), rebased_day(high), True)
    assert DATES.bounds(-141_427, 7) == (-141_427, 7, True)


def test_nested_values() -> None:
    day, clock = pa.date32(), pa.timestamp("us", "UTC")
    old, new = dt.date(1500, 1, 10), dt.date(1500, 1, 1)
    at, clock_at = dt.datetime(1500, 1, 10, 1, tzinfo=dt.UTC), dt.datetime(1500, 1, 1, 1, tzinfo=dt.UTC)
    types = {
        "list": (pa.list_(day), [old, None], [new, None]),
        "large": (pa.large_list(day), [old], [new]),
        "fixed": (pa.list_(day, 2), [old, None], [new, None]),
        "view": (pa.list_view(day), [old], [new]),
        "map": (pa.map_(day, clock), [(old, at)], [(new, clock_at)]),
        "struct": (pa.struct([("n", pa.int32()), ("d", day)]), {"n": 1, "d": old}, {"n": 1, "d": new}),
        "deep": (
            pa.list_(pa.struct([("d", pa.list_(day)), ("t", clock)])),
            [{"d": [old], "t": at}, None],
            [{"d": [new], "t": clock_at}, None],
        ),
    }
    for type_, value, expected in types.values():
        stored = pa.array([value, None, value, value], type_).slice(1)
        count = 2 if "map" in str(type_) or "struct" in str(type_) else 1
        leaves = {leaf: LegacyCalendar(False, 1_000_000, "UTC", False) for leaf in range(count)}
        rebased = rebase_column(stored, range(count), leaves, "c")
        rebased.validate(full=True)
        assert rebased.type == type_
        assert rebased.to_pylist() == [None, expected, expected]
    encoded = pa.array([None, old], day).dictionary_encode()
    assert rebase_column(encoded, [0], {0: DATES}, "c").to_pylist() == [None, new]
    numbers = pa.array([-800_000], pa.int32())
    assert rebase_column(numbers, [3], {4: DATES}, "c") is numbers


def test_what_cannot_be_rebased() -> None:
    old = pa.array([dt.datetime(1700, 1, 1)], pa.timestamp("us", "UTC"))
    for zone, text in (
        (None, "does not name the time zone"),
        ("Mars/Olympus", "does not know .Mars/Olympus., the time zone"),
    ):
        with pytest.raises(UnsupportedFeatureError, match=text) as raised:
            rebase_column(old, [0], {0: LegacyCalendar(False, 1_000_000, zone, False)}, "c")
        assert raised.value.column == "c"
        assert "ignore" in (raised.value.hint or "")
        new = pa.array([dt.datetime(1900, 1, 1)], old.type)
        assert rebase_column(new, [0], {0: LegacyCalendar(False, 1_000_000, zone, False)}, "c") is new
    with pytest.raises(UnsupportedFeatureError, match="timestamps before 1900"):
        rebase_column(old, [0], {0: LegacyCalendar(False, 1_000_000, "UTC", True)}, "c")
    first = pa.array([-(1 << 63)], pa.int64()).view(pa.timestamp("us", "UTC"))
    with pytest.raises(CorruptFileError, match="old timestamps cannot be rebased"):
        rebase_column(first, [0], {0: LegacyCalendar(False, 1_000_000, "US/Pacific", False)}, "c")
