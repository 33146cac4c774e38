"""The service in a process of its own, and what that process holds."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from asyncpq.serve.access import token_digest
from tests.load.client import HOST, Client, request
from tests.load.questions import DATASET
from tests.servers import DIE_WITH_PARENT

ROOT: Final = Path(__file__).resolve().parents[2]
CROWD: Final = 10  # tokens of the many clients
ORDINARY: Final = 3  # tokens of those whose latency is measured
GREEDY: Final = 2
END_S: Final = 5.0  # after ``drain_s``
_CLOCK_TICKS: Final = os.sysconf("SC_CLK_TCK")
_START_S: Final = 30.0
_QUIET: Final = 0.25  # of a core: what a service without requests may use
_QUIET_S: Final = 0.5
_CLOSE_S: Final = 3.0
_GIVE_BACK_S: Final = 2.0


def token(name: str) -> str:
    """Return the secret of a token."""
    return f"{name}: a token of the load test"


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits of the service under test, as its configuration has them."""

    concurrent: int = 600  # of all tokens
    drain_s: float = 5.0
    greedy_s: float = 2.0  # of one answer
    greedy_concurrent: int = 8
    ordinary_s: float = 10.0
    ordinary_concurrent: int = 64
    memory_cache_bytes: int = 64 << 20


def configuration(url: str, storage: Mapping[str, Any], limits: Limits) -> str:
    """Return the text of the configuration file. ``storage``: as of :class:`asyncpq.Session`, by protocol."""
    names = [f"crowd-{n}" for n in range(CROWD)] + [f"ordinary-{n}" for n in range(ORDINARY)]
    lines = [
        f"[server]\nconcurrent = {limits.concurrent}\ndrain_s = {limits.drain_s}",
        f"[session]\nmemory_cache_bytes = {limits.memory_cache_bytes}",
        f"[datasets.{DATASET}]\nurl = {json.dumps(url)}",
    ]
    for protocol, options in storage.items():
        lines.append(f"[storage]\n{protocol} = {_inline(options)}")
    for name in [*names, *(f"greedy-{n}" for n in range(GREEDY)), "operator"]:
        is_greedy = name.startswith("greedy")
        seconds = limits.greedy_s if is_greedy else limits.ordinary_s
        concurrent = limits.greedy_concurrent if is_greedy else limits.ordinary_concurrent
        lines.append(
            f"[tokens.{name}]\n"
            f'sha256 = "{token_digest(token(name)).hex()}"\n'
            f"metrics = {json.dumps(name == 'operator')}\n"
            f"limits = {{ seconds = {seconds}, concurrent = {concurrent} }}\n"
            f"datasets.{DATASET} = {{}}"
        )
    return "\n\n".join(lines) + "\n"


def _inline(value: object) -> str:
    """Return a value as TOML writes it in one line."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_inline(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the process holds: descriptors other than its connections to the store, threads, and bytes of resident
    memory."""

    descriptors: int
    threads: int
    resident: int


def _connections_to(port: int) -> frozenset[str]:
    """Return the sockets of this machine that are connected to a port, as links of /proc/PID/fd name them."""
    sockets = set()
    for line in Path("/proc/net/tcp").read_text(encoding="ascii").splitlines()[1:]:
        fields = line.split()
        if int(fields[2].rpartition(":")[2], 16) == port != 0:
            sockets.add(f"socket:[{fields[9]}]")
    return frozenset(sockets)


