"""A command ends with one exit code, and an error with one line."""

from __future__ import annotations

import pytest
import typer

from asyncpq import errors
from asyncpq.cli.running import FINDINGS, State, exit_code, fail, run


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.InvalidOptionError("x"), 2),
        (errors.UsageError("x"), 2),
        (errors.ExpressionError("x"), 2),
        (errors.ColumnNotFoundError("x"), 2),
        (errors.ObjectNotFoundError("x"), 3),
        (errors.AccessDeniedError("x"), 4),
        (errors.StoreError("x"), 1),
        (errors.CorruptFileError("x"), 1),
        (OSError("x"), 1),
        (KeyError("x"), 1),
    ],
)
def test_exit_codes(error: Exception, code: int) -> None:
    assert exit_code(error) == code


def test_a_result_is_returned_and_an_exit_of_the_command_stays() -> None:
    async def three() -> int:
        return 3

    async def findings() -> None:
        raise typer.Exit(FINDINGS)

    assert run(State(), three()) == 3
    with pytest.raises(typer.Exit) as ended:
        run(State(), findings())
    assert ended.value.exit_code == FINDINGS


def test_an_interrupt_ends_with_the_shells_code(capsys: pytest.CaptureFixture[str]) -> None:
    async def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(typer.Exit) as ended:
        run(State(), interrupted())
    assert ended.value.exit_code == 130
    assert capsys.readouterr().err == "asyncpq: interrupted\n"


def test_an_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(typer.Exit) as ended:
        fail("first\n  second", 1)
    assert ended.value.exit_code == 1
    assert capsys.readouterr() == ("", "asyncpq: first second\n")
