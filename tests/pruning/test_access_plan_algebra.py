"""Access plans are sets of rows, and reads heed them: the laws of their algebra, and reads by random plans,
predicates and limits beside pyarrow's whole table, filtered by row number."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import asyncpq
from asyncpq import AccessPlan
from asyncpq.pruning.access_plan import RowGroupLayout
from asyncpq.pruning.row_ranges import RowRanges
from tests.file.test_file import _REFUSALS, LIMITS, REQUESTS, assert_refused, assert_same
from tests.predicates import expressions, oracle
from tests.random_tables import NestedFile, WriterOptions, nested_files, tables, writer_options
from tests.reads import ask


class Known(NamedTuple):
    """A plan, and the rows of the file that it is meant to allow."""

    plan: AccessPlan
    rows: frozenset[int]


def _stretches(stop: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    edges = st.tuples(st.integers(0, stop), st.integers(0, stop)).map(lambda pair: (min(pair), max(pair)))
    return st.lists(edges, max_size=4)


def _within(ranges: Iterable[tuple[int, int]], first: int = 0) -> frozenset[int]:
    return frozenset(first + row for start, stop in ranges for row in range(start, stop))


@st.composite
def leaves(draw: st.DrawFn, counts: Sequence[int]) -> Known:
    """A plan as users make it, for a file with row groups of so many rows."""
    firsts = [sum(counts[:ordinal]) for ordinal in range(len(counts))]
    groups = [frozenset(range(first, first + count)) for first, count in zip(firsts, counts, strict=True)]
    total = sum(counts)
    kind = draw(st.sampled_from(["all", "none", "row_groups", "rows", "steps", "row_ranges", "from_row_groups"]))
    if kind == "all":
        return Known(AccessPlan.all(), frozenset(range(total)))
    if kind == "rows" and total:
        rows = draw(st.lists(st.integers(0, total - 1), max_size=6))
        return Known(AccessPlan.rows(rows), frozenset(rows))
    if kind == "steps":  # many ranges, also of a page
        step, length = draw(st.integers(2, 5)), draw(st.integers(1, 4))
        ranges = [(row, min(total, row + length)) for row in range(draw(st.integers(0, 5)), total, step)]
        return Known(AccessPlan.row_ranges(ranges), _within(ranges))
    if kind == "row_ranges":
        ranges = draw(_stretches(total))
        return Known(AccessPlan.row_ranges(ranges), _within(ranges))
    if kind in ("row_groups", "from_row_groups") and counts:
        ordinals = draw(st.lists(st.integers(0, len(counts) - 1), max_size=4))
        if kind == "row_groups":
            return Known(AccessPlan.row_groups(ordinals), frozenset().union(*[groups[at] for at in ordinals]))
        parts = {at: draw(st.none() | _stretches(counts[at])) for at in ordinals}
        rows_of = [groups[at] if some is None else _within(some, firsts[at]) for at, some in parts.items()]
        return Known(AccessPlan.from_row_groups(parts), frozenset().union(*rows_of))
    return Known(AccessPlan.none(), frozenset())


@st.composite
def plans(draw: st.DrawFn, counts: Sequence[int]) -> Known:
    """Plans, combined."""
    known = draw(leaves(counts))
    for operation in draw(st.lists(st.sampled_from("&|-~"), max_size=4)):
        plan, rows = known
        if operation == "~":
            known = Known(~plan, frozenset(range(sum(counts))) - rows)
            continue
        other = draw(leaves(counts))
        if draw(st.booleans()):
            plan, rows, other = other.plan, other.rows, known
        if operation == "&":
            known = Known(plan & other.plan, rows & other.rows)
        elif operation == "|":
            known = Known(plan | other.plan, rows | other.rows)
        else:
            known = Known(plan - other.plan, rows - other.rows)
    return known


COUNTS = st.lists(st.integers(0, 6), max_size=6)


def allowed(plan: AccessPlan, counts: Sequence[int]) -> set[int]:
    """The rows of the file that a plan allows; holds what it resolves to to its form."""
    found = plan.resolve(counts)
    firsts = [sum(counts[:ordinal]) for ordinal in range(len(counts))]
    assert list(found) == sorted(found)
    assert len(found) == len(list(found))
    assert all(rows and rows.stop <= counts[ordinal] for ordinal, rows in found.items())
    assert all(rows.num_rows < counts[ordinal] for ordinal, rows in found.selected.items())
    assert not any(ordinal in found.selected for ordinal in found.scanned.rows())
    rows = {firsts[ordinal] + row for ordinal, some in found.items() for row in some.rows()}
    assert found.num_rows == len(rows)
    assert found.ordinals == RowRanges.from_rows(found)
    assert all(found.get(ordinal) is None for ordinal in range(len(counts) + 1) if ordinal not in list(found))
    return rows


@given(COUNTS.flatmap(lambda counts: st.tuples(st.just(counts), plans(counts))))
def test_a_plan_allows_the_rows_it_is_meant_to(case: tuple[list[int], Known]) -> None:
    counts, (plan, rows) = case
    assert allowed(plan, counts) == rows
    assert allowed(~plan, counts) == set(range(sum(counts))) - rows
    assert plan.resolve(RowGroupLayout(counts)) == plan.resolve(counts)
    assert not plan.is_all or rows == set(range(sum(counts)))
    assert not plan.is_none or not rows
    assert plan.is_positional == (not plan.is_all and not plan.is_none)


@given(COUNTS.flatmap(lambda counts: st.tuples(st.just(counts), plans(counts), plans(counts), plans(counts))))
def test_the_algebra(case: tuple[list[int], Known, Known, Known]) -> None:
    counts, (a, _), (b, _), (c, _) = case
    everything, nothing = AccessPlan.all(), AccessPlan.none()
    for left, right in [
        (a & b, b & a),
        (a | b, b | a),
        (~~a, a),
        (a - b, a & ~b),
        (~(a & b), ~a | ~b),
        (a & a, a),
        (a | a, a),
        (a & everything, a),
        (a & nothing, nothing),
        (a | everything, everything),
        (a | nothing, a),
        (~everything, nothing),
        (pickle.loads(pickle.dumps(a)), a),
    ]:
        assert left == right
        assert hash(left) == hash(right)
        assert repr(left) == repr(right)
    assert allowed((a & b) & c, counts) == allowed(a & (b & c), counts)
    assert allowed((a | b) | c, counts) == allowed(a | (b | c), counts)
    assert allowed(a & (b | c), counts) == allowed((a & b) | (a & c), counts)
    assert allowed(a | (b & c), counts) == allowed((a | b) & (a | c), counts)
    assert allowed(a | (a & b), counts) == allowed(a, counts)
    assert (a == b) <= (allowed(a, counts) == allowed(b, counts))


def with_empty_groups(table: pa.Table, writer: WriterOptions, empty: set[int]) -> bytes:
    """A file of which some row groups have no rows, beside those that ``writer`` makes."""
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        compression=writer.codec,
        use_dictionary=writer.dictionary,
        data_page_size=writer.data_page_size,
        max_rows_per_page=writer.max_rows_per_page,
        write_batch_size=max(1, min(writer.max_rows_per_page, 64)),
        write_page_index=writer.page_index,
    ) as file:
        for ordinal, start in enumerate(range(0, table.num_rows, writer.row_group_size)):
            if ordinal in empty:
                file.write_table(table.slice(0, 0))
            file.write_table(table.slice(start, writer.row_group_size))
        file.write_table(table.slice(0, 0))
    return bytes(sink.getvalue())


def row_groups(data: bytes) -> list[int]:
    metadata = pq.read_metadata(pa.BufferReader(data))
    return [metadata.row_group(ordinal).num_rows for ordinal in range(metadata.num_row_groups)]


@pytest.mark.heavy
@given(tables(), writer_options, LIMITS, REQUESTS, st.data())
def test_reads_give_the_rows_of_the_plan_that_match(
    made: tuple[pa.Table, dict[str, str]],
    writer: WriterOptions,
    limits: asyncpq.LimitOptions,
    requests: asyncpq.RequestOptions,
    data: st.DataObject,
) -> None:
    table, kinds = made
    writer = replace(writer, row_group_size=data.draw(st.sampled_from([7, 20, 50, 1000])))
    if data.draw(st.booleans()):
        file = writer.write(table)
    else:
        file = with_empty_groups(table, writer, data.draw(st.sets(st.integers(0, 5))))
    plan, rows = data.draw(plans(row_groups(file)))
    expression = data.draw(st.none() | expressions(kinds))
    limit = data.draw(st.none() | st.integers(0, 30))
    try:
        whole = pq.ParquetFile(pa.BufferReader(file)).read()
        wanted = whole.take(pa.array(sorted(rows), pa.int64()))
        wanted = wanted if expression is None else wanted.filter(oracle(expression))
    except _REFUSALS:
        assume(False)
        raise

    async def question(source: asyncpq.File) -> tuple[pa.Table, pa.Table, int, asyncpq.Plan, asyncpq.Plan]:
        first = await source.read(None, expression, access=plan)
        again = await source.read(None, expression, access=plan, limit=limit)  # what was learnt is used
        count = await source.count(expression, access=plan)
        return first, again, count, await source.plan(access=plan), await source.plan(None, expression, access=plan)

    trust = asyncpq.ReadOptions(trust_statistics=data.draw(st.booleans()))
    try:
        found, limited, count, everything, matching = ask(file, question, limits=limits, requests=requests, read=trust)
    except asyncpq.PredicateTypeError as error:
        assert_refused(error, table, expression)
        return
    assert_same(found, wanted)
    assert_same(limited, wanted if limit is None else wanted.slice(0, limit))
    assert count == wanted.num_rows
    assert everything.pruning.rows_kept == everything.pruning.rows_accessed == len(rows)
    assert wanted.num_rows <= matching.pruning.rows_kept <= len(rows)


@given(nested_files(), st.data())
def test_reads_of_nested_columns_heed_the_plan(file: NestedFile, data: st.DataObject) -> None:
    plan, rows = data.draw(plans(row_groups(file.data)))
    wanted = file.table.take(pa.array(sorted(rows), pa.int64()))
    found = ask(file.data, lambda source: source.read(access=plan))
    assert_same(found, wanted)


@given(tables(nested=False), writer_options, st.data())
def test_lookups_find_the_rows_of_the_plan_only(
    made: tuple[pa.Table, dict[str, str]], writer: WriterOptions, data: st.DataObject
) -> None:
    table, _ = made
    table = table.append_column("key", pa.array([row // 2 for row in range(table.num_rows)], pa.int64()))
    file = writer.write(table)
    plan, rows = data.draw(plans(row_groups(file)))
    keys = data.draw(st.lists(st.integers(0, table.num_rows), max_size=5))
    found = ask(file, lambda source: source.lookup({"key": keys}, ["key"], access=plan))
    assert found["key"].to_pylist() == [row // 2 for row in sorted(rows) if row // 2 in keys]
