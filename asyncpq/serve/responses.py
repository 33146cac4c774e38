"""Write rows in the chosen format, and send them no faster than the client takes them.

An answer of at most ``BUFFERED_BYTES`` is complete before its first byte is sent. So an error can still become a
problem document, and the headers have the whole cost. A larger answer is sent while it is made. An error then closes
the connection, because nothing else tells the client that rows are missing.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, MutableMapping
from functools import partial
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import pyarrow as pa

from asyncpq import DatasetScan
from asyncpq.engine.array_conversions import compact_batch, without_metadata
from asyncpq.metrics import ReadMetrics
from asyncpq.reports.row_writers import (
    ArrowWriter,
    CountingSink,
    CsvWriter,
    JsonWriter,
    NdjsonWriter,
    ParquetWriter,
    RowWriter,
)
from asyncpq.serve.access import Limits
from asyncpq.serve.problems import Problem

T = TypeVar("T")
#: Of ASGI: what a request is, what gives the parts of its body, and what takes those of the response.
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

BUFFERED_BYTES: Final = 256 << 10
_PIECE_BYTES: Final = 64 << 10
_ROW_GROUP_BYTES: Final = 8 << 20
_INLINE_CELLS: Final = 2000  # values that are written on the event loop, since a thread would cost more
_INLINE_BYTES: Final = 64 << 10
_TEXT_BYTES: Final = 128 << 10  # that are written as text at once, in some tens of milliseconds
_BATCH_ROWS: Final = 8192
_BATCH_CELLS: Final = 1 << 17
_BATCH_BYTES: Final = 1 << 20
_UNIT_ROWS: Final = 64  # whose bytes are counted together


class InThread(Protocol):
    """See :meth:`asyncpq.serve.app.Service.in_thread`."""

    def __call__(self, work: Callable[[], T], *, small: bool = False) -> Awaitable[T]: ...


class AbortedError(Exception):
    """Raised when an answer fails after its first bytes were sent: the connection is then closed."""


class ByteSink(CountingSink):
    """A file object in memory. :meth:`take` removes and returns the bytes written so far."""

    def __init__(self) -> None:
        self._parts = parts = list[bytes]()
        super().__init__(lambda data: parts.append(bytes(data)))

    def take(self) -> bytes:
        """Return what was written since the last call."""
        data = b"".join(self._parts)
        self._parts.clear()
        return data


class RowsForm(NamedTuple):
    """How the rows of an answer are written.

    ``hidden_rows``: whether the token may not see all rows of the dataset; nothing of the others is sent.
    """

    format: str
    dataset: str
    limits: Limits
    hidden_rows: bool = False


def writer_of(form: RowsForm, sink: ByteSink, schema: pa.Schema) -> RowWriter:
    """Return a writer of rows, without the metadata that files have of their fields.

    Raises Problem 400 if the format cannot hold the columns.
    """
    schema, format_, hidden_rows = without_metadata(schema), form.format, form.hidden_rows
    try:
        if format_ == "json":
            return JsonWriter(sink, {"document": "rows", "dataset": form.dataset}, schema)
        if format_ == "ndjson":
            return NdjsonWriter(sink)
        if format_ == "arrow":
            return ArrowWriter(sink, schema, hidden_rows=hidden_rows)
        if format_ == "csv":
            return CsvWriter(sink, schema)
        return ParquetWriter(sink, schema, row_group_bytes=_ROW_GROUP_BYTES, hidden_rows=hidden_rows)
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
        body = memoryview(data if self._with_body else b"")
        while len(body) > _PIECE_BYTES:  # ``send`` waits before each, so that the slot is held until most is taken
            await self._piece(bytes(body[:_PIECE_BYTES]), more=True)
            await asyncio.sleep(0)  # to a client that takes all at once, ``send`` never waits
            body = body[_PIECE_BYTES:]
        if last and self.before_last is not None:
            self.before_last()
        await self._piece(bytes(body), more=not last)

    async def _piece(self, body: bytes, *, more: bool) -> None:
        self.bytes_sent += len(body)
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


async def send_rows(
    reply: Reply,
    scan: DatasetScan,
    form: RowsForm,
    headers: Callable[[int | None], Mapping[str, str]],
    in_thread: InThread,
) -> int:
    """Write all batches of ``scan``, which has been entered; return the number of rows.

    Args:
        headers: returns the response's headers, given the number of rows, or None if it is not known yet.
        in_thread: runs a function in a thread, or at once if it is ``small``.

    Raises:
        Problem: status 413: the answer has more bytes than the limits allow, and nothing is sent yet.
        AbortedError: the same, but the answer has already begun.
    """
    sink = ByteSink()
    writer = writer_of(form, sink, scan.schema)
    format_, limits = form.format, form.limits
    num_rows, waiting = 0, b""
    try:
        async for batch in _even(scan, in_thread) if form.hidden_rows else scan:
            num_rows += batch.num_rows
            for piece in _pieces(batch, format_):
                await in_thread(partial(writer.write, piece), small=_is_small(piece))
                _check_size(reply, sink, limits)
                waiting += sink.take()
                if len(waiting) >= BUFFERED_BYTES:
                    if not reply.status:
                        await reply.begin(200, headers(None))
                    await reply.part(waiting)
                    waiting = b""
        await in_thread(writer.finish, small=format_ != "parquet" or num_rows * len(scan.schema) <= _INLINE_CELLS)
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


def batch_rows(num_columns: int) -> int:
    """Return how many rows a batch of an answer has, at most."""
    return max(1, min(_BATCH_ROWS, _BATCH_CELLS // max(1, num_columns)))


def _is_small(batch: pa.RecordBatch) -> bool:
    return bool(batch.num_rows * batch.num_columns <= _INLINE_CELLS and batch.nbytes <= _INLINE_BYTES)


def _pieces(batch: pa.RecordBatch, format_: str) -> Iterator[pa.RecordBatch]:
    """Divide a batch so that a thread writes each piece in little time: other tokens may then have their turns."""
    if format_ in ("arrow", "parquet"):  # Arrow writes them
        yield batch
        return
    rows = max(1, batch.num_rows * _TEXT_BYTES // max(1, batch.nbytes))
    for start in range(0, batch.num_rows, rows):
        yield batch.slice(start, rows)


async def _even(scan: DatasetScan, in_thread: InThread) -> AsyncIterator[pa.RecordBatch]:
    """Yield the rows of a scan in batches whose ends depend on these rows alone."""
    even = _EvenBatches(len(scan.schema))
    async for batch in scan:
        for joined in await in_thread(partial(even.add, batch), small=_is_small(batch)):
            yield joined
    for joined in await in_thread(even.rest, small=even.has_few):
        yield joined


class _EvenBatches:
    """Cuts the rows of a scan anew. Its batches end where pages and row groups do, which tells how many rows are hidden
    between them."""

    def __init__(self, num_columns: int) -> None:
        self._most_rows = batch_rows(num_columns)
        self._unit: list[pa.RecordBatch] = []  # the last rows, fewer than _UNIT_ROWS
        self._unit_rows = 0
        self._units: list[pa.RecordBatch] = []
        self._num_rows = self._num_bytes = 0  # of the units

    @property
    def has_few(self) -> bool:
        """Whether the rows that are left, as those of a lookup, are few in few pieces."""
        return not self._units and len(self._unit) == 1 and _is_small(self._unit[0])

    def add(self, batch: pa.RecordBatch) -> list[pa.RecordBatch]:
        """Add the next rows; return the batches that are complete."""
        complete: list[pa.RecordBatch] = []
        while batch.num_rows:
            part = batch.slice(0, _UNIT_ROWS - self._unit_rows)
            batch = batch.slice(part.num_rows)
            self._unit.append(part)
            self._unit_rows += part.num_rows
            if self._unit_rows == _UNIT_ROWS:
                self._num_bytes += sum(compact_batch(joined, hidden_rows=True).nbytes for joined in _joined(self._unit))
                self._num_rows += _UNIT_ROWS
                self._units += self._unit
                self._unit, self._unit_rows = [], 0
                if self._num_rows >= self._most_rows or self._num_bytes >= _BATCH_BYTES:
                    complete += self.rest()
        return complete

    def rest(self) -> list[pa.RecordBatch]:
        """Return the rows that are left."""
        rows = [*self._units, *self._unit]
        self._unit, self._units = [], []
        self._unit_rows = self._num_rows = self._num_bytes = 0
        return _joined(rows) if rows else []


def _joined(batches: list[pa.RecordBatch]) -> list[pa.RecordBatch]:
    """Return the rows as one batch; as several if its dictionaries would have more values than their indices can
    count."""
    if len(batches) == 1:
        return batches
    schema, num_rows = batches[0].schema, sum([batch.num_rows for batch in batches])
    if not len(schema):  # tables would lose their numbers of rows
        return [pa.RecordBatch.from_struct_array(pa.nulls(num_rows, pa.struct([])))]
    try:
        return list(pa.Table.from_batches(batches, schema).combine_chunks().to_batches())
    except pa.ArrowInvalid:
        compacted = [compact_batch(batch, hidden_rows=True) for batch in batches]
    try:
        return list(pa.Table.from_batches(compacted, schema).combine_chunks().to_batches())
    except pa.ArrowInvalid:  # whether it is so depends on the rows alone
        half = num_rows // 2
        rows = pa.Table.from_batches(batches, schema)
        return [*_joined(rows.slice(0, half).to_batches()), *_joined(rows.slice(half).to_batches())]


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
