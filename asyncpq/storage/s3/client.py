"""The only module that imports s3fs and botocore. They resolve what :mod:`asyncpq.storage.s3.config` cannot.

For each bucket, s3fs's client prepares and signs one GET, which is intercepted before it is sent. If asyncpq can send
requests of this form itself, and all options are understood, the bucket is read directly; otherwise (access points,
proxies, ...) through the client that s3fs has made. For a directory bucket, the request that opens a session is
intercepted.

:class:`S3fsBucket` sends a bucket's requests through these clients, for options that :mod:`asyncpq.storage.s3.direct`
does not support.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import aiobotocore.httpsession
import aiobotocore.session
import aiohttp
import botocore.configprovider
import botocore.exceptions
import botocore.handlers
import botocore.session
import botocore.utils
import s3fs
from multidict import CIMultiDict
from s3fs.utils import ParamKwargsHelper
from yarl import URL

from asyncpq.errors import (
    AsyncpqError,
    CredentialsError,
    Hint,
    InvalidOptionError,
    InvalidResponseError,
    StoreError,
    TransportError,
    UnsupportedStoreError,
)
from asyncpq.storage.aiohttp_wire import HostResolver, aiohttp_failure
from asyncpq.storage.base import RequestContext, Unpicklable, Validator
from asyncpq.storage.http import RedirectedError
from asyncpq.storage.http1 import Body, Receiver
from asyncpq.storage.response_checks import (
    EXPIRED,
    LISTING_HINT,
    READING_HINT,
    WRITING_HINT,
    ExpectedBody,
    RangeIgnoredError,
    RangeRequest,
    ServerTraits,
    check_head_response,
    error_for,
    error_in_200,
    other_scheme,
    redirected,
)
from asyncpq.storage.retries import RetryableError, parse_retry_after_s
from asyncpq.storage.s3.config import CUSTOMER_KEY_HEADERS, customer_key, is_directory_bucket
from asyncpq.storage.s3.direct import KeyListing, ObjectResponse
from asyncpq.storage.s3.key_listing import ListPage, PageError, PageRequest, page_of_response
from asyncpq.storage.s3.sigv4 import Credentials, Route
from asyncpq.storage.s3.writer import WriteAnswer, WriteCall, write_error
from asyncpq.storage.urls import is_tenant_bucket, mapping_option, nearest_s3_option, refusal, safe_url, word_set
from asyncpq.storage.wire import has_malformed_proxy, malformed_proxy, read_body

if TYPE_CHECKING:
    from asyncpq.storage.s3.store import S3Object


#: The understood options, by the option that holds them: s3fs and botocore resolve them, or they show in the probe
#: request, or do not concern reading. A given ``session`` may have hooks of its own.
NAMES: Mapping[str, frozenset[str]] = {
    "": word_set(
        "anon endpoint_url key secret token username password use_ssl client_kwargs requester_pays default_block_size "
        "default_fill_cache default_cache_type version_aware config_kwargs s3_additional_kwargs cache_regions "
        "max_concurrency fixed_upload_size local_expiry_check profile use_listings_cache listings_expiry_time max_paths"
    ),
    "client_kwargs": word_set(
        "endpoint_url region_name aws_access_key_id aws_secret_access_key aws_session_token use_ssl verify api_version"
    ),
    "config_kwargs": word_set(
        "s3 signature_version region_name connect_timeout read_timeout max_pool_connections retries user_agent "
        "user_agent_extra user_agent_appid tcp_keepalive parameter_validation use_dualstack_endpoint use_fips_endpoint "
        "request_checksum_calculation response_checksum_validation request_min_compression_size_bytes "
        "disable_request_compression ignore_configured_endpoint_urls inject_host_prefix"
    ),
    "config_kwargs.s3": word_set(
        "addressing_style payload_signing_enabled us_east_1_regional_endpoint use_accelerate_endpoint "
        "use_dualstack_endpoint"
    ),
    "config_kwargs.retries": word_set("max_attempts total_max_attempts mode"),
}

#: Headers of botocore's GET that the direct path also sends, or that do not change a ranged read.
KNOWN_HEADERS = word_set(
    "host range if-match user-agent authorization x-amz-date x-amz-content-sha256 x-amz-security-token "
    "amz-sdk-invocation-id amz-sdk-request x-amz-checksum-mode x-amzn-trace-id"
)


def configured_endpoint(profile: str | None) -> str | None:
    """Return the endpoint of S3 that the environment or the files of AWS name for ``profile``, None for the
    environment's profile; None if they name no endpoint, or no such profile."""
    session = botocore.session.Session(profile=profile)
    try:
        if botocore.utils.ensure_boolean(session.get_config_variable("ignore_configured_endpoint_urls") or False):
            return None
        chain = botocore.configprovider.ConfiguredEndpointProvider(
            session.full_config, session.get_scoped_config(), "s3"
        )
    except botocore.exceptions.BotoCoreError:  # the first request to the store raises it
        return None
    endpoint: str | None = chain.provide()
    return endpoint


