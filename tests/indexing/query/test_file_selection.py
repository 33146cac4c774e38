"""Slices are sets of rows of files: AND and OR of them are those of the sets."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.indexing.index_model import TABLE_SCHEMAS, IndexTable, KeyRange
from asyncpq.indexing.query.file_selection import FileSelection, TableRows, select_rows
from asyncpq.pruning.access_plan import AccessPlan
from asyncpq.pruning.row_ranges import RowRanges

FILES = range(5)
LAYOUT = (2, 0, 3)  # rows of the row groups of each file

_plans = st.one_of(
    st.sets(st.integers(0, 4)).map(AccessPlan.rows),
    st.sets(st.sampled_from([0, 2])).map(AccessPlan.row_groups),
    st.sampled_from([AccessPlan.all(), AccessPlan.none()]),
)


@st.composite
def selections(draw: st.DrawFn) -> FileSelection:
    found = FileSelection.of_plans(draw(st.dictionaries(st.sampled_from(FILES), _plans)))
    return found | FileSelection(RowRanges.from_rows(sorted(draw(st.sets(st.sampled_from(FILES))))))


def rows(found: FileSelection) -> set[tuple[int, int]]:
    """Pairs of file and row."""
    pairs: set[tuple[int, int]] = set()
    first = {0: 0, 1: 2, 2: 2}
    for file in FILES:
        for group, some in found.plan(file).resolve(LAYOUT).items():
            pairs |= {(file, first[group] + row) for row in some.rows()}
    return pairs


@given(selections(), selections())
def test_and_or_are_those_of_the_rows(left: FileSelection, right: FileSelection) -> None:
    assert rows(left & right) == rows(left) & rows(right)
    assert rows(left | right) == rows(left) | rows(right)


@given(selections(), selections())
def test_plans_are_of_files_and_narrow(left: FileSelection, right: FileSelection) -> None:
    for found in (left & right, left | right):
        assert all(file in found.files for file in found.plans)
        assert not any(plan.is_all or plan.is_none for plan in found.plans.values())


def test_an_ordinal_of_a_row_group_is_only_a_number() -> None:
    """The entry of a hostile index: a bit mask of so many row groups would take 256 MB and hours."""
    row = {"key": b"\x01a", "max": b"\x01b", "file": 3, "values": 1}
    entries = pa.Table.from_pylist(
        [row | {"group": group} for group in (-1, 0, 5, 5, (1 << 31) - 1)], TABLE_SCHEMAS["bounds"]
    )
    table = IndexTable("bounds", ("a",))
    selected = select_rows(table, TableRows(entries, RowRanges()), [KeyRange(b"\x01a", None)], every=False)
    assert selected.selection.plan(3) == AccessPlan.row_groups([0, 5, (1 << 31) - 1])
