"""What all requests to a bucket share: its route, their signers, S3's error codes, and corrections after a refusal.

https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html. Messages of the server are shown shortened; they
may name the bucket and the request, never a secret.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any
from xml.sax.saxutils import unescape

from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    BucketNotFoundError,
    CredentialsError,
    InvalidResponseError,
    ObjectNotFoundError,
    StoreError,
    ThrottledError,
    TransportError,
)
from asyncpq.storage.base import Unpicklable
from asyncpq.storage.limits import RETRYABLE_STATUSES, RetryableError, parse_retry_after_s
from asyncpq.storage.responses import RangeRequest, changed, empty, redirected
from asyncpq.storage.s3.sigv4 import Credentials, Signer
from asyncpq.storage.wire import DEFAULT_HEADERS, DirectWire, HttpTarget

THROTTLES = frozenset(
    {
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "RequestLimitExceeded",
        "TooManyRequests",
        "BandwidthLimitExceeded",
    }
)
TRANSIENT = frozenset(
    {
        "ConditionalRequestConflict",
        "InternalError",
        "OperationAborted",
        "RequestTimeout",
        "ServiceUnavailable",
        "XAmzContentSHA256Mismatch",
    }
)
EXPIRED = frozenset({"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"})
_CREDENTIALS = EXPIRED | {
    "InvalidAccessKeyId",
    "InvalidToken",
    "InvalidSecurity",
    "MissingSecurityHeader",
    "SignatureDoesNotMatch",
    "AuthorizationHeaderMalformed",
    "RequestTimeTooSkewed",
}
_DENIED = frozenset({"AccessDenied", "AllAccessDisabled", "AccountProblem", "InvalidObjectState", "InvalidPayer"})

_CODE = re.compile(rb"<Code>([A-Za-z0-9_.]{1,100})</Code>")
_REGION = re.compile(rb"<Region>([a-z0-9-]{2,40})</Region>")
_MESSAGE = re.compile(rb"<Message>([^<]{1,2000})</Message>")


def parse_error(body: bytes) -> tuple[str, str]:
    """Code and message of S3's error document; empty if it has none. Without an XML parser, since the body is
    untrusted.
    """
    code, message = _CODE.search(body), _MESSAGE.search(body)
    text = unescape(message[1].decode("utf-8", "replace")) if message is not None else ""
    return (code[1].decode("ascii") if code is not None else "", text[:200])


def parse_region(body: bytes) -> str:
    """The region in an AuthorizationHeaderMalformed document, or ""."""
    region = _REGION.search(body)
    return region[1].decode("ascii") if region is not None else ""


def error_in_200(request: RangeRequest, body: bytes) -> AsyncpqError | RetryableError:
    """The error of a 200 without ETag, which S3 always sends: a late SlowDown, or another server's page."""
    code, message = parse_error(body)
    if not code:
        return InvalidResponseError(
            "the response has no ETag, so it is a document and not an object of the store", url=request.url
        )
    return error_for(request, 200, code, message)


def error_for(
    request: RangeRequest, status: int, code: str, message: str = "", *, retry_after_s: float = 0.0
) -> AsyncpqError | RetryableError:
    """The error of a response that is not 200 or 206, or of a 200 with an error document.

    Args:
        status: HTTP status.
        code, message: of the error document, or empty.
    """
    url, where = request.url, request.byte_range
    said = f"{code or 'no error code'} (status {status})" + (f": {message}" if message else "")
    pinned = request.pin is not None
    if code == "NoSuchBucket":
        return BucketNotFoundError("no such bucket", url=url, hint="Check the bucket's name and the endpoint.")
    if status == 404 or code in ("NoSuchKey", "NoSuchVersion"):
        return changed(request, "it is gone") if pinned else ObjectNotFoundError("no such object", url=url)
    if status == 412 or code == "PreconditionFailed":
        return changed(request, "the store has another version") if pinned else StoreError(said, url=url)
    if status == 416 or code == "InvalidRange":
        if request.start < 0:
            return changed(request, "it is empty now") if pinned else empty(url)
        if pinned:
            return changed(request, "it is shorter now")
        return InvalidResponseError("the range begins after the object's end", url=url, byte_range=where)
    if code in _CREDENTIALS:
        return CredentialsError(f"the store refused the credentials: {said}", url=url, hint=_CREDENTIALS_HINT)
    if code in THROTTLES or status == 429 or (status == 503 and code in ("", "ServiceUnavailable")):
        return RetryableError(
            ThrottledError(f"the store asks to slow down: {said}", url=url, byte_range=where),
            retry_after_s=retry_after_s,
        )
    if code in TRANSIENT or status in RETRYABLE_STATUSES:
        return RetryableError(
            TransportError(f"the store failed: {said}", url=url, byte_range=where), retry_after_s=retry_after_s
        )
    if status in (401, 403) or code in _DENIED:
        return AccessDeniedError(f"the store refused access: {said}", url=url, hint=_DENIED_HINT)
    if 300 <= status < 400:
        return InvalidResponseError(
            f"the store redirects: {said}", url=url, hint="Name the bucket's own endpoint or region in storage_options."
        )
    return StoreError(f"the store refused the request: {said}", url=url, byte_range=where)


