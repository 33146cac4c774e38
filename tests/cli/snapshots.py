"""Outputs of commands, kept in ``tests/cli/snapshots``. ``ASYNCPQ_UPDATE_SNAPSHOTS=1`` writes them anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

_FOLDER = Path(__file__).parent / "snapshots"
_PYARROW = re.compile(r"(?<=parquet-cpp-arrow version )\d+\.\d+\.\d+")
_VERSION = re.compile(r"\d+-\d+-\d+-\d+-\d+.*")  # of a local file: device, inode, times and size


def check_snapshot(name: str, output: str) -> None:
    """Hold ``output`` to the snapshot ``name``. The working folder, versions of local files, and
    pyarrow's version are masked."""
    text = _VERSION.sub("VERSION", output.replace(os.getcwd(), "FOLDER"))
    text = _PYARROW.sub("NUMBER", text)
    text = "\n".join(line.rstrip() for line in text.splitlines()) + "\n"
    path = _FOLDER / name
    if os.environ.get("ASYNCPQ_UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")
