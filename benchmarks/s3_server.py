"""An S3 server for benchmarks: its own process, a fixed time to first byte and bandwidth, exact counts.

    python -m benchmarks.s3_server --root FOLDER --first-byte-ms 20 --mb-per-s 100 --connection-mb-per-s 50

It serves FOLDER/<bucket>/<key> path-style and read-only (GET with ranges and If-Match, HEAD,
ListObjectsV2), checks no signatures, and prints the port it listens on. ``GET /__stats`` answers what
was counted since the last ``/__stats?reset=1``, as JSON; that request is neither delayed nor counted.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import mmap
import re
import signal
from collections import deque
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from urllib.parse import parse_qs, unquote
from xml.sax.saxutils import escape

_RANGE = re.compile(r"bytes=(\d*)-(\d*)$")
_WRITE_BYTES = 256 * 1024
_PACED_BYTES = 32 * 1024  # written at once where bandwidth is limited
_TICK_S = 0.001  # the event loop's timers are no finer
_REASONS = {200: "OK", 206: "Partial Content", 404: "Not Found", 405: "Method Not Allowed"} | {
    412: "Precondition Failed",
    416: "Requested Range Not Satisfiable",
}


@dataclass(slots=True)
class Span:
    """One request: what it was, and from when to when (``loop.time()`` seconds)."""

    method: str
    arrived: float
    ended: float = 0.0
    bytes: int = 0


@dataclass(slots=True)
class Counts:
    """What was asked for since the last reset."""

    spans: list[Span] = field(default_factory=list)

    def rounds(self) -> int:
        """Length of the longest chain of requests of which each began after the one before had ended."""
        length, chain_ended = 0, float("-inf")
        for span in sorted(self.spans, key=lambda span: span.ended):
            if span.arrived >= chain_ended:
                length += 1
                chain_ended = span.ended
        return length

    def as_dict(self) -> dict[str, int]:
        methods = [span.method for span in self.spans]
        return {
            "get": methods.count("GET"),
            "head": methods.count("HEAD"),
            "list": methods.count("LIST"),
            "bytes": sum(span.bytes for span in self.spans),
            "rounds": self.rounds(),
        }


@dataclass(slots=True)
class Answer:
    """A response ready to be written."""

    status: int
    headers: dict[str, str]
    body: memoryview = field(default_factory=lambda: memoryview(b""))


class Objects:
    """The files below a folder, mapped into memory once; they must not change while they are served."""

    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._open: dict[str, tuple[memoryview, dict[str, str]]] = {}

    def get(self, path: str) -> tuple[memoryview, dict[str, str]] | None:
        """Content and headers of ``bucket/key``, or None."""
        known = self._open.get(path)
        if known is None:
            file = (self._root / path).resolve()
            if not file.is_relative_to(self._root) or not file.is_file():
                return None
            stat = file.stat()
            with file.open("rb") as handle:
                content = memoryview(mmap.mmap(handle.fileno(), 0, access=mmap.ACCESS_READ) if stat.st_size else b"")
            tag = hashlib.sha256(f"{path}:{stat.st_size}:{stat.st_mtime_ns}".encode()).hexdigest()[:32]
            known = (
                content,
                {
                    "ETag": f'"{tag}"',
                    "Last-Modified": formatdate(stat.st_mtime, usegmt=True),
                    "Accept-Ranges": "bytes",
                    "Content-Type": "application/octet-stream",
                },
            )
            self._open[path] = known
        return known

    def list(self, bucket: str, prefix: str, *, after: str = "", most: int | None = None) -> bytes:
        """ListObjectsV2 of the keys after ``after``, in one page, unless the client wants pages of ``most``."""
        folder = self._root / bucket
        below = folder / prefix.rpartition("/")[0]
        keys = sorted(file.relative_to(folder).as_posix() for file in below.rglob("*") if file.is_file())
        wanted = [key for key in keys if key.startswith(prefix) and key > after]
        page = wanted[:most]
        more = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if len(page) < len(wanted) else ""
        entries = []
        for key in page:
            if (found := self.get(f"{bucket}/{key}")) is not None:
                modified = "2026-01-01T00:00:00.000Z"
                entries.append(
                    f"<Contents><Key>{escape(key)}</Key><LastModified>{modified}</LastModified>"
                    f"<ETag>{escape(found[1]['ETag'])}</ETag><Size>{len(found[0])}</Size></Contents>"
                )
        return (
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
            f"<Name>{escape(bucket)}</Name><Prefix>{escape(prefix)}</Prefix><KeyCount>{len(entries)}</KeyCount>"
            f"<MaxKeys>1000</MaxKeys><IsTruncated>{str(bool(more)).lower()}</IsTruncated>{more}"
            f"{''.join(entries)}</ListBucketResult>"
        ).encode()


def answer_object(objects: Objects, path: str, headers: dict[str, str]) -> Answer:
    """GET of an object, as S3 answers it."""
    found = objects.get(path)
    if found is None:
        return error(404, "NoSuchKey")
    content, common = found
    wanted = headers.get("if-match")
    if wanted is not None and wanted != common["ETag"]:
        return error(412, "PreconditionFailed")
    match = _RANGE.match(headers.get("range", ""))
    if match is None or match[0] == "bytes=-":
        return Answer(200, common, content)
    size = len(content)
    if match[1]:
        start = int(match[1])
        stop = min(size, int(match[2]) + 1) if match[2] else size
    else:
        start, stop = max(0, size - int(match[2])), size
    if start >= stop:
        return error(416, "InvalidRange")
    return Answer(206, common | {"Content-Range": f"bytes {start}-{stop - 1}/{size}"}, content[start:stop])


def error(status: int, code: str) -> Answer:
    """An S3 error document."""
    body = f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code></Error>'
    return Answer(status, {"Content-Type": "application/xml"}, memoryview(body.encode()))


@dataclass(slots=True)
class Pace:
    """The time that bytes take on a wire, one piece after another; None: none."""

    bytes_per_s: float | None
    free_at: float = 0.0  # ``loop.time()`` when what was written so far has passed

    def pass_by(self, now: float, size: int) -> float:
        """Let ``size`` bytes pass; return when they have."""
        if self.bytes_per_s is None:
            return now
        self.free_at = max(self.free_at, now) + size / self.bytes_per_s
        return self.free_at


@dataclass(frozen=True, slots=True)
class Network:
    """What the server's answers are held back by."""

    first_byte_s: float
    connection_bytes_per_s: float | None
    all: Pace  # of all connections together


