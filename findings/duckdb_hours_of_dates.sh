#!/usr/bin/env bash
# DuckDB 2.0.1 finds no row of DATE '2024-05-01' where date_trunc('hour', d) = TIMESTAMP '2024-05-01 00:00:00'.
#
# date_trunc of the date is that timestamp, as SELECT shows, and with the optimizer off the row is found. The optimizer
# turns the condition into a range of days, which is empty; `<=` loses the row in the same way, `>=` does not.
# Expected: the row, with the optimizer on or off.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir duckdb==2.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import duckdb

connection = duckdb.connect()
connection.sql("CREATE TABLE t AS SELECT DATE '2024-05-01' AS d")
midnight = "TIMESTAMP '2024-05-01 00:00:00'"
shown = connection.sql(f"SELECT date_trunc('hour', d), {midnight} FROM t").fetchall()[0]
print("date_trunc('hour', d) and the timestamp:", *shown)
assert shown[0] == shown[1]
for operator, expected in (("=", 0), ("<=", 0), (">=", 1)):
    question = f"SELECT count(*) FROM t WHERE date_trunc('hour', d) {operator} {midnight}"
    optimized = connection.sql(question).fetchall()[0][0]
    connection.execute("PRAGMA disable_optimizer")
    plain = connection.sql(question).fetchall()[0][0]
    connection.execute("PRAGMA enable_optimizer")
    print(f"{operator}: {optimized} row with the optimizer, {plain} without")
    assert (optimized, plain) == (expected, 1), "DuckDB finds it now"
PYTHON
