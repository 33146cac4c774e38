"""The blocks of docs/spark*.md run, one after another, on the cluster; its tables name what there is."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import asyncpq.spark
from asyncpq.errors import InvalidOptionError
from asyncpq.spark.lake_writer import WRITE_NAMES
from asyncpq.spark.settings import SETTING_NAMES, SparkSettings, camel_case

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PAGES = ("spark-reading", "spark-readers", "spark-joins", "spark-writing", "spark", "spark-cluster")
_PAGE = "".join((Path(__file__).parents[2] / f"docs/{page}.md").read_text(encoding="utf-8") for page in _PAGES)


def test_every_block_runs(spark: SparkSession, tmp_path: Path) -> None:
    lake = tmp_path / "lake"
    lake.mkdir()
    for number in range(4):
        rows = range(number * 1000, (number + 1) * 1000)
        table = pa.table(
            {"id": rows, "user": [f"u{row % 37}" for row in rows], "price": [row / 8 for row in rows]},
            schema=pa.schema([("id", pa.int64()), ("user", pa.string()), ("price", pa.float64())]),
        )
        pq.write_table(table, lake / f"{number}.parquet", write_page_index=True)
    folders = ("lake", "target", "written", "copied", "checkpoint", "index")
    names: dict[str, Any] = {"spark": spark} | {name: str(tmp_path / name) for name in folders}
    blocks = re.findall(r"^```python\n(.*?)^```$", _PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) > 5
    for source in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, "docs/spark*.md", "exec"), names)
        for shown in re.findall(r"^print\(.*\)  # -> (.*)$", source, re.MULTILINE):
            assert shown in printed.getvalue().splitlines()


def test_public_names_are_on_the_page() -> None:
    verbs = [name for name in asyncpq.spark.__all__ if name.islower()]
    assert all(getattr(asyncpq.spark, name) is not None for name in asyncpq.spark.__all__)
    missing = [name for name in verbs if not re.search(rf"asyncpq\.spark\.{name}\b|`{name}`", _PAGE)]
    assert missing == []


def test_every_setting_and_option_of_writes_is_on_the_page() -> None:
    table = _PAGE[_PAGE.index("## Settings") :]
    assert [name for name in SETTING_NAMES if f"`{camel_case(name)}`" not in table] == []
    writing = _PAGE[_PAGE.index("## Writing") : _PAGE.index("## ", _PAGE.index("## Writing") + 1)]
    assert [name for name in WRITE_NAMES if name != "path" and f"`{name}`" not in writing] == []  # of save()


def test_what_is_not_for_users_is_no_option(spark: SparkSession) -> None:
    with pytest.raises(InvalidOptionError, match="int96"):
        SparkSettings.of(spark, {"int96_unit": "ns"})
    assert SparkSettings.from_options({"int96unit": "ns"}).int96_unit == "us"
