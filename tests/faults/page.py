"""docs/faults.md: its two tables are made by the tests, and held against them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from asyncpq.testing import CATALOGUE
from tests.faults.matrix import Outcome
from tests.faults.operations import OPERATIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"
SECTIONS = {False: "## Once", True: "## Persistent"}


def check(name: str, found: Mapping[str, Sequence[Outcome]]) -> None:
    """Hold what came of a fault against the page; with ASYNCPQ_UPDATE_DOCS=1 add to the page what it lacks.

    What is fetched in parallel may fail in either order, so a run need not show all that the page says.
    """
    for lasts, section in SECTIONS.items():
        text = PAGE.read_text(encoding="utf-8")
        start = text.index(f"{section}\n")
        stop = text.find("\n## ", start) + 1 or len(text)
        body = text[start:stop]
        old = re.search(rf"^\| {re.escape(name)} \|(.*)\|$", body, re.MULTILINE)
        before = dict(zip(OPERATIONS, old[1].split("|") if old is not None else [""] * len(OPERATIONS), strict=True))
        cells = {operation: _parsed(cell, found) for operation, cell in before.items()}
        now = {operation: _found(operation, lasts, found) for operation in OPERATIONS}
        if os.environ.get("ASYNCPQ_UPDATE_DOCS"):
            line = f"| {name} | {' | '.join(_cell(cells[operation], now[operation]) for operation in OPERATIONS)} |"
            lines = {known: row for row, known in re.findall(r"^(\| (?!fault|---)([^|]+?) \|.*)$", body, re.MULTILINE)}
            lines[name] = line
            head = body[: body.index("| --- |")].rstrip()
            ruler = "|" + " --- |" * (1 + len(OPERATIONS))
            rows = [lines[known] for known in CATALOGUE if known in lines]
            body = "\n".join([head, ruler, *rows]) + "\n\n"
            PAGE.write_text((text[:start] + body + text[stop:]).rstrip() + "\n", encoding="utf-8")
            continue
        for operation in OPERATIONS:
            for client, whats in now[operation].items():
                assert whats, (name, operation, client)
                assert whats <= cells[operation].get(client, set()), (
                    f"{name}, {operation} over {client}, {section[3:].lower()}: {whats} is not what {PAGE.name} says, "
                    f"{before[operation].strip() or 'nothing'}; delete its line and set ASYNCPQ_UPDATE_DOCS=1"
                )


def names() -> list[list[str]]:
    """The faults of each table."""
    text = PAGE.read_text(encoding="utf-8")
    once, for_ever = text[text.index(SECTIONS[False]) :].split(SECTIONS[True])
    return [re.findall(r"^\| (?!fault|---)([^|]+?) \|", table, re.MULTILINE) for table in (once, for_ever)]


def _found(operation: str, lasts: bool, found: Mapping[str, Sequence[Outcome]]) -> dict[str, set[str]]:
    return {
        client: {one.what for one in all_ if (one.case.operation, one.case.lasts) == (operation, lasts)}
        for client, all_ in found.items()
    }


def _parsed(cell: str, clients: Mapping[str, object]) -> dict[str, set[str]]:
    """What each client may give: a part without a client's name is for all that are not named."""
    named = dict(part.strip().split(": ", 1) for part in cell.split(";") if ": " in part)
    others = next((part for part in cell.split(";") if ": " not in part), "")
    parts = {client: named.get(client, others) for client in clients}
    return {
        client: {what.strip(" `") for what in part.split(",") if what.strip(" `")} for client, part in parts.items()
    }


def _cell(before: Mapping[str, set[str]], now: Mapping[str, set[str]]) -> str:
    said = {client: before[client] | now[client] for client in now}
    first, *others = said
    parts = [_in_words(said[first])]
    parts += [f"{client}: {_in_words(said[client])}" for client in others if not said[client] <= said[first]]
    return "; ".join(parts)


def _in_words(whats: set[str]) -> str:
    in_order = sorted(whats, key=lambda what: (what.endswith("Error"), what.startswith("new"), what))
    return ", ".join(f"`{what}`" if what.endswith("Error") else what for what in in_order)
