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

from cachetools import LRUCache

ENTRY_OVERHEAD_BYTES: Final = 540  # a content key and its integers, the header of bytes, cachetools' three dicts
REMEMBERED_BYTES: Final = 170  # a hash and a weight in an ordered dict
CLAIM: Final = 16  # probation may take 1/16 of the budget from main
REMEMBERED: Final = 4  # evicted keys are remembered until entries of 1/4 of the budget were evicted after them


class MemoryCache:
    """A cache of values with weights in bytes, under a lock. Sessions and threads may share it; a fork copies it.

    Values are immutable, or change only by being parsed further; whoever does that calls :meth:`put` again with the
    new weight. ``max_bytes`` is the budget; 0 keeps nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._incoming_weight = 0
        # getsizeof is called for the value that is being put, under the lock
        self._main: LRUCache[Hashable, Any] = LRUCache(max_bytes, getsizeof=lambda _: self._incoming_weight)
        self._probation: LRUCache[Hashable, Any] = LRUCache(max_bytes, getsizeof=lambda _: self._incoming_weight)
        self._remembered: OrderedDict[int, int] = OrderedDict()  # hash of the key: weight
        self._remembered_weight = 0
        self._claim = max_bytes // CLAIM
        _locks.add(self._lock)

    @property
    def current_bytes(self) -> int:
        """Sum of the weights of all entries, in bytes; at most ``max_bytes``."""
        with self._lock:
            return self._used()

    def __len__(self) -> int:
        with self._lock:
            return len(self._main) + len(self._probation)

    def get(self, key: Hashable, *, scan: bool = False) -> Any:
        """Return the value of ``key``; None if the cache lacks it. With ``scan``, the entry stays on probation;
        otherwise it moves to ``main``."""
        with self._lock:
            if key in self._main:
                return self._main[key]
            if key not in self._probation:
                return None
            return self._probation[key] if scan else self._promote(key)

    def get_many(self, keys: Iterable[Hashable], *, scan: bool = False) -> list[Any]:
        """Return the value of each key in order, None for a missing one, as :meth:`get` does; take the lock once."""
        values: list[Any] = []
        with self._lock:
            main, probation = self._main, self._probation
            for key in keys:
                if key in main:
                    values.append(main[key])
                elif key not in probation:
                    values.append(None)
                elif scan:
                    values.append(probation[key])
                else:
                    values.append(self._promote(key))
        return values

    def put(self, key: Hashable, value: Any, weight: int, *, scan: bool = False) -> None:
        """Put ``value``, which weighs ``weight`` bytes; a value larger than the budget is not kept. With ``scan``, the
        value is on probation until a lookup gets it."""
        with self._lock:
            self._put(key, value, weight + ENTRY_OVERHEAD_BYTES, scan)

    def put_many(self, entries: Mapping[Any, bytes], *, scan: bool = False) -> None:
        """Put bytes by key as :meth:`put` does, each weighing its length; take the lock once."""
        with self._lock:
            for key, value in entries.items():
                self._put(key, value, len(value) + ENTRY_OVERHEAD_BYTES, scan)

    def offer(self, key: Hashable, value: Any, weight: int) -> None:
        """Put a value that no read requested on probation, if the budget has free room. An existing entry stays."""
        with self._lock:
            if key not in self._main and key not in self._probation:
                self._put_on_probation(key, value, weight + ENTRY_OVERHEAD_BYTES, 0)

    def discard(self, key: Hashable) -> None:
        """Remove the entry of ``key``; does nothing if there is none."""
        with self._lock:
            self._main.pop(key, None)
            self._probation.pop(key, None)

    def discard_if(self, predicate: Callable[[Hashable], bool]) -> int:
        """Remove the entries whose key satisfies ``predicate``; return their number."""
        with self._lock:
            forgotten = 0
            for entries in (self._main, self._probation):
                doomed = [key for key in entries if predicate(key)]
                for key in doomed:
                    del entries[key]
                forgotten += len(doomed)
            return forgotten

    def clear(self) -> None:
        with self._lock:
            self._main.clear()
            self._probation.clear()
            self._remembered.clear()
            self._remembered_weight = 0

    def _put(self, key: Hashable, value: Any, weight: int, scan: bool) -> None:
        main, probation = self._main, self._probation
        on_probation = False
        if key in probation:
            del probation[key]
            on_probation = scan
        elif scan and key not in main:
            on_probation = not self._recall(key)
        if on_probation:
            if not self._put_on_probation(key, value, weight, self._claim):
                self._remember(key, weight)
                self._make_room(0)
        elif weight > self.max_bytes:
            main.pop(key, None)
        else:
            if probation.currsize or self._remembered:
                main.pop(key, None)
                self._make_room(weight)
            self._incoming_weight = weight
            main[key] = value  # evicts by itself while probation is empty

    def _used(self) -> int:
        return int(self._main.currsize + self._probation.currsize) + REMEMBERED_BYTES * len(self._remembered)

    def _promote(self, key: Hashable) -> Any:
        """Move the entry of ``key`` from probation to ``main``, because a lookup uses it, and return its value."""
        before = self._probation.currsize
        value = self._probation.pop(key)
        self._incoming_weight = int(before - self._probation.currsize)
        self._main[key] = value
        return value

    def _make_room(self, weight: int) -> None:
        while self._used() + weight > self.max_bytes:
            if self._probation:
                self._evict_from_probation()
            elif self._main:
                self._main.popitem()
            else:
                self._forget_oldest()

    def _put_on_probation(self, key: Hashable, value: Any, weight: int, claim: int) -> bool:
        """Put an entry on probation; return False if it does not fit. Probation may take ``claim`` bytes from
        ``main``."""
        main, probation = self._main, self._probation
        room = max(self.max_bytes - int(main.currsize), claim)
        if weight > room:
            return False
        while self._used() - main.currsize + weight > room:
            if probation:
                self._evict_from_probation()
            else:
                self._forget_oldest()
        while self._used() + weight > self.max_bytes:
            main.popitem()
        self._incoming_weight = weight
        probation[key] = value
        return True

    def _evict_from_probation(self) -> None:
        before = self._probation.currsize
        key, _ = self._probation.popitem()
        self._remember(key, int(before - self._probation.currsize))

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
        """Return whether an entry of ``key`` was evicted from probation recently, and forget that it was."""
        weight = self._remembered.pop(hash(key), 0)
        self._remembered_weight -= weight
        return weight > 0

    def _forget_oldest(self) -> None:
        _, weight = self._remembered.popitem(last=False)
        self._remembered_weight -= weight


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
