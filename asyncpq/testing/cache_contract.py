"""The contract of a cache tier (:class:`asyncpq.caching.tiers.CacheTier`), as checks for any test runner.

Give each check your tier as a new, empty :class:`TierStorage`::

    @pytest.mark.parametrize("check", CACHE_TIER_CHECKS, ids=lambda check: check.__name__)
    async def test_tier(check, tmp_path):
        await check(MyTierStorage(tmp_path))

A tier may miss at any time, because it is full or slow; the checks store little and expect to find it again. A failed
check raises AssertionError. :class:`FolderStorage` and :class:`ServerStorage` are the storages of asyncpq's own tiers.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from asyncpq.caching.disk import DiskCache
from asyncpq.caching.entry_format import ContentKey, Pointer, PointerKey
from asyncpq.caching.shared import SharedCache
from asyncpq.caching.tiers import CacheTier
from asyncpq.options import DiskCacheOptions, SharedCacheOptions
from asyncpq.storage.base import Validator
from asyncpq.testing.assertions import checks_of, equal

_POINTER_KEY = PointerKey("namespace", "s3|endpoint|bucket|key")
#: A pointer may come back this much older: a tier takes time and may round ages up.
_AGEING_S = 5.0


class TierStorage(Protocol):
    """The storage of one cache tier, and a way to change its entries without the tier's knowledge. Implement it for the
    checks in ``CACHE_TIER_CHECKS``."""

    async def open(self) -> CacheTier:
        """Return a further tier on the same storage, open, as another process would have it. The check that calls this
        closes it."""

    async def rewrite(self, change: Callable[[bytes], bytes]) -> int:
        """Replace each stored entry with ``change(entry)``, as the tier has encoded it; return the number of entries.
        Checks damage entries with it."""

    async def set_writable(self, writable: bool) -> bool:
        """Make the storage read-only, or writable again, and return True. Return False if the storage does not support
        that: the checks of read-only storages are then left out."""


class _OwnStorage:
    """The base of the storages of asyncpq's own tiers."""

    async def set_writable(self, writable: bool) -> bool:
        """Return False: this class cannot make its storage read-only. A subclass may override the method."""
        return False

    async def rewrite(self, change: Callable[[bytes], bytes]) -> int:
        """Replace each stored entry with ``change(entry)``, for checks; return the number of entries."""
        return await asyncio.to_thread(self._rewrite, change)

    def _rewrite(self, change: Callable[[bytes], bytes]) -> int:
        raise NotImplementedError


class FolderStorage(_OwnStorage):
    """The :class:`TierStorage` of ``disk_cache``. ``folder`` does not exist yet, and is on the file system to test."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._options = DiskCacheOptions(path=os.fspath(folder), timeout_s=60.0)

    async def open(self) -> CacheTier:
        """Return a new, open disk cache on the folder. The caller closes it."""
        tier = DiskCache(self._options)
        await tier.open()
        return tier

    def _rewrite(self, change: Callable[[bytes], bytes]) -> int:
        paths = list(Path(self._options.path).glob("??/*"))
        for path in paths:
            path.write_bytes(change(path.read_bytes()))
        return len(paths)


class ServerStorage(_OwnStorage):
    """The :class:`TierStorage` of ``shared_cache``. The server has no keys that begin with ``options.prefix``.

    Args:
        options: the options of your sessions, with a long ``timeout_s``: late answers count as misses.
        admin: a ``valkey.Valkey`` or ``redis.Redis`` of a user who may list, read and write the server's keys.
    """

    def __init__(self, options: SharedCacheOptions, admin: Any) -> None:
        self._options = options
        self._admin = admin

    async def open(self) -> CacheTier:
        """Return a new client of the server's cache. The caller closes it."""
        return SharedCache(self._options)

    def _rewrite(self, change: Callable[[bytes], bytes]) -> int:
        names = list(self._admin.scan_iter(match=f"{self._options.prefix}*", count=1000))
        for name in names:
            self._admin.set(name, change(self._admin.get(name)))
        return len(names)


# -- the checks -----------------------------------------------------------------------------------


async def check_round_trip(storage: TierStorage) -> None:
    """Check that a value can be read back, also by a tier of another process."""
    entries = {key: bytes([place]) * (place + 1) for place, key in enumerate(_keys(20))}
    async with _opened(storage) as tier:
        await tier.put_many(entries)
        equal(await tier.get_many(list(entries)), list(entries.values()), "values that this tier put")
        async with _opened(storage) as other:
            values = await other.get_many(list(entries))
            equal(values, list(entries.values()), "values that another tier on the same storage put")
    async with _opened(storage) as later:
        equal(await later.get_many(list(entries)), list(entries.values()), "values of a tier that was closed")


