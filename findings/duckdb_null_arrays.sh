#!/usr/bin/env bash
# DuckDB 2.0.1: Parquet files of its ARRAY columns with NULLs have too many values; pyarrow 26.0.1 cannot read them.
#
# A row whose ARRAY is NULL has one entry among the levels of a list column. DuckDB writes one for each element that the
# array would have had: the chunk counts 6 values where 5 are right. DuckDB and Polars 2.1.0 make the rows of it that
# went in; pyarrow counts a list of more values than there are, and fails. LIST columns are written well.
# Expected: num_values 5, and a file that any reader can read.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
  pyarrow==26.0.1 duckdb==2.0.1 polars==2.1.0
"$folder/venv/bin/python" - "$folder" <<'PYTHON'
import sys

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

values = {}
for kind in ("INTEGER[]", "INTEGER[2]"):
    path = f"{sys.argv[1]}/{len(values)}.parquet"
    duckdb.sql(f"SELECT x::{kind} AS x FROM (VALUES ([1, 2]), (NULL), ([3, NULL])) AS t(x)").write_parquet(path)
    values[kind] = pq.ParquetFile(path).metadata.row_group(0).column(0).num_values
    print(f"{kind}: {values[kind]} values; Polars: {pl.read_parquet(path)['x'].to_list()}")
    try:
        print("   pyarrow:", pq.read_table(path)["x"].to_pylist())
    except pa.ArrowInvalid as error:
        print("   pyarrow:", error)
        refused = kind
assert values == {"INTEGER[]": 5, "INTEGER[2]": 6}, "DuckDB counts the values of NULL arrays otherwise now"
assert refused == "INTEGER[2]"
PYTHON
