"""docs/testing.md and contracts.md name all of asyncpq.testing, which needs no test runner and no store's client."""

from __future__ import annotations

import asyncio
import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import asyncpq.testing
from asyncpq.testing import Fault

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = "\n".join((DOCS / page).read_text(encoding="utf-8") for page in ("testing.md", "contracts.md"))


def test_every_name_is_there() -> None:
    words = set(re.findall(r"\w+", PAGE))
    assert set(asyncpq.testing.__all__) <= words, set(asyncpq.testing.__all__) - words


def test_every_field_of_a_fault_is_there() -> None:
    table = PAGE[PAGE.index("| what goes wrong |") :].split("\n\n")[0]
    documented = re.findall(r"`(\w+)`", table.partition("| --- |")[2])
    which = {"method", "path", "ranged", "after", "times"}
    assert sorted(documented) == sorted({field.name for field in dataclasses.fields(Fault)} - which)
    assert all(f"`{name}`" in PAGE or f"{name}=" in PAGE for name in which)


def test_the_first_test_passes() -> None:
    block = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)[0]
    names: dict[str, Any] = {}
    exec(block, names)
    asyncio.run(names["test_price"]())


def test_what_importing_it_loads() -> None:
    code = "import asyncpq.testing, sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pytest", "hypothesis", "s3fs", "botocore", "aiohttp", "fsspec", "valkey"} & set(loaded)
