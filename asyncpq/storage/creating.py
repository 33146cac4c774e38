"""What stores that write have in common: above all whether they create objects in one step.

Not all that take the request do: some overwrite, and tell nobody. So it is tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets

from asyncpq.errors import BucketNotFoundError, ConcurrentCommitUnsupported, ObjectNotFoundError, StoreError
from asyncpq.storage.base import RequestContext, WritableStore

_HINT = "Keep the index in a store that can, or write to it from one place alone, with single_writer=True."


class ObjectExistsError(StoreError):
    """There is an object where one was to be created."""


def cannot_create(what: str, url: str) -> ConcurrentCommitUnsupported:
    """The error of a store that is known to have no such step."""
    return ConcurrentCommitUnsupported(f"{what} cannot create an object in one step", url=url, hint=_HINT)


def is_gone(error: StoreError) -> bool:
    """Whether it says that there is no such object or upload, in a bucket that is there."""
    return isinstance(error, ObjectNotFoundError) and not isinstance(error, BucketNotFoundError)


class CreateProbe:
    """Asks once for each place. Belongs to one event loop."""

    def __init__(self) -> None:
        self._known: dict[str, bool] = {}
        self._lock = asyncio.Lock()

    async def ask(self, store: WritableStore, place: str, url: str, context: RequestContext) -> bool:
        """Whether ``store`` refuses to create what is there.

        Args:
            place: what shares one answer.
            url: of a folder, with its slash, in which it is tried.

        Raises:
            StoreError: as creating and deleting.
        """
        async with self._lock:
            known = self._known.get(place)
            if known is None:
                known = self._known[place] = await _try(store, f"{url}.probe-{secrets.token_hex(8)}", context)
            return known


async def _try(store: WritableStore, url: str, context: RequestContext) -> bool:
    try:
        # False at first: the answer was lost, and the second attempt was refused
        refused = not await store.create_object(url, b"1", context=context)
        context = context.step(context.purpose, context.round + 1)
        return refused or not await store.create_object(url, b"2", context=context)
    except ConcurrentCommitUnsupported:
        return False
    finally:
        with contextlib.suppress(StoreError):  # who may not delete is told so by what needs it
            await store.delete_objects([url], context=context.step(context.purpose, context.round + 1))