class Connection(asyncio.Protocol):
    """One kept-alive connection; requests are answered in order."""

    def __init__(self, objects: Objects, counts: Counts, network: Network) -> None:
        self._objects = objects
        self._counts = counts
        self._network = network
        self._pace = Pace(network.connection_bytes_per_s)
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._waiting: deque[tuple[str, str, dict[str, str], Span]] = deque()
        self._span: Span | None = None
        self._body = memoryview(b"")
        self._paused = False
        self._held_back = False  # by the pace

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if not isinstance(transport, asyncio.Transport):
            raise TypeError(f"not a stream: {transport!r}")
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._waiting.clear()
        self._end_span()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        if not self._held_back:
            self._write_body()

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            lines = self._received[:end].decode("latin-1").split("\r\n")
            self._received = self._received[end + 4 :]
            method, target, _ = lines[0].split(" ", 2)
            pairs = (line.partition(":") for line in lines[1:])
            headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
            self._waiting.append((method, target, headers, Span(method, self._loop.time())))
        if self._span is None:
            self._begin_next()

    def _begin_next(self) -> None:
        if not self._waiting:
            return
        method, target, headers, span = self._waiting.popleft()
        path, _, query = target.partition("?")
        path = unquote(path).strip("/")
        self._span = span
        if path == "__stats":
            body = json.dumps(self._counts.as_dict()).encode()
            if "reset=1" in query:
                self._counts.spans.clear()
            self._span = Span("STATS", span.arrived)
            self._send(Answer(200, {"Content-Type": "application/json"}, memoryview(body)), with_body=True)
            return
        if method not in ("GET", "HEAD"):
            answer = error(405, "MethodNotAllowed")
        elif "/" in path:
            answer = answer_object(self._objects, path, headers)
        else:
            span.method = "LIST"
            asked = {name: values[0] for name, values in parse_qs(query).items()}
            # S3A asks for two keys where it wants to know whether there is a folder; 1,000 and more is no limit here.
            most = int(asked.get("max-keys", 1000))
            page = self._objects.list(
                path,
                asked.get("prefix", ""),
                after=asked.get("continuation-token", ""),
                most=most if most < 1000 else None,
            )
            answer = Answer(200, {"Content-Type": "application/xml"}, memoryview(page))
        self._counts.spans.append(span)
        self._loop.call_later(self._network.first_byte_s, self._send, answer, method != "HEAD")

    def _send(self, answer: Answer, with_body: bool) -> None:
        if self._span is None or self._transport.is_closing():
            return  # the client left while the answer was being held back
        head = [f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}", f"Content-Length: {len(answer.body)}"]
        head += [f"{name}: {value}" for name, value in answer.headers.items()]
        self._transport.write("\r\n".join([*head, "", ""]).encode("latin-1"))
        self._body = answer.body if with_body else memoryview(b"")
        self._write_body()

    def _write_body(self) -> None:
        if self._span is None:
            return
        paced = self._network.all.bytes_per_s or self._pace.bytes_per_s
        size = _PACED_BYTES if paced else _WRITE_BYTES
        while self._body and not self._paused:
            piece, self._body = self._body[:size], self._body[size:]
            self._span.bytes += len(piece)
            self._transport.write(piece)
            now = self._loop.time()
            due = max(self._pace.pass_by(now, len(piece)), self._network.all.pass_by(now, len(piece)))
            if due - now > _TICK_S:  # connections wait in turn, so each has its share
                self._held_back = True
                self._loop.call_at(due, self._go_on, self._span)
                return
        if not self._body:
            self._end_span()
            self._begin_next()

    def _go_on(self, span: Span) -> None:
        self._held_back = False
        if self._span is span and not self._transport.is_closing():
            self._write_body()

    def _end_span(self) -> None:
        if self._span is not None:
            self._span.ended = self._loop.time()
            self._span = None


async def serve(root: Path, port: int, network: Network) -> None:
    """Serve until the process is told to end."""
    objects, counts = Objects(root), Counts()
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    server = await loop.create_server(lambda: Connection(objects, counts, network), "127.0.0.1", port, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await ended.wait()
    server.close()


def main() -> None:
    """Parse the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--first-byte-ms", type=float, default=20.0)
    parser.add_argument("--mb-per-s", type=float, help="bandwidth of all connections together; without, none")
    parser.add_argument("--connection-mb-per-s", type=float, help="bandwidth of each connection")
    args = parser.parse_args()
    both = [rate and rate * 1e6 for rate in (args.mb_per_s, args.connection_mb_per_s)]
    asyncio.run(serve(args.root, args.port, Network(args.first_byte_ms / 1000, both[1], Pace(both[0]))))


if __name__ == "__main__":
    main()
