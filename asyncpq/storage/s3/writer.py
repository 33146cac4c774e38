"""Writes of one S3 object: the requests, the multipart upload, and their two carriers (signed directly, or by s3fs)."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO
from xml.sax.saxutils import escape, unescape

from asyncpq.errors import AccessDeniedError, AsyncpqError, CredentialsError, StoreError, TransportError
from asyncpq.storage.base import ObjectExistsError, RequestContext, StoredObject, Validator, cannot_create, is_gone
from asyncpq.storage.http1 import Body, Receiver
from asyncpq.storage.limits import RetryableError
from asyncpq.storage.responses import ExpectedBody, RangeRequest
from asyncpq.storage.s3.requests import Route, S3Resource, SignedExchange, Signers, error_in_200, parse_error
from asyncpq.storage.s3.s3fs_fallback import S3fsConnection, S3fsExchange
from asyncpq.storage.s3.sigv4 import canonical_path, canonical_query
from asyncpq.storage.transport import Transport
from asyncpq.storage.wire import DirectWire

_UPLOAD_ID = re.compile(rb"<UploadId>([^<]{1,2000})</UploadId>")
_HINT = "Writing needs s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload on the objects."
#: Longest response that is read: those to writes are short.
ANSWER_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class WriteAnswer:
    """The used part of a response: an object's or part's ETag, or an upload's id."""

    etag: str | None = None
    upload_id: str | None = None


@dataclass(frozen=True, slots=True)
class WriteCall:
    """One request.

    Attributes:
        operation: method of botocore's client.
        arguments: to it, besides bucket, key and body.
        method, query, content: of the request without botocore.
        create: send If-None-Match.
        etag, upload_id: a good response must have it.
    """

    operation: str
    method: str
    query: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    create: bool = False
    etag: bool = False
    upload_id: bool = False


def put(data: bytes, *, create: bool) -> WriteCall:
    """PutObject; ``create`` refuses an existing object."""
    arguments = {"Body": data, "IfNoneMatch": "*"} if create else {"Body": data}
    return WriteCall("put_object", "PUT", content=data, arguments=arguments, create=create, etag=True)


def delete() -> WriteCall:
    """DeleteObject."""
    return WriteCall("delete_object", "DELETE")


def begin_upload() -> WriteCall:
    """CreateMultipartUpload."""
    return WriteCall("create_multipart_upload", "POST", {"uploads": ""}, upload_id=True)


def upload_part(upload_id: str, number: int, data: bytes) -> WriteCall:
    """UploadPart; ``number`` from 1."""
    query = {"partNumber": str(number), "uploadId": upload_id}
    arguments = {"UploadId": upload_id, "PartNumber": number, "Body": data}
    return WriteCall("upload_part", "PUT", query, data, arguments, etag=True)


def complete_upload(upload_id: str, etags: Sequence[str], *, create: bool) -> WriteCall:
    """CompleteMultipartUpload of parts from 1 on; ``create`` refuses an existing object."""
    parts = [{"PartNumber": number, "ETag": etag} for number, etag in enumerate(etags, 1)]
    listed = "".join(
        f"<Part><PartNumber>{part['PartNumber']}</PartNumber><ETag>{escape(str(part['ETag']))}</ETag></Part>"
        for part in parts
    )
    document = (
        f'<CompleteMultipartUpload xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{listed}</CompleteMultipartUpload>'
    )
    arguments: dict[str, Any] = {"UploadId": upload_id, "MultipartUpload": {"Parts": parts}}
    if create:
        arguments["IfNoneMatch"] = "*"
    query = {"uploadId": upload_id}
    return WriteCall("complete_multipart_upload", "POST", query, document.encode(), arguments, create=create)


def abort_upload(upload_id: str) -> WriteCall:
    """AbortMultipartUpload."""
    return WriteCall("abort_multipart_upload", "DELETE", {"uploadId": upload_id}, arguments={"UploadId": upload_id})


