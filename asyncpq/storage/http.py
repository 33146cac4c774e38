"""The HTTP store: plain web servers, CDNs and presigned urls.

The tail is fetched with a suffix range. Hosts that do not support suffix ranges are remembered; for them the first
request asks for one byte, whose Content-Range gives the size: presigned urls refuse HEAD.

The last target of a url that redirects is remembered. Reads of a pinned version go to the target at once, and to the
url again if the target fails, as with an expired signature. Only a request that begins at the url itself validates a
version.

Which redirects are followed is decided here, too (RFC 9110, section 15.4). A refused redirect is an
InvalidResponseError that shows neither query nor user info.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ipaddress
import re
import socket
import ssl
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import field, replace
from functools import partial
from typing import Any, Final, cast

from cachetools import FIFOCache
from yarl import URL

from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    DeadlineExceededError,
    Hint,
    InvalidOptionError,
    InvalidResponseError,
    StoreError,
    UnsupportedStoreError,
)
from asyncpq.options import RetryOptions
from asyncpq.records import dataclass
from asyncpq.storage.aiohttp_wire import AiohttpWire, WebWire
from asyncpq.storage.base import (
    Guarantee,
    ListedObject,
    RangeResult,
    RequestContext,
    StoreLimits,
    Unpicklable,
    Validator,
    Wants,
    closed_store,
)
from asyncpq.storage.http1 import Body, Receiver
from asyncpq.storage.response_checks import (
    COMPARED,
    PAST_CACHES,
    SIZE_FIRST,
    UNKNOWN_SIZE,
    ExpectedBody,
    RangeIgnoredError,
    RangeRequest,
    ServerTraits,
    TraitsByHost,
    ask_size,
    check_head_response,
    check_range_response,
    error_for,
    error_in_200,
    find_size,
    guarantee_of,
    parse_error,
    refused_suffix,
    strong_etag,
)
from asyncpq.storage.retries import RetryableError, parse_retry_after_s
from asyncpq.storage.transport import Outcome, Transport
from asyncpq.storage.urls import identity_of, safe_url, unknown_option, word_set
from asyncpq.storage.wire import DEFAULT_HEADERS, DirectWire

#: Followed statuses. GET and HEAD keep their method with each of them.
REDIRECT_STATUSES: Final = frozenset({301, 302, 303, 307, 308})
MAX_REDIRECTS: Final = 5

MAX_REDIRECTED_URLS: Final = 2048  # a signed target takes about 2 KB
_ENCODED_URL = re.compile(r"(?:[!#$&-;=?-Z\[\]_a-z~]|%[0-9A-Fa-f]{2})+")


def parse_http_url(text: str, *, encoded: bool = False) -> URL:
    """Parse ``text`` without its fragment; percent-encode it, unless it is encoded or ``encoded`` says so.

    Raises ValueError, whose text may quote secrets, if the url is malformed.
    """
    return URL(text.partition("#")[0], encoded=encoded or _ENCODED_URL.fullmatch(text) is not None)


class RedirectedError(Exception):
    """The response is a redirect. Never leaves the storage package."""

    def __init__(self, location: str) -> None:
        super().__init__("redirected")  # the location may hold secrets
        self.location = location


@dataclass(frozen=True, slots=True)
class RedirectTarget:
    """A url to send a request to, without user info and fragment. Only the origin of the user's own url gets the user's
    headers."""

    url: URL = field(repr=False)  # its query may hold secrets
    own: bool  # the target, and every redirect before it, has the origin (scheme, host and port) of the user's url

    @property
    def server(self) -> str:
        """Scheme and host of the target, such as ``https://host``, for messages."""
        return str(self.url.origin())


@dataclass(slots=True)
class Redirect:
    """The last target of a url's redirects, as it is remembered."""

    target: RedirectTarget | None  # the last target; None after it failed
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)  # held by the one fetch that asks the url again

    def forget(self, target: RedirectTarget) -> None:
        """Drop ``target``, which failed, unless another target has replaced it."""
        if self.target is target:
            self.target = None


