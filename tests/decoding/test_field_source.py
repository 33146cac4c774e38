"""Nested columns page by page: any rows, any leaves, any predicate beside them equal pyarrow's, whatever the pages."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq import col
from asyncpq.decoding.field_types import field_types
from asyncpq.decoding.nested import PartialField, merge, num_levels
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.testing import ObjectServer
from tests.example_counts import examples
from tests.parquet_bytes import parquet_bytes
from tests.parquet_samples import LIMITS as DECODE_LIMITS
from tests.parquet_samples import OpenFile
from tests.random_tables import NestedFile, leaf_paths, nested_files, structs
from tests.reads import ask, values

LIMITS = st.builds(
    asyncpq.LimitOptions,
    unit_bytes=st.sampled_from([1, 100, 1000, 1 << 23]),
    in_flight_bytes=st.sampled_from([1, 500, 1 << 27]),
    inline_decode_bytes=st.sampled_from([0, 1 << 19]),
)
REQUESTS = st.builds(
    asyncpq.RequestOptions,
    tail_bytes=st.sampled_from([60, 640 * 1024]),
    late_materialization=st.sampled_from(["auto", "always", "never"]),
)


def assert_valid(found: pa.Table) -> None:
    """All arrays are valid, as far as pyarrow's own are.

    pyarrow fills in index 0 for required values of null structs, also where their dictionary is empty.
    """
    try:
        found.validate(full=True)
    except pa.ArrowInvalid as error:
        if "Dictionary indices invalid" not in str(error) or "(should be in [0, -1])" not in str(error):
            raise


def assert_same(found: pa.Table, wanted: pa.Table) -> None:
    """Equal types, names and rows; dictionaries may be ordered in another way."""
    assert found.schema.equals(wanted.schema), (found.schema, wanted.schema)
    assert_valid(found)
    assert values(found) == values(wanted)


@st.composite
def projections(draw: st.DrawFn, file: NestedFile) -> list[str]:
    """Columns and paths, none inside another, in file order."""
    paths = leaf_paths(file.data)
    chosen: list[str] = []
    for path in draw(st.lists(st.sampled_from(paths), min_size=1, max_size=4, unique=True)):
        if not any(f"{path}.".startswith(f"{each}.") or f"{each}.".startswith(f"{path}.") for each in chosen):
            chosen.append(path)
    return sorted(chosen, key=paths.index)


@pytest.mark.heavy
@given(nested_files(), LIMITS, REQUESTS, st.data())
def test_taken_rows_equal_pyarrow(
    file: NestedFile, limits: asyncpq.LimitOptions, requests: asyncpq.RequestOptions, data: st.DataObject
) -> None:
    rows = data.draw(st.lists(st.integers(0, file.table.num_rows - 1), min_size=1, max_size=20))
    columns = data.draw(projections(file))
    wanted = file.read(columns).to_pylist()
    found = ask(file.data, lambda source: source.take(rows, columns), limits=limits, requests=requests)
    assert found.schema.equals(file.read(columns).schema)
    assert_valid(found)
    assert repr(found.to_pylist()) == repr([wanted[row] for row in rows])


@given(nested_files(), LIMITS, REQUESTS, st.data())
def test_rows_beside_a_predicate_equal_pyarrow(
    file: NestedFile, limits: asyncpq.LimitOptions, requests: asyncpq.RequestOptions, data: st.DataObject
) -> None:
    """Ranges of rows by a predicate on another column, in units of any size, with a limit."""
    numbers = st.integers(-1, file.table.num_rows)
    ranges = data.draw(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=3))
    where = asyncpq.col("id") == -5
    for low, high in ranges:
        where = where | ((col("id") >= low) & (col("id") < high))
    limit = data.draw(st.none() | st.integers(0, 30))
    columns = data.draw(st.none() | projections(file))
    keep = [any(low <= row < high for low, high in ranges) for row in range(file.table.num_rows)]
    mask = pa.array([at for at, kept in enumerate(keep) if kept][:limit], pa.int64())
    whole = file.read(columns)
    found = ask(file.data, lambda source: source.read(columns, where, limit=limit), limits=limits, requests=requests)
    assert found.schema.equals(whole.schema)
    assert_valid(found)
    rows = whole.to_pylist()
    assert repr(found.to_pylist()) == repr([rows[at] for at in mask.to_pylist()])


@given(nested_files(), LIMITS, st.data())
def test_projections_equal_pyarrow(file: NestedFile, limits: asyncpq.LimitOptions, data: st.DataObject) -> None:
    columns = data.draw(projections(file))
    limit = data.draw(st.none() | st.integers(0, 30))
    found = ask(file.data, lambda source: source.read(columns, limit=limit), limits=limits)
    assert_same(found, file.read(columns).slice(0, limit))


@pytest.mark.heavy
@settings(max_examples=examples(25, thorough=250))
@given(nested_files(), st.data())
def test_two_reads_of_one_session_equal_pyarrow(file: NestedFile, data: st.DataObject) -> None:
    """What the first read learnt or kept changes nothing in the second."""
    numbers = st.lists(st.integers(0, file.table.num_rows - 1), min_size=1, max_size=5)
    asked = data.draw(st.lists(numbers, min_size=2, max_size=3))

    async def question(source: asyncpq.File) -> list[pa.Table]:
        return [await source.take(rows) for rows in asked]

    for rows, found in zip(asked, ask(file.data, question), strict=True):
        assert found.schema.equals(file.table.schema)
        whole = file.table.to_pylist()
        assert repr(found.to_pylist()) == repr([whole[row] for row in rows])


@pytest.mark.heavy
@given(nested_files(structs()), REQUESTS, st.data())
def test_predicates_on_struct_leaves_equal_pyarrow(
    file: NestedFile, requests: asyncpq.RequestOptions, data: st.DataObject
) -> None:
    """The filter, pruning by the leaf's own statistics, and rows of the other leaves."""
    leaves = [leaf for field in file.table.schema for leaf in _struct_leaves((field.name,), field.type)]
    path, kind = data.draw(st.sampled_from(leaves))
    present = [value for value in _at(file.table, path).to_pylist() if value is not None]
    assume(present)
    value = data.draw(st.sampled_from(present))
    field, name = pc.field(*path), col(".".join(path))
    where, oracle = data.draw(
        st.sampled_from(
            [
                (name == value, field == value),
                (name != value, field != value),
                (name.is_null(), field.is_null()),
                (~name.is_null(), ~field.is_null()),
                (name.is_in([value]), field.isin(pa.array([value], kind))),
                *([(name > value, field > value)] if pa.types.is_integer(kind) else []),
            ]
        )
    )
    columns = data.draw(st.none() | projections(file))
    mask = _mask(file.table, oracle)
    found = ask(file.data, lambda source: source.read(columns, where), requests=requests)
    whole = file.read(columns)
    rows = whole.to_pylist()
    assert found.schema.equals(whole.schema)
    assert repr(found.to_pylist()) == repr([rows[at] for at in mask])
    assert ask(file.data, lambda source: source.count(where), requests=requests) == len(mask)


