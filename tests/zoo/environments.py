"""Where writers run: each in an environment of its own, installed from a package registry."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

INSTALL_TIMEOUT_S = 900


class NotInstalledError(Exception):
    """A writer cannot be installed here; the message says why."""


class Environment(Protocol):
    """How a writer is installed and called. Its ``repr`` decides whether it must be installed again."""

    def prepare(self, folder: Path, program: Path) -> list[str]:
        """Install below ``folder``; return the command that takes the output folder as its last argument.

        Raises:
            NotInstalledError: it cannot be installed here.
        """


def install(command: list[str], folder: Path) -> None:
    """Run one step of an installation in ``folder``."""
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotInstalledError(f"{command[0]}: {error}") from error
    if done.returncode:
        lines = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        raise NotInstalledError(" / ".join(lines[-3:]) or f"{command[0]} exited with {done.returncode}")


@dataclass(frozen=True, kw_only=True)
class PythonEnvironment:
    """A virtual environment of one Python version, with wheels only, but for what is to be built ``from_source``."""

    python: str  # such as "3.8"
    requirements: tuple[str, ...]
    from_source: str = ""  # names, with commas between them

    def prepare(self, folder: Path, program: Path) -> list[str]:
        """A virtual environment with the requirements."""
        shutil.rmtree(folder / "venv", ignore_errors=True)
        install([str(interpreter(self.python)), "-m", "venv", "venv"], folder)
        python = str(folder / "venv" / "bin" / "python")
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-compile"]
        if self.python in ("3.6", "3.7"):
            install([*pip, "--upgrade", "pip"], folder)  # theirs knows no wheels of manylinux2014
        source = ["--no-binary", self.from_source] if self.from_source else []
        install([*pip, "--only-binary", ":all:", *source, *self.requirements], folder)
        return [python, str(program)]


def interpreter(version: str) -> Path:
    """A Python of that version: below PYENV_ROOT, ~/.pyenv, or on PATH."""
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = sorted(root.glob(f"versions/{version}.*/bin/python"))
    if found:
        return found[-1]
    on_path = shutil.which(f"python{version}")
    if on_path is None:
        raise NotInstalledError(f"no Python {version}, neither below {root} nor on PATH")
    return Path(on_path)
