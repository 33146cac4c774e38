"""Who is told what a session does: its metrics, its hook, the loggers, and OpenTelemetry.

Every call of the API that asks a store or a cache is an :class:`Operation`, begun and ended once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Literal, Self

from asyncpq.errors import AsyncpqError, printable
from asyncpq.metrics import ReadMetrics, RequestRecord
from asyncpq.tracing import ReadSpan, start_span

OperationName = Literal[
    "open",
    "lookup",
    "scan",
    "read",
    "take",
    "count",
    "plan",
    "refresh",
    "embedded_index",
    "files",
    "build",
    "compact",
    "vacuum",
    "verify",
    "show",
    "drop",
]

logger = logging.getLogger(__name__)
_reads = logging.getLogger("asyncpq.reads")
_requests = logging.getLogger("asyncpq.requests")


@dataclass(frozen=True, slots=True)
class RequestEnded:
    """One request has ended; each retry and each hedge is one of its own.

    Attributes:
        url: of the object, without user info, query and secrets.
        record: what was asked, and what came.
    """

    url: str
    record: RequestRecord


@dataclass(frozen=True, slots=True)
class ReadEnded:
    """One call of a session, file or dataset has ended, or one scan was left.

    Attributes:
        operation: "open", "lookup", "scan", "read", "take", "count", "plan", "refresh", "embedded_index" or "files"; of
            an index "build", "refresh", "compact", "vacuum", "verify", "show" or "drop".
        url: of the object, without user info, query and secrets.
        metrics: what it cost.
        seconds: from its beginning; of a scan, the time that its consumer took is part of it.
        error: what it raised, a CancelledError included; None if it succeeded.
    """

    operation: OperationName
    url: str
    metrics: ReadMetrics
    seconds: float
    error: BaseException | None


@dataclass(frozen=True, slots=True)
class FileEnded:
    """One file of a dataset's read is done with: its rows were delivered, it was ruled out by its footer, or skipped.

    Attributes:
        operation: of the read.
        url: of the file, without user info, query and secrets.
        metrics: what the file cost.
        error: why it was skipped; None if it was not.
        files_done: files of the read that are done with, this one and those that were not opened included.
        files_total: all that the read is about.
    """

    operation: OperationName
    url: str
    metrics: ReadMetrics
    error: BaseException | None
    files_done: int
    files_total: int


Event = RequestEnded | ReadEnded | FileEnded


@dataclass(slots=True, eq=False)
class Operation:
    """One call of the API, from its beginning to its end; owns its metrics. A context manager for what one task
    runs from beginning to end; what several calls make up is begun and ended.

    Args:
        name: the verb.
        url: of the object, safe to be shown.
        total: the session's metrics.
        on_event: the session's hook.
    """

    name: OperationName
    url: str
    total: ReadMetrics
    on_event: Callable[[Event], None] | None
    metrics: ReadMetrics = field(default_factory=ReadMetrics)
    _running: bool = field(default=False, init=False)
    _began: float = field(default=0.0, init=False)
    _span: ReadSpan | None = field(default=None, init=False)

    def begin(self) -> None:
        """Its time runs, and its span is a child of the caller's."""
        self._running = True
        if self.on_event is not None or _requests.isEnabledFor(logging.DEBUG):
            self.metrics.observe(self._request_ended)
        self._span = start_span(self.name, self.url)
        self._began = time.perf_counter()

    def inner(self, name: OperationName, url: str) -> Operation:
        """A call that this one makes for itself; what it costs counts in this one's metrics."""
        return Operation(name, url, self.metrics, self.on_event)

    def part(self, url: str, rounds: int) -> Operation:
        """The share of one file, at ``url``, of a dataset's read, after ``rounds`` of it: its requests are told as that
        file's. It is not begun, and ended by :meth:`part_ended`."""
        part = Operation(self.name, url, self.metrics, self.on_event, self.metrics.part(rounds))
        if self.on_event is not None or _requests.isEnabledFor(logging.DEBUG):
            part.metrics.observe(part._request_ended)
        return part

    def part_ended(self, part: Operation, error: BaseException | None, files_done: int | None) -> None:
        """Add the metrics of ``part``, a file that is done with, and send a FileEnded for it.

        Args:
            error: why it was skipped.
            files_done: None if only the file's footer was looked at: the file is read later, and that sends the event.
        """
        self.metrics.add_part(part.metrics)
        if self.on_event is not None and files_done is not None:
            ended = FileEnded(self.name, part.url, part.metrics, error, files_done, self.metrics.files_total)
            self._tell(self.on_event, ended)

    def end(self, error: BaseException | None) -> None:
        """Add its metrics to the session's, and tell of it. Only the first call counts."""
        if not self._running:
            return
        self._running = False
        self.total.add(self.metrics)
        if self._span is not None:
            self._span.end(self.metrics, error)
        if _reads.isEnabledFor(logging.DEBUG):
            self._log(error)
        if self.on_event is not None:
            seconds = time.perf_counter() - self._began
            self._tell(self.on_event, ReadEnded(self.name, self.url, self.metrics, seconds, error))

    def __enter__(self) -> Self:
        self.begin()
        if self._span is not None:
            self._span.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._span is not None:
            self._span.leave()
        self.end(error)

    def restarts(self) -> None:
        """It begins again, since the object has changed."""
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
        except (Exception, asyncio.CancelledError):  # nobody can cancel what does not wait: it is the hook's own
            logger.exception("on_event raised, given a %s; the read goes on", type(event).__name__)

    def _log(self, error: BaseException | None) -> None:
        outcome = (
            printable(str(self.metrics))
            if error is None
            # what other libraries say may hold secrets
            else f"failed: {type(error).__name__}{f': {error}' if isinstance(error, AsyncpqError) else ''}"
        )
        seconds = time.perf_counter() - self._began
        _reads.debug("%s of %s, %.1f ms: %s", self.name, printable(self.url), seconds * 1e3, outcome)
