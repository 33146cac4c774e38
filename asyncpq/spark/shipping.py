"""Install asyncpq in a Spark session: register its data source, and ship the package to executors as a zip."""

from __future__ import annotations

import atexit
import hashlib
import importlib.metadata
import importlib.resources
import importlib.util
import marshal
import os
import re
import shutil
import tempfile
import threading
import weakref
import zipfile
from collections.abc import Iterator
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from asyncpq import __version__

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGE: Final = "asyncpq"
#: The copy of :mod:`asyncpq.spark.requirements` in the zip, which ``asyncpq/__init__.py`` imports first.
_CHECK: Final = f"{_PACKAGE}/_requirements.py"
_FIRST_LINE: Final = "from __future__ import annotations\n"
_DATE: Final = (1980, 1, 1, 0, 0, 0)

_lock = threading.Lock()
_made: Path | None = None
_has_package: weakref.WeakSet[SparkSession] = weakref.WeakSet()
_has_source: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def register(spark: SparkSession) -> None:
    """Register the format "asyncpq" for ``spark.read``, ``spark.readStream`` and ``df.write`` of this session.

    Spark finds the format in the thread's active session: call this in each thread that writes. Otherwise, repeated
    calls have no effect. Call :func:`add_to` first if the session needs both.
    """
    from asyncpq.spark.data_source import AsyncpqDataSource

    spark.createDataFrame([], "number int")  # makes this session the active one of the thread
    with _lock:
        if spark not in _has_source:
            spark.dataSource.register(AsyncpqDataSource)
            _has_source.add(spark)


def add_to(spark: SparkSession) -> None:
    """Ship the asyncpq of this process to the executors, in place of an asyncpq that is installed there.

    The zip contains asyncpq only: pyarrow and its other requirements must be installed on the executors. If one is
    missing or too old, the first task fails with an ImportError that names it. Call this before the first job that uses
    asyncpq; repeated calls have no effect.
    """
    with _lock:
        if spark not in _has_package:
            spark.addArtifacts(str(_zip()), pyfile=True)
            _has_package.add(spark)


def _zip() -> Path:
    """Return the path of the zip. It is made once, and removed when this process ends, because later executors fetch
    it too."""
    global _made
    if _made is None or not _made.exists():
        folder = Path(tempfile.mkdtemp(prefix="asyncpq-"))
        atexit.register(_remove, folder, os.getpid())
        _made = write_zip(folder)
    return _made


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # a forked child keeps the folder
        shutil.rmtree(folder, ignore_errors=True)


def write_zip(folder: Path) -> Path:
    """Write the installed package as a zip into ``folder``; return its path. Its name has a hash of its content.

    The zip has the byte code of each module, so workers need not compile modules. Other Python versions ignore it.
    """
    sources = dict(_shipped())
    digest = hashlib.sha256()
    for name, source in sources.items():
        digest.update(b"%d %s %d " % (len(name), name.encode(), len(source)) + source)
    digest.update(importlib.util.MAGIC_NUMBER)
    path = folder / f"{_PACKAGE}-{__version__}-{digest.hexdigest()[:16]}.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for name, source in sources.items():
            _add(archive, name, source)
            if name.endswith(".py"):
                _add(archive, f"{name}c", _byte_code(name, source))
    return path


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, _DATE)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    archive.writestr(info, data)


def _byte_code(name: str, source: bytes) -> bytes:
    """Return the content of a .pyc file. It is the same in each process: later versions of marshal refer to strings,
    or not, by who else has them."""
    code = compile(source, name, "exec", dont_inherit=True, optimize=0)
    unchecked = (1).to_bytes(4, "little")  # the zip has no times of the sources (PEP 552)
    return importlib.util.MAGIC_NUMBER + unchecked + importlib.util.source_hash(source) + marshal.dumps(code, 2)


def _shipped() -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the files in the zip, sorted by name."""
    files = dict(_files(importlib.resources.files(_PACKAGE), _PACKAGE))
    if _CHECK not in files:  # otherwise this process runs from such a zip
        first, check = f"{_PACKAGE}/__init__.py", f"{_PACKAGE}/spark/requirements.py"
        before, first_line, after = files[first].decode().partition(_FIRST_LINE)
        if not first_line:
            raise AssertionError(f"{first} must have the line {_FIRST_LINE!r}")
        files[first] = f"{before}{first_line}\nimport asyncpq._requirements\n{after}".encode()
        files[_CHECK] = files[check] + f"\n\ncheck({_required()!r})\n".encode()
    yield from sorted(files.items())


def _files(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        inner = f"{name}/{entry.name}"
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _files(entry, inner)
        elif entry.name.endswith((".py", ".txt", ".typed")):
            yield inner, entry.read_bytes()


def _required() -> dict[str, str]:
    """Return the minimum version of each required package, without extras; empty if asyncpq is not installed."""
    try:
        lines = importlib.metadata.requires("asyncpq-parquet") or []
    except importlib.metadata.PackageNotFoundError:
        return {}  # the package is on the path and not installed
    required = {}
    for line in lines:
        if "extra ==" not in line and (match := re.match(r"([\w.-]+)\s*>=\s*([\d.]+)", line)):
            required[match[1]] = match[2]
    return required
