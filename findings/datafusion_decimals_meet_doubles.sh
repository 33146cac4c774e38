#!/usr/bin/env bash
# DataFusion 55.0.0: WHERE price = 9999999.99 finds no row of a DECIMAL(18, 2) column that holds just this.
#
# A number with a point in SQL is a double. The comparison casts both sides to DECIMAL(31, 15), where the double has
# become 9999999.990000001220608. Some amounts survive (19.99), others do not (1234567.89); >= loses the boundary, <>
# finds too much. CAST('9999999.99' AS DECIMAL(9, 2)) and the bare string '9999999.99' are exact.
# Expected: the row, as of DuckDB 2.0.1, where a number with a point is a decimal.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    datafusion==55.0.0 pyarrow==26.0.1 duckdb==2.0.1
cat > "$folder/use.py" <<'PYTHON'
from decimal import Decimal

import datafusion
import duckdb
import pyarrow
import pyarrow.parquet

prices = [Decimal(text) for text in ("0.01", "19.99", "1234567.89", "9999999.99", "123456789.12")]
column = pyarrow.array(prices, pyarrow.decimal128(18, 2))
pyarrow.parquet.write_table(pyarrow.table({"price": column}), "prices.parquet")
context = datafusion.SessionContext()
context.register_parquet("prices", "prices.parquet")
counts = {}
for condition in (
    "price = 19.99",
    "price = 1234567.89",
    "price = 9999999.99",
    "price >= 9999999.99",
    "price <> 9999999.99",
    "price = CAST('9999999.99' AS DECIMAL(9, 2))",
    "price = '9999999.99'",
):
    counts[condition] = (
        context.sql(f"SELECT count(*) AS n FROM prices WHERE {condition}").to_pydict()["n"][0],
        duckdb.sql(f"SELECT count(*) FROM 'prices.parquet' WHERE {condition}").fetchall()[0][0],
    )
    print(f"{condition}: DataFusion {counts[condition][0]}, DuckDB {counts[condition][1]}")
assert list(counts.values()) == [(1, 1), (0, 1), (0, 1), (1, 2), (5, 4), (1, 1), (1, 1)], counts
PYTHON
cd "$folder"
venv/bin/python use.py
