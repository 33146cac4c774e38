"""One S3 object through s3fs's own calls: for options that the direct path does not implement.

The responses go through the same checks; only who sends and signs the request differs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Any

import aiohttp
from multidict import CIMultiDict

from asyncpq.errors import AsyncpqError, InvalidResponseError, TransportError
from asyncpq.metrics import RequestRecord
from asyncpq.storage.base import Guarantee, RangeResult, RequestContext, Validator
from asyncpq.storage.responses import (
    ERROR_BODY_BYTES,
    UNKNOWN_SIZE,
    RangeIgnoredError,
    RangeRequest,
    check_range_response,
    guarantee_of,
    strong_etag,
)
from asyncpq.storage.retry import RetryableError, delay_before_retry_s
from asyncpq.storage.s3_errors import error_in_200
from asyncpq.storage.urls import safe_url
from asyncpq.storage.watchdog import Watch, Watchdog
from asyncpq.storage.wire import connection_failure

_PART_BYTES = 1024 * 1024

Explain = Callable[[Exception, RangeRequest], AsyncpqError | RetryableError | None]


class S3fsObject:
    """See :class:`asyncpq.storage.base.StoredObject`. Made by S3Store.

    Args:
        filesystem: an asynchronous s3fs.S3FileSystem that does not retry.
        reason: why this path is taken, for the metrics.
        watchdog: the store's.
        slots, scan_slots: connections, shared by the store's objects.
        explain: what an exception of s3fs stands for.
    """

    client = "s3fs"

    def __init__(
        self,
        *,
        filesystem: Any,
        bucket: str,
        key: str,
        version_id: str | None,
        version_aware: bool,
        if_match: bool,
        reason: str,
        watchdog: Watchdog,
        slots: asyncio.Semaphore,
        scan_slots: asyncio.Semaphore,
        explain: Explain,
    ) -> None:
        self.url = safe_url(f"s3://{bucket}/{key}")
        meta = filesystem._s3.meta
        self.identity = f"s3fs {meta.endpoint_url}[{meta.region_name}] {bucket} {key} {version_id or ''}"
        self.guarantee = Guarantee.PINNED if if_match else Guarantee.COMPARED
        self._fs = filesystem
        self._bucket = bucket
        self._key = key
        self._version_id = version_id
        self._version_aware = version_aware
        self._if_match = if_match
        self._reason = f"read through s3fs: {reason}"
        self._watchdog = watchdog
        self._slots = slots
        self._scan_slots = scan_slots
        self._explain = explain

    def __repr__(self) -> str:
        return f"<S3fsObject {self.url}>"

    def learn(self, validator: Validator) -> None:
        """See :meth:`asyncpq.storage.base.StoredObject.learn`."""
        self.guarantee = guarantee_of(validator, if_match=self._if_match)

    async def fetch_tail(self, length: int, *, context: RequestContext, pin: Validator | None = None) -> RangeResult:
        """See :meth:`asyncpq.storage.base.StoredObject.fetch_tail`."""
        return await self._fetch(RangeRequest(-length, 0, self.url, pin), context)

    async def fetch_range(
        self, start: int, stop: int, *, context: RequestContext, pin: Validator | None = None
    ) -> RangeResult:
        """See :meth:`asyncpq.storage.base.StoredObject.fetch_range`."""
        return await self._fetch(RangeRequest(start, stop, self.url, pin), context)

    async def close(self) -> None:
        """Nothing is held."""

    async def _fetch(self, request: RangeRequest, context: RequestContext) -> RangeResult:
        context.metrics.fall_back(self._reason)
        loop = asyncio.get_running_loop()
        watch = self._watchdog.watch(context.deadline)
        attempt = 1
        try:
            while True:
                try:
                    if not context.scan:
                        async with self._slots:
                            return await self._fetch_once(request, context, attempt, watch)
                    async with self._scan_slots, self._slots:
                        return await self._fetch_once(request, context, attempt, watch)
                except RetryableError as failure:
                    delay = delay_before_retry_s(
                        failure,
                        attempt=attempt,
                        options=self._watchdog.options,
                        now=loop.time(),
                        deadline=context.deadline,
                    )
                attempt += 1
                watch.rest()
                await asyncio.sleep(delay)
        except asyncio.CancelledError:
            watch.raise_if_deadline(request.url, request.byte_range)
            raise
        finally:
            watch.stop()

    async def _fetch_once(
        self, request: RangeRequest, context: RequestContext, attempt: int, watch: Watch
    ) -> RangeResult:
        pin = request.pin
        arguments: dict[str, Any] = {"Bucket": self._bucket, "Key": self._key, "Range": request.header}
        etag = strong_etag(pin) if self._if_match else None
        if etag is not None:
            arguments["IfMatch"] = etag
        version = pin.version if pin is not None and pin.version is not None else self._version_id
        if version is not None:
            arguments["VersionId"] = version
        started = watch.expect_head()
        status = 0
        body: Any = None
        try:
            response = await self._fs._call_s3("get_object", **arguments)
            body = response["Body"]
            meta = response["ResponseMetadata"]
            status = int(meta["HTTPStatusCode"])
            headers = CIMultiDict(meta["HTTPHeaders"])
            watch.expect_body()
            if status == 200 and "ETag" not in headers:  # S3 always sends one: see s3_object
                raise error_in_200(request, await body.read(ERROR_BODY_BYTES))
            expected = check_range_response(request, status, headers)
            read_part = partial(body.read, _PART_BYTES)
            data = await _read_exactly(read_part, _never_sure, expected.length, request, watch)
        except asyncio.CancelledError:
            watch.raise_if_silent(request.url, request.byte_range)
            raise
        except RangeIgnoredError:
            raise InvalidResponseError(
                "the store sent the whole object instead of the range", url=self.url, byte_range=request.byte_range
            ) from None
        except (AsyncpqError, RetryableError):
            raise
        except Exception as error:
            explained: Exception | None = self._explain(error, request)
            if explained is None and isinstance(error, aiohttp.ClientError | OSError):
                explained = connection_failure(error, request)
            if explained is None:
                raise
            raise explained from (error if isinstance(error, OSError) else None)  # botocore's may quote options
        finally:
            if body is not None:
                body.close()
            context.metrics.record(
                RequestRecord(
                    "GET",
                    context.purpose,
                    request.start,
                    request.stop,
                    status,
                    watch.received,
                    attempt,
                    context.round,
                    watch.now() - started,
                )
            )
        validator = expected.validator
        if self._version_aware and pin is None:
            validator = replace(validator, version=headers.get("x-amz-version-id"))
        if validator.size == UNKNOWN_SIZE:
            if pin is None:
                raise InvalidResponseError("the store does not say the object's size", url=self.url)
            validator = pin
        self.learn(validator)
        return RangeResult(data, expected.start, validator, self.guarantee is not Guarantee.NONE)


def _never_sure() -> bool:
    return False


async def _read_exactly(
    read_part: Callable[[], Awaitable[bytes]],
    at_end: Callable[[], bool],
    length: int,
    request: RangeRequest,
    watch: Watch,
) -> bytes:
    """A body, which must have ``length`` bytes.

    Args:
        read_part: the next bytes of the body, none at its end.
        at_end: True if it is certain that nothing follows.

    Raises:
        RetryableError: it is shorter.
        InvalidResponseError: it is longer.
    """
    parts: list[bytes] = []
    received = 0
    while received < length:
        part = await read_part()
        if not part:
            break
        received += len(part)
        watch.progress(received)
        parts.append(part)
    if received == length and not at_end():
        part = await read_part()  # the end of a chunked body, or more than there should be
        received += len(part)
        watch.progress(received)
    if received == length:
        return parts[0] if len(parts) == 1 else b"".join(parts)
    what = f"the response body has {received} bytes instead of {length}"
    if received < length:
        raise RetryableError(TransportError(what, url=request.url, byte_range=request.byte_range))
    raise InvalidResponseError(f"{what} or more", url=request.url, byte_range=request.byte_range)
