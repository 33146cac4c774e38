"""``asyncpq cache show`` and ``clear``."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import msgspec
from typer.testing import CliRunner

from asyncpq.cli.commands import app
from asyncpq.reports.documents import CacheUsage
from asyncpq.testing import ObjectServer
from tests.reports.test_cache_usage import fill


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, ["cache", *map(str, arguments)])


async def test_a_disk_cache(tmp_path: Path, server: ObjectServer) -> None:
    folder = tmp_path / "cache"
    await fill(server, folder)

    def commands() -> None:
        shown = json.loads(invoke("show", "--disk-cache", folder, "--format", "json").stdout)
        usage = msgspec.convert(shown, CacheUsage, strict=True)
        assert usage["entries"] > 0
        assert usage["bytes"]
        assert usage["removed"] is None
        text = invoke("show", "--disk-cache", folder).stdout
        assert text.startswith(f"{folder}: {usage['entries']} entries, ")
        assert invoke("clear", "--disk-cache", folder).stdout == f"{folder}: {usage['entries']} entries removed\n"
        assert invoke("show", "--disk-cache", folder).stdout == f"{folder}: 0 entries, 0 B\n"

    await asyncio.to_thread(commands)


def test_bad_input(tmp_path: Path) -> None:
    for arguments, says in (
        (["show"], "exactly one cache"),
        (["clear", "--disk-cache", "x", "--shared", "valkey://h"], "exactly one cache"),
        (["clear", "--disk-cache", tmp_path / "none"], "there is no disk cache"),
        (["show", "--shared", "http://h"], "must be a text that begins with"),
    ):
        done = invoke(*arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert says in done.stderr
    done = invoke("show", "--shared", "valkey://:hidden@127.0.0.1:1")
    assert done.exit_code == 1
    assert "hidden" not in done.stderr
