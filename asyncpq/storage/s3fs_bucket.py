"""Pages of a bucket's listing through s3fs's own client: for options that the direct path does not implement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncpq.errors import AccessDeniedError, AsyncpqError, CredentialsError, InvalidResponseError
from asyncpq.storage.base import RequestContext, Unpicklable, Validator
from asyncpq.storage.http1 import Body, Receiver
from asyncpq.storage.responses import ExpectedBody, RangeRequest
from asyncpq.storage.retry import RetryableError
from asyncpq.storage.s3_bucket import LISTING_HINT, clock_of
from asyncpq.storage.s3_list_page import ListPage, PageError, PageRequest, page_of_response
from asyncpq.storage.s3fs_object import S3fsConnection, S3fsExchange
from asyncpq.storage.transport import Transport

_NAMES = {
    "prefix": "Prefix",
    "start-after": "StartAfter",
    "continuation-token": "ContinuationToken",
    "delimiter": "Delimiter",
}


class S3fsBucket(Unpicklable):
    """One bucket, to be listed. Made by S3Store.

    Args:
        url: of what is listed, for messages.
    """

    def __init__(self, *, transport: Transport, connection: S3fsConnection, bucket: str, url: str) -> None:
        self._transport = transport
        self.connection = connection
        self._bucket = bucket
        self.url = url

    async def fetch_page(self, page: PageRequest, context: RequestContext) -> ListPage:
        """See :meth:`asyncpq.storage.s3_bucket.S3Bucket.fetch_page`."""
        named = {_NAMES[name]: value for name, value in page.parameters().items() if name in _NAMES}
        exchange = _List(self.connection, RangeRequest(0, 0, self.url), {"Bucket": self._bucket, **named}, [])
        await self._transport.send(exchange, context)
        return exchange.pages[-1]

    async def fetch_clock(self, prefix: str, context: RequestContext) -> float:
        """See :meth:`asyncpq.storage.s3_bucket.S3Bucket.fetch_clock`."""
        arguments = {"Bucket": self._bucket, "Prefix": prefix, "MaxKeys": 1}
        exchange = _List(self.connection, RangeRequest(0, 0, self.url), arguments, [])
        await self._transport.send(exchange, context)
        return clock_of(exchange.date, self.url)


class _List(S3fsExchange):
    """One LIST. ``pages`` holds what was answered, to it or to the same request beside it."""

    def __init__(
        self, connection: S3fsConnection, request: RangeRequest, arguments: dict[str, Any], pages: list[ListPage]
    ) -> None:
        super().__init__(connection, request)
        self._arguments = arguments
        self.pages = pages
        self.date: str | None = None

    def again(self) -> _List:
        return _List(self.connection, self.request, self._arguments, self.pages)

    async def call(self, filesystem: Any, receiver: Receiver) -> Body:
        """botocore asks for keys percent-encoded, and decodes them."""
        response = await filesystem._call_s3("list_objects_v2", **self._arguments)
        receiver.head(int(response["ResponseMetadata"]["HTTPStatusCode"]), {})
        self.date = response["ResponseMetadata"].get("HTTPHeaders", {}).get("date")
        try:
            self.pages.append(page_of_response(response))
        except PageError as problem:
            raise RetryableError(InvalidResponseError(str(problem), url=self.request.url)) from problem
        return Body(b"", True)

    def explained(self, error: AsyncpqError) -> AsyncpqError:
        if isinstance(error, AccessDeniedError) and not isinstance(error, CredentialsError):
            error.hint = LISTING_HINT
        return error

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody:
        return ExpectedBody(0, 0, Validator(0))
