"""``asyncpq explain`` and ``asyncpq why`` of files and lakes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import asyncpq
from asyncpq.cli import targets
from asyncpq.cli.app import app
from asyncpq.reports.documents import PlanDocument, Why
from tests.cli.snapshots import check_snapshot


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, a lake, and prices that no measurement changes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        targets,
        "REQUESTS",
        asyncpq.RequestOptions(latency_s=0.03, bandwidth_bytes_s=200e6, tail_bytes=1000, late_materialization="always"),
    )
    table = pa.table(
        {
            "id": range(4000),
            "user": [f"user {row * 7919 % 4000:04}" for row in range(4000)],
            "name": [f"name {row:09d}" for row in range(4000)],
        }
    )
    options: dict[str, Any] = {"write_page_index": True, "max_rows_per_page": 100, "write_batch_size": 100}
    pq.write_table(table, "a.parquet", row_group_size=1000, use_dictionary=False, **options)
    for number in range(4):
        folder = Path("lake") / f"day={number // 2}"
        folder.mkdir(parents=True, exist_ok=True)
        pq.write_table(table.slice(number * 1000, 1000), folder / f"{number}.parquet", **options)


def run(*arguments: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == code, done.output
    if code:
        assert len(done.stderr.splitlines()) == 1
        return done.stderr
    assert not re.search("Traceback", done.stderr)
    return done.stdout


def masked(text: str) -> str:
    """``text`` without times and what depends on them."""
    title, lines = "", []
    for line in text.splitlines():
        title = line if line and not line.startswith(" ") else title
        line = re.sub(r"\d+\.\d ms|\d+\.\d\d s", "TIME", line)
        if title in ("Requests", "Time"):
            line = re.sub(r"\s+█.*|\s+TIME.*", "  TIME", line)
        if title != "Time" or line == title:
            lines.append(line)
    return "\n".join(lines)


def timeless(value: Any) -> Any:
    """A document without times."""
    if isinstance(value, dict):
        return {
            name: "TIME" if name in TIMES and isinstance(part, float) else timeless(part)
            for name, part in value.items()
        }
    return [timeless(part) for part in value] if isinstance(value, list) else value


TIMES = {
    "began_s", "first_byte_s", "seconds", "total_s", "network_s", "caches_s", "decode_s", "other_s", "wait_s",
}  # fmt: skip

READS: dict[str, list[str]] = {
    "lookup": ["a.parquet", "--key", "id=1234", "--columns", "name"],
    "unsorted": ["a.parquet", "--key", "user=user 0017", "--columns", "name"],
    "where": ["a.parquet", "--where", "id > 3500", "--limit", "20"],
    "lake": ["lake", "--where", "day = 1 and id = 3210"],
}


@pytest.mark.parametrize("read", READS)
def test_a_story_as_text(read: str) -> None:
    check_snapshot(f"why_{read}.txt", masked(run("why", *READS[read])))


@pytest.mark.parametrize("read", READS)
def test_a_plan_as_text(read: str) -> None:
    check_snapshot(f"explain_{read}.txt", re.sub(r"(listing: .*), .* s", r"\1, TIME", run("explain", *READS[read])))


def test_documents() -> None:
    story = json.loads(run("why", *READS["lookup"], "--format", "json"))
    plan = json.loads(run("explain", *READS["lookup"], "--format", "json"))
    assert msgspec.convert(story, Why) == story
    assert msgspec.convert(plan, PlanDocument) == plan
    assert len(story.pop("layouts")) == 1  # test_inspect.py has them
    check_snapshot("why_lookup.json", json.dumps(timeless(story), indent=1))
    check_snapshot("explain_lookup.json", json.dumps(plan, indent=1))
    for read in READS.values():
        assert msgspec.convert(json.loads(run("why", *read, "--format", "json")), Why)
        assert msgspec.convert(json.loads(run("explain", *read, "--format", "json")), PlanDocument)


def test_a_warm_story() -> None:
    text = run("why", *READS["lookup"], "--warm")
    assert "0 requests in 0 rounds" in text
    assert "none: caches had everything" in text


def test_a_second_command_finds_the_cache_on_disk() -> None:
    texts = [run("why", *READS["lookup"], "--disk-cache", "cache") for _ in range(2)]
    assert ["1 row, " in text for text in texts] == [True, True]


@pytest.mark.parametrize("command", ["why", "explain"])
@pytest.mark.parametrize("read", READS)
def test_page_maps(command: str, read: str) -> None:
    run(command, *READS[read], "--html", "out.html", "--svg", "out.svg")
    assert Path("out.html").read_text().startswith("<!doctype html>")
    assert "<svg" in Path("out.svg").read_text()


@pytest.mark.parametrize("command", ["why", "explain"])
def test_wrong_usage_is_one_line(command: str) -> None:
    assert "not a value of type int64" in run(command, "a.parquet", "--key", "id=x", code=2)
    assert "--where" in run(command, "a.parquet", "--key", "id=1", "--where", "id = 2", code=2)
    assert "nr" in run(command, "a.parquet", "--key", "nr=1", code=2)
    assert "nr" in run(command, "a.parquet", "--columns", "nr", code=2)
    assert "missing.parquet" in run(command, "missing.parquet", "--key", "id=1", code=3)
