"""One LocalStack for all processes of a test run: a second one takes as long to start as hundreds of tests.

The process that distributes the tests keeps it. It starts when the first test wants it, and ends with the run.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from pathlib import Path

from localstack.start import LocalStackError, running_localstack

_FOLDER = "ASYNCPQ_SHARED_LOCALSTACK"  # the environment variable that names the folder of the messages
_WANTED, _RUNNING, _FAILED = "wanted", "running", "failed"


class SharedLocalStack:
    """What the distributing process keeps from ``start`` to ``stop``. Processes that it starts meanwhile find it."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="asyncpq-localstack-")
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def start(self) -> None:
        os.environ[_FOLDER] = self._folder.name
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        del os.environ[_FOLDER]
        self._folder.cleanup()

    def _run(self) -> None:
        folder = Path(self._folder.name)
        while not (folder / _WANTED).exists():
            if self._ended.wait(0.1):
                return
        try:
            with running_localstack() as endpoint:
                _put(folder / _RUNNING, endpoint)
                self._ended.wait()
        except LocalStackError as error:
            _put(folder / _FAILED, str(error))


def shared_endpoint() -> str | None:
    """The endpoint of the run's LocalStack, once it runs; None where this process is alone.

    Raises:
        LocalStackError: it did not start.
    """
    if _FOLDER not in os.environ:
        return None
    folder = Path(os.environ[_FOLDER])
    (folder / _WANTED).touch()
    while True:
        if (folder / _RUNNING).exists():
            return (folder / _RUNNING).read_text()
        if (folder / _FAILED).exists():
            raise LocalStackError((folder / _FAILED).read_text())
        time.sleep(0.05)


def _put(file: Path, text: str) -> None:
    """Write the file at once, for whoever looks for it."""
    begun = file.with_suffix(".part")
    begun.write_text(text)
    begun.rename(file)
