"""Decode the row groups of a unit as their bytes come, while those of others are still fetched.

A lookup of a thousand keys in 400 MB, at 4 MB/s a connection, takes 1.92 s, and 2.2 s if decoding begins with the last
byte.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Generic, TypeAlias, TypeVar

from asyncpq.caching.entry_format import ContentKey
from asyncpq.objects.read_plan import RowGroupPiece
from asyncpq.storage.threads import end_tasks

T = TypeVar("T")

Arrived: TypeAlias = list[tuple[ContentKey, Any]]  # the items of a piece, by cache key, in its order


class EarlyDecoding(Generic[T]):
    """Starts to decode each of ``pieces`` once all of its items have come: the ``Arrivals`` of one fetch.

    ``decode`` returns a coroutine that decodes one piece. ``asked`` is called first, with the parts that no cache had.
    The caller must :meth:`close` it.
    """

    def __init__(
        self,
        pieces: Sequence[RowGroupPiece],
        decode: Callable[[RowGroupPiece, Arrived], Coroutine[Any, Any, T]],
        asked: Callable[[Collection[ContentKey]], None],
    ) -> None:
        self._pieces = pieces
        self._decode = decode
        self._asked = asked
        self._keys: list[Sequence[ContentKey]] = []  # of each piece
        self._place: dict[ContentKey, int] = {}  # the number of the piece, of each item that has not come
        self._left: list[int] = []  # items that have not come, of each piece
        self._values: dict[ContentKey, Any] = {}
        self._tasks: dict[int, asyncio.Task[T]] = {}  # by number of the piece

    def name(self, keys: Sequence[ContentKey]) -> None:
        """Set the cache keys of all items of the pieces, in order."""
        start = 0
        for piece in self._pieces:
            stop = start + len(piece.items)
            self._keys.append(keys[start:stop])
            start = stop

    @property
    def has_begun(self) -> bool:
        """Whether parts were fetched: if all came from caches, nothing is decoded early."""
        return bool(self._left)

    def begin(self, missing: Collection[ContentKey]) -> None:
        """Prepare for the parts of the pieces, of which ``missing`` are fetched."""
        self._asked(missing)
        self._left = [len(keys) for keys in self._keys]
        for number, keys in enumerate(self._keys):
            self._place.update(dict.fromkeys(keys, number))
            if not keys:
                self._start(number)

    def landed(self, parts: Mapping[ContentKey, Any]) -> None:
        """Take ``parts``, and start to decode the pieces that they complete."""
        for key, value in parts.items():
            number = self._place.pop(key, None)
            if number is not None:
                self._values[key] = value
                self._left[number] -= 1
                if not self._left[number]:
                    self._start(number)

    def _start(self, number: int) -> None:
        arrived = [(key, self._values.pop(key)) for key in self._keys[number]]
        work = self._decode(self._pieces[number], arrived)
        self._tasks[number] = asyncio.get_running_loop().create_task(work)

    async def results(self) -> list[T]:
        """Wait until all pieces are decoded, and return the results in their order. If some fail, raise the error of
        the first of these in order."""
        tasks = [self._tasks[number] for number in range(len(self._pieces))]
        await asyncio.wait(tasks)
        return [task.result() for task in tasks]

    async def close(self) -> None:
        """Stop the decoding that still runs, and wait until it has ended; begin no other. Idempotent."""
        self._place.clear()  # a fetch that ended just before a failure or cancellation may still tell of its parts
        tasks = list(self._tasks.values())
        await end_tasks(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()  # retrieved, else asyncio would log it
        self._tasks.clear()
