"""Make the rows of the tables that need a file's values (set, ngram, keys, text, bloom), by one scan of its columns."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import ExitStack, aclosing
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from asyncpq.datasets.opened_file import DatasetColumns, OpenedFile
from asyncpq.decoding.arrow import plain_scalar
from asyncpq.decoding.paths import struct_path, top_level, type_of
from asyncpq.decoding.typed_literals import storage_values
from asyncpq.errors import CorruptFileError, CorruptIndexError
from asyncpq.indexing.build.sorting import LocalRows, key_order
from asyncpq.indexing.index_model import UNKNOWN_KEY, VALUE_TAG, IndexTable, file_key
from asyncpq.indexing.key_encoding import (
    element_type,
    elements,
    key_hashes,
    make_bitset,
    ngrams,
    normalised,
    table_keys,
    token_lists,
)
from asyncpq.indexing.query.file_selection import BY_ROW
from asyncpq.objects.runtime import Runtime
from asyncpq.options import BuildOptions
from asyncpq.scan.prefetch import Job, Pipeline
from asyncpq.scan.request import ScanRequest

#: Returns the keys of columns' values, and for each key the position of its row (None: each row has exactly one key).
_KeysOf: TypeAlias = Callable[[Sequence[pa.Array]], tuple[pa.BinaryArray, pa.Int64Array | None]]

_CHUNK_ROWS = 1 << 20  # encoded at once
_UNITED = 16  # batches of hashes before duplicates are dropped
WHOLE_FILE = -1


class ValueCollector(Protocol):
    """Collects the values of one file for one index table, and makes the file's rows of this table."""

    @property
    def pending_bytes(self) -> int:
        """Estimate of the bytes that the collected values take in memory."""

    def add(self, arrays: Sequence[pa.Array], first_row: int, group: int) -> None:
        """Add the values of the next rows: at most 2**20 rows from ``first_row`` on, all in the row group ``group``.

        ``arrays`` has one array for each column of the table, with the dataset's types, perhaps dictionary-encoded.
        """

    def finish(self, file: int) -> pa.Table:
        """Return the index rows of the file with the id ``file``, sorted by key; postings may be in row order.

        For the kinds "keys" and "text" this may be called several times, to bound memory: each call returns the rows
        that were added since the last call.
        """


def value_collector(index_table: IndexTable, types: Sequence[pa.DataType]) -> ValueCollector:
    """Return a collector for a table of kind set, ngram, keys, text or bloom, whose columns have the dataset types
    ``types``."""
    schema = index_table.schema

    def option(name: str) -> Any:
        try:
            return dict(index_table.options)[name]
        except KeyError:
            raise CorruptIndexError(f"the manifest of the index lacks the option {name!r} of {index_table}") from None

    def keys(arrays: Sequence[pa.Array]) -> tuple[pa.BinaryArray, pa.Int64Array | None]:
        item = element_type(types[0])
        if item is None:
            return table_keys(arrays, types), None
        values, rows = elements(arrays[0])
        return normalised(values, item), rows

    def grams(arrays: Sequence[pa.Array]) -> tuple[pa.BinaryArray, None]:
        tag, nothing = pa.scalar(VALUE_TAG, pa.binary()), pa.scalar(b"", pa.binary())
        return pc.binary_join_element_wise(tag, ngrams(arrays[0], option("n")), nothing), None

    if index_table.kind == "set":
        return _Distinct(schema, keys, option("max_values"))
    if index_table.kind == "ngram":
        return _Distinct(schema, grams, option("max_ngrams"))
    if index_table.kind == "keys":
        return _Postings(schema, keys, option("max_postings"))
    if index_table.kind == "text":
        return _Postings(schema, _token_keys, None)
    return _Blooms(schema, keys, option("fpp"))


