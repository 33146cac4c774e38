"""Datasets of a service are opened once, opened again as they age, and asked with a token's rights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.dataset import Dataset
from asyncpq.expressions import And, parse_where
from asyncpq.indexing import Bounds, Footers, Keys
from asyncpq.scan.request import BoundPredicate
from asyncpq.serve.access import Grant, Limits
from asyncpq.serve.configuration import DatasetConfiguration, parse_configuration
from asyncpq.serve.datasets import BoundRequest, ServedDataset, requested_rows
from asyncpq.serve.problems import Problem
from asyncpq.serve.requests import RowsRequest
from tests.serve.services import client_of, parquet, settings, trips, write_lake


async def test_files_folders_patterns_and_lists(tmp_path: Path) -> None:
    write_lake(tmp_path)
    part = f"{tmp_path}/part-0.parquet"
    async with asyncpq.Session() as session:
        targets: list[tuple[str | tuple[str, ...], int]] = [
            (part, 1000),
            (f"{tmp_path}/", 3000),
            (str(tmp_path), 3000),
            (f"{tmp_path}/*-1.parquet", 1000),
            ((part, f"{tmp_path}/part-2.parquet"), 2000),
        ]
        for target, rows in targets:
            served = ServedDataset(session, DatasetConfiguration(name="a", target=target))
            dataset = await served.dataset()
            assert await dataset.count() == rows
            assert await served.dataset() is dataset
            await served.close()


async def test_tables_and_indexes_are_read_as_without_the_service(tmp_path: Path) -> None:
    """The versions of a table's files and of an index's are fixed, too; deleted rows stay deleted."""
    deltalake = pytest.importorskip("deltalake")
    table = trips(2000).drop_columns(["place", "place.z"])
    write_lake(tmp_path / "lake")
    for part in (table.slice(0, 1200), table.slice(1200)):
        deltalake.write_deltalake(tmp_path / "delta", part, mode="append")
    deltalake.DeltaTable(tmp_path / "delta").delete("id < 10")
    async with asyncpq.Session() as session:
        await session.build_index(f"{tmp_path}/lake/", [Keys("user"), Bounds("id"), Footers()])
    both = settings(f"{tmp_path}/lake/")
    both["datasets"]["delta"] = {"url": f"{tmp_path}/delta", "format": "delta"}
    both["tokens"]["all"]["datasets"]["*"] = {}
    async with client_of(parse_configuration(both)) as client:
        for name, rows in (("trips", 3000), ("delta", 1990)):
            counted = await client.get(f"/v1/{name}/count")
            assert counted.json()["rows"] == rows
            found = await client.get(f"/v1/{name}/lookup?user=u5&columns=id")
            least = 0 if name == "trips" else 10
            ids = [number for number in range(least, rows + least) if number % 97 == 5]
            assert sorted(row["id"] for row in found.json()["rows"]) == ids
            again = await client.get(
                f"/v1/{name}/lookup?user=u5&columns=id", headers={"if-none-match": found.headers["etag"]}
            )
            assert again.status_code == 304
        plan = (await client.get("/v1/trips/explain", params={"where": "\"user\" = 'u5' AND id < 9"})).json()
        assert plan["files_to_read"] == 1


async def test_an_old_dataset_is_opened_again_while_it_serves(tmp_path: Path) -> None:
    write_lake(tmp_path)
    async with asyncpq.Session() as session:
        served = ServedDataset(session, DatasetConfiguration(name="a", target=f"{tmp_path}/"))
        first = await served.dataset()
        for number in range(3):
            path = tmp_path / f"part-{number}.parquet"
            path.write_bytes(parquet(trips(10).append_column("new", pa.array(range(10)))))
        served.configuration = replace(served.configuration, reopen_s=1e-9)
        assert await served.dataset() is first  # the request does not wait
        task = served._opening
        assert task is not None
        again = await task
        assert "new" in again.schema.names
        await served.close()


async def test_a_dataset_that_fails_to_open_is_tried_again(tmp_path: Path) -> None:
    async with asyncpq.Session() as session:
        served = ServedDataset(session, DatasetConfiguration(name="a", target=f"{tmp_path}/lake/"))
        for _ in range(2):
            with pytest.raises(asyncpq.ObjectNotFoundError):
                await served.dataset()
        write_lake(tmp_path / "lake")
        assert await (await served.dataset()).count() == 3000
        await served.close()


async def test_a_condition_is_bound_once_unless_the_token_adds_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pa.parquet.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    bound: list[object] = []
    bind = Dataset.bind

    def counted(dataset: Dataset, where: Any) -> BoundPredicate | None:
        bound.append(where)
        return bind(dataset, where)

    monkeypatch.setattr(Dataset, "bind", counted)
    asked, allowed = parse_where("x = 1"), parse_where("x < 5")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset([str(tmp_path / "a.parquet")])
        for where, rows, expected in [
            ("x = 1", None, [asked]),
            ("x = 1", allowed, [asked, And((asked, allowed))]),
            (None, None, [None]),
            (None, allowed, [None, allowed]),
        ]:
            bound.clear()
            found = requested_rows(dataset, RowsRequest(verb="scan", where=where), Grant(rows=rows), Limits())
            assert bound == expected
            wanted = bind(dataset, expected[-1])
            assert (found.predicate and found.predicate.where) == (wanted and wanted.where)


async def test_relative_times_make_an_answer_unstable(tmp_path: Path) -> None:
    pa.parquet.write_table(pa.table({"at": pa.array([0], pa.timestamp("us")), "x": [1]}), tmp_path / "a.parquet")
    now = "at < CURRENT_TIMESTAMP"
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset([str(tmp_path / "a.parquet")])

        def bound(where: str | None, rows: str | None = None) -> BoundRequest:
            grant = Grant(rows=None if rows is None else parse_where(rows))
            request = RowsRequest(verb="scan", where=where)
            return BoundRequest(dataset, request, requested_rows(dataset, request, grant, Limits()), grant, Limits())

        assert bound(None).is_stable
        assert bound("x = 1").is_stable
        assert not bound(now).is_stable
        assert not bound("x = 1", now).is_stable
        limits, request = Limits(rows=10), RowsRequest(verb="scan", limit=11)
        rows = requested_rows(dataset, request, Grant(), limits)
        with pytest.raises(Problem, match="limit is 11"):
            BoundRequest(dataset, request, rows, Grant(), limits)
