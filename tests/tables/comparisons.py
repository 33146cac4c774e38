"""Counts what was compared with the engines that wrote the tables; ``make test-tables`` prints it."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa

_counts: dict[str, Counter[str]] = {}


def note(engine: str, table: pa.Table) -> None:
    """Count a table that was equal to what ``engine`` reads of it."""
    counts = _counts.setdefault(engine, Counter())
    counts["reads"] += 1
    counts["rows"] += table.num_rows
    counts["values"] += table.num_rows * table.num_columns


def lines() -> list[str]:
    """One line for each engine."""
    return [
        f"{engine}: " + ", ".join(f"{count:,} {what}" for what, count in _counts[engine].items()) + " equal"
        for engine in sorted(_counts)
    ]
