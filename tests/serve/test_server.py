"""The service as a process: signals, and thousands of real requests."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pyarrow.parquet as pq
import pytest

from asyncpq.errors import InvalidOptionError
from asyncpq.serve import Service, workers
from asyncpq.serve import server as server_module
from asyncpq.serve.access import token_digest
from asyncpq.serve.configuration import Configuration, ServerConfiguration
from asyncpq.testing import Fault, ObjectServer
from tests.serve.services import (
    ROWS,
    TOKEN,
    bearer,
    client_of,
    configuration,
    listening,
    parquet,
    service_of,
    storage,
    trips,
    write_lake,
)


def config_text(lake: Path, port: int, *names: str) -> str:
    lines = [f"[server]\nport = {port}\ndrain_s = 20\n"]
    lines += [f"[datasets.{name}]\nurl = {json.dumps(f'{lake}/')}\n" for name in names]
    lines += [f"[tokens.all]\nsha256 = '{token_digest(TOKEN).hex()}'\ndatasets = {{ '*' = {{}} }}\n"]
    return "\n".join(lines)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@asynccontextmanager
async def process(path: Path, *program: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run the service as a process of its own, once it says that it runs. ``program``: the script that runs it."""
    running = await asyncio.create_subprocess_exec(
        sys.executable, *(program or ("-m", "asyncpq.serve")), str(path), stderr=asyncio.subprocess.PIPE
    )
    try:
        await says(running, "Uvicorn running")
        yield running
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


async def says(running: asyncio.subprocess.Process, words: str) -> None:
    """Wait until the service writes ``words`` to stderr."""
    assert running.stderr is not None
    async for line in running.stderr:
        if words in line.decode():
            return
    raise AssertionError(f"the service ended without saying {words!r}")


@pytest.mark.heavy
async def test_a_stream_that_outlasts_the_drain_is_cut_without_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    pq.write_table(trips(400_000), tmp_path / "lake" / "0.parquet")
    path, port = tmp_path / "service.toml", free_port()
    path.write_text(config_text(tmp_path / "lake", port, "trips").replace("drain_s = 20", "drain_s = 1"))
    async with process(path) as running:
        with socket.create_connection(("127.0.0.1", port)) as raw:
            request = f"GET /v1/trips/scan HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
            await asyncio.to_thread(raw.sendall, request.encode())
            assert (await asyncio.to_thread(raw.recv, 12)) == b"HTTP/1.1 200"  # the rest is not taken
            running.send_signal(signal.SIGTERM)
            assert running.stderr is not None
            log = (await asyncio.wait_for(running.stderr.read(), 60)).decode()
        assert await running.wait() == 0
        assert "without completing response" in log
        assert "Traceback" not in log


@pytest.mark.heavy
async def test_sighup_reads_the_configuration_and_sigterm_ends_after_what_runs(tmp_path: Path) -> None:
    write_lake(tmp_path / "lake")
    path = tmp_path / "service.toml"
    port = free_port()
    path.write_text(config_text(tmp_path / "lake", port, "one"))
    async with (
        process(path) as running,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", headers=bearer(TOKEN), timeout=60) as client,
    ):
        assert (await client.get("/v1/one/count")).json()["rows"] == ROWS
        assert (await client.get("/v1/two/count")).status_code == 404
        path.write_text(config_text(tmp_path / "lake", port, "two"))
        running.send_signal(signal.SIGHUP)
        await says(running, "the configuration is reloaded")
        assert (await client.get("/v1/two/count")).json()["rows"] == ROWS
        assert (await client.get("/v1/one/count")).status_code == 404
        path.write_text("[datasets")
        running.send_signal(signal.SIGHUP)
        await says(running, "the configuration is not reloaded")
        assert (await client.get("/v1/two/count")).json()["rows"] == ROWS
        async with client.stream("GET", "/v1/two/scan?format=ndjson") as response:
            running.send_signal(signal.SIGTERM)
            lines = [line async for line in response.aiter_lines()]
        assert len(lines) == ROWS
        assert await running.wait() == 0


async def is_cut(reader: asyncio.StreamReader) -> bool:
    """Wait until the server ends the connection."""
    with contextlib.suppress(ConnectionError):
        while await asyncio.wait_for(reader.read(1 << 20), 60):
            pass
    return True


