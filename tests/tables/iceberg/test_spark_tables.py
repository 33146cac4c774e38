"""Iceberg tables that Spark wrote: position deletes, deletion vectors, partitions of every kind, migrated files.

The oracle is what Spark itself reads. Needs Java, and pyspark (spark.txt) in this environment or in that of
the interpreter that ASYNCPQ_SPARK_PYTHON names; Spark fetches Iceberg's jar from Maven.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import asyncpq
from asyncpq import col
from tests.tables import comparisons
from tests.tables.spark_tables import written_by_spark

TABLES = ("position_deletes", "deletion_vectors", "both", "partitions", "migrated")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_by_spark(tmp_path_factory.mktemp("spark"), "iceberg_spark_writer.py", "pyspark")


def metadata_of(folder: Path) -> str:
    """The newest metadata file, which version-hint.text names."""
    metadata = folder / "metadata"
    return str(metadata / f"v{(metadata / 'version-hint.text').read_text().strip()}.metadata.json")


def sorted_rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", TABLES)
async def test_equal_to_spark(written: Path, name: str) -> None:
    expected = ds.dataset(written / f"{name}.expected").to_table()
    async with asyncpq.open_dataset(metadata_of(written / "db" / name), format="iceberg") as dataset:
        expected = expected.cast(dataset.schema)
        assert sorted_rows(await dataset.read()) == sorted_rows(expected)
        comparisons.note("Iceberg by Spark", expected)
        assert await dataset.count() == expected.num_rows
        for column in dataset.schema.names:
            values = expected.column(column).to_pylist()[:20]
            for value in values if not isinstance(values[0], (list, dict)) else []:
                where = col(column).is_null() if value is None else col(column).is_in([value])
                same = [row for row in expected.to_pylist() if repr(row[column]) == repr(value)]
                found = await dataset.read(where=where)
                assert sorted_rows(found) == sorted(map(repr, same))
                comparisons.note("Iceberg by Spark", found)
