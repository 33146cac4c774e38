"""Tables that Spark wrote, by a script of this folder in an environment that has pyspark."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPTS = Path(__file__).parent


def written_by_spark(folder: Path, script: str, *imports: str) -> Path:
    """Run ``script`` on ``folder``; skips where Java, what it imports, or Maven's repository is not there."""
    python = os.environ.get("ASYNCPQ_SPARK_PYTHON", sys.executable)
    # Other versions of pyspark do not go with the jars.
    command = [python, "-c", f"import {', '.join(imports)}; assert pyspark.__version__.startswith('4.1.')"]
    if shutil.which("java") is None or subprocess.run(command, capture_output=True, timeout=60).returncode:
        pytest.skip(f"needs Java and {', '.join(imports)}: pip install -r tests/tables/spark.txt")
    command = [python, str(_SCRIPTS / script), str(folder)]
    environment = {**os.environ, "PYSPARK_PYTHON": python}
    run = subprocess.run(command, capture_output=True, text=True, timeout=600, env=environment, cwd=folder)
    if "unresolved dependency" in run.stderr:
        pytest.skip("Maven's repository cannot be reached")
    assert run.returncode == 0, run.stderr
    return folder
