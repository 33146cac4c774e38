"""Check that this Python environment has the packages that asyncpq needs.

:func:`asyncpq.spark.add_to` ships a copy of this module, which runs before the rest of the package is imported. So the
module uses the standard library only.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import socket
import sys
from collections.abc import Mapping


def check(required: Mapping[str, str]) -> None:
    """Check the versions of installed packages.

    Args:
        required: minimum versions by package name; each package's module has the same name.

    Raises:
        ImportError: a package is missing or too old; the message names the package, the host and the Python.
    """
    lacking = []
    for name, least in required.items():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            if importlib.util.find_spec(name) is None:  # some environments have modules without metadata
                lacking.append(f"{name}>={least} (is missing)")
            continue
        if _numbers(version) < _numbers(least):
            lacking.append(f"{name}>={least} (is {version})")
    if lacking:
        raise ImportError(
            f"asyncpq was shipped to {socket.gethostname()}, but its Python, {sys.executable}, lacks"
            f" {', '.join(lacking)}. Install them on every node, or ship an environment that has them. If executors"
            " should use another Python, set PYSPARK_PYTHON to its path before you create the session"
            " (see asyncpq's documentation of Spark).",
            name=lacking[0].partition(">")[0],
        )


def _numbers(version: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", version)[:3]]
