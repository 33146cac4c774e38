#!/usr/bin/env bash
# carquet 0.7.2 meets pyarrow 26.0.1: pyarrow refuses a file by carquet with a decimal column, and all of its columns.
#
# write_table() takes a pyarrow table and stores its Arrow schema in the footer unasked, with decimals of precision 0.
# pyarrow believes that schema and refuses the file; DuckDB does not look at it and reads all. carquet itself reads the
# decimals as four bytes. With store_schema=False pyarrow reads the file, too.
# Expected: the table that was written.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    carquet==0.7.2 pyarrow==26.0.1 duckdb==2.0.1
cd "$folder"
venv/bin/python - <<'PYTHON'
from decimal import Decimal

import carquet
import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

table = pa.table({"n": [1, 2], "price": pa.array([Decimal("1.25"), None], pa.decimal128(9, 2))})
carquet.write_table(table, "default.parquet")
carquet.write_table(table, "bare.parquet", store_schema=False)
own = carquet.read_table("default.parquet")
print("carquet:", own.schema.field("price").type, own["price"].to_pylist())
rows = duckdb.sql("FROM 'default.parquet'").fetchall()
print("DuckDB:", rows)
assert rows == [(1, Decimal("1.25")), (2, None)]
assert pq.read_table("bare.parquet").equals(table)
try:
    pq.read_table("default.parquet", columns=["n"])
except pa.ArrowInvalid as error:
    print("pyarrow:", error)
else:
    raise AssertionError("pyarrow reads it now")
PYTHON
