"""Sources of objects: bytes that the process holds are read as an object of a store is."""

from __future__ import annotations

import pyarrow as pa
import pytest

from asyncpq.errors import CorruptFileError, InvalidResponseError, NotParquetError
from asyncpq.metrics import ReadMetrics
from asyncpq.objects.runtime import Runtime
from asyncpq.objects.source import HeldObject, held_source, load_version, open_source
from asyncpq.options import SessionOptions, ttl
from asyncpq.storage.base import Guarantee, RequestContext
from tests.parquet_bytes import parquet_bytes


def parquet(rows: int) -> bytes:
    return parquet_bytes(pa.table({"id": range(rows)}))


async def test_a_held_object_gives_its_bytes_and_counts_them() -> None:
    held, context = HeldObject("held", b"0123456789"), RequestContext(ReadMetrics())
    assert (await held.fetch_tail(4, context=context)).data == b"6789"
    assert (await held.fetch_tail(40, context=context)).data == b"0123456789"
    middle = await held.fetch_range(2, 5, context=context)
    assert (middle.data, middle.start, middle.validator.size) == (b"234", 2, 10)
    assert (context.metrics.requests, context.metrics.bytes_fetched) == (3, 4 + 10 + 3)
    with pytest.raises(InvalidResponseError, match="ends at byte 10"):
        await held.fetch_range(8, 11, context=context)
    with pytest.raises(NotParquetError, match="empty"):
        await HeldObject("held", b"").fetch_tail(8, context=context)


def test_the_content_alone_names_a_held_object() -> None:
    assert HeldObject("a", b"x").identity == HeldObject("b", b"x").identity
    assert HeldObject("a", b"x").identity != HeldObject("a", b"y").identity


async def test_the_version_of_a_held_file_is_loaded_once() -> None:
    runtime = Runtime(SessionOptions(), {})
    runtime.enter()
    first, again = RequestContext(ReadMetrics()), RequestContext(ReadMetrics())
    version = await load_version(held_source(runtime, "held?secret=1", parquet(7)), first)
    assert (version.metadata.num_rows, version.url) == (7, "held")
    source = held_source(runtime, "held", parquet(7))
    assert await load_version(source, again) is version
    assert (first.metrics.requests, again.metrics.requests) == (1, 0)
    assert source.handle.guarantee is Guarantee.PINNED
    await runtime.close()


async def test_a_source_has_the_policy_that_is_given_or_that_of_the_session() -> None:
    runtime = Runtime(SessionOptions(cache_policy={"memory://lake/*": ttl(3.0)}), {})
    runtime.enter()
    by_session = await open_source(runtime, "memory://lake/file.parquet")
    given = await open_source(runtime, "memory://lake/file.parquet", policy=ttl(9.0))
    assert (by_session.freshness.policy, given.freshness.policy) == (ttl(3.0), ttl(9.0))
    for source in (by_session, given):
        await source.handle.close()
    await runtime.close()


async def test_a_file_that_lost_bytes_of_its_data_is_refused_when_it_is_opened() -> None:
    """Its footer is whole, but begins before the last column chunk ends."""
    data = parquet(1000)
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    runtime = Runtime(SessionOptions(), {})
    for lost in (0, 1, 200):
        source = held_source(runtime, f"held {lost}", data[: footer - lost] + data[footer:])
        loading = load_version(source, RequestContext(ReadMetrics()))
        if not lost:
            assert (await loading).footer_start == footer
            continue
        with pytest.raises(CorruptFileError, match=r"last column chunk .* outside the file's data") as caught:
            await loading
        assert (caught.value.url, caught.value.column) == (source.handle.url, "id")
