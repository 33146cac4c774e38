"""A read that is slow for one reason names this reason first, and predicts what its cure saves."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.indexing import Keys
from asyncpq.reports import causes, why
from asyncpq.reports.documents import Cause, Why
from asyncpq.testing import Fault, ObjectServer
from tests.parquet_bytes import parquet_bytes
from tests.reports.counted_time import counted_time


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(why, "time_of", counted_time)


ROWS = 100_000
#: A store of 10 ms and 20 MB/s: small files show what large ones cost elsewhere.
PRICES: dict[str, Any] = {"latency_s": 0.01, "bandwidth_bytes_s": 20e6}


def rows(**columns: Any) -> pa.Table:
    """Rows of 100 bytes that do not compress, in the order of ``id``."""
    mixed = [row * 7919 % ROWS for row in range(ROWS)]
    payload = [f"{row * 2654435761 % 2**64:020d}" * 5 for row in mixed]
    return pa.table({"id": range(ROWS), "mixed": mixed, "payload": payload, **columns})


PLAIN: dict[str, Any] = {"use_dictionary": False, "compression": "none", "row_group_size": ROWS // 4}
PAGES: dict[str, Any] = {**PLAIN, "write_page_index": True, "data_page_size": 16 * 1024}


async def story(target: Any, *, again: bool = False, prices: Any = None, index: Any = None, **read: Any) -> Why:
    """The story of a read; ``again``: of one whose plan was made before, in the same session."""
    options = asyncpq.RequestOptions(**{**PRICES, "tail_bytes": 16 * 1024, **(prices or {})})
    async with asyncpq.Session(requests=options) as session:
        is_file = str(target).endswith(".parquet")
        opened: Any = await (session.open_file(target) if is_file else session.open_dataset(target, index=index))
        async with opened:
            if again:
                await opened.plan(**read)
            report = await opened.why(**read, layouts=False)
    logging.getLogger(__name__).info("%s", report)
    document: Why = report.to_dict()
    return document


def first(document: Why) -> Cause:
    return document["causes"][0]


SLOW: dict[str, tuple[dict[str, Any], str]] = {
    "no-page-index": (PLAIN, "id"),
    "random-order": ({**PAGES, "row_group_size": ROWS // 2}, "mixed"),
    "huge-dictionary": ({**PAGES, "use_dictionary": ["payload"], "dictionary_pagesize_limit": 1 << 26}, "id"),
    "huge-pages": ({**PAGES, "data_page_size": 1 << 22, "write_batch_size": ROWS, "max_rows_per_page": ROWS}, "id"),
}


@pytest.mark.parametrize("kind", SLOW)
async def test_a_file_that_is_slow_for_one_reason_names_it_first(kind: str, tmp_path: Path) -> None:
    options, key = SLOW[kind]
    pq.write_table(rows(), tmp_path / "a.parquet", **options)
    document = await story(tmp_path / "a.parquet", lookup={key: 4_242})
    assert document["rows"] == 1
    assert first(document)["id"] == kind
    assert first(document)["severity"] != "low"
    assert 0 < (document["bytes"]["wanted"] or 0) < (document["bytes"]["fetched"] or 0)


SMALL_PAGES: dict[str, Any] = {**PLAIN, "write_page_index": True, "data_page_size": 64 * 1024, "write_batch_size": 256}


@pytest.mark.parametrize(
    ("kind", "cured", "key"),
    [
        ("no-page-index", {**PLAIN, "write_page_index": True}, "id"),
        ("random-order", PAGES, "mixed"),
        ("huge-dictionary", PAGES, "id"),
        ("huge-pages", SMALL_PAGES, "id"),
    ],
)
async def test_the_predicted_saving_comes_true(kind: str, cured: dict[str, Any], key: str, tmp_path: Path) -> None:
    """Written as the first cause says, the file is read with the bytes that were predicted."""
    table = rows()
    pq.write_table(table, tmp_path / "slow.parquet", **SLOW[kind][0])
    pq.write_table(table.sort_by(key), tmp_path / "cured.parquet", **cured)
    slow = await story(tmp_path / "slow.parquet", lookup={key: 4_242}, again=True)
    better = await story(tmp_path / "cured.parquet", lookup={key: 4_242}, again=True)
    cause = first(slow)
    assert cause["id"] == kind
    saved = (slow["bytes"]["fetched"] or 0) - (better["bytes"]["fetched"] or 0)
    assert saved > 0
    assert cause["saves_bytes"] == pytest.approx(saved, rel=0.2)


async def test_the_predicted_saving_of_an_index_comes_true(tmp_path: Path) -> None:
    lake(tmp_path / "lake", 8, 12_000)
    read: dict[str, Any] = {"lookup": {"mixed": 7919}, "columns": ["payload"]}
    slow = await story(tmp_path / "lake", **read)
    async with asyncpq.Session() as session:
        await session.build_index(tmp_path / "lake", [Keys("mixed")], at=tmp_path / "index")
    better = await story(tmp_path / "lake", index=tmp_path / "index", **read)
    assert first(slow)["id"] == "no-index"
    saved = (slow["bytes"]["fetched"] or 0) - (better["bytes"]["fetched"] or 0)
    assert first(slow)["saves_bytes"] == pytest.approx(saved, rel=0.2)


async def test_a_cold_cache_is_the_cause_where_the_layout_is_good(tmp_path: Path) -> None:
    pq.write_table(rows(), tmp_path / "a.parquet", **PAGES)
    cold = await story(tmp_path / "a.parquet", lookup={"id": 4_242}, columns=["payload"])
    warm = await story(tmp_path / "a.parquet", again=True, lookup={"id": 4_242}, columns=["payload"])
    assert [cause["id"] for cause in cold["causes"]] == ["cold-cache"]
    assert warm["causes"] == []
    assert cold["rounds"] > warm["rounds"] == 1


async def test_a_far_store(tmp_path: Path) -> None:
    pq.write_table(rows(), tmp_path / "a.parquet", **PAGES)
    document = await story(tmp_path / "a.parquet", lookup={"id": 4_242}, columns=["payload"], prices={"latency_s": 0.2})
    assert first(document)["id"] == "far-store"
    assert first(document)["saves_seconds"] == pytest.approx(document["rounds"] * 0.17)


async def test_a_big_footer(tmp_path: Path) -> None:
    names = [f"a column with a long name, number {number}" for number in range(2_000)]
    table = pa.table({"id": range(100), **{name: range(100) for name in names}})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=25, write_page_index=True)
    document = await story(tmp_path / "a.parquet", lookup={"id": 42}, columns=names[:1])
    assert first(document)["id"] == "big-footer"


def lake(folder: Path, files: int, each: int, **options: Any) -> None:
    """Files in which the keys of ``mixed`` are spread."""
    folder.mkdir()
    table = rows().slice(0, files * each)
    for number in range(files):
        mixed = table["mixed"].take(list(range(number, files * each, files)))
        part = table.slice(number * each, each).set_column(1, "mixed", mixed)
        pq.write_table(part, folder / f"{number:04}.parquet", **{**PAGES, **options})


async def test_many_files_without_an_index(tmp_path: Path) -> None:
    lake(tmp_path / "lake", 8, 12_000)
    key = 1234 * 7919 % ROWS
    document = await story(tmp_path / "lake", lookup={"mixed": key}, columns=["payload"])
    assert document["rows"] == 1
    assert first(document)["id"] == "no-index"
    async with asyncpq.Session() as session:
        await session.build_index(tmp_path / "lake", [Keys("mixed")], at=tmp_path / "index")
    indexed = await story(tmp_path / "lake", lookup={"mixed": key}, columns=["payload"], index=tmp_path / "index")
    assert indexed["rows"] == 1
    assert "no-index" not in [cause["id"] for cause in indexed["causes"]]
    assert [file["fate"] for file in indexed["others"]] == ["index"] * 7
    assert indexed["funnel"][0]["kept"] == 1


async def test_a_stale_index(tmp_path: Path) -> None:
    lake(tmp_path / "lake", 4, 12_000)
    async with asyncpq.Session() as session:
        await session.build_index(tmp_path / "lake", [Keys("mixed")], at=tmp_path / "index")
    for number in range(4):
        table = pq.read_table(tmp_path / "lake" / f"{number:04}.parquet")
        pq.write_table(table, tmp_path / "lake" / f"{number + 4:04}.parquet", **PAGES)
    document = await story(
        tmp_path / "lake", again=True, lookup={"mixed": 7919}, columns=["payload"], index=tmp_path / "index"
    )
    assert document["rows"] == 2
    assert first(document)["id"] == "stale-index"


@pytest.mark.heavy
async def test_tiny_files(tmp_path: Path) -> None:
    lake(tmp_path / "lake", 300, 10)
    document = await story(tmp_path / "lake", where=[("mixed", ">", 0)], columns=["payload"])
    assert document["rows"] > 2_000
    assert first(document)["id"] == "tiny-files"


async def test_a_search_for_newer_files_is_no_failure(tmp_path: Path) -> None:
    async with ObjectServer() as server:
        for number in range(2):
            server.put(f"bucket/lake/{number}.parquet", parquet_bytes(rows(), **PAGES))
        async with asyncpq.Session(server.storage_options, requests=asyncpq.RequestOptions(**PRICES)) as session:
            await session.build_index("s3://bucket/lake/", [Keys("id")])
            lake = await session.open_dataset("s3://bucket/lake/", view="snapshot")
            cold = (await lake.why(["payload"], lookup={"id": 4_242})).to_dict()
            warm = (await lake.why(["payload"], lookup={"id": 4_242})).to_dict()
    assert [request["status"] for request in warm["requests"]] == [404]  # of the next snapshot's manifest
    assert [cause["id"] for cause in warm["causes"]] == ["freshness"]
    assert (warm["causes"][0]["saves_requests"], warm["rounds"]) == (1, 1)
    assert not {cause["id"] for cause in cold["causes"]} & {"retries", "throttled", "freshness"}


async def test_throttling() -> None:
    async with ObjectServer() as server:
        server.put("bucket/a.parquet", parquet_bytes(rows(), **PAGES))
        throttled = iter([True, True])
        server.faults = lambda request: Fault(status=503) if next(throttled, False) else None
        retry = asyncpq.RetryOptions(backoff_base_s=0.2, backoff_max_s=0.2)
        async with asyncpq.Session(
            server.storage_options, retry=retry, requests=asyncpq.RequestOptions(**PRICES)
        ) as session:
            file = await session.open_file("s3://bucket/a.parquet")
            report = await file.why(["payload"], lookup={"id": 4_242})
    document = report.to_dict()
    assert {cause["id"] for cause in document["causes"]} & {"throttled", "retries"}


def test_the_documentation_has_every_cause() -> None:
    pages = sorted((Path(__file__).parents[2] / "docs").glob("cli*.md"))
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    documented = set(re.findall(r"`([a-z]+(?:-[a-z]+)*)`", text))
    source = Path(causes.__file__ or "").read_text(encoding="utf-8")
    ids = set(re.findall(r'"([a-z]+(?:-[a-z]+)+)"', source))
    assert len(ids) >= 24
    assert ids <= documented