def parse_upload_id(body: bytes) -> str | None:
    """The id in a response to CreateMultipartUpload."""
    match = _UPLOAD_ID.search(body)
    return unescape(match[1].decode("utf-8", "replace")) if match is not None else None


def etag_of_parts(etags: Sequence[str]) -> str | None:
    """The ETag that S3 gives an object of these parts; None if theirs are not MD5 sums."""
    try:
        sums = [bytes.fromhex(etag.strip('"')) for etag in etags]
    except ValueError:
        return None
    return f'"{hashlib.md5(b"".join(sums), usedforsecurity=False).hexdigest()}-{len(sums)}"'


def write_error(call: WriteCall, request: RangeRequest, status: int, code: str) -> AsyncpqError | None:
    """The error of a refusal that only writes get; None for others."""
    if call.create and (status == 412 or code == "PreconditionFailed"):
        return ObjectExistsError("the object exists already", url=request.url)
    if call.create and (status == 501 or code == "NotImplemented"):
        return cannot_create("the store", request.url)
    return None


def explained(error: AsyncpqError) -> AsyncpqError:
    """Add the hint about the missing permission."""
    if isinstance(error, AccessDeniedError) and not isinstance(error, CredentialsError):
        error.hint = _HINT
    return error


_PART_BYTES = 16 * 1024 * 1024  # 10,000 parts are allowed: larger ones for files beyond 160 GB
_STREAM_PART_BYTES = 8 * 1024 * 1024  # of streams: at most 80 GB
_MAX_PARTS = 10_000
_AT_ONCE = 4  # parts that are in memory
_ABORT_S = 5.0  # bounds the wait: an upload that is not aborted leaves parts that cost money

Send = Callable[[WriteCall, RequestContext], Awaitable[WriteAnswer]]


