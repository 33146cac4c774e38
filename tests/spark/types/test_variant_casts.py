"""The casts of variants that tests hold asyncpq to are Spark's."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("pyspark")

from pyspark.sql import SparkSession
from pyspark.sql.conf import RuntimeConfig

from tests.variants import SPARK_CASTS, SPARK_TYPES

pytestmark = pytest.mark.spark
_AS_TEXT = ("date", "timestamp", "timestamp_ntz")
_NOT_STABLE = {("'12:30'", "timestamp")}  # it has today's date


def as_text(value: Any) -> str | None:
    if value is None:
        return None
    if isinstance(value, (bytes, bytearray)):
        return value.hex()
    return repr(value) if isinstance(value, float) else str(value)


def variant_of(sql: str) -> str:
    """A variant of a value in SQL."""
    if sql.startswith("cast(null"):
        return "parse_json('null')"
    return f"to_variant_object({sql})" if sql.startswith(("array", "named_struct")) else f"cast({sql} as variant)"


def test_the_casts_are_sparks(spark: SparkSession, restored_conf: RuntimeConfig) -> None:
    restored_conf.set("spark.sql.session.timeZone", "UTC")
    names = [f"try_variant_get(v, '$', '{kind}')" for kind in SPARK_TYPES]
    parts = [
        f"cast({name} as string)" if kind in _AS_TEXT else name for name, kind in zip(names, SPARK_TYPES, strict=True)
    ]
    columns = ", ".join([f"{part} AS c{number}" for number, part in enumerate(parts)])
    for row in SPARK_CASTS:
        sql = row["sql"]
        ((found, *casts),) = spark.sql(f"SELECT v, {columns} FROM (SELECT {variant_of(sql)} AS v)").collect()
        assert (found.value.hex(), found.metadata.hex()) == (row["value"], row["metadata"]), sql
        for kind, cast, expected in zip(SPARK_TYPES, casts, row["parts"], strict=True):
            assert as_text(cast) == expected or (sql, kind) in _NOT_STABLE, (sql, kind)
