"""What tasks have read reaches the driver, plan by plan, and Spark's plans name the tasks."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from asyncpq.spark.reads import task_rows
from asyncpq.spark.reads.scan import explain_scan
from asyncpq.spark.reads.task_rows import ROW_S, PlanCounts, TaskMetrics, row_seconds

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_counts_are_added_plan_by_plan_and_the_oldest_are_forgotten() -> None:
    sums = PlanCounts()
    counts = sums.zero({"a": {"requests": 7}})
    for more in ({"a": {"requests": 1}}, {"b": {"requests": 2}}, {"a": {"requests": 3, "rounds": 1}}):
        counts = sums.addInPlace(counts, more)
    assert counts == {"a": {"requests": 4, "rounds": 1}, "b": {"requests": 2}}
    for number in range(task_rows._KEPT):
        counts = sums.addInPlace(counts, {str(number): {"requests": 1}})
    assert len(counts) == task_rows._KEPT
    assert not {"a", "b"} & counts.keys()


def test_without_accumulators_there_are_no_counts() -> None:
    metrics: TaskMetrics = pickle.loads(pickle.dumps(TaskMetrics("a scan", "", None)))
    batch = pa.record_batch({"a": [1]})
    assert list(metrics.counted(iter([batch]))) == [batch]
    assert metrics.counts() == {}


class _Accumulator:
    """As much of Spark's accumulator as plans use."""

    def __init__(self) -> None:
        self.value: dict[str, dict[str, int]] = {}

    def add(self, more: dict[str, dict[str, int]]) -> None:
        self.value = PlanCounts().addInPlace(self.value, more)


@pytest.fixture
def accumulator(monkeypatch: pytest.MonkeyPatch) -> _Accumulator:
    sums = _Accumulator()
    monkeypatch.setattr(task_rows, "_accumulator", lambda spark: sums)
    return sums


def test_tasks_count_rows_and_the_time_of_their_consumer(accumulator: _Accumulator) -> None:
    metrics = TaskMetrics.of(cast(Any, None), "a scan")
    batches = [pa.record_batch({"a": range(number)}) for number in (3, 4)]
    assert list(metrics.timed(iter(batches))) == batches
    counts = accumulator.value[metrics.plan]
    assert counts["rows_sent"] == 7
    assert 0 < counts["nanoseconds_sent"] < 60e9
    partly = metrics.timed(iter(batches))
    next(partly)
    partly.close()  # as LIMIT does
    assert accumulator.value[metrics.plan]["rows_sent"] == 10
    assert metrics.counts() == {}  # no names of ReadMetrics


def test_few_rows_teach_nothing_and_measurements_are_bounded(accumulator: _Accumulator) -> None:
    def measured(plan: str, rows: int, row_s: float) -> float:
        accumulator.add({plan: {"rows_sent": rows, "nanoseconds_sent": round(rows * row_s * 1e9)}})
        return row_seconds(cast(Any, None))

    assert row_seconds(cast(Any, None)) == ROW_S
    assert measured("few", 9_999, 1.0) == ROW_S
    assert measured("slow", 1_000_000, 1.0) == 8 * ROW_S
    assert measured("a", 1_000_000, 2 * ROW_S) == pytest.approx(5 * ROW_S)  # the median
    assert measured("b", 1_000_000, 2 * ROW_S) == pytest.approx(2 * ROW_S)
    assert measured("fast", 1_000_000, 0.0) == pytest.approx(2 * ROW_S)
    last = [measured(str(number), 1_000_000, 3 * ROW_S) for number in range(16)]
    assert last[-1] == pytest.approx(3 * ROW_S)  # older plans do not count


def test_without_accumulators_the_first_estimate_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_rows, "_accumulator", lambda spark: None)
    metrics: TaskMetrics = pickle.loads(pickle.dumps(TaskMetrics.of(cast(Any, None), "a scan")))
    assert sum(batch.num_rows for batch in metrics.timed(iter([pa.record_batch({"a": [1]})]))) == 1
    assert row_seconds(cast(Any, None)) == ROW_S


def test_the_driver_sees_what_tasks_have_read(spark: SparkSession, tmp_path: Path) -> None:
    for number in range(4):
        table = pa.table({"id": range(number * 1000, (number + 1) * 1000)})
        pq.write_table(table, tmp_path / f"{number}.parquet", write_page_index=True, max_rows_per_page=100)
    plans = [explain_scan(spark, f"{tmp_path}/", where=where, reader="asyncpq") for where in ("id = 1234", None)]
    assert [dict(plan.task_counts) for plan in plans] == [{}, {}]
    assert [plan.frame(spark).count() for plan in plans] == [1, 4000]
    one, everything = [plan.task_counts for plan in plans]
    assert (one["files_read"], one["pages_read"], one["rows_returned"]) == (1, 1, 1)
    assert (everything["files_read"], everything["pages_read"], everything["rows_returned"]) == (4, 40, 4000)
    assert 0 < one["bytes_fetched"] < everything["bytes_fetched"]


def test_sparks_plans_name_the_tasks(spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for number in range(2):
        pq.write_table(pa.table({"id": [number]}), tmp_path / f"{number}.parquet")
    plan = explain_scan(spark, f"{tmp_path}/", where="id = 1", reader="asyncpq")
    plan.frame(spark).explain("formatted")
    assert f"asyncpq scan, 1 of 2 files, {plan.num_bytes} bytes(" in capsys.readouterr().out
