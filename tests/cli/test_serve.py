"""``asyncpq serve`` finds its arguments, and says what to install."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from asyncpq.cli.app import app


@pytest.mark.parametrize("arguments", [[], ["service.toml", "--demo"]])
def test_it_needs_a_configuration_or_the_demo(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["serve", *arguments])
    assert done.exit_code == 2
    assert "--demo" in done.stderr


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("asyncpq.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.setitem(sys.modules, "starlette.requests", None)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    done = CliRunner().invoke(app, ["serve", "--demo"])
    assert done.exit_code == 2
    assert "pip install 'asyncpq[serve]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_configuration_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("prometheus_client")
    path = tmp_path / "service.toml"
    path.write_text("[serve]\n")
    done = CliRunner().invoke(app, ["serve", str(path)])
    assert done.exit_code == 2