def _token_keys(arrays: Sequence[pa.Array]) -> tuple[pa.BinaryArray, pa.Int64Array]:
    """Return one key for each token of the strings in ``arrays``, perhaps with duplicates, and the row of each key.
    A null string counts as one null token."""
    (array,) = arrays
    if isinstance(array.type, pa.DictionaryType):
        lists = token_lists(array.dictionary).take(array.indices)
    else:
        lists = token_lists(array)
    values, rows = elements(lists)
    held = pc.not_equal(values, "").fill_null(True)
    if held.false_count:
        values, rows = values.filter(held), rows.filter(held)
    return normalised(values, pa.string()), rows


class _Distinct:
    """Collects the distinct keys of a file. If there are more than ``limit``, the file's only row is
    ``UNKNOWN_KEY``, so that every lookup reads the file."""

    def __init__(self, schema: pa.Schema, keys: _KeysOf, limit: int) -> None:
        self._schema = schema
        self._keys = keys
        self._limit = limit
        self._seen: pa.BinaryArray | None = pa.array([], pa.binary())

    @property
    def pending_bytes(self) -> int:
        return 0 if self._seen is None else self._seen.nbytes

    def add(self, arrays: Sequence[pa.Array], first_row: int, group: int) -> None:
        if self._seen is None:
            return
        seen = pc.unique(pa.concat_arrays([self._seen, self._keys(_distinct(arrays))[0]]))
        self._seen = seen if len(seen) <= self._limit else None

    def finish(self, file: int) -> pa.Table:
        keys = pa.array([UNKNOWN_KEY], pa.binary()) if self._seen is None else self._seen
        keys = keys.take(key_order(keys))
        return pa.table([keys, _repeated(file, len(keys))], schema=self._schema)


class _Postings:
    """Collects the postings of a file: each is a key and a range of consecutive rows that have this key. If a key
    has more than ``limit`` postings (None: no limit), those with the smallest gaps between them are joined."""

    def __init__(self, schema: pa.Schema, keys: _KeysOf, limit: int | None) -> None:
        self._schema = schema
        self._keys = keys
        self._limit = limit
        self._pending: list[pa.BinaryArray] = []
        self._rows: list[pa.Int64Array] = []  # rows of the pending keys; empty if each row has exactly one key
        self._first_row = 0
        self.pending_bytes = 0

    def add(self, arrays: Sequence[pa.Array], first_row: int, group: int) -> None:
        keys, rows = self._keys(arrays)
        if not self._pending:
            self._first_row = first_row
        if rows is not None:
            order = key_order(keys, rows)
            keys, rows = keys.take(order), pc.add(rows.take(order), first_row)
            again = pc.and_(
                *(pc.equal(array.slice(1), array.slice(0, max(0, len(array) - 1))) for array in (keys, rows))
            )
            if again.true_count:
                firsts = pa.concat_arrays([pa.array([True]), pc.invert(again)])
                keys, rows = keys.filter(firsts), rows.filter(firsts)
            self._rows.append(rows)
            self.pending_bytes += rows.nbytes
        self._pending.append(keys)
        self.pending_bytes += keys.nbytes

    def finish(self, file: int) -> pa.Table:
        keys = pa.concat_arrays([pa.array([], pa.binary()), *self._pending])
        number = len(keys)
        if not number:
            return self._schema.empty_table()
        one_each, runs = not self._rows, len(self._rows)
        if one_each:
            ones: Any = _repeated(1, number)
            rows = pc.cumulative_sum(ones, start=self._first_row - 1)
        else:
            rows = pa.concat_arrays(self._rows)
        self._pending, self._rows = [], []
        self.pending_bytes = 0
        many = self._limit is not None and number > self._limit
        # If each row has one key, rows to join are adjacent already; the rows of all files are sorted later.
        if runs > 1 or (many and one_each):
            order = key_order(keys)  # stable: rows of one key ascend
            keys, rows = keys.take(order), rows.take(order)
        begins = pc.not_equal(keys.slice(1), keys.slice(0, number - 1))
        if many or not one_each:
            begins = pc.or_(begins, pc.greater(pc.pairwise_diff(rows).slice(1), 1))
        if begins.true_count == number - 1 and not many:
            return pa.table([keys, _repeated(file, number), rows, _repeated(1, number)], schema=self._schema)
        keys, firsts, stops = _grouped(begins, keys, rows, pc.add(rows, 1))
        if many and self._limit is not None:
            keys, firsts, stops = _limited(keys, firsts, stops, self._limit)
        columns = [keys, _repeated(file, len(keys)), firsts, pc.subtract(stops, firsts)]
        return pa.table(columns, schema=self._schema)


