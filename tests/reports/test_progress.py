"""Bars of progress: drawn on terminals after the first second, for the events of calls that are watched."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

import asyncpq
from asyncpq.errors import UsageError
from asyncpq.events import Event
from asyncpq.indexing import Keys
from asyncpq.reports import progress
from asyncpq.reports.progress import ProgressBars
from tests.clock import Clock


def show(monkeypatch: pytest.MonkeyPatch, *events: Event, terminal: bool, wait_s: float) -> str:
    out = io.StringIO()
    monkeypatch.setattr(progress, "_WAIT_S", wait_s)
    with ProgressBars() as bars:
        bars._console = Console(file=out, force_terminal=terminal, width=100)
        for event in events:
            bars(event)
    return out.getvalue()


def steps(*done: int) -> list[Event]:
    return [asyncpq.Progress("optimize", "lake/", "sort", count, 100, "rows") for count in done]


def test_a_step_has_a_bar_with_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    text = show(monkeypatch, *steps(10, 100), terminal=True, wait_s=0)
    assert "sort" in text
    assert "100/100" in text
    assert "rows" in text


def test_files_of_a_read_have_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = asyncpq.FileEnded("build", "a.parquet", asyncpq.ReadMetrics(), None, 3, 7)
    assert "3/7" in show(monkeypatch, ended, terminal=True, wait_s=0)


def test_short_calls_show_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert show(monkeypatch, *steps(10, 100), terminal=True, wait_s=60) == ""
    assert show(monkeypatch, *steps(10, 100), terminal=False, wait_s=0) == ""


def test_without_a_terminal_there_is_a_line_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, out = Clock(), io.StringIO()
    monkeypatch.setattr(progress, "time", clock)
    with ProgressBars() as bars:
        bars._console = Console(file=out, force_terminal=False, width=20)
        for done in range(2000, 8000, 1000):
            clock.now_s += 4
            bars(asyncpq.FileEnded("build", "a.parquet", asyncpq.ReadMetrics(), None, done, 100_000))
        bars(*steps(10))
    assert out.getvalue() == "read: 4,000 of 100,000 files, 12 s\nread: 7,000 of 100,000 files, 24 s\n"


def test_rich_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    with pytest.raises(UsageError, match=r"Install rich: pip install .*\[cli\]"):
        ProgressBars()


async def test_a_build_is_watched_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lake").mkdir()
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "lake" / "a.parquet")
    shown: list[Event] = []
    hooked: list[Event] = []
    monkeypatch.setattr(ProgressBars, "__call__", lambda self, event: shown.append(event))
    async with asyncpq.Session(on_event=hooked.append) as session:
        await session.build_index(f"{tmp_path}/lake/", [Keys("id")], progress=True)
        assert [event.files_done for event in shown if isinstance(event, asyncpq.FileEnded)][-1] == 1
        assert hooked == shown
        async with await session.open_dataset(f"{tmp_path}/lake/") as dataset:
            await dataset.lookup({"id": 1})
        assert len(hooked) > len(shown)


@pytest.mark.parametrize("blocking", [False, True])
async def test_a_session_shows_its_long_reads(blocking: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(progress, "_WAIT_S", 0)
    monkeypatch.setattr(progress, "_console", lambda: Console(file=out, force_terminal=True, width=100))
    for name in "abc":
        pq.write_table(pa.table({"id": [1, 2]}), tmp_path / f"{name}.parquet")
    if blocking:
        with asyncpq.blocking.BlockingSession() as session:
            lake = session.open_dataset(tmp_path)
            with session.progress():
                assert lake.read().num_rows == 6
    else:
        async with asyncpq.Session() as session_, await session_.open_dataset(tmp_path) as dataset:
            with session_.progress():
                assert (await dataset.read()).num_rows == 6
            shown = out.getvalue()
            await dataset.read()
            assert out.getvalue() == shown, "after the block"
    assert "3/3" in out.getvalue()


@pytest.mark.parametrize("call", ["read", "scan", "count"])
async def test_a_long_read_of_one_file_tells_its_rows(call: str, tmp_path: Path) -> None:
    table = pa.table({"id": range(100_000), "text": [f"{number:x}" for number in range(100_000)]})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=20_000, data_page_size=4096, write_page_index=True)
    told: list[Event] = []
    limits = asyncpq.LimitOptions(unit_bytes=1 << 14, round_bytes=1 << 14)
    async with asyncpq.Session(limits=limits, on_event=told.append) as session:
        file = await session.open_file(tmp_path / "a.parquet")
        for where in (None, asyncpq.col("id") < 10):  # the second one takes one unit
            told.clear()
            rows = table.num_rows if where is None else 10
            if call == "scan":
                async with file.scan(where=where) as scan:
                    rows = sum([batch.num_rows async for batch in scan])
            elif call == "count":
                condition = asyncpq.col("text").contains("a") if where is None else where
                expected = sum("a" in text for text in table["text"].to_pylist()) if where is None else 10
                assert await file.count(condition) == expected
            else:
                rows = (await file.read(where=where)).num_rows
            steps = [event for event in told if isinstance(event, asyncpq.Progress)]
            assert {(event.step, event.unit, event.total) for event in steps} <= {("read", "rows", 100_000)}
            done = [event.done for event in steps]
            if where is None:
                assert rows == 100_000
                assert len(done) > 4
                assert done == sorted(done)
                assert done[-1] == 100_000
            else:
                assert (rows, done) == (10, [])
