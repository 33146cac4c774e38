"""S3: s3fs resolves credentials, endpoint, region and addressing; aiohttp and SigV4 do the reading.

What botocore would send is asked of botocore itself: for each bucket one GET is prepared and signed
by s3fs's client and caught before it leaves. Where that request holds nothing but what
:class:`~asyncpq.storage.s3_object.S3Object` can send, the bucket is read over aiohttp; otherwise
(SSE-C, requester pays, access points, S3 Express, proxies, ...) through s3fs's own calls.
"""

from __future__ import annotations

import asyncio
import os
import re
import ssl
import time
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any
from urllib.parse import unquote

import aiobotocore.session
import botocore.exceptions
import botocore.httpsession
import botocore.utils
import s3fs
from yarl import URL

from asyncpq.errors import (
    AsyncpqError,
    CredentialsError,
    InvalidOptionError,
    TransportError,
    UnsupportedStoreError,
    UsageError,
)
from asyncpq.options import RetryOptions
from asyncpq.storage.base import StoredObject, StoreLimits
from asyncpq.storage.responses import RangeRequest
from asyncpq.storage.retry import RetryableError, parse_retry_after_s
from asyncpq.storage.s3_errors import error_for
from asyncpq.storage.s3_object import S3Object
from asyncpq.storage.s3_options import fallback_reason, limits_of, retry_of
from asyncpq.storage.s3_route import Route, Signers
from asyncpq.storage.s3fs_object import S3fsObject
from asyncpq.storage.sigv4 import Credentials
from asyncpq.storage.transport import Transport
from asyncpq.storage.urls import safe_url, split_url
from asyncpq.storage.watchdog import Watchdog

_PROBE_KEY = "k"
_AUTHORIZATION = re.compile(r"AWS4-HMAC-SHA256 Credential=(.+)/\d{8}/([a-z0-9-]+)/s3/aws4_request, ")

#: Headers of botocore's GET that S3Object sends too, or that change nothing about a ranged read.
_KNOWN_HEADERS = frozenset(
    [
        "host",
        "range",
        "if-match",
        "user-agent",
        "authorization",
        "x-amz-date",
        "x-amz-content-sha256",
        "x-amz-security-token",
        "amz-sdk-invocation-id",
        "amz-sdk-request",
        "x-amz-checksum-mode",
    ]
)

_caught: ContextVar[list[Any] | None] = ContextVar("asyncpq_s3_probe", default=None)


class _CaughtError(Exception):
    """Stops botocore's request before it is sent."""


def _catch(request: Any, **_: Any) -> None:
    """botocore's before-send hook: does nothing except while a bucket's route is asked for."""
    caught = _caught.get()
    if caught is not None:
        caught.append(request)
        raise _CaughtError


