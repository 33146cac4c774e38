"""``asyncpq explain`` and ``asyncpq why`` of files and lakes."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import asyncpq
from asyncpq.cli import arguments
from asyncpq.cli.commands import app
from asyncpq.reports import why
from asyncpq.reports.documents import PlanDocument, Why
from localstack.seed import seed
from tests.cli.snapshots import check_snapshot
from tests.cli.test_inspect import WRITERS
from tests.iceberg_tables import add_files, data_files, make_table, position_deletes
from tests.parquet_samples import DATA, requires_corpus
from tests.reports.counted_time import counted_time

pytestmark = pytest.mark.sampled(2)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file, a lake, and prices that no measurement changes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        arguments,
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
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*map(str, arguments)])
    assert done.exit_code == code, done.output
    if code:
        assert len(done.stderr.splitlines()) == 1
        return done.stderr
    assert not re.search("Traceback", done.stderr)
    return done.stdout


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Causes depend on the time that was measured."""
    monkeypatch.setattr(why, "time_of", counted_time)


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
    "began_s", "first_byte_s", "seconds", "total_s", "network_s", "caches_s", "decode_s", "filter_s", "other_s",
    "wait_s",
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


@requires_corpus
@pytest.mark.parametrize("name", [name for name in WRITERS if "encrypt" not in name])
def test_files_of_many_writers(name: str) -> None:
    document = json.loads(run("why", DATA / name, "--format", "json"))
    assert msgspec.convert(document, Why) == document
    assert document["funnel"][-1]["kept"] == document["rows"] == document["layouts"][0]["rows"]
    assert "What would make it faster" in run("why", DATA / name)
    assert run("explain", DATA / name).startswith("read ")


def test_a_lake_of_500_files_blames_the_missing_index() -> None:
    Path("many").mkdir()
    for number in range(500):
        table = pa.table({"id": [number, number + 1000], "name": ["a", "b"]})
        pq.write_table(table, f"many/{number:03}.parquet", write_page_index=True)
    document = json.loads(run("why", "many", "--key", "id=1234", "--format", "json"))
    assert document["rows"] == 1
    assert document["causes"][0]["id"] in ("tiny-files", "no-index")
    files = document["funnel"][0]
    assert (files["total"], len(document["others"])) == (500, 500 - files["kept"])
    assert len(document["layouts"]) == 20
    assert len(run("why", "many", "--key", "id=1234").splitlines()) < 60


def test_a_delta_table(tmp_path: Path) -> None:
    for number in range(3):
        deltalake.write_deltalake(
            tmp_path / "delta", pa.table({"id": range(number * 10, number * 10 + 10)}), mode="append"
        )
    document = json.loads(run("why", "delta", "--key", "id=12", "--format", "json"))
    assert (document["rows"], document["view"]) == (1, "table")
    assert document["funnel"][0]["ruled_out"] == [{"by": "table", "count": 2, "detail": ""}]
    assert "1 of 3" in run("explain", "delta", "--key", "id=12")


def test_an_iceberg_table_with_deletes(tmp_path: Path) -> None:
    rows = pa.table({"id": range(100)})
    table = make_table(tmp_path / "iceberg", rows.schema)
    table.append(rows)
    (file,) = data_files(table)
    add_files(table, [position_deletes(table, {file.file_path: [2, 3]}, like=file)])
    url = table.metadata_location.removeprefix("file://")
    document = json.loads(run("why", url, "--where", "id < 7", "--format", "json"))
    assert (document["rows"], document["view"], len(document["files"])) == (5, "table", 1)
    assert document["funnel"][-1]["total"] == 100
    assert run("explain", url, "--where", "id < 7").startswith("dataset ")


async def test_an_object_store(localstack: str, bucket: str, tmp_path: Path) -> None:
    await seed(localstack, bucket, {"lake/a.parquet": (tmp_path / "a.parquet").read_bytes()})
    runner = CliRunner(env={"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"})
    for url in (f"s3://{bucket}/lake/a.parquet", f"s3://{bucket}/lake/"):
        arguments = ["why", url, "--key", "id=1234", "--endpoint-url", localstack, "--format", "json"]
        done = await asyncio.to_thread(runner.invoke, app, arguments)
        assert done.exit_code == 0, done.output
        document = json.loads(done.stdout)
        assert document["rows"] == 1
        assert all(request["first_byte_s"] is not None for request in document["requests"])
        assert document["time"]["network_s"] > 0


def test_a_reader_that_leaves_is_no_error() -> None:
    command = [sys.executable, "-m", "asyncpq", "why", *READS["lookup"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(30) == 0


@pytest.mark.parametrize("url", ["a.parquet", "lake", "lake/**/*.parquet"])
def test_why_a_count_is_slow(url: str) -> None:
    for where in ([], ["--where", "user = 'user 0042'"]):
        document = json.loads(run("why", url, "--count", *where, "--format", "json"))
        assert msgspec.convert(document, Why) == document
        assert (document["verb"], document["rows"]) == ("count", 1 if where else 4000)
    assert run("why", url, "--count").startswith("count of all rows")
    assert "--count cannot be combined" in run("why", url, "--count", "--columns", "id", code=2)
    assert "--count cannot be combined" in run("why", url, "--count", "--key", "id=1", code=2)
