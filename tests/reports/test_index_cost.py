"""The cost of a lookup through an index, predicted before there is one, and measured with it."""

from __future__ import annotations

import io

import pyarrow.parquet as pq
import pytest

import asyncpq
from asyncpq.indexing import Footers, Keys
from asyncpq.metrics import RequestRecord
from asyncpq.reports.index_cost import IndexedLake, index_cost
from asyncpq.testing import ObjectServer
from tests.reports.lookups import REQUESTS, Cost, encoded, finding, some_keys, trips

LAKE, INDEX = "s3://bucket/lake/", "s3://bucket/index/"


async def measured(server: ObjectServer, column: str, rows: int) -> Cost:
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


@pytest.mark.sampled(3)
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
        cost = await measured(server, column, files * step)
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
