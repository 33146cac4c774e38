#!/usr/bin/env bash
# DuckDB 2.0.1: decimals of more than 38 digits in Parquet are read as DOUBLE, without a word: neighbours become equal.
#
# Parquet's decimals have no upper limit, and pyarrow and DataFusion write up to 76 digits. DuckDB has 38 digits at
# most; a column of 39 comes as DOUBLE, which has 15. So 10**30 and 10**30 + 1 are one value to GROUP BY, joins and
# filters, also where each value would fit 38 digits. A copy to Parquet is a column of DOUBLE. Polars 2.1.0 refuses the
# column.
# Expected: an error, or the exact value as text.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
  pyarrow==26.0.1 duckdb==2.0.1 polars==2.1.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys
from decimal import Decimal

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

values = [Decimal(10**30), Decimal(10**30 + 1)]
seen = {}
for digits in (38, 39):
    path = f"{sys.argv[1]}/{digits}.parquet"
    pq.write_table(pa.table({"x": pa.array(values, pa.decimal256(digits, 0))}), path)
    seen[digits] = duckdb.sql(f"SELECT typeof(any_value(x)), count(*) FROM '{path}' GROUP BY x").fetchall()
    print(f"{digits} digits: {seen[digits]}")
    assert pq.read_table(path)["x"].to_pylist() == values
assert seen[38] == [("DECIMAL(38,0)", 1)] * 2
assert seen[39] == [("DOUBLE", 2)], "DuckDB keeps them apart now"
try:
    pl.read_parquet(path)
except pl.exceptions.InvalidOperationError as error:
    print("polars:", error)
else:
    raise SystemExit("Polars reads it now")
PYTHON
