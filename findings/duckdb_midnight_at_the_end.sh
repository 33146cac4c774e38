#!/usr/bin/env bash
# DuckDB 2.0.1 writes TIME '24:00:00' to Parquet: pyarrow 26.0.1 shows midnight, Polars 2.1.0 makes a null.
#
# SQL has the end of a day apart from its beginning, and DuckDB stores it as 86,400,000,000 microseconds and reads it
# back. pyarrow's to_pylist() shows 00:00:00, as for the beginning, while its == says that the two differ. The file
# has no null; Polars has one.
# Expected: an error where a value cannot be shown.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
  pyarrow==26.0.1 duckdb==2.0.1 polars==2.1.0
"$folder/venv/bin/python" - "$folder/a.parquet" <<'PYTHON'
import sys

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

path = sys.argv[1]
duckdb.sql("SELECT x::TIME AS x FROM (VALUES ('00:00:00'), ('24:00:00')) AS t(x)").write_parquet(path)
print("duckdb: ", duckdb.sql(f"SELECT x::TEXT FROM '{path}'").fetchall())
column = pq.read_table(path)["x"]
print("pyarrow:", column.to_pylist(), "equal:", pc.equal(column[0], column[1]), column.cast(pa.int64()).to_pylist())
series = pl.read_parquet(path)["x"]
print("polars: ", series.to_list(), "nulls:", series.null_count())
assert column[0].as_py() == column[1].as_py(), "pyarrow tells them apart now"
assert not pc.equal(column[0], column[1]).as_py(), "pyarrow tells them apart now"
assert series.null_count() == 1, "Polars has no null now"
assert pq.ParquetFile(path).metadata.row_group(0).column(0).statistics.null_count == 0
PYTHON
