"""The S3 store, and its objects: ranges signed with SigV4 and pinned with If-Match. The hot path."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Hashable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cachetools import LRUCache

from asyncpq.errors import InvalidOptionError, InvalidResponseError, UnsupportedStoreError, UsageError
from asyncpq.options import RetryOptions
from asyncpq.storage.base import (
    CreateProbe,
    Guarantee,
    ListedObject,
    RangeResult,
    RequestContext,
    StoredObject,
    StoreLimits,
    Unpicklable,
    Validator,
    Wants,
)
from asyncpq.storage.concurrency import call_each
from asyncpq.storage.http1 import Body, Receiver
from asyncpq.storage.responses import (
    UNKNOWN_SIZE,
    ExpectedBody,
    RangeIgnoredError,
    RangeRequest,
    check_head_response,
    check_range_response,
    guarantee_of,
    strong_etag,
)
from asyncpq.storage.s3.client import S3Client, error_code, explain, limits_of, retry_of
from asyncpq.storage.s3.key_listing import list_keys, list_wanted_keys
from asyncpq.storage.s3.list_page import ListedKey, ListPage, S3Bucket
from asyncpq.storage.s3.requests import Route, S3Resource, SignedExchange, Signers
from asyncpq.storage.s3.s3fs_fallback import S3fsBucket, S3fsConnection, S3fsObject
from asyncpq.storage.s3.sigv4 import canonical_path, canonical_query
from asyncpq.storage.s3.writer import DirectWriter, S3fsWriter, S3Writer
from asyncpq.storage.transport import Transport
from asyncpq.storage.urls import check_s3_names, safe_url, split_url
from asyncpq.storage.wire import DirectWire, HttpTarget


class S3Object(S3Resource):
    """See :class:`asyncpq.storage.base.StoredObject`. Made by S3Store.

    Args:
        key: decoded; every character counts.
        version_id: of the url, or None.
        if_match: False for servers without If-Match, whose versions can only be compared.
        version_aware: pin by the version id that the store names, if it names one.
    """

    client = "direct"

    def __init__(
        self,
        *,
        transport: Transport,
        wire: DirectWire,
        signers: Signers,
        route: Route,
        bucket: str,
        key: str,
        version_id: str | None = None,
        if_match: bool = True,
        version_aware: bool = False,
    ) -> None:
        self.url = safe_url(f"s3://{bucket}/{key}")
        super().__init__(wire=wire, signers=signers, route=route, path=canonical_path(route.prefix + key))
        self._transport = transport
        self._query = _version_query(version_id)
        self._if_match = if_match
        self.version_aware = version_aware
        self._targets: dict[tuple[str, str], HttpTarget] = {}
        self.guarantee = Guarantee.PINNED if if_match else Guarantee.COMPARED
        self._learnt: Validator | None = None
        self.identity = f"s3 {route.name}{self._path}?{self._query}"

    def __repr__(self) -> str:
        return f"<S3Object {self.url}>"

    def learn(self, validator: Validator) -> None:
        self._learnt = validator
        self.guarantee = guarantee_of(validator, if_match=self._if_match)

    # Every coroutine in a chain of awaits costs at each wake-up, so these two return the inner one.

    def fetch_tail(
        self, length: int, *, context: RequestContext, pin: Validator | None = None
    ) -> Coroutine[Any, Any, RangeResult]:
        return self._fetch(RangeRequest(-length, 0, self.url, pin), context)

    def fetch_range(
        self, start: int, stop: int, *, context: RequestContext, pin: Validator | None = None
    ) -> Coroutine[Any, Any, RangeResult]:
        return self._fetch(RangeRequest(start, stop, self.url, pin), context)

    async def close(self) -> None:
        """Do nothing: the handle holds nothing."""

    async def _fetch(self, request: RangeRequest, context: RequestContext) -> RangeResult:
        try:
            expected, body = await self._transport.send(_S3Get(self, request), context)
        except RangeIgnoredError as ignored:
            raise InvalidResponseError(
                f"the store sent {ignored.size or 'unknown'} bytes instead of the range",
                url=self.url,
                byte_range=request.byte_range,
                hint="The endpoint does not support range requests.",
            ) from None
        validator = expected.validator
        if validator.size == UNKNOWN_SIZE:
            validator = request.pin or await self._fetch_size(validator, context)
        if validator is not self._learnt:
            self.learn(validator)
        if expected.young:
            self.guarantee = Guarantee.NONE
        return RangeResult(body, expected.start, validator, self.guarantee is not Guarantee.NONE)

    async def _fetch_size(self, validator: Validator, context: RequestContext) -> Validator:
        """Send one HEAD, for a store whose Content-Range lacks the size."""
        pin = replace(validator, size=UNKNOWN_SIZE)
        head = _S3Head(self, RangeRequest(0, 0, self.url, pin))
        expected, _ = await self._transport.send(head, context.step("stat", context.round + 1))
        return replace(validator, size=expected.validator.size)

    def send(self, get: _S3Get, byte_range: str | None, receiver: Receiver) -> Coroutine[Any, Any, Body]:
        """Sign and send one attempt."""
        route, pin = self._route, get.request.pin
        get.signer = signer = self.signers.signer(route.region)
        query = self._query if pin is None or pin.version is None else _version_query(pin.version)
        target = self._targets.get((route.host, query))
        if target is None:
            target = self._targets[route.host, query] = self._target(route, query)
        if_match = strong_etag(pin) if self._if_match else None
        if signer is not None:
            now = time.time() + self.signers.clock_offset_s
            lines = signer.sign(
                get.method, route.host, self._path, query, now=now, byte_range=byte_range, if_match=if_match
            )
        else:
            lines = "" if byte_range is None else f"Range: {byte_range}\r\n"
            if if_match is not None:
                lines += f"If-Match: {if_match}\r\n"
        return self._wire.exchange(get.method, target, lines, get.request, receiver)


def _version_query(version_id: str | None) -> str:
    return canonical_query(versionId=version_id) if version_id is not None else ""


class _S3Get(SignedExchange):
    """One ranged GET."""

    def __init__(self, stored: S3Object, request: RangeRequest) -> None:
        super().__init__(stored, request)
        self._stored = stored

    def send(self, receiver: Receiver) -> Coroutine[Any, Any, Body]:
        return self._stored.send(self, self.request.header, receiver)

    def again(self) -> _S3Get:
        return type(self)(self._stored, self.request)

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        if status == 200 and "etag" not in headers:
            return None  # S3 always sends an ETag: this may be an error document (a late SlowDown)
        expected = check_range_response(self.request, status, headers)
        if self._stored.version_aware and self.request.pin is None and "x-amz-version-id" in headers:
            return replace(expected, validator=replace(expected.validator, version=headers["x-amz-version-id"]))
        return expected


class _S3Head(_S3Get):
    """Asks for the object's size, for stores whose Content-Range lacks it."""

    method = "HEAD"

    def send(self, receiver: Receiver) -> Coroutine[Any, Any, Body]:
        return self._stored.send(self, None, receiver)

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        return check_head_response(self.request, headers) if status == 200 else None


