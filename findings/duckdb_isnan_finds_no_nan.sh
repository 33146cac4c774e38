#!/usr/bin/env bash
# DuckDB 2.0.1: SELECT x, isnan(x) shows "nan, false" for a Parquet file by pyarrow; WHERE isnan(x) finds no row there.
#
# Writers leave NaN out of a column's minimum and maximum, as the format asks; DuckDB's own writer keeps no bounds of
# such a column. DuckDB takes isnan(x) for a comparison with the largest number and folds it to false, where the
# maximum of the file is 3. With an infinity among the rows it is true again.
# Expected: true for NaN. DataFusion 55.0.0 finds it with isnan(x), and loses it with x > 3, which orders NaN last.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    datafusion==55.0.0 pyarrow==26.0.1 duckdb==2.0.1
cat > "$folder/use.py" <<'PYTHON'
import math

import datafusion
import duckdb
import pyarrow
import pyarrow.parquet


def duckdb_count(source: str, condition: str) -> int:
    return duckdb.sql(f"SELECT count(*) FROM {source} WHERE {condition}").fetchall()[0][0]


found = {}
shown = {}
for name, largest in (("3.0", 3.0), ("infinity", math.inf)):
    rows = pyarrow.table({"x": [1.0, 2.0, math.nan, largest]})
    pyarrow.parquet.write_table(rows, "pyarrow.parquet")
    duckdb.sql("COPY rows TO 'duckdb.parquet'")
    found[name] = [duckdb_count(source, "isnan(x)") for source in ("rows", "'pyarrow.parquet'", "'duckdb.parquet'")]
    print(f"isnan(x) beside {name}: {found[name]} of memory, the file by pyarrow, the file by DuckDB")
    shown[name] = str(duckdb.sql("SELECT x, isnan(x) FROM 'pyarrow.parquet'").fetchall()[2])
    print(f"  SELECT x, isnan(x) of that row: {shown[name]}")
    if name == "3.0":
        context = datafusion.SessionContext()
        context.register_parquet("file", "pyarrow.parquet")
        others = [
            context.sql(f"SELECT count(*) AS n FROM file WHERE {condition}").to_pydict()["n"][0]
            for condition in ("isnan(x)", "x > 2", "x > 3")
        ]
        print(f"  DataFusion, isnan(x), x > 2, x > 3: {others}")
assert found == {"3.0": [1, 0, 1], "infinity": [1, 1, 1]}, found
assert shown == {"3.0": "(nan, False)", "infinity": "(nan, True)"}, shown
assert others == [1, 2, 0], others
PYTHON
cd "$folder"
venv/bin/python use.py