async def check_misses(storage: TierStorage) -> None:
    """Check that a key without a value gives None, and that calls without keys do nothing."""
    async with _opened(storage) as tier:
        equal(await tier.get_many(_keys(3)), [None, None, None], "keys that were not put")
        equal(await tier.get_many([]), [], "no keys")
        await tier.put_many({})
        assert await tier.get_pointer(_POINTER_KEY) is None, "a pointer that was not put"


async def check_order(storage: TierStorage) -> None:
    """Check that a multi-get answers in the order of its keys, with None for misses, also for repeated keys."""
    keys = _keys(40)
    present = {key: repr(key).encode() for key in keys[::2]}
    repeated = [*keys, *keys[:7]]
    random.Random(4).shuffle(repeated)
    async with _opened(storage) as tier:
        await tier.put_many(present)
        equal(await tier.get_many(repeated), [present.get(key) for key in repeated], "values in the order of the keys")


async def check_sizes(storage: TierStorage) -> None:
    """Check that values of all sizes, the empty value included, are returned unchanged."""
    values = [b"", b"\0", bytes(range(256)) * 16, random.Random(4).randbytes(1 << 16), bytes(100_001)]
    entries = dict(zip(_keys(len(values)), values, strict=True))
    async with _opened(storage) as tier:
        await tier.put_many(entries)
        equal(await tier.get_many(list(entries)), values, "values of all sizes")


async def check_keys(storage: TierStorage) -> None:
    """Check that keys that differ in any field are different keys."""
    base = ContentKey(bytes(16), "page", 4, 100)
    keys = [
        base,
        base._replace(version=bytes(15) + b"\1"),
        base._replace(kind="dictionary"),
        base._replace(kind="tail"),
        base._replace(start=5),
        base._replace(stop=101),
        base._replace(start=41, stop=0),
        base._replace(start=1 << 62, stop=(1 << 62) + 1),
    ]
    entries = {key: str(place).encode() for place, key in enumerate(keys)}
    async with _opened(storage) as tier:
        for key in keys:
            equal(await tier.get_many([key]), [None], "a key that differs in one thing from those that were put")
            await tier.put_many({key: entries[key]})
        equal(await tier.get_many(keys), list(entries.values()), "keys that differ in one thing")


async def check_put_again(storage: TierStorage) -> None:
    """Check that a second put replaces the value, whatever the lengths of both."""
    (key,) = _keys(1)
    async with _opened(storage) as tier:
        for value in (b"first", b"", b"the third, which is longer", b"4"):
            await tier.put_many({key: value})
            equal(await tier.get_many([key]), [value], "the value that was put last")


async def check_pointers(storage: TierStorage) -> None:
    """Check that the validator of a pointer (a tier's note of an object's last known version) is returned unchanged,
    and that its age never becomes younger."""
    now = time.monotonic()
    odd = "W/\"\udcff\ud800-é-\0-\U0001f5dd'"
    pointers = [
        Pointer(Validator(0), now),
        Pointer(Validator(12, '"etag"'), now - 3.5),
        Pointer(Validator((1 << 63) + 1, odd, "Thu, 01 Jan 1970 00:00:00 GMT", ""), now - 100_000.0),
        Pointer(Validator(5, None, None, "1700000000000000"), now),
        Pointer(Validator(7, "", odd, None), -math.inf),
    ]
    async with _opened(storage) as tier, _opened(storage) as other:
        for place, pointer in enumerate(pointers):
            key = PointerKey(f"namespace {place}", odd.encode("utf-8", "replace").decode())
            await tier.put_pointer(key, pointer)
            for reader in (tier, other):
                await _check_pointer(reader, pointer, f"the pointer {pointer}", key)
        first = await other.get_pointer(PointerKey("namespace 1", _POINTER_KEY.identity))
        assert first is None, "another identity"


async def check_newer_pointer(storage: TierStorage) -> None:
    """Check that a pointer with a later validation replaces one with an earlier, whichever tier writes it."""
    newer = Pointer(Validator(2, '"new"'), time.monotonic())
    async with _opened(storage) as tier, _opened(storage) as other:
        await tier.put_pointer(_POINTER_KEY, Pointer(Validator(1, '"old"'), newer.validated_at - 50))
        await other.put_pointer(_POINTER_KEY, newer)
        await _check_pointer(tier, newer, "the pointer that was validated later")


