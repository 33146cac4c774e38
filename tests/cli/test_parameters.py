"""Complete command lines are read as typer reads them, and all others are left to typer."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import pytest
from typer.testing import CliRunner

from asyncpq.cli import commands, parameters
from asyncpq.cli.command_table import PANELS
from asyncpq.cli.commands import app
from asyncpq.cli.parameters import (
    Argument,
    Group,
    Option,
    complete_call,
    gathered,
    load,
    option_names,
    signature_of,
    spread,
)

COMPLETE = [
    "lookup a.parquet --key id=1",
    "lookup --key id=1 a.parquet --key id=2 --columns a,b",
    "lookup a.parquet --key=id=1 --key=name= --format csv -o rows.csv",
    "take a.parquet 3 1 2 --stats",
    "take --columns a a.parquet 007",
    "count a.parquet --where id>=1 --where id=2 --format json",
    "query s3://b/k -n 5 --profile p --endpoint-url http://h --region r --no-sign-request --disk-cache d",
    "query a.parquet --limit=0 --version 3",
    "head a.parquet --rows 3",
    "schema a.parquet --format table",
    "inspect a.parquet --no-pages --sort size --all",
    "lint a.parquet --column a --column b --strict",
    "index show a --at b --stale",
    "index build a -k footers -k keys:user",
    "index drop a -y",
    "cache show --disk-cache x",
    "explain a.parquet --limit 3",
    "doctor",
    "serve --demo --port 8080",
]
LEFT = [
    "",
    "nosuch a",
    "index",
    "index nosuch a",
    "lookup a.parquet",
    "lookup --key id=1",
    "count",
    "count a.parquet --help",
    "count a.parquet b.parquet",
    "count a.parquet --where",
    "count a.parquet --where --stats",
    "count a.parquet --nosuch 1",
    "count a.parquet --format xml",
    "count a.parquet --stats=yes",
    "query a.parquet -n5",
    "query a.parquet -n=5",
    "query a.parquet --limit -1",
    "query a.parquet --limit 1.5",
    f"query a.parquet --limit {'9' * 5000}",
    "take a.parquet -1",
    "take a.parquet x",
    "take a.parquet",
    "count -- a.parquet",
    "optimize a b --memory-mib 0",
    "why a.parquet --html page.html",
]


@pytest.mark.parametrize("line", COMPLETE)
def test_a_complete_line_is_what_typer_makes_of_it(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs: dict[str, Any] = {}

    def recording(command: Callable[..., None]) -> Callable[..., None]:
        def record(**given: Any) -> None:
            theirs.update(given)

        record.__name__ = command.__name__
        record.__signature__ = signature_of(command)  # type: ignore[attr-defined]
        return record

    def recorded(name: str) -> Callable[..., None] | Group:
        command = load(name)
        if not isinstance(command, Group):
            return recording(command)
        group = Group(command.name, command.about)
        group.commands = {word: recording(one) for word, one in command.commands.items()}
        return group

    call = complete_call(line.split())
    assert isinstance(call, partial)
    monkeypatch.setattr(commands, "load", recorded)
    assert CliRunner().invoke(app, line.split()).exit_code == 0
    defaults = {name: one.default for name, one in signature_of(call.func).parameters.items()}
    assert repr(theirs) == repr({name: call.keywords.get(name, defaults[name]) for name in theirs})
    assert set(call.keywords) <= set(theirs) == set(defaults)


@pytest.mark.parametrize("line", LEFT)
def test_other_lines_are_left_to_typer(line: str) -> None:
    assert complete_call(line.split()) is None


def test_every_parameter_is_declared() -> None:
    declared = (parameters.Option, parameters.Argument)
    for panel in PANELS.values():
        for name, _, _ in panel:
            command = load(name)
            for one in command.commands.values() if isinstance(command, Group) else [command]:
                for parameter in signature_of(one).parameters.values():
                    assert isinstance(parameter.annotation.__metadata__[0], declared), (name, parameter)


@dataclass(frozen=True)
class Place:
    """Where a command of this test reads."""

    url: Annotated[str, Argument()]
    index: Annotated[str | None, Option("--index")] = None


def test_a_command_takes_the_parameters_of_a_dataclass_whole() -> None:
    def command(
        *, times: Annotated[int, Option("--times")] = 1, place: Place, dry: Annotated[bool, Option("--dry")]
    ) -> None:
        """Do nothing."""

    parameters = inspect.signature(command, eval_str=True).parameters.values()
    flat = spread(parameters).parameters
    assert [(one.name, one.default) for one in flat.values()] == [
        ("times", 1),
        ("url", inspect.Parameter.empty),
        ("index", None),
        ("dry", inspect.Parameter.empty),
    ]
    assert flat["index"].annotation.__metadata__[0].names == ("--index",)
    given = {"url": "a", "dry": True}
    assert gathered(parameters, given) == {"place": Place("a"), "dry": True}
    assert gathered(parameters, {**given, "index": "i", "times": 2}) == {
        "times": 2,
        "place": Place("a", "i"),
        "dry": True,
    }


def test_errors_spell_the_long_names_of_options_and_no_arguments() -> None:
    optimize, take = (option_names(signature_of(load(name))) for name in ("optimize", "take"))  # type: ignore[arg-type]
    assert optimize["sort_by"] == "--sort-by"
    assert optimize["memory"] == "--memory-mib"
    assert take["columns"] == "--columns"
    assert "rows" not in take
