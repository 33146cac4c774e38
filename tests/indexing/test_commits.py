"""Builders, compactions and vacuums of one index at once, in any order of their steps, which die and lose answers: no
file is lost, no id is used twice, every snapshot that is kept is whole."""

from __future__ import annotations

import asyncio
import time
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq.errors import CorruptIndexError, StaleSnapshotError
from asyncpq.indexing import MemoryBackend, commits
from asyncpq.indexing import commits as heartbeats
from asyncpq.indexing.build.file_rows import FileCollector
from asyncpq.indexing.build.index_builder import IndexBuilder
from asyncpq.indexing.build.index_source import IndexSource
from asyncpq.indexing.build.maintenance import compact, vacuum
from asyncpq.indexing.commits import load
from asyncpq.indexing.index_model import IndexTable, Segment
from asyncpq.indexing.manifest import FILES, Manifest, decode, encode
from asyncpq.options import BuildOptions, LimitOptions
from tests.indexing.index_turns import SCHEMA, SET, Kept, KilledError, TurnPlace, Turns, check, collector, data_file

_KEEP, _OLD_S, _ORPHANS_S, _GRACE_S = 2, 100.0, 1000.0, 50.0
_OPTIONS = BuildOptions(checkpoint_files=2, files_at_once=2, max_segments=2, segment_rows=3, grace_s=_GRACE_S)
_PATHS = "abcdef"
_who: ContextVar[str] = ContextVar("who")


class _World:
    """The files, the place, and those who are at work."""

    def __init__(self, data: st.DataObject, monkeypatch: pytest.MonkeyPatch, runtime: Any) -> None:
        self.data = data
        self.runtime = runtime
        self.turns = Turns()
        self.kept = Kept()
        self.files: dict[str, str] = {}
        self.ever: dict[str, set[str | None]] = {path: {None} for path in _PATHS}
        self.tasks: dict[str, asyncio.Task[Any]] = {}
        self.backends: dict[str, TurnPlace] = {}
        self.seen: dict[str, dict[str, str]] = {}
        self.number = 0
        self.losing = False
        self.snapshots: dict[int, dict[str, str | None]] = {}
        monkeypatch.setattr(heartbeats, "time", SimpleNamespace(time=lambda: self.turns.now, monotonic=time.monotonic))
        monkeypatch.setattr(commits, "_WAIT_S", 0.0)
        monkeypatch.setattr(FileCollector, "collect", lambda *args: collector(self.turns, _who.get())(*args))

    def lake(self) -> IndexSource:
        self.number += 1
        return IndexSource(
            url="lake",
            root="lake/",
            dataset={},
            schema=SCHEMA,
            fields=None,
            partitions=(),
            files=[data_file(path, version) for path, version in sorted(self.files.items())],
            as_of=datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.number),
        )

    def backend(self, who: str) -> TurnPlace:
        return TurnPlace(self.kept, self.turns, who, self.loses)

    def loses(self) -> bool:
        lost, self.losing = self.losing, False
        return lost

    def start(self, kind: str) -> None:
        self.number += 1
        who = f"{kind} {self.number}"
        backend = self.backends[who] = self.backend(who)

        async def run() -> None:
            _who.set(who)
            operation = self.runtime.operation("build" if kind == "build" else "compact", "lake")
            if kind == "build":
                base = await load(backend)
                self.seen[who] = dict(self.files)
                await IndexBuilder(self.runtime, backend, self.lake(), [SET], operation, _OPTIONS, base).run()
            elif kind == "compact":
                await compact(self.runtime, backend, _OPTIONS, operation)
            else:
                await vacuum(backend, keep=_KEEP, older_than_s=_OLD_S, orphans_s=_ORPHANS_S, grace_s=_GRACE_S)

        self.tasks[who] = asyncio.create_task(run())

    def kill(self, who: str) -> None:
        self.backends[who].killed = True
        for number in reversed(range(len(self.turns.waiting))):
            if self.turns.waiting[number][0] == who:
                self.turns.go(number)

    async def reap(self) -> None:
        for who, task in list(self.tasks.items()):
            if not task.done():
                continue
            del self.tasks[who]
            backend = self.backends.pop(who)
            error = task.exception()
            if isinstance(error, KilledError):
                assert backend.killed
            elif isinstance(error, StaleSnapshotError):
                pass  # taken for dead; or what it read was vacuumed meanwhile
            elif error is None and who in self.seen:
                await self.check_brought(self.seen[who])
            elif error is not None and not (error.args and "there is no index" in str(error)):
                raise error

    async def check_brought(self, seen: dict[str, str]) -> None:
        """A build has ended: what it saw, and is still so, is listed, or was by the time that another build looked."""
        found = await self.kept.backend.latest()
        assert found is not None
        listed = check(self.kept, decode(found[1]))
        for path, version in seen.items():
            if self.ever[path] == {None, version} and path in self.files:  # it never was another
                assert listed.get(path) == version, f"{path} was brought, and is lost"

    async def check(self) -> None:
        """What is seen now, and what is kept, is whole; what was seen once stays as it was."""
        manifests = [int(number) for number in self.kept.since["manifests"]]
        newest = max(manifests, default=0)
        for number in sorted(manifests):
            if number > newest - _KEEP:
                content = await self.kept.backend.manifest(number)
                assert content is not None
                paths = check(self.kept, decode(content))
                assert all(version in self.ever[path] for path, version in paths.items())
                assert self.snapshots.setdefault(number, paths) == paths

    async def run(self) -> None:
        for _ in range(self.data.draw(st.integers(5, 60), label="steps")):
            await self.step()
            await self.turns.settle()
            await self.reap()
            await self.check()
        while self.tasks:  # whoever lives comes to an end
            if self.turns.waiting:
                self.turns.go(0)
            await self.turns.settle()
            await self.reap()
            await self.check()
        self.turns.now += 10_000
        for kind in ("build", "compact", "vacuum", "build"):
            self.start(kind)
            while self.tasks:
                await self.turns.settle()
                if self.turns.waiting:
                    self.turns.go(0)
                await self.reap()
        loading = asyncio.create_task(load(self.backend("end")))
        while not loading.done():
            await self.turns.settle()
            if self.turns.waiting:
                self.turns.go(0)
        manifest = loading.result()
        assert manifest is not None
        assert check(self.kept, manifest) == self.files
        assert not manifest.builds  # those that were broken off are forgotten

    async def step(self) -> None:
        draw = self.data.draw
        kinds = ["turn"] * 6 * bool(self.turns.waiting) + ["write", "write", "remove", "time"]
        kinds += ["build", "build", "compact", "vacuum"] * (len(self.tasks) < 4)
        kinds += ["kill", "lose"] * bool(self.tasks)
        kind = draw(st.sampled_from(kinds))
        if kind == "turn":
            for _ in range(draw(st.integers(1, 4))):
                if self.turns.waiting:
                    self.turns.go(draw(st.integers(0, len(self.turns.waiting) - 1)))
                    await self.turns.settle()
        elif kind == "write":
            path = draw(st.sampled_from(_PATHS))
            self.number += 1
            self.files[path] = f'"{self.number}"'
            self.ever[path].add(self.files[path])
        elif kind == "remove":
            path = draw(st.sampled_from(_PATHS))
            if self.files.pop(path, None) is not None:
                self.ever[path].add("gone")
        elif kind == "time":
            # who is about to commit has made sure just now that it is alive
            if all(what != "commit" for _, what, _ in self.turns.waiting):
                self.turns.now += draw(st.sampled_from([1.0, 20.0, 60.0, 150.0, 2000.0]))
        elif kind == "kill":
            self.kill(draw(st.sampled_from(sorted(self.tasks))))
        elif kind == "lose":
            self.losing = True
        else:
            self.start(kind)