@given(nested_files(), st.data())
def test_parts_put_together_equal_the_whole(file: NestedFile, data: st.DataObject) -> None:
    """Leaves in any groups, cut to any rows; and each leaf has as many levels as its chunk has values."""
    opened = OpenFile(file.data)
    column = data.draw(st.integers(1, file.table.num_columns - 1))
    leaves = list(range(opened.field(column).first_leaf, opened.field(column).leaf_stop))
    (kind,) = field_types(opened.version, [column], frozenset())
    whole = opened.whole(column)
    every = RowRanges.all(opened.num_rows())
    for leaf in leaves:
        array = whole.select(every, DECODE_LIMITS, [leaf])
        counts = num_levels(array, kind.arrow.type, leaves[0], [leaf], leaf)
        assert pc.sum(counts).as_py() == opened.version.chunk(0, leaf).num_values
    chosen = data.draw(st.lists(st.sampled_from(leaves), min_size=1, unique=True))
    groups: dict[int, list[int]] = {}
    for leaf in sorted(chosen):
        groups.setdefault(data.draw(st.integers(0, 2)), []).append(leaf)
    start = data.draw(st.integers(0, opened.num_rows() - 1))
    rows = RowRanges([(start, data.draw(st.integers(start + 1, opened.num_rows())))])
    parts = [PartialField(tuple(some), whole.select(rows, DECODE_LIMITS, some)) for some in groups.values()]
    wanted = whole.select(rows, DECODE_LIMITS, sorted(chosen))
    found = merge(parts, kind.arrow.type, leaves[0], wanted.type)
    assert_valid(found)
    assert found.type == wanted.type
    assert repr(found.to_pylist()) == repr(wanted.to_pylist())


def _struct_leaves(path: tuple[str, ...], kind: pa.DataType) -> list[tuple[tuple[str, ...], pa.DataType]]:
    """Leaves of plain types that are reached through structs only."""
    if pa.types.is_struct(kind):
        return [leaf for child in kind for leaf in _struct_leaves((*path, child.name), child.type)]
    is_plain = kind in (pa.int32(), pa.int64(), pa.string(), pa.bool_())
    return [(path, kind)] if is_plain and len(path) > 1 else []


def _at(table: pa.Table, path: tuple[str, ...]) -> pa.Array:
    return pc.struct_field(table.column(path[0]).combine_chunks(), list(path[1:]))


def _mask(table: pa.Table, oracle: pc.Expression) -> list[int]:
    """Row numbers that ``oracle`` keeps."""
    names = [f"n{at}" for at in range(table.num_columns - 1)]
    kept = pa.table({"id": table.column("id")} | {name: table.column(name) for name in names})
    rows: list[int] = kept.filter(oracle).column("id").to_pylist()
    return rows


async def test_rows_of_a_list_column_do_not_keep_all_rows_of_the_row_group() -> None:
    """Its chunk is decoded whole, for the first of several units."""
    num_rows = 400_000
    lists = pa.ListArray.from_arrays(pa.array(range(num_rows + 1), pa.int32()), pa.array(range(num_rows), pa.int32()))
    table = pa.table({"lists": lists, "numbers": pa.array(range(num_rows), pa.int64())})
    async with ObjectServer() as server:
        server.put("lake/file.parquet", parquet_bytes(table, use_dictionary=False, compression="none"))
        limits = asyncpq.LimitOptions(unit_bytes=1 << 20)
        async with asyncpq.Session(server.storage_options, limits=limits) as session:
            file = await session.open_file("s3://lake/file.parquet")
            async with file.scan() as scan:
                batches = [batch async for batch in scan]
    assert pa.Table.from_batches(batches) == table
    kept = [batch.column(0).get_total_buffer_size() for batch in batches]
    assert max(kept) < lists.get_total_buffer_size() / 2
