"""What tasks do before the writes of the tests: executors import this module."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tests.spark.cluster import kill_own_executor


class TwoAttempts:
    """The first attempt of the task that has row 0 waits until there is another one; then both go on to their ends."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if 0 in batch["id"].to_pylist():
                (self._folder / os.environ["SPARK_LOCAL_IP"]).touch()
                until = time.monotonic() + 90
                while len(list(self._folder.iterdir())) < 2 and time.monotonic() < until:
                    time.sleep(0.05)
            yield batch


class DieWhileWriting:
    """One of the tasks ends its executor, once others of its rows have been given away."""

    def __init__(self, flag: Path) -> None:
        self._flag = flag

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for given, batch in enumerate(batches):
            if given > 3:
                time.sleep(0.5)  # the writer has taken them
                kill_own_executor(self._flag)
            yield batch


class FailLast:
    """The task that has the row ``number`` fails, in each attempt, once the others have written their files.

    Args:
        folder: of the job's files.
        files: so many of them.
    """

    def __init__(self, folder: Path, files: int, number: int) -> None:
        self._folder = folder
        self._files = files
        self._number = number

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if self._number in batch["id"].to_pylist():
                until = time.monotonic() + 600
                while len(list(self._folder.glob("data/*/[!.]*"))) < self._files and time.monotonic() < until:
                    time.sleep(0.05)
                raise ValueError("this row is refused")
            yield batch
