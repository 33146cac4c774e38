"""OpenTelemetry's spans, where its API is installed. Nothing else imports it, and this only once a session reads.

Nothing of an error is recorded but its type and, of asyncpq's own, its message: what other libraries say, and
what stack traces quote, may hold secrets.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from asyncpq.errors import AsyncpqError, printable
from asyncpq.metrics import ReadMetrics

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer


@cache
def tracer() -> Tracer | None:
    """That of the process's tracer provider, also if it is set later; None without OpenTelemetry's API."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    return trace.get_tracer("asyncpq")


def start_span(name: str, url: str) -> ReadSpan | None:
    """The span of an operation, a child of the caller's; None if nobody records it.

    Args:
        name: of the operation.
        url: safe to be shown.
    """
    found = tracer()
    if found is None:
        return None
    from opentelemetry.trace import SpanKind

    span = found.start_span(f"asyncpq.{name}", kind=SpanKind.CLIENT, attributes=_attributes(url))
    return ReadSpan(span) if span.is_recording() else None


class ReadSpan:
    """A span under way."""

    __slots__ = ("_span", "_token")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._token: Any = None

    def enter(self) -> None:
        """Make it the parent of what the calling task starts from now on; pair with :meth:`leave`."""
        from opentelemetry import context, trace

        self._token = context.attach(trace.set_span_in_context(self._span))

    def leave(self) -> None:
        from opentelemetry import context

        context.detach(self._token)

    def end(self, metrics: ReadMetrics, error: BaseException | None) -> None:
        """With the operation's cost, and what it failed with."""
        self._span.set_attributes(dict(_cost(metrics)))
        self._span.set_attributes(dict(_server(metrics.server)))
        if error is not None:
            from opentelemetry.trace import Status, StatusCode

            kind = f"{type(error).__module__}.{type(error).__qualname__}"
            message = str(error) if isinstance(error, AsyncpqError) else type(error).__qualname__
            self._span.set_attribute("error.type", kind)
            self._span.add_event("exception", {"exception.type": kind, "exception.message": message})
            self._span.set_status(Status(StatusCode.ERROR, message))
        self._span.end()


@lru_cache(maxsize=256)
def _attributes(url: str) -> dict[str, str | int]:
    """Attributes that say where an object is."""
    return dict(_place(url))


def _place(url: str) -> Iterator[tuple[str, str | int]]:
    """Attributes that say where an object is, by OpenTelemetry's semantic conventions."""
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
        try:
            server = urlsplit(url)
            host, port = server.hostname, server.port
        except ValueError:
            return  # the store will refuse it
        if host:
            yield "server.address", host
            yield "server.port", port or (443 if scheme.lower() == "https" else 80)


def _server(server: str) -> Iterator[tuple[str, str | int]]:
    """Attributes of the endpoint of an S3 url, which does not name it."""
    try:
        found = urlsplit(f"//{server}")
        host, port = found.hostname, found.port
    except ValueError:
        return
    if host:
        yield "server.address", host
    if port:
        yield "server.port", port


def _cost(metrics: ReadMetrics) -> Iterator[tuple[str, Any]]:
    for name, value in metrics.as_dict().items():
        if isinstance(value, dict):
            yield from ((f"asyncpq.{name}.{part}", count) for part, count in value.items())
        else:
            yield f"asyncpq.{name}", value
