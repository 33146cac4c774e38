"""The story of a read is what happened: its requests, pages, rows, tiers and times."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import deltalake
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq import col
from asyncpq.metrics import RequestRecord
from asyncpq.reports import lint, why
from asyncpq.reports.documents import TimeSplit, Why
from asyncpq.reports.why import why_text
from asyncpq.scan import plan
from asyncpq.testing import Fault, ObjectServer
from tests.parquet_bytes import parquet_bytes
from tests.reports.counted_time import counted_time

ROWS, GROUP = 4000, 1000
URL_A = "s3://bucket/lake/a.parquet"


def content(**options: Any) -> bytes:
    table = pa.table(
        {
            "id": range(ROWS),
            "mixed": [row * 7919 % ROWS for row in range(ROWS)],
            "name": [f"name {row:09d}" for row in range(ROWS)],
        }
    )
    pages = {"max_rows_per_page": 100, "write_batch_size": 100, "use_dictionary": False, "write_page_index": True}
    return parquet_bytes(table, row_group_size=GROUP, **{**pages, **options})


CONTENT = content()
READS: dict[str, dict[str, Any]] = {
    "lookup": {"columns": ["name"], "lookup": {"id": 1234}},
    "many keys": {"columns": ["name"], "lookup": {"id": [7, 8, 3_999]}},
    "pairs of keys": {"columns": ["id"], "lookup": {"id": [7, 8], "name": ["name 000000007", "name 000000009"]}},
    "nothing": {"lookup": {"id": -1}},
    "late": {"columns": ["id", "name"], "where": col("mixed") == 17},
    "scan": {"where": col("id") >= 2_500},
    "everything": {},
    "limit": {"limit": 10},
    "limited filter": {"columns": ["name"], "where": col("mixed") < 2_000, "limit": 3},
}
OPTIONS: dict[str, dict[str, Any]] = {
    "pages": {},
    "chunks": {"write_page_index": False},
    "dictionaries": {"use_dictionary": ["name"]},
}


def check(document: Why, rows: int) -> None:
    """What is true of every story."""
    assert json.loads(json.dumps(document)) == document
    assert msgspec.convert(document, Why) == document
    assert document["rows"] == rows
    for step in document["funnel"]:
        assert step["total"] - sum(item["count"] for item in step["ruled_out"]) == step["kept"], step
        assert all(item["count"] > 0 for item in step["ruled_out"])
    assert document["funnel"][-1]["level"] == ("rows" if len(document["funnel"]) > 1 else "files")
    assert document["funnel"][-1]["kept"] == rows
    split, total = document["time"], document["time"]["total_s"]
    parts = [split["network_s"], split["caches_s"], split["decode_s"], split["filter_s"], split["other_s"]]
    assert min(parts) >= -1e-6
    assert sum(parts) == pytest.approx(total, abs=1e-5)
    for request in document["requests"]:
        assert -1e-6 <= request["began_s"] <= request["began_s"] + request["seconds"] <= total + 1e-3
    assert document["bytes"]["fetched"] == sum(request["received"] for request in document["requests"])
    savings = [cause["saves_seconds"] or 0 for cause in document["causes"]]
    assert all(saving > 0 for saving in savings)
    assert document["url"] in document["plan"]["url"]


def pages_read(document: Why) -> tuple[set[int], set[int]]:
    """The bytes of pages that came from the store, by the fates; and those that the data requests asked for."""
    layouts = {layout["url"]: layout for layout in document["layouts"]}
    told: set[int] = set()
    for file in document["files"]:
        for chunk in file["chunks"]:
            layout = layouts[file["url"]]["row_groups"][chunk["row_group"]]["chunks"][chunk["column"]]
            pages = layout["pages"]
            if chunk["whole"] or pages is None:
                if chunk["fate"] == "read":
                    told.update(range(*layout["bytes"]))
                continue
            each = chunk.get("fates") or [chunk["fate"]] * len(chunk["pages"])
            for page, fate in zip(chunk["pages"], each, strict=True):
                if fate == "read":
                    told.update(range(pages["starts"][page], pages["starts"][page] + pages["sizes"][page]))
    asked: set[int] = set()
    for request in document["requests"]:
        if request["purpose"] == "data":
            asked.update(range(*request["bytes"]))
    return told, asked


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("read", READS)
async def test_the_story_is_what_happened(read: str, options: str, tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(content(**OPTIONS[options]))
    arguments = dict(READS[read])
    requests = asyncpq.RequestOptions(tail_bytes=1000, gap_bytes=0, late_materialization="always")
    async with asyncpq.Session(requests=requests) as session:
        file = await session.open_file(path)
        with asyncpq.measure() as metrics:
            report = await file.why(**arguments)
        keys = arguments.pop("lookup", None)
        table = await (file.lookup(keys, **arguments) if keys else file.read(**arguments))
    document = report.to_dict()
    check(document, table.num_rows)
    told, asked = pages_read(document)
    assert told <= asked
    dictionaries = sum(
        stop - start
        for start, stop in (
            group["chunks"][chunk["column"]]["dictionary"] or [0, 0]
            for group in document["layouts"][0]["row_groups"]
            for file_ in document["files"]
            for chunk in file_["chunks"]
            if chunk["row_group"] == group["ordinal"] and not chunk["whole"]
        )
    )
    assert len(asked - told) <= dictionaries  # they are no pages; gaps are not read
    assert document["requests"][0]["purpose"] == "tail"  # the file had just been opened
    assert metrics.requests < len(document["requests"])
    assert document["verb"] == ("lookup" if keys else "scan")


async def test_the_least_is_the_pages_of_the_matching_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(CONTENT)
    async with asyncpq.Session(requests=asyncpq.RequestOptions(late_materialization="always")) as session:
        file = await session.open_file(path)
        document = (await file.why(["name"], lookup={"mixed": 17})).to_dict()
    (row,) = [row for row in range(ROWS) if row * 7919 % ROWS == 17]
    chunks = document["layouts"][0]["row_groups"][row // GROUP]["chunks"]
    pages: list[Any] = [chunks[column]["pages"] for column in (1, 2)]
    least = sum(column["sizes"][row % GROUP // 100] for column in pages)
    assert document["bytes"]["wanted"] == least
    assert document["keys"] == {"mixed": ["17"]}


async def test_a_warm_story_has_no_opening_and_tells_the_tiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = why.time_of

    def time_of(read: why.Read, story: why.Story, log: Sequence[RequestRecord]) -> TimeSplit:
        """The causes of a read without requests depend on its work alone, not on what else the machine does."""
        return measured(read, story, log) if log else counted_time(read, story, log)

    monkeypatch.setattr(why, "time_of", time_of)
    async with ObjectServer() as server:
        server.put("bucket/a.parquet", CONTENT)
        stories = []
        for _ in range(2):
            options: dict[str, Any] = {"disk_cache": tmp_path / "cache"}
            requests = asyncpq.RequestOptions(tail_bytes=1000)
            async with asyncpq.Session(server.storage_options, requests=requests, **options) as session:
                file = await session.open_file("s3://bucket/a.parquet")
                for _ in range(2):
                    report = await file.why(["name"], lookup={"id": 1234}, layouts=False)
                    stories.append(report.to_dict())
    cold, warm, on_disk, again = stories
    for document in stories:
        check(document, 1)
        assert document["layouts"] == []
    assert (cold["tiers"]["store"] > 0, cold["tiers"]["memory"]) == (True, 0)
    assert warm["requests"] == again["requests"] == []
    assert set(warm["tiers"].items()) == {("memory", warm["tiers"]["memory"]), ("disk", 0), ("shared", 0), ("store", 0)}
    assert on_disk["tiers"]["disk"] > 0
    assert {chunk["fate"] for chunk in cold["files"][0]["chunks"]} == {"read"}
    assert {chunk["fate"] for chunk in warm["files"][0]["chunks"]} == {"memory"}
    assert {chunk["fate"] for chunk in on_disk["files"][0]["chunks"]} == {"disk"}
    assert warm["causes"] == []


async def test_an_object_that_is_replaced_meanwhile_is_told_as_it_was_read_in_the_end() -> None:
    async with ObjectServer() as server:
        server.put("bucket/a.parquet", content(compression="none"))
        requests = asyncpq.RequestOptions(tail_bytes=1000)
        async with asyncpq.Session(server.storage_options, requests=requests) as session:
            file = await session.open_file("s3://bucket/a.parquet")
            server.put("bucket/a.parquet", CONTENT)
            document = (await file.why(["name"], lookup={"id": 1234})).to_dict()
    check(document, 1)
    assert document["metrics"]["restarts"] == 1
    assert document["bytes"]["objects"] == len(CONTENT)


async def test_failed_requests_are_part_of_the_story() -> None:
    async with ObjectServer() as server:
        server.put("bucket/a.parquet", CONTENT)
        failing = iter([False, True])
        server.faults = lambda request: Fault(status=503) if next(failing, False) else None
        retry = asyncpq.RetryOptions(backoff_base_s=0.001, backoff_max_s=0.001)
        requests = asyncpq.RequestOptions(tail_bytes=1000)
        async with asyncpq.Session(server.storage_options, retry=retry, requests=requests) as session:
            file = await session.open_file("s3://bucket/a.parquet")
            document = (await file.why(["name"], lookup={"id": 1234})).to_dict()
    check(document, 1)
    assert [request["status"] for request in document["requests"]].count(503) == 1
    assert max(request["attempt"] for request in document["requests"]) == 2


async def test_a_lake_tells_of_every_file(tmp_path: Path) -> None:
    for number in range(6):
        folder = tmp_path / "lake" / f"day={number // 3}"
        folder.mkdir(parents=True, exist_ok=True)
        table = pa.table({"id": range(number * 100, number * 100 + 100), "v": [float(number)] * 100})
        pq.write_table(table, folder / f"{number}.parquet", row_group_size=50, write_page_index=True)
    async with asyncpq.Session(requests=asyncpq.RequestOptions(tail_bytes=1000)) as session:
        dataset = await session.open_dataset(tmp_path / "lake")
        where = (col("day") == 1) & (col("id") >= 450)
        cold = await dataset.why(["v"], where)
        looked_up = await dataset.why(["v"], lookup={"id": [420, 7]})
        nothing = await dataset.why(where=(col("id") < 0) & (col("id") > 0))
        limited = (await dataset.why(where=col("v") >= 0, limit=3)).to_dict()
    document = cold.to_dict()
    check(document, 150)
    assert [file["url"][-9:] for file in document["files"]] == ["4.parquet", "5.parquet"]
    assert [(file["url"][-9:], file["fate"]) for file in document["others"]] == [
        ("0.parquet", "partition"), ("1.parquet", "partition"), ("2.parquet", "partition"), ("3.parquet", "statistics"),
    ]  # fmt: skip
    assert document["requests"][0]["purpose"] == "list"  # when the dataset was opened
    assert len(document["layouts"]) == 2
    told, asked = pages_read(document)
    assert told <= asked
    check(looked_up.to_dict(), 2)
    assert looked_up.to_dict()["funnel"][0] | {"ruled_out": []} == {
        "level": "files", "total": 6, "ruled_out": [], "kept": 2,
    }  # fmt: skip
    step = limited["funnel"][0]
    read = [file["url"] for file in limited["files"]]
    assert (limited["rows"], step["total"], step["kept"]) == (3, 6, len(read))
    assert {item["by"]: item["count"] for item in step["ruled_out"]} == (
        {"limit": 6 - len(read)} if len(read) < 6 else {}
    )
    assert {file["fate"] for file in limited["others"]} <= {"limit"}
    assert nothing.to_dict()["rows"] == 0
    assert nothing.to_dict()["funnel"][0]["kept"] == 0


async def test_an_indexs_own_files_are_no_files_of_the_lake(tmp_path: Path) -> None:
    for number in range(4):
        table = pa.table({"id": range(number, 400, 4), "v": [float(number)] * 100})
        pq.write_table(table, tmp_path / f"{number}.parquet", row_group_size=50, write_page_index=True)
    async with asyncpq.Session() as session:
        await session.build_index(f"{tmp_path}/", [asyncpq.indexing.Keys("id")])
        dataset = await session.open_dataset(f"{tmp_path}/")
        document = (await dataset.why(["v"], lookup={"id": 202})).to_dict()
    check(document, 1)
    assert [file["url"][-9:] for file in document["files"]] == ["2.parquet"]
    assert [(step["level"], step["total"], step["kept"]) for step in document["funnel"][::3]] == [
        ("files", 4, 1), ("rows", 100, 1),
    ]  # fmt: skip


async def test_wrong_arguments_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(CONTENT)
    async with asyncpq.Session() as session:
        file, dataset = await session.open_file(tmp_path / "a.parquet"), await session.open_dataset(tmp_path)
        for opened in (file, dataset):
            with pytest.raises(asyncpq.InvalidOptionError, match="both where= and lookup="):
                await opened.why(where=col("id") == 1, lookup={"id": 1})
            with pytest.raises(asyncpq.ColumnNotFoundError):
                await opened.why(["missing"], lookup={"id": 1})


@pytest.mark.parametrize("where", [None, col("id") >= 2_500, col("mixed") == 17, col("id") == -1], ids=str)
@pytest.mark.parametrize("many", [False, True])
async def test_counts(where: asyncpq.Expression | None, many: bool) -> None:
    """A story of a count has the requests of the count, and no column's pages that it does not need."""
    async with ObjectServer() as server:
        for name in ("a", "b"):
            server.put(f"bucket/lake/{name}.parquet", CONTENT)
        requests = asyncpq.RequestOptions(tail_bytes=1000)

        async def opened(session: asyncpq.Session) -> asyncpq.File | asyncpq.Dataset:
            return await (session.open_dataset("s3://bucket/lake/") if many else session.open_file(URL_A))

        async with asyncpq.Session(server.storage_options, requests=requests) as session:
            target = await opened(session)
            assert target.opening is not None
            with asyncpq.measure() as cost:
                rows = await target.count(where)
            expected = target.opening.requests + cost.requests
        async with asyncpq.Session(server.storage_options, requests=requests) as session:
            document = (await (await opened(session)).why(where=where, count=True)).to_dict()
    assert document["verb"] == "count"
    assert document["where"] == (None if where is None else str(where))
    check(document, rows)
    assert document["rows"] == rows
    assert len(document["requests"]) == expected
    assert not document["bytes"]["wanted"] or where is not None


