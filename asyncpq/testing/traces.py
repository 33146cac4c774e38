"""Access traces of the memory cache: recorded from a running service, replayed against other budgets or policies."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq.caching.entry import ContentKey, PointerKey
from asyncpq.caching.memory import MemoryCache

Operation = Literal["get", "put", "offer", "discard"]

_SCHEMA = pa.schema(
    [
        pa.field("operation", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("key", pa.int32(), nullable=False),
        pa.field("kind", pa.dictionary(pa.int8(), pa.string()), nullable=False),
        pa.field("weight", pa.int64(), nullable=False),
        pa.field("scan", pa.bool_(), nullable=False),
    ]
)


class Access(NamedTuple):
    """One access to a memory cache.

    Attributes:
        operation: "get", "put", "offer" or "discard".
        key: the key's number, by first appearance: a trace names no object.
        kind: what it leads to, such as "page", "offset_index", "pointer" or "version".
        weight: bytes of what is put or offered, without the cache's own; else 0.
        scan: a scan asks.
    """

    operation: Operation
    key: int
    kind: str
    weight: int
    scan: bool


class RecordingCache(MemoryCache):
    """A memory cache that writes down what it is asked: give it to ``Session(memory_cache=)``.

    Make its budget large: what it had to evict is recorded as if nobody had ever put it.

    Attributes:
        trace: the accesses so far.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.trace: list[Access] = []
        self._numbers: dict[Hashable, int] = {}
        self._recording = threading.Lock()

    def get(self, key: Hashable, *, scan: bool = False) -> Any:
        return self.get_many((key,), scan=scan)[0]

    def get_many(self, keys: Iterable[Hashable], *, scan: bool = False) -> list[Any]:
        asked = list(keys)
        for key in asked:
            self._record("get", key, 0, scan)
        return super().get_many(asked, scan=scan)

    def put(self, key: Hashable, value: Any, weight: int, *, scan: bool = False) -> None:
        self._record("put", key, weight, scan)
        super().put(key, value, weight, scan=scan)

    def offer(self, key: Hashable, value: Any, weight: int) -> None:
        self._record("offer", key, weight, False)
        super().offer(key, value, weight)

    def discard(self, key: Hashable) -> None:
        self._record("discard", key, 0, False)
        super().discard(key)

    def discard_if(self, predicate: Callable[[Hashable], bool]) -> int:
        with self._recording:
            doomed = [key for key in self._numbers if predicate(key)]
        for key in doomed:
            self._record("discard", key, 0, False)
        return super().discard_if(predicate)

    def clear(self) -> None:
        self.discard_if(lambda _: True)
        super().clear()

    def _record(self, operation: Operation, key: Hashable, weight: int, scan: bool) -> None:
        with self._recording:
            number = self._numbers.setdefault(key, len(self._numbers))
            self.trace.append(Access(operation, number, _kind(key), weight, scan))


def _kind(key: Hashable) -> str:
    if isinstance(key, ContentKey):
        return key.kind
    if isinstance(key, PointerKey):
        return "pointer"
    return str(key[0]) if isinstance(key, tuple) and key else type(key).__name__


def write_trace(path: str | os.PathLike[str], trace: Sequence[Access]) -> None:
    """Write a trace as a small Parquet file, one row for each access."""
    columns = list(zip(*trace, strict=True)) or [()] * len(_SCHEMA)
    arrays = [
        pa.array(column, field.type if not pa.types.is_dictionary(field.type) else pa.string()).cast(field.type)
        for column, field in zip(columns, _SCHEMA, strict=True)
    ]
    pq.write_table(pa.table(arrays, _SCHEMA), path, compression="zstd", compression_level=19, use_dictionary=True)


def read_trace(path: str | os.PathLike[str]) -> list[Access]:
    """The trace that :func:`write_trace` wrote."""
    table = pq.ParquetFile(path).read()
    return [Access(*row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]


class Cache(Protocol):
    """What a trace is replayed through: a :class:`asyncpq.MemoryCache`, or another policy to hold beside it."""

    def get(self, key: Hashable, *, scan: bool = False) -> Any: ...

    def put(self, key: Hashable, value: Any, weight: int, *, scan: bool = False) -> None: ...

    def offer(self, key: Hashable, value: Any, weight: int) -> None: ...

    def discard(self, key: Hashable) -> None: ...


@dataclass(slots=True)
class HitRate:
    """How many of the accesses that a cache without bounds would have answered a cache answered.

    Attributes:
        requests, hits: accesses, and how many of them were answered.
        bytes, hit_bytes: what they weigh.
    """

    requests: int = 0
    hits: int = 0
    bytes: int = 0
    hit_bytes: int = 0

    @property
    def of_requests(self) -> float:
        return self.hits / self.requests if self.requests else 1.0

    @property
    def of_bytes(self) -> float:
        return self.hit_bytes / self.bytes if self.bytes else 1.0

    def count(self, weight: int, hit: bool) -> None:
        """Count one access."""
        self.requests += 1
        self.bytes += weight
        if hit:
            self.hits += 1
            self.hit_bytes += weight


class Replay(NamedTuple):
    """What a replay counted: of all accesses, and of lookups' to what lookups had asked for before."""

    all: HitRate
    lookups: HitRate


def replay(trace: Iterable[Access], cache: Cache) -> Replay:
    """Do to ``cache`` what was recorded; what was found then, and is not now, is put again, as if fetched again.

    First accesses to what nobody has put yet miss in every cache, and are not counted.
    """
    rates = Replay(HitRate(), HitRate())
    weights: dict[int, int] = {}
    asked: set[int] = set()  # by lookups
    for operation, key, _, weight, scan in trace:
        if operation == "put":
            weights[key] = weight
            cache.put(key, key, weight, scan=scan)
        elif operation == "offer":
            weights.setdefault(key, weight)
            cache.offer(key, key, weight)
        elif operation == "discard":
            weights.pop(key, None)
            asked.discard(key)
            cache.discard(key)
        else:
            hit = cache.get(key, scan=scan) is not None
            known = weights.get(key)
            if known is not None:
                rates.all.count(known, hit)
                if key in asked and not scan:
                    rates.lookups.count(known, hit)
                if not hit:
                    cache.put(key, key, known, scan=scan)
            if not scan:
                asked.add(key)
    return rates


def without_scans(trace: Iterable[Access]) -> list[Access]:
    """What lookups alone would have asked for; what they found since a scan had brought it, they put themselves."""
    alone: list[Access] = []
    brought: dict[int, int] = {}
    own: set[int] = set()
    for access in trace:
        if access.operation == "offer" or (access.scan and access.operation == "put"):
            brought[access.key] = access.weight
        elif not access.scan:
            alone.append(access)
            if access.operation == "get" and access.key in brought and access.key not in own:
                alone.append(access._replace(operation="put", weight=brought[access.key]))
                own.add(access.key)
            elif access.operation == "put":
                own.add(access.key)
            elif access.operation == "discard":
                own.discard(access.key)
                brought.pop(access.key, None)
    return alone
