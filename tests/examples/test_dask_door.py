"""examples/dask_door.py on a local Dask cluster, whose workers are processes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
import pytest

pytest.importorskip("distributed", reason='needs Dask: pip install "dask[dataframe]" distributed')
pytest.importorskip("dask.dataframe", reason='needs Dask: pip install "dask[dataframe]" distributed')

from distributed import Client, LocalCluster

import asyncpq
from asyncpq.errors import ObjectChangedError
from asyncpq.indexing import Bounds, Keys
from examples import dask_door

pytestmark = pytest.mark.heavy  # starts a cluster of processes

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "host": "127.0.0.1"}
    with LocalCluster(**options) as cluster, Client(cluster) as connected:
        yield connected


@pytest.fixture
def lake(tmp_path: Path) -> str:
    for number in range(6):
        ids = range(number * 1000, (number + 1) * 1000)
        table = pa.table(
            {"id": pa.array(ids, pa.int64()), "user": [f"u{id_ % 17}" if id_ % 5 else None for id_ in ids]}
        )
        path = tmp_path / f"day={number % 2}" / f"{number}.parquet"
        path.parent.mkdir(exist_ok=True)
        pq.write_table(table, path, row_group_size=100, write_page_index=True)
    return str(tmp_path)


def expected(lake: str, where: Any) -> list[dict[str, Any]]:
    files = pads.dataset(lake, partitioning="hive", exclude_invalid_files=True)
    return sorted(files.to_table(filter=where).to_pylist(), key=lambda row: row["id"])


def rows_of(frame: Any) -> list[dict[str, Any]]:
    rows = pa.Table.from_pandas(frame.compute(), preserve_index=False).to_pylist()
    return sorted(rows, key=lambda row: row["id"])


@pytest.mark.parametrize(
    "where", [None, pads.field("user") == "u3", pads.field("day") == 1, pads.field("id") < 0], ids=str
)
def test_a_scan_gives_pyarrow_s_rows(client: Client, lake: str, where: Any) -> None:
    assert rows_of(dask_door.scan(lake, where=where)) == expected(lake, where)


def test_columns_and_computation(client: Client, lake: str) -> None:
    frame = dask_door.scan(lake, ["id"], "user = 'u3'", parallelism=3)
    assert list(frame.columns) == ["id"]
    assert frame.id.sum().compute() == sum(row["id"] for row in expected(lake, pads.field("user") == "u3"))


def test_the_workers_build_an_index(client: Client, lake: str) -> None:
    dask_door.index(client, lake, [Bounds("id"), Keys("user")])

    async def look() -> tuple[int, int, list[str]]:
        async with asyncpq.Session() as session:
            dataset = await session.open_dataset(lake)
            found = await dataset.lookup({"user": "u4"})
            verified = await (await session.open_index(f"{lake}/_asyncpq")).verify(sample=100)
            return found.num_rows, dataset.metrics.files_total, verified.problems

    wanted = expected(lake, pads.field("user") == "u4")
    assert asyncio.run(look()) == (len(wanted), 6, [])
    assert rows_of(dask_door.scan(lake, where="user = 'u4'")) == wanted


def test_a_replaced_file_is_an_error_of_the_worker(client: Client, lake: str) -> None:
    frame = dask_door.scan(lake)
    path = Path(lake) / "day=0" / "0.parquet"
    pq.write_table(pq.read_table(path).slice(1), path)
    with pytest.raises(ObjectChangedError, match=r"0\.parquet"):
        frame.compute()


def test_it_is_a_door_in_a_hundred_lines() -> None:
    assert len((ROOT / "examples" / "dask_door.py").read_text(encoding="utf-8").splitlines()) <= 100
