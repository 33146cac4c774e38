"""A queue of pages: which it holds for some rows, and how many rows have come, as a list of all pages says."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from asyncpq.decoding.page import DataPage, PageQueue
from asyncpq.pruning.row_ranges import RowRanges


@given(
    sizes=st.lists(st.integers(1, 9), min_size=1, max_size=30),
    rows=st.lists(st.integers(0, 299), max_size=12),
    data=st.data(),
)
def test_pages_that_hold_rows(sizes: list[int], rows: list[int], data: st.DataObject) -> None:
    pages: list[DataPage] = []
    for size in sizes:
        pages.append(DataPage(b"", pages[-1].stop_row if pages else 0, size))
    num_rows = pages[-1].stop_row
    coming = [page for page in pages if data.draw(st.integers(0, 3))]
    arrived = data.draw(st.integers(0, len(coming)))
    queue: PageQueue[DataPage] = PageQueue(num_rows)
    for page in coming:
        queue.expect(page.first_row)
    for page in coming[:arrived]:
        queue.add(page)
    assert queue.rows_available == (coming[arrived].first_row if arrived < len(coming) else num_rows)
    held = coming[:arrived]
    start = data.draw(st.integers(0, num_rows))
    if data.draw(st.booleans()):
        queue.discard_before(start)
        held = [page for page in held if page.stop_row > start]
        rows = [row for row in rows if row >= start]
    wanted = RowRanges.from_rows(sorted({row % num_rows for row in rows if start <= row % num_rows}))
    assert queue.holding(wanted) == [page for page in held if wanted.clip(page.first_row, page.stop_row)]
    for page in pages:
        assert queue.has(page.first_row) == (page in held)
