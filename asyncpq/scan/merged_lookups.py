"""Lookups of one key that are called in the same turn of the event loop, of one file and for the same columns, run as
one lookup of all their keys.

In a closed loop of 64 callers this takes a quarter to a third of the CPU off a lookup: one plan, one filter and one
array for each column serve all keys. Each call keeps its own result, deadline, cancellation and metrics. If the common
read fails, each runs alone, and has its own error.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import pyarrow as pa

from asyncpq.caching.single_flight import Flight
from asyncpq.decoding.arrow import take_table
from asyncpq.errors import AsyncpqError
from asyncpq.events import Operation
from asyncpq.metrics import ReadMetrics, RequestRecord
from asyncpq.objects.runtime import Runtime
from asyncpq.scan.request import KEY_POSITION, LookupKeys, ScanRequest, finish_lookup
from asyncpq.storage.threads import work_owner

_FIRST: Final = 2  # lookups of a file under way, from which on one waits for those of the same turn
_LEAST: Final = 24  # calls of one read: of 16, the waiting and sharing costs what they save
_MOST: Final = 128  # calls of one read, so that none waits long for the others
# one value of another type is compared in another way
_TYPES: Final = frozenset({int, str, bytes})
_SHARED_BYTES: Final = 1 << 20  # of a common result; rows of larger ones are copied, since a slice keeps all of them

_Read = Callable[[ScanRequest, Operation], Awaitable[pa.Table]]


class LookupShape(NamedTuple):
    """What lookups that run as one have in common."""

    column: str  # of the key
    type: type  # of its value
    columns: tuple[str | int, ...] | None  # to return; None for all


class _Call:
    """One lookup that waits for the common read."""

    __slots__ = ("key", "metrics", "waits")

    def __init__(self, key: Any, metrics: ReadMetrics) -> None:
        self.key = key
        self.metrics = metrics
        self.waits = True  # its caller was not cancelled, and its deadline has not passed


class _Group(NamedTuple):
    """The calls of one turn, and the common read, whose result has a table for each call; None if each runs alone."""

    calls: list[_Call]
    flight: Flight[dict[_Call, pa.Table] | None]


class MergedLookups:
    """Merges the lookups of one open file."""

    __slots__ = ("_groups", "_runtime", "_url", "under_way", "waits_from")

    def __init__(self, runtime: Runtime, url: str) -> None:
        self._runtime = runtime
        self._url = url
        self._groups: dict[LookupShape, _Group] = {}  # that more calls may join, by shape
        self.under_way = 0  # lookups of the file, counted by the callers
        self.waits_from: int = _FIRST  # so many under way, one waits for others; more, once those were too few

    def shape(self, request: ScanRequest, keys: LookupKeys) -> tuple[LookupShape, Any] | None:
        """Return the shape of a lookup of ``keys`` and its one key; None if it is too unusual to be merged."""
        if len(keys.names) != 1 or keys.count != 1:
            return None
        value, columns = getattr(keys.where, "value", None), request.columns
        if type(value) not in _TYPES or (columns is not None and not columns) or work_owner.get() is not None:
            return None
        return LookupShape(keys.names[0], type(value), None if columns is None else tuple(columns)), value

    async def table(self, shape: LookupShape, key: Any, metrics: ReadMetrics, read: _Read) -> pa.Table | None:
        """Return the rows of one lookup, read together with those of others; None if it has to run alone.
        ``metrics``, those of the call, get its share of the cost. ``read`` runs a request of the file, whose cost the
        operation counts."""
        group = self._groups.get(shape)
        # one is cancelled if all of its calls were, before it began
        if group is None or len(group.calls) >= _MOST or group.flight.task.cancelling():
            calls: list[_Call] = []
            # it begins in the next turn of the loop, when all calls of this one have joined
            flight = self._runtime.flights.start((), lambda: self._run(shape, calls, read))
            group = self._groups[shape] = _Group(calls, flight)
        call = _Call(key, metrics)
        group.calls.append(call)
        group.flight.join()
        try:
            tables = await group.flight.wait()
        finally:
            call.waits = False
            group.flight.leave()
        return None if tables is None else tables[call]

    async def _run(self, shape: LookupShape, calls: list[_Call], read: _Read) -> dict[_Call, pa.Table] | None:
        group = self._groups.get(shape)
        if group is not None and group.calls is calls:
            del self._groups[shape]
        calls = [call for call in calls if call.waits]
        if len(calls) < _LEAST:
            self.waits_from = _LEAST
            return None
        self.waits_from = _FIRST
        operation = self._runtime.operation("lookup", self._url)  # not begun: the calls report the read
        turns = 0

        def deal(record: RequestRecord) -> None:
            nonlocal turns
            calls[turns % len(calls)].metrics.record(record)
            turns += 1

        operation.metrics.observe(deal)
        operation.metrics.began = max([call.metrics.began for call in calls])
        keys = LookupKeys({shape.column: [call.key for call in calls]})
        columns = None if shape.columns is None else list(shape.columns)
        try:
            rows = await read(ScanRequest(columns=columns, keys=keys.names, where=keys.where), operation)
            found = await finish_lookup(self._runtime, keys, rows, True)
        except AsyncpqError:
            return None
        _share(operation.metrics, calls)
        return _tables(found, calls)


def _tables(found: pa.Table, calls: list[_Call]) -> dict[_Call, pa.Table]:
    """Return the rows of each call. ``found`` has, as its last column, the position of each row's call."""
    rows: list[list[int]] = [[] for _ in calls]
    for row, position in enumerate(found.column(KEY_POSITION).to_pylist()):
        rows[position].append(row)
    table = found.select(list(range(found.num_columns - 1)))
    is_shared = table.nbytes <= _SHARED_BYTES
    tables: dict[_Call, pa.Table] = {}
    for call, own in zip(calls, rows, strict=True):
        if is_shared and (not own or own[-1] - own[0] == len(own) - 1):
            tables[call] = table.slice(own[0] if own else 0, len(own))
        else:
            tables[call] = take_table(table, pa.array(own, pa.int64()))
    return tables


_DIVIDED: Final = (
    "cache_hits",
    "cache_misses",
    "disk_hits",
    "shared_hits",
    "row_groups_read",
    "row_groups_by_bloom",
    "row_groups_proven",
    "pages_total",
    "pages_read",
    "rows_scanned",
)


def _share(whole: ReadMetrics, calls: list[_Call]) -> None:
    """Give each call its share of the cost of the common read, whose requests were dealt out as they ended."""
    count = len(calls)
    divided = [(name, total) for name in _DIVIDED if (total := getattr(whole, name))]
    for number, call in enumerate(calls):
        own = call.metrics
        for name, total in divided:
            setattr(own, name, total * (number + 1) // count - total * number // count)
        own.rounds, own.restarts, own.row_groups_total = whole.rounds, whole.restarts, whole.row_groups_total
        own.wait_s, own.decode_s, own.paced_s = whole.wait_s, whole.decode_s / count, whole.paced_s / count
        own.guarantee, own.store_path, own.server = whole.guarantee, whole.store_path, whole.server
        own.fall_back_all(whole.fallbacks)
