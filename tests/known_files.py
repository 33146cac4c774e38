"""What an index keeps of a file, made and read back, for tests that read files by it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple, TypeVar

import pyarrow as pa

import asyncpq
from asyncpq.indexing.build.file_rows import footer_rows
from asyncpq.indexing.build.page_indexes import pages_rows
from asyncpq.indexing.entry_encoding import by_file
from asyncpq.indexing.query.file_entries import known_version
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.opening import load_version, open_source
from asyncpq.objects.version import KnownVersion
from asyncpq.storage.base import RequestContext, Validator

T = TypeVar("T")
FILE = 7


class Kept(NamedTuple):
    """Rows of the parts "footers" and "pages" of one file."""

    footers: pa.Table
    pages: pa.Table
    validator: Validator

    def known(self, leaves: set[int] | None = None, *, footers: bool = True, pages: bool = True) -> KnownVersion | None:
        """The version, of some leaves or all."""
        return known_version(
            FILE,
            _chosen(self.footers, leaves) if footers else {},
            _chosen(self.pages, leaves) if pages else {},
            self.validator,
            asyncpq.LimitOptions(),
        )


def _chosen(rows: pa.Table, leaves: set[int] | None) -> Mapping[int, bytes]:
    payloads = by_file(rows).get(FILE, {})
    return {leaf: data for leaf, data in payloads.items() if leaves is None or leaf in leaves or leaf == -1}


async def keep(session: asyncpq.Session, url: str) -> Kept:
    """What an index would keep of a file."""
    source = await open_source(session._runtime, url)
    try:
        context = RequestContext(ReadMetrics())
        version = await load_version(source, context)
        footers = await footer_rows(source, version, FILE, context)
        return Kept(footers, await pages_rows(source, version, FILE, context), version.validator)
    finally:
        await source.handle.close()


async def ask_known(
    session: asyncpq.Session, url: str, known: KnownVersion | None, question: Callable[[asyncpq.File], Awaitable[T]]
) -> T:
    """Ask a file that is opened by what is known of it."""
    source = await open_source(session._runtime, url)
    version = await load_version(source, RequestContext(ReadMetrics()), known)
    async with asyncpq.File(source, version) as file:
        return await question(file)
