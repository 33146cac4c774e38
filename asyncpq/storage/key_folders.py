"""Lists the keys in wanted folders of a prefix, where that takes fewer requests than to list all of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from itertools import groupby
from typing import NamedTuple

from asyncpq.storage.base import RequestContext
from asyncpq.storage.key_ranges import FetchPage, list_between, list_rest
from asyncpq.storage.key_split import LAST
from asyncpq.storage.s3_list_page import ListedKey, ListPage, PageRequest
from asyncpq.storage.together import results_of

_AT_ONCE = 16  # folders that are listed at once
_FEW = 32  # folders that are looked into though none of their level was ruled out
_IN_VAIN = 8  # levels that rule nothing out, before the search for one that does ends

Keys = list[ListedKey]


class _Level(NamedTuple):
    """What a folder holds directly.

    Attributes:
        keys: objects.
        runs: folders that are wanted, those together that have none between them which is not.
    """

    keys: Keys
    runs: Sequence[Sequence[str]]


async def list_wanted_keys(
    fetch_page: FetchPage, prefix: str, wants: Callable[[str], bool], context: RequestContext, *, url: str
) -> Keys:
    """Keys that begin with ``prefix``, ascending; others than those in wanted folders may be left out.

    Args:
        wants: of the keys that begin with this one, which ends in a slash, some are needed.
        url: for messages.

    Raises:
        InvalidResponseError: the listing does not get on.
        StoreError: as ``fetch_page``.
    """
    found = await _Folders(fetch_page, wants, context, url).list(prefix, context.round)
    return [listed for _, listed in sorted({listed.key: listed for listed in found}.items())]


class _Folders:
    def __init__(self, fetch_page: FetchPage, wants: Callable[[str], bool], context: RequestContext, url: str) -> None:
        self._fetch_page = fetch_page
        self._wants = wants
        self._context = context
        self._url = url
        self._in_vain = 0
        self._turns = asyncio.Semaphore(_AT_ONCE)

    async def list(self, prefix: str, round_: int) -> Keys:
        """The keys of a folder, perhaps without those that are not wanted; some may come twice."""
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
        """What is to be listed of the folder; None where that is all of it, or would not take fewer requests."""
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
