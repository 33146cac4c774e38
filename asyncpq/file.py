"""The handle of one Parquet object that is open for reading: scan, read, lookup, take, count, plan and why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

import pyarrow as pa

from asyncpq.checkpoints import sorted_distinct
from asyncpq.decoding.arrow import counted
from asyncpq.decoding.field_types import check_arrow_schema, file_schema
from asyncpq.errors import InvalidOptionError, RowIndexError
from asyncpq.events import Operation, OperationName
from asyncpq.expressions.scalars import SCALAR_TYPES
from asyncpq.metrics import ReadMetrics, ReadTrace
from asyncpq.objects.source import ObjectSource
from asyncpq.objects.version import FileVersion
from asyncpq.options import DEFAULT_BATCH_SIZE, require_class, whole_number
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.executor import OneFile, ScanExecutor, joined
from asyncpq.scan.file_planner import ScanPlan, ScanPlanner
from asyncpq.scan.foreign_names import EnteredAsync, foreign_name, not_iterated
from asyncpq.scan.request import (
    LookupKeys,
    ScanRequest,
    access_plan,
    column_names,
    finish_lookup,
    lookup_keys,
    names_alone,
    predicate,
    row_numbers,
    rows_at,
    take_steps,
)
from asyncpq.scan.request import Predicate as ParsedPredicate
from asyncpq.scan.stream import Scan
from asyncpq.storage.base import RequestContext, Validator

if TYPE_CHECKING:
    from asyncpq.parquet.embedded_index import EmbeddedIndex, EmbeddedIndexEntry
    from asyncpq.reports.documents import Inspection
    from asyncpq.reports.inspection import InspectionReport
    from asyncpq.reports.lint import LintReport
    from asyncpq.reports.why import WhyReport
    from asyncpq.scan.plan import Plan
    from asyncpq.typing import Predicate

T = TypeVar("T")


class File(EnteredAsync):
    """A Parquet object in a store, open for reading. Made by :meth:`asyncpq.Session.open_file`.

    Every method that reads may be called concurrently. ``columns`` are names of top-level columns, dotted
    paths of parts of nested columns (``"a.b"``), or ordinals of top-level columns where names occur twice;
    None means all. ``where`` is an expression of :func:`asyncpq.col`, a list as in pyarrow's ``filters=``, a condition
    in SQL, or a ``pyarrow.compute`` expression; docs/filter.md defines their meaning. ``access`` says which row groups
    and rows may be read at all; None means all.
    ``read_dictionary`` names string and binary columns that are returned as dictionary
    arrays, with the pages' own indices, as with pyarrow's option of that name; other types are not changed.

    Attributes:
        metrics: summed costs (:class:`asyncpq.ReadMetrics`) of the calls of this handle that have ended, whether they
            returned or raised. Use :func:`asyncpq.measure` for the cost of one call, and :attr:`asyncpq.Scan.metrics`
            for that of a scan.
        opening: cost of opening the file (:class:`asyncpq.ReadMetrics`), which ``metrics`` leaves out.
    """

    def __init__(self, source: ObjectSource, version: FileVersion) -> None:
        self._source = source
        self._version = version
        self.metrics: ReadMetrics = ReadMetrics()
        self.opening: ReadMetrics | None = None
        self._is_new = True  # not read yet

    def __repr__(self) -> str:
        return f"File({self.url!r}, {self.num_rows:,} rows)"

    async def __aenter__(self) -> Self:
        self._source.runtime.check()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the handle, and with it the descriptor of a local file. Idempotent. Raises UsageError in another event
        loop or process than the session's, while the session is open."""
        self._source.runtime.check_place("a File", "async with file:")
        await self._source.handle.close()

    if not TYPE_CHECKING:
        __getattr__ = foreign_name
        __aiter__ = not_iterated

    # -- properties -------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Url of the object, without user info, query and secrets."""
        return self._source.handle.url

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema (pyarrow.Schema) of the file, as ``pyarrow.parquet.read_schema`` returns it."""
        fields = self._version.metadata.schema.whole_fields
        return file_schema(self._version, fields, self._source.runtime.options.read.extension_types)

    @property
    def num_rows(self) -> int:
        """Number of rows in the version of the object that was read last."""
        return self._version.metadata.num_rows

    @property
    def num_row_groups(self) -> int:
        """Number of row groups in the version of the object that was read last."""
        return len(self._version.metadata.row_groups)

    @property
    def version(self) -> Validator:
        """The version of the object that was read last: a :class:`asyncpq.Validator` with its ``size`` in bytes and,
        where the store has them, ``etag``, ``last_modified`` and ``version``."""
        return self._version.validator

    async def refresh(self) -> Validator:
        """Ask the store for the object's current version; later reads use that version.

        Returns:
            The current version; equal to :attr:`version` before the call if the object has not changed.

        Raises:
            ObjectNotFoundError: the object no longer exists.
            FormatError: the object is no readable Parquet file any more.
            StoreError: the store failed.
        """
        self._source.runtime.check()
        operation = self._operation("refresh")
        context = RequestContext(operation.metrics)
        with operation:
            async with self._source.runtime.deadline(self.url):
                operation.metrics.wait_begins()
                try:
                    version = await self._source.present(self._version, context)
                finally:
                    operation.metrics.wait_ends()
                self._source.describe(operation.metrics)
                await check_arrow_schema(version, self._source.runtime, operation)
        self._adopt(version)
        return self._version.validator

    # -- indexes in the file ----------------------------------------------------------------------

    @property
    def embedded_indexes(self) -> Mapping[str, EmbeddedIndexEntry]:
        """The indexes embedded in the file: a mapping of names to :class:`asyncpq.indexing.EmbeddedIndexEntry`, from
        the footer of the version read last (docs/indexes.md).

        Raises:
            CorruptIndexError: the footer's entry for an index is malformed.
        """
        from asyncpq.parquet.embedded_index import entries

        return entries(self._version.metadata.key_value_metadata, self.url)

    async def embedded_index(self, name: str) -> EmbeddedIndex | None:
        """Return the index ``name`` embedded in the file, its bytes checked by their SHA-256; None if there is none.

        The bytes are fetched through the session's caches, from the version that the file's rows are read from.

        Raises:
            CorruptIndexError: the footer's entry for the index is malformed, or the bytes do not match their SHA-256.
            ResourceLimitError: the index is longer than ``LimitOptions.max_decoded_bytes``.
        """
        self._source.runtime.check()
        require_class("name", name, str)
        from asyncpq.objects.embedded_indexes import load_embedded_index

        operation = self._operation("embedded_index")
        with operation:
            async with self._source.runtime.deadline(self.url):
                version, index = await load_embedded_index(self._source, self._version, name, operation)
        self._adopt(version)
        return index

    # -- reports ----------------------------------------------------------------------------------

    async def inspect(self, *, pages: bool = True, page_bounds: Sequence[str] = ()) -> InspectionReport[Inspection]:
        """Describe the file's layout: schema, row groups, pages, indexes, Bloom filters, encodings, sizes, order.

        The result is a dict of JSON values with the keys of :class:`asyncpq.reports.documents.Inspection`, with
        ``explain()`` as text, and the page map in notebooks. A damaged index is reported as absent, and named under
        ``fallbacks``.

        Args:
            pages: fetch the page indexes of all columns, in as few requests as possible. Without them the result has no
                pages, and the order of columns is shown by statistics of row groups alone.
            page_bounds: columns whose pages are listed with their min and max; no effect with ``pages=False``.

        Raises:
            ColumnNotFoundError, AmbiguousColumnError: a name of ``page_bounds`` is not that of one column.
        """
        self._source.runtime.check()
        names = names_alone(page_bounds, "page_bounds")
        await self._source.runtime.load("asyncpq.reports.inspection")
        from asyncpq.reports.inspection import InspectionReport, inspect_version

        source, operation = self._source, self._operation("inspect")
        describe = partial(inspect_version, source, pages=pages, page_bounds=names)
        return InspectionReport(await self._report(operation, lambda version: describe(version, operation.metrics)))

    def _repr_html_(self) -> str | None:
        """Return a frame for notebooks with the page map of the file: what memory has of it, without a request."""
        from asyncpq.page_map import framed

        return framed(_layout(self._source, self._version))

    async def lint(self, columns: Sequence[str] | None = None) -> LintReport:
        """Find the properties of the file's layout that make lookups slow, with the saving that each cure would bring.

        The result is a dict of JSON values with the keys of :class:`asyncpq.reports.documents.Lint`, with ``explain()``
        as text, and a list in notebooks. Savings are those of a lookup of one row with all columns.
        Where statistics do not show the order of a key column, its values are read, up to 32 MiB.

        Args:
            columns: columns that lookups are by; None: those in order, with Bloom filters, or named like ids and keys.

        Raises:
            ColumnNotFoundError, AmbiguousColumnError: a name is not that of one column.
        """
        self._source.runtime.check()
        names = None if columns is None else names_alone(columns, "columns")
        await self._source.runtime.load("asyncpq.reports.lint")
        from asyncpq.reports.lint import LintReport, lint_document, lint_version, prices_text

        source, operation = self._source, self._operation("lint")
        linted = await self._report(operation, lambda version: lint_version(source, version, operation, names))
        return LintReport(lint_document(self.url, [linted], linted.findings, prices_text(source.prices()), operation))

    # -- rows -------------------------------------------------------------------------------------

    def scan(
        self,
        columns: Sequence[str | int] | None = None,
        where: Predicate | None = None,
        *,
        access: AccessPlan | None = None,
        limit: int | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        read_dictionary: Sequence[str] = (),
    ) -> Scan:
        """Stream matching rows in file order.

        Args:
            columns, where, access, read_dictionary: see :class:`asyncpq.File`.
            limit: maximum number of rows; None: all matching rows.
            batch_size: maximum number of rows in a batch.

        Returns:
            A scan, used as ``async with file.scan(...) as scan: async for batch in scan``.

        Raises:
            ExpressionError: ``where`` is not a predicate; raised by this call, or if it is long, when the read begins.
            ColumnNotFoundError, PredicateTypeError, ...: the arguments do not fit the file; raised when the read
                begins, before its first batch.
        """
        return self._scan("scan", columns, predicate(where), access, limit, batch_size, read_dictionary)

    async def read(
        self,
        columns: Sequence[str | int] | None = None,
        where: Predicate | None = None,
        *,
        access: AccessPlan | None = None,
        limit: int | None = None,
        read_dictionary: Sequence[str] = (),
    ) -> pa.Table:
        """Return all matching rows in one table, in file order. Arguments and errors are those of :meth:`scan`."""
        whole = 1 << 62  # rows: all batches are joined to one table, so smaller ones save nothing
        scan = self._scan("read", columns, predicate(where), access, limit, whole, read_dictionary)
        async with scan:
            batches = [batch async for batch in scan]
        return await joined(self._source.runtime, batches, scan.schema)

    async def lookup(
        self,
        keys: Mapping[str, Any],
        columns: Sequence[str | int] | None = None,
        *,
        access: AccessPlan | None = None,
        with_keys: bool = False,
        read_dictionary: Sequence[str] = (),
    ) -> pa.Table:
        """Return the rows whose key columns equal the values in ``keys``: one key, or many in one plan.

        Args:
            keys: for each key column its value, or a list of values. Lists of several columns are paired
                by position. Null and NaN match nothing.
            columns, access, read_dictionary: see :class:`asyncpq.File`.
            with_keys: add the int64 column ``key_position``: the position of the key that a row
                matches, one row for each pair of row and key.

        Returns:
            The rows in file order, duplicates in the file included; a key that matches no row adds no row.

        Raises:
            QueryError: no key columns, lists of unequal lengths, or unknown columns.
        """
        is_one = type(keys) is dict and SCALAR_TYPES.issuperset(map(type, keys.values()))  # as in most lookups
        wanted = LookupKeys(keys) if is_one else await lookup_keys(self._source.runtime, keys)
        names = column_names(columns)
        is_plain = type(read_dictionary) is tuple and not read_dictionary  # as in most lookups
        dictionaries = () if is_plain else names_alone(read_dictionary, "read_dictionary")
        plain = wanted.exact and not with_keys
        request = ScanRequest(
            columns=names,
            keys=() if plain else wanted.names,
            where=wanted.where,
            prune=wanted.prune,
            access=None if access is None else access_plan(access),
            read_dictionary=dictionaries,
        )
        _, table = await self._collect(request, self._operation("lookup"))
        return table if plain else await finish_lookup(self._source.runtime, wanted, table, with_keys)

    async def take(
        self, rows: Sequence[int], columns: Sequence[str | int] | None = None, *, read_dictionary: Sequence[str] = ()
    ) -> pa.Table:
        """Return the rows with the row numbers ``rows``, from 0, in the order of ``rows``, duplicates included.

        The read never starts again on a changed object, since row numbers belong to one version. ``columns`` and
        ``read_dictionary``: see :class:`asyncpq.File`.

        Raises:
            RowIndexError: a number is negative or not less than ``num_rows``.
            ObjectChangedError: the object has another version now.
        """

        def checked() -> tuple[list[int], list[int], AccessPlan]:
            numbers = row_numbers(rows)
            distinct = sorted_distinct(numbers)
            if distinct and distinct[0] < 0:
                message = f"row {distinct[0]:,} is not in a file of {self.num_rows:,} rows"
                raise RowIndexError(message, url=self.url, hint="Row numbers are counted from 0.")
            return numbers, distinct, AccessPlan.row_ranges(RowRanges.from_rows(distinct))

        runtime, steps = self._source.runtime, take_steps(rows)
        numbers, distinct, access = await runtime.off_loop(checked, steps)
        dictionaries = names_alone(read_dictionary, "read_dictionary")
        request = ScanRequest(columns=column_names(columns), access=access, read_dictionary=dictionaries)
        _, table = await self._collect(request, self._operation("take"))
        if numbers == distinct:
            return table
        if not table.num_columns:
            return counted(len(numbers))

        def ordered() -> pa.Table:
            return rows_at(table, {row: place for place, row in enumerate(distinct)}, numbers)

        return await runtime.off_loop(ordered, steps + table.num_columns)

    async def count(self, where: Predicate | None = None, *, access: AccessPlan | None = None) -> int:
        """Return how many rows match; without ``where``, the footer gives the number, and no data is read.

        Arguments and errors are those of :meth:`scan`.
        """
        request = ScanRequest(**predicate(where), access=access_plan(access), rows_only=True)
        plan, _ = await self._collect(request, self._operation("count"))
        return plan.file_scan.rows_matched

    async def plan(
        self,
        columns: Sequence[str | int] | None = None,
        where: Predicate | None = None,
        *,
        lookup: Mapping[str, Any] | None = None,
        access: AccessPlan | None = None,
        limit: int | None = None,
    ) -> Plan:
        """Return the plan of a read, without fetching data.

        Footer and page indexes are fetched if a read would fetch them.

        Args:
            columns, where, access, limit: as in :meth:`scan`.
            lookup: the ``keys`` of a :meth:`lookup` to plan, instead of ``where``.

        Raises:
            InvalidOptionError: both ``lookup`` and ``where`` are given.
            AsyncpqError: the errors of :meth:`scan`, all raised by this call.
        """
        names = column_names(columns)
        if lookup is not None:
            if where is not None:
                raise InvalidOptionError("plan() got both where= and lookup=", hint="Pass only one of them.")
            wanted = await lookup_keys(self._source.runtime, lookup)
            request = ScanRequest(columns=names, where=wanted.where, prune=wanted.prune)
        else:
            request = ScanRequest(columns=names, **predicate(where), limit=whole_number("limit", limit, 0))
        request = request._replace(access=access_plan(access))
        self._source.runtime.check()
        planner = self._prepare("plan", request)
        with planner.operation:
            async with planner.deadline():
                scan_plan = await planner.prepare(scan=lookup is None)
        from asyncpq.scan.plan import describe  # few processes ask for plans

        version = scan_plan.version
        described = partial(describe, planner, scan_plan, scan=lookup is None)
        plan = await self._source.runtime.in_thread(described)
        return replace(plan, layout=lambda: _layout(self._source, version))

    async def why(
        self,
        columns: Sequence[str | int] | None = None,
        where: Predicate | None = None,
        *,
        lookup: Mapping[str, Any] | None = None,
        limit: int | None = None,
        count: bool = False,
        layouts: bool = True,
    ) -> WhyReport:
        """Run a read, and return a report: what was pruned and why, requests, bytes, time, and what would be faster.

        If this is the first read with this handle, the report includes the requests that opened the file.

        Args:
            columns, where, limit: as in :meth:`scan`.
            lookup: the ``keys`` of a :meth:`lookup` to run, instead of ``where``.
            count: run a :meth:`count` of ``where``, which returns no rows.
            layouts: fetch all page indexes of the file after the read, so that the report can be drawn.

        Returns:
            The report: ``explain()`` is its text, ``to_dict()`` its JSON document, a dict with the keys of
            :class:`asyncpq.reports.documents.Why`. The rows are not in it.

        Raises:
            InvalidOptionError: ``lookup`` and ``where`` are given, or ``count`` with others than ``where``.
            QueryError, StoreError, FormatError: as the read itself.
        """
        from asyncpq.reports import why
        from asyncpq.reports.inspection import inspect_version

        verb = why.verb_of(columns, where, lookup, limit, counts=count)
        opening = self.opening if self._is_new else None
        story = why.Story(scan=verb == "scan")
        parsed = predicate(where)
        if lookup is not None:
            wanted, names = await lookup_keys(self._source.runtime, lookup), column_names(columns)
            keys = () if wanted.exact else wanted.names
            request = ScanRequest(columns=names, keys=keys, where=wanted.where, prune=wanted.prune)
            operation = self._operation("lookup", story.trace)
            _, table = await self._collect(request, operation)
            if not wanted.exact:
                table = await finish_lookup(self._source.runtime, wanted, table, False)
            metrics, rows = operation.metrics, table.num_rows
        elif count:
            request = ScanRequest(**parsed, rows_only=True)
            operation = self._operation("count", story.trace)
            counted, _ = await self._collect(request, operation)
            metrics, rows = operation.metrics, counted.file_scan.rows_matched
        else:
            scan = self._scan("read", columns, parsed, None, limit, DEFAULT_BATCH_SIZE, ())
            metrics = scan.metrics
            metrics.trace = story.trace
            async with scan:
                rows = sum([batch.num_rows async for batch in scan])
        in_thread, version = self._source.runtime.in_thread, story.files[self.url].scan_plan.version
        plan = (await in_thread(story.plans))[self.url]
        shape = len(version.metadata.row_groups), len(version.metadata.schema.leaves)
        read = why.Read(self.url, verb, lookup, plan.columns, rows, metrics, opening, plan.to_dict(), [plan])
        report = await in_thread(partial(why.why_report, read, story))
        if layouts:
            pages = why.wants_pages(*shape)
            async with self._source.runtime.deadline(self.url):
                report.add_layout(await inspect_version(self._source, version, ReadMetrics(), pages=pages))
        return report

    # -- inside -----------------------------------------------------------------------------------

    async def _report(self, operation: Operation, make: Callable[[FileVersion], Awaitable[T]]) -> T:
        from asyncpq.reports.inspection import report_on

        with operation:
            async with self._source.runtime.deadline(self.url):
                version, report = await report_on(self._source, self._version, operation, make)
        self._adopt(version)
        return report

    def _operation(self, name: OperationName, trace: ReadTrace | None = None) -> Operation:
        """Return the operation of a call, whose steps are recorded in ``trace``, unless that is None."""
        self._is_new = False
        operation = self._source.runtime.operation(name, self._source.handle.url, self.metrics)
        operation.metrics.trace = trace
        return operation

    def _prepare(self, name: OperationName, request: ScanRequest) -> ScanPlanner:
        return ScanPlanner(self._source, request, self._version, self._operation(name), self._adopt)

    def _scan(
        self,
        name: OperationName,
        columns: Sequence[str | int] | None,
        where: ParsedPredicate,
        access: AccessPlan | None,
        limit: int | None,
        batch_size: int,
        read_dictionary: Sequence[str],
    ) -> Scan:
        request = ScanRequest(
            columns=column_names(columns),
            **where,
            access=access_plan(access),
            limit=whole_number("limit", limit, 0),
            read_dictionary=names_alone(read_dictionary, "read_dictionary"),
        )
        size = whole_number("batch_size", batch_size, 1)
        return self._stream(name, request, size or DEFAULT_BATCH_SIZE)

    def _stream(self, name: OperationName, request: ScanRequest, batch_size: int) -> Scan:
        scan = Scan(self._prepare(name, request), batch_size=batch_size, limit=request.limit)
        scan.again = partial(self._stream, name, request, batch_size)
        return scan

    def _adopt(self, version: FileVersion) -> None:
        """Make ``version`` the one that the file's attributes describe, unless a newer version was read meanwhile."""
        if version.observed_at >= self._version.observed_at:
            self._version = version

    async def _collect(self, request: ScanRequest, operation: Operation) -> tuple[ScanPlan, pa.Table]:
        runtime, url = self._source.runtime, self._source.handle.url
        runtime.check()
        with operation:
            async with runtime.deadline(url):
                planner = ScanPlanner(self._source, request, self._version, operation, self._adopt)
                planner.asked = operation.metrics.began
                file = OneFile(planner, scan=False)
                (tables,) = (await ScanExecutor(runtime, url, file).collect()).values()
            plan = file.plan
            assert plan is not None, "a file that was read was planned"
            operation.metrics.rows_returned = plan.file_scan.rows_matched
        if len(tables) == 1:
            return plan, tables[0]
        return plan, await joined(runtime, tables, plan.shape.schema)


def _layout(source: ObjectSource, version: FileVersion) -> Inspection:
    from asyncpq.reports.inspection import inspect_memory

    return inspect_memory(source, version)
