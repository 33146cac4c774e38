"""Plans of 100,000 files within the memory of a small driver."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

_SCRIPT = Path(__file__).with_name("many_files.py")
_ROOT = _SCRIPT.parents[3]


def plan(number: int, folder: Path, cache_mib: int = 64) -> dict[str, float]:
    command = [sys.executable, str(_SCRIPT), str(number), str(folder), str(cache_mib)]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=_ROOT, check=True, env={"PYTHONPATH": str(_ROOT)}
    )
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_what_is_kept_of_a_file_is_little(tmp_path: Path) -> None:
    few, more = plan(200, tmp_path, 1), plan(2200, tmp_path, 1)  # what caches keep has a bound of its own
    assert (more["files"], more["requests"]) == (2200, 0)
    assert more["task_bytes"] < 64 << 10
    assert more["peak_mib"] - few["peak_mib"] < 20


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_100_000_files(tmp_path: Path) -> None:
    found = plan(100_000, tmp_path)
    assert (found["files"], found["requests"]) == (100_000, 0)
    assert found["peak_mib"] < 700
    assert list(tmp_path.rglob("*.splits"))  # more than is sent
