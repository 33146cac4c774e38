"""The names that ``asyncpq.spark`` exports, and the public seams of sessions and datasets that it is built on."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq
import asyncpq.spark


@pytest.mark.parametrize("name", asyncpq.spark.__all__)
def test_every_exported_name_can_be_imported(name: str) -> None:
    assert getattr(asyncpq.spark, name) is not None
    assert name in dir(asyncpq.spark)


def test_without_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    for name in [name for name in sys.modules if name == "asyncpq.spark" or name.startswith("asyncpq.spark.")]:
        monkeypatch.delitem(sys.modules, name)
    for name in ("asyncpq.spark", "asyncpq.spark.joins"):
        with pytest.raises(asyncpq.UsageError, match=r"Install PySpark: pip install .*\[spark\]"):
            importlib.import_module(name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'scam'"):
        _ = asyncpq.spark.scam


async def test_a_dataset_is_read_with_the_runtime_of_its_session(tmp_path: Path) -> None:
    pq.write_table(pa.table({"id": [1, 2]}), tmp_path / "a.parquet")
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(f"{tmp_path}/")
        assert dataset._state.runtime is session._runtime
        assert dataset._state.columns.schema == dataset.schema
