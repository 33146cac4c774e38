"""Pages of ListObjectsV2: the request of one page from a bucket, and its XML.

https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html. XML cannot hold all keys, so keys are requested
percent-encoded after a page fails to parse; not from the start, since LocalStack then compares encoded with plain keys.

The XML comes from a server that may lie. So it is read element by element, nothing is kept that a listing does not
need, and there are limits to its depth, its elements and their tags.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from typing import Any, Final
from urllib.parse import unquote_plus

from asyncpq.errors import InvalidResponseError
from asyncpq.records import LazyRecords, dataclass
from asyncpq.storage.base import Validator
from asyncpq.storage.responses import (
    LISTING_HINT,
    ExpectedBody,
    RangeRequest,
    error_for,
    parse_error,
    parse_size,
    quoted_etag,
)
from asyncpq.storage.retries import RetryableError
from asyncpq.storage.s3.direct import DirectBucket, KeyListing, SignedExchange
from asyncpq.storage.s3.sigv4 import canonical_query

_MAX_TEXT: Final = 16 * 1024  # characters of a key, an ETag or a token, which become parts of further requests
_MAX_DEPTH: Final = 16  # a page has 4 levels
_MAX_TAGS: Final = 1 << 20  # a page of 1,000 keys has 20,000
_PIECE_BYTES: Final = 64 * 1024  # given to the parser at once
_ROOT: Final = "ListBucketResult"


class PageError(Exception):
    """The response is not a page of a listing."""


@dataclass(frozen=True, slots=True)
class ListedKey:
    """A key, its size in bytes, its verbatim ETag or None, and the time of its write in seconds since the epoch."""

    key: str
    size: int
    etag: str | None
    modified: float | None = None


def kept_keys(rows: Sequence[tuple[Any, ...]]) -> LazyRecords[ListedKey]:
    """Return the keys whose fields are ``rows``: see :func:`row_of_key`."""
    return LazyRecords(rows, _key_of_row)


def _key_of_row(row: tuple[Any, ...]) -> ListedKey:
    return ListedKey(*row)


#: Returns the fields of a :class:`ListedKey` as a plain tuple.
row_of_key: Final[Callable[[ListedKey], tuple[Any, ...]]] = attrgetter("key", "size", "etag", "modified")


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request of one page: of the keys that begin with ``prefix`` and come after ``after``."""

    prefix: str
    after: str = ""
    token: str | None = None  # continuation token of the page before; replaces ``after``
    folders: bool = False  # roll keys with a slash after the prefix up into folders
    encoded: bool = False  # request percent-encoded keys
    most: int | None = None  # maximum of keys and folders on the page; None for the store's own maximum

    def parameters(self) -> dict[str, str]:
        """Return the parameters of the request's query."""
        names = {
            "list-type": "2",
            "prefix": self.prefix,
            "encoding-type": "url" if self.encoded else None,
            "delimiter": "/" if self.folders else None,
            "max-keys": None if self.most is None else str(self.most),
            "continuation-token": self.token,
            "start-after": self.after if self.token is None and self.after else None,
        }
        return {name: value for name, value in names.items() if value is not None}


@dataclass(frozen=True, slots=True)
class ListPage:
    """One page of a listing; ``keys`` and ``folders`` (with a final slash) ascend if the store keeps S3's order."""

    keys: Sequence[ListedKey]
    folders: list[str]
    token: str | None  # continuation token of the next page; None on the last page


def parse_page(body: bytes) -> ListPage:
    """Parse the XML of a page; raise PageError if it is malformed, or has document types or entities."""
    from xml.parsers import expat  # no read of a known object lists

    if b"<!DOCTYPE" in body or b"<!ENTITY" in body:
        raise PageError("the listing's XML declares a document type or entity, which asyncpq refuses")
    if b"\0" in body or body.count(b"<") > _MAX_TAGS:  # UTF-16 has NULs, and the lines above do not see its tags
        raise PageError(f"the listing's XML is not in UTF-8, or has more than {_MAX_TAGS} tags")
    reader, parser = _PageReader(), expat.ParserCreate("utf-8")  # a declared encoding has no effect
    parser.buffer_text = True
    parser.ordered_attributes = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text.append
    try:
        for start in range(0, len(body), _PIECE_BYTES):
            parser.Parse(body[start : start + _PIECE_BYTES])
            if start - parser.CurrentByteIndex > _PIECE_BYTES:
                raise PageError(f"the listing's XML has a tag of more than {_PIECE_BYTES} bytes")
        parser.Parse(b"", True)
    except expat.ExpatError as error:
        error.__traceback__ = None  # its frames hold the body
        raise PageError("the listing is not well-formed XML") from error
    return reader.page()


