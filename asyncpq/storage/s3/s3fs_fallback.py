"""Send a bucket's requests through clients of s3fs, for options that asyncpq's own (``direct``) do not support.

Requests are retried and responses checked as on the direct path; the clients only sign and send them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import aiohttp
from multidict import CIMultiDict

from asyncpq.errors import AsyncpqError, CredentialsError, InvalidResponseError, StoreError
from asyncpq.storage.aiohttp_wire import aiohttp_failure
from asyncpq.storage.base import RequestContext, Unpicklable, Validator
from asyncpq.storage.http1 import Body, Receiver
from asyncpq.storage.limits import RetryableError
from asyncpq.storage.responses import (
    EXPIRED,
    LISTING_HINT,
    READING_HINT,
    WRITING_HINT,
    ExpectedBody,
    RangeIgnoredError,
    RangeRequest,
    ServerTraits,
    check_head_response,
    error_in_200,
)
from asyncpq.storage.s3.client import S3fsClients, error_code, explain, response_of
from asyncpq.storage.s3.direct import KeyListing, ObjectResponse
from asyncpq.storage.s3.key_listing import ListPage, PageError, PageRequest, page_of_response
from asyncpq.storage.s3.writer import WriteAnswer, WriteCall, write_error
from asyncpq.storage.wire import read_body

if TYPE_CHECKING:
    from asyncpq.storage.s3.store import S3Object

_PART_BYTES = 1024 * 1024


class S3fsConnection(Unpicklable):
    """The clients of s3fs that all buckets of a store share. ``connect`` makes others with new credentials."""

    def __init__(self, connect: Callable[[], Awaitable[S3fsClients]], clients: S3fsClients) -> None:
        self.clients: S3fsClients = clients
        self._connect = connect
        self._lock = asyncio.Lock()

    async def renew(self, expired: S3fsClients) -> None:
        """Replace the clients ``expired``, whose credentials expired. Concurrent calls replace them once."""
        async with self._lock:
            if self.clients is expired:
                self.clients = await self._connect()


class S3fsBucket(Unpicklable):
    """One bucket whose requests s3fs sends; ``reason`` says why. See
    :class:`asyncpq.storage.s3.direct.DirectBucket`."""

    client = "s3fs"
    server = ""

    def __init__(self, connection: S3fsConnection, name: str, reason: str, traits: ServerTraits) -> None:
        self._connection = connection
        self.traits = traits
        self._name = name
        self.reason = reason

    def path(self, key: str) -> str:
        return key

    def identity(self, stored: S3Object) -> str:
        place = self._connection.clients.place
        return f"s3fs {place} {self._name} {stored.path} {stored.version_id or ''}"

    def get(self, stored: S3Object, request: RangeRequest) -> _S3fsGet:
        return _S3fsGet(self._connection, self._name, stored, request)

    def head(self, stored: S3Object, request: RangeRequest) -> _S3fsHead:
        return _S3fsHead(self._connection, self._name, stored, request)

    def list(self, listing: KeyListing, page: PageRequest) -> _S3fsList:
        named = {
            "Prefix": page.prefix,
            "Delimiter": "/" if page.folders else None,
            "MaxKeys": page.most,
            "ContinuationToken": page.token,
            "StartAfter": None if page.token else page.after,
        }
        arguments = {name: value for name, value in named.items() if value}
        return _S3fsList(self._connection, listing.url, {"Bucket": self._name, **arguments})

    def write(self, key: str, call: WriteCall, url: str) -> _S3fsWrite:
        return _S3fsWrite(self._connection, {"Bucket": self._name, "Key": key, **call.arguments}, call, url)


class S3fsExchange:
    """One request through s3fs, over all its attempts."""

    method = "GET"
    denied_hint = READING_HINT

    def __init__(self, connection: S3fsConnection, bucket: str, request: RangeRequest) -> None:
        self.request = request
        self.host: str = bucket  # s3fs knows its host
        self._connection = connection
        self._expired: S3fsClients | None = None
        self._renewed = False

    def prepare(self, context: RequestContext) -> Coroutine[Any, Any, RequestContext] | None:
        return None if self._expired is None else self._renew(context)

    async def _renew(self, context: RequestContext) -> RequestContext:
        expired, self._expired = self._expired, None
        try:
            if expired is not None:
                await self._connection.renew(expired)
        except CredentialsError as error:
            error.locate(url=self.request.url)
            raise
        return context

    async def call(self, clients: S3fsClients, receiver: Receiver) -> Body:
        """Send the request once and return the body. Raises the errors of botocore and of the receiver."""
        raise NotImplementedError

    async def send(self, receiver: Receiver) -> Body:
        clients, request = self._connection.clients, self.request
        try:
            return await self.call(clients, receiver)
        except (AsyncpqError, RetryableError, RangeIgnoredError):
            raise
        except Exception as error:
            explained = explain(error, request, self.denied_hint)
            if explained is None and isinstance(error, aiohttp.ClientError | OSError):
                explained = aiohttp_failure(error, request)
            if explained is None:
                raise
            if isinstance(explained, StoreError) and error_code(error) in EXPIRED and not self._renewed:
                self._renewed, self._expired = True, clients
                explained = RetryableError(explained, at_once=True)
            status, headers = response_of(error)
            answer = self.reconsider(status, headers, explained)
            raise answer from (error if isinstance(error, OSError) else None)  # botocore's may quote options

    def reconsider(
        self, status: int, headers: Mapping[str, str], error: AsyncpqError | RetryableError
    ) -> AsyncpqError | RetryableError | RangeIgnoredError:
        """Return what to raise for a refusal whose error is ``error``."""
        return error

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        return ExpectedBody(0, 0, Validator(0))

    def refuse(self, status: int, headers: Mapping[str, str], body: bytes) -> AsyncpqError | RetryableError:
        return error_in_200(self.request, body)


class _S3fsGet(ObjectResponse, S3fsExchange):
    """A range GET through s3fs."""

    def __init__(self, connection: S3fsConnection, bucket: str, stored: S3Object, request: RangeRequest) -> None:
        super().__init__(connection, bucket, request)
        self._bucket = bucket
        self._stored = stored

    async def call(self, clients: S3fsClients, receiver: Receiver) -> Body:
        response = await clients.call("get_object", Range=self.request.header, **self.arguments())
        body = response["Body"]
        try:
            meta = response["ResponseMetadata"]
            wanted = receiver.head(int(meta["HTTPStatusCode"]), CIMultiDict(meta["HTTPHeaders"]))
            return await read_body(partial(body.read, _PART_BYTES), wanted, receiver)
        finally:
            body.close()

    def arguments(self) -> dict[str, str]:
        """Return the arguments that name the object and its version."""
        stored, pin = self._stored, self.request.pin
        version = pin.version if pin is not None and pin.version is not None else stored.version_id
        named = {"Bucket": self._bucket, "Key": stored.path, "IfMatch": self.if_match, "VersionId": version}
        return {name: value for name, value in named.items() if value is not None}


class _S3fsHead(_S3fsGet):
    """A HEAD through s3fs, for the object's size."""

    method = "HEAD"

    async def call(self, clients: S3fsClients, receiver: Receiver) -> Body:
        response = await clients.call("head_object", **self.arguments())
        meta = response["ResponseMetadata"]
        receiver.head(int(meta["HTTPStatusCode"]), CIMultiDict(meta["HTTPHeaders"]))
        return Body(b"", True)

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        self.check_version(headers)
        return check_head_response(self.request, headers)


