"""The requests of a bucket, signed with SigV4 and sent over asyncpq's own connections. The hot path.

A bucket makes each request as an :class:`asyncpq.storage.transport.Exchange`, which the store's transport sends;
:class:`asyncpq.storage.s3.client.S3fsBucket` makes the same exchanges for s3fs.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Coroutine, Hashable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from cachetools import LRUCache

from asyncpq.errors import AsyncpqError, CredentialsError, InvalidResponseError, StoreError
from asyncpq.records import dataclass
from asyncpq.storage.base import RequestContext, Unpicklable
from asyncpq.storage.http1 import Body, Receiver
from asyncpq.storage.response_checks import (
    EXPIRED,
    READING_HINT,
    ExpectedBody,
    RangeRequest,
    ServerTraits,
    check_head_response,
    check_range_response,
    error_for,
    error_in_200,
    parse_error,
    parse_region,
    redirected,
    refused_suffix,
    strong_etag,
)
from asyncpq.storage.retries import RetryableError, parse_retry_after_s
from asyncpq.storage.s3.sigv4 import LateHeaders, Route, Signer, Signers, canonical_path, canonical_query
from asyncpq.storage.wire import DEFAULT_HEADERS, DirectWire, HttpTarget

if TYPE_CHECKING:
    from asyncpq.storage.s3.express import BucketSessions
    from asyncpq.storage.s3.key_listing import ListPage, PageRequest, S3List
    from asyncpq.storage.s3.store import S3Object
    from asyncpq.storage.s3.writer import S3Write, WriteCall

ANSWER_BYTES = 64 * 1024  # longest accepted response to a write: those are short

_KNOWN_PAGES = 8
_REGION_CODES = re.compile(r"[a-z0-9-]{2,40}")


@dataclass(slots=True)
class KeyListing:
    """A listing of the keys below ``url``, which has no secrets."""

    url: str
    encoded: bool = False  # request percent-encoded keys, since a page was not well-formed XML


class DirectBucket(Unpicklable):
    """One bucket, whose requests asyncpq signs and sends itself. Made by S3Store."""

    client = "direct"
    reason = ""  # to use s3fs: none

    def __init__(
        self,
        *,
        wire: DirectWire,
        signers: Signers,
        route: Route,
        traits: ServerTraits,
        customer_key: LateHeaders | None = None,
        sessions: BucketSessions | None = None,
    ) -> None:
        self.wire = wire
        self.traits = traits
        self.sessions = sessions  # of a directory bucket, whose credentials ``signers`` use
        self.customer_key = customer_key
        self.signers = signers
        self.route = route
        # pages of the last listings: a page with the same bytes is not parsed again
        self.known_pages: LRUCache[Hashable, tuple[bytes, ListPage]] = LRUCache(_KNOWN_PAGES)
        self.pages_lock: threading.Lock = threading.Lock()  # pages are parsed in threads
        self._root: tuple[tuple[str, str, str | None], HttpTarget] | None = None  # of "/", as the route is now

    @property
    def server(self) -> str:
        """Host of the bucket, with a port other than the default."""
        return self.route.host

    def path(self, key: str) -> str:
        """Return the path of ``key`` in requests, percent-encoded."""
        return canonical_path(self.route.prefix + key)

    @property
    def root(self) -> str:
        """The path of the bucket itself in requests, percent-encoded."""
        return self.path("").rstrip("/") or "/"

    def identity(self, stored: S3Object) -> str:
        return f"s3 {self.route.name}{stored.path}?{stored.query}"

    def target(self, path: str, query: str) -> HttpTarget:
        """Return the target of requests for ``path`` and ``query``, which are percent-encoded."""
        scheme, host, agent = place = self.route.scheme, self.route.host, self.route.user_agent
        if self._root is None or self._root[0] != place:
            headers = DEFAULT_HEADERS if agent is None else DEFAULT_HEADERS | {"User-Agent": agent}
            self._root = place, self.wire.target(f"{scheme}://{host}/", headers)
        endpoint, start = self._root[1]  # a lake has many objects at one place
        return HttpTarget(endpoint, f"{path}?{query}{start[1:]}" if query else path + start[1:])

    def get(self, stored: S3Object, request: RangeRequest) -> S3Get:
        """Return the request of a ranged GET, for the transport to send."""
        return S3Get(self, stored, request)

    def head(self, stored: S3Object, request: RangeRequest) -> S3Head:
        """Return the request of a HEAD for the object's size, for stores whose Content-Range lacks the size."""
        return S3Head(self, stored, request)

    def list(self, listing: KeyListing, page: PageRequest) -> S3List:
        """Return the request for one page of a listing, for the transport to send."""
        from asyncpq.storage.s3.key_listing import S3List

        return S3List(self, listing, replace(page, encoded=listing.encoded))

    def write(self, key: str, call: WriteCall, url: str) -> S3Write:
        """Return the request that writes one key, for the transport to send."""
        from asyncpq.storage.s3.writer import S3Write

        return S3Write(self, self.path(key), call, url)