class _Blooms:
    """Collects hashes of keys, and makes a Bloom filter for each row group, and one for the file."""

    def __init__(self, schema: pa.Schema, keys: _KeysOf, fpp: float) -> None:
        self._schema = schema
        self._keys = keys
        self._fpp = fpp
        self._hashes: dict[int, list[pa.UInt64Array]] = {}

    @property
    def pending_bytes(self) -> int:
        return sum(batch.nbytes for batches in self._hashes.values() for batch in batches)

    def add(self, arrays: Sequence[pa.Array], first_row: int, group: int) -> None:
        batches = self._hashes.setdefault(group, [])
        keys, _ = self._keys(_distinct(arrays))
        batches.append(key_hashes(pc.unique(keys)))
        if len(batches) > _UNITED:
            batches[:] = [_united(batches)]

    def finish(self, file: int) -> pa.Table:
        groups = {group: _united(batches) for group, batches in sorted(self._hashes.items())}
        hashes = {WHOLE_FILE: _united(groups.values()), **groups}
        keys = [file_key(file, group) for group in hashes]
        payloads = [make_bitset(distinct, self._fpp) for distinct in hashes.values()]
        return pa.table([pa.array(keys, pa.binary()), pa.array(payloads, pa.binary())], schema=self._schema)


def _united(hashes: Iterable[pa.UInt64Array]) -> pa.UInt64Array:
    return pc.unique(pa.concat_arrays([pa.array([], pa.uint64()), *hashes]))


def _distinct(arrays: Sequence[pa.Array]) -> Sequence[pa.Array]:
    """Return a single array without its duplicate values; several or nested arrays are returned as they are."""
    if len(arrays) > 1 or pa.types.is_nested(arrays[0].type):
        return arrays
    (array,) = arrays
    return [pc.unique(storage_values(array))]


def _grouped(
    begins: pa.BooleanArray, keys: pa.BinaryArray, firsts: pa.Int64Array, stops: pa.Int64Array
) -> tuple[pa.BinaryArray, pa.Int64Array, pa.Int64Array]:
    """Join postings that follow each other, and return keys, first rows and stops (the row after the last).
    ``begins`` has one boolean for each posting after the first: True if it stays separate from the one before it."""
    if begins.true_count == len(begins):
        return keys, firsts, stops
    lasts = pa.concat_arrays([pc.indices_nonzero(begins).cast(pa.uint64()), pa.array([len(keys) - 1], pa.uint64())])
    starts = pa.concat_arrays([pa.array([0], pa.uint64()), pc.add(lasts.slice(0, len(lasts) - 1), _ONE)])
    return keys.take(starts), firsts.take(starts), stops.take(lasts)


