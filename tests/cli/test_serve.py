"""``asyncpq serve`` finds its arguments, and says what to install."""

from __future__ import annotations

import hashlib
import socket
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.testing import CliRunner

import asyncpq.serve
from asyncpq.cli.commands import app, load_command


@pytest.mark.parametrize("arguments", [[], ["service.toml", "--demo"]])
def test_it_needs_a_configuration_or_the_demo(arguments: list[str]) -> None:
    done = CliRunner().invoke(app, ["serve", *arguments])
    assert done.exit_code == 2
    assert "--demo" in done.stderr


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asyncpq, "serve", None)  # the import below sets it, and later tests need what was there
    for name in [name for name in sys.modules if name.startswith("asyncpq.serve")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.setitem(sys.modules, "starlette.requests", None)
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    done = CliRunner().invoke(app, ["serve", "--demo"])
    assert done.exit_code == 2
    assert "Install starlette: pip install" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_wrong_configuration_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("starlette")
    pytest.importorskip("prometheus_client")
    path = tmp_path / "service.toml"
    path.write_text("[serve]\n")
    done = CliRunner().invoke(app, ["serve", str(path)])
    assert done.exit_code == 2


def test_arguments_reach_the_service_and_its_exit_code_is_the_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str | None, dict[str, Any]]] = []

    def start(configuration: str | None, **options: Any) -> int:
        calls.append((configuration, options))
        return 130

    service = ModuleType("asyncpq.serve.__main__")
    service.start = start  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "asyncpq.serve.__main__", service)
    done = CliRunner().invoke(app, ["serve", "service.toml", "--host", "::1", "--port", "81", "--workers", "3"])
    assert done.exit_code == 130
    others = {"demo": False, "check": False, "new_token": False}
    assert calls == [("service.toml", others | {"host": "::1", "port": 81, "workers": 3})]


def test_both_commands_take_the_same_arguments() -> None:
    main = pytest.importorskip("asyncpq.serve.__main__")
    command = load_command("serve")
    assert {parameter.name for parameter in command.params} == set(vars(main.parser().parse_args([])))


def test_a_new_token() -> None:
    pytest.importorskip("starlette")
    command = [sys.executable, "-m", "asyncpq", "serve", "--new-token"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    (_, token), (_, digest) = [line.split() for line in done.stdout.splitlines()]
    assert hashlib.sha256(token.encode()).hexdigest() == digest


@pytest.mark.heavy
def test_a_taken_port_is_wrong_usage() -> None:
    pytest.importorskip("uvicorn")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ["serve", "--demo", "--host", "127.0.0.1", "--port", str(port)]
        done = subprocess.run(
            [sys.executable, "-m", "asyncpq", *arguments], capture_output=True, text=True, timeout=120, check=False
        )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"asyncpq: the service cannot listen at 127.0.0.1, port {port}. ")
    assert done.stderr.count("\n") == 1
