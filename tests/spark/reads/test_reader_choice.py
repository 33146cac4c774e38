"""Which reader a plan is read by, and what a row costs."""

from __future__ import annotations

import copy
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from asyncpq.objects.prices import Prices
from asyncpq.options import MIB, LimitOptions, RequestOptions
from asyncpq.spark.reads.reader_choice import ROW_S, ReaderCosts, RowClock, reader_costs

_PRICES = Prices.initial(RequestOptions(), LimitOptions())


def _costs(**other: Any) -> ReaderCosts:
    one_large_file: dict[str, Any] = {
        "num_files": 1,
        "num_splits": 6,
        "num_bytes": 400 * MIB,
        "num_rows": 10_000_000,
        "whole_bytes": 400 * MIB,
        "parallelism": 2,
        "prices": _PRICES,
        "is_local": True,
        "row_s": ROW_S,
    }
    return reader_costs(**one_large_file | other)


def test_whole_files_are_read_by_spark_and_few_pages_of_large_files_by_asyncpq() -> None:
    assert _costs().cheaper == "spark"
    assert _costs(num_splits=1, num_bytes=MIB, num_rows=20_000).cheaper == "asyncpq"
    assert _costs(is_local=False).cheaper == "spark"
    assert _costs(is_local=False, num_splits=1, num_bytes=MIB, num_rows=20_000).cheaper == "asyncpq"


@given(st.integers(1, 10_000), st.integers(1, 1 << 40), st.integers(0, 1 << 40), st.integers(1, 64), st.booleans())
def test_whole_small_and_large_files_alike_cost_less_by_spark(
    files: int, num_bytes: int, rows: int, parallelism: int, is_local: bool
) -> None:
    """However many they are, and wherever: unless requests, of which Spark sends more, are all that counts."""
    free = _PRICES._replace(latency_s=0.0)
    costs = _costs(
        num_files=files,
        num_splits=1 + num_bytes // (64 * MIB),
        num_bytes=num_bytes,
        num_rows=rows,
        whole_bytes=num_bytes,
        parallelism=parallelism,
        is_local=is_local,
        prices=free,
    )
    assert costs.cheaper == "spark"


def test_the_price_of_a_row_moves_the_choice() -> None:
    share = {"num_splits": 4, "num_bytes": 200 * MIB, "num_rows": 2_000_000}
    assert _costs(**share, row_s=ROW_S / 8).cheaper == "asyncpq"
    assert _costs(**share, row_s=ROW_S * 8).cheaper == "spark"


class _Accumulator:
    """As Spark's, in one process."""

    def __init__(self) -> None:
        self.value = 0.0

    def add(self, more: float) -> None:
        self.value += more


def _clock() -> tuple[RowClock, _Accumulator, _Accumulator]:
    rows, seconds = _Accumulator(), _Accumulator()
    return RowClock(cast(Any, rows), cast(Any, seconds)), rows, seconds


def test_a_clock_counts_rows_and_the_time_of_their_consumer() -> None:
    clock, rows, seconds = _clock()
    batches = [pa.record_batch({"a": range(number)}) for number in (3, 4)]
    assert list(clock.timed(iter(batches))) == batches
    assert rows.value == 7
    assert 0 < seconds.value < 60
    partly = clock.timed(iter(batches))
    next(partly)
    cast(Any, partly).close()  # as LIMIT does
    assert rows.value == 10


def test_few_rows_teach_nothing_and_measurements_are_bounded() -> None:
    clock, rows, seconds = _clock()
    assert clock.row_s() == ROW_S
    rows.value, seconds.value = 9_999, 9.0
    assert clock.row_s() == ROW_S
    rows.value, seconds.value = 1e6, 1e6
    assert clock.row_s() == 8 * ROW_S
    for _ in range(3):
        rows.value += 1e6
        seconds.value += 2e6 * ROW_S
        clock.row_s()
    assert clock.row_s() == pytest.approx(2 * ROW_S)
    rows.value += 1e6
    assert clock.row_s() == pytest.approx(2 * ROW_S)  # one of several


def test_a_clock_without_accumulators_keeps_the_first_estimate() -> None:
    clock = RowClock(None, None)
    assert sum(batch.num_rows for batch in clock.timed(iter([pa.record_batch({"a": [1]})]))) == 1
    assert clock.row_s() == ROW_S
    assert copy.copy(clock).row_s() == ROW_S
