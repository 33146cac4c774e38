"""The request for a page of a listing of a :class:`asyncpq.storage.s3.direct.DirectBucket`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from asyncpq.errors import InvalidResponseError
from asyncpq.storage.base import Validator
from asyncpq.storage.responses import LISTING_HINT, ExpectedBody, RangeRequest, error_for, parse_error
from asyncpq.storage.retries import RetryableError
from asyncpq.storage.s3.direct import DirectBucket, KeyListing, SignedExchange
from asyncpq.storage.s3.listing_pages import ListPage, PageError, PageRequest, parse_page
from asyncpq.storage.s3.sigv4 import canonical_query

PAGE_BYTES = 16 * 1024 * 1024  # longest accepted page: 1,000 keys of 1,024 bytes, encoded, are 3 MiB
_KNOWN_PAGE_BYTES = 1024 * 1024


class S3List(SignedExchange):
    """A request for one page of a listing. The page is appended to ``pages``, also if the request's hedge gets it."""

    denied_hint = LISTING_HINT

    def __init__(self, bucket: DirectBucket, listing: KeyListing, page: PageRequest, pages: list[ListPage]) -> None:
        self.request: RangeRequest = RangeRequest(0, 0, listing.url)
        self._bucket = bucket
        self._listing = listing
        self._page = page
        self._path = bucket.root
        self._targets = {}
        self.pages = pages
        self.date: str | None = None

    def query_and_headers(self) -> tuple[str, Mapping[str, str]]:
        return canonical_query(**self._page.parameters()), {}

    def accept(self, status: int, headers: Mapping[str, str]) -> ExpectedBody | None:
        if status != 200:
            return None
        self.date = headers.get("date")
        return ExpectedBody(0, PAGE_BYTES, Validator(0), check=self._check)

    def _check(self, body: bytes) -> None:
        key, known_pages = (self._listing.url, self._page), self._bucket.known_pages
        with self._bucket.pages_lock:
            known = known_pages.get(key)
        if known is not None and known[0] == body:
            self.pages.append(known[1])
            return
        try:
            page = parse_page(body)
        except PageError as problem:
            code, message = parse_error(body)
            if code:  # the store failed after it had begun the response
                raise error_for(self.request, 200, code, message) from problem
            problem.__traceback__ = None  # its frames hold the page, which may be large
            if self._page.encoded:  # the whole response came: a further one would not be better
                raise InvalidResponseError(str(problem), url=self.request.url) from problem
            # the page may contain a key that XML cannot represent
            self._page = replace(self._page, encoded=True)
            self._listing.encoded = True
            raise RetryableError(InvalidResponseError(str(problem), url=self.request.url), at_once=True) from problem
        finally:
            size, body = len(body), body if len(body) <= _KNOWN_PAGE_BYTES else b""  # an error's frames hold it
        self.pages.append(page)
        if size <= _KNOWN_PAGE_BYTES:
            with self._bucket.pages_lock:
                known_pages[key] = (body, page)
