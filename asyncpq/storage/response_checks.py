"""Check HTTP responses, and convert refusals to errors. No I/O.

Status and headers must describe exactly the requested bytes of the pinned version (RFC 9110, sections 13 and 14). A
refused response is closed unread, except for the beginning of an error document
(https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html). Its message is shown shortened; it may name the
bucket and the request, never a secret.

A session learns once for each server how it answers If-Match, and ranges of the last bytes (:class:`ServerTraits`).
Bytes, range and version of each response are checked whatever the server does.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Protocol

from cachetools import LRUCache

from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    BucketNotFoundError,
    CredentialsError,
    Hint,
    InvalidResponseError,
    NotParquetError,
    ObjectChangedError,
    ObjectNotFoundError,
    StoreError,
    ThrottledError,
    TransportError,
)
from asyncpq.records import dataclass
from asyncpq.storage.base import Guarantee, RangeResult, RequestContext, Validator, http_date_s, may_change_unseen
from asyncpq.storage.retries import RETRYABLE_STATUSES, RetryableError
from asyncpq.storage.urls import safe_target, word_set

#: ``Validator.size`` of a response without the object's size (``Content-Range: bytes 0-9/*``).
UNKNOWN_SIZE = -1

#: Error bodies are read up to here; the rest is dropped with the connection.
ERROR_BODY_BYTES = 64 * 1024

#: The largest size of an object, in bytes: Arrow's lengths.
MAX_SIZE = (1 << 63) - 1
_MAX_HOSTS = 256  # of which a session knows how they answer

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)")
_SHOWN = 100  # characters of a header in a message
_NOT_THIS = "Read from another endpoint: a proxy or server on the way answers range requests wrongly."
_SHORT = "Open the object again: it was replaced or cut off while it was read."


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

_SUFFIX_REFUSALS = frozenset((400, 416, 501))

#: Hints for a refused read, listing and write.
READING_HINT = "Allow s3:GetObject on the object, and check that it exists: S3 may refuse access to a missing object."
LISTING_HINT = "Allow s3:ListBucket on the bucket, or give the urls of the files."
WRITING_HINT = "Allow s3:PutObject, s3:DeleteObject and s3:AbortMultipartUpload on the objects."
_CREDENTIALS_HINT = Hint(
    "Check key, secret and token in storage_options, or the credentials found in the environment.",
    "Check the credentials of --profile or the environment: `asyncpq doctor URL` says where they came from.",
)

_PROXY_HINT = "Put them into the proxy's url in HTTP_PROXY and HTTPS_PROXY: http://USER:PASSWORD@HOST:PORT."
_CLOCK_HINT = "Set this host's clock: it is too far from the store's, which refuses the signature's time."
_ARCHIVED_HINT = "The object is archived (S3 Glacier): restore it first, with RestoreObject, and read it then."

# Patterns of what error responses say: most processes need none, so they are compiled at their first use.
#: What servers of Go, nginx, Apache and Tomcat write to a request in clear text where they expect TLS.
_EXPECTS_TLS = (
    rb"HTTP request to an HTTPS server|HTTP request was sent to HTTPS port|plain HTTP to an SSL-enabled server"
    rb"|host and port requires TLS"
)
_CODE = rb"<Code>([A-Za-z0-9_.]{1,100})</Code>"
_REGION = rb"<Region>([a-z0-9-]{2,40})</Region>"
_MESSAGE = rb"<Message>([^<]{1,2000})</Message>"


@dataclass(slots=True)
class RangeRequest:
    """A request of the bytes ``[start, stop)``. ``start`` = -n and ``stop`` = 0 request the last n bytes. For a write,
    the bytes that are sent."""

    start: int
    stop: int
    url: str  # safe to be shown
    pin: Validator | None = None  # the version that the response must have
    failures: int = 0  # responses with status 500

    @property
    def header(self) -> str:
        """The value of the Range header."""
        return f"bytes={self.start}" if self.start < 0 else f"bytes={self.start}-{self.stop - 1}"

    @property
    def length(self) -> int:
        """Number of the requested bytes."""
        return -self.start if self.start < 0 else self.stop - self.start

    @property
    def byte_range(self) -> tuple[int, int] | None:
        """``(start, stop)`` as shown in errors; None for the last n bytes and for an empty range."""
        return (self.start, self.stop) if 0 <= self.start < self.stop else None


@dataclass(slots=True)
class ExpectedBody:
    """The body that a checked response head promises: ``length`` bytes, from byte ``start`` of the object."""

    start: int
    length: int
    validator: Validator
    young: bool = False  # the validator is a time too recent to tell this version from the next one
    #: For a body whose length is not known before: ``length`` is its maximum, and this raises if the body is bad. Large
    #: bodies are checked in a thread.
    check: Callable[[bytes], None] | None = None
    #: The body is the whole object, of any length up to ``length``; :func:`check_chunked_whole` says which.
    is_chunked_whole: bool = False


class RangeIgnoredError(Exception):
    """The server does not send the range: it sends the whole object, or, for the last n bytes, other bytes or a
    refusal. Caught inside the storage package.

    ``size`` is the object's size in bytes; None if the response does not have it.
    """

    def __init__(self, size: int | None) -> None:
        super().__init__("range ignored")
        self.size = size
        self.failed = False  # the refusal has status 500: it may have another reason than the range
        self.round = 0  # of the request that showed it, where redirects took rounds of their own
        self.host = ""  # that sent the response, where redirects lead to others


def strong_etag(validator: Validator | None) -> str | None:
    """Return the ETag to send in If-Match; None if it is missing or weak, since a weak one never matches (RFC 9110,
    13.1.1)."""
    if validator is None:
        return None
    etag = validator.etag
    # a line break can only come from a damaged cache entry
    if etag is None or etag[:2] == "W/" or "\n" in etag or "\r" in etag or "\0" in etag:
        return None
    return etag


def quoted_etag(value: str | None) -> str | None:
    """Return an ETag with quotes, as GETs have it, since some servers omit them in listings; None if it is missing."""
    if not value:
        return None
    return value if value.endswith('"') else f'"{value}"'


def guarantee_of(validator: Validator, *, if_match: bool = True) -> Guarantee:
    """Return the guarantee of reads whose responses have validators like this one. ``if_match``: requests have
    If-Match."""
    if validator.is_strong:
        return Guarantee.PINNED if if_match else Guarantee.COMPARED
    if validator.etag is not None or validator.last_modified is not None:
        return Guarantee.BRACKETED
    return Guarantee.NONE


def check_range_response(
    request: RangeRequest, status: int, headers: Mapping[str, str], *, small_body_bytes: int = 0
) -> ExpectedBody:
    """Check the head of a 200 or 206 response to a range GET, with lower-case names; return what body must follow.

    A 200 whose Content-Range is the requested range counts as 206. A 200 with a whole object of at most
    ``small_body_bytes`` is accepted, and cut later; a larger one raises RangeIgnoredError, as do other bytes than the
    last n. If it comes in chunks, without Content-Length, only its end shows how long it is. A Content-Encoding is
    ignored where Content-Length and Content-Range agree, since S3-like servers replay the one of the upload beside
    bytes that they send as they are stored. Raises ObjectChangedError if the version is not ``request.pin``,
    NotParquetError if the object is empty, and InvalidResponseError if the response is not the requested range.
    """
    get = headers.get
    pin, start, stop = request.pin, request.start, request.stop
    if (  # the usual response, in few comparisons
        status == 206
        and pin is not None
        and start >= 0
        and pin.etag is not None
        and pin.version is None
        and pin.etag[:2] != "W/"
        and get("etag") == pin.etag
        and get("content-range") == f"bytes {start}-{stop - 1}/{pin.size}"
        and get("content-length") == str(stop - start)
        and get("content-encoding") is None
    ):
        return ExpectedBody(start, stop - start, pin)
    encoding = get("content-encoding", "").strip()
    is_encoded = encoding.lower() not in ("", "identity")
    length, content_range = _content_length(request, get("content-length")), get("content-range")
    if status == 200 and (not length or content_range in (None, f"bytes 0-{length - 1}/{length}")):
        is_stored = length == 0 or (content_range is not None and length is not None)
        if is_encoded and not is_stored and not (pin is not None and pin.is_strong and pin.size == length):
            raise _encoded(request, encoding)
        return _check_whole(request, headers, length, small_body_bytes)
    if status not in (200, 206):
        raise _invalid(request, f"the server answered with status {status}, expected 206")
    start, stop, size = _content_range(request, content_range)
    if is_encoded and length != stop - start:
        raise _encoded(request, encoding)
    if length is not None and length != stop - start:
        raise _invalid(request, f"Content-Length is {length}, but Content-Range says {stop - start} bytes")
    validator = _validator(request, headers, size)
    _check_span(request, start, stop, size)
    return ExpectedBody(start, stop - start, validator, _is_young(validator, headers))


def check_head_response(request: RangeRequest, headers: Mapping[str, str]) -> ExpectedBody:
    """Check a 200 response to a HEAD: it must state the object's size, and its version must be ``request.pin``.

    The size is compared only if ``request.pin`` has one. Returns an empty body's description, whose validator has the
    object's size.
    """
    length = _content_length(request, headers.get("content-length"))
    if length is None:
        raise _invalid(request, "the store gives the object's size neither in Content-Range nor in a HEAD response")
    pin = request.pin
    size = UNKNOWN_SIZE if pin is not None and pin.size == UNKNOWN_SIZE else length
    return ExpectedBody(0, 0, replace(_validator(request, headers, size), size=length))


def _validator(request: RangeRequest, headers: Mapping[str, str], size: int) -> Validator:
    """Return the response's validator. Raises ObjectChangedError if it differs from ``request.pin``.

    A weak ETag that became strong is the same (RFC 9110, 8.8.3.2); the version keeps the weak one.
    """
    pin = request.pin
    validator = Validator(
        size=size,
        etag=headers.get("etag") or None,
        last_modified=headers.get("last-modified") or None,
        version=headers.get("x-amz-version-id") if pin is not None and pin.version is not None else None,
    )
    if pin is None:
        return validator
    if pin.etag is not None and validator.etag is None:
        raise _invalid(request, "the response has no ETag, though the object's first response had one")
    if validator.size not in (UNKNOWN_SIZE, pin.size):
        raise changed(request, f"its size is {validator.size}, it was {pin.size}")
    if pin.etag is None and pin.version is None and validator.etag is not None:
        # the first response had no version to compare with; this one has
        raise changed(request, f"its ETag is {validator.etag[:_SHOWN]}, it had none")
    if pin.etag is not None and validator.etag != pin.etag:
        if pin.etag != f"W/{validator.etag}":
            raise changed(request, f"its ETag is {(validator.etag or '')[:_SHOWN]}, it was {pin.etag[:_SHOWN]}")
        validator = replace(validator, etag=pin.etag)  # Apache's ETags of a new file are weak for a second
    if not pin.is_strong and pin.last_modified is not None and validator.last_modified != pin.last_modified:
        now = str(validator.last_modified)[:_SHOWN]
        raise changed(request, f"it was modified {now}, before that {pin.last_modified[:_SHOWN]}")
    if pin.version is not None and validator.version is not None and pin.version != validator.version:
        raise changed(request, "it has another version id")
    return validator


def changed(request: RangeRequest, difference: str) -> ObjectChangedError:
    """Return the error for a version other than the pinned one; ``difference`` is a clause that says what differs."""
    message = f"the object changed while it was read: {difference}"
    return ObjectChangedError(message, url=request.url, byte_range=request.byte_range)


def gone(request: RangeRequest) -> ObjectChangedError:
    """Return the error for an object that no longer exists, although a read has pinned one of its versions."""
    error = changed(request, "it is gone")
    error.is_gone = True
    return error


def redirected(request: RangeRequest, location: str) -> InvalidResponseError:
    """Return the error for a redirect that is not followed; ``location`` is the Location header or empty."""
    hint = "asyncpq does not follow redirects of S3; read the url or endpoint of the redirect, if you trust it."
    return _invalid(request, f"the server redirects to {safe_target(location) or 'an empty Location'}", hint)


def empty(url: str) -> NotParquetError:
    """Return the error for an object without bytes."""
    return NotParquetError("the object is empty", url=url)


def _invalid(request: RangeRequest, message: str, hint: str = _NOT_THIS) -> InvalidResponseError:
    return InvalidResponseError(message, url=request.url, byte_range=request.byte_range, hint=hint)


def _encoded(request: RangeRequest, encoding: str) -> InvalidResponseError:
    return _invalid(request, f"the response is encoded with {encoding[:_SHOWN]!r}, which was not requested")


def parse_size(text: str) -> int | None:
    """Return a number of bytes that is written in decimal digits; None if it is malformed, or above ``MAX_SIZE``."""
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        return None
    size = int(text)
    return size if size <= MAX_SIZE else None


def _content_length(request: RangeRequest, value: str | None) -> int | None:
    if value is None:
        return None
    length = parse_size(value)
    if length is None:
        raise _invalid(request, f"the response has Content-Length {value[:_SHOWN]!r}, expected a number of bytes")
    return length


def _content_range(request: RangeRequest, value: str | None) -> tuple[int, int, int]:
    match = _CONTENT_RANGE.fullmatch(value.strip()) if value is not None else None
    if match is None:
        if request.start < 0:  # some servers answer so for an empty object, as below
            raise RangeIgnoredError(None)
        shown = value if value is None else value[:_SHOWN]
        raise _invalid(request, f"the response has a part of the object, but Content-Range is {shown!r}")
    start, stop = int(match[1]), int(match[2]) + 1
    size = UNKNOWN_SIZE if match[3] == "*" else int(match[3])
    if start >= stop or size not in (UNKNOWN_SIZE, max(size, stop)) or max(stop, size) > MAX_SIZE:
        if request.start < 0:
            raise RangeIgnoredError(None)
        raise _invalid(request, f"Content-Range {value!r} contradicts itself")
    return start, stop, size


def _check_span(request: RangeRequest, start: int, stop: int, size: int) -> None:
    if request.start < 0:
        wanted = max(0, size + request.start)
        if size == UNKNOWN_SIZE:
            good = stop - start == -request.start or (start == 0 and stop < -request.start)
        else:
            good = (start, stop) == (wanted, size)
        if not good:
            raise RangeIgnoredError(None if size == UNKNOWN_SIZE else size)
    elif (start, stop) != (request.start, request.stop):
        if start == request.start and stop == size < request.stop:
            raise _invalid(request, f"the object ends at byte {size}, before the range does", _SHORT)
        raise _invalid(
            request, f"the response has bytes {start}-{stop - 1}, expected {request.start}-{request.stop - 1}"
        )


def _check_whole(
    request: RangeRequest, headers: Mapping[str, str], length: int | None, small_body_bytes: int
) -> ExpectedBody:
    """Check a 200 response: it must be the whole requested range, or small enough to be cut."""
    if length == 0:
        if request.pin is not None and request.pin.size != 0:
            raise changed(request, "it is empty now")
        raise empty(request.url)
    if length is None:
        # A body that ends with its connection may be cut off. The object of a suffix range may be large, so its caller
        # asks for one byte next.
        is_chunked = headers.get("transfer-encoding", "").strip().lower() == "chunked"
        if request.start < 0 or small_body_bytes == 0 or not is_chunked:
            raise RangeIgnoredError(None)
        validator = _validator(request, headers, UNKNOWN_SIZE)
        return ExpectedBody(0, small_body_bytes, validator, _is_young(validator, headers), is_chunked_whole=True)
    validator = _validator(request, headers, length)
    suffix_is_all = request.start < 0 and length <= -request.start
    range_is_all = request.start == 0 and request.stop == length
    if suffix_is_all or range_is_all or (length <= small_body_bytes and request.stop <= length):
        return ExpectedBody(0, length, validator, _is_young(validator, headers))
    raise RangeIgnoredError(length)


def check_chunked_whole(request: RangeRequest, expected: ExpectedBody, length: int) -> ExpectedBody:
    """Check the length of a whole object that came in chunks; return the description of its body, with the object's
    size."""
    if request.pin is not None and request.pin.size not in (UNKNOWN_SIZE, length):
        raise changed(request, f"its size is {length}, it was {request.pin.size}" if length else "it is empty now")
    if length == 0:
        raise empty(request.url)
    if length < request.stop:
        raise RangeIgnoredError(length)
    return ExpectedBody(0, length, replace(expected.validator, size=length), expected.young)


def _is_young(validator: Validator, headers: Mapping[str, str]) -> bool:
    if validator.etag is not None or validator.last_modified is None:
        return False
    now_s = http_date_s(headers.get("date"))
    return now_s is None or may_change_unseen(http_date_s(validator.last_modified), now_s)


def is_s3(request: RangeRequest) -> bool:
    """Return whether the request is to S3, and not to a url of http."""
    return request.url.startswith(("s3://", "s3a://"))


def other_scheme(request: RangeRequest, *, tls: bool) -> str:
    """Return the hint for a server whose port may be for http, if it was asked with TLS, or else for https."""
    begins = Hint("write an endpoint_url", "write an --endpoint-url") if is_s3(request) else "write a url"
    if tls:
        return "The server may not support TLS: " + begins + " that begins with http://."
    return "The server may expect TLS on this port: " + begins + " that begins with https://."


def tls_expected(request: RangeRequest) -> InvalidResponseError:
    """Return the error for a response that says so, as :func:`expects_tls` finds."""
    message = "the port is for https, and was asked for http (status 400)"
    return InvalidResponseError(message, url=request.url, hint=other_scheme(request, tls=False))


def expects_tls(body: bytes | memoryview) -> bool:
    """Return whether ``body``, of a response with status 400, says that the port is for https."""
    return re.search(_EXPECTS_TLS, body) is not None


def parse_error(body: bytes) -> tuple[str, str]:
    """Return error code and message from S3's error document; "" for what is missing. The body is untrusted, so it is
    searched, not parsed as XML."""
    from xml.sax.saxutils import unescape  # it loads urllib.request, for 7 ms

    code, message = re.search(_CODE, body), re.search(_MESSAGE, body)
    text = unescape(message[1].decode("utf-8", "replace")) if message is not None else ""
    return (code[1].decode("ascii") if code is not None else "", text[:200])


def parse_region(body: bytes) -> str:
    """Return the region that S3's AuthorizationHeaderMalformed document names; "" if it names none."""
    region = re.search(_REGION, body)
    return region[1].decode("ascii") if region is not None else ""