def fallback_reason(options: Mapping[str, Any]) -> str | None:
    """Return the first option that needs s3fs, as "option NAME"; None if all allow direct requests."""
    for option, known in NAMES.items():
        given = options
        for part in filter(None, option.split(".")):
            given = mapping_option(given, part)
        for name in given:
            if name not in known:
                return f"option {option}.{name}" if option else f"option {name}"
    if mapping_option(mapping_option(options, "config_kwargs"), "retries").get("mode") == "adaptive":
        return "option config_kwargs.retries.mode=adaptive"
    return None


_PROBE_KEY = "k"
_AUTHORIZATION = re.compile(r"AWS4-HMAC-SHA256 Credential=(.+)/\d{8}/([a-z0-9-]+)/(s3|s3express)/aws4_request, ")
_CREDENTIALS_HINT = Hint(
    "Pass key and secret (or profile) in storage_options, or anon=True for public objects.",
    "Name a profile with --profile, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; --no-sign-request reads public "
    "objects.",
)

_caught: ContextVar[list[Any] | None] = ContextVar("asyncpq_s3_probe", default=None)


class _CaughtError(Exception):
    """Raised inside botocore to stop a request before it is sent."""


def _catch(request: Any, **_: Any) -> None:
    """Record the request that botocore is about to send, and stop it. A before-send hook of botocore; does nothing
    outside a probe."""
    caught = _caught.get()
    if caught is not None:
        caught.append(request)
        raise _CaughtError


class _WithoutRedirects:
    """An aiohttp session that follows no redirect; botocore itself signs a request again for another region."""

    def __init__(self, session: Any) -> None:
        self._session = session

    async def request(self, *arguments: Any, **options: Any) -> Any:
        response = await self._session.request(*arguments, **options, allow_redirects=False)
        if 300 <= response.status < 400 and response.status != 304 and "x-amz-bucket-region" not in response.headers:
            response.close()
            raise RedirectedError(response.headers.get("Location", ""))
        return response


class _HttpSession(aiobotocore.httpsession.AIOHTTPSession):  # type: ignore[misc]  # Any: not typed
    """aiobotocore's HTTP session without redirects, which would send a customer's key and session token elsewhere, and
    with asyncpq's lookups of hosts."""

    async def _get_session(self, proxy_url: Any) -> Any:
        self._connector_args: dict[str, Any] = {
            "resolver": HostResolver(self._timeout.sock_connect),
            **self._connector_args,
        }
        return _WithoutRedirects(await super()._get_session(proxy_url))


class S3fsClients(Unpicklable):
    """The botocore clients of a connected S3FileSystem: one, or one for each bucket if it looks for regions."""

    def __init__(self, filesystem: Any) -> None:
        self.filesystem: Any = filesystem
        self._clients: dict[int, Any] = {id(filesystem.s3): filesystem.s3}

    @property
    def place(self) -> str:
        """Endpoint and region of the client that is not a bucket's own."""
        meta = self.filesystem.s3.meta
        return f"{meta.endpoint_url}[{meta.region_name}]"

    async def client(self, bucket: str) -> Any:
        """Return the client for the requests of a bucket."""
        client = await self.filesystem.get_s3(bucket)
        client.meta.events.register_last("before-call.s3", _send_at_once, unique_id="asyncpq-expect")  # once
        if is_tenant_bucket(bucket):  # no name of AWS, and one of Ceph
            client.meta.events.unregister("before-parameter-build.s3", botocore.handlers.validate_bucket_name)
        self._clients[id(client)] = client
        return client

    async def call(self, operation: str, **arguments: Any) -> Any:
        """Send one request, named as botocore's clients name it, with the arguments that the storage options add.
        Raises botocore's errors."""
        filesystem, client = self.filesystem, await self.client(arguments["Bucket"])
        given = {**filesystem.s3_additional_kwargs, **filesystem.req_kw, **arguments}
        return await getattr(client, operation)(**ParamKwargsHelper(client).filter_dict(operation, given))

    async def close(self) -> None:
        """Close the connections."""
        for client in self._clients.values():
            await client.close()


