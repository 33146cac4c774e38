"""An object server inside the test's own process: S3's reads and writes over HTTP, with faults on request.

It keeps objects in memory and speaks enough of HTTP/1.1 and of S3 (path-style) to be read with any
client: GET, HEAD, PUT, DELETE, uploads in parts; Range with suffixes; If-Match, If-None-Match; ETag, Last-Modified;
ListObjectsV2; S3's XML errors. Signatures are not checked. Not for production, and only ever on the loopback.
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import hashlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from email.utils import formatdate
from types import TracebackType
from typing import cast
from urllib.parse import unquote

from asyncpq.testing.answers import (
    Answer,
    LoggedRequest,
    ServedObject,
    Uploads,
    answer_get,
    answer_list,
    error_answer,
    listing_query,
    refusal,
)
from asyncpq.testing.faults import Fault

FaultHook = Callable[["LoggedRequest"], Fault | None]


class ObjectServer:
    """Serves objects from memory on 127.0.0.1.

    Use it in a running loop (``async with ObjectServer() as server``) or in a thread of its own
    (``with ObjectServer.in_thread() as server``).

    Attributes:
        objects: by "bucket/key". Buckets need no making: one exists when an object is in it, or
            when it is in ``buckets``.
        faults: a list of :class:`Fault`, or a callable that gives the fault of each request. Setting
            it starts the counting anew.
        log: every request.
        latency_s: time before each answer.
        page_keys: keys and folders that one page of a listing has, at most.
        creates: heeds If-None-Match of a PUT; False: replaces what is there, as some servers do.
        port: the port, once started.
    """

    def __init__(self, *, port: int = 0, latency_s: float = 0.0) -> None:
        self.port = port
        self.latency_s = latency_s
        self.page_keys = 1000
        self.creates = True
        self.objects: dict[str, ServedObject] = {}
        self.buckets: set[str] = set()
        self._uploads = Uploads(lambda path, data, etag: self.put(path, data, etag=etag))
        self._faults: Sequence[Fault] | FaultHook = []
        self._seen: dict[int, int] = {}  # requests that matched a fault, by the fault's place
        self.log: list[LoggedRequest] = []
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._transports: set[asyncio.Transport] = set()

    # -- what tests use -------------------------------------------------------------------------

    @property
    def endpoint(self) -> str:
        """``http://127.0.0.1:port``, for ``endpoint_url``."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def storage_options(self) -> dict[str, object]:
        """s3fs's options for this server."""
        return {
            "key": "test",
            "secret": "test",
            "endpoint_url": self.endpoint,
            "client_kwargs": {"region_name": "us-east-1"},
        }

    def put(self, path: str, data: bytes, *, etag: str | None = None, modified: float | None = None) -> ServedObject:
        """Store an object as ``"bucket/key"``. ``etag`` defaults to the MD5, quoted; ``modified`` to now."""
        tag = etag if etag is not None else f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
        served = ServedObject(bytes(data), tag, time.time() if modified is None else modified)
        self.objects[path] = served
        self.buckets.add(path.partition("/")[0])
        return served

    def delete(self, path: str) -> None:
        """Delete an object; none there is no error."""
        self.objects.pop(path, None)

    @property
    def faults(self) -> Sequence[Fault] | FaultHook:
        return self._faults

    @faults.setter
    def faults(self, faults: Sequence[Fault] | FaultHook) -> None:
        self._faults = faults if callable(faults) else tuple(faults)
        self._seen.clear()

    @property
    def bytes_sent(self) -> int:
        """Body bytes of all answers so far."""
        return sum(request.sent for request in self.log)

    # -- its life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Listen; ``port`` is known afterwards."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", self.port)
        self.port = int(self._server.sockets[0].getsockname()[1])

    async def close(self) -> None:
        """Stop listening and drop all connections. Idempotent."""
        if self._server is None:
            return
        server, self._server = self._server, None
        server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for transport in list(self._transports):
            transport.abort()
        await asyncio.sleep(0)  # the transports close their sockets in the loop's next step
        await server.wait_closed()

    async def __aenter__(self) -> ObjectServer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    @classmethod
    @contextlib.contextmanager
    def in_thread(cls, *, port: int = 0, latency_s: float = 0.0) -> Iterator[ObjectServer]:
        """A server with a loop and a thread of its own, for clients that block."""
        server = cls(port=port, latency_s=latency_s)
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="asyncpq-object-server", daemon=True)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(server.start(), loop).result()
            try:
                yield server
            finally:
                asyncio.run_coroutine_threadsafe(server.close(), loop).result()
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

    # -- answering ------------------------------------------------------------------------------

    def _fault_for(self, request: LoggedRequest) -> Fault | None:
        if callable(self._faults):
            return self._faults(request)
        ranged = "range" in request.headers
        found: Fault | None = None
        for place, fault in enumerate(self._faults):
            if fault.matches(request.method, request.path, ranged):
                seen = self._seen[place] = self._seen.get(place, -1) + 1
                if found is None and fault.applies(seen):
                    found = fault
        return found

    def _answer(self, request: LoggedRequest, fault: Fault | None) -> Answer:
        path = request.path[1:]
        if fault is not None:
            if fault.delete:
                self.delete(path)
            if fault.replace_with is not None:
                self._replace(path, fault.replace_with, fault)
            refused = refusal(request, fault)
            if refused is not None:
                return refused
        exists = self._refuses_put(request, path, fault or Fault())
        answer = self._uploads.answer(request, path, exists)
        if answer is not None:
            return answer
        if request.method == "PUT":
            return error_answer(412, "PreconditionFailed") if exists else self._answer_put(request, path)
        if request.method == "DELETE":
            self.delete(path)
            return Answer(204, {})
        if request.method not in ("GET", "HEAD"):
            return error_answer(405, "MethodNotAllowed")
        bucket = path.partition("/")[0]
        known = bucket in self.buckets
        query = listing_query(request)
        if query is not None and known:
            return answer_list(query, bucket, self.objects, self.page_keys, fault or Fault())
        served = self.objects.get(path)
        if served is None:
            return error_answer(404, "NoSuchKey" if known else "NoSuchBucket")
        return answer_get(request, served, fault or Fault())

    def _after(self, request: LoggedRequest, fault: Fault) -> None:
        """What happens to the object once it was answered."""
        if fault.replace_after is not None:
            self._replace(request.path[1:], fault.replace_after, fault)
        if fault.delete_after:
            self.delete(request.path[1:])

    def _replace(self, path: str, data: bytes, fault: Fault) -> None:
        old = self.objects.get(path)
        self.put(path, data, modified=old.modified if fault.keep_modified and old is not None else None)

    def _refuses_put(self, request: LoggedRequest, path: str, fault: Fault) -> bool:
        """Whether a PUT's condition on what is there does not hold."""
        served = self.objects.get(path)
        if request.headers.get("if-none-match") == "*" and self.creates and not fault.ignore_if_none_match:
            return served is not None
        wanted = request.headers.get("if-match")
        return wanted is not None and (served is None or wanted not in ("*", served.etag))

    def _answer_put(self, request: LoggedRequest, path: str) -> Answer:
        return Answer(200, {"ETag": self.put(path, request.body).etag})


