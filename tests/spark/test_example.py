"""The pipeline of the examples, with few rows: every lookup is compared with one of the raw files."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from examples.spark_pipeline import prepare, serve, write_raw_files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_pipeline_ends_with_lookups_that_cost_little(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    raw, lake, index = (str(tmp_path / name) for name in ("raw", "lake", "index"))
    write_raw_files(Path(raw), 40_000, 4)
    prepare(spark, raw, lake, index)
    asyncio.run(serve(raw, lake, index, 40_000, lookups=3))
    lines = capsys.readouterr().out.splitlines()
    assert any("40,000 rows in" in line for line in lines)
    assert any(line.startswith("build_index: ids of 40,000 rows") for line in lines)
    assert lines[-1] == "the answers are the same"
    fetched = {line.split("  ")[0].strip(): _bytes(line) for line in lines if " cold: " in line}
    assert fetched["by user, the column of the order"] < fetched["raw files, by user"]
    assert fetched["by id, through the index"] < fetched["raw files, by id"]
    warm = [line for line in lines if " warm: " in line and not line.startswith("raw")]
    assert len(warm) == 2
    assert all("    0 requests,           0 bytes" in line for line in warm)


def _bytes(line: str) -> int:
    return int(line.rpartition(" requests, ")[2].removesuffix(" bytes").replace(",", ""))
