"""Every command is listed, explained, and has a help."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from asyncpq.cli.command_table import PANELS
from asyncpq.cli.commands import app, load_command

pytestmark = pytest.mark.sampled(2)

COMMANDS = sorted(typer.main.get_command(app).commands)  # type: ignore[attr-defined]  # it is a group


def test_the_page_of_the_command_line_explains_every_command() -> None:
    pages = sorted((Path(__file__).parents[2] / "docs").glob("cli*.md"))
    lines = [line for page in pages for line in page.read_text(encoding="utf-8").splitlines()]
    headings = " ".join(line for line in lines if line.startswith("## "))
    assert [name for name in COMMANDS if re.search(rf"\b{name}\b", headings) is None] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_help_that_ends_as_a_sentence(name: str) -> None:
    done = CliRunner(env={"COLUMNS": "400", "TERM": "dumb"}).invoke(app, [name, "--help"])
    assert done.exit_code == 0
    assert "Usage:" in done.stdout
    assert "<bool>" not in done.stdout
    for line in done.stdout.splitlines():
        if "--" in line and line.startswith("│"):
            assert re.search(r"[.)\]]\s*│$", line), line


def test_every_listed_command_has_the_help_of_its_function() -> None:
    for panel in PANELS.values():
        for name, _, about in panel:
            first, _, _ = load_command(name).help.partition("\n\n")
            assert " ".join(first.split()) == about, name
