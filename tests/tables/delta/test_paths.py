"""Urls of a Delta table's files: relative, absolute and encoded paths, and paths that lead to other stores."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from asyncpq.errors import UnsupportedFeatureError
from asyncpq.tables.delta.paths import DeltaRoot
from tests.delta_tables import (
    ID,
    DeltaWriter,
    add,
    ids,
    metadata,
    protocol,
    snapshot_of,
)


@pytest.fixture
def writer(tmp_path: Path) -> DeltaWriter:
    return DeltaWriter(tmp_path / "a table")


async def test_absolute_paths(writer: DeltaWriter, tmp_path: Path) -> None:
    pq.write_table(ids(5), tmp_path / "other %20.parquet")
    inside = writer.file("in.parquet", ids(1))
    writer.commit(protocol(), metadata(ID), add((tmp_path / "other %20.parquet").as_uri(), num_rows=1), inside)
    outside = (await snapshot_of(writer.folder)).data_files[0].url
    assert outside == str(tmp_path / "other %20.parquet")


@pytest.mark.parametrize(
    ("root", "path", "url"),
    [
        ("s3://bucket/t/", "a%20b.parquet", "s3://bucket/t/a b.parquet"),
        ("s3://bucket/t", "p=x%2520y/f.parquet", "s3://bucket/t/p=x%20y/f.parquet"),
        ("s3://bucket/t", "p=1%3A2%2B3+4/f.parquet", "s3://bucket/t/p=1:2+3+4/f.parquet"),
        ("s3://bucket/t", "s3://other/x%20y", "s3://other/x y"),
        ("s3://bucket/t", "s3a://other/x", "s3://other/x"),
        ("gs://bucket/t", "gs://other/x", "gs://other/x"),
        ("abfss://c@account/t", "abfss://c@account/x%25", "abfss://c@account/x%"),
        ("/tmp/t", "file:/data/x", "/data/x"),
        ("/tmp/t", "file:///data/x%20", "/data/x "),
        ("/tmp/t", "/data/x", "/data/x"),
        ("/tmp/t", "sub/x", "/tmp/t/sub/x"),
        ("memory://t", "x", "memory://t/x"),
    ],
)
def test_where_files_are(root: str, path: str, url: str) -> None:
    assert DeltaRoot.of(root).resolve(path) == url


@pytest.mark.parametrize(
    ("root", "path"),
    [
        ("s3://bucket/t", "file:///etc/passwd"),
        ("s3://bucket/t", "/etc/passwd"),
        ("s3://bucket/t", "https://host/x"),
        ("/tmp/t", "s3://bucket/x"),
        ("abfss://c@account/t", "abfss://c@other/x"),
        ("https://host/t", "https://other/x"),
        ("https://host/t", "http://host/x"),
    ],
)
def test_a_log_does_not_choose_stores(root: str, path: str) -> None:
    with pytest.raises(UnsupportedFeatureError, match="another store"):
        DeltaRoot.of(root).resolve(path)