def next_target(request: RangeRequest, current: RedirectTarget, location: str) -> RedirectTarget:
    """Return the target of a redirect. Raises InvalidResponseError if Location is missing or must not be followed."""
    if not location:
        raise _refused(request, "the server redirects without a Location header", _ASK_OPERATOR)
    try:
        url = current.url.join(parse_http_url(location))
        origin = _origin(url)
    except ValueError:  # its text quotes the location
        url, origin = URL(), ("", "", None)
    if url.scheme not in ("http", "https") or not url.host:
        raise _refused(request, "the server redirects to something other than an http url", _ASK_OPERATOR)
    shown = safe_url(str(url))
    if url.user is not None or url.password is not None:
        raise _refused(request, f"the server redirects to a url with a user or password: {shown}", _IF_TRUSTED)
    if current.url.scheme == "https" and url.scheme == "http":
        message = f"the server redirects from https to http, where others can read and change what is sent: {shown}"
        raise _refused(request, message, _IF_TRUSTED)
    if _is_local(url.host or "") and not _is_local(current.url.host or ""):
        raise _refused(
            request,
            f"the server redirects to an address of this machine or its link, or of a cloud's credentials: {shown}",
            _IF_TRUSTED,
        )
    return RedirectTarget(url, current.own and origin == _origin(current.url))


def too_many(request: RangeRequest, last: RedirectTarget, before: list[RedirectTarget]) -> InvalidResponseError:
    """Return the error for a redirect beyond ``MAX_REDIRECTS``."""
    loops = any(last.url == target.url for target in before)
    how = "in a loop" if loops else f"more than {MAX_REDIRECTS} times"
    message = f"the server redirects {how}, the last time to {safe_url(str(last.url))}"
    return _refused(request, message, "Check the url in a browser.")


_ASK_OPERATOR = "Report it to the server's operator."
_IF_TRUSTED = "This redirect is not followed; read that url itself if you trust it."


def _refused(request: RangeRequest, message: str, hint: str) -> InvalidResponseError:
    return InvalidResponseError(message, url=request.url, byte_range=request.byte_range, hint=hint)


def _origin(url: URL) -> tuple[str, str, int | None]:
    """Return the origin of ``url`` (RFC 6454): scheme, host and port."""
    return url.scheme, (url.host or "").lower(), url.port


#: The names of this machine in the /etc/hosts of Linux distributions.
_LOCAL_HOSTS: Final = frozenset(
    {
        "localhost",
        "localhost.localdomain",
        "localhost4",
        "localhost4.localdomain4",
        "localhost6",
        "localhost6.localdomain6",
        "ip6-localhost",
        "ip6-loopback",
    }
)
#: Where clouds serve credentials to the machines that they run; most do so at link-local addresses.
_METADATA_HOSTS: Final = frozenset({"metadata.google.internal", "metadata.goog", "instance-data.ec2.internal"})
_METADATA_ADDRESSES: Final = frozenset(
    map(
        ipaddress.ip_address,
        # Amazon (IPv6), Alibaba, Google (IPv6), Oracle, Azure's host
        ("fd00:ec2::254", "100.100.100.200", "fd20:ce::254", "192.0.0.192", "168.63.129.16"),
    )
)
#: IPv6 addresses whose last four bytes are an IPv4 address: NAT64 (RFC 6052, RFC 8215) and the old "compatible" ones.
_HOLDS_IPV4: Final = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "::/96")))


def _is_local(host: str) -> bool:
    """Return whether the host is this machine, its local link, or where a cloud serves credentials, judging by the
    host's text alone."""
    host = host.removesuffix(".").lower()  # resolvers accept the final dot of a full name
    if host in _LOCAL_HOSTS or host.endswith(".localhost") or host in _METADATA_HOSTS:
        return True
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        try:
            address = ipaddress.ip_address(socket.inet_aton(host))  # resolvers accept 127.1 and 2130706433 too
        except (OSError, ValueError):
            return False
    return any(
        one.is_loopback or one.is_link_local or one.is_unspecified or one in _METADATA_ADDRESSES
        for one in (address, *_ipv4_in(address))
    )


