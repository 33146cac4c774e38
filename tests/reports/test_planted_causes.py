"""Files and sessions with one planted cause of slowness each: ``why`` names it first, and ``lint`` agrees."""

from __future__ import annotations

import hashlib
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import deltalake
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.indexing import Keys
from asyncpq.metrics import ReadMetrics, RequestRecord
from asyncpq.page_map.picture_data import picture
from asyncpq.reports import why
from asyncpq.reports.documents import Lint, TimeSplit, Why
from asyncpq.testing import Fault, ObjectServer
from tests.parquet_bytes import parquet_bytes
from tests.reports.counted_time import counted_time

ROWS = 200_000
NEAR: dict[str, Any] = {"latency_s": 0.01, "bandwidth_bytes_s": 50e6}
GOOD: dict[str, Any] = {
    "write_page_index": True, "max_rows_per_page": 8192, "data_page_size": 256 << 10, "use_dictionary": False,
    "compression": "zstd", "row_group_size": ROWS // 8, "write_batch_size": 1024,
}  # fmt: skip


def table(**columns: Any) -> pa.Table:
    """Rows of 100 bytes in the order of ``id``; ``mixed`` has the same values in random order."""
    chosen = random.Random(3)
    mixed = list(range(ROWS))
    chosen.shuffle(mixed)
    payload = [f"{number * 2654435761 % 2**64:020d}" * 4 for number in mixed]
    return pa.table({"id": range(ROWS), "mixed": mixed, "payload": payload, **columns})


@dataclass(frozen=True, slots=True)
class Planted:
    """A read that one cause makes slow. ``lints``: the cause is in the layout, so that ``lint`` names it, too."""

    make: Callable[[Path], Path]
    read: dict[str, Any]
    prices: dict[str, Any] = field(default_factory=dict)
    lints: str | None = None  # the key column
    warm: bool = False


def file(rows: Callable[[], pa.Table] = table, **options: Any) -> Callable[[Path], Path]:
    def make(folder: Path) -> Path:
        path = folder / "planted.parquet"
        pq.write_table(rows(), path, **{**GOOD, **options})
        return path

    return make


def shuffled() -> pa.Table:
    order = list(range(ROWS))
    random.Random(5).shuffle(order)
    return table().take(order)


def with_texts(make: Callable[[int], str]) -> Callable[[], pa.Table]:
    return lambda: table().append_column("text", [[make(number) for number in range(ROWS)]])


def lake(files: int, rows: int, **options: Any) -> Callable[[Path], Path]:
    """Files in which the values of ``mixed`` are spread."""

    def make(folder: Path) -> Path:
        whole = table()
        for number in range(files):
            part = whole.slice(number * rows, rows)
            pq.write_table(part, folder / f"{number:04}.parquet", **{**GOOD, **options})
        return folder

    return make


def wide(folder: Path) -> Path:
    names = [f"a column with a long name, number {number}" for number in range(2_500)]
    columns = {"id": range(100), **{name: range(100) for name in names}}
    pq.write_table(pa.table(columns), folder / "planted.parquet", row_group_size=25, write_page_index=True)
    return folder / "planted.parquet"


def token(number: int) -> str:
    return hashlib.sha256(str(number).encode()).hexdigest()


PREFIX = "https://warehouse.example.com/tenants/2026/regions/north/orders/by-number/"


def of_delta_rs(folder: Path) -> Path:
    """It keeps 64 bytes of a bound, less than what all keys begin with."""
    urls = table(url=[f"{PREFIX}{number:09}" for number in range(ROWS)])
    properties = deltalake.WriterProperties(
        data_page_row_count_limit=2048, write_batch_size=1024, compression="ZSTD", max_row_group_size=50_000,
        default_column_properties=deltalake.ColumnProperties(dictionary_enabled=False),
    )  # fmt: skip
    deltalake.write_deltalake(folder, urls, writer_properties=properties)
    (path,) = folder.glob("*.parquet")
    return path


