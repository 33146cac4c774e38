"""Files of writers that are known to get statistics wrong give pyarrow's rows; those of good writers are still pruned.

The files in tests/data/writer_faults were written by such releases. For each row of the table of faults, other files
are made: what the row does not believe is made wrong in them, and ``created_by`` names the writer.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from asyncpq.expressions import Expression
from asyncpq.indexing import Bounds
from asyncpq.indexing.manifest import BOUNDS_VERSION
from asyncpq.parquet.bloom_filter import decode_bloom_filter_header
from asyncpq.parquet.writer_faults import (
    ANY_WRITER,
    FAULTS,
    ORIGINAL_WRITERS,
    Affected,
    Claim,
    WriterFault,
    WriterFaults,
    WriterVersion,
)
from tests import parquet_files
from tests.parquet_files import BINARY, I32, LIST, STRUCT, EditedFile, Items, Struct
from tests.reads import ask, assert_reads, by_pyarrow, row_groups_read, values

pytestmark = pytest.mark.sampled(2)

FOLDER = Path(__file__).resolve().parents[1] / "data" / "writer_faults"
FILES = sorted(path.name for path in FOLDER.glob("*.parquet"))
GOOD_WRITER = b"parquet-cpp-arrow version 26.0.0"
x = col("x")


def predicates_of(name: str, column: pa.ChunkedArray, *, values: int = 5) -> Iterator[Expression]:
    """Questions about nulls, and about some values of a column and both of their sides."""
    this = col(name)
    yield from (this.is_null(), this.is_valid())
    known = sorted(value for value in set(column.to_pylist()) - {None} if value == value)
    for value in [*known[: values - values // 2], *known[len(known) - values // 2 :]]:
        yield from (this == value, this != value, this < value, this >= value, this > value, ~(this <= value))
    if known:
        yield from (this.is_in(known[:2]), ~this.is_in(known[:2]), this.is_in([known[0], None]))


# -- files of such writers --------------------------------------------------------------------------


@pytest.mark.heavy
@pytest.mark.parametrize("name", FILES)
def test_rows_of_their_files(name: str) -> None:
    data = (FOLDER / name).read_bytes()
    table = by_pyarrow(data)
    assert_reads(data, *(each for column in table.column_names for each in predicates_of(column, table[column])))


@pytest.mark.parametrize("name", FILES)
def test_lookups_in_their_files(name: str) -> None:
    data = (FOLDER / name).read_bytes()
    table = by_pyarrow(data)

    async def question(file: asyncpq.File) -> None:
        for column in table.column_names:
            for value in set(table[column].to_pylist()) - {None}:
                where = col(column) == value
                assert values(await file.lookup({column: value})) == values(by_pyarrow(data, where)), str(where)

    ask(data, question)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", FILES)
async def test_datasets_and_indexes_of_their_files(name: str, tmp_path: Path) -> None:
    """What was learnt from the footers of an earlier read, and what is built into an index, is no lie either."""
    data = (FOLDER / name).read_bytes()
    (tmp_path / "a.parquet").write_bytes(data)
    table = by_pyarrow(data)
    asked = [each for column in table.column_names for each in predicates_of(column, table[column], values=2)]
    async with asyncpq.Session() as session:
        await session.build_index(str(tmp_path), [Bounds()], at=str(tmp_path / "_asyncpq"))
        for index in (None, str(tmp_path / "_asyncpq")):
            dataset = await session.open_dataset(str(tmp_path), index=index)
            for where in asked:
                wanted = by_pyarrow(data, where)
                assert values(await dataset.read(["id"], where)) == values(wanted.select(["id"])), str(where)


@pytest.mark.parametrize(
    ("name", "where", "source"),
    [
        ("pyarrow_5.0.0.parquet", col("word").is_null(), "ARROW-12513"),
        ("pyarrow_3.0.0.parquet", col("amount") > Decimal("9800000000000000.00"), "PARQUET-1655"),
        ("pyarrow_10.0.1.parquet", col("category") == "gamma", "apache/arrow#15042"),
        ("polars_2.0.0.parquet", col("ratio") < 0.0, "Polars 0.20 to 2.0 with NaN"),
        ("polars_1.38.1.parquet", col("word").is_null(), "pola-rs/polars#29321"),
        ("parquet-mr_1.8.3.parquet", col("ratio") > 490.0, "PARQUET-1246"),
    ],
)
def test_explain_names_the_source(name: str, where: Expression, source: str) -> None:
    async def question(file: asyncpq.File) -> str:
        return (await file.plan(where=where)).explain()

    explained = ask((FOLDER / name).read_bytes(), question)
    assert "statistics not used, its writer, " in explained
    assert source in explained


def test_only_dictionaries_of_arrow_are_distrusted() -> None:
    """Columns that were no dictionaries in Arrow are encoded alike, and their counts of nulls are right."""
    metadata = parquet_files.metadata_of((FOLDER / "pyarrow_5.0.0.parquet").read_bytes())
    found = {
        leaf.dotted
        for leaf in metadata.schema.leaves
        if metadata.writer_faults.find(Claim.NULL_COUNTS, leaf, metadata.row_groups[0].chunk(leaf.index).encodings)
    }
    assert found == {"word", "category"}
    assert WriterFaults("parquet-cpp-arrow version 5.0.0").find(Claim.NULL_COUNTS, metadata.schema.leaves[5])


# -- the table, row by row --------------------------------------------------------------------------

_WORDS = st.text("abxyz", max_size=4)
_DECIMALS = st.integers(-(10**17), 10**17).map(lambda value: Decimal(value).scaleb(-2))
_STRINGS = (pa.string(), _WORDS)
COLUMNS: dict[Affected, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    Affected.ALL: (pa.int64(), st.integers(-50, 50)),
    Affected.FLOATS: (pa.float64(), st.sampled_from([-2.5, 0.0, 1.5, 7.0, math.nan])),
    Affected.UNSIGNED: (pa.uint32(), st.sampled_from([0, 3, 70, 2**31 + 5, 2**32 - 1])),
    Affected.BOOLEANS: (pa.bool_(), st.booleans()),
    Affected.DECIMALS: (pa.decimal128(20, 2), _DECIMALS),
    Affected.BYTE_DECIMALS: (pa.decimal128(20, 2), _DECIMALS),
    Affected.VARIABLE_DECIMALS: (pa.binary(), st.integers(-100, 100).map(lambda n: n.to_bytes(2, signed=True))),
    Affected.FIXED_LENGTH: (pa.binary(2), st.binary(min_size=2, max_size=2)),
    Affected.BYTE_ARRAYS: _STRINGS,
    Affected.VARIABLE_LENGTH: _STRINGS,
    Affected.ARROW_DICTIONARIES: (pa.dictionary(pa.int32(), pa.string()), _WORDS),
}
_PER_GROUP, _PER_PAGE = 12, 4


def _bounds(file: EditedFile, group: int) -> None:
    """Claim that the greatest value is the only one."""
    statistics = file.statistics(0, group)
    if statistics.value(5) is not None:
        statistics.put(6, statistics.value(5))
        statistics.put(8, True)


def _no_nulls(file: EditedFile, group: int) -> None:
    file.statistics(0, group).put(3, 0)


def _nothing_but_nulls(file: EditedFile, group: int) -> None:
    statistics = file.statistics(0, group)
    statistics.put(3, file.meta(0, group).value(5))
    for field_id in (1, 2, 5, 6):
        statistics.put(field_id, None)


def _edit_index(file: EditedFile, group: int, change: Callable[[Struct, int], None]) -> None:
    if file.chunk(0, group).value(6) is None:
        return  # pyarrow makes none where a page has no bounds
    index = file.column_index(0, group)
    for page in range(len(index.value(1))):
        change(index, page)
    file.set_column_index(index, 0, group)


def _page_bounds(file: EditedFile, group: int) -> None:
    _edit_index(file, group, lambda index, page: index.value(2).__setitem__(page, index.value(3)[page]))


def _empty_page_bounds(file: EditedFile, group: int) -> None:
    def change(index: Struct, page: int) -> None:
        index.value(2)[page] = index.value(3)[page] = b""

    _edit_index(file, group, change)


def _no_nulls_in_pages(file: EditedFile, group: int) -> None:
    def change(index: Struct, page: int) -> None:
        if not index.value(1)[page]:
            index.value(5)[page] = 0

    _edit_index(file, group, change)


def _pages_of_nulls(file: EditedFile, group: int) -> None:
    rows = file.meta(0, group).value(5)

    def change(index: Struct, page: int) -> None:
        index.value(1)[page] = True
        index.value(2)[page] = index.value(3)[page] = b""
        index.value(5)[page] = min(_PER_PAGE, rows - page * _PER_PAGE)

    _edit_index(file, group, change)


def _empty_filter(file: EditedFile, group: int) -> None:
    start, length = file.meta(0, group).value(14), file.meta(0, group).value(15)
    header = decode_bloom_filter_header(bytes(file.body[start : start + length])).header_size
    file.body[start + header : start + length] = bytes(length - header)


LIES: dict[Claim, tuple[Callable[[EditedFile, int], None], ...]] = {
    Claim.BOUNDS: (_bounds,),
    Claim.NULL_COUNTS: (_no_nulls, _nothing_but_nulls),
    Claim.PAGE_BOUNDS: (_page_bounds,),
    Claim.EMPTY_PAGE_BOUNDS: (_empty_page_bounds,),
    Claim.PAGE_NULL_COUNTS: (_no_nulls_in_pages, _pages_of_nulls),
    Claim.BLOOM_FILTERS: (_empty_filter,),
}
ELSEWHERE = {
    Claim.PAGE_ROWS: "tests/decoding/test_nested.py",
    Claim.PAGE_INDEPENDENCE: "tests/objects/test_page_indexes.py",
    Claim.CHUNK_SIZES: "tests/file/test_traps_chunks.py",
}
CASES = [
    pytest.param(fault, claim, lie, id=f"{fault.writer}-{fault.columns.name}-{lie.__name__}-{number}")
    for number, fault in enumerate(FAULTS)
    for claim in sorted(fault.wrong, key=lambda claim: claim.name)
    for lie in LIES.get(claim, ())
]


def file_of(columns: Affected, drawn: list[Any], *, blooms: bool) -> EditedFile:
    """One column x, in row groups and pages of a few rows, with bounds, page indexes and, if asked for, filters."""
    kind, _ = COLUMNS[columns]
    storage = kind.value_type if isinstance(kind, pa.DictionaryType) else kind
    array = pa.array(drawn, storage)
    table = pa.table({"x": array.dictionary_encode() if isinstance(kind, pa.DictionaryType) else array})
    filters = {"bloom_filter_options": {"x": {"ndv": 20, "fpp": 0.01}}} if blooms else {}
    file = EditedFile.of(table, rows_per_page=_PER_PAGE, row_group_size=_PER_GROUP, **filters)
    if columns is Affected.VARIABLE_DECIMALS:
        element = file.element()
        for field_id, value in ((6, 5), (7, 0), (8, 4)):  # converted type DECIMAL, scale, precision
            element.put(field_id, value, I32)
        element.put(10, Struct({5: (12, Struct({1: (I32, 0), 2: (I32, 4)}))}))
        for group in range(len(file.footer.value(4))):  # pyarrow compared the bytes as such
            for field_id in (1, 2, 5, 6):
                file.statistics(0, group).put(field_id, None)
    return file


def name_of(fault: WriterFault) -> bytes:
    """``created_by`` of a release that has the fault."""
    if fault.writer == ANY_WRITER:
        return GOOD_WRITER
    if fault.since == (0, 0, 0) and fault.before is None:
        return fault.writer.encode()
    release = fault.since
    if release == (0, 0, 0) and fault.before is not None:
        major, minor, patch = fault.before
        release = (major, minor, patch - 1) if patch else (major, minor - 1, 9) if minor else (major - 1, 9, 9)
    return f"{fault.writer} version {'.'.join(map(str, release))}".encode()


@pytest.mark.sampled(12)
@pytest.mark.parametrize(("fault", "claim", "lie"), CASES)
@settings(max_examples=4)
@given(data=st.data())
def test_rows_are_right_whatever_is_claimed(
    fault: WriterFault, claim: Claim, lie: Callable[[EditedFile, int], None], data: st.DataObject
) -> None:
    _, some = COLUMNS[fault.columns]
    drawn = data.draw(st.lists(st.none() | some, min_size=1, max_size=30))
    file = file_of(fault.columns, drawn, blooms=claim is Claim.BLOOM_FILTERS)
    file.footer.put(6, name_of(fault))
    for group in range(len(file.footer.value(4))):
        lie(file, group)
    edited = file.data()
    column = by_pyarrow(edited)["x"]
    asked = list(predicates_of("x", column))
    assert_reads(edited, *asked[:2], *data.draw(st.lists(st.sampled_from(asked), min_size=1, max_size=6)))


@pytest.mark.parametrize("writers", ["Polars", "parquet-rs version 57.0.0\nPolars\na", "a\n" * 9_000, None])
def test_the_writers_of_copied_pages_are_asked(writers: str | None) -> None:
    """parquet-java's ParquetRewriter copies pages and statistics, and names their writers."""
    file = file_of(Affected.ALL, [1, None, 2, None], blooms=False)
    file.footer.put(6, b"parquet-mr version 1.15.2 (build 1)")
    pair = Struct({1: (BINARY, ORIGINAL_WRITERS.encode())})
    pair.put(2, None if writers is None else writers.encode(), BINARY)
    file.footer.put(5, Items(STRUCT, [pair]), LIST)
    assert_reads(file.data(), x.is_null(), x == 2)
    _no_nulls(file, 0)
    if writers and "Polars" in writers:
        assert_reads(file.data(), x.is_null(), x.is_valid(), x == 2)
    else:
        assert row_groups_read(file.data(), x.is_null()) == 0


