"""The planner of one file: resolve names, compile the filter, plan pages; plan again when the object changes.

``fetch_planner`` plans the pages, and decides whether a read takes one round of requests or two.
"""

from __future__ import annotations

import datetime as dt
import math
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from asyncpq.decoding.field_types import check_arrow_schema, file_schema
from asyncpq.decoding.filter import Filter, compile_filter, fold_constants
from asyncpq.decoding.kernels import Expression as ArrowExpression
from asyncpq.decoding.leaf import DecodeLimits
from asyncpq.decoding.row_group_reader import QueryShape
from asyncpq.decoding.schema_adapter import SchemaAdapter
from asyncpq.errors import AsyncpqError, ColumnNotFoundError, FormatError, ObjectChangedError, QueryError
from asyncpq.events import Operation
from asyncpq.expressions import (
    Atom,
    Comparison,
    Constant,
    Contains,
    Expression,
    In,
    IntersectsBox,
    IsNull,
    KeyIn,
    Like,
    StartsWith,
    VariantTest,
    atoms,
    columns,
    simplify,
    with_conditions,
    without_contradictions,
)
from asyncpq.expressions.tree import hint_at_text
from asyncpq.objects.object_read import ObjectRead
from asyncpq.objects.runtime import INLINE_STEPS
from asyncpq.objects.source import ObjectSource
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.page_index import PageLocationError
from asyncpq.parquet.schema import Leaf
from asyncpq.pruning.access_plan import AccessPlan, ResolvedAccess
from asyncpq.pruning.zone_maps import has_many_keys, narrowed
from asyncpq.records import dataclass
from asyncpq.scan.column_resolution import ReadColumns, Resolved, WantedColumns, meant, resolve, resolve_view
from asyncpq.scan.fetch_planner import FetchPlanner, row_group_zone, row_group_zones
from asyncpq.scan.file_scan import FileScan
from asyncpq.scan.request import BoundPredicate, ScanRequest, bind, where_steps
from asyncpq.storage.base import RequestContext

if TYPE_CHECKING:
    from asyncpq.metrics import ReadMetrics
    from asyncpq.objects.read_plan import FetchPlan


@dataclass(slots=True)
class ScanPlan:
    """A request planned for one version of the file: the columns are resolved, and what to fetch is known.

    Attributes:
        fetch_plan: the pages and chunks to fetch.
        num_bytes: how much that is.
        shape: schema, filter and limits of the output.
        file_scan: fetches and decodes it.
    """

    version: FileVersion  # which one
    fetch_plan: FetchPlan
    num_bytes: int
    shape: QueryShape
    file_scan: FileScan

    @property
    def has_rows(self) -> bool:
        """Whether any row group is read."""
        return bool(self.fetch_plan.row_groups)


class _OtherColumnsError(ObjectChangedError):
    """The object's new version lacks columns that the scan began with."""


_RANGES_A_STEP: Final = 32  # of an access plan
# atoms whose kernels are called without pyarrow.compute
_COMMON: Final = frozenset({Comparison, Contains, In, IsNull, KeyIn, Like, StartsWith})
_COVERED: Final = (IntersectsBox, VariantTest)  # comparisons that other columns prune by