def _limited(
    keys: pa.BinaryArray, firsts: pa.Int64Array, stops: pa.Int64Array, limit: int
) -> tuple[pa.BinaryArray, pa.Int64Array, pa.Int64Array]:
    """Join postings across the smallest gaps, until no key has more than ``limit``. Return keys, starts and stops."""
    runs = pc.run_end_encode(keys)
    ends = runs.run_ends.cast(pa.int64())
    counts = pc.subtract(ends, pa.concat_arrays([pa.array([0], pa.int64()), ends.slice(0, len(ends) - 1)]))
    heavy = pc.indices_nonzero(pc.greater(counts, limit)).to_pylist()
    if not heavy:
        return keys, firsts, stops
    begins: list[pa.BooleanArray] = []
    done = 0
    for run in heavy:
        stop, number = ends[run].as_py(), counts[run].as_py()
        start = stop - number
        begins.append(_repeat_true(start + 1 - done))
        gaps = pc.subtract(firsts.slice(start + 1, number - 1), stops.slice(start, number - 1))
        widest = pc.sort_indices(gaps, sort_keys=[("", "descending")]).slice(0, limit - 1)
        begins.append(pc.is_in(pa.array(range(number - 1), pa.uint64()), value_set=widest))
        done = stop
    begins.append(_repeat_true(len(keys) - done))
    return _grouped(pa.concat_arrays(begins).slice(1), keys, firsts, stops)


_ONE = plain_scalar(1, pa.uint64())


def _repeat_true(number: int) -> pa.BooleanArray:
    return pa.repeat(True, number) if number else pa.array([], pa.bool_())


def _repeated(value: int, number: int) -> pa.Int64Array:
    return pa.repeat(pa.scalar(value, pa.int64()), number) if number else pa.array([], pa.int64())


#: Kinds of index tables whose rows need a file's values; the rows of other kinds need only its footer.
FROM_VALUES: Final = frozenset({"set", "ngram", "bloom", "keys", "text"})

_QUICK_ROWS: Final = 1 << 13  # of a file; fewer rows of these kinds are encoded faster than handed to a thread
_QUICK: Final = frozenset({"keys", "set"})
_TOKENS: Final = 16  # bytes that tokens take at most for each byte of text
_SHARE: Final = 4  # a file's postings take a fourth of a build's memory: sorting takes as much twice again


async def value_rows(
    runtime: Runtime,
    opened: OpenedFile,
    file: int,
    index_tables: Sequence[IndexTable],
    columns: DatasetColumns,
    options: BuildOptions,
) -> dict[IndexTable, pa.Table]:
    """Scan the columns of ``index_tables`` once, and return each table's rows for the file with the id ``file``.
    Raises CorruptFileError if the scan returns fewer or more rows than the footer says."""
    names = list(dict.fromkeys(name for index_table in index_tables for name in index_table.columns))
    groups = [group.num_rows for group in opened.version.metadata.row_groups]
    first_row = left_of_group = 0
    group = -1
    few = sum(groups) <= _QUICK_ROWS and all(index_table.kind in _QUICK for index_table in index_tables)
    with _Values(file, index_tables, columns.schema, options) as values:
        async with aclosing(_batches(runtime, opened, names, columns)) as batches:
            async for batch in batches:
                while batch.num_rows:
                    while not left_of_group:
                        group += 1
                        left_of_group = groups[group]
                    piece = batch.slice(0, left_of_group)
                    await runtime.in_thread(partial(values.add, piece, first_row, group), small=few)
                    batch = batch.slice(piece.num_rows)
                    first_row += piece.num_rows
                    left_of_group -= piece.num_rows
        if first_row != sum(groups):
            raise CorruptFileError(
                f"the scan of the file returned {first_row} rows, but its footer says {sum(groups)}",
                url=opened.version.url,
            )
        return {
            index_table: await runtime.in_thread(partial(values.finish, index_table), small=few)
            for index_table in index_tables
        }