class SignedExchange:
    """One signed request over all its attempts, an :class:`asyncpq.storage.transport.Exchange`. Refusals correct
    region, clock and credentials at most once each."""

    method = "GET"
    content = b""
    payload_sha256: str | None = None
    denied_hint = READING_HINT
    has_content = False  # of an object: the customer's key goes along
    request: RangeRequest

    # of the instance; as defaults here they cost a GET nothing
    _bucket: DirectBucket
    _path: str
    _targets: dict[tuple[str, str], HttpTarget]  # by host and query
    _signer: Signer | None = None  # of the last attempt
    _expired: Signer | None = None
    _corrected: tuple[str, ...] = ()

    @property
    def host(self) -> str:
        return self._bucket.route.host

    def query_and_headers(self) -> tuple[str, Mapping[str, str]]:
        """Return the canonical query and the signed headers of the next attempt."""
        raise NotImplementedError

    def prepare(self, context: RequestContext) -> Coroutine[Any, Any, RequestContext] | None:
        if self._expired is None and self._bucket.signers.are_fresh():
            return None
        return self._find_credentials(context)

    async def _find_credentials(self, context: RequestContext) -> RequestContext:
        expired, self._expired = self._expired, None
        signers, sessions = self._bucket.signers, self._bucket.sessions
        try:
            if sessions is not None:
                context = await sessions.ready(None if expired is None else expired.credentials, context)
            await (signers.refresh() if expired is None else signers.renew(expired))
        except CredentialsError as error:
            error.locate(url=self.request.url)
            raise
        return context

    def send(self, receiver: Receiver) -> Coroutine[Any, Any, Body]:
        bucket, path, method = self._bucket, self._path, self.method
        route, signers = bucket.route, bucket.signers
        query, headers = self.query_and_headers()
        target = self._targets.get((route.host, query))
        if target is None:
            target = self._targets[route.host, query] = bucket.target(path, query)
        self._signer = signer = signers.signer(route.region)
        late = bucket.customer_key if self.has_content else None
        if signer is not None:
            now, digest = signers.now_s(), self.payload_sha256
            lines = signer.sign(method, route.host, path, query, headers, now=now, payload_sha256=digest, late=late)
        else:
            lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()]) + (late.lines if late else "")
        if method in ("PUT", "POST"):
            lines = f"Content-Length: {len(self.content)}\r\n{lines}"
        return bucket.wire.exchange(method, target, lines, self.request, receiver, self.content)

    def refuse(self, status: int, headers: Mapping[str, str], body: bytes) -> AsyncpqError | RetryableError:
        code, message = parse_error(body)
        request, sessions = self.request, self._bucket.sessions
        denied_hint = self.denied_hint if sessions is None else sessions.denied_hint
        if status == 200:
            return error_in_200(request, body, denied_hint)
        if 300 <= status < 400 and "location" in headers:
            error: AsyncpqError | RetryableError = redirected(request, headers["location"])
        else:
            retry_after = parse_retry_after_s(headers.get("retry-after"), now=time.time())
            error = error_for(request, status, code, message, retry_after_s=retry_after, denied_hint=denied_hint)
        if isinstance(error, StoreError) and self._correct(status, code, headers, body):
            return RetryableError(error, at_once=True)
        return error

    def _correct(self, status: int, code: str, headers: Mapping[str, str], body: bytes) -> bool:
        """Correct region, clock or credentials after a refusal, according to the response; return whether another
        attempt may succeed."""
        signer, route, signers = self._signer, self._bucket.route, self._bucket.signers
        region = headers.get("x-amz-bucket-region") or parse_region(body)
        is_elsewhere = bool(_REGION_CODES.fullmatch(region)) and (signer is None or signer.region != region)
        if is_elsewhere and status in (301, 307, 400, 403) and self._once("region"):
            if route.region != region:
                route.move(region)
            return True
        if code == "RequestTimeTooSkewed" and self._once("clock"):
            return signers.correct_clock(headers.get("date"))
        if code in EXPIRED and signer is not None and self._once("credentials"):
            self._expired = signer
            return True
        return False

    def _once(self, correction: str) -> bool:
        if correction in self._corrected:
            return False
        self._corrected = (*self._corrected, correction)
        return True


