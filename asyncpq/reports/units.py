"""Format sizes, counts and durations for people."""

from __future__ import annotations

from typing import Final

_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def size_text(num_bytes: float | None) -> str:
    """Return a number of bytes with three digits and a unit, such as ``1.46 MiB``; "?" for None."""
    if num_bytes is None:
        return "?"
    unit = 0
    while abs(num_bytes) >= 999.5 and unit < len(_UNITS) - 1:
        num_bytes /= 1024
        unit += 1
    return f"{num_bytes:.0f} B" if unit == 0 else f"{num_bytes:.3g} {_UNITS[unit]}"


def seconds_text(seconds: float) -> str:
    """Return a duration in seconds, or in milliseconds below one."""
    return f"{seconds:.2f} s" if seconds >= 1 else f"{seconds * 1000:.1f} ms"
