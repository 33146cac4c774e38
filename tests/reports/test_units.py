"""Numbers as people read them."""

from __future__ import annotations

import pytest

from asyncpq.reports.units import seconds_text, size_text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (None, "?"),
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (1536, "1.5 KiB"),
        (640 * 1024, "640 KiB"),
        (1023.9 * 1024, "1 MiB"),
        (1 << 30, "1 GiB"),
        (1 << 40, "1 TiB"),
        (1 << 60, "1.02e+03 PiB"),
    ],
)
def test_sizes(num_bytes: float | None, text: str) -> None:
    assert size_text(num_bytes) == text


def test_durations() -> None:
    assert [seconds_text(seconds) for seconds in (0.0, 0.01234, 1.234)] == ["0.0 ms", "12.3 ms", "1.23 s"]
