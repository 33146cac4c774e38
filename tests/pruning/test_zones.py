"""Zones: bounds that are cut short, bounds of zero, bounds that other writers cut."""

from __future__ import annotations

import pyarrow.parquet as pq
import pytest

from asyncpq.expressions import Atom, Comparison, In, col
from asyncpq.expressions.analysis import Truth, result_values, successor
from asyncpq.parquet.statistics import SortOrder
from asyncpq.pruning.row_ranges import RowRanges
from asyncpq.pruning.zone_maps import RowGroupPruning
from asyncpq.pruning.zones import ZonedColumn, Zones
from tests.parquet_files import PrunedFile
from tests.parquet_samples import DATA, requires_corpus
from tests.pruning.indexed_file import leaf


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
