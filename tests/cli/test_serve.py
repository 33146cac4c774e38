"""``asyncpq serve`` finds its arguments, and says what to install."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

from asyncpq.cli.commands import app


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
    assert "as the extra asyncpq[serve] does" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_configuration_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("prometheus_client")
    path = tmp_path / "service.toml"
    path.write_text("[serve]\n")
    done = CliRunner().invoke(app, ["serve", str(path)])
    assert done.exit_code == 2


def test_arguments_reach_the_service_and_its_exit_code_is_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str | None, str | None, int | None]] = []

    def serve(path: str | None, host: str | None, port: int | None) -> int:
        calls.append((path, host, port))
        return 130

    service = ModuleType("asyncpq.serve.__main__")
    service.serve = serve  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "asyncpq.serve.__main__", service)
    done = CliRunner().invoke(app, ["serve", "service.toml", "--host", "::1", "--port", "81"])
    assert done.exit_code == 130
    assert calls == [("service.toml", "::1", 81)]
