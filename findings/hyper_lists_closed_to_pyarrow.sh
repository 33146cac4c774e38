#!/usr/bin/env bash
# Tableau Hyper 0.0.26963 meets pyarrow 26.0.1: pyarrow refuses every Parquet file that Hyper wrote with an array in it.
#
# Hyper annotates both groups of an array as LIST, the outer one and the repeated one in it. DuckDB and Polars read such
# a file. pyarrow refuses all of its columns, and names neither the column nor the writer.
# Expected: one annotation, on the outer group, as the format has it; or that other columns can be read.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    tableauhyperapi==0.0.26963 pyarrow==26.0.1 duckdb==2.0.1 polars==2.1.0
cd "$folder"
venv/bin/python - <<'PYTHON'
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
from tableauhyperapi import Connection, HyperProcess, Telemetry

query = "SELECT n, ARRAY[n, NULL] AS pair FROM generate_series(1, 3) g(n)"
with HyperProcess(Telemetry.DO_NOT_SEND_USAGE_DATA_TO_TABLEAU) as hyper, Connection(hyper.endpoint) as connection:
    connection.execute_command(f"COPY ({query}) TO 'pairs.parquet' WITH (FORMAT => 'parquet')")
    own = connection.execute_list_query("SELECT n, pair[1] FROM external('pairs.parquet')")
print("Hyper:", own)
for name, kind, logical in duckdb.sql(
    "SELECT name, repetition_type, logical_type FROM parquet_schema('pairs.parquet')"
).fetchall():
    print(f"  {name}: {kind}, {logical}")
wanted = [(1, [1, None]), (2, [2, None]), (3, [3, None])]
assert duckdb.sql("FROM 'pairs.parquet'").fetchall() == wanted
assert pl.read_parquet("pairs.parquet").rows() == wanted
for columns in (None, ["n"]):
    try:
        pq.read_table("pairs.parquet", columns=columns)
    except pa.ArrowInvalid as error:
        print("pyarrow:", error)
    else:
        raise AssertionError("pyarrow reads it now")
PYTHON
