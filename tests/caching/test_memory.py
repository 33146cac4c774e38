"""The memory cache: its budget, what a scan may and may not push out, threads, and what entries really weigh."""

from __future__ import annotations

import gc
import operator
import os
import subprocess
import sys
import threading
import tracemalloc
from functools import partial
from typing import Any, Literal, NamedTuple

import pytest
from cachetools import LRUCache
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.caching.entry_format import ContentKey
from asyncpq.caching.memory import CLAIM, ENTRY_OVERHEAD_BYTES, MemoryCache

ENTRY = 1000  # bytes, the cache's own included


def put(cache: MemoryCache, *keys: object, scan: bool = False) -> None:
    for key in keys:
        cache.put(key, f"value of {key}", ENTRY - ENTRY_OVERHEAD_BYTES, scan=scan)


def offer(cache: MemoryCache, *keys: object) -> None:
    for key in keys:
        cache.offer(key, f"value of {key}", ENTRY - ENTRY_OVERHEAD_BYTES)


def kept(cache: MemoryCache, *keys: object) -> list[object]:
    """Which of the keys are there, without using them: a scan that looks at guests promotes none."""
    return [key for key, value in zip(keys, cache.get_many(keys, scan=True), strict=True) if value is not None]


def test_keeps_within_its_budget_and_drops_the_oldest() -> None:
    cache = MemoryCache(3 * ENTRY)
    put(cache, "a", "b", "c")
    assert cache.get("a") == "value of a"  # now the youngest
    put(cache, "d")
    assert cache.get_many("abcd") == ["value of a", None, "value of c", "value of d"]
    assert cache.current_bytes == cache.max_bytes
    assert len(cache) == 3


def test_weighs_again_what_is_put_again() -> None:
    cache = MemoryCache(2 * ENTRY)
    put(cache, "a", "b")
    cache.put("a", 1, 2 * ENTRY - ENTRY_OVERHEAD_BYTES)
    assert cache.get_many("ab") == [1, None]
    assert cache.current_bytes == 2 * ENTRY
    put(cache, "a")
    assert cache.current_bytes == ENTRY


def test_refuses_what_is_larger_than_itself() -> None:
    cache = MemoryCache(1000)
    cache.put("a", 1, 100)
    for scan in (False, True):
        cache.put("b", 2, 1001, scan=scan)
    cache.offer("b", 2, 1001)
    assert cache.get_many("ab") == [1, None]
    cache.put("a", 3, 1001)
    assert cache.get("a") is None  # the old value would be stale
    nothing = MemoryCache(0)
    nothing.put("a", 1, 0)
    nothing.put("a", 1, 0, scan=True)
    nothing.offer("a", 1, 0)
    assert len(nothing) == 0


def test_a_scan_takes_free_room_and_hits_itself() -> None:
    cache = MemoryCache(10 * ENTRY)
    put(cache, *range(10), scan=True)
    assert cache.get_many(range(10), scan=True) == [f"value of {number}" for number in range(10)]


def test_a_scan_claims_its_share_and_no_more() -> None:
    cache = MemoryCache(100 * CLAIM * ENTRY)
    put(cache, *range(100 * CLAIM))
    put(cache, *(("page", number) for number in range(10_000)), scan=True)
    lost = 100 * CLAIM - len(kept(cache, *range(100 * CLAIM)))
    assert lost == 100
    assert cache.current_bytes <= cache.max_bytes


def test_what_a_scan_did_not_ask_for_claims_nothing() -> None:
    cache = MemoryCache(100 * ENTRY)
    put(cache, *range(99))
    offer(cache, "one", "two")
    assert len(kept(cache, *range(99))) == 99
    assert len(kept(cache, "one", "two")) == 1
    put(cache, "three")
    assert kept(cache, "one", "two", "three") == ["three"]


def test_an_offer_leaves_what_is_there() -> None:
    cache = MemoryCache(100 * ENTRY)
    cache.put("a", "decoded", 50)
    cache.put("b", "decoded", 50, scan=True)
    for key in "ab":
        cache.offer(key, "bytes", 10)
    assert cache.get_many("ab") == ["decoded", "decoded"]
    assert (len(cache), cache.current_bytes) == (2, 2 * (50 + ENTRY_OVERHEAD_BYTES))


def test_what_a_lookup_finds_is_no_guest_any_more() -> None:
    cache = MemoryCache(10 * ENTRY)
    put(cache, *range(10), scan=True)
    assert cache.get(3) == "value of 3"
    assert cache.get_many([4]) == ["value of 4"]
    put(cache, 5)
    put(cache, 6, scan=True)
    assert cache.get(7, scan=True) == "value of 7"
    assert cache.current_bytes == 10 * ENTRY
    put(cache, *range(100, 200), scan=True)
    assert kept(cache, *range(10)) == [3, 4, 5]


def test_it_weighs_as_before_then() -> None:
    cache = MemoryCache(10 * ENTRY)
    cache.put("a", 1, 5000, scan=True)
    cache.put("b", 2, 10)
    assert cache.get("a") == 1
    assert cache.current_bytes == 5010 + 2 * ENTRY_OVERHEAD_BYTES
    cache.clear()
    put(cache, *range(5))
    put(cache, *range(5, 10), scan=True)
    put(cache, 0)  # takes the room that it had
    assert kept(cache, *range(10)) == list(range(10))


