"""The one test of Spark that `make test-heavy` runs: scans, indexes, joins, reads, writes and layouts, once each."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.heavy
@pytest.mark.spark
@pytest.mark.smoke
@pytest.mark.timeout(300)
def test_every_use_of_spark_once() -> None:
    if shutil.which("java") is None:
        pytest.skip("needs Java 17 or newer on the path")
    command = [sys.executable, "-m", "tests.spark.smoke"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    assert done.stdout.split() == ["scan", "build_index", "lookup_join", "read", "write", "optimize", "done"]
