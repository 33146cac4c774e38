"""Write one S3 object: the write requests and the multipart upload. A bucket sends them, directly or through s3fs."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import re
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import field
from pathlib import Path
from typing import Any, BinaryIO

from asyncpq.errors import AsyncpqError, StoreError, TransportError
from asyncpq.records import dataclass
from asyncpq.storage.base import ObjectExistsError, RequestContext, StoredObject, Validator, cannot_create, is_gone
from asyncpq.storage.response_checks import WRITING_HINT, ExpectedBody, RangeRequest, error_in_200, parse_error
from asyncpq.storage.retries import RetryableError
from asyncpq.storage.s3.direct import ANSWER_BYTES, DirectBucket, SignedExchange
from asyncpq.storage.s3.sigv4 import canonical_query
from asyncpq.storage.threads import end_tasks

_UPLOAD_ID = re.compile(rb"<UploadId>([^<]{1,2000})</UploadId>")


@dataclass(frozen=True, slots=True)
class WriteAnswer:
    """The used part of a write's response: the ETag of an object or part, or the id of an upload."""

    etag: str | None = None
    upload_id: str | None = None


@dataclass(frozen=True, slots=True)
class WriteCall:
    """One write request to S3, in two forms: ``method``, ``query`` and ``content`` for HTTP; ``operation`` (such as
    "put_object") and its ``arguments`` for botocore, which s3fs uses."""

    operation: str
    method: str
    query: Mapping[str, str] = field(default_factory=dict)
    content: bytes = b""
    arguments: Mapping[str, Any] = field(default_factory=dict)  # besides bucket and key
    create: bool = False  # send If-None-Match
    etag: bool = False  # a good response has an ETag
    upload_id: bool = False  # a good response has an upload id


def put(data: bytes, *, create: bool) -> WriteCall:
    """Return a PutObject call; with ``create`` the store refuses to replace an existing object."""
    arguments = {"Body": data, "IfNoneMatch": "*"} if create else {"Body": data}
    return WriteCall("put_object", "PUT", content=data, arguments=arguments, create=create, etag=True)


def upload_part(upload_id: str, number: int, data: bytes) -> WriteCall:
    """Return an UploadPart call; part numbers begin at 1."""
    query = {"partNumber": str(number), "uploadId": upload_id}
    arguments = {"UploadId": upload_id, "PartNumber": number, "Body": data}
    return WriteCall("upload_part", "PUT", query, data, arguments, etag=True)


def complete_upload(upload_id: str, etags: Sequence[str], *, create: bool) -> WriteCall:
    """Return a CompleteMultipartUpload call for the parts with ``etags``, which are numbered from 1.

    With ``create`` the store refuses to replace an existing object.
    """
    from xml.sax.saxutils import escape  # it loads urllib.request, which no read needs

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


def parse_upload_id(body: bytes) -> str | None:
    """Return the upload id in a response to CreateMultipartUpload; None if it is missing."""
    from xml.sax.saxutils import unescape

    match = _UPLOAD_ID.search(body)
    return unescape(match[1].decode("utf-8", "replace")) if match is not None else None


def etag_of_parts(etags: Sequence[str]) -> str | None:
    """Return the ETag that S3 gives to an object whose parts have ``etags``; None if these are not MD5 sums."""
    try:
        sums = [bytes.fromhex(etag.strip('"')) for etag in etags]
    except ValueError:
        return None
    return f'"{hashlib.md5(b"".join(sums), usedforsecurity=False).hexdigest()}-{len(sums)}"'


def write_error(call: WriteCall, request: RangeRequest, status: int, code: str) -> AsyncpqError | None:
    """Return the error for a refusal that only write requests get; None for other refusals."""
    if call.create and (status == 412 or code == "PreconditionFailed"):
        return ObjectExistsError("the object exists already", url=request.url)
    if call.create and (status == 501 or code == "NotImplemented"):
        return cannot_create("the store", request.url)
    return None


_PART_BYTES = 16 * 1024 * 1024  # 10,000 parts are allowed: larger ones for files beyond 160 GB
_STREAM_PART_BYTES = 8 * 1024 * 1024  # of streams: at most 80 GB
_MAX_PARTS = 10_000
_AT_ONCE = 4  # parts that are in memory
_ABORT_S = 5.0  # bounds the wait: an upload that is not aborted leaves parts that cost money

Send = Callable[[WriteCall, RequestContext], Awaitable[WriteAnswer]]


