"""What the text of a url says to doors."""

from __future__ import annotations

import pytest

from asyncpq.engine.target_facts import default_index_url, url_facts


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://bucket/a.parquet", (False, None)),
        ("s3://bucket/lake", (False, None)),
        ("s3://bucket/lake/", (True, None)),
        ("s3://bucket", (True, None)),
        ("s3://bucket/*.parquet", (True, None)),
        ("s3://bucket/t/metadata/v3.metadata.json", (True, "iceberg")),
    ],
)
def test_facts(url: str, expected: tuple[bool, str | None]) -> None:
    assert url_facts(url) == expected


@pytest.mark.parametrize("prefix", ["s3://bucket/lake/", "s3://bucket/lake"])
def test_the_default_index_lies_below_its_prefix(prefix: str) -> None:
    assert default_index_url(prefix) == "s3://bucket/lake/_asyncpq/"
