"""Events: each call of the API is an :class:`Operation`, which reports to metrics, ``on_event``, loggers and
OpenTelemetry.

An operation owns the metrics of a call. When it ends, it adds them to the session's metrics and reports them once to
the hook, the logger and the span. Each file of a read and each segment of an index has an operation of its own, called
a part; its rounds of requests count from its beginning.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Callable
from dataclasses import field
from types import TracebackType
from typing import Literal, Self

from asyncpq.errors import AsyncpqError, printable
from asyncpq.metrics import ReadMetrics, RequestRecord
from asyncpq.records import dataclass
from asyncpq.tracing import API, PROVIDER_NAMED, ReadSpan, start_span

ReadName = Literal[
    "open", "lookup", "scan", "read", "take", "count", "plan", "refresh", "embedded_index", "files", "inspect", "lint"
]
#: The calls that report events. An index has "refresh", and those that are not names of reads.
OperationName = Literal[ReadName, "build", "compact", "vacuum", "verify", "show", "drop", "optimize"]

logger: logging.Logger = logging.getLogger(__name__)
_reads = logging.getLogger("asyncpq.reads")
_requests = logging.getLogger("asyncpq.requests")


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """One request has ended. Each retry and each hedge is a request of its own."""

    url: str  # of the object, without user info, query and secrets
    record: RequestRecord  # range, status, bytes and time of the request


@dataclass(frozen=True, slots=True)
class ReadEnded:
    """One call of a session, file, dataset or index has ended, or one scan was left."""

    operation: OperationName
    url: str  # of the object, without user info, query and secrets
    metrics: ReadMetrics  # cost of the call
    seconds: float  # duration of the call; a scan's includes the time of its consumer
    error: BaseException | None  # the exception that the call raised, CancelledError included; None after success


@dataclass(frozen=True, slots=True)
class FileEnded:
    """A dataset's read has finished one file: its rows were delivered, its footer ruled it out, or it was skipped."""

    operation: OperationName  # of the read
    url: str  # of the file, without user info, query and secrets
    metrics: ReadMetrics  # cost of the file
    error: BaseException | None  # reason why the file was skipped; None if it was not skipped
    files_done: int  # finished files of the read, including this one and those that were not opened
    files_total: int  # all files of the read


@dataclass(frozen=True, slots=True)
class Progress:
    """A long call has done another part of one of its steps."""

    operation: OperationName
    url: str  # of the dataset or index, without user info, query and secrets
    step: str  # the step, such as "read", "write" or "verify"
    done: int  # so much of it
    total: int | None  # None: not known yet
    unit: Literal["files", "rows"]


Event = RequestEnded | ReadEnded | FileEnded | Progress


@dataclass(slots=True, eq=False)
class Operation:
    """One call of the API, which owns its metrics.

    Use it as a context manager if one task runs it; if several calls make it up, call :meth:`begin` and :meth:`end`.
    """

    name: OperationName
    url: str  # of the object, safe to be shown
    total: ReadMetrics  # sums of the session, or of the outer call
    on_event: Callable[[Event], None] | None  # the session's hook
    metrics: ReadMetrics = field(default_factory=ReadMetrics)
    _running: bool = field(default=False, init=False)
    _span: ReadSpan | None = field(default=None, init=False)

    def begin(self) -> None:
        """Start the clock and the OpenTelemetry span, whose parent is the caller's span."""
        self._running = True
        if self.on_event is not None or _requests.isEnabledFor(logging.DEBUG):
            self.metrics.observe(self._request_ended)
        if API in sys.modules or PROVIDER_NAMED:
            self._span = start_span(self.name, self.url)
        self.metrics.began = time.monotonic()

    def inner(self, name: OperationName, url: str) -> Operation:
        """Return the operation of a call within this call; its cost is added to the metrics of this operation."""
        return Operation(name, url, self.metrics, self.on_event)

    def part(self, url: str, rounds: int) -> Operation:
        """Return the operation for one file of a dataset's read, which begins after ``rounds`` rounds of requests.

        Call :meth:`part_ended` when the file is finished.
        """
        part = Operation(self.name, url, self.metrics, self.on_event, self.metrics.part(rounds))
        if self.on_event is not None or _requests.isEnabledFor(logging.DEBUG):
            part.metrics.observe(part._request_ended)
        return part

    def progress(self, step: str, done: int, total: int | None, unit: Literal["files", "rows"]) -> None:
        """Send a :class:`Progress` event."""
        if self.on_event is not None:
            self._tell(self.on_event, Progress(self.name, self.url, step, done, total, unit))

    def part_ended(self, part: Operation, error: BaseException | None, files_done: int | None) -> None:
        """Add the metrics of ``part``, a finished file, and send a FileEnded for it.

        ``error`` is why the file was skipped. ``files_done`` is None if only the file's footer was examined: the later
        read of the file sends the event.
        """
        self.metrics.add_part(part.metrics)
        if self.on_event is not None and files_done is not None:
            ended = FileEnded(self.name, part.url, part.metrics, error, files_done, self.metrics.files_total)
            self._tell(self.on_event, ended)

    def end(self, error: BaseException | None) -> None:
        """Add the metrics to the session's and report the end with ``error``. Later calls do nothing."""
        if not self._running:
            return
        self._running = False
        self.total.add(self.metrics)
        if self._span is not None:
            self._span.end(self.metrics, error)
        self.metrics.ended = ended = time.monotonic()
        seconds = ended - self.metrics.began
        if _reads.isEnabledFor(logging.DEBUG):
            outcome = printable(str(self.metrics))
            if error is not None:  # messages of other libraries may hold secrets
                message = f": {error}" if isinstance(error, AsyncpqError) else ""
                outcome = f"failed: {type(error).__name__}{message}"
            _reads.debug("%s of %s, %.1f ms: %s", self.name, printable(self.url), seconds * 1e3, outcome)
        if self.on_event is not None:
            self._tell(self.on_event, ReadEnded(self.name, self.url, self.metrics, seconds, error))

    def __enter__(self) -> Self:
        self.begin()
        if self._span is not None:
            self._span.enter()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._span is not None:
            self._span.leave()
        self.end(error)

    def restarts(self) -> None:
        """Count and log that the operation starts again, since the object has changed."""
        self.metrics.restarts += 1
        _reads.warning("%s of %s starts again: the object has changed", self.name, printable(self.url))

    def _request_ended(self, record: RequestRecord) -> None:
        if _requests.isEnabledFor(logging.DEBUG):
            _requests.debug(
                "%s: %s, status %d, attempt %d, %.1f ms",
                printable(self.url),
                record,
                record.status,
                record.attempt,
                record.seconds * 1e3,
            )
        if self.on_event is not None:
            self._tell(self.on_event, RequestEnded(self.url, record))

    def _tell(self, on_event: Callable[[Event], None], event: Event) -> None:
        try:
            on_event(event)
        except (Exception, asyncio.CancelledError):  # a CancelledError can only be the hook's own: nothing is awaited
            logger.exception("on_event raised, given a %s; the read goes on", type(event).__name__)
