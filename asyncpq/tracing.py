"""Spans of OpenTelemetry, if the program uses its API. No other module imports that API.

An error is recorded with its type, and with its message if it is asyncpq's own: messages of other libraries and stack
traces may hold secrets.

A call's span is current while it runs, also for the tasks that it starts. A scan's span is not: other code runs
between its batches.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from asyncpq.errors import AsyncpqError, printable
from asyncpq.metrics import ReadMetrics

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

#: Spans may be recorded if the environment names a provider, or once this module is loaded: a program that sets a
#: provider imports it. For others the import would take 10 ms of the first read.
PROVIDER_NAMED = "OTEL_PYTHON_TRACER_PROVIDER" in os.environ
API = "opentelemetry.trace"


@cache
def tracer() -> Tracer | None:
    """Return the process's OpenTelemetry tracer; None without OpenTelemetry. Its provider may come later."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("asyncpq")


def start_span(name: str, url: str) -> ReadSpan | None:
    """Start a span for the operation ``name`` on ``url``, as a child of the caller's; None if none is recorded."""
    provided = tracer()
    if provided is None:
        return None
    from opentelemetry.trace import SpanKind

    span = provided.start_span(f"asyncpq.{name}", kind=SpanKind.CLIENT, attributes=_attributes(url))
    return ReadSpan(span) if span.is_recording() else None


class ReadSpan:
    """A running OpenTelemetry span of one operation."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._token: Any = None

    def enter(self) -> None:
        """Make the span the parent of spans that the calling task starts, until :meth:`leave` is called."""
        from opentelemetry import context, trace

        self._token = context.attach(trace.set_span_in_context(self._span))

    def leave(self) -> None:
        """Restore the parent that :meth:`enter` replaced. Called by the task that entered."""
        from opentelemetry import context

        context.detach(self._token)

    def end(self, metrics: ReadMetrics, error: BaseException | None) -> None:
        """End the span, with the operation's cost and error as attributes."""
        self._span.set_attributes({**dict(_cost(metrics)), **_server(f"//{metrics.server}")})
        if error is not None:
            from opentelemetry.trace import Status, StatusCode

            error_type = f"{type(error).__module__}.{type(error).__qualname__}"
            message = str(error) if isinstance(error, AsyncpqError) else type(error).__qualname__
            self._span.set_attribute("error.type", error_type)
            self._span.add_event("exception", {"exception.type": error_type, "exception.message": message})
            self._span.set_status(Status(StatusCode.ERROR, message))
        self._span.end()


@lru_cache(maxsize=256)
def _attributes(url: str) -> dict[str, str | int]:
    return dict(_place(url))


def _place(url: str) -> Iterator[tuple[str, str | int]]:
    """Yield (name, value) of the span attributes for an object's url, named as in OpenTelemetry's semantic
    conventions."""
    url = printable(url)
    scheme, separator, rest = url.partition("://")
    if not separator:
        yield "file.path", url
        return
    yield "url.full", url
    yield "url.scheme", scheme.lower()
    if scheme.lower() in ("s3", "s3a"):
        bucket, _, key = rest.partition("/")
        yield from (("aws.s3.bucket", bucket), ("aws.s3.key", key))
    elif scheme.lower() in ("http", "https"):
        yield from _server(url, 443 if scheme.lower() == "https" else 80).items()


def _server(url: str, default_port: int | None = None) -> dict[str, str | int]:
    """Return span attributes of a url's host and port; empty if the url has no host, or is malformed."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port or default_port
    except ValueError:
        return {}
    if not host:
        return {}
    return {"server.address": host} | ({"server.port": port} if port else {})


def _cost(metrics: ReadMetrics) -> Iterator[tuple[str, Any]]:
    for name, value in metrics.counts().items():
        if isinstance(value, dict):
            yield from ((f"asyncpq.{name}.{part}", count) for part, count in value.items())
        else:
            yield f"asyncpq.{name}", value
