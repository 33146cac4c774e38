"""The writers of the zoo. How to add one: README.md beside this file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.zoo.environments import Environment, PythonEnvironment

PROGRAMS = Path(__file__).parent / "writers"


@dataclass(frozen=True, kw_only=True)
class Writer:
    """One version of one writer."""

    name: str
    version: str
    environment: Environment
    program: str  # a path below writers/

    @property
    def folder(self) -> str:
        """The name of its folders."""
        return f"{self.name}-{self.version}"


def _python(name: str, package: str, program: str, python: str, versions: str, *beside: str) -> tuple[Writer, ...]:
    """Writers that one package's versions are, with the packages that they need ``beside`` it."""
    return tuple(
        Writer(
            name=name,
            version=version,
            environment=PythonEnvironment(python=python, requirements=(f"{package}=={version}", *beside)),
            program=program,
        )
        for version in versions.split()
    )


_PYARROW = (
    *_python("pyarrow", "pyarrow", "pyarrow_files.py", "3.7", "0.17.1 1.0.1 2.0.0", "numpy<2"),
    *_python("pyarrow", "pyarrow", "pyarrow_files.py", "3.8", "3.0.0 4.0.1 5.0.0 6.0.1 7.0.0 8.0.0 9.0.0", "numpy<2"),
    *_python("pyarrow", "pyarrow", "pyarrow_files.py", "3.10", "10.0.1 11.0.0 12.0.1 14.0.2 15.0.2", "numpy<2"),
    *_python("pyarrow", "pyarrow", "pyarrow_files.py", "3.11", "16.1.0 18.1.0 20.0.0 22.0.0 24.0.0 26.0.1", "numpy"),
)

WRITERS: tuple[Writer, ...] = _PYARROW
