"""Datasets with an index equal pyarrow on the whole, in each view's own terms: random files, predicates, parts, and
files that are replaced, added and deleted after the index was made.

Listed: the rows that are there now. Snapshot: of files that are as the index knows them, their rows; of one that was
replaced all of the new ones or, where the index ruled it out, none; of one that was added none.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from asyncpq.dataset import Dataset
from asyncpq.datasets.model import DataFile
from asyncpq.datasets.providers import FileSet
from asyncpq.errors import CorruptIndexError
from asyncpq.expressions import Expression
from asyncpq.indexing import Bounds
from asyncpq.indexing.backends.memory_backend import MemoryBackend
from asyncpq.indexing.commits import Head
from asyncpq.indexing.index_model import IndexTable, Segment
from asyncpq.indexing.key_encoding import is_indexable
from asyncpq.indexing.query import indexed_files
from asyncpq.indexing.query.file_entries import FileEntry
from asyncpq.indexing.query.file_selection import FileIndex, FileSlice, FileSlices, SnapshotRead
from asyncpq.indexing.query.index_query import OpenIndex
from asyncpq.indexing.query.indexed_files import SnapshotFiles, entries_of
from asyncpq.opening.datasets import open_indexed, open_snapshot
from asyncpq.options import LimitOptions
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.scan.request import ScanRequest
from tests.file.test_file import assert_same
from tests.indexing.brute_indexes import NGRAM, TEXT
from tests.indexing.query.one_column_lakes import make, write
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


@pytest.mark.heavy
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


# -- view snapshot ---------------------------------------------------------------------------------


@pytest.fixture
async def session() -> AsyncIterator[asyncpq.Session]:
    async with asyncpq.Session(cache_policy=asyncpq.etag(0)) as running:
        yield running


async def test_the_first_files_are_those_of_the_lowest_urls(
    session: asyncpq.Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["b.parquet", "ä.parquet", "d.parquet", "a.parquet", "Z.parquet", "c.parquet", "e.parquet"]
    backend = MemoryBackend()
    paths = write(tmp_path, {name: [number] for number, name in enumerate(names)})
    retired = ["Z.parquet", "a.parquet", "b.parquet"]
    manifest = await make(session, backend, tmp_path, paths, retired=retired)
    source = SnapshotFiles(session._runtime, OpenIndex(backend, Head(backend, manifest)))
    read = list[int]()

    async def counted(reads: SnapshotRead, ids: RowRanges, *args: Any) -> dict[int, FileEntry]:
        read.append(ids.num_rows)
        return await entries_of(reads, ids, *args)

    monkeypatch.setattr(indexed_files, "entries_of", counted)
    for count, expected in ((1, ["c"]), (2, ["c", "d"]), (4, ["c", "d", "e", "ä"]), (9, ["c", "d", "e", "ä"])):
        found = await source.first(count, session._runtime.operation("open", str(tmp_path)))
        assert [Path(file.url).stem for file in found] == expected
    assert read == [1, 2, 4, 4]


@pytest.fixture
async def narrow() -> AsyncIterator[asyncpq.Session]:
    """A session to which three files are many."""
    async with asyncpq.Session(cache_policy=asyncpq.etag(0), limits=LimitOptions(files_ahead=2)) as running:
        yield running


def shown(files: Sequence[DataFile]) -> list[Any]:
    return [
        (file.url, file.validator, file.num_rows, file.partition, file.entry and file.entry.access) for file in files
    ]


async def sets_of(source: SnapshotFiles, session: asyncpq.Session, ask: ScanRequest, most_files: int) -> list[FileSet]:
    return [found async for found in source.sets(ask, session._runtime.operation("read", ""), most_files=most_files)]


@pytest.mark.parametrize("most_files", [1, 2, 3, 5, 7, 100])
@pytest.mark.parametrize(
    ("where", "kept"),
    [(None, range(8)), (col("a") >= 3, range(3, 8)), (col("a") == 4, [4]), (col("a") > 100, [])],
    ids=["all", "some", "one", "none"],
)
async def test_sets_have_the_files_in_order(
    narrow: asyncpq.Session, session: asyncpq.Session, tmp_path: Path, where: Any, kept: Sequence[int], most_files: int
) -> None:
    backend = MemoryBackend()
    names = ["b", "ä", "d", "f/x", "a", "Z", "c", "e"]
    paths = write(tmp_path, {f"{name}.parquet": [number] for number, name in enumerate(names)})
    manifest = await make(session, backend, tmp_path, paths, retired=["Z.parquet"])
    ask = ScanRequest(where=where)
    index = OpenIndex(backend, Head(backend, manifest))
    few = await SnapshotFiles(session._runtime, index).files(ask, session._runtime.operation("read", ""))
    urls = [f"{tmp_path}/{names[number]}.parquet" for number in kept if names[number] != "Z"]
    assert [file.url for file in few.files] == sorted(urls)
    many = SnapshotFiles(narrow._runtime, index)
    assert shown((await many.files(ask, narrow._runtime.operation("read", ""))).files) == shown(few.files)
    sets = await sets_of(many, narrow, ask, most_files)
    assert shown([file for found in sets for file in found.files]) == shown(few.files)
    assert all(len(found.files) <= most_files for found in sets)
    assert sum(found.total or 0 for found in sets) == 7
    assert sum(found.by_index for found in sets) == 7 - len(urls)


async def test_sets_have_only_the_files_whose_rows_are_asked_for(narrow: asyncpq.Session, tmp_path: Path) -> None:
    backend = MemoryBackend()
    manifest = await make(narrow, backend, tmp_path, write(tmp_path, {f"{name}.parquet": [1] for name in "abcde"}))
    source = SnapshotFiles(narrow._runtime, OpenIndex(backend, Head(backend, manifest)))
    asked = [f"{tmp_path}/{name}.parquet" for name in "adb"]
    sets = await sets_of(source, narrow, ScanRequest(by_file=dict.fromkeys(asked, AccessPlan.all())), 2)
    assert [[file.url for file in found.files] for found in sets] == [sorted(asked)[:2], sorted(asked)[2:]]


async def test_sets_of_a_list_that_lacks_files_are_an_error(narrow: asyncpq.Session, tmp_path: Path) -> None:
    class Lossy(MemoryBackend):
        change: Callable[[pa.Table], pa.Table]

        async def read_segment(self, segment: Segment, *args: Any, **named: Any) -> pa.Table | None:
            rows = await super().read_segment(segment, *args, **named)
            return rows if rows is None or segment.table.kind != "files" else self.change(rows)

    backend = Lossy()
    manifest = await make(narrow, backend, tmp_path, write(tmp_path, {f"{name}.parquet": [1] for name in "abcd"}))
    source = SnapshotFiles(narrow._runtime, OpenIndex(backend, Head(backend, manifest)))
    for backend.change in (
        lambda rows: rows.slice(1),
        lambda rows: pa.concat_tables([rows.slice(1), rows.slice(3)]),  # a file twice, and one not at all
    ):
        with pytest.raises(CorruptIndexError, match="lacks some of its files"):
            await sets_of(source, narrow, ScanRequest(), 2)


async def test_sets_have_the_values_in_paths(narrow: asyncpq.Session, tmp_path: Path) -> None:
    write(tmp_path, {f"p={number}/x.parquet": [number] for number in range(9)})
    await narrow.build_index(tmp_path, [Bounds("a")])
    dataset = await narrow.open_dataset(tmp_path, view="snapshot")
    assert isinstance(dataset._state.source, SnapshotFiles)
    sets = await sets_of(dataset._state.source, narrow, ScanRequest(), 4)
    assert [[file.partition["p"] for file in found.files] for found in sets] == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]
    assert (await dataset.read(where="p > 6 AND a < 8"))["a"].to_pylist() == [7]