async def check_older_pointer(storage: TierStorage) -> None:
    """Check that a pointer with an earlier validation does not replace one with a later, whichever tier writes it."""
    newer = Pointer(Validator(2, '"new"'), time.monotonic())
    async with _opened(storage) as tier, _opened(storage) as other:
        await tier.put_pointer(_POINTER_KEY, newer)
        for writer in (tier, other):
            for validated_at in (newer.validated_at - 50, -math.inf):
                await writer.put_pointer(_POINTER_KEY, Pointer(Validator(1, '"old"'), validated_at))
                await _check_pointer(tier, newer, "the pointer that was validated later")


async def check_drop_pointer(storage: TierStorage) -> None:
    """Check that a dropped pointer is gone for all tiers, contents stay, and dropping a missing pointer is allowed."""
    (key,) = _keys(1)
    async with _opened(storage) as tier, _opened(storage) as other:
        await tier.drop_pointer(_POINTER_KEY)
        await tier.put_many({key: b"content"})
        await tier.put_pointer(_POINTER_KEY, Pointer(Validator(1, '"a"'), time.monotonic()))
        await other.drop_pointer(_POINTER_KEY)
        assert await tier.get_pointer(_POINTER_KEY) is None, "a pointer that another tier dropped"
        equal(await tier.get_many([key]), [b"content"], "contents, once a pointer was dropped")
        last = Pointer(Validator(2, '"b"'), time.monotonic() - 1)
        await tier.put_pointer(_POINTER_KEY, last)
        await _check_pointer(other, last, "the pointer that was put once one was dropped")


async def check_concurrent_use(storage: TierStorage) -> None:
    """Check that concurrent calls through several tiers give right values, and at the end all values are there."""
    keys = _keys(60)
    values = {key: repr(key).encode() * 50 for key in keys}
    choose = random.Random(4)
    async with _opened(storage) as tier, _opened(storage) as other:

        async def use(tier: CacheTier, mine: Sequence[ContentKey]) -> None:
            await tier.put_many({key: values[key] for key in mine[:5]})
            for key, value in zip(mine, await tier.get_many(mine), strict=True):
                assert value in (None, values[key]), "another key's value"

        await asyncio.gather(*(use(choose.choice((tier, other)), choose.sample(keys, 15)) for _ in range(40)))
        for start in range(0, len(keys), 20):
            await tier.put_many({key: values[key] for key in keys[start : start + 20]})
        equal(await other.get_many(keys), [values[key] for key in keys], "values of concurrent puts")


async def check_cancellation(storage: TierStorage) -> None:
    """Check that a cancelled call does not affect other calls."""
    keys = _keys(30)
    async with _opened(storage) as tier:
        await tier.put_many(dict.fromkeys(keys, b"value"))
        for turns in range(6):
            tasks = [
                asyncio.ensure_future(tier.get_many(keys)),
                asyncio.ensure_future(tier.put_many(dict.fromkeys(keys, b"value"))),
                asyncio.ensure_future(tier.get_pointer(_POINTER_KEY)),
            ]
            for _ in range(turns):
                await asyncio.sleep(0)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            equal(await tier.get_many(keys), [b"value"] * len(keys), "values from before the cancelled calls")


async def check_unwritable(storage: TierStorage) -> None:
    """Check that read-only storage still answers open and new tiers, and that writes to it raise nothing."""
    kept, other_key = _keys(2)
    pointer_key = _POINTER_KEY._replace(identity="another")
    pointer = Pointer(Validator(1, '"a"'), time.monotonic())
    async with _opened(storage) as tier:
        await tier.put_many({kept: b"value"})
        await tier.put_pointer(_POINTER_KEY, pointer)
        if not await storage.set_writable(False):
            return
        try:
            async with _opened(storage) as later:
                for reader in (tier, later):
                    for _ in range(6):  # before and after the tier stops trying to write
                        await reader.put_many({other_key: b"other", kept: b"value"})
                        await reader.put_pointer(pointer_key, Pointer(Validator(2, '"b"'), time.monotonic()))
                        await reader.drop_pointer(pointer_key)
                        values = await reader.get_many([kept, other_key])
                        equal(values, [b"value", None], "values from before the storage was read-only")
                        assert await reader.get_pointer(pointer_key) is None, "a pointer that could not be written"
                        await _check_pointer(reader, pointer, "the pointer from before")
        finally:
            await storage.set_writable(True)
    async with _opened(storage) as afterwards:
        await afterwards.put_many({other_key: b"other"})
        values = await afterwards.get_many([kept, other_key])
        equal(values, [b"value", b"other"], "values from after the storage was writable again")