_KNOWN_LISTINGS = 8
_MAX_KNOWN_OBJECTS = 10_000


class S3Store(Unpicklable):
    """See :class:`asyncpq.storage.base.Store` and ``WritableStore``.

    Args:
        storage_options: those of s3fs.S3FileSystem, with its meanings.
        retry, limits: timeouts, retries and connections of config_kwargs override them.

    Raises:
        InvalidOptionError: s3fs does not take the options.
    """

    def __init__(self, storage_options: Mapping[str, Any], *, retry: RetryOptions, limits: StoreLimits) -> None:
        self._options = {
            name: value
            for name, value in storage_options.items()
            if name not in ("asynchronous", "loop", "skip_instance_cache")
        }
        check_s3_names(self._options)
        self._retry = retry_of(self._options, retry)
        self._client = S3Client(self._options)
        self._signers = Signers(self._client.fetch_credentials)
        self._lock = asyncio.Lock()
        self._routes: dict[str, Route | str] = {}
        self._transport = Transport(retry=self._retry, limits=limits_of(self._options, limits))
        self._wire: DirectWire | None = None
        self._fallback: S3fsConnection | None = None  # s3fs, for what the wire does not carry
        # the last listings: their pages, and by url the objects made of all pages
        self._pages: LRUCache[Hashable, tuple[bytes, ListPage]] = LRUCache(_KNOWN_LISTINGS)
        self._listed: LRUCache[str, tuple[list[ListedKey], list[ListedObject]]] = LRUCache(_KNOWN_LISTINGS)
        self._create_probe = CreateProbe()
        self._closed = False

    def __repr__(self) -> str:
        return "<S3Store>"

    async def open_object(self, url: str) -> StoredObject:
        """Make a handle. The first one of a bucket resolves credentials and route; nothing is sent to the object.

        Raises:
            CredentialsError: there are no credentials.
            InvalidOptionError: botocore does not take the bucket's name or an option.
        """
        path, _, version = url.partition("?versionId=")
        bucket, key = self._split(path)
        if not key:
            raise InvalidOptionError(
                "an S3 url of one file needs a bucket and a key",
                url=safe_url(url),
                hint="Session.open_dataset reads all files of a bucket or prefix.",
            )
        route = await self._route(bucket, url)
        if_match = not self._options.get("local_expiry_check")
        version_aware = bool(self._options.get("version_aware"))
        if isinstance(route, Route) and self._wire is not None:
            return S3Object(
                transport=self._transport,
                wire=self._wire,
                signers=self._signers,
                route=route,
                bucket=bucket,
                key=key,
                version_id=version or None,
                if_match=if_match,
                version_aware=version_aware,
            )
        assert self._fallback is not None  # made with the bucket's route
        return S3fsObject(
            transport=self._transport,
            connection=self._fallback,
            bucket=bucket,
            key=key,
            version_id=version or None,
            if_match=if_match,
            version_aware=version_aware,
            reason=str(route),
        )

    async def list_objects(
        self, url: str, *, context: RequestContext, wants: Wants | None = None
    ) -> list[ListedObject]:
        """List with ListObjectsV2, several pages at once if there are many.

        Raises:
            CredentialsError, InvalidOptionError: as :meth:`open_object`.
            BucketNotFoundError, AccessDeniedError, StoreError: the store refused.
        """
        bucket, prefix = self._split(url)
        root = url[: len(url) - len(prefix)] if prefix else url.rstrip("/") + "/"
        fetch_page = (await self._bucket(bucket, url, context)).fetch_page
        if wants is None:
            listed = await list_keys(fetch_page, prefix, context, url=safe_url(url))
        else:
            listed = await list_wanted_keys(
                fetch_page, prefix, lambda folder: wants(root + folder), context, url=safe_url(url)
            )
        last = self._listed.get(url)
        if last is not None and last[0] == listed:
            return last[1]
        version_aware = bool(self._options.get("version_aware"))  # then GETs name versions, which listings do not
        objects = [
            ListedObject(
                root + key.key,
                key.size,
                None if version_aware or key.etag is None else Validator(size=key.size, etag=key.etag),
                key.modified,
            )
            for key in listed
            if not key.key.endswith("/")
        ]
        if len(objects) <= _MAX_KNOWN_OBJECTS:
            self._listed[url] = (listed, objects)
        return objects

    # -- writing: see asyncpq.storage.base.WritableStore ------------------------------------------

    async def put_object(self, url: str, data: bytes, *, context: RequestContext) -> None:
        """Create or replace an object."""
        await (await self._writer(url, context)).put(data, _writing(context))

    async def create_object(self, url: str, data: bytes, *, context: RequestContext) -> bool:
        """Create an object; False if it exists. A server that ignores If-None-Match overwrites it."""
        return await (await self._writer(url, context)).create(data, _writing(context))

    async def probe_create(self, url: str, *, context: RequestContext) -> bool:
        """Whether the server honours If-None-Match; tried once for each bucket."""
        return await self._create_probe.ask(self, self._split(url)[0], url, _writing(context))

    async def put_file(self, url: str, path: Path, *, context: RequestContext) -> None:
        """Create or replace an object by a file; a large one in a multipart upload."""
        writer = await self._writer(url, context)
        await writer.put_file(path, await self.open_object(url), _writing(context))

    async def create_stream(self, url: str, pieces: AsyncIterator[bytes], *, context: RequestContext) -> bool:
        """Create an object from ``pieces``, in a multipart upload if they are large; False if it exists."""
        writer = await self._writer(url, context)
        return await writer.create_stream(pieces, await self.open_object(url), _writing(context))

    async def delete_objects(self, urls: Sequence[str], *, context: RequestContext) -> None:
        """Delete objects, one request each."""
        context = _writing(context)

        async def delete(url: str) -> None:
            await (await self._writer(url, context)).delete(context)

        await call_each(delete, urls)

    async def clock(self, url: str, *, context: RequestContext) -> float:
        """The server's time, to the second, from a LIST."""
        bucket, prefix = self._split(url)
        return await (await self._bucket(bucket, url, context)).fetch_clock(prefix, context.step("list", context.round))

    async def credential_identity(self, url: str) -> str:
        """A digest of the access key id in use; "anonymous" with ``anon=True``. The same for all urls.

        Raises:
            CredentialsError: there are no credentials.
        """
        self._check_open()
        return await self._signers.identity()

    async def close(self) -> None:
        """Close connections. Idempotent."""
        self._closed = True
        async with self._lock:  # finding a route may open connections
            await self._transport.close()
            if self._wire is not None:
                await self._wire.close()
            await self._client.close()

    async def _reconnect(self) -> Any:
        """Connect s3fs with other credentials than those that expired."""
        await self._client.fetch_credentials(True)  # raises if there are no others
        async with self._lock:  # close() ends all connections
            self._check_open()
            return await self._client.connect_fallback()

    def _split(self, url: str) -> tuple[str, str]:
        """Bucket and key of a url."""
        protocol, path = split_url(url)
        if protocol not in ("s3", "s3a"):
            raise UnsupportedStoreError(f"not an S3 url: protocol {protocol!r}", url=safe_url(url))
        bucket, key = self._client.split(path)
        if not bucket:
            raise InvalidOptionError("an S3 url needs a bucket", url=safe_url(url))
        if not bucket.startswith("arn:") and (":" in bucket or "@" in bucket):
            raise InvalidOptionError(
                "an S3 url holds no user info", url=safe_url(url), hint="Pass key and secret in storage_options."
            )
        return bucket, key

    async def _bucket(self, bucket: str, url: str, context: RequestContext) -> S3Bucket | S3fsBucket:
        """The bucket, for listing."""
        route = await self._route(bucket, url)
        if isinstance(route, Route) and self._wire is not None:
            return S3Bucket(
                transport=self._transport,
                wire=self._wire,
                signers=self._signers,
                route=route,
                url=safe_url(url),
                known=self._pages,
            )
        assert self._fallback is not None  # made with the bucket's route
        context.metrics.fall_back(f"read through s3fs: {route}")
        return S3fsBucket(transport=self._transport, connection=self._fallback, bucket=bucket, url=safe_url(url))

    async def _writer(self, url: str, context: RequestContext) -> S3Writer:
        bucket, key = self._split(url)
        if not key:
            raise InvalidOptionError("an S3 url needs a bucket and a key", url=safe_url(url))
        route = await self._route(bucket, url)
        # Options that no GET shows, such as the encryption or class of new objects: botocore knows their headers.
        extras = self._options.get("s3_additional_kwargs")
        if isinstance(route, Route) and self._wire is not None and not extras:
            return S3Writer(
                DirectWriter(
                    transport=self._transport,
                    wire=self._wire,
                    signers=self._signers,
                    route=route,
                    key=key,
                    url=safe_url(url),
                ).send,
                safe_url(url),
            )
        async with self._lock:
            connection = await self._connection()
        reason = route if isinstance(route, str) else "option s3_additional_kwargs"
        context.metrics.fall_back(f"written through s3fs: {reason}")
        writer = S3fsWriter(transport=self._transport, connection=connection, bucket=bucket, key=key, url=safe_url(url))
        return S3Writer(writer.send, safe_url(url))

    async def _connection(self) -> S3fsConnection:
        """The connection of s3fs for what the wire does not carry. Call it with the lock held."""
        self._check_open()
        if self._fallback is None:
            self._fallback = S3fsConnection(
                self._reconnect, await self._client.connect_fallback(), explain=explain, error_code=error_code
            )
        return self._fallback

    async def _route(self, bucket: str, url: str) -> Route | str:
        """The bucket's route, or the reason to read it with s3fs; the first call makes the client."""
        self._check_open()
        route = self._routes.get(bucket)
        if route is not None:
            return route
        async with self._lock:
            self._check_open()
            route = self._routes.get(bucket) or await self._client.find_route(bucket, url)
            if isinstance(route, Route) and self._wire is None:
                context = await self._client.ssl_context(route.scheme)
                self._wire = DirectWire(ssl_context=context, connect_timeout_s=self._retry.connect_timeout_s)
            if isinstance(route, str):
                await self._connection()
            self._routes[bucket] = route  # last: other calls use it without the lock
        return route

    def _check_open(self) -> None:
        if self._closed:
            raise UsageError("the store is closed", hint="Read while the session is open.")


def _writing(context: RequestContext) -> RequestContext:
    return context if context.purpose == "write" else context.step("write", context.round)
