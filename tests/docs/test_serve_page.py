"""docs/serve.md and serve-configuration.md: the configuration is one, the code runs, and the tables are complete."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("starlette")
pytest.importorskip("prometheus_client")

from asyncpq.serve import Service
from asyncpq.serve.access import Limits
from asyncpq.serve.configuration import Configuration, ServerConfiguration, parse_configuration
from asyncpq.serve.openapi import openapi_document

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("serve.md", "serve-configuration.md"))


def block(language: str, number: int = 0) -> str:
    found: list[str] = re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)
    return found[number]


def test_the_configuration_is_read_and_names_every_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DASHBOARD_TOKEN", "a token of the dashboard")
    small = parse_configuration(tomllib.loads(block("toml")))
    assert small.tokens[0].grants["trips"].columns == ("id", "price")
    values = tomllib.loads(block("toml", 1))
    configuration = parse_configuration(values)
    assert [token.name for token in configuration.tokens] == ["dashboard", "operator", "anonymous"]
    dashboard = configuration.tokens[0]
    assert (dashboard.limits.rows, dashboard.limits.keys) == (10_000, 1000)
    assert str(dashboard.grants["trips"].rows) == "region == 'north'"
    assert configuration.tokens[1].grant("trips") is not None
    assert set(values["server"]) == set(ServerConfiguration.__dataclass_fields__)
    assert values["limits"] == {name: getattr(Limits(), name) for name in Limits.__dataclass_fields__}


def test_the_table_of_endpoints_is_complete() -> None:
    found: list[Any] = list(Service(Configuration()).app.routes)
    named = set(re.findall(r"`[^`]*?(/[\w./{}]*)", PAGE[PAGE.index("| path |") : PAGE.index("`where` is")]))
    assert named == {route.path for route in found}


def test_the_table_of_statuses_is_complete() -> None:
    documented = re.findall(r"^\| (\d{3}) \|", PAGE, re.MULTILINE)
    assert documented == sorted(openapi_document()["components"]["responses"])


def test_the_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi")
    monkeypatch.setenv("DASHBOARD_TOKEN", "a token of the dashboard")
    (tmp_path / "service.toml").write_text(block("toml"))
    monkeypatch.chdir(tmp_path)
    exec(block("python"), {})
