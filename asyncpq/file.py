"""One Parquet object and the questions that can be asked of it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.decoding.substrait import from_pyarrow
from asyncpq.decoding.types import file_schema
from asyncpq.errors import InvalidOptionError, ObjectChangedError, RowIndexError
from asyncpq.expressions import Expression, parse_filters
from asyncpq.fetching.source import ObjectSource
from asyncpq.fetching.version import FileVersion
from asyncpq.lookup import Keys
from asyncpq.metrics import ReadMetrics
from asyncpq.plan import Plan, describe
from asyncpq.prepared import Preparation, Prepared, Question
from asyncpq.read import Pipeline
from asyncpq.scan import DEFAULT_BATCH_SIZE, Scan
from asyncpq.storage.base import RequestContext, Validator

ROUND_BYTES = 64 << 20  # a lookup of at most this size is fetched in one round, outside the read-ahead


class File:
    """A Parquet object in a store, open for reading. Made by :meth:`asyncpq.Session.open_file`.

    Every method that reads may be called concurrently. ``columns`` are names of top-level columns, or
    their ordinals where names occur twice; None means all. ``where`` is an expression of
    :func:`asyncpq.col`, a list as in pyarrow's ``filters=``, or a ``pyarrow.compute`` expression; what it
    means is in docs/filter.md.

    Attributes:
        metrics: of the last call of this handle that returned; take it right after the call, or pass
            ``metrics=`` to have counts of one call alone.
    """

    def __init__(self, source: ObjectSource, version: FileVersion) -> None:
        self._source = source
        self._version = version
        self.metrics = ReadMetrics()

    def __repr__(self) -> str:
        return f"File({self.url!r}, {self.num_rows} rows)"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of what the handle holds in the store (a local file's descriptor). Idempotent."""
        await self._source.handle.close()

    # -- what it is -------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """Without user info, query and secrets."""
        return self._source.handle.url

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema, as pyarrow gives it."""
        fields = tuple(range(len(self._version.metadata.schema.fields)))
        return file_schema(self._version, fields, self._source.resources.options.read.extension_types)

    @property
    def num_rows(self) -> int:
        """Rows of the version that was read last."""
        return self._version.metadata.num_rows

    @property
    def num_row_groups(self) -> int:
        return len(self._version.metadata.row_groups)

    @property
    def version(self) -> Validator:
        """Identifies the version of the object that was read last."""
        return self._version.validator

    async def refresh(self) -> Validator:
        """Ask the store which version the object has now, and read that one from now on.

        Returns:
            The version; equal to the one before when nothing changed.
        """
        self._source.resources.check()
        metrics = ReadMetrics()
        context = RequestContext(metrics, round=1)
        try:
            try:
                await self._source.validate(self._version, context)
            except ObjectChangedError:
                await self._source.forget()
                self._version = await self._source.version(context)
        finally:
            self._settle(metrics)
        return self._version.validator

    # -- rows -------------------------------------------------------------------------------------

    def scan(
        self,
        columns: Sequence[str | int] | None = None,
        where: object = None,
        *,
        limit: int | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
    ) -> Scan:
        """Stream matching rows in file order.

        Args:
            columns, where: see the class.
            limit: at most this many rows.
            batch_size: at most this many rows in a batch.

        Returns:
            To be used as ``async with file.scan(...) as scan: async for batch in scan``.

        Raises:
            ColumnNotFoundError, PredicateTypeError, ...: when the scan is entered.
        """
        question = Question(columns=_names(columns), where=self._where(where), limit=_limit(limit))
        return Scan(self._prepare(question), batch_size=batch_size, limit=limit)

    async def read(
        self, columns: Sequence[str | int] | None = None, where: object = None, *, limit: int | None = None
    ) -> pa.Table:
        """All matching rows in one table, in file order."""
        async with self.scan(columns, where, limit=limit) as scan:
            batches = [batch async for batch in scan]
            table = pa.Table.from_batches(batches, schema=scan.schema)
        self.metrics = scan.metrics
        return table

    async def lookup(
        self,
        keys: Mapping[str, Any],
        columns: Sequence[str | int] | None = None,
        *,
        with_keys: bool = False,
    ) -> pa.Table:
        """Rows whose key columns equal the given values: one key, or many in one plan.

        Args:
            keys: for each key column its value, or a list of values. Several columns with lists pair
                up by position. Null and NaN match nothing.
            columns: see the class.
            with_keys: add the int64 column ``key_position``: the position of the key that a row
                matches, one row for each pair of row and key.

        Returns:
            The rows in file order, duplicates in the file included; keys without rows give none.

        Raises:
            QueryError: no keys, lists of unequal lengths, or unknown columns.
        """
        wanted = Keys(keys)
        question = Question(columns=wanted.columns(_names(columns), with_keys), where=wanted.where, prune=wanted.prune)
        prepared, table = await self._collect(question)
        return wanted.finish(
            table, _names(columns), with_keys, [field.name for field in prepared.version.metadata.schema.fields]
        )

    async def take(self, rows: Sequence[int], columns: Sequence[str | int] | None = None) -> pa.Table:
        """Rows by their numbers in the file, in the order asked, duplicates included.

        It never starts again on a changed object, since row numbers mean one version.

        Raises:
            RowIndexError: a number is negative or not less than ``num_rows``.
            ObjectChangedError: the object is another version now.
        """
        total = self.num_rows
        for row in rows:
            if not 0 <= row < total:
                raise RowIndexError(f"row {row} is not in a file of {total} rows", url=self.url)
        distinct = sorted(set(rows))
        _, table = await self._collect(Question(columns=_names(columns), rows=distinct, positional=True))
        if len(distinct) == len(rows) and all(left < right for left, right in itertools.pairwise(rows)):
            return table
        position = {row: at for at, row in enumerate(distinct)}
        return table.take(pa.array([position[row] for row in rows], pa.int64()))

    async def count(self, where: object = None) -> int:
        """How many rows match; without a predicate, from the footer."""
        expression = self._where(where)
        if expression is None:
            self._source.resources.check()
            preparation = self._prepare(Question(rows_only=True))
            try:
                async with preparation.deadline():
                    prepared = await preparation.prepare(scan=False)
                    await preparation.ensure_fresh(prepared)
            except ObjectChangedError as error:
                await preparation.changed(error, restartable=True)
                prepared = await preparation.prepare(scan=False)
            finally:
                preparation.finished()
            self._adopt(prepared.version, preparation.metrics)
            return prepared.version.metadata.num_rows
        prepared, _ = await self._collect(Question(where=expression, rows_only=True))
        return prepared.read.rows_matched

    async def plan(
        self,
        columns: Sequence[str | int] | None = None,
        where: object = None,
        *,
        lookup: Mapping[str, Any] | None = None,
        limit: int | None = None,
    ) -> Plan:
        """What a read would fetch, without fetching data.

        Footer and page indexes are fetched where a read would fetch them.

        Args:
            columns, where, limit: as in :meth:`scan`.
            lookup: as ``keys`` of :meth:`lookup`, instead of ``where``.
        """
        names = _names(columns)
        if lookup is not None:
            if where is not None:
                raise InvalidOptionError("plan() takes where= or lookup=, not both")
            wanted = Keys(lookup)
            question = Question(columns=names, where=wanted.where, prune=wanted.prune)
        else:
            question = Question(columns=names, where=self._where(where), limit=_limit(limit))
        self._source.resources.check()
        preparation = self._prepare(question)
        try:
            async with preparation.deadline():
                prepared = await preparation.prepare(scan=lookup is None)
        finally:
            preparation.finished()
        self._adopt(prepared.version, preparation.metrics)
        return describe(self._source, prepared, preparation.metrics, question)

    def _where(self, where: object) -> Expression | None:
        """The predicate in whichever form it was given."""
        if where is None:
            return None
        if isinstance(where, pc.Expression):
            return from_pyarrow(where, self.schema)
        return parse_filters(where)

    # -- inside -----------------------------------------------------------------------------------

    def _prepare(self, question: Question) -> Preparation:
        return Preparation(self._source, question, self._version)

    def _adopt(self, version: FileVersion, metrics: ReadMetrics) -> None:
        self._version = version
        self.metrics = metrics

    def _settle(self, metrics: ReadMetrics) -> None:
        self.metrics = metrics
        self._source.resources.metrics.add(metrics)

    async def _collect(self, question: Question) -> tuple[Prepared, pa.Table]:
        """Run a read to its end; over again while the object changes, where that is allowed."""
        self._source.resources.check()
        preparation = self._prepare(question)
        try:
            async with preparation.deadline():
                prepared, tables = await self._attempts(preparation)
        finally:
            preparation.finished()
        table = pa.concat_tables(tables) if tables else prepared.shape.schema.empty_table()
        preparation.metrics.rows_returned = prepared.read.rows_matched
        self._adopt(prepared.version, preparation.metrics)
        return prepared, table

    async def _attempts(self, preparation: Preparation) -> tuple[Prepared, list[pa.Table]]:
        while True:
            prepared = await preparation.prepare(scan=False)
            try:
                tables = await self._run(prepared)
                await preparation.ensure_fresh(prepared)
            except ObjectChangedError as error:
                await preparation.changed(error, restartable=True)
            else:
                return prepared, tables

    async def _run(self, prepared: Prepared) -> list[pa.Table]:
        read, resources = prepared.read, self._source.resources
        size = prepared.plan.num_bytes()
        if size <= ROUND_BYTES:
            units = read.units(1 << 62)
            tables = await read.run(units[0]) if units else []
            read.check_complete()
            return tables
        pipeline = Pipeline(read, read.units(resources.options.limits.unit_bytes), self._source)
        tables = []
        try:
            pipeline.start()
            while (some := await pipeline.next()) is not None:
                tables.extend(some)
                pipeline.done_with_head()
        finally:
            await pipeline.close()
        read.check_complete()
        return tables


def _names(columns: Sequence[str | int] | None) -> list[str | int] | None:
    if columns is None:
        return None
    if isinstance(columns, str):
        raise InvalidOptionError(f"columns={columns!r}: must be a list of names", hint=f"Write [{columns!r}].")
    return list(columns)


def _limit(limit: int | None) -> int | None:
    if limit is not None and limit < 0:
        raise InvalidOptionError(f"limit={limit}: must be 0 or more rows")
    return limit
