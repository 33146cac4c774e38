"""Errors as problem documents (RFC 9457).

Mistakes of the client are reported in full. For errors of stores and files, the response has only the kind of the error
and an id, under which the service's log has the details: messages of stores and files contain urls, buckets and columns
that a token may not be allowed to see.
"""

from __future__ import annotations

import json
import logging
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    DeadlineExceededError,
    FormatError,
    InvalidOptionError,
    ObjectChangedError,
    ObjectNotFoundError,
    QueryError,
    ResourceLimitError,
    StoreError,
    ThrottledError,
    TransportError,
    UnsupportedFeatureError,
)

MEDIA_TYPE: Final = "application/problem+json"
_LONGEST: Final = 1000  # characters of a text: more only repeats the request
_URL: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]*://\S*")
_TITLES: Final = {
    400: "The request is wrong",
    401: "A token is needed",
    403: "The token does not allow this",
    404: "There is no such thing",
    405: "The method does not exist",
    406: "No such format",
    413: "The answer or the request is too large",
    429: "Too many requests at once",
    500: "The service has failed",
    502: "The data cannot be read",
    503: "The store does not answer",
    504: "The time is over",
}
#: Of errors that the client did not cause, the first that fits: classes, status and what the client is told.
_KINDS: Final[tuple[tuple[tuple[type[Exception], ...], int, str], ...]] = (
    ((ThrottledError,), 503, "the store asks for fewer requests"),
    ((TransportError,), 503, "the store cannot be reached, or answers with errors"),
    ((ObjectChangedError,), 503, "an object was replaced while it was read"),
    ((DeadlineExceededError, TimeoutError), 504, "the answer took too long"),
    ((ResourceLimitError,), 413, "the read needs more than the service's limits of memory, elements or depth"),
    ((ObjectNotFoundError,), 502, "an object of the dataset does not exist"),
    ((AccessDeniedError,), 502, "the store refuses access to the dataset"),
    ((StoreError,), 502, "a request to the store failed"),
    ((UnsupportedFeatureError,), 502, "a file has a feature that the service does not support"),
    ((FormatError,), 502, "a file of the dataset is damaged, or does not fit the others"),
    ((InvalidOptionError,), 500, "the service is configured with options that do not fit the dataset"),
    ((Exception,), 500, "the service has a defect"),
)

logger: logging.Logger = logging.getLogger(__name__)


def _shortened(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({len(text)} characters)"


class Problem(Exception):  # noqa: N818  # as RFC 9457 calls it
    """An answer that is an error: a problem document (RFC 9457) and its HTTP status.

    Args:
        status: HTTP status of the response.
        title: what kind of error it is; None: the usual one of the status.
        detail: what happened, in one sentence.
        hint: what the client can do.
        error: name of the class of asyncpq's error that caused it.
        members: further members of the document.
        headers: further headers of the response.
    """

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        title: str | None = None,
        hint: str | None = None,
        error: str | None = None,
        members: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.headers: dict[str, str] = dict(headers or {})
        document: dict[str, Any] = {"type": "about:blank", "title": title or _TITLES[status]}
        document |= {"status": status, "detail": _shortened(detail)}
        told = {key: _shortened(value) for key, value in (("hint", hint), ("error", error)) if value}
        self.document: dict[str, Any] = {**document, **told}
        for key, value in (members or {}).items():
            self.document[key] = _shortened(value) if isinstance(value, str) else value

    @property
    def body(self) -> bytes:
        """The problem document, encoded as JSON."""
        return json.dumps(self.document, ensure_ascii=False).encode("utf-8", "replace")


def no_dataset() -> Problem:
    """Return the problem for a dataset that does not exist, or that the token has no right to. The two are equal, so
    that the client cannot tell them apart."""
    return Problem(404, "there is no such dataset", hint="GET /v1/datasets lists those that there are.")


@contextmanager
def clients_errors() -> Iterator[None]:
    """Convert errors that the ``with`` block raises because of the client's input to problems with the full message,
    without urls."""
    try:
        yield
    except (QueryError, InvalidOptionError) as error:
        raise wrong_request(error) from error


def wrong_request(error: AsyncpqError) -> Problem:
    """Convert an error that the client's input alone caused to a :class:`Problem` with status 400."""
    members = {} if error.column is None else {"column": error.column}
    hint = None if error.hint is None else _URL.sub("...", error.hint)
    return Problem(400, _URL.sub("...", error.message), hint=hint, error=type(error).__name__, members=members)


def problem_of(error: Exception) -> Problem:
    """Convert any error to a :class:`Problem`, and log the details that the response must not contain."""
    if isinstance(error, Problem):
        return error
    status, detail = next((status, detail) for kinds, status, detail in _KINDS if isinstance(error, kinds))
    number = f"urn:uuid:{uuid.uuid4()}"
    unknown = not isinstance(error, (AsyncpqError, TimeoutError))
    logger.error("%s: %s: %s", number, type(error).__name__, error, exc_info=error if unknown else None)
    name = type(error).__name__ if isinstance(error, AsyncpqError) else None
    headers = {"retry-after": "1"} if status == 503 else {}
    hint = "Report the instance to the operator of the service." if status in (500, 502) else None
    return Problem(status, detail, hint=hint, error=name, members={"instance": number}, headers=headers)
