"""Findings of lint, held to reality: what a rewrite as advised saves is what was predicted."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import deltalake
import duckdb
import msgspec
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.reports.documents import Lint
from asyncpq.reports.lint import ordered
from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes
from tests.parquet_samples import DATA
from tests.reports.lookups import REQUESTS, Cost, encoded, finding, linted, measured, rules, trips

pytestmark = pytest.mark.sampled(2)


@functools.cache
def by_user() -> pa.Table:
    return trips().sort_by("user")


def shuffled() -> pa.Table:
    """In the order of no column: rows that another one orders are advised Bloom filters."""
    return trips().take(random.Random(3).sample(range(trips().num_rows), trips().num_rows))


def few() -> pa.Table:
    return trips().select(["id", "user", "note"])


def wide() -> pa.Table:
    ids = pa.array(range(120_000), pa.int64())
    return pa.table({"id": ids, **{f"c{number}": ids for number in range(30)}})


@functools.cache
def long() -> pa.Table:
    rows = range(2_200_000)
    return pa.table({"id": pa.array(rows, pa.int64()), "x": pa.array([row * 7919 % 1_000_003 for row in rows])})


def noted() -> pa.Table:
    chosen = random.Random(1)
    notes = ["".join(chosen.choices("abcdefgh", k=2000)) for _ in range(3000)]
    return pa.table({"id": range(3000), **{f"note{number}": notes for number in range(4)}})


#: Of a rule about the layout without pages.
CHUNKS: Mapping[str, Any] = MappingProxyType({"use_dictionary": False, "write_page_index": False})


def coded() -> pa.Table:
    chosen = random.Random(8)
    codes = ["".join(chosen.choices("0123456789abcdef", k=160)) for _ in range(40)]
    return pa.table({"id": range(200_000), "code": [chosen.choice(codes) for _ in range(200_000)]})


class Case(NamedTuple):
    """A rule, the column of the lookups, the bad file, and what is other in the good one."""

    rule: str
    column: str
    table: Any
    bad: Mapping[str, Any]
    good: Mapping[str, Any] = MappingProxyType({})
    good_table: Any = None


PLAIN: Mapping[str, Any] = MappingProxyType({"use_dictionary": True, "dictionary_pagesize_limit": 100 << 20})
CASES = {
    "no page index": Case("no-page-index", "id", trips, {"write_page_index": False}),
    "pyarrow's defaults": Case(
        "no-page-index",
        "id",
        trips,
        {"write_page_index": False, "row_group_size": None, "use_dictionary": True, "compression": "snappy"},
        {"row_group_size": None, "use_dictionary": True, "compression": "snappy"},
    ),
    "random order": Case("random-order", "user", trips, {}, {}, by_user),
    "random order without page index": Case(
        "random-order", "user", trips, {"write_page_index": False}, {"write_page_index": False}, by_user
    ),
    "one page a chunk": Case(
        "huge-pages", "id", trips, {"max_rows_per_page": 100_000, "data_page_size": 100 << 20}
    ),
    "dictionaries given up": Case(
        "dictionary-fallback", "id", few, {"use_dictionary": True}, {"use_dictionary": ["id"]}
    ),
    "huge dictionaries": Case("huge-dictionary", "id", trips, PLAIN),
    "tiny row groups": Case(
        "small-row-groups",
        "id",
        wide,
        {"row_group_size": 1000, "use_dictionary": False},
        {"row_group_size": 1 << 20, "use_dictionary": False},
    ),
    "huge row groups": Case(
        "large-row-groups",
        "id",
        long,
        {**CHUNKS, "row_group_size": 1 << 22},
        {**CHUNKS, "row_group_size": 1 << 20},
    ),
    "long strings in the footer": Case(
        "wide-bounds",
        "id",
        noted,
        {**CHUNKS, "row_group_size": 100},
        {**CHUNKS, "row_group_size": 100, "write_statistics": ["id"]},
    ),
    "no compression": Case("uncompressed", "id", trips, {"compression": "none"}),
    "no statistics": Case("no-statistics", "id", trips, {"write_statistics": ["user"]}),
    "few values without a dictionary": Case(
        "no-dictionary",
        "id",
        coded,
        {"use_dictionary": False, "compression": "none"},
        {"use_dictionary": ["code"], "compression": "none"},
    ),
}  # fmt: skip


def files_of(folder: Path) -> list[Path]:
    return list(folder.glob("*.parquet"))


def check_prediction(rule: str, document: Lint, before: Cost, after: Cost) -> None:
    """Hold a finding's saving to the measured one: within a fifth, or half a request."""
    cause = finding(document, rule)
    assert cause["saves_requests"] is not None
    assert cause["saves_bytes"] is not None
    requests, num_bytes = before.requests - after.requests, before.num_bytes - after.num_bytes
    assert cause["saves_requests"] == pytest.approx(requests, rel=0.2, abs=0.55)
    assert cause["saves_bytes"] == pytest.approx(num_bytes, rel=0.2)


