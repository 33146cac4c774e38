"""The time of a read by a clock of the tests' own: each request, page and row takes what its counted work costs. A busy
machine changes no verdict."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from asyncpq.metrics import RequestRecord
from asyncpq.reports import why
from asyncpq.reports.documents import TimeSplit
from asyncpq.reports.story import Story, decode_work, planning_work

TIER_S = 0.02  # of each part from the disk or the shared cache
ROW_S = 20e-9  # of each row that is compared, times the filter's cost


def counted_time(read: why.Read, story: Story, log: Sequence[RequestRecord]) -> TimeSplit:
    """Stands in for :func:`asyncpq.reports.why.time_of`."""
    prices = why.prices_of(story, read, log)
    by_round = groupby(sorted(log, key=lambda record: record.round), lambda record: record.round)
    rounds = [[(0, record.bytes) for record in records] for _, records in by_round]
    network_s = sum(map(prices.round_s, rounds))
    caches_s = TIER_S * sum(part.tier in ("disk", "shared") for part in story.trace.parts)
    decode_s = sum(decode_work(column, column.fetched) for column in story.columns(story.fates()))
    filters = [file.scan_plan.shape.filter for file in story.files.values()]
    cost = max([item.cost for item in filters if item is not None], default=0)
    filter_s = read.metrics.rows_scanned * ROW_S * cost
    versions = [file.scan_plan.version for file in story.files.values()]
    other_s = planning_work(len(versions), sum(version.size - version.footer_start for version in versions))
    return {
        "total_s": network_s + caches_s + decode_s + filter_s + other_s,
        "network_s": network_s,
        "caches_s": caches_s,
        "decode_s": decode_s,
        "filter_s": filter_s,
        "other_s": other_s,
    }
