"""Datasets: many Parquet files under one schema, and the plans of reads of them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeAlias, TypeVar

import pyarrow as pa
from cachetools import LRUCache

from asyncpq.checkpoints import sorted_distinct
from asyncpq.datasets.dataset_files import FILES_A_STEP, DatasetFiles, DatasetScan, DatasetState
from asyncpq.datasets.dataset_plan import DatasetPlan
from asyncpq.datasets.model import View, urls_of
from asyncpq.datasets.providers import FileProvider, SkippedFile
from asyncpq.datasets.schemas import has_unreadable, output_schema
from asyncpq.decoding.arrow import counted
from asyncpq.decoding.filter import FilterCompiler
from asyncpq.decoding.kernels import Expression as ArrowExpression
from asyncpq.errors import ColumnNotFoundError, InvalidOptionError
from asyncpq.events import Operation, OperationName
from asyncpq.expressions import columns as columns_of
from asyncpq.expressions import has_open_literals, parse_where
from asyncpq.expressions.tree import hint_at_text
from asyncpq.metrics import ReadMetrics, ReadTrace
from asyncpq.options import DEFAULT_BATCH_SIZE, whole_number
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.scan.executor import ScanExecutor, joined
from asyncpq.scan.foreign_names import EnteredAsync, foreign_name, not_iterated
from asyncpq.scan.request import (
    BoundPredicate,
    LookupKeys,
    ScanRequest,
    bind,
    column_names,
    finish_lookup,
    lookup_keys,
    names_alone,
    predicate_steps,
    row_places,
    rows_at,
    short_or_unparsed,
    take_steps,
    where_steps,
)

if TYPE_CHECKING:
    from asyncpq.reports.documents import DatasetInspection
    from asyncpq.reports.inspection import InspectionReport
    from asyncpq.reports.lint import LintReport
    from asyncpq.reports.why import WhyReport
    from asyncpq.scan.plan import Plan
    from asyncpq.scan.request import Predicate as RequestPredicate
    from asyncpq.typing import Predicate

T = TypeVar("T")


Where: TypeAlias = "Predicate | BoundPredicate"


class Dataset(EnteredAsync):
    """Parquet files under one schema. Made by :meth:`asyncpq.Session.open_dataset`.

    Its methods are those of :class:`asyncpq.File`; rows are identified by file and row number. Files are in the order
    of their names, of the table's metadata, or of the list passed; rows in the order of the files. Every method that
    reads may be called concurrently.

    Attributes:
        metrics: summed costs (:class:`asyncpq.ReadMetrics`) of the calls of this handle that have ended, as
            :attr:`asyncpq.File.metrics`.
        opening: cost of opening the dataset (:class:`asyncpq.ReadMetrics`), which ``metrics`` leaves out.
        skipped: list of :class:`asyncpq.SkippedFile`: the bad files that the last call to end left out; empty unless
            ``on_bad_file`` is "skip".
    """

    def __init__(self, state: DatasetState) -> None:
        self._state = state
        self._runtime = state.runtime
        self.metrics: ReadMetrics = ReadMetrics()
        self.opening: ReadMetrics | None = None
        self._is_new = True  # not read yet
        self.skipped: list[SkippedFile] = []
        self._outputs: LRUCache[Hashable, pa.Schema] = LRUCache(64)
        self._compiler: tuple[pa.Schema, FilterCompiler] | None = None  # of the columns that it compiles for
        self._has_unreadable = has_unreadable(state.columns.fields or ())

    def __repr__(self) -> str:
        return f"Dataset({self.url!r}, {len(self.schema):,} columns)"

    async def __aenter__(self) -> Self:
        self._runtime.check()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        """Do nothing: a dataset keeps nothing open between reads."""

    if not TYPE_CHECKING:
        __getattr__ = foreign_name
        __aiter__ = not_iterated

    # -- properties -------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Url of the prefix, pattern or table, without user info, query and secrets."""
        return self._state.url

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema (pyarrow.Schema) of all files together, partition columns included."""
        return self._state.columns.schema

    @property
    def view(self) -> View:
        """Which files a read sees: those of a listing, of an index's snapshot, or of a table (a
        :class:`asyncpq.View`)."""
        return self._state.source.view

    @property
    def description(self) -> str:
        """One line of text for messages: where the files come from, and the version of a table."""
        return self._state.source.description

    async def files(self, where: Where | None = None) -> list[str]:
        """Return the urls of the current files, in the order of :meth:`scan`. Files that ``where`` rules out by paths,
        a table's metadata or an index are left out; without ``where``, all are returned. No file is opened.

        Raises:
            ExpressionError, ColumnNotFoundError, PredicateTypeError, ...: ``where`` does not fit the dataset's columns.
            StoreError: the listing, or the index, cannot be read.
        """
        runtime, state = self._runtime, self._state
        runtime.check()
        async with runtime.deadline(self.url):
            ask = await self._asked((), where)
            with self._operation("files") as operation:
                found = (await state.source.files(ask, operation)).files
                search = state.known.search(found, ask.simple_pruning, state.columns.schema)
                steps = predicate_steps(ask.where) + len(found) // FILES_A_STEP
                numbers = await runtime.off_loop(search, steps)
        urls = urls_of(found)
        return [urls[number] for number in numbers]

    # -- reports ----------------------------------------------------------------------------------

    async def inspect(self, *, pages: bool = True) -> InspectionReport[DatasetInspection]:
        """Describe the dataset: its files with their sizes, schema, partitions and indexes, and the layout of the first
        file as :meth:`asyncpq.File.inspect` describes it.

        No other file is opened. The result is a dict of JSON values with the keys of
        :class:`asyncpq.reports.documents.DatasetInspection`, with ``explain()`` as text.

        Args:
            pages: as in :meth:`asyncpq.File.inspect`.
        """
        self._runtime.check()
        await self._runtime.load("asyncpq.datasets.dataset_reports")
        from asyncpq.datasets.dataset_reports import inspect_dataset
        from asyncpq.reports.inspection import InspectionReport

        operation = self._operation("inspect")
        make = partial(inspect_dataset, self._state, operation, pages=pages)
        return InspectionReport(await self._report(operation, make))

    def _repr_html_(self) -> str | None:
        """Return a frame for notebooks with the page map of the dataset: what memory has of it, without a request."""
        from asyncpq.datasets.dataset_reports import inspect_known
        from asyncpq.page_map import framed

        return framed(inspect_known(self._state))

    async def lint(self, columns: Sequence[str] | None = None) -> LintReport:
        """Find the properties of the dataset's files that make lookups slow, and predict what each cure saves.

        Up to eight files, evenly chosen, are examined for all.

        Args:
            columns: as in :meth:`asyncpq.File.lint`.

        Returns:
            The findings as a dict of JSON values with the keys of :class:`asyncpq.reports.documents.Lint`, with
            ``explain()`` as text, and a list in notebooks.

        Raises:
            ColumnNotFoundError: the dataset does not have one of the columns.
        """
        self._runtime.check()
        names = None if columns is None else names_alone(columns, "columns")
        await self._runtime.load("asyncpq.datasets.dataset_reports")
        from asyncpq.datasets.dataset_reports import lint_dataset
        from asyncpq.reports.lint import LintReport

        operation = self._operation("lint")
        return LintReport(await self._report(operation, partial(lint_dataset, self._state, operation, names)))

    async def _report(self, operation: Operation, make: Callable[[], Awaitable[T]]) -> T:
        with operation:
            async with self._runtime.deadline(self.url):
                return await make()

    # -- rows -------------------------------------------------------------------------------------

    def scan(
        self,
        columns: Sequence[str | int] | None = None,
        where: Where | None = None,
        *,
        limit: int | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        read_dictionary: Sequence[str] = (),
        access: Mapping[str, AccessPlan] | None = None,
        ordered: bool = True,
    ) -> DatasetScan:
        """Stream matching rows.

        Args:
            columns, where, limit, batch_size, read_dictionary: as in :meth:`asyncpq.File.scan`.
            access: a mapping from file url to the rows that may be read; other files are not read.
            ordered: whether files come in order; if False, in the order they become ready, each with its rows in order.

        Returns:
            A scan, used as ``async with dataset.scan(...) as scan: async for batch in scan``.

        Raises:
            ExpressionError, ColumnNotFoundError, PredicateTypeError, ...: the arguments do not fit the dataset's
                columns; raised by this call, or when the read begins.
        """
        size = whole_number("batch_size", batch_size, 1) or DEFAULT_BATCH_SIZE
        bound = short_or_unparsed(where, self._bound)
        ask = self._request(columns, bound, limit, read_dictionary, access)
        return self._scan("scan", ask, size, ordered=ordered)

    def lookup_scan(
        self, columns: Sequence[str | int] | None, where: Where | None, *, limit: int, batch_size: int
    ) -> DatasetScan:
        """Return a :meth:`scan` with the priority of a lookup: it may use the connections that scans leave free, and
        caches keep its pages like those of lookups. For services that stream the rows of lookups.

        Args:
            columns, where, limit, batch_size: as in :meth:`scan`; for ``where``,
                :func:`asyncpq.engine.foreign_predicates.lookup_condition` makes a condition of keys.
        """
        return self._scan("lookup", self._ask(columns, where, limit=limit), batch_size, ordered=True)

    async def read(
        self,
        columns: Sequence[str | int] | None = None,
        where: Where | None = None,
        *,
        limit: int | None = None,
        read_dictionary: Sequence[str] = (),
        access: Mapping[str, AccessPlan] | None = None,
    ) -> pa.Table:
        """Return all matching rows in one table, in order of the files. Arguments and errors: as :meth:`scan`."""
        self._runtime.check()
        async with self._runtime.deadline(self.url):
            ask = await self._asked(columns, where, limit=limit, read_dictionary=read_dictionary, access=access)
        scan = self._scan("read", ask, 1 << 62, ordered=True)
        try:
            async with scan:
                batches = [batch async for batch in scan]
        finally:
            self.skipped = scan.skipped
        return await joined(self._runtime, batches, scan.schema)

    async def lookup(
        self,
        keys: Mapping[str, Any],
        columns: Sequence[str | int] | None = None,
        *,
        access: Mapping[str, AccessPlan] | None = None,
        with_keys: bool = False,
        read_dictionary: Sequence[str] = (),
    ) -> pa.Table:
        """Return the rows of all files whose key columns equal ``keys``, in the order of the files.

        Args:
            keys, columns, with_keys, read_dictionary: as in :meth:`asyncpq.File.lookup`.
            access: as in :meth:`scan`.

        Raises:
            QueryError: no key columns, lists of unequal lengths, or unknown columns.
        """
        wanted = await lookup_keys(self._runtime, keys)
        ask = self._ask_keys(columns, wanted, read_dictionary=read_dictionary, access=access)
        plain = wanted.exact and not with_keys
        if not plain or wanted.prune is not None:
            ask = ask._replace(keys=() if plain else wanted.names, prune=wanted.prune)
            self._output(ask)
        rows, _ = await self._collect("lookup", ask)
        table = await self._concatenated(rows, ask)
        return table if plain else await finish_lookup(self._runtime, wanted, table, with_keys)

    async def take(
        self,
        rows: Sequence[tuple[str, int]],
        columns: Sequence[str | int] | None = None,
        *,
        read_dictionary: Sequence[str] = (),
    ) -> pa.Table:
        """Return the rows at the positions ``rows``, in the order of ``rows``, duplicates included.

        Args:
            rows: pairs of a file's url, as returned by :meth:`files`, and a row number in that file, from 0.

        Raises:
            RowIndexError: the dataset does not have the file, the file does not have the row, or the row is deleted.
            ObjectChangedError: a file was replaced during the read.
        """

        def checked() -> tuple[list[tuple[str, int]], dict[str, list[int]], dict[str, AccessPlan]]:
            places = row_places(rows)
            by_file: dict[str, dict[int, None]] = {}
            for url, row in places:
                by_file.setdefault(url, {})[row] = None
            distinct = {url: sorted_distinct(numbers) for url, numbers in by_file.items()}
            return places, distinct, {url: AccessPlan.rows(numbers) for url, numbers in distinct.items()}

        steps = take_steps(rows)
        asked, distinct, by_file = await self._runtime.off_loop(checked, steps)
        ask = await self._asked(columns, None, read_dictionary=read_dictionary)
        operation = self._operation("take")
        files = DatasetFiles(self._state, ask._replace(by_file=by_file, exactly=True), operation, scan=False)
        found, _ = await self._run(operation, files)
        table = await self._concatenated(found, ask)
        if not table.num_columns:
            return counted(len(asked))

        def ordered() -> pa.Table:
            place: dict[tuple[str, int], int] = {}
            num_rows = 0
            for number, tables in found.items():
                url = files.listed[number].url
                place.update({(url, row): num_rows + at for at, row in enumerate(distinct[url])})
                num_rows += sum(part.num_rows for part in tables)
            return rows_at(table, place, asked)

        return await self._runtime.off_loop(ordered, steps + len(found) + table.num_columns)

    async def count(self, where: Where | None = None, *, access: Mapping[str, AccessPlan] | None = None) -> int:
        """Return the number of matching rows; without ``where`` from footers or a table's metadata alone.

        Arguments and errors are those of :meth:`scan`.
        """
        self._runtime.check()
        async with self._runtime.deadline(self.url):
            ask = (await self._asked((), where, access=access))._replace(rows_only=True)
            _, num_rows = await self._collect("count", ask)
        return num_rows

    async def plan(
        self,
        columns: Sequence[str | int] | None = None,
        where: Where | None = None,
        *,
        lookup: Mapping[str, Any] | None = None,
        limit: int | None = None,
        access: Mapping[str, AccessPlan] | None = None,
    ) -> DatasetPlan:
        """Return the plan of a read, without fetching data: files are listed; footers and page indexes of files that
        may match are fetched if a read would fetch them.

        Args:
            columns, where, limit, access: as in :meth:`scan`.
            lookup: the ``keys`` of a :meth:`lookup` to plan, instead of ``where``.

        Raises:
            InvalidOptionError: both ``lookup`` and ``where`` are given.
            As :meth:`scan` otherwise.
        """
        if lookup is not None and where is not None:
            raise InvalidOptionError("plan() got both where= and lookup=", hint="Pass only one of them.")
        wanted = None if lookup is None else await lookup_keys(self._runtime, lookup)
        self._runtime.check()
        async with self._runtime.deadline(self.url):
            if wanted is not None:
                ask = self._ask_keys(columns, wanted, access=access)._replace(prune=wanted.prune)
            else:
                ask = await self._asked(columns, where, limit=limit, access=access)
            operation = self._operation("plan")
            operation.metrics.trace = ReadTrace()
            files = DatasetFiles(self._state, ask, operation, scan=lookup is None)
            try:
                with operation:
                    plans = await files.plans()
            finally:
                self.skipped = files.skipped
        return await self._runtime.off_loop(partial(self._plan_of, ask, operation, files, plans), len(plans))

    async def why(
        self,
        columns: Sequence[str | int] | None = None,
        where: Where | None = None,
        *,
        lookup: Mapping[str, Any] | None = None,
        limit: int | None = None,
        count: bool = False,
        layouts: bool = True,
    ) -> WhyReport:
        """Run a read, and return a report on its cost; see :meth:`asyncpq.File.why`. The report has the layouts of at
        most 20 files that were read. Errors are those of that method."""
        self._runtime.check()
        await self._runtime.load("asyncpq.datasets.dataset_reports")
        from asyncpq.datasets.dataset_reports import DatasetStory
        from asyncpq.reports.why import verb_of

        verb = verb_of(columns, where, lookup, limit, counts=count)
        opening = self.opening if self._is_new else None
        wanted = None if lookup is None else await lookup_keys(self._runtime, lookup)
        async with self._runtime.deadline(self.url):
            if wanted is not None:
                ask = self._ask_keys(columns, wanted, limit=limit)
            else:
                ask = await self._asked(() if count else columns, where, limit=limit)
        ask = ask._replace(rows_only=count)
        if wanted is not None:
            ask = ask._replace(keys=() if wanted.exact else wanted.names, prune=wanted.prune)
            self._output(ask)
        operation = self._operation("read" if verb == "scan" else verb)
        told = DatasetStory(self._state, verb, lookup, opening, operation)
        files = DatasetFiles(self._state, ask, operation, scan=verb == "scan")
        if verb == "scan":
            output = self._output(ask)
            size = DEFAULT_BATCH_SIZE
            async with DatasetScan(self._runtime, files, operation, output, batch_size=size, limit=ask.limit) as scan:
                rows = sum([batch.num_rows async for batch in scan])
            self.skipped = files.skipped
        else:
            found, rows = await self._run(operation, files)
            if wanted is not None and not wanted.exact:
                table = await finish_lookup(self._runtime, wanted, await self._concatenated(found, ask), False)
                rows = table.num_rows
        make_plan = partial(self._plan_of, ask, operation, files, await told.plans())
        plan = await self._runtime.off_loop(make_plan, len(files.listed))
        async with self._runtime.deadline(self.url):
            return await told.report(files, plan, rows, layouts=layouts)

    def _plan_of(
        self, ask: ScanRequest, operation: Operation, files: DatasetFiles, plans: Sequence[Plan]
    ) -> DatasetPlan:
        read = [plan for plan in plans if plan.pruning.row_groups_kept]
        metrics, ruled_out = operation.metrics, dict(files.ruled_out())
        by_footer = max(metrics.files_opened - len(read), 0)
        planned = metrics.files_ruled_out + by_footer + len(read) + len(files.skipped)
        if ask.limit is not None and planned < metrics.files_total:  # the read ended before it came to them
            ruled_out["limit"] = metrics.files_total - planned
        return DatasetPlan(
            url=self.url,
            view=self.view,
            description=self.description,
            where=None if ask.where is None else str(ask.where),
            limit=ask.limit,
            files_total=metrics.files_total,
            files_ruled_out=metrics.files_ruled_out,
            files_by_footer=by_footer,
            files=tuple(read),
            skipped=tuple(skipped.url for skipped in files.skipped),
            metadata_requests=metrics.requests,
            index=files.report(),
            listing=None if files.cost is None else str(files.cost),
            columns=tuple(self._output(ask).names),
            files_by=ruled_out,
            files_empty=tuple(plan for plan in plans if not plan.pruning.row_groups_kept),
        )

    # -- inside -----------------------------------------------------------------------------------

    def _ask(
        self,
        columns: Sequence[str | int] | None,
        where: Where | None,
        *,
        limit: int | None = None,
        read_dictionary: Sequence[str] = (),
        access: Mapping[str, AccessPlan] | None = None,
    ) -> ScanRequest:
        """Return the request of a read, checked against the dataset's columns even if no file will be read.

        Raises:
            ColumnNotFoundError, PredicateTypeError, InvalidOptionError, ...: an argument does not fit the columns.
        """
        return self._request(columns, self._bound(where), limit, read_dictionary, access)

    def _ask_keys(
        self,
        columns: Sequence[str | int] | None,
        wanted: LookupKeys,
        *,
        limit: int | None = None,
        read_dictionary: Sequence[str] = (),
        access: Mapping[str, AccessPlan] | None = None,
    ) -> ScanRequest:
        """Return the request of a lookup. Errors are those of :meth:`_ask`; one about a key column says so."""
        try:
            return self._ask(columns, wanted.where, limit=limit, read_dictionary=read_dictionary, access=access)
        except ColumnNotFoundError as error:
            if error.column not in wanted.names:
                raise
            message = "a key names a column that the dataset does not have"
            raise ColumnNotFoundError(message, column=error.column, hint=error.hint) from error

    async def _asked(
        self,
        columns: Sequence[str | int] | None,
        where: Where | None,
        *,
        limit: int | None = None,
        read_dictionary: Sequence[str] = (),
        access: Mapping[str, AccessPlan] | None = None,
    ) -> ScanRequest:
        """Return what :meth:`_ask` does; a long predicate is converted and compiled in a thread."""
        bound = await self._runtime.off_loop(partial(self._bound, where), where_steps(where))
        return self._request(columns, bound, limit, read_dictionary, access)

    def _request(
        self,
        columns: Sequence[str | int] | None,
        bound: RequestPredicate,
        limit: int | None,
        read_dictionary: Sequence[str],
        access: Mapping[str, AccessPlan] | None,
    ) -> ScanRequest:
        ask = ScanRequest(
            columns=column_names(columns),
            **bound,
            read_dictionary=names_alone(read_dictionary, "read_dictionary"),
            limit=whole_number("limit", limit, 0),
            by_file=_access(access),
        )
        self._output(ask)
        return ask

    def _bound(self, where: Where | None) -> RequestPredicate:
        """Return :meth:`bind`'s predicate as arguments of :class:`ScanRequest`. Raises the errors of its columns that
        cannot be read, too."""
        bound = self._predicate(where)
        if bound is None:
            return {}
        if self._has_unreadable:
            for name in columns_of(bound.where):
                output_schema(self.schema, [name], (), (), self._state.columns.fields)
        return {"where": bound.where, "bound": bound}

    def bind(self, where: Predicate | None) -> BoundPredicate | None:
        """Return a predicate that reads of this dataset take as ``where``, without checking, simplifying and compiling
        it again: for a condition of many reads. Times relative to :func:`asyncpq.now` are fixed at this call. Runs in
        any thread. None if ``where`` is None.

        Args:
            where: a condition in any form that :meth:`scan` takes.

        Raises:
            ColumnNotFoundError, PredicateTypeError, ExpressionError: the condition does not fit the columns.
        """
        return self._predicate(where)

    def _predicate(self, where: Where | None) -> BoundPredicate | None:
        """Return ``where`` bound to the dataset's columns, relative times resolved to one instant; None for None."""
        if where is None or type(where) is BoundPredicate:
            return where
        schema = self.schema
        if isinstance(where, ArrowExpression):
            from asyncpq.decoding.arrow_expressions import from_pyarrow

            parsed = from_pyarrow(where, schema)
        else:
            parsed = parse_where(where)
        if has_open_literals(parsed):
            from asyncpq.decoding.column_literals import resolve_literals  # few predicates need it

            parsed = resolve_literals(parsed, datetime.now(UTC), schema)
        try:
            return bind(parsed, schema, self._compiler_of(schema))
        except ColumnNotFoundError as error:
            raise hint_at_text(error, parsed) from error.__cause__

    def _compiler_of(self, schema: pa.Schema) -> FilterCompiler:
        """Return what compiles predicates of the columns of ``schema``. Predicates of the same columns share it."""
        known = self._compiler
        if known is None or known[0] is not schema:
            known = self._compiler = schema, FilterCompiler(schema)
        return known[1]

    def _output(self, ask: ScanRequest) -> pa.Schema:
        """Return the Arrow schema of the result of the request ``ask``, with the key columns that it adds."""
        columns = None if ask.columns is None else tuple(ask.columns)
        key = (columns, tuple(ask.keys), tuple(ask.read_dictionary))
        known: pa.Schema | None = self._outputs.get(key)
        if known is None:
            known = self._outputs[key] = output_schema(self.schema, *key, self._state.columns.fields)
        return known

    def _operation(self, name: OperationName) -> Operation:
        self._is_new = False
        return self._runtime.operation(name, self._state.url, self.metrics)

    def _scan(self, name: OperationName, ask: ScanRequest, batch_size: int, *, ordered: bool) -> DatasetScan:
        operation = self._operation(name)
        files = DatasetFiles(self._state, ask, operation, scan=name != "lookup", ordered=ordered)
        output = self._output(ask)
        scan = DatasetScan(self._runtime, files, operation, output, batch_size=batch_size, limit=ask.limit)
        scan.again = partial(self._scan, name, ask, batch_size, ordered=ordered)
        return scan

    async def _concatenated(self, rows: Mapping[int, Sequence[pa.Table]], ask: ScanRequest) -> pa.Table:
        return await joined(self._runtime, [table for tables in rows.values() for table in tables], self._output(ask))

    async def _collect(self, name: OperationName, ask: ScanRequest) -> tuple[dict[int, list[pa.Table]], int]:
        """Run the request, and return the result tables of each file, in the order of the files, and the number of
        matching rows. ``name``: name of the operation in events and metrics."""
        operation = self._operation(name)
        return await self._run(operation, DatasetFiles(self._state, ask, operation, scan=False))

    async def _run(self, operation: Operation, files: DatasetFiles) -> tuple[dict[int, list[pa.Table]], int]:
        runtime, url = self._runtime, self._state.url
        runtime.check()
        executor = ScanExecutor(runtime, url, files)
        try:
            with operation:
                runtime.register(executor, executor.close)
                try:
                    async with runtime.deadline(url):
                        rows = await executor.collect()
                finally:
                    await executor.close()
                operation.metrics.rows_returned = executor.rows_matched + files.rows_known
        finally:
            runtime.unregister(executor)
            self.skipped = files.skipped
        return rows, operation.metrics.rows_returned


