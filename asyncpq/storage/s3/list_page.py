"""One page of a bucket's listing: the ListObjectsV2 request and its response.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html. XML cannot hold all keys, so keys are requested
percent-encoded after a page fails to parse; not from the start, since LocalStack then compares encoded with plain keys.

A page with the same bytes as in the listing before is not parsed again.
"""

from __future__ import annotations

import time
from collections.abc import Coroutine, Hashable, Mapping, MutableMapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from urllib.parse import unquote_plus
from xml.etree import ElementTree

from asyncpq.errors import AccessDeniedError, AsyncpqError, CredentialsError, InvalidResponseError
from asyncpq.storage.base import RequestContext, Validator, http_date_s
from asyncpq.storage.http1 import Body, Receiver
from asyncpq.storage.limits import RetryableError
from asyncpq.storage.responses import ExpectedBody, RangeRequest
from asyncpq.storage.s3.requests import Route, S3Resource, SignedExchange, Signers, error_for, parse_error
from asyncpq.storage.s3.sigv4 import canonical_path, canonical_query
from asyncpq.storage.transport import Transport
from asyncpq.storage.wire import DirectWire

PAGE_BYTES = 16 * 1024 * 1024  # longest accepted page: 1,000 keys of 1,024 bytes, encoded, are 3 MiB


class PageError(Exception):
    """The response is not a page of a listing."""


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key, its size in bytes, its verbatim ETag or None, and the time of its write in seconds since the epoch."""

    key: str
    size: int
    etag: str | None
    modified: float | None = None


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Asks for the keys that begin with ``prefix`` and come after ``after``.

    Attributes:
        token: continuation token of the page before; replaces ``after``.
        folders: roll keys with a slash behind the prefix up into folders.
        encoded: ask for percent-encoded keys.
        most: keys and folders of the page; None for as many as the store gives.
    """

    prefix: str
    after: str = ""
    token: str | None = None
    folders: bool = False
    encoded: bool = False
    most: int | None = None

    def parameters(self) -> dict[str, str]:
        """The query's parameters."""
        names = {"list-type": "2", "prefix": self.prefix}
        if self.encoded:
            names["encoding-type"] = "url"
        if self.folders:
            names["delimiter"] = "/"
        if self.most is not None:
            names["max-keys"] = str(self.most)
        if self.token is not None:
            names["continuation-token"] = self.token
        elif self.after:
            names["start-after"] = self.after
        return names


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page.

    Attributes:
        keys, folders: ascending if the store keeps S3's order; folders end in a slash.
        token: continuation token; None on the last page.
    """

    keys: list[ListedKey]
    folders: list[str]
    token: str | None


def parse_page(body: bytes) -> ListPage:
    """Parse the XML of a page. Document types and entities are refused.

    Raises:
        PageError: malformed.
    """
    try:
        text = body.decode("utf-8")  # as text, so that a declared encoding has no effect
        if "<!DOCTYPE" in text or "<!ENTITY" in text:
            raise PageError("the listing has a document type")
        root = ElementTree.fromstring(text)
    except (UnicodeDecodeError, ElementTree.ParseError, ValueError) as error:
        raise PageError("the listing is not well-formed XML") from error
    space, _, name = root.tag.rpartition("}")
    space += "}" if space else ""
    if name != "ListBucketResult":
        raise PageError(f"the listing is a document of type {name[:40]!r}")
    decode = unquote_plus if root.findtext(f"{space}EncodingType") == "url" else str
    tags = tuple(space + name for name in ("Key", "Size", "ETag", "LastModified"))
    keys = [_listed(entry, tags, decode) for entry in root.iterfind(f"{space}Contents")]
    folders = [decode(_text(entry, f"{space}Prefix")) for entry in root.iterfind(f"{space}CommonPrefixes")]
    token = _next_token(root.findtext(f"{space}IsTruncated"), root.findtext(f"{space}NextContinuationToken"))
    return ListPage(keys, folders, token)


def page_of_response(response: Mapping[str, Any]) -> ListPage:
    """Make the page of botocore's parsed response.

    Raises:
        PageError: malformed.
    """
    try:
        keys = [
            ListedKey(str(entry["Key"]), int(entry["Size"]), _etag(entry.get("ETag")), _time(entry.get("LastModified")))
            for entry in response.get("Contents") or ()
        ]
        folders = [str(entry["Prefix"]) for entry in response.get("CommonPrefixes") or ()]
    except (KeyError, ValueError, TypeError) as error:
        raise PageError("an entry of the listing has no key or no size") from error
    return ListPage(keys, folders, _next_token(str(response.get("IsTruncated")), response.get("NextContinuationToken")))


def _listed(entry: ElementTree.Element, tags: tuple[str, ...], decode: Any) -> ListedKey:
    key, size, etag, modified = tags
    number = _text(entry, size).strip()
    if not (number.isascii() and number.isdigit() and len(number) < 20):
        raise PageError("an entry of the listing has no size")
    return ListedKey(
        decode(_text(entry, key)), int(number), _etag(entry.findtext(etag)), _time(entry.findtext(modified))
    )


def _text(entry: ElementTree.Element, tag: str) -> str:
    text = entry.findtext(tag)
    if not text:
        raise PageError(f"an entry of the listing has no {tag.rpartition('}')[2]}")
    return text


def _etag(value: str | None) -> str | None:
    """An ETag with quotes, as GETs have it; some servers' listings omit them."""
    if not value:
        return None
    return value if value.endswith('"') else f'"{value}"'


