"""An index of one's own: least and greatest values of integer columns, by file and row group, in PostgreSQL.

A class with one method, ``prune``, is all that ``Session.open_dataset`` asks for: which files may hold rows for which a
predicate is true, and which of their row groups or rows.

    bounds = PostgresBounds(await psycopg.AsyncConnection.connect(...), ["user_id"])
    async with asyncpq.Session() as session:
        await bounds.create()
        await bounds.add(session, await (await session.open_dataset("s3://bucket/trips/")).files())
        trips = await session.open_dataset("s3://bucket/trips/", index=bounds)
        table = await trips.lookup({"user_id": 42})  # opens files only of which a row group may have 42

What an index gives may be too much, never too little; the filter runs on all of it. So files that are not in the table
are read, and what is known of a file counts for the version that it was read from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any

import psycopg
import pyarrow.compute as pc
from psycopg import sql

from asyncpq import AccessPlan, File, Session
from asyncpq.expressions import Expression, Interval, ValueRanges, column_ranges
from asyncpq.indexing import FileSlice, FileSlices


class PostgresBounds:
    """
    Args:
        connection: to the database, with autocommit.
        columns: names of integer columns. (Literals of other types may be rounded before they are compared.)
        table: to keep them in; one row for each row group.
    """

    def __init__(self, connection: psycopg.AsyncConnection[Any], columns: Sequence[str], table: str = "bounds") -> None:
        self._connection = connection
        self._columns = columns
        self._table = sql.Identifier(table)

    async def create(self) -> None:
        """Make the table."""
        kinds = (("low {}", "bigint"), ("high {}", "bigint"), ("nulls {}", "boolean"))
        columns = [
            sql.SQL("{} {}").format(sql.Identifier(name.format(column)), sql.SQL(kind))
            for column in self._columns
            for name, kind in kinds
        ]
        await self._connection.execute(
            sql.SQL(
                "CREATE TABLE {} (url text, row_group int, size bigint, etag text, {}, PRIMARY KEY (url, row_group))"
            ).format(self._table, sql.SQL(", ").join(columns))
        )

    async def add(self, session: Session, urls: Iterable[str]) -> None:
        """Take in files, or what they are now."""
        for url in urls:
            async with await session.open_file(url) as file:
                rows = [await self._row(url, file, group) for group in range(file.num_row_groups)]
            async with self._connection.transaction():
                await self._connection.execute(sql.SQL("DELETE FROM {} WHERE url = %s").format(self._table), [url])
                for row in rows:
                    backends = sql.SQL(", ").join([sql.Placeholder()] * len(row))
                    await self._connection.execute(
                        sql.SQL("INSERT INTO {} VALUES ({})").format(self._table, backends), row
                    )

    async def _row(self, url: str, file: File, group: int) -> list[Any]:
        # A plan of row groups is for one version: if the file is replaced now, this raises ObjectChangedError.
        table = await file.read(self._columns, access=AccessPlan.row_groups([group]))
        row: list[Any] = [url, group, file.version.size, file.version.etag]
        for column in self._columns:
            ends = pc.min_max(table[column])
            row += [ends["min"].as_py(), ends["max"].as_py(), table[column].null_count > 0]
        return row

    async def prune(self, where: Expression) -> FileSlices:
        """By one query: the row groups of each file that may match."""
        ranges = column_ranges(where)
        if ranges is None:  # it contradicts itself
            return FileSlices(files={}, others="none")
        conditions = [self._condition(name, ranges[name]) for name in self._columns if name in ranges]
        query = sql.SQL(
            "SELECT url, size, etag, array_agg(row_group) FILTER (WHERE {}) FROM {} GROUP BY url, size, etag"
        ).format(sql.SQL(" AND ").join(conditions or [sql.SQL("true")]), self._table)
        found = await (await self._connection.execute(query)).fetchall()
        # Files without a matching row group are named, too: of those that are not named, nothing is known.
        return FileSlices(
            files={url: FileSlice(AccessPlan.row_groups(groups or []), size, etag) for url, size, etag, groups in found}
        )

    def _condition(self, column: str, ranges: ValueRanges) -> sql.Composable:
        low, high, nulls = [sql.Identifier(f"{name} {column}") for name in ("low", "high", "nulls")]
        cases: list[sql.Composable] = [_overlap(low, high, interval) for interval in ranges.intervals]
        if ranges.null:
            cases.append(nulls)
        return sql.SQL("({})").format(sql.SQL(" OR ").join(cases or [sql.SQL("false")]))


def _overlap(low: sql.Identifier, high: sql.Identifier, interval: Interval) -> sql.Composable:
    """Whether values from ``low`` to ``high`` may lie in the interval."""
    ends = [
        (high, ">" if interval.low_open else ">=", interval.low),
        (low, "<" if interval.high_open else "<=", interval.high),
    ]
    cases: list[sql.Composable] = [sql.SQL("{} IS NOT NULL").format(low)]
    for name, operator, end in ends:
        # numeric holds every integer and float as it is
        if isinstance(end, (int, float, Decimal)):
            cases.append(sql.SQL("{} {} {}").format(name, sql.SQL(operator), sql.Literal(Decimal(end))))
    return sql.SQL("({})").format(sql.SQL(" AND ").join(cases))
