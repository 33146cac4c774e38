"""One-off openings, with an event loop and without, and what they say to callers who use them in another way."""

from __future__ import annotations

import asyncio
import copy
import gc
import logging
import pickle
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import blocking
from asyncpq.indexing import Bounds, Keys
from asyncpq.opening import one_off
from asyncpq.options import immutable
from asyncpq.testing import ObjectServer

FILES = 45


@pytest.fixture(scope="module")
def lake(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lake")
    for number in range(FILES):
        pq.write_table(pa.table({"id": [number, number + 100]}), folder / f"{number:02d}.parquet")
    return folder


@pytest.fixture
def server() -> Iterator[ObjectServer]:
    with ObjectServer.in_thread() as running:
        yield running


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
    assert len(bridges() - before) == 2  # one of each kind of options stays open for the next call, none that failed
    blocking._end_shared()
    assert bridges() == before


def numbers(file: blocking.BlockingFile) -> list[int]:
    found: list[int] = file.read()["id"].to_pylist()
    return found


def test_one_off_openings_of_equal_options_share_a_session(lake: Path, server: ObjectServer) -> None:
    server.put("bucket/a.parquet", (lake / "00.parquet").read_bytes())
    server.put("bucket/b.parquet", (lake / "01.parquet").read_bytes())
    before = bridges()

    def read(name: str, **options: Any) -> list[int]:
        with blocking.open_file(
            f"s3://bucket/{name}.parquet", storage_options=server.storage_options, **options
        ) as file:
            return numbers(file)

    assert read("a") == [0, 100]
    asked = len(server.log)
    assert read("a") == [0, 100]
    assert len(server.log) == asked + 1  # whether the object is still the same: pages and footer are in memory
    assert read("b") == [1, 101]
    assert len(bridges() - before) == 1
    server.put("bucket/a.parquet", (lake / "02.parquet").read_bytes())
    assert read("a") == [2, 102]  # no older version, whatever the session's policy
    for options in ({"memory_cache_bytes": 0}, {"memory_cache_bytes": 0, "negative_ttl_s": 1.0}):
        read("a", **options)
    assert len(bridges() - before) == 3


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({}, {}, True),
        ({"storage_options": {"s3": {"key": "a"}}}, {"storage_options": {"s3": {"key": "a"}}}, True),
        ({"storage_options": {"s3": {"key": "a"}}}, {"storage_options": {"s3": {"key": "b"}}}, False),
        ({"storage_options": {"anon": True}}, {"storage_options": {"anon": 1}}, False),
        ({"retry": asyncpq.RetryOptions()}, {"retry": asyncpq.RetryOptions(max_attempts=9)}, False),
        ({"cache_policy": {"s3://a/": immutable()}}, {"cache_policy": {"s3://a/": immutable()}}, True),
        ({"on_event": print}, {"on_event": print}, True),
        ({"on_event": [].append}, {"on_event": [].append}, False),
        ({"memory_cache": asyncpq.MemoryCache(1 << 20)}, {"memory_cache": asyncpq.MemoryCache(1 << 20)}, False),
    ],
)  # fmt: skip
def test_which_options_are_equal(one: Any, other: Any, same: bool) -> None:
    with_one, with_other = blocking.OneOffSession(one), blocking.OneOffSession(other)
    assert (with_one.asynchronous is with_other.asynchronous) is same


