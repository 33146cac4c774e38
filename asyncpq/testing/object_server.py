"""An S3 server in the test's own process, with faults on request (``faults``).

It keeps objects in memory and speaks enough HTTP/1.1 and path-style S3 for any client: GET, HEAD, PUT, DELETE,
multipart uploads, Range with suffixes, If-Match, If-None-Match, ETag, Last-Modified, ListObjectsV2 and S3's XML errors.
The XML API of Google Cloud Storage is the same, but for the header of a PUT that only creates, which is understood,
too. It checks no signatures and listens on the loopback interface only. Not for production.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import hashlib
import re
import secrets
import socket
import struct
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import cast
from urllib.parse import parse_qsl, quote_plus, unquote
from xml.sax.saxutils import escape

from asyncpq.objects.loop_threads import Portal
from asyncpq.testing.faults import Fault


@dataclass(slots=True)
class ServedObject:
    """One object of an :class:`ObjectServer`: its bytes, and the ETag and time that identify its version.

    Attributes:
        data: the object's bytes.
        etag: the ETag, quotes included.
        modified: time of the last change, in seconds since 1970.
    """

    data: bytes
    etag: str
    modified: float


@dataclass(slots=True)
class LoggedRequest:
    """One request to an :class:`ObjectServer`, and its outcome: an item of :attr:`ObjectServer.log`.

    Attributes:
        method: the HTTP method, such as "GET".
        path: decoded path, with its leading slash: "/bucket/key".
        target: path and query as sent.
        headers: headers of the request, with lower-case names.
        body: body of the request.
        status: HTTP status of the answer; 0 until it is answered.
        sent: number of body bytes of the answer.
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
        """The value of the Range header; None if the request has no such header."""
        return self.headers.get("range")


@dataclass(slots=True)
class Answer:
    """An HTTP answer, as ``before`` of :class:`ObjectServer` may return one, without Content-Length and Date.

    Attributes:
        status: HTTP status.
        headers: headers by name.
        body: the body's bytes.
    """

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


FaultHook = Callable[[LoggedRequest], Fault | None]
_NO_FAULT = Fault()