# pyarrow makes no bounds for decimals in BYTE_ARRAY
PRUNED = [columns for columns in COLUMNS if columns is not Affected.VARIABLE_DECIMALS]


@pytest.mark.parametrize("columns", PRUNED)
def test_good_writers_are_believed(columns: Affected) -> None:
    """Row groups are ruled out by bounds, and by counts of nulls."""
    some: dict[Affected, list[Any]] = {
        Affected.ALL: [1, 2, 3],
        Affected.FLOATS: [-2.5, 1.5, 7.0],
        Affected.UNSIGNED: [3, 70, 2**32 - 1],
        Affected.BOOLEANS: [False, True],
        Affected.FIXED_LENGTH: [b"aa", b"bb", b"cc"],
        Affected.DECIMALS: [Decimal("-1.00"), Decimal("2.00"), Decimal("3.00")],
        Affected.BYTE_DECIMALS: [Decimal("-1.00"), Decimal("2.00"), Decimal("3.00")],
    }
    known = some.get(columns, ["a", "b", "c"])
    drawn = [value for value in known for _ in range(_PER_GROUP)]
    file = file_of(columns, [*drawn, *([None] * _PER_GROUP)], blooms=False)
    for writer in (GOOD_WRITER, b"parquet-mr version 1.13.1 (build 1)", b"DuckDB version v1.3.0 (build 1)"):
        file.footer.put(6, writer)
        assert row_groups_read(file.data(), x == known[1]) == 1
        assert row_groups_read(file.data(), x.is_null()) == 1
        assert_reads(file.data(), x == known[1], x.is_null(), x > known[0])


