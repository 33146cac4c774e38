"""The tables of docs/usage/ are complete and say what the code says."""

from __future__ import annotations

import builtins
import dataclasses
import inspect
import re
import typing
from pathlib import Path
from typing import Any

import pytest

import asyncpq
import asyncpq.blocking
from asyncpq import events, metrics
from asyncpq.expressions import Column
from asyncpq.storage.base import Guarantee

ROOT = Path(__file__).resolve().parents[2]
PAGE = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "docs" / "usage").glob("*.md")))
PACKAGE = Path(asyncpq.__file__).parent
UNITS = {"_bytes_s": "bytes/s", "_bytes": "bytes", "_s": "s"}


def table(head: str) -> list[list[str]]:
    """The cells of the table whose first line is ``| head``."""
    lines = PAGE[PAGE.index(f"\n| {head}") + 1 :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in line.strip("|").split(" |")] for line in lines[2:]]


def options_table(name: str) -> list[list[str]]:
    section = PAGE.index(f"\n## `{name}`")
    lines = PAGE[PAGE.index("\n| field", section) + 1 :].split("\n\n")[0].splitlines()
    return [[cell.strip() for cell in re.split(r"\|", line.strip("|"))] for line in lines[2:]]


def names(cells: list[str]) -> list[str]:
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


@pytest.mark.parametrize(
    "options",
    [
        asyncpq.RequestOptions,
        asyncpq.RetryOptions,
        asyncpq.LimitOptions,
        asyncpq.ReadOptions,
        asyncpq.BuildOptions,
        asyncpq.DiskCacheOptions,
        asyncpq.SharedCacheOptions,
    ],
)
def test_options(options: Any) -> None:
    rows = options_table(options.__name__)
    assert names([row[0] for row in rows]) == [field.name for field in dataclasses.fields(options)]
    fields = {field.name: field for field in dataclasses.fields(options)}
    for field, unit, default, text in rows:
        name = field.strip("`")
        if default:
            expected = eval(default.strip("`"), {"KiB": 1024, "MiB": 1024 * 1024})
            assert fields[name].default == expected, name
        else:
            assert fields[name].default is dataclasses.MISSING, name
        known = next((unit for ending, unit in UNITS.items() if name.endswith(ending)), None)
        assert known is None or unit == known, name
        assert text


def test_metrics() -> None:
    rows = table("metric |")
    documented = names([row[0] for row in rows])
    assert sorted(documented) == sorted([*asyncpq.ReadMetrics().counts(), "began", "ended", "log", "totals", "trace"])


def test_purposes() -> None:
    text = next(row[1] for row in table("metric |") if "requests_by_purpose" in row[0])
    assert re.findall(r"`(\w+)`", text) == list(typing.get_args(metrics.Purpose))


def test_public_names() -> None:
    """Each is named on some page for users, or is an error of the tree."""
    others = ("README.md", "docs/datasets.md", "docs/tables.md")
    pages = "".join((ROOT / page).read_text(encoding="utf-8") for page in others)
    assert [name for name in asyncpq.__all__ if not re.search(rf"\b{name}\b", PAGE + pages)] == []
    assert set(names([row[0] for row in table("name | what it is")])) <= set(asyncpq.__all__)


def test_events() -> None:
    rows = table("event |")
    for name, text in rows:
        documented = re.findall(r"`(\w+)`", text)
        fields = [field.name for field in dataclasses.fields(getattr(asyncpq, name.strip("`")))]
        operations = typing.get_args(events.OperationName) if "operation" in fields else ()
        assert [word for word in documented if word not in operations] == fields
        if name.strip("` ") == "ReadEnded":
            assert [word for word in documented if word in operations] == list(operations)
    assert names([row[0] for row in rows]) == [event.__name__ for event in typing.get_args(events.Event)]


def test_loggers() -> None:
    """Those that modules make, by their own name or another."""
    made = set()
    for path in PACKAGE.rglob("*.py"):
        module = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        for name in re.findall(r"getLogger\((.*?)\)", path.read_text(encoding="utf-8")):
            made.add(module if name == "__name__" else name.strip('"'))
    documented = {name for row in table("logger |") for name in re.findall(r"`([\w.]+)`", row[0])}
    assert documented == made


def test_guarantees() -> None:
    assert names([row[0] for row in table("guarantee |")]) == [guarantee.value for guarantee in Guarantee]


def test_column_methods() -> None:
    text = " ".join(row[0] for row in table('of `col("x")`'))
    methods = {name for name, _ in inspect.getmembers(Column, inspect.isfunction) if not name.startswith("_")}
    assert set(re.findall(r"`\.(\w+)\(", text)) == methods
    for method in methods:
        documented = re.search(rf"`\.{method}\((.*?)\)`", text)
        assert documented is not None
        parameters = list(inspect.signature(getattr(Column, method)).parameters.values())[1:]
        assert [part.split("=")[0].strip() for part in documented[1].split(",") if part] == [p.name for p in parameters]
    assert re.findall(r"`([=!<>]=?)`", text) == ["==", "!=", "<", "<=", ">", ">="]


def test_verbs() -> None:
    rows = table("verb |")
    assert rows
    for row in rows:
        found = re.match(r"`(?:await )?file\.(\w+)\((.*)\)`$", row[0])
        assert found is not None, row
        parameters = inspect.signature(getattr(asyncpq.File, found[1])).parameters
        named = re.findall(r"(\w+)=|\b(columns|where)\b", found[2])
        assert {left or right for left, right in named} <= set(parameters)


def test_errors() -> None:
    tree = re.findall(r"^    ( *)(\w+(?:Error|Unsupported))(?: \((\w+)\))?$", PAGE, re.MULTILINE)
    above: list[type] = []
    documented = set()
    for indent, name, builtin in tree:
        error = getattr(asyncpq, name)
        documented.add(name)
        del above[len(indent) // 4 :]
        bases = (*above[-1:], *([getattr(builtins, builtin)] if builtin else ()))
        assert error.__bases__ == bases, name
        above.append(error)
    assert documented == {name for name in asyncpq.__all__ if name.endswith(("Error", "Unsupported"))}
    meanings = {name.strip("` "): text for name, text in table("error | meaning")}
    docs = {name: inspect.getdoc(getattr(asyncpq, name)) or "" for _, name, _ in tree}
    assert meanings == {
        name: " ".join(text.partition("\n\n")[0].replace("``", "`").split()) for name, text in docs.items()
    }


def test_blocking_names() -> None:
    """Each public name of the module, with its class and its asynchronous form."""
    rows = table("name | its class")
    documented = {name.rpartition(".")[2] for cell, *_ in rows for name in re.findall(r"`([\w.]+)`", cell)}
    assert documented == set(asyncpq.blocking.__all__)
    for name, kind, _ in rows[:-1]:
        assert getattr(asyncpq.blocking, names([name.replace("asyncpq.blocking.", "")])[0]).__name__ == kind.strip("` ")
