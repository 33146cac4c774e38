#!/usr/bin/env bash
# DuckDB 2.0.1: WHERE isnan(x) finds no NaN in a Parquet file by pyarrow, and all of them in the same rows by DuckDB.
#
# Writers leave NaN out of a column's minimum and maximum, as the format asks; DuckDB's own writer keeps no bounds of
# such a column. DuckDB takes isnan(x) for a comparison with the largest number, and drops a row group whose maximum is
# 3. Whether the rows are found hangs on their neighbours: with an infinity in the row group they are.
# Expected: the rows that SELECT isnan(x) shows. DataFusion 55.0.0 finds them with isnan(), and loses them with x > 3.
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
for name, largest in (("3.0", 3.0), ("infinity", math.inf)):
    table = pyarrow.table({"x": [1.0, 2.0, math.nan, largest]})
    pyarrow.parquet.write_table(table, "pyarrow.parquet")
    duckdb.sql("COPY table TO 'duckdb.parquet'")
    found[name] = [duckdb_count(source, "isnan(x)") for source in ("table", "'pyarrow.parquet'", "'duckdb.parquet'")]
    print(f"isnan(x) beside {name}: {found[name]} of memory, the file by pyarrow, the file by DuckDB")
    shown = duckdb.sql("SELECT count(*) FROM (SELECT isnan(x) AS n FROM 'pyarrow.parquet') WHERE n::VARCHAR = 'true'")
    print(f"  rows that SELECT isnan(x) shows: {shown.fetchall()[0][0]}")
    if name == "3.0":
        context = datafusion.SessionContext()
        context.register_parquet("file", "pyarrow.parquet")
        others = [
            context.sql(f"SELECT count(*) AS n FROM file WHERE {condition}").to_pydict()["n"][0]
            for condition in ("isnan(x)", "x > 2", "x > 3")
        ]
        print(f"  DataFusion, isnan(x), x > 2, x > 3: {others}")
assert found == {"3.0": [1, 0, 1], "infinity": [1, 1, 1]}, found
assert others == [1, 2, 0], others
PYTHON
cd "$folder"
venv/bin/python use.py
