"""``asyncpq schema``, ``head`` and ``meta``: a first look at files, prefixes and tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from asyncpq.cli.commands import app
from asyncpq.reports.documents import Inspection, SchemaDocument


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("user", pa.string())], {"made": "by hand"})
    table = pa.table({"id": range(100), "user": [f"u{row % 7}" for row in range(100)]}, schema=schema)
    pq.write_table(table, "a.parquet", row_group_size=40)
    Path("lake").mkdir()
    for number in range(2):
        pq.write_table(table.slice(number * 50, 50), f"lake/{number}.parquet")


def invoke(*arguments: object, code: int = 0) -> Any:
    done = CliRunner().invoke(app, [*map(str, arguments)])
    assert done.exit_code == code, done.output
    return done


@pytest.mark.parametrize("url", ["a.parquet", "lake"])
def test_schema(url: str) -> None:
    text = invoke("schema", url).stdout
    assert [line.split() for line in text.splitlines() if line.split()[:1] in (["id"], ["user"])] in (
        [["id", "int64", "!"], ["user", "string"]],
        [["id", "int64"], ["user", "string"]],  # of a dataset, whose other files may have nulls
    )
    document = json.loads(invoke("schema", url, "--format", "json").stdout)
    assert msgspec.convert(document, SchemaDocument) == document
    assert [(column["name"], column["arrow_type"]) for column in document["columns"]] == [
        ("id", "int64"),
        ("user", "string"),
    ]


@pytest.mark.parametrize("url", ["a.parquet", "lake"])
@pytest.mark.parametrize(("options", "expected"), [([], 10), (["-n", 3], 3), (["--rows", 70], 70), (["-n", 0], 0)])
def test_head(url: str, options: list[object], expected: int) -> None:
    lines = invoke("head", url, *options, "--format", "ndjson").stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == list(range(expected))


def test_head_of_rows_that_match() -> None:
    lines = invoke("head", "a.parquet", "-n", 2, "--where", "id > 50", "--columns", "id", "--format", "csv").stdout
    assert lines.splitlines() == ['"id"', "51", "52"]


def test_meta_says_nothing_of_an_order_that_only_pages_show() -> None:
    """``meta`` reads no page indexes; ``inspect`` says that this file is sorted by its only column."""
    pq.write_table(pa.table({"id": range(100)}), "b.parquet", write_page_index=True, max_rows_per_page=10)
    assert "sorted by        id" in invoke("inspect", "b.parquet").stdout
    assert "sorted by" not in invoke("meta", "b.parquet").stdout
    assert "sorted by        id" in invoke("meta", "a.parquet").stdout  # row groups show it


def test_meta_shows_keys_without_a_value() -> None:
    metadata = {"org.apache.spark.version": "3.5.0", "org.apache.spark.legacyDateTime": ""}
    pq.write_table(pa.table({"id": [1]}).replace_schema_metadata(metadata), "b.parquet")
    text = invoke("meta", "b.parquet").stdout
    assert 'org.apache.spark.version        3.5.0\norg.apache.spark.legacyDateTime ""\nARROW:schema ' in text
    assert "\n\nRow group 0: 1 row" in text


def test_meta() -> None:
    text = invoke("meta", "a.parquet").stdout
    assert "by hand" in text
    assert [line.split(":")[0] for line in text.splitlines() if line.startswith("Row group")] == [
        "Row group 0",
        "Row group 1",
        "Row group 2",
    ]
    assert "SNAPPY".lower() in text
    document = json.loads(invoke("meta", "a.parquet", "--format", "json").stdout)
    assert msgspec.convert(document, Inspection) == document


def test_meta_is_of_one_file() -> None:
    assert "Name one of its files" in invoke("meta", "lake", code=2).stderr


def test_n_is_short_for_limit() -> None:
    short, long = (invoke("query", "a.parquet", name, 3, "--format", "csv").stdout for name in ("-n", "--limit"))
    assert short == long
    assert len(short.splitlines()) == 4
