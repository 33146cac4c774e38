"""The files that one task of a write makes, without a JVM."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

pytest.importorskip("pyspark", reason="needs pyspark: pip install asyncpq-parquet[spark]")

from asyncpq.errors import CredentialsError
from asyncpq.indexing.build.adding import AddedFile
from asyncpq.objects.runtime import Runtime
from asyncpq.spark import lake_writer
from asyncpq.spark.lake_writer import TAIL_TASKS, write_partition
from asyncpq.spark.settings import SparkSettings
from asyncpq.testing import StoreWrite, WrappedStore
from asyncpq.writing.file_layout import WriteOptions
from asyncpq.writing.file_writer import TAIL_BYTES, write_files

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])
_SMALL_GROUPS = WriteOptions(row_group_rows=1000)


def pulled(stop: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, stop, 1000):
        ids = range(start, start + 1000)
        yield pa.record_batch([pa.array(ids), pa.array([f"name {number}" for number in ids])], schema=SCHEMA)


def test_a_task_writes(tmp_path: Path) -> None:
    settings = SparkSettings()
    written = write_partition(settings, str(tmp_path), "data/job/3-4", pulled(5000), SCHEMA, _SMALL_GROUPS)
    assert [(file.path, file.num_rows) for file in written] == [("data/job/3-4-00000.parquet", 5000)]
    assert write_partition(settings, str(tmp_path), "data/job/3-5", pulled(0), SCHEMA, _SMALL_GROUPS) == []


def test_rows_that_were_taken_are_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With new credentials, the rest of them would be taken for all."""
    attempts: list[str] = []

    class Refusing(WrappedStore):
        async def around_write(self, call: StoreWrite, write: Any) -> Any:
            raise AssertionError

        async def create_stream(self, url: str, pieces: AsyncIterator[bytes], *, context: Any) -> bool:
            attempts.append(url)
            await anext(pieces)
            raise CredentialsError("they have expired", url=url)

    async def wrapped(runtime: Runtime, *arguments: Any) -> list[AddedFile]:
        runtime.wrap_store(str(tmp_path), Refusing)
        return await write_files(runtime, *arguments)

    monkeypatch.setattr(lake_writer, "write_files", wrapped)
    monkeypatch.setattr("asyncpq.spark.sessions._renewed", lambda *_: True)
    settings = SparkSettings(disk_cache="off")
    with pytest.raises(CredentialsError, match="Set credentials_provider"):
        write_partition(settings, str(tmp_path), "data/a", pulled(5000), SCHEMA, _SMALL_GROUPS)
    assert len(attempts) == 1
    monkeypatch.undo()  # who comes next gets another session
    assert write_partition(settings, str(tmp_path), "data/a", pulled(5000), SCHEMA, _SMALL_GROUPS)


def test_what_the_driver_is_sent_has_a_limit(tmp_path: Path) -> None:
    """However many tasks there are, and files of each."""
    options = WriteOptions(row_group_rows=100, file_bytes=1)
    for partition in (0, TAIL_TASKS - 1, TAIL_TASKS):
        stem = f"data/{partition}"
        written = write_partition(
            SparkSettings(), str(tmp_path), stem, pulled(12_000), SCHEMA, options, partition=partition
        )
        tails = [len(file.tail) for file in written]
        assert len(tails) == 120
        if partition == TAIL_TASKS:
            assert not any(tails)
        else:
            assert TAIL_BYTES - 2 * max(tails) < sum(tails) <= TAIL_BYTES
