"""Datasets with an index equal pyarrow on the whole, in each view's own terms: random files, predicates, parts, and
files that are replaced, added and deleted after the index was made.

Listed: the rows that are there now. Snapshot: of files that are as the index knows them, their rows; of one that was
replaced all of the new ones or, where the index ruled it out, none; of one that was added none.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq.dataset import Dataset
from asyncpq.expressions import Expression
from asyncpq.indexing.backends.memory_backend import MemoryBackend
from asyncpq.indexing.index_model import IndexTable
from asyncpq.indexing.key_encoding import is_indexable
from asyncpq.indexing.manifest.commits import Head
from asyncpq.indexing.query.file_selection import FileIndex, FileSlice, FileSlices
from asyncpq.indexing.query.index_query import OpenIndex
from asyncpq.opening.datasets import open_indexed, open_snapshot
from asyncpq.pruning.access_plan import AccessPlan
from tests.file.test_file import assert_same
from tests.indexing.brute_indexes import NGRAM, TEXT
from tests.lakes import FOOTERS, indexed
from tests.predicates import LIST, expressions, oracle
from tests.random_tables import WriterOptions, tables, writer_options
from tests.test_dataset import LIMITS, asked

_REFUSALS = (pa.ArrowException, OverflowError, TypeError, ValueError)


def possible_parts(table: pa.Table, kinds: dict[str, str]) -> list[IndexTable]:
    """Parts over the columns that predicates may name."""
    found = [FOOTERS]
    for name, kind in kinds.items():
        type_ = table.schema.field(name).type
        if kind == LIST:
            found += [IndexTable("keys", (name,)), IndexTable("set", (name,))]
        elif is_indexable(type_):
            found += [IndexTable(what, (name,)) for what in ("bounds", "set", "keys", "bloom")]
        if kind in ("string", "large_string"):
            found += [IndexTable("ngram", (name,), NGRAM), IndexTable("text", (name,), TEXT)]
    return found


def read_table(path: Path) -> pa.Table:
    """A file, by pyarrow."""
    try:
        return pq.read_table(path)
    except pa.ArrowInvalid:
        assume(False)  # pyarrow's writer loses nested rows where a dictionary overflows at once
        raise


@settings(max_examples=max(10, settings().max_examples // 4))
@given(tables(max_rows=60), writer_options, LIMITS, st.data())
def test_reads_equal_pyarrow(
    made: tuple[pa.Table, dict[str, str]], writer: WriterOptions, limits: asyncpq.LimitOptions, data: st.DataObject
) -> None:
    table, kinds = made
    count = data.draw(st.integers(1, 4))
    cuts = [number * len(table) // count for number in range(count + 1)]
    pieces = [table.slice(start, stop - start) for start, stop in itertools.pairwise(cuts)]
    files = [(f"{number}.parquet", writer.write(piece)) for number, piece in enumerate(pieces)]
    parts = data.draw(st.lists(st.sampled_from(possible_parts(table, kinds)), unique=True, min_size=1))
    replaced = data.draw(st.sets(st.integers(0, count - 1), max_size=2))
    added = data.draw(st.booleans())
    wheres = data.draw(st.lists(expressions(kinds, foreign=False), min_size=1, max_size=2))
    lookup_first = data.draw(st.booleans())

    async def question(root: Path) -> None:
        now = [read_table(root / path) for path, _ in files]
        schema = now[0].schema
        async with asyncpq.Session(limits=limits, cache_policy=asyncpq.etag(0)) as session:
            backend = MemoryBackend()
            manifest = await indexed(session, backend, f"{root}/", [path for path, _ in files], parts, schema)

            async def answers(dataset: Dataset, *, exact: bool) -> None:
                for where in wheres:
                    try:
                        wanted = [piece.filter(oracle(where)) for piece in now]
                        found = await dataset.read(where=where)
                    except _REFUSALS:
                        assume(False)
                    if exact:
                        assert_same(found, pa.concat_tables(wanted))
                        assert await dataset.count(where) == found.num_rows
                        continue
                    # in the order of the files, any of those that were replaced may be missing
                    left = found
                    for number, rows in enumerate(wanted[: len(files)]):
                        if number not in replaced or left.slice(0, len(rows)).equals(rows):
                            assert_same(left.slice(0, len(rows)), rows)
                            left = left.slice(len(rows))
                    assert left.num_rows == 0

            def snapshot() -> Dataset:
                return open_snapshot(session._runtime, OpenIndex(backend, Head(backend, manifest)), skips=False)

            if lookup_first:
                await answers(snapshot(), exact=True)
            for number in sorted(replaced):
                piece = pieces[-1 - number]
                (root / files[number][0]).unlink()
                (root / files[number][0]).write_bytes(writer.write(pa.concat_tables([piece, piece.slice(0, 3)])))
                now[number] = read_table(root / files[number][0])
            if added:
                (root / "9.parquet").write_bytes(files[0][1])
                now.append(read_table(root / "9.parquet"))
            base = await session.open_dataset(root, schema=schema)
            listed = open_indexed(session._runtime, base, OpenIndex(backend, Head(backend, manifest)))
            await answers(listed, exact=True)
            if not _has_nan(now):
                await answers(snapshot(), exact=False)

    asked(files, question)


def _has_nan(tables_: Sequence[pa.Table]) -> bool:
    """Tables with NaN do not equal themselves."""
    return any(not table.equals(table) for table in tables_)


class OwnIndex:
    """Says of each file what it is told to."""

    def __init__(self, slices: FileSlices) -> None:
        self._slices = slices

    async def prune(self, where: Expression) -> FileSlices:
        """See :class:`FileIndex`."""
        return self._slices


@settings(max_examples=max(10, settings().max_examples // 2))
@given(tables(max_rows=40, nested=False), writer_options, st.data())
def test_indexes_of_ones_own(made: tuple[pa.Table, dict[str, str]], writer: WriterOptions, data: st.DataObject) -> None:
    """Any superset of the matching rows, said in any way, leaves them all."""
    table, kinds = made
    files = [(f"{number}.parquet", writer.write(table.slice(number * 10, 10))) for number in range(4)]
    where = data.draw(expressions(kinds, foreign=False))

    async def question(root: Path) -> None:
        now = [read_table(root / path) for path, _ in files]
        try:
            wanted = [piece.append_column("#", pa.array(range(len(piece)))).filter(oracle(where)) for piece in now]
        except _REFUSALS:
            assume(False)
        named: dict[str, FileSlice] = {}
        others: Literal["none", "unknown"] = data.draw(st.sampled_from(["none", "unknown"]))
        for (path, _), rows in zip(files, wanted, strict=True):
            if (len(rows) and others == "none") or data.draw(st.booleans()):
                plan = AccessPlan.rows(rows.column("#").to_pylist())
                size = data.draw(st.sampled_from([None, (root / path).stat().st_size, 1]))
                key = data.draw(st.sampled_from([path, f"{root}/{path}"]))
                named[key] = FileSlice(plan if size != 1 else AccessPlan.none(), size=size)
        own: FileIndex = OwnIndex(FileSlices(files=named, others=others))
        async with asyncpq.Session() as session:
            base = await session.open_dataset(root)
            dataset = open_indexed(session._runtime, base, None, [own], folder=f"{root}/")
            try:
                found = await dataset.read(where=where)
            except _REFUSALS:
                assume(False)
            assert_same(found, pa.concat_tables([rows.drop_columns("#") for rows in wanted]))

    asked(files, question)
