"""Pruning may return too much, never too little: what is left contains every row with the result asked for."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpq.expressions import Comparison, Expression, columns
from asyncpq.expressions.analysis import Truth
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.pruning.zone_maps import RowGroupPruning
from asyncpq.pruning.zones import rows_where
from tests.example_counts import examples
from tests.parquet_files import PrunedFile
from tests.predicates import KINDS, array, arrays, expressions, results, sorted_values

_RESULTS = {Truth.TRUE: True, Truth.FALSE: False, Truth.NULL: None}


@st.composite
def cases(draw: st.DrawFn) -> tuple[pa.Table, Expression]:
    """A table whose columns are random, sorted either way, or runs of one value; and a predicate."""
    kinds = {f"c{at}": draw(KINDS) for at in range(draw(st.integers(1, 2)))}
    num_rows = draw(st.integers(1, 24))
    data = {}
    for name, kind in kinds.items():
        values = draw(arrays(kind, min_size=num_rows, max_size=num_rows))
        shape = draw(st.sampled_from(["random", "ascending", "descending", "nulls"]))
        if shape == "nulls":
            values[: num_rows // 2] = [None] * (num_rows // 2)
        elif shape != "random":
            values = sorted_values(values, reverse=shape == "descending")
        data[name] = array(kind, values)
    return pa.table(data), draw(expressions(kinds))


@settings(max_examples=examples(60, thorough=500))
@given(cases(), st.integers(1, 5), st.integers(1, 30), st.booleans())
def test_no_row_is_lost(
    case: tuple[pa.Table, Expression], rows_per_page: int, rows_per_group: int, dictionaries: bool
) -> None:
    table, expr = case
    exact = results(expr, table)
    file = PrunedFile(table, rows_per_page=rows_per_page, rows_per_group=rows_per_group, use_dictionary=dictionaries)
    names = columns(expr)
    zones = file.row_group_zones(*names)
    pruned = RowGroupPruning(expr, zones, file.num_row_groups)
    assert pruned.all_match == pruned.all_match & pruned.kept
    for group in file.metadata.row_groups:
        inside = exact[group.first_row : group.first_row + group.num_rows]
        assert group.ordinal in pruned.kept or True not in inside
        assert group.ordinal not in pruned.all_match or all(inside)
        pages = file.page_zones(group.ordinal, *names)
        for truth, result in _RESULTS.items():
            wanted = RowRanges.from_rows([row for row, found in enumerate(inside) if found is result])
            assert not wanted - rows_where(expr, truth, group.num_rows, pages)
    assert isinstance(pruned.reasons, list)
    assert isinstance(pruned.dropped_by, dict)


@settings(max_examples=50)
@given(cases(), st.integers(1, 5))
def test_columns_without_an_index_prune_nothing_by_themselves(
    case: tuple[pa.Table, Expression], rows_per_page: int
) -> None:
    table, expr = case
    exact = results(expr, table)
    file = PrunedFile(table, rows_per_page=rows_per_page)
    pages = file.page_zones(0, *columns(expr)[:1])
    wanted = RowRanges.from_rows([row for row, found in enumerate(exact) if found])
    assert not wanted - rows_where(expr, Truth.TRUE, len(table), pages)
    everything = rows_where(Comparison("c0", "==", 1), Truth.TRUE, len(table), {})
    assert everything == RowRanges.all(len(table))
