"""examples/container/Containerfile is Debian slim, runs without rights, and copies what exists."""

from __future__ import annotations

import re
from pathlib import Path

import asyncpq

ROOT = Path(__file__).parents[2]
LINES = (ROOT / "examples" / "container" / "Containerfile").read_text(encoding="utf-8").splitlines()


def test_the_image_is_slim_and_its_user_has_no_rights() -> None:
    bases = [line.split()[1] for line in LINES if line.startswith("FROM")]
    assert all("-slim" in base for base in bases)
    users = [line.split()[1] for line in LINES if line.startswith("USER")]
    assert users == ["10001"]
    assert LINES.index("USER 10001") < next(at for at, line in enumerate(LINES) if line.startswith("ENTRYPOINT"))


def test_it_copies_what_exists() -> None:
    copied = [line.split()[1:-1] for line in LINES if re.match(r"COPY (?!--)", line)]
    assert copied
    # Where the tests run against the installed wheel, the tree has no asyncpq folder: the package stands for it.
    folders = {"asyncpq": Path(asyncpq.__file__).parent}
    assert all(folders.get(name, ROOT / name).exists() for names in copied for name in names)