def test_what_is_remembered_counts() -> None:
    cache = MemoryCache(50 * ENTRY)
    put(cache, *range(100), scan=True)
    put(cache, *(("page", number) for number in range(50)))  # no guest is left, but what is known of some
    assert cache.current_bytes <= cache.max_bytes
    cache.clear()
    put(cache, *range(50))
    cache.put("large", 1, 10 * ENTRY, scan=True)
    assert kept(cache, "large") == []
    assert cache.current_bytes <= cache.max_bytes
    assert len(cache) == 49
    cache.put("large", 1, 10 * ENTRY, scan=True)  # asked for again
    assert kept(cache, "large") == ["large"]


def test_lookups_take_room_from_guests_first() -> None:
    cache = MemoryCache(10 * ENTRY)
    put(cache, "old")
    put(cache, *range(9), scan=True)
    put(cache, *(("page", number) for number in range(4)))
    assert kept(cache, "old") == ["old"]
    assert len(kept(cache, *range(9))) < 6


def test_what_scans_use_again_and_again_is_kept() -> None:
    cache = MemoryCache(1000 * ENTRY)
    put(cache, *range(1000))  # of lookups that nobody makes any more
    pages = [("page", number) for number in range(200)]
    for _ in range(3):
        for page in pages:
            if cache.get(page, scan=True) is None:
                put(cache, page, scan=True)
    assert kept(cache, *pages) == pages


def test_a_scan_that_is_far_too_large_is_not_kept_the_second_time_either() -> None:
    cache = MemoryCache(1000 * ENTRY)
    put(cache, *range(1000))
    for _ in range(3):
        put(cache, *(("page", number) for number in range(5000)), scan=True)
    assert len(kept(cache, *range(1000))) >= 1000 - 1000 // CLAIM - 1


def test_discards_guests_as_well() -> None:
    cache = MemoryCache(10 * ENTRY)
    put(cache, "a", "b")
    put(cache, "c", "d", "e", scan=True)
    cache.discard("a")
    cache.discard("c")
    cache.discard("nothing")
    assert kept(cache, *"abcde") == ["b", "d", "e"]
    assert cache.discard_if(lambda key: key in ("b", "d")) == 2
    assert kept(cache, *"abcde") == ["e"]
    put(cache, *range(100), scan=True)
    cache.clear()
    assert (len(cache), cache.current_bytes) == (0, 0)


def test_is_safe_in_threads() -> None:
    cache = MemoryCache(50_000)
    wrong: list[object] = []
    interval = sys.getswitchinterval()

    def work(seed: int) -> None:
        try:
            call_all(seed)
        except Exception as error:  # noqa: BLE001
            wrong.append(error)

    def call_all(seed: int) -> None:
        for number in range(3000):
            key = (seed * number) % 300
            scan = number % 3 == 0
            cache.put(key, key, key, scan=scan)
            wrong.extend(value for value in [cache.get(key, scan=scan)] if value not in (None, key))
            cache.offer(key + 1, key + 1, key)
            cache.get_many([1, 2, key])
            if number % 100 == 0:
                cache.discard_if(partial(operator.eq, key))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in (1, 7, 11, 13)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not wrong
    assert 0 < cache.current_bytes <= 50_000
    cache.clear()
    assert (len(cache), cache.current_bytes) == (0, 0)


FORKS = """
import os, signal, sys, threading
from asyncpq import MemoryCache

cache, stop = MemoryCache(100_000), threading.Event()
sys.setswitchinterval(1e-6)

def work():
    while not stop.is_set():
        cache.discard_if(lambda key: key % 2 == 0)
        for key in range(100):
            cache.put(key, key, key)

threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
for number in range(100):
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        for key in range(100):
            cache.put(key, key, key)
            assert cache.get(key) == key
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    cache.put(number, number, 1)
stop.set()
for thread in threads:
    thread.join()
"""


@pytest.mark.heavy
@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system cannot fork")
def test_a_fork_finds_it_unlocked_and_whole() -> None:
    result = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORKS], capture_output=True, text=True, timeout=100, check=False
    )
    assert (result.returncode, result.stderr) == (0, "")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("scan", [False, True])
@pytest.mark.parametrize("number", [1000, 3000, 10_000])
def test_entries_weigh_what_they_take(number: int, scan: bool) -> None:
    """What Python allocates, as entries come and go, against what the budget counts."""
    cache = MemoryCache(number * (1000 + ENTRY_OVERHEAD_BYTES))
    version = bytes(16)
    gc.collect()
    tracemalloc.start()
    try:
        for start in range(10**7, 10**7 + 2 * number * 8192, 8192):
            cache.put(ContentKey(version, "page", start, start + 8192), bytes(1000), 1000, scan=scan)
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert cache.current_bytes > 0.99 * cache.max_bytes
    assert 0.85 * cache.current_bytes < taken < 1.05 * cache.current_bytes


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
