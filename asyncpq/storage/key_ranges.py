"""Lists the keys of a prefix."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from asyncpq.storage.base import RequestContext
from asyncpq.storage.s3_list_page import ListedKey, ListPage, PageRequest

FetchPage = Callable[[PageRequest, RequestContext], Awaitable[ListPage]]


async def list_keys(fetch_page: FetchPage, prefix: str, context: RequestContext) -> list[ListedKey]:
    """All keys that begin with ``prefix``, ascending."""
    keys: list[ListedKey] = []
    token: str | None = None
    while True:
        page = await fetch_page(PageRequest(prefix, token=token), context)
        keys += page.keys
        token = page.token
        if token is None:
            return keys