async def scan_request(
    dataset: Dataset, columns: Sequence[str | int] | None, where: Where | None
) -> tuple[ScanRequest, pa.Schema]:
    """Return the request of :meth:`Dataset.scan` and the schema of its batches, for modules that plan scans."""
    ask = await dataset._asked(columns, where)  # noqa: SLF001  # users have no need of it
    return ask, dataset._output(ask)  # noqa: SLF001


def state_of(dataset: Dataset) -> DatasetState:
    """Return the files, columns and runtime of a dataset, for asyncpq's own modules."""
    return dataset._state  # noqa: SLF001  # users have no need of it


def with_source(dataset: Dataset, wrap: Callable[[FileProvider], FileProvider]) -> Dataset:
    """Return a copy of ``dataset`` with the file provider ``wrap(provider)``; ``provider`` is that of ``dataset``."""
    state = state_of(dataset)
    return Dataset(replace(state, source=wrap(state.source), agreed=set()))


def _access(access: object) -> Mapping[str, AccessPlan] | None:
    """Return ``access`` unchanged; raise InvalidOptionError if it is not a mapping from urls to AccessPlans."""
    if access is None:
        return None
    if not isinstance(access, Mapping) or not all(isinstance(plan, AccessPlan) for plan in access.values()):
        raise InvalidOptionError(f"access must be a mapping of file urls to AccessPlans, not {type(access).__name__}")
    return access
