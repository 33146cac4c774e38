"""From a question to a running read: resolve names, compile the filter, plan, and start again when the
object changes underneath."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.filter import Filter, compile_filter
from asyncpq.decoding.leaf import DecodeLimits
from asyncpq.decoding.sources import QueryShape
from asyncpq.decoding.substrait import from_pyarrow
from asyncpq.decoding.types import dictionary_type, field_types, file_schema
from asyncpq.errors import (
    AmbiguousColumnError,
    AsyncpqError,
    ColumnNotFoundError,
    FormatError,
    ObjectChangedError,
    QueryError,
    RowIndexError,
    UnsupportedFeatureError,
)
from asyncpq.events import Operation
from asyncpq.expressions import Constant, Expression, columns, simplify
from asyncpq.fetching.planner import Query, ReadColumns, plan_read
from asyncpq.fetching.source import ObjectSource
from asyncpq.fetching.version import FileVersion
from asyncpq.format.schema import ParquetSchema, Projection
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.read import Read, landed
from asyncpq.storage.base import RequestContext

if TYPE_CHECKING:
    from asyncpq.planning.read_plan import ReadPlan

ColumnNames = Sequence[str | int]


class Question(NamedTuple):
    """What a caller asks of a file, in the caller's terms.

    Attributes:
        columns: names of top-level fields, dotted paths inside them, or ordinals of fields; None for all.
        keys: names or paths of columns to return behind those, whether they are among them or not.
        where: the predicate, or None.
        unbound: the predicate in pyarrow's terms, which each version's schema gives a meaning; or None.
        prune: a sharper predicate to prune by, implied by ``where``; or None.
        rows: row numbers of the file, sorted and distinct; or None.
        limit: rows wanted in file order, or None.
        rows_only: matching rows are counted, no column is returned.
        positional: the question names row numbers, which mean something in one version only.
        read_dictionary: names of string and binary columns that come as dictionary arrays.
    """

    columns: ColumnNames | None = None
    keys: Sequence[str] = ()
    where: Expression | None = None
    unbound: pc.Expression | None = None
    prune: Expression | None = None
    rows: Sequence[int] | None = None
    limit: int | None = None
    rows_only: bool = False
    positional: bool = False
    read_dictionary: Sequence[str] = ()


@dataclass(slots=True)
class Prepared:
    """A question, resolved against one version: ready to fetch.

    Attributes:
        version: which one.
        plan: what will be fetched.
        shape: schema, filter and limits of the output.
        read: fetches and decodes it.
    """

    version: FileVersion
    plan: ReadPlan
    shape: QueryShape
    read: Read


class _OtherColumnsError(ObjectChangedError):
    """The version that a read starts again with lacks columns that it began with."""


class Preparation:
    """Turns one question into a read, and again when the object has changed in between.

    Args:
        source: the object.
        question: what is asked.
        version: the version that the file handle knows.
        adopt: told which version is read, whenever that is decided.
        operation: the call whose question it is.
    """

    def __init__(
        self,
        source: ObjectSource,
        question: Question,
        version: FileVersion,
        adopt: Callable[[FileVersion], None],
        operation: Operation,
    ) -> None:
        self.source = source
        self.question = question
        self.version: FileVersion | None = version
        self._adopt = adopt
        self.operation = operation
        self.metrics = operation.metrics
        self._where = None if question.where is None else simplify(question.where)
        self._prune = None if question.prune is None else simplify(question.prune)
        self._schema: pa.Schema | None = None

    def deadline(self) -> AbstractAsyncContextManager[None]:
        """Bounds one step of the read (see :meth:`asyncpq.resources.Resources.deadline`)."""
        return self.source.resources.deadline(self.source.handle.url)

    async def prepare(self, *, scan: bool) -> Prepared:
        """Resolve and plan, with the metadata and index requests that this takes."""
        while True:
            try:
                return await self._prepare(scan=scan)
            except _OtherColumnsError:
                raise  # what it has now is known, and current
            except ObjectChangedError as error:
                await self.changed(error, restartable=True)

    async def _prepare(self, *, scan: bool) -> Prepared:
        source, metrics = self.source, self.metrics
        context = RequestContext(metrics, scan=scan, guest=scan)
        if self.version is None:
            self.version = await source.version(context)
        elif source.is_expired(self.version):
            self.version = await self._anew(self.version, context)
        version = self.version
        metrics.guarantee, metrics.store_path = str(source.handle.guarantee), source.handle.client
        try:
            self._bind(version)
            resolved = self._resolved(version)
            shape = self._shape(version, resolved)
            question = self.question
            rows = _row_group_rows(version, question.rows)
            query = Query(resolved.columns, self._where, self._prune, rows, question.limit, question.rows_only)
            plan = await plan_read(source, version, query, context.step("index", metrics.rounds + 1))
        except AsyncpqError as error:
            if isinstance(error, (QueryError, FormatError)):
                await self._ensure_current(version)  # the object's present version may well have that column or row
            raise error.locate(url=version.url) from error.__cause__
        self._adopt(version)
        size, memory = plan.num_bytes(), source.resources.memory.max_bytes
        data_context = context.step("data", metrics.rounds + 1)
        if 0 < memory < size * 16:
            data_context.guest = True  # so large a count or take would push out what lookups use
        read = Read(
            source,
            version,
            plan,
            shape,
            data_context,
            admit=not data_context.guest or size < memory,
            rows_only=question.rows_only,
        )
        return Prepared(version, plan, shape, read)

    async def _anew(self, version: FileVersion, context: RequestContext) -> FileVersion:
        """What stands in the place of a version that has expired.

        Raises:
            ObjectChangedError: it is another one, as far as the store can tell, and the question names rows.
        """
        found = await self.source.version(context)
        if self.question.positional and not found.validator.same_version(version.validator):
            raise ObjectChangedError("the object has another size or time now", url=version.url)
        return found

    async def _ensure_current(self, version: FileVersion) -> None:
        """Ask the store if the cache policy wants it asked before ``version`` is spoken of.

        Raises:
            ObjectChangedError: the object has another version now.
        """
        if not self.source.is_fresh(version):
            context = RequestContext(self.metrics, round=self.metrics.rounds + 1)
            validation = self.source.start_validation(version, context)
            validation.join()
            await landed(validation, self.metrics)

    def _bind(self, version: FileVersion) -> None:
        """Translate a predicate of pyarrow's: its literals are cast to the types of this version's columns."""
        unbound, schema = self.question.unbound, version.metadata.schema
        if unbound is None:
            return
        types = file_schema(version, schema.whole_fields, self.source.resources.options.read.extension_types)
        try:
            where = from_pyarrow(unbound, types)
        except ColumnNotFoundError as error:
            if error.hint is None and error.column is not None:
                error.hint = _meant(schema, error.column)
            raise
        self.question = self.question._replace(where=where)
        self._where = simplify(where)

    def _shape(self, version: FileVersion, resolved: Resolved) -> QueryShape:
        options = self.source.resources.options
        filter_: Filter | None = None
        if self.question.where is not None:
            filter_ = compile_filter(self.question.where, resolved.types)
            if self._where not in (None, self.question.where) and not isinstance(self._where, Constant):
                # rows are judged by what the plan fetches columns for; the whole was compiled for its errors
                filter_ = compile_filter(self._where, resolved.types)
        self._check_types(resolved.schema)
        limits = DecodeLimits(options.read.verify_crc, options.limits.max_page_bytes, options.limits.max_decoded_bytes)
        extensions = options.read.extension_types
        return QueryShape(resolved.schema, resolved.columns.output, filter_, limits, extensions, resolved.dictionaries)

    def _resolved(self, version: FileVersion) -> Resolved:
        """Names resolved to columns: once for all questions that differ in their literals only."""
        question = self.question
        asked = () if question.rows_only else question.columns
        named = () if question.where is None else columns(question.where)
        pruning = named if self._where is question.where else () if self._where is None else columns(self._where)
        extensions = self.source.resources.options.read.extension_types
        names = None if asked is None else tuple(asked)
        key = (names, tuple(question.keys), named, pruning, tuple(question.read_dictionary), extensions)
        return version.recent(key, lambda: resolve(version, *key))

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
        limit = self.source.resources.options.limits.max_restarts
        if self.question.positional or not restartable or self.metrics.restarts >= limit:
            error.hint = "Call await file.refresh() to read the new version."
            raise error
        self.operation.restarts()


class Resolved(NamedTuple):
    """The columns of a question, in one version.

    Attributes:
        columns: what is read.
        schema: Arrow schema of the output.
        dictionaries: ordinals of the fields that come as dictionary arrays.
        types: of the columns that the predicate names, by the name of the top-level field.
        weight: approximate bytes held in memory.
    """

    columns: ReadColumns
    schema: pa.Schema
    dictionaries: frozenset[int]
    types: Mapping[str, pa.DataType]
    weight: int


def resolve(
    version: FileVersion,
    names: ColumnNames | None,
    keys: Sequence[str],
    named: Sequence[str],
    pruning: Sequence[str],
    read_dictionary: Sequence[str],
    extensions: frozenset[str],
) -> Resolved:
    """Resolve names.

    Args:
        names, keys: columns to return (see :class:`Question`).
        named: columns that the predicate names.
        pruning: those that it still names once it is simplified.

    Raises:
        ColumnNotFoundError, AmbiguousColumnError: no such column, several of that name, or one asked for twice.
        UnsupportedFeatureError: a column of ``read_dictionary`` cannot come as dictionary arrays.
    """
    schema = version.metadata.schema
    output = (*resolve_output(schema, names), *[schema.projection(name) for name in keys])
    fields = list(dict.fromkeys([schema.projection(name).field for name in named]))
    kinds = field_types(version, fields, extensions) if fields else []
    types = {schema.fields[field].name: kind.arrow.type for field, kind in zip(fields, kinds, strict=True)}
    arrow = file_schema(version, output, extensions)
    dictionaries = _dictionary_fields(version, read_dictionary)
    for at, projection in enumerate(output):
        if projection.field in dictionaries:
            arrow = arrow.set(at, arrow.field(at).with_type(dictionary_type(arrow.field(at).type)))
    read = ReadColumns(schema, output, pruning)
    weight = 1000 + 400 * (len(output) + len(read.leaves) + len(read.unfiltered) + len(types))
    return Resolved(read, arrow, dictionaries, types, weight)


def resolve_output(schema: ParquetSchema, names: ColumnNames | None) -> tuple[Projection, ...]:
    """The top-level fields asked for, or parts of them, in the order asked.

    Several paths into one field give it once, where the first of them stands.

    Raises:
        ColumnNotFoundError, AmbiguousColumnError: no such column, several of that name, or one asked for twice.
    """
    if names is None:
        return schema.whole_fields
    asked: dict[int, list[int]] = {}
    for name in names:
        projection = schema.projection(name)
        leaves = asked.setdefault(projection.field, [])
        if not set(leaves).isdisjoint(projection.leaves):
            raise AmbiguousColumnError(
                "the column, or a part of it, is asked for twice", column=str(name), hint="Name each part once."
            )
        leaves += projection.leaves
    return tuple([Projection(field, tuple(sorted(leaves))) for field, leaves in asked.items()])


def _dictionary_fields(version: FileVersion, names: Sequence[str]) -> frozenset[int]:
    """Ordinals of the fields that are to come as dictionary arrays.

    Raises:
        ColumnNotFoundError, AmbiguousColumnError: no such column, or several of that name.
        UnsupportedFeatureError: a nested column, or an encrypted file.
    """
    schema = version.metadata.schema
    fields: set[int] = set()
    for name in names:
        projection = schema.projection(name)
        flat = [schema.leaves[leaf].is_flat for leaf in projection.leaves] == [True]
        if not flat or version.decryption is not None:
            raise UnsupportedFeatureError(
                "read_dictionary is for columns that are neither nested nor encrypted",
                column=name,
                hint="Leave the column out of read_dictionary.",
            )
        fields.add(projection.field)
    return frozenset(fields)


def _meant(schema: ParquetSchema, name: str) -> str | None:
    """Which column may have been meant by a name that the file lacks."""
    try:
        schema.projection(name)
    except QueryError as error:
        return error.hint
    return None


def _row_group_rows(version: FileVersion, rows: Sequence[int] | None) -> Mapping[int, RowRanges] | None:
    """File row numbers (sorted, distinct, not negative), by row group.

    Raises:
        RowIndexError: the file has fewer rows.
    """
    if rows is None:
        return None
    total = version.metadata.num_rows
    if rows and rows[-1] >= total:
        raise RowIndexError(f"row {rows[bisect_left(rows, total)]} is not in a file of {total} rows")
    groups = version.metadata.row_groups
    first_rows = version.derived(("first rows",), lambda: [group.first_row for group in groups], 40 * len(groups))
    num_rows = groups[-1].first_row + groups[-1].num_rows if groups else 0
    found: dict[int, RowRanges] = {}
    at = 0
    while at < len(rows) and rows[at] < num_rows:
        group = groups[bisect_right(first_rows, rows[at]) - 1]  # of empty ones at the same row, the last is not
        begin = at
        at = bisect_left(rows, group.first_row + group.num_rows, begin)
        found[group.ordinal] = RowRanges.from_rows([row - group.first_row for row in rows[begin:at]])
    return found
