"""Where writers run: each in an environment of its own, installed from a package registry."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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
    arguments: tuple[str, ...] = ()  # of the program

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
        return [python, str(program), *self.arguments]


@dataclass(frozen=True, kw_only=True)
class CargoEnvironment:
    """A Rust program, called with the version, the Arrow tables, ``arguments`` and the output folder."""

    version: str
    arguments: tuple[str, ...] = ()

    def prepare(self, folder: Path, program: Path) -> list[str]:
        """The program, built with that version of its crate."""
        build = _sources(folder, program, "Cargo.toml", self.version)
        install(["cargo", "build", "--quiet"], build)
        return [str(build / "target" / "debug" / "writer"), self.version, _tables(folder, program), *self.arguments]


@dataclass(frozen=True, kw_only=True)
class GoEnvironment:
    """A Go program, called with the version, the Arrow tables if it reads them, and the output folder."""

    version: str
    reads_tables: bool = False

    def prepare(self, folder: Path, program: Path) -> list[str]:
        """The program, built with that version of its module."""
        build = _sources(folder, program, "go.mod", f"v{self.version}")
        install(["go", "mod", "tidy"], build)
        install(["go", "build", "-o", "writer", "."], build)
        tables = [_tables(folder, program)] if self.reads_tables else []
        return [str(build / "writer"), self.version, *tables]


@dataclass(frozen=True, kw_only=True)
class MavenEnvironment:
    """A Java class, called with the output folder."""

    version: str
    main: str

    def prepare(self, folder: Path, program: Path) -> list[str]:
        """The class, compiled against that version of its artifact."""
        build = _sources(folder, program, "pom.xml", self.version)
        install(["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"], build)
        install(["javac", "-nowarn", "-cp", "lib/*", "-d", "classes", f"src/{self.main}.java"], build)
        return ["java", "-cp", f"{build}/classes:{build}/lib/*", self.main]


@dataclass(frozen=True, kw_only=True)
class NpmEnvironment:
    """A script for Node.js, called with ``arguments``, the Arrow tables if it reads them, and the output folder."""

    packages: tuple[str, ...]
    arguments: tuple[str, ...] = ()
    reads_tables: bool = False

    def prepare(self, folder: Path, program: Path) -> list[str]:
        """The script beside its packages."""
        for source in program.parent.glob("*.mjs"):
            shutil.copy(source, folder)
        (folder / "package.json").write_text("{}")
        install(["npm", "install", "--silent", "--no-audit", "--no-fund", *self.packages], folder)
        tables = [_tables(folder, program.parent)] if self.reads_tables else []
        return ["node", str(folder / program.name), *self.arguments, *tables]


def _sources(folder: Path, program: Path, manifest: str, version: str) -> Path:
    """A copy of a program's folder whose manifest names the version; what was built stays."""
    build = folder / "build"
    shutil.copytree(program, build, dirs_exist_ok=True)
    (build / manifest).write_text((program / manifest).read_text().replace("@VERSION@", version))
    return build


def _tables(folder: Path, program: Path) -> str:
    """The folder of the Arrow tables, which pyarrow of this environment writes."""
    tables = folder / "tables"
    tables.mkdir(exist_ok=True)
    install([sys.executable, str(program.parent / "arrow_ipc.py"), str(tables)], folder)
    return str(tables)


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