class ObjectServer:
    """An S3 server that serves objects from memory on 127.0.0.1.

    Run the server in a running loop (``async with ObjectServer() as server``) or in a thread of its own
    (``with ObjectServer.in_thread() as server``).

    Attributes:
        port: the server's port; 0 until it is started: the system chooses one.
        latency_s: delay of each answer, in seconds.
        page_keys: maximum number of keys and folders in one page of a listing.
        creates: whether a PUT with If-None-Match fails if the object exists; False: it replaces it, as on some servers.
        before: function that is called with each :class:`LoggedRequest` before it is answered, and may change its path;
            it returns the answer to send, or None for the server's own.
        objects: each :class:`ServedObject` by "bucket/key".
        buckets: names of the buckets that exist, empty ones too.
        log: all requests (:class:`LoggedRequest`), in order of arrival.
    """

    def __init__(self, *, port: int = 0, latency_s: float = 0.0) -> None:
        self.port: int = port
        self.latency_s = latency_s
        self.page_keys = 1000
        self.creates = True
        self.before: Callable[[LoggedRequest], Answer | None] = lambda request: None
        self.objects: dict[str, ServedObject] = {}
        self.buckets: set[str] = set()
        self._uploads = Uploads(lambda path, data, etag: self.put(path, data, etag=etag))
        self._faults: Sequence[Fault] | FaultHook = []
        self._seen: dict[int, int] = {}  # matched requests, by the fault's position
        self.log: list[LoggedRequest] = []
        self._server: asyncio.Server | None = None
        self._connections = _Connections()

    # -- objects and faults -----------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """The server's url ``http://127.0.0.1:port``, for the option ``endpoint_url``."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage_options(self) -> dict[str, object]:
        """The options with which s3fs, and asyncpq, connect to this server."""
        return {
            "key": "test",
            "secret": "test",
            "endpoint_url": self.endpoint,
            "client_kwargs": {"region_name": "us-east-1"},
        }

    def put(self, path: str, data: bytes, *, etag: str | None = None, modified: float | None = None) -> ServedObject:
        """Store an object, and return it.

        Args:
            path: "bucket/key".
            data: the object's bytes.
            etag: the ETag, quotes included; None for the quoted MD5.
            modified: time of the last change, in seconds since 1970; None for now.
        """
        tag = etag_of(data) if etag is None else etag
        served = ServedObject(bytes(data), tag, time.time() if modified is None else modified)
        self.objects[path] = served
        self.buckets.add(path.partition("/")[0])
        return served

    def delete(self, path: str) -> None:
        """Delete the object "bucket/key". A missing object is no error."""
        self.objects.pop(path, None)

    @property
    def faults(self) -> Sequence[Fault] | FaultHook:
        """The faults (:class:`Fault`), at first none; or a function that gets a :class:`LoggedRequest` and returns its
        fault, or None for a good answer. Only assigning resets the counts of matches."""
        return self._faults

    @faults.setter
    def faults(self, faults: Sequence[Fault] | FaultHook) -> None:
        self._faults = faults if callable(faults) else tuple(faults)
        self._seen.clear()

    @property
    def bytes_sent(self) -> int:
        """The number of body bytes of all answers."""
        return sum(request.sent for request in self.log)

    # -- lifecycle --------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start to listen, and set ``port``."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: _Connection(self._connections, self._accept, self._answer, self._after), "127.0.0.1", self.port
        )
        self._connections.closed = False
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and drop all connections. A second call does nothing."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        await self._connections.close()
        await server.wait_closed()

    async def __aenter__(self) -> ObjectServer:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    @classmethod
    @contextlib.contextmanager
    def in_thread(cls, *, port: int = 0, latency_s: float = 0.0) -> Iterator[ObjectServer]:
        """Run a server with its own event loop and thread, for clients that block.

        Args:
            port: port to listen on; 0: the system chooses one.
            latency_s: delay of each answer, in seconds.

        Returns:
            A context manager of the started server, which it closes.
        """
        server = cls(port=port, latency_s=latency_s)
        portal = Portal("asyncpq-object-server", server.close)
        try:
            portal.call(server.start())
            yield server
        finally:
            portal.close()

    # -- answers ----------------------------------------------------------------------------------

    def _accept(self, request: LoggedRequest) -> tuple[Fault, float]:
        """Log a request. Return the fault that affects it, and the delay of the answer in seconds."""
        self.log.append(request)
        fault = self._fault_for(request)
        return fault, self.latency_s + fault.latency_s

    def _fault_for(self, request: LoggedRequest) -> Fault:
        if callable(self._faults):
            return self._faults(request) or _NO_FAULT
        ranged = "range" in request.headers
        first: Fault | None = None
        for position, fault in enumerate(self._faults):
            if fault.matches(request.method, request.path, ranged):
                seen = self._seen[position] = self._seen.get(position, -1) + 1
                if first is None and fault.applies(seen):
                    first = fault
        return first or _NO_FAULT

    def _answer(self, request: LoggedRequest, fault: Fault) -> Answer:
        path = request.path[1:]
        if fault.delete:
            self.delete(path)
        if fault.replace_with is not None:
            self._replace(path, fault.replace_with, fault)
        answer = refusal(request, fault) or self.before(request)
        if answer is not None:
            return answer
        path = request.path[1:]
        exists = self._refuses_put(request, path, fault)
        answer = self._uploads.answer(request, path, exists)
        if answer is not None:
            return answer
        if request.method == "PUT":
            if exists:
                return error_answer(412, "PreconditionFailed")
            return Answer(200, {"ETag": self.put(path, request.body).etag})
        if request.method == "DELETE":
            self.delete(path)
            return Answer(204, {})
        if request.method not in ("GET", "HEAD"):
            return error_answer(405, "MethodNotAllowed")
        bucket = path.partition("/")[0]
        known = bucket in self.buckets
        query = listing_query(request)
        if query is not None and known:
            return answer_list(query, bucket, self.objects, self.page_keys, fault)
        served = self.objects.get(path)
        if served is None:
            return error_answer(404, "NoSuchKey" if known else "NoSuchBucket")
        return answer_get(request, served, fault)

    def _after(self, request: LoggedRequest, fault: Fault) -> None:
        """Replace or delete the object after the answer, if the fault demands it."""
        if fault.replace_after is not None:
            self._replace(request.path[1:], fault.replace_after, fault)
        if fault.delete_after:
            self.delete(request.path[1:])

    def _replace(self, path: str, data: bytes, fault: Fault) -> None:
        old = self.objects.get(path)
        self.put(path, data, modified=old.modified if fault.keep_modified and old is not None else None)

    def _refuses_put(self, request: LoggedRequest, path: str, fault: Fault) -> bool:
        """Return whether a PUT must fail because its If-None-Match, If-Match or x-goog-if-generation-match header
        does not hold."""
        served = self.objects.get(path)
        headers = request.headers
        only_new = headers.get("if-none-match") == "*" or headers.get("x-goog-if-generation-match") == "0"
        if only_new and self.creates and not fault.ignore_if_none_match:
            return served is not None
        etag = headers.get("if-match")
        return etag is not None and (served is None or etag not in ("*", served.etag))


