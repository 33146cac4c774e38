#!/usr/bin/env bash
# Delta 4.4.0 on Spark meets deltalake 1.6.6 and DuckDB 1.5.5: WHERE x = 0.0 loses the file whose only number is -0.0.
#
# Spark writes -0.0 as both bounds into the table's log. The readers order -0.0 below 0.0 when they leave files out by
# those bounds, though their filters take the zeros for equal: x + 0.0 * id = 0.0, which no bounds can answer, has the
# row. deltalake widens the zeros of the tables that it writes itself, so this takes two writers.
# Expected: the row, as of Polars 2.1.0.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check --no-cache-dir \
    delta-spark==4.4.0 deltalake==1.6.6 duckdb==1.5.5 duckdb-extension-delta==1.5.5 polars==2.1.0 pyarrow==26.0.1
cat > "$folder/write.py" <<'PYTHON'
import pathlib

from delta import configure_spark_with_delta_pip
from pyspark.sql import SparkSession

builder = SparkSession.builder.master("local[1]")
for key, value in {
    "spark.ui.enabled": "false",
    "spark.jars.ivy": str(pathlib.Path("ivy").resolve()),
    "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
}.items():
    builder = builder.config(key, value)
session = configure_spark_with_delta_pip(builder).getOrCreate()
session.sparkContext.setLogLevel("OFF")
session.sql("SELECT 1L AS id, CAST('-0.0' AS DOUBLE) AS x").write.format("delta").save("zeros")
print(f"Spark: {session.read.format('delta').load('zeros').where('x = CAST(0 AS DOUBLE)').count()} rows")
session.stop()
PYTHON
cat > "$folder/use.py" <<'PYTHON'
import importlib.util
import pathlib

import duckdb
import polars
from deltalake import DeltaTable, QueryBuilder

query = QueryBuilder().register("zeros", DeltaTable("zeros"))
duck = duckdb.connect()
package = pathlib.Path(importlib.util.find_spec("duckdb_extension_delta").origin).parent
duck.execute(f"LOAD '{next(package.rglob('*.duckdb_extension'))}'")
counts = {}
for condition in ("x = 0.0", "x >= 0.0", "x + 0.0 * id = 0.0"):
    counts[condition] = (
        query.execute(f"SELECT id FROM zeros WHERE {condition}").read_all().num_rows,
        len(duck.execute(f"SELECT id FROM delta_scan('zeros') WHERE {condition}").fetchall()),
        polars.scan_delta("zeros").filter(polars.sql_expr(condition)).collect().height,
    )
    found = counts[condition]
    print(f"{condition}: deltalake {found[0]}, DuckDB {found[1]}, Polars {found[2]}")
assert list(counts.values()) == [(0, 0, 1), (0, 0, 1), (1, 1, 1)], counts
PYTHON
cd "$folder"
venv/bin/python write.py 2>"$folder/log" || { cat "$folder/log"; exit 1; }
venv/bin/python use.py
