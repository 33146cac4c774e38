"""The contract of a cache tier: a correct tier passes each check, and each defect fails one."""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence

import pytest

from asyncpq.caching.entry_format import ContentKey, Pointer, PointerKey
from asyncpq.caching.tiers import CacheTier
from asyncpq.storage.base import Validator
from asyncpq.testing import CACHE_TIER_CHECKS, TierStorage
from asyncpq.testing.cache_contract import (
    check_closing,
    check_damage,
    check_drop_pointer,
    check_keys,
    check_misses,
    check_older_pointer,
    check_order,
    check_pointers,
    check_put_again,
    check_round_trip,
    check_unwritable,
)

Check = Callable[[TierStorage], Awaitable[None]]
POINTER_BYTES = b"a pointer"


class DictStorage:
    """Entries in a dict, each with a checksum of key and value; the defect says what its tiers do wrong."""

    def __init__(self, defect: str = "") -> None:
        self.defect = defect
        self.entries: dict[ContentKey | PointerKey, bytes] = {}
        self.pointers: dict[PointerKey, Pointer] = {}
        self.writable = True

    async def open(self) -> CacheTier:
        return DictTier(DictStorage(self.defect) if self.defect == "keeps to itself" else self)

    async def rewrite(self, change: Callable[[bytes], bytes]) -> int:
        self.entries = {key: change(entry) for key, entry in self.entries.items()}
        return len(self.entries)

    async def set_writable(self, writable: bool) -> bool:
        self.writable = writable
        return True


def _checksum(key: ContentKey | PointerKey, value: bytes) -> bytes:
    return zlib.crc32(repr(key).encode() + value).to_bytes(4, "big")


class DictTier:
    name = "disk"
    max_read_bytes = 1 << 30

    def __init__(self, storage: DictStorage) -> None:
        self._storage = storage
        self._closed = False

    def _key(self, key: ContentKey) -> ContentKey:
        return key._replace(kind="page") if self._storage.defect == "ignores the kind" else key

    def _value(self, key: ContentKey | PointerKey) -> bytes | None:
        entry = self._storage.entries.get(key)
        if entry is None or (self._closed and self._storage.defect != "answers when closed"):
            return None
        value, checksum = entry[:-4], entry[-4:]
        return value if checksum == _checksum(key, value) or self._storage.defect == "trusts the bytes" else None

    def _put(self, key: ContentKey | PointerKey, value: bytes) -> bool:
        if self._closed or not self._storage.writable:
            if self._storage.defect == "raises when read-only" and not self._storage.writable:
                raise OSError("read-only")
            return False
        self._storage.entries[key] = value + _checksum(key, value)
        return True

    async def get_many(self, keys: Sequence[ContentKey]) -> list[bytes | None]:
        values = [self._value(self._key(key)) for key in keys]
        if self._storage.defect == "answers in its own order":
            values.sort(key=lambda value: value or b"")
        if self._storage.defect == "invents":
            values = [value or b"?" for value in values]
        return values

    async def put_many(self, entries: Mapping[ContentKey, bytes], *, scan: bool = False) -> None:
        for key, value in entries.items():
            if self._storage.defect != "keeps the first" or self._key(key) not in self._storage.entries:
                self._put(self._key(key), value)

    async def get_pointer(self, key: PointerKey) -> Pointer | None:
        pointer = self._storage.pointers.get(key)
        if pointer is None or self._value(key) != POINTER_BYTES:
            return None
        if self._storage.defect == "makes pointers younger":
            return Pointer(pointer.validator, pointer.validated_at + 1.0)
        if self._storage.defect == "forgets the ETag":
            return Pointer(Validator(pointer.validator.size), pointer.validated_at)
        return pointer

    async def put_pointer(self, key: PointerKey, pointer: Pointer) -> None:
        known = self._storage.pointers.get(key)
        is_older = known is not None and key in self._storage.entries and known.validated_at > pointer.validated_at
        if (not is_older or self._storage.defect == "lets older pointers win") and self._put(key, POINTER_BYTES):
            self._storage.pointers[key] = pointer

    async def drop_pointer(self, key: PointerKey) -> None:
        if self._storage.writable and not self._closed and self._storage.defect != "keeps pointers":
            self._storage.entries.pop(key, None)
            self._storage.pointers.pop(key, None)

    async def close(self) -> None:
        self._closed = True


@pytest.mark.parametrize("check", CACHE_TIER_CHECKS, ids=lambda check: check.__name__)
async def test_a_correct_tier_passes(check: Check) -> None:
    await check(DictStorage())


@pytest.mark.parametrize(
    ("defect", "check"),
    [
        ("keeps to itself", check_round_trip),
        ("invents", check_misses),
        ("answers in its own order", check_order),
        ("ignores the kind", check_keys),
        ("keeps the first", check_put_again),
        ("forgets the ETag", check_pointers),
        ("makes pointers younger", check_pointers),
        ("lets older pointers win", check_older_pointer),
        ("keeps pointers", check_drop_pointer),
        ("answers when closed", check_closing),
        ("trusts the bytes", check_damage),
    ],
)
async def test_a_defect_fails_its_check(defect: str, check: Check) -> None:
    with pytest.raises(AssertionError):
        await check(DictStorage(defect))


async def test_a_tier_that_raises_fails() -> None:
    with pytest.raises(OSError, match="read-only"):
        await check_unwritable(DictStorage("raises when read-only"))
