"""The cache tiers below memory that a soak run has."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from asyncpq.options import DiskCacheOptions, SharedCacheOptions
from tests.servers import ValkeyServer

DISK_BYTES = 8 << 20  # it evicts, too


def session_options(folder: Path, shared_cache: str) -> dict[str, Any]:
    """Options of a session that has both."""
    return {
        "disk_cache": DiskCacheOptions(path=str(folder / "cache"), max_bytes=DISK_BYTES),
        "shared_cache": SharedCacheOptions(url=shared_cache, secret="soak", retry_after_s=0.5),
    }


@contextlib.contextmanager
def running_valkey() -> Iterator[str]:
    """The url of a server of its own."""
    with tempfile.TemporaryDirectory(prefix="valkey-") as folder, ValkeyServer(Path(folder)) as server:
        yield server.url
