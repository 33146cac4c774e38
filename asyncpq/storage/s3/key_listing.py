"""Lists the keys of a prefix, or of wanted folders in it, with several pages under way at once.

A page can be requested behind the last key of the page before, or behind any guessed key. While pages come full, ranges
of keys are cut in two and both halves are listed. The number of cuts is bounded by the pages so far, so wrong guesses
cost a fraction of the listing. A bad cut costs a request that finds nothing; no cut loses a key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import NamedTuple

from asyncpq.errors import InvalidResponseError
from asyncpq.storage.base import RequestContext
from asyncpq.storage.concurrency import results_of
from asyncpq.storage.s3.list_page import ListedKey, ListPage, PageRequest

LAST = "\U0010ffff"  # the greatest character

_DIGITS = frozenset("0123456789")
_HEX = frozenset("0123456789abcdef")
_LONGEST = 200  # characters of a key that are examined


class Cut(NamedTuple):
    """A possible key between the ends of a range.

    Attributes:
        weight: fraction of all keys in the range if keys are spread evenly; for comparisons.
    """

    key: str
    weight: float


class Alphabets:
    """The characters that occur at each position of the keys."""

    def __init__(self) -> None:
        self._sets: list[set[str]] = []
        self._sorted: list[str] = []

    def learn(self, keys: Sequence[str]) -> None:
        """Add the keys of a page."""
        longest = min(max(map(len, keys), default=0), _LONGEST)
        while len(self._sets) < longest:
            self._sets.append(set())
            self._sorted.append("")
        for position in range(longest):
            new = {key[position] for key in keys if len(key) > position}
            if new <= self._sets[position]:
                continue
            if not new.isdisjoint(_DIGITS):
                new |= _HEX if new <= _HEX and len(new - _DIGITS) > 2 else _DIGITS
            self._sets[position] |= new
            self._sorted[position] = "".join(sorted(self._sets[position]))

    def at(self, position: int) -> str:
        """The characters at a position, ascending."""
        return self._sorted[position] if position < len(self._sorted) else ""


def skip(first: str, last: str, shorter: int) -> str | None:
    """A bound behind all keys with the common beginning of ``first`` and ``last``, less its last ``shorter``
    characters.
    """
    common = _common(first, last)
    return None if shorter >= common else first[: common - shorter] + LAST


def middle(low: str, high: str, alphabets: Alphabets) -> Cut | None:
    """A key between ``low`` and ``high``, about in the middle; None if none can be guessed.

    Args:
        low, high: the ends, low < high.
    """
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
    """Length of the common beginning."""
    for position, (mark, its) in enumerate(zip(first, second, strict=False)):
        if mark != its:
            return position
    return min(len(first), len(second))


FetchPage = Callable[[PageRequest, RequestContext], Awaitable[ListPage]]

_AT_ONCE = 16  # pages under way
_EMPTY_PAGES = 100  # in a row, before a listing is given up

_key = attrgetter("key")


class _DisorderError(Exception):
    """The store does not list in the order of the keys, or ignores where to begin."""


async def list_keys(fetch_page: FetchPage, prefix: str, context: RequestContext, *, url: str) -> list[ListedKey]:
    """List all keys that begin with ``prefix``, ascending.

    Args:
        url: for messages.

    Raises:
        InvalidResponseError: the listing does not progress.
        StoreError: as ``fetch_page``.
    """
    return await list_rest(fetch_page, prefix, context, await fetch_page(PageRequest(prefix), context), url=url)


async def list_rest(
    fetch_page: FetchPage, prefix: str, context: RequestContext, first: ListPage, *, url: str
) -> list[ListedKey]:
    """The same as :func:`list_keys`, after the ``first`` page has come."""
    if first.token is None:
        return sorted(first.keys, key=_key)
    try:
        return await _Ranges(fetch_page, prefix, context, url).list_rest(first)
    except _DisorderError:
        return await _in_turn(fetch_page, prefix, context, first, url)


async def list_between(
    fetch_page: FetchPage, prefix: str, after: str, last: str, context: RequestContext, *, url: str
) -> list[ListedKey]:
    """List the keys behind ``after``, up to ``last``."""
    try:
        return await _Ranges(fetch_page, prefix, context, url).list_between(after, last)
    except _DisorderError:
        keys = await list_keys(fetch_page, prefix, context, url=url)
        return [listed for listed in keys if after < listed.key <= last]


async def _in_turn(
    fetch_page: FetchPage, prefix: str, context: RequestContext, page: ListPage, url: str
) -> list[ListedKey]:
    """List page after page, in any order."""
    keys = list(page.keys)
    seen = {listed.key for listed in keys}
    progress = _Progress(url)
    while page.token is not None:
        progress.check(page)
        context = context.step(context.purpose, context.round + 1)
        page = await fetch_page(PageRequest(prefix, token=page.token), context)
        for listed in page.keys:
            if listed.key in seen:
                raise _endless(url)
            seen.add(listed.key)
        keys += page.keys
    return sorted(keys, key=_key)


class _Progress:
    """Checks that pages that follow each other by token progress."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._token: str | None = None
        self._empty = 0

    def check(self, page: ListPage) -> None:
        self._empty = 0 if page.keys or page.folders else self._empty + 1
        if page.token == self._token or self._empty > _EMPTY_PAGES:
            raise _endless(self._url)
        self._token = page.token


