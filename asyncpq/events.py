"""Events: each call of the API is an :class:`Operation`, which reports to metrics, ``on_event``, loggers and
OpenTelemetry.

An operation owns the metrics of a call. When it ends, it adds them to the session's metrics and reports them once to
the hook, the logger and the span. Each file of a read and each segment of an index has an operation of its own, called
a part; its rounds of requests count from its beginning.
"""

from __future__ import annotations

import asyncio
import logging
import math
import sys
import threading
import time
from collections import OrderedDict
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


class _Restarts:
    """Limits the warnings about restarts to one a minute for each object, in all sessions of this process."""

    EVERY_S = 60.0
    _MAX_URLS = 1024

    def __init__(self) -> None:
        self._by_url: OrderedDict[str, tuple[float, int]] = OrderedDict()  # when it was logged last; restarts since
        self._lock = threading.Lock()

    def count(self, url: str, now: float) -> int | None:
        """Count a restart of a read of ``url``; return the number of restarts that were counted and not logged before
        it if it is to be logged, else None. ``now`` is ``time.monotonic()``."""
        with self._lock:
            logged, unlogged = self._by_url.get(url, (-math.inf, 0))
            if now - logged < self.EVERY_S:
                self._by_url[url] = logged, unlogged + 1
                return None
            self._by_url[url] = now, 0
            self._by_url.move_to_end(url)  # in the order of their last warnings
            if len(self._by_url) > self._MAX_URLS:
                self._by_url.popitem(last=False)
            return unlogged


_RESTARTS = _Restarts()


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """An event for ``on_event`` of :class:`asyncpq.Session`: a request has ended. Each retry, and each hedge (a second
    copy of a slow request), is a request of its own.

    Attributes:
        url: url of the object, without user info, query and secrets.
        record: range, status, bytes and time of the request.
    """

    url: str
    record: RequestRecord


@dataclass(frozen=True, slots=True)
class ReadEnded:
    """An event for ``on_event`` of :class:`asyncpq.Session`: a call of a session, file, dataset or index has ended, or
    the consumer of a scan has closed it.

    Attributes:
        operation: the call, such as "read".
        url: url of the object, without user info, query and secrets.
        metrics: cost of the call (:class:`asyncpq.ReadMetrics`).
        seconds: duration of the call; a scan's includes the time of its consumer.
        error: the exception that the call raised, CancelledError included; None after success.
    """

    operation: OperationName
    url: str
    metrics: ReadMetrics
    seconds: float
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class FileEnded:
    """An event for ``on_event`` of :class:`asyncpq.Session`: a read of a dataset has finished one file: it delivered
    the file's rows, or skipped the file as unreadable, or the footer showed that no row matches.

    Attributes:
        operation: the read, such as "scan".
        url: url of the file, without user info, query and secrets.
        metrics: cost of the file (:class:`asyncpq.ReadMetrics`).
        error: reason why the file was skipped; None if it was not skipped.
        files_done: number of finished files of the read, including this one and files that were not opened.
        files_total: number of files of the read.
    """

    operation: OperationName
    url: str
    metrics: ReadMetrics
    error: BaseException | None
    files_done: int
    files_total: int


@dataclass(frozen=True, slots=True)
class Progress:
    """An event for ``on_event`` of :class:`asyncpq.Session`: a long call, such as an index build or a read of one file,
    has done another part of one of its steps.

    Attributes:
        operation: the call, such as "build".
        url: url of the dataset or index, without user info, query and secrets.
        step: the step, such as "read", "write" or "verify".
        done: how much of the step is done.
        total: how much the step has to do; None: not known yet.
        unit: what ``done`` and ``total`` count: "files" or "rows".
    """

    operation: OperationName
    url: str
    step: str
    done: int
    total: int | None
    unit: Literal["files", "rows"]


@dataclass(frozen=True, slots=True)
class ArrowSchemaIgnored:
    """An event for ``on_event`` of :class:`asyncpq.Session`: a file's footer has an Arrow schema (``ARROW:schema``)
    that is damaged, or has types that asyncpq does not know. The file's columns get the types of its Parquet schema.

    Attributes:
        operation: the call that reads the file, such as "scan".
        url: url of the file, without user info, query and secrets.
        reason: why the schema is ignored; :attr:`asyncpq.ReadMetrics.fallbacks` of the read has it, too.
    """

    operation: OperationName
    url: str
    reason: str