# -- the table itself -------------------------------------------------------------------------------


def test_each_claim_is_tested() -> None:
    assert set(LIES) | set(ELSEWHERE) == set(Claim)
    assert {claim for fault in FAULTS for claim in fault.wrong} == set(Claim)


def test_indexes_built_before_a_fault_was_known_are_told() -> None:
    """Their bounds came from statistics that are not believed any more: BOUNDS_VERSION goes up with the table."""
    ignored = [
        (fault.writer, fault.columns.name, fault.since, fault.before, fault.cloudera_has_fix, fault.unnamed, claim.name)
        for fault in FAULTS
        for claim in (Claim.BOUNDS, Claim.NULL_COUNTS)
        if claim in fault.wrong
    ]
    assert (BOUNDS_VERSION, zlib.crc32(repr(sorted(ignored, key=repr)).encode())) == (2, 3923136277)


@pytest.mark.parametrize("fault", [fault for fault in FAULTS if fault.writer != ANY_WRITER], ids=lambda f: f.source)
def test_releases_of_a_fault(fault: WriterFault) -> None:
    def has(release: tuple[int, int, int] | None) -> bool:
        return fault.is_of(WriterVersion(fault.writer, release, "", None))

    assert has(None) or fault.since == (0, 0, 0)
    assert has(fault.since)
    assert fault.since == (0, 0, 0) or not has((fault.since[0] - 1, 99, 99))
    assert has((999, 0, 0)) is (fault.before is None)
    assert fault.before is None or not has(fault.before)
    assert not fault.is_of(WriterVersion("another writer", (0, 0, 1), "0.0.1", None))
    assert fault.is_of(None) is fault.unnamed


@pytest.mark.parametrize(
    "created_by",
    [
        "delta-rs version py-1.6.6",
        "parquet-rs version 57.0.0",
        "parquet-cpp-arrow version 26.0.0",
        "parquet-mr version 1.15.2 (build 1)",
        "DuckDB version v1.4.1 (build 1)",
        "Polars (python) version 2.1.0 (build 1)",
        "ClickHouse v25.10.1.1-stable",
    ],
)
def test_todays_writers_are_believed(created_by: str) -> None:
    table = pa.table({"i": [1], "b": [True], "s": ["a"], "f": [1.0], "d": pa.array([Decimal(1)], pa.decimal128(20, 0))})
    leaves = parquet_files.metadata_of(EditedFile.of(table).data()).schema.leaves
    faults = WriterFaults(created_by)
    for claim in (Claim.BOUNDS, Claim.NULL_COUNTS, Claim.PAGE_BOUNDS, Claim.PAGE_NULL_COUNTS, Claim.BLOOM_FILTERS):
        assert [leaf.dotted for leaf in leaves if faults.find(claim, leaf) is not None] == []
