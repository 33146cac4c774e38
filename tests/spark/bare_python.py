"""A Python without asyncpq, but with what it needs, as on a cluster where add_to is called for."""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path


def bare_python(folder: Path, without: str = "") -> Path:
    """An executable in ``folder``; it has this environment's packages, but for asyncpq and one other."""
    packages = folder / "packages"
    packages.mkdir(parents=True)
    for name in ("purelib", "platlib"):
        for entry in Path(sysconfig.get_path(name)).iterdir():
            left_out = entry.name.startswith(("asyncpq", "_asyncpq")) or entry.suffix == ".pth"
            link = packages / entry.name
            if not left_out and entry.name.split("-")[0] != (without or None) and not link.exists():
                link.symlink_to(entry)
    python = folder / "python"
    # -S: no site-packages; a driver or a test may add to PYTHONPATH.
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{packages}" exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    return python


def bare_environment(**more: str) -> dict[str, str]:
    """This process's, without what would bring asyncpq."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | more