class S3Writer:
    """Writes one object.

    Args:
        send: sends one request, with retries.
        url: for messages.
    """

    def __init__(self, send: Send, url: str) -> None:
        self._send = send
        self._url = url

    async def put(self, data: bytes, context: RequestContext) -> None:
        """Create or replace it."""
        await self._send(put(data, create=False), context)

    async def create(self, data: bytes, context: RequestContext) -> bool:
        """Create it; False if it exists."""
        try:
            await self._send(put(data, create=True), context)
        except ObjectExistsError:
            return False
        return True

    async def delete(self, context: RequestContext) -> None:
        """Delete it, if it exists."""
        try:
            await self._send(delete(), context)
        except StoreError as error:
            if not is_gone(error):
                raise

    async def put_file(self, path: Path, stored: StoredObject, context: RequestContext) -> None:
        """Create or replace it by a file, in a multipart upload if it is large.

        Args:
            stored: the object, for reading.
        """
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size <= _PART_BYTES:
                    await self.put(await asyncio.to_thread(file.read), context)
                else:
                    await self._upload(self._parts_of(file, size), stored, context, create=False)
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"the file to be stored cannot be read: {error.strerror}", url=self._url) from error

    async def create_stream(self, pieces: AsyncIterator[bytes], stored: StoredObject, context: RequestContext) -> bool:
        """Create it from ``pieces``, in a multipart upload if they are large; False if it exists.

        Args:
            stored: the object, for reading.
        """
        async with aclosing(cut(pieces, _STREAM_PART_BYTES)) as parts:
            first = await anext(parts, b"")
            if len(first) < _STREAM_PART_BYTES:
                return await self.create(first, context)
            async with aclosing(_after(first, parts)) as all_parts:
                return await self._upload(all_parts, stored, context, create=True)

    async def _upload(
        self, parts: AsyncIterator[bytes], stored: StoredObject, context: RequestContext, *, create: bool
    ) -> bool:
        upload_id = (await self._send(begin_upload(), context)).upload_id
        assert upload_id is not None  # the exchange refuses a response without one
        step = context.step(context.purpose, context.round + 1)
        try:
            size, etags = await self._upload_parts(parts, upload_id, step)
            step = context.step(context.purpose, context.round + 2)
            try:
                await self._send(complete_upload(upload_id, etags, create=create), step)
            except ObjectExistsError:
                if not await self._is_completed(stored, size, etags, step):
                    await self._abort(upload_id, context)
                    return False
            except StoreError as error:
                if not is_gone(error):
                    raise
                # The first response was lost: the upload is gone because it has become the object.
                if not await self._is_completed(stored, size, etags, step):
                    raise TransportError("the upload may or may not have been completed", url=self._url) from error
        except BaseException:
            await self._abort(upload_id, context)
            raise
        return True

    async def _abort(self, upload_id: str, context: RequestContext) -> None:
        last = context.step(context.purpose, context.round + 3)
        last.deadline = asyncio.get_running_loop().time() + _ABORT_S
        with contextlib.suppress(AsyncpqError, asyncio.CancelledError):
            await self._send(abort_upload(upload_id), last)

    async def _upload_parts(
        self, parts: AsyncIterator[bytes], upload_id: str, context: RequestContext
    ) -> tuple[int, list[str]]:
        """Upload the parts; return their bytes in all, and their ETags."""
        running: deque[asyncio.Future[WriteAnswer]] = deque()
        etags: list[str] = []
        size, number, more = 0, 0, True
        try:
            while more or running:
                if more and len(running) < _AT_ONCE:
                    data = await anext(parts, None)
                    if data is None:
                        more = False
                        continue
                    size, number = size + len(data), number + 1
                    if number > _MAX_PARTS:
                        raise StoreError(f"the object would have more than {_MAX_PARTS} parts", url=self._url)
                    running.append(asyncio.ensure_future(self._send(upload_part(upload_id, number, data), context)))
                else:
                    etags.append((await running[0]).etag or "")
                    running.popleft()
        finally:
            for part in running:
                part.cancel()
            if running:
                await asyncio.wait(running)
        return size, etags

    async def _parts_of(self, file: BinaryIO, size: int) -> AsyncIterator[bytes]:
        part_bytes, remaining = max(_PART_BYTES, -(-size // _MAX_PARTS)), size
        while remaining > 0:
            data = await asyncio.to_thread(file.read, min(part_bytes, remaining))
            if not data:
                raise StoreError("the file to be stored was truncated during the upload", url=self._url)
            remaining -= len(data)
            yield data

    async def _is_completed(self, stored: StoredObject, size: int, etags: list[str], context: RequestContext) -> bool:
        """Whether the present object is the one of these parts."""
        validator = (await stored.fetch_tail(1, context=context)).validator
        return validator.size == size and validator.etag == etag_of_parts(etags)


async def cut(pieces: AsyncIterator[bytes], size: int) -> AsyncGenerator[bytes]:
    """Cut the same bytes into pieces of ``size``; only the last one may be shorter."""
    held = bytearray()
    async for piece in pieces:
        held += piece
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if held:
        yield bytes(held)


async def _after(first: bytes, rest: AsyncIterator[bytes]) -> AsyncGenerator[bytes]:
    yield first
    async for part in rest:
        yield part


# -- carriers -------------------------------------------------------------------------------------


class DirectWriter(S3Resource):
    """Sends the writes of one object over asyncpq's own wire."""

    def __init__(
        self, *, transport: Transport, wire: DirectWire, signers: Signers, route: Route, key: str, url: str
    ) -> None:
        super().__init__(wire=wire, signers=signers, route=route, path=canonical_path(route.prefix + key))
        self._transport = transport
        self._url = url

    async def send(self, call: WriteCall, context: RequestContext) -> WriteAnswer:
        exchange = _Signed(self, RangeRequest(0, len(call.content), self._url), call)
        await self._transport.send(exchange, context)
        return exchange.answer

    def exchange(self, exchange: _Signed, receiver: Receiver) -> Coroutine[Any, Any, Body]:
        """Sign and send one attempt."""
        route, call = self._route, exchange.call
        query = canonical_query(**call.query)
        if_none_match = "*" if call.create else None
        exchange.signer = signer = self.signers.signer(route.region)
        lines = f"Content-Length: {len(call.content)}\r\n" if call.method != "DELETE" else ""
        if signer is not None:
            now = time.time() + self.signers.clock_offset_s
            lines += signer.sign(
                call.method,
                route.host,
                self._path,
                query,
                now=now,
                if_none_match=if_none_match,
                payload_sha256=exchange.digest,
            )
        elif if_none_match is not None:
            lines += f"If-None-Match: {if_none_match}\r\n"
        return self._wire.exchange(
            call.method, self._target(route, query), lines, exchange.request, receiver, call.content
        )


class _Signed(SignedExchange):
    def __init__(self, writer: DirectWriter, request: RangeRequest, call: WriteCall) -> None:
        super().__init__(writer, request)
        self._writer = writer
        self.call = call
        self.method = call.method
        self.digest = hashlib.sha256(call.content).hexdigest()
        self.answer = WriteAnswer()
        self._etag: str | None = None

    def send(self, receiver: Receiver) -> Coroutine[Any, Any, Body]:
        return self._writer.exchange(self, receiver)

    def again(self) -> _Signed:
        return _Signed(self._writer, self.request, self.call)

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        self._etag = headers.get("etag")
        if self.call.etag and self._etag is None:
            return None  # S3 always sends an ETag: this may be an error document
        return ExpectedBody(0, ANSWER_BYTES, Validator(0), check=self._check)

    def _check(self, body: bytes) -> None:
        if parse_error(body)[0]:  # completing an upload may fail after the head was sent
            error = error_in_200(self.request, body)
            raise explained(error) if isinstance(error, AsyncpqError) else error
        self.answer = WriteAnswer(self._etag, parse_upload_id(body) if self.call.upload_id else None)
        if self.call.upload_id and self.answer.upload_id is None:
            raise RetryableError(TransportError("the store's response has no upload id", url=self.request.url))

    def refuse(self, status: int, headers: Mapping[str, str], body: bytes) -> AsyncpqError | RetryableError:
        write_refusal = write_error(self.call, self.request, status, parse_error(body)[0])
        error = write_refusal or super().refuse(status, headers, body)
        return explained(error) if isinstance(error, AsyncpqError) else error


class S3fsWriter:
    """Sends the writes of one object by s3fs's client."""

    def __init__(self, *, transport: Transport, connection: S3fsConnection, bucket: str, key: str, url: str) -> None:
        self._transport = transport
        self.connection = connection
        self.bucket = bucket
        self.key = key
        self._url = url

    async def send(self, call: WriteCall, context: RequestContext) -> WriteAnswer:
        exchange = _ByS3fs(self, RangeRequest(0, len(call.content), self._url), call)
        await self._transport.send(exchange, context)
        return exchange.answer


class _ByS3fs(S3fsExchange):
    def __init__(self, writer: S3fsWriter, request: RangeRequest, call: WriteCall) -> None:
        super().__init__(writer.connection, request)
        self._writer = writer
        self._call = call
        self.method = call.method
        self.answer = WriteAnswer()

    def again(self) -> _ByS3fs:
        return _ByS3fs(self._writer, self.request, self._call)

    async def call(self, filesystem: Any, receiver: Receiver) -> Body:
        call, writer = self._call, self._writer
        try:
            response = await filesystem._call_s3(call.operation, Bucket=writer.bucket, Key=writer.key, **call.arguments)
        except Exception as error:
            refused = write_error(call, self.request, 0, self.connection.error_code(error))
            if refused is None:
                raise
            raise refused from None
        receiver.head(int(response["ResponseMetadata"]["HTTPStatusCode"]), {})
        self.answer = answer = WriteAnswer(response.get("ETag"), response.get("UploadId"))
        if (call.etag and answer.etag is None) or (call.upload_id and answer.upload_id is None):
            raise error_in_200(self.request, b"")
        return Body(b"", True)

    def explained(self, error: AsyncpqError) -> AsyncpqError:
        return explained(error)

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody:
        return ExpectedBody(0, 0, Validator(0))