async def check_closing(storage: TierStorage) -> None:
    """Check that a tier can be closed twice, also if it was never used, and that a closed tier returns no values."""
    await (unused := await storage.open()).close()
    await unused.close()
    tier = await storage.open()
    (key,) = _keys(1)
    await tier.put_many({key: b"value"})
    await tier.close()
    await tier.close()
    equal(await tier.get_many([key]), [None], "a closed tier's answer")
    await tier.put_many({key: b"other"})
    await tier.put_pointer(_POINTER_KEY, Pointer(Validator(1), 0.0))
    await tier.drop_pointer(_POINTER_KEY)
    assert await tier.get_pointer(_POINTER_KEY) is None, "a closed tier has a pointer"
    async with _opened(storage) as later:
        equal(await later.get_many([key]), [b"value"], "the value from before the tier was closed")


async def check_damage(storage: TierStorage) -> None:
    """Check that a damaged entry is a miss or returns the true value, and that its key can be put again."""
    first, second = _keys(2)
    pointer = Pointer(Validator(9, '"etag"'), time.monotonic() - 1000.0)
    async with _opened(storage) as tier:

        async def put() -> None:
            await tier.put_many({first: b"the first", second: b"another"})
            await tier.put_pointer(_POINTER_KEY, pointer)

        async def read() -> None:
            assert (await tier.get_many([first]))[0] in (None, b"the first"), "bytes that were not put"
            assert (await tier.get_many([second]))[0] in (None, b"another"), "bytes that were not put"
            if await tier.get_pointer(_POINTER_KEY) is not None:
                await _check_pointer(tier, pointer, "a damaged pointer")

        await put()
        stored: list[bytes] = []

        def keep(entry: bytes) -> bytes:
            stored.append(entry)
            return entry

        await storage.rewrite(keep)
        assert len(stored) == 3, "three entries are three entries in the storage"
        for change in _damages(stored):
            await put()
            equal(await storage.rewrite(change), 3, "entries that the storage rewrites")
            await read()
            await read()  # a dropped entry is a miss, too
        await put()
        values = await tier.get_many([first, second])
        equal(values, [b"the first", b"another"], "values that were put over damaged entries")
        await _check_pointer(tier, pointer, "the pointer that was put over a damaged one")


CACHE_TIER_CHECKS: tuple[Callable[[TierStorage], Awaitable[None]], ...] = checks_of(globals())


def _damages(stored: Sequence[bytes]) -> list[Callable[[bytes], bytes]]:
    """Return functions that damage entries: flip each byte, cut to each length, lengthen, blank, or exchange them
    for one another."""

    def flip(place: int, bits: int) -> Callable[[bytes], bytes]:
        return lambda entry: (
            entry[:place] + bytes([entry[place] ^ bits]) + entry[place + 1 :] if place < len(entry) else entry
        )

    def cut(length: int) -> Callable[[bytes], bytes]:
        return lambda entry: entry[:length]

    longest = max(map(len, stored))
    choose = random.Random(4)
    damages = [flip(place, choose.choice((1, 128, 255))) for place in range(longest)]
    damages += [cut(length) for length in range(longest)]
    damages += [lambda entry: entry + b"\0", lambda entry: entry * 2, lambda entry: bytes(len(entry))]
    damages += [lambda entry, other=other: other for other in stored]  # type: ignore[misc]
    return damages


def _keys(count: int) -> list[ContentKey]:
    return [ContentKey(b"version of bytes", "page", 10 * place, 10 * place + 9) for place in range(count)]


async def _check_pointer(tier: CacheTier, expected: Pointer, name: str, key: PointerKey = _POINTER_KEY) -> None:
    """Check that the tier returns the pointer ``expected`` with its validator, with an age that is not lower and at
    most a little higher."""
    pointer = await tier.get_pointer(key)
    assert pointer is not None, f"{name} is missing: the tier returned None"
    equal(pointer.validator, expected.validator, f"the validator of {name}")
    # 1 ms: the two clocks are read one after the other
    assert pointer.validated_at <= expected.validated_at + 0.001, f"{name} is younger than it is"
    assert pointer.validated_at >= expected.validated_at - _AGEING_S, f"{name} is older than it can be"


@contextlib.asynccontextmanager
async def _opened(storage: TierStorage) -> AsyncIterator[CacheTier]:
    tier = await storage.open()
    try:
        yield tier
    finally:
        await tier.close()
