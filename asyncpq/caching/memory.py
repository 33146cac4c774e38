"""The memory tier: one budget in bytes, with scan-resistant admission according to 2Q.

2Q: T. Johnson and D. Shasha, A Low Overhead High Performance Buffer Management Replacement Algorithm, VLDB 1994.
Entries of lookups are in ``main`` (the paper's Am), an LRU queue. Entries of scans are on probation (A1in): they use
free room, are evicted first, and their keys' hashes are remembered afterwards (A1out). An entry that a scan puts again
soon goes to ``main``. Probation and remembered hashes take at most 1/16 of the budget from ``main``. Without scans the
cache is a plain LRU. ``cache/traces`` compares the two.

Also on probation: entries of reads that take more than 1/16 of the budget, and pages that came with a whole chunk
(``MemoryCache.offer``). Small dictionaries count as a lookup's. So a scan larger than the budget keeps nothing.
"""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from typing import Any, Final
from weakref import WeakSet

from asyncpq.caching.entry_format import ContentKey

ENTRY_OVERHEAD_BYTES: Final = 540  # a content key and its integers, the header of bytes, the ordered dict
REMEMBERED_BYTES: Final = 170  # a hash and a weight in an ordered dict
CLAIM: Final = 16  # probation may take 1/16 of the budget from main
REMEMBERED: Final = 4  # evicted keys are remembered until entries of 1/4 of the budget were evicted after them


class _Queue:
    """Entries, the least recently used first, and the sum of their weights in bytes.

    An ordered dict, since cachetools' LRUCache takes three Python calls for each entry that is found: two thirds of the
    time that a lookup spent in this cache. Weights stand apart, since Python's garbage collector would visit each pair;
    and keys that are named tuples are kept as equal plain ones, which it does not visit.
    """

    __slots__ = ("entries", "weight", "weights")

    def __init__(self) -> None:
        self.entries: OrderedDict[Hashable, Any] = OrderedDict()
        self.weights: dict[Hashable, int] = {}
        self.weight = 0

    def put(self, key: Hashable, value: Any, weight: int) -> None:
        """Add an entry, which must not exist."""
        if isinstance(key, tuple):
            key = tuple(key)
        self.entries[key] = value
        self.weights[key] = weight
        self.weight += weight

    def pop(self, key: Hashable) -> tuple[Any, int] | None:
        """Remove the entry of ``key``; return its value and weight, None if there is none."""
        weight = self.weights.pop(key, None)
        if weight is None:
            return None
        self.weight -= weight
        return self.entries.pop(key), weight

    def pop_oldest(self) -> tuple[Hashable, int]:
        """Remove the least recently used entry; return its key and weight."""
        key, _ = self.entries.popitem(last=False)
        weight = self.weights.pop(key)
        self.weight -= weight
        return key, weight

    def clear(self) -> None:
        self.entries.clear()
        self.weights.clear()
        self.weight = 0


def _as_given(key: Hashable) -> Hashable:
    """Return the key of an entry; that of an object's part as a :class:`ContentKey`."""
    is_part = isinstance(key, tuple) and len(key) == len(ContentKey._fields) and isinstance(key[0], bytes)
    return ContentKey._make(key) if is_part else key  # type: ignore[arg-type]