def error_in_200(request: RangeRequest, body: bytes, denied_hint: str = READING_HINT) -> AsyncpqError | RetryableError:
    """Return the error for a response with status 200 that has no ETag.

    S3 sends an ETag with every object. Without one, ``body`` is an error document that S3 sent after the status, such
    as SlowDown, or the page of a server that is no object store.
    """
    code, message = parse_error(body)
    if not code:
        return InvalidResponseError(
            "the response has no ETag, so it is not an object of the store",
            url=request.url,
            hint="Check that the endpoint is an object store, and not a proxy or a web page.",
        )
    return error_for(request, 200, code, message, denied_hint=denied_hint)


def refused_suffix(
    request: RangeRequest,
    status: int,
    headers: Mapping[str, str],
    error: AsyncpqError | RetryableError,
    traits: ServerTraits,
) -> AsyncpqError | RetryableError:
    """Return ``error``, that of a refusal, or one to raise in its place. Raises RangeIgnoredError if the request's
    range of the last n bytes may be what the server refused.

    An object is called empty only if Content-Range says that its size is 0: some servers answer 416 if n is greater
    than the object's size, too. Others answer 500 (s3s-fs, Sanic, Twisted): so the size is asked after the second one,
    or after the first one of a server that has refused such a range before.
    """
    if status == 500 and request.start < 0:
        request.failures += 1
        if request.failures + traits.suffix_refusals >= _REFUSALS:
            refusal = RangeIgnoredError(None)
            refusal.failed = True
            raise refusal
    if request.start >= 0 or status not in _SUFFIX_REFUSALS:
        return error
    if status == 416 and headers.get("content-range", "").endswith("*/0"):
        return changed(request, "it is empty now") if request.pin is not None else empty(request.url)
    if type(error) is StoreError:
        raise RangeIgnoredError(None)
    return error