Event = RequestEnded | ReadEnded | FileEnded | Progress | ArrowSchemaIgnored


@dataclass(slots=True, eq=False)
class Operation:
    """One call of the API, such as a lookup, and the metrics of that call.

    Use it as a context manager if one task runs it. If it takes several calls, as a scan does, call :meth:`begin` and
    :meth:`end`.

    Attributes:
        name: the call, such as "lookup".
        url: url of the object, without secrets.
        totals: the metrics to which ``metrics`` are added at the end: the session's, or those of the outer call.
        on_event: the session's ``on_event``; None without one.
        metrics: cost of the call so far.
    """

    name: OperationName
    url: str
    totals: tuple[ReadMetrics, ...]
    on_event: Callable[[Event], None] | None
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
        """Return a new operation for a call that this call makes; its cost is added to the metrics of this
        operation."""
        return Operation(name, url, (self.metrics,), self.on_event)

    def part(self, url: str, rounds: int) -> Operation:
        """Return the operation for one file of a dataset's read; the read made ``rounds`` rounds of requests before it.

        Call :meth:`part_ended` when the file is finished.
        """
        part = Operation(self.name, url, (self.metrics,), self.on_event, self.metrics.part(rounds))
        if self.on_event is not None or _requests.isEnabledFor(logging.DEBUG):
            part.metrics.observe(part._request_ended)
        return part

    def progress(self, step: str, done: int, total: int | None, unit: Literal["files", "rows"]) -> None:
        """Send a :class:`Progress` event: ``done`` of ``total`` files or rows (``unit``) of the step named ``step``."""
        if self.on_event is not None:
            self._tell(self.on_event, Progress(self.name, self.url, step, done, total, unit))

    def part_ended(self, part: Operation, error: BaseException | None, files_done: int | None) -> None:
        """Add the metrics of ``part``, the operation of a finished file, and send its :class:`FileEnded` event.

        ``error`` is the reason why the file was skipped. ``files_done`` counts the read's finished files. It is None if
        only the file's footer was examined; no event is sent then, since the later read of the file sends it.
        """
        self.metrics.add_part(part.metrics)
        if self.on_event is not None and files_done is not None:
            ended = FileEnded(self.name, part.url, part.metrics, error, files_done, self.metrics.files_total)
            self._tell(self.on_event, ended)

    def ignores_arrow_schema(self, reason: str, *, log: bool) -> None:
        """Note in the metrics, and send an :class:`ArrowSchemaIgnored` event, that the Arrow schema of the file of this
        operation is not used. ``log``: log a warning, too."""
        self.metrics.fall_back(reason)
        if log:
            _reads.warning("%s of %s: %s", self.name, printable(self.url), printable(reason))
        if self.on_event is not None:
            self._tell(self.on_event, ArrowSchemaIgnored(self.name, self.url, reason))

    def end(self, error: BaseException | None) -> None:
        """Add the metrics to their sums, and report the end of the call. ``error`` is the exception that ended it,
        or None. Later calls do nothing."""
        if not self._running:
            return
        self._running = False
        self.metrics.add_to(*self.totals)
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
        """Count and log that the call starts again, since the object was replaced while it was read."""
        self.metrics.restarts += 1
        unlogged = _RESTARTS.count(self.url, time.monotonic())
        if unlogged is not None:
            more = f" (restarts since the last such line: {unlogged})" if unlogged else ""
            _reads.warning("%s of %s starts again: the object has changed%s", self.name, printable(self.url), more)

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
        except (KeyboardInterrupt, SystemExit) as error:  # they end the event loop, not only what is under way
            asyncio.get_running_loop().call_soon(_raise, error)
        except (Exception, asyncio.CancelledError):  # a CancelledError can only be the hook's own: nothing is awaited
            logger.exception("on_event raised, given a %s; the read goes on", type(event).__name__)


def _raise(error: BaseException) -> None:
    raise error
