"""What :class:`~asyncpq.testing.server.ObjectServer` answers: requests and objects in, status, headers, body out."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from email.utils import formatdate
from xml.sax.saxutils import escape

from asyncpq.testing.faults import Fault


@dataclass(slots=True)
class ServedObject:
    """One object as it is served. ``etag`` is verbatim, quotes included; times are in seconds."""

    data: bytes
    etag: str
    modified: float


@dataclass(slots=True)
class LoggedRequest:
    """One request, in order of arrival; ``status`` and ``sent`` (body bytes) are 0 until answered.

    ``path`` is decoded, with its leading slash; ``target`` is as it was sent, query included;
    ``headers`` have lower-case names. ``range`` is the Range header or None.
    """

    method: str
    path: str
    target: str
    headers: dict[str, str]
    body: bytes = field(default=b"", repr=False)
    status: int = 0
    sent: int = 0

    @property
    def range(self) -> str | None:
        return self.headers.get("range")


@dataclass(slots=True)
class Answer:
    """What is to be sent; Content-Length and Date are added by the connection."""

    status: int
    headers: dict[str, str]
    body: bytes = b""


def error_answer(status: int, code: str) -> Answer:
    """S3's error document, or no body for an empty ``code``."""
    if not code:
        return Answer(status, {})
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{escape(code)}</Code><Message>{code}</Message></Error>'
    )
    return Answer(status, {"Content-Type": "application/xml"}, body.encode())


def refusal(request: LoggedRequest, fault: Fault) -> Answer | None:
    """The answer of a fault that does not depend on the object."""
    if fault.status is not None:
        answer = error_answer(fault.status, fault.code)
        if fault.retry_after_s is not None:
            answer.headers["Retry-After"] = f"{fault.retry_after_s:g}"
        return answer
    if fault.slow_down_200:
        answer = error_answer(200, "SlowDown")
        return answer
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
    """The answer to a GET or HEAD of an object; the body is left out of a HEAD's later."""
    etag = {"none": "", "weak": f"W/{served.etag}", "other": '"another"'}.get(fault.etag or "", served.etag)
    headers = {"Last-Modified": formatdate(served.modified, usegmt=True), "Accept-Ranges": "bytes"}
    if etag:
        headers["ETag"] = etag
    wanted = request.headers.get("if-match")
    if wanted not in (None, "*", served.etag) and not fault.ignore_if_match:
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
