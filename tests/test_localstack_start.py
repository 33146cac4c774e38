"""LocalStack's virtual environment: made once, whichever Python asks for it."""

from __future__ import annotations

import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from localstack import start


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The environments that were made, of the running Python's version, without LocalStack in them."""
    environments: list[Path] = []

    def create(environment: Path, **options: object) -> None:
        environments.append(environment)
        (environment / "bin").mkdir(parents=True, exist_ok=True)
        (environment / "bin" / "python").touch()
        (environment / "pyvenv.cfg").write_text(
            f"home = /usr/bin\nversion = {'.'.join(map(str, sys.version_info[:3]))}\n"
        )

    def run(command: list[str | Path], **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, 0, "")

    monkeypatch.setattr(venv, "create", create)
    monkeypatch.setattr(subprocess, "run", run)
    return environments


def test_another_python_uses_the_same_environment(
    tmp_path: Path, made: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    python = start.install(tmp_path)
    assert python.exists()
    for version in ((3, 13, 0), sys.version_info):
        with monkeypatch.context() as patch:
            patch.setattr(sys, "version_info", version)
            assert start.install(tmp_path) == python
    assert made == [tmp_path / "venv"]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda home, patch: patch.setattr(start, "REQUIREMENTS", home / "lock"),
        lambda home, patch: (home / "venv" / "bin" / "python").unlink(),
        lambda home, patch: (home / "venv" / "requirements.sha256").unlink(),
    ],
    ids=["other-requirements", "python-gone", "not-finished"],
)
def test_an_environment_of_no_use_is_made_again(
    tmp_path: Path, made: list[Path], monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path, object], None]
) -> None:
    start.install(tmp_path)
    spoil(tmp_path, monkeypatch)
    assert start.install(tmp_path).exists()
    assert len(made) == 2
