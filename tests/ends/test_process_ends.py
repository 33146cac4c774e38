"""Nothing hangs: a process ends within 5 seconds of its script's end, whatever the script left open."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import sys
import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from asyncpq.testing import ObjectServer
from tests.ends.scripts import SCRIPTS, source
from tests.ends.template import Process, template

ENDS_S = 15.0  # 5 on a machine without other work
STARTS_S = 40.0  # of imports on a machine with other work
PARTS = 3
ENVIRONMENT = {**os.environ, "PYTHONFAULTHANDLER": "1"}


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, str]]:
    """A local file, the url of the same file, and the url of a file whose data never comes."""
    path = tmp_path_factory.mktemp("ends") / "a.parquet"
    ids = pa.array(range(40_000))
    table = pa.table({"id": ids, "text": ids.cast(pa.string())})
    pq.write_table(table, path, row_group_size=1000, use_dictionary=False)
    silent = socket.create_server(("127.0.0.1", 0))
    with silent, ObjectServer.in_thread(latency_s=0.01) as server:
        server.put("lake/a.parquet", path.read_bytes())
        yield str(path), f"{server.endpoint}/lake/a.parquet", f"http://127.0.0.1:{silent.getsockname()[1]}/a.parquet"


class Ended:
    """How a script's process ended."""

    def __init__(self, status: int | None, output: str, errors: str, seconds: float) -> None:
        self.status = status
        self.output = output
        self.errors = errors
        self.seconds = seconds  # after end()


async def start(name: str, arguments: tuple[str, str, str]) -> asyncio.subprocess.Process:
    """Start a script in a process of its own."""
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        source(name),
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=ENVIRONMENT,
    )


async def run(process: asyncio.subprocess.Process | Process) -> Ended:
    """Wait for the end of a script, and kill it if it goes on for longer than it may."""
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.create_task(process.stderr.read())
    output = b""
    ended_at = time.monotonic()
    try:
        async with asyncio.timeout(STARTS_S) as limit:
            while line := await process.stdout.readline():
                output += line
                if line == b"end\n":
                    ended_at = time.monotonic()
                    limit.reschedule(asyncio.get_running_loop().time() + ENDS_S)
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
        return Ended(None, output.decode(), (await errors).decode(), time.monotonic() - ended_at)
    return Ended(process.returncode, output.decode(), (await errors).decode(), time.monotonic() - ended_at)


def check(name: str, ended: Ended) -> None:
    """Fail unless the script has ended as it should."""
    script = SCRIPTS[name]
    shown = f"{name}: {ended.output}{ended.errors}"
    assert ended.status == script.status, shown
    assert "end\n" in ended.output, shown
    assert re.fullmatch(script.stderr, ended.errors), shown
    assert ended.seconds < ENDS_S, shown


@pytest.mark.heavy
@pytest.mark.parametrize("part", range(PARTS))
async def test_nothing_hangs(part: int, arguments: tuple[str, str, str]) -> None:
    """Half of the scripts; the slow tests run all. Those that need no code before all imports run in forks of one
    process. One at a time, since each is to end soon."""
    names = [name for name, script in SCRIPTS.items() if not script.slow][::2]
    assert len(names) >= 20
    with template(arguments, ENVIRONMENT) as forks:
        for name in names[part::PARTS]:
            process = await (start(name, arguments) if SCRIPTS[name].first else forks.start(name))
            check(name, await run(process))


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
async def test_nothing_hangs_in_a_new_process(name: str, arguments: tuple[str, str, str]) -> None:
    check(name, await run(await start(name, arguments)))
