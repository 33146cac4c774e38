"""What happens to written files: they become live, are published as plain files, or are deleted."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

import asyncpq
from asyncpq.distributed.lake_writes import check_target, discard_job, is_uncommitted, job_folder, publish_plain
from asyncpq.errors import (
    AccessDeniedError,
    AsyncpqError,
    ConcurrentCommitUnsupported,
    InvalidOptionError,
    SchemaMismatchError,
    StaleSnapshotError,
    TransportError,
)

_JOB = "0123456789ab4def8123456789abcdef"


def put(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(b"PAR1")


def below(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


async def test_files_of_a_failed_write_are_deleted_and_others_stay(tmp_path: Path) -> None:
    mine, other = f"{job_folder(_JOB)}00000-0-00000.parquet", "data/other/00000-0-00000.parquet"
    put(tmp_path, mine, other)
    async with asyncpq.Session() as session:
        await discard_job(session._runtime, f"{tmp_path}/", _JOB)
    assert below(tmp_path) == {other}


async def test_files_that_cannot_be_deleted_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with asyncpq.Session() as session:
        await discard_job(session._runtime, "https://127.0.0.1:9/lake/", _JOB)
    assert "unused files could not be deleted below https://127.0.0.1:9/lake/" in caplog.text


async def test_success_is_written_after_uncommitted_files_are_gone(tmp_path: Path) -> None:
    put(tmp_path, f"{job_folder(_JOB)}00000-1-00000.parquet")
    async with asyncpq.Session() as session:
        await publish_plain(session._runtime, f"{tmp_path}/", _JOB)
    assert below(tmp_path) == {"_SUCCESS"}


async def test_a_target_has_files_of_its_job_alone(tmp_path: Path) -> None:
    async with asyncpq.Session() as session:
        await check_target(session._runtime, f"{tmp_path}/")
        put(tmp_path, f"{job_folder(_JOB)}00000-0-00000.parquet")
        await check_target(session._runtime, f"{tmp_path}/", _JOB)
        with pytest.raises(InvalidOptionError, match="not empty"):
            await check_target(session._runtime, f"{tmp_path}/")


@pytest.mark.parametrize(
    ("error", "uncommitted"),
    [
        (SchemaMismatchError("x"), True),
        (StaleSnapshotError("x"), True),
        (ConcurrentCommitUnsupported("x"), True),
        (TransportError("x"), False),
        (AccessDeniedError("x"), False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_after_a_stores_error_the_files_may_be_live(error: AsyncpqError, uncommitted: bool) -> None:
    assert is_uncommitted(error) is uncommitted
