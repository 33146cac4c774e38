"""How driver and executors come by asyncpq: its data source in a session, and the package itself, as a zip."""

from __future__ import annotations

import atexit
import hashlib
import importlib.metadata
import importlib.resources
import importlib.util
import os
import py_compile
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
#: Where the shipped package has a copy of :mod:`asyncpq.spark.requirements`, and what imports it first.
_CHECK: Final = f"{_PACKAGE}/_requirements.py"
_FIRST_LINE: Final = "from __future__ import annotations\n"
_DATE: Final = (1980, 1, 1, 0, 0, 0)

_lock = threading.Lock()
_made: Path | None = None
_has_package: weakref.WeakSet[SparkSession] = weakref.WeakSet()
_has_source: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def register(spark: SparkSession) -> None:
    """Let ``spark.read.format("asyncpq")``, ``.readStream`` and ``df.write`` of this session find asyncpq.

    May be called again. Where :func:`add_to` is called, too, it comes first.
    """
    from asyncpq.spark.data_source import AsyncpqDataSource

    with _lock:
        if spark not in _has_source:
            spark.createDataFrame([], "number int")  # Spark looks in the session that is the thread's: now this one
            spark.dataSource.register(AsyncpqDataSource)
            _has_source.add(spark)


def add_to(spark: SparkSession) -> None:
    """Ship this very asyncpq to the executors, who need not have it installed; where they have, this one is used.

    It is pure Python and comes without what it needs: pyarrow and the other packages that asyncpq's installation
    brings must be there. Where one is missing or too old, what runs first on an executor ends with an ImportError that
    names it. To be called before the session's first job that uses asyncpq; may be called again.
    """
    with _lock:
        if spark not in _has_package:
            spark.addArtifacts(str(_zip()), pyfile=True)
            _has_package.add(spark)


def _zip() -> Path:
    """Made once for the process, at whose end it is removed: executors that come later ask for it."""
    global _made
    if _made is None or not _made.exists():
        folder = Path(tempfile.mkdtemp(prefix="asyncpq-"))
        atexit.register(_remove, folder, os.getpid())
        _made = write_zip(folder)
    return _made


def _remove(folder: Path, process: int) -> None:
    if os.getpid() == process:  # not at the end of a fork
        shutil.rmtree(folder, ignore_errors=True)


def write_zip(folder: Path) -> Path:
    """The installed package as a zip in ``folder``, named by its content.

    Beside each module stands its byte code, without which every worker would compile the package anew. A Python of
    another version passes it over.
    """
    sources = dict(_shipped())
    digest = hashlib.sha256()
    for name, source in sources.items():
        digest.update(b"%d %s %d " % (len(name), name.encode(), len(source)) + source)
    digest.update(importlib.util.MAGIC_NUMBER)
    path = folder / f"{_PACKAGE}-{__version__}-{digest.hexdigest()[:16]}.zip"
    with zipfile.ZipFile(path, "w") as archive, tempfile.TemporaryDirectory(prefix="asyncpq-") as scratch:
        for name, source in sources.items():
            _add(archive, name, source)
            if name.endswith(".py"):
                _add(archive, f"{name}c", _byte_code(name, source, Path(scratch)))
    return path


def _add(archive: zipfile.ZipFile, name: str, data: bytes) -> None:
    info = zipfile.ZipInfo(name, _DATE)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = 0o644 << 16
    archive.writestr(info, data)


def _byte_code(name: str, source: bytes, scratch: Path) -> bytes:
    file, made = scratch / "module.py", scratch / "module.pyc"
    file.write_bytes(source)
    # The zip's times mean nothing: it is not to be compared with the source.
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    py_compile.compile(str(file), str(made), dfile=name, doraise=True, invalidation_mode=unchecked, optimize=0)
    return made.read_bytes()


def _shipped() -> Iterator[tuple[str, bytes]]:
    """Names in the zip and contents, in order."""
    files = dict(_files(importlib.resources.files(_PACKAGE), _PACKAGE))
    if _CHECK not in files:  # this process's asyncpq is not itself such a zip
        first, check = f"{_PACKAGE}/__init__.py", f"{_PACKAGE}/spark/requirements.py"
        before, found, after = files[first].decode().partition(_FIRST_LINE)
        if not found:
            raise AssertionError(f"{first} must have the line {_FIRST_LINE!r}")
        files[first] = f"{before}{found}\nimport asyncpq._requirements\n{after}".encode()
        files[_CHECK] = files[check] + f"\n\ncheck({_required()!r})\n".encode()
    yield from sorted(files.items())


def _files(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        inner = f"{name}/{entry.name}"
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _files(entry, inner)
        elif entry.name.endswith((".py", ".typed")):
            yield inner, entry.read_bytes()


def _required() -> dict[str, str]:
    """Least versions of what asyncpq's installation brings, extras apart, by package."""
    try:
        lines = importlib.metadata.requires(_PACKAGE) or []
    except importlib.metadata.PackageNotFoundError:
        return {}  # it is on the path without being installed
    required = {}
    for line in lines:
        if "extra ==" not in line and (found := re.match(r"([\w.-]+)\s*>=\s*([\d.]+)", line)):
            required[found[1]] = found[2]
    return required
