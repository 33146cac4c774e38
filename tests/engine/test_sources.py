"""A source gives the same rows and plans in any thread, whatever it was made of."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import AsyncpqError, InvalidOptionError, UsageError, blocking, col
from asyncpq.engine.sources import Source, source_of

TABLE = pa.table({"id": range(1000), "s": [f"u{at % 7}" for at in range(1000)]})
SAYS: dict[str, Any] = {"caller": "door.open()", "awaiting": "await door.later()"}


@pytest.fixture
def lake(tmp_path: Path) -> Path:
    for at in range(2):
        part = TABLE.slice(500 * at, 500)
        pq.write_table(part, tmp_path / f"{at}.parquet", row_group_size=100, write_page_index=True)
    return tmp_path


def check(source: Source) -> None:
    assert source.schema.names == ["id", "s"]
    where = col("id") >= 900
    with source.scan(["s"], where, limit=40, batch_size=30) as reader:
        batches = list(reader)
    assert pa.Table.from_batches(batches).equals(TABLE.slice(900, 40).select(["s"]))
    assert max(batch.num_rows for batch in batches) <= 30
    plan = source.plan(["s"], where)
    assert (plan.to_dict()["where"], len(plan.to_dict()["funnel"]) > 0) == ("id >= 900", True)
    with source.scan(batch_size=10) as reader:
        next(reader)
    with pytest.raises(UsageError, match="scan is closed"):
        reader.read_all()


@pytest.mark.parametrize("opened", ["url", "path", "urls", "blocking"])
def test_in_any_thread(lake: Path, opened: str) -> None:
    if opened == "blocking":
        with blocking.Session() as session:
            check(source_of(session.open_dataset(lake), **SAYS))
        return
    urls: list[str | Path] = [str(lake / f"{at}.parquet") for at in range(2)]
    targets: dict[str, Any] = {"url": str(lake), "path": lake, "urls": urls}
    source = source_of(targets[opened], memory_cache_bytes=1 << 20, **SAYS)
    check(source)
    pq.write_table(TABLE.slice(0, 10), lake / "2.parquet")
    with source.scan() as reader:
        assert reader.read_all().num_rows == (1000 if opened == "urls" else 1010), "each scan lists again"


def test_a_scan_outlives_its_source(lake: Path) -> None:
    with source_of(lake, **SAYS).scan(batch_size=10) as reader:
        gc.collect()
        assert reader.read_all().equals(TABLE)


def test_a_source_has_another_session_after_it_failed(lake: Path) -> None:
    """What the session knew, such as credentials, may be the reason."""
    source = source_of(lake / "0.parquet", **SAYS)
    with source.scan(batch_size=10) as reader:
        first = next(reader)
        opened = (lake / "0.parquet").rename(lake / "1.parquet")
        before = set(blocking._shared_sessions.values())
        with pytest.raises(AsyncpqError):
            source.plan()
        opened.rename(lake / "0.parquet")
        assert source.plan().to_dict()["funnel"]
        assert set(blocking._shared_sessions.values()) - before
        rest = reader.read_all()
    assert pa.concat_tables([pa.Table.from_batches([first]), rest]).equals(TABLE.slice(0, 500))


async def test_beside_the_loop_of_an_async_dataset(lake: Path) -> None:
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(lake)
        source = source_of(dataset, **SAYS)
        await asyncio.to_thread(check, source)
        calls: list[Callable[[], object]] = [source.scan, source.plan]
        for call in calls:
            with pytest.raises(UsageError) as caught:
                call()
            assert caught.value.hint == "Write `await door.later()`."
        with pytest.raises(UsageError, match=r"door\.open\(\) got an async") as caught:
            await asyncio.to_thread(source_of, dataset, **SAYS)
        assert str(caught.value.hint).startswith("Call open() in the coroutine")


def test_what_is_open_takes_no_options(lake: Path) -> None:
    with blocking.Session() as session, pytest.raises(InvalidOptionError, match="takes no options"):
        source_of(session.open_dataset(lake), index=False, **SAYS)
