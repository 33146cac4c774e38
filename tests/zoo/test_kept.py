"""Files of many writers, kept from a run of ``make zoo``: every answer is that of pyarrow's full read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.zoo.ask import judge
from tests.zoo.keep import KEPT, MOST_BYTES

FILES = sorted(KEPT.glob("*/*.parquet"))
NAMES = [f"{path.parent.name}/{path.stem}" for path in FILES]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("path", FILES[::3], ids=NAMES[::3])  # the slow test below has all
async def test_answers_are_pyarrows(path: Path) -> None:
    verdict = await judge(path, 4)
    assert not verdict.failures


@pytest.mark.slow
@pytest.mark.parametrize("path", FILES, ids=NAMES)
async def test_many_answers_are_pyarrows(path: Path) -> None:
    verdict = await judge(path, 50)
    assert not verdict.failures


def test_every_kept_file_has_a_writer_and_a_command() -> None:
    manifest = json.loads((KEPT / "manifest.json").read_text())
    assert sorted(manifest) == NAMES
    assert all(entry["writer"] and entry["command"] for entry in manifest.values())
    assert sum(path.stat().st_size for path in FILES) <= MOST_BYTES
