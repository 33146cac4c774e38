"""What all requests to a bucket share: S3's error codes, the bucket's route, and its signers.

https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html. Messages of the server are shown shortened; they
may name the bucket and the request, never a secret.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
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
from asyncpq.storage.limits import RETRYABLE_STATUSES, RetryableError
from asyncpq.storage.responses import RangeRequest, changed, empty
from asyncpq.storage.s3.sigv4 import Credentials, Signer
from asyncpq.storage.urls import word_set

THROTTLES = word_set(
    "SlowDown Throttling ThrottlingException RequestLimitExceeded TooManyRequests BandwidthLimitExceeded"
)
TRANSIENT = word_set(
    "ConditionalRequestConflict InternalError OperationAborted RequestTimeout ServiceUnavailable "
    "XAmzContentSHA256Mismatch"
)
EXPIRED = word_set("ExpiredToken ExpiredTokenException TokenRefreshRequired RequestExpired")
_CREDENTIALS = EXPIRED | word_set(
    "InvalidAccessKeyId InvalidToken InvalidSecurity MissingSecurityHeader SignatureDoesNotMatch "
    "AuthorizationHeaderMalformed RequestTimeTooSkewed"
)
_DENIED = word_set("AccessDenied AllAccessDisabled AccountProblem InvalidObjectState InvalidPayer")

#: Hints for a refused read, listing and write.
READING_HINT = "Reading needs s3:GetObject on the object; without s3:ListBucket a missing object is also refused."
LISTING_HINT = "Listing needs s3:ListBucket on the bucket; without it, give the urls of the files."
WRITING_HINT = "Writing needs s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload on the objects."
_CREDENTIALS_HINT = "Check key, secret and token in storage_options, or the credentials found in the environment."

_CODE = re.compile(rb"<Code>([A-Za-z0-9_.]{1,100})</Code>")
_REGION = re.compile(rb"<Region>([a-z0-9-]{2,40})</Region>")
_MESSAGE = re.compile(rb"<Message>([^<]{1,2000})</Message>")


def parse_error(body: bytes) -> tuple[str, str]:
    """Code and message of S3's error document; empty if it has none. The untrusted body meets no XML parser."""
    code, message = _CODE.search(body), _MESSAGE.search(body)
    text = unescape(message[1].decode("utf-8", "replace")) if message is not None else ""
    return (code[1].decode("ascii") if code is not None else "", text[:200])


def parse_region(body: bytes) -> str:
    """The region in an AuthorizationHeaderMalformed document, or ""."""
    region = _REGION.search(body)
    return region[1].decode("ascii") if region is not None else ""


def error_in_200(request: RangeRequest, body: bytes, denied_hint: str = READING_HINT) -> AsyncpqError | RetryableError:
    """The error of a 200 without ETag, which S3 always sends: a late SlowDown, or another server's page."""
    code, message = parse_error(body)
    if not code:
        return InvalidResponseError(
            "the response has no ETag, so it is a document and not an object of the store", url=request.url
        )
    return error_for(request, 200, code, message, denied_hint=denied_hint)


def error_for(
    request: RangeRequest,
    status: int,
    code: str,
    message: str = "",
    *,
    retry_after_s: float = 0.0,
    denied_hint: str = READING_HINT,
) -> AsyncpqError | RetryableError:
    """The error of a response that is not 200 or 206, or of a 200 with an error document.

    ``code`` and ``message`` are those of the error document, or empty.
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
        throttled = ThrottledError(f"the store asks to slow down: {said}", url=url, byte_range=where)
        return RetryableError(throttled, retry_after_s=retry_after_s)
    if code in TRANSIENT or status in RETRYABLE_STATUSES:
        failed = TransportError(f"the store failed: {said}", url=url, byte_range=where)
        return RetryableError(failed, retry_after_s=retry_after_s)
    if status in (401, 403) or code in _DENIED:
        return AccessDeniedError(f"the store refused access: {said}", url=url, hint=denied_hint)
    if 300 <= status < 400:
        return InvalidResponseError(
            f"the store redirects: {said}", url=url, hint="Name the bucket's own endpoint or region in storage_options."
        )
    return StoreError(f"the store refused the request: {said}", url=url, byte_range=where)


@dataclass(slots=True)
class Route:
    """How one bucket is reached. Changed in place when the store names another region."""

    scheme: str
    host: str  # with its port unless it is the scheme's own
    prefix: str  # path before the key, with slashes: "/" or "/bucket/"
    region: str  # that requests are signed for
    endpoint_region: bool  # the host's name holds the region (AWS's own endpoints)
    user_agent: str | None = None  # None for the transport's own
    name: str = field(init=False)  # for cache keys; stays the same when the region changes

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
    """Signers for each region: the credentials in use, looked up again now and then, and the store's clock.

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
        self.clock_offset_s = 0.0  # what the store's clock is ahead

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