class S3Store:
    """See :class:`asyncpq.storage.base.Store`.

    Args:
        storage_options: those of s3fs.S3FileSystem, with its meanings.
        retry, limits: overridden by config_kwargs where it has timeouts, retries or connections.

    Raises:
        InvalidOptionError: s3fs does not take the options.
    """

    def __init__(self, storage_options: Mapping[str, Any], *, retry: RetryOptions, limits: StoreLimits) -> None:
        self._options = {
            name: value
            for name, value in storage_options.items()
            if name not in ("asynchronous", "loop", "skip_instance_cache")
        }
        self._retry = retry_of(self._options, retry)
        self._limits = limits_of(self._options, limits)
        self._reason = fallback_reason(self._options)
        self._lock = asyncio.Lock()
        self._fs = _filesystem(self._options)
        self._connected = False
        self._closed = False
        self._session: Any = None
        self._signers = Signers(self._fetch_credentials)
        self._transport: Transport | None = None
        self._routes: dict[str, Route | str] = {}
        self._fallback: Any = None
        self._watchdog = Watchdog(self._retry)  # of the reads through s3fs
        self._slots = asyncio.Semaphore(self._limits.max_connections)
        self._scan_slots = asyncio.Semaphore(max(1, self._limits.scan_connections))

    def __repr__(self) -> str:
        return "<S3Store>"

    async def open_object(self, url: str) -> StoredObject:
        """A handle. The first of a bucket resolves credentials and route; the object itself is not asked for.

        Raises:
            CredentialsError: there are no credentials.
            InvalidOptionError: the bucket's name or an option cannot be.
        """
        if self._closed:
            raise UsageError("the store is closed", hint="Read while the session is open.")
        protocol, rest = split_url(url)
        if protocol not in ("s3", "s3a"):
            raise UnsupportedStoreError(f"not an S3 url: protocol {protocol!r}", url=safe_url(url))
        path, _, version = rest.partition("?versionId=")
        bucket, key = self._fs._find_bucket_key(path)
        if not bucket or not key:
            raise InvalidOptionError("an S3 url needs a bucket and a key", url=safe_url(url))
        route = self._routes.get(bucket)
        if route is None:
            async with self._lock:
                route = self._routes.get(bucket) or await self._find_route(bucket, url)
                self._routes[bucket] = route
        if isinstance(route, str):
            return await self._open_with_s3fs(bucket, key, version or None, route)
        if self._transport is None:
            raise UsageError("the store is closed", url=safe_url(url))
        return S3Object(
            transport=self._transport,
            signers=self._signers,
            route=route,
            bucket=bucket,
            key=key,
            version_id=version or None,
            if_match=not self._options.get("local_expiry_check"),
            version_aware=bool(self._options.get("version_aware")),
        )

    async def close(self) -> None:
        """Closes connections. Idempotent."""
        self._closed = True
        self._watchdog.close()
        transport, self._transport = self._transport, None
        if transport is not None:
            await transport.close()
        for filesystem in (self._fs if self._connected else None, self._fallback):
            if filesystem is not None:
                await filesystem._s3creator.__aexit__(None, None, None)
        self._connected, self._fallback = False, None

    # -- resolving ------------------------------------------------------------------------------

    async def _find_route(self, bucket: str, url: str) -> Route | str:
        """The bucket's route, or why it has to be read with s3fs."""
        if self._reason is not None:
            return self._reason
        if bucket.startswith("arn:"):
            return "access point"
        if bucket.endswith("--x-s3"):
            return "S3 Express bucket"
        try:
            await self._fs.set_session()
            self._connected = True
            request = await self._probe(bucket)
        except botocore.exceptions.BotoCoreError as error:
            raise _option_error(error, url) from error
        except (TypeError, ValueError, KeyError) as error:
            raise InvalidOptionError(f"s3fs does not take these storage_options: {error}") from error
        proxies = botocore.utils.get_environ_proxies(request.url)
        target = URL(request.url, encoded=True)
        if target.scheme in proxies or "all" in proxies:
            return "proxy of the environment"
        headers = {name.lower(): _text(value) for name, value in request.headers.items()}
        strange = sorted(set(headers) - _KNOWN_HEADERS)
        if strange:
            return f"header {strange[0]}"
        if not target.raw_path.endswith("/" + _PROBE_KEY) or target.raw_query_string or not target.raw_host:
            return "unusual url"
        region = await self._signed_region(headers.get("authorization"))
        if region is None:
            return "unusual signature"
        if self._transport is None:
            self._transport = Transport(
                retry=self._retry, limits=self._limits, ssl_context=await self._ssl_context(target.scheme)
            )
        config = self._options.get("config_kwargs") or {}
        return Route(
            scheme=target.scheme,
            host=target.host_port_subcomponent or target.raw_host,
            prefix=unquote(target.raw_path[: -len(_PROBE_KEY)]),
            region=region,
            endpoint_region=".amazonaws.com" in target.raw_host,
            user_agent=headers.get("user-agent") if any(name.startswith("user_agent") for name in config) else None,
        )

    async def _probe(self, bucket: str) -> Any:
        """The GET that botocore would send for an object of the bucket, signed and not sent."""
        client = await self._fs.get_s3(bucket)
        client.meta.events.register("before-send.s3.GetObject", _catch, unique_id="asyncpq-probe")
        requests: list[Any] = []
        token = _caught.set(requests)
        try:
            await self._fs._call_s3("get_object", Bucket=bucket, Key=_PROBE_KEY, Range="bytes=0-0", IfMatch='"0"')
        except _CaughtError:
            return requests[-1]
        finally:
            _caught.reset(token)
        raise UnsupportedStoreError("s3fs's client sends no request", hint="Pass no session in storage_options.")

    async def _signed_region(self, authorization: str | None) -> str | None:
        """The region of the probe's signature; None if it is not one that Signer makes."""
        if self._fs.anon:
            region = self._fs._s3.meta.region_name or "us-east-1"
            return str(region) if authorization is None else None
        match = _AUTHORIZATION.match(authorization or "")
        credentials = await self._fetch_credentials(False)
        if match is None or credentials is None or credentials.access_key != match[1]:
            return None
        return match[2]

    async def _fetch_credentials(self, again: bool) -> Credentials | None:
        """Current credentials as botocore finds and refreshes them; ``again`` looks for others."""
        if self._fs.anon:
            return None
        client = self._fs.client_kwargs
        key = self._fs.key or client.get("aws_access_key_id")
        secret = self._fs.secret or client.get("aws_secret_access_key")
        if key and secret:
            if again:
                raise CredentialsError("the credentials in storage_options have expired", hint="Pass new ones.")
            return Credentials(key, secret, self._fs.token or client.get("aws_session_token"))
        try:
            if again or self._session is None:
                self._session = aiobotocore.session.AioSession(**self._fs.kwargs) if again else self._fs.session
            found = await self._session.get_credentials()
            frozen = await found.get_frozen_credentials() if found is not None else None
        except botocore.exceptions.BotoCoreError as error:
            raise CredentialsError(f"no credentials: {error}", hint=_CREDENTIALS_HINT) from error
        if frozen is None:
            raise CredentialsError("no credentials were found", hint=_CREDENTIALS_HINT)
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token)

    async def _ssl_context(self, scheme: str) -> ssl.SSLContext | bool:
        """The trust that botocore would have."""
        if scheme != "https":
            return True
        verify = self._fs.client_kwargs.get("verify")
        if verify is None:
            verify = self._fs.session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE") or True
        if verify is False:
            return False
        try:
            return await asyncio.to_thread(
                ssl.create_default_context, cafile=botocore.httpsession.get_cert_path(verify)
            )
        except OSError as error:
            raise InvalidOptionError(f"the CA bundle cannot be loaded: {error.strerror}") from error

    async def _open_with_s3fs(self, bucket: str, key: str, version: str | None, reason: str) -> StoredObject:
        if self._fallback is None:
            async with self._lock:
                if self._fallback is None:
                    self._fallback = await self._connect_fallback()
        meta = self._fallback._s3.meta
        return S3fsObject(
            filesystem=self._fallback,
            endpoint=f"{meta.endpoint_url}[{meta.region_name}]",
            bucket=bucket,
            key=key,
            version_id=version,
            version_aware=bool(self._options.get("version_aware")),
            if_match=not self._options.get("local_expiry_check"),
            reason=reason,
            watchdog=self._watchdog,
            slots=self._slots,
            scan_slots=self._scan_slots,
            explain=_explain,
        )

    async def _connect_fallback(self) -> Any:
        """A filesystem whose client does not retry: S3fsObject does, and counts it."""
        config = {
            "retries": {"total_max_attempts": 1, "mode": "standard"},
            **(self._options.get("config_kwargs") or {}),
        }
        filesystem = _filesystem({**self._options, "config_kwargs": config})
        filesystem.retries = 1
        try:
            await filesystem.set_session()
        except (botocore.exceptions.BotoCoreError, TypeError, ValueError, KeyError) as error:
            raise _option_error(error, "s3://") from error
        return filesystem


