"""Steps of index builds that fail, for executors: they import this module."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from asyncpq.distributed.build_steps import CollectFiles, CutPieces, WriteSegments
from asyncpq.errors import CredentialsError
from tests.spark.cluster import kill_own_executor


def _first_time(flag: str) -> bool:
    try:
        Path(flag).touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


@dataclass(frozen=True)
class CollectThenFailOnce(CollectFiles):
    """The first task fails after it has given a piece."""

    flag: str = ""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in super().__call__(batches):
            yield piece
            if _first_time(self.flag):
                raise RuntimeError("this attempt fails")


@dataclass(frozen=True)
class CollectOrDieOnce(CollectFiles):
    """The first task kills its executor."""

    flag: str = ""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for piece in super().__call__(batches):
            kill_own_executor(Path(self.flag))
            yield piece


@dataclass(frozen=True)
class CollectWithoutRights(CollectFiles):
    """No task has valid credentials."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        raise CredentialsError("the token has expired", url="s3://lake/day=1/a.parquet")


@dataclass(frozen=True)
class WriteThenFailOnce(WriteSegments):
    """The first task fails after it has written."""

    flag: str = ""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        written = list(super().__call__(batches))
        if _first_time(self.flag):
            raise RuntimeError("this attempt fails")
        yield from written


@dataclass(frozen=True)
class WriteThenDieOnce(WriteSegments):
    """The first task kills its executor after it has written."""

    flag: str = ""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        written = list(super().__call__(batches))
        kill_own_executor(Path(self.flag))
        yield from written


@dataclass(frozen=True)
class LosePieces(CutPieces):
    """A piece in three is lost on its way."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for number, piece in enumerate(super().__call__(batches)):
            if number % 3:
                yield piece