class _Connection(asyncio.Protocol):
    """One keep-alive connection; requests on it are answered one after another."""

    def __init__(self, server: ObjectServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._busy = False
        self._told_to_go_on = False  # the present request, whose body waits for that
        self._serving: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's is no subclass
        self._server._transports.add(self._transport)
        self._transport.set_write_buffer_limits(high=1 << 30)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None:
            self._server._transports.discard(self._transport)
        self._transport = None
        if self._serving is not None:
            self._serving.cancel()  # nobody waits for the rest of what it sends

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._next()

    def _next(self) -> None:
        if self._busy or self._transport is None:
            return
        if self._server._server is None:
            self._transport.close()
            return
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        line, *fields = self._buffer[:end].decode("latin-1").split("\r\n")
        headers = {name.strip().lower(): value.strip() for name, _, value in (item.partition(":") for item in fields)}
        stop = end + 4 + int(headers.get("content-length", "0"))
        if len(self._buffer) < stop:
            if headers.get("expect", "").lower() == "100-continue" and not self._told_to_go_on:
                self._told_to_go_on = True
                self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            return
        self._told_to_go_on = False
        method, target, _ = line.split(" ", 2)
        body = bytes(self._buffer[end + 4 : stop])
        del self._buffer[:stop]
        request = LoggedRequest(method, unquote(target.partition("?")[0]), target, headers, body)
        self._server.log.append(request)
        self._busy = True
        fault = self._server._fault_for(request)
        latency = self._server.latency_s + (fault.latency_s if fault is not None else 0.0)
        if fault is None and latency == 0.0:
            self._send(request, self._server._answer(request, None), None)
            self._done()
            return
        task = self._serving = asyncio.get_running_loop().create_task(self._serve_slowly(request, fault, latency))
        self._server._tasks.add(task)
        task.add_done_callback(self._server._tasks.discard)

    def _done(self) -> None:
        self._busy = False
        self._next()

    async def _serve_slowly(self, request: LoggedRequest, fault: Fault | None, latency_s: float) -> None:
        try:
            if latency_s:
                await asyncio.sleep(latency_s)
            if fault is not None and fault.stall_headers:
                await asyncio.Event().wait()
            if fault is not None and fault.hang_up:
                self._hang_up(reset=fault.reset)
                return
            answer = self._server._answer(request, fault)
            if fault is not None and fault.lose_answer:
                self._hang_up(reset=False)
                return
            body = self._send(request, answer, fault)
            if fault is not None:
                await self._send_badly(request, body, fault)
                self._server._after(request, fault)
        except asyncio.CancelledError:
            if self._transport is not None:
                self._transport.abort()
            raise
        self._done()

    def _send(self, request: LoggedRequest, answer: Answer, fault: Fault | None) -> bytes:
        """Send the head, and the body unless the fault wants it sent otherwise: then return it."""
        body, headers = answer.body, answer.headers
        if fault is not None and fault.surplus:
            body = body[: fault.surplus] if fault.surplus < 0 else body + b"?" * fault.surplus
        if fault is not None and fault.gzip:
            body = gzip.compress(body)
            headers["Content-Encoding"] = "gzip"
        if fault is not None and fault.chunked:
            headers["Transfer-Encoding"] = "chunked"
        elif answer.status != 304:
            headers["Content-Length"] = str(len(body) + (fault.length_delta if fault is not None else 0))
        headers.setdefault("Date", formatdate(time.time(), usegmt=True))
        for name, value in (fault.headers or {}).items() if fault is not None else ():
            headers.pop(name, None)
            if value is not None:
                headers[name] = value
        lines = [f"HTTP/1.1 {answer.status} Answer"]
        if fault is not None and fault.flood_header_bytes:
            lines += [f"x-flood-{at}: {'x' * 1000}" for at in range(-(-fault.flood_header_bytes // 1000))]
        lines += [*(f"{name}: {value}" for name, value in headers.items()), "\r\n"]
        head = "\r\n".join(lines).encode("latin-1")
        request.status = answer.status
        if request.method == "HEAD" or answer.status in (204, 304):
            body = b""
        special = fault is not None and (
            fault.truncate is not None or fault.stall_body or fault.drip_s is not None or fault.chunked
        )
        if self._transport is not None:
            self._transport.write(head if special else head + body)
        if special:
            return body
        request.sent = len(body)
        return b""

    async def _send_badly(self, request: LoggedRequest, body: bytes, fault: Fault) -> None:
        transport = self._transport
        if transport is None:
            return
        if fault.chunked:
            half = len(body) // 2
            for part in (body[:half], body[half:]):
                if part:
                    transport.write(b"%x\r\n%b\r\n" % (len(part), part))
            request.sent = len(body)
            if fault.truncate is None:
                transport.write(b"0\r\n\r\n")
            else:
                transport.close()
        elif fault.drip_s is not None:
            for index in range(len(body)):
                transport.write(body[index : index + 1])
                request.sent += 1
                await asyncio.sleep(fault.drip_s)
        elif fault.truncate is not None or fault.stall_body:
            part = body[: fault.truncate or 0]
            transport.write(part)
            request.sent = len(part)
            if fault.stall_body:
                await asyncio.Event().wait()
            await asyncio.sleep(0.01)  # let the client read it first
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
