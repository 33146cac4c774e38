"""Only new and replaced files are read."""

from __future__ import annotations

from pathlib import Path

import asyncpq
from asyncpq.events import Event, FileEnded
from asyncpq.indexing import MemoryBackend
from asyncpq.indexing.index import Staleness
from tests.indexing.build.index_checks import check_index
from tests.lakes import KINDS, write


async def test_only_what_is_new_is_read(tmp_path: Path) -> None:
    events: list[Event] = []
    lake = tmp_path / "lake"
    for number in range(6):
        write(lake / f"part={number % 2}" / f"{number}.parquet", number)
    async with asyncpq.Session(on_event=events.append) as session:

        def read() -> list[str]:
            ended = [event for event in events if isinstance(event, FileEnded) and event.operation != "verify"]
            assert [event.files_done for event in ended] == sorted(event.files_done for event in ended)
            assert all(event.files_done <= event.files_total for event in ended)
            events.clear()
            return sorted(Path(event.url).stem for event in ended)

        index = await session.build_index(str(lake), KINDS, at=MemoryBackend())
        assert [name for name in read() if name in "012345"][-6:] == ["0", "1", "2", "3", "4", "5"]
        snapshot = index.snapshot
        done = await index.refresh()
        assert (done.added, done.removed, read(), index.snapshot) == (0, 0, [], snapshot)
        write(lake / "part=1" / "1.parquet", 77)
        write(lake / "part=0" / "new.parquet", 78)
        (lake / "part=0" / "4.parquet").unlink()
        done = await index.refresh()
        assert (done.added, done.removed, read()) == (2, 2, ["1", "new"])
        await check_index(index, lake)
        events.clear()
        # by name: the others are not even listed
        write(lake / "part=1" / "3.parquet", 79)
        write(lake / "part=1" / "5.parquet", 80)
        (lake / "part=0" / "2.parquet").unlink()
        urls = [str(lake / name) for name in ("part=1/3.parquet", "part=0/2.parquet", "part=0/0.parquet")]
        done = await index.refresh(urls)
        assert (done.added, done.removed, read()) == (1, 2, ["2", "3"])
        report = await index.show(staleness=True)
        assert report.staleness == Staleness(new=0, changed=1, gone=0)
        await index.refresh()
        await check_index(index, lake)