#: Of which the rule has another case, or which take longest.
SLOW = ("pyarrow's defaults", "random order without page index", "random order", "no compression", "huge row groups")


@pytest.mark.heavy
@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in CASES])
async def test_the_predicted_saving_is_the_measured_one(name: str) -> None:
    case = CASES[name]
    table, good_table = case.table(), (case.good_table or case.table)()
    bad = encoded(table, **case.bad)
    document = await linted(bad, [case.column])
    msgspec.convert(document, Lint, strict=True)
    good = encoded(good_table, **case.good)
    before, after = await measured(bad, case.column, table), await measured(good, case.column, good_table)
    check_prediction(case.rule, document, before, after)
    assert case.rule not in rules(await linted(good, [case.column]))


async def test_a_footer_that_the_first_get_does_not_bring() -> None:
    data = encoded(wide(), row_group_size=3000, use_dictionary=False)
    cause = finding(await linted(data, ["id"]), "big-footer")
    before = await measured(data, "id", wide())
    size = int(cause["snippets"]["asyncpq"].partition("tail_bytes=")[2].rstrip(")"))
    requests = asyncpq.RequestOptions(latency_s=0.03, bandwidth_bytes_s=200e6, tail_bytes=size)
    async with ObjectServer() as server:
        server.put("bucket/file.parquet", data)
        async with asyncpq.Session(server.storage_options, requests=requests) as session:
            file = await session.open_file("s3://bucket/file.parquet")
            await file.lookup({"id": 20_000})
            assert before.requests - session.metrics.requests == pytest.approx(cause["saves_requests"], abs=0.55)


@pytest.mark.parametrize("column", ["id", "kind"])
async def test_a_file_as_advised_has_no_findings(column: str) -> None:
    table = trips().sort_by(column)
    assert rules(await linted(encoded(table), [column])) == []


async def test_a_file_that_the_first_get_brings_whole_has_no_findings() -> None:
    document = await linted(encoded(trips().slice(0, 500), write_page_index=False), ["id", "user"])
    assert document["findings"] == []


def test_the_most_severe_comes_first() -> None:
    causes: Any = [
        {"id": name, "column": None, "severity": severity, "saves_seconds": seconds}
        for name, severity, seconds in (("a", "note", None), ("b", "low", 9), ("c", "high", 1), ("d", "high", 2))
    ]
    assert [cause["id"] for cause in ordered(causes)] == ["d", "c", "b", "a"]


async def test_the_largest_saving_comes_first_and_the_document_is_json() -> None:
    document = await linted(encoded(trips(), write_page_index=False, compression="none"), ["user", "id"])
    findings = document["findings"]
    ranks = [
        (("high", "medium", "low", "note").index(cause["severity"]), -(cause["saves_seconds"] or 0))
        for cause in findings
    ]
    assert ranks == sorted(ranks)
    assert len(ranks) >= 2
    assert json.loads(json.dumps(document)) == document
    assert all(cause["snippets"] for cause in document["findings"])


def of_polars(table: pa.Table, path: Path, **options: Any) -> bytes:
    pl.DataFrame(table).write_parquet(path, data_page_size=256 * 1024, row_group_size=100_000, **options)
    return path.read_bytes()


