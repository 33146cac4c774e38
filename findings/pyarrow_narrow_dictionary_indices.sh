#!/usr/bin/env bash
# pyarrow 26.0.1 writes a file of two dictionary chunks with int8 indices that it cannot read again; DuckDB 1.4.1 can.
#
# Each dictionary has 100 values, so int8 indices hold them. In one row group the file has one dictionary of 200 values,
# while the stored Arrow schema still says int8: reading fails with "not in range".
# Expected: the writer widens the indices, or the reader falls back to what fits.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir pyarrow==26.0.1 duckdb==1.4.1
"$folder/venv/bin/python" - "$folder/a.parquet" <<'PYTHON'
import sys

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq


def chunk(first: int) -> pa.DictionaryArray:
    values = pa.array([f"v{first + number}" for number in range(100)])
    return pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), values)


pq.write_table(pa.table({"x": pa.chunked_array([chunk(0), chunk(100)])}), sys.argv[1])
print("DuckDB:", duckdb.sql(f"SELECT count(DISTINCT x) FROM '{sys.argv[1]}'").fetchall())
try:
    rows = pq.read_table(sys.argv[1]).num_rows
except pa.ArrowInvalid as error:
    print("pyarrow:", error)
else:
    raise SystemExit(f"pyarrow reads its file now: {rows} rows")
PYTHON