class _Range:
    """The keys behind ``after``, up to ``last`` or to the end.

    Attributes:
        keys: those that have come.
        token: of the next page; None if it is requested by ``after``.
        first: first key of the last page.
        skips: cuts made while the end was unknown.
        started: a page has come.
    """

    def __init__(self, after: str, last: str | None, round_: int, skips: int) -> None:
        self.after = after
        self.last = last
        self.round = round_
        self.skips = skips
        self.keys: list[ListedKey] = []
        self.token: str | None = None
        self.first = ""
        self.started = False


class _Ranges:
    def __init__(self, fetch_page: FetchPage, prefix: str, context: RequestContext, url: str) -> None:
        self._fetch_page = fetch_page
        self._prefix = prefix
        self._context = context
        self._url = url
        self._alphabets = Alphabets()
        self._live: dict[asyncio.Task[ListPage], _Range] = {}
        self._ranges: list[_Range] = []
        self._full = 0  # pages all of whose keys were new
        self._partial = 0  # other pages
        self._progress: dict[_Range, _Progress] = {}

    async def list_rest(self, first: ListPage) -> list[ListedKey]:
        """List all keys; ``first`` is the first page."""
        whole = _Range("", None, self._context.round, 0)
        self._ranges.append(whole)
        if self._take(whole, first):
            self._go_on(whole)
        return await self._finish()

    async def list_between(self, after: str, last: str) -> list[ListedKey]:
        """List the keys behind ``after``, up to ``last``."""
        whole = _Range(after, last, self._context.round - 1, 0)
        self._ranges.append(whole)
        self._go_on(whole)
        return await self._finish()

    async def _finish(self) -> list[ListedKey]:
        try:
            while self._live:
                self._cut()
                done, _ = await asyncio.wait(self._live, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    range_ = self._live.pop(task)
                    if self._take(range_, task.result()):
                        self._go_on(range_)
        finally:
            for task in self._live:
                task.cancel()
            if self._live:
                await asyncio.wait(self._live)
        self._ranges.sort(key=lambda range_: range_.keys[0].key if range_.keys else "")
        return [listed for range_ in self._ranges for listed in range_.keys]

    def _go_on(self, range_: _Range) -> None:
        """Request the range's next page."""
        range_.round += 1
        request = PageRequest(self._prefix, after=range_.after, token=range_.token)
        context = self._context.step(self._context.purpose, range_.round)
        task = asyncio.ensure_future(self._fetch_page(request, context))
        self._live[task] = range_

    def _take(self, range_: _Range, page: ListPage) -> bool:
        """Store the page's keys that are in the range; return whether more pages follow."""
        last = range_.after
        for listed in page.keys:
            if listed.key <= last:
                raise _DisorderError
            last = listed.key
        names = [listed.key for listed in page.keys]
        self._alphabets.learn([name[len(self._prefix) :] for name in names])
        range_.started = True
        kept = page.keys
        if range_.last is not None and last > range_.last:
            kept = [listed for listed in kept if listed.key <= range_.last]
        range_.keys += kept
        ended = page.token is None or len(kept) < len(page.keys)
        if ended or not kept:
            self._partial += 1
        else:
            self._full += 1
        if kept:
            range_.first, range_.after = (kept[0].key, kept[-1].key)
        if ended:
            return False
        self._progress.setdefault(range_, _Progress(self._url)).check(page)
        range_.token = page.token
        return range_.last is None or range_.after < range_.last

    # -- cutting ----------------------------------------------------------------------------------

    def _cut(self) -> None:
        """Begin further ranges, as many as the full pages so far allow."""
        while len(self._live) < _AT_ONCE and self._partial + len(self._live) <= self._full // 4:
            best: tuple[float, str, _Range] | None = None
            for range_ in self._live.values():
                cut = self._cut_of(range_)
                if cut is not None and (best is None or cut[0] > best[0]):
                    best = (*cut, range_)
            if best is None:
                return
            _, key, range_ = best
            begun = _Range(key, range_.last, range_.round - 1, range_.skips + (range_.last is None))
            range_.last = key
            self._ranges.append(begun)
            self._go_on(begun)

    def _cut_of(self, range_: _Range) -> tuple[float, str] | None:
        """Weight and key of a cut; None if the range is not to be cut now."""
        if not range_.started or not range_.keys:
            return None
        begin = len(self._prefix)
        after = range_.after[begin:]
        if range_.last is None:
            key = skip(range_.first[begin:], after, range_.skips)
            if key is not None:
                return 2.0, self._prefix + key
        last = LAST if range_.last is None else range_.last[begin:]
        cut = middle(after, last, self._alphabets) if after < last else None
        return None if cut is None else (cut.weight, self._prefix + cut.key)


def _endless(url: str) -> InvalidResponseError:
    return InvalidResponseError(
        "the store's listing does not end: it repeats keys or empty pages", url=url, hint="Give the urls of the files."
    )


_FOLDERS_AT_ONCE = 16  # folders listed at once
_FEW = 32  # so many folders are entered although their level has no unwanted one
_IN_VAIN = 8  # levels without an unwanted folder before the search for one ends

Keys = list[ListedKey]


class _Level(NamedTuple):
    """The direct content of a folder.

    Attributes:
        keys: objects.
        runs: wanted folders; each run has no unwanted folder between its first and last one.
    """

    keys: Keys
    runs: Sequence[Sequence[str]]


async def list_wanted_keys(
    fetch_page: FetchPage, prefix: str, wants: Callable[[str], bool], context: RequestContext, *, url: str
) -> Keys:
    """List the keys that begin with ``prefix``, ascending.

    Keys outside wanted folders may be left out, and so may folder markers, which end in a slash.

    Args:
        wants: takes the common beginning of keys, which ends in a slash; False if none of them is needed.
        url: for messages.

    Raises:
        InvalidResponseError: the listing does not progress.
        StoreError: as ``fetch_page``.
    """
    keys = await _Folders(fetch_page, wants, context, url).list(prefix, context.round)
    return [listed for _, listed in sorted({listed.key: listed for listed in keys}.items())]


class _Folders:
    def __init__(self, fetch_page: FetchPage, wants: Callable[[str], bool], context: RequestContext, url: str) -> None:
        self._fetch_page = fetch_page
        self._wants = wants
        self._context = context
        self._url = url
        self._in_vain = 0
        self._turns = asyncio.Semaphore(_FOLDERS_AT_ONCE)

    async def list(self, prefix: str, round_: int) -> Keys:
        """List the keys of a folder, perhaps without unwanted ones; some may come twice."""
        async with self._turns:
            first = await self._fetch_page(PageRequest(prefix), self._step(round_))
            if first.token is None:
                return first.keys
            level = await self._level(prefix, first, round_ + 1)
            if level is None:
                return await list_rest(self._fetch_page, prefix, self._step(round_), first, url=self._url)
        parts = await results_of([self._list_run(prefix, run, round_ + 2) for run in level.runs])
        return [*level.keys, *(listed for part in parts for listed in part)]

    async def _list_run(self, prefix: str, run: Sequence[str], round_: int) -> Keys:
        if len(run) == 1:
            return await self.list(run[0], round_)
        async with self._turns:
            return await list_between(
                self._fetch_page, prefix, run[0], run[-1] + LAST, self._step(round_), url=self._url
            )

    async def _level(self, prefix: str, first: ListPage, round_: int) -> _Level | None:
        """What to list of the folder; None to list all of it, if choosing would not save requests."""
        keys: Keys = []
        folders: list[tuple[str, bool]] = []
        token: str | None = None
        last = first.keys[-1].key if first.keys else ""
        a_page = 0  # folders that one page of keys covers
        while True:
            page = await self._fetch_page(PageRequest(prefix, token=token, folders=True), self._step(round_))
            keys += page.keys
            folders += [(folder, self._wants(folder)) for folder in page.folders]
            a_page += sum(folder <= last for folder in page.folders)
            unwanted = sum(not wanted for _, wanted in folders)
            if page.token is None:
                break
            if page.token == token or unwanted * 2 < len(folders) or a_page * 2 > len(folders):
                return None
            token, round_ = page.token, round_ + 1
        wanted = [folder for folder, wanted in folders if wanted]
        if a_page <= 1:  # each fills pages of its own
            if not unwanted:
                self._in_vain += 1
                if self._in_vain > _IN_VAIN or len(folders) > _FEW:
                    return None
            return _Level(keys, [[folder] for folder in wanted])
        runs = [[folder for folder, _ in run] for wanted, run in groupby(folders, key=lambda item: item[1]) if wanted]
        return _Level(keys, runs) if unwanted and len(runs) < len(folders) / a_page else None

    def _step(self, round_: int) -> RequestContext:
        return self._context.step(self._context.purpose, round_)
