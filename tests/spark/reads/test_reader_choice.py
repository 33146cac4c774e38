"""Which reader a plan is read by, and what a row costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("pyspark")

from asyncpq.errors import UnsupportedFeatureError
from asyncpq.objects.prices import Prices
from asyncpq.options import MIB, LimitOptions, RequestOptions
from asyncpq.spark.reads import reader_choice
from asyncpq.spark.reads.reader_choice import (
    ReaderChoice,
    ReaderCosts,
    ReaderName,
    ScanSize,
    choose_reader,
    reader_costs,
)
from asyncpq.spark.reads.spark_files import NotForSpark
from asyncpq.spark.reads.task_rows import ROW_S

_PRICES = Prices.initial(RequestOptions(), LimitOptions())


def _costs(**other: Any) -> ReaderCosts:
    one_large_file: dict[str, Any] = {
        "num_files": 1,
        "num_splits": 6,
        "num_bytes": 400 * MIB,
        "num_rows": 10_000_000,
        "whole_bytes": 400 * MIB,
    }
    store = None if other.pop("is_local", True) else other.pop("prices", _PRICES)
    given = {name: other.pop(name) for name in ("parallelism", "row_s") if name in other}
    other.pop("prices", None)
    return reader_costs(ScanSize(**one_large_file | other), store=store, **{"parallelism": 2} | given)


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


class _Plan:
    """As much of a plan as the choice uses; ``num_bytes`` of a file of 400 MiB are planned."""

    def __init__(self, num_bytes: int, *, is_empty: bool = False) -> None:
        self.scan = SimpleNamespace(columns=("id",), spark_schema='{"type": "struct", "fields": []}')
        self.num_files = 0 if is_empty else 1
        self.whole_bytes = self.num_files * 400 * MIB
        self.num_bytes = num_bytes
        self.num_rows = num_bytes // 40
        self.prices = _PRICES

    def __len__(self) -> int:
        return 1


def _choose(plan: _Plan, reader: ReaderName, frame: object, monkeypatch: pytest.MonkeyPatch) -> ReaderChoice:
    """Choose a reader, while Spark's own gives ``frame`` or raises it."""

    def spark_frame(*_: object, **__: object) -> object:
        if isinstance(frame, Exception):
            raise frame
        return frame

    monkeypatch.setattr(reader_choice, "spark_frame", spark_frame)
    opened: Any = SimpleNamespace(names=["id"], row_bytes=40.0, state=SimpleNamespace(url="file:///lake/"))
    spark: Any = SimpleNamespace(conf={})
    return choose_reader(spark, opened, cast("Any", plan), reader, parallelism=2, row_s=ROW_S)


def test_the_lower_estimate_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = object()
    whole = _choose(_Plan(400 * MIB), "auto", frame, monkeypatch)
    assert (whole.reader, whole.reason) == ("spark", "it is estimated at less time")
    assert whole.native is frame
    some = _choose(_Plan(80 * MIB), "auto", AssertionError("Spark's reader is not asked"), monkeypatch)
    assert (some.reader, some.reason, some.native) == ("asyncpq", "it is estimated at less time", None)
    few = _choose(_Plan(MIB), "auto", AssertionError("Spark's reader is not asked"), monkeypatch)
    assert (few.reader, few.on_driver, some.on_driver) == ("asyncpq", True, False)
    assert few.costs.asyncpq_s < _choose(_Plan(MIB), "asyncpq", None, monkeypatch).costs.asyncpq_s


def test_the_caller_chooses(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _choose(_Plan(400 * MIB), "asyncpq", None, monkeypatch).reader == "asyncpq"
    assert _choose(_Plan(MIB), "spark", object(), monkeypatch).reader == "spark"
    for reader in get_args(ReaderName):
        assert _choose(_Plan(0, is_empty=True), reader, None, monkeypatch).reader == "asyncpq"


def test_files_that_spark_reads_otherwise_are_read_by_asyncpq(monkeypatch: pytest.MonkeyPatch) -> None:
    refusal = NotForSpark("Spark would return other types")
    choice = _choose(_Plan(400 * MIB), "auto", refusal, monkeypatch)
    assert (choice.reader, choice.reason) == ("asyncpq", "Spark would return other types")
    with pytest.raises(UnsupportedFeatureError, match="Spark would return other types") as caught:
        _choose(_Plan(400 * MIB), "spark", refusal, monkeypatch)
    assert "auto" in str(caught.value.hint)