def _filesystem(options: Mapping[str, Any]) -> Any:
    try:
        return s3fs.S3FileSystem(asynchronous=True, skip_instance_cache=True, **options)
    except (TypeError, ValueError, KeyError) as error:
        raise InvalidOptionError(f"s3fs does not take these storage_options: {error}") from error


def _text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


def _option_error(error: Exception, url: str) -> AsyncpqError:
    """For errors before any request: credentials, options, or the bucket's name."""
    if isinstance(error, _CREDENTIALS_ERRORS):
        return CredentialsError(f"no credentials: {error}", url=safe_url(url), hint=_CREDENTIALS_HINT)
    return InvalidOptionError(
        f"botocore does not take these storage_options or this bucket: {error}", url=safe_url(url)
    )


def _explain(error: Exception, request: RangeRequest) -> AsyncpqError | RetryableError | None:
    """What an error of s3fs's call stands for; None if it is none of s3fs's."""
    cause = error if isinstance(error, botocore.exceptions.ClientError) else error.__cause__
    if isinstance(cause, botocore.exceptions.ClientError):
        found, meta = cause.response.get("Error", {}), cause.response.get("ResponseMetadata", {})
        headers = meta.get("HTTPHeaders", {})
        return error_for(
            request,
            int(meta.get("HTTPStatusCode", 0)),
            str(found.get("Code", "")),
            str(found.get("Message", ""))[:200],
            retry_after_s=parse_retry_after_s(headers.get("retry-after"), now=time.time()),
        )
    if isinstance(error, botocore.exceptions.HTTPClientError | botocore.exceptions.ConnectionError):
        what = f"the connection failed ({type(error).__name__})"
        return RetryableError(TransportError(what, url=request.url, byte_range=request.byte_range))
    if isinstance(error, botocore.exceptions.BotoCoreError):
        return _option_error(error, request.url)
    return None


_CREDENTIALS_ERRORS = (
    botocore.exceptions.CredentialRetrievalError,
    botocore.exceptions.LoginError,
    botocore.exceptions.MetadataRetrievalError,
    botocore.exceptions.NoAuthTokenError,
    botocore.exceptions.NoCredentialsError,
    botocore.exceptions.PartialCredentialsError,
    botocore.exceptions.ProfileNotFound,
    botocore.exceptions.RefreshWithMFAUnsupportedError,
    botocore.exceptions.SSOError,
    botocore.exceptions.TokenRetrievalError,
    botocore.exceptions.UnknownCredentialError,
)

_CREDENTIALS_HINT = "Pass key and secret (or profile) in storage_options, or anon=True for public objects."
