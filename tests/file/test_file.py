"""Whole reads equal pyarrow's: random tables, writers, predicates, projections, rows and limits."""

from __future__ import annotations

from typing import TypeVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import asyncpq
from asyncpq.decoding.expression_engine import to_pyarrow
from asyncpq.expressions import Constant, Expression, Has
from tests.example_counts import examples
from tests.predicates import WORDS, expressions, oracle, uses
from tests.random_tables import WriterOptions, tables, writer_options
from tests.reads import ask

T = TypeVar("T")
_REFUSALS = (pa.ArrowException, OverflowError, TypeError, ValueError)
LIMITS = st.builds(
    asyncpq.LimitOptions,
    unit_bytes=st.sampled_from([1, 100, 1000, 1 << 23]),
    in_flight_bytes=st.sampled_from([1, 500, 1 << 27]),
    decode_threads=st.sampled_from([0, 2]),
    inline_decode_bytes=st.sampled_from([0, 1 << 19]),
)
REQUESTS = st.builds(
    asyncpq.RequestOptions,
    tail_bytes=st.sampled_from([8, 60, 500, 640 * 1024]),
    gap_bytes=st.sampled_from([0, 50, 16 * 1024]),
    late_materialization=st.sampled_from(["auto", "always", "never"]),
    max_requests=st.sampled_from([None, 1, 3]),
)


def expected(data: bytes, expression: Expression | None) -> pa.Table:
    """What pyarrow reads and filters, as a whole."""
    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read()
    except pa.ArrowInvalid:
        assume(False)  # pyarrow's writer loses nested rows where a dictionary overflows at once
        raise
    return table if expression is None else table.filter(oracle(expression))


def assert_refused(error: asyncpq.PredicateTypeError, table: pa.Table, expression: Expression | None) -> None:
    """pyarrow refuses the predicate, too, as soon as there is a row; without any it checks less."""
    if "UUID" in str(error):
        return  # pyarrow's isin answers at random for a UUID among other types
    row = pa.Table.from_arrays([pa.nulls(1, kind) for kind in table.schema.types], schema=table.schema)
    with pytest.raises(_REFUSALS):
        row.filter(oracle(Constant(True) if expression is None else expression))


def assert_same(found: pa.Table, wanted: pa.Table) -> None:
    """Equal rows, names and types; dictionaries may be ordered in another way."""
    assert found.schema.equals(wanted.schema), (found.schema, wanted.schema)
    found.validate(full=True)
    for name in wanted.column_names:
        left, right = found.column(name), wanted.column(name)
        if pa.types.is_dictionary(left.type):
            left, right = left.cast(left.type.value_type), right.cast(right.type.value_type)
        # NaN is NaN and -0.0 is -0.0 here: bytes, not numbers, must be equal
        assert left.to_pylist().__repr__() == right.to_pylist().__repr__(), name


