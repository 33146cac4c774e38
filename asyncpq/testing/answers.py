"""The answers of :class:`~asyncpq.testing.object_server.ObjectServer` to reads, ListObjectsV2 and multipart uploads.

Requests and objects come in; status, headers and body go out. No I/O.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.utils import formatdate
from urllib.parse import parse_qsl, quote_plus
from xml.sax.saxutils import escape

from asyncpq.testing.faults import Fault


@dataclass(slots=True)
class ServedObject:
    """One object of the server: its bytes, and the ETag and time that identify its version."""

    data: bytes
    etag: str  # verbatim, quotes included
    modified: float  # seconds since 1970


@dataclass(slots=True)
class LoggedRequest:
    """One request and its outcome."""

    method: str
    path: str  # decoded, with its leading slash
    target: str  # as sent, query included
    headers: dict[str, str]  # with lower-case names
    body: bytes = field(default=b"", repr=False)
    status: int = 0  # of the answer; 0 until answered
    sent: int = 0  # body bytes of the answer

    @property
    def range(self) -> str | None:
        """The value of the Range header; None if the request has no such header."""
        return self.headers.get("range")


@dataclass(slots=True)
class Answer:
    """An HTTP answer. The connection adds the headers Content-Length and Date."""

    status: int
    headers: dict[str, str]
    body: bytes = b""


def etag_of(data: bytes) -> str:
    """Return the ETag of an object with these bytes: the MD5 in hexadecimal digits, in quotes."""
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def error_answer(status: int, code: str) -> Answer:
    """Return an answer with S3's XML error document for ``code``, such as NoSuchKey; without a body if it is empty."""
    if not code:
        return Answer(status, {})
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{escape(code)}</Code><Message>{code}</Message></Error>'
    )
    return Answer(status, {"Content-Type": "application/xml"}, body.encode())


def refusal(request: LoggedRequest, fault: Fault) -> Answer | None:
    """Return the answer to a request that a fault refuses whatever the object is, such as an error status; None if
    the fault does not refuse requests."""
    if fault.status is not None:
        answer = error_answer(fault.status, fault.code)
        if fault.retry_after_s is not None:
            answer.headers["Retry-After"] = f"{fault.retry_after_s:g}"
        return answer
    if fault.slow_down_200:
        return error_answer(200, "SlowDown")
    if fault.html_200:
        return Answer(200, {"Content-Type": "text/html"}, b"<html><body>Please sign in</body></html>")
    if fault.redirect is not None:
        return Answer(fault.redirect_status, {"Location": fault.redirect})
    if fault.region is not None:
        scope = re.search(r"Credential=[^/]*/\d+/([^/]*)/", request.headers.get("authorization", ""))
        if scope is not None and scope[1] != fault.region:
            answer = error_answer(400, "AuthorizationHeaderMalformed")
            answer.headers["x-amz-bucket-region"] = fault.region
            return answer
    if fault.skew_s:
        now = time.time() + fault.skew_s
        stamp = request.headers.get("x-amz-date", "")
        sent = time.strptime(stamp, "%Y%m%dT%H%M%SZ") if stamp else None
        if sent is not None and abs(now - (time.mktime(sent) - time.timezone)) > 900:
            answer = error_answer(403, "RequestTimeTooSkewed")
            answer.headers["Date"] = formatdate(now, usegmt=True)
            return answer
    return None


def answer_get(request: LoggedRequest, served: ServedObject, fault: Fault) -> Answer:
    """Return the answer to a GET or HEAD of an object. The connection drops the body of a HEAD."""
    etag = {"none": "", "weak": f"W/{served.etag}", "other": '"another"'}.get(fault.etag or "", served.etag)
    headers = {"Last-Modified": formatdate(served.modified, usegmt=True), "Accept-Ranges": "bytes"}
    if etag:
        headers["ETag"] = etag
    if_match = request.headers.get("if-match")
    if if_match not in (None, "*", served.etag) and not fault.ignore_if_match:
        return error_answer(412, "PreconditionFailed")
    if request.headers.get("if-none-match") == served.etag:
        return Answer(304, headers)
    size = len(served.data)
    spec = None if fault.ignore_range else re.fullmatch(r"bytes=(\d*)-(\d*)", request.range or "")
    if spec is None or spec[0] == "bytes=-" or (size == 0 and not spec[1]):
        return Answer(200, headers, served.data)
    if not spec[1]:
        start, stop = max(0, size - int(spec[2])), size
    else:
        start, stop = int(spec[1]), min(size, int(spec[2]) + 1 if spec[2] else size)
    if start >= stop or (fault.no_suffix and not spec[1]):
        answer = error_answer(416, "InvalidRange")
        answer.headers["Content-Range"] = f"bytes */{size}"
        return answer
    total = "*" if fault.unknown_size else size
    headers["Content-Range"] = f"bytes {start + fault.shift_range}-{stop - 1 + fault.shift_range}/{total}"
    return Answer(200 if fault.range_200 else 206, headers, served.data[start:stop])


def listing_query(request: LoggedRequest) -> dict[str, str] | None:
    """Return the query parameters of a LIST, keyed by name; None for other requests."""
    query = dict(parse_qsl(request.target.partition("?")[2], keep_blank_values=True))
    bucket = request.path[1:].rstrip("/")
    return query if request.method == "GET" and query.get("list-type") == "2" and "/" not in bucket else None