class S3Client(Unpicklable):
    """Uses s3fs to resolve options, credentials and the address of buckets.

    Raises InvalidOptionError if s3fs refuses the options.
    """

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._options = options
        self._reason = fallback_reason(options)
        self.filesystem: Any = _filesystem(options)
        self._connected: list[S3fsClients] = []
        self._session: Any = None

    def split(self, path: str) -> tuple[str, str]:
        """Split ``bucket/key`` into bucket (or access point) and key."""
        bucket, key, _ = self.filesystem.split_path(path)
        return bucket, key

    async def close(self) -> None:
        """Close the connections of s3fs. Idempotent."""
        calls, self._connected = self._connected, []
        for connected in calls:
            await connected.close()

    async def find_route(self, bucket: str, url: str) -> Route | str:
        """Return the bucket's address and region; or, as text, the reason to read it through s3fs. Sends it nothing.

        Raises CredentialsError if no credentials are found, InvalidOptionError if botocore refuses options or name.
        """
        if self._reason is not None:
            return self._reason
        if bucket.startswith("arn:"):
            return "access point"
        try:
            request = await self._probe(await self._connect(self.filesystem), bucket)
        except (botocore.exceptions.BotoCoreError, *_REFUSALS) as error:
            raise _option_error(error, url, self._options) from None
        proxies = botocore.utils.get_environ_proxies(request.url)
        target = URL(request.url, encoded=True)
        if target.scheme in proxies or "all" in proxies:
            return "proxy of the environment"
        headers = {
            name.lower(): value.decode("latin-1") if isinstance(value, bytes) else value
            for name, value in request.headers.items()
        }
        known = KNOWN_HEADERS
        if self._options.get("requester_pays") and not self.filesystem.anon:
            known |= {"x-amz-request-payer"}
        if customer_key(self._options) is not None:
            known |= CUSTOMER_KEY_HEADERS
        strange = sorted(set(headers) - known)
        if strange:
            return f"header {strange[0]}"
        in_sessions = is_directory_bucket(bucket)
        prefix = _prefix_of(target, in_sessions)
        if in_sessions and self._options.get("s3_additional_kwargs"):
            return "option s3_additional_kwargs"  # the opening of a session does not show what it adds to a GET
        if prefix is None or not target.raw_host:
            return "S3 Express without sessions" if in_sessions else "unusual url"
        region = await self._signed_region(headers.get("authorization"), "s3express" if in_sessions else "s3")
        if region is None:
            return "unusual signature"
        config = self._options.get("config_kwargs") or {}
        return Route(
            scheme=target.scheme,
            host=target.host_port_subcomponent or target.raw_host,
            prefix=prefix,
            region=region,
            endpoint_region=".amazonaws.com" in target.raw_host,
            user_agent=headers.get("user-agent") if any(name.startswith("user_agent") for name in config) else None,
            in_sessions=in_sessions,
        )

    async def _probe(self, connected: S3fsClients, bucket: str) -> Any:
        """Return the signed request that botocore would send first to read an object of the bucket. It is not sent."""
        client = await connected.client(bucket)
        for operation in "GetObject", "CreateSession":
            client.meta.events.register(f"before-send.s3.{operation}", _catch, unique_id=f"asyncpq-{operation}")
        requests: list[Any] = []
        token = _caught.set(requests)
        try:
            await connected.call("get_object", Bucket=bucket, Key=_PROBE_KEY, Range="bytes=0-0", IfMatch='"0"')
        except _CaughtError:
            return requests[-1]
        finally:
            _caught.reset(token)
        raise UnsupportedStoreError(
            "s3fs prepared no request, so endpoint and region are unknown", hint="Pass no session in storage_options."
        )

    async def _signed_region(self, authorization: str | None, service: str) -> str | None:
        """Return the region for which the intercepted request was signed; None if
        :class:`asyncpq.storage.s3.sigv4.Signer` cannot make a signature of that form."""
        if self.filesystem.anon:
            region = self.filesystem.s3.meta.region_name or "us-east-1"
            return str(region) if authorization is None else None
        match = _AUTHORIZATION.match(authorization or "")
        credentials = await self.fetch_credentials(False)
        if match is None or match[3] != service or credentials is None or credentials.access_key != match[1]:
            return None
        return match[2]

    async def fetch_credentials(self, again: bool) -> Credentials | None:
        """Return current credentials, found and refreshed by botocore; None for anonymous requests.

        ``again``: search anew, since the last ones expired. Raises CredentialsError if none are found.
        """
        if self.filesystem.anon:
            return None
        client = self.filesystem.client_kwargs
        key = self.filesystem.key or client.get("aws_access_key_id")
        secret = self.filesystem.secret or client.get("aws_secret_access_key")
        if key and secret:
            if again:
                raise CredentialsError("the credentials in storage_options have expired", hint="Pass new credentials.")
            return Credentials(key, secret, self.filesystem.token or client.get("aws_session_token"))
        try:
            if again or self._session is None:
                given = None if again else self.filesystem.session
                self._session = given or aiobotocore.session.AioSession(**self.filesystem.kwargs)
            credentials = await self._session.get_credentials()
            frozen = await credentials.get_frozen_credentials() if credentials is not None else None
        except (botocore.exceptions.BotoCoreError, TypeError, ValueError) as error:
            refused = refusal(error, self._options)
            raise CredentialsError(
                f"botocore could not load the credentials: {refused}", hint=_credentials_hint(error)
            ) from None
        if frozen is None:
            raise CredentialsError("no credentials were found", hint=_CREDENTIALS_HINT)
        return Credentials(frozen.access_key, frozen.secret_key, frozen.token)

    def verify(self) -> bool | str:
        """Return which certificates botocore would trust: the path of a CA bundle, True for its default, False for any
        certificate."""
        verify: bool | str | None = self.filesystem.client_kwargs.get("verify")
        if verify is not None:
            return verify
        return self.filesystem.session.get_config_variable("ca_bundle") or os.environ.get("REQUESTS_CA_BUNDLE") or True

    async def connect_fallback(self) -> S3fsClients:
        """Return clients that do not retry, since asyncpq's Transport retries and counts the retries."""
        if not hasattr(aiobotocore.httpsession.AIOHTTPSession, "_get_session"):
            raise UnsupportedStoreError(
                "this aiobotocore would follow redirects with the request's secrets",
                hint="Install a newer aiobotocore.",
            )
        config = dict(self._options.get("config_kwargs") or {})
        mode = (config.get("retries") or {}).get("mode", "standard")
        config["retries"] = {"mode": mode, "total_max_attempts": 1}
        # Some servers send the whole object's checksum beside a part, for which botocore would refuse the part.
        config.setdefault("response_checksum_validation", "when_required")
        filesystem = _filesystem({**self._options, "config_kwargs": config})
        try:
            return await self._connect(filesystem)
        except (botocore.exceptions.BotoCoreError, *_REFUSALS) as error:
            raise _option_error(error, "s3://", self._options) from None

    async def _connect(self, filesystem: Any) -> S3fsClients:
        for connected in self._connected:
            if connected.filesystem is filesystem:  # fsspec's == compares options
                return connected
        if filesystem.session is None:
            filesystem.session = await asyncio.to_thread(_loaded_session, filesystem.kwargs)
        await filesystem.set_session()
        self._connected.append(connected := S3fsClients(filesystem))
        return connected