def of_duckdb(table: pa.Table, path: Path, **options: Any) -> bytes:
    settings = ", ".join(f"{name} {value}" for name, value in {"ROW_GROUP_SIZE": 20480, **options}.items())
    duckdb.connect().register("rows", table).sql(f"COPY rows TO '{path}' ({settings})")
    return path.read_bytes()


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("rule", "column", "write", "bad", "good"),
    [
        ("random-order", "user", of_polars, {}, {}),
        ("uncompressed", "id", of_polars, {"compression": "uncompressed"}, {"compression": "zstd"}),
        ("random-order", "user", of_duckdb, {"COMPRESSION": "zstd"}, {"COMPRESSION": "zstd"}),
        ("uncompressed", "id", of_duckdb, {"COMPRESSION": "uncompressed"}, {"COMPRESSION": "zstd"}),
    ],
)
async def test_polars_and_duckdb_write_as_advised(
    rule: str, column: str, write: Callable[..., bytes], bad: dict[str, Any], good: dict[str, Any], tmp_path: Path
) -> None:
    worse, better = (shuffled(), by_user()) if rule == "random-order" else (trips(), trips())
    data = write(worse, tmp_path / "bad.parquet", **bad)
    document = await linted(data, [column])
    before = await measured(data, column, worse)
    cured = write(better, tmp_path / "good.parquet", **good)
    check_prediction(rule, document, before, await measured(cured, column, better))
    assert rule not in rules(await linted(cured, [column]))


def visits() -> pa.Table:
    """Sorted keys that repeat, so that Polars writes a dictionary of them."""
    keys = [f"user-{row // 20:09}" for row in range(trips().num_rows)]
    return trips().set_column(1, "user", pa.array(keys))


@pytest.mark.heavy
async def test_pages_with_the_bounds_of_their_chunk(tmp_path: Path) -> None:
    """Polars 2.1 writes them, of columns with a dictionary. Row groups of 20,000 rows are as good as right bounds."""
    path, table = tmp_path / "file.parquet", visits()
    pl.DataFrame(table).write_parquet(path, row_group_size=100_000, data_page_size=64 * 1024)
    bad = path.read_bytes()
    document = await linted(bad, ["user"])
    assert rules(document) == ["chunk-bounds"]
    options = {"max_rows_per_page": 13_107, "data_page_size": 64 * 1024, "use_dictionary": ["kind", "user"]}
    right = encoded(table, **options)
    before, after = await measured(bad, "user", table), await measured(right, "user", table)
    check_prediction("chunk-bounds", document, before, after)
    assert rules(await linted(right, ["user"])) == []
    exec(finding(document, "chunk-bounds")["snippets"]["polars"], {"df": pl.DataFrame(table), "path": path})
    cured = path.read_bytes()
    assert rules(await linted(cured, ["user"])) == []
    saved = before.num_bytes - (await measured(cured, "user", table)).num_bytes
    assert saved > 0.6 * (before.num_bytes - after.num_bytes)


async def test_pages_of_equal_bounds_in_random_order_are_not_the_fault_of_the_writer() -> None:
    assert rules(await linted(encoded(trips()), ["kind"])) == ["random-order"]


async def test_no_index_of_pages_is_advised_for_chunks_of_one_page(tmp_path: Path) -> None:
    single = of_duckdb(trips(), tmp_path / "single.parquet", COMPRESSION="zstd", ROW_GROUP_SIZE=122_880)
    several = encoded(trips(), write_page_index=False)
    for data, is_advised in [(single, False), (several, True)]:
        cause = finding(await linted(data, ["id"]), "no-page-index")
        assert ("build an index" in cause["cure"]) == is_advised
        assert ("--kind pages" in cause["snippets"]["asyncpq"]) == is_advised


async def test_bounds_that_are_truncated_until_they_overlap(tmp_path: Path) -> None:
    """delta-rs keeps 64 bytes of a bound, less than what all keys begin with."""
    prefix = "https://warehouse.example.com/tenants/2026/regions/north/orders/by-number/"
    urls = pa.table({"url": [f"{prefix}{number:09}" for number in range(200_000)], "value": range(200_000)})
    properties = deltalake.WriterProperties(
        data_page_row_count_limit=2048, write_batch_size=1024, compression="ZSTD", max_row_group_size=50_000,
        default_column_properties=deltalake.ColumnProperties(dictionary_enabled=False),
    )  # fmt: skip
    deltalake.write_deltalake(tmp_path, urls, writer_properties=properties)
    (path,) = files_of(tmp_path)
    document = await linted(path.read_bytes(), ["url"])
    assert rules(document)[0] == "truncated-bounds"
    exact = encoded(urls, max_rows_per_page=2048, use_dictionary=False, row_group_size=50_000)
    before, after = await measured(path.read_bytes(), "url", urls), await measured(exact, "url", urls)
    check_prediction("truncated-bounds", document, before, after)