def error_for(
    request: RangeRequest,
    status: int,
    code: str,
    message: str = "",
    *,
    retry_after_s: float = 0.0,
    denied_hint: str = READING_HINT,
) -> AsyncpqError | RetryableError:
    """Return the error for a response that is not 200 or 206, or for a 200 with an error document.

    ``code`` and ``message`` are those of the error document, or empty.
    """
    url, where = request.url, request.byte_range
    reason = f"{code or 'no error code'} (status {status})" + (f": {message}" if message else "")
    pinned = request.pin is not None
    if code == "NoSuchBucket":
        return BucketNotFoundError(
            "the bucket does not exist", url=url, hint="Check the bucket's name and the endpoint."
        )
    if status == 404 or code in ("NoSuchKey", "NoSuchVersion"):
        return gone(request) if pinned else ObjectNotFoundError("the object does not exist", url=url)
    if status == 412 or code == "PreconditionFailed":
        failed_condition = StoreError(f"the store refused a condition of the request: {reason}", url=url)
        return changed(request, "the store has another version") if pinned else failed_condition
    if status == 416 or code == "InvalidRange":
        if request.start < 0:
            return StoreError(f"the store refused the range of the last bytes: {reason}", url=url)
        if pinned:
            return changed(request, "it is shorter now")
        return InvalidResponseError(
            "the requested range begins after the object's end",
            url=url,
            byte_range=where,
            hint="Check that the file is complete: its metadata name bytes that it does not have.",
        )
    if code in _CREDENTIALS or status == 407:
        refused_by = "proxy" if status == 407 else "store"  # also where the proxy has got none
        hint = _PROXY_HINT if status == 407 else _CLOCK_HINT if code == "RequestTimeTooSkewed" else _CREDENTIALS_HINT
        return CredentialsError(f"the {refused_by} refused the credentials: {reason}", url=url, hint=hint)
    if code in THROTTLES or status == 429 or (status == 503 and code in ("", "ServiceUnavailable")):
        throttled = ThrottledError(f"the store asks to slow down: {reason}", url=url, byte_range=where)
        return RetryableError(throttled, retry_after_s=retry_after_s)
    if code in TRANSIENT or status in RETRYABLE_STATUSES:
        failed = TransportError(f"the store failed: {reason}", url=url, byte_range=where)
        return RetryableError(failed, retry_after_s=retry_after_s)
    if status in (401, 403) or code in _DENIED:
        hint = _ARCHIVED_HINT if code == "InvalidObjectState" else denied_hint
        return AccessDeniedError(f"the store refused access: {reason}", url=url, hint=hint)
    if 300 <= status < 400:
        return InvalidResponseError(
            f"the store redirects: {reason}",
            url=url,
            hint="Name the bucket's own "
            + Hint(
                "endpoint or region in storage_options.", "region with --region, or its endpoint with --endpoint-url."
            ),
        )
    return StoreError(f"the store refused the request: {reason}", url=url, byte_range=where)


