"""Replay the traces of this folder through the memory cache and through plain LRU: ``python -m cache.traces.replay``.

Prints the table that stands in ``cache/traces/README.md``; with ``--write`` puts it there.
"""

from __future__ import annotations

import sys
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from cachetools import LRUCache

from asyncpq import MemoryCache
from asyncpq.caching.memory import ENTRY_OVERHEAD_BYTES
from asyncpq.testing.traces import Access, Replay, read_trace, replay

FOLDER = Path(__file__).parent
PAGE = FOLDER / "README.md"
BUDGETS_PERCENT = (5, 10, 25, 50)


def without_scans(trace: Iterable[Access]) -> list[Access]:
    """The trace without scans: lookups themselves put the values that they found because of a scan."""
    alone: list[Access] = []
    from_scans: dict[int, int] = {}
    by_lookups: set[int] = set()
    for access in trace:
        if access.operation == "offer" or (access.scan and access.operation == "put"):
            from_scans[access.key] = access.weight
        elif not access.scan:
            alone.append(access)
            if access.operation == "get" and access.key in from_scans and access.key not in by_lookups:
                alone.append(access._replace(operation="put", weight=from_scans[access.key]))
                by_lookups.add(access.key)
            elif access.operation == "put":
                by_lookups.add(access.key)
            elif access.operation == "discard":
                by_lookups.discard(access.key)
                from_scans.pop(access.key, None)
    return alone


class PlainLru:
    """cachetools' LRU cache, weighed as the memory cache is, for which all reads are alike."""

    def __init__(self, max_bytes: int) -> None:
        self._weights: dict[Hashable, int] = {}
        self._entries: LRUCache[Hashable, Any] = LRUCache(max_bytes, getsizeof=self._weights.__getitem__)

    def get(self, key: Hashable, *, scan: bool = False) -> Any:
        return self._entries.get(key)

    def put(self, key: Hashable, value: Any, weight: int, *, scan: bool = False) -> None:
        self._weights[value] = weight + ENTRY_OVERHEAD_BYTES
        self._entries[key] = value

    def offer(self, key: Hashable, value: Any, weight: int) -> None:
        if key not in self._entries:
            self.put(key, value, weight)

    def discard(self, key: Hashable) -> None:
        self._entries.pop(key, None)


class Line(NamedTuple):
    """One trace at one budget."""

    trace: str
    percent: int
    max_bytes: int
    memory: Replay
    lru: Replay
    undisturbed: Replay  # plain LRU, had there been no scans


def traces() -> Iterator[tuple[str, list[Access]]]:
    """Every recorded trace, by name."""
    for path in sorted(FOLDER.glob("*.parquet")):
        yield path.stem, read_trace(path)


def footprint(trace: list[Access]) -> int:
    """Bytes that everything in a trace takes."""
    weights = {access.key: access.weight + ENTRY_OVERHEAD_BYTES for access in trace if access.operation == "put"}
    return sum(weights.values())


def lines() -> Iterator[Line]:
    """Every trace at every budget."""
    for name, trace in traces():
        alone = without_scans(trace)
        for percent in BUDGETS_PERCENT:
            max_bytes = footprint(trace) * percent // 100
            yield Line(
                name,
                percent,
                max_bytes,
                replay(trace, MemoryCache(max_bytes)),
                replay(trace, PlainLru(max_bytes)),
                replay(alone, PlainLru(max_bytes)),
            )


def table(found: list[Line]) -> str:
    """The lines in Markdown; rates in per cent."""
    rows = [
        "| trace | budget | lookups, bytes | lookups, requests | all, bytes | all, requests |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for line in found:
        alone, lookups = line.undisturbed.lookups, (line.memory.lookups, line.lru.lookups)
        cells = [
            line.trace,
            f"{line.percent} %, {line.max_bytes / 1e6:.1f} MB",
            _cell(*[rate.of_bytes for rate in (*lookups, alone)]),
            _cell(*[rate.of_requests for rate in (*lookups, alone)]),
            _cell(line.memory.all.of_bytes, line.lru.all.of_bytes),
            _cell(line.memory.all.of_requests, line.lru.all.of_requests),
        ]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def _cell(*rates: float) -> str:
    return " / ".join(f"{100 * rate:.1f}" for rate in rates)


def main() -> None:
    text = table(list(lines()))
    print(text)
    if "--write" in sys.argv[1:]:
        before, _, rest = PAGE.read_text(encoding="utf-8").partition("<!-- table -->\n")
        after = rest.partition("<!-- /table -->")[2]
        PAGE.write_text(f"{before}<!-- table -->\n{text}\n<!-- /table -->{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
