"""Hostile files (tests/hostile/files.py), over S3's protocol, asked with every verb, in a process of bounded memory.

Holds: each gives the good file's rows or a typed error that names url and column; no request goes elsewhere
or outside the object, and there are few of them. Limits on footers are those of the options.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import asyncpq
from tests.fuzz import bases
from tests.hostile.files import THREATS

pytestmark = pytest.mark.faults

ROOT = Path(__file__).resolve().parents[2]


STEP = 16  # of the files that `make test-heavy` reads


@pytest.mark.heavy
@pytest.mark.timeout(600)  # hundreds of files, each asked with every verb
@pytest.mark.parametrize(
    ("step", "threats"),
    [
        pytest.param(STEP, THREATS, id="some"),
        *[
            pytest.param(1, THREATS[start::4], id=", ".join(THREATS[start::4]), marks=pytest.mark.slow)
            for start in range(4)
        ],
    ],
)
def test_hostile_files(step: int, threats: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "tests.hostile.run", str(step), *threats]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    *failures, count = done.stdout.splitlines()
    assert not failures, "\n".join(failures)
    assert int(count.split()[0]) >= (3 * len(threats) if step == 1 else len(threats))


@pytest.mark.parametrize("limit", ["max_footer_bytes", "max_footer_elements", "max_schema_elements"])
async def test_limits_of_footers(limit: str, tmp_path: Path) -> None:
    """The least number that lets a file be opened is near what it has; one less refuses it, by name."""
    path = tmp_path / "x.parquet"
    path.write_bytes(bases.data("plain"))
    footer = int.from_bytes(path.read_bytes()[-8:-4], "little")
    low, high = 1, footer

    async def opens(number: int) -> bool:
        try:
            async with asyncpq.open_file(path, limits=asyncpq.LimitOptions(**{limit: number})):
                return True
        except asyncpq.ResourceLimitError as error:
            assert limit in str(error)  # noqa: PT017 - every refusal is looked at
            return False

    while low < high:
        middle = (low + high) // 2
        if await opens(middle):
            high = middle
        else:
            low = middle + 1
    columns = len(bases.table("plain").column_names)
    chunks = 2 * columns
    assert {"max_footer_bytes": footer, "max_schema_elements": columns + 1}.get(limit, low) == low
    assert low >= (chunks if limit == "max_footer_elements" else 1)
