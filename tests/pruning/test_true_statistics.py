"""True statements about a file, some left out, cut short or said the old way, never change an answer.

Random tables, writers and predicates; then of the statistics and indexes that pyarrow wrote, all of which are
true, random ones are taken away or made weaker.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq.expressions import Expression
from tests.example_counts import examples
from tests.parquet_files import EditedFile, Items
from tests.predicates import array, arrays, expressions, oracle
from tests.reads import DISTRUSTING, TRUSTING, ask, by_pyarrow, values

_KINDS = [
    "int32",
    "int64",
    "uint32",
    "float64",
    "string",
    "binary",
    "bool",
    "decimal",
    "timestamp_ms",
    "date32",
    "fixed",
]
_REFUSED = (pa.ArrowException, OverflowError, TypeError, ValueError)


@st.composite
def files(draw: st.DrawFn) -> tuple[bytes, Expression]:
    """A file of sorted, constant and random columns, weakened; and a predicate on it."""
    kinds = {f"c{at}": draw(st.sampled_from(_KINDS)) for at in range(draw(st.integers(1, 2)))}
    num_rows = draw(st.integers(1, 24))
    columns = {}
    for name, kind in kinds.items():
        held = draw(arrays(kind, min_size=num_rows, max_size=num_rows))
        if draw(st.booleans()):
            held = sorted(held, key=lambda value: (value is None, value != value, repr(value)))
        if draw(st.booleans()):
            held = [value for value in held for _ in range(4)][:num_rows]
        columns[name] = array(kind, held)
    file = EditedFile.of(
        pa.table(columns),
        row_group_size=draw(st.sampled_from([3, 8, 100])),
        rows_per_page=draw(st.integers(1, 4)),
        use_dictionary=draw(st.booleans()),
        write_page_index=draw(st.booleans()),
    )
    for group in range(len(file.footer.value(4))):
        for at, kind in enumerate(kinds.values()):
            _weaken(draw, file, at, group, text=kind in ("string", "binary"))
    if draw(st.integers(0, 3)) == 0:
        file.footer.put(7, None)
    file.footer.put(6, draw(st.sampled_from([b"parquet-mr version 1.7.0 (build x)", None, file.footer.value(6)])))
    return file.data(), draw(expressions(kinds))


def _weaken(draw: st.DrawFn, file: EditedFile, at: int, group: int, *, text: bool) -> None:
    meta, chunk = file.meta(at, group), file.chunk(at, group)
    statistics = file.statistics(at, group)
    for what in draw(st.sets(st.sampled_from(range(9)), max_size=3)):
        low, high = statistics.value(6), statistics.value(5)
        if what == 0:
            meta.put(12, None)
        elif what in (1, 2, 3):
            statistics.put({1: 3, 2: 5, 3: 6}[what], None)
        elif what == 4:
            for flag in (7, 8):
                statistics.put(flag, draw(st.sampled_from([None, False])))
        elif what == 5 and text and low is not None and high is not None:
            statistics.put(6, low[: draw(st.integers(1, 2))])
            statistics.put(5, high[: draw(st.integers(1, 2))])  # a bare prefix, as some writers have it
            for flag in (7, 8):
                statistics.put(flag, draw(st.sampled_from([None, False])))
        elif what == 6 and chunk.value(6) is not None:
            index = file.column_index(at, group)
            index.put(5, draw(st.sampled_from([None, Items(6, [-1] * len(index.value(1)))])))
            file.set_column_index(index, at, group)
        elif what == 7:
            file.set_column_index(None, at, group)
        elif what == 8:
            file.set_offset_index(None, at, group)


@settings(max_examples=examples(60, thorough=500))
@given(
    files(),
    st.builds(asyncpq.LimitOptions, unit_bytes=st.sampled_from([1, 100, 1 << 23])),
    st.builds(asyncpq.RequestOptions, late_materialization=st.sampled_from(["auto", "always", "never"])),
)
def test_answers_are_pyarrow_s(
    case: tuple[bytes, Expression], limits: asyncpq.LimitOptions, requests: asyncpq.RequestOptions
) -> None:
    data, where = case
    whole = by_pyarrow(data)
    try:
        wanted = whole.filter(oracle(where))
    except _REFUSED:
        assume(False)
        raise

    async def question(file: asyncpq.File) -> tuple[Any, ...]:
        narrow = whole.column_names[:1]
        return (
            values(await file.read(where=where)),
            values(await file.read(narrow, where)),
            (await file.read([], where)).num_rows,
            await file.count(where),
        )

    expected = (values(wanted), values(wanted.select(whole.column_names[:1])), wanted.num_rows, wanted.num_rows)
    for options in (TRUSTING, DISTRUSTING):
        try:
            assert ask(data, question, read=options, limits=limits, requests=requests) == expected
        except asyncpq.PredicateTypeError:
            assume(False)  # tests/decoding/test_filter_against_pyarrow.py knows when