class _Connections:
    """The open connections of a server, and the tasks that answer on them."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()
        self.transports: set[asyncio.Transport] = set()
        self.closed = True

    async def close(self) -> None:
        """Drop all connections."""
        self.closed = True
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for transport in list(self.transports):
            transport.abort()
        await asyncio.sleep(0)  # the transports close their sockets in the loop's next step


def _joined_chunks(data: bytes | bytearray, start: int) -> tuple[bytes, int] | None:
    """Return the bytes of the chunks of a body that begins at ``start``, and where the body ends; None if ``data`` has
    only a part of it. Extensions of chunks, such as signatures, and trailers, such as checksums, are left out."""
    parts: list[bytes] = []
    while (end := data.find(b"\r\n", start)) >= 0:
        size = int(data[start:end].partition(b";")[0], 16)
        start = end + 2
        if size == 0:
            return _after_trailers(data, start, b"".join(parts))
        parts.append(bytes(data[start : start + size]))
        start += size + 2
    return None


def _after_trailers(data: bytes | bytearray, start: int, body: bytes) -> tuple[bytes, int] | None:
    while (end := data.find(b"\r\n", start)) >= 0:
        if end == start:
            return body, end + 2
        start = end + 2
    return None


class _Connection(asyncio.Protocol):
    """One keep-alive connection, which answers its requests one after another."""

    def __init__(
        self,
        connections: _Connections,  # those of the server, this one included while it is open
        accept: Callable[[LoggedRequest], tuple[Fault, float]],  # the fault, and the delay of the answer
        answer: Callable[[LoggedRequest, Fault], Answer],
        after: Callable[[LoggedRequest, Fault], None],  # once a request with a fault is answered
    ) -> None:
        self._connections = connections
        self._accept = accept
        self._answer = answer
        self._after = after
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._busy = False
        self._sent_continue = False  # for the current request, whose body waits for it
        self._serving: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is no subclass
        self._connections.transports.add(self._transport)
        self._transport.set_write_buffer_limits(high=1 << 30)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._connections.transports.discard(self._transport)
        self._transport = None
        if self._serving is not None:
            self._serving.cancel()  # the client is gone

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def _next(self) -> None:
        if self._busy or self._transport is None:
            return
        if self._connections.closed:
            self._transport.close()
            return
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        line, *fields = self._buffer[:end].decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (item.partition(":") for item in fields)}
        if headers.get("transfer-encoding", "").lower() == "chunked":
            found = _joined_chunks(self._buffer, end + 4)
        else:
            stop = end + 4 + int(headers.get("content-length", "0"))
            found = (bytes(self._buffer[end + 4 : stop]), stop) if len(self._buffer) >= stop else None
        if found is None:
            if headers.get("expect", "").lower() == "100-continue" and not self._sent_continue:
                self._sent_continue = True
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        self._sent_continue = False
        method, target, _ = line.split(" ", 2)
        body, stop = found
        del self._buffer[:stop]
        if "aws-chunked" in headers.get("content-encoding", ""):  # AWS's own chunks, inside those of HTTP or without
            own = _joined_chunks(body, 0)
            if own is None:
                raise ValueError(f"the aws-chunked body of {line} has no end")
            body, _ = own
        request = LoggedRequest(method, unquote(target.partition("?")[0]), target, headers, body)
        self._busy = True
        fault, latency = self._accept(request)
        if fault is _NO_FAULT and latency == 0.0:
            self._send(request, self._answer(request, fault), fault)
            self._done()
            return
        task = self._serving = asyncio.get_running_loop().create_task(self._serve_slowly(request, fault, latency))
        self._connections.tasks.add(task)
        task.add_done_callback(self._connections.tasks.discard)

    def _done(self) -> None:
        self._busy = False
        self._next()

    async def _serve_slowly(self, request: LoggedRequest, fault: Fault, latency_s: float) -> None:
        try:
            if latency_s:
                await asyncio.sleep(latency_s)
            if fault.stall_headers:
                await asyncio.Event().wait()
            if fault.hang_up:
                self._hang_up(reset=fault.reset)
                return
            answer = self._answer(request, fault)
            if fault.lose_answer:
                self._hang_up(reset=False)
                return
            body = self._send(request, answer, fault)
            await self._send_badly(request, body, fault)
            self._after(request, fault)
        except asyncio.CancelledError:
            if self._transport is not None:
                self._transport.abort()
            raise
        self._done()

    def _send(self, request: LoggedRequest, answer: Answer, fault: Fault) -> bytes:
        """Send the head and the body of an answer. If the fault changes how the body is sent, send only the head and
        return the body."""
        body, headers = answer.body, answer.headers
        if fault.surplus:
            body = body[: fault.surplus] if fault.surplus < 0 else body + b"?" * fault.surplus
        if fault.gzip:
            body = gzip.compress(body)
            headers["Content-Encoding"] = "gzip"
        if fault.chunked:
            headers["Transfer-Encoding"] = "chunked"
        elif answer.status != 304:
            headers["Content-Length"] = str(len(body) + fault.length_delta)
        headers.setdefault("Date", formatdate(time.time(), usegmt=True))
        for name, value in (fault.headers or {}).items():
            headers.pop(name, None)
            if value is not None:
                headers[name] = value
        lines = [f"HTTP/1.1 {answer.status} Answer"]
        if fault.flood_header_bytes:
            lines += [f"x-flood-{number}: {'x' * 1000}" for number in range(-(-fault.flood_header_bytes // 1000))]
        lines += [*(f"{name}: {value}" for name, value in headers.items()), "\r\n"]
        head = "\r\n".join(lines).encode("latin-1")
        request.status = answer.status
        if request.method == "HEAD" or answer.status in (204, 304):
            body = b""
        special = fault.truncate is not None or fault.stall_body or fault.drip_s is not None or fault.chunked
        request.sent = 0 if special else len(body)  # before the client, maybe in another thread, can have the answer
        if self._transport is not None:
            self._transport.write(head if special else head + body)
        return body if special else b""

    async def _send_badly(self, request: LoggedRequest, body: bytes, fault: Fault) -> None:
        transport = self._transport
        if transport is None:
            return
        if fault.chunked:
            half = len(body) // 2
            request.sent = len(body)
            for part in (body[:half], body[half:]):
                if part:
                    transport.write(b"%x\r\n%b\r\n" % (len(part), part))
            if fault.truncate is None:
                transport.write(b"0\r\n\r\n")
            else:
                transport.close()
        elif fault.drip_s is not None:
            for index in range(len(body)):
                request.sent += 1
                transport.write(body[index : index + 1])
                await asyncio.sleep(fault.drip_s)
        elif fault.truncate is not None or fault.stall_body:
            part = body[: fault.truncate or 0]
            request.sent = len(part)
            transport.write(part)
            if fault.stall_body:
                await asyncio.Event().wait()
            await asyncio.sleep(0.01)  # the client reads the part first
            self._hang_up(reset=fault.reset)

    def _hang_up(self, *, reset: bool) -> None:
        if self._transport is None:
            return
        connection = self._transport.get_extra_info("socket")
        if reset and connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        else:
            self._transport.close()
