"""The S3 store and its objects.

``config`` resolves options, credentials and the address of buckets. A bucket is then a ``DirectBucket`` or an
``S3fsBucket``, which makes the requests of objects, listings and writes alike. s3fs and botocore are loaded only if
they are needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from cachetools import LRUCache

from asyncpq.checkpoints import each
from asyncpq.errors import Hint, InvalidOptionError, InvalidResponseError, UnsupportedStoreError
from asyncpq.options import RetryOptions
from asyncpq.storage.base import (
    CreateProbe,
    FirstNames,
    Guarantee,
    ListedObject,
    ListedObjects,
    RangeResult,
    RequestContext,
    StoreLimits,
    Unpicklable,
    Validator,
    Wants,
    closed_store,
    http_date_s,
    time_of_probe,
)
from asyncpq.storage.limits import ListingLimit
from asyncpq.storage.response_checks import (
    COMPARED,
    SIZE_FIRST,
    UNKNOWN_SIZE,
    RangeIgnoredError,
    RangeRequest,
    ServerTraits,
    TraitsByHost,
    ask_size,
    find_size,
    guarantee_of,
)
from asyncpq.storage.s3.config import S3Resolver, check_key_transport, customer_key, is_directory_bucket
from asyncpq.storage.s3.direct import DirectBucket, KeyListing
from asyncpq.storage.s3.sigv4 import Route, Signers, canonical_query
from asyncpq.storage.threads import call_each
from asyncpq.storage.transport import Transport
from asyncpq.storage.urls import (
    END_OF_KEY,
    RENEWAL,
    bucket_url,
    check_s3_names,
    is_tenant_bucket,
    mapping_option,
    safe_url,
    split_url,
    split_version,
    url_of_key,
)
from asyncpq.storage.wire import DirectWire, HttpTarget

if TYPE_CHECKING:
    from pathlib import Path

    from asyncpq.storage.s3.client import S3fsBucket, S3fsClients, S3fsConnection
    from asyncpq.storage.s3.key_listing import ListedKey, ListPage, PageRequest
    from asyncpq.storage.s3.writer import S3Writer, WriteAnswer, WriteCall

Bucket: TypeAlias = "DirectBucket | S3fsBucket"

N = TypeVar("N", int, float)
_KNOWN_LISTINGS = 8
_MAX_KNOWN_OBJECTS = 10_000
_MAX_SELECTIVE = 1000  # prefixes of a bucket
_FEW_KEYS = 1000  # become objects on the event loop


def _objects_of(listed: Sequence[ListedKey], root: str, *, versions: bool) -> Sequence[ListedObject]:
    """Return the objects of a listing, without folder markers. ``versions``: with their validators, which is wrong for
    version-aware GETs: these name versions, and listings do not."""
    return ListedObjects.of(
        ListedObject(
            url_of_key(root + key.key),
            key.size,
            Validator(size=key.size, etag=key.etag) if versions and key.etag is not None else None,
            key.modified,
        )
        for key in each(listed)
        if not key.key.endswith("/")
    )


def retry_of(options: Mapping[str, Any], retry: RetryOptions) -> RetryOptions:
    """Return ``retry`` with the timeouts and attempts that the ``config_kwargs`` in ``options`` set."""
    config = mapping_option(options, "config_kwargs")
    changes: dict[str, Any] = {}
    if config.get("connect_timeout") is not None:
        changes["connect_timeout_s"] = _number(float, config, "connect_timeout")
    if config.get("read_timeout") is not None:
        changes["first_byte_timeout_s"] = changes["stall_timeout_s"] = _number(float, config, "read_timeout")
    retries = mapping_option(config, "retries")
    if retries.get("total_max_attempts") is not None:
        changes["max_attempts"] = _number(int, retries, "total_max_attempts")
    elif retries.get("max_attempts") is not None:
        changes["max_attempts"] = _number(int, retries, "max_attempts") + 1
    return replace(retry, **changes)


def _number(kind: type[N], options: Mapping[str, Any], name: str) -> N:
    """Return the option ``name`` as a number of the type ``kind``. Raises InvalidOptionError if it is none."""
    try:
        return kind(options[name])
    except (TypeError, ValueError, OverflowError):
        raise InvalidOptionError(
            f"{name} in storage_options must be a number, not {type(options[name]).__name__}"
        ) from None


def limits_of(options: Mapping[str, Any], limits: StoreLimits) -> StoreLimits:
    """Return ``limits`` with at most as many connections as ``max_pool_connections`` in the ``config_kwargs`` of
    ``options``."""
    config = mapping_option(options, "config_kwargs")
    if config.get("max_pool_connections") is None:
        return limits
    most = max(1, _number(int, config, "max_pool_connections"))
    if most >= limits.max_connections:
        return limits
    return replace(limits, max_connections=most, scan_connections=max(1, min(limits.scan_connections, most - 1)))


class S3Object(Unpicklable):
    """A handle on one object of an S3Store; see :class:`asyncpq.storage.base.StoredObject`.

    ``version_id`` is the version id in the url. ``if_match`` is False for servers that do not support If-Match, so that
    only the versions of responses are compared. With ``version_aware``, reads are pinned to the version id in the first
    response, if there is one.
    """

    def __init__(
        self,
        transport: Transport,
        bucket: Bucket,
        url: str,
        key: str,
        *,
        version_id: str | None,
        if_match: bool,
        version_aware: bool,
    ) -> None:
        self.url = url
        self.client: str = bucket.client
        self.path: str = bucket.path(key)
        self.version_id = version_id
        self.query: str = "" if version_id is None else canonical_query(versionId=version_id)
        self.traits: ServerTraits = bucket.traits
        self._if_match = if_match
        self.version_aware = version_aware
        self.targets: dict[tuple[str, str], HttpTarget] = {}  # prepared requests of a DirectBucket
        self._guarantee = Guarantee.PINNED
        self.identity: str = bucket.identity(self)
        self._transport = transport
        self._bucket = bucket
        self._learnt: Validator | None = None

    @property
    def server(self) -> str:
        """Host of the bucket; "" if s3fs sends the requests."""
        return self._bucket.server

    def __repr__(self) -> str:
        return f"<S3Object {self.url}>"

    @property
    def if_match(self) -> bool:
        """Whether requests for a version have If-Match."""
        return self._if_match and self.traits.if_match is not False

    @property
    def guarantee(self) -> Guarantee:
        if self._guarantee is Guarantee.PINNED and (self.traits.compared or not self._if_match):
            return Guarantee.COMPARED
        return self._guarantee

    def learn(self, validator: Validator) -> None:
        self._learnt = validator
        self._guarantee = guarantee_of(validator)

    async def fetch_tail(self, length: int, *, context: RequestContext, pin: Validator | None = None) -> RangeResult:
        traits = self.traits
        refusal = None
        if traits.suffix_ranges:
            try:
                return await self._fetch(RangeRequest(-length, 0, self.url, pin), context)
            except RangeIgnoredError as ignored:
                refusal = ignored
                context = context.step(context.purpose, context.round + 1)
        asking = context.step("stat", context.round)
        version = await find_size(self, pin, asking, partial(self.fetch_range, 0, 1, context=asking, pin=pin))
        context = context.step(context.purpose, context.round + 1)
        tail = await self.fetch_range(max(0, version.size - length), version.size, context=context, pin=version)
        traits.learn_suffix_refusal(refusal, length, version.size)
        context.metrics.fall_back(SIZE_FIRST)
        return tail

    # Every coroutine in a chain of awaits costs at each wake-up, so this returns the inner one.

    def fetch_range(
        self, start: int, stop: int, *, context: RequestContext, pin: Validator | None = None
    ) -> Coroutine[Any, Any, RangeResult]:
        return self._fetch(RangeRequest(start, stop, self.url, pin), context)

    async def close(self) -> None:
        """Do nothing: the handle has no connection to close."""

    async def _fetch(self, request: RangeRequest, context: RequestContext) -> RangeResult:
        bucket = self._bucket
        if bucket.reason:
            context.metrics.fall_back(f"read through s3fs: {bucket.reason}")
        try:
            expected, body = await self._transport.send(bucket.get(self, request), context)
        except RangeIgnoredError as ignored:
            if request.start < 0:
                raise
            raise InvalidResponseError(
                f"the store sent the whole object ({ignored.size or 'unknown'} bytes) instead of the range",
                url=self.url,
                byte_range=request.byte_range,
                hint="Read from an endpoint that supports range requests.",
            ) from None
        validator = expected.validator
        if validator.size == UNKNOWN_SIZE:
            validator = await ask_size(self, expected, request, context)
        if validator is not self._learnt:
            self.learn(validator)
        if expected.young:
            self._guarantee = Guarantee.NONE
        if self._if_match and self.traits.compared:
            context.metrics.fall_back(COMPARED)
        return RangeResult(body, expected.start, validator, self._guarantee is not Guarantee.NONE)

    async def fetch_size(self, validator: Validator | None, context: RequestContext) -> Validator:
        """Return ``validator`` (None: the present version's) with the object's size, from one HEAD."""
        pin = None if validator is None else replace(validator, size=UNKNOWN_SIZE)
        head = self._bucket.head(self, RangeRequest(0, 0, self.url, pin))
        expected, _ = await self._transport.send(head, context.step("stat", context.round + 1))
        found = expected.validator
        return found if validator is None else replace(validator, size=found.size)


class S3Store(Unpicklable):
    """The store of S3 urls; see :class:`asyncpq.storage.base.WritableStore`.

    ``storage_options`` are those of s3fs.S3FileSystem. Their config_kwargs override ``retry`` and ``limits``.
    Raises InvalidOptionError if s3fs refuses the options.
    """

    def __init__(self, storage_options: Mapping[str, Any], *, retry: RetryOptions, limits: StoreLimits) -> None:
        self._options = {
            name: value
            for name, value in storage_options.items()
            if name not in ("asynchronous", "loop", "skip_instance_cache", RENEWAL)
        }
        check_s3_names(self._options)
        self._retry = retry_of(self._options, retry)
        self._version_aware = bool(self._options.get("version_aware"))
        self._customer_key = customer_key(self._options)
        self._renews = RENEWAL in storage_options
        self._resolver = S3Resolver(self._options, storage_options.get(RENEWAL))
        self._signers = Signers(
            self._resolver.fetch_credentials, requester_pays=bool(self._options.get("requester_pays"))
        )
        self._limits = limits = limits_of(self._options, limits)
        self._transport = Transport(retry=self._retry, limits=limits)
        self._session_transport = Transport(retry=self._retry, limits=limits)
        self._lock = asyncio.Lock()  # held while connections are opened
        self._buckets: dict[str, Bucket] = {}
        self._traits = TraitsByHost()
        self._wire: DirectWire | None = None
        self._s3fs: S3fsConnection | None = None
        # by url, the keys of the last listings and the objects made of them
        self._listed: LRUCache[str, tuple[Sequence[ListedKey], Sequence[ListedObject]]] = LRUCache(_KNOWN_LISTINGS)
        self._selective: dict[str, LRUCache[str, int]] = {}  # by bucket; see KeyPages
        self._create_probe = CreateProbe()
        self._closed = False

    def __repr__(self) -> str:
        return "<S3Store>"

    async def open_object(self, url: str) -> S3Object:
        """Return a handle on an object, without a request to it. The first call resolves credentials and address.

        Raises the errors of :meth:`asyncpq.storage.s3.config.S3Resolver.find_route`.
        """
        path, version = split_version(url)
        name, key = await self._split(path)
        if not key:
            raise InvalidOptionError(
                "the S3 url of one file must have a bucket and a key",
                url=safe_url(url),
                hint=Hint(
                    "Session.open_dataset reads all files of a bucket or prefix.",
                    "End the url with / to read all files of the bucket: s3://bucket/.",
                ),
            )
        return S3Object(
            self._transport,
            await self._bucket(name, url),
            safe_url(f"s3://{name}/{key}"),
            key,
            version_id=version,
            if_match=not self._options.get("local_expiry_check"),
            version_aware=self._version_aware,
        )

    async def list_objects(
        self, url: str, *, context: RequestContext, wants: Wants | None = None
    ) -> Sequence[ListedObject]:
        """List objects with ListObjectsV2, several pages at once if there are many."""
        from asyncpq.storage.s3.key_listing import KeyPages, list_keys, list_wanted_keys  # reads of a file list nothing

        url = url.removesuffix(END_OF_KEY)
        name, prefix = await self._split(url)
        is_directory, folder = is_directory_bucket(name), _listable(name, prefix)
        root = bucket_url(url, prefix)
        bucket = await self._bucket(name, url)
        if bucket.reason:
            context.metrics.fall_back(f"read through s3fs: {bucket.reason}")
        fetch_page = partial(self._fetch_page, bucket, KeyListing(safe_url(url)))
        limit = ListingLimit(safe_url(url), self._limits.max_listed_objects)
        selective = self._selective.setdefault(name, LRUCache(_MAX_SELECTIVE))
        pages = KeyPages(fetch_page, context, limit, not is_directory, selective)
        if wants is None and not is_directory:
            listed = await list_keys(pages, prefix)
        else:

            def is_wanted(below: str) -> bool:
                return below.startswith(prefix) and (wants is None or wants(root + below))

            keys = await list_wanted_keys(pages, folder, is_wanted)
            listed = keys if folder == prefix else [key for key in keys if key.key.startswith(prefix)]
        last = self._listed.get(url)
        if last is not None and last[0] == listed:
            return last[1]
        work = partial(_objects_of, listed, root, versions=not self._version_aware)
        objects = work() if len(listed) <= _FEW_KEYS else await self._transport.in_thread(work)
        if len(objects) <= _MAX_KNOWN_OBJECTS:
            self._listed[url] = (listed, objects)
        return objects

    async def first_names(self, url: str, *, context: RequestContext) -> FirstNames:
        """Return what a folder holds directly, by one page of ListObjectsV2."""
        from asyncpq.storage.s3.key_listing import PageRequest

        name, prefix = await self._split(url)
        root = bucket_url(url, prefix)
        listing = KeyListing(safe_url(url))
        page = await self._fetch_page(
            await self._bucket(name, url), listing, PageRequest(prefix, folders=True), context
        )
        keys = [url_of_key(root + key.key) for key in page.keys if not key.key.endswith("/")]
        return FirstNames([*keys, *(root + folder for folder in page.folders)], page.token is None)

    async def _fetch_page(
        self, bucket: Bucket, listing: KeyListing, page: PageRequest, context: RequestContext
    ) -> ListPage:
        exchange = bucket.list(listing, page)
        await self._transport.send(exchange, context)
        return exchange.pages[-1]

    async def put_object(self, url: str, data: bytes, *, context: RequestContext) -> None:
        """Create or replace an object."""
        await (await self._writer(url, context)).put(data, _writing(context))

    async def create_object(self, url: str, data: bytes, *, context: RequestContext) -> bool:
        """Create an object; return False if it exists. A server that ignores If-None-Match overwrites the object (see
        :meth:`probe_create`)."""
        return await (await self._writer(url, context)).create(data, _writing(context))

    async def probe_create(self, url: str, *, context: RequestContext) -> bool:
        """Return whether the server honours If-None-Match; tried once for each bucket."""
        return await self._create_probe.ask(self, (await self._split(url))[0], url, _writing(context))

    async def put_file(self, url: str, path: Path, *, context: RequestContext) -> None:
        """Create or replace an object with the content of a file; a large file in a multipart upload."""
        writer = await self._writer(url, context)
        await writer.put_file(path, await self.open_object(url), _writing(context))

    async def create_stream(self, url: str, pieces: AsyncIterator[bytes], *, context: RequestContext) -> bool:
        """Create an object from ``pieces`` of its content, in a multipart upload if large; return False if it
        exists."""
        writer = await self._writer(url, context)
        return await writer.create_stream(pieces, await self.open_object(url), _writing(context))

    async def delete_objects(self, urls: Sequence[str], *, context: RequestContext) -> None:
        """Delete objects, one request each."""
        context = _writing(context)

        async def delete(url: str) -> None:
            await (await self._writer(url, context)).delete(context)

        await call_each(delete, urls)

    async def clock(self, url: str, *, context: RequestContext) -> float:
        """Return the server's time in whole seconds since the epoch: from the Date header of a LIST or, where the
        server sends none, from a probe object that is written, listed and deleted."""
        from asyncpq.storage.s3.key_listing import PageRequest

        name, prefix = await self._split(url)
        exchange = (await self._bucket(name, url)).list(
            KeyListing(safe_url(url)), PageRequest(_listable(name, prefix), most=1)
        )
        await self._transport.send(exchange, context.step("list", context.round))
        seconds = http_date_s(exchange.date)
        if seconds is not None:
            return seconds

        async def modified_s(probe: str, context: RequestContext) -> float | None:
            listed = await self.list_objects(probe, context=context.step("list", context.round))
            return listed[0].modified if listed else None

        return await time_of_probe(self, url, context, modified_s)

    async def credential_identity(self, url: str) -> str:
        """Return a digest of the current access key id, the same for all urls; "anonymous" with ``anon=True``;
        "renewed" if a catalog replaces expired keys."""
        self._check_open()
        if self._renews:  # the namespace says whose they are
            return "renewed"
        return await self._signers.identity()

    async def settings(self, url: str) -> dict[str, str]:
        """Return what was found for the bucket of ``url``; see :class:`asyncpq.storage.base.SettledStore`."""
        self._check_open()
        bucket, _ = await self._split(url)
        return await self._resolver.settings(bucket, url)

    async def close(self) -> None:
        """Close all connections of the store. Idempotent."""
        self._closed = True
        async with self._lock:  # finding a route may open connections
            for bucket in self._buckets.values():
                if isinstance(bucket, DirectBucket) and bucket.sessions is not None:
                    await bucket.sessions.close()
            for transport in (self._transport, self._session_transport):
                await transport.close()
            if self._wire is not None:
                await self._wire.close()
            await self._resolver.close()

    async def _split(self, url: str) -> tuple[str, str]:
        """Split a url into bucket and key."""
        protocol, path = split_url(url)
        if protocol not in ("s3", "s3a"):
            raise UnsupportedStoreError(
                f"expected an s3:// or s3a:// url, got protocol {protocol!r}", url=safe_url(url)
            )
        bucket, key = await self._resolver.split(path)
        if not bucket:
            raise InvalidOptionError("the S3 url has no bucket", url=safe_url(url), hint="Write s3://bucket/key.")
        if (
            not bucket.startswith("arn:")
            and (":" in bucket or "@" in bucket)
            and not (is_tenant_bucket(bucket) and "@" not in key)  # `user:pass/word@bucket` is no tenant
        ):
            raise InvalidOptionError(
                "an S3 url must not contain user info",
                url=safe_url(url),
                hint=Hint(
                    "Pass key and secret in storage_options.",
                    "Name a profile with --profile, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.",
                ),
            )
        return bucket, key

    async def _writer(self, url: str, context: RequestContext) -> S3Writer:
        from asyncpq.storage.s3.writer import S3Writer

        name, key = await self._split(url.removesuffix(END_OF_KEY))
        if not key:
            raise InvalidOptionError(
                "the S3 url of an object to write lacks a bucket or a key",
                url=safe_url(url),
                hint="Write s3://bucket/key.",
            )
        bucket = await self._bucket(name, url)
        # Options that no GET shows, such as the encryption or class of new objects: botocore sends their headers.
        if self._options.get("s3_additional_kwargs") and not bucket.reason:
            async with self._lock:
                bucket = await self._s3fs_bucket(name, "option s3_additional_kwargs")
        if bucket.reason:
            context.metrics.fall_back(f"written through s3fs: {bucket.reason}")

        async def send(call: WriteCall, context: RequestContext) -> WriteAnswer:
            exchange = bucket.write(key, call, safe_url(url))
            await self._transport.send(exchange, context)
            return exchange.answer

        return S3Writer(send, safe_url(url))

    async def _bucket(self, name: str, url: str) -> Bucket:
        """Return the bucket ``name``. At its first use its address is resolved and connections are opened."""
        self._check_open()
        bucket = self._buckets.get(name)
        if bucket is not None:
            return bucket
        async with self._lock:
            self._check_open()
            if name in self._buckets:
                return self._buckets[name]
            if is_directory_bucket(name):
                from asyncpq.storage.s3.express import check_options

                check_options(self._options, safe_url(f"s3://{name}"))
            route = await self._resolver.find_route(name, url)
            if isinstance(route, str):
                bucket = await self._s3fs_bucket(name, route)
            else:
                if self._wire is None:
                    context = await self._resolver.ssl_context(route.scheme)
                    self._wire = DirectWire(ssl_context=context, connect_timeout_s=self._retry.connect_timeout_s)
                shown = safe_url(f"s3://{name}")
                if route.in_sessions:
                    bucket = self._directory_bucket(self._wire, route, shown)
                else:
                    if self._customer_key is not None:
                        check_key_transport(route, shown)
                    bucket = DirectBucket(
                        wire=self._wire,
                        signers=self._signers,
                        route=route,
                        traits=self._traits[route.host],
                        customer_key=self._customer_key,
                    )
            self._buckets[name] = bucket  # last: other calls use it without the lock
        return bucket

    def _directory_bucket(self, wire: DirectWire, route: Route, url: str) -> DirectBucket:
        """Return a directory bucket. Its requests are signed with the credentials of sessions, which the user's
        credentials open."""
        from asyncpq.storage.s3.express import SERVICE, TOKEN_HEADER, BucketSessions

        own = Signers(self._resolver.fetch_credentials, service=SERVICE)
        traits = self._traits[route.host]
        opening = DirectBucket(wire=wire, signers=own, route=route, traits=traits)
        sessions = BucketSessions(opening, self._session_transport, url)
        signers = Signers(sessions.fetch, service=SERVICE, token_header=TOKEN_HEADER)
        return DirectBucket(wire=wire, signers=signers, route=route, traits=traits, sessions=sessions)

    async def _s3fs_bucket(self, name: str, reason: str) -> S3fsBucket:
        """Return a bucket that is read through s3fs because of ``reason``. The first call connects s3fs. The caller
        holds the lock."""
        client = await self._resolver.client()
        from asyncpq.storage.s3.client import S3fsBucket, S3fsConnection

        self._check_open()
        if self._s3fs is None:
            self._s3fs = S3fsConnection(self._reconnect, await client.connect_fallback())
        return S3fsBucket(self._s3fs, name, reason, self._traits["through s3fs"])

    async def _reconnect(self) -> S3fsClients:
        """Return clients of s3fs with new credentials, since those of the last ones expired."""
        await self._resolver.fetch_credentials(True)  # raises if there are no others
        async with self._lock:  # close() ends all connections
            self._check_open()
            return await (await self._resolver.client()).connect_fallback()

    def _check_open(self) -> None:
        if self._closed:
            raise closed_store()


def _listable(bucket: str, prefix: str) -> str:
    """Return the prefix to request for a listing of ``prefix``, since directory buckets list whole folders only."""
    return prefix[: prefix.rfind("/") + 1] if is_directory_bucket(bucket) else prefix


def _writing(context: RequestContext) -> RequestContext:
    return context if context.purpose == "write" else context.step("write", context.round)
