"""From a question to a running read: resolve names, compile the filter, plan, and start again when the
object changes underneath."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.field_types import file_schema
from asyncpq.decoding.filter import Filter, compile_filter, fold_constants, resolve_typed_times
from asyncpq.decoding.leaf import DecodeLimits
from asyncpq.decoding.row_group_reader import QueryShape
from asyncpq.decoding.schema_adapter import SchemaAdapter
from asyncpq.decoding.substrait import from_pyarrow
from asyncpq.errors import (
    AsyncpqError,
    ColumnNotFoundError,
    FormatError,
    ObjectChangedError,
    QueryError,
)
from asyncpq.events import Operation
from asyncpq.expressions import (
    Constant,
    Expression,
    columns,
    simplify,
    without_contradictions,
)
from asyncpq.objects.source import ObjectSource
from asyncpq.objects.version import FileVersion
from asyncpq.parquet.page_index import PageLocationError
from asyncpq.pruning.access_plan import AccessPlan, ResolvedAccess, RowGroupLayout
from asyncpq.pruning.row_groups import has_many_keys, narrowed
from asyncpq.scan.columns import ColumnNames, Resolved, meant, resolve, resolve_view
from asyncpq.scan.file_scan import FileScan, landed
from asyncpq.scan.page_planner import ResolvedRequest, plan_read, row_group_zones
from asyncpq.storage.base import RequestContext

if TYPE_CHECKING:
    from asyncpq.objects.read_plan import FetchPlan

_WEIGHT: Final = attrgetter("weight")


class ScanRequest(NamedTuple):
    """What a caller asks of a file, in the caller's terms.

    Attributes:
        columns: names of top-level fields, dotted paths inside them, or ordinals of fields; None for all.
        keys: names or paths of columns to return behind those, whether they are among them or not.
        where: the predicate, or None.
        unbound: the predicate in pyarrow's terms, which each version's schema gives a meaning; or None.
        relative: ``where`` as it was asked, if it has times relative to now; else None.
        prune: a sharper predicate to prune by, implied by ``where``; or None.
        access: which of the file's rows may be read; None for all.
        limit: rows wanted in file order, or None.
        rows_only: matching rows are counted, no column is returned.
        read_dictionary: names of string and binary columns that come as dictionary arrays.
        view: the columns of a dataset, which all names mean and the rows come in; None for the file's own. It
            is made for one version: no other is read.
    """

    columns: ColumnNames | None = None
    keys: Sequence[str] = ()
    where: Expression | None = None
    unbound: pc.Expression | None = None
    relative: Expression | None = None
    prune: Expression | None = None
    access: AccessPlan | None = None
    limit: int | None = None
    rows_only: bool = False
    read_dictionary: Sequence[str] = ()
    view: SchemaAdapter | None = None


@dataclass(slots=True)
class ScanPlan:
    """A question, resolved against one version: ready to fetch.

    Attributes:
        version: which one.
        fetch_plan: what will be fetched.
        num_bytes: how much that is.
        shape: schema, filter and limits of the output.
        file_scan: fetches and decodes it.
    """

    version: FileVersion
    fetch_plan: FetchPlan
    num_bytes: int
    shape: QueryShape
    file_scan: FileScan


class _OtherColumnsError(ObjectChangedError):
    """The version that a read starts again with lacks columns that it began with."""


class ScanPlanner:
    """Turns one question into a read, and again when the object has changed in between.

    Args:
        source: the object.
        question: what is asked.
        version: the version that the file handle knows.
        adopt: told which version is read, whenever that is decided.
        operation: the call whose question it is.

    Attributes:
        other_bytes: what the same call takes of other files: caches look at all of it before they keep pages.
    """

    def __init__(
        self,
        source: ObjectSource,
        question: ScanRequest,
        version: FileVersion,
        adopt: Callable[[FileVersion], None],
        operation: Operation,
    ) -> None:
        self.source = source
        self.question = question
        self.version: FileVersion | None = version
        self._adopted = version
        self._adopt = adopt
        self.operation = operation
        self.other_bytes = 0
        self.metrics = operation.metrics
        self._simplified = None if question.where is None else simplify(question.where)
        self._where = self._simplified
        self._now = dt.datetime.now(dt.UTC)
        self._prune = None if question.prune is None else simplify(question.prune)
        self._schema: pa.Schema | None = None
        self._relocated: set[str | None] = set()  # columns whose page index was dropped

    def deadline(self) -> AbstractAsyncContextManager[None]:
        """Bounds one step of the read (see :meth:`asyncpq.objects.runtime.Runtime.deadline`)."""
        return self.source.runtime.deadline(self.source.handle.url)

    async def prepare(self, *, scan: bool) -> ScanPlan:
        """Resolve and plan, with the metadata and index requests that this takes."""
        while True:
            try:
                return await self._prepare(scan=scan)
            except _OtherColumnsError:
                raise  # what it has now is known, and current
            except ObjectChangedError as error:
                await self.changed(error, restartable=True)

    async def _prepare(self, *, scan: bool) -> ScanPlan:
        source, metrics = self.source, self.metrics
        context = RequestContext(metrics, scan=scan, probation=scan)
        if self.version is None:
            self.version = await source.version(context)
        elif self.version.can_validate or self._relocated or self.question.view is not None:
            pass  # the read's first GET validates it, or its page indexes were dropped, or its columns were matched
        elif source.freshness.is_expired(self.version):
            self.version = await self._anew(self.version, context)
        version = self.version
        try:
            view = self.question.view
            if view is not None and view.digest != version.digest:
                raise ObjectChangedError("it has another version than the one whose columns were matched")
            if self.question.unbound is not None:
                self._bind(version, self.question.unbound)
            resolved, filter_ = self._compiled(version) if view is None else self._compiled_view(version, view)
            self._check_types(resolved.schema)
            shape = self._shape(resolved, filter_)
            question = self.question
            if question.access is None:
                rows = _all_rows(version) if version.all_rows is None else version.all_rows
            else:
                rows = question.access.resolve(_layout(version))
            query = ResolvedRequest(
                resolved.columns, rows, self._where, self._prune, question.limit, question.rows_only
            )
            step = RequestContext(metrics, None, scan, metrics.rounds + 1, "index", scan, context.began)
            plan = await plan_read(source, version, query, step)
        except AsyncpqError as error:
            source.describe(metrics)
            if isinstance(error, (QueryError, FormatError)):
                # the object's present version may well have that column or row
                await self._ensure_current(version, context)
            raise error.locate(url=version.url) from error.__cause__
        if version is not self._adopted:
            self._adopted = version
            self._adopt(version)
        memory = source.runtime.memory.max_bytes
        if plan.late:
            num_bytes = plan.num_bytes()
        else:
            num_bytes = sum([column.num_bytes for group in plan.row_groups for column in group.columns])
        source.describe(metrics)
        size = self.other_bytes + num_bytes
        # so large a count or take would push out what lookups use
        probation = scan or 0 < memory < size * 16
        data_context = RequestContext(metrics, None, scan, metrics.rounds + 1, "data", probation, context.began)
        file_scan = FileScan(
            source,
            version,
            plan,
            shape,
            data_context,
            admit=not probation or size < memory,
            rows_only=question.rows_only,
            read_bytes=size,
        )
        return ScanPlan(version, plan, num_bytes, shape, file_scan)

    @property
    def _is_positional(self) -> bool:
        """Whether the question means one version only."""
        question = self.question
        return (
            question.view is not None  # another version may have other columns: the dataset begins it anew
            or (question.access is not None and question.access.is_positional)
        )

    async def _anew(self, version: FileVersion, context: RequestContext) -> FileVersion:
        """What stands in the place of a version that has expired.

        Raises:
            ObjectChangedError: it is another one, as far as the store can tell, and the question names rows.
        """
        found = await self.source.version(context)
        if self._is_positional and not found.validator.same_version(version.validator):
            raise ObjectChangedError("the object has another size or time now", url=version.url)
        return found

    async def _ensure_current(self, version: FileVersion, context: RequestContext) -> None:
        """Ask the store if the cache policy wants it asked before ``version`` is spoken of.

        Raises:
            ObjectChangedError: the object has another version now.
        """
        if not self.source.freshness.is_fresh(version):
            context = context.step("validate", self.metrics.rounds + 1)
            validation = self.source.start_validation(version, context)
            validation.join()
            await landed(validation, self.metrics)

    def _bind(self, version: FileVersion, unbound: pc.Expression) -> None:
        """Translate a predicate of pyarrow's: its literals are cast to the types of this version's columns."""
        schema = version.metadata.schema
        view, extensions = self.question.view, self.source.runtime.options.read.extension_types
        types = file_schema(version, schema.whole_fields, extensions) if view is None else view.schema
        try:
            where = from_pyarrow(unbound, types)
        except ColumnNotFoundError as error:
            if error.hint is None and error.column is not None and view is None:
                error.hint = meant(schema, error.column)
            raise
        self._replace_where(where)

    def _replace_where(self, where: Expression) -> None:
        self.question = self.question._replace(where=where)
        self._simplified = simplify(where)

    def _compiled(self, version: FileVersion) -> tuple[Resolved, Filter | None]:
        """Columns and filter of the question; the predicate is made to fit the columns' types."""
        self._where = self._simplified
        resolved = self._resolved(version)
        relative, types = self.question.relative, resolved.types
        if relative is not None:
            self._replace_where(resolve_typed_times(relative, self._now, types))
        if self.question.where is None or self._simplified is None:
            return resolved, None
        filter_ = compile_filter(self.question.where, types)
        self._where = without_contradictions(self._simplified, filter_.engine_atoms)
        if self._where is self.question.where:
            return resolved, filter_
        if self._where not in (self._simplified, self.question.where):
            resolved = self._resolved(version)
        if self._where != self.question.where and not isinstance(self._where, Constant):
            # rows are judged by what the plan fetches columns for; the whole was compiled for its errors
            filter_ = compile_filter(self._where, types)
        return resolved, filter_

    def _compiled_view(self, version: FileVersion, view: SchemaAdapter) -> tuple[Resolved, Filter | None]:
        """The same for a dataset's columns, of which some may be constant in this file."""
        where, relative = self.question.where, self.question.relative
        types = {} if where is None else view.types(columns(where))
        if relative is not None:
            self._replace_where(where := resolve_typed_times(relative, self._now, types))
        filter_ = None if where is None else compile_filter(where, types)
        self._where = self._simplified
        if filter_ is not None and self._simplified is not None:
            left = without_contradictions(self._simplified, filter_.engine_atoms)
            self._where = fold_constants(left, lambda name: view.constant(version, name))
            if self._where != where and not isinstance(self._where, Constant):
                filter_ = compile_filter(self._where, types)
        if self._prune is not None:
            self._prune = fold_constants(self._prune, lambda name: view.constant(version, name))
        resolved = self._resolved(version)
        if filter_ is not None and self._where is not None and has_many_keys(self._where):
            filter_ = self._narrowed(version, resolved, filter_, types)
        return resolved, filter_

    def _narrowed(
        self, version: FileVersion, resolved: Resolved, filter_: Filter, types: Mapping[str, pa.DataType]
    ) -> Filter:
        """The same, without keys that the file cannot hold: a dataset's question may have thousands for all files."""
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
        return compile_filter(left, types)

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
        return QueryShape(resolved.schema, resolved.columns.output, filter_, limits, extensions, dictionaries, view)

    def _resolved(self, version: FileVersion) -> Resolved:
        """Names resolved to columns: once for all questions that differ in their literals only."""
        question = self.question
        asked = () if question.rows_only else question.columns
        named = () if question.where is None else columns(question.where)
        pruning = named if self._where is question.where else () if self._where is None else columns(self._where)
        extensions = self.source.runtime.options.read.extension_types
        names = None if asked is None else tuple(asked)
        key = (names, tuple(question.keys), named, pruning, tuple(question.read_dictionary), extensions)
        view = question.view
        if view is None:
            return version.recent(key, lambda: resolve(version, *key))
        resolved = version.recent((view, *key), lambda: resolve_view(version, view, *key))
        return resolved.for_literals(self._where, self._prune)

    def _check_types(self, schema: pa.Schema) -> None:
        """A read that starts again must still give the columns that were asked for."""
        if self._schema is not None and (self._schema.names, self._schema.types) != (schema.names, schema.types):
            was, now = ({field.name: field.type for field in some} for some in (self._schema, schema))
            changed = [f"{name} is {now.get(name, 'gone')} now" for name, kind in was.items() if now.get(name) != kind]
            raise _OtherColumnsError(
                f"the object was replaced during the read, and has other columns: {', '.join(changed[:3])}",
                url=self.source.handle.url,
                hint="Call await file.refresh() and ask again.",
            )
        self._schema = schema

    async def changed(self, error: ObjectChangedError, *, restartable: bool) -> None:
        """The object is another version now: forget it, and raise unless the read may start again."""
        if self.version is not None:
            await self.source.forget(self.version)
        self.version = None
        self._relocated.clear()
        limit = self.source.runtime.options.limits.max_restarts
        if self._is_positional or not restartable or self.metrics.restarts >= limit:
            error.hint = "Call await file.refresh() to read the new version."
            raise error
        self.operation.restarts()

    def relocated(self, error: PageLocationError) -> None:
        """Let the read start again without the page index that was dropped, once for each column; else raise.

        It stays with its version, however old: that knows what was dropped.
        """
        if not error.dropped or error.column in self._relocated:
            raise error
        self._relocated.add(error.column)


def _layout(version: FileVersion) -> RowGroupLayout:
    """Which rows the file's row groups hold."""
    groups = version.metadata.row_groups
    layout: RowGroupLayout = version.derived(
        ("row group layout",), lambda: RowGroupLayout([group.num_rows for group in groups]), _WEIGHT
    )
    return layout


def _all_rows(version: FileVersion) -> ResolvedAccess:
    """All of the file's rows."""
    rows = version.all_rows = AccessPlan.all().resolve(_layout(version))
    return rows
