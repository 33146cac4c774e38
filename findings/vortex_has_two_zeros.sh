#!/usr/bin/env bash
# vortex-data 0.93.0: of its files, Polars 2.1.0 and DuckDB 2.0.1 find -0.0 where z < 0.0, and not where z = 0.0.
#
# VortexFile.to_polars() and to_dataset() evaluate the filters that Polars and DuckDB hand down, by an order in which
# -0.0 comes before 0.0 and a NaN with its sign bit before all numbers. So the same query has other rows than over the
# collected frame, or over the same rows in Parquet. pyarrow's own expression gives other rows than on its own table.
# Expected: a filter that is handed down keeps the rows that it keeps in the library it comes from.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    vortex-data==0.93.0 polars==2.1.0 duckdb==2.0.1 pyarrow==26.0.1
cd "$folder"
venv/bin/python - <<'PYTHON'
import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import vortex

table = pa.table({"z": [-1.0, -0.0, 0.0, 1.0, float("nan"), -float("nan")], "n": range(6)})
vortex.io.write(table, "rows.vortex")
pq.write_table(table, "rows.parquet", write_statistics=False)
file = vortex.open("rows.vortex")
dataset = file.to_dataset()
collected = file.to_polars().collect()
parquet = duckdb.read_parquet("rows.parquet")
conditions = [
    ("z < 0.0", pl.col("z") < 0.0, pc.field("z") < 0.0),
    ("z = 0.0", pl.col("z") == 0.0, pc.field("z") == 0.0),
]
for sql, polars, arrow in conditions:
    answers = {
        "Polars on Vortex": file.to_polars().filter(polars).collect()["n"].to_list(),
        "Polars on the frame": collected.filter(polars)["n"].to_list(),
        "DuckDB on Vortex": [n for (n,) in duckdb.sql(f"SELECT n FROM dataset WHERE {sql}").fetchall()],
        "DuckDB on Parquet": [n for (n,) in parquet.filter(sql).order("n").project("n").fetchall()],
        "pyarrow on Vortex": dataset.to_table(filter=arrow)["n"].to_pylist(),
        "pyarrow on the table": table.filter(arrow)["n"].to_pylist(),
    }
    print(f"{sql}: {answers}")
    for library in ("Polars", "DuckDB", "pyarrow"):
        ours, theirs = (rows for name, rows in answers.items() if name.startswith(library))
        assert (1 in ours) != (1 in theirs), f"{library} finds -0.0 in Vortex as elsewhere now"
PYTHON
