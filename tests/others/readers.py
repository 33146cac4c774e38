"""How each reader is asked. ``python -m tests.others.readers NAME FOLDER`` prints its answers as JSON."""

from __future__ import annotations

import json
import math
import operator
import sys
from collections.abc import Callable
from datetime import date, datetime
from decimal import Decimal
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.others.cases import CASES, Condition

#: Rows are answered by their ids.
Ask = Callable[[str, Condition], list[int]]


def _sql(condition: Condition) -> str:
    """The condition in SQL, as Spark, DuckDB and DataFusion read it."""
    if condition.operator == "is null":
        return "x IS NULL"
    if isinstance(condition.value, list):
        return f"x {condition.operator} ({', '.join(map(_sql_literal, condition.value))})"
    return f"x {condition.operator} {_sql_literal(condition.value)}"


def _sql_literal(value: Any) -> str:
    if isinstance(value, float):
        return f"CAST('{'NaN' if math.isnan(value) else value}' AS DOUBLE)"
    if isinstance(value, datetime):
        return f"TIMESTAMP '{value.isoformat(' ')}'"
    if isinstance(value, date):
        return f"DATE '{value}'"
    if isinstance(value, Decimal):
        return f"CAST({value} AS DECIMAL(3, 0))"
    return f"'{value}'" if isinstance(value, str) else str(value)


_COMPARED = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def _where(column: Any, condition: Condition, is_in: Callable[[list[Any]], Any], literal: Callable[[Any], Any]) -> Any:
    """The condition as an expression of ``column``, for readers whose expressions have Python's operators."""
    if condition.operator == "is null":
        return column.is_null()
    if isinstance(condition.value, list):
        found = is_in(condition.value)
        return ~found if condition.operator == "not in" else found
    return _COMPARED[condition.operator](column, literal(condition.value))


def pyarrow() -> Ask:
    import pyarrow as pa
    import pyarrow.dataset as ds

    def ask(path: str, condition: Condition) -> list[int]:
        dataset, field = ds.dataset(path), ds.field("x")
        type_ = dataset.schema.field("x").type if not isinstance(condition.value, Decimal) else pa.decimal128(3, 0)
        where = _where(
            field, condition, lambda values: field.isin(pa.array(values, type_)), lambda value: pa.scalar(value, type_)
        )
        return _numbers(dataset.to_table(columns=["id"], filter=where).column("id").to_pylist())

    return ask


def duckdb() -> Ask:
    import duckdb as library

    connection = library.connect()

    def ask(path: str, condition: Condition) -> list[int]:
        return _numbers(row[0] for row in connection.sql(f"SELECT id FROM '{path}' WHERE {_sql(condition)}").fetchall())

    return ask


def datafusion() -> Ask:
    from datafusion import SessionContext

    def ask(path: str, condition: Condition) -> list[int]:
        context = SessionContext()
        context.register_parquet("rows", path)
        batches = context.sql(f"SELECT id FROM rows WHERE {_sql(condition)}").collect()
        return _numbers(number for batch in batches for number in batch.column(0).to_pylist())

    return ask


def polars() -> Ask:
    import polars as pl

    def ask(path: str, condition: Condition) -> list[int]:
        where = _where(pl.col("x"), condition, pl.col("x").is_in, pl.lit)
        return _numbers(pl.scan_parquet(path).filter(where).select("id").collect()["id"].to_list())

    return ask


def fastparquet() -> Ask:
    import numpy as np
    from fastparquet import ParquetFile

    def ask(path: str, condition: Condition) -> list[int]:
        if condition.operator == "is null":
            raise NotImplementedError("its filters have no test for null")
        compared = "==" if condition.operator == "=" else condition.operator
        value = np.datetime64(condition.value) if isinstance(condition.value, date) else condition.value
        frame = ParquetFile(path).to_pandas(columns=["id"], filters=[("x", compared, value)], row_filter=True)
        return _numbers(int(number) for number in frame["id"])

    return ask


def pyspark() -> Ask:
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")

    def ask(path: str, condition: Condition) -> list[int]:
        return _numbers(row[0] for row in session.read.parquet(path).where(_sql(condition)).select("id").collect())

    return ask


def asyncpq() -> Ask:
    from asyncpq import col
    from asyncpq.blocking import BlockingSession

    session = BlockingSession()

    def ask(path: str, condition: Condition) -> list[int]:
        where = _where(col("x"), condition, col("x").is_in, lambda value: value)
        return _numbers(session.open_file(path).read(columns=["id"], where=where).column("id").to_pylist())

    return ask


def _numbers(ids: Any) -> list[int]:
    return sorted(map(int, ids))


READERS: dict[str, Callable[[], Ask]] = {
    "asyncpq": asyncpq,
    "pyarrow": pyarrow,
    "duckdb": duckdb,
    "datafusion": datafusion,
    "polars": polars,
    "fastparquet": fastparquet,
    "pyspark": pyspark,
}


def answers(name: str, folder: Path) -> dict[str, Any]:
    """Ask a reader everything; an answer is a list of ids, or the text of an error."""
    ask = READERS[name]()
    found: dict[str, Any] = {"version": version("asyncpq-parquet" if name == "asyncpq" else name)}
    for key, case in CASES.items():
        for condition in case.conditions:
            pair: list[Any] = []
            for kind in ("without", "with"):
                try:
                    pair.append(ask(str(folder / f"{key}-{kind}.parquet"), condition))
                except BaseException as error:  # noqa: BLE001  # whatever it is, Rust's panics too, is the answer
                    lines = str(error).strip().splitlines() or [""]
                    pair.append(f"{type(error).__name__}: {lines[-1][:160]}")
            found[f"{key} {condition}"] = pair
    return found


if __name__ == "__main__":
    json.dump(answers(sys.argv[1], Path(sys.argv[2])), sys.stdout)