class ScanPlanner:
    """Plans a request for one file, and plans again if the object has changed.

    ``version`` is the version that the file's handle knows; ``adopt``, if set, is called with the version of each other
    plan, so that the handle uses it too.
    """

    def __init__(
        self,
        source: ObjectSource,
        request: ScanRequest,
        version: FileVersion,
        operation: Operation,
        adopt: Callable[[FileVersion], None] | None = None,
    ) -> None:
        self.source = source
        self.request: ScanRequest = request
        self.version: FileVersion | None = version
        self._adopted = version
        self._adopt = adopt
        self.operation = operation
        self.indexed: AccessPlan | None = None  # the rows that an index beside the object leaves; None for all
        self.other_bytes = 0  # that the same call reads of other files: caches admit pages by the sum
        self.files = 1  # that the same call reads, as far as it is known, with this one
        # time.monotonic() of a call that has waited for its turn since, for its first plan
        self.asked: float = math.inf
        self.metrics: ReadMetrics = operation.metrics
        where = request.where
        # most lookups have one key, of which nothing can be simplified
        plain = where is None or (type(where) is Comparison and where.value is not None)
        self._simplified = where if plain else None  # None: :meth:`_resolve` simplifies it
        self._where = self._simplified
        self._now = dt.datetime.now(dt.UTC)
        self._prune = request.prune
        self._schema: pa.Schema | None = None
        self._relocated: set[str | None] = set()  # columns whose page index was dropped

    def deadline(self) -> AbstractAsyncContextManager[None]:
        """Return a context manager that limits the time of one step of the read, as
        :meth:`asyncpq.objects.runtime.Runtime.deadline` does."""
        return self.source.runtime.deadline(self.source.handle.url)

    async def prepare(self, *, scan: bool) -> ScanPlan:
        """Make the plan: resolve names, prune, and choose the pages. Fetches the metadata and indexes that this needs.
        ``scan``: rows are delivered while they are read."""
        while True:
            try:
                plan = await self._prepare(scan=scan)
            except _OtherColumnsError:
                raise  # the new version is known, and current
            except ObjectChangedError as error:
                await self.changed(error, restartable=True)
            else:
                if not plan.version.arrow_schema_checked:
                    await check_arrow_schema(plan.version, self.source.runtime, self.operation)
                if (trace := self.metrics.trace) is not None and trace.on_plan is not None:
                    trace.on_plan(self, plan)
                return plan

    async def _prepare(self, *, scan: bool) -> ScanPlan:
        source, metrics, since, self.asked = self.source, self.metrics, self.asked, math.inf
        if self.request.unparsed is not None:
            self.request = await self.request.parsed(source.runtime)
        began = min(since, time.monotonic())
        if self.version is None:
            self.version = await source.version(RequestContext(metrics, scan))
        elif not self.version.can_validate and not self._relocated and self.request.view is None:
            # else the read's first GET validates it, or its page indexes were dropped, or its columns were matched
            self.version = await self._renewed(self.version, RequestContext(metrics, scan))
        version = self.version
        read = ObjectRead(source, version, metrics, scan, probation=scan, began=began, asked=since)
        try:
            view = self.request.view
            if view is not None and view.digest != version.digest:
                raise ObjectChangedError("the object has another version than the one whose columns were matched")
            where, request = self.request.where, self.request
            is_named = request.unbound is None and (request.rows_only or request.columns is not None)
            num_columns = len(request.columns or ()) if is_named else len(version.metadata.schema.leaves)
            asked = where if request.unbound is None else request.unbound
            # most lookups have a single comparison
            steps = num_columns if type(asked) is Comparison else num_columns + where_steps(asked)
            if where is not None and type(where) is not Comparison:
                await self._load_kernels(where, steps)
            resolve = partial(self._resolve, version)
            resolved, shape = resolve() if steps <= INLINE_STEPS else await source.runtime.in_thread(resolve)
            request = self.request  # its predicate may be bound now
            if request.access is None:
                rows = _all_rows(version) if version.all_rows is None else version.all_rows
            else:
                find = partial(request.access.resolve, version.row_group_layout)
                rows = await source.runtime.off_loop(find, request.access.num_ranges // _RANGES_A_STEP)
            columns, prune = resolved.columns, self._prune
            if self._where is not None and type(self._where) is not Comparison:
                covered = partial(self._covered, version, columns, self._where)
                columns, prune = await source.runtime.off_loop(covered, steps)
            planner = FetchPlanner(
                read, columns, rows, self._where, prune, request.limit, request.rows_only, self.files
            )
            plan = await planner.plan()
        except AsyncpqError as error:
            source.describe(metrics)
            if isinstance(error, (QueryError, FormatError)):
                # the object's current version may well have that column or row
                read.round = metrics.rounds + 1
                await read.ensure_current()
            raise error.locate(url=version.url) from error.__cause__
        if version is not self._adopted:
            self._adopted = version
            if self._adopt is not None:
                self._adopt(version)
        num_bytes = plan.num_bytes()
        source.describe(metrics)
        read.planned(self.other_bytes + num_bytes)
        file_scan = FileScan(read, plan, shape, rows_only=request.rows_only)
        return ScanPlan(version, plan, num_bytes, shape, file_scan)

    async def _load_kernels(self, where: Expression, steps: int) -> None:
        """Load the kernels of the filter before they are used on the event loop. ``steps``: as of ``off_loop``."""
        runtime = self.source.runtime
        if not await runtime.off_loop(lambda: _COMMON.issuperset(map(type, atoms(where))), steps):
            await runtime.load("pyarrow.compute")

    @property
    def _is_positional(self) -> bool:
        """Return whether the request names row numbers or row groups, which are valid for one version only."""
        request = self.request
        return (
            request.view is not None  # another version may have other columns: the dataset begins it anew
            or (request.access is not None and request.access.is_positional)
        )

    async def _renewed(self, version: FileVersion, context: RequestContext) -> FileVersion:
        """Return ``version``, or the current one if it has expired. Raises ObjectChangedError if the object has another
        version and the request names row numbers or row groups."""
        if not self.source.freshness.is_expired(version):
            return version
        found = await self.source.version(context)
        if self._is_positional and not found.validator.same_version(version.validator):
            raise ObjectChangedError("the object has another size or time now", url=version.url)
        return found

    def _resolve(self, version: FileVersion) -> tuple[Resolved, QueryShape]:
        """Resolve the request's names in this version, and compile its filter."""
        view = self.request.view
        if self.request.unbound is not None:
            self._bind(version, self.request.unbound)
        elif self._simplified is None:
            self._simplified = self.request.simple_where
        resolved, filter_ = self._compiled(version) if view is None else self._compiled_view(version, view)
        if self._schema is not None:
            self._check_types(self._schema, resolved.schema)
        self._schema = resolved.schema
        return resolved, self._shape(resolved, filter_)

    def _bind(self, version: FileVersion, unbound: ArrowExpression) -> None:
        """Translate the request's pyarrow expression to a predicate. Its literals are cast to the types of this
        version's columns."""
        from asyncpq.decoding.arrow_expressions import from_pyarrow

        schema = version.metadata.schema
        view, extensions = self.request.view, self.source.runtime.options.read.extension_types
        types = file_schema(version, schema.whole_fields, extensions) if view is None else view.schema
        try:
            where = from_pyarrow(unbound, types)
        except ColumnNotFoundError as error:
            if error.hint is None and error.column is not None and view is None:
                error.hint = meant(schema, error.column)
            raise
        self._replace_where(where)

    def _replace_where(self, where: Expression) -> None:
        self.request = self.request._replace(where=where)
        self._simplified = simplify(where)

    def _with_literals(self, unresolved: Expression, types: Mapping[str, pa.DataType]) -> Expression:
        from asyncpq.decoding.column_literals import resolve_literals  # few predicates need it

        where = resolve_literals(unresolved, self._now, types)
        self._replace_where(where)
        return where

    def _compiled(self, version: FileVersion) -> tuple[Resolved, Filter | None]:
        """Resolve the columns and compile the filter for the file's own columns."""
        self._where = self._simplified
        resolved = self._resolved(version)
        unresolved, filters = self.request.unresolved, resolved.filters
        if unresolved is not None:
            self._with_literals(unresolved, filters.types)
        if self.request.where is None or self._simplified is None:
            return resolved, None
        filter_ = filters.compile(self.request.where)
        where = self._simplified
        if not isinstance(where, Atom):
            where = without_contradictions(where, filter_.engine_atoms)
        self._where = where
        if self._where is self.request.where:
            return resolved, filter_
        if self._where not in (self._simplified, self.request.where):
            resolved = self._resolved(version)
        if self._where != self.request.where and not isinstance(self._where, Constant):
            # the plan's predicate filters the rows; the whole one was compiled only to raise its errors
            filter_ = filters.compile(where)
        return resolved, filter_

    def _compiled_view(self, version: FileVersion, view: SchemaAdapter) -> tuple[Resolved, Filter | None]:
        """Resolve the columns and compile the filter for a dataset's columns. Columns that are constant in this file
        are replaced in the filter by their values."""
        bound = self._bound(view)
        filter_ = None if bound is None else bound.filter
        self._where = self._simplified
        if bound is not None:
            self._where = fold_constants(bound.simple, partial(view.constant, version))
            if self._where is not bound.simple and not isinstance(self._where, Constant):
                filter_ = compile_filter(self._where, view.types(columns(self._where)))
        if self._prune is not None:
            self._prune = fold_constants(self._prune, partial(view.constant, version))
        resolved = self._resolved(version)
        if filter_ is not None and self._where is not None and has_many_keys(self._where):
            filter_ = self._narrowed(version, resolved, filter_, view)
        return resolved, filter_

    def _bound(self, view: SchemaAdapter) -> BoundPredicate | None:
        """Return the predicate bound to the dataset's columns, as all files share it if they can; None without one."""
        request, where = self.request, self.request.where
        if where is None:
            return None
        if request.bound is not None and request.bound.where is where and request.bound.schema is view.schema:
            return request.bound
        types = view.types(columns(where))
        if request.unresolved is not None:
            where = self._with_literals(request.unresolved, types)
        return bind(where, types)

    def _covered(
        self, version: FileVersion, columns: ReadColumns, where: Expression
    ) -> tuple[ReadColumns, Expression | None]:
        """Return the columns and the predicate to prune by. Conditions on boxes of geometries, and on parts of
        variants, are also applied to the columns that have the boxes or parts as plain values."""
        prune = self._prune
        if not any(isinstance(atom, _COVERED) for atom in atoms(where)):
            return columns, prune
        from asyncpq.pruning.derived_conditions import (  # few predicates need them
            covering_condition,
            coverings,
            shows_wrapping,
        )

        used: dict[str, Leaf] = {}

        def condition(atom: Atom) -> Expression | None:
            if isinstance(atom, VariantTest):
                found = self._shredded(version, columns, atom)
                if found is None or not columns.may_cover(found[1]):
                    return None
                used[found[1].dotted] = found[1]
                return found[0]
            if not isinstance(atom, IntersectsBox):
                return None
            known = version.derived(("coverings",), lambda: coverings(version.metadata), 1000)
            leaf = columns.bounded.get(atom.column)
            covering = None if leaf is None else known.get(leaf.dotted)
            if covering is None or not all(columns.may_cover(leaf) for leaf in covering.leaves):
                return None
            used.update({leaf.dotted: leaf for leaf in covering.leaves})
            xmin, xmax = (row_group_zone(version, leaf).zones for leaf in (covering.xmin, covering.xmax))
            by_x = covering.is_planar and not shows_wrapping(xmin, xmax)
            return covering_condition(atom, covering, by_x=by_x)

        sharper = with_conditions(where if prune is None else prune, condition)
        return (columns.covered_by(used.values()), sharper) if used else (columns, prune)

    def _shredded(
        self, version: FileVersion, columns: ReadColumns, test: VariantTest
    ) -> tuple[Expression, Leaf] | None:
        """Return a condition that follows from ``test`` for the column to which the part of the variant is shredded,
        and that column; None if the file has no such column."""
        schema, view, named = version.metadata.schema, self.request.view, columns.predicate.get(test.column)
        if named is None or (view is not None and view.schema.get_field_index(test.column) < 0):
            return None
        top = schema.fields[named.projection.field].name
        if view is None and top != test.column:
            return None
        from asyncpq.pruning.derived_conditions import shredded_condition

        return shredded_condition(test, top, schema, lambda leaf: row_group_zone(version, leaf).zones)

    def _narrowed(self, version: FileVersion, resolved: Resolved, filter_: Filter, view: SchemaAdapter) -> Filter:
        """Return the filter without the keys that this file cannot contain: a lookup in a dataset may have thousands of
        keys."""
        if self._where is None or not self.source.runtime.options.read.trust_statistics:
            return filter_
        known = row_group_zones(version, resolved.columns)
        zones = {name: found.zones for name, found in known.items()}
        if self._prune is not None:
            self._prune = narrowed(self._prune, zones)
        left = narrowed(self._where, zones)
        if left is self._where:
            return filter_
        self._where = left
        return compile_filter(left, view.types(columns(left)))

    def _shape(self, resolved: Resolved, filter_: Filter | None) -> QueryShape:
        options = self.source.runtime.options
        limits = DecodeLimits(
            options.read.verify_crc,
            options.limits.max_page_bytes,
            options.limits.max_decoded_bytes,
            options.read.validate_utf8,
        )
        extensions = options.read.extension_types
        dictionaries, view = resolved.dictionaries, resolved.view
        return QueryShape(
            resolved.schema, resolved.columns.output, filter_, limits, extensions, resolved.decoders, dictionaries, view
        )

    def _resolved(self, version: FileVersion) -> Resolved:
        """Return the request's names resolved to columns. Requests that differ only in literals share the result."""
        request = self.request
        asked = () if request.rows_only else request.columns
        where = request.where
        named = () if where is None else (where.column,) if type(where) is Comparison else columns(where)
        pruning = named if self._where is request.where else () if self._where is None else columns(self._where)
        extensions = self.source.runtime.options.read.extension_types
        names = None if asked is None else tuple(asked)
        wanted = WantedColumns(names, tuple(request.keys), named, pruning, tuple(request.read_dictionary), extensions)
        view = request.view
        try:
            if view is None:
                return version.recent(wanted, lambda: resolve(version, wanted))
            resolved = version.recent((view, wanted), lambda: resolve_view(version, view, wanted))
        except ColumnNotFoundError as error:
            raise hint_at_text(error, where) from error.__cause__
        return resolved.for_literals(self._where, self._prune) if resolved.inexact else resolved

    def _check_types(self, before: pa.Schema, schema: pa.Schema) -> None:
        """Check that a new version still has the columns of the plan before it. Raises ObjectChangedError if a
        column is missing or has another type."""
        if (before.names, before.types) != (schema.names, schema.types):
            was, now = ({field.name: field.type for field in some} for some in (before, schema))
            changed = [f"{name} is {now.get(name, 'gone')} now" for name, kind in was.items() if now.get(name) != kind]
            raise _OtherColumnsError(
                f"the object was replaced during the read, and has other columns: {', '.join(changed[:3])}",
                url=self.source.handle.url,
            )

    async def changed(self, error: ObjectChangedError, *, restartable: bool) -> None:
        """Forget the planned version, since the object has changed. Raises ``error`` if a new plan is not allowed: not
        ``restartable``, or too many restarts."""
        if self.version is not None:
            await self.source.forget(self.version)
        self.version = None
        self._relocated.clear()
        limit = self.source.runtime.options.limits.max_restarts
        if self._is_positional or not restartable or self.metrics.restarts >= limit:
            raise error
        self.operation.restarts()

    def relocated(self, error: PageLocationError) -> None:
        """Allow a new plan without the page index that was wrong, once for each column; else raise ``error``.

        The version stays the same, however old, since it knows which indexes are not used.
        """
        if not error.dropped or error.column in self._relocated:
            raise error
        self._relocated.add(error.column)


def _all_rows(version: FileVersion) -> ResolvedAccess:
    """Return the access (see ``pruning.access_plan``) to all rows of the file."""
    rows = version.all_rows = AccessPlan.all().resolve(version.row_group_layout)
    return rows
