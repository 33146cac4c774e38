#!/usr/bin/env bash
# daft 0.6.14: a table whose later files have wider integers reads as other numbers, without an error.
#
# The schema is that of the first file: int32. A later file has int64, as after a change of the column's type. daft
# casts and keeps the low 32 bits: 2**40 becomes 0, 2**31 becomes -2**31. DuckDB 2.0.1, Polars 2.1.0 and pyarrow 26.0.1
# refuse the file and name the column or the value. A filter goes by the cut values as well.
# Expected: the wider type, or an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export DO_NOT_TRACK=true
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
  pyarrow==26.0.1 daft==0.6.14 duckdb==2.0.1 polars==2.1.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import os
import sys

import daft
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

folder = f"{sys.argv[1]}/table"
os.mkdir(folder)
pq.write_table(pa.table({"x": pa.array([1], pa.int32())}), f"{folder}/1.parquet")
pq.write_table(pa.table({"x": pa.array([2**40, 2**31], pa.int64())}), f"{folder}/2.parquet")
for name, read in (
    ("pyarrow", lambda: pq.read_table(folder)),
    ("polars", lambda: pl.read_parquet(f"{folder}/*.parquet")),
    ("duckdb", lambda: duckdb.sql(f"FROM '{folder}/*.parquet'").fetchall()),
):
    try:
        rows = read()
    except Exception as error:
        print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0][:100]}")
    else:
        raise SystemExit(f"{name} reads it now: {rows}")
read = daft.read_parquet(f"{folder}/*.parquet")
held = sorted(read.to_pydict()["x"])
zeros = read.where(daft.col("x") == 0).count_rows()
print("daft:", held, "rows with x = 0:", zeros)
assert held == [-(2**31), 0, 1], "daft shows other numbers now"
assert zeros == 1
PYTHON
