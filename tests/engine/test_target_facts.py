"""What the text of a url says to doors."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import asyncpq
from asyncpq.engine.target_facts import absolute_target, default_index_url, hive_ignoring_case, opens_table, url_facts
from asyncpq.testing import ObjectServer
from tests.parquet_bytes import parquet_bytes


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket/a.parquet", (False, None, "s3")),
        ("s3://bucket/lake", (False, None, "s3")),
        ("gs://bucket/lake/", (True, None, "gs")),
        ("s3://bucket", (True, None, "s3")),
        ("/bucket/*.parquet", (True, None, "file")),
        ("s3://bucket/t/metadata/v3.metadata.json", (True, "iceberg", "s3")),
    ],
)
def test_facts(url: str, expected: tuple[bool, str | None, str]) -> None:
    facts = url_facts(url)
    assert (facts.many, facts.table_format, facts.protocol) == expected


@pytest.mark.parametrize("prefix", ["s3://bucket/lake/", "s3://bucket/lake"])
def test_the_default_index_lies_below_its_prefix(prefix: str) -> None:
    assert default_index_url(prefix) == "s3://bucket/lake/_asyncpq/"


@pytest.mark.parametrize("url", ["s3://bucket", "gs://bucket", "s3://bucket/", "s3://bucket/lake/", "s3://b/*.parquet"])
def test_buckets_prefixes_and_patterns_name_many(url: str) -> None:
    assert url_facts(url).many


@pytest.mark.parametrize("url", ["s3://bucket/a.parquet", "https://host", "memory://a.parquet", "a.parquet"])
def test_others_may_name_one(url: str) -> None:
    assert not url_facts(url).many


def test_a_folder_of_this_machine(tmp_path: Path) -> None:
    assert url_facts(str(tmp_path)).many


def test_protocol_and_key(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    urls = ["S3://bucket/a%20b", "file:///lake/", "a/b.parquet"]
    facts = [(url_facts(url).protocol, url_facts(url).key) for url in urls]
    assert facts == [("s3", "bucket/a%20b"), ("file", "/lake"), ("file", f"{tmp_path}/a/b.parquet")]
    assert absolute_target(["s3://b/a", "lake/"]) == ["s3://b/a", f"{tmp_path}/lake/"]
    assert absolute_target(None) is None


@pytest.mark.parametrize("name", ["_SUCCESS", ".a.crc", "a.parquet._COPYING_", "a_$folder$"])
def test_names_that_are_no_data(name: str) -> None:
    assert url_facts(f"s3://bucket/{name}").hidden
    assert not url_facts(f"s3://bucket/{name}/a.parquet").hidden


def test_tables() -> None:
    assert opens_table("s3://bucket/t/", "delta", None)
    assert not opens_table("s3://bucket/t/", None, None)
    with pytest.raises(asyncpq.InvalidOptionError):
        opens_table("s3://bucket/t/", "delta", "main")


async def test_a_bucket_is_opened_as_all_of_its_files() -> None:
    async with ObjectServer() as server:
        for number in range(3):
            server.put(f"bucket/{number}.parquet", parquet_bytes(pa.table({"id": [number]})))
        async with asyncpq.Session(server.storage_options) as session:
            dataset = await session.open_dataset("s3://bucket")
            assert await dataset.count() == 3


@pytest.mark.parametrize("url", ["s3://bucket", "s3://bucket/", "S3://bucket"])
async def test_an_empty_bucket_has_nothing(url: str) -> None:
    async with ObjectServer() as server:
        server.buckets.add("bucket")
        async with asyncpq.Session(server.storage_options) as session:
            with pytest.raises(asyncpq.ObjectNotFoundError, match="nothing is at the dataset's url"):
                await session.open_dataset(url)


async def test_folders_whose_names_ignore_case_prune_as_one_column(tmp_path: Path) -> None:
    for number, folder in enumerate(("P=1", "p=2", "p=1")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{number}.parquet").write_bytes(parquet_bytes(pa.table({"id": [number]})))
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(tmp_path), partitioning=hive_ignoring_case())  # type: ignore[arg-type]
        assert dataset.schema == pa.schema([("id", pa.int64()), ("P", pa.int32())])
        for value, expected in ((1, [0, 2]), (2, [1]), (3, [])):
            table = await dataset.read(where=[("P", "=", value)])
            assert sorted(table.column("id").to_pylist()) == expected
        plan = await dataset.plan(where=[("P", "=", 2)])
        assert [item.url for item in plan.files] == [f"{tmp_path}/p=2/1.parquet"]