async def test_statistics_of_a_writer_that_are_not_believed() -> None:
    data = encoded(trips().sort_by("user"), write_page_index=False, row_group_size=20_000)
    old = data.replace(f"parquet-cpp-arrow version {pa.__version__}".encode(), b"parquet-mr version 1.6.0 (build)")
    assert len(old) == len(data)
    document = await linted(old, ["user"])
    cause = finding(document, "statistics-not-believed")
    assert "PARQUET-251" in cause["detail"]
    before, after = await measured(old, "user", by_user()), await measured(data, "user", by_user())
    check_prediction("statistics-not-believed", document, before, after)


@pytest.mark.heavy
@pytest.mark.parametrize("codec", [pytest.param("gzip", marks=pytest.mark.slow), "brotli"])
async def test_a_slow_codec(codec: str) -> None:
    """Its saving is time of the CPU, and no number; zstd costs no more requests, and about as many bytes."""
    slow, good = encoded(trips(), compression=codec), encoded(trips())
    cause = finding(await linted(slow, ["id"]), "slow-codec")
    assert cause["severity"] == "low"
    assert (cause["saves_requests"], cause["saves_bytes"], cause["saves_seconds"]) == (None, None, None)
    assert "No saving is predicted" in cause["detail"]
    before, after = await measured(slow, "id", trips()), await measured(good, "id", trips())
    assert after.requests == before.requests
    assert after.num_bytes == pytest.approx(before.num_bytes, rel=0.2)
    assert "slow-codec" not in rules(await linted(good, ["id"]))


async def test_columns_that_are_likely_keys() -> None:
    table = trips().rename_columns(["n", "user_id", "amount", "kind", "note"])
    assert (await linted(encoded(table)))["columns"] == ["user_id", "n"]
    assert (await linted(encoded(table.select(["amount", "note"]))))["columns"] == ["amount"]


async def test_a_column_that_is_not_there() -> None:
    with pytest.raises(asyncpq.ColumnNotFoundError):
        await linted(encoded(trips().slice(0, 10)), ["nothing"])


async def test_values_are_read_only_where_statistics_do_not_show_their_order() -> None:
    for options, reads in [({}, False), ({"write_page_index": False}, True)]:
        async with ObjectServer() as server:
            server.put("bucket/file.parquet", encoded(trips().select(["id", "amount"]), **options))
            async with asyncpq.Session(server.storage_options, requests=REQUESTS) as session:
                file = await session.open_file("s3://bucket/file.parquet")
                await file.lint(["id"])
                assert ("data" in file.metrics.requests_by_purpose) == reads


@pytest.mark.sampled(3)
@pytest.mark.skipif(not DATA.is_dir(), reason="the corpus is not there")
@pytest.mark.parametrize("path", sorted(DATA.glob("*.parquet")) if DATA.is_dir() else [], ids=lambda path: path.stem)
async def test_every_file_of_the_corpus(path: Path) -> None:
    async with asyncpq.Session(requests=asyncpq.RequestOptions(tail_bytes=100)) as session:
        try:
            file = await session.open_file(path)
        except asyncpq.FormatError:
            return
        async with file:
            document = await file.lint()
    msgspec.convert(document, Lint, strict=True)


def test_the_blocking_form(tmp_path: Path) -> None:
    path = tmp_path / "file.parquet"
    pq.write_table(pa.table({"id": [1, 2]}), path)
    with asyncpq.blocking.open_file(path) as file, asyncpq.blocking.open_dataset(tmp_path) as dataset:
        assert (file.lint()["document"], dataset.lint()["document"]) == ("lint", "lint")


async def test_an_empty_file() -> None:
    data = parquet_bytes(trips().slice(0, 0))
    assert (await linted(data))["findings"] == []