def of_polars(folder: Path) -> Path:
    """It gives the pages of a column with a dictionary the bounds of their chunk."""
    users = table(user=[f"user-{row // 20:09}" for row in range(ROWS)])
    pl.DataFrame(users).write_parquet(folder / "a.parquet", row_group_size=ROWS // 2, data_page_size=64 << 10)
    return folder / "a.parquet"


def of_an_old_writer(folder: Path) -> Path:
    data = parquet_bytes(
        table(text=[f"{number:09}" for number in range(ROWS)]),
        **{**GOOD, "write_page_index": False, "row_group_size": ROWS // 40},
    )
    old = data.replace(f"parquet-cpp-arrow version {pa.__version__}".encode(), b"parquet-mr version 1.6.0 (build)")
    (folder / "a.parquet").write_bytes(old)
    return folder / "a.parquet"


def sparse() -> list[str]:
    """Pages of nothing but empty strings have bounds that some writers also write for other pages."""
    return ["" if row // 2048 % 3 else f"{row:09}" for row in range(ROWS)]


KEY: dict[str, Any] = {"lookup": {"id": 123_456}}
MIXED: dict[str, Any] = {"lookup": {"mixed": 123_456}}
PLANTED: dict[str, Planted] = {
    "random-order": Planted(file(shuffled), KEY, lints="id"),
    "no-page-index": Planted(file(write_page_index=False, row_group_size=ROWS), KEY, lints="id"),
    "huge-pages": Planted(
        file(data_page_size=1 << 30, max_rows_per_page=ROWS, write_batch_size=ROWS, row_group_size=ROWS),
        KEY,
        lints="id",
    ),
    "no-bloom-filter": Planted(file(with_texts(token)), {"lookup": {"text": token(77)}}, lints="text"),
    "no-statistics": Planted(file(write_statistics=["mixed", "payload"]), KEY, lints="id"),
    "huge-dictionary": Planted(
        file(use_dictionary=["payload"], dictionary_pagesize_limit=1 << 26, row_group_size=ROWS), KEY, lints="id"
    ),
    "dictionary-fallback": Planted(
        file(use_dictionary=["payload"], dictionary_pagesize_limit=4 << 20, row_group_size=ROWS), KEY, lints="id"
    ),
    "big-footer": Planted(wide, {"columns": ["id"], "lookup": {"id": 42}}, {"tail_bytes": 16 << 10}),
    "tiny-files": Planted(lake(200, 50), {"where": [("mixed", ">", 0)], "columns": ["payload"]}),
    "no-index": Planted(lake(20, 10_000), {**MIXED, "columns": ["payload"]}),
    "cold-cache": Planted(file(), {**KEY, "columns": ["payload"]}),
    "far-store": Planted(file(), {**KEY, "columns": ["payload"]}, {"latency_s": 0.2}),
    "slow-store": Planted(file(), {**KEY, "columns": ["payload"]}, {"bandwidth_bytes_s": 0.5e6}),
    "wide-gaps": Planted(file(row_group_size=ROWS), {**KEY}, {"gap_bytes": 64 << 20}, warm=True),
    "slow-codec": Planted(file(compression="gzip"), {}, {"latency_s": 0.001, "bandwidth_bytes_s": 2e9}, warm=True),
    "decode-bound": Planted(file(compression="zstd"), {}, {"latency_s": 0.001, "bandwidth_bytes_s": 5e9}, warm=True),
    "filter-bound": Planted(
        file(with_texts(lambda number: f"some words and {number} and more")),
        {"where": "text LIKE '%9_9%8_7%'", "columns": ["text"]},
        {"latency_s": 0.001, "bandwidth_bytes_s": 5e9},
        warm=True,
    ),
    "truncated-bounds": Planted(of_delta_rs, {"lookup": {"url": f"{PREFIX}{123_456:09}"}}, lints="url"),
    "chunk-bounds": Planted(of_polars, {"lookup": {"user": "user-000001234"}, "columns": ["id"]}, warm=True),
    "missing-bounds": Planted(
        file(lambda: table(key=sparse()), max_rows_per_page=2048, row_group_size=ROWS),
        {"lookup": {"key": f"{123_456:09}"}},
        lints="key",
    ),
    "statistics-not-believed": Planted(of_an_old_writer, {"lookup": {"text": f"{123_456:09}"}, "columns": ["payload"]}),
}


async def told(case: Planted, folder: Path) -> tuple[Why, Lint | None]:
    target = case.make(folder)
    options = asyncpq.RequestOptions(**{**NEAR, "tail_bytes": 64 << 10, **case.prices})
    async with asyncpq.Session(requests=options) as session:
        opened = await (session.open_file(target) if target.suffix else session.open_dataset(target))
        if case.warm:
            await opened.plan(**case.read)
        document = (await opened.why(**case.read, layouts=False)).to_dict()
        linted = (await opened.lint([case.lints])).to_dict() if case.lints else None
    return document, linted


@pytest.fixture(autouse=True)
def _counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(why, "time_of", counted_time)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", PLANTED)
async def test_the_planted_cause_comes_first(kind: str, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    document, linted = await told(PLANTED[kind], tmp_path / "data")
    check(document, kind)
    if linted is not None:
        assert [cause["id"] for cause in linted["findings"]][:1] == [kind]
        assert linted["findings"][0]["cure"] == document["causes"][0]["cure"]


def check(document: Why, kind: str) -> None:
    """The cause comes first, and takes a twentieth of the time; the banner names it."""
    found = [(cause["id"], cause["saves_seconds"]) for cause in document["causes"]]
    assert [item[0] for item in found[:1]] == [kind], (found, document["time"])
    assert (found[0][1] or 0) >= document["time"]["total_s"] / 20
    assert document["causes"][0]["title"] in picture(document)["verdict"]


@pytest.mark.heavy
async def test_decoding_in_vain_counts_without_any_request(tmp_path: Path) -> None:
    """All parts are in memory, so that decoding is what takes time."""
    path = file(shuffled)(tmp_path)
    async with asyncpq.Session() as session:
        opened = await session.open_file(path)
        await opened.lookup({"id": 123_456})
        document = (await opened.why(**KEY, layouts=False)).to_dict()
    assert document["requests"] == []
    check(document, "random-order")


@pytest.mark.heavy
@pytest.mark.parametrize("has_filters", [False, True])
async def test_filters_that_a_file_has_are_no_advice(has_filters: bool, tmp_path: Path) -> None:
    options = {"bloom_filter_options": {"id": True}} if has_filters else {}
    path = file(shuffled, row_group_size=ROWS // 2, **options)(tmp_path)
    async with asyncpq.Session() as session:
        opened = await session.open_file(path)
        await opened.lookup({"id": 123_456})
        document = (await opened.why(**KEY, layouts=False)).to_dict()
        linted = await opened.lint(["id"])
    cures = [cause["cure"] for cause in [*document["causes"], *linted["findings"]] if cause["id"] == "random-order"]
    assert len(cures) == 2
    assert ["Bloom" in cure for cure in cures] == [not has_filters] * 2


@pytest.mark.parametrize("loads", [True, False])
async def test_a_first_read_of_a_process_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, loads: bool) -> None:
    """README's own example: a good file whose lookup takes longest to load modules."""

    def at_first(read: why.Read, story: why.Story, log: Sequence[RequestRecord]) -> TimeSplit:
        time = counted_time(read, story, log)
        return {**time, "other_s": time["other_s"] + 0.2, "total_s": time["total_s"] + 0.2}

    def planned(story: why.Story, *plan: Any) -> None:
        if loads:
            monkeypatch.setitem(sys.modules, "a_module_of_the_read", sys)
        plan_of_story(story, *plan)

    plan_of_story = why.Story._planned
    path = file()(tmp_path)
    async with asyncpq.Session() as session, await session.open_file(path) as opened:
        await opened.why(**KEY, layouts=False)  # loads modules, if this process has not yet
    monkeypatch.setattr(why.Story, "_planned", planned)
    monkeypatch.setattr(why, "time_of", at_first)
    async with asyncpq.Session() as session:
        opened = await session.open_file(path)
        document = (await opened.why(**KEY, layouts=False)).to_dict()
    check(document, "busy-python")
    (busy,) = [cause for cause in document["causes"] if cause["id"] == "busy-python"]
    assert ("loaded after the opening: 1;" in busy["detail"]) is loads
    assert ("modules" in f"{busy['title']} {busy['detail']}") is loads
    assert "cold-cache" not in {cause["id"] for cause in document["causes"]}  # 0.8 ms


async def test_a_slow_cache_on_disk(tmp_path: Path) -> None:
    async with ObjectServer() as server:
        server.put("bucket/a.parquet", parquet_bytes(table(), **GOOD))
        document: Why | None = None
        for _ in range(2):
            async with asyncpq.Session(server.storage_options, disk_cache=tmp_path) as session:
                opened = await session.open_file("s3://bucket/a.parquet")
                document = (await opened.why(["payload"], **KEY, layouts=False)).to_dict()
    assert document is not None
    check(document, "slow-tier")


async def test_requests_that_fail_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    log_of = why._log

    def log(metrics: ReadMetrics, opening: ReadMetrics | None) -> list[RequestRecord]:
        """Each next attempt comes a second after the one before."""
        records = log_of(metrics, opening)
        for record in records:
            record.began += record.attempt - 1
        return records

    monkeypatch.setattr(why, "_log", log)
    async with ObjectServer() as server:
        server.put("bucket/a.parquet", parquet_bytes(table(), **GOOD))
        throttled = iter([True, True])
        retry = asyncpq.RetryOptions(backoff_base_s=0.2, backoff_max_s=0.2)
        async with asyncpq.Session(
            server.storage_options, retry=retry, requests=asyncpq.RequestOptions(**NEAR)
        ) as session:
            opened = await session.open_file("s3://bucket/a.parquet")
            server.faults = lambda request: Fault(status=503) if next(throttled, False) else None
            document = (await opened.why(["payload"], **KEY, layouts=False)).to_dict()
    check(document, "retries")


@pytest.mark.heavy
async def test_an_index_that_is_behind(tmp_path: Path) -> None:
    folder = tmp_path / "lake"
    folder.mkdir()
    lake(4, 12_000)(folder)
    async with asyncpq.Session(requests=asyncpq.RequestOptions(**{**NEAR, "latency_s": 0.001})) as session:
        await session.build_index(folder, [Keys("mixed")], at=tmp_path / "index")
        for number in range(4):
            (folder / f"{number + 4:04}.parquet").write_bytes((folder / f"{number:04}.parquet").read_bytes())
        opened = await session.open_dataset(folder, index=tmp_path / "index")
        key = table()["mixed"][0].as_py()
        await opened.plan(["payload"], lookup={"mixed": key})
        document = (await opened.why(["payload"], lookup={"mixed": key}, layouts=False)).to_dict()
    check(document, "stale-index")
