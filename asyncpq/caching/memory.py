"""The memory tier: one budget in bytes for everything that is kept; a scan does not push out what lookups use.

The algorithm is 2Q (T. Johnson and D. Shasha: 2Q, A Low Overhead High Performance Buffer Management
Replacement Algorithm, VLDB 1994), weighed in bytes. What the paper has to guess, callers say: which reads
are scans. What lookups ask for is in ``main`` (the paper's Am), the least recently used first out. What
scans ask for is a guest (A1in). Guests may fill room that nobody else needs, but go first; of those that
went, the hashes of the keys are remembered (A1out). What a scan has to put again soon is used again and
again, and goes to ``main``. Guests and what is remembered claim no more than 1/16 of the budget from
``main``. Without scans all of this is an LRU cache. ``cache/traces`` holds it beside one.
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
CLAIM: Final = 16  # guests may claim 1/16 of the budget from what lookups use
REMEMBERED: Final = 4  # guests that went are remembered until others of 1/4 of the budget went after them


class MemoryCache:
    """A weighed, locked cache. May be shared between sessions and threads; a forked process has a copy.

    Values are immutable or are only ever completed (parsed further); whoever completes one calls
    :meth:`put` again, so that its new weight counts.

    Args:
        max_bytes: budget; 0 keeps nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._lock = threading.Lock()
        self._incoming_weight = 0
        # asked for the size of the value that is being put, under the lock
        self._main: LRUCache[Hashable, Any] = LRUCache(max_bytes, getsizeof=lambda _: self._incoming_weight)
        self._guests: LRUCache[Hashable, Any] = LRUCache(max_bytes, getsizeof=lambda _: self._incoming_weight)
        self._remembered: OrderedDict[int, int] = OrderedDict()  # hash of the key: weight
        self._remembered_weight = 0
        self._claim = max_bytes // CLAIM
        _caches.add(self)

    @property
    def current_bytes(self) -> int:
        """What the entries weigh now; at most ``max_bytes``."""
        with self._lock:
            return self._used()

    def __len__(self) -> int:
        with self._lock:
            return len(self._main) + len(self._guests)

    def get(self, key: Hashable, *, scan: bool = False) -> Any:
        """The value, or None. ``scan`` says that a scan asks: see :meth:`put`."""
        with self._lock:
            if key in self._main:
                return self._main[key]
            if key not in self._guests:
                return None
            return self._guests[key] if scan else self._promote(key)

    def get_many(self, keys: Iterable[Hashable], *, scan: bool = False) -> list[Any]:
        """One value, or None, for each key; the lock is taken once."""
        values: list[Any] = []
        with self._lock:
            main, guests = self._main, self._guests
            for key in keys:
                if key in main:
                    values.append(main[key])
                elif key not in guests:
                    values.append(None)
                elif scan:
                    values.append(guests[key])
                else:
                    values.append(self._promote(key))
        return values

    def put(self, key: Hashable, value: Any, weight: int, *, scan: bool = False) -> None:
        """Keep ``value``, which weighs ``weight`` bytes. Too large a value is not kept.

        Args:
            scan: a scan asked for it: it is a guest, until a lookup asks for it.
        """
        with self._lock:
            self._put(key, value, weight + ENTRY_OVERHEAD_BYTES, scan)

    def put_many(self, entries: Mapping[Any, bytes], *, scan: bool = False) -> None:
        """:meth:`put` of bytes; the lock is taken once."""
        with self._lock:
            for key, value in entries.items():
                self._put(key, value, len(value) + ENTRY_OVERHEAD_BYTES, scan)

    def offer(self, key: Hashable, value: Any, weight: int) -> None:
        """Keep as a guest what came along, and nobody asked for: it claims nothing. What stands there stays."""
        with self._lock:
            if key not in self._main and key not in self._guests:
                self._put_guest(key, value, weight + ENTRY_OVERHEAD_BYTES, 0)

    def discard(self, key: Hashable) -> None:
        """Forget one entry, if it is there."""
        with self._lock:
            self._main.pop(key, None)
            self._guests.pop(key, None)

    def discard_if(self, predicate: Callable[[Hashable], bool]) -> int:
        """Forget the entries whose key satisfies ``predicate``; returns how many."""
        with self._lock:
            forgotten = 0
            for entries in (self._main, self._guests):
                doomed = [key for key in entries if predicate(key)]
                for key in doomed:
                    del entries[key]
                forgotten += len(doomed)
            return forgotten

    def clear(self) -> None:
        with self._lock:
            self._main.clear()
            self._guests.clear()
            self._remembered.clear()
            self._remembered_weight = 0

    # -- under the lock ---------------------------------------------------------------------------

    def _put(self, key: Hashable, value: Any, weight: int, scan: bool) -> None:
        main, guests = self._main, self._guests
        guest = False
        if key in guests:
            del guests[key]
            guest = scan
        elif scan and key not in main:
            guest = not self._recall(key)
        if guest:
            if not self._put_guest(key, value, weight, self._claim):
                self._remember(key, weight)
                self._make_room(0)
        elif weight > self.max_bytes:
            main.pop(key, None)
        else:
            if guests.currsize or self._remembered:
                main.pop(key, None)
                self._make_room(weight)
            self._incoming_weight = weight
            main[key] = value  # in an LRU cache alone, this makes its room by itself

    def _used(self) -> int:
        return int(self._main.currsize + self._guests.currsize) + REMEMBERED_BYTES * len(self._remembered)

    def _promote(self, key: Hashable) -> Any:
        """A lookup uses what a scan brought."""
        before = self._guests.currsize
        value = self._guests.pop(key)
        self._incoming_weight = int(before - self._guests.currsize)
        self._main[key] = value
        return value

    def _make_room(self, weight: int) -> None:
        while self._used() + weight > self.max_bytes:
            if self._guests:
                self._evict_guest()
            elif self._main:
                self._main.popitem()
            else:
                self._forget_oldest()

    def _put_guest(self, key: Hashable, value: Any, weight: int, claim: int) -> bool:
        """Whether there is room for it, of which ``claim`` may be taken from ``main``."""
        main, guests = self._main, self._guests
        room = max(self.max_bytes - int(main.currsize), claim)
        if weight > room:
            return False
        while self._used() - main.currsize + weight > room:
            if guests:
                self._evict_guest()
            else:
                self._forget_oldest()
        while self._used() + weight > self.max_bytes:
            main.popitem()
        self._incoming_weight = weight
        guests[key] = value
        return True

    def _evict_guest(self) -> None:
        before = self._guests.currsize
        key, _ = self._guests.popitem()
        self._remember(key, int(before - self._guests.currsize))

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
        """Whether the key was a guest's that went not long ago; it is so once."""
        weight = self._remembered.pop(hash(key), 0)
        self._remembered_weight -= weight
        return weight > 0

    def _forget_oldest(self) -> None:
        _, weight = self._remembered.popitem(last=False)
        self._remembered_weight -= weight


# A fork copies what one thread may be changing, and its lock with it: it waits until no cache is being changed.
_caches: WeakSet[MemoryCache] = WeakSet()
_held: list[threading.Lock] = []


def _before_fork() -> None:
    _held.extend(cache._lock for cache in list(_caches))
    for lock in _held:
        lock.acquire()


def _after_fork() -> None:
    while _held:
        _held.pop().release()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
