#!/usr/bin/env bash
# DuckDB 2.0.1 hands the largest UHUGEINT to Arrow as -1, and 2^127 as -2^127.
#
# UHUGEINT has values up to 2^128 - 1. Arrow gets decimal128(38, 0), whose bytes are signed, with the same 16 bytes; no
# error says that the values do not fit. fetchall() gives the right numbers, and values below 2^127 come out right.
# Expected: decimal256, or an error.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir duckdb==2.0.1 pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import duckdb

numbers = [2**127 - 1, 2**127, 2**128 - 1]
rows = duckdb.sql(f"SELECT unnest([{', '.join(f'{number}::UHUGEINT' for number in numbers)}]) AS x")
column = rows.to_arrow_table()["x"]
print("duckdb:", [row[0] for row in rows.fetchall()])
print("arrow: ", [int(value) for value in column.to_pylist()], column.type)
assert [row[0] for row in rows.fetchall()] == numbers
assert [int(value) for value in column.to_pylist()] == [2**127 - 1, -(2**127), -1], "Arrow gets the numbers now"
PYTHON