@pytest.mark.faults
async def test_clients_that_send_or_take_too_slowly_are_cut_off(tmp_path: Path) -> None:
    """They hold neither memory nor a slot, and others are served."""
    write_lake(tmp_path / "lake")
    async with client_of(configuration(f"{tmp_path}/lake/")) as client:
        service = service_of(client)
        async with (
            listening(service.app, 0.4, lifespan="off", timeout_keep_alive=60) as url,
            httpx.AsyncClient(base_url=url, headers=bearer(TOKEN), timeout=60) as real,
        ):
            host, port = url.removeprefix("http://").split(":")
            head = f"GET /v1/trips/scan HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
            connections = [await asyncio.open_connection(host, int(port)) for _ in range(40)]
            bodies = [await asyncio.open_connection(host, int(port)) for _ in range(5)]

            async def drip(writer: asyncio.StreamWriter, begin: str, piece: bytes) -> None:
                writer.write(begin.encode())
                while not writer.is_closing():
                    writer.write(piece)
                    await asyncio.sleep(0.05)

            slow = [asyncio.create_task(drip(writer, head, b"x-a: b\r\n")) for _, writer in connections]
            unknown = "POST /v1/trips/scan HTTP/1.1\r\nHost: x\r\nContent-Length: 4000000\r\n\r\n"  # 401
            slow += [asyncio.create_task(drip(writer, unknown, b" ")) for _, writer in bodies]
            assert (await real.get("/v1/trips/count")).json()["rows"] == ROWS
            assert service._slots.taken == 0
            assert all(await asyncio.gather(*[is_cut(reader) for reader, _ in connections + bodies]))
            for task in slow:
                task.cancel()
            await asyncio.gather(*slow, return_exceptions=True)
            for _, writer in connections + bodies:
                writer.transport.abort()


@pytest.mark.heavy
@pytest.mark.faults
async def test_an_answer_that_is_not_taken_ends_with_its_time(tmp_path: Path) -> None:
    pq.write_table(trips(200_000), tmp_path / "0.parquet")
    async with client_of(configuration(f"{tmp_path}/", limits={"seconds": 4})) as client:
        service = service_of(client)
        async with listening(service.app, 0.4, lifespan="off") as url:
            host, port = url.removeprefix("http://").split(":")
            with socket.create_connection((host, int(port))) as raw:
                request = f"GET /v1/trips/scan HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
                await asyncio.to_thread(raw.sendall, request.encode())
                await until(lambda: service._slots.taken == 1)
                await until(lambda: service._slots.taken == 0)
                raw.settimeout(60)
                received = await asyncio.to_thread(drained, raw)
        assert received.startswith(b"HTTP/1.1 200")
        assert not received.endswith(b"\r\n0\r\n\r\n"), "the answer is whole"


async def until(condition: Any) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110  # nothing tells of it
            await asyncio.sleep(0.01)


def drained(raw: socket.socket) -> bytes:
    """Take what is left."""
    parts: list[bytes] = []
    with contextlib.suppress(ConnectionError):
        while data := raw.recv(1 << 20):
            parts.append(data)
    return b"".join(parts)


