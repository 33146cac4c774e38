"""Pages of a bucket's listing, over the wire of its objects."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Hashable, Mapping, MutableMapping
from dataclasses import replace
from typing import Any

from asyncpq.errors import AccessDeniedError, AsyncpqError, CredentialsError, InvalidResponseError
from asyncpq.storage.base import RequestContext, Validator
from asyncpq.storage.clock_grain import http_date_s
from asyncpq.storage.http1 import Body, Receiver
from asyncpq.storage.responses import ExpectedBody, RangeRequest
from asyncpq.storage.retry import RetryableError
from asyncpq.storage.s3_errors import error_for, parse_error
from asyncpq.storage.s3_list_page import PAGE_BYTES, ListPage, PageError, PageRequest, parse_page
from asyncpq.storage.s3_request import S3Resource, SignedExchange
from asyncpq.storage.s3_route import Route, Signers
from asyncpq.storage.sigv4 import canonical_path, canonical_query
from asyncpq.storage.transport import Transport
from asyncpq.storage.wire import DirectWire

_KNOWN_PAGE_BYTES = 1024 * 1024
LISTING_HINT = "Listing needs s3:ListBucket on the bucket; without it, give the urls of the files."


class S3Bucket(S3Resource):
    """One bucket, to be listed. Made by S3Store.

    Args:
        url: of what is listed, for messages.
        known: pages of the last listings, as they came and parsed: of one that has not changed, the bytes are the same.
    """

    def __init__(
        self,
        *,
        transport: Transport,
        wire: DirectWire,
        signers: Signers,
        route: Route,
        url: str,
        known: MutableMapping[Hashable, tuple[bytes, ListPage]],
    ) -> None:
        path = canonical_path(route.prefix)
        super().__init__(wire=wire, signers=signers, route=route, path=path.rstrip("/") or "/")
        self._transport = transport
        self.url = url
        self.known = known
        self.encoded = False  # a page was no XML without

    async def fetch_page(self, page: PageRequest, context: RequestContext) -> ListPage:
        """One LIST, sent again as reads are.

        Raises:
            StoreError: any of the store's errors.
        """
        exchange = _List(self, RangeRequest(0, 0, self.url), replace(page, encoded=self.encoded), [])
        await self._transport.send(exchange, context)
        return exchange.pages[-1]

    async def fetch_clock(self, prefix: str, context: RequestContext) -> float:
        """The store's time, of a LIST's Date header.

        Raises:
            InvalidResponseError: it says none.
            StoreError: any of the store's errors.
        """
        exchange = _List(self, RangeRequest(0, 0, self.url), PageRequest(prefix, most=1), [])
        await self._transport.send(exchange, context)
        return clock_of(exchange.date, self.url)

    def send(self, exchange: _List, receiver: Receiver) -> Coroutine[Any, Any, Body]:
        """One attempt, signed now."""
        route, query = self._route, canonical_query(**exchange.page.parameters())
        exchange.signer = signer = self.signers.signer(route.region)
        lines = ""
        if signer is not None:
            now = time.time() + self.signers.clock_offset_s
            lines = signer.sign(exchange.method, route.host, self._path, query, now=now)
        return self._wire.exchange(exchange.method, self._target(route, query), lines, exchange.request, receiver)


def clock_of(date: str | None, url: str) -> float:
    """Seconds since the epoch of a response's Date header.

    Raises:
        InvalidResponseError: it says none.
    """
    seconds = http_date_s(date)
    if seconds is None:
        raise InvalidResponseError("the store does not say its time", url=url)
    return seconds


class _List(SignedExchange):
    """One LIST. ``pages`` holds what was answered, to it or to the same request beside it."""

    def __init__(self, bucket: S3Bucket, request: RangeRequest, page: PageRequest, pages: list[ListPage]) -> None:
        super().__init__(bucket, request)
        self._bucket = bucket
        self.page = page
        self.pages = pages
        self.date: str | None = None

    def send(self, receiver: Receiver) -> Coroutine[Any, Any, Body]:
        return self._bucket.send(self, receiver)

    def again(self) -> _List:
        return _List(self._bucket, self.request, self.page, self.pages)

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        if status != 200:
            return None
        self.date = headers.get("date")
        return ExpectedBody(0, PAGE_BYTES, Validator(0), check=self._check)

    def refuse(self, status: int, headers: Mapping[str, str], body: bytes) -> AsyncpqError | RetryableError:
        error = super().refuse(status, headers, body)
        if isinstance(error, AccessDeniedError) and not isinstance(error, CredentialsError):
            error.hint = LISTING_HINT
        return error

    def _check(self, body: bytes) -> None:
        try:
            self.pages.append(self._parse(body))
        except PageError as problem:
            code, message = parse_error(body)
            if code:  # the answer had begun when the store failed
                raise error_for(self.request, 200, code, message) from problem
            error = InvalidResponseError(str(problem), url=self.request.url)
            at_once = not self.page.encoded
            if at_once:  # it may hold a key that XML cannot
                self.page = replace(self.page, encoded=True)
                self._bucket.encoded = True
            raise RetryableError(error, at_once=at_once) from problem

    def _parse(self, body: bytes) -> ListPage:
        key = (self._bucket.url, self.page)
        known = self._bucket.known.get(key)
        if known is not None and known[0] == body:
            return known[1]
        page = parse_page(body)
        if len(body) <= _KNOWN_PAGE_BYTES:
            self._bucket.known[key] = (body, page)
        return page
