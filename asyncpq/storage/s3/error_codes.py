"""What S3's error codes mean to a read.

https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html. Messages of the server are shown
shortened; they may name the bucket and the request, never a secret.
"""

from __future__ import annotations

import re
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
from asyncpq.storage.responses import RangeRequest, changed, empty
from asyncpq.storage.retry import RETRYABLE_STATUSES, RetryableError

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
    """Code and message of S3's error document; empty where it has none. No XML parser sees the body."""
    code, message = _CODE.search(body), _MESSAGE.search(body)
    text = unescape(message[1].decode("utf-8", "replace")) if message is not None else ""
    return (code[1].decode("ascii") if code is not None else "", text[:200])


def parse_region(body: bytes) -> str:
    """The region that an AuthorizationHeaderMalformed document names, or nothing."""
    region = _REGION.search(body)
    return region[1].decode("ascii") if region is not None else ""


def error_in_200(request: RangeRequest, body: bytes) -> AsyncpqError | RetryableError:
    """The error of a 200 without ETag, which S3 always sends: a late SlowDown, or somebody else's page."""
    code, message = parse_error(body)
    if not code:
        return InvalidResponseError(
            "the response is a document without an ETag, which no object of the store is", url=request.url
        )
    return error_for(request, 200, code, message)


def error_for(
    request: RangeRequest, status: int, code: str, message: str = "", *, retry_after_s: float = 0.0
) -> AsyncpqError | RetryableError:
    """The error of a response that is not 200 or 206, or of a 200 that holds an error document.

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