#: Why tails of a server take two rounds, for ReadMetrics.fallbacks.
SIZE_FIRST = "the size is asked first: the server does not send every range of the last bytes"
#: Why requests have no If-Match, for ReadMetrics.fallbacks.
COMPARED = "ETags of responses are compared: the server refuses If-Match with the ETag that it sends"
#: Why requests have Cache-Control, for ReadMetrics.fallbacks.
PAST_CACHES = (
    "a cache on the way sends whole objects instead of ranges: its server is asked, by Cache-Control: no-cache"
)


_REFUSALS = 2  # that show a trait: one may be chance, such as a 400 of a proxy


@dataclass(slots=True)
class ServerTraits:
    """The facts that a session has learnt about one server.

    ``suffix_refusals`` and ``if_match_refusals`` count GETs that were answered only without a range of the last bytes,
    or without If-Match.
    """

    suffix_refusals: int = 0
    if_match_refusals: int = 0
    #: It answered a GET with If-Match; False: it refuses those, though the ETag is the same.
    if_match: bool | None = None
    #: A cache before it sends whole objects instead of ranges: requests have ``Cache-Control: no-cache``. False: that
    #: does not help.
    past_caches: bool | None = None

    @property
    def compared(self) -> bool:
        """Whether the server has refused If-Match so, and never answered a GET with it."""
        return self.if_match_refusals > 0 and not self.if_match

    @property
    def suffix_ranges(self) -> bool:
        """Whether the server may send the last n bytes of an object, as far as is known."""
        return self.suffix_refusals < _REFUSALS

    def learn_suffix_refusal(self, refusal: RangeIgnoredError | None, length: int, size: int) -> None:
        """Count a range of the last ``length`` bytes of ``size`` that was refused, or (None) not sent for that reason.

        A failure counts only where there are fewer bytes: else it has another reason than the range.
        """
        if refusal is None or not refusal.failed or size < length:
            self.suffix_refusals += 1

    def learn_if_match(self, *, sent: bool) -> None:
        """Count a GET of a pinned version that was answered: with If-Match, or, if it was not ``sent``, after a refusal
        of the same GET with it."""
        if self.if_match is not None:
            return
        if sent:
            self.if_match = True
        else:
            self.if_match_refusals += 1
            if self.if_match_refusals == _REFUSALS:
                self.if_match = False

    def cache_is_passed(self, headers: Mapping[str, str], *, asked: bool) -> bool:
        """Return whether a request whose response is the whole object instead of a range is sent again, past a cache
        that has answered it. ``asked``: that has been asked for already, and is not any more."""
        if asked:
            self.past_caches = False
        elif self.past_caches is None and "age" in headers:
            self.past_caches = True
        return not asked and self.past_caches is True

    def may_refuse_if_match(self, request: RangeRequest, status: int, error: AsyncpqError | RetryableError) -> bool:
        """Return whether ``error``, that of a response to a request with If-Match, may mean that the server cannot
        compare ETags.

        The request is then sent without If-Match, and the ETag of its response tells. A server that has answered such
        requests is believed.
        """
        return (
            self.if_match is None
            and status in (400, 412, 501)
            and strong_etag(request.pin) is not None
            and type(error) in (StoreError, ObjectChangedError)
        )


