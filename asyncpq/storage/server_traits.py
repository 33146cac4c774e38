"""What requests have shown of one server: how it answers If-Match, and ranges of the last bytes.

A session learns it once for each server. Bytes, range and version of each response are checked whatever the server does
(:mod:`asyncpq.storage.responses`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from asyncpq.errors import AsyncpqError, InvalidResponseError, ObjectChangedError, StoreError
from asyncpq.records import dataclass
from asyncpq.storage.base import RangeResult, RequestContext, Validator
from asyncpq.storage.limits import RetryableError
from asyncpq.storage.responses import ExpectedBody, RangeIgnoredError, RangeRequest, changed, empty, strong_etag

#: Why tails of a server take two rounds, for ReadMetrics.fallbacks.
SIZE_FIRST = "the size is asked first: the server does not send every range of the last bytes"
#: Why requests have no If-Match, for ReadMetrics.fallbacks.
COMPARED = "ETags of responses are compared: the server refuses If-Match with the ETag that it sends"


_REFUSALS = 2  # that show a trait: one may be chance, such as a 400 of a proxy


@dataclass(slots=True)
class ServerTraits:
    """What a session knows of one server.

    ``suffix_refusals`` and ``if_match_refusals`` count GETs that were answered only without a range of the last bytes,
    or without If-Match.
    """

    suffix_refusals: int = 0
    if_match_refusals: int = 0
    #: It answered a GET with If-Match; False: it refuses those, though the ETag is the same.
    if_match: bool | None = None

    @property
    def compared(self) -> bool:
        """Whether the server has refused If-Match so, and never answered a GET with it."""
        return self.if_match_refusals > 0 and not self.if_match

    @property
    def suffix_ranges(self) -> bool:
        """Whether the server may send the last n bytes of an object, as far as is known."""
        return self.suffix_refusals < _REFUSALS

    def learn_if_match(self, *, sent: bool) -> None:
        """Count a GET of a pinned version that was answered: with If-Match, or, if it was not ``sent``, after a refusal
        of the same GET with it."""
        if self.if_match is not None:
            return
        if sent:
            self.if_match = True
        else:
            self.if_match_refusals += 1
            if self.if_match_refusals == _REFUSALS:
                self.if_match = False

    def may_refuse_if_match(self, request: RangeRequest, status: int, error: AsyncpqError | RetryableError) -> bool:
        """Return whether ``error``, that of a response to a request with If-Match, may mean that the server cannot
        compare ETags.

        The request is then sent without If-Match, and the ETag of its response tells. A server that has answered such
        requests is believed.
        """
        return (
            self.if_match is None
            and status in (400, 412, 501)
            and strong_etag(request.pin) is not None
            and type(error) in (StoreError, ObjectChangedError)
        )


class SizedObject(Protocol):
    """An object whose size can be asked for."""

    url: str

    async def fetch_size(self, validator: Validator | None, context: RequestContext) -> Validator:
        """Return ``validator`` (None: the present version's) with the object's size, from one HEAD."""


async def ask_size(
    stored: SizedObject, expected: ExpectedBody, request: RangeRequest, context: RequestContext
) -> Validator:
    """Return the version of a response that does not tell the object's size. Raises RangeIgnoredError if its bytes are
    not the last ones that ``request`` asks for."""
    validator = request.pin or await stored.fetch_size(expected.validator, context)
    if request.start < 0 and expected.start + expected.length != validator.size:
        raise RangeIgnoredError(validator.size)
    return validator


async def find_size(
    stored: SizedObject,
    pin: Validator | None,
    context: RequestContext,
    fetch_first_byte: Callable[[], Awaitable[RangeResult]],
) -> Validator:
    """Return the validator of an object whose server does not send its last bytes: ``pin`` if it has a size, else that
    of a GET of one byte.

    An empty object has no byte, and servers say so in several ways, such as 400; others take ``bytes=0-0`` for no
    range. Then a HEAD tells. Raises NotParquetError, or ObjectChangedError for a pinned version, if the size is 0, and
    the errors of a GET.
    """
    if pin is not None and pin.size > 0:
        return pin
    try:
        return (await fetch_first_byte()).validator
    except StoreError as error:
        if type(error) not in (InvalidResponseError, StoreError):
            raise
        try:
            version = await stored.fetch_size(pin, context)
        except StoreError:
            raise error from None
        if version.size > 0:
            return version
    raise empty(stored.url) if pin is None else changed(RangeRequest(-1, 0, stored.url, pin), "it is empty now")
