"""Listings of a bucket: all keys of a prefix, with several pages of ListObjectsV2 under way at once.

A request can ask for the page after the last key of the page before, or after any guessed key. While pages come full,
ranges of keys are cut in two and both halves are listed. The number of cuts is bounded by the pages so far, so wrong
guesses cost a fraction of the listing. A bad cut costs a request that finds nothing; no cut loses a key.

A directory bucket lists keys in no order, and cannot begin after a given key. So its folders are listed concurrently
instead, each with pages of its own.

Pages are those of ListObjectsV2 (https://docs.aws.amazon.com/AmazonS3/latest/API/API_ListObjectsV2.html). XML cannot
hold all keys, so keys are requested percent-encoded after a page fails to parse; not from the start, since LocalStack
then compares encoded with plain keys. The XML comes from a server that may lie. So it is read element by element,
nothing is kept that a listing does not need, and there are limits to its depth, its elements and their tags.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from dataclasses import field, replace
from datetime import datetime
from itertools import groupby, islice, zip_longest
from operator import attrgetter, itemgetter
from typing import Any, Final, NamedTuple
from urllib.parse import unquote_plus

from asyncpq.errors import InvalidResponseError
from asyncpq.records import LazyRecords, dataclass
from asyncpq.storage.base import RequestContext, Validator
from asyncpq.storage.limits import ListingLimit, PageSequence
from asyncpq.storage.response_checks import (
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
from asyncpq.storage.threads import end_tasks, results_of
from asyncpq.waiting import wait_futures

_MAX_TEXT: Final = 16 * 1024  # characters of a key, an ETag or a token, which become parts of further requests
_MAX_DEPTH: Final = 16  # a page has 4 levels
_MAX_TAGS: Final = 1 << 20  # a page of 1,000 keys has 20,000
_PIECE_BYTES: Final = 64 * 1024  # given to the parser at once
_ROOT: Final = "ListBucketResult"


# Elements as most stores write them: without attributes, comments, control characters, or entities but for an ETag's
# quotes.
_HEAD: Final = re.compile(
    rf"(?:<\?xml[^<>]*\?>)?\s*<{_ROOT}(?: [^<>]*[^<>/])?>\s*(?:<(\w+)>[^<&]*</\1>\s*){{0,16}}(?=<Contents>)", re.ASCII
)
_CONTENTS: Final = re.compile(
    r"<Contents><Key>([^<&\0-\x1f]+)</Key><LastModified>([^<&\0-\x1f]*)</LastModified>"
    r"<ETag>((?:&(?:quot|#34);)?[^<&\0-\x1f]*(?:&(?:quot|#34);)?)</ETag>(?:<(Checksum\w+)>\w+</\4>)*"
    r"<Size>(\d+)</Size>(?:<StorageClass>\w+</StorageClass>)?</Contents>\s*",
    re.ASCII,
)


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
    entries, body = _plain_entries(body)
    reader, parser = _PageReader(entries), expat.ParserCreate("utf-8")  # a declared encoding has no effect
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


def _plain_entries(body: bytes) -> tuple[list[tuple[str | None, ...]], bytes]:
    """Cut the keys that follow the first one out of a page, as far as they are written as most stores do; return their
    members and the rest of the page. The parser would take four times as long for them.

    The first key stays, so that the parser sees what these keys are part of.
    """
    try:
        text = "" if b"<!" in body else body.decode()
    except UnicodeDecodeError:
        return [], body
    head = _HEAD.match(text)
    first = None if head is None else _CONTENTS.match(text, head.end())
    if first is None:
        return [], body
    entries: list[tuple[str | None, ...]] = []
    start = stop = first.end()
    while (entry := _CONTENTS.match(text, stop)) is not None:
        key, modified, etag, _, size = entry.groups()
        entries.append((key, size, etag.replace("&quot;", '"').replace("&#34;", '"'), modified))
        stop = entry.end()
    return entries, (text[:start] + text[stop:]).encode()


class _PageReader:
    """Collects the members of a page from the XML's elements, by their depth below the root; ``entries`` are those of
    the keys after the first one."""

    def __init__(self, entries: list[tuple[str | None, ...]]) -> None:
        self.text: list[str] = []  # of the current element
        self._depth = 0
        self._space = ""  # prefix of the elements' namespace
        self._entry: dict[str, str] = {}  # members of the root's current child
        self._plain = entries
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
        self._keys[1:1] = self._plain
        keys = [_listed_key(decode, *entry) for entry in self._keys]
        token = _next_token(str(members.get("IsTruncated")), members.get("NextContinuationToken"))
        return ListPage(keys, _decoded(self._folders, decode), token)


_OF_KEY: Final = ("Key", "Size", "ETag", "LastModified")
_MEMBERS: Final = frozenset({"EncodingType", "IsTruncated", "NextContinuationToken"})
_NO_KEY: Final = "an entry of the listing has no key or no valid size"


def page_of_response(response: Mapping[str, Any]) -> ListPage:
    """Return the page of a response in botocore's form, which has decoded the keys. Raises PageError if malformed."""
    keys = [_listed_key(str, *map(entry.get, _OF_KEY)) for entry in response.get("Contents") or ()]
    folders = [entry.get("Prefix") for entry in response.get("CommonPrefixes") or ()]
    token = _next_token(str(response.get("IsTruncated")), response.get("NextContinuationToken"))
    return ListPage(keys, _decoded(folders, str), token)


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
    """A request for one page of a listing. The page is appended to :attr:`pages`, also if the request's hedge gets
    it."""

    denied_hint = LISTING_HINT

    def __init__(self, bucket: DirectBucket, listing: KeyListing, page: PageRequest) -> None:
        self.request: RangeRequest = RangeRequest(0, 0, listing.url)
        self._bucket = bucket
        self._listing = listing
        self._page = page
        self._path = bucket.root
        self._targets = {}
        self.pages: list[ListPage] = []
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


