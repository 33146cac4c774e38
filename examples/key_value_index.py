"""An index of one's own: from the values of a column to their rows, in a key-value store.

Any store will do that can get and put many keys at once: ``KeyValueStore`` is all that is asked of it, and what a
Cassandra or DynamoDB user would write. ``ValkeyStore`` is one for Valkey.

    users = ValueRows(ValkeyStore(valkey.asyncio.Valkey(...)), "user_id")
    async with asyncpq.Session() as session:
        trips = await session.open_dataset("s3://bucket/trips/")
        await users.add(session, await trips.files())
        trips = await session.open_dataset("s3://bucket/trips/", index=users)
        table = await trips.lookup({"user_id": 42})  # fetches the pages of its rows only

What an index gives may be too much, never too little; the filter runs on all of it. So files that it does not know are
read, and what it knows of a file counts for the version that it was read from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Protocol

import pyarrow as pa

from asyncpq import AccessPlan, Session
from asyncpq.expressions import Comparison, Expression, Interval, KeyIn, column_ranges
from asyncpq.indexing import FileSlice, FileSlices

Version = tuple[int, str | None]  # size and ETag


class KeyValueStore(Protocol):
    """What an index asks of a store."""

    async def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """A value, or None where there is none, for each key."""

    async def put_many(self, values: Mapping[bytes, bytes]) -> None:
        """Put all of them, in the place of what is there."""


class ValkeyStore:
    """
    Args:
        client: of ``valkey.asyncio``. The server must not evict keys: what it lost would look like no rows.
        prefix: before all keys.
    """

    def __init__(self, client: Any, prefix: bytes = b"index:") -> None:
        self._client = client
        self._prefix = prefix

    async def get_many(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        found: Sequence[bytes | None] = await self._client.mget([self._prefix + key for key in keys])
        return found

    async def put_many(self, values: Mapping[bytes, bytes]) -> None:
        await self._client.mset({self._prefix + key: value for key, value in values.items()})


class ValueRows:
    """
    Args:
        store: it has one key for each value, with the rows of each file, and one with the files that were taken in.
        column: name of an integer or string column.
    """

    def __init__(self, store: KeyValueStore, column: str) -> None:
        self._store = store
        self._column = column
        self._files_key = f"{column}/files".encode()

    async def add(self, session: Session, urls: Iterable[str]) -> None:
        """Take in files, or what they are now. One at a time may do so."""
        for url in urls:
            async with await session.open_file(url) as file:
                values = (await file.read([self._column]))[self._column]
                version: Version = (file.version.size, file.version.etag)
            if not (pa.types.is_integer(values.type) or pa.types.is_string(values.type)):
                raise TypeError(f"{self._column} is of {values.type}, not integers or strings")
            rows: dict[bytes, list[int]] = {}
            for row, value in enumerate(values.to_pylist()):
                rows.setdefault(self._key(value), []).append(row)
            known = await self._get([self._files_key, *rows])
            new = {key: {**known[key], url: [version, some]} for key, some in rows.items()}
            await self._put(new)
            # Last, when all rows can be found: from now on, a value that has none of this file is not in it.
            await self._put({self._files_key: {**known[self._files_key], url: version}})

    async def prune(self, where: Expression) -> FileSlices:
        """By one multi-get, if ``where`` asks for single values of the column."""
        ranges = column_ranges(where)
        if ranges is None:  # it contradicts itself
            return FileSlices(files={}, others="none")
        wanted = ranges.get(self._column)
        if wanted is None or not all(is_point(interval) for interval in wanted.intervals):
            return FileSlices(files={})  # nothing is known of any file
        keys = [self._key(interval.low) for interval in wanted.intervals]
        if wanted.null:
            keys.append(self._key(None))
        found = await self._get([self._files_key, *keys])
        files: dict[str, Version] = found[self._files_key]
        rows: dict[str, list[int]] = {url: [] for url in files}
        for key in keys:
            for url, (version, some) in found[key].items():
                if version == files.get(url):  # else it was taken in again, and has the value no more
                    rows[url] += some
        # Files without a row are named, too: of those that are not named, nothing is known.
        slices = {url: FileSlice(AccessPlan.rows(rows[url]), size, etag) for url, (size, etag) in files.items()}
        return FileSlices(files=slices, exact=isinstance(where, (Comparison, KeyIn)))  # no other condition

    def _key(self, value: Any) -> bytes:
        """Equal numbers have one key, whatever their type."""
        if isinstance(value, (float, Decimal)) and value == value // 1:
            value = int(value)
        return f"{self._column}={type(value).__name__}:{value}".encode()

    async def _get(self, keys: Sequence[bytes]) -> dict[bytes, dict[str, Any]]:
        found = await self._store.get_many(keys)
        return {key: json.loads(value or b"{}") for key, value in zip(keys, found, strict=True)}

    async def _put(self, values: Mapping[bytes, dict[str, Any]]) -> None:
        await self._store.put_many({key: json.dumps(value).encode() for key, value in values.items()})


def is_point(interval: Interval) -> bool:
    """Whether it holds one value."""
    return interval.low is not None and interval.low == interval.high
