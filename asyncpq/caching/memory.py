"""The memory tier: one budget in bytes for everything that is kept, least recently used first out."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from cachetools import LRUCache

ENTRY_OVERHEAD_BYTES = 200  # a key tuple, the LRU's links and the dict slots


class MemoryCache:
    """A weighed, locked LRU cache. May be shared between sessions and threads.

    Values are immutable or are only ever completed (parsed further); whoever completes one calls
    :meth:`put` again, so that its new weight counts.

    Args:
        max_bytes: budget; 0 keeps nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._incoming_weight = 0
        # asked for the size of the value that is being put, under the lock
        self._entries: LRUCache[Hashable, Any] = LRUCache(max_bytes, getsizeof=lambda _: self._incoming_weight)

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    @property
    def current_bytes(self) -> int:
        """What the entries weigh now; at most ``max_bytes``."""
        with self._lock:
            return int(self._entries.currsize)

    def __len__(self) -> int:
        with self._lock:
            return len(self._entries)

    def get(self, key: Hashable) -> Any:
        """The value, or None."""
        with self._lock:
            return self._entries.get(key)

    def get_many(self, keys: Iterable[Hashable]) -> list[Any]:
        """One value, or None, for each key; the lock is taken once."""
        with self._lock:
            get = self._entries.get
            return [get(key) for key in keys]

    def put(self, key: Hashable, value: Any, weight: int) -> None:
        """Keep ``value``, which weighs ``weight`` bytes. Too large a value is not kept."""
        with self._lock:
            if weight + ENTRY_OVERHEAD_BYTES > self._max_bytes:
                self._entries.pop(key, None)
                return
            self._incoming_weight = weight + ENTRY_OVERHEAD_BYTES
            self._entries[key] = value

    def discard(self, key: Hashable) -> None:
        """Forget one entry, if it is there."""
        with self._lock:
            self._entries.pop(key, None)

    def discard_if(self, predicate: Callable[[Hashable], bool]) -> int:
        """Forget the entries whose key satisfies ``predicate``; returns how many."""
        with self._lock:
            doomed = [key for key in self._entries if predicate(key)]
            for key in doomed:
                self._entries.pop(key, None)
            return len(doomed)

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
