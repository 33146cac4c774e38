"""Hostile files (tests/hostile.py), over S3's protocol, asked with every verb, in a process of bounded memory.

Holds: each gives the good file's rows or a typed error that names url and column; no request goes elsewhere
or outside the object, and there are few of them.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.hostile import THREATS

ROOT = Path(__file__).resolve().parents[2]


GROUPS = [THREATS[start::4] for start in range(4)]


@pytest.mark.parametrize("threats", GROUPS, ids=[", ".join(group) for group in GROUPS])
def test_hostile_files(threats: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "tests.hostile_run", *threats]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    *failures, count = done.stdout.splitlines()
    assert not failures, "\n".join(failures)
    assert int(count.split()[0]) >= 3 * len(threats)