def test_the_environment_is_an_option(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = blocking.OneOffSession({})
    monkeypatch.setenv("AWS_PROFILE", "another")
    assert blocking.OneOffSession({}).asynchronous is not first.asynchronous


def test_a_shared_session_ends_when_it_is_idle(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_off, "IDLE_S", 0.05)
    before = bridges()
    with blocking.open_file(lake / "00.parquet") as file:
        (thread,) = bridges() - before
        thread.join(0.2)
        assert numbers(file) == [0, 100]  # in use, so it is not idle
    thread.join(10)
    assert bridges() == before
    with blocking.open_file(lake / "00.parquet") as file:
        assert numbers(file) == [0, 100]


def test_few_idle_sessions_stay_open(lake: Path) -> None:
    before = bridges()
    for number in range(12):
        with blocking.open_file(lake / "00.parquet", memory_cache_bytes=1 << 20 | number) as file:
            assert numbers(file) == [0, 100]
    ended_by = time.monotonic() + 10
    while len(bridges() - before) > 4 and time.monotonic() < ended_by:
        time.sleep(0.01)
    assert len(bridges() - before) == 4


def test_what_a_one_off_block_began_ends_with_it(lake: Path) -> None:
    with blocking.open_dataset(lake) as dataset, blocking.open_dataset(lake) as other:
        scan, kept = iter(dataset.scan(batch_size=2)), iter(other.scan(batch_size=2))
        assert next(scan).num_rows == next(kept).num_rows == 2
        reader = dataset.scan().to_reader()
        inner = blocking.OneOffSession({}).asynchronous
    with pytest.raises(asyncpq.UsageError):
        next(scan)
    with pytest.raises(asyncpq.UsageError):
        reader.read_all()
    assert not inner._runtime._closers


def test_a_session_that_cannot_be_entered_leaves_no_thread(tmp_path: Path) -> None:
    before = bridges()
    (tmp_path / "cache").mkdir(mode=0o777)
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(asyncpq.InvalidOptionError):
        blocking.Session(disk_cache=tmp_path / "cache")
    assert bridges() == before


async def ids(server: ObjectServer, name: str = "a", **options: Any) -> list[int]:
    url = f"s3://bucket/{name}.parquet"
    async with asyncpq.open_file(url, storage_options=server.storage_options, **options) as file:
        found: list[int] = (await file.read(["id"]))["id"].to_pylist()
    return found


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[asyncpq.Session]:
    """The sessions that are made."""
    sessions: list[asyncpq.Session] = []
    init = asyncpq.Session.__init__

    def keep(self: asyncpq.Session, *arguments: Any, **options: Any) -> None:
        init(self, *arguments, **options)
        sessions.append(self)

    monkeypatch.setattr(asyncpq.Session, "__init__", keep)
    return sessions


def is_closed(session: asyncpq.Session) -> bool:
    return session._runtime._life.ended


@pytest.mark.filterwarnings("error")
def test_the_openings_of_a_loop_share_a_session(lake: Path, server: ObjectServer, made: list[asyncpq.Session]) -> None:
    for number, name in enumerate("bc", 1):
        server.put(f"bucket/{name}.parquet", (lake / f"0{number}.parquet").read_bytes())

    async def calls() -> None:
        server.put("bucket/a.parquet", (lake / "00.parquet").read_bytes())
        assert await ids(server) == [0, 100]
        asked = len(server.log)
        for _ in range(50):
            assert await ids(server) == [0, 100]
        assert len(server.log) == asked + 50  # whether the object is still the same
        assert await asyncio.gather(*[ids(server, name) for name in "abc" * 5]) == [[0, 100], [1, 101], [2, 102]] * 5
        server.put("bucket/a.parquet", (lake / "03.parquet").read_bytes())
        assert await ids(server) == [3, 103]  # no older version, whatever the session's policy
        assert len(made) == 1
        assert await ids(server, memory_cache_bytes=0) == [3, 103]
        assert len(made) == 2
        assert not any(map(is_closed, made))

    threads = set(threading.enumerate())
    for _ in range(2):
        made.clear()
        asyncio.run(calls())
        assert len(made) == 2
        assert all(map(is_closed, made))
    gc.collect()
    assert set(threading.enumerate()) == threads
    assert not one_off._shared_sessions


@pytest.mark.filterwarnings("error")
def test_a_loop_that_is_only_closed_leaves_no_session(lake: Path, made: list[asyncpq.Session]) -> None:
    async def call() -> int:
        async with asyncpq.open_file(lake / "00.parquet") as file:
            return await file.count()

    def run_loop() -> None:
        loop = asyncio.new_event_loop()
        assert loop.run_until_complete(call()) == 2
        loop.close()

    run_loop()
    run_loop()
    assert len(made) == 2  # none of a loop that is closed
    made.clear()
    gc.collect()
    assert not one_off._shared_sessions


async def test_what_an_async_block_began_ends_with_it(lake: Path, made: list[asyncpq.Session]) -> None:
    async with asyncpq.open_dataset(lake) as dataset, asyncpq.open_dataset(lake) as other:
        scan, kept = dataset.scan(), other.scan()
        await scan.__aenter__()
        await kept.__aenter__()
        assert len(made) == 1
    for ended in (scan, kept):
        with pytest.raises(asyncpq.UsageError):
            await anext(ended)
    with pytest.raises(asyncpq.UsageError, match="the session is closed"):
        await dataset.count()
    assert not made[0]._runtime._closers
    assert not is_closed(made[0])


async def test_an_error_in_a_block_ends_its_session_for_later_calls(lake: Path, made: list[asyncpq.Session]) -> None:
    async with asyncpq.open_file(lake / "00.parquet") as first:
        with pytest.raises(asyncpq.ObjectNotFoundError):
            async with asyncpq.open_file(lake / "none.parquet"):
                pass
        async with asyncpq.open_file(lake / "01.parquet") as second:
            assert (await first.count(), await second.count()) == (2, 2)
        assert len(made) == 2
    assert [is_closed(session) for session in made] == [True, False]


async def test_idle_sessions_of_a_loop_end(
    lake: Path, made: list[asyncpq.Session], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def call(size: int) -> None:
        async with asyncpq.open_file(lake / "00.parquet", memory_cache_bytes=size) as file:
            assert await file.count() == 2

    for size in range(6):
        await call(1 << 20 | size)
    await asyncio.gather(*one_off._ending)
    assert [is_closed(session) for session in made] == [True] * 2 + [False] * 4
    monkeypatch.setattr(one_off, "IDLE_S", 0.05)
    await call(1 << 20)
    async with asyncio.timeout(10):
        while not is_closed(made[-1]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await call(1 << 20)
    assert len(made) == 8


async def test_loops_in_other_threads_begin_sessions_meanwhile(lake: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread with another event loop adds its session while this one looks for sessions that are idle."""
    added: list[one_off._SharedSession] = []
    loop = asyncio.get_running_loop()

    def meanwhile(shared: one_off._SharedSession) -> asyncio.AbstractEventLoop:
        if len(added) < 100:
            added.append(object.__new__(one_off._SharedSession))
            added[-1].idle = None
            one_off._shared_sessions["of another loop", len(added)] = added[-1]
        return loop

    async with asyncpq.open_file(lake / "00.parquet") as file:
        assert await file.count() == 2
        shared = next(iter(one_off._shared_sessions.valuerefs()))()
        assert shared is not None
        monkeypatch.setattr(one_off._SharedSession, "loop", property(meanwhile), raising=False)
    assert added


async def test_a_cancelled_call_leaves_the_session_to_others(lake: Path, server: ObjectServer) -> None:
    server.put("bucket/a.parquet", (lake / "00.parquet").read_bytes())
    calls = [asyncio.create_task(ids(server)) for _ in range(8)]
    while not server.log:  # noqa: ASYNC110
        await asyncio.sleep(0)
    calls[0].cancel()
    assert await asyncio.gather(*calls[1:]) == [[0, 100]] * 7
    with pytest.raises(asyncio.CancelledError):
        await calls[0]


async def test_one_off_calls_keep_what_they_put_on_disk(lake: Path, tmp_path: Path, server: ObjectServer) -> None:
    server.put("bucket/a.parquet", (lake / "00.parquet").read_bytes())
    assert await ids(server, disk_cache=str(tmp_path / "cache")) == [0, 100]
    async with asyncpq.Session(server.storage_options, disk_cache=str(tmp_path / "cache")) as session:
        file = await session.open_file("s3://bucket/a.parquet")
        await file.read(["id"])
        assert session.cache_counters()["disk"]["hits"] > 0


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
    assert set(blocking.__all__) == own - {"OneOffSession"} - {"P", "T", "A", "B", "S", "Q"}
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


@pytest.mark.parametrize("module", [asyncpq, blocking])
@pytest.mark.parametrize("name", ["open_file", "open_dataset"])
def test_an_opening_that_is_not_entered_has_no_methods(lake: Path, module: Any, name: str) -> None:
    opening: Any = getattr(module, name)(lake / "00.parquet")
    keyword = "async with" if module is asyncpq else "with"
    with pytest.raises(AttributeError, match=rf"is a context manager. Write `{keyword} {module.__name__}\.{name}\("):
        opening.read()
    assert not hasattr(opening, "_unknown")
    with pytest.raises(TypeError, match="cannot be pickled or copied"):
        copy.copy(opening)
