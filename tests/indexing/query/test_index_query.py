"""What the parts of an index answer holds every row for which pyarrow's filter is true: random columns, predicates,
parts, row groups, files that are retired or unknown, and segments; and exactly those rows, where keys can say."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq.decoding.filter import compile_filter
from asyncpq.events import Operation
from asyncpq.expressions import Expression, col, simplify
from asyncpq.indexing import Keys
from asyncpq.indexing.backends.memory_backend import MemoryBackend
from asyncpq.indexing.commits import id_ranges
from asyncpq.indexing.index_model import IndexTable, SegmentQuery
from asyncpq.indexing.key_encoding import is_indexable
from asyncpq.indexing.manifest import Manifest
from asyncpq.indexing.query.file_selection import FileSelection, FileSlices, SnapshotRead
from asyncpq.indexing.query.index_query import IndexQuery, answer
from asyncpq.objects.runtime import Runtime
from asyncpq.options import LimitOptions, SessionOptions
from asyncpq.scan.request import ScanRequest
from tests.indexing.brute_indexes import NGRAM, TEXT, BruteFile, write_index
from tests.predicates import KINDS, LIST, array, arrays, expressions, oracle

_REFUSALS = (pa.ArrowException, OverflowError, TypeError, ValueError)
_TEXTS = ("string", "large_string")


class Lake(NamedTuple):
    """Files, what an index knows of them, and what its columns are."""

    files: list[BruteFile]
    parts: list[IndexTable]
    kinds: dict[str, str]
    cuts: list[int]
    schema: pa.Schema


@st.composite
def lakes(draw: st.DrawFn) -> Lake:
    """Up to five files of two or three columns."""
    kinds = {"a": draw(KINDS), "b": draw(KINDS)}
    if draw(st.booleans()):
        kinds["l"] = LIST
    parts = draw(st.lists(st.sampled_from(_parts(kinds)), unique=True, min_size=1))
    files: list[BruteFile] = []
    for _ in range(draw(st.integers(1, 5))):
        groups = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
        table = pa.table({name: _column(draw, kind, sum(groups)) for name, kind in kinds.items()})
        unknown = draw(st.dictionaries(st.sampled_from(parts), st.sampled_from(["row", "absent"]), max_size=1))
        unknown = {part: how if part.kind != "bloom" else "absent" for part, how in unknown.items()}
        files.append(BruteFile(table, groups, live=draw(st.integers(0, 4)) > 0, unknown=unknown))
    cuts = sorted(draw(st.sets(st.integers(1, len(files)), max_size=2)))
    return Lake(files, parts, kinds, cuts, files[0].table.schema)


def _column(draw: st.DrawFn, kind: str, num_rows: int) -> pa.Array:
    if kind == LIST:
        lists = st.none() | st.lists(st.none() | st.integers(0, 9), max_size=3)
        return pa.array(draw(st.lists(lists, min_size=num_rows, max_size=num_rows)), pa.list_(pa.int64()))
    return array(kind, draw(arrays(kind, min_size=num_rows, max_size=num_rows)))


def _parts(kinds: dict[str, str]) -> list[IndexTable]:
    found: list[IndexTable] = []
    for name, kind in kinds.items():
        if kind == LIST:
            found += [IndexTable("keys", (name,)), IndexTable("set", (name,)), IndexTable("bloom", (name,))]
        elif is_indexable(array(kind, []).type):
            found += [IndexTable(what, (name,)) for what in ("bounds", "set", "keys", "bloom")]
        if kind in _TEXTS:
            found += [IndexTable("ngram", (name,), NGRAM), IndexTable("text", (name,), TEXT)]
    found.append(IndexTable("keys", ("a", "b")))
    return found


async def answered(lake: Lake, where: Expression, max_postings: int = 1000) -> tuple[FileSelection, Manifest]:
    """With and without bloom filters, one of which is a superset of the other."""
    backend = MemoryBackend()
    manifest = await write_index(backend, lake.parts, lake.files, lake.schema, cuts=lake.cuts)
    operation = Operation("plan", "index", (), None)
    runtime = Runtime(SessionOptions(limits=LimitOptions(max_postings=max_postings)), {})
    snapshot = SnapshotRead(runtime, backend, manifest, ScanRequest(where=where), operation)
    query = IndexQuery(snapshot, simplify(where))
    found = await query.run()
    for part in query.bloom_tables:
        for read in snapshot.segments(part, SegmentQuery(id_ranges(found.files)), tolerant=True):
            table = await read(operation)
            assert table is not None
            query.take_blooms(part, table)
    assert (query.selection() & found) == query.selection() or query.bloom_tables
    return query.selection(), manifest


def missing_rows(lake: Lake, found: FileSelection, wanted: dict[int, list[int]]) -> list[tuple[int, int]]:
    """Rows that match, and are not in what was found."""
    missing: list[tuple[int, int]] = []
    for number, rows in wanted.items():
        file = lake.files[number]
        resolved = found.plan(number).resolve(file.groups)
        firsts = [sum(file.groups[:group]) for group in range(len(file.groups))]
        held = {firsts[group] + row for group, some in resolved.items() for row in some.rows()}
        missing += [(number, row) for row in rows if row not in held]
    return missing


def matching(lake: Lake, where: Expression) -> dict[int, list[int]]:
    """By pyarrow, of files in use."""
    compile_filter(where, lake.schema)  # what is refused is not asked
    found: dict[int, list[int]] = {}
    for number, file in enumerate(lake.files):
        table = file.table.append_column("row", pa.array(range(file.table.num_rows), pa.int64()))
        if file.live:
            found[number] = table.filter(oracle(where)).column("row").to_pylist()
    return found


@pytest.mark.heavy
@settings(max_examples=settings().max_examples * 2)
@given(lakes(), st.data())
def test_answers_hold_all_rows_that_match(lake: Lake, data: st.DataObject) -> None:
    where = data.draw(expressions(lake.kinds))
    try:
        wanted = matching(lake, where)
    except _REFUSALS:
        assume(False)
        return
    found, manifest = asyncio.run(answered(lake, where, data.draw(st.sampled_from([1, 5, 1000]))))
    assert missing_rows(lake, found, wanted) == []
    assert found.files & manifest.live == found.files


@given(lakes(), st.data())
def test_keys_answer_equality_exactly(lake: Lake, data: st.DataObject) -> None:
    """Of files that the index knows, in columns whose keys stand for one value."""
    name = data.draw(
        st.sampled_from([name for name in "ab" if IndexTable("keys", (name,)) in _parts(lake.kinds)] or [""])
    )
    assume(name)
    both = data.draw(st.booleans())
    parts = [IndexTable("keys", ("a", "b"))] if both and name == "a" else [IndexTable("keys", (name,))]
    files = [replace(file, unknown=None) for file in lake.files]
    lake = lake._replace(parts=parts, files=files)
    values = [value for file in files for value in file.table.column(name).to_pylist() if value is not None]
    assume(values)
    where = col(name) == data.draw(st.sampled_from(values))
    try:
        wanted = matching(lake, where)
    except _REFUSALS:
        assume(False)
        return
    found, _ = asyncio.run(answered(lake, where))
    assert missing_rows(lake, found, wanted) == []
    for number, rows in wanted.items():
        assert found.plan(number).resolve(files[number].groups).num_rows == len(rows)


@pytest.mark.parametrize("kind", ["bounds", "set", "keys", "bloom", "ngram", "text"])
def test_each_kind_rules_files_out(kind: str) -> None:
    options: Any = {"ngram": NGRAM, "text": TEXT}.get(kind, ())
    part = IndexTable(kind, ("s",), options)
    tables = [pa.table({"s": [f"{number} red", f"{number} green"]}) for number in range(10)]
    files = [BruteFile(table, (1, 1)) for table in tables]
    lake = Lake(files, [part], {"s": "string"}, [4], files[0].table.schema)
    where = col("s").has_tokens("green 7") if kind == "text" else col("s") == "7 green"
    found, _ = asyncio.run(answered(lake, where))
    assert 7 in found.files
    assert found.files.num_rows <= (5 if kind == "bloom" else 1)  # a tenth of the filters say yes for nothing
    assert list(found.plan(7).resolve((1, 1))) == ([0, 1] if kind in ("set", "ngram") else [1])


@pytest.mark.parametrize("kind", ["bounds", "set", "keys", "ngram", "text"])
def test_files_that_a_part_does_not_know_may_match(kind: str) -> None:
    options: Any = {"ngram": NGRAM, "text": TEXT}.get(kind, ())
    part = IndexTable(kind, ("s",), options)
    table = pa.table({"s": ["red", "green"]})
    files = [BruteFile(table, (2,), unknown={part: how} if how else None) for how in (None, "row", "absent", None)]
    lake = Lake(files, [part], {"s": "string"}, [2], table.schema)
    where = col("s").has_tokens("white") if kind == "text" else col("s") == "white"
    found, _ = asyncio.run(answered(lake, where))
    assert list(found.files.rows()) == [1, 2]
    assert all(found.plan(file).is_all for file in (1, 2))


def test_two_elements_of_one_list() -> None:
    tables = [pa.table({"l": pa.array(rows, pa.list_(pa.int64()))}) for rows in ([[1, 2], [1]], [[2], [1]])]
    for kind in ("keys", "set"):
        files = [BruteFile(table, (2,)) for table in tables]
        lake = Lake(files, [IndexTable(kind, ("l",))], {"l": LIST}, [], tables[0].schema)
        found, _ = asyncio.run(answered(lake, col("l").has(1) & col("l").has(2)))
        assert list(found.files.rows()) == ([0] if kind == "keys" else [0, 1])


def test_an_index_gets_the_predicate_as_the_request_has_simplified_it() -> None:
    """Once for all files and indexes: a long predicate is simplified in a thread, not on the event loop again."""
    asked: list[Expression] = []

    class Own:
        async def prune(self, where: Expression) -> FileSlices:
            asked.append(where)
            return FileSlices(files={})

    request = ScanRequest(where=~~((col("a") == 1) & (col("b") == 2))).simplified()
    asyncio.run(answer(None, None, [Own()], request))
    assert asked[0] is request.simple_where
    pruned = request._replace(prune=col("a") == 3)
    asyncio.run(answer(None, None, [Own()], pruned))
    assert asked[1] is pruned.prune


async def test_a_plan_counts_one_row_as_one(tmp_path: Path) -> None:
    for number in range(3):
        pq.write_table(pa.table({"id": range(number * 9, number * 9 + 9)}), tmp_path / f"{number}.parquet")
    async with asyncpq.Session() as session:
        await session.build_index(str(tmp_path), [Keys("id")])
        async with await session.open_dataset(str(tmp_path)) as dataset:
            explained = (await dataset.plan(lookup={"id": 4})).explain()
    assert re.search(r"keys\(id\): 1 of 3 files, 1 row$", explained, re.MULTILINE)
