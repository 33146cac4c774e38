"""A door from Dask to asyncpq: scan a dataset into a dask.dataframe, and build an index on Dask's workers.

Needs ``pip install asyncpq-parquet "dask[dataframe]" distributed``. ``python -m examples.dask_door`` writes a lake into a
temporary folder, builds its index and reads it, on a cluster of this host. docs/how-to/own-engine.md explains it.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import dask.dataframe as dd
import pandas as pd  # type: ignore[import-untyped]  # it has no stubs here
import pyarrow as pa
import pyarrow.parquet as pq
from distributed import Client, LocalCluster

import asyncpq
from asyncpq.distributed import BuildTask, ScanTask, build_index, plan_scan
from asyncpq.indexing import Bounds, Index, IndexKind, Keys


def frame_of(task: ScanTask) -> pd.DataFrame:
    """Read the rows of one task, on a worker."""
    return task.to_table().to_pandas(types_mapper=pd.ArrowDtype)


def scan(
    target: Any,
    columns: Sequence[str] | None = None,
    where: Any = None,
    *,
    storage_options: Mapping[str, Any] | None = None,
    parallelism: int = 8,
    **options: Any,
) -> dd.DataFrame:
    """Return the matching rows of a dataset, of the files as they are now, with a partition for each task.

    Args:
        target, options: as in ``asyncpq.Session.open_dataset``.
        columns, where: as in ``asyncpq.Dataset.scan``.
        storage_options: of the planner and the workers.
        parallelism: tasks that run at once.
    """

    async def plan() -> Any:
        async with asyncpq.Session(storage_options) as session:
            dataset = await session.open_dataset(target, **options)
            return await plan_scan(dataset, columns, where, parallelism=parallelism)

    tasks = asyncio.run(plan())
    empty = tasks.schema.empty_table().to_pandas(types_mapper=pd.ArrowDtype)
    made = dd.from_map(frame_of, list(tasks), meta=empty) if tasks else dd.from_pandas(empty, npartitions=1)
    frame: dd.DataFrame = made
    return frame


def run(task: BuildTask) -> pa.Table:
    """Run one task of a build, on a worker."""
    return task.run()


def index(
    client: Client,
    target: Any,
    kinds: Sequence[IndexKind],
    *,
    storage_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> None:
    """Build an index beside a dataset. ``options`` are those of ``asyncpq.distributed.build_index``."""
    workers = client.get_executor(pure=False, retries=2)

    async def build() -> Index:
        async with asyncpq.Session(storage_options) as session:
            submitted = lambda task: asyncio.wrap_future(workers.submit(run, task))  # noqa: E731
            return await build_index(session, target, kinds, submitted, **options)

    asyncio.run(build())


def write_lake(folder: str) -> None:
    for number in range(8):
        ids = range(number * 10_000, (number + 1) * 10_000)
        table = pa.table({"id": ids, "user": [f"u{id_ % 977}" for id_ in ids]})
        pq.write_table(table, f"{folder}/{number}.parquet", row_group_size=1000, write_page_index=True)


def main() -> None:
    with LocalCluster(n_workers=2) as cluster, Client(cluster) as client, tempfile.TemporaryDirectory() as folder:
        write_lake(folder)
        index(client, folder, [Bounds("id"), Keys("user")])
        rows = scan(folder, where="user = 'u7'")
        print(f"{len(rows)} rows in {rows.npartitions} partitions, ids up to {rows.id.max().compute()}")


if __name__ == "__main__":
    main()
