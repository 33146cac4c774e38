"""Files, datasets and tables for DuckDB's SQL, which pushes columns and filters down into asyncpq.

::

    with asyncpq.blocking.Session() as session:
        trips = asyncpq.duckdb.dataset(session.open_dataset("s3://bucket/trips/"))
        duckdb.sql("select price from trips where id = 42")

DuckDB passes columns and a filter to a ``pyarrow.dataset.Dataset``, and does not filter again. So this module filters
by DuckDB's rules, also for NaN and -0.0 (docs/tools.md). It does not import DuckDB.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from asyncpq import Expression
from asyncpq.blocking import BlockingDataset, BlockingFile
from asyncpq.engine.foreign_predicates import parse_condition, translate_arrow
from asyncpq.errors import InvalidOptionError, UnsupportedFeatureError, UsageError
from asyncpq.options import DEFAULT_BATCH_SIZE

__all__ = ["dataset"]


def dataset(opened: BlockingFile | BlockingDataset) -> ds.Dataset:
    """Return a ``pyarrow.dataset.Dataset`` of the file or dataset, for queries of DuckDB, which refer to it by the name
    of its Python variable.

    It reads in the session of ``opened``, which must stay open.

    Raises:
        InvalidOptionError: ``opened`` is no open file or dataset of :mod:`asyncpq.blocking`.
    """
    if not isinstance(opened, (BlockingFile, BlockingDataset)):
        raise InvalidOptionError(
            f"asyncpq.duckdb.dataset() takes an open file or dataset of asyncpq.blocking, not {type(opened).__name__}",
            hint="Open it in an asyncpq.blocking.Session: its event loop runs while DuckDB waits.",
        )
    return _Pushed(opened)


class _Pushed(ds.InMemoryDataset):  # type: ignore[misc]  # pyarrow has no types
    """A ``pyarrow.dataset.Dataset`` for DuckDB. Each scanner that DuckDB creates is a scan of ``opened``."""

    def __init__(self, opened: BlockingFile | BlockingDataset) -> None:
        super().__init__(opened.schema.empty_table())
        self._opened = opened

    def __repr__(self) -> str:
        return f"asyncpq.duckdb.dataset({self._opened!r})"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a dataset of asyncpq.duckdb cannot be pickled or copied: make one in each process")

    def scanner(
        self,
        columns: list[str] | None = None,
        filter: pc.Expression | None = None,
        batch_size: int = DEFAULT_BATCH_SIZE,
        **hints: object,
    ) -> _Scanner:
        """Return a scanner that reads ``columns`` of the rows for which DuckDB's ``filter`` is true.

        ``hints``, other arguments of pyarrow's method, are ignored.
        """
        if isinstance(columns, Mapping):
            self._no_rows()
        return _Scanner(self._opened, columns, filter, batch_size)

    def _no_rows(self, *args: object, **keywords: object) -> NoReturn:
        raise UsageError(
            "only DuckDB's queries can read a dataset of asyncpq.duckdb",
            hint="Use the scans of the asyncpq file or dataset, which are Arrow streams.",
        )

    # those of the base class would see the empty table
    filter = get_fragments = join = join_asof = replace_schema = sort_by = _no_rows


class _Scanner:
    """One scan, with the methods of ``pyarrow.dataset.Scanner`` that DuckDB and pyarrow's datasets use."""

    def __init__(
        self,
        opened: BlockingFile | BlockingDataset,
        columns: list[str] | None,
        condition: pc.Expression | None,
        batch_size: int,
    ) -> None:
        self._opened = opened
        self._columns = columns
        self._condition = condition
        self._batch_size = batch_size

    def to_reader(self) -> pa.RecordBatchReader:
        """Return the batches. Dropping the reader ends the scan."""
        condition = self._condition
        where = None if condition is None else rows_of(condition, self._opened.schema)
        if condition is None or where is not None:
            return self._opened.scan(self._columns, where, batch_size=self._batch_size).to_reader()
        schema = self._opened.schema
        columns = schema.names if self._columns is None else self._columns
        returned = pa.schema([schema.field(name) for name in columns])
        needed = list(columns)
        if not _fits(condition, returned):  # DuckDB 2 does not ask for the columns of the filter alone
            others = {name: pa.schema([field for field in schema if field.name != name]) for name in schema.names}
            needed = [name for name in others if name in columns or not _fits(condition, others[name])]
        reader = self._opened.scan(needed, batch_size=self._batch_size).to_reader()
        return pa.RecordBatchReader.from_batches(returned, _filtered(reader, condition, columns))

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        """Iterate over the scan's record batches."""
        return iter(self.to_reader())

    def to_table(self) -> pa.Table:
        """Return all rows of the scan as one table."""
        return self.to_reader().read_all()

    def head(self, num_rows: int) -> pa.Table:
        """Return the first ``num_rows`` rows as a table."""
        batches, reader, rows_left = [], self.to_reader(), num_rows
        while rows_left > 0 and (batch := next(reader, None)) is not None:
            batches.append(batch.slice(0, rows_left))
            rows_left -= batch.num_rows
        return pa.Table.from_batches(batches, reader.schema)

    def count_rows(self) -> int:
        """Return the number of rows of the scan."""
        return sum(batch.num_rows for batch in self.to_reader())


def rows_of(condition: pc.Expression, schema: pa.Schema) -> Expression | None:
    """Translate DuckDB's filter, a pyarrow expression, to a predicate with DuckDB's meaning.

    Return None if asyncpq has no equivalent predicate, but pyarrow evaluates ``condition`` as DuckDB means it.

    Raises:
        UnsupportedFeatureError: asyncpq has no equivalent predicate, and pyarrow may evaluate the condition differently
            from DuckDB, as for floats; or the condition does not state what DuckDB means.
    """
    found = translate_arrow(condition, schema)
    if found.where is None:
        if not _fits(condition, pa.schema([field for field in schema if not _has_floats(field.type)])):
            raise _unsupported(condition, found.reason or "it has no equal")
    elif True in parse_condition(found.where).constants:
        raise _unsupported(condition, "DuckDB writes `x <= NaN`, which is not true for null, as `true`")
    return found.where


def _fits(condition: pc.Expression, schema: pa.Schema) -> bool:
    """Return whether pyarrow evaluates ``condition`` on the columns of ``schema``."""
    try:
        schema.empty_table().filter(condition)
    except (pa.ArrowException, KeyError, TypeError):
        return False
    return True


def _unsupported(condition: pc.Expression, reason: str) -> UnsupportedFeatureError:
    return UnsupportedFeatureError(
        f"asyncpq cannot apply DuckDB's filter {str(condition)[:200]}: {reason}",
        hint="Read an Arrow stream, which DuckDB filters itself: duckdb.from_arrow(dataset.scan(...)).",
    )


def _has_floats(type_: Any) -> bool:
    if pa.types.is_floating(type_):
        return True
    return any(_has_floats(type_.field(at).type) for at in range(type_.num_fields))


def _filtered(
    reader: pa.RecordBatchReader, condition: pc.Expression, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        yield from pa.Table.from_batches([batch]).filter(condition).select(columns).to_batches()
