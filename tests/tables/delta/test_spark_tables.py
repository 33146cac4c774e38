"""Delta tables that Spark wrote: deletion vectors, column mapping, type widening, v2 checkpoints, parsed statistics.

The oracle is what Spark itself reads. Needs Java, and ``delta-spark`` (spark.txt) in this environment or in that
of the interpreter that ASYNCPQ_SPARK_PYTHON names; Spark fetches jars from Maven.
"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

import asyncpq
from tests.delta_tables import rows_of, snapshot_of
from tests.tables import comparisons
from tests.tables.spark_tables import written_by_spark

TABLES = (
    "deletion_vectors",
    "names",
    "ids",
    "wider",
    "every_wider",
    "chars",
    "floats",
    "bytes",
    "int96",
    "v2_json",
    "v2_parquet",
    "parsed",
    "parts",
)
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written_by_spark(tmp_path_factory.mktemp("spark"), "delta_spark_writer.py", "delta", "pyspark")


def sorted_rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def trimmed(table: pa.Table, name: str) -> list[str | None]:
    return [None if text is None else text.rstrip(" ") for text in table[name].to_pylist()]


@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", TABLES)
async def test_equal_to_spark(written: Path, name: str) -> None:
    snapshot = await snapshot_of(written / name)
    expected = ds.dataset(written / f"{name}.expected").to_table()
    if name == "chars":  # Spark pads them when it reads; asyncpq gives what is stored, as all other readers do
        expected = pa.table(
            {key: trimmed(expected, key) if key in "cp" else expected[key] for key in expected.column_names}
        )
    assert sorted_rows(await rows_of(snapshot)) == sorted_rows(expected)
    async with asyncpq.Session() as session:
        dataset = await session.open_dataset(str(written / name), format="delta")
        assert sorted_rows(await dataset.read()) == sorted_rows(expected)
        comparisons.note("Delta by Spark", expected)
        assert await dataset.count() == expected.num_rows
    # no value lies outside of its bounds
    for file in snapshot.data_files:
        alone = await rows_of(type(snapshot)(description="", data_files=(file,), fields=snapshot.fields))
        for path, bounds in file.bounds.items():
            values = alone.flatten()[path] if "." in path else alone[path]
            for value in values.drop_null().to_pylist():
                assert not bounds.all_null
                if value == value:
                    assert bounds.min is None or bounds.min <= value
                    assert bounds.max is None or bounds.max >= value