class S3Writer:
    """Writes one object. ``send`` sends one request, with retries; ``url`` is shown in errors."""

    def __init__(self, send: Send, url: str) -> None:
        self._send = send
        self._url = url

    async def put(self, data: bytes, context: RequestContext) -> None:
        """Create or replace the object."""
        await self._send(put(data, create=False), context)

    async def create(self, data: bytes, context: RequestContext) -> bool:
        """Create the object; return False if it exists."""
        try:
            await self._send(put(data, create=True), context)
        except ObjectExistsError:
            return False
        return True

    async def delete(self, context: RequestContext) -> None:
        """Delete the object, if it exists."""
        try:
            await self._send(WriteCall("delete_object", "DELETE"), context)
        except StoreError as error:
            if not is_gone(error):
                raise

    async def put_file(self, path: Path, stored: StoredObject, context: RequestContext) -> None:
        """Create or replace the object with a file's content, in parts if it is large. ``stored`` is a handle that
        reads the object."""
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                if size <= _PART_BYTES:
                    await self.put(await asyncio.to_thread(file.read), context)
                else:
                    await self._upload(self._parts_of(file, size), stored, context, create=False)
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(
                f"the local file {path}, which is to be uploaded, cannot be read: {error.strerror}",
                url=self._url,
                hint="Check that the file exists and that this process may read it.",
            ) from error

    async def create_stream(self, pieces: AsyncIterator[bytes], stored: StoredObject, context: RequestContext) -> bool:
        """Create the object from ``pieces`` of its content, in a multipart upload if they are large; return False if it
        exists. ``stored`` is a handle that reads the object."""
        async with aclosing(cut(pieces, _STREAM_PART_BYTES)) as parts:
            first = await anext(parts, b"")
            if len(first) < _STREAM_PART_BYTES:
                return await self.create(first, context)
            async with aclosing(_after(first, parts)) as all_parts:
                return await self._upload(all_parts, stored, context, create=True)

    async def _upload(
        self, parts: AsyncIterator[bytes], stored: StoredObject, context: RequestContext, *, create: bool
    ) -> bool:
        begin = WriteCall("create_multipart_upload", "POST", {"uploads": ""}, upload_id=True)
        upload_id = (await self._send(begin, context)).upload_id
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
                    raise TransportError(
                        "the response was lost, so the upload may or may not have been completed",
                        url=self._url,
                        hint="Look whether the object exists before you write it again.",
                    ) from error
        except BaseException:
            await self._abort(upload_id, context)
            raise
        return True

    async def _abort(self, upload_id: str, context: RequestContext) -> None:
        last = context.step(context.purpose, context.round + 3)
        query, arguments = {"uploadId": upload_id}, {"UploadId": upload_id}
        with contextlib.suppress(AsyncpqError, TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(_ABORT_S):
                await self._send(WriteCall("abort_multipart_upload", "DELETE", query, arguments=arguments), last)

    async def _upload_parts(
        self, parts: AsyncIterator[bytes], upload_id: str, context: RequestContext
    ) -> tuple[int, list[str]]:
        """Upload the parts; return their total size in bytes, and their ETags in order."""
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
                        raise StoreError(
                            f"the object would have more than {_MAX_PARTS} parts, the limit of S3",
                            url=self._url,
                            hint="Write several smaller objects.",
                        )
                    running.append(asyncio.ensure_future(self._send(upload_part(upload_id, number, data), context)))
                else:
                    etags.append((await running[0]).etag or "")
                    running.popleft()
        finally:
            await end_tasks(running)
        return size, etags

    async def _parts_of(self, file: BinaryIO, size: int) -> AsyncIterator[bytes]:
        part_bytes, remaining = max(_PART_BYTES, -(-size // _MAX_PARTS)), size
        while remaining > 0:
            data = await asyncio.to_thread(file.read, min(part_bytes, remaining))
            if not data:
                raise StoreError(
                    "the local file was truncated during the upload",
                    url=self._url,
                    hint="Upload it again once it is complete.",
                )
            remaining -= len(data)
            yield data

    async def _is_completed(self, stored: StoredObject, size: int, etags: list[str], context: RequestContext) -> bool:
        """Return whether the object, as it is now, consists of ``size`` bytes in the parts with ``etags``."""
        validator = (await stored.fetch_tail(1, context=context)).validator
        return validator.size == size and validator.etag == etag_of_parts(etags)


async def cut(pieces: AsyncIterator[bytes], size: int) -> AsyncGenerator[bytes]:
    """Divide the bytes of ``pieces`` anew: yield pieces of ``size`` bytes; only the last one may be shorter."""
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


class S3Write(SignedExchange):
    """A write request, whose signature covers the digest of its content."""

    denied_hint = WRITING_HINT

    def __init__(self, bucket: DirectBucket, path: str, call: WriteCall, url: str) -> None:
        self.request: RangeRequest = RangeRequest(0, len(call.content), url)
        self._bucket = bucket
        self._path = path
        self._targets = {}
        self._call = call
        self.method: str = call.method
        self.content: bytes = call.content
        self.has_content: bool = call.method == "PUT" or "uploads" in call.query
        self.payload_sha256: str | None = hashlib.sha256(call.content).hexdigest()
        self.answer: WriteAnswer = WriteAnswer()
        self._etag: str | None = None

    def query_and_headers(self) -> tuple[str, Mapping[str, str]]:
        return canonical_query(**self._call.query), {"if-none-match": "*"} if self._call.create else {}

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        self._etag = headers.get("etag")
        if self._call.etag and self._etag is None:
            return None  # S3 always sends an ETag: this may be an error document
        return ExpectedBody(0, ANSWER_BYTES, Validator(0), check=self._check)

    def refuse(self, status: int, headers: Mapping[str, str], body: bytes) -> AsyncpqError | RetryableError:
        refusal = write_error(self._call, self.request, status, parse_error(body)[0])
        return refusal or super().refuse(status, headers, body)

    def _check(self, body: bytes) -> None:
        if parse_error(body)[0]:  # completing an upload may fail after the head was sent
            raise error_in_200(self.request, body, WRITING_HINT)
        self.answer = WriteAnswer(self._etag, parse_upload_id(body) if self._call.upload_id else None)
        if self._call.upload_id and self.answer.upload_id is None:
            raise RetryableError(TransportError("the store's response has no upload id", url=self.request.url))