def resident() -> int:
    """Return the memory of this process in bytes."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.faults
@pytest.mark.timeout(1800)
async def test_20_000_lookups_at_64_at_once_with_faults_behind_them(capsys: pytest.CaptureFixture[str]) -> None:
    """A slow store, 503s and a replaced object lose nothing; memory stays flat. The time of 99 % is printed."""
    table, total, at_once = trips(20_000), 20_000, 64
    expected = table.select(["id", "user", "price"]).to_pylist()
    count = 0

    def fault(request: Any) -> Fault | None:
        nonlocal count
        count += 1
        if count % 101 == 0:
            return Fault(status=503, code="SlowDown")
        if count % 47 == 0:
            return Fault(latency_s=0.05)
        return Fault(truncate=50, reset=True) if count % 211 == 0 else None

    async with ObjectServer() as store:
        for number in range(4):
            store.put(f"bucket/trips/part-{number}.parquet", parquet(table.slice(number * 5000, 5000)))
        store.faults = fault
        more: dict[str, Any] = {
            **storage(store),
            "session": {"memory_cache_bytes": 1 << 20, "max_age_s": 0.05},  # most pages are fetched, again and again
            "limits": {"concurrent": at_once},  # a client that waits for its answers never has more
        }
        async with (
            client_of(configuration("s3://bucket/trips/", **more)) as client,
            listening(service_of(client).app, lifespan="off", timeout_keep_alive=60) as url,
            httpx.AsyncClient(base_url=url, headers=bearer(TOKEN), timeout=60) as real,
        ):
            numbers = iter(range(total))
            seconds: list[float] = []
            served: list[float] = []  # the milliseconds that the service says, without the client's own
            wrong: list[Any] = []
            memory: list[int] = []

            async def ask() -> None:
                for number in numbers:
                    key = number * 7919 % total
                    began = time.perf_counter()
                    response = await real.get(f"/v1/trips/lookup?id={key}&columns=id,user,price")
                    seconds.append((time.perf_counter() - began) * 1000)
                    timing = response.headers.get("server-timing", "dur=0,")
                    served.append(float(timing.partition("dur=")[2].partition(",")[0]))
                    if response.status_code != 200 or response.json()["rows"] != [expected[key]]:
                        wrong.append((key, response.status_code, response.text))
                    if number % 2000 == 0:
                        # the same rows in another version
                        name = number // 2000 % 4
                        part = table.slice(name * 5000, 5000)
                        store.put(f"bucket/trips/part-{name}.parquet", parquet(part), etag=f'"version {number}"')
                        store.log.clear()  # the store's, not the service's
                        gc.collect()
                        memory.append(resident())

            await asyncio.gather(*[ask() for _ in range(at_once)])
            assert service_of(client)._slots.taken == 0
    at_client, at_service = (
        f"median {sorted(times)[total // 2]:.1f} ms, p99 {sorted(times)[total * 99 // 100]:.1f} ms"
        for times in (seconds, served)
    )
    report = (
        f"20,000 lookups, 64 at once: {at_client}; as the service says: {at_service}; "
        f"memory {memory[2] >> 20} to {memory[-1] >> 20} MiB, {count} requests to the store"
    )
    with capsys.disabled():
        sys.stdout.write(f"\n{report}\n")
    assert wrong == []
    assert len(seconds) == total
    assert memory[-1] - memory[2] < 24 << 20


class _Ended:
    """Stands in for uvicorn's server."""

    def __init__(self, settings: object) -> None:
        self.ended = False

    def handle_exit(self, sig: int, frame: object) -> None:
        self.ended = True


@pytest.mark.parametrize(("unready_s", "signals"), [(0.0, 1), (10.0, 1), (10.0, 2)])
async def test_the_port_stays_open_while_readyz_says_no(
    unready_s: float, signals: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(Configuration(server=ServerConfiguration(unready_s=unready_s)))
    later: list[Any] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_soon_threadsafe", lambda *call: later.append(call))
    running = server_module._server(_Ended, None, service)
    try:
        for _ in range(signals):
            running.handle_exit(signal.SIGTERM, None)
    finally:
        running._ending.cancel()  # it would end this process
    assert service.is_draining
    assert running.ended == (unready_s == 0 or signals == 2)
    if unready_s:
        ((_, seconds, end, *arguments),) = later
        assert seconds == unready_s
        end(*arguments)
        assert running.ended


def test_no_host_is_all_interfaces_and_a_wrong_one_is_told() -> None:
    server_module.require_free_address(ServerConfiguration(host="", port=0))
    (bound,) = workers._sockets(Configuration(server=ServerConfiguration(host="", port=0)), 1)
    with bound:
        assert bound.proto == socket.IPPROTO_TCP  # else asyncio sets no TCP_NODELAY
        bound.listen()
        with pytest.raises(InvalidOptionError, match="the service cannot listen at , port"):
            server_module.require_free_address(ServerConfiguration(host="", port=bound.getsockname()[1]))
    for host in ("a..b", "a" * 70 + ".b"):
        with pytest.raises(InvalidOptionError, match="the service cannot listen at a"):
            server_module.require_free_address(ServerConfiguration(host=host, port=0))
