#!/usr/bin/env bash
# Ladybug 0.22.0 and Kuzu 0.11.3: WHERE x = 2.0 loses rows of their Parquet files before a NaN, in DuckDB and pyarrow.
#
# COPY ... TO writes 1.0, 2.0, NaN, 8.0, 9.0 with a minimum of 8.0 and a maximum of 9.0: each NaN makes the writer
# forget the bounds of the rows before it. So DuckDB 2.0.1, DataFusion 55.0.0 and pyarrow 26.0.1 find no row at 1.0 or
# 2.0, while all five rows are there without a condition. Ladybug itself finds them: it does not look at the bounds.
# Expected: a minimum of 1.0, or no bounds, as the format's parquet.thrift says of NaN.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    ladybug==0.22.0 kuzu==0.11.3 pyarrow==26.0.1 duckdb==2.0.1 datafusion==55.0.0
cat > "$folder/look.py" <<'PYTHON'
import importlib
import sys

import datafusion
import duckdb
import pyarrow.parquet as pq

name, path = sys.argv[1], sys.argv[2]
library = importlib.import_module(name)
connection = library.Connection(library.Database(":memory:"))
rows = "UNWIND [1.0, 2.0, 0.0, 8.0, 9.0] AS y RETURN CASE WHEN y = 0.0 THEN y / y ELSE y END AS x"
connection.execute(f"COPY ({rows}) TO '{path}'")
bounds = pq.ParquetFile(path).metadata.row_group(0).column(0).statistics
print(name, pq.read_table(path)["x"].to_pylist(), "bounds:", bounds.min, "to", bounds.max)
assert (bounds.min, bounds.max) == (8.0, 9.0), "its bounds are others now"

context = datafusion.SessionContext()
context.register_parquet("t", path)
found = {
    "DuckDB": duckdb.sql(f"SELECT count(*) FROM '{path}' WHERE x = 2.0").fetchall()[0][0],
    "DataFusion": context.sql("SELECT x FROM t WHERE x = 2.0").to_arrow_table().num_rows,
    "pyarrow": pq.read_table(path, filters=[("x", "=", 2.0)]).num_rows,
    "itself": connection.execute(f"LOAD FROM '{path}' WHERE x = 2.0 RETURN count(*)").get_next()[0],
}
print("rows where x = 2.0:", found)
assert found == {"DuckDB": 0, "DataFusion": 0, "pyarrow": 0, "itself": 1}, "rows are found now"
PYTHON
for name in ladybug kuzu; do
    "$folder/venv/bin/python" "$folder/look.py" "$name" "$folder/$name.parquet"
done
