"""An S3 server with the lake, in a process of its own: ``python -m tests.load.store FOLDER``.

It prints its endpoint, and serves until its standard input ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from asyncpq.testing import ObjectServer
from tests.load.service import ROOT

BUCKET: Final = "bucket"


class StoreProcess:
    """The server with the files of ``lake``, from its making to :meth:`close`."""

    def __init__(self, lake: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.load.store", str(lake)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        self.url = f"s3://{BUCKET}/lake/"
        self.storage: dict[str, Any] = json.loads(self._process.stdout.readline())

    def close(self) -> None:
        """End the server."""
        self._process.communicate("")


def main() -> int:
    """See the module."""
    with ObjectServer.in_thread() as server:
        for path in sorted(Path(sys.argv[1]).iterdir()):
            server.put(f"{BUCKET}/lake/{path.name}", path.read_bytes())
        sys.stdout.write(f"{json.dumps({'s3': server.storage_options})}\n")
        sys.stdout.flush()
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