class _S3fsList(S3fsExchange):
    """A request for one page of a listing through s3fs. The page is appended to :attr:`pages`, also if the request's
    hedge gets it."""

    denied_hint = LISTING_HINT

    def __init__(self, connection: S3fsConnection, url: str, arguments: dict[str, Any]) -> None:
        super().__init__(connection, arguments["Bucket"], RangeRequest(0, 0, url))
        self._arguments = arguments
        self.pages: list[ListPage] = []
        self.date: str | None = None

    async def call(self, clients: S3fsClients, receiver: Receiver) -> Body:
        """Request one page and append it to ``pages``; return an empty body. botocore decodes the keys."""
        response = await clients.call("list_objects_v2", **self._arguments)
        meta = response["ResponseMetadata"]
        receiver.head(int(meta["HTTPStatusCode"]), {})
        self.date = meta.get("HTTPHeaders", {}).get("date")
        try:
            self.pages.append(page_of_response(response))
        except PageError as problem:
            raise InvalidResponseError(str(problem), url=self.request.url) from problem
        return Body(b"", True)


class _S3fsWrite(S3fsExchange):
    """A write request through s3fs."""

    denied_hint = WRITING_HINT

    def __init__(self, connection: S3fsConnection, arguments: dict[str, Any], call: WriteCall, url: str) -> None:
        super().__init__(connection, arguments["Bucket"], RangeRequest(0, len(call.content), url))
        self._arguments = arguments
        self._call = call
        self.method: str = call.method
        self.answer: WriteAnswer = WriteAnswer()

    async def call(self, clients: S3fsClients, receiver: Receiver) -> Body:
        call = self._call
        try:
            response = await clients.call(call.operation, **self._arguments)
        except Exception as error:
            refusal = write_error(call, self.request, 0, error_code(error))
            if refusal is None:
                raise
            raise refusal from None
        receiver.head(int(response["ResponseMetadata"]["HTTPStatusCode"]), {})
        answer = WriteAnswer(response.get("ETag"), response.get("UploadId"))
        self.answer = answer
        if (call.etag and answer.etag is None) or (call.upload_id and answer.upload_id is None):
            raise error_in_200(self.request, b"")
        return Body(b"", True)
