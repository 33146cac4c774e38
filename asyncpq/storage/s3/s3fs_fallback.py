"""Objects and listings through s3fs's own calls, for options that the direct path does not implement.

Requests are retried and responses checked as on the direct path; only s3fs signs and carries them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import aiohttp
from multidict import CIMultiDict

from asyncpq.errors import AccessDeniedError, AsyncpqError, CredentialsError, InvalidResponseError, StoreError
from asyncpq.storage.base import Guarantee, RangeResult, RequestContext, Unpicklable, Validator
from asyncpq.storage.http1 import Body, Receiver
from asyncpq.storage.limits import RetryableError
from asyncpq.storage.responses import (
    UNKNOWN_SIZE,
    ExpectedBody,
    RangeIgnoredError,
    RangeRequest,
    check_range_response,
    guarantee_of,
    strong_etag,
)
from asyncpq.storage.s3.list_page import LISTING_HINT, ListPage, PageError, PageRequest, clock_of, page_of_response
from asyncpq.storage.s3.requests import EXPIRED, error_in_200
from asyncpq.storage.transport import Transport
from asyncpq.storage.urls import safe_url
from asyncpq.storage.wire import connection_failure, read_body

_PART_BYTES = 1024 * 1024

Explain = Callable[[Exception, RangeRequest], AsyncpqError | RetryableError | None]


class S3fsConnection(Unpicklable):
    """s3fs as all objects of a store share it.

    Args:
        connect: makes a connected, asynchronous s3fs.S3FileSystem that does not retry, with new credentials.
        filesystem: the first one.
        explain, error_code: asyncpq's error for an exception of s3fs, and S3's code in it.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[Any]],
        filesystem: Any,
        *,
        explain: Explain,
        error_code: Callable[[Exception], str],
    ) -> None:
        self.filesystem = filesystem
        self.explain = explain
        self.error_code = error_code
        self._connect = connect
        self._lock = asyncio.Lock()

    async def renew(self, expired: Any) -> None:
        """Replace a filesystem whose credentials expired, once for all requests that used it."""
        async with self._lock:
            if self.filesystem is expired:
                self.filesystem = await self._connect()


