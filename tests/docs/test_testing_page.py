"""docs/testing.md names all that asyncpq.testing offers; and that needs no test runner and no store's client."""

from __future__ import annotations

import ast
import dataclasses
import re
import subprocess
import sys
from pathlib import Path

import pytest

import asyncpq.testing
from asyncpq.testing import CATALOGUE, Fault, Scene
from asyncpq.testing.assertions import equal

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")


def test_every_name_is_there() -> None:
    words = set(re.findall(r"\w+", PAGE))
    assert set(asyncpq.testing.__all__) <= words, set(asyncpq.testing.__all__) - words


def test_every_field_of_a_fault_is_there() -> None:
    table = PAGE[PAGE.index("| what goes wrong |") :].split("\n\n")[0]
    documented = re.findall(r"`(\w+)`", table.partition("| --- |")[2])
    which = {"method", "path", "ranged", "after", "times"}
    assert sorted(documented) == sorted({field.name for field in dataclasses.fields(Fault)} - which)
    assert all(f"`{name}`" in PAGE or f"{name}=" in PAGE for name in which)


def test_every_fault_of_the_catalogue_is_one_that_happens_once() -> None:
    scene = Scene(other=b"other", location="/bucket/key", elsewhere="http://127.0.0.2:9/")
    made = {name: make(scene) for name, make in CATALOGUE.items()}
    assert all((fault.times, fault.after) == (1, 0) for fault in made.values())
    assert len(set(made.values())) == len(made)


def test_what_importing_it_loads() -> None:
    code = "import asyncpq.testing, sys; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"pytest", "hypothesis", "s3fs", "botocore", "aiohttp", "fsspec", "valkey"} & set(loaded)


@pytest.mark.parametrize(
    "module", ["cache_contract", "catalog_contract", "backend_contract", "store_contract", "store_write_contract"]
)
def test_a_check_that_fails_says_what(module: str) -> None:
    """No test runner explains an assertion of an installed package."""
    source = Path(asyncpq.testing.__file__).with_name(f"{module}.py").read_text(encoding="utf-8")
    silent = [node.lineno for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Assert) and node.msg is None]
    assert not silent


def test_what_it_says_names_both_values() -> None:
    with pytest.raises(AssertionError, match=r"^the bytes: b'one' where b'two' should be$"):
        equal(b"one", b"two", "the bytes")
    with pytest.raises(AssertionError) as caught:
        equal(bytes(100_000), b"", "the bytes")
    assert len(str(caught.value)) < 500
