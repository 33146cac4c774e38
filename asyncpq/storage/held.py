"""Objects that are in no store: bytes that the process already has, such as rows that a table's catalog keeps."""

from __future__ import annotations

import hashlib

from asyncpq.errors import InvalidResponseError, NotParquetError
from asyncpq.metrics import RequestRecord
from asyncpq.storage.base import Guarantee, RangeResult, RequestContext, Validator


class HeldObject:
    """See :class:`asyncpq.storage.base.StoredObject`. What it is, is told by its content alone.

    Args:
        url: for messages.
        content: the object.
    """

    client = "memory"
    server = ""
    guarantee = Guarantee.PINNED

    def __init__(self, url: str, content: bytes) -> None:
        digest = hashlib.sha256(content).hexdigest()
        self.url = url
        self.identity = f"held://{digest}"
        self._content = content
        self._validator = Validator(len(content), etag=f'"{digest}"')

    def learn(self, validator: Validator) -> None:
        """See :meth:`asyncpq.storage.base.StoredObject.learn`."""

    async def fetch_tail(self, length: int, *, context: RequestContext, pin: Validator | None = None) -> RangeResult:
        """See :meth:`asyncpq.storage.base.StoredObject.fetch_tail`."""
        if not self._content:
            raise NotParquetError("the object is empty", url=self.url)
        return self._fetch(max(0, len(self._content) - length), len(self._content), context)

    async def fetch_range(
        self, start: int, stop: int, *, context: RequestContext, pin: Validator | None = None
    ) -> RangeResult:
        """See :meth:`asyncpq.storage.base.StoredObject.fetch_range`."""
        if stop > len(self._content):
            raise InvalidResponseError(
                f"the object ends at byte {len(self._content)}, before the range does",
                url=self.url,
                byte_range=(start, stop),
            )
        return self._fetch(start, stop, context)

    async def close(self) -> None:
        """Nothing is held open."""

    def _fetch(self, start: int, stop: int, context: RequestContext) -> RangeResult:
        data = self._content[start:stop]
        context.metrics.record(
            RequestRecord("GET", context.purpose, start, stop, 200, len(data), 1, context.round, 0.0)
        )
        return RangeResult(data, start, self._validator)