class _PageReader:
    """Collects the members of a page from the XML's elements, by their depth below the root."""

    def __init__(self) -> None:
        self.text: list[str] = []  # of the current element
        self._depth = 0
        self._space = ""  # prefix of the elements' namespace
        self._entry: dict[str, str] = {}  # members of the root's current child
        self._keys: list[tuple[str | None, ...]] = []
        self._folders: list[str | None] = []
        self._members: dict[str, str] = {}

    def start(self, name: str, attributes: object) -> None:
        depth = self._depth = self._depth + 1
        self.text.clear()
        if depth == 1:
            self._space = name.removesuffix(_ROOT)
            if not name.endswith(_ROOT) or self._space[-1:] not in ("", ":"):
                raise PageError(f"the root element of the listing is {name[:40]!r}, expected {_ROOT!r}")
        elif depth == 2:
            self._entry = {}
        elif depth > _MAX_DEPTH:
            raise PageError(f"the listing's XML is nested more than {_MAX_DEPTH} levels deep")

    def end(self, name: str) -> None:
        depth = self._depth
        self._depth = depth - 1
        if depth == 3:
            if name not in self._entry:  # the first of several counts
                self._entry[name] = "".join(self.text)
        elif depth == 2:
            self._end_member(name.removeprefix(self._space))
        self.text.clear()

    def _end_member(self, name: str) -> None:
        space, entry = self._space, self._entry
        if name == "Contents":
            if not entry.get(f"{space}Key"):
                raise PageError(_NO_KEY)
            self._keys.append(tuple([entry.get(space + member) for member in _OF_KEY]))
        elif name == "CommonPrefixes":
            self._folders.append(entry.get(f"{space}Prefix"))
        elif name in _MEMBERS:
            self._members.setdefault(name, "".join(self.text))

    def page(self) -> ListPage:
        members = self._members
        decode = unquote_plus if members.get("EncodingType") == "url" else str
        keys = [_listed_key(decode, *entry) for entry in self._keys]
        token = _next_token(str(members.get("IsTruncated")), members.get("NextContinuationToken"))
        return ListPage(keys, _decoded(self._folders, decode), token)


_OF_KEY: Final = ("Key", "Size", "ETag", "LastModified")
_MEMBERS: Final = frozenset({"EncodingType", "IsTruncated", "NextContinuationToken"})
_NO_KEY: Final = "an entry of the listing has no key or no valid size"


def page_of_response(response: Mapping[str, Any], decode: Callable[[str], str] = str) -> ListPage:
    """Return the page of a response in botocore's form; ``decode`` decodes keys. Raises PageError if malformed."""
    keys = [_listed_key(decode, *map(entry.get, _OF_KEY)) for entry in response.get("Contents") or ()]
    folders = [entry.get("Prefix") for entry in response.get("CommonPrefixes") or ()]
    token = _next_token(str(response.get("IsTruncated")), response.get("NextContinuationToken"))
    return ListPage(keys, _decoded(folders, decode), token)


def _listed_key(decode: Callable[[str], str], key: Any, size: Any, etag: Any, modified: Any) -> ListedKey:
    num_bytes = parse_size(str(size).strip())
    if not key or num_bytes is None:
        raise PageError(_NO_KEY)
    _short(etag or "", "an ETag of the listing")
    return ListedKey(decode(_short(key, "a key of the listing")), num_bytes, quoted_etag(etag), _time(modified))


def _decoded(folders: list[str | None], decode: Callable[[str], str]) -> list[str]:
    names = [decode(_short(folder, "a folder of the listing")) for folder in folders if folder]
    if len(names) < len(folders):
        raise PageError("a folder of the listing has no prefix")
    return names


def _short(text: str, what: str) -> str:
    if len(text) > _MAX_TEXT:
        raise PageError(f"{what} has {len(text)} characters, more than {_MAX_TEXT}")
    return text


def _time(value: str | datetime | None) -> float | None:
    try:
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        return moment.timestamp() if moment is not None and moment.tzinfo is not None else None
    except (ValueError, OverflowError):
        return None


def _next_token(truncated: str, token: str | None) -> str | None:
    flag = truncated.strip().lower()
    if flag not in ("true", "false"):
        raise PageError(f"IsTruncated of the listing is {truncated[:40]!r}, expected 'true' or 'false'")
    if flag == "false":
        return None
    if not token:
        raise PageError("the listing is truncated but has no continuation token")
    return _short(token, "the listing's continuation token")


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
