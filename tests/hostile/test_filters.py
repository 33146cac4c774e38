"""Filters of many terms (tests/hostile/filters.py) have pyarrow's rows through every door, in bounded memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.faults

ROOT = Path(__file__).resolve().parents[2]
MEMORY = 400 << 20  # bytes that all doors may take


@pytest.mark.heavy
@pytest.mark.timeout(300)
@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_filters_of_many_terms(count: int) -> None:
    command = [sys.executable, "-m", "tests.hostile.filters", str(count)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
    *wrong, taken = done.stdout.splitlines()
    assert not wrong, "\n".join(wrong)
    assert int(taken) < MEMORY
