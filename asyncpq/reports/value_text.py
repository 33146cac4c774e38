"""Format the bounds of statistics as text for people."""

from __future__ import annotations

import datetime as dt
import uuid
from decimal import Decimal
from typing import Any, Final

from asyncpq.parquet.logical_types import LogicalKind, LogicalType, PhysicalType
from asyncpq.parquet.schema import Leaf

_MAX_CHARACTERS: Final = 80  # of a text; longer ones are cut
_EPOCH_DAY: Final = dt.date(1970, 1, 1).toordinal()
_PER_SECOND: Final = {"ms": 10**3, "us": 10**6, "ns": 10**9}
_INT96: Final = LogicalType(LogicalKind.TIMESTAMP, "us")
_TEXTS: Final = (LogicalKind.STRING, LogicalKind.ENUM, LogicalKind.JSON)


def value_text(value: Any, leaf: Leaf) -> str:
    """Return a bound of ``leaf``'s statistics as text.

    ``value`` is a bound as :mod:`asyncpq.parquet.statistics` decodes it. Dates, times and timestamps are ISO 8601, or
    the stored number if they are outside of the calendar. Strings are cut after 80 characters; other bytes are
    hexadecimal.
    """
    if isinstance(value, bool):
        return str(value).lower()
    logical = leaf.logical_type
    if isinstance(value, bytes):
        return _bytes_text(value, logical)
    if leaf.physical_type is PhysicalType.INT96 and isinstance(value, int):
        logical = _INT96
    if logical is None or not isinstance(value, int):
        return str(value)
    if logical.kind is LogicalKind.DECIMAL:
        return format(Decimal(value).scaleb(-(logical.scale or 0)), "f")
    if logical.kind is LogicalKind.DATE:
        return _date(value) or str(value)
    if logical.kind in (LogicalKind.TIME, LogicalKind.TIMESTAMP) and logical.unit is not None:
        return _moment(value, logical, _PER_SECOND[logical.unit]) or str(value)
    return str(value)


def _bytes_text(value: bytes, logical: LogicalType | None) -> str:
    if logical is not None and logical.kind in _TEXTS:
        text = value.decode("utf-8", "backslashreplace")
    elif logical is not None and logical.kind is LogicalKind.UUID and len(value) == 16:
        text = str(uuid.UUID(bytes=value))
    else:
        text = f"0x{value.hex()}"
    return text if len(text) <= _MAX_CHARACTERS else f"{text[: _MAX_CHARACTERS - 1]}…"


def _date(days: int) -> str | None:
    ordinal = _EPOCH_DAY + days
    return dt.date.fromordinal(ordinal).isoformat() if 1 <= ordinal <= dt.date.max.toordinal() else None


def _moment(value: int, logical: LogicalType, per_second: int) -> str | None:
    seconds, fraction = divmod(value, per_second)
    days, seconds = divmod(seconds, 86_400)
    clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
    if fraction:
        clock += f".{fraction:0{len(str(per_second)) - 1}}".rstrip("0")
    if logical.kind is LogicalKind.TIME:
        return clock if days == 0 else None
    date = _date(days)
    return None if date is None else f"{date}T{clock}{'Z' if logical.is_adjusted_to_utc else ''}"
