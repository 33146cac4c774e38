"""``asyncpq doctor`` prints a report that can be pasted into an issue."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from asyncpq.cli.commands import app
from asyncpq.reports import diagnosis
from asyncpq.reports.documents import Diagnosis
from asyncpq.session import Session
from tests.cli.snapshots import check_snapshot

REPORT: Diagnosis = {
    "document": "diagnosis",
    "versions": {"asyncpq": "1.0", "python": "CPython 3.11.7", "pyarrow": "26.0.1", "gcsfs": None},
    "platform": {"system": "Linux", "machine": "x86_64", "cpus": "2", "event_loop": "asyncio"},
    "environment": ["AWS_PROFILE"],
    "caches": {"memory": {"max_bytes": 2**28, "current_bytes": 0}, "disk": {"place": "DiskCache('/c')", "hits": 1}},
    "store": {
        "url": "s3://bucket/a.parquet",
        "settings": {
            "credentials": "environment",
            "endpoint": "https://bucket.s3.amazonaws.com",
            "region": "us-east-1",
        },
        "client": "direct",
        "server": "bucket.s3.amazonaws.com",
        "guarantee": "pinned",
        "size": 2**30,
        "first_s": 0.11,
        "latency_s": 0.0312,
        "bandwidth_bytes_s": 9e7,
        "parallel_bytes_s": 6.4e8,
        "supports": {"ranges": True, "suffix ranges": True, "If-Match": False, "create if absent": None},
        "requests": [],
        "error": None,
        "error_type": None,
    },
}


def invoke(*arguments: object) -> Any:
    return CliRunner(env={"COLUMNS": "100"}).invoke(app, ["doctor", *map(str, arguments)])


def test_the_text_of_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    async def report(session: Session, url: str | None = None, *, writes: bool = False) -> Diagnosis:
        return REPORT

    monkeypatch.setattr(Session, "diagnose", report)
    check_snapshot("doctor.txt", invoke("s3://bucket/a.parquet").stdout)


def test_files_folders_and_nothing(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    for url in (tmp_path / "a.parquet", tmp_path):
        done = invoke(url, "--format", "json", "--write-test")
        report = msgspec.convert(json.loads(done.stdout), Diagnosis, strict=True)
        assert report["store"] is not None
        assert report["store"]["url"].endswith("a.parquet")
    assert invoke().exit_code == 0


def test_errors_have_their_exit_codes(tmp_path: Path) -> None:
    done = invoke(tmp_path / "none.parquet")
    assert done.exit_code == 3
    assert "pyarrow" in done.stdout
    assert done.stderr.startswith("asyncpq: ")
    assert invoke("nosuch://bucket/key").exit_code == 1


def test_an_error_is_in_the_words_of_the_command_line() -> None:
    done = invoke("s3://bucket/a.parquet", "--endpoint-url", "http://127.0.0.1:9", "--profile", "nobody-has-it")
    assert done.exit_code == 4
    assert "storage_options" not in done.stderr
    assert "the profile that --profile or AWS_PROFILE names" in done.stderr


def test_secrets_of_the_environment_are_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hidden-secret")
    for number in range(20):
        monkeypatch.setenv(f"ASYNCPQ_{number}", "other")
    for format_ in ("table", "json"):
        printed = invoke("--format", format_).stdout
        assert "AWS_SECRET_ACCESS_KEY" in printed
        assert "hidden-secret" not in printed
    assert diagnosis.versions()["python"] is not None


@pytest.mark.parametrize(("size", "why"), [(1000, "the object has less than 1 MiB"), (2**30, "an error ended")])
def test_an_unmeasured_bandwidth_has_a_reason(size: int, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def report(session: Session, url: str | None = None, *, writes: bool = False) -> Any:
        store = {**(REPORT["store"] or {}), "size": size, "bandwidth_bytes_s": None, "parallel_bytes_s": None}
        return {**REPORT, "store": store}

    monkeypatch.setattr(Session, "diagnose", report)
    printed = invoke("s3://bucket/a.parquet").stdout
    for name in ("bandwidth", "in parallel"):
        assert re.search(rf"^{name} +not measured: {why}", printed, re.MULTILINE)