@pytest.mark.parametrize("options", [{"columns": ["id"]}, {"limit": 3}, {"lookup": {"id": 1}}])
async def test_a_count_has_no_columns_limit_or_keys(options: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(CONTENT)
    async with asyncpq.Session() as session:
        for target in (await session.open_file(tmp_path / "a.parquet"), await session.open_dataset(tmp_path)):
            with pytest.raises(asyncpq.InvalidOptionError, match="count"):
                await target.why(**options, count=True)


async def test_a_table_s_metadata_that_has_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is planned then, so that no file has prices."""
    monkeypatch.setattr(why, "time_of", counted_time)
    deltalake.write_deltalake(tmp_path, pa.table({"id": [1, 2, 3]}))
    async with asyncpq.Session() as session:
        reads: list[dict[str, Any]] = [{"count": True}, {"where": col("id") == 7}, {"lookup": {"id": 7}}]
        for read in reads:
            dataset = await session.open_dataset(tmp_path, format="delta")
            report = await dataset.why(**read)
            assert report.to_dict()["rows"] == (3 if "count" in read else 0)
            assert [step["level"] for step in report.to_dict()["funnel"]] == ["files"]
            assert report.explain()
            assert (report.to_dict()["causes"][0]["saves_seconds"] or 1) < 0.01  # a disk, not a store


def story(tmp_path: Path) -> Why:
    (tmp_path / "a.parquet").write_bytes(parquet_bytes(pa.table({"id": range(1000), "\x1b[31mred": range(1000)})))

    async def told() -> Why:
        async with asyncpq.open_file(tmp_path / "a.parquet") as file:
            return (await file.why(lookup={"id": 7})).to_dict()

    return asyncio.run(told())


def request(**facts: Any) -> Any:
    plain = {"url": "a", "method": "GET", "purpose": "data", "bytes": [0, 1], "round": 1, "received": 1}
    return {**plain, "began_s": 0.0, "seconds": 0.001, **facts}


@pytest.mark.parametrize("width", [40, 80, 200])
def test_lines_fit(width: int, tmp_path: Path) -> None:
    document = story(tmp_path)
    document["requests"] = [request(round=number) for number in range(3)]
    lines = why_text(document, width).splitlines()
    assert max(map(len, lines[2:])) <= max(width, 64)  # bars keep a least length
    assert [line for line in lines if line and not line.startswith(" ")][2:] == [
        "Funnel", "Requests", "Bytes", "Time", "Parts", "What would make it faster",
    ]  # fmt: skip


def test_many_requests_are_rounds(tmp_path: Path) -> None:
    document = story(tmp_path)
    document["requests"] = [request(round=1 + number % 2) for number in range(100)]
    text = why_text(document)
    assert "1 50 requests: data, 50 B" in text
    assert "2 50 requests: data, 50 B" in text


def test_what_went_wrong_is_told(tmp_path: Path) -> None:
    document = story(tmp_path)
    document["requests"] = [request(status=503, throttled=True), request(attempt=2), request(hedge=True)]
    text = why_text(document)
    assert "GET data 1 B throttled status 503" in text
    assert "GET data 1 B attempt 2" in text
    assert "GET data 1 B hedge" in text


def test_names_do_not_change_the_terminal(tmp_path: Path) -> None:
    document = story(tmp_path)
    document["where"], document["keys"], document["url"] = "\x1b[31mred == 1", None, "a\x1b]0;title\x07.parquet"
    assert "\x1b" not in why_text(document)


async def test_reports_on_many_row_groups_are_made_in_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, threads = tmp_path / "groups.parquet", list[bool]()
    pq.write_table(pa.table({"id": range(200)}), path, row_group_size=1, write_page_index=True)
    for module, name in ((plan, "describe"), (why, "why_report"), (lint, "shape_of")):
        make = getattr(module, name)

        def made(*args: Any, make: Any = make, **keywords: Any) -> Any:
            threads.append(threading.current_thread() is threading.main_thread())
            return make(*args, **keywords)

        monkeypatch.setattr(module, name, made)
    async with asyncpq.open_file(str(path)) as file:
        await file.plan(where=col("id") > 50)
        await file.why(where=col("id") > 50)
        await file.lint()
    assert len(threads) >= 3
    assert not any(threads)
