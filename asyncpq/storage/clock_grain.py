"""When a time of last change, which is all that some stores say, tells a version from the next one.

A clock that counts whole seconds, or pairs of them, gives two versions the same time if both were written
within one of its ticks. So nothing is known of an object that was written just before it was looked at
(RFC 9110, section 8.8.2.2, says the same of Last-Modified). Pure.
"""

from __future__ import annotations

import datetime
from email.utils import parsedate_to_datetime

GRAIN_S = 2.0  # FAT's; most others count seconds, or less than milliseconds


def may_change_unseen(modified_s: float | None, now_s: float) -> bool:
    """Whether a version written at ``modified_s`` may be replaced by another with that time, at ``now_s`` or later.

    Both in seconds of the store's clock; a time with a fraction is of a clock that ticks faster.
    """
    return modified_s is not None and modified_s == int(modified_s) and now_s - modified_s < GRAIN_S


def http_date_s(value: str | None) -> float | None:
    """Seconds since the epoch of a header's date; None if it is none."""
    try:
        return None if value is None else parsedate_to_datetime(value).timestamp()
    except (ValueError, OverflowError):
        return None


def info_time_s(value: object) -> float | None:
    """Seconds since the epoch of what a filesystem's ``info`` has for a time; None if it is not understood."""
    try:
        if isinstance(value, str):
            value = datetime.datetime.fromisoformat(value)
        if isinstance(value, datetime.datetime):
            return value.timestamp()
        return float(value) if isinstance(value, int | float) else None
    except (ValueError, OverflowError):
        return None
