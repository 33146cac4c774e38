"""What the tests of the cluster run in tasks: executors import this module."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from tests.spark.cluster import kill_own_executor, own_executor

_ANSWER = pa.schema([("id", pa.int64()), ("host", pa.string()), ("executor", pa.int64()), ("seen", pa.string())])
#: Of the answers, for mapInArrow.
ANSWER = "id long, host string, executor long, seen string"


def _answer(ids: pa.Array, seen: str = "") -> pa.RecordBatch:
    rows = len(ids)
    host = os.environ["SPARK_LOCAL_IP"]
    return pa.record_batch([ids, [host] * rows, [own_executor()] * rows, [seen] * rows], schema=_ANSWER)


def where_it_runs(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A little slow, so that each executor gets some of the tasks."""
    for batch in batches:
        time.sleep(0.2)
        yield _answer(batch["id"])


class DieOnce:
    """One of the tasks kills its executor."""

    def __init__(self, flag: Path) -> None:
        self._flag = flag

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            kill_own_executor(self._flag)
            yield _answer(batch["id"])


class Dawdle:
    """The first attempt of task 0 waits until there is another one; attempts note their hosts in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            if batch["id"][0].as_py() == 0:
                (self._folder / os.environ["SPARK_LOCAL_IP"]).touch()
                until = time.monotonic() + 60
                while len(list(self._folder.iterdir())) < 2 and time.monotonic() < until:
                    time.sleep(0.1)
            yield _answer(batch["id"])


def with_credentials(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """What the provider gives here, and which asyncpq is found."""
    import asyncpq
    from tests.spark.credentials import localstack

    for batch in batches:
        yield _answer(batch["id"], f"{localstack()['key']} {asyncpq.__file__}")
