"""Write rows in the chosen format, and send them no faster than the client takes them.

An answer of at most ``BUFFERED_BYTES`` is complete before its first byte is sent. So an error can still become a
problem document, and the headers have the whole cost. A larger answer is sent while it is made. An error then closes
the connection, because nothing else tells the client that rows are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

import pyarrow as pa

from asyncpq.metrics import ReadMetrics
from asyncpq.reports.row_writers import ArrowWriter, JsonWriter, NdjsonWriter, ParquetWriter, RowWriter
from asyncpq.scan.stream import RecordBatchStream
from asyncpq.serve.configuration import Limits
from asyncpq.serve.problems import Problem

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BUFFERED_BYTES: Final = 256 << 10
_PIECE_BYTES: Final = 64 << 10
_ROW_GROUP_BYTES: Final = 8 << 20
_INLINE_CELLS: Final = 2000  # values that are written on the event loop, since a thread would cost more


class AbortedError(Exception):
    """Raised when an answer fails after its first bytes were sent: the connection is then closed."""


class ByteSink:
    """A file object in memory for pyarrow's writers. :meth:`take` removes and returns the bytes written so far."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._written = 0

    def write(self, data: bytes) -> int:
        """Append a copy of ``data``; return its length."""
        self._parts.append(bytes(data))
        self._written += len(data)
        return len(data)

    def take(self) -> bytes:
        """Return what was written since the last call."""
        parts, self._parts = self._parts, []
        return b"".join(parts)

    def tell(self) -> int:
        """Return the number of all bytes written."""
        return self._written

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def writable(self) -> bool:
        """Return True."""
        return True

    def readable(self) -> bool:
        """Return False."""
        return False

    def seekable(self) -> bool:
        """Return False."""
        return False


def writer_of(format_: str, sink: ByteSink, dataset: str, schema: pa.Schema) -> RowWriter:
    """Return a writer of rows in the format ``format_``. Raises Problem 400 if the format cannot hold the columns."""
    try:
        if format_ == "json":
            return JsonWriter(sink, {"document": "rows", "dataset": dataset}, schema)
        if format_ == "ndjson":
            return NdjsonWriter(sink)
        if format_ == "arrow":
            return ArrowWriter(sink, schema)
        return ParquetWriter(sink, schema, row_group_bytes=_ROW_GROUP_BYTES)
    except (pa.ArrowNotImplementedError, pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise Problem(
            400, f"{format_} cannot hold these columns", hint="Choose other columns with the parameter columns."
        ) from error


class Reply:
    """The response to one request. ``send`` is ASGI's function, which returns when the client has taken most of what
    was sent."""

    def __init__(self, send: Send, *, with_body: bool = True) -> None:
        self._send = send
        self._with_body = with_body
        self.status: int = 0  # 0 until it begins
        #: Called before the last bytes are sent: with them, a client may send its next request.
        self.before_last: Callable[[], None] | None = None
        self.bytes_sent: int = 0

    async def whole(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Send a complete response."""
        length = {"content-length": str(len(body))} if self._with_body and status != 304 else {}
        await self.begin(status, {**headers, **length})
        await self.part(body, last=True)

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Send the status and headers of a response."""
        self.status = status
        lines = {"x-content-type-options": "nosniff", **headers}
        raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in lines.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": raw})

    async def part(self, data: bytes, *, last: bool = False) -> None:
        """Send the next bytes of the body."""
        body = data if self._with_body else b""
        while len(body) > _PIECE_BYTES:  # ``send`` waits before each, so that the slot is held until most is taken
            await self._piece(body[:_PIECE_BYTES], more=True)
            body = body[_PIECE_BYTES:]
        if last and self.before_last is not None:
            self.before_last()
        await self._piece(body, more=not last)

    async def _piece(self, body: bytes, *, more: bool) -> None:
        self.bytes_sent += len(body)
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


async def send_rows(
    reply: Reply,
    scan: RecordBatchStream,
    format_: str,
    dataset: str,
    limits: Limits,
    headers: Callable[[int | None], Mapping[str, str]],
) -> int:
    """Write all batches of ``scan``, which has been entered; return the number of rows.

    Args:
        headers: returns the response's headers, given the number of rows, or None if it is not known yet.

    Raises:
        Problem: status 413: the answer has more bytes than ``limits`` allow, and nothing is sent yet.
        AbortedError: the same, but the answer has already begun.
    """
    sink = ByteSink()
    writer = writer_of(format_, sink, dataset, scan.schema)
    num_rows, waiting = 0, b""
    try:
        async for batch in scan:
            num_rows += batch.num_rows
            if batch.num_rows * batch.num_columns <= _INLINE_CELLS:
                writer.write(batch)
            else:
                await asyncio.to_thread(writer.write, batch)
            _check_size(reply, sink, limits)
            waiting += sink.take()
            if len(waiting) >= BUFFERED_BYTES:
                if not reply.status:
                    await reply.begin(200, headers(None))
                await reply.part(waiting)
                waiting = b""
        writer.finish()
    except BaseException:
        writer.abandon()
        raise
    _check_size(reply, sink, limits)
    waiting += sink.take()
    if reply.status:
        await reply.part(waiting, last=True)
    else:
        await reply.whole(200, headers(num_rows), waiting)
    return num_rows


def _check_size(reply: Reply, sink: ByteSink, limits: Limits) -> None:
    if sink.tell() <= limits.bytes:
        return
    if reply.status:
        raise AbortedError(f"the answer has more than {limits.bytes} bytes")
    raise Problem(413, f"the answer has more than {limits.bytes} bytes", hint="Ask for fewer columns, or set limit.")


def cost_headers(metrics: ReadMetrics, seconds: float) -> dict[str, str]:
    """Return response headers with the cost of the read so far."""
    return {
        "server-timing": f"total;dur={seconds * 1000:.1f}, wait;dur={metrics.wait_s * 1000:.1f}, "
        f"decode;dur={metrics.decode_s * 1000:.1f}",
        "asyncpq-requests": str(metrics.requests),
        "asyncpq-bytes": str(metrics.bytes_fetched),
        "asyncpq-rounds": str(metrics.rounds),
        "asyncpq-tier": tier_of(metrics),
    }


def tier_of(metrics: ReadMetrics) -> str:
    """Return the slowest place that the read got bytes from: memory, disk, the shared cache or the store."""
    if metrics.requests:
        return "store"
    return "shared" if metrics.shared_hits else "disk" if metrics.disk_hits else "memory"