LAST = "\U0010ffff"  # the greatest character

_PAGES_AT_ONCE = 16
_FOLDERS_AT_ONCE = 16
_FEW_FOLDERS = 32  # folders are listed singly although none on their level is unwanted
_LEVELS_IN_VAIN = 8  # without an unwanted folder, before the search for one ends
_DIGITS = frozenset("0123456789")
_HEX = frozenset("0123456789abcdef")
_LONGEST = 200  # characters of a key that are examined
_LONGEST_FOLDER = 4096  # characters; a key of S3 has at most 1,024 bytes


class _DisorderError(Exception):
    """The store does not list keys in ascending order, or ignores the start-after parameter."""


class Cut(NamedTuple):
    """A key, which need not exist, at which a range of keys can be cut in two; with a weight that says how much the cut
    is worth."""

    key: str
    weight: float  # fraction of all keys in the range if keys are spread evenly; for comparisons


class Alphabets:
    """The characters that occurred so far at each position of the keys."""

    def __init__(self) -> None:
        self._sets: list[set[str]] = []
        self._sorted: list[str] = []

    def learn(self, keys: Sequence[str]) -> None:
        """Add the characters of the keys of a page."""
        for position, marks in enumerate(islice(zip_longest(*keys, fillvalue=""), _LONGEST)):
            if position == len(self._sets):
                self._sets.append(set())
                self._sorted.append("")
            new = set(marks)
            new.discard("")
            if new <= self._sets[position]:
                continue
            if not new.isdisjoint(_DIGITS):
                new |= _HEX if new <= _HEX and len(new - _DIGITS) > 2 else _DIGITS
            self._sets[position] |= new
            self._sorted[position] = "".join(sorted(self._sets[position]))

    def at(self, position: int) -> str:
        """Return the characters that occur at ``position``, ascending; "" if no key is so long."""
        return self._sorted[position] if position < len(self._sorted) else ""


def skip(first: str, last: str, shorter: int) -> str | None:
    """Return a bound above all keys that share the beginning that ``first`` and ``last`` have in common.

    ``shorter`` is by how many characters that common beginning is shortened first; None if nothing of it remains.
    """
    common = _common(first, last)
    return None if shorter >= common else first[: common - shorter] + LAST