_CREDENTIALS_HINT = "Check key, secret and token in storage_options, or the credentials found in the environment."
_DENIED_HINT = "Reading needs s3:GetObject on the object; without s3:ListBucket a missing object is also refused."


@dataclass(slots=True)
class Route:
    """How one bucket is reached. Changed in place when the store names another region.

    Attributes:
        scheme, host: of the url; ``host`` with its port unless it is the scheme's own.
        prefix: path before the key, with slashes: "/" or "/bucket/".
        region: that requests are signed for.
        endpoint_region: True if the host's name holds the region (AWS's own endpoints).
        user_agent: the User-Agent header to send, or None for the transport's own.
        name: for cache keys; stays the same when the region changes.
    """

    scheme: str
    host: str
    prefix: str
    region: str
    endpoint_region: bool
    user_agent: str | None = None
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = f"{self.scheme}://{self.host}[{self.region}]"

    def move(self, region: str) -> None:
        """Change the region."""
        if self.endpoint_region:
            self.host = host_in_region(self.host, self.region, region)
        self.region = region


def host_in_region(host: str, old: str, new: str) -> str:
    """AWS's host name of the same bucket in region ``new``."""
    labels = host.split(".")
    if old in labels:
        position = len(labels) - 1 - labels[::-1].index(old)
        labels[position] = new
    else:  # the global endpoint: s3.amazonaws.com
        position = len(labels) - 1 - labels[::-1].index("amazonaws") if "amazonaws" in labels else len(labels)
        labels.insert(position, new)
    return ".".join(labels)


class Signers(Unpicklable):
    """Signers for each region: the credentials in use, looked up again now and then, and the offset of the store's
    clock.

    Args:
        fetch: gives the credentials, None to sign nothing; its argument is True when the last ones expired.
    """

    def __init__(self, fetch: Callable[[bool], Awaitable[Credentials | None]], *, refresh_s: float = 30.0) -> None:
        self._fetch = fetch
        self._refresh_s = refresh_s
        self._credentials: Credentials | None = None
        self._fetched_at: float | None = None
        self._signers: dict[str, Signer] = {}
        self._identity = "anonymous"
        self.clock_offset_s = 0.0

    def are_fresh(self) -> bool:
        """False when :meth:`refresh` must come before :meth:`signer`."""
        return self._fetched_at is not None and time.monotonic() - self._fetched_at < self._refresh_s

    async def refresh(self) -> None:
        """Look the credentials up again, unless that happened a short time ago."""
        if not self.are_fresh():
            self._use(await self._fetch(False))

    def signer(self, region: str) -> Signer | None:
        """A signer for the region with the credentials in use; None to send unsigned."""
        signer = self._signers.get(region)
        if signer is None and self._credentials is not None:
            signer = self._signers[region] = Signer(self._credentials, region)
        return signer

    async def identity(self) -> str:
        """Digest of the access key id in use; "anonymous" if nothing is signed."""
        await self.refresh()
        return self._identity

    async def renew(self, expired: Signer) -> None:
        """Replace expired credentials, once for all requests that used them."""
        if self._signers.get(expired.region) is expired:
            self._use(await self._fetch(True))

    def _use(self, credentials: Credentials | None) -> None:
        self._fetched_at = time.monotonic()
        if credentials != self._credentials:
            self._credentials = credentials
            self._signers.clear()
            self._identity = "anonymous"
            if credentials is not None:
                self._identity = hashlib.sha256(credentials.access_key.encode()).hexdigest()[:16]


