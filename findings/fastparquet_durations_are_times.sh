#!/usr/bin/env bash
# fastparquet 2026.9.0: a timedelta column of pandas becomes one of times of day, also where it has days or is negative.
#
# Its own reader turns TIME back into durations, so the round trip hides it. To others 25 hours are no time of day:
# pyarrow 26.0.1 shows 01:00:00 for them and 23:59:59 for minus one second, Polars 2.1.0 makes nulls of both, and DuckDB
# 2.0.1 refuses the file. pyarrow and Polars write durations as plain INT64, with the type in the Arrow schema.
# Expected: an INT64, or an error for what is no time of day.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
  pyarrow==26.0.1 fastparquet==2026.9.0 pandas==3.1.1 duckdb==2.0.1 polars==2.1.0
"$folder/venv/bin/python" - "$folder/a.parquet" <<'PYTHON'
import datetime
import sys

import duckdb
import fastparquet
import pandas as pd
import polars as pl
import pyarrow.parquet as pq

path = sys.argv[1]
frame = pd.DataFrame({"x": pd.to_timedelta(["1s", "25h", "-1s"])})
fastparquet.write(path, frame)
print(pq.ParquetFile(path).schema)
assert fastparquet.ParquetFile(path).to_pandas()["x"].tolist() == frame["x"].tolist()
by_pyarrow = pq.read_table(path)["x"].to_pylist()
by_polars = pl.read_parquet(path)["x"].to_list()
print("pyarrow:", by_pyarrow)
print("polars: ", by_polars)
try:
    rows = duckdb.sql(f"FROM '{path}'").fetchall()
except duckdb.InvalidInputException as error:
    print("duckdb: ", error)
else:
    raise SystemExit(f"DuckDB reads it now: {rows}")
assert pq.ParquetFile(path).schema.column(0).logical_type.type == "TIME", "it is written otherwise now"
assert by_pyarrow == [datetime.time(0, 0, 1), datetime.time(1), datetime.time(23, 59, 59)]
assert by_polars == [datetime.time(0, 0, 1), None, None]
PYTHON
