"""Findings about lakes, held to lookups with an index and in files that were put together."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.indexing import Footers, Keys
from asyncpq.metrics import RequestRecord
from asyncpq.objects.prices import Prices
from asyncpq.reports.documents import Cause, Lint
from asyncpq.reports.lint import IndexedLake, LakeFacts, index_cost, lint_lake
from asyncpq.testing import ObjectServer
from tests.iceberg_tables import add_files, data_files, make_table, position_deletes
from tests.reports.lookups import REQUESTS, Cost, encoded, finding, rules, some_keys, trips

FILES = 60
STEP = 5000
LAKE = "s3://bucket/lake/"


async def measured(server: ObjectServer, column: str, url: str = LAKE, **options: Any) -> Cost:
    """The mean cost of opening the lake and looking one key up, in a new session for each key."""
    keys = some_keys(trips(), column, 6)
    requests = num_bytes = 0
    for key in keys:
        async with asyncpq.Session(server.storage_options, requests=REQUESTS) as session:
            dataset = await session.open_dataset(url, **options)
            assert (await dataset.lookup({column: key})).num_rows == 1
            requests += session.metrics.requests
            num_bytes += session.metrics.bytes_fetched
    return Cost(requests / len(keys), num_bytes / len(keys))


def check(cause: Cause, before: Cost, after: Cost) -> None:
    assert cause["saves_requests"] == pytest.approx(before.requests - after.requests, rel=0.2)
    assert cause["saves_bytes"] == pytest.approx(before.num_bytes - after.num_bytes, rel=0.2)


@pytest.mark.heavy
@pytest.mark.parametrize("column", ["user", "id"])
async def test_predictions_are_what_is_measured(column: str) -> None:
    """In random order each file may have a key, else one."""
    async with ObjectServer() as server:
        for number in range(FILES):
            server.put(f"bucket/lake/{number:03}.parquet", encoded(trips().slice(number * STEP, STEP)))
        before = await measured(server, column)
        async with asyncpq.Session(server.storage_options, requests=REQUESTS) as session:
            dataset = await session.open_dataset(LAKE)
            document = (await dataset.lint([column])).to_dict()
            assert dataset.metrics.requests == document["requests"]
            await session.build_index(LAKE, [Keys(column), Footers()], at="s3://bucket/index/")
            indexed = await session.open_dataset(LAKE, index="s3://bucket/index/")
            assert {"no-index", "tiny-files"}.isdisjoint(rules((await indexed.lint([column])).to_dict()))
        msgspec.convert(document, Lint, strict=True)
        assert document["files_checked"] == 8
        check(finding(document, "no-index"), before, await measured(server, column, index="s3://bucket/index/"))
        server.put("bucket/one/0.parquet", encoded(trips(), row_group_size=1 << 20))
        after = await measured(server, column, "s3://bucket/one/")
        check(finding(document, "tiny-files"), before, after)


async def test_findings_of_files_count_for_all_that_are_read(tmp_path: Path) -> None:
    for number in range(4):
        options = {"write_page_index": False, "row_group_size": 25_000}
        (tmp_path / f"{number}.parquet").write_bytes(encoded(trips().slice(number * 50_000, 50_000), **options))
    async with asyncpq.Session(requests=REQUESTS) as session:
        one = await (await session.open_file(tmp_path / "0.parquet")).lint(["user"])
        all_ = await (await session.open_dataset(tmp_path)).lint(["user"])
    own, together = finding(one.to_dict(), "random-order"), finding(all_.to_dict(), "random-order")
    assert own["saves_bytes"] is not None
    assert together["saves_bytes"] == pytest.approx(4 * own["saves_bytes"], rel=0.1)


def lake(*, files: int, deletes: int) -> LakeFacts:
    prices = Prices.initial(REQUESTS, asyncpq.LimitOptions())
    return LakeFacts(sizes=[1 << 30] * files, deletes=deletes, tables=[], prices=prices, first_bytes=1, tail_bytes=1)


def test_deleted_rows() -> None:
    assert lint_lake(lake(files=30, deletes=3), []) == []
    (found,) = lint_lake(lake(files=30, deletes=4), [])
    assert (found["id"], found["column"], found["saves_requests"]) == ("deleted-rows", None, None)
    assert "4 of 30 files" in found["detail"]


async def test_deleted_rows_of_a_table(tmp_path: Path) -> None:
    rows = pa.table({"id": range(1000)})
    table = make_table(tmp_path, rows.schema)
    table.append(rows)
    (file,) = data_files(table)
    add_files(table, [position_deletes(table, {file.file_path: [1, 2, 3]}, like=file)])
    async with asyncpq.Session() as session:
        document = await (await session.open_dataset(table)).lint()
    assert rules(document.to_dict()) == ["deleted-rows"]


async def test_partition_columns_and_unknown_ones(tmp_path: Path) -> None:
    (tmp_path / "day=1").mkdir()
    pq.write_table(pa.table({"id": [1]}), tmp_path / "day=1/0.parquet")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(tmp_path)
        assert (await dataset.lint(["day", "id"]))["columns"] == ["id"]
        with pytest.raises(asyncpq.ColumnNotFoundError, match="dataset has no such column"):
            await dataset.lint(["nothing"])


async def test_a_bad_file_is_left_out(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(pa.table({"id": [number]}), tmp_path / f"{number}.parquet")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(tmp_path)
        (tmp_path / "1.parquet").write_bytes(b"not parquet, and not short either")
        assert (await dataset.lint(["id"]))["files_checked"] == 2


INDEX = "s3://bucket/index/"


async def measured_index(server: ObjectServer, column: str, rows: int) -> Cost:
    """The mean cost of the requests to the index, of lookups in new sessions."""
    keys = some_keys(trips().slice(0, rows), column, 3)
    log: list[RequestRecord] = []
    for key in keys:
        async with asyncpq.Session(server.storage_options, requests=REQUESTS) as session:
            dataset = await session.open_dataset(LAKE, index=INDEX)
            assert dataset.opening is not None
            log += dataset.opening.log
            with asyncpq.measure() as cost:
                assert (await dataset.lookup({column: key})).num_rows == 1
            log += cost.log
    own = [record for record in log if "/index/" in record.url]
    return Cost(len(own) / len(keys), sum(record.bytes for record in own) / len(keys))


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("files", "step", "column"),
    [
        (60, 5000, "id"),
        pytest.param(60, 5000, "user", marks=pytest.mark.slow),
        (12, 5000, "amount"),
        (12, 5000, "note"),
        pytest.param(200, 100, "user", marks=pytest.mark.slow),
        pytest.param(300, 700, "user", marks=pytest.mark.slow),
    ],
)
async def test_the_predicted_cost_is_the_measured_one(files: int, step: int, column: str) -> None:
    async with ObjectServer() as server:
        for number in range(files):
            server.put(f"bucket/lake/{number:03}.parquet", encoded(trips().slice(number * step, step)))
        async with asyncpq.Session(server.storage_options, requests=REQUESTS) as session:
            document = await (await session.open_dataset(LAKE)).lint([column])
            await session.build_index(LAKE, [Keys(column), Footers()], at=INDEX)
        cost = await measured_index(server, column, files * step)
    lake = IndexedLake(
        rows=files * step,
        files=files,
        columns=5,
        key_bytes={"user": 16, "note": 27}.get(column, 9),
        value_bytes=_value_bytes(column, step),
        in_order=column == "id",
    )
    predicted = index_cost(lake)
    assert predicted.requests == cost.requests
    assert predicted.num_bytes == pytest.approx(cost.num_bytes, rel=0.2)
    assert finding(document.to_dict(), "no-index")["saves_requests"]


def _value_bytes(column: str, rows: int) -> float:
    group = pq.ParquetFile(io.BytesIO(encoded(trips().slice(0, rows)))).metadata.row_group(0)
    sizes = {group.column(at).path_in_schema: group.column(at).total_compressed_size for at in range(5)}
    return float(sizes[column] / rows)
