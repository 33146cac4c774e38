"""Several processes of the service on one port: requests, counters, signals, and workers that die."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from asyncpq.serve.__main__ import main
from asyncpq.serve.server import END_S
from asyncpq.serve.workers import _KILL_S
from tests.serve.services import ROWS, TOKEN, bearer, write_lake
from tests.serve.test_server import config_text

WORKERS = 2


class Running:
    """A service of several workers, and what it has logged."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.log = ""
        self._read = asyncio.create_task(self._reading())

    async def _reading(self) -> None:
        assert self.process.stderr is not None
        async for line in self.process.stderr:
            self.log += line.decode()

    async def says(self, pattern: str, times: int = 1) -> list[str]:
        """Wait until the log has matches of ``pattern``; return them."""
        async with asyncio.timeout(60):
            while len(found := re.findall(pattern, self.log)) < times:
                assert not self._read.done(), self.log
                await asyncio.sleep(0.01)
        return found

    async def ended(self) -> int:
        async with asyncio.timeout(60):
            await self._read
            return await self.process.wait()


@asynccontextmanager
async def service(path: Path) -> AsyncIterator[tuple[Running, str]]:
    """Run the service; yield it and its url."""
    command = [sys.executable, "-m", "asyncpq.serve", str(path), "--port", "0", "--workers", str(WORKERS)]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    running = Running(process)
    try:
        (url,) = await running.says(r"workers listen at (\S+)")
        await running.says("Application startup complete", WORKERS)
        yield running, url
    finally:
        if process.returncode is None:
            process.kill()
        await running.ended()


async def asked(url: str, path: str = "/v1/one/count") -> httpx.Response:
    """Ask by a connection of its own, which any worker may get."""
    async with httpx.AsyncClient(base_url=url, headers=bearer(TOKEN), timeout=60) as client:
        return await client.get(path)


def counted(page: str) -> int:
    return int(float(re.findall(r"^asyncpq_serve_requests_total\{.*count.*\} (\S+)$", page, re.MULTILINE)[0]))


def configured(folder: Path, port: int = 8080) -> Path:
    write_lake(folder / "lake")
    path = folder / "service.toml"
    path.write_text(config_text(folder / "lake", port, "one").replace("datasets = {", "metrics = true\ndatasets = {"))
    return path


@pytest.mark.heavy
async def test_workers_share_requests_counters_and_signals(tmp_path: Path) -> None:
    path = configured(tmp_path)
    async with service(path) as (running, url):
        port = int(url.rpartition(":")[2])
        number = 30
        answers = await asyncio.gather(*[asked(url) for _ in range(number)])
        assert {answer.json()["rows"] for answer in answers} == {ROWS}
        served = set(re.findall(r"INFO (worker \d) asyncpq.opening", running.log))
        assert served == {"worker 1", "worker 2"}  # each has opened the dataset
        pages = await asyncio.gather(*[asked(url, "/metrics") for _ in range(8)])
        assert {counted(page.text) for page in pages} == {number}, "whichever worker answers"
        assert not [line for line in running.log.splitlines() if "worker" not in line], "each line names its worker"

        first, other = map(int, await running.says(r"Started server process \[(\d+)\]", WORKERS))
        os.kill(first, signal.SIGKILL)
        await running.says(rf"worker \d \(process {first}\) was ended by signal 9 .*it is started again")
        answers = await asyncio.gather(*[asked(url) for _ in range(10)])  # those of the dead one wait for the new one
        assert [answer.status_code for answer in answers] == [200] * 10
        await running.says("Started server process", WORKERS + 1)
        assert counted((await asked(url, "/metrics")).text) == number + 10, "what the dead one has counted counts"

        path.write_text(path.read_text().replace("datasets.one", "datasets.two"))
        running.process.send_signal(signal.SIGHUP)
        await running.says("the configuration is reloaded", WORKERS)
        answers = await asyncio.gather(*[asked(url, "/v1/two/count") for _ in range(10)])
        assert [answer.status_code for answer in answers] == [200] * 10
        os.kill(other, signal.SIGTERM)
        await running.says(rf"worker \d \(process {other}\) ended with code 0 .*it is started again")
        answers = await asyncio.gather(*[asked(url, "/v1/two/count") for _ in range(10)])
        assert [answer.status_code for answer in answers] == [200] * 10

        async with (
            httpx.AsyncClient(base_url=url, headers=bearer(TOKEN), timeout=60) as client,
            client.stream("GET", "/v1/two/scan?format=ndjson") as response,
        ):
            running.process.send_signal(signal.SIGTERM)
            assert len([line async for line in response.aiter_lines()]) == ROWS
        assert await running.ended() == 0
        with socket.socket() as again:
            again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # connections that the service closed wait on
            again.bind(("127.0.0.1", port))
            again.listen()


@pytest.mark.heavy
@pytest.mark.skipif(sys.platform != "linux", reason="finds the workers by /proc")
async def test_a_reload_while_workers_begin_ends_none(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "asyncpq.serve", str(configured(tmp_path)), "--port", "0", "--workers", "2"]
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    running = Running(process)
    try:
        await running.says("workers listen at")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        async with asyncio.timeout(60):
            # and Python's resource tracker
            while len(begun := children.read_text().split()) < WORKERS + 1:  # noqa: ASYNC110, ASYNC240
                await asyncio.sleep(0.001)
        process.send_signal(signal.SIGHUP)
        for child in begun:
            os.kill(int(child), signal.SIGHUP)
        await running.says("the configuration is reloaded", WORKERS)
        assert "it is started again" not in running.log
        process.send_signal(signal.SIGTERM)
        assert await running.ended() == 0
    finally:
        if process.returncode is None:
            process.kill()


@pytest.mark.heavy
async def test_workers_end_with_their_supervisor(tmp_path: Path) -> None:
    async with service(configured(tmp_path)) as (running, url):
        running.process.kill()
        await running.says("the supervisor has ended", WORKERS)
        await running.ended()  # stderr is closed by the last of them
        with pytest.raises(httpx.ConnectError):
            await asked(url)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"--workers": "0"}, "--workers=0: must be 1 to 64"),
        ({"--port": "{port}"}, "cannot listen at 127.0.0.1, port {port}"),
        ({"session": "disk_cache = '{file}/cache'"}, "cannot be started"),
    ],
)
def test_what_cannot_start(
    change: dict[str, Any], message: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        (tmp_path / "file").touch()
        names = {"port": str(taken.getsockname()[1]), "file": f"{tmp_path}/file"}
        path = configured(tmp_path)
        if "session" in change:
            path.write_text(f"[session]\n{change['session'].format(**names)}\n{path.read_text()}")
        given = {"--port": "0", "--workers": "2"} | {name: value.format(**names) for name, value in change.items()}
        arguments = [argument for name in ("--port", "--workers") for argument in (name, given[name])]
        assert main([str(path), *arguments]) == 2
    assert message.format(**names) in capfd.readouterr().err


def test_a_worker_that_hangs_ends_within_the_promised_time() -> None:
    assert END_S + _KILL_S < 5
