#!/usr/bin/env bash
# A folder x=1 with a file that has a column x of its own: three answers from three libraries, two of them from Polars.
#
# The values in the file are 5 and 6. Spark leaves such a column out; a hand that moves files into folders does not.
# DuckDB 2.0.1 shows 1 for each row and lets the file's column vanish. Polars 2.1.0 does so where it is given the
# folder; given a pattern for the same file, it shows 5 and 6. pyarrow 26.0.1 refuses to read if the types differ (int64
# against the int32 that it guesses from the path). So "x = 5" finds one row or none, without an error.
# Expected: one rule, or an error where the values differ.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
  pyarrow==26.0.1 duckdb==2.0.1 polars==2.1.0
"$folder/venv/bin/python" - "$folder/table" <<'PYTHON'
import os
import sys

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

folder = sys.argv[1]
pattern = f"{folder}/**/*.parquet"
os.makedirs(f"{folder}/x=1")
pq.write_table(pa.table({"x": [5, 6]}), f"{folder}/x=1/a.parquet")
seen = {
    "duckdb, pattern": [row[0] for row in duckdb.sql(f"FROM '{pattern}'").fetchall()],
    "polars, pattern": pl.read_parquet(pattern)["x"].to_list(),
    "polars, folder": pl.read_parquet(folder)["x"].to_list(),
    "polars, folder, x = 5": pl.scan_parquet(folder).filter(pl.col("x") == 5).collect()["x"].to_list(),
}
try:
    seen["pyarrow, folder"] = pq.read_table(folder)["x"].to_pylist()
except pa.ArrowTypeError as error:
    seen["pyarrow, folder"] = str(error)
for name, values in seen.items():
    print(f"{name}: {values}")
assert seen["duckdb, pattern"] == seen["polars, folder"] == [1, 1]
assert seen["polars, pattern"] == [5, 6]
assert seen["polars, folder, x = 5"] == []
assert "incompatible types" in seen["pyarrow, folder"], "pyarrow reads it now"
PYTHON
