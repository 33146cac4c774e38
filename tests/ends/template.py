"""A process that has imported what the scripts need, and forks for each of them: starting Python takes longer than most
scripts.

``CODE`` is its main module, so that a script runs, and ends, as the main module of its process does.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from types import CodeType
from typing import Final

from tests.ends.scripts import source

CODE: Final = "from tests.ends.template import serve; code = serve(); exec(code, globals())"

#: Their native threads (of OpenBLAS and jemalloc) outlive forks. Those of DuckDB and Polars do not.
_MODULES: Final = (
    "asyncpq.blocking",
    "asyncpq.file",
    "asyncpq.dataset",
    "asyncpq.opening.datasets",
    "asyncpq.scan.stream",
    "asyncpq.storage.local",
    "asyncpq.storage.http",
    "asyncpq.storage.fsspec",
    "asyncpq.testing",
)


def serve() -> CodeType:
    """In the template, fork for each script that is asked for. Return the code of a script in each process that is to
    run it."""
    orders = socket.socket(fileno=int(sys.argv.pop(1)))
    for module in _MODULES:
        importlib.import_module(module)
    assert threading.active_count() == 1, "a fork would lose threads"
    while True:
        name, files, _, _ = socket.recv_fds(orders, 1024, 3)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        if not name:
            os._exit(0)
        if os.fork() == 0:
            orders.close()
            _supervise(*files)
            return compile(source(name.decode()), "<script>", "exec")
        for file in files:
            os.close(file)


def _supervise(stdout: int, stderr: int, status: int) -> None:
    """Fork; write the number of the new process, and later its exit code, to ``status``. Returns in the new process."""
    pid = os.fork()
    if pid == 0:
        for file, standard in ((os.open(os.devnull, os.O_RDONLY), 0), (stdout, 1), (stderr, 2)):
            os.dup2(file, standard)
            os.close(file)
        os.close(status)
        return
    os.close(stdout)
    os.close(stderr)
    os.write(status, b"%d\n" % pid)
    os.write(status, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    os._exit(0)


class Process:
    """A process of a script, with the interface of those of asyncio."""

    def __init__(self, pid: int, files: list[asyncio.StreamReader]) -> None:
        self.pid = pid
        self.stdout, self.stderr, self._status = files
        self.returncode: int | None = None

    async def wait(self) -> int:
        if self.returncode is None:
            self.returncode = int(await self._status.read())
        return self.returncode

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)


class Template:
    """Starts scripts in forked processes, with ``arguments``."""

    def __init__(self, orders: socket.socket) -> None:
        self._orders = orders

    async def start(self, name: str) -> Process:
        pipes = [os.pipe() for _ in range(3)]
        socket.send_fds(self._orders, [name.encode()], [written for _, written in pipes])
        files = []
        for read, written in pipes:
            os.close(written)
            reader = asyncio.StreamReader()
            protocol = partial(asyncio.StreamReaderProtocol, reader)
            await asyncio.get_running_loop().connect_read_pipe(protocol, os.fdopen(read, "rb"))
            files.append(reader)
        return Process(int(await files[2].readline()), files)


@contextlib.contextmanager
def template(arguments: tuple[str, ...], environment: dict[str, str]) -> Iterator[Template]:
    """A template, until the end of the block."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours:
        command = [sys.executable, "-c", CODE, str(theirs.fileno()), *arguments]
        with theirs:
            process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=environment)
        try:
            yield Template(ours)
        finally:
            ours.close()
            process.wait(60)