def answer_list(
    query: Mapping[str, str], bucket: str, objects: Mapping[str, ServedObject], page_keys: int, fault: Fault
) -> Answer:
    """Return one page of a listing: at most ``page_keys`` keys and folders. ``objects`` are keyed by "bucket/key"."""
    prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
    after, token = query.get("start-after", ""), query.get("continuation-token")
    if fault.ignore_start_after:
        after = ""
    if token is not None:
        try:
            after = base64.urlsafe_b64decode(token).decode()
        except ValueError:
            return error_answer(400, "InvalidArgument")
    if fault.endless_listing:
        after, token = "", None
    most = min(int(query.get("max-keys", page_keys)), page_keys)
    root = f"{bucket}/"
    keys = sorted(path[len(root) :] for path in objects if path.startswith(root + prefix))
    entries: list[str] = []
    position = bisect_right(keys, after)
    while position < len(keys) and len(entries) <= most:
        key = keys[position]
        cut = key.find(delimiter, len(prefix)) if delimiter else -1
        if cut < 0:
            entries.append(key)
            position += 1
            continue
        folder = key[: cut + len(delimiter)]
        if token is None or folder != after:  # the page before ended with this folder
            entries.append(folder)
        while position < len(keys) and keys[position].startswith(folder):
            position += 1
    more = len(entries) > most or fault.endless_listing
    return _page(query, bucket, entries[:most], more, objects, delimiter)


def _page(
    query: Mapping[str, str],
    bucket: str,
    entries: list[str],
    more: bool,
    objects: Mapping[str, ServedObject],
    delimiter: str,
) -> Answer:
    def coded(text: str) -> str:
        if query.get("encoding-type") == "url":
            return quote_plus(text, safe="/")
        # like S3, whose control characters are not valid XML 1.0
        return "".join(mark if mark >= " " else f"&#x{ord(mark):x};" for mark in escape(text))

    prefix = query.get("prefix", "")
    parts = [
        '<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">',
        f"<Name>{escape(bucket)}</Name><Prefix>{coded(prefix)}</Prefix><KeyCount>{len(entries)}</KeyCount>",
        f"<IsTruncated>{str(more).lower()}</IsTruncated>",
    ]
    if query.get("encoding-type") == "url":
        parts.append("<EncodingType>url</EncodingType>")
    if more:
        token = base64.urlsafe_b64encode((entries[-1] if entries else "").encode()).decode() or "none"
        parts.append(f"<NextContinuationToken>{token}</NextContinuationToken>")
    for entry in entries:
        if delimiter and delimiter in entry[len(prefix) :]:
            parts.append(f"<CommonPrefixes><Prefix>{coded(entry)}</Prefix></CommonPrefixes>")
            continue
        served = objects[f"{bucket}/{entry}"]
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(served.modified))
        parts.append(
            f"<Contents><Key>{coded(entry)}</Key><LastModified>{stamp}</LastModified>"
            f"<ETag>{escape(served.etag, {chr(34): '&quot;'})}</ETag><Size>{len(served.data)}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
        )
    parts.append("</ListBucketResult>")
    return Answer(200, {"Content-Type": "application/xml"}, "".join(parts).encode())


_PART = re.compile(rb"<PartNumber>(\d+)</PartNumber>")
_LEAST_PART_BYTES = 5 * 1024 * 1024


@dataclass(slots=True)
class Upload:
    """A multipart upload of the object ``path`` ("bucket/key"), and its parts so far."""

    path: str
    parts: dict[int, bytes] = field(default_factory=dict)


class Uploads:
    """The multipart uploads in progress, and the answers to their requests."""

    def __init__(self, put: Callable[[str, bytes, str], ServedObject]) -> None:
        """Start without uploads. ``put`` is called with the path, content and ETag of a completed upload, and stores
        the object."""
        self.running: dict[str, Upload] = {}
        self._put = put

    def answer(self, request: LoggedRequest, path: str, exists: bool) -> Answer | None:
        """Return the answer to a request that belongs to a multipart upload; None for other requests.

        ``exists``: the object exists and the request must not replace it.
        """
        query = dict(parse_qsl(request.target.partition("?")[2], keep_blank_values=True))
        if request.method == "POST" and "uploads" in query:
            name = secrets.token_urlsafe(24)
            self.running[name] = Upload(path)
            return _document("InitiateMultipartUploadResult", f"<UploadId>{escape(name)}</UploadId>")
        if "uploadId" not in query:
            return None
        upload = self.running.get(query["uploadId"])
        if upload is None or upload.path != path:
            return error_answer(404, "NoSuchUpload")
        if request.method == "PUT":
            upload.parts[int(query["partNumber"])] = request.body
            return Answer(200, {"ETag": etag_of(request.body)})
        if request.method == "DELETE":
            del self.running[query["uploadId"]]
            return Answer(204, {})
        if exists:
            return error_answer(412, "PreconditionFailed")
        return self._complete(query["uploadId"], upload, request)

    def _complete(self, name: str, upload: Upload, request: LoggedRequest) -> Answer:
        numbers = [int(number) for number in _PART.findall(request.body)]
        if not numbers or any(number not in upload.parts for number in numbers) or numbers != sorted(set(numbers)):
            return error_answer(400, "InvalidPart")
        parts = [upload.parts[number] for number in numbers]
        if any(len(part) < _LEAST_PART_BYTES for part in parts[:-1]):
            return error_answer(400, "EntityTooSmall")
        sums = b"".join(hashlib.md5(part, usedforsecurity=False).digest() for part in parts)
        etag = f'"{hashlib.md5(sums, usedforsecurity=False).hexdigest()}-{len(parts)}"'
        del self.running[name]
        self._put(upload.path, b"".join(parts), etag)
        return _document("CompleteMultipartUploadResult", f"<ETag>{escape(etag)}</ETag>")


def _document(name: str, content: str) -> Answer:
    text = f'<?xml version="1.0" encoding="UTF-8"?>\n<{name}>{content}</{name}>'
    return Answer(200, {"Content-Type": "application/xml"}, text.encode())
