"""Small indexes as JSON, for people and programs to look at."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from asyncpq.errors import InvalidOptionError, ResourceLimitError
from asyncpq.events import Operation
from asyncpq.indexing.backends.objects import HasRuntime, ObjectBackend
from asyncpq.indexing.backends.segment_file import digest_of
from asyncpq.indexing.backends.sorted_rows import OrderCheck, SortedRows
from asyncpq.indexing.model import IndexTable, KeyRange, Segment
from asyncpq.objects.runtime import Runtime
from asyncpq.storage.urls import safe_url

MAX_ROWS: Final = 10_000  # of a segment
_KINDS: Final = frozenset({"files", "bounds", "set", "manifest"})
_SUFFIX = ".json"
_HINT = "Keep the index in a folder: a url that does not end in .json."


class JsonBackend(ObjectBackend):
    """An :class:`asyncpq.indexing.model.IndexBackend` in the folder ``<url>/``: manifests, and segments of one JSON
    object each, whose byte strings are base64. They are fetched whole, and kept in the session's memory.

    Args:
        session: see :class:`asyncpq.indexing.backends.objects.ObjectBackend`.
        url: ends in ``.json``.
        single_writer: see :class:`asyncpq.indexing.backends.objects.ObjectBackend`.

    Raises:
        InvalidOptionError: it does not.
    """

    _suffix = _SUFFIX

    def __init__(self, session: HasRuntime | Runtime, url: str, *, single_writer: bool = False) -> None:
        if not is_json(url):
            raise InvalidOptionError(f"{safe_url(url)!r}: the url of an index in JSON ends in {_SUFFIX}")
        super().__init__(session, url, single_writer=single_writer)

    def check(self, kinds: Sequence[str]) -> None:
        refused = sorted(set(kinds) - _KINDS)
        if refused:
            raise InvalidOptionError(f"{refused[0]!r} is too large for JSON, at {self.description}", hint=_HINT)

    async def write_segment(
        self,
        name: str,
        index_table: IndexTable,
        rows: AsyncIterator[pa.RecordBatch],
        *,
        folder: str | None = None,
        operation: Operation | None = None,
    ) -> tuple[int, Mapping[str, Any]]:
        """See :class:`asyncpq.indexing.model.IndexBackend`.

        Raises:
            ResourceLimitError: more than ``MAX_ROWS``.
        """
        self.check([index_table.kind])
        url = self._segment_url(name)
        order = OrderCheck(index_table, safe_url(url))
        batches: list[pa.RecordBatch] = []
        async for batch in rows:
            batches.append(order.take(batch))
            if order.num_rows > MAX_ROWS:
                raise ResourceLimitError(
                    f"more than {MAX_ROWS:,} rows of {index_table} for one segment of JSON",
                    url=safe_url(url),
                    hint=_HINT,
                )
        data = _encode(pa.Table.from_batches(batches, schema=index_table.schema))
        store = await self._writable()
        await store.put_object(url, data, context=self._context(operation, "write"))
        return len(data), {"digest": digest_of(data)}

    async def read_segment(
        self,
        segment: Segment,
        ranges: Sequence[KeyRange] | None,
        columns: Sequence[str] | None = None,
        *,
        at_least: tuple[str, bytes] | None = None,
        limit: int | None = None,
        operation: Operation | None = None,
    ) -> pa.Table | None:
        rows = await self._kept(
            operation, segment, str(segment.extra.get("digest")), partial(self._load, operation, segment)
        )
        return rows.select(ranges, columns, at_least=at_least, limit=limit)

    async def iterate_segment(
        self, segment: Segment, *, operation: Operation | None = None
    ) -> AsyncIterator[pa.RecordBatch]:
        rows = await self._load(operation, segment)
        for batch in rows.table.to_batches():
            yield batch

    async def _load(self, operation: Operation | None, segment: Segment) -> SortedRows:
        url = self._segment_url(segment.name)
        with self._reading(operation, url) as part:
            data = await self._fetch(part, url)
        if data is None:
            raise self._gone(segment)
        if digest_of(data) != segment.extra.get("digest"):
            raise self._corrupt(segment, "it is not what was written")
        try:
            return SortedRows(_decode(data, segment.table))
        except (pa.ArrowException, ValueError, KeyError, TypeError) as error:
            raise self._corrupt(segment, f"it cannot be understood: {error}") from error


def is_json(url: str) -> bool:
    """Whether the url is that of an index in JSON, with or without a slash at its end."""
    return url.removesuffix("/").endswith(_SUFFIX)


def _encode(table: pa.Table) -> bytes:
    columns = {
        field.name: [_text(value) for value in table.column(field.name).to_pylist()]
        if pa.types.is_binary(field.type)
        else table.column(field.name).to_pylist()
        for field in table.schema
    }
    return json.dumps(columns, separators=(",", ":")).encode()


def _decode(data: bytes, index_table: IndexTable) -> pa.Table:
    columns = json.loads(data)
    arrays = []
    for field in index_table.schema:
        values = columns[field.name]
        if pa.types.is_binary(field.type):
            values = [None if value is None else base64.b64decode(value, validate=True) for value in values]
        arrays.append(pa.array(values, field.type))
    return pa.Table.from_arrays(arrays, schema=index_table.schema)


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()