class _Values:
    """Collects the values of one file for several index tables. Postings that exceed the memory limit are written to
    local files."""

    def __init__(self, file: int, index_tables: Sequence[IndexTable], schema: pa.Schema, options: BuildOptions) -> None:
        self._file = file
        self._most_bytes = options.memory_bytes // _SHARE
        self._folder = Path(options.folder or tempfile.gettempdir())
        self._collectors: dict[IndexTable, ValueCollector] = {}
        for index_table in index_tables:
            types = [type_ for name in index_table.columns if (type_ := type_of(schema, name)) is not None]
            self._collectors[index_table] = value_collector(index_table, types)
        self._local: dict[IndexTable, LocalRows] = {}
        self._open = ExitStack()

    def __enter__(self) -> _Values:
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def add(self, batch: pa.RecordBatch, first_row: int, group: int) -> None:
        """Add the next rows of the file, from ``first_row`` on; all are in the row group ``group``."""
        names = dict.fromkeys(name for index_table in self._collectors for name in index_table.columns)
        arrays = {name: leaf_array(batch, name) for name in names}
        texts = {name for index_table in self._collectors if index_table.kind == "text" for name in index_table.columns}
        size = max((_text_bytes(arrays[name]) for name in texts), default=0)
        most = batch.num_rows * (self._most_bytes // _TOKENS) // max(size, 1)
        step = max(1, min(batch.num_rows, most, _CHUNK_ROWS))
        postings = {table: collector for table, collector in self._collectors.items() if table.kind in BY_ROW}
        for start in range(0, batch.num_rows, step):
            for index_table, collector in self._collectors.items():
                slices = [arrays[name].slice(start, step) for name in index_table.columns]
                collector.add(slices, first_row + start, group)
            if sum(collector.pending_bytes for collector in postings.values()) > self._most_bytes:
                for index_table, collector in postings.items():
                    self._put_aside(index_table, collector.finish(self._file))

    def finish(self, index_table: IndexTable) -> pa.Table:
        """Return all rows of the index table ``index_table`` for this file."""
        table = self._collectors[index_table].finish(self._file)
        if index_table not in self._local:
            return table
        self._put_aside(index_table, table)
        return self._local[index_table].table()

    def _put_aside(self, index_table: IndexTable, rows: pa.Table) -> None:
        if index_table not in self._local:
            self._local[index_table] = LocalRows(index_table.schema, self._folder)
            self._open.callback(self._local[index_table].close)
        self._local[index_table].add(rows)


def _text_bytes(array: pa.Array) -> int:
    """Return about how many bytes the array's strings take; a dictionary's string counts once for each row."""
    if isinstance(array.type, pa.DictionaryType):
        return len(array) * int(array.dictionary.nbytes) // max(1, len(array.dictionary))
    return int(array.nbytes)


def leaf_array(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Return the column, or the leaf inside structs, with the dotted path ``name``; null where a struct is null."""
    top = top_level(batch.schema, name) or name
    array = batch.column(top)
    for child in struct_path(array.type, name[len(top) + 1 :]) if top != name else ():
        array = pc.struct_field(array, [child])
    return array


async def _batches(
    runtime: Runtime, opened: OpenedFile, names: Sequence[str], columns: DatasetColumns
) -> AsyncGenerator[pa.RecordBatch]:
    """Yield all rows of the columns ``names`` of the file, in order and in the dataset's types."""
    url = opened.operation.url
    async with runtime.deadline(url):
        await opened.prepare(ScanRequest(columns=names), columns, scan=True, other_bytes=0)
    jobs = await opened.jobs(runtime.options.limits.unit_bytes)
    if len(jobs) == 1:  # nothing to fetch ahead
        ((read, unit, _),) = jobs
        runtime.budget.take(unit.num_bytes)
        try:
            async with runtime.deadline(url):
                tables = await read.run(unit)
            for table in tables:
                for batch in table.to_batches():
                    yield batch
            await opened.finish()
        finally:
            runtime.budget.release(unit.num_bytes)
        return

    async def in_order() -> AsyncGenerator[Job]:
        for job in jobs:
            yield job

    pipeline = Pipeline(in_order(), runtime)
    pipeline.start()
    try:
        while (unit_rows := await pipeline.next(runtime.deadline(url))) is not None:
            for table in unit_rows.tables:
                for batch in table.to_batches():
                    yield batch
            pipeline.done_with_head()
        await opened.finish()
    finally:
        await pipeline.close()
