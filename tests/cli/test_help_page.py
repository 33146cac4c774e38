"""The first page of the help is the one that typer writes."""

from __future__ import annotations

import re

import pytest
from typer.testing import CliRunner

from asyncpq.cli.commands import app
from asyncpq.cli.help_page import help_page


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
