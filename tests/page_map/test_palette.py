"""Every meaning has a colour on light and dark pages, and no two look the same."""

from __future__ import annotations

import re
from typing import get_args

from asyncpq.page_map import palette
from asyncpq.reports.documents import Fate


def test_every_fate_has_a_swatch() -> None:
    assert {*get_args(Fate)} <= palette.FATES.keys()


def test_no_meaning_hangs_on_a_hue() -> None:
    """What was ruled out differs from what was fetched in lightness, and is drawn with a pattern."""
    for name, swatch in palette.FATES.items():
        fetched = swatch.rank >= 8
        assert (_lightness(swatch.light[0]) < 0.7) == fetched, name
        assert (_lightness(swatch.dark[0]) > 0.3) == fetched or name in ("plain", "file", "unlocated"), name
        assert fetched or swatch.pattern != "solid" or name in ("plain", "file")


def test_looks_differ() -> None:
    looks = [(swatch.pattern, swatch.light[0]) for swatch in palette.FATES.values()]
    grey = ("dots", palette.FATES["access"].light[0])
    assert len({*looks}) == len(looks) - 2
    assert looks.count(grey) == 2  # rows that were not asked for, and rows beyond the limit
    assert palette.FATES["file"].light == palette.FATES["plain"].light  # never on one map


def test_the_rules_define_each_variable_three_times() -> None:
    rules = palette.css()
    for name in palette.legend():
        assert len(re.findall(rf"{palette.variable(name)}:#[0-9a-f]{{6}}", rules)) == 3


def _lightness(colour: str) -> float:
    red, green, blue = (int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
