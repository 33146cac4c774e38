"""Each writer's setting: the writer that a file names, ``lint`` that gives its setting, and the code that was tried."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from asyncpq.reports.cures import CURES
from asyncpq.reports.writer_settings import WRITER_SETTINGS, setting_of
from tests.reports.lookups import encoded, finding, linted, trips
from tests.zoo.layouts import LAYOUT_WRITERS
from tests.zoo.registry import PROGRAMS, Writer

ZOO = Path(__file__).resolve().parents[1] / "data" / "zoo"


@pytest.mark.parametrize(
    ("created_by", "name"),
    [
        ("Carquet", "carquet"),
        ("ClickHouse version 26.9.2 (build bb16200a28a249679746508237b5ed3997b7292a)", "chdb"),
        ("DuckDB", "duckdb"),
        ("DuckDB version v2.0.1 (build 8d78114e90)", "duckdb"),
        ("Polars (python) version 2.1.0 (build 7f902bd3ffd27ff82d14278a09a295ff2f7aed92)", "polars"),
        ("Polars", "polars"),
        ("Salesforce hyper-db main.0.0.26963.r84171622", "hyper"),
        ("datafusion version 55.2.0", "datafusion"),
        ("datafusion version 54.1.0", "datafusion"),  # SedonaDB 0.5
        ("fastparquet-python version 2026.9.0 (build 0)", "fastparquet"),
        ("github.com/parquet-go/parquet-go version 0.32.0(build )", "parquet-go"),
        ("hyparquet", "hyparquet-writer"),
        ("parquet-cpp-arrow version 26.0.1", "pyarrow"),
        ("parquet-cpp version 1.5.1-SNAPSHOT", "pyarrow"),
        ("parquet-go version latest", "xitongsys-parquet-go"),
        ("parquet-mr version 1.16.0 (build 402c3810c372d29603e181771acebfecc71bef61)", "spark"),  # Carpet 0.5
        ("parquet-rs version 60.1.0", "parquet-rs"),
        ("delta-rs version py-1.6.6", "delta-rs"),
        ("rugo version 0.5.6", "rugo"),
        ("Arrow2 - Native Rust implementation of Arrow", None),
        ("impala version 4.5.0", None),
        ("", None),
        (None, None),
    ],
)
def test_the_writer_that_a_file_names(created_by: str | None, name: str | None) -> None:
    found = setting_of(created_by)
    assert (None if found is None else found.name) == name


@pytest.mark.parametrize(
    ("folder", "name"),
    [
        ("chdb-4.4.0", "chdb"),
        ("datafusion-55.0.0", "datafusion"),
        ("duckdb-2.0.0", "duckdb"),
        ("fastparquet-2026.9.0", "fastparquet"),
        ("parquet-java-1.18.1", "spark"),
        ("parquet-rs-60.1.0", "parquet-rs"),
        ("polars-2.1.0", "polars"),
        ("pyarrow-26.0.1", "pyarrow"),
        ("spark-3.5.9", "spark"),
    ],
)
def test_the_writer_of_real_files(folder: str, name: str) -> None:
    paths = sorted((ZOO / folder).glob("*.parquet"))
    assert paths
    for path in paths:
        found = setting_of(pq.read_metadata(path).created_by)
        assert found is not None
        assert found.name == name


@pytest.mark.parametrize("name", ["rugo", "duckdb", None])
async def test_lint_gives_the_setting_of_the_files_writer_first(name: str | None) -> None:
    own = {"rugo": b"rugo version 0.5.6", "duckdb": b"DuckDB version v2.0.1"}.get(name or "", b"impala version 4.5.0")
    data = encoded(trips(), write_page_index=False)
    (created_by,) = set(re.findall(rb"parquet-cpp-arrow version [\d.]+", data))
    data = data.replace(created_by, own.ljust(len(created_by)))
    found = finding(await linted(data, ["id"]), "no-page-index")["snippets"]
    general = CURES["no-page-index"]("id")
    first = {} if name is None else {each.name: each.setting for each in WRITER_SETTINGS if each.name == name}
    assert list(found.items()) == list({**first, **general}.items())


async def test_other_cures_are_those_of_all_writers() -> None:
    found = finding(await linted(encoded(trips()), ["user"]), "random-order")
    assert found["snippets"] == CURES["random-order"]("user")


@pytest.mark.parametrize("writer", LAYOUT_WRITERS, ids=lambda writer: writer.name)
def test_a_setting_is_the_code_that_was_tried(writer: Writer) -> None:
    """Programs for Python get it; the others have it in their source."""
    (setting,) = (each.setting for each in WRITER_SETTINGS if each.name == writer.name)
    program = PROGRAMS / writer.program
    arguments = getattr(writer.environment, "arguments", ())
    sources = [program] if program.is_file() else [path for path in program.rglob("*") if path.is_file()]
    assert setting in arguments or any(setting in path.read_text() for path in sources)


def test_names_are_unique() -> None:
    names = [each.name for each in WRITER_SETTINGS]
    assert len(set(names)) == len(names)
