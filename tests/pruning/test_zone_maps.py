"""Pruning may return too much, never too little: what is left contains every row with the result asked for."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncpq.expressions import Atom, Comparison, Expression, In, col, columns
from asyncpq.expressions.analysis import Truth, result_values, successor
from asyncpq.parquet.statistics import SortOrder
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.pruning.zone_maps import RowGroupPruning, ZonedColumn, Zones, rows_where
from tests.example_counts import examples
from tests.parquet_files import PrunedFile
from tests.parquet_samples import DATA, requires_corpus
from tests.predicates import KINDS, array, arrays, expressions, results, sorted_values
from tests.pruning.indexed_file import leaf

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


@pytest.mark.heavy
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


def zoned(name: str, order: SortOrder) -> ZonedColumn:
    return ZonedColumn.of_leaf(leaf(name), order)


def holding(zones: Zones, atom: Atom, truth: Truth = Truth.TRUE) -> RowRanges:
    return zones.holding(result_values(atom, truth, zones.domain))


@pytest.mark.parametrize(
    ("prefix", "above"), [(b"a", b"b"), (b"a\xff", b"b"), (b"a\xfe\xff", b"a\xff"), (b"\xff", None), (b"", None)]
)
def test_successor(prefix: bytes, above: bytes | None) -> None:
    assert successor(prefix) == above


def test_max_that_is_a_bare_prefix() -> None:
    """Some writers cut a max short without raising it: "abc" may stand for "abcz"."""
    zones = Zones(
        zoned("name", SortOrder.BYTES), [b"a", b"abd"], [b"abc", b"b"], all_null=[False, False], null_counts=[0, 0]
    )
    assert list(holding(zones, Comparison("x", "==", b"abcz")).rows()) == [0]
    assert list(holding(zones, Comparison("x", "==", b"abcd")).rows()) == [0]
    assert list(holding(zones, Comparison("x", ">", b"abc")).rows()) == [0, 1]
    assert list(holding(zones, Comparison("x", "==", b"abda")).rows()) == [1]


def test_bounds_cut_to_one_string_prove_nothing() -> None:
    """ "ab" and "abc", cut to two bytes, have the bounds "ab" and "ab"."""
    for exact, left in (([True], []), ([False], [0]), (None, [0])):
        zones = Zones(zoned("name", SortOrder.BYTES), [b"ab"], [b"ab"], all_null=[False], null_counts=[0], exact=exact)
        assert list(holding(zones, Comparison("x", "!=", b"ab")).rows()) == left


def test_zero_has_a_sign_for_is_in_only() -> None:
    """A zone of -0.0 alone: all of it equals 0.0, none of it is in [0.0]."""
    zones = Zones(zoned("x", SortOrder.FLOAT), [-0.0], [0.0], all_null=[False], null_counts=[0], nan_counts=[0])
    assert not holding(zones, Comparison("x", "==", 0.0), Truth.FALSE)
    assert holding(zones, In("x", (0.0,)), Truth.FALSE)
    assert not holding(zones, Comparison("x", "!=", 0.0))


@requires_corpus
def test_truncated_bounds_of_other_writers() -> None:
    path = DATA / "binary_truncated_min_max.parquet"
    file = PrunedFile.of_bytes(path.read_bytes())
    table = pq.read_table(path)
    for name in table.column_names:
        zones = file.row_group_zones(name)
        for value in table[name].to_pylist():
            if isinstance(value, (str, bytes)):
                assert RowGroupPruning(col(name) == value, zones, file.num_row_groups).kept
