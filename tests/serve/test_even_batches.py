"""Batches of answers to tokens whose rows are restricted end where these rows alone decide."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from asyncpq.serve.responses import _EvenBatches, batch_rows


def batches_of(table: pa.Table, cuts: list[int]) -> list[pa.RecordBatch]:
    even = _EvenBatches(table.num_columns)
    found = []
    for start, stop in zip([0, *cuts], [*cuts, table.num_rows], strict=True):
        for batch in table.slice(start, stop - start).to_batches():
            found += even.add(batch)
    return [*found, *even.rest()]


@given(st.lists(st.integers(0, 400), max_size=30).map(sorted), st.integers(0, 40))
def test_batches_do_not_depend_on_those_of_the_scan(cuts: list[int], kilobytes: int) -> None:
    texts = ["x" * 1024 * kilobytes, "", "short"]
    table = pa.table({"n": range(400), "t": [texts[number % 3] if number % 7 else None for number in range(400)]})
    found, whole = batches_of(table, cuts), batches_of(table, [])
    assert [batch.num_rows for batch in found] == [batch.num_rows for batch in whole]
    assert pa.Table.from_batches(found, table.schema).equals(table)


def test_batches_have_bounded_rows_and_bytes() -> None:
    small = pa.table({"n": range(20_000)})
    assert [batch.num_rows for batch in batches_of(small, [])] == [batch_rows(1)] * 2 + [20_000 - 2 * batch_rows(1)]
    large = pa.table({"t": ["x" * 100_000] * 300})
    assert max(batch.nbytes for batch in batches_of(large, [7, 90])) <= (1 << 20) + 64 * 100_004
