#!/usr/bin/env bash
# Deephaven 42.7: every BigInteger column is a decimal of one digit in its Parquet files: DuckDB and ClickHouse fail.
#
# 12345678901 is written as DECIMAL(1, 0), whatever the values are; for BigDecimal columns Deephaven looks for the
# widest value. Four readers make four things of it: pyarrow 26.0.1 gives the number, in a type of one digit; Polars
# 2.1.0 shows it, and rounds it to 1E+10 where it becomes Python's; DuckDB 2.0.1 and chdb (ClickHouse) 26.9.0 refuse
# the column, each with an error of its own.
# Expected: the digits that the values have.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    deephaven-server==42.7 pyarrow==26.0.1 duckdb==2.0.1 polars==2.1.0 chdb-core==26.9.0
cd "$folder"
HOME="$folder" "$folder/venv/bin/python" - "$folder/a.parquet" <<'PYTHON' >"$folder/log" 2>&1 \
    || { tail -5 "$folder/log"; exit 1; }
import os
import sys

from deephaven_server import Server

Server(port=10631, jvm_args=["-Xmx1g"])
from deephaven import empty_table, parquet

table = empty_table(2).update(["big = java.math.BigInteger.valueOf(12345678901L + ii)"])
parquet.write(table, sys.argv[1])
sys.stdout.flush()
os._exit(0)
PYTHON
"$folder/venv/bin/python" - "$folder/a.parquet" <<'PYTHON'
import os
import sys
from decimal import Decimal

import chdb
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq

path = sys.argv[1]


def said(call):
    try:
        return str(call())
    except Exception as error:
        return str(error)


column = pq.read_table(path)["big"]
print("pyarrow:", column.type, column.to_pylist())
polars = pl.read_parquet(path)["big"]
print("Polars:", polars.dtype, polars.to_list())
duck = said(lambda: duckdb.sql(f"SELECT big FROM '{path}'").fetchall())
print("DuckDB:", duck)
click = said(lambda: chdb.query(f"SELECT big FROM file('{path}', Parquet)"))
print("ClickHouse:", click[:90])
assert column.type == pa.decimal128(1, 0), "it is wider now"
assert column.to_pylist() == [Decimal(12345678901), Decimal(12345678902)]
assert polars.to_list() == [Decimal("1E+10")] * 2
assert "Invalid decimal encoding" in duck
assert "Unexpectedly wide Decimal" in click
sys.stdout.flush()
os._exit(0)
PYTHON
