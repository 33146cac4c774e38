"""Slices are sets of rows of files: AND and OR of them are those of the sets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncpq.indexing.query.file_selection import FileSelection
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
