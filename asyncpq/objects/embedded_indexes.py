"""Fetch an index that a file embeds between its pages and its footer."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from asyncpq.errors import CorruptIndexError, FormatError, ObjectChangedError, ResourceLimitError
from asyncpq.events import Operation
from asyncpq.objects.parts import discard_parts, fetch_parts, share_parts
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
    context = RequestContext(metrics)
    known: FileVersion | None = None if source.freshness.is_expired(version) else version
    while True:
        try:
            if known is None:
                known = await source.version(context)
            source.describe(metrics)
            try:
                index, validated = await _embedded_index(source, known, name, context)
            except FormatError as error:  # the current version may well be sound
                await source.ensure_fresh(known, RequestContext(metrics, round=metrics.rounds + 1))
                raise error.locate(url=known.url) from error.__cause__
            if not validated:
                await source.ensure_fresh(known, RequestContext(metrics, round=metrics.rounds + 1))
            return known, index
        except ObjectChangedError:
            if not await source.restarts(known, operation):
                raise
            known = None


async def _embedded_index(
    source: ObjectSource, version: FileVersion, name: str, context: RequestContext
) -> tuple[EmbeddedIndex | None, bool]:
    """Return the embedded index ``name`` of ``version``, None if it has none; and whether the response that brought it
    validated ``version``."""
    runtime = source.runtime
    entry = decode_entry(name, version.metadata.key_value_metadata)
    if entry is None:
        return None, False
    length, key = entry.length, version.key("embedded_index", entry.offset, entry.stop)
    known = runtime.memory.get(key)
    if isinstance(known, EmbeddedIndex) and known.name == name:
        context.metrics.cache_hits += 1
        return known, False
    check_place(entry, version.footer_start, await _chunk_spans(source, version))
    most = runtime.options.limits.max_decoded_bytes
    if length > most:
        raise ResourceLimitError(
            f"the embedded index {name!r} has {length} bytes, the limit is {most} bytes",
            hint="Raise LimitOptions.max_decoded_bytes if the file is trusted.",
        )
    if not length:
        return check_data(entry, b""), False
    runtime.budget.take(length)  # granted at once, even over the budget; other reads wait for these bytes
    try:
        step = context.step("index", context.metrics.rounds + 1)
        parts = await fetch_parts(source, version, [key], step, read_bytes=length)
        check = partial(check_data, entry, parts.data[key])
        try:
            index = check() if length <= _INLINE_BYTES else await runtime.in_thread(check)
        except CorruptIndexError:
            discard_parts(source, version, [key])
            raise
    finally:
        runtime.budget.release(length)
    runtime.memory.put(key, index, length, scan=length * _MEMORY_SHARE > runtime.memory.max_bytes)
    share_parts(source, version, parts, read_bytes=length)
    return index, parts.validated


async def _chunk_spans(source: ObjectSource, version: FileVersion) -> Sequence[tuple[int, int]]:
    metadata = version.metadata

    def spans() -> Sequence[tuple[int, int]]:
        return version.derived(("chunk spans",), partial(chunk_spans, metadata), _weight)

    return await source.runtime.off_loop(spans, len(metadata.row_groups) * len(metadata.schema.leaves))


def _weight(spans: Sequence[tuple[int, int]]) -> int:
    return 500 + 150 * len(spans)
