"""The configurations of docs/how-to/deploy.md: real proxies before two services, of which each is restarted."""

from __future__ import annotations

import asyncio
import getpass
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import pytest

from tests.serve.services import ROWS, TOKEN, bearer, write_lake
from tests.serve.test_server import config_text, says
from tests.servers import DIE_WITH_PARENT
from tests.storage.test_http_nginx import free_port

PAGE = Path(__file__).parents[2] / "docs/how-to/deploy.md"
PROGRAMS = {name: shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") for name in ("nginx", "caddy")}

pytestmark = [pytest.mark.services]


def configured(name: str, folder: Path, port: int, services: list[int]) -> list[str]:
    """Write the page's configuration, for these ports; return the command that runs the proxy."""
    language = {"nginx": "nginx", "caddy": "caddyfile"}[name]
    (text,) = re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    for shown, used in zip(("8080", "8081"), services, strict=True):
        assert f":{shown}" in text
        text = text.replace(f":{shown}", f":{used}")
    path = folder / "configuration"
    if name == "caddy":
        path.write_text(f"{{\n\tadmin off\n}}\n{text.replace(':80 {', f'http://127.0.0.1:{port} {{')}")
        return ["run", "--config", str(path), "--adapter", "caddyfile"]
    user = f"user {getpass.getuser()};" if os.geteuid() == 0 else ""
    kept = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in ("proxy", "fastcgi", "uwsgi", "scgi"))
    path.write_text(
        f"{user} daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}} http {{ access_log off; "
        f"client_body_temp_path {folder}/body; {kept}\n{text.replace('listen 80;', f'listen 127.0.0.1:{port};')} }}"
    )
    return ["-p", str(folder), "-c", str(path), "-e", f"{folder}/error.log"]


@asynccontextmanager
async def running(*command: str, words: str | None = None) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a program that ends with this process; ``words``: what it logs once it has started."""
    process = await asyncio.create_subprocess_exec(
        *DIE_WITH_PARENT, *command, stderr=asyncio.subprocess.PIPE if words else asyncio.subprocess.DEVNULL
    )
    try:
        if words:
            await says(process, words)
        yield process
    finally:
        if process.returncode is None:
            process.terminate()  # nginx then ends its workers
        try:
            await asyncio.wait_for(process.wait(), 30)
        except TimeoutError:
            process.kill()
            raise


@pytest.mark.parametrize("name", sorted(PROGRAMS))
async def test_services_are_restarted_behind_a_proxy_while_clients_ask(name: str, tmp_path: Path) -> None:
    program = PROGRAMS[name]
    if program is None:
        pytest.skip(f"{name} is not installed (a system package)")
    write_lake(tmp_path / "lake")
    services, port = [free_port(), free_port()], free_port()
    commands = []
    for number in services:
        path = tmp_path / f"{number}.toml"
        path.write_text(config_text(tmp_path / "lake", number, "one").replace("drain_s", "unready_s = 3\ndrain_s"))
        commands.append((sys.executable, "-m", "asyncpq.serve", str(path)))
    failed: list[str] = []
    answers = 0

    async def asked(client: httpx.AsyncClient) -> str | None:
        """Return what went wrong with two requests."""
        rows = (await client.get("/v1/one/scan?format=ndjson")).text.count("\n")
        posted = await client.post("/v1/one/count", json={"where": "id >= 0"})
        return None if rows == ROWS and f'"rows": {ROWS}' in posted.text else f"{rows} rows, {posted.text}"

    async def ask(client: httpx.AsyncClient) -> None:
        nonlocal answers
        while True:
            try:
                wrong = await asked(client)
            except httpx.HTTPError as error:
                wrong = repr(error)
                if name == "caddy":  # 2.6 cuts some answer of a service that ends: the page says to repeat it
                    wrong = await asked(client)
            failed.extend([wrong] if wrong else [])
            answers += 1

    async with AsyncExitStack() as stack:
        started = [await stack.enter_async_context(running(*each, words="Uvicorn running")) for each in commands]
        await stack.enter_async_context(running(program, *configured(name, tmp_path, port, services)))
        url = f"http://127.0.0.1:{port}"
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, headers=bearer(TOKEN), timeout=60))
        async with asyncio.timeout(60):
            while True:
                try:
                    if (await client.get("/readyz")).status_code == 200:
                        break
                except httpx.TransportError:
                    await asyncio.sleep(0.05)
        asking = [asyncio.create_task(ask(client)) for _ in range(4)]
        for process, each in zip(started, commands, strict=True):
            before = answers
            process.send_signal(signal.SIGTERM)
            assert process.stderr is not None
            await process.stderr.read()
            assert await process.wait() == 0
            await stack.enter_async_context(running(*each, words="Uvicorn running"))
            await asyncio.sleep(2.5)  # until the proxy has seen it
            assert answers > before
        for task in asking:
            task.cancel()
        await asyncio.wait(asking)
    assert not failed, (len(failed), answers, failed[:3])