def middle(low: str, high: str, alphabets: Alphabets) -> Cut | None:
    """Return where to cut the keys between ``low`` and ``high`` (low < high) about in half; None if that cannot be
    guessed."""
    depth = _common(low, high)
    weight = 1.0
    for position in range(depth):
        weight /= len(alphabets.at(position)) or 1
    head, bound = low[:depth], high[depth : depth + 1]
    below = low[depth : depth + 1]
    while depth < _LONGEST:
        known = alphabets.at(depth)
        if not known:
            return None
        between = [mark for mark in known if mark > below and (not bound or mark < bound)]
        part = weight * len(between) / len(known)
        if bound and below and len(high) > depth + 1 and bound != LAST:
            between.append(bound)  # between the keys that begin like low and those that begin like high
        if between:
            return Cut(head + between[len(between) // 2], part or weight / len(known) / 2)
        weight /= len(known)
        if below:  # go on among the keys that begin like low
            head, bound, below = head + below, "", low[depth + 1 : depth + 2]
        elif bound:  # low has ended: go on among the keys that begin like high
            head, bound = head + bound, high[depth + 1 : depth + 2]
            if not bound:
                return None
        else:
            return None
        depth += 1
    return None


def _common(first: str, second: str) -> int:
    """Return how many characters at their beginning ``first`` and ``second`` have in common."""
    shorter = min(len(first), len(second))
    return next((position for position in range(shorter) if first[position] != second[position]), shorter)


FetchPage = Callable[[PageRequest, RequestContext], Awaitable[ListPage]]


@dataclass(slots=True)
class KeyPages:
    """Fetches the pages of one listing."""

    fetch_page: FetchPage
    context: RequestContext
    limit: ListingLimit
    ordered: bool = True  # the store lists in ascending order, and can begin after any key
    # by prefix, how many folders a page of keys covers, of those of which it saved requests to list only some folders
    selective: MutableMapping[str, int] = field(default_factory=dict)

    async def fetch(self, request: PageRequest, round_: int) -> ListPage:
        """Fetch a page. Raises InvalidResponseError if it has keys outside of the requested prefix, ResourceLimitError
        if the listing has too many keys."""
        page = await self.fetch_page(request, self.context.step(self.context.purpose, round_))
        prefix = request.prefix
        for name in (*[listed.key for listed in page.keys], *page.folders) if prefix else ():
            if not name.startswith(prefix):
                raise InvalidResponseError(
                    f"the store lists {name[:200]!r}, which does not begin with the requested prefix {prefix!r}",
                    url=self.limit.url,
                    hint="Use a server that supports the prefix of ListObjectsV2, or pass the urls of the files.",
                )
        self.limit.receive(len(page.keys) + len(page.folders))
        return page


async def list_keys(pages: KeyPages, prefix: str) -> Sequence[ListedKey]:
    """List all keys that begin with ``prefix``, ascending. Raises InvalidResponseError if the listing does not end,
    ResourceLimitError if it has too many keys."""
    round_ = pages.context.round
    keys = await _list_rest(pages, prefix, await pages.fetch(PageRequest(prefix), round_), round_)
    pages.limit.check(len(keys))
    return keys


async def _list_rest(pages: KeyPages, prefix: str, first: ListPage, round_: int) -> Sequence[ListedKey]:
    """List all keys of ``prefix``, whose ``first`` page was fetched in round number ``round_``."""
    if first.token is None:
        return sorted(first.keys, key=attrgetter("key"))
    if not pages.ordered:
        return await _in_turn(pages, prefix, first, round_)
    try:
        return await _Ranges(pages, prefix).run(_Range("", None, round_, PageSequence(pages.limit)), first)
    except _DisorderError:
        return await _in_turn(pages, prefix, first, round_)


async def list_between(pages: KeyPages, prefix: str, after: str, last: str, round_: int) -> Sequence[ListedKey]:
    """List the keys after ``after``, up to and including ``last``, beginning in round ``round_``."""
    try:
        return await _Ranges(pages, prefix).run(_Range(after, last, round_ - 1, PageSequence(pages.limit)))
    except _DisorderError:
        keys = await _list_rest(pages, prefix, await pages.fetch(PageRequest(prefix), round_), round_)
        return kept_keys([row_of_key(listed) for listed in keys if after < listed.key <= last])


async def _in_turn(pages: KeyPages, prefix: str, page: ListPage, round_: int) -> Sequence[ListedKey]:
    """List the keys one page after the other, from a store that lists in any order; return them ascending."""
    rows = list(map(row_of_key, page.keys))
    seen = {listed.key for listed in page.keys}
    sequence = PageSequence(pages.limit)
    while page.token is not None:
        sequence.follow(page.token, page.keys)
        round_ += 1
        page = await pages.fetch(PageRequest(prefix, token=page.token), round_)
        for listed in page.keys:
            if listed.key in seen:
                raise pages.limit.endless("a key came twice")
            seen.add(listed.key)
        rows += map(row_of_key, page.keys)
    return kept_keys(sorted(rows, key=itemgetter(0)))


@dataclass(slots=True, eq=False)
class _Range:
    """The keys after ``after``, up to and including ``last`` (None: up to the end of the listing), and what was listed
    of them."""

    after: str
    last: str | None
    round: int  # of the last page
    sequence: PageSequence
    skips: int = 0  # cuts made while the end was unknown
    rows: list[tuple[Any, ...]] = field(default_factory=list)  # of the keys received so far
    token: str | None = None  # of the next page; None if it is requested by ``after``
    first: str = ""  # first key of the last page


class _Ranges:
    """Lists one range of keys: cuts it into smaller ranges, which are listed concurrently."""

    def __init__(self, pages: KeyPages, prefix: str) -> None:
        self._pages = pages
        self._prefix = prefix
        self._alphabets = Alphabets()
        self._live: dict[asyncio.Task[ListPage], _Range] = {}
        self._ranges: list[_Range] = []
        self._full = 0  # pages all of whose keys were new
        self._partial = 0  # other pages

    async def run(self, whole: _Range, first: ListPage | None = None) -> Sequence[ListedKey]:
        """List the keys of the range ``whole``; ``first`` is its first page, None if that was not fetched yet."""
        self._ranges.append(whole)
        if first is None or self._take(whole, first):
            self._go_on(whole)
        try:
            while self._live:
                self._cut()
                done, _ = await wait_futures(self._live, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    range_ = self._live.pop(task)
                    if self._take(range_, task.result()):
                        self._go_on(range_)
        finally:
            await end_tasks(self._live)
        self._ranges.sort(key=lambda range_: range_.rows[0][0] if range_.rows else "")
        return kept_keys([row for range_ in self._ranges for row in range_.rows])

    def _go_on(self, range_: _Range) -> None:
        """Request the range's next page."""
        range_.round += 1
        request = PageRequest(self._prefix, after=range_.after, token=range_.token)
        self._live[asyncio.ensure_future(self._pages.fetch(request, range_.round))] = range_

    def _take(self, range_: _Range, page: ListPage) -> bool:
        """Store the page's keys that are in the range; return whether more pages follow."""
        last = range_.after
        for listed in page.keys:
            if listed.key <= last:
                raise _DisorderError
            last = listed.key
        self._alphabets.learn([listed.key[len(self._prefix) :] for listed in page.keys])
        kept = page.keys
        if range_.last is not None and last > range_.last:
            kept = [listed for listed in kept if listed.key <= range_.last]
        range_.rows += map(row_of_key, kept)
        ended = page.token is None or len(kept) < len(page.keys)
        if ended or not kept:
            self._partial += 1
        else:
            self._full += 1
        if kept:
            range_.first, range_.after = kept[0].key, kept[-1].key
        if ended or page.token is None:
            return False
        range_.sequence.follow(page.token, page.keys)
        range_.token = page.token
        return range_.last is None or range_.after < range_.last

    def _cut(self) -> None:
        """Cut ranges that are being listed in two, as often as the number of full pages so far allows."""
        while len(self._live) < _PAGES_AT_ONCE and self._partial + len(self._live) <= self._full // 4:
            cuts = [(cut.weight, cut.key, range_) for range_ in self._live.values() if (cut := self._cut_of(range_))]
            if not cuts:
                return
            _, key, range_ = max(cuts, key=lambda cut: cut[0])
            sequence = PageSequence(self._pages.limit)
            behind = _Range(key, range_.last, range_.round - 1, sequence, range_.skips + (range_.last is None))
            range_.last = key
            self._ranges.append(behind)
            self._go_on(behind)

    def _cut_of(self, range_: _Range) -> Cut | None:
        """Return where to cut a range; None if it should not be cut now."""
        if not range_.rows:
            return None
        begin = len(self._prefix)
        after = range_.after[begin:]
        if range_.last is None:
            key = skip(range_.first[begin:], after, range_.skips)
            if key is not None:
                return Cut(self._prefix + key, 2.0)
        last = LAST if range_.last is None else range_.last[begin:]
        cut = middle(after, last, self._alphabets) if after < last else None
        return None if cut is None else Cut(self._prefix + cut.key, cut.weight)


async def list_wanted_keys(pages: KeyPages, prefix: str, wants: Callable[[str], bool]) -> Sequence[ListedKey]:
    """List the keys that begin with ``prefix``, ascending, perhaps without those of unwanted folders.

    ``wants`` is called with a common beginning of keys that ends in a slash; if it returns False, these keys may be
    left out. Folder markers, which end in a slash, may also be left out.
    """
    rows = await _Folders(pages, wants).list_folder(prefix, pages.context.round)
    by_key = {row[0]: row for row in rows}
    pages.limit.check(len(by_key))
    return kept_keys([row for _, row in sorted(by_key.items())])


class _Folders:
    """Lists a prefix folder by folder where this saves requests."""

    def __init__(self, pages: KeyPages, wants: Callable[[str], bool]) -> None:
        self._pages = pages
        self._wants = wants
        self._in_vain = 0
        self._turns = asyncio.Semaphore(_FOLDERS_AT_ONCE)

    async def list_folder(self, prefix: str, round_: int) -> list[tuple[Any, ...]]:
        """List the keys of a folder, as rows, perhaps without keys of unwanted folders; some keys may occur twice."""
        if len(prefix) > _LONGEST_FOLDER:
            raise self._pages.limit.endless("folders lie in folders without an end")
        selective = self._pages.selective
        async with self._turns:
            first: ListPage | None = None
            if prefix not in selective:
                first = await self._pages.fetch(PageRequest(prefix), round_)
                if first.token is None:
                    return list(map(row_of_key, first.keys))
                round_ += 1
            level = await self._level(prefix, first, round_)
            if level is None:
                selective.pop(prefix, None)
                if first is None:
                    round_ += 2
                    first = await self._pages.fetch(PageRequest(prefix), round_ - 1)
                return list(map(row_of_key, await _list_rest(self._pages, prefix, first, round_ - 1)))
        rows, runs = level
        for part in await results_of([self._list_run(prefix, run, round_ + 1) for run in runs]):
            rows += part
        return rows

    async def _list_run(self, prefix: str, run: Sequence[str], round_: int) -> list[tuple[Any, ...]]:
        if len(run) == 1:
            return await self.list_folder(run[0], round_)
        async with self._turns:
            return list(map(row_of_key, await list_between(self._pages, prefix, run[0], run[-1] + LAST, round_)))

    async def _level(
        self, prefix: str, first: ListPage | None, round_: int
    ) -> tuple[list[tuple[Any, ...]], list[list[str]]] | None:
        """Return the keys directly in a folder, and its wanted folders, grouped in runs without an unwanted folder in
        between. ``first`` is the first page of all its keys; None if it is known how many folders that covers.

        None if the whole folder should be listed, since leaving folders out would not save requests.
        """
        rows: list[tuple[Any, ...]] = []
        folders: list[tuple[str, bool]] = []
        token: str | None = None
        sequence = PageSequence(self._pages.limit)
        keys_of_page = () if first is None else first.keys
        begun = {listed.key[: listed.key.find("/", len(prefix)) + 1] for listed in keys_of_page}
        a_page = 0 if first is not None else self._pages.selective[prefix]  # folders that one page of keys covers
        ordered = self._pages.ordered
        if not ordered and begun == {""}:  # a folder without folders, as it seems
            return None
        while True:
            page = await self._pages.fetch(PageRequest(prefix, token=token, folders=True), round_)
            rows += map(row_of_key, page.keys)
            folders += [(folder, self._wants(folder)) for folder in page.folders]
            a_page += sum(folder in begun for folder in page.folders)
            unwanted = sum(not wanted for _, wanted in folders)
            if page.token is None:
                break
            helps = unwanted * 2 >= len(folders) >= a_page * 2 or (not ordered and a_page <= 1)
            if not helps:
                return None
            sequence.follow(page.token, page.keys, page.folders)
            token, round_ = page.token, round_ + 1
        if unwanted:
            self._pages.selective[prefix] = a_page
        if a_page <= 1:  # each fills pages of its own
            if not unwanted and ordered:
                self._in_vain += 1
                if self._in_vain > _LEVELS_IN_VAIN or len(folders) > _FEW_FOLDERS:
                    return None
            return rows, [[folder] for folder, wanted in folders if wanted]
        runs = [[folder for folder, _ in run] for wanted, run in groupby(folders, key=lambda item: item[1]) if wanted]
        if not ordered:
            runs = [[folder] for run in runs for folder in run]
        return (rows, runs) if unwanted and len(runs) < len(folders) / a_page else None
