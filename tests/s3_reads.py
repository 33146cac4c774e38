"""An object on a server that misbehaves when told to, and reads of it."""

from __future__ import annotations

import random

from asyncpq.storage.base import RangeResult, Store, StoredObject
from tests.store_backends import new_context

DATA = random.Random(3).randbytes(100_000)


async def opened(store: Store) -> tuple[StoredObject, RangeResult]:
    stored = await store.open_object("s3://bucket/key")
    return stored, await stored.fetch_tail(1000, context=new_context())


def shown(error: BaseException) -> list[str]:
    """What a traceback says: the error's text, and those of its causes and contexts that it shows."""
    following = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return [str(error), *(shown(following) if following is not None else [])]