class ServiceProcess:
    """``python -m asyncpq.serve`` from :meth:`start` to :meth:`kill`."""

    def __init__(self, folder: Path, url: str, storage: Mapping[str, Any], limits: Limits) -> None:
        self.limits = limits
        self._configuration = folder / "service.toml"
        self._configuration.write_text(configuration(url, storage, limits), encoding="utf-8")
        endpoint = storage.get("s3", {}).get("endpoint_url", "")
        self._store_port = int(endpoint.rpartition(":")[2]) if endpoint else 0
        self._log = folder / "service.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.starts = 0

    @property
    def process(self) -> subprocess.Popen[bytes]:
        """The running process."""
        assert self._process is not None, "the service is not started"
        return self._process

    async def start(self) -> None:
        """Start it on a free port, and wait until it is ready. Raises RuntimeError if it does not become so."""
        self._begin()
        deadline = time.monotonic() + _START_S
        while self.process.poll() is None and time.monotonic() < deadline:
            if await self._get("/readyz") is not None:
                return
            await asyncio.sleep(0.05)
        raise RuntimeError(f"the service does not start:\n{self._log.read_text(errors='replace')[-2000:]}")

    def _begin(self) -> None:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            self.port = probe.getsockname()[1]
        self.starts += 1
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *DIE_WITH_PARENT,
                    *(sys.executable, "-m", "asyncpq.serve", str(self._configuration)),
                    *("--host", HOST, "--port", str(self.port)),
                ],
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    async def _get(self, path: str, name: str | None = None, timeout_s: float = 5.0) -> bytes | None:
        """Return the body of a page; None if it does not come in time."""
        client = Client(self.port)
        try:
            answer = await client.ask(request("GET", path, None if name is None else token(name)), timeout_s)
        finally:
            client.close()
        return answer.body if answer is not None and answer.complete and answer.status == 200 else None

    async def in_flight(self) -> float | None:
        """Return the number of requests under way, by /metrics; None if it does not answer in time."""
        page = await self._get("/metrics", "operator")
        for line in (page or b"").decode().splitlines():
            if line.startswith("asyncpq_serve_requests_in_flight "):
                return float(line.split()[1])
        return None

    def footprint(self) -> Footprint:
        """Return what the process holds now."""
        here = Path("/proc") / str(self.process.pid)
        if (code := self.process.poll()) is not None:
            raise RuntimeError(f"the service has ended with exit code {code}")
        status = (here / "status").read_text(encoding="ascii")
        resident = int(status.partition("VmRSS:")[2].split()[0]) * 1024
        descriptors = 0
        pooled = _connections_to(self._store_port)
        for name in os.listdir(here / "fd"):
            with contextlib.suppress(FileNotFoundError):  # it was closed meanwhile
                descriptors += os.readlink(here / "fd" / name) not in pooled
        return Footprint(descriptors, len(os.listdir(here / "task")), resident)

    async def footprint_back_to(self, before: Footprint) -> Footprint:
        """Return what the process holds, after a moment in which it may close the last connections, and in which it has
        given memory back: it does so every second."""
        await asyncio.sleep(_GIVE_BACK_S)
        deadline = time.monotonic() + _CLOSE_S
        while True:
            now = self.footprint()
            if now.descriptors <= before.descriptors or time.monotonic() >= deadline:
                return now
            await asyncio.sleep(0.1)

    def cpu_s(self) -> float:
        """Return the seconds of CPU that the process has used."""
        fields = (Path("/proc") / str(self.process.pid) / "stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _CLOCK_TICKS

    async def quiet_after(self, at_most_s: float) -> float | None:
        """Wait until no request is under way and no work goes on. Return the seconds that this took; None if it takes
        more than ``at_most_s``."""
        began = time.monotonic()
        while time.monotonic() - began < at_most_s + _QUIET_S:
            seen, before = time.monotonic(), self.cpu_s()
            await asyncio.sleep(_QUIET_S)
            used = (self.cpu_s() - before) / (time.monotonic() - seen)
            if used < _QUIET and await self.in_flight() == 0:
                return seen - began
        return None

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.process.send_signal(signal.SIGTERM)

    async def ended(self, at_most_s: float) -> int | None:
        """Wait for the end of the process, and return its exit code; None if it lives on."""
        deadline = time.monotonic() + at_most_s
        while True:
            code = self.process.poll()
            if code is not None or time.monotonic() >= deadline:
                return code
            await asyncio.sleep(0.02)

    def kill(self) -> None:
        """End it, whatever it does."""
        process, self._process = self._process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            process.wait()

    def tracebacks(self) -> Counter[str]:
        """Return the errors of which its log has a traceback, with what the log says of them, and how many of each."""
        found: Counter[str] = Counter()
        message, is_in = "", False
        for line in self._log.read_text(errors="replace").splitlines():
            if line.startswith("Traceback "):
                is_in = True
            elif is_in and line and not line.startswith((" ", "\t")):
                found[f"{message[:100]}: {line[:200]}"] += 1
                is_in = False
            elif line.startswith(("ERROR", "WARNING")):
                message = line
        return found
