"""Indexes that stand in their file, through the caches."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from asyncpq.errors import CorruptIndexError, FormatError, ObjectChangedError, ResourceLimitError
from asyncpq.events import Operation
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.parts import discard_parts, fetch_parts, share_parts
from asyncpq.objects.source import ObjectSource
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.embedded_index import (
    EmbeddedIndex,
    EmbeddedIndexEntry,
    check_data,
    check_place,
    chunk_spans,
    decode_entry,
)
from asyncpq.storage.base import RequestContext

_INLINE_CHUNKS = 100  # column chunks that are looked at on the event loop
_INLINE_BYTES = 1 << 16  # that are hashed there
_MEMORY_SHARE = 16  # more than this part of the memory cache would push out what lookups use


async def load_embedded_index(
    source: ObjectSource, version: FileVersion, name: str, operation: Operation
) -> tuple[FileVersion, EmbeddedIndex | None]:
    """The index of that name, if the file has it, and the version of the file that it is of: ``version``, or the
    object's present one where that is another.

    Raises:
        CorruptIndexError: the footer tells lies of it, or the bytes are others.
        ResourceLimitError: it is longer than ``max_decoded_bytes``.
        StoreError, ObjectChangedError: the store failed.
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
                index, validated = await _find(source, known, name, context)
            except FormatError as error:
                await _ensure_current(source, known, metrics)  # the present version may well be sound
                raise error.locate(url=known.url) from error.__cause__
            if not validated:
                await _ensure_current(source, known, metrics)
            return known, index
        except ObjectChangedError:
            if known is not None:
                await source.forget(known)
            if metrics.restarts >= source.runtime.options.limits.max_restarts:
                raise
            known = None
            operation.restarts()


async def _ensure_current(source: ObjectSource, version: FileVersion, metrics: ReadMetrics) -> None:
    """Ask the store if the cache policy wants it asked before ``version`` is spoken of.

    Raises:
        ObjectChangedError: the object has another version now.
    """
    if source.freshness.is_fresh(version):
        return
    flight = source.start_validation(version, RequestContext(metrics, round=metrics.rounds + 1))
    flight.join()
    metrics.wait_begins()
    try:
        await flight.wait()
    finally:
        metrics.wait_ends()
        flight.leave()


async def _find(
    source: ObjectSource, version: FileVersion, name: str, context: RequestContext
) -> tuple[EmbeddedIndex | None, bool]:
    """The index, and whether the store said with it that ``version`` is the object's present one."""
    entry = decode_entry(name, version.metadata.key_value_metadata)
    if entry is None:
        return None, False
    known = source.runtime.memory.get(version.key("embedded_index", entry.offset, entry.stop))
    if isinstance(known, EmbeddedIndex) and known.name == name:
        context.metrics.cache_hits += 1
        return known, False
    check_place(entry, version.footer_start, await _chunk_spans(source, version))
    limits = source.runtime.options.limits
    if entry.length > limits.max_decoded_bytes:
        raise ResourceLimitError(
            f"the embedded index {name!r} has {entry.length} bytes, allowed are {limits.max_decoded_bytes}",
            hint="Raise LimitOptions.max_decoded_bytes if the file is trusted.",
        )
    if not entry.length:
        return check_data(entry, b""), False
    return await _fetch(source, version, entry, context)


async def _fetch(
    source: ObjectSource, version: FileVersion, entry: EmbeddedIndexEntry, context: RequestContext
) -> tuple[EmbeddedIndex, bool]:
    runtime, length = source.runtime, entry.length
    key = version.key("embedded_index", entry.offset, entry.stop)
    runtime.budget.take(length)  # it waits for nobody, and others wait for it
    try:
        step = context.step("index", context.metrics.rounds + 1)
        parts = await fetch_parts(source, version, [key], step, read_bytes=length)
        data: bytes = parts.data[key]
        check = partial(check_data, entry, data)
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

    if len(metadata.row_groups) * len(metadata.schema.leaves) <= _INLINE_CHUNKS:
        return spans()
    return await source.runtime.in_thread(spans)


def _weight(spans: Sequence[tuple[int, int]]) -> int:
    return 500 + 150 * len(spans)
