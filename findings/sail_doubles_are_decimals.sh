#!/usr/bin/env bash
# Sail 0.7.2: WHERE x = 0.0 finds a double of 1e-16 as well, and WHERE x > 0.5 fails at any double above 1e15.
#
# In Spark SQL 0.5 is a decimal, which Spark makes a double to compare it with one. Sail makes all doubles of the column
# DECIMAL(30, 15): what is below 15 digits after the point is equal to zero, and a value of 16 digits before it, such as
# 6.02e23, ends the query. The same condition in its DataFrame API, col("x") == 0.0, or with 0.0D in SQL, is right.
# DuckDB 2.0.1 has decimal literals, too, and compares doubles.
# Expected: Spark's rule (ANSI compliance, type promotion): of a decimal and a double, the common type is double.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    pysail==0.7.2 pyspark-client==4.2.0 pyarrow==26.0.1 'pandas<3' duckdb==2.0.1
cd "$folder"
venv/bin/python - <<'PYTHON' 2>log || { cat log; exit 1; }
import os

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
from pysail.spark import SparkConnectServer
from pyspark.sql import SparkSession, functions

pq.write_table(pa.table({"x": [1e-16, 0.0, 0.1]}), "small.parquet")
pq.write_table(pa.table({"x": [6.02e23, 1.5]}), "large.parquet")
server = SparkConnectServer()
server.start(background=True)
session = SparkSession.builder.remote(f"sc://localhost:{server.listening_address[1]}").getOrCreate()


def sail(name: str, condition: str) -> list[float] | str:
    session.read.parquet(f"{os.getcwd()}/{name}.parquet").createOrReplaceTempView(name)
    try:
        return [row.x for row in session.sql(f"SELECT x FROM {name} WHERE {condition}").collect()]
    except Exception as error:
        return str(error)


cases = [("small", "x = 0.0"), ("small", "x > 0.0"), ("large", "x > 0.5")]
found = [sail(*case) for case in cases]
for (name, condition), rows in zip(cases, found, strict=True):
    right = [x for (x,) in duckdb.read_parquet(f"{name}.parquet").filter(condition).fetchall()]
    print(f"{condition}: Sail {rows}, DuckDB {right}", flush=True)
typed = sail("small", "x = 0.0D"), [row.x for row in session.table("small").filter(functions.col("x") == 0.0).collect()]
print("x = 0.0D, and the DataFrame API:", *typed, flush=True)
assert typed == ([0.0], [0.0]), typed
assert found[:2] == [[1e-16, 0.0], [0.1]], "it compares doubles now"
assert "Decimal128" in found[2], found[2]
os._exit(0)  # the server's threads outlive it
PYTHON