class TraitsByHost(LRUCache[str, ServerTraits]):
    """The :class:`ServerTraits` of each of the servers that a session used last. The traits of a server that was
    forgotten are learnt again."""

    def __init__(self) -> None:
        super().__init__(_MAX_HOSTS)

    def __missing__(self, host: str) -> ServerTraits:
        traits = self[host] = ServerTraits()
        return traits


class SizedObject(Protocol):
    """An object whose size can be asked for."""

    url: str

    async def fetch_size(self, validator: Validator | None, context: RequestContext) -> Validator:
        """Return ``validator`` (None: the present version's) with the object's size, from one HEAD."""


async def ask_size(
    stored: SizedObject, expected: ExpectedBody, request: RangeRequest, context: RequestContext
) -> Validator:
    """Return the version of a response that does not tell the object's size. Raises RangeIgnoredError if its bytes are
    not the last ones that ``request`` asks for."""
    validator = request.pin or await stored.fetch_size(expected.validator, context)
    if request.start < 0 and expected.start + expected.length != validator.size:
        raise RangeIgnoredError(validator.size)
    return validator


async def find_size(
    stored: SizedObject,
    pin: Validator | None,
    context: RequestContext,
    fetch_first_byte: Callable[[], Awaitable[RangeResult]],
) -> Validator:
    """Return the validator of an object whose server does not send its last bytes: ``pin`` if it has a size, else that
    of a GET of one byte.

    An empty object has no byte, and servers say so in several ways, such as 400; others take ``bytes=0-0`` for no
    range. Then a HEAD tells. Raises NotParquetError, or ObjectChangedError for a pinned version, if the size is 0, and
    the errors of a GET.
    """
    if pin is not None and pin.size > 0:
        return pin
    try:
        return (await fetch_first_byte()).validator
    except StoreError as error:
        if type(error) not in (InvalidResponseError, StoreError):
            raise
        try:
            version = await stored.fetch_size(pin, context)
        except StoreError:
            raise error from None
        if version.size > 0:
            return version
    raise empty(stored.url) if pin is None else changed(RangeRequest(-1, 0, stored.url, pin), "it is empty now")