class ObjectResponse:
    """Checks the response to a range GET; shared by the direct requests and those of s3fs."""

    request: RangeRequest
    _stored: S3Object
    _conditional = True  # If-Match is sent

    @property
    def if_match(self) -> str | None:
        """The value of the If-Match header of the next attempt; None for none."""
        return strong_etag(self.request.pin) if self._conditional and self._stored.if_match else None

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        if status == 200 and "etag" not in headers:
            return None  # S3 always sends an ETag: this may be an error document (a late SlowDown)
        expected = check_range_response(self.request, status, headers)
        self.check_version(headers)
        if self.request.pin is not None:
            traits = self._stored.traits
            if traits.if_match is None and (not self._conditional or self.if_match is not None):
                traits.learn_if_match(sent=self._conditional)
        if self._stored.version_aware and self.request.pin is None and "x-amz-version-id" in headers:
            return replace(expected, validator=replace(expected.validator, version=headers["x-amz-version-id"]))
        return expected

    def check_version(self, headers: Mapping[str, str]) -> None:
        """Refuse an object of another version than the url names: some servers ignore version ids.

        An object that was written without versioning has the version ``null``, which servers may leave out.
        """
        asked, sent = self._stored.version_id, headers.get("x-amz-version-id")
        if asked is None or sent == asked or (sent is None and asked == "null"):
            return
        raise InvalidResponseError(
            "the server does not say that it sent the version in the url, but "
            + ("none" if sent is None else f"version {sent[:100]!r}"),
            url=self.request.url,
            byte_range=self.request.byte_range,
            hint="The server may have no versions: without ?versionId= the current object is read.",
        )

    def reconsider(
        self, status: int, headers: Mapping[str, str], error: AsyncpqError | RetryableError
    ) -> AsyncpqError | RetryableError:
        """Return what to raise for a refusal whose error is ``error``: a server may refuse If-Match. Raises
        RangeIgnoredError if it may refuse a range of the last bytes."""
        if self.if_match is not None and self._stored.traits.may_refuse_if_match(self.request, status, error):
            self._conditional = False
            return RetryableError(cast("StoreError", error), at_once=True)
        return refused_suffix(self.request, status, headers, error, self._stored.traits)


class S3Get(ObjectResponse, SignedExchange):
    """A range GET, pinned with If-Match."""

    has_content = True

    def __init__(self, bucket: DirectBucket, stored: S3Object, request: RangeRequest) -> None:
        self.request = request
        self._bucket = bucket
        self._stored = stored
        self._path = stored.path
        self._targets = stored.targets

    def query_and_headers(self) -> tuple[str, Mapping[str, str]]:
        stored, pin = self._stored, self.request.pin
        query = stored.query if pin is None or pin.version is None else canonical_query(versionId=pin.version)
        headers = {}
        etag = self.if_match
        if etag is not None:
            headers["if-match"] = etag
        if self.method == "GET":
            headers["range"] = self.request.header
        return query, headers

    def refuse(self, status: int, headers: Mapping[str, str], body: bytes) -> AsyncpqError | RetryableError:
        return self.reconsider(status, headers, super().refuse(status, headers, body))


class S3Head(S3Get):
    """A HEAD, for the object's size."""

    method = "HEAD"

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        if status != 200:
            return None
        self.check_version(headers)
        return check_head_response(self.request, headers)