def _loaded_session(arguments: Mapping[str, Any]) -> Any:
    """Return a session of botocore that has read its files about S3: a client would parse them on the event loop, for
    60 ms."""
    session = aiobotocore.session.AioSession(**arguments)
    loader = session.get_component("data_loader")
    for name in ("service-2", "endpoint-rule-set-1"):
        loader.load_service_model("s3", name)
    for name in ("endpoints", "partitions", "sdk-default-configuration", "_retry"):
        loader.load_data(name)
    return session


def _send_at_once(params: dict[str, Any], **_: object) -> None:
    """Drop botocore's ``Expect: 100-continue``. aiohttp would wait for that answer for ever, and some proxies, such as
    tinyproxy, do not pass it on."""
    params["headers"].pop("Expect", None)


def _prefix_of(target: URL, in_sessions: bool) -> str | None:
    """Return the path in front of keys in the bucket's urls, from the url of an intercepted request; None if that has
    another form."""
    if in_sessions:
        is_opening = target.raw_query_string in ("session", "session=")
        return unquote(target.raw_path.rstrip("/")) + "/" if is_opening else None
    if not target.raw_path.endswith("/" + _PROBE_KEY) or target.raw_query_string:
        return None
    return unquote(target.raw_path[: -len(_PROBE_KEY)])


def _filesystem(options: Mapping[str, Any]) -> Any:
    config = {"http_session_cls": _HttpSession, **(options.get("config_kwargs") or {})}
    try:
        return s3fs.S3FileSystem(
            **{**options, "config_kwargs": config, "asynchronous": True, "skip_instance_cache": True}
        )
    except _REFUSALS as error:
        raise InvalidOptionError(f"s3fs refuses these storage_options: {refusal(error, options)}") from None