@given(tables(), writer_options, LIMITS, REQUESTS, st.data())
def test_read_equals_pyarrow(
    made: tuple[pa.Table, dict[str, str]],
    writer: WriterOptions,
    limits: asyncpq.LimitOptions,
    requests: asyncpq.RequestOptions,
    data: st.DataObject,
) -> None:
    table, kinds = made
    file = writer.write(table)
    expression = data.draw(st.none() | expressions(kinds))
    columns = data.draw(st.none() | st.permutations(table.column_names).map(lambda names: names[: len(names) // 2 + 1]))
    limit = data.draw(st.none() | st.integers(0, 30))
    batch_size = data.draw(st.sampled_from([1, 7, 65_536]))
    many_rows = data.draw(st.sampled_from([0, 32_768]))  # of so many, dictionaries are compared and pages searched
    memory = data.draw(st.sampled_from([0, 1 << 20]))
    try:
        wanted = expected(file, expression)
    except _REFUSALS:
        assume(False)
        raise
    wanted = wanted.select(columns) if columns is not None else wanted
    wanted = wanted.slice(0, limit) if limit is not None else wanted

    async def question(source: asyncpq.File) -> tuple[pa.Table, int]:
        async with source.scan(columns, expression, limit=limit, batch_size=batch_size) as scan:
            batches = [batch async for batch in scan]
            assert all(0 < batch.num_rows <= batch_size for batch in batches)
            return pa.Table.from_batches(batches, scan.schema), await source.count(expression)

    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("asyncpq.decoding.row_group_reader.MANY_ROWS", many_rows)
            patch.setattr("asyncpq.scan.fetch_planner.MANY_ROWS", many_rows)
            found, count = ask(file, question, limits=limits, requests=requests, memory_cache_bytes=memory)
    except asyncpq.PredicateTypeError as error:
        assert_refused(error, table, expression)
        return
    assert_same(found, wanted)
    assert count == expected(file, expression).num_rows


@given(tables(), writer_options, LIMITS, st.data())
def test_take_equals_pyarrow(
    made: tuple[pa.Table, dict[str, str]], writer: WriterOptions, limits: asyncpq.LimitOptions, data: st.DataObject
) -> None:
    table, _ = made
    assume(table.num_rows > 0)
    file = writer.write(table)
    rows = data.draw(st.lists(st.integers(0, table.num_rows - 1), max_size=20))
    wanted = expected(file, None).take(pa.array(rows, pa.int64()))
    assert_same(ask(file, lambda source: source.take(rows), limits=limits), wanted)


@given(tables(nested=False), writer_options, st.data())
def test_lookup_equals_a_loop_over_keys(
    made: tuple[pa.Table, dict[str, str]], writer: WriterOptions, data: st.DataObject
) -> None:
    table, kinds = made
    assume(table.num_rows > 0)
    names = data.draw(st.lists(st.sampled_from(list(kinds)), min_size=1, max_size=2, unique=True))
    assume(all(kinds[name] != "uuid" for name in names))  # pyarrow's own == has no kernel for it
    rows = data.draw(st.lists(st.integers(0, table.num_rows - 1), max_size=6))
    keys = {name: [table.column(name)[row].as_py() for row in rows] for name in names}
    assume(all(key is None or not isinstance(key, int) or key < 2**63 for values in keys.values() for key in values))
    file = writer.write(table)
    whole = expected(file, None)
    pairs: list[tuple[int, int]] = []
    for position in range(len(rows)):
        expression = oracle(asyncpq.col(names[0]) == keys[names[0]][position])
        for name in names[1:]:
            expression &= oracle(asyncpq.col(name) == keys[name][position])
        numbered = whole.append_column("row", pa.array(range(whole.num_rows), pa.int64()))
        try:
            pairs.extend((row, position) for row in numbered.filter(expression).column("row").to_pylist())
        except _REFUSALS:
            assume(False)
    pairs.sort()

    async def question(source: asyncpq.File) -> tuple[pa.Table, pa.Table]:
        return await source.lookup(keys), await source.lookup(keys, with_keys=True)

    found, with_keys = ask(file, question)
    assert_same(found, whole.take(pa.array(sorted({row for row, _ in pairs}), pa.int64())))
    assert with_keys.column("key_position").to_pylist() == [position for _, position in pairs]
    assert_same(with_keys.drop_columns(["key_position"]), whole.take(pa.array([row for row, _ in pairs], pa.int64())))


@pytest.mark.heavy
@pytest.mark.parametrize("trust", [True, False])
@settings(max_examples=examples(25, thorough=250))
@given(tables(nested=False), writer_options, st.data())
def test_trust_statistics_changes_no_row(
    trust: bool, made: tuple[pa.Table, dict[str, str]], writer: WriterOptions, data: st.DataObject
) -> None:
    table, kinds = made
    expression = data.draw(expressions(kinds, foreign=False))
    file = writer.write(table)
    try:
        wanted = expected(file, expression)
    except _REFUSALS:
        assume(False)
        raise
    try:
        found = ask(
            file, lambda source: source.read(where=expression), read=asyncpq.ReadOptions(trust_statistics=trust)
        )
    except asyncpq.PredicateTypeError as error:
        assert_refused(error, table, expression)
        return
    assert_same(found, wanted)
    assert uses(expression, *WORDS, Has) or to_pyarrow(expression) is not None