class MemoryCache:
    """A cache of values with weights in bytes, protected by a lock. Sessions and threads may share it
    (``Session(memory_cache=...)``); a forked process has its own copy.

    Values are immutable, except that code may parse a value further; it then calls :meth:`put` again with the new
    weight. Values of lookups leave the cache in the order of their last use. Values of scans are on probation: they
    leave it before all others.

    Args:
        max_bytes: the budget; 0 keeps nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._main = _Queue()
        self._probation = _Queue()
        self._remembered: OrderedDict[int, int] = OrderedDict()  # hash of the key: weight
        self._remembered_weight = 0
        self._claim = max_bytes // CLAIM
        _locks.add(self._lock)

    @property
    def current_bytes(self) -> int:
        """Sum of the weights of all entries, in bytes; at most ``max_bytes``."""
        with self._lock:
            return self._used()

    @property
    def whole(self) -> MemoryCache:
        """The cache that :meth:`apart` was called on; else the cache itself."""
        return self

    def apart(self, form: Hashable) -> MemoryCache:
        """Return a view of this cache, with the same budget; only views with an equal ``form`` share entries. Sessions
        whose options give values another form call it."""
        return _Apart(self.whole, form)

    def __len__(self) -> int:
        with self._lock:
            return len(self._main.entries) + len(self._probation.entries)

    def get(self, key: Hashable, *, scan: bool = False) -> Any:
        """Return the value of ``key``; None if the cache lacks it. With ``scan``, the caller is a scan: an entry on
        probation stays there. Otherwise its probation ends."""
        with self._lock:
            value = self._main.entries.get(key)
            if value is None:
                return self._get(key, scan)
            self._main.entries.move_to_end(key)
            return value

    def get_many(self, keys: Iterable[Hashable], *, scan: bool = False) -> list[Any]:
        """Return the value of each key in order, None for a missing one, as :meth:`get` does; take the lock once."""
        values: list[Any] = []
        with self._lock:
            main, probation = self._main.entries, self._probation.entries
            for key in keys:
                value = main.get(key)
                if value is not None:
                    main.move_to_end(key)
                elif key in probation:
                    value = self._get(key, scan)
                values.append(value)
        return values

    def put(self, key: Hashable, value: Any, weight: int, *, scan: bool = False) -> None:
        """Put ``value``, which weighs ``weight`` bytes; a value larger than the budget is not kept. With ``scan``, the
        value is on probation until a lookup gets it."""
        with self._lock:
            self._put(key, value, weight + ENTRY_OVERHEAD_BYTES, scan)

    def put_many(self, entries: Mapping[Any, bytes], *, scan: bool = False) -> None:
        """Put byte strings by key as :meth:`put` does; the weight of each is its length. Takes the lock once."""
        with self._lock:
            for key, value in entries.items():
                self._put(key, value, len(value) + ENTRY_OVERHEAD_BYTES, scan)

    def offer(self, key: Hashable, value: Any, weight: int) -> None:
        """Put on probation a value that no read requested, if the budget has room without an eviction. An existing
        entry stays. Reads call it for pages that came along with others."""
        with self._lock:
            if key not in self._main.entries and key not in self._probation.entries:
                self._put_on_probation(key, value, weight + ENTRY_OVERHEAD_BYTES, 0)

    def discard(self, key: Hashable) -> None:
        """Remove the entry of ``key``; does nothing if there is none."""
        with self._lock:
            self._main.pop(key)
            self._probation.pop(key)

    def discard_if(self, predicate: Callable[[Hashable], bool]) -> int:
        """Remove the entries whose key satisfies ``predicate``; return their number."""
        with self._lock:
            forgotten = 0
            for queue in (self._main, self._probation):
                doomed = [key for key in queue.entries if predicate(_as_given(key))]
                for key in doomed:
                    queue.pop(key)
                forgotten += len(doomed)
            return forgotten

    def clear(self) -> None:
        """Remove all entries, and the record of evicted keys. Running reads keep the values that they already got."""
        with self._lock:
            self._main.clear()
            self._probation.clear()
            self._remembered.clear()
            self._remembered_weight = 0

    def _get(self, key: Hashable, scan: bool) -> Any:
        main, probation = self._main.entries, self._probation
        value = main.get(key)
        if value is not None:
            main.move_to_end(key)
            return value
        if scan:
            if key in probation.entries:
                probation.entries.move_to_end(key)
                return probation.entries[key]
            return None
        entry = probation.pop(key) if key in probation.entries else None
        if entry is None:
            return None
        self._main.put(key, *entry)  # a lookup uses it
        return entry[0]

    def _put(self, key: Hashable, value: Any, weight: int, scan: bool) -> None:
        main = self._main
        on_probation = False
        if key in self._probation.entries:
            self._probation.pop(key)
            on_probation = scan
        elif scan and key not in main.entries:
            on_probation = not self._recall(key)
        if on_probation:
            if not self._put_on_probation(key, value, weight, self._claim):
                self._remember(key, weight)
                self._make_room(0)
            return
        if key in main.entries:
            main.pop(key)
        if weight <= self.max_bytes:
            used = main.weight + self._probation.weight + REMEMBERED_BYTES * len(self._remembered)
            if used + weight > self.max_bytes:
                self._make_room(weight)
            main.put(key, value, weight)

    def _used(self) -> int:
        return self._main.weight + self._probation.weight + REMEMBERED_BYTES * len(self._remembered)

    def _make_room(self, weight: int) -> None:
        while self._used() + weight > self.max_bytes:
            if self._probation.entries:
                self._evict_from_probation()
            elif self._main.entries:
                self._main.pop_oldest()
            else:
                self._forget_oldest()

    def _put_on_probation(self, key: Hashable, value: Any, weight: int, claim: int) -> bool:
        """Put an entry on probation; return False if it does not fit. ``claim`` is how many bytes of ``main`` probation
        may evict."""
        main, probation = self._main, self._probation
        room = max(self.max_bytes - main.weight, claim)
        if weight > room:
            return False
        while self._used() - main.weight + weight > room:
            if probation.entries:
                self._evict_from_probation()
            else:
                self._forget_oldest()
        while self._used() + weight > self.max_bytes:
            main.pop_oldest()
        probation.put(key, value, weight)
        return True

    def _evict_from_probation(self) -> None:
        self._remember(*self._probation.pop_oldest())

    def _remember(self, key: Hashable, weight: int) -> None:
        name = hash(key)
        self._remembered_weight += weight - self._remembered.pop(name, 0)
        self._remembered[name] = weight
        while (
            self._remembered_weight > self.max_bytes // REMEMBERED
            or REMEMBERED_BYTES * len(self._remembered) > self._claim
        ):
            self._forget_oldest()

    def _recall(self, key: Hashable) -> bool:
        """Return whether an entry of ``key`` was evicted from probation recently, and forget that eviction."""
        weight = self._remembered.pop(hash(key), 0)
        self._remembered_weight -= weight
        return weight > 0

    def _forget_oldest(self) -> None:
        _, weight = self._remembered.popitem(last=False)
        self._remembered_weight -= weight


class _Apart(MemoryCache):
    """See :meth:`MemoryCache.apart`. Each key stands in the cache with the form in front."""

    def __init__(self, cache: MemoryCache, form: Hashable) -> None:
        self.max_bytes = cache.max_bytes
        self._cache = cache
        self._form = form

    @property
    def current_bytes(self) -> int:
        return self._cache.current_bytes

    @property
    def whole(self) -> MemoryCache:
        return self._cache

    def __len__(self) -> int:
        return len(self._cache)

    def get(self, key: Hashable, *, scan: bool = False) -> Any:
        return self._cache.get((self._form, key), scan=scan)

    def get_many(self, keys: Iterable[Hashable], *, scan: bool = False) -> list[Any]:
        return self._cache.get_many([(self._form, key) for key in keys], scan=scan)

    def put(self, key: Hashable, value: Any, weight: int, *, scan: bool = False) -> None:
        self._cache.put((self._form, key), value, weight, scan=scan)

    def put_many(self, entries: Mapping[Any, bytes], *, scan: bool = False) -> None:
        self._cache.put_many({(self._form, key): value for key, value in entries.items()}, scan=scan)

    def offer(self, key: Hashable, value: Any, weight: int) -> None:
        self._cache.offer((self._form, key), value, weight)

    def discard(self, key: Hashable) -> None:
        self._cache.discard((self._form, key))

    def discard_if(self, predicate: Callable[[Hashable], bool]) -> int:
        return self._cache.discard_if(lambda key: isinstance(key, tuple) and key[0] == self._form and predicate(key[1]))

    def clear(self) -> None:
        self._cache.clear()


# A fork copies a cache while another thread may change it and hold its lock, so it waits for all locks.
_locks: WeakSet[threading.Lock] = WeakSet()
_held: list[threading.Lock] = []


def _before_fork() -> None:
    _held.extend(_locks)
    for lock in _held:
        lock.acquire()


def _after_fork() -> None:
    while _held:
        _held.pop().release()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
