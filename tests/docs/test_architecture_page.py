"""docs/architecture.md, architecture-rooms.md and architecture-doors.md name the modules and layers that exist."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import asyncpq

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("architecture.md", "architecture-rooms.md", "architecture-doors.md")
PAGE = "\n".join((ROOT / "docs" / page).read_text(encoding="utf-8") for page in PAGES)
PACKAGE = Path(asyncpq.__file__).parent
MODULES = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()}
MODULES -= {"__init__"}


def test_every_module_has_a_line() -> None:
    rows = re.findall(r"^\| (`.*?`) \|", PAGE, re.MULTILINE)
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row)} == MODULES


def test_layers_are_import_linter_s() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings["tool"]["importlinter"]["contracts"]
    (layers,) = (contract["layers"] for contract in contracts if contract["id"] == "layers")
    there = []
    for layer in layers:
        names = [name for name in re.findall(r"\((\w+)\)", layer) if name in MODULES]  # some are to come
        if names:
            there.append((" : " if ":" in layer else " | ").join(names))
    block = re.search(r"\n\n((?:    \w+(?: [|:] \w+)*\n)+)\n", PAGE)
    assert block is not None
    assert [line.strip() for line in block[1].splitlines()] == there


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`((?:decoding|tests|docs)/[\w/.]+)`", PAGE))))
def test_paths_exist(path: str) -> None:
    assert (ROOT / path).exists() or (PACKAGE / path).exists()


def test_modules_of_the_walk_exist() -> None:
    modules = re.compile(r"`([\w/]+(?:\.py|/))`|^ {4,}([\w/]+(?:\.py|/))  ", re.MULTILINE)
    missing, checked = [], 0
    for section in re.split(r"^#+ ", PAGE, flags=re.MULTILINE):
        title = section.partition("\n")[0]
        rooms = [PACKAGE / room for room in re.findall(r"\w+", title.partition(":")[0])]
        for named in modules.finditer(section):
            path = named[1] or named[2]
            checked += 1
            # the package may be installed elsewhere: CI tests a wheel
            if not any((folder / path).exists() for folder in (*rooms, PACKAGE, PACKAGE.parent, ROOT)):
                missing.append((title, path))
    assert missing == []
    assert checked > 100
