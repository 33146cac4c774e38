"""From a question to a running read: resolve names, compile the filter, plan, and start again when the
object changes underneath."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from asyncpq.decoding.filter import Filter, compile_filter
from asyncpq.decoding.leaf import DecodeLimits
from asyncpq.decoding.row_group import QueryShape
from asyncpq.decoding.types import dictionary_type, field_types, file_schema
from asyncpq.errors import (
    AmbiguousColumnError,
    AsyncpqError,
    ObjectChangedError,
    UnsupportedFeatureError,
)
from asyncpq.expressions import Constant, Expression, simplify
from asyncpq.fetching.planner import Query, plan_read, predicate_columns
from asyncpq.fetching.source import ObjectSource
from asyncpq.fetching.version import FileVersion
from asyncpq.format.schema import ParquetSchema, Projection
from asyncpq.metrics import ReadMetrics
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.read import Read
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


class Preparation:
    """Turns one question into a read, and again when the object has changed in between.

    Args:
        source: the object.
        question: what is asked.
        version: the version that the file handle knows.
        adopt: told which version is read, whenever that is decided.
    """

    def __init__(
        self, source: ObjectSource, question: Question, version: FileVersion, adopt: Callable[[FileVersion], None]
    ) -> None:
        self.source = source
        self.question = question
        self.version: FileVersion | None = version
        self._adopt = adopt
        self.metrics = ReadMetrics()
        self._where, self._prune = (
            None if part is None else simplify(part) for part in (question.where, question.prune)
        )
        self._schema: pa.Schema | None = None
        self._finished = False

    def deadline(self) -> AbstractAsyncContextManager[None]:
        """Bounds one step of the read (see :meth:`asyncpq.resources.Resources.deadline`)."""
        return self.source.resources.deadline(self.source.handle.url)

    async def prepare(self, *, scan: bool) -> Prepared:
        """Resolve and plan, with the metadata and index requests that this takes."""
        while True:
            try:
                return await self._prepare(scan=scan)
            except ObjectChangedError as error:
                await self.changed(error, restartable=True)

    async def _prepare(self, *, scan: bool) -> Prepared:
        source, question, metrics = self.source, self.question, self.metrics
        context = RequestContext(metrics, scan=scan)
        if self.version is None:
            self.version = await source.version(context)
        version = self.version
        metrics.guarantee, metrics.store_path = str(source.handle.guarantee), source.handle.client
        try:
            shape = self._shape(version)
            rows = _row_group_rows(version, question.rows)
            query = Query(shape.output, self._where, self._prune, rows, question.limit, question.rows_only)
            plan = await plan_read(source, version, query, context.step("index", metrics.rounds + 1))
        except AsyncpqError as error:
            raise error.locate(url=version.url) from error.__cause__
        self._adopt(version)
        memory = source.resources.memory.max_bytes
        data_context = context.step("data", metrics.rounds + 1)
        read = Read(
            source,
            version,
            plan,
            shape,
            data_context,
            admit=not scan or plan.num_bytes() * 8 < memory,
            rows_only=question.rows_only,
        )
        return Prepared(version, plan, shape, read)

    def _shape(self, version: FileVersion) -> QueryShape:
        options = self.source.resources.options
        schema = version.metadata.schema
        extensions = options.read.extension_types
        keys = tuple([schema.projection(name) for name in self.question.keys])
        output = (*resolve_output(schema, () if self.question.rows_only else self.question.columns), *keys)
        filter_: Filter | None = None
        if self.question.where is not None:
            found = predicate_columns(schema, self.question.where)
            fields = list(dict.fromkeys(column.projection.field for column in found.values()))
            kinds = field_types(version, fields, extensions)
            types = {schema.fields[field].name: kind.arrow.type for field, kind in zip(fields, kinds, strict=True)}
            filter_ = compile_filter(self.question.where, types)
            if self._where not in (None, self.question.where) and not isinstance(self._where, Constant):
                # rows are judged by what the plan fetches columns for; the whole was compiled for its errors
                filter_ = compile_filter(self._where, types)
        arrow = file_schema(version, output, extensions)
        dictionaries = _dictionary_fields(version, self.question.read_dictionary)
        for at, projection in enumerate(output):
            if projection.field in dictionaries:
                arrow = arrow.set(at, arrow.field(at).with_type(dictionary_type(arrow.field(at).type)))
        self._check_types(arrow)
        limits = DecodeLimits(options.read.verify_crc, options.limits.max_page_bytes, options.limits.max_decoded_bytes)
        return QueryShape(arrow, output, filter_, limits, extensions, dictionaries)

    def _check_types(self, schema: pa.Schema) -> None:
        """A read that starts again must still give the columns that were asked for."""
        if self._schema is not None and (self._schema.names, self._schema.types) != (schema.names, schema.types):
            raise ObjectChangedError(
                "the object was replaced during the read, and its columns have other types now",
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
        self.metrics.restarts += 1

    def finished(self) -> None:
        """Add the read's metrics to the session's; once."""
        if not self._finished:
            self._finished = True
            self.source.resources.metrics.add(self.metrics)


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


def _row_group_rows(version: FileVersion, rows: Sequence[int] | None) -> Mapping[int, RowRanges] | None:
    """File row numbers (sorted, distinct, in the file), by row group."""
    if rows is None:
        return None
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
