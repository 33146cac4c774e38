"""Reports on a dataset: the list of its files, and the layouts of a sample of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from asyncpq.datasets.dataset_files import DatasetFiles, DatasetState
from asyncpq.datasets.dataset_plan import DatasetPlan
from asyncpq.datasets.model import DataFile
from asyncpq.datasets.opened_file import OpenedFile, is_bad_file
from asyncpq.errors import AsyncpqError, ColumnNotFoundError, nearest_column
from asyncpq.events import Operation
from asyncpq.metrics import ReadMetrics
from asyncpq.reports import why
from asyncpq.reports.documents import DatasetInspection, FileSummary, Inspection, Lint
from asyncpq.reports.inspection import inspect_version
from asyncpq.reports.lint import LakeFacts, Linted, lint_document, lint_lake, lint_version, prices_text
from asyncpq.scan.plan import Plan
from asyncpq.scan.request import ScanRequest
from asyncpq.storage.urls import safe_url

T = TypeVar("T")
_LINTED: Final = 8  # files of a dataset whose layouts are looked at


def inspect_known(state: DatasetState) -> DatasetInspection:
    """Describe a dataset as a JSON document without requests: the files of the last listing, and no file's layout."""
    listed = state.source.known
    return _described(state, () if listed is None else listed.files, None, ReadMetrics())


async def inspect_dataset(state: DatasetState, operation: Operation, *, pages: bool) -> DatasetInspection:
    """Describe a dataset as a JSON document, with the layout of its first file. No other file is opened."""
    files = (await state.source.files(ScanRequest(), operation)).files
    sample = None
    if files:
        sample = await of_file(
            state,
            files[0],
            operation,
            lambda opened, metrics: inspect_version(opened.source, opened.version, metrics, pages=pages),
        )
    return await state.runtime.in_thread(partial(_described, state, files, sample, operation.metrics))


def _described(
    state: DatasetState, files: Sequence[DataFile], sample: Inspection | None, metrics: ReadMetrics
) -> DatasetInspection:
    summaries = [FileSummary(url=safe_url(file.url), size=file.size, rows=file.num_rows) for file in files]
    sizes = [item["size"] for item in summaries]
    return DatasetInspection(
        document="dataset inspection",
        url=state.url,
        view=str(state.source.view),
        description=state.source.description,
        schema=[{"name": item.name, "arrow_type": str(item.type)} for item in state.columns.schema],
        partitions=list(state.partitions or [name for file in files[:1] for name in file.partition]),
        files=summaries,
        total_bytes=None if None in sizes else sum(filter(None, sizes)),
        indexes=[dict(index) for index in state.source.indexes],
        sample=sample,
        fallbacks=list(metrics.fallbacks),
        requests=metrics.requests,
        bytes_fetched=metrics.bytes_fetched,
    )