class S3fsObject(Unpicklable):
    """See :class:`asyncpq.storage.base.StoredObject`. Made by S3Store.

    Args:
        reason: for the metrics: why s3fs is used.
    """

    client = "s3fs"
    server = ""

    def __init__(
        self,
        *,
        transport: Transport,
        connection: S3fsConnection,
        bucket: str,
        key: str,
        version_id: str | None,
        version_aware: bool,
        if_match: bool,
        reason: str,
    ) -> None:
        self.url = safe_url(f"s3://{bucket}/{key}")
        meta = connection.filesystem._s3.meta
        self.identity = f"s3fs {meta.endpoint_url}[{meta.region_name}] {bucket} {key} {version_id or ''}"
        self.guarantee = Guarantee.PINNED if if_match else Guarantee.COMPARED
        self._transport = transport
        self.connection = connection
        self._bucket = bucket
        self._key = key
        self._version_id = version_id
        self._version_aware = version_aware
        self._if_match = if_match
        self._reason = f"read through s3fs: {reason}"

    def __repr__(self) -> str:
        return f"<S3fsObject {self.url}>"

    def learn(self, validator: Validator) -> None:
        self.guarantee = guarantee_of(validator, if_match=self._if_match)

    async def fetch_tail(self, length: int, *, context: RequestContext, pin: Validator | None = None) -> RangeResult:
        return await self._fetch(RangeRequest(-length, 0, self.url, pin), context)

    async def fetch_range(
        self, start: int, stop: int, *, context: RequestContext, pin: Validator | None = None
    ) -> RangeResult:
        return await self._fetch(RangeRequest(start, stop, self.url, pin), context)

    async def close(self) -> None:
        """Do nothing: the handle holds nothing."""

    async def _fetch(self, request: RangeRequest, context: RequestContext) -> RangeResult:
        context.metrics.fall_back(self._reason)
        try:
            expected, data = await self._transport.send(_S3fsGet(self, request), context)
        except RangeIgnoredError:
            raise InvalidResponseError(
                "the store sent the whole object instead of the range", url=self.url, byte_range=request.byte_range
            ) from None
        validator = expected.validator
        if validator.size == UNKNOWN_SIZE:
            if request.pin is None:
                raise InvalidResponseError("the store does not give the object's size", url=self.url)
            validator = request.pin
        self.learn(validator)
        if expected.young:
            self.guarantee = Guarantee.NONE
        return RangeResult(data, expected.start, validator, self.guarantee is not Guarantee.NONE)

    async def get(self, filesystem: Any, request: RangeRequest, receiver: Receiver) -> Body:
        """Send one GET with s3fs. Raises the errors of s3fs and of the receiver."""
        pin = request.pin
        arguments: dict[str, Any] = {"Bucket": self._bucket, "Key": self._key, "Range": request.header}
        etag = strong_etag(pin) if self._if_match else None
        if etag is not None:
            arguments["IfMatch"] = etag
        version = pin.version if pin is not None and pin.version is not None else self._version_id
        if version is not None:
            arguments["VersionId"] = version
        response = await filesystem._call_s3("get_object", **arguments)
        body = response["Body"]
        try:
            meta = response["ResponseMetadata"]
            wanted = receiver.head(int(meta["HTTPStatusCode"]), CIMultiDict(meta["HTTPHeaders"]))
            return await read_body(partial(body.read, _PART_BYTES), wanted, receiver)
        finally:
            body.close()

    def accept(self, request: RangeRequest, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        if status == 200 and "etag" not in headers:
            return None  # S3 always sends an ETag: this may be an error document
        expected = check_range_response(request, status, headers)
        if self._version_aware and request.pin is None:
            version = headers.get("x-amz-version-id")
            return replace(expected, validator=replace(expected.validator, version=version))
        return expected


class S3fsExchange:
    """One call of s3fs over all its attempts."""

    method = "GET"

    def __init__(self, connection: S3fsConnection, request: RangeRequest) -> None:
        self.request = request
        self.connection = connection
        self._expired: Any = None
        self._renewed = False

    def prepare(self) -> Coroutine[Any, Any, None] | None:
        return None if self._expired is None else self._renew(self._expired)

    async def _renew(self, expired: Any) -> None:
        self._expired = None
        try:
            await self.connection.renew(expired)
        except CredentialsError as error:
            error.locate(url=self.request.url)
            raise

    async def call(self, filesystem: Any, receiver: Receiver) -> Body:
        """Call s3fs once. Raises the errors of s3fs and of the receiver."""
        raise NotImplementedError

    def explained(self, error: AsyncpqError) -> AsyncpqError:
        """Adapt the error to the kind of call."""
        return error

    async def send(self, receiver: Receiver) -> Body:
        connection, request = self.connection, self.request
        filesystem = connection.filesystem
        try:
            return await self.call(filesystem, receiver)
        except (AsyncpqError, RetryableError, RangeIgnoredError):
            raise
        except Exception as error:
            explained: Exception | None = connection.explain(error, request)
            if explained is None and isinstance(error, aiohttp.ClientError | OSError):
                explained = connection_failure(error, request)
            if explained is None:
                raise
            if isinstance(explained, AsyncpqError):
                explained = self.explained(explained)
            if isinstance(explained, StoreError) and connection.error_code(error) in EXPIRED and not self._renewed:
                self._renewed, self._expired = True, filesystem
                explained = RetryableError(explained, at_once=True)
            raise explained from (error if isinstance(error, OSError) else None)  # botocore's may quote options

    def refuse(self, status: int, headers: Mapping[str, str], body: bytes) -> AsyncpqError | RetryableError:
        return error_in_200(self.request, body)


class _S3fsGet(S3fsExchange):
    """One ranged GET."""

    def __init__(self, stored: S3fsObject, request: RangeRequest) -> None:
        super().__init__(stored.connection, request)
        self._stored = stored

    async def call(self, filesystem: Any, receiver: Receiver) -> Body:
        return await self._stored.get(filesystem, self.request, receiver)

    def again(self) -> _S3fsGet:
        return _S3fsGet(self._stored, self.request)

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        return self._stored.accept(self.request, status, headers)


_NAMES = {
    "prefix": "Prefix",
    "start-after": "StartAfter",
    "continuation-token": "ContinuationToken",
    "delimiter": "Delimiter",
}


class S3fsBucket(Unpicklable):
    """One bucket, for listing. Made by S3Store.

    Args:
        url: the listed one, for messages.
    """

    def __init__(self, *, transport: Transport, connection: S3fsConnection, bucket: str, url: str) -> None:
        self._transport = transport
        self.connection = connection
        self._bucket = bucket
        self.url = url

    async def fetch_page(self, page: PageRequest, context: RequestContext) -> ListPage:
        named = {_NAMES[name]: value for name, value in page.parameters().items() if name in _NAMES}
        exchange = _S3fsList(self.connection, RangeRequest(0, 0, self.url), {"Bucket": self._bucket, **named}, [])
        await self._transport.send(exchange, context)
        return exchange.pages[-1]

    async def fetch_clock(self, prefix: str, context: RequestContext) -> float:
        arguments = {"Bucket": self._bucket, "Prefix": prefix, "MaxKeys": 1}
        exchange = _S3fsList(self.connection, RangeRequest(0, 0, self.url), arguments, [])
        await self._transport.send(exchange, context)
        return clock_of(exchange.date, self.url)


class _S3fsList(S3fsExchange):
    """One LIST. ``pages`` receives the page of this request or of its hedge."""

    def __init__(
        self, connection: S3fsConnection, request: RangeRequest, arguments: dict[str, Any], pages: list[ListPage]
    ) -> None:
        super().__init__(connection, request)
        self._arguments = arguments
        self.pages = pages
        self.date: str | None = None

    def again(self) -> _S3fsList:
        return _S3fsList(self.connection, self.request, self._arguments, self.pages)

    async def call(self, filesystem: Any, receiver: Receiver) -> Body:
        """List once. botocore asks for percent-encoded keys, and decodes them."""
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