_REGION_CODES = re.compile(r"[a-z0-9-]{2,40}")


class S3Resource(Unpicklable):
    """One path of a bucket's route, to which requests are sent.

    Args:
        path: percent-encoded.
    """

    def __init__(self, *, wire: DirectWire, signers: Signers, route: Route, path: str) -> None:
        self._wire = wire
        self.signers = signers
        self._route = route
        self._path = path

    @property
    def server(self) -> str:
        return self._route.host

    def _target(self, route: Route, query: str) -> HttpTarget:
        headers = DEFAULT_HEADERS if route.user_agent is None else DEFAULT_HEADERS | {"User-Agent": route.user_agent}
        return self._wire.target(f"{route.scheme}://{route.host}{self._path}" + (f"?{query}" if query else ""), headers)

    def move(self, signed_for: str, region: str) -> bool:
        """Learn the bucket's region; False if the request was signed for it already."""
        if region == signed_for:
            return False
        if self._route.region != region:
            self._route.move(region)
        return True

    def set_clock(self, date: str | None) -> bool:
        """Learn the store's clock from its Date header; False without one."""
        try:
            store = parsedate_to_datetime(date or "").timestamp()
        except (ValueError, OverflowError):
            return False
        self.signers.clock_offset_s = store - time.time()
        return True


class SignedExchange:
    """One signed request over all its attempts. It corrects region, clock and credentials once each."""

    method = "GET"

    def __init__(self, resource: S3Resource, request: RangeRequest) -> None:
        self.request = request
        self._resource = resource
        self.signer: Signer | None = None
        self._expired: Signer | None = None
        self._corrected = ""

    def prepare(self) -> Coroutine[Any, Any, None] | None:
        if self._expired is None and self._resource.signers.are_fresh():
            return None
        return self._find_credentials()

    async def _find_credentials(self) -> None:
        expired, self._expired = self._expired, None
        signers = self._resource.signers
        try:
            await (signers.refresh() if expired is None else signers.renew(expired))
        except CredentialsError as error:
            error.locate(url=self.request.url)
            raise

    def refuse(self, status: int, headers: Mapping[str, str], body: bytes) -> AsyncpqError | RetryableError:
        code, message = parse_error(body)
        retry_after = parse_retry_after_s(headers.get("retry-after"), now=time.time())
        request = self.request
        if status == 416 and request.start < 0 and not headers.get("content-range", "*/0").endswith("*/0"):
            return InvalidResponseError("the store does not support suffix ranges", url=request.url)
        if status == 200:
            return error_in_200(request, body)
        if 300 <= status < 400 and "location" in headers:
            error: AsyncpqError | RetryableError = redirected(request, headers["location"])
        else:
            error = error_for(request, status, code, message, retry_after_s=retry_after)
        if isinstance(error, StoreError) and self._correct(status, code, headers, body):
            return RetryableError(error, at_once=True)
        return error

    def _correct(self, status: int, code: str, headers: Mapping[str, str], body: bytes) -> bool:
        """Whether the refusal taught something that lets another attempt succeed."""
        signer = self.signer
        region = headers.get("x-amz-bucket-region") or parse_region(body)
        if region and _REGION_CODES.fullmatch(region) and status in (301, 307, 400, 403) and self._once("region"):
            signed_for = signer.region if signer is not None else ""
            return self._resource.move(signed_for, region)
        if code == "RequestTimeTooSkewed" and self._once("clock"):
            return self._resource.set_clock(headers.get("date"))
        if code in EXPIRED and signer is not None and self._once("credentials"):
            self._expired = signer
            return True
        return False

    def _once(self, correction: str) -> bool:
        if correction in self._corrected:
            return False
        self._corrected += correction
        return True
