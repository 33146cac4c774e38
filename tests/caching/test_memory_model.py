"""The memory cache under any sequence of calls: a model of what it may hold, and cachetools' LRU without scans."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from cachetools import LRUCache
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.caching.memory import CLAIM, ENTRY_OVERHEAD_BYTES, MemoryCache

UNIT = ENTRY_OVERHEAD_BYTES


class Call(NamedTuple):
    operation: Literal["get", "put", "offer", "discard", "discard_if", "clear"]
    key: int
    weight: int
    scan: bool


def calls(*operations: str, scans: bool) -> st.SearchStrategy[list[Call]]:
    """Few keys and weights, so that all of them meet."""
    return st.lists(
        st.builds(
            Call,
            operation=st.sampled_from(operations),
            key=st.integers(0, 25),
            weight=st.sampled_from([0, 0, 1, UNIT, 5 * UNIT, 30 * UNIT]),
            scan=st.booleans() if scans else st.just(False),
        ),
        max_size=150,
    )


budgets = st.sampled_from([0, 1, UNIT, 4 * UNIT, 20 * UNIT, 20 * UNIT + 7, 40 * UNIT])


@given(
    budgets, calls("get", "get", "put", "put", "put", "offer", "offer", "discard", "discard_if", "clear", scans=True)
)
def test_holds_what_was_put_last_or_nothing(budget: int, sequence: list[Call]) -> None:
    cache = MemoryCache(budget)
    last: dict[int, object] = {}
    for operation, key, weight, scan in sequence:
        weighs = weight + ENTRY_OVERHEAD_BYTES
        before = cache.get(key, scan=True)
        assert before in (None, last.get(key))
        if operation == "put":
            last[key] = object()
            cache.put(key, last[key], weight, scan=scan)
            if weighs > budget:
                assert cache.get(key, scan=True) is None
            elif not scan or weighs <= budget // CLAIM:
                assert cache.get(key, scan=True) is last[key]
        elif operation == "offer":
            value = object()
            cache.offer(key, value, weight)
            if before is None:
                last[key] = value
            else:
                assert cache.get(key, scan=True) is before
        elif operation == "discard":
            cache.discard(key)
            assert cache.get(key) is None
        elif operation == "discard_if":
            number = len(cache)
            gone = cache.discard_if(lambda other, key=key: other % 3 == key % 3)  # type: ignore[misc]  # keys are ints
            assert len(cache) == number - gone
            assert cache.get_many([other for other in range(26) if other % 3 == key % 3]) == [None] * len(
                [other for other in range(26) if other % 3 == key % 3]
            )
        elif operation == "clear":
            cache.clear()
            assert (len(cache), cache.current_bytes) == (0, 0)
        else:
            assert cache.get(key, scan=scan) is before
        assert cache.current_bytes <= budget
        assert len(cache) * ENTRY_OVERHEAD_BYTES <= cache.current_bytes


@given(budgets, calls("get", "get", "put", "put", "discard", scans=False))
def test_is_an_lru_cache_without_scans(budget: int, sequence: list[Call]) -> None:
    cache = MemoryCache(budget)
    weights: dict[int, int] = {}
    lru: LRUCache[int, Any] = LRUCache(budget, getsizeof=lambda key: weights[key])
    for operation, key, weight, _ in sequence:
        if operation == "put":
            weights[key] = weight + ENTRY_OVERHEAD_BYTES
            cache.put(key, key, weight)
            lru.pop(key, None)  # its old weight does not count
            if weights[key] <= budget:
                lru[key] = key
        elif operation == "discard":
            cache.discard(key)
            lru.pop(key, None)
        else:
            assert cache.get_many([key]) == [lru.get(key)]
        assert (cache.current_bytes, len(cache)) == (lru.currsize, len(lru))


@given(budgets, st.lists(st.integers(0, 10), max_size=30), calls("get", "put", "offer", scans=True))
def test_scans_take_at_most_their_claim(budget: int, lookups: list[int], sequence: list[Call]) -> None:
    """Whatever scans do that use nothing twice, lookups lose no more than 1/16 of the budget, and one entry."""
    cache = MemoryCache(budget)
    for key in lookups:
        cache.put(key, key, 0)
    before = {key for key in range(11) if cache.get(key, scan=True) is not None}
    for number, (operation, _, weight, _) in enumerate(sequence):
        key = 100 + number
        if operation == "put":
            cache.put(key, key, weight, scan=True)
        elif operation == "offer":
            cache.offer(key, key, weight)
        else:
            cache.get(key - 1, scan=True)
    lost = before - {key for key in range(11) if cache.get(key, scan=True) is not None}
    assert len(lost) * ENTRY_OVERHEAD_BYTES <= budget // CLAIM + ENTRY_OVERHEAD_BYTES
