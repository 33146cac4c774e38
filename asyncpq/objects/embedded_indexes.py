"""Fetch an index that a file embeds between its pages and its footer."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial

from asyncpq.errors import CorruptIndexError, FormatError, ObjectChangedError, ResourceLimitError, limit_hint
from asyncpq.events import Operation
from asyncpq.objects.object_read import FileRead, ObjectRead
from asyncpq.objects.source import ObjectSource
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.embedded_index import EmbeddedIndex, check_data, check_place, chunk_spans, decode_entry
from asyncpq.storage.base import RequestContext

_INLINE_BYTES = 1 << 16  # that are hashed on the event loop
_MEMORY_SHARE = 16  # more than this share of the memory cache would evict entries that lookups use


async def load_embedded_index(
    source: ObjectSource, version: FileVersion, name: str, operation: Operation
) -> tuple[FileVersion, EmbeddedIndex | None]:
    """Return the object's current version, and its embedded index ``name``; None in place of the index if it has none
    of that name.

    Raises:
        CorruptIndexError: the footer describes the index wrongly, or its digest differs.
        ResourceLimitError: the index is longer than ``max_decoded_bytes``.
        StoreError, ObjectChangedError: the store failed, or the object keeps changing.
    """
    metrics = operation.metrics
    known: FileVersion | None = None if source.freshness.is_expired(version) else version
    while True:
        began = time.monotonic()
        try:
            if known is None:
                known = await source.version(RequestContext(metrics))
            source.describe(metrics)
            read = ObjectRead(source, known, metrics, began=began)
            try:
                index = await _embedded_index(read, name)
            except FormatError as error:  # the current version may well be sound
                read.round = metrics.rounds + 1
                await read.ensure_current()
                raise error.locate(url=known.url) from error.__cause__
            read.round = metrics.rounds + 1
            await read.ensure_current()
            return known, index
        except ObjectChangedError:
            if not await source.restarts(known, operation):
                raise
            known = None


async def _embedded_index(read: FileRead, name: str) -> EmbeddedIndex | None:
    """Return the embedded index ``name``; None if the file has none."""
    runtime, version, metrics = read.source.runtime, read.version, read.metrics
    entry = decode_entry(name, version.metadata.key_value_metadata)
    if entry is None:
        return None
    length, key = entry.length, version.key("embedded_index", entry.offset, entry.stop)
    known = runtime.memory.get(key)
    if isinstance(known, EmbeddedIndex) and known.name == name:
        metrics.cache_hits += 1
        return known
    check_place(entry, version.footer_start, await _chunk_spans(read))
    most = runtime.options.limits.max_decoded_bytes
    if length > most:
        raise ResourceLimitError(
            f"the embedded index {name!r} has {length} bytes, the limit is {most} bytes",
            hint=limit_hint("max_decoded_bytes"),
        )
    if not length:
        return check_data(entry, b"")
    runtime.budget.take(length)  # granted at once, even over the budget; other reads wait for these bytes
    try:
        read.num_bytes = length
        parts = await read.fetch([key], "index", metrics.rounds + 1)
        check = partial(check_data, entry, parts.data[key])
        try:
            index = check() if length <= _INLINE_BYTES else await runtime.in_thread(check)
        except CorruptIndexError:
            read.discard([key])
            raise
    finally:
        runtime.budget.release(length)
    runtime.memory.put(key, index, length, scan=length * _MEMORY_SHARE > runtime.memory.max_bytes)
    read.share(parts)
    return index


async def _chunk_spans(read: FileRead) -> Sequence[tuple[int, int]]:
    version, metadata = read.version, read.version.metadata

    def spans() -> Sequence[tuple[int, int]]:
        return version.derived(("chunk spans",), partial(chunk_spans, metadata), _weight)

    return await read.source.runtime.off_loop(spans, len(metadata.row_groups) * len(metadata.schema.leaves))


def _weight(spans: Sequence[tuple[int, int]]) -> int:
    return 500 + 150 * len(spans)
