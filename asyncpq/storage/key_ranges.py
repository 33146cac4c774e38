"""Lists the keys of a prefix, many pages at once where there are many.

Pages can only be asked for one after the other, each behind the last key of the one before, or behind a key that is
guessed. While the pages that come are full, ranges of keys are cut in two, and both are listed; how often, is bounded
by the pages so far, so that guesses cost a fraction of what is listed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from operator import attrgetter

from asyncpq.errors import InvalidResponseError
from asyncpq.storage.base import RequestContext
from asyncpq.storage.key_split import LAST, Alphabets, middle, skip
from asyncpq.storage.s3_list_page import ListedKey, ListPage, PageRequest

FetchPage = Callable[[PageRequest, RequestContext], Awaitable[ListPage]]

_AT_ONCE = 16  # pages on their way
_EMPTY_PAGES = 100  # one after the other, before a listing is given up

_key = attrgetter("key")


class _DisorderError(Exception):
    """The store's order is not that of the keys, or it does not begin where it is asked to."""


async def list_keys(fetch_page: FetchPage, prefix: str, context: RequestContext, *, url: str) -> list[ListedKey]:
    """All keys that begin with ``prefix``, ascending.

    Args:
        url: for messages.

    Raises:
        InvalidResponseError: the listing does not get on.
        StoreError: as ``fetch_page``.
    """
    return await list_rest(fetch_page, prefix, context, await fetch_page(PageRequest(prefix), context), url=url)


async def list_rest(
    fetch_page: FetchPage, prefix: str, context: RequestContext, first: ListPage, *, url: str
) -> list[ListedKey]:
    """The same, where the ``first`` page is there."""
    if first.token is None:
        return sorted(first.keys, key=_key)
    try:
        return await _Ranges(fetch_page, prefix, context, url).list_rest(first)
    except _DisorderError:
        return await _in_turn(fetch_page, prefix, context, first, url)


async def list_between(
    fetch_page: FetchPage, prefix: str, after: str, last: str, context: RequestContext, *, url: str
) -> list[ListedKey]:
    """Those behind ``after``, up to ``last``."""
    try:
        return await _Ranges(fetch_page, prefix, context, url).list_between(after, last)
    except _DisorderError:
        found = await list_keys(fetch_page, prefix, context, url=url)
        return [listed for listed in found if after < listed.key <= last]


async def _in_turn(
    fetch_page: FetchPage, prefix: str, context: RequestContext, page: ListPage, url: str
) -> list[ListedKey]:
    """Page after page, whatever the order."""
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
    """Whether pages that go on by tokens get on."""

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
        token: of the next page; None where it is asked for by ``after``.
        first: the first key of the last page.
        skips: cuts that were made towards an unknown end.
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
        """All keys; ``first`` is the first page."""
        whole = _Range("", None, self._context.round, 0)
        self._ranges.append(whole)
        if self._take(whole, first):
            self._go_on(whole)
        return await self._finish()

    async def list_between(self, after: str, last: str) -> list[ListedKey]:
        """The keys behind ``after``, up to ``last``."""
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
        """Ask for the range's next page."""
        range_.round += 1
        request = PageRequest(self._prefix, after=range_.after, token=range_.token)
        context = self._context.step(self._context.purpose, range_.round)
        task = asyncio.ensure_future(self._fetch_page(request, context))
        self._live[task] = range_

    def _take(self, range_: _Range, page: ListPage) -> bool:
        """Keep what of a page is in the range; whether more is to come."""
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
        """Begin as many further ranges as the pages so far are worth."""
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
        """Weight and place of a cut; None if it is not to be cut now."""
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
        "the store's listing comes to no end: it lists the same keys again", url=url, hint="Give the urls of the files."
    )
