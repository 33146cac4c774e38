"""The diagnosis of a session says what a store supports, and shows no secrets."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

import asyncpq
from asyncpq.reports.diagnosis import versions
from asyncpq.reports.documents import Diagnosis
from asyncpq.testing import Fault, ObjectServer
from localstack.seed import seed, storage_options
from tests.parquet_bytes import parquet_bytes


def data(rows: int = 400_000) -> bytes:
    return parquet_bytes(pa.table({"x": pa.array(range(rows), pa.int64())}), compression="none", use_dictionary=False)


async def test_without_a_url_nothing_is_asked() -> None:
    async with asyncpq.Session() as session:
        found = await session.diagnose()
        assert session.metrics.requests == 0
    msgspec.convert(found, Diagnosis, strict=True)
    assert found["store"] is None
    assert found["versions"]["pyarrow"] == pa.__version__
    assert versions()["pyarrow"] == pa.__version__


async def test_an_object_store(localstack: str, bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_KEY", "hidden-token")
    await seed(localstack, bucket, {"a.parquet": data()})
    async with asyncpq.Session(storage_options(localstack)) as session:
        found = await session.diagnose(f"s3://{bucket}/a.parquet", writes=True)
    msgspec.convert(found, Diagnosis, strict=True)
    store = found["store"]
    assert store is not None
    assert store["error"] is None
    assert store["settings"] == {"credentials": "storage_options", "endpoint": localstack, "region": "us-east-1"}
    assert (store["client"], store["guarantee"]) == ("direct", "pinned")
    assert store["supports"] == {"ranges": True, "suffix ranges": True, "If-Match": True, "create if absent": True}
    assert None not in (store["first_s"], store["latency_s"], store["bandwidth_bytes_s"], store["parallel_bytes_s"])
    text = json.dumps(found)
    assert "hidden-token" not in text
    assert "AZURE_STORAGE_KEY" in text


async def test_a_server_that_ignores_if_match(server: ObjectServer) -> None:
    server.put("bucket/a.parquet", data(10))
    server.faults = [Fault(ignore_if_match=True, times=None)]
    async with asyncpq.Session(server.storage_options) as session:
        found = await session.diagnose("s3://bucket/a.parquet")
    assert found["store"] is not None
    assert found["store"]["supports"]["If-Match"] is False
    assert found["store"]["supports"]["create if absent"] is None
    assert found["store"]["bandwidth_bytes_s"] is None  # of a few bytes nothing can be said


async def test_local_files(tmp_path: Path) -> None:
    (tmp_path / "a.parquet").write_bytes(data())
    async with asyncpq.Session(disk_cache=tmp_path / "cache") as session:
        found = await session.diagnose(tmp_path / "a.parquet", writes=True)
    assert found["store"] is not None
    assert found["store"]["client"] == "file"
    assert found["store"]["supports"]["create if absent"] is True
    assert found["store"]["supports"]["If-Match"] is None
    assert str(tmp_path / "cache") in found["caches"]["disk"]["place"]
    assert sorted(os.listdir(tmp_path)) == ["a.parquet", "cache"]


async def test_errors_are_part_of_the_report(tmp_path: Path) -> None:
    async with asyncpq.Session() as session:
        missing = (await session.diagnose(tmp_path / "none.parquet"))["store"]
        unknown = (await session.diagnose("nosuch://bucket/key"))["store"]
    assert missing is not None
    assert unknown is not None
    assert missing["error_type"] == "ObjectNotFoundError"
    assert "nosuch" in str(unknown["error"])
