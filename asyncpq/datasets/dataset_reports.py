"""Reports on a dataset: its files as they are listed, and the layouts of some of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from asyncpq.datasets.dataset_files import DatasetState
from asyncpq.datasets.model import DataFile
from asyncpq.datasets.opened_file import OpenedFile, is_bad_file
from asyncpq.errors import AsyncpqError
from asyncpq.events import Operation
from asyncpq.metrics import ReadMetrics
from asyncpq.reports.documents import DatasetInspection, Inspection
from asyncpq.reports.inspection import describe_dataset, inspect_version
from asyncpq.scan.request import ScanRequest

T = TypeVar("T")


def inspect_known(state: DatasetState) -> DatasetInspection:
    """Return the document of a dataset without I/O: the files of the last listing, and no layout."""
    listed = state.source.known
    return _described(state, () if listed is None else listed.files, None, ReadMetrics())


async def inspect_dataset(state: DatasetState, operation: Operation, *, pages: bool) -> DatasetInspection:
    """Return the document of a dataset, with the layout of its first file; no other file is opened."""
    files = (await state.source.files(ScanRequest(), operation)).files
    sample = None
    if files:
        sample = await of_file(
            state,
            files[0],
            operation,
            lambda opened, metrics: inspect_version(opened.source, opened.version, metrics, pages=pages),
        )
    return _described(state, files, sample, operation.metrics)


def _described(
    state: DatasetState, files: Sequence[DataFile], sample: Inspection | None, metrics: ReadMetrics
) -> DatasetInspection:
    partitions = state.partitions or [name for file in files[:1] for name in file.partition]
    return describe_dataset(
        url=state.url,
        view=str(state.source.view),
        description=state.source.description,
        schema=state.columns.schema,
        partitions=partitions,
        files=[(file.url, file.size, file.num_rows) for file in files],
        indexes=state.source.indexes,
        sample=sample,
        metrics=metrics,
    )


async def of_file(
    state: DatasetState, file: DataFile, operation: Operation, make: Callable[[OpenedFile, ReadMetrics], Awaitable[T]]
) -> T | None:
    """Open one file and return what ``make`` says of it; None if the file is bad, with the reason among the fallbacks
    of ``operation``."""
    part = operation.part(file.url, operation.metrics.rounds)
    try:
        opened = await OpenedFile.open(state.runtime, 0, file, part, tail_hint=state.url, scan=False)
        try:
            return await make(opened, part.metrics)
        finally:
            await opened.close()
    except AsyncpqError as error:
        if not is_bad_file(error):
            raise
        part.metrics.fall_back(str(error))
        return None
    finally:
        operation.metrics.add_part(part.metrics)
