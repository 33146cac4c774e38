#!/usr/bin/env bash
# Polars 2.1.0, SQL: WHERE paid IS NOT TRUE leaves out the rows where paid is null, unlike DuckDB 2.0.1.
#
# In SQL, IS TRUE, IS FALSE and each with NOT are true or false for null, never null: that is what they are for, and
# what people write instead of NOT where nulls count. Polars gives null for null, so that IS NOT TRUE is NOT.
# IS DISTINCT FROM TRUE is right.
# Expected: the row where paid is null, too.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    polars==2.1.0 duckdb==2.0.1 pyarrow==26.0.1
"$folder/venv/bin/python" - <<'PYTHON'
import duckdb
import polars as pl

orders = pl.DataFrame({"id": [1, 2, 3], "paid": [True, False, None]})
connection = duckdb.connect()
connection.register("orders", orders.to_arrow())
for condition, polars, standard in (
    ("paid IS NOT TRUE", [2], [2, 3]),
    ("paid IS NOT FALSE", [1], [1, 3]),
    ("(NULLIF(id, 3) > 1) IS NOT TRUE", [1], [1, 3]),
    ("paid IS DISTINCT FROM TRUE", [2, 3], [2, 3]),
):
    sql = f"SELECT id FROM orders WHERE {condition} ORDER BY id"
    found = pl.SQLContext(orders=orders).execute(sql).collect()["id"].to_list()
    other = [row[0] for row in connection.execute(sql).fetchall()]
    print(f"{condition}: Polars {found}, DuckDB {other}")
    assert (found, other) == (polars, standard), "changed"
PYTHON