async def lint_dataset(state: DatasetState, operation: Operation, columns: Sequence[str] | None) -> Lint:
    """Return the findings of ``lint`` about a dataset and about the layouts of a sample of its files, evenly chosen.

    Raises:
        ColumnNotFoundError: the dataset does not have one of ``columns``.
    """
    runtime, known = state.runtime, state.columns.schema.names
    for name in columns or ():
        if name.partition(".")[0] not in known:
            hint = nearest_column(name, known)
            raise ColumnNotFoundError("the dataset has no such column", column=name, hint=hint)
    files = (await state.source.files(ScanRequest(), operation)).files
    chosen = sorted({number * len(files) // _LINTED for number in range(_LINTED)}) if files else []
    linted: list[Linted] = []
    prices = runtime.price_book.initial
    for number in chosen:
        file = files[number]
        own = None if columns is None else [name for name in columns if name not in file.partition]

        async def lint(opened: OpenedFile, metrics: ReadMetrics, own: Sequence[str] | None = own) -> Linted:
            nonlocal prices
            prices = opened.source.prices()
            return await lint_version(opened.source, opened.version, opened.operation, own, one_of_many=True)

        found = await of_file(state, file, operation, lint)
        if found is not None:
            linted.append(found)
    tables = [table for index in state.source.indexes for table in index["tables"]]

    def document() -> Lint:
        lake = LakeFacts(
            sizes=[file.size for file in files],
            deletes=sum(file.deletes is not None for file in files),
            tables=tables,
            prices=prices,
            first_bytes=runtime.options.requests.tail_bytes,
            tail_bytes=runtime.tail_sizes.guess(state.url),
        )
        return lint_document(state.url, linted, lint_lake(lake, linted), prices_text(prices), operation)

    return await runtime.in_thread(document)


async def of_file(
    state: DatasetState, file: DataFile, operation: Operation, make: Callable[[OpenedFile, ReadMetrics], Awaitable[T]]
) -> T | None:
    """Open one file and return the result of ``make`` for it. If the file is bad (damaged or unreadable), return
    None and add the reason to the fallbacks of ``operation``."""
    part = operation.part(file.url, operation.metrics.rounds)
    try:
        opened = await OpenedFile.open(state.runtime, file, part, tail_hint=state.url, scan=False)
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


class DatasetStory:
    """Records one read of a dataset and makes its report; see :mod:`asyncpq.reports.why`. ``operation`` is the
    read's own, and must not have begun."""

    def __init__(
        self,
        state: DatasetState,
        verb: why.Verb,
        lookup: Mapping[str, Any] | None,
        opening: ReadMetrics | None,
        operation: Operation,
    ) -> None:
        self._state = state
        self._verb = verb
        self._lookup = lookup
        self._opening = opening
        self._operation = operation
        self._story = why.Story(scan=verb == "scan")
        operation.metrics.trace = self._story.trace

    async def plans(self) -> list[Plan]:
        """Return the plans of the files that were planned, after the read has ended."""
        return [*(await self._state.runtime.in_thread(self._story.plans)).values()]

    async def report(self, files: DatasetFiles, plan: DatasetPlan, rows: int, *, layouts: bool) -> why.WhyReport:
        """Return the report on the read of ``files``, which has ended. ``plan``: its plan; ``rows``: number of rows
        that it returned; ``layouts``: include the layouts of files that were read."""
        report, read = await self._state.runtime.in_thread(partial(self._report, files, plan, rows))
        if layouts:
            for file in read[: why.MAX_LAYOUTS]:
                layout = await of_file(self._state, file, self._later(), _layout)
                if layout is not None:
                    report.add_layout(layout)
        return report

    def _report(self, files: DatasetFiles, plan: DatasetPlan, rows: int) -> tuple[why.WhyReport, list[DataFile]]:
        """Return the report without layouts, and the files that were read."""
        metrics, story = self._operation.metrics, self._story
        # Names as the listing has them: a handle's url may be longer, such as that of a path relative to the folder.
        planned = {
            traced.planner.operation.url: url
            for url, traced in story.files.items()
            if traced.scan_plan.fetch_plan.row_groups
        }
        opened = {name: file for file in files.listed if (name := safe_url(file.url)) in planned}
        unindexed = [planned[name] for name, file in opened.items() if file.entry is None] if plan.index else []
        lake = why.LakeRead(
            view=str(plan.view),
            files_step=plan.funnel[0],
            others=self._others(files, planned, "limit" if "limit" in plan.files_by else "statistics"),
            prices=self._state.runtime.price_book.initial,
            files_opened=metrics.files_opened,
            index=plan.index,
            unindexed=frozenset(unindexed),
        )
        read = why.Read(
            url=self._state.url,
            verb=self._verb,
            lookup=self._lookup,
            columns=plan.columns,
            rows=rows,
            metrics=metrics,
            opening=self._opening,
            plan=plan.to_dict(),
            plans=[*plan.files, *plan.files_empty],
            lake=lake,
        )
        return why.why_report(read, story), [*opened.values()]

    def _later(self) -> Operation:
        """Return an operation for requests of the report itself, which do not count towards the read's cost."""
        return self._state.runtime.operation("inspect", self._state.url)

    def _others(self, files: DatasetFiles, planned: Collection[str], unread: str) -> list[FileSummary]:
        """Return a summary of each file that was not read, as far as the listing names them, with what ruled it out.
        ``planned``: urls of the files that were planned; ``unread``: the reason for files that nothing ruled out
        before they were opened."""
        known = self._state.source.known
        listed = {file.url: file for file in (*files.listed, *(() if known is None else known.files))}
        kept = {file.url for file in files.listed}
        found: list[FileSummary] = []
        for url, file in listed.items():
            shown = safe_url(url)
            if shown not in planned:
                fate = files.fates.get(url, unread if url in kept else "index")
                summary: Any = {"url": shown, "size": file.size, "rows": file.num_rows, "fate": fate}
                found.append(summary)
        return found


async def _layout(opened: OpenedFile, metrics: ReadMetrics) -> Inspection:
    metadata = opened.version.metadata
    pages = why.wants_pages(len(metadata.row_groups), len(metadata.schema.leaves))
    return await inspect_version(opened.source, opened.version, metrics, pages=pages)
