"""Reads that give all of their rows at once: run to their end, over again while the object changes."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from asyncpq.decoding.arrow import counted
from asyncpq.errors import ObjectChangedError
from asyncpq.parquet.page_index import PageLocationError
from asyncpq.scan.planner import ScanPlan, ScanPlanner
from asyncpq.scan.prefetch import Pipeline, jobs_of


async def collect(preparation: ScanPlanner) -> tuple[ScanPlan, pa.Table]:
    """What a question is answered with, and the read that gave it; in one round where it is small enough.

    Raises:
        AsyncpqError: reading failed, or the object changed and the read may not start again.
    """
    with preparation.operation:
        async with preparation.deadline():
            prepared, tables = await collected(preparation)
        preparation.metrics.rows_returned = prepared.read.rows_matched
    if len(tables) == 1:
        return prepared, tables[0]
    return prepared, one_table([batch for table in tables for batch in table.to_batches()], prepared.shape.schema)


async def collected(preparation: ScanPlanner) -> tuple[ScanPlan, list[pa.Table]]:
    """The same within an operation that somebody else begins and ends."""
    while True:
        prepared = await preparation.prepare(scan=False)
        try:
            tables = await _run(preparation, prepared)
            await prepared.read.ensure_current()
        except ObjectChangedError as error:
            await preparation.changed(error, restartable=True)
        except PageLocationError as error:
            preparation.relocated(error)
        else:
            return prepared, tables


async def _run(preparation: ScanPlanner, prepared: ScanPlan) -> list[pa.Table]:
    read, runtime = prepared.read, preparation.source.runtime
    size = prepared.plan.num_bytes()
    if size <= runtime.options.limits.round_bytes:
        units = read.units(None)
        runtime.budget.take(size)  # it waits for nobody, and others wait for it
        try:
            tables = await read.run(units[0]) if units else []
        finally:
            runtime.budget.release(size)
        read.check_complete()
        return tables
    pipeline = Pipeline(jobs_of(read, read.units(runtime.options.limits.unit_bytes)), runtime)
    tables = []
    try:
        pipeline.start()
        while (landed := await pipeline.next()) is not None:
            tables.extend(landed.tables)
            pipeline.done_with_head()
    finally:
        await pipeline.close()
    read.check_complete()
    return tables


def one_table(batches: Sequence[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """One table; a table without columns keeps its number of rows, which needs a schema of its own."""
    if len(schema) or not batches:
        return pa.Table.from_batches(batches, schema=schema)
    return counted(sum(batch.num_rows for batch in batches))