def _time(value: str | datetime | None) -> float | None:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        return moment.timestamp() if moment is not None and moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _next_token(truncated: str | None, token: str | None) -> str | None:
    said = (truncated or "").strip().lower()
    if said not in ("true", "false"):
        raise PageError("the listing does not say whether it is complete")
    if said == "false":
        return None
    if not token:
        raise PageError("the listing is truncated but has no continuation token")
    return token


_KNOWN_PAGE_BYTES = 1024 * 1024
LISTING_HINT = "Listing needs s3:ListBucket on the bucket; without it, give the urls of the files."


class S3Bucket(S3Resource):
    """One bucket, for listing. Made by S3Store.

    Args:
        url: the listed one, for messages.
        known: pages of the last listings, as bytes and parsed: an unchanged page is not parsed again.
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
        self.encoded = False  # True after a page that was not well-formed XML

    async def fetch_page(self, page: PageRequest, context: RequestContext) -> ListPage:
        """Fetch one page.

        Raises:
            StoreError: any of the store's errors.
        """
        exchange = _List(self, RangeRequest(0, 0, self.url), replace(page, encoded=self.encoded), [])
        await self._transport.send(exchange, context)
        return exchange.pages[-1]

    async def fetch_clock(self, prefix: str, context: RequestContext) -> float:
        """The store's time, from the Date header of a LIST.

        Raises:
            InvalidResponseError: the response has no date.
            StoreError: any of the store's errors.
        """
        exchange = _List(self, RangeRequest(0, 0, self.url), PageRequest(prefix, most=1), [])
        await self._transport.send(exchange, context)
        return clock_of(exchange.date, self.url)

    def send(self, exchange: _List, receiver: Receiver) -> Coroutine[Any, Any, Body]:
        """Sign and send one attempt."""
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
        InvalidResponseError: it has none.
    """
    seconds = http_date_s(date)
    if seconds is None:
        raise InvalidResponseError("the store's response has no date", url=url)
    return seconds


class _List(SignedExchange):
    """One LIST. ``pages`` receives the page of this request or of its hedge."""

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
            if code:  # the store failed after it had begun the response
                raise error_for(self.request, 200, code, message) from problem
            error = InvalidResponseError(str(problem), url=self.request.url)
            at_once = not self.page.encoded
            if at_once:  # the page may hold a key that XML cannot
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