def _credentials_hint(error: Exception) -> str:
    if isinstance(error, botocore.exceptions.ProfileNotFound):
        return Hint("Look for the profile that storage_options", "Look for the profile that --profile") + (
            " or AWS_PROFILE names in ~/.aws/config and ~/.aws/credentials."
        )
    return _CREDENTIALS_HINT


def _option_error(error: Exception, url: str, options: Mapping[str, Any]) -> AsyncpqError:
    """Return the error for an exception before any request: about credentials, options, or the bucket's name."""
    refused = refusal(error, options)
    if isinstance(error, _CREDENTIALS_ERRORS):
        return CredentialsError(
            f"botocore could not load the credentials: {refused}", url=safe_url(url), hint=_credentials_hint(error)
        )
    return InvalidOptionError(
        f"botocore refuses these options or this bucket: {refused}",
        url=safe_url(url),
        hint=nearest_s3_option(refused, NAMES)
        or Hint("Check endpoint_url, client_kwargs and config_kwargs", "Check --endpoint-url, --region")
        + ", and the bucket's name.",
    )


def error_code(error: Exception) -> str:
    """Return S3's error code from an exception that botocore raised; "" if it has none."""
    document = error.response.get("Error", {}) if isinstance(error, botocore.exceptions.ClientError) else {}
    return str(document.get("Code", ""))


def response_of(error: Exception) -> tuple[int, Mapping[str, str]]:
    """Return status and headers of the response that an exception of botocore tells of; (0, {}) for none."""
    if not isinstance(error, botocore.exceptions.ClientError):
        return 0, {}
    meta = error.response.get("ResponseMetadata", {})
    return int(meta.get("HTTPStatusCode", 0)), meta.get("HTTPHeaders", {})


def explain(error: Exception, request: RangeRequest, denied_hint: str) -> AsyncpqError | RetryableError | None:
    """Convert an exception of botocore to an asyncpq error; None if it is another one."""
    if isinstance(error, botocore.exceptions.ClientError):
        document = error.response.get("Error", {})
        status, headers = response_of(error)
        return error_for(
            request,
            status,
            error_code(error),
            str(document.get("Message", ""))[:200],
            retry_after_s=parse_retry_after_s(headers.get("retry-after"), now=time.time()),
            denied_hint=denied_hint,
        )
    sent = getattr(error, "kwargs", {}).get("error")
    if isinstance(sent, RedirectedError):
        return redirected(request, sent.location)
    if isinstance(sent, aiohttp.ClientConnectorError | aiohttp.ClientHttpProxyError):
        return aiohttp_failure(sent, request)
    if isinstance(sent, ValueError | botocore.exceptions.InvalidProxiesConfigError) and has_malformed_proxy():
        return malformed_proxy(request)
    if isinstance(error, botocore.exceptions.HTTPClientError | botocore.exceptions.ConnectionError):
        message = f"the connection failed ({type(error).__name__})"
        hint = None
        if isinstance(error, botocore.exceptions.ConnectionClosedError):
            tls = not str(error.kwargs.get("endpoint_url", "")).startswith("http://")
            hint = other_scheme(request, tls=tls)
        return RetryableError(TransportError(message, url=request.url, byte_range=request.byte_range, hint=hint))
    if isinstance(error, botocore.exceptions.BotoCoreError):
        return _option_error(error, request.url, {})
    return None


#: With which s3fs and botocore end where an option has a wrong type, beside botocore's own errors.
_REFUSALS = (TypeError, ValueError, KeyError, AttributeError)
_CREDENTIALS_ERRORS = tuple(
    getattr(botocore.exceptions, name)
    for name in word_set(
        "CredentialRetrievalError LoginError MetadataRetrievalError NoAuthTokenError NoCredentialsError "
        "PartialCredentialsError ProfileNotFound RefreshWithMFAUnsupportedError SSOError "
        "TokenRetrievalError UnknownCredentialError"
    )
)


# -- requests through s3fs -------------------------------------------------------------------------
# They are retried and their responses checked as on the direct path; the clients only sign and send them.


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
    """One request through s3fs, over all its attempts: an :class:`asyncpq.storage.transport.Exchange`."""

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
            # botocore's may quote options; the context of this one quotes the proxy's password
            quotes = not isinstance(error, OSError) or isinstance(error, botocore.exceptions.ProxyConnectionError)
            raise answer from (None if quotes else error)

    def reconsider(
        self, status: int, headers: Mapping[str, str], error: AsyncpqError | RetryableError
    ) -> AsyncpqError | RetryableError:
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
