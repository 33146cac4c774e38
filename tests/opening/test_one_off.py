"""One-off openings, with an event loop and without, and what they say to callers who use them in another way."""

from __future__ import annotations

import copy
import logging
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import blocking
from asyncpq.indexing import Bounds, Keys

FILES = 45


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake")
    for number in range(FILES):
        pq.write_table(pa.table({"id": [number, number + 100]}), folder / f"{number:02d}.parquet")
    return folder


def bridges() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "asyncpq-blocking"}


def test_blocking_openings(lake: Path) -> None:
    before = bridges()
    with blocking.open_file(lake / "03.parquet", memory_cache_bytes=0) as file:
        assert file.read().to_pylist() == [{"id": 3}, {"id": 103}]
        assert [batch.num_rows for batch in file.scan(["id"], limit=1)] == [1]
    with blocking.open_dataset(lake, schema_policy="permissive", read=asyncpq.ReadOptions(verify_crc=False)) as dataset:
        assert dataset.count() == 2 * FILES
        assert sum(batch.num_rows for batch in dataset.scan(where=asyncpq.col("id") < 5)) == 5
    with pytest.raises(asyncpq.UsageError):
        file.count()
    with pytest.raises(asyncpq.ObjectNotFoundError), blocking.open_file(lake / "none.parquet"):
        pass
    wrong: Any = {"memory_cache_byte": 0}
    with pytest.raises(asyncpq.InvalidOptionError, match="memory_cache_byte"), blocking.open_file(lake, **wrong):
        pass
    with pytest.raises(asyncpq.InvalidOptionError), blocking.open_dataset(lake, memory_cache_bytes=-1):
        pass
    assert bridges() == before


def test_a_session_that_cannot_be_entered_leaves_no_thread(tmp_path: Path) -> None:
    before = bridges()
    (tmp_path / "cache").mkdir(mode=0o777)
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(asyncpq.InvalidOptionError):
        blocking.Session(disk_cache=tmp_path / "cache")
    assert bridges() == before


@pytest.mark.parametrize("name", ["open_file", "open_dataset"])
async def test_one_off_openings_say_async_with(lake: Path, name: str) -> None:
    opening: Callable[[Path], Any] = getattr(asyncpq, name)
    with pytest.raises(asyncpq.UsageError, match=rf"`async with asyncpq.{name}\(...\) as opened:`"):
        await opening(lake / "00.parquet")
    with pytest.raises(asyncpq.UsageError, match=rf"`with asyncpq.blocking.{name}"), opening(lake / "00.parquet"):
        pass
    async with opening(lake / "00.parquet") as opened:
        assert await opened.count() == 2


@pytest.mark.parametrize("spoil", [pickle.dumps, copy.copy, copy.deepcopy])
def test_blocking_objects_cannot_be_pickled(lake: Path, spoil: Callable[[object], object]) -> None:
    with blocking.Session() as opened:
        file = opened.open_file(lake / "00.parquet")
        for bridge in (opened, file, file.scan(), opened.open_dataset(lake)):
            with pytest.raises(TypeError, match=r"Blocking\w+ cannot be pickled.* Pass on the url"):
                spoil(bridge)


def test_the_blocking_classes_have_the_names_of_the_others() -> None:
    own = {
        name
        for name, value in vars(blocking).items()
        if getattr(value, "__module__", "") == "asyncpq.blocking" and not name.startswith(("_", "Blocking"))
    }
    assert set(blocking.__all__) == own - {"P", "T", "A", "B", "S", "Q"}
    for name in blocking.__all__:
        assert hasattr(asyncpq, name) or hasattr(asyncpq.indexing, name)
        assert getattr(blocking, name) is not getattr(asyncpq, name, None)


async def test_a_build_tells_each_file_once_and_logs_how_it_goes_on(
    lake: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    events: list[asyncpq.FileEnded] = []

    def keep(event: object) -> None:
        if isinstance(event, asyncpq.FileEnded):
            events.append(event)

    async with asyncpq.Session(on_event=keep) as opened:
        with caplog.at_level(logging.INFO, "asyncpq.builds"):
            index = await opened.build_index(lake, [Keys("id"), Bounds("id")], at=str(tmp_path / "index"))
            assert [event.files_done for event in events] == [*range(1, FILES + 1)]
            assert len({event.url for event in events}) == FILES
            await index.refresh()
            await index.refresh()
        first, *between, last, idle, idle_again = [record.getMessage() for record in caplog.records]
        assert first.startswith("build of ")
        assert first.endswith(f"index/ begins: {FILES} files to read, 0 known")
        assert [line.partition(": ")[2].partition(",")[0] for line in between] == [
            f"{done} of {FILES} files read" for done in range(3, FILES, 3)
        ]
        assert f"committed snapshot {index.snapshot}: {FILES} files added, 0 removed, 0 could not be read" in last
        assert idle == idle_again
        assert idle.startswith("refresh of ")
        assert idle.endswith(f"begins: 0 files to read, {FILES} known")
        assert {record.levelno for record in caplog.records} == {logging.INFO}
        events.clear()
        await opened.open_dataset(lake, view="listed")
        assert not events
        await opened.open_dataset(lake, view="listed", schema_policy="permissive", index=False)
        assert [event.files_done for event in events] == [*range(1, FILES + 1)]