@pytest.mark.heavy
@settings(max_examples=max(10, settings().max_examples // 3))
@given(st.data())
def test_whoever_writes_at_once(data: st.DataObject) -> None:
    async def run() -> None:
        with pytest.MonkeyPatch.context() as monkeypatch:
            async with asyncpq.Session(limits=LimitOptions(decode_threads=0)) as session:
                world = _World(data, monkeypatch, session._runtime)
                try:
                    await world.run()
                finally:
                    for who in list(world.tasks):
                        world.kill(who)
                    await world.turns.settle()
                    for task in world.tasks.values():
                        task.cancel()
                    await asyncio.gather(*world.tasks.values(), return_exceptions=True)

    asyncio.run(run())


# -- manifests that lead on ------------------------------------------------------------------------


def _manifest(**members: Any) -> Manifest:
    known: dict[str, Any] = {
        "index": "i",
        "snapshot": 1,
        "commit": "c",
        "root": "",
        "schema": SCHEMA,
        "tables": (FILES,),
    }
    return Manifest(**(known | {"created": datetime(2026, 1, 1, tzinfo=UTC)} | members))


async def test_snapshots_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that makes each manifest when it is asked for."""
    monkeypatch.setattr(commits, "_MOST_AHEAD", 20)

    class Endless(MemoryBackend):
        last = 10_000

        async def latest(self, **options: Any) -> tuple[int, bytes] | None:
            return 1, encode(_manifest())

        async def manifest(self, number: int, **options: Any) -> bytes | None:
            return encode(_manifest(snapshot=number)) if number <= self.last else None

    backend = Endless()
    with pytest.raises(CorruptIndexError, match="do not end"):
        await load(backend)
    backend.last = 20
    newest = await load(backend)
    assert newest is not None
    assert newest.snapshot == 20


@pytest.mark.parametrize(("table", "num_rows"), [(IndexTable("manifest"), 257), (IndexTable("bloom", ("a",)), 1)])
async def test_a_long_member_is_not_read_from_any_segment(table: IndexTable, num_rows: int) -> None:
    segment = Segment(name="a", table=table, num_rows=num_rows, size=1, low=b"", high=b"", files=())
    backend = MemoryBackend()
    assert await backend.commit(1, encode(_manifest(long=(("dataset", segment),))))
    with pytest.raises(CorruptIndexError, match="not a part of the index's manifest"):
        await load(backend)
