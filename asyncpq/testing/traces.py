"""Access traces of the memory cache: recorded in a service, replayed against other budgets or policies."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from asyncpq.caching.entry_format import ContentKey, PointerKey
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
    """One access to a memory cache: an item of a trace, which :attr:`RecordingCache.trace` records and :func:`replay`
    repeats.

    Attributes:
        operation: the cache's method: "get", "put", "offer" or "discard".
        key: the key's number, by first appearance: a trace contains no names of objects.
        kind: the kind of the value, such as "page", "pointer" (a url's version) or "version" (a footer).
        weight: bytes of a value that is put or offered, without the cache's overhead; otherwise 0.
        scan: whether a scan made the access.
    """

    operation: Operation
    key: int
    kind: str
    weight: int
    scan: bool


class RecordingCache(MemoryCache):
    """A memory cache that records its accesses: pass it as ``Session(memory_cache=)``.

    Give the cache a budget without evictions: after one, an access looks like one to a value that was never put.

    Args:
        max_bytes: the budget, in bytes.

    Attributes:
        trace: the accesses so far, a list of :class:`Access` in order, for :func:`write_trace` or :func:`replay`.
    """

    def __init__(self, max_bytes: int) -> None:
        super().__init__(max_bytes)
        self.trace: list[Access] = []
        self._numbers: dict[Hashable, int] = {}
        self._recording = threading.Lock()

    def get(self, key: Hashable, *, scan: bool = False) -> Any:
        return self.get_many((key,), scan=scan)[0]

    def get_many(self, keys: Iterable[Hashable], *, scan: bool = False) -> list[Any]:
        listed = list(keys)
        for key in listed:
            self._record("get", key, 0, scan)
        return super().get_many(listed, scan=scan)

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
    """Write a trace (:attr:`RecordingCache.trace`) to a local Parquet file, one row for each access, for
    :func:`read_trace`. An existing file is replaced."""
    columns = list(zip(*trace, strict=True)) or [()] * len(_SCHEMA)
    arrays = [
        pa.array(column, field.type if not pa.types.is_dictionary(field.type) else pa.string()).cast(field.type)
        for column, field in zip(columns, _SCHEMA, strict=True)
    ]
    pq.write_table(pa.table(arrays, _SCHEMA), path, compression="zstd", compression_level=19, use_dictionary=True)


def read_trace(path: str | os.PathLike[str]) -> list[Access]:
    """Read a trace that :func:`write_trace` wrote: the accesses to a memory cache, in order, for :func:`replay` on
    caches of other sizes or policies. Raises FileNotFoundError, and pyarrow.ArrowInvalid if it is no Parquet file."""
    table = pq.ParquetFile(path).read()
    return [Access(*row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]


class Cache(Protocol):
    """The interface of a cache on which a trace is replayed: :class:`asyncpq.MemoryCache`, whose methods say what these
    do, or another policy."""

    def get(self, key: Hashable, *, scan: bool = False) -> Any: ...

    def put(self, key: Hashable, value: Any, weight: int, *, scan: bool = False) -> None: ...

    def offer(self, key: Hashable, value: Any, weight: int) -> None: ...

    def discard(self, key: Hashable) -> None: ...


@dataclass(slots=True)
class HitRate:
    """The hit rate of a cache among those accesses that a cache of unlimited size would answer: a value of
    :class:`Replay`.

    Attributes:
        requests: number of these accesses.
        hits: number of hits.
        bytes: weight of all accesses.
        hit_bytes: weight of the hits.
    """

    requests: int = 0
    hits: int = 0
    bytes: int = 0
    hit_bytes: int = 0

    @property
    def of_requests(self) -> float:
        """Share of the accesses that are hits, from 0 to 1; 1 without any access."""
        return self.hits / self.requests if self.requests else 1.0

    @property
    def of_bytes(self) -> float:
        """Share of the weight that hits have, from 0 to 1; 1 without any weight."""
        return self.hit_bytes / self.bytes if self.bytes else 1.0

    def count(self, weight: int, hit: bool) -> None:
        """Count one access to a value of ``weight`` bytes; :func:`replay` calls it. ``hit``: the cache had the
        value."""
        self.requests += 1
        self.bytes += weight
        if hit:
            self.hits += 1
            self.hit_bytes += weight


class Replay(NamedTuple):
    """The result of :func:`replay`.

    Attributes:
        all: hit rate of all accesses.
        lookups: hit rate of those accesses by lookups whose key an earlier lookup used.
    """

    all: HitRate
    lookups: HitRate


def replay(trace: Iterable[Access], cache: Cache) -> Replay:
    """Repeat the accesses of ``trace`` on ``cache``, a new :class:`asyncpq.MemoryCache` or another class with its
    methods, and return the hit rates.

    A miss of ``cache`` where the recorded cache had a hit puts the value again, as a fetch would. Accesses to a value
    before its first put miss in every cache, and are not counted.
    """
    rates = Replay(HitRate(), HitRate())
    weights: dict[int, int] = {}
    looked_up: set[int] = set()
    for operation, key, _, weight, scan in trace:
        if operation == "put":
            weights[key] = weight
            cache.put(key, key, weight, scan=scan)
        elif operation == "offer":
            weights.setdefault(key, weight)
            cache.offer(key, key, weight)
        elif operation == "discard":
            weights.pop(key, None)
            looked_up.discard(key)
            cache.discard(key)
        else:
            hit = cache.get(key, scan=scan) is not None
            known = weights.get(key)
            if known is not None:
                rates.all.count(known, hit)
                if key in looked_up and not scan:
                    rates.lookups.count(known, hit)
                if not hit:
                    cache.put(key, key, known, scan=scan)
            if not scan:
                looked_up.add(key)
    return rates
