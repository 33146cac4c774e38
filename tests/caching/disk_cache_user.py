"""Processes that use a disk cache as fast as they can, with values that can be foretold.

They are forked from a server that has imported everything, so that killing one costs no new interpreter.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import random
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from asyncpq.caching.disk import DiskCache
from asyncpq.caching.entry_format import ContentKey, Pointer, PointerKey
from asyncpq.options import DiskCacheOptions
from asyncpq.storage.base import Validator

KEYS = [ContentKey(b"version of bytes", "page", place, place + 1) for place in range(300)]
POINTER_KEYS = [PointerKey("namespace", f"object {place}") for place in range(10)]


def _value(seed: int) -> bytes:
    choose = random.Random(seed)
    return choose.randbytes(choose.choice((3, 500, 5_000, 40_000)))


VALUES = {key: _value(key.start) for key in KEYS}  # made before a process starts, so that it does nothing but write


def validator_of(key: PointerKey) -> Validator:
    return Validator(len(key.identity), f'"{key.identity}"')


async def wrong_values(cache: DiskCache) -> int:
    """How many of all entries that can be read now are wrong; misses are none."""
    values = await cache.get_many(KEYS)
    wrong = sum(value not in (None, VALUES[key]) for key, value in zip(KEYS, values, strict=True))
    for key in POINTER_KEYS:
        pointer = await cache.get_pointer(key)
        wrong += pointer is not None and pointer.validator != validator_of(key)
    return wrong


async def use(started: Connection, folder: str, max_bytes: int, seed: int, rounds: int) -> None:
    """Put and read in turns; fails at a wrong value, and if anything is counted as an error."""
    choose = random.Random(seed)
    cache = DiskCache(DiskCacheOptions(path=folder, max_bytes=max_bytes, timeout_s=60.0))
    started.send("started")
    for turn in range(rounds):
        keys = choose.sample(KEYS, 12)
        await cache.put_many({key: VALUES[key] for key in keys})
        pointer_key = choose.choice(POINTER_KEYS)
        await cache.put_pointer(pointer_key, Pointer(validator_of(pointer_key), time.monotonic()))
        if turn % 20 == 19:
            assert await wrong_values(cache) == 0
            await cache.drop_pointer(pointer_key)
    assert cache.errors == 0, "something failed"
    await cache.close()


def run(started: Connection, folder: str, max_bytes: int, seed: int, rounds: int) -> None:
    asyncio.run(use(started, folder, max_bytes, seed, rounds))


@contextlib.contextmanager
def user(folder: Path, max_bytes: int, seed: int, rounds: int) -> Iterator[ForkServerProcess]:
    """A process that has begun to use the folder. It is ended at the latest when this is left."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    here, there = context.Pipe()
    process = context.Process(target=run, args=(there, str(folder), max_bytes, seed, rounds))
    process.start()
    there.close()
    try:
        assert here.recv() == "started"
        yield process
    finally:
        here.close()
        process.kill()
        process.join()
        process.close()
