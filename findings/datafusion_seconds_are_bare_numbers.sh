#!/usr/bin/env bash
# DataFusion 55.0.0: timestamps in seconds become numbers in its Parquet files, for all readers but those in Rust.
#
# Parquet has no unit of seconds. pyarrow, DuckDB and Polars write milliseconds. DataFusion (and so do arro3 and daft,
# over the same writer) writes seconds as INT64 without a logical type, and has the type in the Arrow schema of the
# footer only. DataFusion and Polars take it from there; pyarrow has read that schema too, but goes by the Parquet type.
# The same befalls date64, and time32 in seconds. SQL makes such columns: to_timestamp_seconds().
# Expected: milliseconds, or an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
  pyarrow==26.0.1 datafusion==55.0.0 polars==2.1.0 duckdb==2.0.1
"$folder/venv/bin/python" - "$folder/a.parquet" <<'PYTHON'
import sys

import datafusion
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

path = sys.argv[1]
context = datafusion.SessionContext()
context.sql("SELECT to_timestamp_seconds(1700000000) AS x").write_parquet(path)
print(pq.ParquetFile(path).schema)
seen = {
    "datafusion": str(context.read_parquet(path).schema().field("x").type),
    "polars": str(pl.read_parquet_schema(path)["x"]),
    "pyarrow": str(pq.read_schema(path).field("x").type),
    "duckdb": duckdb.sql(f"SELECT typeof(x) FROM '{path}'").fetchall()[0][0],
}
print(seen)
assert b"ARROW:schema" in pq.ParquetFile(path).metadata.metadata
assert seen["datafusion"] == "timestamp[s]"
assert seen["polars"].startswith("Datetime(time_unit='ms'")
assert (seen["pyarrow"], seen["duckdb"]) == ("int64", "BIGINT"), "others see a timestamp now"
PYTHON
