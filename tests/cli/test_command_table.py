"""Every command is listed, explained, and has a help, whose first page is the one that typer writes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from asyncpq.cli.command_table import PANELS, help_page
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


@pytest.mark.parametrize("width", [60, 80, 200])
def test_the_first_page_of_the_help_says_what_typer_says(width: int) -> None:
    theirs = CliRunner(env={"COLUMNS": str(width), "TERM": "dumb"}).invoke(app, ["--help"], prog_name="asyncpq").stdout
    ours = help_page("asyncpq", width, styled=False)
    assert words(ours) == words(theirs)
    assert {len(line) for line in ours.splitlines() if line.startswith(("╭", "│", "╰"))} == {width}
    assert re.sub(r"\x1b\[[0-9;]*m", "", help_page("asyncpq", width, styled=True)) == ours


def words(page: str) -> list[str]:
    """The words of a page of help, without its boxes and the type that versions of typer show for a switch."""
    return re.sub(r"[─╭╮╰╯│]|<bool>", " ", page).split()