def _ipv4_in(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> list[ipaddress.IPv4Address]:
    """Return the IPv4 addresses that an IPv6 address may lead to: the mapped, 6to4, Teredo or translated one."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    inside = [address.ipv4_mapped, address.sixtofour, *(address.teredo or ())]
    if any(address in network for network in _HOLDS_IPV4):
        inside.append(ipaddress.IPv4Address(address.packed[-4:]))
    return [one for one in inside if one is not None]


#: A response with the whole object is accepted up to this size, and cut.
SMALL_BODY_BYTES = 1024 * 1024
_DOCUMENT_BYTES = 64 * 1024 * 1024

#: fsspec's options that do not change how a range is read.
_WITHOUT_EFFECT = word_set(
    "asynchronous block_size cache_options cache_type listings_expiry_time loop max_paths same_scheme simple_links "
    "size_policy skip_instance_cache use_listings_cache"
)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, 5.6.2: token
_NOT_IN_HEADERS = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")
_EXPIRED_HINT = "If the url is signed, its signature may have expired: get a new one."
_SIGNED_HINT = f"{_EXPIRED_HINT} A private object of S3 is read by its s3:// url, with credentials."
_DENIED_HINT = Hint(
    'Pass credentials in storage_options, such as {"https": {"headers": {"Authorization": "Bearer ..."}}}; they are '
    "not sent to another origin that the url redirects to.",
    "The command line sends no credentials over http: use a presigned url.",
)

#: The user's headers that are sent to every target of a redirect. All others may be credentials.
_SHOWN_TO_ALL = frozenset({"accept", "accept-encoding", "accept-language", "user-agent"})


class HttpStore(Unpicklable):
    """The store of http and https urls; see :class:`asyncpq.storage.base.Store`.

    ``storage_options`` are those of fsspec's HTTPFileSystem: ``headers``, ``auth``, ``ssl``, ``encoded``, and
    ``client_kwargs`` with ``headers``, ``auth`` and ``trust_env``. Raises InvalidOptionError for any other option that
    would change the requests.
    """

    def __init__(self, storage_options: Mapping[str, Any], *, retry: RetryOptions, limits: StoreLimits) -> None:
        options = {name: value for name, value in storage_options.items() if name not in _WITHOUT_EFFECT}
        client = dict(_mapping(options, "client_kwargs"))
        headers = {**_headers(client), **_headers(options)}
        auth = [item for item in (options.pop("auth", None), client.pop("auth", None)) if item is not None]
        if auth:
            headers["Authorization"] = _basic_auth(auth[0])
        self._authorization = next((headers[name] for name in headers if name.lower() == "authorization"), None)
        shown = {name: value for name, value in headers.items() if name.lower() in _SHOWN_TO_ALL}
        ignored = {*map(str.lower, shown), "range", "if-match"}
        self._own_headers = {name: value for name, value in headers.items() if name.lower() not in ignored}
        self._encoded = bool(options.pop("encoded", False))
        verify: Any = options.pop("ssl", True)
        if not (isinstance(verify, bool | ssl.SSLContext) or type(verify).__name__ in ("Fingerprint", "NoneType")):
            raise InvalidOptionError(
                "the ssl of storage_options must be a bool, an ssl.SSLContext or an aiohttp.Fingerprint, not "
                f"{type(verify).__name__}"
            )
        trust_env = bool(client.pop("trust_env", False))
        unknown = sorted(options) + sorted(f"client_kwargs.{name}" for name in client)
        if unknown:
            otherwise = "Use only headers, auth, ssl, encoded, and client_kwargs with headers, auth, trust_env."
            raise unknown_option("http", unknown, ("headers", "auth", "ssl", "encoded"), otherwise)
        direct = not trust_env and isinstance(verify, bool | ssl.SSLContext)  # aiohttp knows fingerprints too
        sent, timeout_s = DEFAULT_HEADERS | shown, retry.connect_timeout_s
        self.wire: WebWire = WebWire(
            AiohttpWire(ssl_context=verify, headers=sent, connect_timeout_s=timeout_s, trust_env=trust_env),
            DirectWire(ssl_context=verify, connect_timeout_s=timeout_s) if direct else None,
            sent,
        )
        self.transport: Transport = Transport(retry=retry, limits=limits)
        self.traits: TraitsByHost = TraitsByHost()
        self.redirects: FIFOCache[str, Redirect] = FIFOCache(MAX_REDIRECTED_URLS)  # by url with its user info
        self._closed = False

    def __repr__(self) -> str:
        return "<HttpStore>"

    async def open_object(self, url: str) -> HttpObject:
        """Return a handle on the object of ``url``; sends no request."""
        if self._closed:
            raise closed_store()
        headers = self._own_headers
        target = self._parse(url)
        if target.user is not None:
            headers = {name: value for name, value in headers.items() if name.lower() != "authorization"}
            headers["Authorization"] = _basic_auth((target.user, target.password or ""))
            target = target.with_user(None)
        return HttpObject(self, target, url, headers)

    async def list_objects(
        self, url: str, *, context: RequestContext, wants: Wants | None = None
    ) -> list[ListedObject]:
        """Raise UnsupportedStoreError: HTTP has no listings."""
        raise UnsupportedStoreError(
            "an http server cannot list files", url=safe_url(url), hint="Give a list of the files' urls."
        )

    async def credential_identity(self, url: str) -> str:
        """Return a digest of the url's user info and the Authorization header; "" if there is neither."""
        target = self._parse(url)
        if target.user is None and self._authorization is None:
            return ""
        credentials = (target.user, target.password, self._authorization)
        return hashlib.sha256(repr(credentials).encode("utf-8", "surrogateescape")).hexdigest()[:16]

    async def close(self) -> None:
        """Close all connections of the store. Idempotent."""
        self._closed = True
        await self.transport.close()
        await self.wire.close()

    def _parse(self, url: str) -> URL:
        target: URL | None
        try:
            target = parse_http_url(url, encoded=self._encoded)
            if target.scheme.lower() in ("http", "https") and target.host and target.port != 0:
                return target
        except ValueError:  # its text quotes the url
            target = None
        if target is not None and target.port == 0:
            raise UnsupportedStoreError(
                "the url names port 0, on which no server listens", url=safe_url(url), hint="Write the server's port."
            )
        raise UnsupportedStoreError(
            "the url is not a valid http or https url", url=safe_url(url), hint="Write https://host/path."
        )


class HttpObject(Unpicklable):
    """A handle on one object of an HttpStore; see :class:`asyncpq.storage.base.StoredObject`.

    ``guarantee`` says how surely all reads see one version of the object. It starts at PINNED, as if the server sent
    strong ETags; the first response or ``learn`` lowers it if the server sends none.
    """

    def __init__(self, store: HttpStore, target: URL, url: str, headers: dict[str, str]) -> None:
        self.url: str = safe_url(url)
        self.identity: str = identity_of(url)
        self._guarantee = Guarantee.PINNED
        self._learnt: Validator | None = None
        self._origin = RedirectTarget(target, own=True)
        self.wire: WebWire = store.wire
        self.client: str = store.wire.client
        self.headers = headers
        self._transport = store.transport
        self.traits: TraitsByHost = store.traits
        self._redirects = store.redirects
        self._named = url  # with its user info, on which the redirect may depend
        self.server: str = target.host_port_subcomponent or ""
        self.denied_hint: str = _DENIED_HINT  # of errors that say that access was denied

    def __repr__(self) -> str:
        return f"<HttpObject {self.url}>"

    def learn(self, validator: Validator) -> None:
        self._learnt = validator
        self._guarantee = guarantee_of(validator)

    @property
    def guarantee(self) -> Guarantee:
        if self._guarantee is Guarantee.PINNED and self._target_traits().compared:
            return Guarantee.COMPARED
        return self._guarantee

    def _target_traits(self) -> ServerTraits:
        """Return what is known of the host that sends the object's bytes, as far as redirects are known."""
        redirect = self._redirects.get(self._named)
        target = self._origin if redirect is None or redirect.target is None else redirect.target
        return self.traits[target.url.authority]

    async def fetch_tail(self, length: int, *, context: RequestContext, pin: Validator | None = None) -> RangeResult:
        host = self._origin.url.authority
        just_asked = self.traits[host].suffix_ranges
        refusal = None
        if just_asked:
            try:
                return await self._fetch(RangeRequest(-length, 0, self.url, pin), context)
            except RangeIgnoredError as ignored:
                refusal = ignored
                round_ = max(context.round, ignored.round) + 1
                context, host = context.step(context.purpose, round_), ignored.host or host
        first, asking = RangeRequest(0, 1, self.url, pin), context.step("stat", context.round)
        version = await find_size(self, pin, asking, partial(self._fetch, first, asking, just_asked=just_asked))
        context = context.step(context.purpose, context.round + 1)
        tail = await self.fetch_range(max(0, version.size - length), version.size, context=context, pin=version)
        self.traits[host].learn_suffix_refusal(refusal, length, version.size)
        context.metrics.fall_back(SIZE_FIRST)
        return tail

    async def fetch_range(
        self, start: int, stop: int, *, context: RequestContext, pin: Validator | None = None
    ) -> RangeResult:
        return await self._fetch(RangeRequest(start, stop, self.url, pin), context)

    async def fetch_document(self, context: RequestContext) -> tuple[bytes, Mapping[str, str]]:
        """Fetch the whole of a document of at most 64 MiB, such as a listing; return it and the response's headers."""
        headers: dict[str, str] = {}
        request = RangeRequest(0, 0, self.url)
        _, body = await self._follow(partial(_HttpDocument, headers), request, context, [self._origin])
        return bytes(body), headers

    async def close(self) -> None:
        """Do nothing: the handle has no connection to close."""

    async def _fetch(self, request: RangeRequest, context: RequestContext, *, just_asked: bool = False) -> RangeResult:
        try:
            (expected, body), url_asked = await self._send(_HttpGet, request, context, just_asked)
        except RangeIgnoredError as ignored:
            if request.start < 0:
                raise
            size = "of unknown size" if ignored.size is None else f"{ignored.size} bytes"
            raise InvalidResponseError(
                f"the server sent the whole object ({size}) instead of the range",
                url=self.url,
                hint="Reading a few pages needs a server with range requests (RFC 9110, section 14).",
            ) from None
        validator = expected.validator
        if validator.size == UNKNOWN_SIZE:
            validator = await ask_size(self, expected, request, context)
        if validator is not self._learnt:
            self.learn(validator)
        if expected.young:
            self._guarantee = Guarantee.NONE
        if self.guarantee is Guarantee.COMPARED:
            context.metrics.fall_back(COMPARED)
        start = max(0, validator.size + request.start) if request.start < 0 else request.start
        stop = validator.size if request.start < 0 else request.stop
        if (start, stop) != (expected.start, expected.start + expected.length):  # a small whole object
            body = body[start - expected.start : stop - expected.start]
        return RangeResult(body, start, validator, url_asked and self._guarantee is not Guarantee.NONE)

    async def fetch_size(self, validator: Validator | None, context: RequestContext) -> Validator:
        """Return ``validator`` (None: the present version's) with the object's size, from one HEAD."""
        pin = None if validator is None else replace(validator, size=UNKNOWN_SIZE)
        request = RangeRequest(0, 0, self.url, pin)
        (expected, _), _ = await self._send(_HttpHead, request, context.step("stat", context.round + 1))
        found = expected.validator
        return found if validator is None else replace(validator, size=found.size)

    async def _send(
        self, verb: _Verb, request: RangeRequest, context: RequestContext, just_asked: bool = False
    ) -> tuple[Outcome, bool]:
        """Send a request to the url, or to its remembered redirect target. Return the response, and whether the url
        itself was asked.

        ``just_asked``: this read has already sent a request to the url. If it has not, only a request for a pinned
        version may go to a remembered target.
        """
        redirect = self._redirects.get(self._named)
        if redirect is None or not (just_asked or (request.pin is not None and context.purpose != "validate")):
            return await self._follow(verb, request, context, [self._origin]), True
        known = redirect.target
        if known is not None:
            try:
                return await self._transport.send(verb(self, request, known, remembered=True), context), just_asked
            except DeadlineExceededError:
                raise
            except (StoreError, RangeIgnoredError, RedirectedError):
                redirect.forget(known)
                context = context.step(context.purpose, context.round + 1)
        async with redirect.lock:
            url_asked = redirect.target is None
            if url_asked:
                path = [self._origin]
                outcome = await self._step(verb, request, context, path)
                if outcome is not None:
                    self._redirects.pop(self._named, None)
                    return outcome, True
                redirect.target = path[-1]
        path = [self._origin, redirect.target or self._origin]
        return await self._follow(verb, request, context.step(context.purpose, context.round + 1), path), url_asked

    async def _follow(
        self, verb: _Verb, request: RangeRequest, context: RequestContext, path: list[RedirectTarget]
    ) -> Outcome:
        """Send a request to the last target of ``path``, which lists the url and its redirects so far; follow further
        redirects."""
        while True:
            host = path[-1].url.authority
            try:
                if request.start < 0 and not self.traits[host].suffix_ranges:
                    ignored_here = RangeIgnoredError(None)
                    ignored_here.round = context.round - 1  # nothing is sent
                    raise ignored_here
                outcome = await self._step(verb, request, context, path)
            except RangeIgnoredError as ignored:
                ignored.host = host
                self._remember(path)
                raise
            if outcome is not None:
                self._remember(path)
                return outcome
            context = context.step(context.purpose, context.round + 1)

    async def _step(
        self, verb: _Verb, request: RangeRequest, context: RequestContext, path: list[RedirectTarget]
    ) -> Outcome | None:
        """Send a request to the last target of ``path``; if it redirects, append the new target and return None."""
        target = path[-1]
        try:
            return await self._transport.send(verb(self, request, target), context)
        except RedirectedError as redirected:
            location = redirected.location
        except RangeIgnoredError as ignored:
            ignored.round = context.round
            raise
        except AsyncpqError as error:
            if len(path) > 1:
                error.message += f"; {self._origin.server} redirects to {target.server}"
                redirect = self._redirects.get(self._named)
                if redirect is not None:
                    redirect.forget(target)
            raise
        further = next_target(request, target, location)
        if len(path) > MAX_REDIRECTS:
            raise too_many(request, further, path)
        path.append(further)
        return None

    def _remember(self, path: list[RedirectTarget]) -> None:
        redirect = self._redirects.get(self._named)
        if len(path) == 1:
            self._redirects.pop(self._named, None)
        elif redirect is None:
            self._redirects[self._named] = Redirect(path[-1])
        else:
            redirect.target = path[-1]


class _HttpGet:
    """A range GET of one target, over all its attempts.

    If the server of a ``remembered`` target cannot be reached, the GET is not retried: the url itself can be requested.
    """

    method = "GET"
    ranged = True

    def __init__(
        self, stored: HttpObject, request: RangeRequest, target: RedirectTarget, *, remembered: bool = False
    ) -> None:
        self.request = request
        self._stored = stored
        self._target = target
        self._remembered = remembered
        self._accepted = False
        self._conditional = True  # If-Match is sent
        self._past_caches = False  # Cache-Control is sent
        self.host: str = target.url.authority
        self._traits = stored.traits[self.host]

    def prepare(self, context: RequestContext) -> None:
        """Return None, since no other request has to come first."""
        self._past_caches = self._traits.past_caches is True
        if self._past_caches:
            context.metrics.fall_back(PAST_CACHES)

    def send(self, receiver: Receiver) -> Coroutine[Any, Any, Body]:
        stored, request = self._stored, self.request
        headers = dict(stored.headers) if self._target.own else {}
        if self.ranged:
            headers["Range"] = request.header
            if self._past_caches:
                headers["Cache-Control"] = "no-cache"
        etag = strong_etag(request.pin)
        self._conditional = self._conditional and self._traits.if_match is not False
        if etag is not None and self._conditional:
            headers["If-Match"] = etag
        sending = stored.wire.exchange(self.method, self._target.url, headers, request, receiver)
        return self._unless_unreachable(sending) if self._remembered else sending

    async def _unless_unreachable(self, sending: Coroutine[Any, Any, Body]) -> Body:
        try:
            return await sending
        except RetryableError as failure:
            if self._accepted:
                raise  # the body broke off: the transport fetches the rest
            raise failure.error from failure.__cause__

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        if status == 200 and "etag" not in headers and "xml" in headers.get("content-type", ""):
            return None  # an error document with status 200, such as a late SlowDown of S3
        self._accepted = True
        try:
            expected = check_range_response(self.request, status, headers, small_body_bytes=SMALL_BODY_BYTES)
        except RangeIgnoredError:
            if status == 200 and self._traits.cache_is_passed(headers, asked=self._past_caches):
                error = InvalidResponseError("a cache sent the whole object instead of a range", url=self.request.url)
                raise RetryableError(error, at_once=True) from None
            raise
        if self._traits.if_match is None and strong_etag(self.request.pin) is not None:
            self._traits.learn_if_match(sent=self._conditional)
        return expected

    def refuse(self, status: int, headers: Mapping[str, str], body: bytes) -> AsyncpqError | RetryableError:
        request = self.request
        if status == 200:
            return error_in_200(request, body)
        if status in REDIRECT_STATUSES:
            raise RedirectedError(headers.get("location", "").strip())
        retry_after = parse_retry_after_s(headers.get("retry-after"), now=time.time())
        code, message = parse_error(body)
        error = error_for(request, 404 if status == 410 else status, code, message, retry_after_s=retry_after)
        if isinstance(error, AccessDeniedError) and status != 407 and code != "InvalidObjectState":  # of S3, or a proxy
            may_be_signed = self._target.own and self._target.url.query_string  # stores beside S3's like send no code
            denied_hint = f"{_EXPIRED_HINT} " + self._stored.denied_hint if may_be_signed else self._stored.denied_hint
            error.hint = _SIGNED_HINT if code else denied_hint
        elif isinstance(error, StoreError) and status == 410 and self._target.url.query_string:
            error.hint = _EXPIRED_HINT  # nginx's secure_link answers so
        elif isinstance(error, InvalidResponseError) and 300 <= status < 400:
            error.hint = "Report it to the server's operator."
        if self._conditional and self._traits.may_refuse_if_match(request, status, error):
            self._conditional = False
            return RetryableError(cast("StoreError", error), at_once=True)
        return refused_suffix(request, status, headers, error, self._traits)


class _HttpHead(_HttpGet):
    """A HEAD for the object's size, sent to servers whose Content-Range lacks the size."""

    method = "HEAD"
    ranged = False

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        return check_head_response(self.request, headers) if status == 200 else None


class _HttpDocument(_HttpGet):
    """A GET of a whole document. It adds the response's headers to ``headers``."""

    ranged = False

    def __init__(self, headers: dict[str, str], *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._headers = headers

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        if status != 200:
            return None
        self._headers.update({name.lower(): value for name, value in headers.items()})
        return ExpectedBody(0, _DOCUMENT_BYTES, Validator(UNKNOWN_SIZE), check=_accept_any)

    def refuse(self, status: int, headers: Mapping[str, str], body: bytes) -> AsyncpqError | RetryableError:
        error = super().refuse(status, headers, body)
        code = headers.get("x-error-code", "")
        if code and isinstance(error, AsyncpqError):
            error.message += f": {code[:100]}"
        return error


_Verb = Callable[..., _HttpGet]


def _accept_any(body: bytes) -> None:
    """Accept a body of any length. The caller checks its content."""


# Messages about options do not show values, which may be secrets.


def _mapping(options: dict[str, Any], name: str) -> Mapping[str, Any]:
    """Remove the option ``name``, and return it; an empty mapping if it is None or absent. Raises InvalidOptionError if
    it is no mapping."""
    value = options.pop(name, None)
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise InvalidOptionError(f"the {name} of storage_options must be a mapping, not {type(value).__name__}")
    return value


def _headers(options: dict[str, Any]) -> Mapping[str, str]:
    """Remove and return the option ``headers``. Raises InvalidOptionError if its names or values cannot be sent."""
    headers: Mapping[Any, Any] = _mapping(options, "headers")
    for name, value in headers.items():
        if not (isinstance(name, str) and _HEADER_NAME.fullmatch(name)):
            raise InvalidOptionError(f"the headers of storage_options have a name that HTTP does not allow: {name!r}")
        if not isinstance(value, str):
            raise InvalidOptionError(
                f"the header {name} of storage_options must be a text, not {type(value).__name__}",
                hint="Leave it out." if value is None else None,
            )
        if _NOT_IN_HEADERS.search(value):
            raise InvalidOptionError(f"the header {name} of storage_options has a line break or control character")
    return headers


def _basic_auth(auth: Any) -> str:
    """Return the Authorization header for ``(user, password)`` or an aiohttp.BasicAuth. Raises InvalidOptionError for
    anything else."""
    is_pair = isinstance(auth, tuple | list) and len(auth) >= 2
    if not (is_pair and isinstance(auth[0], str) and isinstance(auth[1], str)):
        raise InvalidOptionError(
            f"the auth of storage_options must be (user, password), not {type(auth).__name__}"
            + (" of other values" if is_pair else "")
        )
    return f"Basic {base64.b64encode(f'{auth[0]}:{auth[1]}'.encode()).decode()}"
