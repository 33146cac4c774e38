"""SECURITY.md names a test for each bound, and each bound of the options."""

from __future__ import annotations

import ast
import dataclasses
import re
from pathlib import Path

import pytest

import asyncpq

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
LIMITS = frozenset(field.name for field in dataclasses.fields(asyncpq.LimitOptions))
#: Options whose fields occur in the table as ``Class.field``.
OPTIONS = (
    asyncpq.BuildOptions,
    asyncpq.DiskCacheOptions,
    asyncpq.LimitOptions,
    asyncpq.ReadOptions,
    asyncpq.RetryOptions,
    asyncpq.SharedCacheOptions,
)


def rows() -> list[list[str]]:
    """The cells of the table's rows, without its headings."""
    lines = PAGE[PAGE.index("\n| what | ") + 1 :].split("\n\n")[0].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    return [row for row in cells if not row[0].startswith("**")]


def functions_of(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
def test_every_bound_has_a_test(row: list[str]) -> None:
    what, bound, test = row
    assert what
    assert bound
    named = re.fullmatch(r"`([\w/]+)::(test_\w+)`", test)
    assert named is not None, "one test a line, as `folder/test_module::test_function`"
    assert named[2] in functions_of(ROOT / "tests" / f"{named[1]}.py")


def test_every_bound_is_there_once() -> None:
    named = [row[0] for row in rows()]
    assert len(set(named)) == len(named)


def test_limits_are_in_the_table_or_are_no_bounds() -> None:
    table = {name for _, bound, _ in rows() for name in re.findall(r"`LimitOptions\.(\w+)`", bound)}
    targets = set(re.findall(r"`(?:LimitOptions\.)?(\w+)`", PAGE[PAGE.index("\nTargets, not bounds:") :]))
    assert table | targets == LIMITS
    assert not table & targets


def test_named_options_exist() -> None:
    fields = {f"{options.__name__}.{field.name}" for options in OPTIONS for field in dataclasses.fields(options)}
    fields.add("SessionOptions.memory_cache_bytes")
    assert set(re.findall(r"`(\w+Options\.\w+)`", PAGE)) <= fields
